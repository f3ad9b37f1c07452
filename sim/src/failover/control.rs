//! The controller as a process has it, but for its I/O: the real knowledge and decisions, the real monitor of cables, and a keeper for each
//! switch that does what the process's keepers do.

use std::collections::VecDeque;

use fatbtree_controller::links::{Channel, LinkMonitor, cables, is_probe};
use fatbtree_controller::{Change, Controller, Held, Wanted};
use fatbtree_topology::{Cluster, SwitchId};
use fatbtree_verbs::time::{Duration, Instant};

use super::channel::{Answer, Ask};
use crate::network::COOKIE;

/// Between two tries to reach a switch.
const PAUSE: Duration = Duration::from_millis(100);
/// Between two looks at what a switch runs.
const LOOK: Duration = Duration::from_secs(1);
/// For an answer, as `fatbtree controller` has it by default.
const PATIENCE: Duration = Duration::from_secs(3);
/// For a program that is loaded.
const LOADING: Duration = Duration::from_secs(120);
/// Changes that are written in one go.
const PIECE: usize = 1_000;
/// Few changes do not wait.
const FEW: usize = 64;
/// What the controller does now.
#[derive(Debug)]
pub(super) enum Act {
    /// Asks a switch in a session.
    Ask(SwitchId, u64, Ask),
    /// Wakes a keeper later.
    Wake(Instant, SwitchId, u64),
}

/// Where a keeper is.
#[derive(Debug, PartialEq)]
enum Doing {
    Pausing,
    Opening,
    LookingFirst,
    Loading,
    Reading,
    Idle,
    Looking,
    /// Until these changes may be written.
    Admitting(Vec<Change>),
    Writing(Vec<Change>),
}

/// One switch.
#[derive(Debug)]
struct Keeper {
    switch: SwitchId,
    session: u64,
    doing: Doing,
    /// The wake that counts.
    wake: u64,
    look_at: Instant,
    /// Probes go to it.
    has_packets: bool,
    held: Held,
    told: Option<u64>,
    settled: Option<Wanted>,
    pieces: VecDeque<Vec<Change>>,
    /// When some of a plan may be written.
    turn: Option<Instant>,
    /// The version that these are for.
    seen: u64,
}

#[derive(Debug)]
pub(super) struct Control {
    cluster: Cluster,
    pub(super) controller: Controller,
    monitor: LinkMonitor,
    keepers: Vec<Keeper>,
    /// When all that was admitted so far is written.
    written_at: Instant,
    writes_per_s: u64,
    acts: Vec<Act>,
    /// What is down is told to nobody: to see what the monitor is good for.
    is_blind: bool,
    /// Requests that switches have refused, and why the last one.
    pub(super) refused: (u64, String),
}

fn std(at: Instant) -> std::time::Duration {
    std::time::Duration::from_nanos(at.as_nanos())
}

impl Control {
    pub(super) fn new(cluster: &Cluster, writes_per_s: u64, draw: u8, token: u64, is_blind: bool) -> Self {
        let ids: Vec<SwitchId> = cluster.tree().switches().iter().map(|switch| switch.id).collect();
        let keeper = |switch: &SwitchId| Keeper {
            switch: *switch,
            session: 0,
            doing: Doing::Pausing,
            wake: 0,
            look_at: Instant::ZERO,
            has_packets: false,
            held: Held::default(),
            told: None,
            settled: None,
            pieces: VecDeque::new(),
            turn: None,
            seen: 0,
        };
        let mut control = Self {
            cluster: cluster.clone(),
            controller: Controller::new(cluster, 1_000, draw),
            keepers: ids.iter().map(keeper).collect(),
            monitor: LinkMonitor::new(cables(cluster), ids.iter().copied(), token, std(Instant::ZERO)),
            written_at: Instant::ZERO,
            writes_per_s,
            acts: Vec::new(),
            is_blind,
            refused: (0, String::new()),
        };
        (0..ids.len()).for_each(|number| control.open(Instant::ZERO, number));
        control
    }

    /// What it does now.
    pub(super) fn take_acts(&mut self) -> Vec<Act> {
        std::mem::take(&mut self.acts)
    }

