//! Memory regions, and the access to them that remote queue pairs have.

use fatbtree_verbs::{Access, DeviceMemoryError, IndexTarget, Memory, Region, RegisterError};
use std::collections::BTreeMap;
use std::sync::Arc;

struct Registered {
    memory: Arc<Memory>,
    iova: u64,
    access: Access,
    on_device: bool,
}

/// Regions of a NIC by rkey. Ordered, so that runs repeat; a NIC has a handful, which is one node of the map.
pub(crate) struct Regions {
    by_rkey: BTreeMap<u32, Registered>,
    /// Bytes on the device that are not registered.
    device_memory: u64,
}

impl Regions {
    /// Creates an empty table of regions, with `device_memory` bytes on the device.
    pub(crate) fn new(device_memory: u64) -> Regions {
        Regions { by_rkey: BTreeMap::new(), device_memory }
    }

    /// Whether a region could be registered under `rkey`.
    pub(crate) fn is_free(&self, rkey: u32) -> bool {
        IndexTarget::of_rkey(rkey).is_none() && !self.by_rkey.contains_key(&rkey)
    }

    /// Registers memory under the first rkey of `candidates` that is free.
    pub(crate) fn register(
        &mut self,
        memory: Arc<Memory>,
        iova: u64,
        access: Access,
        candidates: impl FnMut() -> u32,
    ) -> Result<Region, RegisterError> {
        self.insert(Registered { memory, iova, access, on_device: false }, candidates)
    }

    /// Registers `len` bytes on the device, in the same way.
    pub(crate) fn register_on_device(
        &mut self,
        len: u64,
        iova: u64,
        access: Access,
        candidates: impl FnMut() -> u32,
    ) -> Result<Region, RegisterError> {
        if len > self.device_memory {
            return Err(RegisterError::DeviceMemory { wanted: len, available: self.device_memory });
        }
        let memory =
            Memory::shared(len).map_err(|error| RegisterError::Driver { len, reason: error.to_string() })?;
        let region = self.insert(Registered { memory, iova, access, on_device: true }, candidates)?;
        self.device_memory -= len;
        Ok(region)
    }

    fn insert(
        &mut self,
        registered: Registered,
        mut candidates: impl FnMut() -> u32,
    ) -> Result<Region, RegisterError> {
        let (iova, len) = (registered.iova, registered.memory.len());
        if iova.checked_add(len).is_none() {
            return Err(RegisterError::Range { iova, len });
        }
        let rkey = loop {
            let rkey = candidates();
            if self.is_free(rkey) {
                break rkey;
            }
        };
        self.by_rkey.insert(rkey, registered);
        Ok(Region { rkey, iova, len })
    }

    /// Copies bytes of a region on the device out.
    pub(crate) fn read_on_device(
        &self,
        rkey: u32,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), DeviceMemoryError> {
        let region = self.by_rkey.get(&rkey).filter(|region| region.on_device);
        let region = region.ok_or(DeviceMemoryError::Unknown { rkey })?;
        Ok(region.memory.read(offset, into)?)
    }

    /// The memory of a region, on the device or not.
    pub(crate) fn memory(&self, rkey: u32) -> Option<Arc<Memory>> {
        self.by_rkey.get(&rkey).map(|region| Arc::clone(&region.memory))
    }

    pub(crate) fn deregister(&mut self, rkey: u32) {
        if let Some(region) = self.by_rkey.remove(&rkey)
            && region.on_device
        {
            self.device_memory += region.memory.len();
        }
    }

    /// Memory with the `len` bytes at `va`, and the offset of the first of them, if key, range and right are valid.
    #[inline]
    pub(crate) fn get(&self, rkey: u32, va: u64, len: u64, access: Access) -> Option<(&Memory, u64)> {
        let region = self.by_rkey.get(&rkey).filter(|region| region.access.contains(access))?;
        let offset = va.checked_sub(region.iova)?;
        let end = offset.checked_add(len)?;
        (end <= region.memory.len()).then_some((&*region.memory, offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_range_and_right_are_checked() {
        let mut regions = Regions::new(0);
        let mut candidates = [0, 1, 255, 256, 256, 0, 309, 311].into_iter();
        let mut register = |len, iova, access| {
            regions.register(Memory::shared(len).unwrap(), iova, access, || candidates.next().unwrap())
        };
        let iova = u64::MAX - 100;
        let first = register(100, iova, Access::READ).unwrap();
        assert_eq!((first.rkey, first.iova, first.len), (256, iova, 100));
        let second = register(8, 0, Access::ALL).unwrap();
        assert_eq!(second.rkey, 309, "keys of index reads and taken ones are passed over");
        let beyond = register(102, iova, Access::READ);
        assert_eq!(beyond, Err(RegisterError::Range { iova, len: 102 }));

        let get = |rkey, va, len, access| regions.get(rkey, va, len, access).is_some();
        assert!(get(256, iova, 100, Access::READ));
        assert!(get(256, iova + 99, 1, Access::READ));
        assert!(!get(256, iova + 99, 2, Access::READ), "beyond the region");
        assert!(!get(256, u64::MAX, 2, Access::READ), "the end of the address space");
        assert!(!get(256, iova - 1, 1, Access::READ));
        assert!(!get(256, iova, 1, Access::WRITE));
        assert!(!get(0, iova, 1, Access::READ));
        assert!(!get(309, 1, u64::MAX, Access::READ));
        assert!(get(309, 0, 8, Access::READ | Access::ATOMIC));
    }

    #[test]
    fn device_memory_is_bounded_and_comes_back() {
        let mut regions = Regions::new(1000);
        let mut last = 10;
        let mut register = |regions: &mut Regions, len| {
            regions.register_on_device(len, 0, Access::ALL, || {
                last += 1;
                last
            })
        };
        let first = register(&mut regions, 600).unwrap();
        let refused = register(&mut regions, 500);
        assert_eq!(refused, Err(RegisterError::DeviceMemory { wanted: 500, available: 400 }));
        regions.deregister(first.rkey);
        register(&mut regions, 1000).unwrap();
        assert!(register(&mut regions, 1).is_err());
    }
}
