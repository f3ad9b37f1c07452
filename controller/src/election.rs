//! Election of the primary controller, without I/O.
//!
//! ```text
//!                      a switch says: a higher bid is primary
//!            ┌───────────────────────────────────────────────────┐
//!            ▼                                                   │
//!   Election: looks on ──no primary, for as long as its way asks──► leads with a Bid, the same at all switches
//! ```
//!
//! P4Runtime elects a primary for each switch by the highest election id. A cluster needs one primary for all switches, so an election id
//! is a [`Bid`]: a term, and a candidate. It also counts the candidate's sessions with the switch. A controller that looks on bids in term 0, which never leads; so it hears of every change.
//! When it comes to lead, its bid has a higher term than all that any switch has seen.
//!
//! * Only a controller that leads, or was started to take over, bids above another one that lives.
//! * A leader that hears of a higher bid stops leading all switches, and looks on again. Bids are ordered, so of several leaders one
//!   remains.
//! * A controller that looks on leads only once more switches are without a primary than have one. So a controller that is cut off from
//!   one switch does not lose the others. Switches that do not answer count for neither side.
//! * A controller whose process was suspended looks again at all switches before it leads: what it knows may be long out of date.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use fatbtree_p4runtime::Mastership;
use fatbtree_p4runtime::client::KEEP_ALIVE;
use fatbtree_topology::SwitchId;
use fatbtree_verbs::time::{Duration, Instant};

/// A controller by its gRPC address, and a number that tells two processes at one address apart. Fits in 64 bits, so that switches
/// can pass it on to the other controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Candidate(u64);

impl Candidate {
    /// The controller that listens at an address. `draw` is random.
    pub fn new(address: SocketAddr, draw: u16) -> Self {
        // An IPv6 address does not fit: such a candidate has no name, and draws for the other bits as well.
        let place = match address.ip() {
            IpAddr::V4(ip) => u64::from(ip.to_bits()) << 16 | u64::from(address.port()),
            IpAddr::V6(_) => u64::from(address.port()),
        };
        Self(place << 16 | u64::from(draw))
    }

    /// Its gRPC address, if it has an IPv4 address.
    pub fn address(self) -> Option<SocketAddr> {
        let ip = Ipv4Addr::from_bits((self.0 >> 32) as u32);
        let address = SocketAddr::new(ip.into(), (self.0 >> 16) as u16);
        (!ip.is_unspecified()).then_some(address)
    }

    /// Whether both are known to be processes at the same address: the earlier one has ended, or the later one could not listen there.
    pub fn shares_address_with(self, other: Self) -> bool {
        self.address().is_some() && self.address() == other.address()
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address() {
            Some(address) => write!(f, "the controller at {address}"),
            None => f.write_str("another controller"),
        }
    }
}

/// Order of leaders. The higher term wins; in one term, the higher candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bid {
    /// Counts the changes of the leader, up to [`Bid::LAST_TERM`]; 0 for a controller that looks on.
    pub term: u64,
    /// The controller that bids.
    pub candidate: Candidate,
}

impl Bid {
    /// The bid of a controller that looks on.
    pub fn to_look_on(candidate: Candidate) -> Self {
        Self { term: 0, candidate }
    }

    /// The highest term that fits in an election id.
    pub const LAST_TERM: u64 = (1 << 48) - 1;

    /// The election id of this bid in the candidate's session of that number with a switch: 48 bits of term, 64 of candidate, 16 of session.
    ///
    /// A later session has a higher election id, so a switch refuses what an earlier session wrote and what comes late. After
    /// 65,535 sessions with a switch, election ids stay the same.
    pub fn election_id(self, session: u64) -> u128 {
        let session = session.min(u64::from(u16::MAX));
        u128::from(self.term.min(Self::LAST_TERM)) << 80
            | u128::from(self.candidate.0) << 16
            | u128::from(session)
    }

    /// The bid of an election id, in any session.
    pub fn of(election_id: u128) -> Self {
        Self { term: (election_id >> 80) as u64, candidate: Candidate((election_id >> 16) as u64) }
    }
}

/// Knowledge about a switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A controller that leads is its primary.
    Led(Bid),
    /// No controller that leads is its primary. The highest bid that it has seen, if any.
    Vacant(Option<Bid>),
    /// The switch does not answer, for this reason.
    Silent(String),
}

impl Seen {
    /// Knowledge from a switch's notice.
    pub fn of(notice: &Mastership) -> Self {
        let leads = |highest: &Option<u128>| highest.map(Bid::of).filter(|bid| bid.term > 0);
        match notice {
            // Primary with a bid of term 0: the switch was started anew, or never had a leader.
            Mastership::Unknown | Mastership::Primary => Self::Vacant(None),
            Mastership::Backup { highest } => leads(highest).map_or(Self::Vacant(None), Self::Led),
            Mastership::Vacant { highest } => Self::Vacant(leads(highest)),
            Mastership::Ended { reason } => Self::Silent(reason.clone()),
            other => Self::Silent(format!("expected a notice of the primary, found {other:?}")),
        }
    }
}

/// Way in which a controller becomes primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// At once if there is no primary. It gives up if there is one.
    Start,
    /// To lead once there has been no primary for [`VACANT`].
    StandBy,
    /// At once, whether there is a primary or not.
    TakeOver,
}

/// How long a standby waits before it takes the place of a primary that is gone: a primary that has only lost its connection, or is started
/// again, comes back sooner.
pub const VACANT: Duration = Duration::from_secs(2);
/// How long a controller that was started to be primary waits for another one to go, before it gives up. The other one may be frozen, or
/// its machine gone: software switches notice that after twice [`KEEP_ALIVE`], and two seconds more are for the notices to arrive. Switches
/// that notice it later keep their primary for longer than that; then `--take-over` helps.
pub const OTHER: Duration = Duration::from_secs(2 * KEEP_ALIVE.as_secs() + 2);
/// Time to wait for switches that have not answered yet.
const LOOK: Duration = Duration::from_secs(1);
/// The longest time between two verdicts after which what switches have said still counts. In a longer one the process was suspended, and
/// newer notices wait unread.
const STALL: Duration = Duration::from_secs(1);

