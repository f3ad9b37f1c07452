//! Lookups: a descent to the leaf, and to the record if the value lies in one.

use std::cell::Cell;
use std::fmt;
use std::ops::{Deref, Range};

use fatbtree_remote_memory::record::{RecordHead, RecordPointer, read_record, record_bytes};
use fatbtree_remote_memory::{GlobalAddress, ReadBytes};
use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{Buffer, Verbs};

use crate::config::Keys;
use crate::descent::{Descent, HintResult, Reason};
use crate::node::{EntryValue, Node, NodeFault};
use crate::operation::{OperationError, Start, Trips};
use crate::pool::Pool;
use crate::speculation::EntryPart;

/// A value in the registered buffer that it was read into, which goes back to its pool when the value is dropped. A long one is in memory of
/// its own.
pub struct Value {
    bytes: ReadBytes,
    start: u32,
    len: u32,
}

impl Value {
    /// The part of a buffer that is the value.
    pub(crate) fn within(buffer: Buffer, value: Range<usize>) -> Self {
        Self { bytes: ReadBytes::Whole(buffer), start: value.start as u32, len: value.len() as u32 }
    }

    /// The part of it after so many bytes.
    pub(crate) fn behind(self, bytes: usize) -> Self {
        let bytes = (bytes as u32).min(self.len);
        Self { start: self.start + bytes, len: self.len - bytes, ..self }
    }
}

impl Deref for Value {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[self.start as usize..][..self.len as usize]
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Value({} bytes)", self.len)
    }
}

/// A finished lookup.
#[derive(Debug)]
pub struct Lookup {
    /// The key.
    pub key: u64,
    /// The value; none when the tree has no such key.
    pub result: Result<Option<Value>, OperationError>,
    /// Its round trips.
    pub trips: Trips,
    /// Time from its first step to its end, waiting for reconnections included.
    pub latency: Duration,
}

/// Place of a key's value, in a leaf or in a bucket of it.
pub(crate) enum Place {
    Nowhere,
    /// The leaf is not known where switches have led to a bucket.
    Inline {
        leaf: Option<GlobalAddress>,
        slot: u32,
        value: Range<usize>,
    },
    Record(RecordPointer),
    /// Several keys of bytes share the entry.
    Layer(GlobalAddress),
}

/// Where a walk for a value has ended.
pub(crate) enum At {
    /// At the record, which switches have led to.
    Record { record: Buffer, value: Range<usize> },
    /// At the leaf, or at the key's bucket in it.
    Leaf { leaf: Buffer, place: Place },
}

impl Place {
    /// Of what was found at `leaf`, in `bytes`.
    #[inline]
    pub(crate) fn of(
        found: Option<(usize, EntryValue<'_>)>,
        leaf: Option<GlobalAddress>,
        bytes: &[u8],
    ) -> Self {
        match found {
            None => Self::Nowhere,
            Some((slot, EntryValue::Inline(value))) => {
                let start = offset_in(bytes, value) as usize;
                Self::Inline { leaf, slot: slot as u32, value: start..start + value.len() }
            }
            Some((_, EntryValue::Record(pointer))) => Self::Record(pointer),
            Some((_, EntryValue::Layer(layer))) => Self::Layer(layer),
        }
    }

    /// In a leaf that was read whole.
    #[inline]
    pub(crate) fn in_leaf(node: &Node<'_>, bytes: &[u8], key: u64) -> Result<Self, NodeFault> {
        let Node::Leaf(leaf) = node else {
            // Only without the check of levels does another node come here.
            return Ok(Self::Nowhere);
        };
        Ok(Self::of(leaf.find_slot(key)?, Some(leaf.header().address), bytes))
    }
}

impl<V: Verbs> Pool<V> {
    /// Looks up one key. `start` says where the walk begins; with [`Start::IndexRead`] on a connection that is not
    /// registered it begins at the root.
    pub async fn lookup(&self, key: u64, start: Start) -> Lookup {
        self.count(|stats| stats.lookups += 1);
        let mut descent = Descent::new(self, key);
        if let Err(error) = self.check_keys(Keys::Numbers) {
            let (trips, latency) = descent.end();
            return Lookup { key, result: Err(error), trips, latency };
        }
        let mut attempt = descent.speculate(start, |_, value| Some(value)).await.transpose();
        let result = loop {
            let ended = match attempt.take() {
                Some(speculated) => speculated.map(Some),
                None => match descent.begin(start).await {
                    Ok(start) => descent.get(start).await,
                    Err(reason) => Err(reason),
                },
            };
            match ended {
                Ok(value) => break Ok(value),
                Err(reason) => {
                    if let Err(error) = descent.recover(reason).await {
                        break Err(error);
                    }
                }
            }
        };
        let (trips, latency) = descent.end();
        Lookup { key, result, trips, latency }
    }
}

impl<V: Verbs> Descent<'_, V> {
    /// One attempt.
    #[inline]
    pub(crate) async fn get(&mut self, start: Start) -> Result<Option<Value>, Reason> {
        let (leaf, place) = match self.place(start, true).await? {
            At::Record { record, value } => return Ok(Some(Value::within(record, value))),
            At::Leaf { leaf, place } => (leaf, place),
        };
        match place {
            Place::Nowhere => Ok(None),
            Place::Inline { leaf: address, slot, value } => {
                if let Some(address) = address {
                    self.note_place(address, EntryPart::Slot(slot));
                }
                Ok(Some(Value::within(leaf, value)))
            }
            Place::Record(pointer) => {
                drop(leaf);
                let value = self.read_value(pointer).await?;
                self.note_record(pointer, &value);
                Ok(Some(value))
            }
            Place::Layer(layer) => Err(Reason::Fault(NodeFault::NoLayers { layer })),
        }
    }

