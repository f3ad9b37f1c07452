//! Coordinators: a client's identity at all servers, and its seats.
//!
//! A client claims seats when it has more transactions under way than before, and keeps them for later ones. Where no seat is free it takes
//! those of dead coordinators. If a log is open in one of these, its transaction is recovered first: no other client may ever want its items.
//! Recoveries have [spare seats](SPARE_SEATS), so they do not wait for one another.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;

use arrayvec::ArrayVec;
use fatbtree_remote_memory::{ConnectionId, GlobalAddress, Lane, Writer, mix, word_at};
use fatbtree_verbs::{MAX_BATCH, Verbs};

use super::plan::Plan;
use super::recover::Job;
use super::{Keep, Left, Tables};
use crate::checks::Check;
use crate::error::DtxError;
use crate::layout::{ERA, LOAD, MAX_SERVERS, STATE};
use crate::seat::{Member, ROSTER, Roster, Seat, transaction_number, write_roster};
use crate::word::Word;

/// A client's sessions with all servers of the tables, and the era of each. When a session or an era ends, so does the identity: its
/// transactions are settled under the next one.
#[derive(Debug)]
pub(super) struct Identity {
    writers: ArrayVec<(u16, Writer), MAX_SERVERS>,
    /// Servers, by position, that were seen to have all of their items in this session.
    whole: Cell<u32>,
    /// Era of each of these, from the same READ. So an era was read before the first transaction of the identity began.
    eras: [Cell<u64>; MAX_SERVERS],
    /// Name of the bulk load whose items these have.
    load: Cell<u64>,
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

    /// Notes that a server has all of its items, unless these are of another bulk load than the other servers'. Says which.
    pub(super) fn set_whole(&self, position: usize, era: u64, load: u64) -> bool {
        let is_same = self.whole.get() == 0 || self.load.get() == load || !Check::OneLoad.on();
        if is_same {
            self.whole.set(self.whole.get() | 1 << position);
            self.eras[position].set(era);
            self.load.set(load);
        }
        is_same
    }

    /// Name of the bulk load whose items the servers have that are whole.
    pub(super) fn load(&self) -> u64 {
        self.load.get()
    }

    /// Servers, by position, that have all of their items as far as is known.
    pub(super) fn whole(&self) -> u32 {
        self.whole.get()
    }

    /// Era of a server in which the identity's transactions must log.
    pub(super) fn era(&self, position: usize) -> u64 {
        self.eras[position].get()
    }
}

/// Seats on all servers, for one transaction at a time.
#[derive(Clone, Debug)]
pub(super) struct Coordinator {
    pub(super) identity: Rc<Identity>,
    pub(super) roster: Rc<Roster>,
    pub(super) lane: Lane,
    /// Number of the last transaction; no other one of this client has it.
    pub(super) sequence: u64,
    /// Whether its seats are for recoveries only.
    pub(super) is_spare: bool,
}

