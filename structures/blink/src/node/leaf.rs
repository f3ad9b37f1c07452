//! Leaf nodes: unsorted entries, so that an insertion writes one entry back (Sherman §4.4).
//!
//! ```text
//! entry       offset 0, 1 byte    state: bit 7 occupied, bits 0..7 entry version, one more with every write
//!             offset 1, 8 bytes   key
//!   in line   offset 9, n bytes   value (n = 1..=64)
//!   pointer   offset 9, 8 bytes   address of the record (see crate::record)
//!             offset 17, 4 bytes  21 bits: bytes of the value, so that one READ fetches the whole record; 11 bits: its version
//!   by length offset 9, n bytes   a short value, or the pointer in another order: see `short` (n = 12..=65)
//!
//! line 0      the header
//! line 1..    offset 0, 1 byte    version, then as many entries as fit in the 63 bytes left:
//!             3 of 21 bytes with pointers or short values, 3 of 17 bytes with values of 8 bytes
//!
//! entries of more than 63 bytes, with values of 55 to 64: an entry takes two lines, 2k+1 and 2k+2, and both its ends carry its state
//!             offset   0, 1 byte  version of the first line
//!             offset   1          state, key, value, in one piece
//!             offset 126, 1 byte  state again (Sherman's rear entry version)
//!             offset 127, 1 byte  version of the second line
//! ```
//!
//! An entry within one line needs no second version: a line is written and read at once. Where it is not, each line has a
//! checksum of 4 bytes after its version (before it in the second line of a wide entry), and entries begin at offset 5:
//! 2 with pointers or 3 with values of 8 bytes in the 59 bytes left.

use std::ops::Range;

use fatbtree_remote_memory::record::RecordPointer;
use fatbtree_remote_memory::{Check, GlobalAddress};

use super::bucket::Lines;
use super::edit::NewValue;
use super::header::{
    FORMAT_BUCKETS, FORMAT_BUCKETS_BY_LENGTH, FORMAT_BUCKETS_OUT_OF_LINE, FORMAT_LONGER_VALUES,
};
use super::line::{CHECKSUM, Marks};
use super::{FORMAT_BY_LENGTH, FORMAT_OUT_OF_LINE, LINE, NodeFault, NodeHeader, NodeSpec, short, word};
use crate::config::{Integrity, LeafKind, MAX_INLINE_VALUE, POINTER_ROOM, ValueLayout};

pub(super) const OCCUPIED: u8 = 1 << 7;
pub(super) const KEY: usize = 1;
pub(super) const VALUE: usize = 9;
const POINTER_ENTRY: usize = VALUE + RecordPointer::BYTES;

const _: () = {
    assert!(POINTER_ENTRY == 21 && 3 * POINTER_ENTRY == LINE - 1);
    // The widest value ends before the rear state, also where lines have checksums.
    assert!(1 + CHECKSUM + VALUE + 1 + 64 < 2 * LINE - 1 - CHECKSUM);
};

/// Arrangement of entries in a leaf; follows from the value layout and the leaf's size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeafShape {
    bytes: u32,
    /// The format code of a plain leaf with such entries.
    format: u8,
    /// Bytes of the longest value in an entry, where others have records.
    short: Option<u8>,
    entry: u8,
    /// Offset of the first entry in its line.
    first: u8,
    /// Entries of a line; 0 where an entry takes two lines.
    per_line: u8,
    capacity: u16,
    integrity: Integrity,
    /// Arrangement of the lines of a leaf of buckets, which differ.
    buckets: Option<Lines>,
}

impl LeafShape {
    pub(crate) const fn new(values: ValueLayout, bytes: u32, integrity: Integrity) -> Self {
        let (format, short, entry) = match values {
            ValueLayout::Inline(n) => (n, None, VALUE + n as usize),
            ValueLayout::OutOfLine => (FORMAT_OUT_OF_LINE, None, POINTER_ENTRY),
            ValueLayout::SHORT => (FORMAT_BY_LENGTH, Some(POINTER_ROOM), POINTER_ENTRY),
            ValueLayout::ByLength(n) => (n + FORMAT_LONGER_VALUES, Some(n), VALUE + 1 + n as usize),
        };
        let first = match integrity {
            Integrity::LineVersions => 1,
            Integrity::Checksums => 1 + CHECKSUM,
        };
        let lines = (bytes as usize / LINE).saturating_sub(1);
        let per_line = (LINE - first) / entry;
        let capacity = if per_line == 0 { lines / 2 } else { lines * per_line };
        Self {
            bytes,
            format,
            short,
            entry: entry as u8,
            first: first as u8,
            per_line: per_line as u8,
            capacity: capacity as u16,
            integrity,
            buckets: None,
        }
    }

