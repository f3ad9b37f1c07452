//! Maps from record numbers to 64-bit keys.

use std::sync::Arc;

use super::hash::fnv_hash64;
use super::spec::InsertOrder;

/// A user's keys, in the order of the file.
///
/// Duplicates are dropped and counted; the first occurrence stays. Real key sets (such as SOSD's `wiki`) have a few,
/// and a tree holds each key once. The loader of the file reports [`KeyFile::duplicates`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFile {
    keys: Vec<u64>,
    duplicates: usize,
}

impl KeyFile {
    /// The distinct keys in the order of their first occurrence.
    pub fn keys(&self) -> &[u64] {
        &self.keys
    }

    /// The keys, without a copy.
    pub fn into_keys(self) -> Vec<u64> {
        self.keys
    }

    /// Number of lines that repeated an earlier key.
    pub fn duplicates(&self) -> usize {
        self.duplicates
    }
}

/// Makes a key file of these keys, one a line.
impl From<Vec<u64>> for KeyFile {
    fn from(mut keys: Vec<u64>) -> Self {
        let duplicates = drop_duplicates(&mut keys);
        Self { keys, duplicates }
    }
}

/// Drops repeated keys and keeps the first of each; returns the number dropped.
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
    /// Keys line by line from a file, which may run out.
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

    #[test]
    fn duplicates_are_counted_and_the_order_stays() {
        let file = KeyFile::from(vec![9, 3, 9, 3, 1, 3]);
        assert_eq!((file.keys(), file.duplicates()), (&[9, 3, 1][..], 3));
        assert_eq!(file.into_keys(), [9, 3, 1]);
    }

    #[test]
    fn a_file_ends() {
        let map = KeyMap::File(Arc::new(KeyFile::from(vec![5, 4])));
        assert_eq!((map.key(0), map.key(1), map.key(2)), (Some(5), Some(4), None));
        assert_eq!(map.capacity(), 2);
    }
}
