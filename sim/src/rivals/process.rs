//! A controller's process, as its switches and its peers see it.

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use fatbtree_controller::election::{Bid, Candidate, Election, Seen, Way};
use fatbtree_controller::{Controller, Held, Incarnations, Plan};
use fatbtree_p4runtime::Mastership;
use fatbtree_switch::service::StreamId;
use fatbtree_topology::SwitchId;

/// Whether it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    Runs,
    /// Since then. What is said to it waits.
    Frozen(Duration),
    /// Until then; it is started again as a standby, as `fatbtree up` does it.
    Dead(Duration),
}

/// A session with a switch.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) stream: StreamId,
    /// What the switch has said, and was not heard yet.
    pub(super) notices: VecDeque<Mastership>,
    /// The last that was heard.
    pub(super) mastership: Mastership,
    pub(super) held: Option<Held>,
    /// A write is on its way.
    pub(super) is_writing: bool,
}

/// What it does.
#[derive(Debug)]
pub(super) enum Office {
    LooksOn(Election),
    Leads { bid: Bid, controller: Box<Controller> },
}

#[derive(Debug)]
pub(super) struct Process {
    pub(super) candidate: Candidate,
    pub(super) life: Life,
    pub(super) office: Office,
    pub(super) sessions: BTreeMap<SwitchId, Session>,
    /// Before that it does not try again to reach a switch.
    pub(super) retry: BTreeMap<SwitchId, Duration>,
    /// What its disk has.
    pub(super) disk: Option<(Plan, Incarnations)>,
    /// It was told to start, and has given up.
    pub(super) has_ended: bool,
}

impl Process {
    pub(super) fn new(port: u16, way: Way, switches: &[SwitchId], now: Duration) -> Self {
        let candidate = Candidate::new(SocketAddr::from(([127, 0, 0, 1], port)), 0);
        Self {
            candidate,
            life: Life::Runs,
            office: Office::LooksOn(Election::new(candidate, way, switches.iter().copied(), now)),
            sessions: BTreeMap::new(),
            retry: BTreeMap::new(),
            disk: None,
            has_ended: false,
        }
    }

    pub(super) fn runs(&self) -> bool {
        self.life == Life::Runs && !self.has_ended
    }

    pub(super) fn leads(&self) -> bool {
        matches!(self.office, Office::Leads { .. }) && self.life == Life::Runs
    }

    /// As which it bids now.
    pub(super) fn bid(&self) -> Bid {
        match &self.office {
            Office::LooksOn(_) => Bid::to_look_on(self.candidate),
            Office::Leads { bid, .. } => *bid,
        }
    }

    /// A session has ended, or a switch cannot be reached.
    pub(super) fn lost(&mut self, switch: SwitchId, now: Duration) {
        self.sessions.remove(&switch);
        self.retry.insert(switch, now + Duration::from_millis(100));
        let why = "the session has ended".to_owned();
        match &mut self.office {
            Office::LooksOn(election) => election.saw(switch, Seen::Silent(why), now),
            Office::Leads { controller, .. } => controller.switch_lost(switch, why),
        }
    }
}