    /// The same as a leaf of buckets. `None` if there is no room for that.
    pub(crate) const fn with_buckets(self) -> Option<Self> {
        match Lines::new(self.bytes, self.entry as usize, self.integrity) {
            Some(lines) => {
                Some(Self { per_line: 1, capacity: lines.capacity() as u16, buckets: Some(lines), ..self })
            }
            None => None,
        }
    }

    /// The arrangement of lines in a leaf of buckets.
    pub(super) const fn buckets(&self) -> Option<&Lines> {
        self.buckets.as_ref()
    }

    /// Whether leaves have buckets.
    #[must_use]
    pub const fn has_buckets(&self) -> bool {
        self.buckets.is_some()
    }

    pub(super) const fn marks(&self) -> Marks {
        match (self.buckets, self.is_wide()) {
            (Some(_), _) => Marks::Buckets,
            (None, true) => Marks::WideLeaf,
            (None, false) => Marks::Leaf,
        }
    }

    /// Offset of the second copy of a wide entry's state from the entry.
    pub(super) const fn rear_state(&self) -> usize {
        2 * LINE - 2 * self.first as usize - 1
    }

    pub(super) const fn integrity(&self) -> Integrity {
        self.integrity
    }

    /// Bytes of the leaf.
    #[must_use]
    pub const fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Most entries of the leaf.
    #[must_use]
    pub const fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// Bytes of an entry: what an update writes back.
    #[must_use]
    pub const fn entry_bytes(&self) -> usize {
        self.entry as usize
    }

    /// The format code in the header.
    #[must_use]
    pub const fn format(&self) -> u8 {
        match (self.buckets, self.format) {
            (None, format) => format,
            (Some(_), FORMAT_OUT_OF_LINE) => FORMAT_BUCKETS_OUT_OF_LINE,
            (Some(_), FORMAT_BY_LENGTH) => FORMAT_BUCKETS_BY_LENGTH,
            (Some(_), format) => FORMAT_BUCKETS + format,
        }
    }

    /// Place of values, and kind of leaves, by the format code in a header. What no leaf has comes out as values in line of so
    /// many bytes.
    pub(crate) const fn of_format(format: u8) -> (ValueLayout, LeafKind) {
        match format {
            FORMAT_OUT_OF_LINE => (ValueLayout::OutOfLine, LeafKind::Plain),
            FORMAT_BY_LENGTH => (ValueLayout::SHORT, LeafKind::Plain),
            FORMAT_BUCKETS_OUT_OF_LINE => (ValueLayout::OutOfLine, LeafKind::Buckets),
            FORMAT_BUCKETS_BY_LENGTH => (ValueLayout::SHORT, LeafKind::Buckets),
            FORMAT_BUCKETS.. => (Self::of_format(format - FORMAT_BUCKETS).0, LeafKind::Buckets),
            inline if inline <= MAX_INLINE_VALUE => (ValueLayout::Inline(inline), LeafKind::Plain),
            longer => (ValueLayout::ByLength(longer - FORMAT_LONGER_VALUES), LeafKind::Plain),
        }
    }

    /// Whether entries may point to records.
    #[must_use]
    pub const fn has_records(&self) -> bool {
        self.format == FORMAT_OUT_OF_LINE || self.short.is_some()
    }

    /// Whether entries may hold values.
    #[must_use]
    pub const fn has_values(&self) -> bool {
        self.format != FORMAT_OUT_OF_LINE
    }

    /// Whether an entry holds a value of so many bytes, which the tree takes.
    #[must_use]
    pub const fn holds(&self, length: usize) -> bool {
        match self.short {
            Some(longest) => length <= longest as usize,
            None => self.has_values(),
        }
    }

