//! The run: the same keys both ways, in turns, every answer checked.

use anyhow::Result;
use fatbtree_client::workload::Workload;
use fatbtree_client::{ClosedLoop, LoopOptions};
use fatbtree_index::{Start, value};

use super::data_path::DataPath;

/// Lookups one way before it is the other's turn: short enough that both meet the same state of the machine.
pub(super) const TURN: u64 = 10_000;

/// What both ways did so far.
pub(super) struct Measured {
    pub(super) baseline: ClosedLoop,
    pub(super) in_network: ClosedLoop,
}

impl Measured {
    pub(super) fn new() -> Self {
        Self { baseline: ClosedLoop::new(), in_network: ClosedLoop::new() }
    }

    /// Draws keys for one turn and looks them up both ways, `depth` at a time; which goes first alternates. `seed` is that of
    /// the values.
    pub(super) fn turn(
        &mut self,
        path: &mut DataPath,
        workload: &mut Workload,
        lookups: u64,
        turn: u64,
        (depth, seed): (usize, u64),
    ) -> Result<()> {
        let keys = (0..lookups).map(|_| Ok(workload.next_operation()?.key)).collect::<Result<Vec<u64>>>()?;
        let mut ways = [(&mut self.baseline, Start::Root), (&mut self.in_network, Start::IndexRead)];
        if !turn.is_multiple_of(2) {
            ways.reverse();
        }
        for (way, start) in ways {
            let client = path.client().clone();
            let right = |key, bytes: &[u8]| value::check(key, seed, bytes);
            path.run(way.run(&client, keys.iter().copied(), LoopOptions { start, depth }, right))?;
        }
        Ok(())
    }
}
