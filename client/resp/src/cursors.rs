//! Cursors of SCAN: numbers for what scans go on with.
//!
//! A cursor of Redis is a number. A scan of a tree goes on at a key, and one of a hash table with what it has left, so the server keeps that of
//! the last cursors that it gave. A scan whose cursor it keeps no more is told to begin again.

use std::collections::VecDeque;

/// What scans go on with.
pub(crate) struct Cursors<T> {
    /// Cursors that are kept.
    most: usize,
    /// Number of the first one that is kept, less one.
    forgotten: u64,
    all: VecDeque<T>,
}

impl<T> Cursors<T> {
    /// No cursor yet; so many are kept.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, forgotten: 0, all: VecDeque::new() }
    }

    /// A cursor for a scan that goes on with this.
    pub(crate) fn put(&mut self, rest: T) -> u64 {
        if self.all.len() == self.most {
            self.all.pop_front();
            self.forgotten += 1;
        }
        self.all.push_back(rest);
        self.forgotten + self.all.len() as u64
    }

    /// What a scan goes on with.
    pub(crate) fn get(&mut self, cursor: u64) -> Option<&mut T> {
        let at = cursor.checked_sub(self.forgotten + 1)?;
        self.all.get_mut(usize::try_from(at).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_cursors_are_kept() {
        let mut cursors = Cursors::new(100);
        for n in 0..200_u64 {
            assert_eq!(cursors.put(n), n + 1, "0 begins a scan, and ends it");
        }
        assert_eq!([200, 101].map(|cursor| cursors.get(cursor).copied()), [Some(199), Some(100)]);
        assert_eq!([100, 201, 0].map(|cursor| cursors.get(cursor).copied()), [None; 3]);
    }
}