    /// Place of an entry's value in its bytes. `None` if it points to a record.
    #[inline]
    pub(super) fn value_in(&self, entry: &[u8]) -> Option<Range<usize>> {
        match self.short {
            Some(longest) => {
                // No writer leaves a longer one: then the bytes are a pointer that leads to no record.
                let length = short::length(*entry.get(VALUE)?).filter(|length| *length <= longest.into())?;
                Some(VALUE + 1..VALUE + 1 + length)
            }
            None => self.has_values().then(|| VALUE..self.entry.into()),
        }
    }

    /// The layer to which an entry without a value leads, if it leads to one.
    #[inline]
    fn layer_in(&self, entry: &[u8]) -> Option<GlobalAddress> {
        self.short.and_then(|_| short::layer(entry.get(VALUE..)?))
    }

    /// Pointer to a record in the bytes of an entry without a value.
    #[inline]
    fn pointer_in(&self, entry: &[u8]) -> Option<RecordPointer> {
        let bytes = *entry.get(VALUE..)?.first_chunk()?;
        Some(RecordPointer::from_bytes(&if self.has_values() { short::of_pointer(bytes) } else { bytes }))
    }

    /// Fills the bytes of an entry after its key.
    ///
    /// # Panics
    /// When the value is not one that an entry of this leaf has.
    pub(super) fn write(&self, entry: &mut [u8], value: NewValue<'_>) {
        let room = &mut entry[VALUE..];
        match value {
            NewValue::Inline(value) if self.short.is_some() => {
                short::begin(room, value.len()).copy_from_slice(value);
            }
            NewValue::Inline(value) => {
                assert!(self.has_values(), "this leaf keeps values out of line");
                room.copy_from_slice(value);
            }
            NewValue::Layer(layer) => {
                assert!(self.short.is_some(), "entries of this leaf do not say what they hold");
                short::put_layer(room, layer);
            }
            NewValue::Record(pointer) => {
                assert!(self.has_records(), "this leaf keeps values in line");
                let bytes = pointer.to_bytes();
                let (pointer, rest) = room.split_at_mut(short::BYTES);
                pointer.copy_from_slice(&if self.has_values() { short::pointer(bytes) } else { bytes });
                rest.fill(0);
            }
        }
    }

    /// Whether an entry takes two lines.
    #[must_use]
    pub const fn is_wide(&self) -> bool {
        self.per_line == 0
    }

    /// Offset of entry `slot` from the start of the leaf.
    #[must_use]
    pub const fn entry_offset(&self, slot: usize) -> usize {
        if let Some(lines) = &self.buckets {
            return lines.entry_offset(slot, self.entry as usize);
        }
        let first = self.first as usize;
        if self.is_wide() {
            LINE + slot * 2 * LINE + first
        } else {
            let per_line = self.per_line as usize;
            LINE + slot / per_line * LINE + first + slot % per_line * self.entry as usize
        }
    }
}

/// Content of an entry beside its key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryValue<'a> {
    /// The value itself.
    Inline(&'a [u8]),
    /// The record that holds the value.
    Record(RecordPointer),
    /// The layer that tells apart the keys of bytes which share the entry.
    Layer(GlobalAddress),
}

/// A checked view of a leaf.
#[derive(Clone, Copy, Debug)]
pub struct LeafNode<'a> {
    header: NodeHeader,
    lines: &'a [[u8; LINE]],
    shape: LeafShape,
}

impl<'a> LeafNode<'a> {
    pub(super) const fn new(header: NodeHeader, lines: &'a [[u8; LINE]], shape: &LeafShape) -> Self {
        Self { header, lines, shape: *shape }
    }

    /// Line 0.
    #[must_use]
    pub const fn header(&self) -> &NodeHeader {
        &self.header
    }