/// Result of an attempt to claim seats on all servers.
enum Claims {
    All(Coordinator),
    /// This server has none left. Its seats of dead coordinators have these open logs.
    None(u16, Vec<Roster>),
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
        let eras = std::array::from_fn(|_| Cell::new(0));
        let identity = Rc::new(Identity { writers, whole: Cell::new(0), eras, load: Cell::new(0) });
        let former = self.state.borrow_mut().identity.replace(Rc::clone(&identity));
        if let Some(former) = former {
            self.give_up_seats(&former);
        }
        Ok(identity)
    }

    /// Ends an identity, unless it has ended.
    pub(super) fn renounce(&self, identity: &Rc<Identity>) {
        let mut state = self.state.borrow_mut();
        if state.identity.as_ref().is_some_and(|present| Rc::ptr_eq(present, identity)) {
            state.identity = None;
            drop(state);
            self.give_up_seats(identity);
        }
    }

    /// Leaves the seats of an identity that has ended to be given up.
    fn give_up_seats(&self, identity: &Rc<Identity>) {
        let mut state = self.state.borrow_mut();
        let (idle, kept) = state.idle.drain(..).partition(|idle| Rc::ptr_eq(&idle.identity, identity));
        state.idle = kept;
        drop(state);
        for coordinator in Vec::<Coordinator>::into_iter(idle) {
            self.leave(Left { coordinator: Some((coordinator, false)), ..Left::default() });
        }
    }

    /// Seats for a transaction: ones that were used before, or new ones.
    pub(super) async fn coordinator(&self, identity: &Rc<Identity>) -> Result<Coordinator, DtxError> {
        let began = self.memory.reactor().now();
        for attempts in 0.. {
            if let Some(idle) = self.idle_of(identity) {
                return Ok(idle);
            }
            let (server, logs) = match self.claim_seats(identity, 0..self.shape.seats).await? {
                Claims::All(coordinator) => return Ok(coordinator),
                Claims::None(server, logs) => (server, logs),
            };
            let waited = self.memory.reactor().now() - began;
            if logs.is_empty() || waited > self.memory.config().patience || !Check::SeatsAgain.on() {
                return Err(DtxError::NoSeat(server));
            }
            let lane = self.memory.take_lane();
            for roster in logs {
                self.recover(Job::of(roster, lane.apart())).await?;
            }
            // Another client may recover them; or their coordinator lives elsewhere, and settles them itself.
            if attempts > 0 {
                self.memory.pause(attempts).await;
            }
        }
        unreachable!("it ends when time has passed")
    }

    /// Seats for a recovery. `None` if there are none at the moment.
    pub(super) async fn resolver(&self, identity: &Rc<Identity>) -> Result<Option<Coordinator>, DtxError> {
        if let Some(idle) = self.idle_of(identity) {
            return Ok(Some(idle));
        }
        match self.claim_seats(identity, self.shape.seats..self.shape.all_seats()).await? {
            Claims::All(coordinator) => Ok(Some(coordinator)),
            Claims::None(..) => Ok(None),
        }
    }

    fn idle_of(&self, identity: &Rc<Identity>) -> Option<Coordinator> {
        let mut state = self.state.borrow_mut();
        let at = state.idle.iter().rposition(|idle| Rc::ptr_eq(&idle.identity, identity))?;
        Some(state.idle.swap_remove(at))
    }

    /// Claims seats with numbers in this range on all servers. What was claimed before it fails, or is dropped, is given up again.
    async fn claim_seats(&self, identity: &Rc<Identity>, numbers: Range<u16>) -> Result<Claims, DtxError> {
        let coordinator = Coordinator {
            identity: Rc::clone(identity),
            roster: Rc::default(),
            lane: self.memory.take_lane(),
            sequence: 0,
            is_spare: numbers.start > 0,
        };
        let left = Left { coordinator: Some((coordinator, false)), ..Left::default() };
        let mut kept = Keep { tables: self, left: Some(left) };
        let mut plan = self.take_plan();
        for position in 0..self.shape.server_count() {
            let Some((coordinator, _)) = kept.left.as_mut().and_then(|left| left.coordinator.as_mut()) else {
                return Err(DtxError::Broke);
            };
            if let Err(logs) = self.claim_seat(coordinator, position, &numbers, &mut plan).await? {
                if let Some(left) = &mut kept.left
                    && self.take_back(left).await.is_ok()
                {
                    kept.left = None;
                }
                return Ok(Claims::None(self.shape.server(position), logs));
            }
        }
        let Some((coordinator, _)) = kept.left.as_mut().and_then(|left| left.coordinator.as_mut()) else {
            return Err(DtxError::Broke);
        };
        plan.clear();
        for (position, member) in coordinator.roster.iter().enumerate() {
            let at = self.seat_at(position, member.seat);
            plan.write(at.behind(ROSTER), |data| write_roster(data, member.word(), &coordinator.roster));
        }
        self.carry_out(identity, &coordinator.lane, &mut plan).await?;
        self.keep_plan(plan);
        let coordinator = kept.left.take().and_then(|left| left.coordinator);
        coordinator.map(|(coordinator, _)| Claims::All(coordinator)).ok_or(DtxError::Broke)
    }

    /// Claims a seat on the next server: a free one, or one whose coordinator is dead and has no transaction there. Otherwise returns the
    /// open logs of dead coordinators.
    async fn claim_seat(
        &self,
        claims: &mut Coordinator,
        position: usize,
        numbers: &Range<u16>,
        plan: &mut Plan,
    ) -> Result<Result<(), Vec<Roster>>, DtxError> {
        let (identity, lane) = (Rc::clone(&claims.identity), &claims.lane.apart());
        let owner = identity.writer(self.shape.server(position)).owner;
        let count = numbers.len() as u64;
        let first = (mix(owner.session.0 ^ u64::from(lane.number())) % count) as u16;
        let mut all =
            numbers.clone().map(|number| (number - numbers.start + first) % count as u16 + numbers.start);
        let mut taken = Vec::new();
        loop {
            let some: ArrayVec<u16, MAX_BATCH> = all.by_ref().take(MAX_BATCH).collect();
            if some.is_empty() {
                break;
            }
            plan.clear();
            for &seat in &some {
                plan.read(self.seat_at(position, seat), 8);
            }
            self.carry_out(&identity, lane, plan).await?;
            let words: ArrayVec<u64, MAX_BATCH> =
                (0..some.len()).map(|step| word_at(plan.bytes(step), 0)).collect();
            for (&seat, found) in some.iter().zip(words) {
                let member = Member { owner, seat };
                if found != 0 {
                    taken.push((member, found));
                } else if self.swap_claim(claims, position, member, 0, plan).await? {
                    return Ok(Ok(()));
                }
            }
        }
        let mut logs = Vec::new();
        for (member, found) in taken {
            let Some(word) = Word::of(found) else { continue };
            if self.is_alive_at(position, word, lane).await? {
                continue;
            }
            let seat = self.read_seat(&identity, position, member.seat, lane, plan).await?;
            match seat.roster.filter(|_| seat.log.is_some() && Check::OpenSeat.on()) {
                Some((_, roster)) => logs.push(roster),
                // From now on nothing of its coordinator is written here. If another one has claimed it, the claim has changed.
                None if self.swap_claim(claims, position, member, found, plan).await? => return Ok(Ok(())),
                None => {}
            }
        }
        Ok(Err(logs))
    }

    /// Replaces the claim of a seat. Says whether it was as expected.
    async fn swap_claim(
        &self,
        claims: &mut Coordinator,
        position: usize,
        member: Member,
        from: u64,
        plan: &mut Plan,
    ) -> Result<bool, DtxError> {
        if !self.state.borrow_mut().seats.insert((position, member.seat)) {
            return Ok(false);
        }
        Rc::make_mut(&mut claims.roster).push(member);
        plan.clear();
        let swap = plan.swap(self.seat_at(position, member.seat), from, member.word().raw());
        self.carry_out(&claims.identity, &claims.lane, plan).await?;
        if plan.found(swap) == Some(from) {
            return Ok(true);
        }
        Rc::make_mut(&mut claims.roster).pop();
        self.state.borrow_mut().seats.remove(&(position, member.seat));
        Ok(false)
    }

    /// Takes back what a coordinator has left: its locks, and its seats, if they cannot be used again. `left` stays as it was if that fails.
    pub(super) async fn take_back(&self, left: &mut Left) -> Result<(), DtxError> {
        let Some((coordinator, is_usable)) = &mut left.coordinator else { return Ok(()) };
        let identity = self.identity().await?;
        *is_usable &= Rc::ptr_eq(&identity, &coordinator.identity) && !coordinator.is_spare;
        let mut plan = self.take_plan();
        for lock in &left.locks {
            let position = self.shape.position(lock.server()).unwrap_or(0);
            plan.swap(*lock, coordinator.word(position).raw(), 0);
        }
        if !*is_usable {
            for (position, member) in coordinator.roster.iter().enumerate() {
                plan.swap(self.seat_at(position, member.seat), member.word().raw(), 0);
            }
        }
        if !plan.is_empty() {
            // On its own lane: what it has posted comes before.
            self.carry_out(&identity, &coordinator.lane, &mut plan).await?;
        }
        self.keep_plan(plan);
        match left.coordinator.take() {
            Some((coordinator, true)) => self.put_back(coordinator),
            Some((coordinator, false)) => {
                let mut state = self.state.borrow_mut();
                for (position, member) in coordinator.roster.iter().enumerate() {
                    state.seats.remove(&(position, member.seat));
                }
            }
            None => {}
        }
        left.locks.clear();
        Ok(())
    }

    /// Reads a seat.
    pub(super) async fn read_seat(
        &self,
        identity: &Identity,
        position: usize,
        seat: u16,
        lane: &Lane,
        plan: &mut Plan,
    ) -> Result<Seat, DtxError> {
        plan.clear();
        let read = plan.read(self.seat_at(position, seat), self.shape.seat_layout().bytes());
        self.carry_out(identity, lane, plan).await?;
        Ok(Seat::parse(plan.bytes(read), &self.shape))
    }

    /// Whether the session of a word lasts at the word's server. Once it does not, nothing that the coordinator has posted is written
    /// there.
    pub(super) async fn is_alive_at(
        &self,
        position: usize,
        word: Word,
        lane: &Lane,
    ) -> Result<bool, DtxError> {
        let session = self.memory.session_of(lane, self.shape.server(position), word.owner()).await?;
        Ok(session.is_some_and(|session| word.is_of(session)))
    }

    /// Address of a seat.
    pub(super) fn seat_at(&self, position: usize, seat: u16) -> GlobalAddress {
        GlobalAddress::new(self.shape.server(position), self.shape.seat(seat))
    }

    /// Address of a server's state.
    pub(super) fn state_at(&self, position: usize) -> GlobalAddress {
        GlobalAddress::new(self.shape.server(position), STATE)
    }

    /// Address of the word that names a server's bulk load.
    pub(super) fn load_at(&self, position: usize) -> GlobalAddress {
        GlobalAddress::new(self.shape.server(position), LOAD)
    }

    /// Address of a server's era.
    pub(super) fn era_at(&self, position: usize) -> GlobalAddress {
        GlobalAddress::new(self.shape.server(position), ERA)
    }
}
