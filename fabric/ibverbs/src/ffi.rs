//! Functions and types of `shim/shim.c` and of libibverbs, as declared there.
#![allow(unsafe_code, reason = "declarations of foreign functions")]

use std::ffi::{c_char, c_int, c_void};

/// A type of libibverbs of which only pointers are known here.
macro_rules! opaque {
    ($($name:ident: $what:literal,)*) => {$(
        #[doc = $what]
        #[repr(C)]
        pub(crate) struct $name {
            _private: [u8; 0],
        }
    )*};
}

opaque! {
    ibv_context: "An open device.",
    ibv_pd: "A protection domain.",
    ibv_mr: "A registered memory region.",
    ibv_dm: "Memory on the device.",
    ibv_cq: "A completion queue.",
    ibv_qp: "A queue pair.",
    ibv_td: "A thread domain.",
    ibv_comp_channel: "Where completion queues tell that something has come.",
}

pub(crate) const NAME_BYTES: usize = 64;
pub(crate) const LONGEST_CHAIN: usize = 16;
pub(crate) const MOST_POLLED: usize = 32;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    pub(crate) device_memory: u64,
    pub(crate) queue_pairs: u32,
    pub(crate) completions: u32,
    pub(crate) work_requests: u32,
    pub(crate) responder_reads: u32,
    pub(crate) initiator_reads: u32,
    pub(crate) message: u32,
    pub(crate) mtu: u32,
    pub(crate) atomics: u8,
    pub(crate) active: u8,
    pub(crate) ethernet: u8,
    pub(crate) port_state: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gid {
    pub(crate) raw: [u8; 16],
    pub(crate) index: u32,
    pub(crate) port: u32,
    pub(crate) roce_v2: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Event {
    pub(crate) queue_pair: u64,
    pub(crate) kind: u32,
    pub(crate) unused: u32,
}

/// [`Event::kind`]: the queue pair has failed.
pub(crate) const EVENT_QUEUE_PAIR: u32 = 1;
/// [`Event::kind`]: the device or its completion queue has failed.
pub(crate) const EVENT_DEVICE: u32 = 2;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Keys {
    pub(crate) local: u32,
    pub(crate) remote: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NewQueuePair {
    pub(crate) name: u64,
    pub(crate) send_queue: u32,
    pub(crate) inline_bytes: u32,
    pub(crate) number: u32,
    pub(crate) unused: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Connection {
    pub(crate) gid: [u8; 16],
    pub(crate) number: u32,
    pub(crate) send_psn: u32,
    pub(crate) receive_psn: u32,
    pub(crate) mtu: u32,
    pub(crate) port: u8,
    pub(crate) gid_index: u8,
    pub(crate) hop_limit: u8,
    pub(crate) traffic_class: u8,
    pub(crate) responder_reads: u8,
    pub(crate) initiator_reads: u8,
    pub(crate) timeout: u8,
    pub(crate) retries: u8,
    pub(crate) atomics: u8,
    pub(crate) unused: [u8; 3],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Request {
    pub(crate) id: u64,
    /// Address in this process.
    pub(crate) local: u64,
    pub(crate) remote: u64,
    pub(crate) compare_or_add: u64,
    pub(crate) swap: u64,
    pub(crate) len: u32,
    pub(crate) local_key: u32,
    pub(crate) remote_key: u32,
    pub(crate) operation: u8,
    pub(crate) signalled: u8,
    pub(crate) inlined: u8,
    pub(crate) unused: u8,
}

/// [`Request::operation`].
pub(crate) const READ: u8 = 0;
pub(crate) const WRITE: u8 = 1;
pub(crate) const COMPARE_SWAP: u8 = 2;
pub(crate) const FETCH_ADD: u8 = 3;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WorkCompletion {
    pub(crate) id: u64,
    pub(crate) status: u32,
    pub(crate) number: u32,
}

// The same numbers stand in shim.c.
const _: () = {
    assert!(size_of::<Limits>() == 40);
    assert!(size_of::<Gid>() == 28);
    assert!(size_of::<Event>() == 16);
    assert!(size_of::<Keys>() == 8);
    assert!(size_of::<NewQueuePair>() == 24);
    assert!(size_of::<Connection>() == 44);
    assert!(size_of::<Request>() == 56);
    assert!(size_of::<WorkCompletion>() == 16);
};

unsafe extern "C" {
    // Of the shim.
    pub(crate) fn fatbtree_device_names(names: *mut [c_char; NAME_BYTES], max: c_int) -> c_int;
    pub(crate) fn fatbtree_open(name: *const c_char) -> *mut ibv_context;
    pub(crate) fn fatbtree_limits(context: *mut ibv_context, port: u8, limits: *mut Limits) -> c_int;
    pub(crate) fn fatbtree_gids(context: *mut ibv_context, gids: *mut Gid, max: c_int) -> c_int;
    pub(crate) fn fatbtree_event(context: *mut ibv_context, event: *mut Event) -> c_int;
    pub(crate) fn fatbtree_event_fd(context: *mut ibv_context) -> c_int;
    pub(crate) fn fatbtree_register(
        pd: *mut ibv_pd,
        memory: *mut c_void,
        len: u64,
        iova: u64,
        rights: u32,
        keys: *mut Keys,
    ) -> *mut ibv_mr;
    pub(crate) fn fatbtree_device_memory(context: *mut ibv_context, len: u64) -> *mut ibv_dm;
    pub(crate) fn fatbtree_read_device_memory(
        memory: *mut ibv_dm,
        offset: u64,
        into: *mut c_void,
        len: u64,
    ) -> c_int;
    pub(crate) fn fatbtree_free_device_memory(memory: *mut ibv_dm) -> c_int;
    pub(crate) fn fatbtree_register_device_memory(
        pd: *mut ibv_pd,
        memory: *mut ibv_dm,
        len: u64,
        rights: u32,
        keys: *mut Keys,
    ) -> *mut ibv_mr;
    pub(crate) fn fatbtree_create(
        pd: *mut ibv_pd,
        sends: *mut ibv_cq,
        receives: *mut ibv_cq,
        wanted: *mut NewQueuePair,
    ) -> *mut ibv_qp;
    pub(crate) fn fatbtree_watch(queue_pair: *mut ibv_qp, name: u64) -> c_int;
    pub(crate) fn fatbtree_connect(queue_pair: *mut ibv_qp, to: *const Connection, step: *mut u32) -> c_int;
    pub(crate) fn fatbtree_leave(queue_pair: *mut ibv_qp, error: u32) -> c_int;
    pub(crate) fn fatbtree_post(queue_pair: *mut ibv_qp, requests: *const Request, count: u32) -> c_int;
    pub(crate) fn fatbtree_thread_domain(context: *mut ibv_context) -> *mut ibv_td;
    pub(crate) fn fatbtree_free_thread_domain(domain: *mut ibv_td) -> c_int;
    pub(crate) fn fatbtree_parent_domain(
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        thread: *mut ibv_td,
    ) -> *mut ibv_pd;
    pub(crate) fn fatbtree_completion_queue(
        context: *mut ibv_context,
        entries: c_int,
        channel: *mut ibv_comp_channel,
    ) -> *mut ibv_cq;
    pub(crate) fn fatbtree_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    pub(crate) fn fatbtree_channel_fd(channel: *mut ibv_comp_channel) -> c_int;
    pub(crate) fn fatbtree_forget_told(channel: *mut ibv_comp_channel);
    pub(crate) fn fatbtree_arm(queue: *mut ibv_cq) -> c_int;
    pub(crate) fn fatbtree_poll(queue: *mut ibv_cq, completions: *mut WorkCompletion, max: c_int) -> c_int;

    // Of libibverbs.
    pub(crate) fn ibv_close_device(context: *mut ibv_context) -> c_int;
    pub(crate) fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    pub(crate) fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    pub(crate) fn ibv_dereg_mr(region: *mut ibv_mr) -> c_int;
    pub(crate) fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    pub(crate) fn ibv_destroy_cq(queue: *mut ibv_cq) -> c_int;
    pub(crate) fn ibv_destroy_qp(queue_pair: *mut ibv_qp) -> c_int;
}
