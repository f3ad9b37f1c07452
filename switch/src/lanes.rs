//! Tables of one shape that follow each other, run side by side.
//!
//! P4 programs for switches repeat themselves: what a chip does in parallel, sixteen compares of one key with sixteen
//! pivots, is sixteen tables with sixteen actions in the program. One after the other they cost a dispatch for each
//! operation; as *lanes*, in which only the slots differ and always by the same step, each operation is one tight
//! loop over all of them.
//!
//! ```text
//! RowLanes   a row's entries  [action, params] [action, params] …   each operation over all lanes
//! BitTable   a small const table whose actions set bits of one field: looked up and done without a branch
//! ```

use crate::code::{Op, Pc, Slot, Words};
use crate::moves::evaluate;
use crate::table::KeyPart;

/// Look-ups of exact tables of one group whose entries lie side by side, in the row that the look-up before has found.
#[derive(Debug, Clone)]
pub(crate) struct RowLanes {
    pub(crate) group: u16,
    /// Where the first lane's entry begins in the row, and the words of an entry.
    pub(crate) offset: u16,
    pub(crate) words: u16,
    pub(crate) lanes: u16,
    /// The action that all lanes must have found, position in the table's list + 1.
    pub(crate) action: u16,
    /// Number of parameters, where the first lane's go, and the step to the next lane's.
    pub(crate) params: u16,
    pub(crate) param_base: Slot,
    pub(crate) param_step: Slot,
    /// The first lane's operations.
    pub(crate) body: Box<[Lane]>,
    /// Behind the last lane.
    pub(crate) to: Pc,
}

/// One operation in all lanes.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    pub(crate) op: Op,
    /// Slots of the first lane's result and operands, and the steps to the next lane's.
    pub(crate) at: [Slot; 3],
    pub(crate) step: [Slot; 3],
}

impl RowLanes {
    /// Runs all lanes on their entries; `false`, and nothing done, when a lane has another action or none.
    #[inline]
    pub(crate) fn run(&self, slots: &mut Words, row: &[u64]) -> bool {
        let entries = row.chunks_exact(usize::from(self.words));
        let usual = |entry: &[u64]| entry[0] == u64::from(self.action);
        if entries.len() != usize::from(self.lanes) || !entries.clone().all(usual) {
            return false;
        }
        let mut base = self.param_base;
        for entry in entries {
            for (at, &value) in entry[1..].iter().take(usize::from(self.params)).enumerate() {
                slots[usize::from(base.wrapping_add(at as u16))] = value;
            }
            base = base.wrapping_add(self.param_step);
        }
        for lane in &self.body {
            lane.run(slots, self.lanes);
        }
        true
    }
}

impl Lane {
    #[inline(always)]
    fn run(&self, slots: &mut Words, lanes: u16) {
        let (op, step) = (self.op, self.step);
        let mut at = self.at;
        macro_rules! over_all {
            () => {
                for _ in 0..lanes {
                    let [dst, a, b] = at;
                    slots[usize::from(dst)] = evaluate(&op, slots[usize::from(a)], slots[usize::from(b)]);
                    at = [dst.wrapping_add(step[0]), a.wrapping_add(step[1]), b.wrapping_add(step[2])];
                }
            };
        }
        // One arm each: the compiler then knows which operation the loop is for.
        match op {
            Op::Mov { .. } => over_all!(),
            Op::Slice { .. } => over_all!(),
            Op::SliceNot { .. } => over_all!(),
            Op::Swap { .. } => over_all!(),
            Op::Join { .. } => over_all!(),
            Op::XorSlices { .. } => over_all!(),
            Op::AddSlices { .. } => over_all!(),
            Op::SubSlices { .. } => over_all!(),
            _ => {}
        }
    }
}

/// Entries of a [`BitTable`]: more of them are looked up as any const table.
pub(crate) const BIT_TABLE_ENTRIES: usize = 4;

/// A const table with a key of one word, each of whose actions writes bits of the same field, or does nothing.
#[derive(Debug, Clone)]
pub(crate) struct BitTable {
    pub(crate) parts: Box<[KeyPart]>,
    /// Value and mask of each entry, best first; the rest match nothing.
    pub(crate) words: [(u64, u64); BIT_TABLE_ENTRIES],
    /// The field.
    pub(crate) dst: Slot,
    /// For each entry, and at the end for a miss.
    pub(crate) calls: [BitCall; BIT_TABLE_ENTRIES + 1],
}

/// `dst = dst & keep | (a ^ flip).rotate_right(rot) & mask`
#[derive(Debug, Clone, Copy)]
pub(crate) struct BitCall {
    /// Position of the action in the table's list; `usize::MAX`: no action.
    pub(crate) position: usize,
    pub(crate) keep: u64,
    pub(crate) a: Slot,
    pub(crate) rot: u8,
    pub(crate) flip: u64,
    pub(crate) mask: u64,
}

impl BitTable {
    /// What nothing matches.
    pub(crate) const NO_ENTRY: (u64, u64) = (1, 0);

    /// Looks up and runs what it finds; returns whether an entry matched, and the action's position.
    #[inline(always)]
    pub(crate) fn run(&self, slots: &mut Words) -> (bool, usize) {
        let mut word = 0;
        for part in &self.parts {
            word |= slots[usize::from(part.slot)] << (part.shift & 63);
        }
        let mut found = BIT_TABLE_ENTRIES;
        for (at, &(value, mask)) in self.words.iter().enumerate().rev() {
            found = if word & mask == value { at } else { found };
        }
        let call = &self.calls[found];
        let bits = (slots[usize::from(call.a)] ^ call.flip).rotate_right(call.rot.into()) & call.mask;
        let dst = &mut slots[usize::from(self.dst)];
        *dst = *dst & call.keep | bits;
        (found < BIT_TABLE_ENTRIES, call.position)
    }
}
