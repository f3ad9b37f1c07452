//! Recovery: a transaction whose coordinator cannot bring it to its end is committed or undone by another one.
//!
//! ```text
//!   a lock is in the way, for some attempts; or a seat is wanted, or a server is filled
//!     1   its owner lives at the lock's server?           wait
//!     2   no log on this server?                          CAS lock → 0
//!     3   its coordinator lives at another participant?   wait
//!     4   claim its seats, by CAS, in the servers' order; another living client has one?   wait
//!     5   READ all replicas, and the locks at the primaries
//!           a lock is not its own, or another version     it has ended before: nothing is written
//!           all replicas are new                          it is committed
//!           else                                          WRITE back what is not old
//!     6   CAS its locks → 0
//!     7   close its logs, and free its seats, where they are claimed
//! ```
//!
//! **Fencing.** A server that ends a session destroys its queue pairs first. So nothing is written by a coordinator whose sessions with all
//! servers of its log have ended, and nothing by a client that recovered it before and died, too.
//!
//! **Step 2.** Data is written when the log of each participant is acknowledged. Here it is not, and never will be: nothing was written.
//!
//! **Step 4.** A recovery that has the claims of all seats is alone. A seat that the transaction has no more tells that it ended there: all
//! its locks were released before. A server may be filled between the steps of two recoveries, so the first seat would not do.
//!
//! **Step 5.** A transaction releases its first lock, or closes its first log, when nothing is left to be written: either all of its data is
//! written, or none. So does a recovery. While its locks are all its own, no other transaction has touched its items, and the replicas tell
//! its outcome. A log that is closed, or never came, tells nothing more.
//!
//! **Outcome.** A transaction that has ended before is committed if one replica is new: nothing was left to be written, and others write
//! other versions. It was undone if one is old, as before. If none is either, the outcome cannot be known any more: it is *gone*.
//!
//! Two rules matter only where several faults meet within microseconds, and no test or seed has missed one of them: the claims of all seats (a
//! recovery stands still between its READ and its WRITEs, and the first server loses its memory), and that only claimed logs are closed (a
//! seat has a new owner, which has logged, while the former one's transaction is recovered).
//!
//! **A server that has lost its memory** has lost the locks of its primaries. Then an item that is a mixture may be another transaction's, which
//! came later. Only the client that fills the server recovers transactions of dead coordinators meanwhile, the latest first, and
//! transactions of living ones end by themselves: see [`fill`](super::fill).

use std::rc::Rc;

use arrayvec::ArrayVec;
use fatbtree_remote_memory::{CommonError, GlobalAddress, Lane, Op};
use fatbtree_verbs::Verbs;

use super::coordinator::{Coordinator, Identity};
use super::plan::Plan;
use super::{Keep, Left, Tables};
use crate::checks::Check;
use crate::error::{DtxError, Stop};
use crate::item::{BODY, Head, ITEM_HEAD, next_version};
use crate::layout::{MAX_SERVERS, Place, Shape};
use crate::seat::{Before, Log, Roster, Seat, transaction_number};
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

/// Reason for a recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reason {
    /// It is this client's transaction.
    Own,
    /// Its lock or seat is in the way.
    Met,
    /// A server is filled.
    Fill,
}

/// A transaction that is being recovered.
#[derive(Debug)]
pub(super) struct Job {
    /// Its coordinator.
    roster: Rc<Roster>,
    lane: Lane,
    reason: Reason,
    /// This client's coordinators that may have claimed its seats.
    resolvers: Vec<Coordinator>,
    /// Whether this client may have claimed one of its seats.
    has_claimed: bool,
    /// The log of an own transaction, or one that was read.
    log: Option<Log>,
    /// Its outcome, once it is decided: nothing more of its data is written.
    outcome: Option<Outcome>,
}

impl Job {
    /// Recovery of a transaction of this client, whose outcome may be known.
    pub(super) fn own(coordinator: &Coordinator, log: Log, outcome: Option<Outcome>) -> Self {
        // On its own lane: what the transaction has posted comes before.
        let Coordinator { roster, lane, .. } = coordinator;
        let (roster, lane) = (Rc::clone(roster), lane.apart());
        Self { reason: Reason::Own, log: Some(log), outcome, ..Self::new(roster, lane) }
    }

    fn new(roster: Rc<Roster>, lane: Lane) -> Self {
        let (reason, resolvers) = (Reason::Met, Vec::new());
        Self { roster, lane, reason, resolvers, has_claimed: false, log: None, outcome: None }
    }

