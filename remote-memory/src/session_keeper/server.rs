//! One memory server under a keeper: the session, what is missing in it, and the one call that is under way.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{Device as _, Verbs};

use super::call::{Call, Denied, Granted, Meaning, NoAnswer, Opened};
use super::checks::Check;
use super::grant::BLOCKS_AT_ONCE;
use super::{KeeperOptions, Notice, Notices};
use crate::allocator::{ReturnedBlocks, Shortage, SizeClass};
use crate::connection::{ConnectError, ConnectionId, RemoteSide};
use crate::info::ServerInfo;
use crate::kept::Kept;
use crate::locks::SessionId;
use crate::memory::{Era, RemoteMemory};

/// Parts of a lease: a session is renewed after one of them, so two renewals may be lost.
const RENEWALS: u64 = 3;

/// Calls that give blocks back and wait; further blocks are lost to the structure.
const RETURNS: usize = 64;

/// Reasons for which operations on a server fail instead of waiting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum GivenUp {
    /// The server has lost its structure.
    Lost,
    /// The server refuses, or has not answered for too long.
    OutOfReach,
}

/// The call under way.
#[derive(Clone, Copy, Debug)]
enum UnderWay {
    Open,
    Renew,
    Connect(ConnectionId),
    Sync,
    Allocate(SizeClass),
    GiveBack,
    Close,
    /// A call in a session that has ended meanwhile.
    Outdated,
}

/// What a client does before it lets a server's sweep go on.
///
/// ```text
///   told ──► [settle] operations end, requests end, connections are up ──► [give back] blocks come to the server ──► settled
/// ```
///
/// Nothing is asked of the server meanwhile that could bring blocks late: the next renewal says that the client has settled.
#[derive(Clone, Copy, Debug)]
struct Settling {
    /// Number of the wait.
    wait: u64,
    /// The era of operations that ended when the client was told; `None` when it has ended and blocks are given back.
    era: Option<Era>,
}

/// A session.
#[derive(Clone, Copy, Debug)]
struct Session {
    id: SessionId,
    /// Highest wait of a sweep for which the client has settled.
    settled: u64,
    settling: Option<Settling>,
    /// The time between two renewals.
    part: Duration,
    /// Time of the next renewal.
    renew: Instant,
}

/// A memory server.
#[derive(Debug)]
pub(super) struct Server<S> {
    /// All connections to it.
    all: BTreeSet<ConnectionId>,
    /// Connections that are not up.
    down: BTreeSet<ConnectionId>,
    session: Option<Session>,
    /// The server's description of itself when the last session was opened.
    said: Option<ServerInfo<S>>,
    /// Memory that operations wait for: class, and bytes.
    wanted: BTreeMap<SizeClass, u32>,
    /// Whether operations wait until the server has brought what it has to its disk.
    is_sync_wanted: bool,
    returned: VecDeque<ReturnedBlocks>,
    /// The call under way, and when it was made.
    under_way: Option<(UnderWay, Instant)>,
    /// The renewal beside it: the session, and when it was made.
    renewing: Option<(SessionId, Instant)>,
    /// The last call was a renewal.
    has_just_renewed: bool,
    /// The pause after the next failure. The first failure in a row has none.
    pause: Duration,
    /// No call before this time.
    retry: Option<Instant>,
    failing_since: Option<Instant>,
    /// Time by which it is given up if it has not answered since the beginning.
    expected: Option<Instant>,
    given_up: Option<GivenUp>,
}

impl<S> Default for Server<S> {
    fn default() -> Self {
        Self {
            all: BTreeSet::new(),
            down: BTreeSet::new(),
            session: None,
            said: None,
            wanted: BTreeMap::new(),
            is_sync_wanted: false,
            returned: VecDeque::new(),
            under_way: None,
            renewing: None,
            has_just_renewed: false,
            pause: Duration::ZERO,
            retry: None,
            failing_since: None,
            expected: None,
            given_up: None,
        }
    }
}

