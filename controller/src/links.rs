//! Which cables and switches are dead: a monitor that sends probes through every cable, without I/O and without a clock.
//!
//! ```text
//!                    PacketOut                                  PacketIn
//!   monitor ───────────────────▶ switch A ──cable──▶ switch B ───────────▶ monitor
//!      poll_transmit()                                        handle_probe()
//! ```
//!
//! # The rule
//!
//! A **direction** of a cable is probed while both switches have a control channel and programs with packets from and to the controller.
//!
//! * A probe goes out every [`PROBE_INTERVAL`], the directions' spread evenly over it. One that has not arrived after 100 ms is missed.
//!   From the first that is missed on, the next go out every 25 ms, until one arrives: so a direction is judged by several probes, and
//!   soon. When nine in a row are missed the direction is dead, at most 525 ms after the last that could have arrived. Where probes are
//!   lost by chance, one in ten, nine in a row are lost once in 10⁹ probes.
//! * A dead direction lives again when three in a row have arrived.
//! * A **cable** is down when one of its directions is dead. It is up again when both have lived for a second, counted from the first of
//!   the three; for two if it had come up less than a minute before, then four, up to 16 s.
//! * A **switch** is down when it has had no control channel for half a second: a switch that was killed, and also a healthy one whose
//!   channel is cut. That one still forwards, but it cannot be told of anything, and nothing can be known of its cables. It is up
//!   again when it has had one for a second (or more, as cables). After the monitor's start it has five seconds to be reached.
//! * While a direction cannot be probed because a switch has no channel, it is what it was before. Where one has a channel and a program
//!   without such packets, it counts as alive: nothing can be known.
//! * A switch whose channel is open but which does not do anything any more (it is frozen) is not down, but all its cables are.
//!
//! A path should use neither a cable nor a switch that is down; the cables of a switch that is down are not listed unless they were seen to be.
//!
//! What a monitor that was held up itself (a machine that slept) did not see is not counted: probes get as much longer.
//!
//! Probes carry a token that the monitor was given at random: those of another controller, and forged ones, say nothing. Nor does one that
//! arrives for the second time.

mod cables;
mod damped;
mod probe;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fatbtree_topology::SwitchId;
use fatbtree_verbs::time::{Duration, Instant};

pub use cables::{Cable, CableEnd, Outages, cables};
use damped::Damped;
pub use probe::{ETHER_TYPE, is_probe};

/// Between two probes of a direction of which none is missed.
pub const PROBE_INTERVAL: Duration = Duration::from_millis(150);

/// Between two probes while it is to be found out whether a direction is dead.
const HURRY: Duration = Duration::from_millis(25);

/// A probe that has not arrived by then is missed.
const OVERDUE: Duration = Duration::from_millis(100);

/// Missed probes in a row after which a direction is dead.
const MISSES: u32 = 9;

/// Probes in a row after which a direction lives again.
const PROOFS: u32 = 3;

/// Probes of a direction whose arrival is waited for; older ones are forgotten.
const OUTSTANDING: usize = 32;

/// A switch may be without a control channel for so long.
const SILENCE: Duration = Duration::from_millis(500);

/// Silence after which a cable without any probe since the monitor began is down.
const FIRST_SILENCE: Duration = Duration::from_secs(5);

/// Lateness of a timer from which the monitor was held up.
const LATE: Duration = Duration::from_millis(50);

/// A switch's control channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Channel {
    /// No session.
    Lost,
    /// A session.
    Open {
        /// Whether packets pass from and to the controller.
        has_packets: bool,
    },
}

/// A probe to be sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Probe {
    /// The switch that is to send it.
    pub switch: SwitchId,
    /// Port of the probe.
    pub port: u16,
    /// An Ethernet frame.
    pub frame: Vec<u8>,
}

