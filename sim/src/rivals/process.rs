//! A controller's process, as its switches and its peers see it.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use fatbtree_controller::election::{Bid, Candidate, Election, Seen, Way};
use fatbtree_controller::{Generations, Keeper, Plan, Primary};
use fatbtree_p4runtime::Mastership;
use fatbtree_switch::service::StreamId;
use fatbtree_topology::SwitchId;
use fatbtree_verbs::time::{Duration, Instant};

/// Time after which all standbys know of a controller that leads.
const KNOWN: Duration = Duration::from_secs(1);

/// State of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Runs,
    /// Frozen since this time. Messages to it wait.
    Frozen(Instant),
    /// Dead until this time; it is started again as a standby, as `fatbtree up` does it.
    Dead(Instant),
}

/// A session with a switch.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) stream: StreamId,
    pub(super) election_id: u128,
    /// Notices of the switch that the process has not read yet.
    pub(super) notices: VecDeque<Mastership>,
    /// The last notice that was read.
    pub(super) mastership: Mastership,
}

/// Role of a process.
#[derive(Debug)]
pub(super) enum Office {
    LooksOn(Election),
    Leads { bid: Bid, since: Instant, primary: Box<Primary>, keepers: BTreeMap<SwitchId, Keeper> },
}

/// State that survives a restart of a process.
#[derive(Clone, Debug, Default)]
pub(super) struct Disk {
    /// Bid under which the process led last.
    pub(super) bid: Option<Bid>,
    pub(super) plan: Option<(Plan, Generations)>,
}

#[derive(Debug)]
pub(super) struct Process {
    address: SocketAddr,
    pub(super) candidate: Candidate,
    /// Way in which the process becomes primary.
    pub(super) way: Way,
    pub(super) life: Life,
    /// Whether it was frozen until now: mostly its clock goes off before it reads its messages.
    pub(super) has_thawed: bool,
    pub(super) office: Office,
    pub(super) sessions: BTreeMap<SwitchId, Session>,
    /// Sessions that the process has opened under one bid, with any switch.
    pub(super) opened: u64,
    /// Times before which a standby does not try again to reach a switch.
    pub(super) retry: BTreeMap<SwitchId, Instant>,
    pub(super) disk: Disk,
    /// Whether it was told to start, and has given up.
    pub(super) has_ended: bool,
}

impl Process {
    /// Creates a process; `draw` tells it from others at its address.
    pub(super) fn new(
        address: SocketAddr,
        draw: u16,
        way: Way,
        disk: Disk,
        switches: &[SwitchId],
        now: Instant,
    ) -> Self {
        let candidate = Candidate::new(address, draw);
        let election = Election::new(candidate, way, disk.bid, switches.iter().copied(), now);
        Self {
            address,
            candidate,
            way,
            life: Life::Runs,
            has_thawed: false,
            office: Office::LooksOn(election),
            sessions: BTreeMap::new(),
            opened: 0,
            retry: BTreeMap::new(),
            disk,
            has_ended: false,
        }
    }

    /// Replaces the process by another one with the same files, at the same address.
    pub(super) fn again(&mut self, draw: u16, way: Way, switches: &[SwitchId], now: Instant) {
        let disk = std::mem::take(&mut self.disk);
        *self = Self::new(self.address, draw, way, disk, switches, now);
    }

    /// Forgets all that switches have said.
    pub(super) fn looks_anew(&mut self, way: Way, switches: &[SwitchId], now: Instant) {
        self.way = way;
        let election = Election::new(self.candidate, way, self.disk.bid, switches.iter().copied(), now);
        self.office = Office::LooksOn(election);
    }

    pub(super) fn runs(&self) -> bool {
        self.life == Life::Runs && !self.has_ended
    }

    pub(super) fn leads(&self) -> bool {
        matches!(self.office, Office::Leads { .. }) && self.life == Life::Runs
    }

    /// Whether all switches say that this process is primary, and have had time to say so to all controllers.
    pub(super) fn has_led_all(&self, switches: &[SwitchId], now: Instant) -> bool {
        let says = |switch| {
            let session: Option<&Session> = self.sessions.get(switch);
            // Messages that it has not read yet may say otherwise.
            session.is_some_and(|it| it.mastership == Mastership::Primary && it.notices.is_empty())
        };
        let is_known = matches!(self.office, Office::Leads { since, .. } if now >= since + KNOWN);
        self.runs() && is_known && switches.iter().all(says)
    }

    /// Present bid of the process.
    pub(super) fn bid(&self) -> Bid {
        match &self.office {
            Office::LooksOn(_) => Bid::to_look_on(self.candidate),
            Office::Leads { bid, .. } => *bid,
        }
    }

    /// Ends a session; the process hears of it when it runs.
    pub(super) fn end_of(&mut self, switch: SwitchId) {
        if let Some(session) = self.sessions.get_mut(&switch) {
            session.notices.push_back(Mastership::Ended { reason: "the connection is gone".to_owned() });
        }
    }

    /// Handles a session that has ended, or a switch that cannot be reached.
    pub(super) fn lost(&mut self, switch: SwitchId, now: Instant) {
        self.sessions.remove(&switch);
        self.retry.insert(switch, now + Duration::from_millis(100));
        let why = "the session has ended".to_owned();
        match &mut self.office {
            Office::LooksOn(election) => election.saw(switch, Seen::Silent(why), now),
            Office::Leads { primary, keepers, .. } => {
                let Some(keeper) = keepers.get_mut(&switch) else { return };
                keeper.handle_lost(now, why);
                while let Some(notice) = keeper.poll_notice() {
                    primary.switch_noticed(switch, &notice);
                }
            }
        }
    }
}
