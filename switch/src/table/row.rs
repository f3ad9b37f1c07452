//! A table's data for one key, wherever it lies: action and parameters, and the direct counter beside them, so that
//! a hit counts in the cache line that it reads anyway.

use crate::entry::CounterData;

/// Layout of the rows of a table: `action + 1 | params ... | packets | bytes`, the last two if it counts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Words of an entry: 1 + the parameters of its largest action.
    pub(crate) entry: usize,
    /// Whether it has a direct counter.
    pub(crate) counted: bool,
}

impl Shape {
    /// Words of a row.
    #[inline]
    pub(crate) fn words(self) -> usize {
        self.entry + if self.counted { 2 } else { 0 }
    }

    /// Counts a packet of this many bytes; returns the entry.
    #[inline]
    pub(crate) fn hit(self, row: &mut [u64], bytes: usize) -> &[u64] {
        let (entry, counter) = row.split_at_mut(self.entry);
        if let [packets, total] = counter {
            *packets += 1;
            *total += bytes as u64;
        }
        entry
    }

    /// The direct counter; zero where there is none.
    pub(crate) fn counter(self, row: &[u64]) -> CounterData {
        match row[self.entry..] {
            [packets, bytes] => CounterData { packets, bytes },
            _ => CounterData::default(),
        }
    }

    /// Sets the direct counter, where there is one.
    pub(crate) fn set_counter(self, row: &mut [u64], data: CounterData) {
        if let [packets, bytes] = &mut row[self.entry..] {
            (*packets, *bytes) = (data.packets, data.bytes);
        }
    }
}
