//! Changing single entries of a leaf, as an update, an insertion or a removal does under the leaf's lock.
//!
//! Only what an entry occupies is written back (Sherman §4.4): 17 bytes for keys and values of 8 bytes. The versions of the
//! lines stay: an entry lies within its line, and one of two lines says by its states whether it is whole. Where lines have
//! checksums, the entry's whole lines are written back.

use std::ops::Range;

use fatbtree_remote_memory::record::RecordPointer;
use fatbtree_remote_memory::{Check, GlobalAddress};

use super::bucket::clear_key;
use super::leaf::{EntryValue, KEY, LeafNode, LeafShape, OCCUPIED, VALUE};
use super::{LINE, NodeFault, NodeHeader, next_version, offsets, word};
use crate::config::Integrity;

/// Content of an entry beside its key, for writing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NewValue<'v> {
    /// The value itself, which the leaf's entries [hold](LeafShape::holds).
    Inline(&'v [u8]),
    /// A record, written before.
    Record(RecordPointer),
    /// A layer, written before.
    Layer(GlobalAddress),
}

/// The entries of a leaf that was read and checked, and is locked.
#[derive(Clone, Copy, Debug)]
pub struct LeafView<'a> {
    bytes: &'a [u8],
    shape: LeafShape,
}

impl<'a> LeafView<'a> {
    /// A view of the bytes of a leaf, which must have the leaf's size.
    ///
    /// # Panics
    /// When they have not.
    #[must_use]
    pub fn new(bytes: &'a [u8], shape: &LeafShape) -> Self {
        assert_eq!(bytes.len(), shape.bytes() as usize, "a leaf is read whole");
        Self { bytes, shape: *shape }
    }

    /// The slot of a key.
    ///
    /// # Errors
    /// When it has two: to change one of them would bring back what the other one says.
    pub fn slot_of(&self, key: u64) -> Result<Option<usize>, NodeFault> {
        let is_its = |&slot: &usize| {
            self.bytes[self.shape.entry_offset(slot)] & OCCUPIED != 0 && self.key(slot) == key
        };
        let mut slots = (0..self.shape.capacity()).filter(is_its);
        match (slots.next(), slots.next()) {
            (Some(_), Some(_)) if Check::KeyTwice.on() => Err(NodeFault::KeyTwice { key }),
            (slot, _) => Ok(slot),
        }
    }

    /// Content of a slot's entry beside its key.
    ///
    /// # Errors
    /// When it points nowhere or is torn.
    pub fn value(&self, slot: usize) -> Result<EntryValue<'a>, NodeFault> {
        let (lines, _) = self.bytes.as_chunks::<LINE>();
        LeafNode::new(NodeHeader::parse(&lines[0]), lines, &self.shape).value(slot)
    }

    fn key(&self, slot: usize) -> u64 {
        let at = self.shape.entry_offset(slot) + KEY;
        let (lines, _) = self.bytes.as_chunks::<LINE>();
        word(&lines[at / LINE], at % LINE)
    }
}

/// A leaf that was read and checked, and is locked: its bytes, to be changed and written back in parts.
#[derive(Debug)]
pub struct LeafEditor<'a> {
    bytes: &'a mut [u8],
    shape: LeafShape,
    /// Entries were moved: the leaf is to be written back whole.
    is_rearranged: bool,
}

impl<'a> LeafEditor<'a> {
    /// An editor over the bytes of a leaf, which must have the leaf's size.
    ///
    /// # Panics
    /// When they have not.
    pub fn new(bytes: &'a mut [u8], shape: &LeafShape) -> Self {
        assert_eq!(bytes.len(), shape.bytes() as usize, "a leaf is read whole");
        Self { bytes, shape: *shape, is_rearranged: false }
    }

    /// The slot of a key.
    ///
    /// # Errors
    /// As [`LeafView::slot_of`].
    pub fn slot_of(&self, key: u64) -> Result<Option<usize>, NodeFault> {
        LeafView::new(self.bytes, &self.shape).slot_of(key)
    }

