//! Changes of keys of bytes.

use fatbtree_remote_memory::Change;
use fatbtree_remote_memory::byte_keys::parts;
use fatbtree_verbs::Verbs;

use super::get::join;
use super::head::LayerState;
use super::{Check, Layer, Spelled};
use crate::descent::{Descent, Reason};
use crate::lookup::{At, Place};
use crate::node::{EntryValue, Node};
use crate::operation::{OperationError, Start};
use crate::pool::Pool;
use crate::write::MutationResult;
use crate::write::leaf::{Content, Former, Locked, Outcome, present, record_of};

/// The layers above the one where a change is, each with the key of the entry that leads on.
pub(super) type Above = Vec<(Option<Box<Layer>>, u64)>;

/// The key in an entry.
enum Occupant {
    /// There is none.
    Free,
    /// The key that is to be changed. Whether it has the value that was expected.
    Same { is_expected: bool },
    /// Another one.
    Other(Vec<u8>),
}

impl Occupant {
    /// The key that is to be changed, with this value.
    fn same(change: Change<'_>, value: &[u8]) -> Self {
        Self::Same { is_expected: change.expected().is_none_or(|expected| expected == value) }
    }

    /// The key of a record, which may be the one that is to be changed.
    fn of_record(record: &[u8], key: &[u8], change: Change<'_>) -> Self {
        match parts(record) {
            Some((found, value)) if found == key => Self::same(change, value),
            found => Self::Other(found.map_or_else(Vec::new, |(found, _)| found.to_vec())),
        }
    }
}

impl<V: Verbs> Pool<V> {
    /// Changes what is stored for a key of bytes, as [`mutate`](Self::mutate) does for a number. The key of the answer is that of the first
    /// layer.
    pub async fn mutate_bytes(&self, key: &[u8], change: Change<'_>, start: Start) -> MutationResult {
        let spelled = Spelled::of(key);
        let word = self.config().tree.code().word_of(&spelled);
        let mut descent = Descent::new(self, word);
        let (_turn, _ongoing) = (self.compete().await, self.begin());
        let result = self.try_mutate_bytes(&mut descent, (key, &spelled), change, start).await;
        let (trips, latency) = descent.end();
        MutationResult { key: word, result, trips, latency }
    }

    async fn try_mutate_bytes(
        &self,
        descent: &mut Descent<'_, V>,
        (key, spelled): (&[u8], &Spelled<'_>),
        change: Change<'_>,
        start: Start,
    ) -> Result<bool, OperationError> {
        let word = descent.key();
        self.check_key(key, word, change.value().map_or(0, <[u8]>::len))?;
        self.finish().await;
        loop {
            let attempt = match descent.begin(start).await {
                Ok(start) => descent.mutate_bytes(key, spelled, change, start).await,
                Err(reason) => Err(reason),
            };
            match attempt {
                Ok(applied) => return Ok(applied),
                Err(reason) => {
                    descent.go_back(None, word);
                    descent.recover(reason).await?;
                }
            }
        }
    }
}

impl<'p, V: Verbs> Descent<'p, V> {
    /// One attempt.
    async fn mutate_bytes(
        &mut self,
        key: &[u8],
        spelled: &Spelled<'_>,
        change: Change<'_>,
        start: Start,
    ) -> Result<bool, Reason> {
        let mut above = Above::new();
        let (mut start, mut first) = (start, None);
        loop {
            // Whether there is a layer is read without a lock: all keys of a layer would wait for one.
            let word = self.key();
            let (address, layer) = match (first.take(), start) {
                (None, Start::IndexRead) if self.tree().leaf_shape().has_buckets() => {
                    match self.place(start, false).await? {
                        At::Leaf { place: Place::Layer(layer), .. } => (None, Some(layer)),
                        _ => (None, None),
                    }
                }
                (first, start) => {
                    let arrive = |node: &Node<'_>, bytes: &[u8]| {
                        Ok((node.header().address, Place::in_leaf(node, bytes, word)?))
                    };
                    let (_, (address, place)) = self.descend(start, first, 0, arrive).await?;
                    let layer = if let Place::Layer(layer) = place { Some(layer) } else { None };
                    (Some(address), layer)
                }
            };
            if let Some(layer) = layer {
                let found = self.open(layer).await?;
                if found.state != LayerState::Here && Check::Settled.on() {
                    Box::pin(self.settle_layer(found)).await?;
                    continue;
                }
                above.push((self.layer().cloned().map(Box::new), word));
                (start, first) = self.go_down(found, spelled);
                continue;
            }
            let leaf = match address {
                Some(address) => address,
                None => self.locate(start, 0).await?,
            };
            let locked = self.lock_node(leaf, 0).await?;
            let address = locked.address;
            match self.change_locked(locked, key, spelled, change).await? {
                Some(Outcome::Done(applied)) => {
                    self.tell_untold().await;
                    return Ok(applied);
                }
                Some(Outcome::Thin) => {
                    Box::pin(self.merge_up()).await;
                    Box::pin(self.remove_layers(above)).await;
                    return Ok(true);
                }
                // A layer has come, or the leaf was split.
                Some(Outcome::Split(_)) | None => start = Start::Node { address, level: 0 },
            }
        }
    }

    /// Changes a locked leaf. `None`: another key was in the entry, or several, which have a layer now.
    async fn change_locked(
        &mut self,
        locked: Locked<'p, V>,
        key: &[u8],
        spelled: &Spelled<'_>,
        change: Change<'_>,
    ) -> Result<Option<Outcome>, Reason> {
        let (shape, word) = (*self.tree().leaf_shape(), self.key());
        let (slot, entry) = match present(&locked.bytes, &shape, word) {
            Ok(found) => found,
            Err(fault) => return self.without(locked.guard, Reason::Fault(fault)).await,
        };
        let ends = self.ends_here(spelled);
        let occupant = match entry {
            None => Occupant::Free,
            Some(EntryValue::Inline(value)) if ends => Occupant::same(change, value),
            // Both have this word, and the other one ends with it.
            Some(EntryValue::Inline(_)) => Occupant::Other(spelled.ended_at(self.beginning().below(word))),
            Some(EntryValue::Record(record)) => match self.read_value(record).await {
                Ok(record) => Occupant::of_record(&record, key, change),
                Err(reason) => return self.without(locked.guard, reason).await,
            },
            Some(EntryValue::Layer(_)) => {
                // It has come since the leaf was read.
                locked.guard.release(self.lane()).await?;
                return Ok(None);
            }
        };
        let applies = match &occupant {
            Occupant::Same { is_expected } => *is_expected && change.applies(true),
            Occupant::Free | Occupant::Other(_) => change.applies(false),
        };
        if !applies {
            locked.guard.release(self.lane()).await?;
            return Ok(Some(Outcome::Done(false)));
        }
        if let Occupant::Other(other) = &occupant {
            let slot = slot.expect("an entry has a slot");
            Box::pin(self.create_layer(locked, slot, other, spelled)).await?;
            return Ok(None);
        }
        let former = Former { slot, record: entry.and_then(record_of) };
        let mut record = Vec::new();
        let new = match change.value() {
            None => None,
            Some(value) if ends && shape.holds(value.len()) => Some(Content::InEntry(value)),
            Some(value) => {
                join(key, value, &mut record);
                Some(Content::InRecord(&record))
            }
        };
        self.change_entry(locked, former, new).await.map(Some)
    }
}
