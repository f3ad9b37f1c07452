//! Replaces reads of a variable by reads of the slot that it was made of.
//!
//! p4c copies every field that is hashed, and every slice that a table matches, into a variable of its own. Where the
//! variable still is a slice of a slot that has not changed since, code that reads it can read that slot: the variable is
//! then written for nothing, and [dead writes](super::tidy) go.

use std::collections::{BTreeMap, BTreeSet};

use crate::code::{Op, Pc, Slot};
use crate::program::Code;

/// A slot's value, rotated right and masked.
#[derive(Debug, Clone, Copy)]
struct View {
    slot: Slot,
    rot: u8,
    mask: u64,
}

impl View {
    fn whole(slot: Slot) -> Self {
        View { slot, rot: 0, mask: u64::MAX }
    }

    fn is_whole(self) -> bool {
        (self.rot, self.mask) == (0, u64::MAX)
    }

    /// This view's value, rotated and masked once more.
    fn view(self, rot: u8, mask: u64) -> Self {
        View { slot: self.slot, rot: (self.rot + rot) % 64, mask: self.mask.rotate_right(rot.into()) & mask }
    }
}

/// Knowledge at one point of the code: variables that are views of other slots.
#[derive(Debug, Default)]
struct Known(BTreeMap<Slot, View>);

impl Known {
    fn of(&self, slot: Slot) -> View {
        self.0.get(&slot).copied().unwrap_or(View::whole(slot))
    }

    fn sliced(&self, slot: &mut Slot, rot: &mut u8, mask: &mut u64) {
        let View { slot: original, rot: by, mask: of } = self.of(*slot).view(*rot, *mask);
        (*slot, *rot, *mask) = (original, by, of);
    }

    fn written(&mut self, slot: Slot) {
        self.0.remove(&slot);
        self.0.retain(|_, view| view.slot != slot);
    }

    /// Makes an operation read originals.
    fn rewrite(&self, op: &mut Op) {
        match op {
            Op::Mov { dst, a } => {
                let View { slot, rot, mask } = self.of(*a);
                *op = match (rot, mask) {
                    (0, u64::MAX) => Op::Mov { dst: *dst, a: slot },
                    _ => Op::Slice { dst: *dst, a: slot, rot, mask },
                };
            }
            Op::Slice { a, rot, mask, .. } => self.sliced(a, rot, mask),
            Op::Xor { dst, a, b, mask } => {
                let (mut a_rot, mut b_rot, mut a_mask, mut b_mask) = (0, 0, *mask, *mask);
                self.sliced(a, &mut a_rot, &mut a_mask);
                self.sliced(b, &mut b_rot, &mut b_mask);
                *op = Op::XorSlices { dst: *dst, a: *a, b: *b, a_rot, b_rot, a_mask, b_mask };
            }
            Op::XorSlices { a, b, a_rot, b_rot, a_mask, b_mask, .. }
            | Op::AddSlices { a, b, a_rot, b_rot, a_mask, b_mask, .. }
            | Op::SubSlices { a, b, a_rot, b_rot, a_mask, b_mask, .. } => {
                self.sliced(a, a_rot, a_mask);
                self.sliced(b, b_rot, b_mask);
            }
            Op::Join { a, b, a_rot, b_rot, b_not, a_mask, b_mask, .. } => {
                self.sliced(a, a_rot, a_mask);
                if !*b_not {
                    self.sliced(b, b_rot, b_mask);
                }
            }
            _ => {}
        }
    }

    /// Knowledge after an operation.
    fn follow(&mut self, op: Op) {
        let mut written = op;
        match (op, written.dst().copied()) {
            (_, Some(dst)) => self.written(dst),
            (Op::Touch { .. } | Op::Count { .. } | Op::WriteRegister { .. }, None) => {}
            // Jumps write nothing; what is jumped to is looked at anew.
            (op, None) if op.is_jump() => {}
            _ => self.0.clear(),
        }
        match op {
            Op::Mov { dst, a } if dst != a => _ = self.0.insert(dst, View::whole(a)),
            Op::Slice { dst, a, rot, mask } if dst != a => {
                _ = self.0.insert(dst, View { slot: a, rot, mask })
            }
            _ => {}
        }
    }
}

/// Makes operations, calculations and const tables read originals. `targets` are the positions that something jumps to.
pub(super) fn read_originals(code: &mut Code, targets: &BTreeSet<Pc>) {
    // Those used in one place only: what is known there is all that matters.
    let mut calculations = vec![0; code.calculations.len()];
    let mut tables = vec![0; code.const_tables.len()];
    for op in &code.ops {
        match *op {
            Op::Hash { calculation, .. } | Op::Calculate { calculation, .. } => {
                calculations[usize::from(calculation)] += 1;
            }
            Op::ApplyConst { table } => tables[usize::from(table)] += 1,
            _ => {}
        }
    }
    let mut known = Known::default();
    for at in 0..code.ops.len() {
        if targets.contains(&(at as Pc)) {
            known = Known::default();
        }
        known.rewrite(&mut code.ops[at]);
        match code.ops[at] {
            Op::Hash { calculation, .. } | Op::Calculate { calculation, .. } => {
                let calculation = usize::from(calculation);
                if calculations[calculation] == 1 {
                    for (&slot, view) in known.0.iter().filter(|(_, view)| view.is_whole()) {
                        code.calculations[calculation].replace(slot, view.slot);
                    }
                }
            }
            Op::ApplyConst { table } if tables[usize::from(table)] == 1 => {
                for part in &mut code.const_tables[usize::from(table)].parts {
                    known.sliced(&mut part.slot, &mut part.rot, &mut part.mask);
                }
            }
            _ => {}
        }
        known.follow(code.ops[at]);
    }
}