    /// Recovery of a transaction of another client.
    pub(super) fn of(roster: Roster, lane: Lane) -> Self {
        Self::new(Rc::new(roster), lane)
    }

    /// The same for a client that fills a server.
    pub(super) fn for_fill(roster: Roster, lane: Lane) -> Self {
        Self { reason: Reason::Fill, ..Self::of(roster, lane) }
    }

    /// Whether a claim is by the transaction itself, or by this client.
    fn is_free_to_claim(&self, position: usize, claim: Word) -> bool {
        self.roster[position].word() == claim || self.is_mine(position, claim)
    }

    fn is_mine(&self, position: usize, claim: Word) -> bool {
        self.resolvers.iter().any(|resolver| resolver.word(position) == claim)
    }
}

/// A replica as a recovery has found it.
struct Replica {
    place: Place,
    rank: usize,
    head: Head,
    /// Whether it is as before the transaction, and as afterwards.
    is_old: bool,
    is_new: bool,
}

/// Seats of a transaction by position. `None` where the server has lost its memory.
type Seats = ArrayVec<Option<Seat>, MAX_SERVERS>;

/// Positions of servers with replicas of what a log has.
pub(super) fn participants(shape: &Shape, log: &Log) -> u32 {
    log.entries.iter().fold(0, |all, before| {
        (0..shape.replicas()).fold(all, |all, rank| all | 1 << shape.replica(before.place, rank))
    })
}