/// Watches the cables between switches.
///
/// Time never goes back.
///
/// ```
/// use fatbtree_controller::links::{Cable, CableEnd, Channel, LinkMonitor};
/// use fatbtree_topology::SwitchId;
/// use fatbtree_verbs::time::{Duration, Instant};
///
/// let end = |switch, port| CableEnd { switch: SwitchId(switch), port };
/// let cable = Cable { a: end(0, 3), b: end(1, 0) };
/// let mut monitor = LinkMonitor::new([cable], [SwitchId(0), SwitchId(1)], 0x7a3f_0001, Instant::ZERO);
/// for switch in 0..2 {
///     monitor.set_channel(Instant::ZERO, SwitchId(switch), Channel::Open { has_packets: true });
/// }
/// // Every probe is lost.
/// let mut now = Instant::ZERO;
/// while monitor.outages().cables.is_empty() {
///     now = monitor.poll_timeout().expect("there is always a next probe");
///     monitor.handle_timeout(now);
///     while monitor.poll_transmit().is_some() {}
/// }
/// assert!(now < Instant::ZERO + Duration::from_millis(600));
/// ```
#[derive(Debug)]
pub struct LinkMonitor {
    token: u64,
    cables: Vec<Watched>,
    /// Directions of cable `i`: from `a` to `b` at `2 i`, from `b` to `a` at `2 i + 1`.
    directions: Vec<Direction>,
    by_sender: BTreeMap<CableEnd, usize>,
    switches: BTreeMap<SwitchId, Reached>,
    timers: Timers,
    transmit: VecDeque<Probe>,
    outages: Outages,
    is_news: bool,
    ignored: u64,
}

#[derive(Debug)]
struct Watched {
    cable: Cable,
    state: Damped,
}

#[derive(Debug)]
struct Reached {
    channel: Channel,
    /// Directions that begin or end here.
    directions: Vec<usize>,
    /// Time at which the direction is down, if it has no channel.
    down_at: Instant,
    state: Damped,
}

#[derive(Debug)]
struct Direction {
    from: CableEnd,
    to: CableEnd,
    /// Regular probes go out at this time and every interval later.
    phase: Instant,
    is_probed: bool,
    /// Time of the next probe.
    next: Instant,
    /// Number of the last probe that was sent.
    sequence: u32,
    outstanding: VecDeque<Sent>,
    life: Life,
}

#[derive(Debug)]
struct Sent {
    sequence: u32,
    at: Instant,
    is_missed: bool,
}

#[derive(Debug)]
enum Life {
    Alive { since: Instant, missed: u32 },
    Dead { arrived: u32, first_at: Instant, last: u32 },
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Timer {
    Direction(usize),
    Cable(usize),
    Switch(SwitchId),
}

/// One time for each timer.
#[derive(Debug, Default)]
struct Timers {
    by_time: BTreeSet<(Instant, Timer)>,
    times: BTreeMap<Timer, Instant>,
}

impl Timers {
    fn set(&mut self, timer: Timer, at: Option<Instant>) {
        let before = match at {
            Some(at) => self.times.insert(timer, at),
            None => self.times.remove(&timer),
        };
        if let Some(before) = before {
            self.by_time.remove(&(before, timer));
        }
        self.by_time.extend(at.map(|at| (at, timer)));
    }

    fn first(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    fn pop(&mut self, now: Instant) -> Option<Timer> {
        let (at, timer) = *self.by_time.first().filter(|(at, _)| *at <= now)?;
        self.by_time.remove(&(at, timer));
        self.times.remove(&timer);
        Some(timer)
    }
}

impl LinkMonitor {
    /// Watches these cables, and these switches, which are all reached for at `now`. `token` is drawn at random. A cable one end of which
    /// has another cable already, or is no switch's, is not watched.
    pub fn new(
        cables: impl IntoIterator<Item = Cable>,
        switches: impl IntoIterator<Item = SwitchId>,
        token: u64,
        now: Instant,
    ) -> Self {
        let reached = || Reached {
            channel: Channel::Lost,
            directions: Vec::new(),
            down_at: now + FIRST_SILENCE,
            state: Damped::default(),
        };
        let mut monitor = Self {
            token,
            cables: Vec::new(),
            directions: Vec::new(),
            by_sender: BTreeMap::new(),
            switches: switches.into_iter().map(|switch| (switch, reached())).collect(),
            timers: Timers::default(),
            transmit: VecDeque::new(),
            outages: Outages::default(),
            is_news: false,
            ignored: 0,
        };
        for cable in cables {
            let is_free = |end: &CableEnd| {
                monitor.switches.contains_key(&end.switch) && !monitor.by_sender.contains_key(end)
            };
            if cable.a == cable.b || ![cable.a, cable.b].iter().all(is_free) {
                continue;
            }
            for (from, to) in [(cable.a, cable.b), (cable.b, cable.a)] {
                let number = monitor.directions.len();
                monitor.by_sender.insert(from, number);
                for end in [from, to] {
                    if let Some(reached) = monitor.switches.get_mut(&end.switch) {
                        reached.directions.push(number);
                    }
                }
                monitor.directions.push(Direction::new(from, to, now));
            }
            monitor.cables.push(Watched { cable, state: Damped::default() });
        }
        let count = monitor.directions.len().max(1) as u64;
        for (direction, number) in monitor.directions.iter_mut().zip(0..) {
            direction.phase = now + PROBE_INTERVAL * number / count;
        }
        for (switch, reached) in &monitor.switches {
            monitor.timers.set(Timer::Switch(*switch), Some(reached.down_at));
        }
        monitor
    }