    /// The entry of `key`.
    ///
    /// # Errors
    /// When the entry was written while it was read, or points nowhere.
    #[inline]
    pub fn find(&self, key: u64) -> Result<Option<EntryValue<'a>>, NodeFault> {
        Ok(self.find_slot(key)?.map(|(_, value)| value))
    }

    /// The entry of `key`, and its slot.
    ///
    /// # Errors
    /// As [`find`](Self::find).
    #[inline]
    pub fn find_slot(&self, key: u64) -> Result<Option<(usize, EntryValue<'a>)>, NodeFault> {
        // Entry sizes that matter get loops with constant offsets.
        let slot = match (self.shape.first, self.shape.per_line, self.shape.entry_bytes()) {
            (1, 3, POINTER_ENTRY) => self.position::<3, POINTER_ENTRY>(key),
            (1, 3, 17) => self.position::<3, 17>(key),
            _ => match &self.shape.buckets {
                Some(lines) => self.position_among(lines.slots_of(key), key),
                None => self.position_among(0..self.shape.capacity(), key),
            },
        };
        match slot {
            None => Ok(None),
            Some(slot) => self.value(slot).map(|value| Some((slot, value))),
        }
    }

    /// All entries, in the order of their slots.
    pub fn entries(&self) -> impl Iterator<Item = Result<(u64, EntryValue<'a>), NodeFault>> {
        let this = *self;
        (0..this.shape.capacity())
            .filter(move |&slot| this.state(slot) & OCCUPIED != 0)
            .map(move |slot| this.value(slot).map(|value| (this.key(slot), value)))
    }

    /// All entries, in ascending order of their keys: each key once, and within the fences.
    ///
    /// # Errors
    /// When it is otherwise, or an entry was written while it was read, or points nowhere.
    pub fn sorted(&self) -> Result<Vec<(u64, EntryValue<'a>)>, NodeFault> {
        let mut entries = self.entries().collect::<Result<Vec<_>, _>>()?;
        entries.sort_unstable_by_key(|(key, _)| *key);
        each_key_once(&entries)?;
        let range = self.header.range();
        match entries.iter().find(|(key, _)| !range.contains(*key)) {
            Some(&(key, _)) if Check::Structure.on() => Err(NodeFault::KeyOutside { key, range }),
            _ => Ok(entries),
        }
    }

    #[inline]
    fn position<const PER_LINE: usize, const ENTRY: usize>(&self, key: u64) -> Option<usize> {
        for (index, line) in self.lines[1..].iter().enumerate() {
            // All keys of a line are compared before the one branch that is almost never taken.
            let mut hit = 0_usize;
            for i in 0..PER_LINE {
                let at = 1 + i * ENTRY;
                let same = word(line, at + KEY) == key && line[at] & OCCUPIED != 0;
                hit |= usize::from(same) << i;
            }
            if hit != 0 {
                return Some(index * PER_LINE + hit.trailing_zeros() as usize);
            }
        }
        None
    }

    fn position_among(&self, mut slots: Range<usize>, key: u64) -> Option<usize> {
        slots.find(|&slot| self.key(slot) == key && self.state(slot) & OCCUPIED != 0)
    }

    fn bytes(&self, slot: usize) -> &'a [u8] {
        self.lines.as_flattened().get(self.shape.entry_offset(slot)..).unwrap_or_default()
    }

    fn state(&self, slot: usize) -> u8 {
        self.bytes(slot).first().copied().unwrap_or_default()
    }

    fn key(&self, slot: usize) -> u64 {
        self.bytes(slot).get(KEY..).and_then(|b| b.first_chunk()).map_or(0, |b| u64::from_le_bytes(*b))
    }

    #[inline]
    pub(super) fn value(&self, slot: usize) -> Result<EntryValue<'a>, NodeFault> {
        let bytes = self.bytes(slot);
        if self.shape.is_wide()
            && bytes.get(self.shape.rear_state()) != bytes.first()
            && Check::EntryVersion.on()
        {
            return Err(NodeFault::TornEntry { slot });
        }
        Self::value_of(&self.shape, slot, &bytes[..self.shape.entry_bytes()])
    }

    /// Content of the entry in `slot`, whose bytes these are.
    #[inline]
    pub(super) fn value_of(
        shape: &LeafShape,
        slot: usize,
        entry: &'a [u8],
    ) -> Result<EntryValue<'a>, NodeFault> {
        if let Some(value) = shape.value_in(entry) {
            return Ok(EntryValue::Inline(&entry[value]));
        }
        if let Some(layer) = shape.layer_in(entry) {
            return Ok(EntryValue::Layer(layer));
        }
        let pointer = shape.pointer_in(entry);
        match pointer.filter(|pointer| !pointer.address.is_null() || !Check::NullPointer.on()) {
            Some(pointer) => Ok(EntryValue::Record(pointer)),
            None => Err(NodeFault::NullPointer { slot }),
        }
    }
}

