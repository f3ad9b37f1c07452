//! What follows what in keys, and how it divides the range of words.

use super::WORD;

/// Width of a row.
pub(super) const WHOLE: u32 = 1 << 16;

/// Bits of a place behind the word: what is left of the range is known so exactly.
const FRACTION: u32 = 32;

/// Bytes of a key that a word can have at most. What follows lies in layers.
const MOST_BYTES: usize = 512;

/// Longest context, in bytes.
pub(super) const CONTEXT: usize = 2;

/// A set of bytes.
#[derive(Clone, Copy, Default)]
struct Bytes {
    bits: [u64; 4],
    /// Number of bytes in it that are less than 0, 64, 128 and 192.
    less: [u8; 4],
}

impl Bytes {
    fn insert(&mut self, byte: u8) {
        self.bits[usize::from(byte / 64)] |= 1 << (byte % 64);
        for less in &mut self.less[usize::from(byte / 64) + 1..] {
            *less += 1;
        }
    }

    #[inline(always)]
    fn has(&self, byte: u8) -> bool {
        self.bits[usize::from(byte / 64)] >> (byte % 64) & 1 != 0
    }

    /// Number of bytes in it that are less.
    #[inline(always)]
    fn less(&self, byte: u8) -> usize {
        let bits = self.bits[usize::from(byte / 64)] & ((1 << (byte % 64)) - 1);
        usize::from(self.less[usize::from(byte / 64)]) + bits.count_ones() as usize
    }
}

/// Widths of all bytes behind one context.
pub(super) struct Row {
    listed: Bytes,
    /// Logarithm of the width of each other byte.
    other: u32,
    /// Sums of the widths of the listed bytes, from 0 on.
    sums: Box<[u32]>,
}

impl Row {
    /// All bytes are alike.
    pub(super) fn even() -> Self {
        let all: Vec<_> = (0..=u8::MAX).map(|byte| (byte, 1)).collect();
        Self::new(&all, 0).expect("each byte has a weight")
    }

    /// With these bytes, ascending, and their weights; each other byte has the width 2 to the power of `other`, up to 128. `None` if there
    /// is no such row.
    pub(super) fn new(listed: &[(u8, u8)], other: u32) -> Option<Self> {
        let is_ascending = listed.is_sorted_by(|(one, _), (next, _)| one < next);
        if listed.is_empty() || !is_ascending || other > 7 || listed.iter().any(|(_, weight)| *weight == 0) {
            return None;
        }
        let all: u32 = listed.iter().map(|(_, weight)| u32::from(*weight)).sum();
        // At least as many as weights, so that no byte has the width 0: 255 times the listed bytes are never more.
        let shared = WHOLE - ((256 - listed.len() as u32) << other);
        let (mut set, mut sum, mut sums) = (Bytes::default(), 0, vec![0]);
        for &(byte, weight) in listed {
            set.insert(byte);
            sum += u32::from(weight);
            sums.push((u64::from(shared) * u64::from(sum) / u64::from(all)) as u32);
        }
        Some(Self { listed: set, other, sums: sums.into() })
    }

    /// Where a byte begins within the row, and where it ends.
    #[inline(always)]
    fn place(&self, byte: u8) -> (u32, u32) {
        let less = self.listed.less(byte);
        let begin = self.sums[less] + ((u32::from(byte) - less as u32) << self.other);
        match self.listed.has(byte) {
            true => (begin, begin + self.sums[less + 1] - self.sums[less]),
            false => (begin, begin + (1 << self.other)),
        }
    }

    /// Width of a byte.
    pub(super) fn width(&self, byte: u8) -> u32 {
        let (begin, end) = self.place(byte);
        end - begin
    }
}

/// The rows behind one last byte.
#[derive(Clone, Copy)]
struct Behind {
    /// Without regard to the byte before.
    row: u16,
    /// Bytes before that have rows of their own.
    before: Bytes,
    /// The first of these rows.
    first: u16,
}

/// All rows, and the description that they are made of.
pub(super) struct Model {
    description: Box<[u8]>,
    rows: Box<[Row]>,
    behind: Box<[Behind]>,
}

/// Part of the range of words: that of all keys with a beginning.
#[derive(Clone, Copy)]
pub(super) struct Walk {
    low: u128,
    width: u128,
    /// Bytes of the beginning.
    at: usize,
    /// The last byte of them, and the one before it.
    last: [u8; CONTEXT],
}

impl Walk {
    pub(super) const BEGIN: Self =
        Self { low: 0, width: 1 << (8 * WORD as u32 + FRACTION), at: 0, last: [0; CONTEXT] };

