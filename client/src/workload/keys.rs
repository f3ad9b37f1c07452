//! Record numbers to 64-bit keys.

use std::sync::Arc;

use thiserror::Error;

use super::hash::fnv_hash64;
use super::spec::InsertOrder;

/// Why a key file is refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum KeyFileError {
    /// A line that is not a key.
    #[error(
        "{file}, line {line}: expected one 64-bit key, decimal or 0x-hexadecimal, found `{found}`: {why}; correct the line \
         or comment it out with `#`"
    )]
    NotAKey {
        /// The file.
        file: String,
        /// Its line, from 1.
        line: usize,
        /// What stands there, shortened.
        found: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// No keys at all.
    #[error("{file}: expected one key per line, found no key in {lines} lines")]
    Empty {
        /// The file.
        file: String,
        /// Lines read.
        lines: usize,
    },
}

/// A user's keys, in the order of the file.
///
/// Duplicates are dropped, the first occurrence staying, and counted: real key sets (SOSD's `wiki`, say) have
/// a few, and a tree holds each key once. Whoever loads the file reports [`KeyFile::duplicates`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFile {
    keys: Vec<u64>,
    duplicates: usize,
}

impl KeyFile {
    /// Reads one key per line, decimal or `0x` hexadecimal, `_` allowed between digits; blank lines and what
    /// follows a `#` do not count. The keys need not be sorted.
    pub fn parse(file: &str, text: &str) -> Result<Self, KeyFileError> {
        let mut keys = Vec::new();
        let mut lines = 0;
        for (index, line) in text.lines().enumerate() {
            lines = index + 1;
            let content = line.split('#').next().unwrap_or_default().trim();
            if content.is_empty() {
                continue;
            }
            keys.push(parse_key(content).map_err(|why| KeyFileError::NotAKey {
                file: file.to_owned(),
                line: lines,
                found: content.chars().take(60).collect(),
                why,
            })?);
        }
        if keys.is_empty() {
            return Err(KeyFileError::Empty { file: file.to_owned(), lines });
        }
        Ok(Self::from(keys))
    }

    /// The distinct keys in the order of their first occurrence.
    pub fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// Lines that repeated an earlier key.
    pub fn duplicates(&self) -> usize {
        self.duplicates
    }
}

/// As a file with these keys, one a line.
impl From<Vec<u64>> for KeyFile {
    fn from(mut keys: Vec<u64>) -> Self {
        let duplicates = drop_duplicates(&mut keys);
        Self { keys, duplicates }
    }
}

fn parse_key(text: &str) -> Result<u64, &'static str> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    if digits.split_whitespace().nth(1).is_some() {
        return Err("more than one word");
    }
    // from_str_radix would take a sign.
    if !digits.starts_with(|c: char| c.is_digit(radix)) {
        return Err("not a number");
    }
    let parsed = if digits.contains('_') {
        u64::from_str_radix(&digits.replace('_', ""), radix)
    } else {
        u64::from_str_radix(digits, radix)
    };
    parsed.map_err(|error| match error.kind() {
        std::num::IntErrorKind::PosOverflow => "larger than 2^64 - 1",
        _ => "not a number",
    })
}

/// Keeps the first of each; returns how many went.
fn drop_duplicates(keys: &mut Vec<u64>) -> usize {
    let before = keys.len();
    let mut order: Vec<usize> = (0..before).collect();
    order.sort_unstable_by_key(|&at| (keys[at], at));
    let mut repeated = vec![false; before];
    for pair in order.windows(2) {
        repeated[pair[1]] = keys[pair[0]] == keys[pair[1]];
    }
    let mut at = 0;
    keys.retain(|_| {
        at += 1;
        !repeated[at - 1]
    });
    before - keys.len()
}

/// The key of each record number.
#[derive(Debug, Clone)]
pub enum KeyMap {
    /// YCSB's hash of the number: keys in `0..=2^63`.
    Hashed,
    /// The number itself.
    Ordered,
    /// Line by line from a file; it ends.
    File(Arc<KeyFile>),
}

impl From<InsertOrder> for KeyMap {
    fn from(order: InsertOrder) -> Self {
        match order {
            InsertOrder::Hashed => KeyMap::Hashed,
            InsertOrder::Ordered => KeyMap::Ordered,
        }
    }
}

impl KeyMap {
    /// The key of a record; `None` beyond the end of a key file.
    #[inline]
    pub fn key(&self, record: u64) -> Option<u64> {
        match self {
            KeyMap::Hashed => Some(fnv_hash64(record)),
            KeyMap::Ordered => Some(record),
            KeyMap::File(file) => file.keys.get(usize::try_from(record).ok()?).copied(),
        }
    }

    /// Number of records that have a key.
    pub fn capacity(&self) -> u64 {
        match self {
            KeyMap::Hashed | KeyMap::Ordered => u64::MAX,
            KeyMap::File(file) => file.keys.len() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn decimal_hexadecimal_and_comments() {
        let file =
            KeyFile::parse("k", "7\n0xff # last of the first page\n\n  # nothing\n1_000\r\n0X1F\n").unwrap();
        assert_eq!(file.keys(), [7, 255, 1000, 31]);
        assert_eq!(KeyFile::parse("k", "18446744073709551615").unwrap().keys(), [u64::MAX]);
    }

    #[test]
    fn duplicates_are_counted_and_the_order_stays() {
        let file = KeyFile::parse("k", "9\n3\n9\n0x3\n1\n3").unwrap();
        assert_eq!((file.keys(), file.duplicates()), (&[9, 3, 1][..], 3));
    }

    #[test]
    fn mistakes_name_line_and_content() {
        for (text, found, why) in [
            ("1\nabc", "abc", "not a number"),
            ("1\n-5", "-5", "not a number"),
            ("1\n+5", "+5", "not a number"),
            ("1\n0x", "0x", "not a number"),
            ("1\n1.5", "1.5", "not a number"),
            ("1\n3 4", "3 4", "more than one word"),
            ("1\n18446744073709551616", "18446744073709551616", "larger than"),
        ] {
            let error = KeyFile::parse("keys.txt", text).unwrap_err().to_string();
            assert!(error.starts_with("keys.txt, line 2:") && error.contains(found), "{error}");
            assert!(error.contains(why), "{error}");
        }
        assert!(matches!(KeyFile::parse("k", "\n#\n"), Err(KeyFileError::Empty { lines: 2, .. })));
    }

    #[test]
    fn a_file_ends() {
        let map = KeyMap::File(Arc::new(KeyFile::parse("k", "5\n4").unwrap()));
        assert_eq!((map.key(0), map.key(1), map.key(2)), (Some(5), Some(4), None));
        assert_eq!(map.capacity(), 2);
    }

    proptest! {
        #[test]
        fn keys_come_back(keys in prop::collection::vec(any::<u64>(), 1..50), hex in any::<bool>()) {
            let text: String = keys
                .iter()
                .map(|key| if hex { format!("{key:#x}\n") } else { format!("{key}\n") })
                .collect();
            let mut distinct = Vec::new();
            for key in &keys {
                if !distinct.contains(key) {
                    distinct.push(*key);
                }
            }
            let file = KeyFile::parse("k", &text).unwrap();
            prop_assert_eq!(file.duplicates(), keys.len() - distinct.len());
            prop_assert_eq!(file.keys(), distinct);
        }

        #[test]
        fn never_panics(text in "[ -~\\n]{0,100}") {
            let _ = KeyFile::parse("fuzz", &text);
        }
    }
}
