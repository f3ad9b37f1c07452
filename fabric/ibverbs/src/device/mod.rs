//! The device: memory regions and queue pairs.

mod context;
mod post;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use fatbtree_verbs::{
    Access, Agreed, BufferPool, Capabilities, Completion, ConnectError, Device, DeviceMemoryError, Endpoint,
    Failure, IndexTarget, Memory, QueuePair, QueuePairNumber, QueuePairState, Region, RegisterError,
};

use crate::config::Config;
use crate::ffi::{self, Connection, WorkCompletion};
use crate::queue::SendQueue;
use crate::sys::{Channel, CompletionQueue, MemoryRegion, ProtectionDomain, RawQueuePair, Step};
use crate::table::Table;

pub use context::RdmaContext;
use context::Seat;

/// Bytes of a page: the unit in which the kernel maps addresses of requests to memory.
const PAGE: u64 = 4096;
/// Bad address, as Linux numbers errors.
const EFAULT: i32 = 14;

/// An RDMA device of this machine as one thread uses it, by libibverbs. Any number of them may be open at a time, also on the same card;
/// those of one [`RdmaContext`] share what threads should share.
///
/// The owner drives the device: between calls, only the card acts. [`poll`](fatbtree_verbs::Verbs::poll) takes
/// completions. [`poll_broken`](Device::poll_broken) looks for queue pairs that have failed; a memory server calls it
/// now and then. [`state`](Device::state) reports what these two have seen. An owner without other work can sleep:
/// see [`arm`](Self::arm).
///
/// Only [`connect`](Device::connect) waits for another machine, while the kernel resolves the other side's MAC
/// address. That takes about a second if no machine answers.
pub struct RdmaDevice {
    config: Config,
    port: Port,
    capabilities: Capabilities,
    /// Whether the device supports atomics.
    atomics: bool,
    /// Maximum number of requests under way and completions not taken, of all queue pairs together, for which the
    /// completion queue has room.
    room: usize,
    pairs: Table<Pair>,
    /// Number of requests under way, of all queue pairs together.
    under_way: usize,
    completions: VecDeque<Completion>,
    broken: VecDeque<QueuePair>,
    regions: BTreeMap<u32, MemoryRegion>,
    buffer_region: MemoryRegion,
    buffers: BufferPool,
    /// Completion queues of requests, and of the receives that report the end of a queue pair.
    queues: [Arc<CompletionQueue>; 2],
    /// Channel through which the completion queues report news.
    channel: Arc<Channel>,
    /// Domain of queue pairs: this thread's own, if the driver has such.
    threads_domain: Arc<ProtectionDomain>,
    /// Domain of registrations.
    domain: Arc<ProtectionDomain>,
    /// Last: queue pairs have gone when its number is free again.
    seat: Seat,
}

/// Properties of this side that the other side must know.
#[derive(Clone, Copy, Debug)]
struct Port {
    mac: [u8; 6],
    ip: Ipv4Addr,
    gid_index: u8,
    endpoint_reads: (u8, u8),
    mtu: fatbtree_verbs::Mtu,
}

struct Pair {
    raw: RawQueuePair,
    queue: SendQueue,
    state: QueuePairState,
    psn: u32,
    agreed: Option<Agreed>,
}

impl fmt::Debug for RdmaDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaDevice")
            .field("name", &self.seat.device_name())
            .field("port", &self.port)
            .field("queue_pairs", &self.pairs.len())
            .field("under_way", &self.under_way)
            .finish_non_exhaustive()
    }
}

impl RdmaDevice {
    /// Name of the device in the kernel.
    #[must_use]
    pub fn name(&self) -> &str {
        self.seat.device_name()
    }

