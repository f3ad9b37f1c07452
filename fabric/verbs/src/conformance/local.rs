//! A responder in this process.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Responder;
use crate::access::Access;
use crate::capabilities::Capabilities;
use crate::device::{Device, QueuePair, Region};
use crate::endpoint::{Endpoint, QueuePairNumber};
use crate::memory::Memory;

/// Start of the suite's regions: a server's number in the upper 16 bits, as trees have it.
const FIRST_IOVA: u64 = 5 << 48;
/// Distance between the addresses of regions.
const STEP: u64 = 1 << 40;

/// The memory side of a bench over any [`Device`].
#[derive(Debug)]
pub struct LocalResponder<D> {
    /// The device, to hand frames to.
    pub device: D,
    memory: BTreeMap<u32, Arc<Memory>>,
    queue_pairs: BTreeMap<QueuePairNumber, QueuePair>,
    next_iova: u64,
}

impl<D: Device> LocalResponder<D> {
    /// A responder without memory.
    pub fn new(device: D) -> Self {
        Self { device, memory: BTreeMap::new(), queue_pairs: BTreeMap::new(), next_iova: FIRST_IOVA }
    }

    fn iova(&mut self) -> u64 {
        self.next_iova += STEP;
        self.next_iova
    }

    fn memory(&self, rkey: u32) -> Result<&Memory, String> {
        Ok(self.memory.get(&rkey).ok_or_else(|| format!("no region {rkey:#x} in ordinary memory"))?)
    }
}

impl<D: Device> Responder for LocalResponder<D> {
    fn capabilities(&mut self) -> Result<Capabilities, String> {
        Ok(self.device.capabilities())
    }

    fn register(&mut self, len: u64, access: Access) -> Result<Region, String> {
        let memory = Memory::shared(len).map_err(|error| error.to_string())?;
        let iova = self.iova();
        let region = self.device.register(&memory, iova, access).map_err(|error| error.to_string())?;
        self.memory.insert(region.rkey, memory);
        Ok(region)
    }

    fn register_device_memory(&mut self, len: u64, access: Access) -> Result<Region, String> {
        let iova = self.iova();
        self.device.register_device_memory(len, iova, access).map_err(|error| error.to_string())
    }

    fn deregister(&mut self, rkey: u32) -> Result<(), String> {
        self.device.deregister(rkey);
        Ok(())
    }

    fn accept(&mut self, client: &Endpoint) -> Result<Endpoint, String> {
        let queue_pair = self.device.create().map_err(|error| error.to_string())?;
        let local = self.device.endpoint(queue_pair).map_err(|error| error.to_string())?;
        self.device.connect(queue_pair, client).map_err(|error| error.to_string())?;
        self.queue_pairs.insert(local.queue_pair, queue_pair);
        Ok(local)
    }

    fn disconnect(&mut self, number: QueuePairNumber) -> Result<(), String> {
        let queue_pair = self.queue_pairs.remove(&number).ok_or("no such queue pair")?;
        self.device.destroy(queue_pair);
        Ok(())
    }

    fn broken(&mut self) -> Result<Vec<QueuePairNumber>, String> {
        let broken: Vec<QueuePair> = std::iter::from_fn(|| self.device.poll_broken()).collect();
        let number = |queue_pair: &QueuePair| {
            let found = self.queue_pairs.iter().find(|(_, known)| *known == queue_pair);
            found
                .map(|(number, _)| *number)
                .ok_or_else(|| format!("{queue_pair} broke, which was never connected"))
        };
        broken.iter().map(number).collect()
    }

    fn read(&mut self, rkey: u32, offset: u64, len: u64) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; len as usize];
        let read = match self.memory.get(&rkey) {
            Some(memory) => memory.read(offset, &mut bytes).map_err(|error| error.to_string()),
            None => {
                self.device.read_device_memory(rkey, offset, &mut bytes).map_err(|error| error.to_string())
            }
        };
        read.map(|()| bytes)
    }

    fn write(&mut self, rkey: u32, offset: u64, bytes: &[u8]) -> Result<(), String> {
        self.memory(rkey)?.write(offset, bytes).map_err(|error| error.to_string())
    }
}
