//! Steps: what is read, until it is whole.

use std::ops::Range;

use fatbtree_remote_memory::record::{RECORD_HEAD, is_record, read_hinted};
use fatbtree_remote_memory::{GlobalAddress, ReadBytes, Trouble};
use fatbtree_verbs::{Buffer, IndexTarget, Verbs};

use super::decide::Decision;
use super::{Descent, Reason, Step};
use crate::lookup::Place;
use crate::node::{Node, NodeFault};
use crate::operation::Start;

/// Result of an index read of a lookup.
pub(crate) enum HintResult {
    /// The record of the key.
    Record { record: Buffer, value: Range<usize> },
    /// Something else, to be taken for a node.
    Node(Buffer),
    /// The key's bucket, which says where its value is.
    Bucket { bytes: Buffer, place: Place },
    /// The beginning of a node.
    At { address: GlobalAddress, level: u8 },
    /// A record that does not count.
    Stale,
}

impl<V: Verbs> Descent<'_, V> {
    /// Walks to the node at `level` that is responsible for the key. `first` is the node at the start, if it was read already. `arrive` looks at
    /// it, while it can still be read again if it turns out to be torn. Returns the node's bytes and what `arrive` made of them.
    #[inline]
    pub(crate) async fn descend<T>(
        &mut self,
        start: Start,
        mut first: Option<Buffer>,
        level: u8,
        mut arrive: impl FnMut(&Node<'_>, &[u8]) -> Result<T, NodeFault>,
    ) -> Result<(Buffer, T), Reason> {
        let mut step = self.first_step(start);
        loop {
            let (bytes, arrived) = self.take_step(&mut step, first.take(), level, &mut arrive).await?;
            if let Some(what) = arrived {
                return Ok((bytes, what));
            }
        }
    }

    /// Walks until it is known where the node at `level` is that is responsible for the key: the last read of
    /// [`descend`](Self::descend) is left to the caller, which locks the node with it. The node may have been
    /// split meanwhile.
    pub(crate) async fn locate(&mut self, start: Start, level: u8) -> Result<GlobalAddress, Reason> {
        let mut step = self.first_step(start);
        loop {
            if let Step::Node { address, level: found } = step
                && found == level
            {
                return Ok(address);
            }
            let mut arrive = |node: &Node<'_>, _: &[u8]| Ok(node.header().address);
            if let Some(address) = self.take_step(&mut step, None, level, &mut arrive).await?.1 {
                return Ok(address);
            }
        }
    }

    pub(super) fn first_step(&mut self, start: Start) -> Step {
        self.siblings = 0;
        self.pointed_from = None;
        self.by_switches = start == Start::IndexRead;
        match start {
            Start::Root | Start::Cached | Start::CachedOrIndexRead => {
                Step::Node { address: self.partition.root, level: self.partition.root_level }
            }
            Start::IndexRead => Step::Index,
            Start::Node { address, level } => Step::Node { address, level },
        }
    }

    /// Lets the switches lead to the key, be it to its record. For lookups where values are out of line.
    #[inline]
    pub(crate) async fn ask_switches(&mut self) -> Result<HintResult, Reason> {
        let len = self.tree().max_node_bytes();
        let bytes = self.pool.index_read(self.path(), self.key, len, IndexTarget::NodeOrRecord).await?;
        Ok(self.take_hinted(bytes))
    }

    /// Takes what an index read has brought for the record of the key, if it is one.
    #[inline]
    pub(super) fn take_hinted(&mut self, bytes: Buffer) -> HintResult {
        if !is_record(&bytes) {
            return HintResult::Node(bytes);
        }
        let value = read_hinted(&bytes, self.key).map(|value| RECORD_HEAD..RECORD_HEAD + value.len());
        let Ok(value) = value else {
            // Whatever is wrong with it, also if it was written meanwhile: the way by the leaf is as long as asking once more.
            self.pool.count(|stats| {
                stats.stale_hints += 1;
                stats.stale_records += 1;
            });
            self.pool.note_moved(self.key);
            return HintResult::Stale;
        };
        self.trips.landed_on_record = true;
        self.pool.count(|stats| stats.records += 1);
        HintResult::Record { record: bytes, value }
    }

    /// Lets the switches lead to a node, to be given to [`descend`](Self::descend).
    pub(crate) async fn ask_for_node(&mut self) -> Result<Buffer, Reason> {
        Ok(self.read_step(Step::Index).await?)
    }

    /// Reads a node until it is whole, and decides: what `arrive` made of it, or nothing and the next step.
    #[inline]
    pub(super) async fn take_step<T>(
        &mut self,
        step: &mut Step,
        mut first: Option<Buffer>,
        level: u8,
        arrive: &mut impl FnMut(&Node<'_>, &[u8]) -> Result<T, NodeFault>,
    ) -> Result<(Buffer, Option<T>), Reason> {
        let mut torn = 0;
        let mut asked = None;
        loop {
            let bytes = match first.take() {
                Some(bytes) => bytes,
                None => self.read_step(*step).await?,
            };
            match self.decide(*step, level, &bytes, asked, arrive) {
                Ok(Decision::Arrived(what)) => return Ok((bytes, Some(what))),
                Ok(Decision::Go(next)) => {
                    *step = next;
                    return Ok((bytes, None));
                }
                Ok(Decision::Ask) => asked = self.ask(step, &bytes, &mut torn).await?,
                Err(fault) => self.pause_if_torn(fault, &mut torn).await?,
            }
        }
    }

    /// Reads bytes at an address until `check` accepts them.
    #[inline]
    pub(crate) async fn read_checked<T>(
        &mut self,
        address: GlobalAddress,
        len: u32,
        check: impl Fn(&[u8]) -> Result<T, NodeFault>,
    ) -> Result<(ReadBytes, T), Reason> {
        let mut torn = 0;
        loop {
            let bytes = self.pool.read_long(&self.lane, address, len.into()).await?;
            match check(&bytes) {
                Ok(what) => return Ok((bytes, what)),
                Err(fault) => self.pause_if_torn(fault, &mut torn).await?,
            }
        }
    }

    #[inline]
    async fn read_step(&self, step: Step) -> Result<Buffer, Trouble> {
        let tree = self.tree();
        match step {
            Step::Index => {
                // Where there are neither records nor buckets, all that switches know are nodes.
                let shape = tree.leaf_shape();
                let target = match shape.has_records() || shape.has_buckets() {
                    false => IndexTarget::NodeOrRecord,
                    true => IndexTarget::Node,
                };
                self.pool.index_read(self.path(), self.key, tree.max_node_bytes(), target).await
            }
            Step::Node { address, level } => {
                self.pool.read(&self.lane, address, tree.node_bytes(level)).await
            }
        }
    }
}
