//! Filling a server that has lost its memory from the others.
//!
//! One client fills a server, under a lock of that server. Nothing is written there by others meanwhile: a transaction begins when all
//! servers have their items, and one that began before has no session with the server that was started anew.
//!
//! First all transactions that have logged something for this server are brought to their end, as far as the other replicas tell. A
//! transaction that logs later cannot commit: its log must be acknowledged by this server, too. Then each node is copied from its primary,
//! or from its first backup if the primary is what was lost. An item of a primary that is locked is waited for.

use std::rc::Rc;

use fatbtree_remote::{ConnectionId, GlobalAddress, HEADER_BYTES, LockGuard, Part};
use fatbtree_verbs::{MAX_BATCH, Verbs};

use super::Tables;
use super::coordinator::Identity;
use super::plan::Plan;
use crate::checks::Check;
use crate::error::DtxError;
use crate::item::Head;
use crate::layout::{NODE_HEAD, Place, WHOLE};
use crate::seat::Seat;

impl<V: Verbs> Tables<V> {
    /// Fills a server, unless another client does. Afterwards it is to be asked again whether it is whole.
    pub(super) async fn fill(&self, identity: &Rc<Identity>, position: usize) -> Result<(), DtxError> {
        let (lane, mut trips) = (self.memory.take_lane(), 0);
        let at = self.state_at(position);
        let taken =
            LockGuard::try_lock_and_read(&self.memory, lane, at, HEADER_BYTES as u32, &mut trips).await?;
        let (guard, line) = match taken {
            Some(taken) => taken,
            // Waits for the client that fills it, and takes over if that dies.
            None => match LockGuard::lock_and_read(&self.memory, lane, at, HEADER_BYTES as u32, &mut trips)
                .await
            {
                Ok(taken) => taken,
                Err(fatbtree_remote::LockError::Locked) => return Ok(()),
                Err(error) => return Err(error.into()),
            },
        };
        let is_present = guard.writer().owner == identity.writer(at.server()).owner;
        if line[..8] != WHOLE.to_le_bytes() && is_present {
            let mut plan = self.take_plan();
            let whole = self.whole_servers(identity, lane, &mut plan).await?;
            if Check::ResolvedFirst.on() {
                self.resolve_all(identity, position, whole, lane, &mut plan).await?;
            }
            self.copy_all(identity, position, whole, lane, &mut plan).await?;
            plan.clear();
            plan.write(at, |data| data.extend_from_slice(&WHOLE.to_le_bytes()));
            self.carry_out(identity, lane, &mut plan, &mut trips).await?;
            self.keep_plan(plan);
        }
        Ok(guard.release(&mut trips).await?)
    }

    /// Brings all transactions to their end that have logged something for a server.
    async fn resolve_all(
        &self,
        identity: &Rc<Identity>,
        lost: usize,
        whole: u32,
        lane: u8,
        plan: &mut Plan,
    ) -> Result<(), DtxError> {
        for position in (0..self.shape.server_count()).filter(|position| whole >> position & 1 == 1) {
            for first in (0..self.shape.seats).step_by(MAX_BATCH) {
                let seats = first..self.shape.seats.min(first + MAX_BATCH as u16);
                plan.clear();
                for seat in seats.clone() {
                    plan.read(self.seat_at(position, seat).behind(self.shape.seat_layout().log()), 8);
                }
                self.carry_out(identity, lane, plan, &mut 0).await?;
                let is_open = |step: usize| plan.bytes(step).iter().any(|&byte| byte != 0);
                let open: Vec<u16> =
                    seats.zip(0..).filter(|(_, step)| is_open(*step)).map(|(seat, _)| seat).collect();
                for seat in open {
                    self.resolve_seat(identity, (position, seat), lost, lane, plan).await?;
                }
            }
        }
        Ok(())
    }

    /// Waits until the log of a seat has nothing for a server, and recovers it if its coordinator is dead.
    async fn resolve_seat(
        &self,
        identity: &Rc<Identity>,
        (position, number): (usize, u16),
        lost: usize,
        lane: u8,
        plan: &mut Plan,
    ) -> Result<(), DtxError> {
        let began = self.memory.reactor().now();
        for attempt in 0.. {
            let seat = self.read_seat(identity, position, number, lane, plan).await?;
            let concerns = |seat: &Seat| {
                let log = seat.log.as_ref();
                log.is_some_and(|log| {
                    log.entries.iter().any(|entry| self.shape.rank_on(entry.place, lost).is_some())
                })
            };
            let Some((_, roster)) = seat.roster.clone().filter(|_| concerns(&seat)) else { return Ok(()) };
            self.recover(roster, lane).await?;
            if self.memory.reactor().now() - began > self.memory.config().patience {
                return Err(DtxError::GaveUp { attempts: attempt });
            }
            self.memory.pause(attempt).await;
        }
        Ok(())
    }

    /// Copies all nodes of which a server has a replica.
    async fn copy_all(
        &self,
        identity: &Rc<Identity>,
        lost: usize,
        whole: u32,
        lane: u8,
        plan: &mut Plan,
    ) -> Result<(), DtxError> {
        for (table, shape) in (0..).zip(self.shape.tables()) {
            for node in 0..shape.nodes {
                let place = Place { table, node, slot: None };
                let Some(rank) = self.shape.rank_on(place, lost) else { continue };
                let is_source = |&of: &usize| whole >> self.shape.replica(place, of) & 1 == 1;
                let source = (0..self.shape.replicas()).find(is_source);
                let source = source.ok_or(DtxError::Lost(self.shape.server(lost)))?;
                let to = self.shape.address(place, rank);
                self.copy(identity, place, source, to, lane, plan).await?;
            }
        }
        Ok(())
    }

    /// Copies a node from the replica of a rank, when none of its items is locked.
    async fn copy(
        &self,
        identity: &Rc<Identity>,
        place: Place,
        source: usize,
        to: GlobalAddress,
        lane: u8,
        plan: &mut Plan,
    ) -> Result<(), DtxError> {
        let table = self.shape.tables()[usize::from(place.table)];
        let from = self.shape.address(place, source);
        let began = self.memory.reactor().now();
        for attempt in 0.. {
            plan.clear();
            plan.read(from, table.node_bytes());
            self.carry_out(identity, lane, plan, &mut 0).await?;
            let bytes = plan.bytes(0).to_vec();
            let items = bytes.get(NODE_HEAD as usize..).unwrap_or_default();
            let value_bytes = self.shape.value_bytes(place.table);
            let items = items.chunks_exact(table.item_bytes() as usize).take(table.slots.into());
            let items = (0..).zip(items).map(|(slot, item)| (Some(slot), Head::parse(item, value_bytes)));
            let mut all = std::iter::once((None, Head::parse(&bytes, 0))).chain(items);
            let Some((slot, busy)) = all.find(|(_, head)| head.lock != 0 || !head.is_whole) else {
                let id = ConnectionId { server: to.server(), lane };
                let parts = [Part { at: to, bytes: &bytes }];
                let writer = identity.writer(to.server());
                self.memory.write_chain(id, &writer, &parts, &[]).await?;
                return Ok(());
            };
            let at = self.shape.address(Place { slot, ..place }, source);
            self.ask_after(at, busy.lock).await?;
            if self.memory.reactor().now() - began > self.memory.config().patience {
                return Err(DtxError::GaveUp { attempts: attempt });
            }
            self.memory.pause(attempt).await;
        }
        Ok(())
    }
}
