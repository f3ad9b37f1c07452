//! Coordinators: a client's identity at all servers, and its seats.

use std::cell::Cell;
use std::rc::Rc;

use arrayvec::ArrayVec;
use fatbtree_remote::{ConnectionId, GlobalAddress, Writer, mix, word_at};
use fatbtree_verbs::{MAX_BATCH, Verbs};

use super::plan::Plan;
use super::{Left, Tables};
use crate::error::DtxError;
use crate::layout::{MAX_SERVERS, STATE, WHOLE};
use crate::seat::{Member, ROSTER, Roster, Seat, transaction_number, write_roster};
use crate::word::Word;

/// A client's sessions with all servers of the tables. When one of them ends, so does the identity: its transactions are settled under the
/// next one.
#[derive(Debug)]
pub(super) struct Identity {
    writers: ArrayVec<(u16, Writer), MAX_SERVERS>,
    /// Servers, by position, that were seen to have all of their items in this session.
    whole: Cell<u32>,
}

impl Identity {
    /// Credentials for a server of the tables.
    pub(super) fn writer(&self, server: u16) -> Writer {
        let at = self.writers.iter().find(|(of, _)| *of == server);
        at.expect("plans have addresses of the tables' servers only").1
    }

    /// Whether a server has all of its items, as far as is known.
    pub(super) fn is_whole(&self, position: usize) -> bool {
        self.whole.get() >> position & 1 == 1
    }

    pub(super) fn set_whole(&self, position: usize) {
        self.whole.set(self.whole.get() | 1 << position);
    }
}

/// Seats on all servers, for one transaction at a time.
#[derive(Clone, Debug)]
pub(super) struct Coordinator {
    pub(super) identity: Rc<Identity>,
    pub(super) roster: Rc<Roster>,
    pub(super) lane: u8,
    /// Number of the last transaction.
    pub(super) sequence: u64,
}

impl Coordinator {
    /// Number of the present transaction.
    pub(super) fn transaction(&self) -> u64 {
        transaction_number(&self.roster, self.sequence)
    }

    /// The word of its locks on a server.
    pub(super) fn word(&self, position: usize) -> Word {
        self.roster[position].word()
    }
}

impl<V: Verbs> Tables<V> {
    /// The client's present identity, when it has a session with each server.
    pub(super) async fn identity(&self) -> Result<Rc<Identity>, DtxError> {
        let servers = (0..self.shape.server_count()).map(|position| self.shape.server(position));
        let is_present = |identity: &Rc<Identity>| {
            identity.writers.iter().all(|(server, writer)| {
                self.memory.writer(*server).is_ok_and(|present| present.owner == writer.owner)
            })
        };
        if let Some(identity) = self.state.borrow().identity.as_ref().filter(|found| is_present(found)) {
            return Ok(Rc::clone(identity));
        }
        for server in servers.clone() {
            self.memory.until_up(ConnectionId { server, lane: 0 }).await?;
        }
        // Another task of this client may have been quicker.
        if let Some(identity) = self.state.borrow().identity.as_ref().filter(|found| is_present(found)) {
            return Ok(Rc::clone(identity));
        }
        let mut writers = ArrayVec::new();
        for server in servers {
            writers.push((server, self.memory.writer(server)?));
        }
        let identity = Rc::new(Identity { writers, whole: Cell::new(0) });
        let mut state = self.state.borrow_mut();
        state.identity = Some(Rc::clone(&identity));
        let idle: Vec<_> = state.idle.drain(..).collect();
        state.left.extend(idle.into_iter().map(Left::unused));
        Ok(identity)
    }

    /// Seats for a transaction: ones that were used before, or new ones.
    pub(super) async fn coordinator(&self, identity: &Rc<Identity>) -> Result<Coordinator, DtxError> {
        {
            let mut state = self.state.borrow_mut();
            let is_of = |idle: &Coordinator| Rc::ptr_eq(&idle.identity, identity);
            if let Some(at) = state.idle.iter().rposition(is_of) {
                return Ok(state.idle.swap_remove(at));
            }
        }
        let lane = self.memory.take_lane();
        let mut plan = self.take_plan();
        let mut roster = Roster::new();
        for position in 0..self.shape.server_count() {
            roster.push(self.claim_seat(identity, position, lane, &mut plan).await?);
        }
        plan.clear();
        for (position, member) in roster.iter().enumerate() {
            let at = self.seat_at(position, member.seat);
            // What the seat's last coordinator has left is no transaction of this one.
            let log = at.behind(self.shape.seat_layout().log());
            plan.write(log, |data| data.extend_from_slice(&[0; 8]));
            plan.write(at.behind(ROSTER), |data| write_roster(data, member.word(), &roster));
        }
        self.carry_out(identity, lane, &mut plan, &mut 0).await?;
        self.keep_plan(plan);
        Ok(Coordinator { identity: Rc::clone(identity), roster: Rc::new(roster), lane, sequence: 0 })
    }

