//! Owners of libibverbs objects: each object is released when its owner is dropped, and keeps alive what it needs.
#![allow(unsafe_code, reason = "calls of foreign functions; each block says why it is sound")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::fmt;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::Arc;

use fatbtree_verbs::{BufferPool, DeviceMemoryError, Memory, OutOfBounds};

use crate::ffi::{self, Connection, Event, Gid, Keys, Limits, NewQueuePair, Request, WorkCompletion};

/// Maximum number of devices that are listed.
const MOST_DEVICES: usize = 64;
/// Maximum number of GIDs that are read.
const MOST_GIDS: usize = 256;

/// Result of a call that returns an error number.
fn done(error: c_int) -> io::Result<()> {
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

/// Result of a call that returns a pointer.
fn given<T>(pointer: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(pointer).ok_or_else(io::Error::last_os_error)
}

/// Names of the RDMA devices of this machine.
pub(crate) fn device_names() -> io::Result<Vec<String>> {
    let mut names = [[0 as c_char; ffi::NAME_BYTES]; MOST_DEVICES];
    // SAFETY: the function writes at most `MOST_DEVICES` names, each ended by a zero, into the array, which has as many.
    let count = unsafe { ffi::fatbtree_device_names(names.as_mut_ptr(), MOST_DEVICES as c_int) };
    let count = match usize::try_from(count) {
        Ok(count) => count,
        Err(_) => match io::Error::from_raw_os_error(-count) {
            // No kernel module of RDMA is loaded: there are none.
            error if error.kind() == io::ErrorKind::Unsupported => 0,
            error => return Err(error),
        },
    };
    let name = |name: &[c_char; ffi::NAME_BYTES]| {
        let bytes = name.map(|byte| byte.to_ne_bytes()[0]);
        CStr::from_bytes_until_nul(&bytes).map_or(String::new(), |name| name.to_string_lossy().into_owned())
    };
    Ok(names[..count].iter().map(name).collect())
}

/// An open device.
pub(crate) struct Context(NonNull<ffi::ibv_context>);

// SAFETY: libibverbs allows every call from any thread, on a device that any thread has opened.
unsafe impl Send for Context {}
// SAFETY: libibverbs locks what calls on one device share; so two threads may have a reference each.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the device of that name.
    pub(crate) fn open(name: &str) -> io::Result<Context> {
        let name = CString::new(name).map_err(|_| io::ErrorKind::NotFound)?;
        // SAFETY: `name` is ended by a zero and lives through the call.
        given(unsafe { ffi::fatbtree_open(name.as_ptr()) }).map(Context)
    }

    /// Capabilities of the device and of one of its ports.
    pub(crate) fn limits(&self, port: u8) -> io::Result<Limits> {
        let mut limits = Limits::default();
        // SAFETY: the device is open as long as `self` lives; `limits` is written by the call only, and has the layout of
        // the shim's structure (their sizes are compared when either is compiled).
        done(unsafe { ffi::fatbtree_limits(self.0.as_ptr(), port, &mut limits) })?;
        Ok(limits)
    }

    /// The GIDs of all ports.
    pub(crate) fn gids(&self) -> io::Result<Vec<Gid>> {
        let mut gids = vec![Gid::default(); MOST_GIDS];
        // SAFETY: the device is open; the call writes at most `MOST_GIDS` entries, and the vector has as many.
        let count = unsafe { ffi::fatbtree_gids(self.0.as_ptr(), gids.as_mut_ptr(), MOST_GIDS as c_int) };
        gids.truncate(usize::try_from(count).map_err(|_| io::Error::from_raw_os_error(-count))?);
        Ok(gids)
    }

    /// The next asynchronous event, if there is one.
    pub(crate) fn event(&self) -> Option<Event> {
        let mut event = Event::default();
        // SAFETY: the device is open; `event` is written by the call only. The shim reads queue pairs that an event speaks of:
        // those exist, because destroying one takes its events away and waits for those that are being read.
        let error = unsafe { ffi::fatbtree_event(self.0.as_ptr(), &mut event) };
        (error == 0).then_some(event)
    }

    /// File descriptor that is readable when there is an event.
    pub(crate) fn event_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the device is open, and its descriptor with it, as long as `self` lives, which what is returned borrows.
        unsafe { BorrowedFd::borrow_raw(ffi::fatbtree_event_fd(self.0.as_ptr())) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: this is the only owner, and whatever was made from the device keeps it alive: nothing is left of it.
        // If the call fails the device stays open until the process ends.
        unsafe { ffi::ibv_close_device(self.0.as_ptr()) };
    }
}

