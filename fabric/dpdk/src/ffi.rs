//! Functions and types of `shim/shim.c`, as declared there.
#![allow(unsafe_code, reason = "declarations of foreign functions")]

use std::ffi::{c_char, c_int, c_uint};

/// A type of DPDK of which only pointers are known here.
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
    rte_mempool: "Where mbufs come from.",
    rte_mbuf: "Memory of a frame.",
}

/// Maximum number of frames in one call.
pub(crate) const BURST: usize = 64;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) rss: u64,
    pub(crate) longest_frame: u32,
    pub(crate) receive_queues: u16,
    pub(crate) send_queues: u16,
    pub(crate) receive_ring: u16,
    pub(crate) send_ring: u16,
    pub(crate) mtu: u16,
    pub(crate) most_mtu: u16,
    pub(crate) socket: i32,
    pub(crate) mac: [u8; 6],
    pub(crate) unused: [u8; 2],
    /// Name of the driver, which ends in a zero byte.
    pub(crate) driver: [u8; 32],
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) rss: u64,
    pub(crate) pool: *mut rte_mempool,
    pub(crate) receive_queues: u16,
    pub(crate) send_queues: u16,
    pub(crate) receive_ring: u16,
    pub(crate) send_ring: u16,
    pub(crate) mtu: u16,
    pub(crate) unused: [u16; 3],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LossCounts {
    pub(crate) missed: u64,
    pub(crate) bad: u64,
    pub(crate) not_sent: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawFrame {
    pub(crate) mbuf: *mut rte_mbuf,
    pub(crate) data: *const u8,
    pub(crate) length: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawSlice {
    pub(crate) data: *const u8,
    pub(crate) length: usize,
}

const _: () = {
    assert!(size_of::<Facts>() == 72);
    assert!(size_of::<Setup>() == 32);
    assert!(size_of::<LossCounts>() == 24);
    assert!(size_of::<RawFrame>() == 24);
    assert!(size_of::<RawSlice>() == 16);
};

unsafe extern "C" {
    pub(crate) fn fatbtree_dpdk_start_eal(
        argc: c_int,
        argv: *mut *mut c_char,
        log: *mut c_char,
        log_bytes: usize,
    ) -> c_int;
    pub(crate) safe fn fatbtree_dpdk_first_core() -> c_uint;
    pub(crate) fn fatbtree_dpdk_bind_thread(n: c_uint) -> c_int;
    pub(crate) fn fatbtree_dpdk_register_thread() -> c_int;
    pub(crate) fn fatbtree_dpdk_unregister_thread();

    pub(crate) fn fatbtree_dpdk_find(name: *const c_char, port: *mut u16) -> c_int;
    pub(crate) fn fatbtree_dpdk_probe(device: *const c_char) -> c_int;
    pub(crate) fn fatbtree_dpdk_describe(port: u16, facts: *mut Facts) -> c_int;
    pub(crate) fn fatbtree_dpdk_configure(port: u16, setup: *const Setup, step: *mut *const c_char) -> c_int;
    pub(crate) fn fatbtree_dpdk_start(port: u16) -> c_int;
    pub(crate) fn fatbtree_dpdk_restart(port: u16, log: *const c_char) -> c_int;
    pub(crate) fn fatbtree_dpdk_stop(port: u16);
    pub(crate) fn fatbtree_dpdk_remove(port: u16);
    pub(crate) fn fatbtree_dpdk_is_up(port: u16) -> c_int;
    pub(crate) fn fatbtree_dpdk_losses(port: u16, losses: *mut LossCounts);

    pub(crate) fn fatbtree_dpdk_pool(
        name: *const c_char,
        mbufs: c_uint,
        cache: c_uint,
        frame: u16,
        socket: c_int,
    ) -> *mut rte_mempool;
    pub(crate) safe fn fatbtree_dpdk_mbuf_bytes(frame: u16) -> c_uint;
    pub(crate) fn fatbtree_dpdk_receive(
        port: u16,
        queue: u16,
        frames: *mut RawFrame,
        room: c_uint,
        longest: usize,
        too_long: *mut c_uint,
    ) -> c_uint;
    pub(crate) fn fatbtree_dpdk_free(frames: *const RawFrame, count: c_uint);
    pub(crate) fn fatbtree_dpdk_send(
        port: u16,
        queue: u16,
        pool: *mut rte_mempool,
        frames: *const RawSlice,
        count: c_uint,
    ) -> c_uint;
}