/// Positions of a mask.
pub(super) fn positions(mask: u32) -> impl Iterator<Item = usize> + Clone {
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
        if self.is_alive_at(position, word, &lane).await? {
            return Ok(());
        }
        // From now on nothing of this coordinator is written here: what is not logged never will be.
        let mut plan = self.take_plan();
        let seat = self.read_seat(&identity, position, word.seat(), &lane, &mut plan).await?;
        if let Some((_, roster)) = seat.roster.as_ref().filter(|_| seat.is_open_for(word)) {
            self.keep_plan(plan);
            return self.recover(Job::of(roster.clone(), lane)).await;
        }
        plan.clear();
        plan.swap(at, lock, 0);
        self.carry_out(&identity, &lane, &mut plan).await?;
        self.keep_plan(plan);
        Ok(())
    }

    /// Recovers a logged transaction, if its coordinator is dead at all participants.
    pub(super) async fn recover(&self, mut job: Job) -> Result<(), DtxError> {
        let identity = self.identity().await?;
        let mut plan = self.take_plan();
        let whole = self.whole_servers(&identity, &job.lane, &mut plan).await?;
        self.read_logs(&identity, &mut job, whole, &mut plan).await?;
        self.keep_plan(plan);
        let Some(log) = &job.log else { return Ok(()) };
        let all = participants(&self.shape, log);
        if all & !whole != 0 && job.reason == Reason::Met && Check::FillerAlone.on() {
            return Ok(());
        }
        if Check::AllDead.on() && self.is_alive_at_any(&job.roster, all & whole, &job.lane).await? {
            return Ok(());
        }
        self.settle(Left { job: Some(Box::new(job)), ..Left::default() }).await.map(drop)
    }

    /// Whether a coordinator lives at one of these servers.
    pub(super) async fn is_alive_at_any(
        &self,
        roster: &Roster,
        servers: u32,
        lane: &Lane,
    ) -> Result<bool, DtxError> {
        let first = if Check::EachServer.on() { MAX_SERVERS } else { 1 };
        for position in positions(servers).take(first) {
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
        let settled = self.settle_kept(&mut kept).await;
        match &settled {
            Ok(_) => kept.left = None,
            // The owner is told, and tries again.
            Err(DtxError::Common(CommonError::GaveUp { .. })) => {}
            Err(error) if error.is_temporary() => {}
            // Trying again at once is of no use.
            Err(_) => self.state.borrow_mut().left.extend(kept.left.take()),
        }
        settled
    }

    async fn settle_kept(&self, kept: &mut Keep<'_, V>) -> Result<Outcome, DtxError> {
        let Some(left) = &mut kept.left else { return Ok(Outcome::Gone) };
        let mut outcome = Outcome::Undone;
        if let Some(job) = &mut left.job {
            outcome = self.bring_to_end(job).await?;
            std::mem::take(&mut job.resolvers).into_iter().for_each(|resolver| self.put_back(resolver));
            left.job = None;
        }
        self.take_back(left).await?;
        Ok(outcome)
    }

    /// Brings a transaction to its end, whatever breaks meanwhile.
    async fn bring_to_end(&self, job: &mut Job) -> Result<Outcome, DtxError> {
        let mut op = self.memory.waiting_op(job.lane.apart());
        let attempt = async |_: &mut Op| match self.try_recover(job).await? {
            Some(outcome) => Ok(outcome),
            // The other client brings it to its end.
            None if job.reason != Reason::Own && !job.has_claimed => Ok(Outcome::Gone),
            None => Err(Stop::Later),
        };
        self.memory.attempt(&mut op, attempt).await
    }

    /// Tries once. `None`: it must wait, for another client that recovers it and lives, or for seats.
    async fn try_recover(&self, job: &mut Job) -> Result<Option<Outcome>, DtxError> {
        let identity = self.identity().await?;
        let is_of = |resolver: &&Coordinator| Rc::ptr_eq(&resolver.identity, &identity);
        if !job.resolvers.iter().any(|resolver| is_of(&resolver)) {
            let Some(resolver) = self.resolver(&identity).await? else { return Ok(None) };
            job.resolvers.push(resolver);
        }
        let resolver = job.resolvers.iter().rfind(is_of).expect("one was just added").clone();
        let mut plan = self.take_plan();
        let whole = self.whole_servers(&identity, &job.lane, &mut plan).await?;
        let mut seats = self.read_logs(&identity, job, whole, &mut plan).await?;
        let Some(log) = job.log.clone() else { return Ok(Some(Outcome::Gone)) };
        let servers = participants(&self.shape, &log) & whole;
        let mut claimed = 0;
        for position in positions(servers) {
            match self.claim(job, &resolver, &mut seats, servers, position, &mut plan).await? {
                Claimed::Yes => claimed |= 1 << position,
                Claimed::Gone => {}
                Claimed::Busy => return Ok(None),
            }
        }
        let outcome = match job.outcome {
            Some(outcome) => outcome,
            None => match self.decide(&identity, job, &log, (whole, claimed == servers), &mut plan).await? {
                Some(outcome) => outcome,
                None => return Ok(None),
            },
        };
        // Whatever breaks from now on: the next attempt would find items that others have changed since.
        job.outcome = Some(outcome);
        plan.clear();
        for before in &log.entries {
            let at = self.shape.address(before.place, 0);
            let position = self.shape.replica(before.place, 0);
            if servers >> position & 1 == 1 {
                plan.swap(at, job.roster[position].word().raw(), 0);
            }
        }
        self.carry_out(&identity, &job.lane, &mut plan).await?;
        plan.clear();
        for position in positions(claimed) {
            let at = self.seat_at(position, job.roster[position].seat);
            plan.write(at.behind(self.shape.seat_layout().log()), |data| data.extend_from_slice(&[0; 8]));
            plan.swap(at, resolver.word(position).raw(), 0);
        }
        self.carry_out(&identity, &job.lane, &mut plan).await?;
        self.keep_plan(plan);
        Ok(Some(outcome))
    }

    /// Finds out what becomes of a transaction whose seats are claimed, and undoes what is to be undone. `None`: it must wait.
    async fn decide(
        &self,
        identity: &Identity,
        job: &Job,
        log: &Log,
        (whole, is_claimed): (u32, bool),
        plan: &mut Plan,
    ) -> Result<Option<Outcome>, DtxError> {
        let lane = &job.lane.apart();
        let replicas = self.read_replicas(identity, job, log, whole, plan).await?;
        // Where a seat is gone, the locks are, too. This counts where their servers have lost them.
        let (mut is_final, mut is_unsure) = (!is_claimed, false);
        for Replica { place, rank, head, is_old, is_new } in &replicas {
            let primary = self.shape.replica(*place, 0);
            if *rank == 0 {
                is_final |= head.lock != job.roster[primary].word().raw() && Check::LocksTell.on();
            }
            // Another transaction has changed it since.
            is_final |= head.is_whole && !is_new && !is_old;
            is_unsure |= !head.is_whole && whole >> primary & 1 == 0;
        }
        if is_final {
            return Ok(Some(match () {
                () if replicas.iter().any(|replica| replica.is_new) && Check::Outcome.on() => {
                    Outcome::Committed
                }
                () if replicas.iter().any(|replica| replica.is_old) || !Check::Outcome.on() => {
                    Outcome::Undone
                }
                () => Outcome::Gone,
            }));
        }
        if replicas.iter().all(|replica| replica.is_new) {
            return Ok(Some(Outcome::Committed));
        }
        if is_unsure && job.reason == Reason::Met && Check::FillerAlone.on() {
            return Ok(None);
        }
        plan.clear();
        for (before, body) in log.bodies(&self.shape) {
            let touched = replicas.iter().filter(|of| of.place == before.place && !of.is_old);
            for Replica { rank, .. } in touched.filter(|_| Check::Undo.on()) {
                let at = self.shape.address(before.place, *rank).behind(BODY as u64);
                plan.write(at, |data| data.extend_from_slice(body));
            }
        }
        self.carry_out(identity, lane, plan).await?;
        Ok(Some(Outcome::Undone))
    }

    /// Reads the replicas of a transaction's items on the servers that have their items, and the locks of their primaries.
    async fn read_replicas(
        &self,
        identity: &Identity,
        job: &Job,
        log: &Log,
        whole: u32,
        plan: &mut Plan,
    ) -> Result<Vec<Replica>, DtxError> {
        plan.clear();
        let mut reads = Vec::new();
        for before in &log.entries {
            let value = self.shape.value_bytes_at(before.place);
            let survives = |rank: &usize| whole >> self.shape.replica(before.place, *rank) & 1 == 1;
            let mut survivors = (0..self.shape.replicas()).filter(survives).peekable();
            if survivors.peek().is_none() {
                return Err(DtxError::Lost(self.shape.server(self.shape.replica(before.place, 0))));
            }
            for rank in survivors {
                let at = self.shape.address(before.place, rank);
                reads.push((before, rank, plan.read(at, (ITEM_HEAD + value) as u64)));
            }
        }
        self.carry_out(identity, &job.lane, plan).await?;
        let replica = |(before, rank, read): (&Before, usize, usize)| {
            let head = Head::parse(plan.bytes(read), self.shape.value_bytes_at(before.place));
            let new = next_version(before.version, transaction_number(&job.roster, log.sequence));
            let is_old = head.is_whole && head.version == before.version;
            Replica { place: before.place, rank, head, is_old, is_new: head.is_whole && head.version == new }
        };
        Ok(reads.into_iter().map(replica).collect())
    }

    /// Reads the seats of a transaction, by position, on all servers that have their items, and notes its log, if one is open there.
    async fn read_logs(
        &self,
        identity: &Identity,
        job: &mut Job,
        whole: u32,
        plan: &mut Plan,
    ) -> Result<Seats, DtxError> {
        plan.clear();
        let reads: ArrayVec<Option<usize>, MAX_SERVERS> = (0..self.shape.server_count())
            .map(|position| {
                let at = self.seat_at(position, job.roster[position].seat);
                (whole >> position & 1 == 1).then(|| plan.read(at, self.shape.seat_layout().bytes()))
            })
            .collect();
        self.carry_out(identity, &job.lane, plan).await?;
        let mut seats = Seats::new();
        for (position, read) in reads.into_iter().enumerate() {
            let seat = read.map(|read| Seat::parse(plan.bytes(read), &self.shape));
            let log = seat.as_ref().filter(|seat| seat.is_open_for(job.roster[position].word()));
            if job.log.is_none() {
                job.log = log.and_then(|seat| seat.log.clone());
            }
            seats.push(seat);
        }
        Ok(seats)
    }

    /// Claims a seat of a transaction for its recovery.
    async fn claim(
        &self,
        job: &mut Job,
        resolver: &Coordinator,
        seats: &mut Seats,
        servers: u32,
        position: usize,
        plan: &mut Plan,
    ) -> Result<Claimed, DtxError> {
        let (word, mine) = (job.roster[position].word(), resolver.word(position));
        if !Check::Claim.on() {
            return Ok(Claimed::Yes);
        }
        loop {
            let Some(seat) = &seats[position] else { return Ok(Claimed::Gone) };
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
                let of = self.read_seat(&resolver.identity, position, claim.seat(), &job.lane, plan).await?;
                let lives = match of.roster.filter(|(of, _)| *of == claim) {
                    Some((_, roster)) => self.is_alive_at_any(&roster, servers, &job.lane).await?,
                    // Its seat was claimed by another one, which has seen that it is dead; or its sessions here have ended.
                    None => self.is_alive_at(position, claim, &job.lane).await?,
                };
                if lives {
                    return Ok(Claimed::Busy);
                }
            }
            plan.clear();
            job.has_claimed = true;
            let swap = plan.swap(self.seat_at(position, word.seat()), claim.raw(), mine.raw());
            self.carry_out(&resolver.identity, &job.lane, plan).await?;
            if plan.found(swap) == Some(claim.raw()) {
                return Ok(Claimed::Yes);
            }
            seats[position] =
                Some(self.read_seat(&resolver.identity, position, word.seat(), &job.lane, plan).await?);
        }
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
