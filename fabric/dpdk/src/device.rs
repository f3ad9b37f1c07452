//! An Ethernet device with its queues and the memory of its frames.
#![allow(unsafe_code, reason = "calls of the shim")]

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_int, c_uint};
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::burst::{BURST, Burst};
use crate::eal::{Eal, be_seated};
use crate::error::{DpdkError, meaning};
use crate::ffi;

/// Length of the longest frame that a device receives and sends in bytes, without its checksum: a jumbo frame. Every
/// mbuf has room for one, so that no frame is in pieces.
pub const LONGEST_FRAME: usize = 9_216;

/// Bytes that Ethernet adds to an MTU, as counted by the drivers that add most: addresses, type, two VLAN tags,
/// checksum.
const OVERHEAD: u16 = 26;

/// Number of mbufs in each thread's cache.
const CACHE: u32 = 256;

/// Drivers whose devices have a fixed number of queues, given by their arguments, and receive on all of them. Other
/// drivers offer more queues for sending, too, and receive nothing on unused ones.
const HAVE_QUEUES: [&[u8]; 2] = [b"net_af_packet", b"net_pcap"];

/// An open device with [`queues`](Self::queues) for receiving and for sending, which threads may use at the same
/// time.
///
/// The device is closed when dropped.
pub struct Device {
    port: u16,
    name: String,
    pool: Pool,
    receive: Box<[Gate]>,
    send: Box<[Gate]>,
    mac: [u8; 6],
    /// Whether the device is started: only then may its queues be used.
    started: AtomicBool,
    /// Time of the last restart, for a device that calls its peer when it starts.
    calls: Option<Mutex<Instant>>,
    /// Whether the device was created by this value, which then removes it when dropped.
    is_ours: bool,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let queues = (self.receive.len(), self.send.len());
        f.debug_struct("Device")
            .field("name", &self.name)
            .field("queues", &queues)
            .field("started", &self.started)
            .finish_non_exhaustive()
    }
}

/// Frames that a device itself has lost since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Losses {
    /// Frames that were not taken from the receive queue in time, or for which there was no memory.
    pub missed: u64,
    /// Frames that arrived damaged.
    pub bad: u64,
    /// Frames that were not sent.
    pub not_sent: u64,
}

/// Result of [sending](Device::send) frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sent {
    /// Number of leading frames that are done with: sent, or dropped as said below.
    pub taken: usize,
    /// Frames dropped because they are longer than [`LONGEST_FRAME`].
    pub too_long: u64,
    /// Frames dropped because the link is down.
    pub no_peer: u64,
}

/// Lock of one queue, which admits one thread at a time.
#[repr(align(64))]
#[derive(Default)]
struct Gate(AtomicBool);

struct Inside<'g>(&'g Gate);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.0.store(false, Ordering::Release);
    }
}

impl Gate {
    #[inline]
    fn try_enter(&self) -> Option<Inside<'_>> {
        let entered = self.0.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed);
        // Not `then_some`: an `Inside` that is made and dropped opens the gate for others while a thread is inside.
        entered.is_ok().then(|| Inside(self))
    }

    #[inline]
    fn enter(&self) -> Inside<'_> {
        loop {
            if let Some(inside) = self.try_enter() {
                return inside;
            }
            std::thread::yield_now();
        }
    }
}

/// Driver whose clients call their server when they start, and only then.
const CALLER: &[u8] = b"net_memif";

/// Interval between calls of a peer that is not there.
const AGAIN: Duration = Duration::from_millis(200);

/// Numbers of the open ports.
static OPEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

impl Device {
    /// Opens a device for `threads` threads: a virtual one, which is created (`net_memif0,role=client,id=1`), one
    /// that the EAL's arguments have made (`net_memif0`), or the PCI address of a card (`0000:03:00.0`).
    ///
    /// A device that shares frames out by their addresses and ports (RSS) has a queue for each thread, as far as it can. Others have
    /// those that they were made with (`net_af_packet`'s `qpairs`), or one.
    ///
    /// # Errors
    /// When there is no such device, it is open, or it does not do what is needed; when there is no memory for its frames.
    pub fn open(_: &'static Eal, device: &str, threads: usize) -> Result<Self, DpdkError> {
        let name = device.split(',').next().unwrap_or_default();
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        let (port, is_ours) = find(device, name)?;
        if open.contains(&port) {
            return Err(DpdkError::InUse { device: name.to_owned() });
        }
        let opened = Self::on(port, name, is_ours, threads);
        match &opened {
            Ok(_) => drop(open.insert(port)),
            // SAFETY: this port was made here, and no other code knows of it.
            Err(_) if is_ours => unsafe { ffi::fatbtree_dpdk_remove(port) },
            Err(_) => {}
        }
        opened
    }

