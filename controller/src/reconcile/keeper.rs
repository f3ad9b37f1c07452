//! The protocol by which one switch is brought to what is desired, and kept there.
//!
//! ```text
//!   Open ──► Cookie ──► (Load) ──► Read ──► Write ──► ... ──► settled
//!    ▲                                                         │  Cookie  each second: the switch may have come back empty
//!    └── after a pause ── lost                                 │  Read    when all switches are to be read back
//!                                                              └  Write   when something else is desired
//! ```

use std::collections::VecDeque;

use fatbtree_topology::SwitchId;
use fatbtree_verbs::time::{Duration, Instant};

use super::{Desired, Observed, Pace, Serving, Wanted};
use crate::tables::Change;

/// Time between two attempts to reach a switch.
const PAUSE: Duration = Duration::from_millis(100);
/// Time between two looks at the program that a switch runs.
const LOOK: Duration = Duration::from_secs(1);
/// Maximum number of changes in one request. What is desired by then comes before the next request.
const PIECE: usize = 1_000;

/// A request to a switch. The next one follows the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeeperRequest {
    /// Become the primary of a new session.
    Open,
    /// Say which program runs.
    Cookie,
    /// Load the program, which empties all tables.
    Load,
    /// Read back all entries.
    Read,
    /// Make these changes, in any order.
    Write(Vec<Change>),
}

/// The answer to a request that has succeeded. Any failure is told by [`Keeper::handle_lost`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeeperAnswer {
    /// The session is open.
    Opened,
    /// The cookie of the program that runs, if any.
    Cookie(Option<u64>),
    /// The program is loaded.
    Loaded,
    /// The content of the switch.
    Holds(Observed),
    /// The changes are made.
    Written,
}

/// News of a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeeperNotice {
    /// The program runs: packets of this session mean something. Comes before the first read of a session.
    Runs,
    /// The switch was read, and sends packets there.
    Read(Option<Serving>),
    /// The switch holds something else than is desired.
    Converging,
    /// The switch holds what was desired at a version.
    Settled(u64),
    /// The switch was read back as [`Keeper::handle_sync`] has asked, and holds what is desired.
    Synced {
        /// Number of the newest request before the read.
        number: u64,
        /// Changes since it was read.
        mended: usize,
    },
    /// The switch does not answer, or refuses, for this reason. Nothing of what came before counts any more.
    Lost(String),
}

/// Work in progress.
#[derive(Clone, Debug)]
enum Doing {
    /// No session until then.
    Pausing(Instant),
    Opening,
    Looking,
    Loading,
    Reading,
    Writing(Vec<Change>),
    /// A session, and no request.
    Ready,
}

/// Knowledge about the program that the switch runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Runs {
    Unknown,
    Other,
    Ours,
}

/// Keeps one switch at what is desired. It does no I/O and knows no clock: time is counted from any moment, the same for all keepers that
/// share a [`Pace`].
///
/// After each call of a `handle_` method, when something else is desired, and at [`poll_timeout`](Self::poll_timeout), its driver calls
/// [`poll_request`](Self::poll_request), then [`poll_notice`](Self::poll_notice) until there is none, and then carries the request out.
#[derive(Clone, Debug)]
pub struct Keeper {
    switch: SwitchId,
    cookie: Option<u64>,
    piece: usize,
    doing: Doing,
    runs: Runs,
    /// Whether a notice has said in this session that the program runs.
    told_runs: bool,
    /// Time at which the program is looked at again.
    look_at: Instant,
    is_read: bool,
    held: Observed,
    /// Last target that the switch was seen to hold. A new version mostly concerns another switch.
    settled: Option<Wanted>,
    /// The version that the pieces are for.
    seen: Option<u64>,
    pieces: VecDeque<Vec<Change>>,
    /// Time from which some changes may be written. It stays when others come first.
    turn: Option<Instant>,
    /// The version that was told as settled.
    told: Option<u64>,
    /// The newest request to read the switch back, and that which the last read was for.
    sync: (u64, u64),
    is_synced: bool,
    /// Changes since the last read.
    mended: usize,
    notices: VecDeque<KeeperNotice>,
}

impl Keeper {
    /// Without a session. `cookie` is that of the program that should run; `None` if any will do.
    pub fn new(switch: SwitchId, cookie: Option<u64>) -> Self {
        Self {
            switch,
            cookie,
            piece: PIECE,
            doing: Doing::Pausing(Instant::ZERO),
            runs: Runs::Unknown,
            told_runs: false,
            look_at: Instant::ZERO,
            is_read: false,
            held: Observed::default(),
            settled: None,
            seen: None,
            pieces: VecDeque::new(),
            turn: None,
            told: None,
            sync: (0, 0),
            is_synced: false,
            mended: 0,
            notices: VecDeque::new(),
        }
    }