    /// Claims a seat on a server: a free one, or one whose coordinator is dead and has no transaction there.
    async fn claim_seat(
        &self,
        identity: &Rc<Identity>,
        position: usize,
        lane: u8,
        plan: &mut Plan,
    ) -> Result<Member, DtxError> {
        let server = self.shape.server(position);
        let owner = identity.writer(server).owner;
        let seats = self.shape.seats;
        let first = (mix(owner.session.0 ^ u64::from(lane)) % u64::from(seats)) as u16;
        let mut numbers = (0..seats).map(|number| (number + first) % seats);
        let mut taken = Vec::new();
        loop {
            let some: ArrayVec<u16, MAX_BATCH> = numbers.by_ref().take(MAX_BATCH).collect();
            if some.is_empty() {
                break;
            }
            plan.clear();
            for &seat in &some {
                plan.read(self.seat_at(position, seat), 8);
            }
            self.carry_out(identity, lane, plan, &mut 0).await?;
            let words: ArrayVec<u64, MAX_BATCH> =
                (0..some.len()).map(|step| word_at(plan.bytes(step), 0)).collect();
            for (&seat, found) in some.iter().zip(words) {
                let member = Member { owner, seat };
                if found != 0 {
                    taken.push((member, found));
                } else if self.swap_claim(identity, position, lane, member, 0, plan).await? {
                    return Ok(member);
                }
            }
        }
        for (member, found) in taken {
            let Some(word) = Word::of(found) else { continue };
            if self.is_alive_at(position, word, lane).await? {
                continue;
            }
            let seat = self.read_seat(identity, position, member.seat, lane, plan).await?;
            // A transaction is recovered by the clients that meet its locks.
            let is_unused = seat.claim == Some(word) && seat.log.is_none();
            if is_unused && self.swap_claim(identity, position, lane, member, found, plan).await? {
                return Ok(member);
            }
        }
        Err(DtxError::NoSeat(server))
    }

    /// Replaces the claim of a seat. Says whether it was as expected.
    async fn swap_claim(
        &self,
        identity: &Identity,
        position: usize,
        lane: u8,
        member: Member,
        from: u64,
        plan: &mut Plan,
    ) -> Result<bool, DtxError> {
        plan.clear();
        let swap = plan.swap(self.seat_at(position, member.seat), from, member.word().raw());
        self.carry_out(identity, lane, plan, &mut 0).await?;
        Ok(plan.found(swap) == Some(from))
    }

    /// Reads a seat.
    pub(super) async fn read_seat(
        &self,
        identity: &Identity,
        position: usize,
        seat: u16,
        lane: u8,
        plan: &mut Plan,
    ) -> Result<Seat, DtxError> {
        plan.clear();
        let read = plan.read(self.seat_at(position, seat), self.shape.seat_layout().bytes());
        self.carry_out(identity, lane, plan, &mut 0).await?;
        Ok(Seat::parse(plan.bytes(read), &self.shape))
    }

    /// Whether the session of a word lasts at the word's server. Once it does not, nothing that the coordinator has posted is written
    /// there.
    pub(super) async fn is_alive_at(&self, position: usize, word: Word, lane: u8) -> Result<bool, DtxError> {
        let session = self.memory.session_of(lane, self.shape.server(position), word.owner()).await?;
        Ok(session.is_some_and(|session| word.is_of(session)))
    }

    /// Servers, by position, that have all of their items.
    pub(super) async fn whole_servers(
        &self,
        identity: &Identity,
        lane: u8,
        plan: &mut Plan,
    ) -> Result<u32, DtxError> {
        // Other tasks of this client may learn it meanwhile.
        let unknown: ArrayVec<usize, MAX_SERVERS> =
            (0..self.shape.server_count()).filter(|&position| !identity.is_whole(position)).collect();
        plan.clear();
        for &position in &unknown {
            plan.read(self.state_at(position), 8);
        }
        if !plan.is_empty() {
            self.carry_out(identity, lane, plan, &mut 0).await?;
        }
        for (step, &position) in unknown.iter().enumerate() {
            if plan.bytes(step) == WHOLE.to_le_bytes() {
                identity.set_whole(position);
            }
        }
        Ok(identity.whole.get())
    }

    /// Address of a seat.
    pub(super) fn seat_at(&self, position: usize, seat: u16) -> GlobalAddress {
        GlobalAddress::new(self.shape.server(position), self.shape.seat(seat))
    }

    /// Address of a server's state.
    pub(super) fn state_at(&self, position: usize) -> GlobalAddress {
        GlobalAddress::new(self.shape.server(position), STATE)
    }
}
