//! Get: READ leaf. One round trip, and one more for a value out of line.

use std::ops::Deref;

use fatbtree_remote_memory::ReadBytes;
use fatbtree_remote_memory::record::RECORD_HEAD;
use fatbtree_verbs::Verbs;

use super::descend::Reached;
use super::{Answer, Index, Op};
use crate::checks::Check;
use crate::error::Stop;
use crate::leaf::{Place, Use};
use crate::word::{self, Pointer, Word};

/// A value that was read.
#[derive(Debug)]
pub struct Value(Bytes);

#[derive(Debug)]
enum Bytes {
    Word([u8; 8]),
    /// Record and length of the value.
    Record(ReadBytes, usize),
    /// Of a scan: there are more values than buffers.
    Copied(Vec<u8>),
}

impl Deref for Value {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Word(bytes) => bytes,
            Bytes::Record(bytes, length) => &bytes[RECORD_HEAD..][..*length],
            Bytes::Copied(bytes) => bytes,
        }
    }
}

impl Value {
    /// A value of eight bytes.
    pub(super) fn of_word(word: Word) -> Self {
        Self(Bytes::Word(word.0.to_le_bytes()))
    }

    /// The value of a record that was read. `None`: another one lies there.
    pub(super) fn of_record(bytes: ReadBytes, key: u64, pointer: Pointer) -> Option<Self> {
        let (length, _) = word::find(&bytes, key, pointer)?;
        Some(Self(Bytes::Record(bytes, length as usize)))
    }

    /// The same value, without the buffer into which it was read.
    pub(super) fn copied(self) -> Self {
        match &self.0 {
            Bytes::Record(..) => Self(Bytes::Copied(self.to_vec())),
            Bytes::Word(_) | Bytes::Copied(_) => self,
        }
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl<V: Verbs> Index<V> {
    /// Finds the value of a key. One round trip if the client knows the leaf, and one more for a value
    /// out of line.
    ///
    /// # Errors
    /// In the answer: see [`IndexError`](crate::IndexError).
    pub async fn get(&self, key: u64) -> Answer<Option<Value>> {
        self.answer(self.op(key), async |op| self.look_up(op).await).await
    }

    /// One attempt at the operation's key.
    pub(super) async fn look_up(&self, op: &mut Op) -> Result<Option<Value>, Stop> {
        let Reached::Leaf(held) = self.reach(op, Use::Read).await? else { return Ok(None) };
        match held.leaf().find(op.key) {
            Place::At(_, word) if !word.is_none() => self.value_of(op.key, word, op).await.map(Some),
            // As published, a key that has no value yet has the value 0.
            Place::At(..) if !Check::NoValue.on() => Ok(Some(Value(Bytes::Word([0; 8])))),
            Place::At(..) | Place::Nowhere(_) => Ok(None),
        }
    }

    /// The pointer of a word, in an index whose values may be long.
    pub(super) fn pointer(&self, word: Word) -> Option<Pointer> {
        if self.shape.fixed() { None } else { word.pointer() }
    }

    /// The value of a word.
    pub(super) async fn value_of(&self, key: u64, word: Word, op: &mut Op) -> Result<Value, Stop> {
        let Some(pointer) = self.pointer(word) else {
            return Ok(Value::of_word(word));
        };
        let length = pointer.bytes.into();
        let bytes = self.memory.read_long(&op.lane, pointer.at, length).await?;
        // A record that was freed since the leaf was read: the word has changed.
        match word::find(&bytes, key, pointer) {
            Some(_) => Value::of_record(bytes, key, pointer).ok_or(Stop::Later),
            None => Err(op.doubt(pointer.at, word.0, &bytes, "the record of the key's word, whole")),
        }
    }
}