impl<S> Server<S> {
    pub(super) fn add(&mut self, id: ConnectionId) {
        self.all.insert(id);
        self.down.insert(id);
    }

    pub(super) fn info(&self) -> Option<&ServerInfo<S>> {
        self.said.as_ref()
    }

    pub(super) fn session(&self) -> Option<SessionId> {
        self.session.map(|session| session.id)
    }

    pub(super) fn given_up(&self) -> Option<GivenUp> {
        self.given_up
    }

    pub(super) fn is_connected(&self) -> bool {
        self.down.is_empty()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.session.is_none() && self.under_way.is_none()
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let renewal = self.session.filter(|_| self.renewing.is_none()).map(|session| session.renew);
        let gives_back = |session: Session| session.settling.is_some_and(|settling| settling.era.is_none());
        match (self.under_way, self.retry, self.session) {
            (Some((UnderWay::Renew | UnderWay::Close, _)), ..) => None,
            (Some(_), ..) => renewal,
            (None, Some(retry), _) => Some(retry),
            (None, None, Some(session)) if gives_back(session) => Some(Instant::ZERO),
            (None, None, Some(_)) => renewal,
            (None, None, None) => Some(Instant::ZERO),
        }
    }

    pub(super) fn doubt(&mut self) {
        if let Some(session) = &mut self.session {
            session.renew = Instant::ZERO;
        }
    }

    pub(super) fn expect_by(&mut self, by: Instant) {
        self.expected = Some(by);
    }

    pub(super) fn want(&mut self, class: SizeClass, bytes: u32) {
        self.wanted.insert(class, bytes);
    }

    pub(super) fn want_sync(&mut self) {
        self.is_sync_wanted = true;
    }

    pub(super) fn give_back(&mut self, places: ReturnedBlocks) {
        for some in places.addresses.chunks(BLOCKS_AT_ONCE) {
            if self.returned.len() < RETURNS {
                self.returned.push_back(ReturnedBlocks { addresses: some.to_vec(), ..places });
            }
        }
    }

    pub(super) fn broke<V: Verbs>(&mut self, id: ConnectionId, remote: &RemoteMemory<V>) {
        if self.all.contains(&id) {
            self.down.insert(id);
            self.fail_operations(id, remote);
        }
    }

    // ---- calls ----

    pub(super) fn next_call<V: Verbs>(
        &mut self,
        now: Instant,
        remote: &RemoteMemory<V>,
        options: &KeeperOptions,
        notices: &mut Notices,
    ) -> Option<Call> {
        if self.under_way.is_some() || self.retry.is_some_and(|retry| now < retry) {
            return None;
        }
        self.retry = None;
        self.settle(remote);
        let Some(Session { id: session, settled, renew, .. }) = self.session else {
            let known = self.info().map(|info| info.generation);
            return self.begin(now, UnderWay::Open, Call::Open { known });
        };
        let is_due = now >= renew && self.renewing.is_none();
        let renewal = Call::Renew { session, settled, keeps: remote.kept_bytes(self.number()) };
        // Where a call takes longer than a part of the lease, a renewal is always due: other calls come between.
        if is_due && !self.has_just_renewed {
            return self.begin(now, UnderWay::Renew, renewal);
        }
        while let Some(&id) = self.down.first() {
            match remote.open(id) {
                Ok(local) => {
                    let call = Call::Connect { session, local, replaces: remote.replaces(id) };
                    return self.begin(now, UnderWay::Connect(id), call);
                }
                Err(ConnectError::Up { .. }) => drop(self.down.pop_first()),
                Err(error) => {
                    self.failed(now, remote, options, notices, &Denied::new(Meaning::No, error));
                    return None;
                }
            }
        }
        if std::mem::take(&mut self.is_sync_wanted) {
            remote.sync_begins(self.number());
            return self.begin(now, UnderWay::Sync, Call::Sync { session });
        }
        if let Some((&class, &bytes)) = self.wanted.first_key_value() {
            return self.begin(now, UnderWay::Allocate(class), Call::Allocate { session, class, bytes });
        }
        let returned = self.next_returned(now);
        returned.or_else(|| is_due.then(|| self.begin(now, UnderWay::Renew, renewal))?)
    }

