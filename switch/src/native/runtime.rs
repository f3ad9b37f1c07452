//! Functions that compiled code calls: everything that needs more than slots.
//!
//! All take the run and the slots as pointers, for compiled code has them both all the time and uses them between calls.
#![expect(unsafe_code, reason = "arguments come from compiled code, as pointers")]

use crate::code::Words;
use crate::machine::{Packet, State};
use crate::output::DropReason;
use crate::program::Code;
use crate::step::Flow;
use crate::table::contents::{Body, Contents};

/// State of a run beside the slots.
#[repr(C)]
pub(super) struct Run<'a> {
    pub(super) packet: *mut Packet,
    /// The frame, as compiled code reads it.
    pub(super) frame_start: *const u8,
    pub(super) frame_len: u64,
    /// The first of the state's tables.
    pub(super) tables: *mut Contents,
    code: &'a Code,
    state: *mut State,
    frame: &'a [u8],
}

impl<'a> Run<'a> {
    pub(super) fn new(packet: &'a mut Packet, code: &'a Code, state: &'a mut State, frame: &'a [u8]) -> Self {
        let tables = state.tables.as_mut_ptr();
        Run { packet, frame_start: frame.as_ptr(), frame_len: frame.len() as u64, tables, code, state, frame }
    }
}

/// Loads the parameters of a table's default action; returns its position + 1, or 0: there is none.
pub(super) unsafe extern "C" fn miss(run: *mut Run<'_>, slots: *mut Words, table: u64) -> u64 {
    // SAFETY: compiled code hands on the pointers that `Native` gave it, made of exclusive references that no other code
    // uses meanwhile.
    let (run, slots) = unsafe { (&*run, &mut *slots) };
    // SAFETY: the same holds for what the run points to.
    let (packet, state) = unsafe { (&mut *run.packet, &*run.state) };
    let table = table as usize;
    let start = packet.call(slots, &run.code.tables[table], &state.tables[table].default);
    start.map_or(0, |_| packet.action as u64 + 1)
}

/// The packet's row in a table of any kind, or null.
pub(super) unsafe extern "C" fn search(run: *mut Run<'_>, slots: *mut Words, table: u64) -> *mut u64 {
    // SAFETY: as in `miss`: pointers of exclusive references.
    let (run, slots) = unsafe { (&*run, &*slots) };
    // SAFETY: as in `miss`.
    let state = unsafe { &mut *run.state };
    let table = table as usize;
    row(state.tables[table].body.look_up(&run.code.tables[table].kind, slots))
}

fn row(found: Option<&mut [u64]>) -> *mut u64 {
    found.map_or(std::ptr::null_mut(), <[u64]>::as_mut_ptr)
}

/// Defines a function that finds the row of a key of this many words, the low one first, in an exact table; null if there is none.
macro_rules! find {
    ($name:ident, $($word:ident),+) => {
        pub(super) unsafe extern "C" fn $name(table: *mut Contents, $($word: u64),+) -> *mut u64 {
            // SAFETY: compiled code has the address from the tables that it was given, one of which it is; no other code uses them
            // meanwhile.
            match unsafe { &mut (*table).body } {
                Body::Exact(exact) => row(exact.row_of([$($word),+])),
                _ => std::ptr::null_mut(),
            }
        }
    };
}

find!(find_1, a);
find!(find_2, a, b);
find!(find_3, a, b, c);
find!(find_4, a, b, c, d);

/// Any other operation, by its position in the code. Returns a [`Flow`].
pub(super) unsafe extern "C" fn step(run: *mut Run<'_>, slots: *mut Words, pc: u64) -> u64 {
    // SAFETY: as in `miss`: pointers of exclusive references.
    let (run, slots) = unsafe { (&*run, &mut *slots) };
    // SAFETY: as in `miss`.
    let (packet, state) = unsafe { (&mut *run.packet, &mut *run.state) };
    match run.code.ops.get(pc as usize) {
        Some(op) => packet.step(slots, run.code, state, run.frame, op) as u64,
        None => Flow::Stop as u64,
    }
}

/// The case of a parser state's select that the packet is, or any larger number.
pub(super) unsafe extern "C" fn select(run: *mut Run<'_>, slots: *mut Words, select: u64) -> u64 {
    // SAFETY: as in `miss`: pointers of exclusive references.
    let (run, slots) = unsafe { (&*run, &*slots) };
    let select = &run.code.selects[select as usize];
    select.key.first_match(&select.words, &[], slots).map_or(u64::MAX, |at| at as u64)
}

/// Stops a packet that has taken more rounds of loops than it may.
pub(super) unsafe extern "C" fn out_of_fuel(run: *mut Run<'_>, _slots: *mut Words) -> u64 {
    // SAFETY: as in `miss`: pointers of exclusive references.
    unsafe { (*(*run).packet).fault = Some(DropReason::Loop) }
    Flow::Stop as u64
}