    fn on(port: u16, name: &str, is_ours: bool, threads: usize) -> Result<Self, DpdkError> {
        let failed = |step: &str, error| DpdkError::Device {
            device: name.to_owned(),
            step: step.to_owned(),
            reason: meaning(error),
        };
        let mut facts = ffi::Facts::default();
        // SAFETY: there is such a port, and `facts` is where it is described.
        let error = unsafe { ffi::fatbtree_dpdk_describe(port, &raw mut facts) };
        if error != 0 {
            return Err(failed("asking for its description", error));
        }
        let threads = u16::try_from(threads).unwrap_or(u16::MAX).max(1);
        let driver = facts.driver.split(|byte| *byte == 0).next().unwrap_or_default();
        let has_queues = HAVE_QUEUES.contains(&driver);
        let queues = |most: u16| match (has_queues, facts.rss != 0) {
            (true, _) => most,
            (false, true) => threads.min(most),
            (false, false) => 1,
        };
        let mut receive_queues = queues(facts.receive_queues).max(1);
        let send_queues = queues(facts.send_queues).max(1);
        if facts.rss != 0 {
            // Every thread that receives also sends.
            receive_queues = receive_queues.min(send_queues);
        }
        // What is on the way in the device, and in the hands of each thread: a burst that came, one that goes, a cache and its overflow.
        let rings = u32::from(receive_queues) * u32::from(facts.receive_ring)
            + u32::from(send_queues) * u32::from(facts.send_ring);
        let mbufs = rings + (u32::from(threads) + 1) * (2 * CACHE);
        let pool = Pool::for_device(name, mbufs, facts.socket)?;
        let mut setup = ffi::Setup {
            rss: if receive_queues > 1 { facts.rss } else { 0 },
            pool: pool.0.as_ptr(),
            receive_queues,
            send_queues,
            receive_ring: facts.receive_ring,
            send_ring: facts.send_ring,
            mtu: longest_mtu(&facts),
            unused: [0; 3],
        };
        let mut step = c"".as_ptr();
        let mut configure = |setup: &ffi::Setup| {
            // SAFETY: the port is not started, and no other code has it; `setup` is complete, and the pool lives as long as the process.
            unsafe { ffi::fatbtree_dpdk_configure(port, setup, &raw mut step) }
        };
        let mut error = configure(&setup);
        if error != 0 && setup.mtu != facts.mtu {
            // It offers more than it does.
            setup.mtu = facts.mtu;
            error = configure(&setup);
        }
        if error != 0 {
            // SAFETY: the shim's names of steps are constants.
            let step = unsafe { CStr::from_ptr(step) }.to_string_lossy().into_owned();
            pool.give_back();
            return Err(failed(&step, error));
        }
        let calls = (driver == CALLER).then(|| Mutex::new(Instant::now()));
        let error = match &calls {
            Some(_) => restart(port),
            // SAFETY: it is configured, and no other code has it yet.
            None => unsafe { ffi::fatbtree_dpdk_start(port) },
        };
        if error != 0 && calls.is_none() {
            pool.give_back();
            return Err(failed("starting it", error));
        }
        let started = AtomicBool::new(error == 0);
        let gates = |count: u16| (0..count).map(|_| Gate::default()).collect();
        let (receive, send) = (gates(receive_queues), gates(send_queues));
        Ok(Self { port, name: name.to_owned(), pool, receive, send, mac: facts.mac, started, calls, is_ours })
    }

    /// Name of the device, without arguments.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Ethernet address of the device.
    pub fn mac(&self) -> [u8; 6] {
        self.mac
    }

