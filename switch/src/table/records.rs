//! Records of an exact table side by side: open addressing, linear probing.
//!
//! A key's home is the upper bits of its hash, so that records lie in the order of their hashes, nearly: an order that a larger table keeps.

use super::{Key, KeyPart, key_words};

/// Words of a cache line.
const LINE: usize = 8;

/// 2^64 divided by the golden ratio: its multiples spread evenly, those of consecutive numbers best.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Number of bits of a hash.
pub(super) const HASH_BITS: u32 = 32;

/// Layout of the records of a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// Words of a key, 1 to [`KEY_WORDS`](super::KEY_WORDS).
    pub(super) key_words: usize,
    /// Words of a row.
    pub(super) row_words: usize,
    /// Words from one record to the next.
    pub(super) stride: usize,
    /// Seed of the hash: see [`seed`].
    pub(super) seed: u64,
}

/// Records that lie side by side.
#[derive(Debug, Default)]
pub(super) struct Records {
    pub(super) cells: Vec<u64>,
    /// Index of the first record in `cells`: at the beginning of a line.
    base: usize,
    /// Number of records, a power of two; 0 before the first entry.
    pub(super) count: usize,
}

impl Layout {
    pub(super) fn new(parts: &[KeyPart], row_words: usize) -> Self {
        let key_words = key_words(parts);
        let used = key_words + row_words;
        let stride = if used <= LINE { used.next_power_of_two() } else { used.next_multiple_of(LINE) };
        Layout { key_words, row_words, stride, seed: 0 }
    }

    /// The hash of a key.
    pub(super) fn hash(&self, key: &Key) -> u32 {
        hash(self.seed, &key[..self.key_words])
    }
}

impl Records {
    /// Creates free records. Their memory is zeroed pages, which take memory when they are used.
    pub(super) fn new(layout: &Layout, count: usize) -> Self {
        let cells = vec![0u64; count * layout.stride + LINE];
        let base = cells.as_ptr().align_offset(LINE * size_of::<u64>()).min(LINE);
        Records { cells, base, count }
    }

    #[inline]
    pub(super) fn at(&self, layout: &Layout, row: u32) -> usize {
        self.base + row as usize * layout.stride
    }

    pub(super) fn is_free(&self, layout: &Layout, row: u32) -> bool {
        self.cells[self.at(layout, row) + layout.key_words] == 0
    }

    pub(super) fn key(&self, layout: &Layout, row: u32) -> Key {
        let at = self.at(layout, row);
        let mut key = Key::default();
        key[..layout.key_words].copy_from_slice(&self.cells[at..at + layout.key_words]);
        key
    }

    pub(super) fn place(&self, layout: &Layout, key: &Key) -> Result<u32, u32> {
        let [a, b, c, d] = *key;
        match layout.key_words {
            1 => self.probe(layout, [a]),
            2 => self.probe(layout, [a, b]),
            3 => self.probe(layout, [a, b, c]),
            _ => self.probe(layout, [a, b, c, d]),
        }
    }

    /// The row of a key, or the free one where it would be.
    #[inline]
    pub(super) fn probe<const WORDS: usize>(&self, layout: &Layout, key: [u64; WORDS]) -> Result<u32, u32> {
        let mut row = self.home(hash(layout.seed, &key));
        loop {
            // At least half of the records are free: there is an end.
            let Some((&found, &[head, ..])) =
                self.cells.get(self.at(layout, row)..).and_then(<[u64]>::split_first_chunk::<WORDS>)
            else {
                return Err(row);
            };
            if head == 0 {
                return Err(row);
            }
            if found == key {
                return Ok(row);
            }
            row = (row + 1) & (self.count as u32 - 1);
        }
    }

    /// The row that a key of this hash has if nothing is in its way.
    #[inline]
    pub(super) fn home(&self, hash: u32) -> u32 {
        hash >> (HASH_BITS - self.count.trailing_zeros())
    }

    pub(super) fn hash(&self, layout: &Layout, row: u32) -> u32 {
        layout.hash(&self.key(layout, row))
    }

    pub(super) fn remove(&mut self, layout: &Layout, row: u32) {
        let last = self.count as u32 - 1;
        let steps = |from: u32, to: u32| to.wrapping_sub(from) & last;
        let (mut hole, mut next) = (row, row);
        loop {
            next = (next + 1) & last;
            if self.is_free(layout, next) {
                break;
            }
            // It may lie in the hole unless that is before its home.
            if steps(self.home(self.hash(layout, next)), next) >= steps(hole, next) {
                let (from, to) = (self.at(layout, next), self.at(layout, hole));
                self.cells.copy_within(from..from + layout.stride, to);
                hole = next;
            }
        }
        let at = self.at(layout, hole);
        self.cells[at..at + layout.stride].fill(0);
    }

    /// Appends the rows of all entries with a hash in the range, `plus` added to their numbers.
    pub(super) fn with_hashes(
        &self,
        layout: &Layout,
        range: std::ops::Range<u64>,
        plus: u32,
        rows: &mut Vec<u32>,
    ) {
        if self.count == 0 || range.is_empty() {
            return;
        }
        let (first, last) = (self.home(range.start as u32), self.home((range.end - 1) as u32));
        // They lie between the homes, or after the last with nothing free in between.
        for step in 0..self.count as u32 {
            let row = (first + step) & (self.count as u32 - 1);
            if self.is_free(layout, row) {
                if first + step >= last {
                    break;
                }
            } else if range.contains(&u64::from(self.hash(layout, row))) {
                rows.push(row + plus);
            }
        }
    }
}

#[inline]
fn hash(seed: u64, key: &[u64]) -> u32 {
    // Multiplication carries bits up only: the upper half is brought down first.
    let hash = key.iter().fold(seed, |hash: u64, &word| {
        let word = word ^ hash;
        (word ^ word >> 32).wrapping_mul(GOLDEN)
    });
    (hash >> 32) as u32
}

/// The seed of a table that gets this key first.
///
/// Entries are read in the order of their hashes. If another, still small table had the same hashes, entries written to it in that order
/// would all want the same places.
pub(super) fn seed(key: &Key) -> u64 {
    let mixed = key.iter().fold(0, |all, word| all ^ word).wrapping_mul(0x9fb2_1c65_1e98_df25);
    (mixed ^ mixed >> 35).wrapping_mul(0x9fb2_1c65_1e98_df25) ^ GOLDEN
}