    /// Keeper with at most so many changes in a request.
    #[must_use]
    pub fn with_piece(self, changes: usize) -> Self {
        Self { piece: changes.max(1), ..self }
    }

    /// The switch.
    pub fn switch(&self) -> SwitchId {
        self.switch
    }

    /// Content of the switch, as far as is known.
    pub fn held(&self) -> &Observed {
        &self.held
    }

    /// Time at which there may be a request though nothing has happened.
    pub fn poll_timeout(&self) -> Option<Instant> {
        match self.doing {
            Doing::Pausing(until) => Some(until),
            Doing::Ready if self.pieces.is_empty() => Some(self.look_at),
            Doing::Ready => self.turn,
            _ => None,
        }
    }

    // ---- what comes in ----

    /// The switch is to be read back. Each request has a higher number than the one before.
    pub fn handle_sync(&mut self, number: u64) {
        self.sync.0 = self.sync.0.max(number);
    }

    /// The session has ended, the switch refuses a request, or does not answer, for this reason.
    pub fn handle_lost(&mut self, now: Instant, reason: String) {
        self.notices.push_back(KeeperNotice::Lost(reason));
        (self.doing, self.runs, self.told_runs) = (Doing::Pausing(now + PAUSE), Runs::Unknown, false);
        self.forget();
    }

    /// A request was answered. An answer to none, of a session before, changes nothing.
    pub fn handle_answer(&mut self, now: Instant, answer: KeeperAnswer) {
        let doing = std::mem::replace(&mut self.doing, Doing::Ready);
        match (answer, doing) {
            (KeeperAnswer::Opened, Doing::Opening) => {}
            (KeeperAnswer::Cookie(found), Doing::Looking) => {
                self.look_at = now + LOOK;
                let is_ours = self.cookie.is_none() || found == self.cookie;
                self.runs = if is_ours { Runs::Ours } else { Runs::Other };
            }
            (KeeperAnswer::Loaded, Doing::Loading) => {
                self.runs = Runs::Ours;
                self.forget();
            }
            (KeeperAnswer::Holds(held), Doing::Reading) => {
                self.notices.push_back(KeeperNotice::Read(held.serving()));
                self.forget();
                (self.held, self.is_read) = (held, true);
            }
            (KeeperAnswer::Written, Doing::Writing(changes)) => {
                self.held.apply(&changes);
                self.mended += changes.len();
            }
            (_, doing) => self.doing = doing,
        }
    }

    /// Forgets the content of the tables.
    fn forget(&mut self) {
        self.is_read = false;
        (self.settled, self.seen, self.told, self.turn) = (None, None, None, None);
        self.pieces.clear();
    }

    // ---- what goes out ----

    /// The next notice.
    pub fn poll_notice(&mut self) -> Option<KeeperNotice> {
        self.notices.pop_front()
    }

    /// The next request. `desired` is what all switches should hold now, with its version.
    pub fn poll_request(
        &mut self,
        now: Instant,
        desired: (u64, &Desired),
        pace: &mut Pace,
    ) -> Option<KeeperRequest> {
        match &self.doing {
            Doing::Pausing(until) if *until <= now => {
                self.doing = Doing::Opening;
                Some(KeeperRequest::Open)
            }
            Doing::Ready => self.next_request(now, desired, pace),
            _ => None,
        }
    }

    fn next_request(
        &mut self,
        now: Instant,
        desired: (u64, &Desired),
        pace: &mut Pace,
    ) -> Option<KeeperRequest> {
        match self.runs {
            Runs::Unknown => return Some(self.look()),
            Runs::Other => {
                self.doing = Doing::Loading;
                return Some(KeeperRequest::Load);
            }
            Runs::Ours if !self.is_read => return Some(self.read()),
            Runs::Ours => {}
        }
        // What is desired by now comes before the rest of what was: a client's connection, a way round something that is down, no plan.
        if self.seen != Some(desired.0) || self.pieces.is_empty() && self.settled.is_none() {
            self.plan(desired);
        }
        if let Some(piece) = self.pieces.front() {
            if !piece.iter().all(Change::is_route) {
                let begin = *self.turn.get_or_insert_with(|| pace.begin_of(now, piece.len()));
                if begin > now {
                    return None;
                }
            }
            self.turn = None;
            let piece = self.pieces.pop_front()?;
            self.doing = Doing::Writing(piece.clone());
            return Some(KeeperRequest::Write(piece));
        }
        self.tell_settled(desired.0);
        if self.sync.0 > self.sync.1 {
            return Some(self.read());
        }
        // However often something else is desired of others: it may be this switch that has come back empty.
        (self.look_at <= now).then(|| self.look())
    }

