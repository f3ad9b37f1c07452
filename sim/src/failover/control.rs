//! The controller without its I/O: the real primary, the real monitor of cables, and a real keeper for each switch.

use std::sync::Arc;

use fatbtree_controller::links::{Channel, LinkMonitor, cables, is_probe};
use fatbtree_controller::{
    Controller, FollowOptions, Keeper, KeeperNotice, KeeperRequest, Pace, Primary, SwitchState,
};
use fatbtree_topology::{Cluster, SwitchId};
use fatbtree_verbs::time::{Duration, Instant};

use super::channel::{Answer, Ask};
use crate::network::COOKIE;

/// Time limit for an answer, as `fatbtree controller` has it by default.
const PATIENCE: Duration = Duration::from_secs(3);
/// Time limit for loading a program.
const LOADING: Duration = Duration::from_secs(120);

/// The controller's state for one switch.
#[derive(Debug)]
struct Station {
    keeper: Keeper,
    session: u64,
    /// A request is answered until then, or the switch is lost.
    answers_by: Option<Instant>,
    /// Whether probes are sent to the switch.
    has_packets: bool,
}

#[derive(Debug)]
pub(super) struct Control {
    pub(super) primary: Primary,
    monitor: LinkMonitor,
    stations: Vec<Station>,
    pace: Pace,
    /// Requests to switches now, with their sessions.
    asks: Vec<(SwitchId, u64, Ask)>,
    /// Whether dead cables and switches are left unreported, to measure the benefit of the monitor.
    is_blind: bool,
    /// Requests that switches have refused, and why the last one.
    pub(super) refused: (u64, String),
}

impl Control {
    pub(super) fn new(cluster: &Cluster, writes_per_s: u64, draw: u8, token: u64, is_blind: bool) -> Self {
        let ids: Vec<SwitchId> = cluster.tree().switches().iter().map(|switch| switch.id).collect();
        let station = |switch: &SwitchId| Station {
            keeper: Keeper::new(*switch, Some(COOKIE)),
            session: 0,
            answers_by: None,
            has_packets: false,
        };
        Self {
            primary: Primary::new(Controller::new(cluster, 1_000, draw), FollowOptions::default()),
            stations: ids.iter().map(station).collect(),
            monitor: LinkMonitor::new(cables(cluster), ids.iter().copied(), token, Instant::ZERO),
            pace: Pace::new(writes_per_s as f64),
            asks: Vec::new(),
            is_blind,
            refused: (0, String::new()),
        }
    }

    pub(super) fn controller(&self) -> &Controller {
        self.primary.controller()
    }

    /// Requests to switches now, with their sessions.
    pub(super) fn take_asks(&mut self) -> Vec<(SwitchId, u64, Ask)> {
        std::mem::take(&mut self.asks)
    }

    /// Time at which the monitor or a keeper has something to do.
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let of = |station: &Station| station.answers_by.or(station.keeper.poll_timeout());
        let stations = self.stations.iter().filter_map(of);
        stations.chain(self.monitor.poll_timeout()).min()
    }

    /// Does what is due and what follows from answers heard. The caller carries out the primary's orders.
    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.primary.at(now);
        if self.monitor.poll_timeout().is_some_and(|at| at <= now) {
            self.monitor.handle_timeout(now);
        }
        while let Some(probe) = self.monitor.poll_transmit() {
            let station = &self.stations[probe.switch.0 as usize];
            if station.has_packets {
                self.asks.push((probe.switch, station.session, Ask::Packet(probe.port, probe.frame)));
            }
        }
        if let Some(outages) = self.monitor.poll_outages().filter(|_| !self.is_blind) {
            self.primary.network_changed(outages.clone());
        }
        for number in 0..self.stations.len() {
            if self.stations[number].answers_by.is_some_and(|at| at <= now) {
                self.lost(now, number, "no answer in time");
            }
        }
        // A notice of one switch may change the targets of the others.
        let mut has_news = true;
        while has_news {
            has_news = false;
            for number in 0..self.stations.len() {
                has_news |= self.poll(now, number);
            }
            self.primary.handle_timeout(now);
        }
    }

    /// Whether all switches are reached and hold what they should, and nothing is down.
    pub(super) fn is_whole(&self) -> bool {
        let settled = SwitchState::Settled(self.controller().desired().0);
        let holds = |station: &Station| self.controller().switch(station.keeper.switch()) == Some(&settled);
        let outages = self.monitor.outages();
        self.stations.iter().all(holds)
            && (outages.cables.is_empty() && outages.switches.is_empty() || self.is_blind)
            && self.controller().reload().is_none()
    }

    /// Number of dead switches and cables, as the monitor sees them.
    pub(super) fn down(&self) -> (usize, usize) {
        (self.monitor.outages().switches.len(), self.monitor.outages().cables.len())
    }

    /// Description of the switches, to look for a fault.
    pub(super) fn describe(&self) -> String {
        let state = |station: &Station| self.controller().switch(station.keeper.switch());
        let states: Vec<_> = self.stations.iter().map(state).collect();
        let (stage, refused) = (self.controller().reload().map(|(_, _, stage)| stage), &self.refused);
        format!("down {:?}; reload {stage:?}; {states:?}; refused {refused:?}", self.down())
    }

    // ---- keepers ----

    /// A switch says something in a session.
    pub(super) fn heard(&mut self, now: Instant, switch: SwitchId, session: u64, answer: Answer) {
        let number = switch.0 as usize;
        if self.stations[number].session != session {
            return;
        }
        match answer {
            Answer::Packet { port, reason, frame } => {
                if reason == 0 && is_probe(&frame) {
                    self.monitor.handle_probe(now, switch, port, &frame);
                }
            }
            Answer::Closed => self.lost(now, number, "the channel is closed"),
            Answer::Refused(why) => {
                self.refused.0 += 1;
                self.refused.1.clone_from(&why);
                self.lost(now, number, &why);
            }
            Answer::Kept(answer) => {
                let station = &mut self.stations[number];
                station.answers_by = None;
                station.keeper.handle_answer(now, answer);
            }
        }
    }

    /// Polls a keeper. Returns whether it had a request or a notice.
    fn poll(&mut self, now: Instant, number: usize) -> bool {
        let station = &mut self.stations[number];
        let (version, desired) = self.primary.controller().desired();
        let desired = (version, &*Arc::clone(desired));
        let request = station.keeper.poll_request(now, desired, &mut self.pace);
        let switch = station.keeper.switch();
        let mut has_news = request.is_some();
        while let Some(notice) = station.keeper.poll_notice() {
            has_news = true;
            if notice == KeeperNotice::Runs {
                station.has_packets = true;
                self.monitor.set_channel(now, switch, Channel::Open { has_packets: true });
            }
            self.primary.switch_noticed(switch, &notice);
        }
        if let Some(request) = request {
            station.session += u64::from(request == KeeperRequest::Open);
            let patience = if request == KeeperRequest::Load { LOADING } else { PATIENCE };
            station.answers_by = Some(now + patience);
            self.asks.push((switch, station.session, Ask::Keep(request)));
        }
        has_news
    }

    fn lost(&mut self, now: Instant, number: usize, why: &str) {
        let station = &mut self.stations[number];
        let (switch, session) = (station.keeper.switch(), station.session);
        // Later messages of this session are ignored.
        station.session += 1;
        (station.answers_by, station.has_packets) = (None, false);
        station.keeper.handle_lost(now, why.to_owned());
        self.monitor.set_channel(now, switch, Channel::Lost);
        self.asks.push((switch, session, Ask::Close));
    }
}