/// A protection domain: queue pairs and memory regions that may be used together.
pub(crate) struct ProtectionDomain {
    raw: NonNull<ffi::ibv_pd>,
    /// If it is for one thread: its thread domain, and the protection domain that it is for others.
    of_thread: Option<(NonNull<ffi::ibv_td>, Arc<ProtectionDomain>)>,
    context: Arc<Context>,
}

// SAFETY: libibverbs allows every call from any thread, whichever made the protection domain.
unsafe impl Send for ProtectionDomain {}
// SAFETY: a protection domain is only named in calls, and libibverbs locks what those share.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    pub(crate) fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: the device is open, and stays so as long as the protection domain lives, which has a share in it.
        let raw = given(unsafe { ffi::ibv_alloc_pd(context.0.as_ptr()) })?;
        Ok(Arc::new(Self { raw, of_thread: None, context: Arc::clone(context) }))
    }

    /// The same for queue pairs that one thread at a time uses: they have a doorbell register of their own, and no locks.
    /// [`Unsupported`](io::ErrorKind::Unsupported): the driver has none.
    pub(crate) fn of_thread(parent: &Arc<Self>) -> io::Result<Arc<Self>> {
        let context = Arc::clone(&parent.context);
        // SAFETY: the device is open, and stays so as long as the thread domain, whose owner has a share in it.
        let thread = given(unsafe { ffi::fatbtree_thread_domain(context.0.as_ptr()) })?;
        // SAFETY: device, protection domain and thread domain live as long as what is made of them, whose owner has them or a share in
        // them.
        let raw =
            unsafe { ffi::fatbtree_parent_domain(context.0.as_ptr(), parent.raw.as_ptr(), thread.as_ptr()) };
        match given(raw) {
            Ok(raw) => Ok(Arc::new(Self { raw, of_thread: Some((thread, Arc::clone(parent))), context })),
            Err(error) => {
                // SAFETY: nothing was made of it.
                unsafe { ffi::fatbtree_free_thread_domain(thread.as_ptr()) };
                Err(error)
            }
        }
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: this is the only owner, and regions and queue pairs keep it alive: there are none left.
        unsafe { ffi::ibv_dealloc_pd(self.raw.as_ptr()) };
        if let Some((thread, _)) = &self.of_thread {
            // SAFETY: what was made of it has just gone.
            unsafe { ffi::fatbtree_free_thread_domain(thread.as_ptr()) };
        }
    }
}

/// Memory of a region, kept until the region is deregistered.
pub(crate) enum Reach {
    /// Memory that is shared with its owner.
    Shared { _memory: Arc<Memory> },
    /// Buffers for the results of this side's READs.
    Buffers { _pool: BufferPool },
    /// Memory on the device.
    Device { memory: NonNull<ffi::ibv_dm>, len: u64 },
}

/// A registered memory region.
pub(crate) struct MemoryRegion {
    raw: NonNull<ffi::ibv_mr>,
    keys: Keys,
    reach: ManuallyDrop<Reach>,
    _domain: Arc<ProtectionDomain>,
}

// SAFETY: libibverbs allows every call from any thread. What the region reaches is shared memory made of atomics, a pool that
// may be sent to other threads, or device memory that is only named in calls.
unsafe impl Send for MemoryRegion {}

impl MemoryRegion {
    /// Registers `memory`, whose first byte is `iova` to others, with rights as [`Access::bits`](fatbtree_verbs::Access::bits).
    pub(crate) fn shared(
        domain: &Arc<ProtectionDomain>,
        memory: &Arc<Memory>,
        iova: u64,
        rights: u8,
    ) -> io::Result<Self> {
        let (first, len) = (memory.as_ptr(), memory.len());
        Self::new(domain, first, len, iova, rights, Reach::Shared { _memory: Arc::clone(memory) })
    }

    /// Registers a pool of buffers, for this side only.
    pub(crate) fn buffers(domain: &Arc<ProtectionDomain>, pool: &BufferPool) -> io::Result<Self> {
        let (first, len) = pool.as_raw();
        Self::new(domain, first, len as u64, first as u64, 0, Reach::Buffers { _pool: pool.clone() })
    }

