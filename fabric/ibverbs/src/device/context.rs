//! A device that is open: its context and protection domain, which all threads of a process share.
//!
//! ```text
//!   RdmaContext   one a card and process: context, protection domain, registrations, asynchronous events
//!     ├─ RdmaDevice of thread 0   thread domain: a doorbell register without a lock; completion queue, buffers, queue pairs
//!     ├─ RdmaDevice of thread 1
//!     └─ …
//! ```
//!
//! One context, because a card keeps the translations of a context's memory in a small cache: with a context a thread, more than 30 % of
//! requests miss it (SMART, section 3.2). A thread domain each, because the queue pairs of a context share a few doorbell registers, each
//! with a lock (section 3.1). Where the driver has no thread domains, as soft RoCE's, threads share what it gives them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use fatbtree_verbs::{BufferPool, Capabilities, Mtu, QueuePair};

use super::{Port, RdmaDevice, down_to_power_of_two};
use crate::config::{Config, Doorbells};
use crate::error::OpenError;
use crate::ffi::{self, Event, Limits};
use crate::host::Host;
use crate::sys::{self, Channel, CompletionQueue, Context, MemoryRegion, ProtectionDomain, RawQueuePair};
use crate::table::Table;

/// Bits of a queue pair's name in the driver that hold its thread; those below are its name in that thread's table.
const THREAD_BITS: u32 = 12;
const NAME_BITS: u32 = 64 - THREAD_BITS;

/// Contexts that this process has open.
static OPEN: Mutex<Vec<Weak<Opened>>> = Mutex::new(Vec::new());

/// An RDMA device that is open, for any number of threads: each takes an [`RdmaDevice`] of its own from it. Clones are the same.
#[derive(Clone)]
pub struct RdmaContext(Arc<Opened>);

struct Opened {
    name: String,
    config: Config,
    port: Port,
    limits: Limits,
    line_atomicity: bool,
    domain: Arc<ProtectionDomain>,
    context: Arc<Context>,
    /// Whether threads get domains of their own: they are wanted, and the driver has them, as far as is known.
    has_thread_domains: AtomicBool,
    threads: Mutex<BTreeSet<u16>>,
    /// Asynchronous events that one thread has taken and another one wants.
    inboxes: Mutex<BTreeMap<u16, Vec<Event>>>,
    /// Whether there are any.
    has_events: AtomicBool,
}

/// A thread's share of a context. Its number is free again when it is dropped.
pub(super) struct Seat {
    context: RdmaContext,
    number: u16,
}

impl fmt::Debug for RdmaContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaContext")
            .field("name", &self.0.name)
            .field("port", &self.0.port)
            .field("threads", &lock(&self.0.threads).len())
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refused(name: &str, what: &'static str, advice: &'static str) -> impl FnOnce(io::Error) -> OpenError {
    let name = name.to_owned();
    move |reason| OpenError::Driver { name, what, reason, advice }
}

