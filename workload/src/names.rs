//! Keys of bytes for operations, whose keys are numbers.
//!
//! Workloads, traces and [`Values`](crate::Values) know keys by numbers. A run on keys of bytes begins with all keys that it will ask for:
//! [`Names`] gives each of them a number, in the order of the keys, and [`Named`] does the operations by the keys themselves. Between two numbers
//! is room for keys that other runs have inserted, which scans find.

use std::ops::Range;

use bytes::Bytes;
use fatbtree_blink::value::stamp_of;
use fatbtree_remote_memory::{
    Answer, BytesPairs, BytesRange, Change, KeyRange, Order, Pairs, Portion, Structure, export_in_order,
};
use fatbtree_verbs::time::Instant;

use crate::byte_keys::value_number;

/// Keys of bytes, each with a number, in the same order.
///
/// ```
/// use fatbtree_workload::Names;
/// let (names, numbers) = Names::of(["user:7", "user:12", "user:100"]);
/// assert!(numbers[2] < numbers[1] && numbers[1] < numbers[0]);
/// assert_eq!(names.name_of(numbers[1]), Some(&b"user:12"[..]));
/// ```
#[derive(Debug)]
pub struct Names {
    /// All names.
    text: Vec<u8>,
    /// Each name's place in the text, in the order of the names.
    places: Vec<Range<usize>>,
}

/// Distance of the numbers of two neighbours: more than others can have inserted between them.
const STEP: u64 = 1 << 32;

impl Names {
    /// Distance of the numbers of two neighbours, for [`ScanParts`](crate::ScanParts).
    pub const SPACING: u64 = STEP;

    /// Gives numbers to names in any order. Returns them in that order; equal names have one number.
    ///
    /// # Panics
    /// When there are 2³² names.
    pub fn of<N: AsRef<[u8]>>(names: impl IntoIterator<Item = N>) -> (Self, Vec<u64>) {
        let (mut text, mut given) = (Vec::new(), Vec::new());
        for name in names {
            let from = text.len();
            text.extend_from_slice(name.as_ref());
            given.push(from..text.len());
        }
        let mut places = given.clone();
        places.sort_unstable_by(|one, other| text[one.clone()].cmp(&text[other.clone()]));
        places.dedup_by(|one, other| text[one.clone()] == text[other.clone()]);
        assert!((places.len() as u64) < u64::MAX / STEP, "fewer than 2³² names, found {}", places.len());
        let names = Self { text, places };
        let number = |place: Range<usize>| names.number(&names.text[place]).expect("it was given");
        let numbers = given.into_iter().map(number).collect();
        (names, numbers)
    }

    /// Number of names.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The number of a name, if it was given one.
    pub fn number(&self, name: &[u8]) -> Option<u64> {
        let at = self.places.binary_search_by(|place| self.text[place.clone()].cmp(name)).ok()?;
        Some(number_at(at))
    }

    /// The name of a number, if one has it.
    #[inline]
    pub fn name_of(&self, number: u64) -> Option<&[u8]> {
        if !number.is_multiple_of(STEP) {
            return None;
        }
        self.at(usize::try_from((number / STEP).checked_sub(1)?).ok()?)
    }

    /// A name as a message shows it.
    pub(crate) fn show(&self, number: u64) -> String {
        self.name_of(number)
            .map_or_else(|| format!("{number:#x}"), |name| format!("\"{}\"", name.escape_ascii()))
    }

    fn at(&self, at: usize) -> Option<&[u8]> {
        Some(&self.text[self.places.get(at)?.clone()])
    }

    /// The first name whose number is at least this one, if there is one.
    fn from(&self, number: u64) -> Option<&[u8]> {
        self.at(usize::try_from(number.div_ceil(STEP).saturating_sub(1)).ok()?)
    }

    /// Numbers of pairs of a scan, ascending. A key that no name is has a number between those of its neighbours, if its value is one that a run has
    /// written for it, else 0, which no scan may find.
    fn numbered(&self, found: BytesPairs) -> Pairs {
        let behind = |key: &[u8]| self.places.partition_point(|place| self.text[place.clone()] < *key);
        let mut next = found.first().map_or(0, |(key, _)| behind(key));
        let mut others = 0;
        let numbered = found.into_iter().map(|(key, value)| {
            if self.at(next).is_some_and(|name| name < &key[..]) {
                (next, others) = (behind(&key), 0);
            }
            if self.at(next) == Some(&key[..]) {
                (next, others) = (next + 1, 0);
                return (number_at(next - 1), value);
            }
            others += 1;
            let is_right = stamp_of(value_number(&key), &value).is_some();
            (if is_right { next as u64 * STEP + others } else { 0 }, value)
        });
        numbered.collect()
    }
}

/// The number of the name at a place.
fn number_at(at: usize) -> u64 {
    (at as u64 + 1) * STEP
}

/// A structure of keys of bytes, as one of the numbers of their [`Names`].
///
/// # Panics
/// Operations, when the structure has no keys of bytes, or a number no name.
#[derive(Debug)]
pub struct Named<'s, S> {
    structure: &'s S,
    names: &'s Names,
}

impl<'s, S> Named<'s, S> {
    /// The structure with these names.
    pub fn new(structure: &'s S, names: &'s Names) -> Self {
        Self { structure, names }
    }

    fn name_of(&self, number: u64) -> &'s [u8] {
        self.names.name_of(number).expect("operations have numbers of names")
    }
}

/// Why a structure answers operations on keys of bytes.
const HAS_BYTES: &str = "the structure has keys of bytes";

impl<S: Structure> Structure for Named<'_, S> {
    type Value = S::Value;
    type Error = S::Error;
    type Cursor = u64;

    const NAME: &'static str = S::NAME;
    const LACKS: &'static [&'static str] = S::LACKS;

    fn now(&self) -> Instant {
        self.structure.now()
    }

    fn sleep_until(&self, at: Instant) -> impl Future<Output = ()> {
        self.structure.sleep_until(at)
    }

    async fn get(&self, key: u64) -> Answer<Option<S::Value>, S::Error> {
        self.structure.get_bytes(self.name_of(key)).await.expect(HAS_BYTES)
    }

    async fn change(&self, key: u64, change: Change<'_>) -> Answer<bool, S::Error> {
        self.structure.change_bytes(self.name_of(key), change).await.expect(HAS_BYTES)
    }

    async fn scan(&self, range: KeyRange, order: Order, most: usize) -> Answer<Pairs, S::Error> {
        let Some(low) = self.names.from(range.low) else {
            // What lies behind the last name is found with it.
            return Answer { result: Ok(Vec::new()), round_trips: 0 };
        };
        let high = range.high.and_then(|high| self.names.from(high));
        let range = BytesRange { low: low.to_vec(), high: high.map(<[u8]>::to_vec) };
        let answer = self.structure.scan_bytes(range, order, most).await.expect(HAS_BYTES);
        answer.map(|mut found| {
            if order == Order::Backward {
                found.reverse();
            }
            let mut numbered = self.names.numbered(found);
            if order == Order::Backward {
                numbered.reverse();
            }
            numbered
        })
    }

    fn export(&self, from: u64, most: usize) -> impl Future<Output = Answer<Portion<Bytes, u64>, S::Error>> {
        export_in_order(self, from, most)
    }

    fn is_unknown(error: &S::Error) -> bool {
        S::is_unknown(error)
    }
}

#[cfg(test)]
mod tests;
