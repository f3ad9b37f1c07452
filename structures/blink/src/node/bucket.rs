//! Leaves of buckets: a lookup reads two lines of the leaf, and nothing else of it.
//!
//! ```text
//!   line      0        1      2      3      4             15
//!         ┌────────┬──────┬──────┬──────┬──────┬─ ... ─┬──────┐
//!   leaf  │ header │      │      │      │      │       │      │
//!         └────────┴──────┴──────┴──────┴──────┴─ ... ─┴──────┘
//!   bucket 0        └─────────────┘
//!   bucket 1               └─────────────┘                        the key's hash names one of 14
//!   bucket 2                      └─────────────┘
//! ```
//!
//! A bucket is two lines, and each line but the outermost belongs to two buckets. A key's entry lies anywhere in its bucket and nowhere else, so
//! the bucket alone tells whether the key is there.
//!
//! **What a bucket says of itself.** The header's line is not read, so its lines repeat what a reader must know: what they are, that the leaf is
//! neither free nor being split or merged, and the fences.
//!
//! ```text
//!   entries of up to 17 bytes   every line  offset 0, 1 byte    version, as in every line of a node
//!                                           offset 1, 1 byte    flags: bit 0 free, bit 1 last, bit 2 checksums, bit 3 the leaf has a partner
//!                                           offset 2, 2 bytes   magic: 101, and 13 bits made of format, server and the line's number
//!                               odd lines   offset 4, 8 bytes   low fence        even lines: high fence
//!                                           offset 12           entries: 3
//!
//!   entries of up to 21 bytes   odd lines   offset 0, 1 byte    version
//!                                           offset 1            entries: 3
//!                               even lines  offset 0, 4 bytes   version, flags, magic
//!                                           offset 4, 16 bytes  low fence, high fence
//!                                           offset 20           entries: 2
//!
//!   where lines tear            the last 4 bytes of a line are its checksum, and entries take what is left
//! ```
//!
//! Of the two arrangements a tree has the one with more room: 45 entries with values of 8 bytes in a leaf of 1 KB, as many as a plain one, and 38 with
//! pointers or short values, where a plain one has 45.
//!
//! **Why that is enough.** Both lines have one version, so they are of one whole write of the leaf, which said one range. A leaf that is split, merged or
//! freed says so in all its lines before another node has its keys: so a bucket that says nothing of that kind, and whose range has the key, was
//! read while the leaf had the key or had none. The entries of one line are read at once, and those of two lines may be of two moments, as in
//! any leaf: a key that moves from one line to the other in between was away in between.
//!
//! A bucket does not say where its leaf lies, only on which server. It need not: memory that was a leaf is used again for leaves only, and a leaf begins
//! where one began before.
//!
//! **Room.** Where neither line of a bucket has a free slot, entries of other buckets are moved, and the leaf is written whole; where that does
//! not help either, it is split. Leaves that are filled in random order are split at 79 % of their slots (74 % with pointers), on average.
//! Other ways to fill a leaf were compared, by the slots in use when the first key finds no room, in 4000 leaves of random keys:
//!
//! | way | slots | in use | bytes that a lookup reads |
//! |---|---|---|---|
//! | buckets of 6 that share nothing | 48 | 60 % | 128 |
//! | pairs of lines with one overflow line between them (RACE, Deft) | 45 | 68 % | 128 |
//! | **two lines, each shared with the next bucket** | 45 | 79 % | 128 |
//! | 6 slots in a row, beginning at any (CHIME's neighbourhoods) | 45 | 84 % | 128 to 192, for slots do not end where lines do |
//! | three lines, each shared | 45 | 91 % | 192 |
//!
//! Keys that all have one bucket fill a leaf with six, and it is split. Splits go by the order of keys, so each half has three or four of them, and no
//! split is repeated without end: such keys cost memory, up to fifteen times as much.

use fatbtree_remote_memory::record::RECORD_MAGIC;
use fatbtree_remote_memory::{Check, GlobalAddress, KeyRange};

use super::header::{CHECKSUMS, FREE, LAST};
use super::leaf::{EntryValue, KEY, LeafNode, LeafShape, OCCUPIED, VALUE};
use super::line::CHECKSUM;
use super::{LINE, MAGIC, NodeFault, NodeHeader, offsets, word};
use crate::config::{Integrity, TreeConfig};

/// Lines of a bucket.
pub(super) const BUCKET_LINES: usize = 2;

/// Bytes of a bucket: what a lookup reads of a leaf of buckets.
pub const BUCKET_BYTES: u32 = (BUCKET_LINES * LINE) as u32;

