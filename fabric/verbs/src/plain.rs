//! Devices whose network is a function call: everything that is posted is carried out at once, in order.
//!
//! For unit tests, for trees that are read where they lie, and as the shortest implementation of [`Verbs`]. A test plays
//! the switches by [`PlainDevice::set_landing`].

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;

use crate::access::Access;
use crate::buffer::{BufferClass, BufferPool, LARGEST_BUFFER};
use crate::capabilities::Capabilities;
use crate::chain::{carry_out, check_chain};
use crate::completion::{Completion, Failure, Output};
use crate::conformance::{Bench, LocalResponder, Responder};
use crate::device::{Device, QueuePair, QueuePairState, Region, Verbs};
use crate::endpoint::{Agreed, Endpoint, Mtu, QueuePairNumber};
use crate::error::{ConnectError, DeviceMemoryError, PostError, RegisterError};
use crate::memory::Memory;
use crate::request::{IndexTarget, Operation, Remote, WorkRequest};

/// Network of plain devices.
#[derive(Clone, Debug, Default)]
pub struct PlainNetwork {
    hosts: Rc<RefCell<Vec<Host>>>,
}

/// State that a device shares with its peers.
#[derive(Debug, Default)]
struct Host {
    regions: BTreeMap<u32, Registered>,
    queue_pairs: BTreeMap<u64, Pair>,
    last_rkey: u32,
    last_queue_pair: u64,
    broken: VecDeque<QueuePair>,
}

#[derive(Debug)]
struct Registered {
    memory: Arc<Memory>,
    iova: u64,
    access: Access,
    on_device: bool,
}

#[derive(Debug)]
struct Pair {
    state: QueuePairState,
    peer: Option<(usize, u64)>,
    agreed: Option<Agreed>,
    /// Number of requests whose completions have not been taken.
    under_way: usize,
}

/// Chooses the place on the queue pair's peer where an index read lands, from its key and its target. `None` leaves
/// it to the peer to refuse.
pub type Landing = Box<dyn FnMut(u64, IndexTarget) -> Option<Remote>>;

/// A device of a [`PlainNetwork`].
pub struct PlainDevice {
    network: PlainNetwork,
    number: usize,
    mtu: Mtu,
    pool: BufferPool,
    landing: Landing,
    completions: VecDeque<Completion>,
}

impl std::fmt::Debug for PlainDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PlainDevice {}", self.number)
    }
}

const SEND_QUEUE: usize = 128;
const LONGEST_CHAIN: usize = 16;
const DEVICE_MEMORY: u64 = 256 * 1024;

impl PlainNetwork {
    /// Creates a network without devices.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a device with path MTU 4096 and a small buffer pool.
    ///
    /// # Panics
    /// When the operating system gives no memory for the buffers.
    #[must_use]
    pub fn device(&self) -> PlainDevice {
        let pool = [BufferClass { count: 64, bytes: 4096 }, BufferClass { count: 4, bytes: LARGEST_BUFFER }];
        let pool = BufferPool::new(&pool).expect("a test machine has a few megabytes");
        let mut hosts = self.hosts.borrow_mut();
        hosts.push(Host::default());
        PlainDevice {
            network: self.clone(),
            number: hosts.len() - 1,
            mtu: Mtu::B4096,
            pool,
            landing: Box::new(|_, _| None),
            completions: VecDeque::new(),
        }
    }
}

impl PlainDevice {
    /// Sets the function that plays the switches for this device's index reads.
    pub fn set_landing(&mut self, landing: impl FnMut(u64, IndexTarget) -> Option<Remote> + 'static) {
        self.landing = Box::new(landing);
    }

    /// Sets the path MTU.
    #[must_use]
    pub fn with_mtu(mut self, mtu: Mtu) -> Self {
        self.mtu = mtu;
        self
    }

    /// The registered buffers.
    #[must_use]
    pub fn buffers(&self) -> &BufferPool {
        &self.pool
    }

    fn host<T>(&self, work: impl FnOnce(&mut Host) -> T) -> T {
        work(&mut self.network.hosts.borrow_mut()[self.number])
    }

    fn insert(
        &self,
        memory: Arc<Memory>,
        iova: u64,
        access: Access,
        on_device: bool,
    ) -> Result<Region, RegisterError> {
        let len = memory.len();
        if iova.checked_add(len).is_none() {
            return Err(RegisterError::Range { iova, len });
        }
        Ok(self.host(|host| {
            // Not random: no peer here is hostile.
            host.last_rkey += 0x101;
            host.regions.insert(host.last_rkey, Registered { memory, iova, access, on_device });
            Region { rkey: host.last_rkey, iova, len }
        }))
    }