    fn new(
        domain: &Arc<ProtectionDomain>,
        first: *mut u8,
        len: u64,
        iova: u64,
        rights: u8,
        reach: Reach,
    ) -> io::Result<Self> {
        let mut keys = Keys::default();
        // SAFETY: `first` and `len` are a mapping that `reach` owns a share of, and `reach` is kept until the region has been taken
        // back. Rust code touches the mapping only by atomics, or in a buffer that no posted request names.
        let raw = unsafe {
            ffi::fatbtree_register(domain.raw.as_ptr(), first.cast(), len, iova, rights.into(), &mut keys)
        };
        Ok(Self { raw: given(raw)?, keys, reach: ManuallyDrop::new(reach), _domain: Arc::clone(domain) })
    }

    /// Registers `len` zeroed bytes on the device; their addresses begin with 0.
    pub(crate) fn device_memory(domain: &Arc<ProtectionDomain>, len: u64, rights: u8) -> io::Result<Self> {
        // SAFETY: the device is open as long as the protection domain lives.
        let memory = given(unsafe { ffi::fatbtree_device_memory(domain.context.0.as_ptr(), len) })?;
        let mut keys = Keys::default();
        // SAFETY: `memory` has just been made with `len` bytes, and is given back after the region only.
        let raw = unsafe {
            ffi::fatbtree_register_device_memory(
                domain.raw.as_ptr(),
                memory.as_ptr(),
                len,
                rights.into(),
                &mut keys,
            )
        };
        match given(raw) {
            Ok(raw) => {
                let reach = ManuallyDrop::new(Reach::Device { memory, len });
                Ok(Self { raw, keys, reach, _domain: Arc::clone(domain) })
            }
            Err(error) => {
                // SAFETY: no region was made of the memory, and no other code has the pointer.
                unsafe { ffi::fatbtree_free_device_memory(memory.as_ptr()) };
                Err(error)
            }
        }
    }

    /// Copies bytes of memory on the device out; `None` where the region is not on the device.
    pub(crate) fn read_device_memory(
        &self,
        offset: u64,
        into: &mut [u8],
    ) -> Option<Result<(), DeviceMemoryError>> {
        let Reach::Device { memory, len: size } = &*self.reach else { return None };
        let (len, size) = (into.len() as u64, *size);
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Some(Err(OutOfBounds { offset, len, size }.into()));
        }
        // The device copies whole words, at multiples of four bytes (mlx5): what is beside them is left out here.
        let lead = offset % 4;
        let mut words = vec![0_u32; (lead + len).div_ceil(4) as usize];
        let wanted = (words.len() as u64 * 4).min(size - (offset - lead));
        // SAFETY: the memory is on the device as long as the region, with `size` bytes, of which `wanted` from there on are asked
        // for; `words` has room for as many, and no other code has it.
        let error = unsafe {
            ffi::fatbtree_read_device_memory(
                memory.as_ptr(),
                offset - lead,
                words.as_mut_ptr().cast(),
                wanted,
            )
        };
        let bytes = words.iter().flat_map(|word| word.to_ne_bytes()).skip(lead as usize);
        into.iter_mut().zip(bytes).for_each(|(into, byte)| *into = byte);
        Some(done(error).map_err(|error| DeviceMemoryError::Driver { len, reason: error.to_string() }))
    }

    /// The key for requests of this side.
    pub(crate) fn local_key(&self) -> u32 {
        self.keys.local
    }

    /// The key for requests of others.
    pub(crate) fn remote_key(&self) -> u32 {
        self.keys.remote
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: this is the only owner of the region, and it is not used again.
        if unsafe { ffi::ibv_dereg_mr(self.raw.as_ptr()) } != 0 {
            // The device may still write there: what the region reaches must never go.
            return;
        }
        // SAFETY: this is the only place that takes it, and it runs once.
        match unsafe { ManuallyDrop::take(&mut self.reach) } {
            // SAFETY: the region was the only one made of this memory, and is gone.
            Reach::Device { memory, .. } => _ = unsafe { ffi::fatbtree_free_device_memory(memory.as_ptr()) },
            reach => drop(reach),
        }
    }
}