    // ---- what happens outside ----

    /// A switch's control channel is there, or is gone. Any channel that there was before is another one.
    pub fn set_channel(&mut self, now: Instant, switch: SwitchId, channel: Channel) {
        let Some(reached) = self.switches.get_mut(&switch) else { return };
        if channel == Channel::Lost && reached.channel == Channel::Lost {
            return;
        }
        match channel {
            Channel::Lost => {
                reached.down_at = now + SILENCE;
                reached.state.pause();
            }
            Channel::Open { .. } => reached.state.good(now),
        }
        reached.channel = channel;
        for number in reached.directions.clone() {
            self.begin_anew(number, now);
        }
        self.switch(switch, now);
    }

    /// A frame that came from the switch's port `port` to the controller as a probe. Says whether it was one that was waited for.
    pub fn handle_probe(&mut self, now: Instant, switch: SwitchId, port: u16, frame: &[u8]) -> bool {
        let found = probe::read(frame, self.token);
        let direction = found.and_then(|found| Some((*self.by_sender.get(&found.from)?, found.sequence)));
        let arrived = direction.filter(|(number, sequence)| {
            let direction = &mut self.directions[*number];
            direction.to == CableEnd { switch, port } && direction.arrived(*sequence, now)
        });
        match arrived {
            Some((number, _)) => self.direction(number, now),
            None => self.ignored += 1,
        }
        arrived.is_some()
    }

    /// Handles what is due at [`poll_timeout`](Self::poll_timeout), or later. Hand over what has arrived by then first.
    pub fn handle_timeout(&mut self, now: Instant) {
        if let Some(late) = self.timers.first().map(|due| now - due).filter(|late| *late > LATE) {
            let all = self.directions.iter_mut().flat_map(|direction| &mut direction.outstanding);
            all.for_each(|sent| sent.at = (sent.at + late).min(now));
        }
        while let Some(timer) = self.timers.pop(now) {
            match timer {
                Timer::Direction(number) => self.direction(number, now),
                Timer::Cable(number) => self.cable(number, now),
                Timer::Switch(switch) => self.switch(switch, now),
            }
        }
    }

    // ---- results ----

    /// Time at which there is something to do next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.first()
    }

    /// The next probe to send.
    pub fn poll_transmit(&mut self) -> Option<Probe> {
        self.transmit.pop_front()
    }

    /// Dead cables and switches.
    pub fn outages(&self) -> &Outages {
        &self.outages
    }

    /// Dead cables and switches, if they have changed since the last call.
    pub fn poll_outages(&mut self) -> Option<&Outages> {
        std::mem::take(&mut self.is_news).then_some(&self.outages)
    }

    /// Frames that were no probe of ours, or came in at the wrong place, or for the second time.
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    // ---- within ----

    fn has_packets(&self, end: CableEnd) -> bool {
        let reached = self.switches.get(&end.switch);
        reached.is_some_and(|reached| reached.channel == Channel::Open { has_packets: true })
    }

    fn is_lost(&self, end: CableEnd) -> bool {
        self.switches.get(&end.switch).is_none_or(|reached| reached.channel == Channel::Lost)
    }

    /// Another channel: what was on its way is lost.
    fn begin_anew(&mut self, number: usize, now: Instant) {
        let ends = [self.directions[number].from, self.directions[number].to];
        let is_probed = ends.iter().all(|end| self.has_packets(*end));
        let is_lost = ends.iter().any(|end| self.is_lost(*end));
        let direction = &mut self.directions[number];
        direction.outstanding.clear();
        direction.is_probed = is_probed;
        direction.next = direction.next_regular(now);
        match &mut direction.life {
            Life::Dead { arrived, .. } if is_probed || is_lost => *arrived = 0,
            life => *life = Life::Alive { since: now, missed: 0 },
        }
        self.direction(number, now);
    }

    fn direction(&mut self, number: usize, now: Instant) {
        let direction = &mut self.directions[number];
        if direction.is_probed {
            direction.find_missed(now);
            if direction.next <= now {
                let frame = direction.send(now, self.token);
                // A caller that does not take them loses them.
                if self.transmit.len() < 2 * self.directions.len() {
                    self.transmit.push_back(frame);
                }
            }
        }
        let due = self.directions[number].poll_timeout();
        self.timers.set(Timer::Direction(number), due);
        self.cable(number / 2, now);
    }

