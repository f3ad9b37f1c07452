//! Lookups under way: a fixed number of slots, used again and again, so that nothing is allocated per lookup.

use fatbtree_index::{Lookup, OpId};
use fatbtree_nic::time::Instant;

use super::config::{ClientConfig, Mode};

/// What a slot's lookup is about to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// No lookup here.
    Idle,
    /// A read is under way.
    Reading {
        /// It is an index read.
        index: bool,
    },
    /// Waits for a connection, then takes its first step.
    ToBegin,
    /// Waits for a connection, then posts the read that it could not post before.
    ToResume,
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) lookup: Lookup,
    pub(super) phase: Phase,
    pub(super) mode: Mode,
    pub(super) submitted: Instant,
    /// Times its connection broke.
    pub(super) breaks: u32,
    /// The connection that its read is under way on.
    pub(super) connection: usize,
    generation: u32,
}

/// All slots of a client.
#[derive(Debug)]
pub(super) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Slots {
    pub(super) fn new(config: &ClientConfig) -> Self {
        let slot = |_| Slot {
            lookup: Lookup::new(OpId(0), &config.tree).with_limits(config.limits),
            phase: Phase::Idle,
            mode: Mode::Ordinary,
            submitted: Instant::ZERO,
            breaks: 0,
            connection: 0,
            generation: 0,
        };
        Slots { slots: (0..config.depth).map(slot).collect(), free: (0..config.depth).rev().collect() }
    }

    /// Takes a free slot and names the operation in it: slot number below, generation above, so that the
    /// completion of an operation long gone is not taken for that of its successor.
    pub(super) fn take(&mut self) -> Option<(u32, OpId)> {
        let index = self.free.pop()?;
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        Some((index, OpId(u64::from(slot.generation) << 32 | u64::from(index))))
    }

    pub(super) fn release(&mut self, index: u32) {
        self.slots[index as usize].phase = Phase::Idle;
        self.free.push(index);
    }

    /// The slot with a read under way as this operation, if there is one.
    pub(super) fn reading(&self, op: OpId) -> Option<u32> {
        let index = op.0 as u32;
        let slot = self.slots.get(index as usize)?;
        (slot.lookup.op() == op && matches!(slot.phase, Phase::Reading { .. })).then_some(index)
    }

    pub(super) fn get(&self, index: u32) -> &Slot {
        &self.slots[index as usize]
    }

    pub(super) fn get_mut(&mut self, index: u32) -> &mut Slot {
        &mut self.slots[index as usize]
    }

    pub(super) fn free(&self) -> usize {
        self.free.len()
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }
}