    /// Renewal that is due beside the call under way.
    pub(super) fn next_renewal<V: Verbs>(&mut self, now: Instant, remote: &RemoteMemory<V>) -> Option<Call> {
        let Session { id: session, settled, renew, .. } = self.session?;
        let is_late = match self.under_way {
            None | Some((UnderWay::Renew | UnderWay::Close, _)) => false,
            Some(_) => now >= renew && self.renewing.is_none(),
        };
        is_late.then(|| {
            self.renewing = Some((session, now));
            Call::Renew { session, settled, keeps: remote.kept_bytes(self.number()) }
        })
    }

    /// The sync that blocks on other servers wait for, when the client is closed. It is asked for once: without an answer they are left alone.
    pub(super) fn next_last_sync<V: Verbs>(
        &mut self,
        now: Instant,
        remote: &RemoteMemory<V>,
    ) -> Option<Call> {
        if self.under_way.is_some() {
            return None;
        }
        let is_wanted = std::mem::take(&mut self.is_sync_wanted);
        let Some(session) = self.session().filter(|_| is_wanted) else {
            remote.forget_resting(self.number());
            return None;
        };
        remote.sync_begins(self.number());
        self.begin(now, UnderWay::Sync, Call::Sync { session })
    }

    /// Call that remains before the session is closed.
    pub(super) fn next_last_call(&mut self, now: Instant) -> Option<Call> {
        let session = self.session()?;
        if self.under_way.is_some() {
            return None;
        }
        let returned = self.next_returned(now);
        returned.or_else(|| self.begin(now, UnderWay::Close, Call::Close { session }))
    }

    /// Goes on with settling for a sweep. No call is under way: what the server has granted is there, or comes no more.
    fn settle<V: Verbs>(&mut self, remote: &RemoteMemory<V>) {
        let server = self.number();
        let is_up = self.down.is_empty();
        let Some(Session { settling: Some(settling), .. }) = &self.session else { return };
        let (wait, era) = (settling.wait, settling.era);
        if let Some(era) = era {
            let operations = remote.has_ended(era) || !Check::SettleOperations.on();
            let requests = !remote.reactor().has_abandoned() || !Check::SettleRequests.on();
            // A connection that has broken may still carry out what was posted on it, until the next one takes its place.
            if operations && requests && is_up {
                for places in remote.take_set_aside(server) {
                    self.give_back(places);
                }
                if let Some(Session { settling: Some(settling), .. }) = &mut self.session {
                    settling.era = None;
                }
            }
        } else if self.returned.is_empty()
            && let Some(session) = &mut self.session
        {
            (session.settled, session.settling, session.renew) = (wait, None, Instant::ZERO);
        }
    }

    /// Notes what a renewal has told: the wait of a sweep that this session holds up.
    fn told<V: Verbs>(&mut self, wait: u64, remote: &RemoteMemory<V>) {
        let server = self.number();
        if let Some(session) = &mut self.session
            && session.settling.is_none()
            && wait > session.settled
        {
            if Check::SettleBlocks.on() {
                remote.set_aside(server);
            }
            session.settling = Some(Settling { wait, era: Some(remote.end_era()) });
        }
        if self.under_way.is_none() {
            self.settle(remote);
        }
    }

    fn next_returned(&mut self, now: Instant) -> Option<Call> {
        let Session { id: session, settled, .. } = self.session?;
        // Places of another session must not be given back.
        while let Some(places) = self.returned.pop_front() {
            if places.session == session {
                return self.begin(now, UnderWay::GiveBack, Call::GiveBack { places, settled });
            }
        }
        None
    }

    fn begin(&mut self, now: Instant, what: UnderWay, call: Call) -> Option<Call> {
        self.has_just_renewed = matches!(what, UnderWay::Renew);
        self.under_way = Some((what, now));
        Some(call)
    }