    /// Number of receive queues. Received frames are distributed among them.
    pub fn queues(&self) -> usize {
        self.receive.len()
    }

    /// Number of send queues.
    pub fn send_queues(&self) -> usize {
        self.send.len()
    }

    /// Whether the link is up, so that frames can pass.
    pub fn is_up(&self) -> bool {
        // SAFETY: the port is open as long as this lives.
        self.is_started() && unsafe { ffi::fatbtree_dpdk_is_up(self.port) != 0 }
    }

    #[inline]
    fn is_started(&self) -> bool {
        self.started.load(Ordering::Acquire)
    }

    /// Tries to bring up a link that is down: a `net_memif` client calls its peer again from time to time. Call it
    /// when there is nothing to receive. It does nothing while other threads use the queues.
    pub fn mend(&self) {
        let Some(Ok(mut last)) = self.calls.as_ref().map(Mutex::try_lock) else { return };
        if last.elapsed() < AGAIN {
            return;
        }
        *last = Instant::now();
        if self.is_up() {
            return;
        }
        let gates = || self.receive.iter().chain(&self.send);
        let inside: Vec<Inside<'_>> = gates().map_while(Gate::try_enter).collect();
        if inside.len() == gates().count() {
            // No thread is in its queues, nor gets in as long as `inside` lives.
            self.started.store(restart(self.port) == 0, Ordering::Release);
        }
    }

    /// Adds the frames that wait in a queue to `burst`, as far as there is room. Returns the number of frames dropped
    /// because they are too long. Adds nothing while another thread receives from this queue.
    ///
    /// # Panics
    /// When there is no such [queue](Self::queues).
    #[inline]
    pub fn receive(&self, queue: usize, burst: &mut Burst) -> u64 {
        be_seated();
        let Some(_inside) = self.receive[queue].try_enter() else { return 0 };
        if !self.is_started() {
            return 0;
        }
        // SAFETY: the device is started as long as we are inside, has the queue, and the gate admits no other thread.
        unsafe { burst.receive(self.port, queue as u16, LONGEST_FRAME) }
    }

    /// Sends frames through a queue, in their order. Each is written into an mbuf, once.
    ///
    /// # Panics
    /// When there is no such [queue](Self::send_queues).
    pub fn send(&self, queue: usize, frames: &[&[u8]]) -> Sent {
        be_seated();
        let _inside = self.send[queue].enter();
        let mut sent = Sent::default();
        if !self.is_started() {
            return Sent { taken: frames.len(), no_peer: frames.len() as u64, ..sent };
        }
        while let Some(rest) = frames.get(sent.taken..).filter(|rest| !rest.is_empty()) {
            let fit = rest.iter().take(BURST).take_while(|frame| frame.len() <= LONGEST_FRAME).count();
            if fit == 0 {
                sent.too_long += 1;
                sent.taken += 1;
                continue;
            }
            let nothing = ffi::RawSlice { data: std::ptr::null(), length: 0 };
            let mut slices = [nothing; BURST];
            for (slice, frame) in slices.iter_mut().zip(&rest[..fit]) {
                *slice = ffi::RawSlice { data: frame.as_ptr(), length: frame.len() };
            }
            let (pool, count) = (self.pool.0.as_ptr(), fit as c_uint);
            // SAFETY: the device is started as long as we are inside, has the queue, and the gate admits no other thread. There are so many
            // slices of living frames, each of which fits an mbuf of the pool.
            let taken = unsafe {
                ffi::fatbtree_dpdk_send(self.port, queue as u16, pool, slices.as_ptr(), count) as usize
            };
            sent.taken += taken;
            if taken == 0 {
                if !self.is_up() {
                    sent.no_peer += rest.len() as u64;
                    sent.taken = frames.len();
                }
                break;
            }
        }
        sent
    }

