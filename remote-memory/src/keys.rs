//! Ranges of keys.

use std::fmt;
use std::ops::{Bound, RangeBounds};

use crate::structure::Order;

/// Keys from `low`, inclusive, to `high`, exclusive; no `high` means up to and including `u64::MAX`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct KeyRange {
    /// Lowest key.
    pub low: u64,
    /// Lowest key above the range, if there is one.
    pub high: Option<u64>,
}

impl KeyRange {
    /// Every key.
    pub const ALL: Self = Self { low: 0, high: None };

    /// The keys of any of Rust's ranges.
    ///
    /// ```
    /// use fatbtree_remote_memory::KeyRange;
    /// assert_eq!(KeyRange::of(3..=9), KeyRange { low: 3, high: Some(10) });
    /// assert_eq!(KeyRange::of(3..=u64::MAX), KeyRange { low: 3, high: None });
    /// assert_eq!(KeyRange::of(..), KeyRange::ALL);
    /// assert!(KeyRange::of(9..3).is_empty());
    /// ```
    #[must_use]
    pub fn of(range: impl RangeBounds<u64>) -> Self {
        let above = |key: &u64| key.checked_add(1);
        let high = match range.end_bound() {
            Bound::Included(key) => above(key),
            Bound::Excluded(key) => Some(*key),
            Bound::Unbounded => None,
        };
        match range.start_bound() {
            Bound::Included(key) => Self { low: *key, high },
            Bound::Unbounded => Self { low: 0, high },
            Bound::Excluded(key) => match above(key) {
                Some(low) => Self { low, high },
                None => Self { low: u64::MAX, high: Some(u64::MAX) },
            },
        }
    }

    /// Whether no key lies in the range.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.is_below(self.low)
    }

    /// Whether a key lies in both ranges.
    #[inline]
    #[must_use]
    pub const fn overlaps(&self, other: &Self) -> bool {
        !self.is_empty() && !other.is_empty() && !self.is_below(other.low) && !other.is_below(self.low)
    }

    /// The one range that all keys outside of `ranges` are; none where these overlap, leave out several ranges, or no key.
    ///
    /// ```
    /// use fatbtree_remote_memory::KeyRange;
    /// assert_eq!(KeyRange::only_gap([KeyRange::of(9..), KeyRange::of(..5)]), Some(KeyRange::of(5..9)));
    /// assert_eq!(KeyRange::only_gap([KeyRange::of(..5)]), Some(KeyRange::of(5..)));
    /// assert_eq!(KeyRange::only_gap([KeyRange::of(2..3), KeyRange::of(9..)]), None, "two gaps");
    /// ```
    #[must_use]
    pub fn only_gap(ranges: impl IntoIterator<Item = Self>) -> Option<Self> {
        let mut ranges: Vec<_> = ranges.into_iter().filter(|range| !range.is_empty()).collect();
        ranges.sort_unstable_by_key(|range| range.low);
        let mut gaps = vec![];
        let mut next = Some(0);
        for range in ranges {
            let from = next.filter(|next| *next <= range.low)?;
            gaps.push(Self { low: from, high: Some(range.low) });
            next = range.high;
        }
        gaps.extend(next.map(|low| Self { low, high: None }));
        gaps.retain(|gap| !gap.is_empty());
        match gaps.as_slice() {
            [gap] => Some(*gap),
            _ => None,
        }
    }

    /// Cuts the range into up to `parts` parts of the same width, in ascending order: for scans of sub-ranges in parallel.
    ///
    /// ```
    /// use fatbtree_remote_memory::KeyRange;
    /// let parts: Vec<_> = KeyRange::of(10..20).split_evenly(3).map(|part| part.low).collect();
    /// assert_eq!(parts, [10, 14, 18]);
    /// ```
    pub fn split_evenly(self, parts: u32) -> impl Iterator<Item = Self> {
        let end = self.high.map_or(1 << 64, u128::from);
        let low = u128::from(self.low);
        let width = end.saturating_sub(low).div_ceil(u128::from(parts.max(1))).max(1);
        (0..u128::from(parts.max(1)))
            .map(move |part| (low + part * width, end.min(low + (part + 1) * width)))
            .filter_map(
                // A bound after the last key is none.
                |(low, high)| {
                    (low < high).then_some(Self { low: low as u64, high: u64::try_from(high).ok() })
                },
            )
    }

    /// Whether `key` lies in the range.
    #[inline]
    #[must_use]
    pub const fn contains(&self, key: u64) -> bool {
        key >= self.low && !self.is_below(key)
    }

    /// Whether the whole range lies below `key`.
    #[inline]
    #[must_use]
    pub const fn is_below(&self, key: u64) -> bool {
        match self.high {
            Some(high) => key >= high,
            None => false,
        }
    }
}

impl fmt::Display for KeyRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.high {
            Some(high) => write!(f, "[{:#x}, {high:#x})", self.low),
            None => write!(f, "[{:#x}, {:#x}]", self.low, u64::MAX),
        }
    }
}

/// A range of keys of bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BytesRange {
    /// The first key, or before it.
    pub low: Vec<u8>,
    /// Behind the last key; none: no end.
    pub high: Option<Vec<u8>>,
}

impl BytesRange {
    /// All keys.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// All keys that begin so.
    ///
    /// ```
    /// use fatbtree_remote_memory::BytesRange;
    /// let range = BytesRange::prefix(b"user:");
    /// assert!(range.contains(b"user:") && range.contains(b"user:\xff\xff") && !range.contains(b"user;"));
    /// assert_eq!(BytesRange::prefix(b"\xff\xff").high, None);
    /// ```
    #[must_use]
    pub fn prefix(prefix: &[u8]) -> Self {
        let last = prefix.iter().rposition(|&byte| byte != 0xff);
        let high = last.map(|last| {
            let mut high = prefix[..=last].to_vec();
            high[last] += 1;
            high
        });
        Self { low: prefix.to_vec(), high }
    }

    /// The keys of any of Rust's ranges.
    ///
    /// ```
    /// use fatbtree_remote_memory::BytesRange;
    /// let range = BytesRange::of::<&str>("b"..="d");
    /// assert!(range.contains(b"b") && range.contains(b"d") && !range.contains(b"d\0") && !range.contains(b"a"));
    /// ```
    #[must_use]
    pub fn of<K: AsRef<[u8]>>(range: impl RangeBounds<K>) -> Self {
        let bytes = |key: &K| key.as_ref().to_vec();
        let low = match range.start_bound() {
            Bound::Included(key) => bytes(key),
            Bound::Excluded(key) => next_key(key.as_ref()),
            Bound::Unbounded => Vec::new(),
        };
        let high = match range.end_bound() {
            Bound::Included(key) => Some(next_key(key.as_ref())),
            Bound::Excluded(key) => Some(bytes(key)),
            Bound::Unbounded => None,
        };
        Self { low, high }
    }

    /// Whether a key lies in it.
    #[must_use]
    pub fn contains(&self, key: &[u8]) -> bool {
        *self.low <= *key && self.high.as_deref().is_none_or(|high| key < high)
    }

    /// What is left of it in an order after this key.
    #[must_use]
    pub fn after(self, last: &[u8], order: Order) -> Self {
        match order {
            Order::Forward => Self { low: next_key(last), ..self },
            Order::Backward => Self { high: Some(last.to_vec()), ..self },
        }
    }
}

/// The first key after this one.
fn next_key(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}