    // ---- answers ----

    pub(super) fn handle_answer(
        &mut self,
        now: Instant,
        memory: &impl Kept,
        options: &KeeperOptions,
        notices: &mut Notices,
        answer: Result<Granted<S>, Denied>,
    ) {
        let Some((what, asked)) = self.under_way.take() else { return };
        let remote = memory.remote();
        let answer = answer.map(|granted| match granted {
            Granted::Attached(attached) => Granted::Connected(attached.endpoint),
            granted => granted,
        });
        let denied = match (what, answer) {
            (UnderWay::Open, Ok(Granted::Opened(opened))) => {
                self.opened(asked, memory, options, notices, *opened);
                return;
            }
            (UnderWay::Renew, Ok(Granted::Renewed { wait })) => {
                if let Some(session) = &mut self.session {
                    session.renew = asked + session.part;
                }
                self.told(wait, remote);
                self.went_well();
                return;
            }
            (UnderWay::Connect(id), Ok(Granted::Connected(endpoint))) => {
                let rkey = self.info().map_or(0, |info| info.region.rkey);
                match memory.join(id, RemoteSide { endpoint, rkey, registered: false }) {
                    Ok(()) => {
                        self.down.remove(&id);
                        (self.given_up, self.failing_since) = (None, None);
                        self.went_well();
                        notices.push(Notice::Connected { id });
                        return;
                    }
                    Err(error) => Denied::new(Meaning::No, error),
                }
            }
            (UnderWay::Allocate(class), Ok(Granted::Supplied(grant))) => {
                self.wanted.remove(&class);
                if let Some(session) = self.session {
                    grant.hand_to(remote, self.number(), session.id);
                }
                self.went_well();
                return;
            }
            (UnderWay::Sync, Ok(Granted::Done)) => {
                remote.sync_ends(self.number(), true);
                self.went_well();
                return;
            }
            (UnderWay::Sync, Err(denied)) => {
                // The operations that wait may hold what others want to change: they try again.
                remote.sync_ends(self.number(), false);
                denied
            }
            (UnderWay::Close, _) => {
                self.session = None;
                return;
            }
            (UnderWay::Outdated, _) => return,
            // Blocks that are not taken are lost to the structure.
            (UnderWay::GiveBack, Ok(_)) => return,
            (UnderWay::GiveBack, Err(denied)) if denied.meaning != Meaning::Ended => return,
            (UnderWay::Allocate(class), Err(denied)) if denied.meaning == Meaning::No => {
                self.wanted.remove(&class);
                remote.refuse_memory(self.number(), class, denied.shortage);
                let server = self.number();
                notices.push(Notice::Denied { server, denied });
                return;
            }
            // Sessions of clients that died, which count until their leases end.
            (UnderWay::Open | UnderWay::Connect(_), Err(denied))
                if denied.meaning == Meaning::No && denied.shortage == Shortage::Bound =>
            {
                Denied { meaning: Meaning::Later, ..denied }
            }
            (_, Err(denied)) => denied,
            (_, Ok(_)) => NoAnswer.into(),
        };
        // The server has not answered since then.
        self.failing_since.get_or_insert(asked);
        self.failed(now, remote, options, notices, &denied);
    }

    pub(super) fn handle_renewal<V: Verbs>(
        &mut self,
        now: Instant,
        remote: &RemoteMemory<V>,
        options: &KeeperOptions,
        notices: &mut Notices,
        answer: Result<u64, Denied>,
    ) {
        let Some((asked_for, asked)) = self.renewing.take() else { return };
        let Some(session) = self.session.as_mut().filter(|session| session.id == asked_for) else { return };
        match answer {
            Ok(wait) => {
                session.renew = asked + session.part;
                self.told(wait, remote);
            }
            Err(denied) if denied.meaning == Meaning::Ended => {
                if let Some((what, _)) = &mut self.under_way {
                    *what = UnderWay::Outdated;
                }
                self.failing_since.get_or_insert(asked);
                self.failed(now, remote, options, notices, &denied);
            }
            Err(denied) => {
                session.renew = now + options.first_pause;
                let server = self.number();
                notices.push(Notice::Denied { server, denied });
            }
        }
    }

