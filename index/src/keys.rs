//! Ranges of keys.

use std::fmt;

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
