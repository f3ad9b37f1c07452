//! Memory regions: what remote queue pairs may touch, where, and how.

use std::collections::BTreeMap;
use std::ops::BitOr;

/// What remote queue pairs may do in a memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Access(u8);

impl Access {
    /// Nothing: only the owner reads and writes.
    pub const NONE: Access = Access(0);
    /// RDMA READ.
    pub const READ: Access = Access(1);
    /// RDMA WRITE.
    pub const WRITE: Access = Access(2);
    /// Atomics.
    pub const ATOMIC: Access = Access(4);
    /// All of these.
    pub const ALL: Access = Access(7);

    /// True when every right of `other` is granted.
    pub const fn contains(self, other: Access) -> bool {
        self.0 & other.0 == other.0
    }
}

impl BitOr for Access {
    type Output = Access;

    fn bitor(self, other: Access) -> Access {
        Access(self.0 | other.0)
    }
}

/// A registered region, as told to those who may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemoryRegion {
    /// Key for local use; the same number as `rkey`.
    pub lkey: u32,
    /// Key remote requests must carry: random, never 0.
    pub rkey: u32,
    /// Address of its first byte in remote requests.
    pub iova: u64,
    /// Bytes.
    pub len: u64,
}

pub(crate) struct Region {
    iova: u64,
    bytes: Box<[u8]>,
    access: Access,
}

/// The regions of a NIC by rkey. Ordered, so that runs repeat; a NIC has a handful, which is one node of the tree.
#[derive(Default)]
pub(crate) struct Regions {
    by_rkey: BTreeMap<u32, Region>,
}

impl Regions {
    /// Registers `bytes` under the first rkey of `candidates` that is neither 0 nor taken.
    pub(crate) fn register(
        &mut self,
        iova: u64,
        bytes: Box<[u8]>,
        access: Access,
        mut candidates: impl FnMut() -> u32,
    ) -> MemoryRegion {
        let rkey = loop {
            let rkey = candidates();
            if rkey != 0 && !self.by_rkey.contains_key(&rkey) {
                break rkey;
            }
        };
        let len = bytes.len() as u64;
        self.by_rkey.insert(rkey, Region { iova, bytes, access });
        MemoryRegion { lkey: rkey, rkey, iova, len }
    }

    pub(crate) fn deregister(&mut self, rkey: u32) -> Option<Box<[u8]>> {
        self.by_rkey.remove(&rkey).map(|region| region.bytes)
    }

    pub(crate) fn bytes(&self, rkey: u32) -> Option<&[u8]> {
        self.by_rkey.get(&rkey).map(|region| &*region.bytes)
    }

    pub(crate) fn bytes_mut(&mut self, rkey: u32) -> Option<&mut [u8]> {
        self.by_rkey.get_mut(&rkey).map(|region| &mut *region.bytes)
    }

    /// The `len` bytes at `va`, if key, range and right are there.
    #[inline]
    pub(crate) fn get(&self, rkey: u32, va: u64, len: usize, access: Access) -> Option<&[u8]> {
        let region = self.by_rkey.get(&rkey)?;
        let start = region.offset(va, access)?;
        region.bytes.get(start..start.checked_add(len)?)
    }

    /// As [`get`](Self::get), to write.
    #[inline]
    pub(crate) fn get_mut(&mut self, rkey: u32, va: u64, len: usize, access: Access) -> Option<&mut [u8]> {
        let region = self.by_rkey.get_mut(&rkey)?;
        let start = region.offset(va, access)?;
        region.bytes.get_mut(start..start.checked_add(len)?)
    }
}

impl Region {
    fn offset(&self, va: u64, access: Access) -> Option<usize> {
        if !self.access.contains(access) {
            return None;
        }
        usize::try_from(va.checked_sub(self.iova)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_range_and_right_are_checked() {
        let mut regions = Regions::default();
        let mut candidates = [0, 7, 7, 0, 9].into_iter();
        let iova = u64::MAX - 99;
        let first = regions.register(iova, vec![1; 100].into(), Access::READ, || candidates.next().unwrap());
        assert_eq!((first.rkey, first.len), (7, 100));
        let second = regions.register(0, vec![2; 8].into(), Access::ALL, || candidates.next().unwrap());
        assert_eq!(second.rkey, 9, "0 and taken keys are passed over");

        let get = |rkey, va, len, access| regions.get(rkey, va, len, access).is_some();
        assert!(get(7, iova, 100, Access::READ));
        assert!(get(7, u64::MAX, 1, Access::READ));
        assert!(!get(7, u64::MAX, 2, Access::READ), "the end of the address space");
        assert!(!get(7, iova - 1, 1, Access::READ));
        assert!(!get(7, iova, 1, Access::WRITE));
        assert!(!get(0, iova, 1, Access::READ));
        assert!(!get(9, 1, usize::MAX, Access::READ));
        assert!(get(9, 0, 8, Access::READ | Access::ATOMIC));
    }
}