/// Channel through which completion queues report that something has arrived.
pub(crate) struct Channel {
    raw: NonNull<ffi::ibv_comp_channel>,
    context: Arc<Context>,
}

// SAFETY: libibverbs allows every call from any thread, whichever made the channel.
unsafe impl Send for Channel {}
// SAFETY: of a channel a descriptor is read and what it says acknowledged, under a lock of the queue that it speaks of.
unsafe impl Sync for Channel {}

impl Channel {
    pub(crate) fn new(context: &Arc<Context>) -> io::Result<Arc<Self>> {
        // SAFETY: the device is open, and stays so as long as the channel lives, which has a share in it.
        let raw = given(unsafe { ffi::fatbtree_channel(context.0.as_ptr()) })?;
        Ok(Arc::new(Self { raw, context: Arc::clone(context) }))
    }

    /// File descriptor that is readable when a queue has reported something.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is open, and its descriptor with it, as long as `self` lives, which what is returned borrows.
        unsafe { BorrowedFd::borrow_raw(ffi::fatbtree_channel_fd(self.raw.as_ptr())) }
    }

    /// Discards the reports of queues.
    pub(crate) fn forget_told(&self) {
        // SAFETY: the channel is open. The shim acknowledges to queues that told something: those exist, because destroying one
        // takes away what it has told, and waits for what is being acknowledged.
        unsafe { ffi::fatbtree_forget_told(self.raw.as_ptr()) };
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        // SAFETY: this is the only owner, and queues keep it alive: there are none left.
        unsafe { ffi::ibv_destroy_comp_channel(self.raw.as_ptr()) };
    }
}

/// A completion queue.
pub(crate) struct CompletionQueue {
    raw: NonNull<ffi::ibv_cq>,
    _channel: Arc<Channel>,
}

// SAFETY: libibverbs allows every call from any thread, whichever made the queue.
unsafe impl Send for CompletionQueue {}
// SAFETY: the device that has made the queue polls and arms it, while it is borrowed mutably; queue pairs only keep it alive.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// A queue that reports through `channel` when it is [armed](Self::arm). One thread at a time polls it.
    pub(crate) fn new(channel: &Arc<Channel>, entries: u32) -> io::Result<Arc<Self>> {
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        let (context, raw) = (channel.context.0.as_ptr(), channel.raw.as_ptr());
        // SAFETY: channel and device are open, and stay so as long as the queue lives, which has a share in the channel, and that one in
        // the device.
        let raw = unsafe { ffi::fatbtree_completion_queue(context, entries, raw) };
        Ok(Arc::new(Self { raw: given(raw)?, _channel: Arc::clone(channel) }))
    }

    /// Requests one report of what arrives from now on.
    pub(crate) fn arm(&self) -> io::Result<()> {
        // SAFETY: the queue lives as long as `self`.
        done(unsafe { ffi::fatbtree_arm(self.raw.as_ptr()) })
    }

    /// Takes completions into `found`, and returns their number; `None` if the queue has failed.
    pub(crate) fn poll(&self, found: &mut [WorkCompletion; ffi::MOST_POLLED]) -> Option<usize> {
        // SAFETY: the queue lives as long as `self`; the call writes at most `MOST_POLLED` completions, and there is room for as many.
        let count =
            unsafe { ffi::fatbtree_poll(self.raw.as_ptr(), found.as_mut_ptr(), ffi::MOST_POLLED as c_int) };
        usize::try_from(count).ok()
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: this is the only owner, and queue pairs keep it alive: there are none left.
        unsafe { ffi::ibv_destroy_cq(self.raw.as_ptr()) };
    }
}

/// Step of connecting at which it failed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Init,
    Watch,
    ReadyToReceive,
    ReadyToSend,
}

/// A queue pair of the reliable connection service.
pub(crate) struct RawQueuePair {
    /// `None` when it has been destroyed.
    raw: Option<NonNull<ffi::ibv_qp>>,
    number: u32,
    _domain: Arc<ProtectionDomain>,
    _queues: [Arc<CompletionQueue>; 2],
}

// SAFETY: libibverbs allows every call from any thread, whichever made the queue pair.
unsafe impl Send for RawQueuePair {}

impl fmt::Debug for RawQueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RawQueuePair {:#x}", self.number)
    }
}

