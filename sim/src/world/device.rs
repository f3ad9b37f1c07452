//! The network card of a simulated machine, as [`Device`] and [`Verbs`].

use std::cell::RefCell;
use std::fmt;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;

use fatbtree_verbs::{
    Access, Agreed, BufferPool, Capabilities, Completion, ConnectError, Device, DeviceMemoryError, Endpoint,
    Memory, PostError, QueuePair, QueuePairNumber, QueuePairState, Region, RegisterError, Verbs, WorkRequest,
};
use rand::RngExt as _;

use super::MachineId;
use super::fabric::Fabric;
use super::pair::Pair;

/// Queue pair numbers on the wire: 0 and 1 belong to management.
const FIRST_NUMBER: u32 = 2;

/// The network card of one life of a machine. After the machine's death the card has no effect any more, as without
/// power. So a future that is dropped then cannot make requests.
#[derive(Clone)]
pub struct SimDevice {
    fabric: Rc<RefCell<Fabric>>,
    machine: MachineId,
    generation: u32,
}

impl fmt::Debug for SimDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimDevice of {:?}, life {}", self.machine, self.generation)
    }
}

impl SimDevice {
    pub(super) fn new(fabric: Rc<RefCell<Fabric>>, machine: MachineId) -> Self {
        let generation = fabric.borrow().host(machine).generation;
        Self { fabric, machine, generation }
    }

    /// Whether the machine still has the life that this card is of.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let fabric = self.fabric.borrow();
        let host = fabric.host(self.machine);
        host.up && host.generation == self.generation
    }

    /// The registered buffers.
    #[must_use]
    pub fn buffers(&self) -> BufferPool {
        self.fabric.borrow().host(self.machine).pool.clone()
    }

    /// Address of the card on the data path.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(0x0a00_0000 | self.machine.0)
    }

    /// Destroys all queue pairs that are connected to another machine.
    pub(crate) fn take_back_from(&mut self, client: MachineId) {
        self.alive(|fabric| {
            for number in 0..fabric.pairs.len() {
                let pair = &fabric.pairs[number];
                let is_theirs = pair.peer.is_some_and(|peer| fabric.pairs[peer as usize].owner == client);
                if pair.owner == self.machine && is_theirs {
                    fabric.destroy(self.machine, QueuePair(number as u64));
                }
            }
        });
    }

    /// Runs `work` if the machine is alive.
    fn alive<T>(&self, work: impl FnOnce(&mut Fabric) -> T) -> Option<T> {
        self.is_alive().then(|| work(&mut self.fabric.borrow_mut()))
    }
}

const DEAD: &str = "the machine is dead";

fn dead(what: &'static str) -> ConnectError {
    ConnectError::Driver { what, reason: DEAD.to_owned() }
}

impl Device for SimDevice {
    fn capabilities(&self) -> Capabilities {
        let fabric = self.fabric.borrow();
        let host = fabric.host(self.machine);
        let options = &host.options;
        Capabilities {
            masked_atomics: options.masked_atomics,
            device_memory: options.device_memory,
            line_atomicity: options.line_atomicity,
            longest_chain: options.longest_chain,
            inline_bytes: 64,
            send_queue: options.send_queue,
            responder_reads: options.responder_reads,
            initiator_reads: options.initiator_reads,
            longest_message: host.pool.largest(),
        }
    }

    fn register(&mut self, memory: &Arc<Memory>, iova: u64, access: Access) -> Result<Region, RegisterError> {
        let refused = || Err(RegisterError::Driver { len: memory.len(), reason: DEAD.to_owned() });
        self.alive(|fabric| fabric.register(self.machine, memory, iova, access, false))
            .unwrap_or_else(refused)
    }

