//! A table of either kind of keys, as one of numbers: a key of bytes stands for each.
//!
//! ```text
//!   number   0    1     2            3, 4, 5          6, 7, 8          9, 10, 11            12, 13, 14
//!   key      ""   "\0"  4,096 × x    ████▒▒▒▒         ████▒▒▒▒ \0\0    ████▒▒▒▒ 300 × y     ████▒▒▒▒ …
//! ```
//!
//! Three keys have one [word](fatbtree_race::word_of), from the fourth on, so they share buckets and fingerprint at every depth: nothing but
//! the whole key tells them apart. The bytes █ are the number, and those before the end ▒ follow from it and from the word.

use bytes::Bytes;
use fatbtree_race::{Cursor, Table, TableError, Value, twin_of};
use fatbtree_remote_memory::{Answer, Change, KeyRange, Keys, Order, Pairs, Portion, Structure};
use fatbtree_verbs::time::Instant;

use crate::world::SimDevice;

/// Keys that have one word.
const TWINS: u64 = 3;

/// The key of bytes that stands for a number.
pub(super) fn name_of(number: u64) -> Vec<u8> {
    match number {
        0 => return Vec::new(),
        1 => return vec![0],
        2 => return vec![b'x'; fatbtree_remote_memory::byte_keys::MAX_KEY_BYTES],
        _ => {}
    }
    let group = number / TWINS;
    let tail: &[u8] = match group % 4 {
        2 => &[0, 0],
        3 => &[b'y'; 300],
        _ => b"",
    };
    let first = [&(group * TWINS).to_le_bytes()[..], &[b'z'; 8], tail].concat();
    twin_of(&first, number.to_le_bytes()).expect("it has sixteen bytes")
}

/// The number for which a key stands.
pub(super) fn number_of(name: &[u8]) -> Option<u64> {
    let begin = name.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
    (0..TWINS).chain(begin).find(|&number| name_of(number) == name)
}

/// A table whose keys are of this kind.
pub(super) struct Keyed {
    pub(super) table: Table<SimDevice>,
    pub(super) keys: Keys,
}

impl Structure for Keyed {
    type Value = Value;
    type Error = TableError;
    type Cursor = Cursor;

    const NAME: &'static str = <Table<SimDevice> as Structure>::NAME;

    fn now(&self) -> Instant {
        self.table.now()
    }

    async fn sleep_until(&self, at: Instant) {
        self.table.sleep_until(at).await;
    }

    async fn get(&self, key: u64) -> Answer<Option<Value>, TableError> {
        match self.keys {
            Keys::Numbers => self.table.search(key).await,
            Keys::Bytes => self.table.search_bytes(&name_of(key)).await,
        }
    }

    async fn change(&self, key: u64, change: Change<'_>) -> Answer<bool, TableError> {
        match self.keys {
            Keys::Numbers => self.table.change(key, change).await,
            Keys::Bytes => self.table.change_bytes(&name_of(key), change).await,
        }
    }

    async fn scan(&self, range: KeyRange, order: Order, most: usize) -> Answer<Pairs, TableError> {
        self.table.scan(range, order, most).await
    }

    /// A key that stands for no number is exported as the greatest number, which no client puts.
    async fn export(&self, from: Cursor, most: usize) -> Answer<Portion<Bytes, Cursor>, TableError> {
        match self.keys {
            Keys::Numbers => Structure::export(&self.table, from, most).await,
            Keys::Bytes => {
                let exported = self.table.export_bytes(from, most).await;
                exported.expect("a table has keys of bytes").map(|Portion { pairs, rest }| {
                    let number = |name: Bytes| number_of(&name).unwrap_or(u64::MAX);
                    let pairs = pairs.into_iter().map(|(name, value)| (number(name), value));
                    Portion { pairs: pairs.collect(), rest }
                })
            }
        }
    }

    fn is_unknown(error: &TableError) -> bool {
        Table::<SimDevice>::is_unknown(error)
    }
}

#[cfg(test)]
mod tests {
    use fatbtree_race::word_of;

    use super::*;

    #[test]
    fn each_number_has_a_key_and_three_have_one_word() {
        let names: Vec<_> = (0..500).map(name_of).collect();
        for (number, name) in (0..).zip(&names) {
            assert_eq!(number_of(name), Some(number));
            assert!(names.iter().filter(|other| *other == name).count() == 1, "{number}");
        }
        for group in names[3..].chunks(TWINS as usize) {
            let words: Vec<u64> = group.iter().map(|name| word_of(name)).collect();
            assert!(words.iter().all(|word| *word == words[0]), "{words:x?}");
        }
        assert_eq!(number_of(b"another"), None);
    }
}