impl RawQueuePair {
    /// A queue pair in RESET; `name` comes back with its events and when its watching receive ends.
    pub(crate) fn new(
        domain: &Arc<ProtectionDomain>,
        [sends, receives]: &[Arc<CompletionQueue>; 2],
        name: u64,
        send_queue: u32,
        inline_bytes: u32,
    ) -> io::Result<Self> {
        let mut wanted = NewQueuePair { name, send_queue, inline_bytes, number: 0, unused: 0 };
        // SAFETY: protection domain and queues live as long as the queue pair, which has a share in each; `wanted` has the
        // layout of the shim's structure (their sizes are compared when either is compiled).
        let raw = unsafe {
            ffi::fatbtree_create(domain.raw.as_ptr(), sends.raw.as_ptr(), receives.raw.as_ptr(), &mut wanted)
        };
        Ok(Self {
            raw: Some(given(raw)?),
            number: wanted.number,
            _domain: Arc::clone(domain),
            _queues: [Arc::clone(sends), Arc::clone(receives)],
        })
    }

    /// Number of the queue pair on the wire.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Connects the queue pair, from RESET to RTS. The driver may wait for the other side's MAC address.
    pub(crate) fn connect(&self, to: &Connection) -> Result<(), (Step, io::Error)> {
        let mut step = 0;
        let raw = self.raw().map_err(|error| (Step::Init, error))?;
        // SAFETY: `raw` has not been destroyed; `to` and `step` live through the call, and `to` has the layout of the
        // shim's structure (their sizes are compared when either is compiled).
        let error = unsafe { ffi::fatbtree_connect(raw, to, &mut step) };
        done(error).map_err(|error| {
            let step = match step {
                1 => Step::Init,
                2 => Step::Watch,
                3 => Step::ReadyToReceive,
                _ => Step::ReadyToSend,
            };
            (step, error)
        })
    }

    /// Posts the receive that reports the queue pair's end once more.
    pub(crate) fn watch(&self, name: u64) -> io::Result<()> {
        let raw = self.raw()?;
        // SAFETY: `raw` has not been destroyed; the receive names no memory.
        done(unsafe { ffi::fatbtree_watch(raw, name) })
    }

    /// Moves the queue pair to the error state.
    pub(crate) fn fail(&self) -> io::Result<()> {
        let raw = self.raw()?;
        // SAFETY: `raw` has not been destroyed, and nothing else is named.
        done(unsafe { ffi::fatbtree_leave(raw, 1) })
    }

    /// Moves the queue pair back to RESET.
    pub(crate) fn reset(&self) -> io::Result<()> {
        let raw = self.raw()?;
        // SAFETY: `raw` has not been destroyed, and its requests are not looked at any more.
        done(unsafe { ffi::fatbtree_leave(raw, 0) })
    }

    /// Posts a chain with one doorbell; at most [`ffi::LONGEST_CHAIN`].
    ///
    /// # Safety
    /// For each request `local` and `len` must be memory that stays and that no other code touches: when it is inlined until
    /// this returns, otherwise in the region of `local_key`, and until the request has completed or the queue pair is
    /// destroyed.
    pub(crate) unsafe fn post(&self, chain: &[Request]) -> io::Result<()> {
        let (raw, count) = (self.raw()?, chain.len() as u32);
        // SAFETY: `raw` has not been destroyed; the shim reads `count` requests of the layout it shares with us, and refuses
        // more than it has room for. What they name is the caller's promise.
        done(unsafe { ffi::fatbtree_post(raw, chain.as_ptr(), count) })
    }

    /// Destroys the queue pair. If it returns true, the card no longer accesses memory that the requests named.
    pub(crate) fn destroy(&mut self) -> bool {
        if let Some(raw) = self.raw {
            // SAFETY: the pointer is forgotten below when the call succeeds, so it is not destroyed twice. All its events have been
            // acknowledged, so the call does not wait for that.
            if unsafe { ffi::ibv_destroy_qp(raw.as_ptr()) } == 0 {
                self.raw = None;
            }
        }
        self.raw.is_none()
    }

    /// The queue pair, as long as it has not been destroyed.
    fn raw(&self) -> io::Result<*mut ffi::ibv_qp> {
        self.raw.map(NonNull::as_ptr).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for RawQueuePair {
    fn drop(&mut self) {
        self.destroy();
    }
}