    /// Finds the place of the key's value. With `or_record` switches may lead to its record at once, if it is not known to have moved.
    #[inline]
    pub(crate) async fn place(&mut self, mut start: Start, or_record: bool) -> Result<At, Reason> {
        let (key, shape) = (self.key(), *self.tree().leaf_shape());
        let (mut first, mut read) = (None, None);
        let bucket = shape.bucket_offset(key);
        if start == Start::IndexRead && (bucket.is_some() || shape.has_records()) {
            let or_record = or_record && (!shape.has_records() || !self.pool().avoids_record(key));
            let hint = match bucket {
                Some(offset) => self.ask_for_bucket(offset, or_record).await?,
                None if or_record => self.ask_switches().await?,
                None => HintResult::Stale,
            };
            match hint {
                HintResult::Record { record, value } => return Ok(At::Record { record, value }),
                HintResult::Bucket { bytes, place } => read = Some((bytes, place)),
                HintResult::Node(node) => first = Some(node),
                HintResult::At { address, level } => start = Start::Node { address, level },
                HintResult::Stale => {}
            }
        }
        let (leaf, place) = match (read, bucket) {
            (Some(read), _) => read,
            (None, Some(offset)) => self.descend_to_bucket(start, first, offset).await?,
            (None, None) => {
                self.descend(start, first, 0, |node, bytes| Place::in_leaf(node, bytes, key)).await?
            }
        };
        Ok(At::Leaf { leaf, place })
    }

    /// Notes the place of a record that was read, if it has its mark: without it a speculative lookup would not be answered there.
    #[inline]
    pub(crate) fn note_record(&self, pointer: RecordPointer, value: &Value) {
        let head = value.bytes.first_chunk().map(RecordHead::parse);
        if head.is_some_and(|head| head.is_published(self.record_key(), pointer)) {
            self.note_place(pointer.address, EntryPart::Record(pointer.length));
        }
    }

    /// The value in the record that a leaf's entry leads to.
    #[inline]
    pub(crate) async fn read_value(&mut self, pointer: RecordPointer) -> Result<Value, Reason> {
        let key = self.record_key();
        let wrong = Cell::new(None);
        let check = |bytes: &[u8]| match read_record(bytes, key, pointer) {
            Ok(value) => Ok(offset_in(bytes, value)),
            Err(fault) => {
                wrong.set(Some(crc32fast::hash(bytes)));
                Err(NodeFault::from(fault))
            }
        };
        match self.read_checked(pointer.address, record_bytes(pointer.length), check).await {
            Ok((bytes, start)) => Ok(Value { bytes, start, len: pointer.length }),
            Err(reason) => {
                if let (Reason::Fault(_), Some(bytes)) = (&reason, wrong.get()) {
                    let [.., v0, v1, v2, v3] = pointer.to_bytes();
                    self.doubt(pointer.address, u32::from_le_bytes([v0, v1, v2, v3]).into(), bytes);
                }
                Err(reason)
            }
        }
    }
}

/// Offset of `part` in `whole`, of which it is a part.
#[inline]
fn offset_in(whole: &[u8], part: &[u8]) -> u32 {
    (part.as_ptr().addr() - whole.as_ptr().addr()) as u32
}