/// Checks entries of a leaf, sorted by their keys.
///
/// While a leaf is read, a key can be deleted from one line of it and inserted into another one: no line's version changes by that, and
/// the reader gets both. So a leaf that has a key twice is torn.
///
/// # Errors
/// When a key is there twice.
pub(crate) fn each_key_once<T>(entries: &[(u64, T)]) -> Result<(), NodeFault> {
    match entries.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        Some(pair) if Check::KeyTwice.on() => Err(NodeFault::KeyTwice { key: pair[0].0 }),
        _ => Ok(()),
    }
}

/// Writes a leaf, entry by entry. Nothing is valid before [`LeafBuilder::finish`].
#[derive(Debug)]
pub struct LeafBuilder<'a> {
    bytes: &'a mut [u8],
    shape: LeafShape,
    spec: NodeSpec,
    count: u16,
}

impl<'a> LeafBuilder<'a> {
    /// Begins an empty leaf over `bytes`, which must have the leaf's size.
    ///
    /// # Panics
    /// When it has not.
    pub fn new(bytes: &'a mut [u8], shape: &LeafShape, spec: NodeSpec) -> Self {
        assert_eq!(bytes.len(), shape.bytes as usize, "a leaf is written whole");
        bytes.fill(0);
        Self { bytes, shape: *shape, spec, count: 0 }
    }

    /// Adds an entry and gives out the bytes of its value to be filled: all values of the leaf have as many.
    ///
    /// # Panics
    /// When the leaf is full, or its values have no such length.
    pub fn push_inline(&mut self, key: u64) -> &mut [u8] {
        assert!(!self.shape.has_records(), "values have no length in common");
        &mut self.push(key)[VALUE..]
    }

    /// Adds an entry and gives out the bytes of its value, so many, to be filled.
    ///
    /// # Panics
    /// When the leaf is full, or its entries [hold](LeafShape::holds) no such value.
    pub fn push_short(&mut self, key: u64, length: usize) -> &mut [u8] {
        assert!(self.shape.short.is_some(), "values have all the same length, or none is here");
        short::begin(&mut self.push(key)[VALUE..], length)
    }

    /// Adds an entry that points to a record.
    ///
    /// # Panics
    /// When the leaf is full, or keeps values in line.
    pub fn push_record(&mut self, key: u64, record: RecordPointer) {
        self.push_value(key, NewValue::Record(record));
    }

    /// Adds an entry.
    ///
    /// # Panics
    /// When the leaf is full, or the value is not one that its entries have.
    pub fn push_value(&mut self, key: u64, value: NewValue<'_>) {
        let shape = self.shape;
        shape.write(self.push(key), value);
    }

    /// Writes header and line versions, and puts entries of a leaf of buckets in their places; returns the number of entries.
    ///
    /// # Panics
    /// When not all keys have places in one leaf of buckets: see [`LeafShape::fitting`].
    pub fn finish(self) -> usize {
        let Self { bytes, shape, spec, count } = self;
        if let Some(line) = bytes.first_chunk_mut::<LINE>() {
            NodeHeader::emit(line, &spec, shape.format(), count, GlobalAddress::NULL, shape.integrity);
        }
        if let Some(lines) = &shape.buckets {
            let places = lines.arrange(bytes, None, shape.entry_bytes());
            assert!(places.is_some(), "these keys were said to have places in one leaf");
            lines.repeat_header(bytes);
        }
        shape.marks().stamp(bytes, spec.version.to_le_bytes()[0], shape.integrity);
        usize::from(count)
    }

    fn push(&mut self, key: u64) -> &mut [u8] {
        assert!(self.count < self.shape.capacity, "the leaf holds {} entries", self.shape.capacity);
        let at = self.shape.entry_offset(usize::from(self.count));
        self.count += 1;
        let state = OCCUPIED | 1;
        if self.shape.is_wide() {
            self.bytes[at + self.shape.rear_state()] = state;
        }
        let entry = &mut self.bytes[at..at + usize::from(self.shape.entry)];
        entry[0] = state;
        entry[KEY..VALUE].copy_from_slice(&key.to_le_bytes());
        entry
    }
}