impl RdmaContext {
    /// Opens the device of that name. If the process has it open with the same configuration, that is returned.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(name: &str, config: &Config) -> Result<Self, OpenError> {
        // Locked until it is open: two threads that begin at once share one.
        let mut known = lock(&OPEN);
        known.retain(|opened| opened.strong_count() > 0);
        let same = |opened: &Arc<Opened>| opened.name == name && opened.config == *config;
        if let Some(opened) = known.iter().filter_map(Weak::upgrade).find(same) {
            return Ok(Self(opened));
        }
        let opened = Arc::new(Self::open_anew(name, config)?);
        known.push(Arc::downgrade(&opened));
        Ok(Self(opened))
    }

    fn open_anew(name: &str, config: &Config) -> Result<Opened, OpenError> {
        config.check().map_err(|(field, expected, found)| OpenError::Config { field, expected, found })?;
        let found = RdmaDevice::names().map_err(refused(name, "list devices", ""))?;
        if !found.iter().any(|found| found == name) {
            return Err(OpenError::NoDevice { name: name.to_owned(), found });
        }
        let advice = "; may this user read and write /dev/infiniband/uverbs*?";
        let context = Arc::new(Context::open(name).map_err(refused(name, "open it", advice))?);
        let limits = context.limits(config.port).map_err(refused(name, "ask what it can do", ""))?;
        check_port(name, config, &limits)?;
        let host = Host::new(name);
        let port = port(name, config, &limits, &context, &host)?;
        let domain =
            ProtectionDomain::new(&context).map_err(refused(name, "make a protection domain", ""))?;
        Ok(Opened {
            name: name.to_owned(),
            config: config.clone(),
            port,
            limits,
            line_atomicity: config.line_atomicity.unwrap_or_else(|| host.keeps_lines_whole()),
            domain,
            context,
            has_thread_domains: AtomicBool::new(config.doorbells == Doorbells::PerThread),
            threads: Mutex::default(),
            inboxes: Mutex::default(),
            has_events: AtomicBool::new(false),
        })
    }

    /// The device as one thread uses it, with registered buffers. A region that one thread has registered can be reached by the queue pairs
    /// of all.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn device(&self) -> Result<RdmaDevice, OpenError> {
        let Opened { name, config, port, limits, line_atomicity, domain, context, .. } = &*self.0;
        let seat = self.seat()?;
        let threads_domain = self.thread_domain()?;
        let send_queue = u32::from(config.send_queue).min(limits.work_requests).max(1);
        let queue_pairs = config.queue_pairs.min(limits.queue_pairs).max(1);
        // Nothing is posted for whose completion there would be no room.
        let room = u64::from(queue_pairs).saturating_mul(send_queue.into()).min(limits.completions.into());
        let channel = Channel::new(context).map_err(refused(name, "make a channel for completions", ""))?;
        let sends = CompletionQueue::new(&channel, room as u32).map_err(refused(
            name,
            "make a completion queue",
            "",
        ))?;
        let watching = queue_pairs.min(limits.completions);
        let watching =
            CompletionQueue::new(&channel, watching).map_err(refused(name, "make a completion queue", ""))?;
        let queues = [sends, watching];

        let buffers = BufferPool::new(&config.buffers).map_err(refused(name, "map buffers", ""))?;
        let advice = "; raise the limit of locked memory (ulimit -l unlimited), or make a smaller pool";
        let buffer_region =
            MemoryRegion::buffers(domain, &buffers).map_err(refused(name, "register its buffers", advice))?;

        let inline = |bytes: u32| RawQueuePair::new(&threads_domain, &queues, 0, send_queue, bytes);
        let inline_bytes = most_inline(config.inline_bytes, |bytes| inline(bytes).map(drop))
            .map_err(refused(name, "make a queue pair", ""))?;

        let capabilities = Capabilities {
            // Only vendors' own extensions of libibverbs post masked atomics.
            masked_atomics: false,
            device_memory: limits.device_memory,
            line_atomicity: *line_atomicity,
            longest_chain: ffi::LONGEST_CHAIN.min(send_queue as usize),
            inline_bytes: inline_bytes as usize,
            send_queue: send_queue as usize,
            responder_reads: port.endpoint_reads.0,
            initiator_reads: port.endpoint_reads.1,
            longest_message: buffers.largest().min(limits.message.into()),
        };
        Ok(RdmaDevice {
            config: Config { queue_pairs, ..config.clone() },
            port: *port,
            capabilities,
            atomics: limits.atomics != 0,
            room: room as usize,
            pairs: Table::new(),
            under_way: 0,
            completions: VecDeque::new(),
            broken: VecDeque::new(),
            regions: BTreeMap::new(),
            buffer_region,
            buffers,
            queues,
            channel,
            threads_domain,
            domain: Arc::clone(domain),
            seat,
        })
    }

    /// Whether each thread has a doorbell register of its own; known when the first thread has taken its device.
    #[must_use]
    pub fn has_thread_domains(&self) -> bool {
        self.0.has_thread_domains.load(Ordering::Relaxed)
    }

    /// The domain for a thread's queue pairs. Says once if all threads share one.
    fn thread_domain(&self) -> Result<Arc<ProtectionDomain>, OpenError> {
        let Opened { name, domain, .. } = &*self.0;
        if !self.has_thread_domains() {
            return Ok(Arc::clone(domain));
        }
        match ProtectionDomain::of_thread(domain) {
            Ok(own) => Ok(own),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                if self.0.has_thread_domains.swap(false, Ordering::Relaxed) {
                    tracing::info!(device = %name, "the driver has no thread domains: threads share doorbell registers");
                }
                Ok(Arc::clone(domain))
            }
            Err(error) => Err(refused(name, "make a thread domain", "")(error)),
        }
    }

    fn seat(&self) -> Result<Seat, OpenError> {
        let mut threads = lock(&self.0.threads);
        let number = (0..1 << THREAD_BITS).find(|number| !threads.contains(number));
        let none = || io::Error::other(format!("{} threads use it", threads.len()));
        let number = number.ok_or_else(|| refused(&self.0.name, "serve another thread", "")(none()))?;
        threads.insert(number);
        drop(threads);
        Ok(Seat { context: self.clone(), number })
    }
}

impl Seat {
    pub(super) fn device_name(&self) -> &str {
        &self.context.0.name
    }

    pub(super) fn context(&self) -> &Context {
        &self.context.0.context
    }

    /// Name by which the driver knows a queue pair of this thread.
    pub(super) fn driver_name(&self, queue_pair: QueuePair) -> u64 {
        u64::from(self.number) << NAME_BITS | queue_pair.0
    }

    /// Queue pair that the driver knows by this name.
    pub(super) fn queue_pair(driver_name: u64) -> QueuePair {
        QueuePair(driver_name & ((1 << NAME_BITS) - 1))
    }

