//! What compiled code calls: everything that needs more than slots.
//!
//! All take the run and the slots as pointers, for compiled code has them both all the time and uses them between calls.
#![expect(unsafe_code, reason = "arguments come from compiled code, as pointers")]

use crate::code::Words;
use crate::machine::{Packet, State};
use crate::output::DropReason;
use crate::program::Code;
use crate::step::Flow;
use crate::table::contents::Body;

/// What a run works on beside the slots.
#[repr(C)]
pub(super) struct Run<'a> {
    pub(super) packet: *mut Packet,
    /// The frame, as compiled code reads it.
    pub(super) frame_start: *const u8,
    pub(super) frame_len: u64,
    code: &'a Code,
    state: *mut State,
    frame: &'a [u8],
}

impl<'a> Run<'a> {
    pub(super) fn new(packet: &'a mut Packet, code: &'a Code, state: &'a mut State, frame: &'a [u8]) -> Self {
        Run { packet, frame_start: frame.as_ptr(), frame_len: frame.len() as u64, code, state, frame }
    }
}

/// What a table tells compiled code: whether an entry was hit in the upper half, the action's position + 1 in the lower; 0
/// there: no action.
pub(super) const HIT_SHIFT: i64 = 32;

/// [`Packet::apply`]: looks a table of any kind up, and loads the parameters.
pub(super) unsafe extern "C" fn apply(run: *mut Run<'_>, slots: *mut Words, table: u64) -> u64 {
    // SAFETY: compiled code hands on the pointers that `Native` gave it, made of exclusive references that nobody else
    // uses meanwhile.
    let (run, slots) = unsafe { (&*run, &mut *slots) };
    // SAFETY: as above.
    let (packet, state) = unsafe { (&mut *run.packet, &mut *run.state) };
    let start = packet.apply(slots, run.code, state, run.frame.len(), table as usize);
    u64::from(packet.hit) << HIT_SHIFT | start.map_or(0, |_| packet.action as u64 + 1)
}

/// The same after a miss: runs the default action.
pub(super) unsafe extern "C" fn miss(run: *mut Run<'_>, slots: *mut Words, table: u64) -> u64 {
    // SAFETY: as above.
    let (run, slots) = unsafe { (&*run, &mut *slots) };
    // SAFETY: as above.
    let (packet, state) = unsafe { (&mut *run.packet, &*run.state) };
    let table = table as usize;
    let start = packet.call(slots, &run.code.tables[table], &state.tables[table].default);
    start.map_or(0, |_| packet.action as u64 + 1)
}

/// The row of a key of one word in an exact table, or null.
pub(super) unsafe extern "C" fn find(run: *mut Run<'_>, table: u64, key: u64) -> *mut u64 {
    // SAFETY: as above.
    unsafe { row(run, table, [key]) }
}

/// The row of a key of two words, the low one first, or null.
pub(super) unsafe extern "C" fn find_wide(run: *mut Run<'_>, table: u64, low: u64, high: u64) -> *mut u64 {
    // SAFETY: as above.
    unsafe { row(run, table, [low, high]) }
}

#[inline(always)]
unsafe fn row<const WORDS: usize>(run: *mut Run<'_>, table: u64, key: [u64; WORDS]) -> *mut u64 {
    // SAFETY: as above.
    let state = unsafe { &mut *(*run).state };
    match &mut state.tables[table as usize].body {
        Body::Exact(exact) => exact.row_of(key).map_or(std::ptr::null_mut(), <[u64]>::as_mut_ptr),
        _ => std::ptr::null_mut(),
    }
}

/// Any other operation, by its position in the code. Returns a [`Flow`].
pub(super) unsafe extern "C" fn step(run: *mut Run<'_>, slots: *mut Words, pc: u64) -> u64 {
    // SAFETY: as above.
    let (run, slots) = unsafe { (&*run, &mut *slots) };
    // SAFETY: as above.
    let (packet, state) = unsafe { (&mut *run.packet, &mut *run.state) };
    match run.code.ops.get(pc as usize) {
        Some(op) => packet.step(slots, run.code, state, run.frame, op) as u64,
        None => Flow::Stop as u64,
    }
}

/// The case of a parser state's select that the packet is, or any larger number.
pub(super) unsafe extern "C" fn select(run: *mut Run<'_>, slots: *mut Words, select: u64) -> u64 {
    // SAFETY: as above.
    let (run, slots) = unsafe { (&*run, &*slots) };
    let select = &run.code.selects[select as usize];
    select.key.first_match(&select.words, &[], slots).map_or(u64::MAX, |at| at as u64)
}

/// The packet has taken more rounds of loops than it may.
pub(super) unsafe extern "C" fn out_of_fuel(run: *mut Run<'_>, _slots: *mut Words) {
    // SAFETY: as above.
    unsafe { (*(*run).packet).fault = Some(DropReason::Loop) }
}
