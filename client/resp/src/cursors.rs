//! Cursors of SCAN: numbers for keys at which scans go on.
//!
//! A cursor of Redis is a number, and a scan of a tree goes on at a key, so the server keeps the keys of the last cursors that it gave. A scan
//! whose cursor it keeps no more is told to begin again.

use std::collections::VecDeque;

use bytes::Bytes;

/// Cursors that are kept.
const KEPT: usize = 10_000;

/// Keys at which scans go on.
#[derive(Default)]
pub(crate) struct Cursors {
    /// Number of the first one that is kept, less one.
    forgotten: u64,
    keys: VecDeque<Bytes>,
}

impl Cursors {
    /// A cursor for a scan that goes on after this key.
    pub(crate) fn put(&mut self, last: Bytes) -> u64 {
        if self.keys.len() == KEPT {
            self.keys.pop_front();
            self.forgotten += 1;
        }
        self.keys.push_back(last);
        self.forgotten + self.keys.len() as u64
    }

    /// The key after which a scan goes on.
    pub(crate) fn get(&self, cursor: u64) -> Option<Bytes> {
        let at = cursor.checked_sub(self.forgotten + 1)?;
        self.keys.get(usize::try_from(at).ok()?).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_cursors_are_kept() {
        let mut cursors = Cursors::default();
        let key = |n: usize| Bytes::from(n.to_string());
        for n in 0..2 * KEPT {
            assert_eq!(cursors.put(key(n)), n as u64 + 1, "0 begins a scan, and ends it");
        }
        assert_eq!(cursors.get(2 * KEPT as u64), Some(key(2 * KEPT - 1)));
        assert_eq!(cursors.get(KEPT as u64 + 1), Some(key(KEPT)));
        assert_eq!(
            (cursors.get(KEPT as u64), cursors.get(2 * KEPT as u64 + 1), cursors.get(0)),
            (None, None, None)
        );
    }
}