    /// Width of so much of it.
    #[inline(always)]
    const fn part(&self, place: u32) -> u128 {
        self.width * place as u128 / WHOLE as u128
    }

    /// Whether what follows has no room in a word.
    pub(super) const fn is_done(&self) -> bool {
        self.width <= 1 << FRACTION || self.at >= MOST_BYTES
    }

    /// The least word of the keys.
    pub(super) const fn word(&self) -> u64 {
        (self.low >> FRACTION) as u64
    }

    /// Whether it begins where this word begins, or behind it.
    pub(super) const fn begins_at(&self, word: u64) -> bool {
        self.low >= (word as u128) << FRACTION
    }

    /// Whether no key without this beginning has this word.
    pub(super) const fn has_all_of(&self, word: u64) -> bool {
        self.low <= (word as u128) << FRACTION && self.low + self.width >= (word as u128 + 1) << FRACTION
    }
}

impl Model {
    /// Reads a description. The error is where the row begins that cannot be.
    pub(super) fn parse(description: &[u8]) -> Result<Self, usize> {
        let mut rows = vec![Row::even()];
        let mut behind = vec![Behind { row: 0, before: Bytes::default(), first: 0 }; 256];
        let (mut left, mut former) = (description, None);
        while !left.is_empty() {
            let at = description.len() - left.len();
            let (context, row) = take_row(&mut left).ok_or(at)?;
            let number = u16::try_from(rows.len()).map_err(|_| at)?;
            let place = (context.len(), context.to_vec());
            if former.replace(place.clone()).is_some_and(|former| former >= place) {
                return Err(at);
            }
            match *context {
                [] => behind.iter_mut().for_each(|behind| behind.row = number),
                [last] => behind[usize::from(last)].row = number,
                [last, before, ..] => {
                    let behind = &mut behind[usize::from(last)];
                    if behind.before.bits == [0; 4] {
                        behind.first = number;
                    }
                    behind.before.insert(before);
                }
            }
            rows.push(row);
        }
        Ok(Self { description: description.into(), rows: rows.into(), behind: behind.into() })
    }

    pub(super) fn description(&self) -> &[u8] {
        &self.description
    }

    #[inline(always)]
    fn row(&self, [last, before]: [u8; CONTEXT]) -> &Row {
        let behind = &self.behind[usize::from(last)];
        let row = match behind.before.has(before) {
            true => usize::from(behind.first) + behind.before.less(before),
            false => behind.row.into(),
        };
        &self.rows[row]
    }

    /// The part of keys that go on with this byte.
    #[inline(always)]
    pub(super) fn step(&self, walk: Walk, byte: u8) -> Walk {
        let (begin, end) = self.row(walk.last).place(byte);
        let (from, to) = (walk.part(begin), walk.part(end));
        Walk { low: walk.low + from, width: to - from, at: walk.at + 1, last: [byte, walk.last[0]] }
    }

    /// The byte with which the part goes on that the beginning of this word lies in; it lies in this part.
    pub(super) fn byte_at(&self, walk: Walk, word: u64) -> u8 {
        let row = self.row(walk.last);
        let target = (u128::from(word) << FRACTION) - walk.low;
        let begins_behind = |byte: usize| walk.part(row.place(byte as u8).0) > target;
        let (mut low, mut behind) = (0, 256);
        while behind - low > 1 {
            let middle = usize::midpoint(low, behind);
            if begins_behind(middle) { behind = middle } else { low = middle }
        }
        low as u8
    }
}

/// A row in a description, with its context.
pub(super) fn describe(context: &[u8], listed: &[(u8, u8)], other: u32) -> Vec<u8> {
    let head = [context.len() as u8 | (other as u8) << 2, (listed.len() - 1) as u8];
    let listed = listed.iter().flat_map(|(byte, weight)| [*byte, *weight]);
    head.into_iter().chain(context.iter().copied()).chain(listed).collect()
}

/// Takes the first row of a description, with its context.
fn take_row<'d>(left: &mut &'d [u8]) -> Option<(&'d [u8], Row)> {
    let (&[head, listed], rest) = left.split_first_chunk()?;
    let (context, other) = (usize::from(head & 3), u32::from(head >> 2));
    let (context, rest) = rest.split_at_checked(context).filter(|(context, _)| context.len() <= CONTEXT)?;
    let (listed, rest) = rest.split_at_checked(2 * (usize::from(listed) + 1))?;
    let listed: Vec<_> = listed.as_chunks().0.iter().map(|&[byte, weight]| (byte, weight)).collect();
    *left = rest;
    Some((context, Row::new(&listed, other)?))
}
