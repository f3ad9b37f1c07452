//! Export: all pairs of a table in the order of its nodes, some at a time.
//!
//! ```text
//!   READ heads of the next nodes      version 0: no key ever had a slot there
//!   READ the other nodes              nothing locked or torn: the pairs of the node
//!   otherwise                         READ the node again, as a transaction that waits for the lock
//! ```
//!
//! A key has one node, and a node is taken from one READ. So no key is found twice, and one that is there all the time is found: it stays in
//! its slot. A locked item is not taken: what lies there may be undone. Pairs of different nodes are of different moments: an export is no
//! snapshot.

use std::collections::BTreeMap;

use bytes::Bytes;
use fatbtree_remote_memory::{Answer, Lane, Op, Portion, word_at};
use fatbtree_verbs::{MAX_BATCH, Verbs};

use super::plan::batch;
use super::{Tables, Verdict};
use crate::checks::Check;
use crate::error::{DtxError, Stop};
use crate::item::{Head, ITEM_HEAD, Presence};
use crate::layout::{NODE_HEAD, Place};

/// Nodes whose heads are read in one round trip.
const HEADS: u32 = 4 * MAX_BATCH as u32;

/// Bytes of a head that are read: lock and version.
const HEAD_BYTES: u64 = 16;

/// Items of a node that are present, by their keys.
type Found = BTreeMap<u64, Bytes>;

impl<V: Verbs> Tables<V> {
    /// Finds the next pairs of a table, about `most` of them, from node `from` on. The rest begins at another node. Values have all of the
    /// table's bytes.
    pub async fn export(&self, table: u8, from: u32, most: usize) -> Answer<Portion<Bytes, u32>, DtxError> {
        let Some(nodes) = self.shape.tables().get(usize::from(table)).map(|table| table.nodes) else {
            return Answer { result: Err(DtxError::NoTable(table)), round_trips: 0 };
        };
        let (mut pairs, mut next) = (Vec::new(), from);
        let mut op = self.memory.op(self.memory.take_lane(), 0, ());
        while next < nodes && pairs.len() < most.max(1) {
            let end = nodes.min(next.saturating_add(HEADS));
            let read = async |op: &mut Op| {
                let found = self.read_used(table, next..end, &op.lane).await;
                found.map_err(Stop::from)
            };
            let (found, unclear) = match self.memory.attempt(&mut op, read).await {
                Ok(read) => read,
                Err(error) => return Answer { result: Err(error), round_trips: op.lane.round_trips() },
            };
            pairs.extend(found);
            for node in unclear {
                let answer = self.run(async |tx| Ok(Verdict::Commit(tx.read_node(table, node).await?))).await;
                op.lane.add(answer.round_trips);
                match answer.result {
                    Ok(found) => pairs.extend(found),
                    Err(error) => return Answer { result: Err(error), round_trips: op.lane.round_trips() },
                }
            }
            next = end;
        }
        let rest = (next < nodes).then_some(next);
        Answer { result: Ok(Portion { pairs, rest }), round_trips: op.lane.round_trips() }
    }

    /// Reads the nodes of a range that have items. Returns their pairs, and nodes in which something is locked or torn.
    async fn read_used(
        &self,
        table: u8,
        nodes: std::ops::Range<u32>,
        lane: &Lane,
    ) -> Result<(Vec<(u64, Bytes)>, Vec<u32>), DtxError> {
        let identity = self.ready().await?;
        let mut plan = self.take_plan();
        let at = |node: u32| self.shape.address(Place { table, node, slot: None }, 0);
        for node in nodes.clone() {
            plan.read(at(node), HEAD_BYTES);
        }
        self.carry_out(&identity, lane, &mut plan).await?;
        let is_used = |step: &(usize, u32)| word_at(plan.bytes(step.0), 8) != 0;
        let used: Vec<u32> = (0..).zip(nodes).filter(is_used).map(|(_, node)| node).collect();
        let (mut pairs, mut unclear) = (Vec::new(), Vec::new());
        for some in used.chunks(batch(self.shape.tables()[usize::from(table)].node_bytes())) {
            plan.clear();
            for &node in some {
                plan.read(at(node), self.shape.tables()[usize::from(table)].node_bytes());
            }
            self.carry_out(&identity, lane, &mut plan).await?;
            for (step, &node) in some.iter().enumerate() {
                match self.pairs_of(table, node, plan.bytes(step)) {
                    Ok(found) => pairs.extend(found),
                    Err(_) => unclear.push(node),
                }
            }
        }
        self.keep_plan(plan);
        Ok((pairs, unclear))
    }

    /// Pairs of a node as it was read.
    ///
    /// # Errors
    /// [`DtxError::Conflict`] if something is locked or torn.
    pub(super) fn pairs_of(&self, table: u8, node: u32, bytes: &[u8]) -> Result<Found, DtxError> {
        let shape = self.shape.tables()[usize::from(table)];
        let value_bytes = usize::from(shape.value_bytes);
        let items = bytes.get(NODE_HEAD as usize..).unwrap_or_default();
        let mut found = Found::new();
        for (slot, item) in (0..shape.slots).zip(items.chunks_exact(shape.item_bytes() as usize)) {
            let head = Head::parse(item, value_bytes);
            // A slot that never had a key has none that was there all the time.
            let is_free = head.is_whole && head.presence == Presence::Free;
            let is_clear = head.is_whole && (head.lock == 0 || !Check::ExportWaits.on());
            if !is_free && !is_clear {
                let at = self.shape.address(Place { table, node, slot: Some(slot) }, 0);
                return Err(DtxError::Conflict { at, lock: head.lock });
            }
            if head.presence == Presence::Present {
                // A key that was put elsewhere in the node under the READ is there twice.
                found.insert(head.key, Bytes::copy_from_slice(&item[ITEM_HEAD..][..value_bytes]));
            }
        }
        Ok(found)
    }
}
