//! Recovery: a transaction whose coordinator cannot bring it to its end is committed or undone by another one.
//!
//! ```text
//!   a lock is in the way, for some attempts
//!     1   its owner lives at the lock's server?           wait
//!     2   no log on this server?                          CAS lock → 0
//!     3   its coordinator lives at another participant?   wait
//!     4   claim its seats, by CAS, in the servers' order; another living client has one?   wait
//!     5   READ its logs, and all replicas
//!           a log is closed, or a lock is not its own     nothing more is to be written
//!           all replicas are new                          it is committed
//!           else                                          WRITE back what is new
//!     6   CAS its locks → 0
//!     7   close its logs, and free its seats
//! ```
//!
//! **Fencing.** A server that ends a session destroys its queue pairs first. So nothing is written by a coordinator whose sessions with all
//! servers of its log have ended, and nothing by a client that recovered it before and died, too.
//!
//! **Step 2.** Data is written when the log of each participant is acknowledged. Here it is not, and never will be: nothing was written.
//!
//! **Step 5.** A transaction releases its first lock, or closes its first log, when nothing is left to be written: either all of its data is,
//! or none. So does a recovery.

use std::rc::Rc;

use arrayvec::ArrayVec;
use fatbtree_remote::GlobalAddress;
use fatbtree_verbs::Verbs;

use super::coordinator::{Coordinator, Identity};
use super::plan::Plan;
use super::{Left, Tables};
use crate::checks::Check;
use crate::error::DtxError;
use crate::item::{BODY, Head, next_version};
use crate::layout::{MAX_SERVERS, Shape};
use crate::seat::{Log, Roster, Seat, transaction_number};
use crate::word::Word;

/// What became of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Committed,
    /// It has changed nothing, and never will.
    Undone,
    /// Others have brought it to its end.
    Gone,
}

/// A transaction that is being recovered.
#[derive(Debug)]
pub(super) struct Job {
    /// Its coordinator.
    roster: Rc<Roster>,
    lane: u8,
    /// This client's coordinators that may have claimed its seats.
    resolvers: Vec<Coordinator>,
    /// Whether it is a transaction of this client.
    is_own: bool,
    /// Whether this client may have claimed one of its seats.
    has_claimed: bool,
}

impl Job {
    /// Recovery of a transaction of this client.
    pub(super) fn own(coordinator: &Coordinator) -> Self {
        // On its own lane: what the transaction has posted comes before.
        let Coordinator { roster, lane, .. } = coordinator;
        Self {
            roster: Rc::clone(roster),
            lane: *lane,
            resolvers: Vec::new(),
            is_own: true,
            has_claimed: false,
        }
    }

    /// Recovery of a transaction of another client.
    fn of(roster: Roster, lane: u8) -> Self {
        Self { roster: Rc::new(roster), lane, resolvers: Vec::new(), is_own: false, has_claimed: false }
    }

    /// Whether a claim is by the transaction itself, or by this client.
    fn is_free_to_claim(&self, position: usize, claim: Word) -> bool {
        self.roster[position].word() == claim
            || self.resolvers.iter().any(|resolver| resolver.word(position) == claim)
    }
}

/// Everything that a recovery has read.
struct Found {
    /// Seats of the transaction by position, of servers that have their items.
    seats: ArrayVec<Option<Seat>, MAX_SERVERS>,
    log: Log,
    /// Participants that have their items, a bit for each position.
    participants: u32,
}

/// Positions of servers with replicas of what a log has.
fn participants(shape: &Shape, log: &Log) -> u32 {
    log.entries.iter().fold(0, |all, before| {
        (0..shape.replicas()).fold(all, |all, rank| all | 1 << shape.replica(before.place, rank))
    })
}

fn positions(mask: u32) -> impl Iterator<Item = usize> + Clone {
    (0..MAX_SERVERS).filter(move |position| mask >> position & 1 == 1)
}

impl<V: Verbs> Tables<V> {
    /// Looks after a lock that is in the way. Brings its transaction to its end if its coordinator is dead.
    pub(super) async fn ask_after(&self, at: GlobalAddress, lock: u64) -> Result<(), DtxError> {
        let (Some(word), Some(position)) = (Word::of(lock), self.shape.position(at.server())) else {
            return Ok(());
        };
        if !Check::Recovery.on() {
            return Ok(());
        }
        let identity = self.identity().await?;
        let lane = self.memory.take_lane();
        if self.is_alive_at(position, word, lane).await? {
            return Ok(());
        }
        // From now on nothing of this coordinator is written here: what is not logged never will be.
        let mut plan = self.take_plan();
        let seat = self.read_seat(&identity, position, word.seat(), lane, &mut plan).await?;
        if let Some((_, roster)) = seat.roster.as_ref().filter(|_| seat.is_open_for(word)) {
            self.keep_plan(plan);
            return self.recover(roster.clone(), lane).await;
        }
        plan.clear();
        plan.swap(at, lock, 0);
        self.carry_out(&identity, lane, &mut plan, &mut 0).await?;
        self.keep_plan(plan);
        Ok(())
    }