    /// Address of this side, as given in its endpoints.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.port.ip
    }

    /// The registered buffers.
    #[must_use]
    pub fn buffers(&self) -> &BufferPool {
        &self.buffers
    }

    /// Number of posted requests that have not completed, including unsignalled ones.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.under_way
    }

    /// Whether [`poll`](fatbtree_verbs::Verbs::poll) or [`poll_broken`](Device::poll_broken) would find something.
    pub fn has_news(&mut self) -> bool {
        self.collect();
        self.look();
        !self.completions.is_empty() || self.broken.iter().any(|&broken| self.has_heard_all(broken))
    }

    /// Arms the notification of news: from now on, news makes one of [`fds`](Self::fds) readable. Returns whether
    /// there was no news so far. If so, sleep until one of them is readable; otherwise take what there is.
    ///
    /// Accesses of other machines to registered memory are not reported.
    ///
    /// # Errors
    /// If the driver refuses: then sleep a little, and poll.
    pub fn arm(&mut self) -> io::Result<bool> {
        self.channel.forget_told();
        self.queues.iter().try_for_each(|queue| queue.arm())?;
        // What came before they were armed is not told.
        Ok(!self.has_news())
    }

    /// File descriptors, one of which is readable when there may be something to take, after [`arm`](Self::arm).
    #[must_use]
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.channel.fd(), self.seat.context().event_fd()]
    }

    /// Marks a queue pair as failed, and reports it once.
    fn break_pair(&mut self, queue_pair: QueuePair) {
        if let Some(pair) = self.pairs.get_mut(queue_pair)
            && pair.state != QueuePairState::Error
        {
            pair.state = QueuePairState::Error;
            self.broken.push_back(queue_pair);
        }
    }

    /// Fails all queue pairs, because the completion queue or the whole card has failed and no answer will come.
    fn break_all(&mut self) {
        for name in self.pairs.names().collect::<Vec<_>>() {
            self.break_pair(name);
            if let Some(pair) = self.pairs.get_mut(name) {
                pair.queue.abandon(|(tag, result)| {
                    self.completions.push_back(Completion { queue_pair: name, tag, result });
                });
            }
        }
    }

    /// Whether all answers to a broken queue pair's requests have arrived and been taken. Only they give the reason
    /// for its failure, and the card may report the queue pair first.
    fn has_heard_all(&self, queue_pair: QueuePair) -> bool {
        let answered = self.pairs.get(queue_pair).is_none_or(|pair| pair.queue.awaits_nothing());
        answered && self.completions.iter().all(|completion| completion.queue_pair != queue_pair)
    }

    /// Takes the card's answers to requests.
    fn collect(&mut self) {
        let mut found = [WorkCompletion::default(); ffi::MOST_POLLED];
        loop {
            let Some(count) = self.queues[0].poll(&mut found) else { return self.break_all() };
            for completion in &found[..count] {
                self.answered(completion);
            }
            if count < found.len() {
                return;
            }
        }
    }

    fn answered(&mut self, completion: &WorkCompletion) {
        // As shim.c numbers them.
        let result = match completion.status {
            0 => Ok(()),
            1 => Err(Failure::RemoteAccess),
            2 => Err(Failure::RemoteInvalidRequest),
            3 => Err(Failure::RemoteOperational),
            4 => Err(Failure::RetryExceeded),
            5 => Err(Failure::Flushed),
            _ => Err(Failure::Other),
        };
        // Soft RoCE leaves completions of a queue pair that was destroyed in the queue.
        let Some((queue_pair, pair)) = self.pairs.by_id(completion.id) else { return };
        let before = pair.queue.len();
        pair.queue.complete(completion.id as u16, result, |(tag, result)| {
            self.completions.push_back(Completion { queue_pair, tag, result });
        });
        self.under_way -= before - pair.queue.len();
        if result.is_err() {
            self.break_pair(queue_pair);
        }
    }

    /// Looks for queue pairs that have failed without a request of this side: asynchronous events, and ended
    /// receives.
    fn look(&mut self) {
        while let Some(event) = self.seat.event() {
            match event.kind {
                ffi::EVENT_QUEUE_PAIR => self.break_pair(Seat::queue_pair(event.queue_pair)),
                ffi::EVENT_DEVICE => self.break_all(),
                _ => {}
            }
        }
        let mut found = [WorkCompletion::default(); ffi::MOST_POLLED];
        loop {
            let Some(count) = self.queues[1].poll(&mut found) else { return self.break_all() };
            for completion in &found[..count] {
                let name = Seat::queue_pair(completion.id);
                // The peer has sent a message, which is no part of this protocol: watch on.
                let goes_on = completion.status == 0
                    && self.pairs.get(name).is_some_and(|pair| pair.raw.watch(completion.id).is_ok());
                if !goes_on {
                    self.break_pair(name);
                }
            }
            if count < found.len() {
                return;
            }
        }
    }

    /// Destroys a queue pair that is no longer in the table. Unanswered requests are reported as flushed.
    fn close(&mut self, name: QueuePair, mut pair: Pair) {
        let gone = pair.raw.destroy();
        // Completions that came in between belong to other queue pairs, or to none. They must not fill the queues.
        self.collect();
        self.look();
        self.under_way -= pair.queue.len();
        let held = pair.queue.flush(|(tag, result)| {
            self.completions.push_back(Completion { queue_pair: name, tag, result });
        });
        if !gone {
            // The card may still write there: these buffers must never be used again.
            held.into_iter().for_each(std::mem::forget);
        }
    }
}

