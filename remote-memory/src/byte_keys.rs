//! Keys of bytes in records: the value of a record begins with its whole key.
//!
//! ```text
//!   record's head │ 2 bytes: length n of the key │ n bytes: the key │ the value
//! ```
//!
//! The 64-bit key in the record's head is a number that the structure makes of the key. Several keys may share one, so readers compare
//! the whole key.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::record::MAX_VALUE;

/// Bytes of the longest key of bytes.
pub const MAX_KEY_BYTES: usize = 4096;

/// Bytes before the key: its length.
pub const KEY_LENGTH: usize = 2;

/// Kind of a structure's keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Keys {
    /// Numbers of 64 bits.
    #[default]
    Numbers,
    /// Strings of bytes, of any length up to [`MAX_KEY_BYTES`].
    Bytes,
}

/// Words for people.
impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Numbers => "numbers",
            Self::Bytes => "bytes",
        })
    }
}

/// Bytes that a key takes in its record, beside the value.
#[must_use]
pub const fn key_room(key: &[u8]) -> usize {
    KEY_LENGTH + key.len()
}

/// Bytes of the longest value that goes into a record with this key.
#[must_use]
pub const fn longest_value(key: &[u8]) -> usize {
    (MAX_VALUE as usize).saturating_sub(key_room(key))
}

/// Key and value in the value of a record. `None`: it is shorter than its key.
#[inline]
#[must_use]
pub fn parts(record: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = record.split_first_chunk::<KEY_LENGTH>()?;
    rest.split_at_checked(u16::from_le_bytes(*length).into())
}

/// Writes the value of a record with this key, which has no more than [`MAX_KEY_BYTES`], and this value.
///
/// # Panics
/// When `record` has not exactly the room for both.
#[inline]
pub fn join(record: &mut [u8], key: &[u8], value: &[u8]) {
    let (length, rest) = record.split_at_mut(KEY_LENGTH);
    length.copy_from_slice(&(key.len() as u16).to_le_bytes());
    let (of_key, of_value) = rest.split_at_mut(key.len());
    of_key.copy_from_slice(key);
    of_value.copy_from_slice(value);
}

/// Two hexadecimal digits for each byte.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |nibble: u8| char::from(DIGITS[usize::from(nibble)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 0xf)]).collect()
}

/// Bytes as the shell and commands take them: text, in quotes where they are needed, or `0x` and hexadecimal digits.
#[must_use]
pub fn show(value: &[u8]) -> String {
    let text = std::str::from_utf8(value).ok().filter(|text| !text.chars().any(char::is_control));
    match text {
        None => format!("0x{}", hex(value)),
        Some(text)
            if text.is_empty()
                || text.starts_with("0x")
                || text.starts_with('"')
                || text.contains(char::is_whitespace) =>
        {
            format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
        }
        Some(text) => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_and_a_value_are_read_as_they_were_written() {
        for (key, value) in
            [(&b""[..], &b""[..]), (b"", b"v"), (b"k\0", b""), (&[7; MAX_KEY_BYTES], b"value")]
        {
            let mut record = vec![0xee; key_room(key) + value.len()];
            join(&mut record, key, value);
            assert_eq!(parts(&record), Some((key, value)));
        }
        assert_eq!(
            (parts(&[3, 0, 1, 2]), parts(&[0]), parts(b"\x02\0ab")),
            (None, None, Some((&b"ab"[..], &b""[..])))
        );
        assert_eq!(longest_value(b"ab"), MAX_VALUE as usize - 4);
    }
}