    fn carry_out(
        &mut self,
        peer: (usize, u64),
        operation: &Operation<'_>,
        buffer: Option<crate::Buffer>,
    ) -> Result<Output, Failure> {
        let from = match *operation {
            Operation::IndexRead { key, target, .. } => {
                (self.landing)(key, target).ok_or(Failure::RemoteAccess)?
            }
            Operation::Read { from, .. } => from,
            Operation::Write { to, .. } => to,
            Operation::CompareSwap { at, .. }
            | Operation::FetchAdd { at, .. }
            | Operation::MaskedCompareSwap { at, .. }
            | Operation::MaskedFetchAdd { at, .. } => at,
        };
        let hosts = self.network.hosts.borrow();
        let host = hosts.get(peer.0).ok_or(Failure::RetryExceeded)?;
        let answers = |pair: &&Pair| pair.state == QueuePairState::ReadyToSend;
        host.queue_pairs.get(&peer.1).filter(answers).ok_or(Failure::RetryExceeded)?;
        let find = |access: Access| {
            let region = host.regions.get(&from.rkey).filter(|region| region.access.contains(access))?;
            Some((&*region.memory, from.address.checked_sub(region.iova)?))
        };
        carry_out(operation, buffer, find)
    }

    fn finish(&mut self, queue_pair: QueuePair, tag: u64, result: Result<Output, Failure>) {
        self.completions.push_back(Completion { queue_pair, tag, result });
    }
}

impl Host {
    fn break_pair(&mut self, number: u64) {
        if let Some(pair) = self.queue_pairs.get_mut(&number)
            && pair.state != QueuePairState::Error
        {
            pair.state = QueuePairState::Error;
            self.broken.push_back(QueuePair(number));
        }
    }
}

impl Device for PlainDevice {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            masked_atomics: true,
            device_memory: DEVICE_MEMORY,
            line_atomicity: true,
            longest_chain: LONGEST_CHAIN,
            inline_bytes: 64,
            send_queue: SEND_QUEUE,
            responder_reads: u8::MAX,
            initiator_reads: u8::MAX,
            longest_message: self.pool.largest(),
        }
    }

    fn register(&mut self, memory: &Arc<Memory>, iova: u64, access: Access) -> Result<Region, RegisterError> {
        self.insert(Arc::clone(memory), iova, access, false)
    }

    fn register_device_memory(
        &mut self,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Region, RegisterError> {
        if len > DEVICE_MEMORY {
            return Err(RegisterError::DeviceMemory { wanted: len, available: DEVICE_MEMORY });
        }
        let memory =
            Memory::shared(len).map_err(|error| RegisterError::Driver { len, reason: error.to_string() })?;
        self.insert(memory, iova, access, true)
    }

    fn read_device_memory(&self, rkey: u32, offset: u64, into: &mut [u8]) -> Result<(), DeviceMemoryError> {
        self.host(|host| {
            let region = host.regions.get(&rkey).filter(|region| region.on_device);
            let region = region.ok_or(DeviceMemoryError::Unknown { rkey })?;
            Ok(region.memory.read(offset, into)?)
        })
    }

    fn shared_memory(&self, rkey: u32) -> Option<Arc<Memory>> {
        self.host(|host| host.regions.get(&rkey).map(|region| Arc::clone(&region.memory)))
    }

    fn deregister(&mut self, rkey: u32) {
        self.host(|host| host.regions.remove(&rkey));
    }

    fn create(&mut self) -> Result<QueuePair, ConnectError> {
        Ok(self.host(|host| {
            host.last_queue_pair += 1;
            let pair = Pair { state: QueuePairState::Reset, peer: None, agreed: None, under_way: 0 };
            host.queue_pairs.insert(host.last_queue_pair, pair);
            QueuePair(host.last_queue_pair)
        }))
    }

    fn endpoint(&self, queue_pair: QueuePair) -> Result<Endpoint, ConnectError> {
        if self.state(queue_pair).is_none() {
            return Err(ConnectError::Unknown { queue_pair });
        }
        Ok(Endpoint {
            mac: [0; 6],
            ip: Ipv4Addr::from_bits(self.number as u32),
            // Numbers 0 and 1 belong to management.
            queue_pair: QueuePairNumber(queue_pair.0 as u32 + 1),
            psn: 0,
            mtu: self.mtu,
            responder_reads: u8::MAX,
            initiator_reads: u8::MAX,
        })
    }

    fn connect(&mut self, queue_pair: QueuePair, remote: &Endpoint) -> Result<Agreed, ConnectError> {
        let local = self.endpoint(queue_pair)?;
        remote.check()?;
        self.host(|host| {
            let pair = host.queue_pairs.get_mut(&queue_pair.0).ok_or(ConnectError::Unknown { queue_pair })?;
            if pair.state != QueuePairState::Reset {
                return Err(ConnectError::State { queue_pair, state: pair.state });
            }
            let agreed = Agreed::between(&local, remote);
            pair.peer = Some((remote.ip.to_bits() as usize, u64::from(remote.queue_pair.0) - 1));
            (pair.state, pair.agreed) = (QueuePairState::ReadyToSend, Some(agreed));
            Ok(agreed)
        })
    }

    fn state(&self, queue_pair: QueuePair) -> Option<QueuePairState> {
        self.host(|host| host.queue_pairs.get(&queue_pair.0).map(|pair| pair.state))
    }

    fn destroy(&mut self, queue_pair: QueuePair) {
        self.host(|host| host.queue_pairs.remove(&queue_pair.0));
    }

    fn poll_broken(&mut self) -> Option<QueuePair> {
        self.host(|host| host.broken.pop_front())
    }
}

