//! A local client's device.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::sync::Arc;

use super::{Link, LocalHost, Regions, State, endpoint, lock};
use crate::access::Access;
use crate::buffer::{Buffer, BufferClass, BufferPool, LARGEST_BUFFER};
use crate::capabilities::Capabilities;
use crate::chain::{carry_out, check_chain};
use crate::completion::{Completion, Failure, Output};
use crate::device::{Device, QueuePair, QueuePairState, Region, Verbs};
use crate::endpoint::{Agreed, Endpoint, QueuePairNumber};
use crate::error::{ConnectError, DeviceMemoryError, PostError, RegisterError};
use crate::memory::Memory;
use crate::request::{Operation, Remote, WorkRequest};

/// Device of a client in the memory server's process. It offers no memory to others.
pub struct LocalVerbs {
    host: LocalHost,
    buffers: BufferPool,
    queue_pairs: BTreeMap<QueuePair, Pair>,
    last: u64,
    completions: VecDeque<Completion>,
    broken: VecDeque<QueuePair>,
}

struct Pair {
    state: QueuePairState,
    link: Option<(QueuePairNumber, Option<Arc<Link>>)>,
    agreed: Option<Agreed>,
    /// Number of requests whose completions have not been taken.
    under_way: usize,
}

const LONGEST_CHAIN: usize = 16;
const SEND_QUEUE: usize = 4096;

impl LocalVerbs {
    /// Buffers for some hundred operations at a time: 1024 of 4 KiB, 64 of 64 KiB, 4 of 1 MiB and 4 KiB. Unused ones
    /// cost nothing.
    pub const BUFFERS: [BufferClass; 3] = [
        BufferClass { count: 1024, bytes: 4 << 10 },
        BufferClass { count: 64, bytes: 64 << 10 },
        BufferClass { count: 4, bytes: LARGEST_BUFFER },
    ];

    /// Creates a device without queue pairs.
    ///
    /// # Errors
    /// When the operating system gives no memory for the buffers.
    pub fn new(host: &LocalHost, buffers: &[BufferClass]) -> io::Result<Self> {
        Ok(Self {
            host: host.clone(),
            buffers: BufferPool::new(buffers)?,
            queue_pairs: BTreeMap::new(),
            last: 0,
            completions: VecDeque::new(),
            broken: VecDeque::new(),
        })
    }
}

impl LocalVerbs {
    /// Whether requests on a queue pair would be executed now: it is connected to a link that has not ended.
    #[must_use]
    pub fn is_open(&self, queue_pair: QueuePair) -> bool {
        let link = self.queue_pairs.get(&queue_pair).and_then(|pair| pair.link.as_ref()?.1.as_ref());
        link.is_some_and(|link| matches!(*lock(&link.state), State::Open(_)))
    }
}

impl fmt::Debug for LocalVerbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LocalVerbs").field("queue_pairs", &self.queue_pairs.len()).finish_non_exhaustive()
    }
}

fn at(operation: &Operation<'_>) -> Option<Remote> {
    match *operation {
        Operation::IndexRead { .. } => None,
        Operation::Read { from, .. } => Some(from),
        Operation::Write { to, .. } => Some(to),
        Operation::CompareSwap { at, .. }
        | Operation::FetchAdd { at, .. }
        | Operation::MaskedCompareSwap { at, .. }
        | Operation::MaskedFetchAdd { at, .. } => Some(at),
    }
}

/// Executes an operation. Index reads are refused, because they need switches to lead them.
fn run(regions: &Regions, operation: &Operation<'_>, buffer: Option<Buffer>) -> Result<Output, Failure> {
    let at = at(operation).ok_or(Failure::RemoteAccess)?;
    carry_out(operation, buffer, |access| {
        let shared = regions.get(&at.rkey).filter(|shared| shared.access.contains(access))?;
        Some((&*shared.memory, at.address.checked_sub(shared.iova)?))
    })
}

