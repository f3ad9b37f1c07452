//! The super-root: which partition a key belongs to, and where that partition's tree begins.

use fatbtree_remote_memory::{GlobalAddress, KeyRange};

/// One partition: a memory server's key range and the root of its tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Partition {
    /// Number of the partition; one per memory server, so also the server's.
    pub id: u16,
    /// The keys it is responsible for.
    pub range: KeyRange,
    /// A node to begin at: the root of its tree, or a former root. A root that is split keeps its address and its level and
    /// becomes the leftmost node of that level; the new root is another node, which the region's
    /// [`Superblock`](crate::Superblock) announces.
    pub root: GlobalAddress,
    /// Level of that node; 0 when it is a leaf.
    pub root_level: u8,
}

/// All partitions, in the order of their keys; they cover every key exactly once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SuperRoot {
    partitions: Vec<Partition>,
    /// Low keys of all partitions but the first.
    pivots: Vec<u64>,
}

impl SuperRoot {
    /// Puts partitions in order and checks that they cover all keys once.
    ///
    /// # Errors
    /// When they leave a gap, overlap, or name one number or root twice.
    ///
    /// ```
    /// use fatbtree_blink::{GlobalAddress, KeyRange, Partition, SuperRoot};
    /// let partition = |id, low, high| Partition {
    ///     id, range: KeyRange { low, high }, root: GlobalAddress::new(id, 64), root_level: 4,
    /// };
    /// let root = SuperRoot::new(vec![partition(1, 500, None), partition(0, 0, Some(500))])?;
    /// assert_eq!((root.partition_of(499).id, root.partition_of(500).id), (0, 1));
    /// assert!(SuperRoot::new(vec![partition(1, 500, None)]).is_err());
    /// # Ok::<(), fatbtree_blink::SuperRootError>(())
    /// ```
    pub fn new(mut partitions: Vec<Partition>) -> Result<Self, SuperRootError> {
        partitions.sort_by_key(|p| p.range.low);
        let mut expected = Some(0);
        for (index, p) in partitions.iter().enumerate() {
            if expected != Some(p.range.low) {
                return Err(SuperRootError::Cover { partition: p.id, low: p.range.low, expected });
            }
            if p.range.is_below(p.range.low) {
                return Err(SuperRootError::Empty { partition: p.id, low: p.range.low });
            }
            if p.root.is_null() {
                return Err(SuperRootError::NullRoot { partition: p.id });
            }
            if partitions[..index].iter().any(|other| other.id == p.id) {
                return Err(SuperRootError::Twice { partition: p.id });
            }
            expected = p.range.high;
        }
        if partitions.is_empty() || expected.is_some() {
            return Err(SuperRootError::Open { from: expected.unwrap_or(0) });
        }
        let pivots = partitions.iter().skip(1).map(|p| p.range.low).collect();
        Ok(Self { partitions, pivots })
    }

    /// Puts partitions in order of which some servers, `absent`, have not told theirs: they share what the others leave, in the order of
    /// their numbers. Their roots are of no use until the servers are there.
    ///
    /// # Errors
    /// When the others overlap, or do not leave as many keys.
    ///
    /// ```
    /// use fatbtree_blink::{GlobalAddress, KeyRange, Partition, SuperRoot};
    /// let partition = |id, low, high| Partition {
    ///     id, range: KeyRange { low, high }, root: GlobalAddress::new(id, 64), root_level: 4,
    /// };
    /// let root = SuperRoot::with_absent(vec![partition(1, 500, Some(600))], &[0, 2])?;
    /// assert_eq!([499, 500, 600].map(|key| root.partition_of(key).id), [0, 1, 2]);
    /// # Ok::<(), fatbtree_blink::SuperRootError>(())
    /// ```
    pub fn with_absent(mut partitions: Vec<Partition>, absent: &[u16]) -> Result<Self, SuperRootError> {
        const END: u128 = 1 << 64;
        partitions.sort_by_key(|p| p.range.low);
        let mut absent = absent.to_vec();
        absent.sort_unstable();
        // Keys that no partition has, and the number of the partition after them.
        let mut gaps = Vec::new();
        let mut from = 0;
        for p in &partitions {
            if u128::from(p.range.low) > from {
                gaps.push((from, u128::from(p.range.low), p.id));
            }
            from = p.range.high.map_or(END, u128::from);
        }
        if from < END {
            gaps.push((from, END, u16::MAX));
        }
        let mut absent = absent.into_iter().peekable();
        for (at, &(low, high, next)) in gaps.iter().enumerate() {
            let later = gaps.len() - at - 1;
            let mut here = Vec::new();
            // Numbers are mostly in the order of the keys.
            while absent.len() > later
                && let Some(id) = absent.next_if(|id| later == 0 || here.is_empty() || *id < next)
            {
                here.push(id);
            }
            let count = here.len() as u128;
            let border = |n: usize| low + (high - low) * n as u128 / count.max(1);
            partitions.extend(here.iter().enumerate().map(|(n, &id)| Partition {
                id,
                range: KeyRange { low: border(n) as u64, high: u64::try_from(border(n + 1)).ok() },
                root: GlobalAddress::new(id, 64),
                root_level: 0,
            }));
        }
        match absent.next() {
            Some(partition) => Err(SuperRootError::NoKeys { partition }),
            None => Self::new(partitions),
        }
    }

    /// The partition responsible for `key`.
    #[inline]
    #[must_use]
    pub fn partition_of(&self, key: u64) -> &Partition {
        &self.partitions[self.pivots.partition_point(|&pivot| pivot <= key)]
    }