impl Verbs for PlainDevice {
    fn post(&mut self, queue_pair: QueuePair, chain: &[WorkRequest<'_>]) -> Result<(), PostError> {
        let pair = self.host(|host| {
            host.queue_pairs
                .get(&queue_pair.0)
                .map(|pair| (pair.state, pair.peer, pair.agreed, pair.under_way))
        });
        let Some((QueuePairState::ReadyToSend, Some(peer), Some(agreed), under_way)) = pair else {
            let state = pair.map_or(QueuePairState::Reset, |(state, ..)| state);
            return Err(PostError::NotConnected { queue_pair, state });
        };
        check_chain(&self.capabilities(), &agreed, queue_pair, under_way, chain)?;
        // All buffers first: a chain is posted whole or not at all.
        let mut buffers = [const { None }; LONGEST_CHAIN];
        for (buffer, request) in buffers.iter_mut().zip(chain) {
            if let Operation::Read { len, .. } | Operation::IndexRead { len, .. } = request.operation {
                let len = u64::from(len);
                *buffer = Some(self.pool.take(len).ok_or(PostError::NoBuffer { len })?);
            }
        }
        let mut broken = None;
        for (request, buffer) in chain.iter().zip(buffers) {
            let result = match broken {
                Some(_) => Err(Failure::Flushed),
                None => self.carry_out(peer, &request.operation, buffer),
            };
            broken = broken.or(result.as_ref().err().copied());
            if request.signalled || result.is_err() {
                self.host(|host| {
                    if let Some(pair) = host.queue_pairs.get_mut(&queue_pair.0) {
                        pair.under_way += 1;
                    }
                });
                self.finish(queue_pair, request.tag, result);
            }
        }
        if let Some(failure) = broken {
            let mut hosts = self.network.hosts.borrow_mut();
            hosts[self.number].break_pair(queue_pair.0);
            // A queue pair that refuses a request fails as well; one that is not there does not.
            if failure != Failure::RetryExceeded
                && let Some(host) = hosts.get_mut(peer.0)
            {
                host.break_pair(peer.1);
            }
        }
        Ok(())
    }

    fn poll(&mut self) -> Option<Completion> {
        let completion = self.completions.pop_front()?;
        self.host(|host| {
            if let Some(pair) = host.queue_pairs.get_mut(&completion.queue_pair.0) {
                pair.under_way -= 1;
            }
        });
        Some(completion)
    }
}

/// Two plain devices for [`conformance`](crate::conformance).
#[derive(Debug)]
pub struct PlainBench {
    client: PlainDevice,
    responder: LocalResponder<PlainDevice>,
}

impl PlainBench {
    /// Two devices of a new network.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it makes devices")]
    pub fn new() -> Self {
        let network = PlainNetwork::new();
        let client = network.device().with_mtu(Mtu::B1024);
        Self { client, responder: LocalResponder::new(network.device()) }
    }
}

impl Bench for PlainBench {
    type Verbs = PlainDevice;

    fn verbs(&mut self) -> &mut PlainDevice {
        &mut self.client
    }

    fn responder(&mut self) -> &mut dyn Responder {
        &mut self.responder
    }

    fn advance(&mut self, _turns: u64) -> bool {
        false
    }
}