    /// A slot without an entry, for one of `key`. In a leaf of buckets other entries may be moved for it.
    #[must_use]
    pub fn free_slot(&mut self, key: u64) -> Option<usize> {
        let Some(lines) = self.shape.buckets() else {
            return (0..self.shape.capacity()).find(|&slot| !self.is_occupied(slot));
        };
        let version = next_version(self.bytes);
        let (slot, is_rearranged) = lines.make_room(self.bytes, key, self.shape.entry_bytes())?;
        if is_rearranged {
            self.is_rearranged = true;
            self.bytes[offsets::NODE_VERSION..][..4].copy_from_slice(&version.to_le_bytes());
            self.shape.marks().stamp(self.bytes, version.to_le_bytes()[0], self.shape.integrity());
        }
        Some(slot)
    }

    /// Entries in use.
    #[must_use]
    pub fn count(&self) -> usize {
        (0..self.shape.capacity()).filter(|&slot| self.is_occupied(slot)).count()
    }

    /// Content of a slot's entry beside its key.
    ///
    /// # Errors
    /// When it points nowhere or is torn.
    pub fn value(&self, slot: usize) -> Result<EntryValue<'_>, NodeFault> {
        LeafView::new(self.bytes, &self.shape).value(slot)
    }

    /// Puts key and value into a slot; the entry's version goes on from what is there. Returns the bytes of the leaf to be
    /// written back.
    ///
    /// # Panics
    /// When the value is not of the leaf's kind and size.
    pub fn put(&mut self, slot: usize, key: u64, value: NewValue<'_>) -> Range<usize> {
        let state = OCCUPIED | self.next_version(slot);
        let at = self.shape.entry_offset(slot);
        let entry = &mut self.bytes[at..at + self.shape.entry_bytes()];
        entry[KEY..VALUE].copy_from_slice(&key.to_le_bytes());
        self.shape.write(entry, value);
        self.set_state(slot, state)
    }

    /// Removes the entry of a slot. Returns the bytes of the leaf to be written back.
    pub fn remove(&mut self, slot: usize) -> Range<usize> {
        let state = self.next_version(slot);
        if self.shape.has_buckets() {
            let at = self.shape.entry_offset(slot);
            clear_key(&mut self.bytes[at..at + self.shape.entry_bytes()]);
        }
        self.set_state(slot, state)
    }

    fn is_occupied(&self, slot: usize) -> bool {
        self.bytes[self.shape.entry_offset(slot)] & OCCUPIED != 0
    }

    /// A version that neither end has: of an entry of two lines that was written in part, one end may have the next one already.
    fn next_version(&self, slot: usize) -> u8 {
        if !Check::EntryVersionGoesOn.on() {
            return 1;
        }
        let at = self.shape.entry_offset(slot);
        let next = |state: u8| state.wrapping_add(1) & !OCCUPIED;
        let version = next(self.bytes[at]);
        let is_at_rear =
            self.shape.is_wide() && self.bytes[at + self.shape.rear_state()] & !OCCUPIED == version;
        if is_at_rear { next(version) } else { version }
    }

    /// Writes the state, at both ends of a wide entry; says what is to be written back.
    fn set_state(&mut self, slot: usize, state: u8) -> Range<usize> {
        let at = self.shape.entry_offset(slot);
        self.bytes[at] = state;
        let mut end = at + self.shape.entry_bytes();
        if self.shape.is_wide() {
            let rear = at + self.shape.rear_state();
            self.bytes[rear] = state;
            end = rear + 1;
        }
        let mut changed = at..end;
        if self.shape.integrity() == Integrity::Checksums {
            let (first, last) = (at / LINE, (end - 1) / LINE);
            for line in first..=last {
                self.shape.marks().sum(self.bytes, line);
            }
            changed = first * LINE..(last + 1) * LINE;
        }
        if self.is_rearranged { 0..self.bytes.len() } else { changed }
    }
}