/// Decision of a controller that looks on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Keep looking.
    LookOn,
    /// Lead.
    Lead(Leadership),
    /// The controller was suspended: end its sessions, and look on with another `Election`.
    LookAnew,
    /// Another controller is primary, and stays it.
    GiveUp {
        /// Its bid.
        by: Bid,
    },
}

/// A leader's beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leadership {
    /// The bid for all switches.
    pub bid: Bid,
    /// No other controller has led since the one whose plans this one has kept: they are active if their epoch is.
    pub goes_on: bool,
}

/// A controller that looks on.
///
/// Its driver opens a session with every switch, bids [`to_look_on`](Bid::to_look_on), passes on what the switch says by
/// [`saw`](Self::saw), and asks for the [`verdict`](Self::verdict) after that and every 100 ms. Time never goes back, and goes on while the
/// process is suspended.
#[derive(Debug)]
pub struct Election {
    candidate: Candidate,
    way: Way,
    last: Option<Bid>,
    /// `None` for a switch that has not been heard of.
    seen: BTreeMap<SwitchId, Option<Seen>>,
    began: Instant,
    /// Time of the last question.
    asked: Instant,
    /// Since when most switches have had no primary.
    vacant_since: Option<Instant>,
    /// Since when a switch has had one.
    led_since: Option<Instant>,
}

impl Election {
    /// Begins to look on. `last` is the bid under which the plans were kept that this controller has, if any.
    pub fn new(
        candidate: Candidate,
        way: Way,
        last: Option<Bid>,
        switches: impl IntoIterator<Item = SwitchId>,
        now: Instant,
    ) -> Self {
        let seen = switches.into_iter().map(|switch| (switch, None)).collect();
        Self { candidate, way, last, seen, began: now, asked: now, vacant_since: None, led_since: None }
    }

    /// A switch has said something, or does not answer.
    pub fn saw(&mut self, switch: SwitchId, seen: Seen, now: Instant) {
        self.seen.insert(switch, Some(seen));
        let (led, vacant) = (self.leaders().count(), self.vacant());
        let since = |is_so: bool, before: Option<Instant>| is_so.then(|| before.unwrap_or(now));
        self.vacant_since = since(vacant > led, self.vacant_since);
        self.led_since = since(led > 0, self.led_since);
    }

    fn leaders(&self) -> impl Iterator<Item = Bid> {
        self.seen.values().filter_map(|seen| match seen {
            Some(Seen::Led(bid)) => Some(*bid),
            _ => None,
        })
    }

    fn vacant(&self) -> usize {
        self.seen.values().filter(|seen| matches!(seen, Some(Seen::Vacant(_)))).count()
    }

    /// The highest bid of the controllers that are primary of a switch now.
    pub fn leader(&self) -> Option<Bid> {
        self.leaders().max()
    }

    /// The decision.
    pub fn verdict(&mut self, now: Instant) -> Verdict {
        if now > self.asked + STALL {
            return Verdict::LookAnew;
        }
        self.asked = now;
        let passed = |since: Option<Instant>, time| since.is_some_and(|since| now >= since + time);
        let has_looked = self.seen.values().all(Option::is_some) || passed(Some(self.began), LOOK);
        let leads = match self.way {
            Way::Start => has_looked && self.vacant() > 0 && self.led_since.is_none(),
            Way::StandBy => {
                // One that comes back at the address of the last leader waits for no other.
                let is_its = |bid: Bid| bid.candidate.shares_address_with(self.candidate);
                let was_last = has_looked && self.led_since.is_none() && self.highest().is_some_and(is_its);
                passed(self.vacant_since, VACANT) || was_last && self.vacant() > 0
            }
            Way::TakeOver => has_looked && (self.vacant() > 0 || self.led_since.is_some()),
        };
        if leads {
            let term = self.highest().map_or(0, |bid| bid.term).saturating_add(1).min(Bid::LAST_TERM);
            let bid = Bid { term, candidate: self.candidate };
            let goes_on = self.highest().is_none_or(|highest| self.last == Some(highest));
            return Verdict::Lead(Leadership { bid, goes_on });
        }
        match self.leader() {
            Some(by) if self.way == Way::Start && passed(self.led_since, OTHER) => Verdict::GiveUp { by },
            _ => Verdict::LookOn,
        }
    }

    /// The highest bid of a leader that any switch has seen.
    fn highest(&self) -> Option<Bid> {
        let bids = self.seen.values().filter_map(|seen| match seen {
            Some(Seen::Led(bid)) => Some(*bid),
            Some(Seen::Vacant(bid)) => *bid,
            Some(Seen::Silent(_)) | None => None,
        });
        bids.max()
    }

    /// Reason for which this controller does not lead, in words that follow "not primary: ".
    pub fn why_not(&self, name: impl Fn(SwitchId) -> String) -> String {
        if let Some(leader) = self.leader() {
            return format!("{} is", leader.candidate);
        }
        if self.vacant() > 0 {
            return "no controller is, and this one takes over in a moment".to_owned();
        }
        let silent = self.seen.iter().find_map(|(switch, seen)| match seen {
            Some(Seen::Silent(reason)) => Some((*switch, reason)),
            _ => None,
        });
        match silent {
            Some((switch, reason)) => {
                format!("no switch answers; the first, {}: {reason}", name(switch))
            }
            None => "it is looking whether another one is".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests;