impl Drop for RdmaDevice {
    fn drop(&mut self) {
        for name in self.pairs.names().collect::<Vec<_>>() {
            if let Some(pair) = self.pairs.remove(name) {
                self.close(name, pair);
            }
        }
    }
}

impl Device for RdmaDevice {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    /// The kernel wants `iova` to be a multiple of 4096. The card chooses the rkey.
    fn register(&mut self, memory: &Arc<Memory>, iova: u64, access: Access) -> Result<Region, RegisterError> {
        let len = memory.len();
        if iova.checked_add(len).is_none() {
            return Err(RegisterError::Range { iova, len });
        }
        if !iova.is_multiple_of(PAGE) {
            let reason = format!(
                "expected an address that is a multiple of {PAGE}, found {iova:#x}; the kernel maps whole pages"
            );
            return Err(RegisterError::Driver { len, reason });
        }
        self.check_atomics(len, access)?;
        // The kernel pins all pages, and so asks the disk for all of a file.
        memory.reserve(len).map_err(|none| RegisterError::Driver { len, reason: none.to_string() })?;
        let make = || MemoryRegion::shared(&self.domain, memory, iova, access.bits());
        let region = with_key(len, make)?;
        Ok(self.insert(region, iova, len))
    }

    /// Cards number the bytes of their own memory from 0 and ignore `iova`; the returned region gives the addresses.
    fn register_device_memory(
        &mut self,
        len: u64,
        _iova: u64,
        access: Access,
    ) -> Result<Region, RegisterError> {
        let available = self.capabilities.device_memory;
        if len > available {
            return Err(RegisterError::DeviceMemory { wanted: len, available });
        }
        self.check_atomics(len, access)?;
        let make = || MemoryRegion::device_memory(&self.domain, len, access.bits());
        let region = with_key(len, make)?;
        Ok(self.insert(region, 0, len))
    }

    fn read_device_memory(&self, rkey: u32, offset: u64, into: &mut [u8]) -> Result<(), DeviceMemoryError> {
        let region = self.regions.get(&rkey);
        let read = region.and_then(|region| region.read_device_memory(offset, into));
        read.unwrap_or(Err(DeviceMemoryError::Unknown { rkey }))
    }

    fn deregister(&mut self, rkey: u32) {
        self.regions.remove(&rkey);
    }

    fn create(&mut self) -> Result<QueuePair, ConnectError> {
        let limit = self.config.queue_pairs as usize;
        if self.pairs.len() >= limit {
            return Err(ConnectError::NoQueuePair { limit });
        }
        let capabilities = &self.capabilities;
        let (send_queue, inline) = (capabilities.send_queue as u16, capabilities.inline_bytes as u32);
        let name = self.pairs.next_name();
        let name = self.seat.driver_name(name);
        let raw = RawQueuePair::new(&self.threads_domain, &self.queues, name, send_queue.into(), inline);
        let raw = raw.map_err(|error| ConnectError::Driver {
            what: "create a queue pair",
            reason: error.to_string(),
        })?;
        Ok(self.pairs.insert(Pair {
            raw,
            queue: SendQueue::new(send_queue),
            state: QueuePairState::Reset,
            psn: rand::random::<u32>() & 0xff_ffff,
            agreed: None,
        }))
    }

    fn endpoint(&self, queue_pair: QueuePair) -> Result<Endpoint, ConnectError> {
        let pair = self.pairs.get(queue_pair).ok_or(ConnectError::Unknown { queue_pair })?;
        let Port { mac, ip, endpoint_reads: (responder_reads, initiator_reads), mtu, .. } = self.port;
        let queue_pair = QueuePairNumber(pair.raw.number());
        Ok(Endpoint { mac, ip, queue_pair, psn: pair.psn, mtu, responder_reads, initiator_reads })
    }

