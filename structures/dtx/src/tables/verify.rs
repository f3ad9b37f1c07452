//! A walk over all tables that checks them, while nothing changes them.

use std::collections::BTreeMap;

use fatbtree_remote_memory::{GlobalAddress, Op};
use fatbtree_verbs::Verbs;

use super::Tables;
use crate::error::DtxError;
use crate::item::{Head, ITEM_HEAD, Presence};
use crate::layout::{NODE_HEAD, Place};
use crate::seat::Seat;

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
        for (table, shape) in (0..).zip(self.shape.tables()) {
            for node in 0..shape.nodes {
                let place = Place { table, node, slot: None };
                let mut replicas = Vec::new();
                for rank in 0..self.shape.replicas() {
                    replicas.push(self.read_all(self.shape.address(place, rank), shape.node_bytes()).await?);
                }
                self.verify_item(place, (0, 0), &replicas, &mut verified)?;
                for slot in 0..shape.slots {
                    let at = NODE_HEAD as usize + usize::from(slot) * shape.item_bytes() as usize;
                    let place = Place { slot: Some(slot), ..place };
                    let value_bytes = self.shape.value_bytes(table);
                    let head = self.verify_item(place, (at, value_bytes), &replicas, &mut verified)?;
                    let (one, key) = (self.shape.address(place, 0), head.key);
                    verified.deleted += u64::from(head.presence == Presence::Deleted);
                    if head.presence != Presence::Present {
                        continue;
                    }
                    if self.shape.node_of(table, key) != node {
                        return Err(Fault::Misplaced { at: one, key });
                    }
                    if let Some(other) = keys.insert((table, key), one) {
                        return Err(Fault::Twice { key, one, other });
                    }
                    verified.keys += 1;
                    see(table, key, &replicas[0][at + ITEM_HEAD..][..value_bytes]);
                }
            }
        }
        for position in 0..self.shape.server_count() {
            for seat in 0..self.shape.all_seats() {
                let bytes =
                    self.read_all(self.seat_at(position, seat), self.shape.seat_layout().bytes()).await?;
                let seat = Seat::parse(&bytes, &self.shape);
                verified.seats += u64::from(seat.claim.is_some());
                verified.logs += u64::from(seat.log.is_some());
            }
        }
        Ok(verified)
    }

    /// Checks an item's replicas, at an offset of their nodes.
    fn verify_item(
        &self,
        place: Place,
        (at, value_bytes): (usize, usize),
        replicas: &[Vec<u8>],
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

    async fn read_all(&self, at: GlobalAddress, bytes: u64) -> Result<Vec<u8>, DtxError> {
        let mut op = self.memory.waiting_op(self.memory.take_lane());
        let read = async |op: &mut Op| Ok(self.memory.read(&op.lane, at, bytes as u32).await?.to_vec());
        self.memory.attempt(&mut op, read).await
    }
}