    /// When the monitor has something to do.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.monitor.next_deadline().map(|at| Instant::from_nanos(at.as_nanos() as u64))
    }

    /// Does what is due and what follows from what was heard.
    pub(super) fn turn(&mut self, now: Instant) {
        if self.next_deadline().is_some_and(|at| at <= now) {
            self.monitor.handle_timeout(std(now));
        }
        while let Some(probe) = self.monitor.poll_transmit() {
            let keeper = &self.keepers[probe.switch.0 as usize];
            if keeper.has_packets {
                let ask = Ask::Packet(probe.port, probe.frame);
                self.acts.push(Act::Ask(probe.switch, keeper.session, ask));
            }
        }
        if let Some(outages) = self.monitor.poll_outages().filter(|_| !self.is_blind) {
            self.controller.network_changed(outages.in_network(&self.cluster));
        }
        self.controller.at(std(now));
        // What one is told may change what is wanted of the others.
        loop {
            let version = self.controller.desired().0;
            let is_behind = |keeper: &Keeper| match keeper.doing {
                Doing::Idle => keeper.told != Some(version),
                // A way round something that is down comes before the rest of a plan.
                Doing::Admitting(_) => keeper.seen != version,
                _ => false,
            };
            let Some(number) = self.keepers.iter().position(is_behind) else { return };
            self.go_on(now, number);
        }
    }

    /// Whether all switches are reached and hold what they should, and nothing is down.
    pub(super) fn is_whole(&self) -> bool {
        let version = self.controller.desired().0;
        let holds = |keeper: &Keeper| keeper.told == Some(version);
        let outages = self.monitor.outages();
        self.keepers.iter().all(holds)
            && (outages.cables.is_empty() && outages.switches.is_empty() || self.is_blind)
            && self.controller.reload().is_none()
    }

    /// What is down, as the monitor sees it: switches, cables.
    pub(super) fn down(&self) -> (usize, usize) {
        (self.monitor.outages().switches.len(), self.monitor.outages().cables.len())
    }

    /// What keepers are at, for whoever looks for a fault.
    pub(super) fn describe(&self) -> String {
        let not_idle = self.keepers.iter().filter(|keeper| keeper.doing != Doing::Idle);
        let doing = |keeper: &Keeper| match &keeper.doing {
            Doing::Admitting(changes) => format!("{:?} admits {}", keeper.switch, changes.len()),
            Doing::Writing(changes) => format!("{:?} writes {}", keeper.switch, changes.len()),
            other => format!("{:?} {other:?}", keeper.switch),
        };
        let doing: Vec<String> = not_idle.map(doing).collect();
        let (stage, refused) = (self.controller.reload().map(|(_, _, stage)| stage), &self.refused);
        format!("down {:?}; reload {stage:?}; {doing:?}; refused {refused:?}", self.down())
    }

    // ---- keepers ----

    /// A keeper is woken.
    pub(super) fn wake(&mut self, now: Instant, switch: SwitchId, wake: u64) {
        let number = switch.0 as usize;
        if self.keepers[number].wake != wake {
            return;
        }
        match &mut self.keepers[number].doing {
            Doing::Pausing => self.open(now, number),
            Doing::Idle => {
                self.keepers[number].doing = Doing::Looking;
                self.ask(now, number, Ask::Cookie, PATIENCE);
            }
            Doing::Admitting(changes) => {
                let changes = std::mem::take(changes);
                self.keepers[number].turn = None;
                self.write(now, number, changes);
            }
            _ => self.lost(now, number, "no answer in time"),
        }
    }

    /// A switch says something in a session.
    pub(super) fn heard(&mut self, now: Instant, switch: SwitchId, session: u64, answer: Answer) {
        let number = switch.0 as usize;
        if self.keepers[number].session != session || self.keepers[number].doing == Doing::Pausing {
            return;
        }
        match (answer, &mut self.keepers[number].doing) {
            (Answer::Packet { port, reason, frame }, _) => {
                if reason == 0 && is_probe(&frame) {
                    self.monitor.handle_probe(std(now), switch, port, &frame);
                }
            }
            (Answer::Closed, _) => self.lost(now, number, "the channel is closed"),
            (Answer::Refused(why), _) => {
                self.refused.0 += 1;
                self.refused.1.clone_from(&why);
                self.lost(now, number, &why);
            }
            (Answer::Opened, Doing::Opening) => {
                self.keepers[number].doing = Doing::LookingFirst;
                self.ask(now, number, Ask::Cookie, PATIENCE);
            }
            (Answer::Cookie(Some(COOKIE)), Doing::LookingFirst) => self.begin(now, number),
            (Answer::Cookie(Some(COOKIE)), Doing::Looking) => {
                self.keepers[number].look_at = now + LOOK;
                self.go_on(now, number);
            }
            (Answer::Cookie(_), _) => {
                self.keepers[number].doing = Doing::Loading;
                self.ask(now, number, Ask::Load, LOADING);
            }
            (Answer::Loaded, _) => self.begin(now, number),
            (Answer::Holds(held), _) => {
                let keeper = &mut self.keepers[number];
                (keeper.held, keeper.told, keeper.settled) = (held, None, None);
                keeper.look_at = now;
                let serving = keeper.held.serving();
                self.controller.at(std(now));
                self.controller.switch_read(switch, serving);
                self.go_on(now, number);
            }
            (Answer::Written, Doing::Writing(changes)) => {
                let changes = std::mem::take(changes);
                let keeper = &mut self.keepers[number];
                keeper.held.apply(&changes);
                // What is wanted by now comes before the rest of what was.
                match keeper.pieces.pop_front() {
                    Some(piece) if keeper.seen == self.controller.desired().0 => {
                        self.admit(now, number, piece);
                    }
                    _ => self.go_on(now, number),
                }
            }
            (Answer::Opened | Answer::Written, _) => {}
        }
    }

    fn open(&mut self, now: Instant, number: usize) {
        let keeper = &mut self.keepers[number];
        keeper.session += 1;
        keeper.doing = Doing::Opening;
        self.ask(now, number, Ask::Open, PATIENCE);
    }

    /// It runs the program: probes go to it, and it is read.
    fn begin(&mut self, now: Instant, number: usize) {
        let keeper = &mut self.keepers[number];
        let (switch, had_packets) = (keeper.switch, std::mem::replace(&mut keeper.has_packets, true));
        keeper.doing = Doing::Reading;
        if !had_packets {
            self.monitor.set_channel(std(now), switch, Channel::Open { has_packets: true });
        }
        self.ask(now, number, Ask::Read, PATIENCE);
    }

    fn go_on(&mut self, now: Instant, number: usize) {
        let (version, desired) = self.controller.desired();
        let keeper = &mut self.keepers[number];
        let wanted = desired.wanted(keeper.switch);
        keeper.seen = version;
        if keeper.settled.as_ref() != Some(&wanted)
            && let Some(changes) = wanted.next_changes(&keeper.held)
        {
            keeper.settled = None;
            keeper.pieces = changes.chunks(PIECE).map(<[Change]>::to_vec).collect();
            let first = keeper.pieces.pop_front().unwrap_or_default();
            if keeper.told.take().is_some() {
                self.controller.switch_converging(self.keepers[number].switch);
            }
            return self.admit(now, number, first);
        }
        keeper.settled = Some(wanted);
        keeper.doing = Doing::Idle;
        let (switch, look_at) = (keeper.switch, keeper.look_at.max(now));
        self.wake_at(look_at, number);
        if self.keepers[number].told != Some(version) {
            self.keepers[number].told = Some(version);
            self.controller.switch_settled(switch, version);
        }
    }

    fn admit(&mut self, now: Instant, number: usize, changes: Vec<Change>) {
        if changes.len() <= FEW || changes.iter().all(Change::is_route) {
            return self.write(now, number, changes);
        }
        if let Some(begin) = self.keepers[number].turn {
            self.keepers[number].doing = Doing::Admitting(changes);
            return self.wake_at(begin.max(now), number);
        }
        let begin = self.written_at.max(now);
        self.keepers[number].turn = Some(begin);
        let takes = Duration::from_nanos(1_000_000_000 * changes.len() as u64 / self.writes_per_s);
        self.written_at = begin + takes;
        self.keepers[number].doing = Doing::Admitting(changes);
        self.wake_at(begin, number);
    }

    fn write(&mut self, now: Instant, number: usize, changes: Vec<Change>) {
        self.keepers[number].doing = Doing::Writing(changes.clone());
        self.ask(now, number, Ask::Write(changes), PATIENCE);
    }

    fn lost(&mut self, now: Instant, number: usize, why: &str) {
        let keeper = &mut self.keepers[number];
        let (switch, session) = (keeper.switch, keeper.session);
        (keeper.doing, keeper.has_packets, keeper.told) = (Doing::Pausing, false, None);
        self.monitor.set_channel(std(now), switch, Channel::Lost);
        self.controller.switch_lost(switch, why.to_owned());
        self.acts.push(Act::Ask(switch, session, Ask::Close));
        self.wake_at(now + PAUSE, number);
    }

    fn ask(&mut self, now: Instant, number: usize, ask: Ask, patience: Duration) {
        let keeper = &self.keepers[number];
        self.acts.push(Act::Ask(keeper.switch, keeper.session, ask));
        self.wake_at(now + patience, number);
    }

    fn wake_at(&mut self, at: Instant, number: usize) {
        let keeper = &mut self.keepers[number];
        keeper.wake += 1;
        self.acts.push(Act::Wake(at, keeper.switch, keeper.wake));
    }
}
