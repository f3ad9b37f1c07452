//! A walk over all tables that checks them, while nothing changes them.

use std::collections::BTreeMap;

use arrayvec::ArrayVec;
use fatbtree_remote_memory::GlobalAddress;
use fatbtree_verbs::Verbs;

use super::Tables;
use super::plan::batch;
use crate::error::DtxError;
use crate::item::{Head, ITEM_HEAD, Presence};
use crate::layout::{MAX_BACKUPS, NODE_HEAD, Place};
use crate::seat::Seat;

/// Maximum number of replicas of an item.
const MAX_REPLICAS: usize = MAX_BACKUPS as usize + 1;

/// What a walk has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verified {
    /// Keys.
    pub keys: u64,
    /// Slots of deleted keys, which other keys may take.
    pub deleted: u64,
    /// Locks that are taken. A transaction that nothing waits for may be left unfinished by a dead client.
    pub locks: u64,
    /// Logs that are open.
    pub logs: u64,
    /// Seats that are claimed.
    pub seats: u64,
}

/// A fault in the tables.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Something cannot be read.
    #[error(transparent)]
    Tables(#[from] DtxError),
    /// An item is a mixture.
    #[error("item at {0}: its checksum is wrong, and its lock is free")]
    Torn(GlobalAddress),
    /// Replicas differ.
    #[error("item at {one} and its replica at {other} differ, and the lock is free")]
    Differ {
        /// The primary.
        one: GlobalAddress,
        /// A backup.
        other: GlobalAddress,
    },
    /// A key is in the wrong node.
    #[error("item at {at}: key {key:#x} belongs to another node")]
    Misplaced {
        /// The item.
        at: GlobalAddress,
        /// The key.
        key: u64,
    },
    /// A key is there twice.
    #[error("items at {one} and {other} both hold key {key:#x}")]
    Twice {
        /// The key.
        key: u64,
        /// One of them.
        one: GlobalAddress,
        /// The other one.
        other: GlobalAddress,
    },
}

impl<V: Verbs> Tables<V> {
    /// Walks over all nodes, replicas and seats. Nothing may change the tables meanwhile. Every item's value is shown to `see`, with its
    /// table and key.
    ///
    /// # Errors
    /// The first fault.
    pub async fn verify(&self, mut see: impl FnMut(u8, u64, &[u8])) -> Result<Verified, Fault> {
        let mut verified = Verified::default();
        let mut keys = BTreeMap::new();
        let mut plan = self.take_plan();
        let replicas = self.shape.replicas();
        for (table, shape) in (0..).zip(self.shape.tables()) {
            let count = batch(shape.node_bytes() * replicas as u64);
            for first in (0..shape.nodes).step_by(count) {
                let some = first..shape.nodes.min(first.saturating_add(count as u32));
                plan.clear();
                for node in some.clone() {
                    let place = Place { table, node, slot: None };
                    for rank in 0..replicas {
                        plan.read(self.shape.address(place, rank), shape.node_bytes());
                    }
                }
                self.read_patiently(&mut plan).await?;
                for (at, node) in some.enumerate() {
                    let bytes: ArrayVec<&[u8], MAX_REPLICAS> =
                        (0..replicas).map(|rank| plan.bytes(at * replicas + rank)).collect();
                    let place = Place { table, node, slot: None };
                    self.verify_node(place, &bytes, &mut keys, &mut verified, &mut see)?;
                }
            }
        }
        for position in 0..self.shape.server_count() {
            let all: Vec<u16> = (0..self.shape.all_seats()).collect();
            for some in all.chunks(batch(self.shape.seat_layout().bytes())) {
                plan.clear();
                for &seat in some {
                    plan.read(self.seat_at(position, seat), self.shape.seat_layout().bytes());
                }
                self.read_patiently(&mut plan).await?;
                for step in 0..some.len() {
                    let seat = Seat::parse(plan.bytes(step), &self.shape);
                    verified.seats += u64::from(seat.claim.is_some());
                    verified.logs += u64::from(seat.log.is_some());
                }
            }
        }
        self.keep_plan(plan);
        Ok(verified)
    }

    /// Checks a node's replicas, and notes its keys.
    fn verify_node(
        &self,
        node: Place,
        replicas: &[&[u8]],
        keys: &mut BTreeMap<(u8, u64), GlobalAddress>,
        verified: &mut Verified,
        see: &mut impl FnMut(u8, u64, &[u8]),
    ) -> Result<(), Fault> {
        let table = node.table;
        let shape = self.shape.tables()[usize::from(table)];
        if replicas.iter().any(|bytes| bytes.len() as u64 != shape.node_bytes()) {
            return Err(DtxError::Broke.into());
        }
        self.verify_item(node, (0, 0), replicas, verified)?;
        for slot in 0..shape.slots {
            let at = NODE_HEAD as usize + usize::from(slot) * shape.item_bytes() as usize;
            let place = Place { slot: Some(slot), ..node };
            let value_bytes = self.shape.value_bytes(table);
            let head = self.verify_item(place, (at, value_bytes), replicas, verified)?;
            let (one, key) = (self.shape.address(place, 0), head.key);
            verified.deleted += u64::from(head.presence == Presence::Deleted);
            if head.presence != Presence::Present {
                continue;
            }
            if self.shape.node_of(table, key) != node.node {
                return Err(Fault::Misplaced { at: one, key });
            }
            if let Some(other) = keys.insert((table, key), one) {
                return Err(Fault::Twice { key, one, other });
            }
            verified.keys += 1;
            see(table, key, &replicas[0][at + ITEM_HEAD..][..value_bytes]);
        }
        Ok(())
    }

    /// Checks an item's replicas, at an offset of their nodes.
    fn verify_item(
        &self,
        place: Place,
        (at, value_bytes): (usize, usize),
        replicas: &[&[u8]],
        verified: &mut Verified,
    ) -> Result<Head, Fault> {
        let item = |rank: usize| &replicas[rank][at..][..ITEM_HEAD + value_bytes];
        let head = Head::parse(item(0), value_bytes);
        if head.lock != 0 {
            verified.locks += 1;
            return Ok(head);
        }
        let one = self.shape.address(place, 0);
        if !head.is_whole {
            return Err(Fault::Torn(one));
        }
        for rank in 1..self.shape.replicas() {
            let other = self.shape.address(place, rank);
            let found = Head { lock: 0, ..Head::parse(item(rank), value_bytes) };
            let is_same = head.presence == Presence::Free || item(0)[ITEM_HEAD..] == item(rank)[ITEM_HEAD..];
            if found != head || !is_same {
                return Err(Fault::Differ { one, other });
            }
        }
        Ok(head)
    }
}