    /// The next asynchronous event that concerns this thread. Those of other threads are kept for them.
    pub(super) fn event(&self) -> Option<Event> {
        let Opened { context, threads, inboxes, has_events, .. } = &*self.context.0;
        if has_events.load(Ordering::Acquire) {
            let mut inboxes = lock(inboxes);
            let event = inboxes.get_mut(&self.number).and_then(Vec::pop);
            inboxes.retain(|_, events| !events.is_empty());
            has_events.store(!inboxes.is_empty(), Ordering::Release);
            if event.is_some() {
                return event;
            }
        }
        while let Some(event) = context.event() {
            let others: Vec<u16> = match event.kind {
                ffi::EVENT_QUEUE_PAIR => match (event.queue_pair >> NAME_BITS) as u16 {
                    own if own == self.number => return Some(event),
                    other => vec![other],
                },
                ffi::EVENT_DEVICE => {
                    lock(threads).iter().copied().filter(|&other| other != self.number).collect()
                }
                _ => continue,
            };
            let mut inboxes = lock(inboxes);
            others.into_iter().for_each(|other| inboxes.entry(other).or_default().push(event));
            has_events.store(!inboxes.is_empty(), Ordering::Release);
            if event.kind == ffi::EVENT_DEVICE {
                return Some(event);
            }
        }
        None
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        lock(&self.context.0.inboxes).remove(&self.number);
        lock(&self.context.0.threads).remove(&self.number);
    }
}

impl RdmaDevice {
    /// Names of the RDMA devices of this machine.
    ///
    /// # Errors
    /// When the operating system does not say.
    pub fn names() -> io::Result<Vec<String>> {
        sys::device_names()
    }

    /// Opens the device of that name for one thread. All threads of a process that open it with the same configuration share an
    /// [`RdmaContext`].
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(name: &str, config: &Config) -> Result<Self, OpenError> {
        RdmaContext::open(name, config)?.device()
    }
}

fn check_port(name: &str, config: &Config, limits: &Limits) -> Result<(), OpenError> {
    let wrong = |expected, found, advice| {
        Err(OpenError::Port { name: name.to_owned(), port: config.port, expected, found, advice })
    };
    if limits.ethernet == 0 {
        let advice = "switches of this system read Ethernet only: name another device or port";
        return wrong("an Ethernet port", "one of another kind".to_owned(), advice);
    }
    if limits.active == 0 {
        let found = match limits.port_state {
            1 => "it down".to_owned(),
            other => format!("it in state {other} of verbs.h"),
        };
        return wrong("an active port", found, "bring its network interface up");
    }
    Ok(())
}

fn port(
    name: &str,
    config: &Config,
    limits: &Limits,
    context: &Context,
    host: &Host,
) -> Result<Port, OpenError> {
    let gids = context.gids().map_err(refused(name, "ask for its GIDs", ""))?;
    let addresses: Vec<(Ipv4Addr, u32)> = gids
        .iter()
        .filter(|gid| gid.port == u32::from(config.port) && gid.roce_v2 != 0)
        .filter_map(|gid| Some((Ipv6Addr::from(gid.raw).to_ipv4_mapped()?, gid.index)))
        .collect();
    let chosen = match config.address {
        Some(wanted) => addresses.iter().find(|(address, _)| *address == wanted),
        None => addresses.first(),
    };
    // The card's own field for the index has 8 bits.
    let chosen = chosen.and_then(|&(ip, index)| Some((ip, u8::try_from(index).ok()?)));
    let Some((ip, gid_index)) = chosen else {
        let found = addresses.iter().map(|(address, _)| *address).collect();
        let (name, port, address) = (name.to_owned(), config.port, config.address);
        return Err(OpenError::Address { name, port, address, found });
    };
    let mac = host.mac(config.port, gid_index.into());
    let mac = mac.map_err(refused(name, "find the MAC address of its port", "; is /sys mounted?"))?;
    let offered = |able: u32| down_to_power_of_two(config.reads.min(able.min(255) as u8));
    Ok(Port {
        mac,
        ip,
        gid_index,
        endpoint_reads: (offered(limits.responder_reads), offered(limits.initiator_reads)),
        mtu: Mtu::from_bytes(limits.mtu as usize).unwrap_or(Mtu::B256).min(config.mtu),
    })
}

/// Largest accepted number of inline bytes: `wanted`, halved until the device accepts it.
fn most_inline(wanted: u32, mut try_with: impl FnMut(u32) -> io::Result<()>) -> io::Result<u32> {
    let mut bytes = wanted;
    loop {
        match try_with(bytes) {
            Ok(()) => return Ok(bytes),
            Err(error) if bytes == 0 => return Err(error),
            Err(_) => bytes /= 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inline_bytes_are_halved_until_the_card_agrees() {
        let agrees = |most: u32| {
            move |bytes| if bytes <= most { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
        };
        assert_eq!(most_inline(64, agrees(100)).unwrap(), 64);
        assert_eq!(most_inline(220, agrees(60)).unwrap(), 55);
        assert_eq!(most_inline(64, agrees(0)).unwrap(), 0);
        assert!(
            most_inline(64, |_| Err(io::ErrorKind::OutOfMemory.into())).is_err(),
            "a card without queue pairs"
        );
    }
}