    /// Recovers a logged transaction, if its coordinator is dead at all participants.
    pub(super) async fn recover(&self, roster: Roster, lane: u8) -> Result<(), DtxError> {
        let identity = self.identity().await?;
        let mut plan = self.take_plan();
        let job = Job::of(roster, lane);
        let whole = self.whole_servers(&identity, lane, &mut plan).await?;
        let Some(found) = self.read_logs(&identity, &job, whole, lane, &mut plan).await? else {
            return Ok(());
        };
        if Check::AllDead.on() && self.is_alive_at_any(&job.roster, found.participants, lane).await? {
            return Ok(());
        }
        self.keep_plan(plan);
        self.settle(Left { job: Some(job), ..Left::default() }).await.map(drop)
    }

    /// Whether a coordinator lives at one of these servers.
    async fn is_alive_at_any(&self, roster: &Roster, positions_: u32, lane: u8) -> Result<bool, DtxError> {
        for position in positions(positions_) {
            let owner = roster[position].owner;
            let session = self.memory.session_of(lane, self.shape.server(position), owner.number).await?;
            if session == Some(owner.session) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Settles what an ended transaction of this client has left. If that fails it stays left.
    pub(super) async fn settle(&self, left: Left) -> Result<Outcome, DtxError> {
        let mut kept = Keep { tables: self, left: Some(left) };
        let Some(left) = &mut kept.left else { return Ok(Outcome::Gone) };
        let mut outcome = Outcome::Undone;
        if let Some(job) = &mut left.job {
            outcome = self.bring_to_end(job).await?;
            let resolvers = std::mem::take(&mut job.resolvers);
            self.state.borrow_mut().left.extend(resolvers.into_iter().map(Left::unused));
            left.job = None;
        }
        let Some((coordinator, is_usable)) = &mut left.coordinator else {
            kept.left = None;
            return Ok(outcome);
        };
        let identity = self.identity().await?;
        *is_usable &= Rc::ptr_eq(&identity, &coordinator.identity);
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
            self.carry_out(&identity, coordinator.lane, &mut plan, &mut 0).await?;
        }
        self.keep_plan(plan);
        if let Some(Left { coordinator: Some((coordinator, true)), .. }) = kept.left.take() {
            self.state.borrow_mut().idle.push(coordinator);
        }
        Ok(outcome)
    }

    /// Brings a transaction to its end, whatever breaks meanwhile.
    async fn bring_to_end(&self, job: &mut Job) -> Result<Outcome, DtxError> {
        let began = self.memory.reactor().now();
        let mut attempts = 0;
        loop {
            match self.try_recover(job).await {
                Ok(Some(outcome)) => return Ok(outcome),
                // The other client brings it to its end.
                Ok(None) if !job.is_own && !job.has_claimed => return Ok(Outcome::Gone),
                Ok(None) | Err(DtxError::Broke)
                    if self.memory.reactor().now() - began <= self.memory.config().patience =>
                {
                    self.memory.pause(attempts).await;
                    attempts += 1;
                }
                Ok(None) | Err(DtxError::Broke) => return Err(DtxError::GaveUp { attempts }),
                Err(error) => return Err(error),
            }
        }
    }

    /// Tries once. `None`: another client recovers it, and lives.
    async fn try_recover(&self, job: &mut Job) -> Result<Option<Outcome>, DtxError> {
        let identity = self.identity().await?;
        let lane = job.lane;
        let is_of = |resolver: &&Coordinator| Rc::ptr_eq(&resolver.identity, &identity);
        if !job.resolvers.iter().any(|resolver| is_of(&resolver)) {
            job.resolvers.push(self.coordinator(&identity).await?);
        }
        let resolver = job.resolvers.iter().rfind(is_of).expect("one was just added").clone();
        let mut plan = self.take_plan();
        let whole = self.whole_servers(&identity, lane, &mut plan).await?;
        let Some(mut found) = self.read_logs(&identity, job, whole, lane, &mut plan).await? else {
            return Ok(Some(if job.is_own { self.outcome_unlogged(job).await? } else { Outcome::Gone }));
        };
        let (mut is_final, mut is_gone) = (false, false);
        for position in positions(found.participants) {
            match self.claim(job, &resolver, &mut found, position, &mut plan).await? {
                Claimed::Yes => {}
                Claimed::Gone => (is_final, is_gone) = (true, true),
                Claimed::Busy => return Ok(None),
            }
        }
        is_final |= !self.are_open(&resolver, job, &mut found, &mut plan).await?;
        // Replicas of all items, and the locks of their primaries.
        plan.clear();
        let mut reads = Vec::new();
        for before in &found.log.entries {
            let value = self.shape.value_bytes_at(before.place);
            let mut survivors = 0;
            for rank in 0..self.shape.replicas() {
                let position = self.shape.replica(before.place, rank);
                if found.participants >> position & 1 == 1 {
                    survivors += 1;
                    let at = self.shape.address(before.place, rank);
                    reads.push((*before, rank, plan.read(at, (crate::item::ITEM_HEAD + value) as u64)));
                }
            }
            if survivors == 0 {
                return Err(DtxError::Lost(self.shape.server(self.shape.replica(before.place, 0))));
            }
        }
        self.carry_out(&identity, lane, &mut plan, &mut 0).await?;
        let mut replicas = Vec::with_capacity(reads.len());
        let mut locks = Vec::new();
        for (before, rank, read) in reads {
            let head = Head::parse(plan.bytes(read), self.shape.value_bytes_at(before.place));
            if rank == 0 {
                let word = job.roster[self.shape.replica(before.place, 0)].word().raw();
                if head.lock == word {
                    locks.push((self.shape.address(before.place, 0), word));
                } else {
                    is_final = true;
                }
            }
            let new = next_version(before.version, transaction_number(&job.roster, found.log.sequence));
            let is_new = head.is_whole && head.version == new;
            let is_old = head.is_whole && head.version == before.version;
            // Another transaction has changed it since: the lock was released, on a server that has lost its memory.
            is_final |= head.is_whole && !is_new && !is_old;
            replicas.push((before, rank, is_new, is_old));
        }
        let is_committed = replicas.iter().all(|(.., is_new, _)| *is_new);
        if !is_final && !is_committed && Check::Undo.on() {
            plan.clear();
            for (before, body) in found.log.bodies(&self.shape) {
                let touched = replicas.iter().filter(|(of, _, _, is_old)| of == before && !is_old);
                for (_, rank, ..) in touched {
                    let at = self.shape.address(before.place, *rank).behind(BODY as u64);
                    plan.write(at, |data| data.extend_from_slice(body));
                }
            }
            if !plan.is_empty() {
                self.carry_out(&identity, lane, &mut plan, &mut 0).await?;
            }
        }
        plan.clear();
        for (at, word) in locks {
            plan.swap(at, word, 0);
        }
        if !plan.is_empty() {
            self.carry_out(&identity, lane, &mut plan, &mut 0).await?;
        }
        plan.clear();
        for position in positions(found.participants) {
            // A seat that another coordinator has by now is not touched.
            let word = job.roster[position].word();
            if found.seats[position].as_ref().is_some_and(|seat| seat.is_of(word)) {
                let at = self.seat_at(position, word.seat());
                plan.write(at.behind(self.shape.seat_layout().log()), |data| data.extend_from_slice(&[0; 8]));
                plan.swap(at, resolver.word(position).raw(), 0);
            }
        }
        if !plan.is_empty() {
            self.carry_out(&identity, lane, &mut plan, &mut 0).await?;
        }
        self.keep_plan(plan);
        Ok(Some(match (is_final, is_committed) {
            (true, _) if is_gone => Outcome::Gone,
            (true, _) => Outcome::Undone,
            (false, true) => Outcome::Committed,
            (false, false) => Outcome::Undone,
        }))
    }

    /// Outcome of an own transaction no log of which is open: nothing was logged, or others have recovered it.
    async fn outcome_unlogged(&self, job: &Job) -> Result<Outcome, DtxError> {
        let identity = self.identity().await?;
        let mut plan = self.take_plan();
        let whole = self.whole_servers(&identity, job.lane, &mut plan).await?;
        for position in positions(whole).take(self.shape.server_count()) {
            let word = job.roster[position].word();
            let seat = self.read_seat(&identity, position, word.seat(), job.lane, &mut plan).await?;
            if !seat.is_of(word) || seat.claim.is_none_or(|claim| !job.is_free_to_claim(position, claim)) {
                return Ok(Outcome::Gone);
            }
        }
        self.keep_plan(plan);
        Ok(Outcome::Undone)
    }

    /// Reads the seats of a transaction on all servers that have their items. `None`: no log is open there.
    async fn read_logs(
        &self,
        identity: &Identity,
        job: &Job,
        whole: u32,
        lane: u8,
        plan: &mut Plan,
    ) -> Result<Option<Found>, DtxError> {
        let mut seats = ArrayVec::new();
        let mut log = None;
        plan.clear();
        let reads: ArrayVec<Option<usize>, MAX_SERVERS> = (0..self.shape.server_count())
            .map(|position| {
                let at = self.seat_at(position, job.roster[position].seat);
                (whole >> position & 1 == 1).then(|| plan.read(at, self.shape.seat_layout().bytes()))
            })
            .collect();
        if !plan.is_empty() {
            self.carry_out(identity, lane, plan, &mut 0).await?;
        }
        for (position, read) in reads.into_iter().enumerate() {
            let seat = read.map(|read| Seat::parse(plan.bytes(read), &self.shape));
            if let Some(seat) = seat.as_ref().filter(|seat| seat.is_open_for(job.roster[position].word())) {
                log = log.or_else(|| seat.log.clone());
            }
            seats.push(seat);
        }
        let Some(log) = log else { return Ok(None) };
        let participants = participants(&self.shape, &log) & whole;
        Ok(Some(Found { seats, log, participants }))
    }

    /// Claims a seat of a transaction for its recovery.
    async fn claim(
        &self,
        job: &mut Job,
        resolver: &Coordinator,
        found: &mut Found,
        position: usize,
        plan: &mut Plan,
    ) -> Result<Claimed, DtxError> {
        let (word, mine) = (job.roster[position].word(), resolver.word(position));
        if !Check::Claim.on() {
            return Ok(Claimed::Yes);
        }
        loop {
            let Some(seat) = &found.seats[position] else { return Ok(Claimed::Gone) };
            let claim = match seat.claim {
                Some(claim) if seat.is_of(word) => claim,
                _ => return Ok(Claimed::Gone),
            };
            // A coordinator that claims it as its own seat finds it free: the transaction has ended.
            if claim.seat() == word.seat() && claim != word {
                return Ok(Claimed::Gone);
            }
            if claim == mine {
                return Ok(Claimed::Yes);
            }
            if !job.is_free_to_claim(position, claim) {
                let of = self.read_seat(&resolver.identity, position, claim.seat(), job.lane, plan).await?;
                let lives = match of.roster.filter(|(of, _)| *of == claim) {
                    Some((_, roster)) => self.is_alive_at_any(&roster, found.participants, job.lane).await?,
                    // Its seat was claimed by another one, which has seen that it is dead; or its sessions here have ended.
                    None => self.is_alive_at(position, claim, job.lane).await?,
                };
                if lives {
                    return Ok(Claimed::Busy);
                }
            }
            plan.clear();
            job.has_claimed = true;
            let swap = plan.swap(self.seat_at(position, word.seat()), claim.raw(), mine.raw());
            self.carry_out(&resolver.identity, job.lane, plan, &mut 0).await?;
            if plan.found(swap) == Some(claim.raw()) {
                return Ok(Claimed::Yes);
            }
            found.seats[position] =
                Some(self.read_seat(&resolver.identity, position, word.seat(), job.lane, plan).await?);
        }
    }

    /// Whether the transaction's log is open at each participant, now that its seats are claimed.
    async fn are_open(
        &self,
        resolver: &Coordinator,
        job: &Job,
        found: &mut Found,
        plan: &mut Plan,
    ) -> Result<bool, DtxError> {
        let mut all = true;
        for position in positions(found.participants) {
            let word = job.roster[position].word();
            let seat = self.read_seat(&resolver.identity, position, word.seat(), job.lane, plan).await?;
            all &= seat.is_open_for(word);
            found.seats[position] = Some(seat);
        }
        Ok(all)
    }
}

/// Result of a claim.
enum Claimed {
    Yes,
    /// The transaction has ended there.
    Gone,
    /// Another client recovers it, and lives.
    Busy,
}

/// Something that is left again if it is not settled.
struct Keep<'t, V: Verbs> {
    tables: &'t Tables<V>,
    left: Option<Left>,
}

impl<V: Verbs> Drop for Keep<'_, V> {
    fn drop(&mut self) {
        if let Some(left) = self.left.take() {
            self.tables.state.borrow_mut().left.push(left);
        }
    }
}
