//! A made trace in the format of the public Twitter traces, as the operations of a figure.

use std::cell::Cell;
use std::collections::BTreeSet;

use fatbtree_workload::trace::{Maker, Trace};
use fatbtree_workload::{OperationKind, Operations as _};

/// Lines of a trace for each of its keys.
const LINES: u64 = 4;

/// Operations of a trace, in their order, for all clients together; when they have come to the end, they begin anew.
pub(super) struct Replay {
    /// Key, and whether it is written.
    steps: Vec<(u64, bool)>,
    next: Cell<usize>,
    /// Keys that are there at first, ascending.
    pub(super) loaded: Vec<u64>,
}

impl Replay {
    /// A trace over so many names with a share of `get`; the others are `set`.
    ///
    /// # Errors
    /// When it cannot be made or read.
    pub(super) fn make(keys: u64, gets: f64, seed: u64) -> Result<Self, String> {
        let trace = made(&Maker { operations: LINES * keys, keys, gets, ..Maker::default() }, seed)?;
        let loaded = trace.preloaded().map(|(key, _)| key).collect();
        let steps = operations(trace).map(|(key, kind)| (key, kind != OperationKind::Read)).collect();
        Ok(Self { steps, next: Cell::new(0), loaded })
    }

    /// The next operation: its key, and whether it is written.
    pub(super) fn next(&self) -> (u64, bool) {
        let at = self.next.get();
        self.next.set((at + 1) % self.steps.len());
        self.steps[at]
    }
}

/// Keys of a trace over so many names, each once: those of names that came.
///
/// # Errors
/// When it cannot be made or read.
pub(super) fn trace_keys(keys: u64, seed: u64) -> Result<Vec<u64>, String> {
    let trace = made(&Maker { operations: LINES * keys, keys, theta: 0.2, ..Maker::default() }, seed)?;
    let keys: BTreeSet<u64> = operations(trace).map(|(key, _)| key).collect();
    Ok(keys.into_iter().collect())
}

fn made(maker: &Maker, seed: u64) -> Result<Trace, String> {
    let mut lines = Vec::new();
    maker.write(seed, &mut lines).map_err(|error| error.to_string())?;
    Trace::read("made", &lines[..], usize::MAX).map_err(|error| error.to_string())
}

fn operations(mut trace: Trace) -> impl Iterator<Item = (u64, OperationKind)> {
    let all = trace.len();
    (0..all).map_while(move |_| trace.next_operation().ok().map(|operation| (operation.key, operation.kind)))
}