    fn connect(&mut self, queue_pair: QueuePair, remote: &Endpoint) -> Result<Agreed, ConnectError> {
        let local = self.endpoint(queue_pair)?;
        remote.check()?;
        let pair = self.pairs.get_mut(queue_pair).ok_or(ConnectError::Unknown { queue_pair })?;
        if pair.state != QueuePairState::Reset {
            return Err(ConnectError::State { queue_pair, state: pair.state });
        }
        let agreed = Agreed::between(&local, remote);
        // Down, for cards round it up: see `Config::reads`.
        let agreed = Agreed { outstanding_reads: down_to_power_of_two(agreed.outstanding_reads), ..agreed };
        let connection = Connection {
            gid: remote.ip.to_ipv6_mapped().octets(),
            number: remote.queue_pair.0,
            send_psn: local.psn,
            receive_psn: remote.psn,
            mtu: agreed.mtu.bytes() as u32,
            port: self.config.port,
            gid_index: self.port.gid_index,
            hop_limit: self.config.hop_limit,
            traffic_class: self.config.traffic_class,
            responder_reads: local.responder_reads,
            initiator_reads: agreed.outstanding_reads,
            timeout: self.config.timeout,
            retries: self.config.retries,
            atomics: self.atomics.into(),
            unused: [0; 3],
        };
        if let Err((step, error)) = pair.raw.connect(&connection) {
            // Back to RESET. If even that fails, the next attempt to connect returns the error.
            let _ = pair.raw.reset();
            let what = match step {
                Step::Init => "bring the queue pair to INIT",
                Step::Watch => "watch the queue pair",
                Step::ReadyToReceive => "bring the queue pair to RTR; is the other side's address reachable?",
                Step::ReadyToSend => "bring the queue pair to RTS",
            };
            return Err(ConnectError::Driver { what, reason: error.to_string() });
        }
        (pair.state, pair.agreed) = (QueuePairState::ReadyToSend, Some(agreed));
        Ok(agreed)
    }

    fn state(&self, queue_pair: QueuePair) -> Option<QueuePairState> {
        self.pairs.get(queue_pair).map(|pair| pair.state)
    }

    fn destroy(&mut self, queue_pair: QueuePair) {
        // What has been answered by now is reported as it is.
        self.collect();
        if let Some(pair) = self.pairs.remove(queue_pair) {
            self.broken.retain(|name| *name != queue_pair);
            self.close(queue_pair, pair);
        }
    }

    fn poll_broken(&mut self) -> Option<QueuePair> {
        self.look();
        let at = (0..self.broken.len()).find(|&at| self.has_heard_all(self.broken[at]))?;
        self.broken.remove(at)
    }
}

impl RdmaDevice {
    fn check_atomics(&self, len: u64, access: Access) -> Result<(), RegisterError> {
        if access.contains(Access::ATOMIC) && !self.atomics {
            let reason = "this device has no atomics; register the memory without that right".to_owned();
            return Err(RegisterError::Driver { len, reason });
        }
        Ok(())
    }

    fn insert(&mut self, region: MemoryRegion, iova: u64, len: u64) -> Region {
        let rkey = region.remote_key();
        self.regions.insert(rkey, region);
        Region { rkey, iova, len }
    }
}

/// Makes a region whose key is not one of index reads.
fn with_key(len: u64, make: impl Fn() -> io::Result<MemoryRegion>) -> Result<MemoryRegion, RegisterError> {
    let said = |error: io::Error| {
        let advice = match (error.kind(), error.raw_os_error()) {
            (io::ErrorKind::OutOfMemory, _) => "; raise the limit of locked memory: ulimit -l unlimited",
            (_, Some(EFAULT)) => {
                "; Linux lets no card write to files of a disk, from 6.5 on: keep them in memory (tmpfs, /dev/shm)"
            }
            _ => "",
        };
        RegisterError::Driver { len, reason: format!("{error}{advice}") }
    };
    // Another one gets another key, as long as those before are taken.
    let mut taken = Vec::new();
    loop {
        let region = make().map_err(said)?;
        if IndexTarget::of_rkey(region.remote_key()).is_none() {
            return Ok(region);
        }
        taken.push(region);
    }
}

/// Largest power of two that is not above `count`; at least 1.
fn down_to_power_of_two(count: u8) -> u8 {
    1 << count.max(1).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_are_rounded_down() {
        let found: Vec<u8> =
            [0, 1, 2, 3, 4, 15, 16, 127, 128, 255].into_iter().map(down_to_power_of_two).collect();
        assert_eq!(found, [1, 1, 2, 2, 4, 8, 16, 64, 128, 128]);
    }

    #[test]
    fn a_device_may_go_to_another_thread() {
        fn may<T: Send>() {}
        may::<RdmaDevice>();
    }

    #[test]
    fn a_device_that_is_not_there_is_named_with_those_that_are() {
        let error = RdmaDevice::open("no such device", &Config::default()).unwrap_err().to_string();
        assert!(error.starts_with("expected an RDMA device named \"no such device\", found "), "{error}");
    }
}
