//! Lookups of keys of bytes.

use fatbtree_remote_memory::byte_keys::{self, MAX_KEY_BYTES, key_room, longest_value, parts};
use fatbtree_verbs::Verbs;

use super::head::LayerState;
use super::{Check, Spelled};
use crate::config::Keys;
use crate::descent::{Descent, Reason};
use crate::lookup::{At, Lookup, Place, Value};
use crate::operation::{OperationError, Start, ValueBytes};
use crate::pool::Pool;
use crate::speculation::EntryPart;

/// Appends the value of a record with this key and value.
pub fn join(key: &[u8], value: &[u8], to: &mut Vec<u8>) {
    let from = to.len();
    to.resize(from + key_room(key) + value.len(), 0);
    byte_keys::join(&mut to[from..], key, value);
}

/// The value in a record, if it is this key's.
fn value_of(record: Value, key: &[u8]) -> Option<Value> {
    let (found, _) = parts(&record)?;
    let room = key_room(found);
    (found == key || !Check::Key.on()).then(|| record.behind(room))
}

impl<V: Verbs> Pool<V> {
    /// Looks up one key of bytes. The key of the answer is that of the first layer.
    pub async fn lookup_bytes(&self, key: &[u8], start: Start) -> Lookup {
        self.count(|stats| stats.lookups += 1);
        let spelled = Spelled::of(key);
        let word = self.config().tree.code().word_of(&spelled);
        let mut descent = Descent::new(self, word);
        let result = match self.check_key(key, word, 0) {
            Err(error) => Err(error),
            Ok(()) => {
                let ends = descent.ends_here(&spelled);
                let its = |part, value| match part {
                    EntryPart::Slot(_) => (ends || !Check::Ended.on()).then_some(value),
                    EntryPart::Record(_) => value_of(value, key),
                };
                let mut attempt = descent.speculate(start, its).await.transpose();
                loop {
                    let ended = match attempt.take() {
                        Some(speculated) => speculated.map(Some),
                        None => match descent.begin(start).await {
                            Ok(start) => descent.get_bytes(key, &spelled, start).await,
                            Err(reason) => Err(reason),
                        },
                    };
                    match ended {
                        Ok(value) => break Ok(value),
                        Err(reason) => {
                            descent.go_back(None, word);
                            if let Err(error) = descent.recover(reason).await {
                                break Err(error);
                            }
                        }
                    }
                }
            }
        };
        let (trips, latency) = descent.end();
        Lookup { key: word, result, trips, latency }
    }

    /// Checks the lengths of a key, whose first word is given, and of its value.
    pub(super) fn check_key(&self, key: &[u8], word: u64, value: usize) -> Result<(), OperationError> {
        self.check_keys(Keys::Bytes)?;
        if key.len() > MAX_KEY_BYTES {
            return Err(OperationError::KeyBytes { key: word, found: key.len() });
        }
        let most = longest_value(key);
        if value > most {
            let expected = ValueBytes::UpTo(most as u32);
            return Err(OperationError::ValueSize { key: word, found: value, expected });
        }
        Ok(())
    }
}

impl<V: Verbs> Descent<'_, V> {
    /// One attempt.
    async fn get_bytes(
        &mut self,
        key: &[u8],
        spelled: &Spelled<'_>,
        start: Start,
    ) -> Result<Option<Value>, Reason> {
        let (mut leaf, mut place) = match self.place(start, true).await? {
            At::Leaf { leaf, place } => (leaf, place),
            At::Record { record, value } => {
                let found = value_of(Value::within(record, value), key);
                if found.is_some() {
                    return Ok(found);
                }
                // The switches know the record of another key with this word.
                match self.place(start, false).await? {
                    At::Leaf { leaf, place } => (leaf, place),
                    At::Record { .. } => return Ok(None),
                }
            }
        };
        loop {
            match place {
                Place::Nowhere => return Ok(None),
                Place::Inline { leaf: address, slot, value } => {
                    let is_its = self.ends_here(spelled) || !Check::Ended.on();
                    if let Some(address) = address.filter(|_| is_its) {
                        self.note_place(address, EntryPart::Slot(slot));
                    }
                    return Ok(is_its.then(|| Value::within(leaf, value)));
                }
                Place::Record(pointer) => {
                    drop(leaf);
                    let record = self.read_value(pointer).await?;
                    if parts(&record).is_some_and(|(found, _)| found == key) {
                        self.note_record(pointer, &record);
                    }
                    return Ok(value_of(record, key));
                }
                Place::Layer(layer) => {
                    drop(leaf);
                    let found = self.open(layer).await?;
                    if found.state == LayerState::Gone {
                        return Ok(None);
                    }
                    let (start, first) = self.go_down(found, spelled);
                    let word = self.key();
                    (leaf, place) = self
                        .descend(start, first, 0, |node, bytes| Place::in_leaf(node, bytes, word))
                        .await?;
                }
            }
        }
    }
}