    fn register_device_memory(
        &mut self,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Region, RegisterError> {
        let refused = |reason: String| Err(RegisterError::Driver { len, reason });
        let memory = match Memory::shared(len) {
            Ok(memory) => memory,
            Err(error) => return refused(error.to_string()),
        };
        let registered = self.alive(|fabric| {
            let host = fabric.host(self.machine);
            let available = host.options.device_memory - host.device_memory;
            if len > available {
                return Err(RegisterError::DeviceMemory { wanted: len, available });
            }
            let region = fabric.register(self.machine, &memory, iova, access, true)?;
            fabric.host_mut(self.machine).device_memory += len;
            Ok(region)
        });
        registered.unwrap_or_else(|| refused(DEAD.to_owned()))
    }

    fn read_device_memory(&self, rkey: u32, offset: u64, into: &mut [u8]) -> Result<(), DeviceMemoryError> {
        let refused = || {
            let reason = DEAD.to_owned();
            Err(DeviceMemoryError::Driver { len: into.len() as u64, reason })
        };
        if !self.is_alive() {
            return refused();
        }
        let fabric = self.fabric.borrow();
        let region = fabric.host(self.machine).regions.get(&rkey).filter(|region| region.on_device);
        let region = region.ok_or(DeviceMemoryError::Unknown { rkey })?;
        Ok(fabric.accesses.contents(region.memory).read(offset, into)?)
    }

    fn deregister(&mut self, rkey: u32) {
        self.alive(|fabric| fabric.deregister(self.machine, rkey));
    }

    fn create(&mut self) -> Result<QueuePair, ConnectError> {
        let created = self.alive(|fabric| {
            let limit = (1 << 24) - FIRST_NUMBER as usize;
            if fabric.pairs.len() >= limit {
                return Err(ConnectError::NoQueuePair { limit });
            }
            let psn = fabric.random.random_range(0..1 << 24);
            fabric.pairs.push(Pair::new(self.machine, psn));
            Ok(QueuePair(fabric.pairs.len() as u64 - 1))
        });
        created.unwrap_or_else(|| Err(dead("create a queue pair")))
    }

    fn endpoint(&self, queue_pair: QueuePair) -> Result<Endpoint, ConnectError> {
        if self.state(queue_pair).is_none() {
            return Err(ConnectError::Unknown { queue_pair });
        }
        let fabric = self.fabric.borrow();
        let options = &fabric.host(self.machine).options;
        let machine = self.machine.0.to_be_bytes();
        Ok(Endpoint {
            // A locally administered address.
            mac: [2, 0, machine[0], machine[1], machine[2], machine[3]],
            ip: self.address(),
            queue_pair: QueuePairNumber(queue_pair.0 as u32 + FIRST_NUMBER),
            psn: fabric.pairs[queue_pair.0 as usize].psn,
            mtu: options.mtu,
            responder_reads: options.responder_reads,
            initiator_reads: options.initiator_reads,
        })
    }

    fn connect(&mut self, queue_pair: QueuePair, remote: &Endpoint) -> Result<Agreed, ConnectError> {
        let local = self.endpoint(queue_pair)?;
        remote.check()?;
        let agreed = Agreed::between(&local, remote);
        let connected = self.alive(|fabric| {
            let peer = remote.queue_pair.0 - FIRST_NUMBER;
            let exists = (peer as usize) < fabric.pairs.len();
            let pair = &mut fabric.pairs[queue_pair.0 as usize];
            match pair.state {
                Some(QueuePairState::Reset) => {}
                Some(state) => return Err(ConnectError::State { queue_pair, state }),
                None => return Err(ConnectError::Unknown { queue_pair }),
            }
            pair.state = Some(QueuePairState::ReadyToSend);
            (pair.peer, pair.agreed) = (exists.then_some(peer), Some(agreed));
            Ok(agreed)
        });
        connected.unwrap_or_else(|| Err(dead("connect a queue pair")))
    }

    fn state(&self, queue_pair: QueuePair) -> Option<QueuePairState> {
        self.alive(|fabric| fabric.state(self.machine, queue_pair)).flatten()
    }

    fn destroy(&mut self, queue_pair: QueuePair) {
        self.alive(|fabric| fabric.destroy(self.machine, queue_pair));
    }

    fn poll_broken(&mut self) -> Option<QueuePair> {
        self.alive(|fabric| fabric.host_mut(self.machine).broken.pop_front()).flatten()
    }
}

impl Verbs for SimDevice {
    fn post(&mut self, queue_pair: QueuePair, chain: &[WorkRequest<'_>]) -> Result<(), PostError> {
        let posted = self.alive(|fabric| fabric.post(self.machine, queue_pair, chain));
        posted.unwrap_or(Err(PostError::NotConnected { queue_pair, state: QueuePairState::Error }))
    }

    fn poll(&mut self) -> Option<Completion> {
        self.alive(|fabric| fabric.poll(self.machine)).flatten()
    }
}
