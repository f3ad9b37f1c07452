//! Elements of tuples.

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, SystemTime};

/// An element of a tuple. Variants are in the order of keys, and so are their values.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Element<'k> {
    /// No value: before all others.
    None,
    /// Bytes, byte by byte.
    Bytes(Cow<'k, [u8]>),
    /// Text in UTF-8, byte by byte.
    Text(Cow<'k, str>),
    /// An integer.
    Integer(i128),
    /// A boolean: `false` before `true`.
    Bool(bool),
    /// A moment.
    Time(Time),
}

impl Element<'_> {
    /// The same without a borrowed key.
    pub fn into_owned(self) -> Element<'static> {
        match self {
            Self::None => Element::None,
            Self::Bytes(bytes) => Element::Bytes(bytes.into_owned().into()),
            Self::Text(text) => Element::Text(text.into_owned().into()),
            Self::Integer(number) => Element::Integer(number),
            Self::Bool(is_true) => Element::Bool(is_true),
            Self::Time(time) => Element::Time(time),
        }
    }
}

/// What an element is, for errors: values of any length are left out.
impl fmt::Display for Element<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Bytes(_) => f.write_str("bytes"),
            Self::Text(_) => f.write_str("text"),
            Self::Integer(number) => write!(f, "the integer {number}"),
            Self::Bool(_) => f.write_str("a boolean"),
            Self::Time(_) => f.write_str("a time"),
        }
    }
}

/// A moment in microseconds since the beginning of 1970 in UTC, as Python's `datetime` has it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Time(i64);

impl Time {
    /// The moment so many microseconds after the beginning of 1970, or before it.
    #[must_use]
    pub fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the beginning of 1970.
    #[must_use]
    pub fn as_micros(self) -> i64 {
        self.0
    }

    /// The system's time; `None` if that does not go so far.
    #[must_use]
    pub fn to_system(self) -> Option<SystemTime> {
        let distance = Duration::from_micros(self.0.unsigned_abs());
        match self.0 < 0 {
            true => SystemTime::UNIX_EPOCH.checked_sub(distance),
            false => SystemTime::UNIX_EPOCH.checked_add(distance),
        }
    }
}

/// Nanoseconds are left out, towards the past. Times more than 292,000 years away from 1970 become the last one that there is.
impl From<SystemTime> for Time {
    fn from(time: SystemTime) -> Self {
        Self(match time.duration_since(SystemTime::UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_micros()).unwrap_or(i64::MAX),
            Err(before) => {
                let micros = before.duration().as_nanos().div_ceil(1000);
                i64::try_from(micros).map_or(i64::MIN, |micros| -micros)
            }
        })
    }
}
