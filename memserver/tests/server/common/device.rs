//! A plain device that is watched, and that can be poorer than it is.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use fatbtree_verbs::plain::PlainDevice;
use fatbtree_verbs::{
    Access, Agreed, Capabilities, ConnectError, Device, DeviceMemoryError, Endpoint, Memory, QueuePair,
    QueuePairState, Region, RegisterError,
};

/// Behaviour and state of a watched device.
#[derive(Debug)]
pub struct Watch {
    pub queue_pairs: BTreeSet<QueuePair>,
    /// Rkeys.
    pub regions: BTreeSet<u32>,
    /// Queue pairs there can be.
    pub limit: usize,
    /// Refuses to connect.
    pub fails_to_connect: bool,
    pub line_atomicity: bool,
    pub masked_atomics: bool,
    pub device_memory: u64,
    /// Reads of memory on the device by the owner.
    pub device_memory_reads: u32,
    /// The table of owners.
    pub owners: Option<Arc<Memory>>,
    /// The first 64 owners, alive or not, whenever a queue pair was destroyed.
    pub alive_at_destroy: Vec<u64>,
}

pub struct WatchedDevice {
    device: PlainDevice,
    pub watch: Rc<RefCell<Watch>>,
}

impl WatchedDevice {
    pub fn new(device: PlainDevice) -> Self {
        let capabilities = device.capabilities();
        let watch = Watch {
            queue_pairs: BTreeSet::new(),
            regions: BTreeSet::new(),
            limit: usize::MAX,
            fails_to_connect: false,
            line_atomicity: capabilities.line_atomicity,
            masked_atomics: capabilities.masked_atomics,
            device_memory: capabilities.device_memory,
            device_memory_reads: 0,
            owners: None,
            alive_at_destroy: Vec::new(),
        };
        Self { device, watch: Rc::new(RefCell::new(watch)) }
    }

    fn note(&self, region: Result<Region, RegisterError>) -> Result<Region, RegisterError> {
        self.watch.borrow_mut().regions.extend(region.iter().map(|region| region.rkey));
        region
    }
}

/// Bytes of the table of owners: a bit for each number, and a name of 8 bytes.
pub(crate) const OWNERS_BYTES: u64 = 8192 + (1 << 16) * 8;

impl Device for WatchedDevice {
    fn capabilities(&self) -> Capabilities {
        let watch = self.watch.borrow();
        Capabilities {
            line_atomicity: watch.line_atomicity,
            masked_atomics: watch.masked_atomics,
            device_memory: watch.device_memory,
            ..self.device.capabilities()
        }
    }

    fn register(&mut self, memory: &Arc<Memory>, iova: u64, access: Access) -> Result<Region, RegisterError> {
        if (memory.len(), access) == (OWNERS_BYTES, Access::READ) {
            self.watch.borrow_mut().owners = Some(Arc::clone(memory));
        }
        let region = self.device.register(memory, iova, access);
        self.note(region)
    }

    fn register_device_memory(
        &mut self,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Region, RegisterError> {
        let region = self.device.register_device_memory(len, iova, access);
        self.note(region)
    }

    fn read_device_memory(&self, rkey: u32, offset: u64, into: &mut [u8]) -> Result<(), DeviceMemoryError> {
        self.watch.borrow_mut().device_memory_reads += 1;
        self.device.read_device_memory(rkey, offset, into)
    }

    fn deregister(&mut self, rkey: u32) {
        self.watch.borrow_mut().regions.remove(&rkey);
        self.device.deregister(rkey);
    }

    fn create(&mut self) -> Result<QueuePair, ConnectError> {
        let mut watch = self.watch.borrow_mut();
        if watch.queue_pairs.len() >= watch.limit {
            return Err(ConnectError::NoQueuePair { limit: watch.limit });
        }
        let queue_pair = self.device.create()?;
        watch.queue_pairs.insert(queue_pair);
        Ok(queue_pair)
    }

    fn endpoint(&self, queue_pair: QueuePair) -> Result<Endpoint, ConnectError> {
        self.device.endpoint(queue_pair)
    }

    fn connect(&mut self, queue_pair: QueuePair, remote: &Endpoint) -> Result<Agreed, ConnectError> {
        if self.watch.borrow().fails_to_connect {
            return Err(ConnectError::Driver { what: "connect", reason: "it does not want to".to_owned() });
        }
        self.device.connect(queue_pair, remote)
    }

    fn state(&self, queue_pair: QueuePair) -> Option<QueuePairState> {
        self.device.state(queue_pair)
    }

    fn destroy(&mut self, queue_pair: QueuePair) {
        let was_there = self.watch.borrow_mut().queue_pairs.remove(&queue_pair);
        assert!(was_there, "{queue_pair} is destroyed twice");
        let first = self
            .watch
            .borrow()
            .owners
            .as_ref()
            .map(|owners| owners.update(0, |word| word).expect("it is longer"));
        self.watch.borrow_mut().alive_at_destroy.extend(first);
        self.device.destroy(queue_pair);
    }

    fn poll_broken(&mut self) -> Option<QueuePair> {
        self.device.poll_broken()
    }
}