    fn look(&mut self) -> KeeperRequest {
        self.doing = Doing::Looking;
        KeeperRequest::Cookie
    }

    fn read(&mut self) -> KeeperRequest {
        if !std::mem::replace(&mut self.told_runs, true) {
            self.notices.push_back(KeeperNotice::Runs);
        }
        (self.sync.1, self.is_synced, self.mended) = (self.sync.0, false, 0);
        self.doing = Doing::Reading;
        KeeperRequest::Read
    }

    fn plan(&mut self, (version, desired): (u64, &Desired)) {
        self.seen = Some(version);
        self.pieces.clear();
        let wanted = desired.wanted(self.switch);
        if self.settled.as_ref() == Some(&wanted) {
            return;
        }
        let Some(changes) = wanted.next_changes(&self.held) else {
            self.settled = Some(wanted);
            return;
        };
        self.settled = None;
        self.pieces = changes.chunks(self.piece).map(<[Change]>::to_vec).collect();
        if self.told.take().is_some() {
            self.notices.push_back(KeeperNotice::Converging);
        }
    }

    fn tell_settled(&mut self, version: u64) {
        if self.told != Some(version) {
            self.told = Some(version);
            self.notices.push_back(KeeperNotice::Settled(version));
        }
        if !std::mem::replace(&mut self.is_synced, true) {
            self.notices.push_back(KeeperNotice::Synced { number: self.sync.1, mended: self.mended });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fatbtree_topology::Cluster;

    use super::*;
    use crate::reconcile::{Controller, Generation, Registration};

    const OURS: u64 = 0xfa7b;

    /// A keeper and its switch, which answers at once.
    struct World {
        now: Instant,
        controller: Controller,
        keeper: Keeper,
        pace: Pace,
        runs: Option<u64>,
        holds: Observed,
        notices: Vec<KeeperNotice>,
    }

    impl World {
        fn new(piece: usize, per_second: f64) -> Self {
            let cluster = Cluster::example();
            let switch = cluster.tree().switches()[0].id;
            Self {
                now: Instant::ZERO,
                controller: Controller::new(&cluster, 100, 0),
                keeper: Keeper::new(switch, Some(OURS)).with_piece(piece),
                pace: Pace::new(per_second),
                runs: None,
                holds: Observed::default(),
                notices: Vec::new(),
            }
        }

        fn poll(&mut self) -> Option<KeeperRequest> {
            let (version, desired) = self.controller.desired();
            let desired = Arc::clone(desired);
            let request = self.keeper.poll_request(self.now, (version, &desired), &mut self.pace);
            self.notices.extend(std::iter::from_fn(|| self.keeper.poll_notice()));
            request
        }

        fn answer(&mut self, request: KeeperRequest) {
            let answer = match request {
                KeeperRequest::Open => KeeperAnswer::Opened,
                KeeperRequest::Cookie => KeeperAnswer::Cookie(self.runs),
                KeeperRequest::Load => {
                    (self.runs, self.holds) = (Some(OURS), Observed::default());
                    KeeperAnswer::Loaded
                }
                KeeperRequest::Read => KeeperAnswer::Holds(self.holds.clone()),
                KeeperRequest::Write(changes) => {
                    self.holds.apply(&changes);
                    KeeperAnswer::Written
                }
            };
            self.keeper.handle_answer(self.now, answer);
        }

        /// Until there is nothing to do; says what was asked.
        fn settle(&mut self) -> Vec<KeeperRequest> {
            let mut asked = Vec::new();
            while let Some(request) = self.poll() {
                asked.push(request.clone());
                self.answer(request);
            }
            asked
        }

        fn told(&mut self) -> Vec<KeeperNotice> {
            std::mem::take(&mut self.notices)
        }

        fn is_right(&self) -> bool {
            let wanted = self.controller.desired().1.wanted(self.keeper.switch());
            self.keeper.held() == &self.holds && wanted.next_changes(&self.holds).is_none()
        }
    }

    #[test]
    fn a_switch_gets_program_and_entries_and_gets_them_again_when_it_comes_back_empty() {
        let mut world = World::new(1_000, 1e6);
        let asked = world.settle();
        let first = [KeeperRequest::Open, KeeperRequest::Cookie, KeeperRequest::Load, KeeperRequest::Read];
        assert_eq!(asked[..4], first);
        assert!(asked[4..].iter().all(|asked| matches!(asked, KeeperRequest::Write(_))) && asked.len() > 4);
        assert!(world.is_right());
        let settled = KeeperNotice::Settled(world.controller.desired().0);
        let synced = KeeperNotice::Synced { number: 0, mended: world.holds.entries().len() };
        let told = world.told();
        assert_eq!(told[..2], [KeeperNotice::Runs, KeeperNotice::Read(None)]);
        let is_last = |notice: &KeeperNotice| matches!(notice, KeeperNotice::Settled(_));
        assert_eq!(told.iter().position(is_last), Some(2), "{told:?}");
        assert!(told.contains(&settled) && (told.contains(&synced) || told.len() == 4), "{told:?}");

        // It is looked at each second, and is not read without need.
        assert_eq!(world.keeper.poll_timeout(), Some(Instant::ZERO + LOOK));
        world.now += LOOK;
        assert_eq!(world.settle(), [KeeperRequest::Cookie]);
        (world.runs, world.holds) = (None, Observed::default());
        world.now += LOOK;
        assert_eq!(world.settle()[..3], [KeeperRequest::Cookie, KeeperRequest::Load, KeeperRequest::Read]);
        assert!(world.is_right());
        assert!(!world.told().contains(&KeeperNotice::Runs), "its packets are carried already");
    }

    #[test]
    fn what_is_desired_by_now_comes_before_the_rest() {
        let mut world = World::new(1, 1e6);
        while !matches!(world.poll(), Some(KeeperRequest::Write(_))) {
            let request =
                [KeeperRequest::Open, KeeperRequest::Cookie, KeeperRequest::Load, KeeperRequest::Read];
            request.into_iter().for_each(|request| world.answer(request));
        }
        let rest = world.keeper.pieces.len();
        assert!(rest > 1, "there is more to write");
        world.controller.rerooted(0, 64);
        world.keeper.handle_answer(world.now, KeeperAnswer::Written);
        world.poll();
        assert_eq!(world.keeper.seen, Some(world.controller.desired().0), "it was planned anew");
    }

    #[test]
    fn a_lost_switch_is_opened_again_after_a_pause_and_late_answers_change_nothing() {
        let mut world = World::new(1_000, 1e6);
        world.settle();
        world.told();
        world.keeper.handle_lost(world.now, "it hangs".to_owned());
        world.keeper.handle_answer(world.now, KeeperAnswer::Holds(Observed::default()));
        assert_eq!((world.poll(), world.keeper.poll_timeout()), (None, Some(Instant::ZERO + PAUSE)));
        assert_eq!(world.told(), [KeeperNotice::Lost("it hangs".to_owned())]);
        world.now += PAUSE;
        assert_eq!(world.settle(), [KeeperRequest::Open, KeeperRequest::Cookie, KeeperRequest::Read]);
        assert_eq!(world.told()[0], KeeperNotice::Runs, "its packets come in this session");
    }

    #[test]
    fn a_switch_is_read_back_for_an_operator_and_says_what_was_mended() {
        let mut world = World::new(1_000, 1e6);
        world.settle();
        let gone = world.holds.entries()[0];
        world.holds.apply(&[Change::Delete(gone)]);
        world.told();
        world.keeper.handle_sync(7);
        assert_eq!(world.settle(), [KeeperRequest::Read, KeeperRequest::Write(vec![Change::Insert(gone)])]);
        assert!(world.told().contains(&KeeperNotice::Synced { number: 7, mended: 1 }));
        assert_eq!(world.settle(), [], "once for each request");
    }

    #[test]
    fn many_connections_wait_for_their_turn_and_keep_it() {
        let mut world = World::new(1_000, 100.0);
        let cluster = Cluster::example();
        let host = cluster
            .tree()
            .hosts()
            .iter()
            .find(|host| cluster.servers().iter().all(|server| server.host != host.id));
        let host = host.unwrap();
        world.keeper = Keeper::new(cluster.tree().edge_of(host.id).id, Some(OURS));
        world.settle();
        let open = |queue_pair| Registration { client: host.ip, queue_pair, rkey: 4711, root: 64, mtu: 1024 };
        let some = |range: std::ops::Range<u32>| range.map(open).collect::<Vec<_>>();
        let tree = Generation { number: 1, low: 0 };
        // The first 80 take 0.8 s at this pace, and may be written at once; the next must wait.
        world.now += Duration::from_secs(60);
        let began = world.now;
        world.controller.server_joined(0, tree, &some(0..80));
        world.settle();
        assert!(world.is_right());
        world.controller.server_joined(0, tree, &some(100..180));
        world.settle();
        assert!(!world.is_right());
        let turn = world.keeper.poll_timeout();
        assert!(turn > Some(began), "{turn:?}");
        world.controller.rerooted(1, 1 << 48 | 64);
        world.settle();
        assert_eq!(world.keeper.poll_timeout(), turn, "the turn stays");
        world.now = turn.unwrap();
        world.settle();
        // What goes and what comes are two groups of changes.
        while !world.is_right() {
            world.now = world.keeper.poll_timeout().unwrap();
            world.settle();
        }
        assert!(world.now >= began + Duration::from_millis(800), "{:?}", world.now);
    }
}