/// Highest bits of the magic number at offset 2 of a line.
const LINE_MAGIC: u16 = 0b101 << 13;

/// The flag of a leaf with a partner.
const PARTNERED: u8 = 1 << 3;

const FLAGS: usize = 1;
const LINE_MAGIC_AT: usize = 2;
const FIRST_FENCE: usize = 4;
const SECOND_FENCE: usize = FIRST_FENCE + 8;

/// Most lines of a leaf of buckets: a slice of an index read begins at one of the first 32.
pub(crate) const MAX_LINES: usize = 32;

const _: () = {
    assert!(
        LINE_MAGIC_AT == offsets::MAGIC,
        "what an index read has brought is told apart by what stands there"
    );
    assert!(MAGIC >> 13 != LINE_MAGIC >> 13 && RECORD_MAGIC >> 13 != LINE_MAGIC >> 13);
};

/// Magic number of line `line` of leaves of this format on this server. Of two servers all numbers differ, and of one server those of all lines and
/// formats.
const fn line_magic(format: u8, line: usize, server: u16) -> u16 {
    let (format, line) = ((format as u16) << 5, line as u16 % MAX_LINES as u16);
    let server = server.wrapping_mul(0x09e5) % (1 << 13);
    LINE_MAGIC | ((format | line) ^ server)
}

/// What a line has beside version and entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Repeats {
    Nothing,
    Low,
    High,
    Both,
}

/// Arrangement of a line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Line {
    repeats: Repeats,
    /// Offset of its first entry.
    first: u8,
    /// Its entries.
    entries: u8,
}

impl Line {
    const fn new(repeats: Repeats, entry: usize, integrity: Integrity) -> Self {
        let first = match repeats {
            Repeats::Nothing => FLAGS,
            Repeats::Low | Repeats::High => SECOND_FENCE,
            Repeats::Both => SECOND_FENCE + 8,
        };
        let end = match integrity {
            Integrity::LineVersions => LINE,
            Integrity::Checksums => LINE - CHECKSUM,
        };
        Self { repeats, first: first as u8, entries: ((end - first) / entry) as u8 }
    }
}

/// Arrangement of the lines of a leaf of buckets behind the header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lines {
    odd: Line,
    even: Line,
    /// Lines behind the header.
    count: u8,
}

impl Lines {
    /// The arrangement with the most room. `None` where a bucket has no room for two entries, or a leaf has not three lines, or too many.
    pub(super) const fn new(bytes: u32, entry: usize, integrity: Integrity) -> Option<Self> {
        let lines = bytes as usize / LINE;
        if lines <= BUCKET_LINES || lines > MAX_LINES {
            return None;
        }
        let count = (lines - 1) as u8;
        let odd = Line::new(Repeats::Low, entry, integrity);
        let shared = Self { odd, even: Line::new(Repeats::High, entry, integrity), count };
        let odd = Line::new(Repeats::Nothing, entry, integrity);
        let alone = Self { odd, even: Line::new(Repeats::Both, entry, integrity), count };
        let best = if alone.capacity() > shared.capacity() { alone } else { shared };
        if best.pair() < 2 { None } else { Some(best) }
    }

    /// Entries of two lines.
    const fn pair(&self) -> usize {
        self.odd.entries as usize + self.even.entries as usize
    }

    /// Slots before line `line` of the leaf.
    const fn slots_before(&self, line: usize) -> usize {
        let before = line - 1;
        before / 2 * self.pair() + before % 2 * self.odd.entries as usize
    }

    pub(super) const fn capacity(&self) -> usize {
        self.slots_before(1 + self.count as usize)
    }

    /// Offset of a slot's entry from the start of the leaf.
    pub(super) const fn entry_offset(&self, slot: usize, entry: usize) -> usize {
        let (pair, rest) = (slot / self.pair(), slot % self.pair());
        let odd = self.odd.entries as usize;
        let (line, of, number) =
            if rest < odd { (1 + 2 * pair, &self.odd, rest) } else { (2 + 2 * pair, &self.even, rest - odd) };
        line * LINE + of.first as usize + number * entry
    }

    /// Offset of an entry of a line from the start of the leaf.
    const fn offset_in(&self, line: usize, number: usize, entry: usize) -> usize {
        line * LINE + self.of_line(line).first as usize + number * entry
    }