    /// Frames that the device itself has lost. The call asks the driver: not for use with every frame.
    pub fn losses(&self) -> Losses {
        let mut counts = ffi::LossCounts::default();
        // SAFETY: the port is open as long as this lives.
        unsafe { ffi::fatbtree_dpdk_losses(self.port, &raw mut counts) };
        let ffi::LossCounts { missed, bad, not_sent } = counts;
        Losses { missed, bad, not_sent }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: the port is open, and no thread is in one of its queues: that would borrow this.
        unsafe {
            ffi::fatbtree_dpdk_stop(self.port);
            if self.is_ours {
                ffi::fatbtree_dpdk_remove(self.port);
            }
        }
        open.remove(&self.port);
        self.pool.give_back();
    }
}

/// Restarts a configured device of [`CALLER`], so that it calls its peer; no thread may use its queues. Fails if the
/// peer does not answer.
fn restart(port: u16) -> c_int {
    // SAFETY: the caller says what must be; the name ends in a zero byte.
    unsafe { ffi::fatbtree_dpdk_restart(port, c"pmd.net.memif".as_ptr()) }
}

/// MTU with which the device takes the longest frames that fit an mbuf, as far as the device allows.
fn longest_mtu(facts: &ffi::Facts) -> u16 {
    let by_frame = facts.longest_frame.saturating_sub(u32::from(OVERHEAD)).min(u32::from(u16::MAX)) as u16;
    let most = LONGEST_FRAME as u16 - OVERHEAD;
    most.min(facts.most_mtu).min(by_frame).max(facts.mtu)
}

/// Finds the port of a device, or creates it; returns whether it was created.
fn find(device: &str, name: &str) -> Result<(u16, bool), DpdkError> {
    let none = |reason: String| DpdkError::NoDevice { device: device.to_owned(), reason };
    let text = |text: &str| CString::new(text).map_err(|_| none("a zero byte is in its name".to_owned()));
    let (c_name, c_device) = (text(name)?, text(device)?);
    let look = || {
        let mut port = 0;
        // SAFETY: a string that ends, and room for a number.
        let error = unsafe { ffi::fatbtree_dpdk_find(c_name.as_ptr(), &raw mut port) };
        if error == 0 { Ok(port) } else { Err(error) }
    };
    if name.is_empty() {
        return Err(none("it has no name".to_owned()));
    }
    if let Ok(port) = look() {
        return Ok((port, false));
    }
    // SAFETY: a string that ends.
    let error = unsafe { ffi::fatbtree_dpdk_probe(c_device.as_ptr()) };
    if error != 0 {
        return Err(none(meaning(error)));
    }
    look().map(|port| (port, true)).map_err(|_| none("it is not for Ethernet".to_owned()))
}

/// Memory for frames. It is never freed, because frames of a closed device may still be in the queues of others. The
/// next device reuses it.
#[derive(Clone, Copy)]
struct Pool(NonNull<ffi::rte_mempool>, u32);

// SAFETY: DPDK's pools are for all threads.
unsafe impl Send for Pool {}
// SAFETY: as said: all its calls may be made by several threads at once.
unsafe impl Sync for Pool {}

/// Pools of closed devices, and the number of pools created.
static POOLS: Mutex<(Vec<Pool>, u32)> = Mutex::new((Vec::new(), 0));

impl Pool {
    fn for_device(device: &str, mbufs: u32, socket: i32) -> Result<Self, DpdkError> {
        let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
        let (free, made) = &mut *pools;
        if let Some(place) = free.iter().position(|pool| pool.1 == mbufs) {
            return Ok(free.swap_remove(place));
        }
        let name = CString::new(format!("fatbtree_{made}")).expect("it has no zero byte");
        let frame = LONGEST_FRAME as u16;
        // SAFETY: a string that ends; the EAL has started, for there is a device.
        let pool = unsafe { ffi::fatbtree_dpdk_pool(name.as_ptr(), mbufs, CACHE, frame, socket) };
        let Some(pool) = NonNull::new(pool) else {
            let megabytes = (u64::from(mbufs) * u64::from(ffi::fatbtree_dpdk_mbuf_bytes(frame))) >> 20;
            let reason = "DPDK has not so much".to_owned();
            return Err(DpdkError::Memory { device: device.to_owned(), mbufs, megabytes, reason });
        };
        *made += 1;
        Ok(Self(pool, mbufs))
    }

    fn give_back(&self) {
        POOLS.lock().unwrap_or_else(PoisonError::into_inner).0.push(*self);
    }
}