    fn cable(&mut self, number: usize, now: Instant) {
        let both = &self.directions[2 * number..2 * number + 2];
        let is_lost = both.iter().any(|direction| self.is_lost(direction.from));
        let Watched { cable, state } = &mut self.cables[number];
        let alive_since = |direction: &Direction| match direction.life {
            Life::Alive { since, .. } => Some(since),
            Life::Dead { .. } => None,
        };
        match alive_since(&both[0]).zip(alive_since(&both[1])) {
            None => state.bad(now),
            Some(_) if is_lost => state.pause(),
            Some((one, other)) => state.good(one.max(other)),
        }
        state.handle_timeout(now);
        self.timers.set(Timer::Cable(number), state.poll_timeout());
        self.is_news |= match state.is_down() {
            true => self.outages.cables.insert(*cable),
            false => self.outages.cables.remove(cable),
        };
    }

    fn switch(&mut self, switch: SwitchId, now: Instant) {
        let Some(reached) = self.switches.get_mut(&switch) else { return };
        let is_lost = reached.channel == Channel::Lost;
        if is_lost && reached.down_at <= now {
            reached.state.bad(now);
        }
        reached.state.handle_timeout(now);
        let is_down = reached.state.is_down();
        let due = if is_lost && !is_down { Some(reached.down_at) } else { reached.state.poll_timeout() };
        self.timers.set(Timer::Switch(switch), due);
        self.is_news |= match is_down {
            true => self.outages.switches.insert(switch),
            false => self.outages.switches.remove(&switch),
        };
    }
}

impl Direction {
    fn new(from: CableEnd, to: CableEnd, now: Instant) -> Self {
        Self {
            from,
            to,
            phase: now,
            is_probed: false,
            next: now,
            sequence: 0,
            outstanding: VecDeque::new(),
            life: Life::Alive { since: now, missed: 0 },
        }
    }

    /// The first regular time after this one.
    fn next_regular(&self, now: Instant) -> Instant {
        if now < self.phase {
            return self.phase;
        }
        let passed = (now - self.phase).as_nanos() / PROBE_INTERVAL.as_nanos();
        self.phase + PROBE_INTERVAL * (passed + 1)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let waited_for = self.outstanding.iter().find(|sent| !sent.is_missed).map(|sent| sent.at + OVERDUE);
        self.is_probed.then(|| waited_for.map_or(self.next, |at| at.min(self.next)))
    }

    fn find_missed(&mut self, now: Instant) {
        for sent in self.outstanding.iter_mut().filter(|sent| !sent.is_missed && sent.at + OVERDUE <= now) {
            sent.is_missed = true;
            if let Life::Alive { missed, .. } = &mut self.life {
                *missed += 1;
                if *missed == 1 {
                    self.next = now;
                }
                if *missed >= MISSES {
                    self.life = Life::Dead { arrived: 0, first_at: now, last: 0 };
                }
            }
        }
    }

    fn send(&mut self, now: Instant, token: u64) -> Probe {
        self.sequence = self.sequence.wrapping_add(1);
        if self.outstanding.len() >= OUTSTANDING {
            self.outstanding.pop_front();
        }
        self.outstanding.push_back(Sent { sequence: self.sequence, at: now, is_missed: false });
        let is_doubtful = matches!(self.life, Life::Alive { missed: 1.., .. });
        self.next = if is_doubtful { now + HURRY } else { self.next_regular(now) };
        let frame = probe::write(self.from, self.sequence, token);
        Probe { switch: self.from.switch, port: self.from.port, frame }
    }

    /// Says whether it was waited for.
    fn arrived(&mut self, sequence: u32, now: Instant) -> bool {
        let Some(place) = self.outstanding.iter().position(|sent| sent.sequence == sequence) else {
            return false;
        };
        self.outstanding.remove(place);
        match &mut self.life {
            Life::Alive { missed, .. } => {
                if std::mem::take(missed) > 0 {
                    self.next = self.next_regular(now);
                }
            }
            Life::Dead { arrived, first_at, last } => {
                if *arrived == 0 || last.wrapping_add(1) != sequence {
                    (*arrived, *first_at) = (0, now);
                }
                (*arrived, *last) = (*arrived + 1, sequence);
                if *arrived >= PROOFS {
                    self.life = Life::Alive { since: *first_at, missed: 0 };
                }
            }
        }
        true
    }
}