    fn number(&self) -> u16 {
        self.all.first().map_or(0, |id| id.server)
    }

    fn opened(
        &mut self,
        asked: Instant,
        memory: &impl Kept,
        options: &KeeperOptions,
        notices: &mut Notices,
        opened: Opened<S>,
    ) {
        let Opened { session, lease, owner, info } = opened;
        let server = self.number();
        let masked_atomics = memory.remote().reactor().with(|verbs| verbs.capabilities().masked_atomics);
        if let Some(writer) = info.writer(owner, masked_atomics)
            && let Err(error) = memory.let_write(server, writer)
        {
            let denied = Denied::new(Meaning::No, error);
            notices.push(Notice::Denied { server, denied });
        }
        // Whatever lease a server tells, it is not asked without a pause.
        let part = (lease / RENEWALS).max(options.first_pause);
        let (settled, settling) = (0, None);
        self.session = Some(Session { id: session, settled, settling, part, renew: asked + part });
        self.said = Some(info);
        self.expected = None;
        // Operations that wait for memory ask for it again in the new session.
        self.wanted.clear();
        self.is_sync_wanted = false;
        self.given_up = None;
        if self.down.is_empty() {
            self.failing_since = None;
        }
        notices.push(Notice::Opened { server });
    }

    fn went_well(&mut self) {
        (self.pause, self.retry) = (Duration::ZERO, None);
        if self.down.is_empty() {
            self.failing_since = None;
        }
    }

    fn failed<V: Verbs>(
        &mut self,
        now: Instant,
        remote: &RemoteMemory<V>,
        options: &KeeperOptions,
        notices: &mut Notices,
        denied: &Denied,
    ) {
        let server = self.number();
        notices.push(Notice::Denied { server, denied: denied.clone() });
        let since = *self.failing_since.get_or_insert(now);
        self.retry = Some(now + self.pause);
        self.pause = (self.pause * 2).clamp(options.first_pause, options.longest_pause);
        if matches!(denied.meaning, Meaning::Ended | Meaning::Lost) {
            self.session = None;
            remote.sever(server);
            self.down.clone_from(&self.all);
        }
        let given_up = match denied.meaning {
            Meaning::Lost => Some(GivenUp::Lost),
            Meaning::No => Some(GivenUp::OutOfReach),
            _ if options.patience.is_some_and(|patience| now >= since + patience)
                || self.expected.is_some_and(|by| now >= by) =>
            {
                self.given_up.or(Some(GivenUp::OutOfReach))
            }
            _ => self.given_up,
        };
        if given_up != self.given_up {
            self.given_up = given_up;
            match given_up {
                Some(GivenUp::Lost) => notices.push(Notice::Lost { server }),
                Some(GivenUp::OutOfReach) => notices.push(Notice::OutOfReach { server }),
                None => {}
            }
        }
        self.down.iter().for_each(|&id| self.fail_operations(id, remote));
        let why = match self.given_up {
            None => return,
            Some(GivenUp::Lost) => Shortage::Lost,
            Some(GivenUp::OutOfReach) => Shortage::Unknown,
        };
        self.is_sync_wanted = false;
        remote.sync_ends(server, false);
        for (class, _) in std::mem::take(&mut self.wanted) {
            remote.refuse_memory(server, class, why);
        }
    }

    /// Lets operations on a connection that is not up fail, where the server was given up.
    fn fail_operations<V: Verbs>(&self, id: ConnectionId, remote: &RemoteMemory<V>) {
        let failed = match self.given_up {
            None => return,
            Some(GivenUp::Lost) => remote.lose(id),
            Some(GivenUp::OutOfReach) => remote.abandon(id),
        };
        // The memory has the connection: it has told the keeper of it.
        drop(failed);
    }
}