    /// All partitions in the order of their keys.
    #[must_use]
    pub fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    /// Another node to begin at in partition `id`.
    pub(crate) fn set_root(&mut self, id: u16, root: GlobalAddress, level: u8) {
        if let Some(partition) = self.partitions.iter_mut().find(|p| p.id == id) {
            (partition.root, partition.root_level) = (root, level);
        }
    }

    /// The partition with number `id`.
    #[must_use]
    pub fn partition(&self, id: u16) -> Option<&Partition> {
        self.partitions.iter().find(|p| p.id == id)
    }
}

/// Reasons for which partitions do not make a super-root.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SuperRootError {
    /// A gap or an overlap.
    #[error(
        "partition {partition} begins at key {low:#x}, expected {}: partitions must cover every key exactly once",
        expected.map_or("no further partition".to_owned(), |expected| format!("{expected:#x}"))
    )]
    Cover {
        /// The partition that begins at the wrong key.
        partition: u16,
        /// Its first key.
        low: u64,
        /// End of the one before; `None` when that one has no end.
        expected: Option<u64>,
    },
    /// A partition without keys.
    #[error("partition {partition} begins at key {low:#x} and ends before it: give it a key range")]
    Empty {
        /// The partition.
        partition: u16,
        /// Its first key.
        low: u64,
    },
    /// No tree.
    #[error("partition {partition} has a null root address: load its memory server first")]
    NullRoot {
        /// The partition.
        partition: u16,
    },
    /// The other partitions leave no keys to one.
    #[error("partitions of other memory servers have all keys, and leave none to partition {partition}")]
    NoKeys {
        /// The partition.
        partition: u16,
    },
    /// Two partitions with one number.
    #[error("two partitions have the number {partition}")]
    Twice {
        /// The number.
        partition: u16,
    },
    /// The highest keys belong to no partition.
    #[error("keys from {from:#x} on belong to no partition: the last partition must have no upper end")]
    Open {
        /// First key without a partition.
        from: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(id: u16, low: u64, high: Option<u64>) -> Partition {
        Partition { id, range: KeyRange { low, high }, root: GlobalAddress::new(id, 64), root_level: 0 }
    }

    #[test]
    fn gaps_overlaps_and_repetitions_are_refused() {
        let fails = |list: &[Partition]| SuperRoot::new(list.to_vec()).unwrap_err();
        assert_eq!(fails(&[]), SuperRootError::Open { from: 0 });
        assert_eq!(fails(&[partition(0, 0, Some(9))]), SuperRootError::Open { from: 9 });
        let gap = fails(&[partition(0, 0, Some(9)), partition(1, 10, None)]);
        assert_eq!(gap, SuperRootError::Cover { partition: 1, low: 10, expected: Some(9) });
        let overlap = fails(&[partition(0, 0, None), partition(1, 10, None)]);
        assert_eq!(overlap, SuperRootError::Cover { partition: 1, low: 10, expected: None });
        assert_eq!(
            fails(&[partition(3, 0, Some(9)), partition(3, 9, None)]),
            SuperRootError::Twice { partition: 3 }
        );
        assert_eq!(fails(&[partition(3, 0, Some(0))]), SuperRootError::Empty { partition: 3, low: 0 });
        let null = Partition { root: GlobalAddress::new(1, 0), ..partition(1, 0, None) };
        assert_eq!(fails(&[null]), SuperRootError::NullRoot { partition: 1 });
    }

    #[test]
    fn absent_servers_share_what_the_others_leave() {
        let known = |list: &[Partition], absent: &[u16]| SuperRoot::with_absent(list.to_vec(), absent);
        let all = [partition(0, 0, Some(10)), partition(1, 10, Some(30)), partition(2, 30, None)];
        let ids = |root: &SuperRoot| [0, 9, 10, 29, 30, u64::MAX].map(|key| root.partition_of(key).id);
        for absent in [&[0][..], &[1], &[2], &[0, 2]] {
            let list: Vec<_> = all.into_iter().filter(|p| !absent.contains(&p.id)).collect();
            assert_eq!(ids(&known(&list, absent).unwrap()), [0, 0, 1, 1, 2, 2], "{absent:?}");
        }
        // Two beside each other: one of them has each key, and which shows when one has come.
        let two = known(&all[..1], &[2, 1]).unwrap();
        assert_eq!((two.partition_of(10).id, two.partition_of(u64::MAX).id), (1, 2));
        assert_eq!(ids(&known(&all[1..2], &[0, 2]).unwrap()), [0, 0, 1, 1, 2, 2]);
        assert_eq!(known(&all, &[3]).unwrap_err(), SuperRootError::NoKeys { partition: 3 });
        assert!(known(&all[1..2], &[0]).is_err(), "one cannot fill two gaps");
        assert!(known(&[partition(0, 0, None), all[1]], &[2]).is_err(), "they overlap");
    }

    #[test]
    fn every_key_has_its_partition() {
        let root = SuperRoot::new(vec![
            partition(0, 0, Some(1)),
            partition(1, 1, Some(u64::MAX)),
            partition(2, u64::MAX, None),
        ]);
        let root = root.unwrap();
        for (key, id) in [(0, 0), (1, 1), (u64::MAX - 1, 1), (u64::MAX, 2)] {
            assert_eq!(root.partition_of(key).id, id, "key {key:#x}");
        }
    }
}