    /// Offsets of all slots' entries, in their order.
    fn offsets(&self, entry: usize) -> impl Iterator<Item = usize> + '_ {
        let of_line = move |line| {
            let numbers = 0..usize::from(self.of_line(line).entries);
            numbers.map(move |number| self.offset_in(line, number, entry))
        };
        (1..=usize::from(self.count)).flat_map(of_line)
    }

    const fn of_line(&self, line: usize) -> &Line {
        if line % 2 == 1 { &self.odd } else { &self.even }
    }

    const fn buckets(&self) -> usize {
        self.count as usize + 1 - BUCKET_LINES
    }

    /// The bucket of a key. Multiplied by the golden ratio, keys one after the other are spread evenly. Their halves are mixed before, for keys that
    /// are products themselves, such as YCSB's.
    fn bucket_of(&self, key: u64) -> usize {
        let hash = (key ^ (key >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        ((hash * self.buckets() as u64) >> 32) as usize
    }

    /// The first line of a key's bucket.
    pub(super) fn line_of(&self, key: u64) -> usize {
        1 + self.bucket_of(key)
    }

    /// The slots of a key's bucket.
    pub(super) fn slots_of(&self, key: u64) -> std::ops::Range<usize> {
        let line = self.line_of(key);
        self.slots_before(line)..self.slots_before(line + BUCKET_LINES)
    }

    /// As many of the keys, from the first on, as have places in one leaf.
    pub(super) fn fitting(&self, mut keys: impl Iterator<Item = u64>) -> usize {
        let (mut shares, mut fitting) = (Shares::default(), 0);
        while keys.next().is_some_and(|key| shares.take(self, self.bucket_of(key))) {
            fitting += 1;
        }
        fitting
    }

    /// Writes what the lines repeat of the header, line 0.
    pub(super) fn repeat_header(&self, leaf: &mut [u8]) {
        let (lines, _) = leaf.as_chunks_mut::<LINE>();
        let Some((first, lines)) = lines.split_first_mut() else { return };
        let header = NodeHeader::parse(first);
        let partnered = if header.partner.is_null() { 0 } else { PARTNERED };
        let flags = header.flags & (FREE | LAST | CHECKSUMS) | partnered;
        let put =
            |line: &mut [u8; LINE], at: usize, key: u64| line[at..at + 8].copy_from_slice(&key.to_le_bytes());
        for (number, line) in (1..).zip(lines) {
            match self.of_line(number).repeats {
                Repeats::Nothing => continue,
                Repeats::Low => put(line, FIRST_FENCE, header.low),
                Repeats::High => put(line, FIRST_FENCE, header.high),
                Repeats::Both => {
                    put(line, FIRST_FENCE, header.low);
                    put(line, SECOND_FENCE, header.high);
                }
            }
            line[FLAGS] = flags;
            line[LINE_MAGIC_AT..][..2]
                .copy_from_slice(&line_magic(header.format, number, header.address.server()).to_le_bytes());
        }
    }

    /// Finds a free slot of a key's bucket; moves other entries if there is none. Says whether it has.
    pub(super) fn make_room(&self, leaf: &mut [u8], key: u64, entry: usize) -> Option<(usize, bool)> {
        let is_free = |leaf: &[u8], slot: &usize| leaf[self.entry_offset(*slot, entry)] & OCCUPIED == 0;
        let line = self.line_of(key);
        let slots = |line: usize| self.slots_before(line)..self.slots_before(line + 1);
        // The emptier line: the fuller one may be the last hope of another bucket.
        let mut free = [line, line + 1].map(|line| slots(line).filter(|slot| is_free(leaf, slot)));
        let counts = free.clone().map(Iterator::count);
        if counts != [0, 0] {
            return free[usize::from(counts[1] > counts[0])].next().map(|slot| (slot, false));
        }
        let mut places = self.arrange(leaf, Some(key), entry)?;
        let (line, number) = places.next(line - 1);
        Some((self.slots_before(line) + number, true))
    }

    /// Moves all entries to places in their buckets, wherever they lie; `more` is a key that is to have a place as well. Returns the places that are
    /// left. `None` where not all have one: the leaf is as it was then.
    pub(super) fn arrange(&self, leaf: &mut [u8], more: Option<u64>, entry: usize) -> Option<Places> {
        let bucket_at = |leaf: &[u8], at: usize| {
            let key = leaf[at + KEY..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            (leaf[at] & OCCUPIED != 0).then(|| self.bucket_of(key))
        };
        let mut shares = Shares::default();
        let mut here = self.offsets(entry).filter_map(|at| bucket_at(leaf, at));
        let mut all = here.by_ref().chain(more.map(|key| self.bucket_of(key)));
        if !all.all(|bucket| shares.take(self, bucket)) {
            return None;
        }
        let Shares { in_first, .. } = shares;
        let mut former = [0; MAX_LINES * LINE];
        former[..leaf.len()].copy_from_slice(leaf);
        for at in self.offsets(entry) {
            leaf[at..at + entry].fill(0);
        }
        let mut places = Places { in_first, placed: [0; MAX_LINES], used: [0; MAX_LINES] };
        for from in self.offsets(entry) {
            let Some(bucket) = bucket_at(&former, from) else { continue };
            let (line, number) = places.next(bucket);
            let to = self.offset_in(line, number, entry);
            leaf[to..to + entry].copy_from_slice(&former[from..from + entry]);
        }
        Some(places)
    }
}

/// Slots of a leaf, shared out to buckets key by key. Line `n` of the leaf is number `n - 1` here: the first line of bucket `n - 1`.
///
/// A line's slots go to its earlier bucket only as far as that one's first line is full: no later key could use them better.
#[derive(Default)]
struct Shares {
    /// Keys of each bucket that lie in its first line.
    in_first: [u8; MAX_LINES],
    /// Slots of each line that are taken.
    used: [u8; MAX_LINES],
}

impl Shares {
    /// Takes a slot for one more key of a bucket. Says whether there is one; where there is none, the shares are of no further use.
    fn take(&mut self, lines: &Lines, mut bucket: usize) -> bool {
        let Self { in_first, used } = self;
        let entries = |line: usize| lines.of_line(line + 1).entries;
        if used[bucket] < entries(bucket) {
            used[bucket] += 1;
            in_first[bucket] += 1;
            return true;
        }
        // Its second line, from which a key of the next bucket may have to go on to that one's second line.
        loop {
            let line = bucket + 1;
            if used[line] < entries(line) {
                used[line] += 1;
                return true;
            }
            if in_first[line] == 0 {
                return false;
            }
            in_first[line] -= 1;
            bucket = line;
        }
    }
}

/// Slots of a leaf that is arranged, given out one by one.
pub(super) struct Places {
    /// Keys of each bucket that lie in its first line.
    in_first: [u8; MAX_LINES],
    /// Keys of each bucket that have a slot.
    placed: [u8; MAX_LINES],
    /// Slots of each line that are given out.
    used: [u8; MAX_LINES],
}

impl Places {
    /// The next place of a bucket: its line, and the number of its entry there.
    fn next(&mut self, bucket: usize) -> (usize, usize) {
        let line = 1 + bucket + usize::from(self.placed[bucket] >= self.in_first[bucket]);
        self.placed[bucket] += 1;
        self.used[line] += 1;
        (line, usize::from(self.used[line]) - 1)
    }
}

/// What an index read of a slice has brought.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Slice<'a> {
    /// The key's bucket: the slot and content of its entry, if it has one.
    Bucket(Option<(usize, EntryValue<'a>)>),
    /// The beginning of a node.
    Node(NodeHeader),
    /// Neither.
    Else,
}

impl<'a> Slice<'a> {
    /// Tells apart what the switches led to. A line of pointers has no place for a magic, and begins with an entry: an occupied one has a
    /// first byte that no level of a node has, and of a free one the key is zero, which is no node's magic. Records are told
    /// apart by the caller, after buckets: a key can look like the magic of a record.
    pub(crate) fn of(config: &TreeConfig, server: u16, key: u64, bytes: &'a [u8]) -> Self {
        let header = bytes.first_chunk().map(NodeHeader::parse);
        match header {
            Some(header) if header.magic == MAGIC && header.level & OCCUPIED == 0 => Self::Node(header),
            _ => read_bucket(config, server, key, bytes).map_or(Self::Else, Self::Bucket),
        }
    }
}

/// Finds a key in its bucket: `bytes` begin with the first line of it, and were read from `server`. Returns slot and content of its entry; none if the tree has no such key.
///
/// # Errors
/// When the bytes do not prove that; never panics, whatever they are.
#[inline]
pub fn read_bucket<'a>(
    config: &TreeConfig,
    server: u16,
    key: u64,
    bytes: &'a [u8],
) -> Result<Option<(usize, EntryValue<'a>)>, NodeFault> {
    let shape = config.leaf_shape();
    let Some(lines) = shape.buckets() else {
        return Err(NodeFault::Format { found: shape.format(), level: 0 });
    };
    let (chunks, _) = bytes.as_chunks::<LINE>();
    let Some(bucket) = chunks.first_chunk::<BUCKET_LINES>() else {
        return Err(NodeFault::Short { found: bytes.len(), expected: BUCKET_BYTES as usize });
    };
    let first = lines.line_of(key);
    let (mut flags, mut low, mut high) = (0, 0, 0);
    for (number, line) in (first..).zip(bucket) {
        let repeats = lines.of_line(number).repeats;
        if config.integrity() == Integrity::Checksums
            && !shape.marks().is_summed(line, number)
            && Check::BucketChecksum.on()
        {
            return Err(NodeFault::TornLine { line: number });
        }
        if repeats == Repeats::Nothing {
            continue;
        }
        let magic = u16::from_le_bytes([line[LINE_MAGIC_AT], line[LINE_MAGIC_AT + 1]]);
        if magic != line_magic(shape.format(), number, server) && Check::BucketLine.on() {
            return Err(NodeFault::Magic { found: magic });
        }
        flags |= line[FLAGS];
        match repeats {
            Repeats::Low => low = word(line, FIRST_FENCE),
            Repeats::High => high = word(line, FIRST_FENCE),
            Repeats::Both | Repeats::Nothing => {
                (low, high) = (word(line, FIRST_FENCE), word(line, SECOND_FENCE))
            }
        }
    }
    if bucket[0][0] != bucket[1][0] && Check::BucketVersion.on() {
        return Err(NodeFault::Torn { line: first + 1 });
    }
    let sums = if config.integrity() == Integrity::Checksums { CHECKSUMS } else { 0 };
    if flags & CHECKSUMS != sums && Check::BucketLine.on() {
        return Err(NodeFault::Format { found: shape.format(), level: 0 });
    }
    if flags & FREE != 0 && Check::BucketFree.on() {
        return Err(NodeFault::Free);
    }
    if flags & PARTNERED != 0 && Check::BucketPartner.on() {
        return Err(NodeFault::Partner { partner: GlobalAddress::NULL });
    }
    let range = KeyRange { low, high: (flags & LAST == 0).then_some(high) };
    if !range.contains(key) && Check::BucketRange.on() {
        return Err(NodeFault::KeyOutside { key, range });
    }
    let entry = shape.entry_bytes();
    let mut slot = lines.slots_before(first);
    for (number, line) in (first..).zip(bucket) {
        let Line { first, entries, .. } = *lines.of_line(number);
        for at in (0..usize::from(entries)).map(|number| usize::from(first) + number * entry) {
            if line[at] & OCCUPIED != 0 && word(line, at + KEY) == key {
                return LeafNode::value_of(shape, slot, &line[at..at + entry])
                    .map(|value| Some((slot, value)));
            }
            slot += 1;
        }
    }
    Ok(None)
}

/// Takes the key out of an entry that is removed: what begins with it must not look like a node.
pub(super) fn clear_key(entry: &mut [u8]) {
    entry[KEY..VALUE].fill(0);
}

impl LeafShape {
    /// Offset of a key's bucket from the start of its leaf, in bytes. `None` where leaves have no buckets.
    #[must_use]
    pub fn bucket_offset(&self, key: u64) -> Option<u32> {
        self.buckets().map(|lines| (lines.line_of(key) * LINE) as u32)
    }

    /// How many of these keys, which ascend, have places in one leaf, counted from the first.
    #[must_use]
    pub fn fitting(&self, keys: impl Iterator<Item = u64>) -> usize {
        match self.buckets() {
            None => keys.take(self.capacity()).count(),
            Some(lines) => lines.fitting(keys),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Whether entries with these many keys of each bucket have places, line after line.
    fn have_places(lines: &Lines, keys: &[u8; MAX_LINES]) -> bool {
        let mut free = lines.of_line(1).entries;
        (0..lines.buckets()).all(|bucket| {
            let rest = keys[bucket].saturating_sub(free);
            let next = lines.of_line(bucket + BUCKET_LINES).entries.checked_sub(rest);
            free = next.unwrap_or(0);
            next.is_some()
        })
    }

    proptest! {
        /// Key by key as all at once, in leaves of all sizes and for entries of all widths.
        #[test]
        fn keys_fit_as_they_are_shared_out(
            keys in prop::collection::vec(prop_oneof![0..200_u64, any::<u64>()], 0..120),
            bytes in 3..=MAX_LINES as u32,
            entry in 10..52_usize,
        ) {
            for integrity in [Integrity::LineVersions, Integrity::Checksums] {
                let Some(lines) = Lines::new(bytes * LINE as u32, entry, integrity) else { continue };
                let mut counts = [0; MAX_LINES];
                let fits = |key: &&u64| {
                    counts[lines.bucket_of(**key)] += 1;
                    have_places(&lines, &counts)
                };
                let fitting = keys.iter().take_while(fits).count();
                prop_assert_eq!(lines.fitting(keys.iter().copied()), fitting);
            }
        }
    }
}