impl Device for LocalVerbs {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            masked_atomics: true,
            device_memory: 0,
            line_atomicity: false,
            longest_chain: LONGEST_CHAIN,
            inline_bytes: 0,
            send_queue: SEND_QUEUE,
            responder_reads: u8::MAX,
            initiator_reads: u8::MAX,
            longest_message: self.buffers.largest(),
        }
    }

    /// Always fails, because a local client cannot be reached.
    fn register(&mut self, memory: &Arc<Memory>, _: u64, _: Access) -> Result<Region, RegisterError> {
        let reason =
            "expected a device that others reach, found a local client; register with the server's NIC";
        Err(RegisterError::Driver { len: memory.len(), reason: reason.to_owned() })
    }

    fn register_device_memory(&mut self, len: u64, _: u64, _: Access) -> Result<Region, RegisterError> {
        Err(RegisterError::DeviceMemory { wanted: len, available: 0 })
    }

    fn read_device_memory(&self, rkey: u32, _: u64, _: &mut [u8]) -> Result<(), DeviceMemoryError> {
        Err(DeviceMemoryError::Unknown { rkey })
    }

    fn deregister(&mut self, _: u32) {}

    fn create(&mut self) -> Result<QueuePair, ConnectError> {
        self.last += 1;
        let pair = Pair { state: QueuePairState::Reset, link: None, agreed: None, under_way: 0 };
        self.queue_pairs.insert(QueuePair(self.last), pair);
        Ok(QueuePair(self.last))
    }

    fn endpoint(&self, queue_pair: QueuePair) -> Result<Endpoint, ConnectError> {
        match self.queue_pairs.contains_key(&queue_pair) {
            // Nothing is sent there: any valid number is enough.
            true => Ok(endpoint(QueuePairNumber(2 + queue_pair.0 as u32 % ((1 << 24) - 2)))),
            false => Err(ConnectError::Unknown { queue_pair }),
        }
    }

    fn connect(&mut self, queue_pair: QueuePair, remote: &Endpoint) -> Result<Agreed, ConnectError> {
        let local = self.endpoint(queue_pair)?;
        remote.check()?;
        let pair = self.queue_pairs.get_mut(&queue_pair).ok_or(ConnectError::Unknown { queue_pair })?;
        if pair.state != QueuePairState::Reset {
            return Err(ConnectError::State { queue_pair, state: pair.state });
        }
        let agreed = Agreed::between(&local, remote);
        let number = remote.queue_pair;
        // One that is not there is noticed when something is posted, as with any device.
        pair.link = Some((number, self.host.link(number)));
        (pair.state, pair.agreed) = (QueuePairState::ReadyToSend, Some(agreed));
        Ok(agreed)
    }

    fn state(&self, queue_pair: QueuePair) -> Option<QueuePairState> {
        self.queue_pairs.get(&queue_pair).map(|pair| pair.state)
    }

    fn destroy(&mut self, queue_pair: QueuePair) {
        self.queue_pairs.remove(&queue_pair);
    }

    fn poll_broken(&mut self) -> Option<QueuePair> {
        self.broken.pop_front()
    }
}

impl Verbs for LocalVerbs {
    fn post(&mut self, queue_pair: QueuePair, chain: &[WorkRequest<'_>]) -> Result<(), PostError> {
        let device = self.capabilities();
        let pair = self.queue_pairs.get_mut(&queue_pair);
        let state = pair.as_ref().map_or(QueuePairState::Reset, |pair| pair.state);
        let Some(Pair {
            state: QueuePairState::ReadyToSend,
            link: Some((number, link)),
            agreed: Some(agreed),
            under_way,
        }) = pair
        else {
            return Err(PostError::NotConnected { queue_pair, state });
        };
        check_chain(&device, agreed, queue_pair, *under_way, chain)?;
        // All buffers first: a chain is posted whole or not at all.
        let mut buffers = [const { None }; LONGEST_CHAIN];
        for (buffer, request) in buffers.iter_mut().zip(chain) {
            if let Operation::Read { len, .. } | Operation::IndexRead { len, .. } = request.operation {
                let len = u64::from(len);
                *buffer = Some(self.buffers.take(len).ok_or(PostError::NoBuffer { len })?);
            }
        }
        let number = *number;
        let (mut failure, mut refused) = (None, false);
        let mut held = link.as_ref().map(|link| lock(&link.state));
        for (request, buffer) in chain.iter().zip(buffers) {
            let result = match (failure, held.as_deref()) {
                (Some(_), _) => Err(Failure::Flushed),
                (None, Some(State::Open(regions))) => run(regions, &request.operation, buffer),
                (None, Some(State::Error | State::Gone) | None) => Err(Failure::RetryExceeded),
            };
            failure = failure.or(result.as_ref().err().copied());
            if request.signalled || result.is_err() {
                *under_way += 1;
                self.completions.push_back(Completion { queue_pair, tag: request.tag, result });
            }
        }
        // A queue pair that refuses a request fails as well; one that is not there does not.
        if failure.is_some()
            && let Some(state @ State::Open(_)) = held.as_deref_mut()
        {
            (*state, refused) = (State::Error, true);
        }
        drop(held);
        if failure.is_some()
            && let Some(pair) = self.queue_pairs.get_mut(&queue_pair)
        {
            pair.state = QueuePairState::Error;
            self.broken.push_back(queue_pair);
        }
        if refused {
            // Its host is asked for while no link is held: it holds links itself.
            self.host.broke(number);
        }
        Ok(())
    }

    fn poll(&mut self) -> Option<Completion> {
        let completion = self.completions.pop_front()?;
        if let Some(pair) = self.queue_pairs.get_mut(&completion.queue_pair) {
            pair.under_way -= 1;
        }
        Some(completion)
    }
}
