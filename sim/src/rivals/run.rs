//! One run of rival controllers.

mod faults;
mod leader;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use fatbtree_blink::{GlobalAddress, KeyRange, Partition, TopNode, TreeTop};
use fatbtree_controller::election::{Bid, Seen, Verdict, Way};
use fatbtree_controller::grpc::{ServerHello, TREE};
use fatbtree_controller::{
    Change, Controller, FollowOptions, Generation, Generations, Keeper, KeeperAnswer, Pace, Placement, Plan,
    Primary, Registration,
};
use fatbtree_p4runtime::Mastership;
use fatbtree_p4runtime::client::{KEEP_ALIVE, election_id, uint128};
use fatbtree_p4runtime::tonic::Code;
use fatbtree_p4runtime::v1::stream_message_response::Update;
use fatbtree_switch::service::{StreamId, StreamOutput, Switch};
use fatbtree_topology::{Cluster, SwitchId};
use fatbtree_verbs::time::{Duration, Instant};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::Outcome;
use super::process::{Disk, Life, Office, Process, Session};
use crate::network::{COOKIE, Network, bid, blank};

/// Interval between turns.
const TURN: Duration = Duration::from_millis(20);
/// Time in which faults happen.
const ROUGH: Duration = Duration::from_secs(60);
/// Time limit for recovery after the last fault.
const CALM: Duration = Duration::from_secs(30);
/// Time after which no controller takes the place of another one any more.
const SETTLES: Duration = Duration::from_secs(3);
/// Time for which the recovered state has to last.
const STAYS: Duration = Duration::from_secs(20);
/// Changes of a write.
const PIECE: usize = 40;

/// A write on its way.
struct Write {
    arrives: Instant,
    from: usize,
    switch: SwitchId,
    stream: StreamId,
    election_id: u128,
    changes: Vec<Change>,
}

pub(super) struct World {
    random: ChaCha8Rng,
    now: Instant,
    described: Cluster,
    network: Network,
    ids: Vec<SwitchId>,
    switches: Vec<Switch>,
    processes: Vec<Process>,
    /// Pairs of controller and switch that do not reach each other.
    cuts: Vec<(usize, SwitchId, Instant)>,
    writes: Vec<Write>,
    /// Pace of writes. Writes of at most [`PIECE`] changes are never slowed by it.
    pace: Pace,
    streams: u64,
    tops: Vec<TreeTop>,
    connections: BTreeMap<u16, Vec<Registration>>,
    /// Controller with which a memory server is registered, and the stream.
    homes: BTreeMap<u16, Option<(usize, u64)>>,
    /// The plan that was begun last with an epoch, by any controller.
    plans: BTreeMap<u8, Plan>,
    outcome: Outcome,
}

impl World {
    pub(super) fn new(mut random: ChaCha8Rng, controllers: usize) -> Result<Self, String> {
        let kind = ["single", "pair", "leaf-spine"][random.random_range(0..3usize)];
        let (_, text) =
            Cluster::examples().into_iter().find(|(name, _)| *name == kind).ok_or("no example")?;
        let described = Cluster::from_toml(text).map_err(|error| error.to_string())?;
        let tree = described.tree().clone();
        let ids: Vec<SwitchId> = tree.switches().iter().map(|switch| switch.id).collect();
        let tops = described.servers().iter().map(|server| {
            let at = |offset: u64| GlobalAddress::new(server.partition, offset);
            let children = (0..10u64).map(|n| (server.low + n * 10, at(0x400 * (n + 1)).raw())).collect();
            let root = TopNode { address: at(0x4000).raw(), level: 1, children };
            let range = KeyRange { low: server.low, high: None };
            let partition = Partition { id: server.partition, range, root: at(0x4000), root_level: 1 };
            TreeTop { partition, nodes: vec![root], reads: Default::default() }
        });
        let tops: Vec<TreeTop> = tops.collect();
        let ways = |number: usize| if number == 0 { Way::Start } else { Way::StandBy };
        // An IPv6 address does not fit into a bid.
        let ips: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        let ip = ips[random.random_range(0..2usize)];
        let processes = (0..controllers).map(|number| {
            let address = SocketAddr::new(ip, 9690 + number as u16);
            Process::new(address, random.random(), ways(number), Disk::default(), &ids, Instant::ZERO)
        });
        let processes: Vec<Process> = processes.collect();
        Ok(Self {
            now: Instant::ZERO,
            network: Network::new(tree, Placement::of(&described)),
            switches: ids.iter().map(|id| blank(*id)).collect(),
            processes,
            cuts: Vec::new(),
            writes: Vec::new(),
            pace: Pace::new(60_000.0),
            streams: 0,
            connections: tops.iter().map(|top| (top.partition.id, Vec::new())).collect(),
            homes: tops.iter().map(|top| (top.partition.id, None)).collect(),
            tops,
            plans: BTreeMap::new(),
            outcome: Outcome { runs: 1, ..Outcome::default() },
            random,
            described,
            ids,
        })
    }

    pub(super) fn finish(mut self) -> Result<Outcome, String> {
        while self.now < Instant::ZERO + ROUGH {
            self.goes_wrong();
            self.turn()?;
        }
        self.cuts.clear();
        for number in 0..self.processes.len() {
            self.start(number, Way::StandBy);
        }
        let until = self.now + CALM;
        // Two that have just begun to lead may still have to find out which one stays.
        let mut well_since = None;
        while well_since.is_none_or(|since| self.now < since + SETTLES) {
            self.turn()?;
            let is_well = self.leader().is_some_and(|leader| self.is_well(leader));
            well_since = is_well.then(|| well_since.unwrap_or(self.now));
            if self.now > until {
                return Err(format!("it is not well by itself: {}", self.describe()));
            }
        }
        let leader = self.leader().ok_or("no controller leads")?;
        let (terms, reloads, until) = (self.outcome.terms, self.outcome.reloads, self.now + STAYS);
        self.asks_for_plan(leader);
        while self.now < until {
            self.turn()?;
        }
        if self.outcome.terms != terms || self.leader() != Some(leader) {
            return Err(format!("another controller leads without cause: {}", self.describe()));
        }
        if self.outcome.reloads == reloads || !self.is_well(leader) {
            return Err(format!("a reload was not carried out: {}", self.describe()));
        }
        Ok(self.outcome)
    }

    fn describe(&self) -> String {
        let of = |process: &Process| {
            let switches = self.ids.iter().map(|switch| match &process.office {
                Office::Leads { primary, .. } => format!("{:?}", primary.controller().switch(*switch)),
                Office::LooksOn(_) => {
                    format!("{:?}", process.sessions.get(switch).map(|session| &session.mastership))
                }
            });
            format!("{:?} bids {:?}, {:?}", process.life, process.bid(), switches.collect::<Vec<_>>())
        };
        let all: Vec<String> = self.processes.iter().map(of).collect();
        format!("at {}, homes {:?}: {}", self.now, self.homes, all.join("; "))
    }

    /// The controller that leads, if it is the only one.
    fn leader(&self) -> Option<usize> {
        let mut all = self.processes.iter().enumerate().filter(|(_, process)| process.leads());
        let leader = all.next()?.0;
        all.next().is_none().then_some(leader)
    }

    /// Whether all switches hold what this controller wants, and it has all registrations.
    fn is_well(&mut self, leader: usize) -> bool {
        let Office::Leads { primary, .. } = &self.processes[leader].office else { return false };
        let controller = primary.controller();
        let desired = controller.desired().1.clone();
        if controller.plan().is_none() || controller.next_epoch().is_err() {
            return false;
        }
        for (partition, connections) in &self.connections {
            let told = controller.connections(*partition).filter(|(_, told)| *told).count();
            if self.homes[partition].map(|(home, _)| home) != Some(leader) || told != connections.len() {
                return false;
            }
        }
        let Self { ids, switches, network, .. } = self;
        ids.iter().zip(switches).all(|(id, switch)| {
            let held = network.read_back(switch, *id);
            held.is_ok_and(|held| desired.wanted(*id).next_changes(&held).is_none())
        })
    }

    fn turn(&mut self) -> Result<(), String> {
        self.now += TURN;
        let now = self.now;
        self.cuts.retain(|(_, _, until)| *until > now);
        for number in 0..self.processes.len() {
            match self.processes[number].life {
                Life::Frozen(since) => {
                    if now >= since + Duration::from(KEEP_ALIVE) * 2 {
                        self.ids.clone().into_iter().for_each(|switch| self.close(number, switch));
                    }
                    if self.random.random_bool(0.002) {
                        let process = &mut self.processes[number];
                        (process.life, process.has_thawed) = (Life::Runs, true);
                    }
                }
                Life::Dead(until) if now >= until => {
                    self.processes[number].again(self.random.random(), Way::StandBy, &self.ids, now);
                }
                Life::Dead(_) | Life::Runs => {}
            }
        }
        self.hear();
        let late: Vec<Write> = self.writes.extract_if(.., |write| write.arrives <= now).collect();
        late.into_iter().for_each(|write| self.arrives(write));
        for number in 0..self.processes.len() {
            if self.processes[number].runs() {
                self.work(number)?;
            }
        }
        self.hear();
        self.servers_look();
        Ok(())
    }

    /// Passes messages of switches to the sessions.
    fn hear(&mut self) {
        for (id, switch) in self.ids.iter().zip(&mut self.switches) {
            while let Some((stream, output)) = switch.poll_stream() {
                let of = |process: &&mut Process| {
                    process.sessions.get(id).is_some_and(|session| session.stream == stream)
                };
                let Some(process) = self.processes.iter_mut().find(of) else { continue };
                let notice = match output {
                    StreamOutput::Close(status) => Mastership::Ended { reason: status.message().to_owned() },
                    StreamOutput::Message(message) => match message.update {
                        Some(Update::Arbitration(notice)) => {
                            let highest = notice.election_id.as_ref().map(election_id);
                            match Code::from_i32(notice.status.map_or(0, |status| status.code)) {
                                Code::Ok => Mastership::Primary,
                                Code::NotFound => Mastership::Vacant { highest },
                                _ => Mastership::Backup { highest },
                            }
                        }
                        _ => continue,
                    },
                };
                if let Some(session) = process.sessions.get_mut(id) {
                    session.notices.push_back(notice);
                }
            }
        }
    }

    fn arrives(&mut self, Write { from, switch, stream, election_id, changes, .. }: Write) {
        let Some(at) = self.ids.iter().position(|id| *id == switch) else { return };
        let id = uint128(election_id);
        let written = self.network.write_as(&mut self.switches[at], switch, id, &changes);
        self.outcome.refused += u64::from(written.is_err());
        let process = &mut self.processes[from];
        if process.sessions.get(&switch).is_none_or(|session| session.stream != stream) {
            return;
        }
        match (written, &mut process.office) {
            (Ok(()), Office::Leads { keepers, .. }) => {
                if let Some(keeper) = keepers.get_mut(&switch) {
                    keeper.handle_answer(self.now, KeeperAnswer::Written);
                }
            }
            (Ok(()), Office::LooksOn(_)) => {}
            // Its answer waits for it while it is frozen; losing the answer has the same effect.
            (Err(_), _) => self.close(from, switch),
        }
    }

    fn work(&mut self, number: usize) -> Result<(), String> {
        let now = self.now;
        if std::mem::take(&mut self.processes[number].has_thawed) && self.random.random_bool(0.5) {
            // Its timer has run out meanwhile, and comes before what is still to be read.
            return self.decides(number);
        }
        for switch in self.ids.clone() {
            let is_cut = self.cuts.iter().any(|(of, to, _)| (*of, *to) == (number, switch));
            let process = &mut self.processes[number];
            if !process.sessions.contains_key(&switch) {
                let is_late = process.retry.get(&switch).is_some_and(|at| *at > now);
                if is_cut {
                    process.lost(switch, now);
                } else if process.leads() {
                    self.keep(number, switch)?;
                } else if !is_late {
                    self.open(number, switch);
                }
                continue;
            }
            let Some(session) = process.sessions.get_mut(&switch) else { continue };
            while let Some(notice) = session.notices.pop_front() {
                session.mastership = notice;
            }
            let mastership = session.mastership.clone();
            if let Mastership::Ended { .. } = mastership {
                process.lost(switch, now);
                continue;
            }
            match &mut process.office {
                Office::LooksOn(election) if mastership != Mastership::Unknown => {
                    election.saw(switch, Seen::of(&mastership), now);
                }
                Office::LooksOn(_) => {}
                Office::Leads { bid, .. } => match mastership {
                    Mastership::Backup { highest } | Mastership::Vacant { highest }
                        if highest.map(Bid::of) > Some(*bid) =>
                    {
                        self.outcome.put_out += 1;
                        self.looks_on(number, Way::StandBy);
                        return Ok(());
                    }
                    Mastership::Primary => {
                        self.answered(number, switch, KeeperAnswer::Opened);
                        self.keep(number, switch)?;
                    }
                    _ => {}
                },
            }
        }
        self.decides(number)
    }

    fn open(&mut self, number: usize, switch: SwitchId) {
        self.streams += 1;
        let stream = StreamId(self.streams);
        let process = &mut self.processes[number];
        let election_id = process.bid().election_id(process.opened);
        process.opened += 1;
        if let Some(at) = self.ids.iter().position(|id| *id == switch) {
            bid(&mut self.switches[at], switch, stream, uint128(election_id));
        }
        let (notices, mastership) = (VecDeque::new(), Mastership::Unknown);
        let session = Session { stream, election_id, notices, mastership };
        self.processes[number].sessions.insert(switch, session);
    }

    /// Lets a process that was put out or frozen go on as a standby, with other sessions.
    fn looks_on(&mut self, number: usize, way: Way) {
        for switch in self.ids.clone() {
            self.close(number, switch);
        }
        let process = &mut self.processes[number];
        process.sessions.clear();
        process.looks_anew(way, &self.ids, self.now);
    }

    fn decides(&mut self, number: usize) -> Result<(), String> {
        let process = &mut self.processes[number];
        let Office::LooksOn(election) = &mut process.office else {
            return self.leads(number);
        };
        let way = process.way;
        match election.verdict(self.now) {
            Verdict::LookOn => {}
            Verdict::LookAnew => self.looks_on(number, way),
            Verdict::GiveUp { .. } => {
                self.outcome.gave_up += 1;
                self.ends(number);
                self.processes[number].has_ended = true;
            }
            Verdict::Lead(leadership) => {
                let is_known = |process: &Process| process.has_led_all(&self.ids, self.now);
                if way != Way::TakeOver
                    && let Some(leader) = self.processes.iter().position(is_known)
                {
                    return Err(format!("controller {number} leads beside {leader}: {}", self.describe()));
                }
                self.outcome.terms += 1;
                for switch in self.ids.clone() {
                    self.close(number, switch);
                }
                let mut controller = Controller::new(&self.described, 1_000, self.random.random());
                let process = &mut self.processes[number];
                process.sessions.clear();
                if !leadership.goes_on {
                    process.disk.plan = None;
                }
                process.disk.bid = Some(leadership.bid);
                if let Some((plan, source)) = process.disk.plan.clone() {
                    controller.restore(plan, source);
                }
                let primary = Box::new(Primary::new(controller, FollowOptions::default()));
                let keeper =
                    |switch: &SwitchId| (*switch, Keeper::new(*switch, Some(COOKIE)).with_piece(PIECE));
                let keepers = self.ids.iter().map(keeper).collect();
                process.office = Office::Leads { bid: leadership.bid, since: self.now, primary, keepers };
            }
        }
        Ok(())
    }

    fn answered(&mut self, number: usize, switch: SwitchId, answer: KeeperAnswer) {
        if let Office::Leads { keepers, .. } = &mut self.processes[number].office
            && let Some(keeper) = keepers.get_mut(&switch)
        {
            keeper.handle_answer(self.now, answer);
        }
    }

    /// Lets memory servers whose controller does not lead any more try another one.
    fn servers_look(&mut self) {
        for (partition, home) in &mut self.homes {
            let is_there = home.is_some_and(|(home, _)| self.processes[home].leads());
            if is_there {
                continue;
            }
            if let Some((home, stream)) = home.take()
                && let Office::Leads { primary, .. } = &mut self.processes[home].office
            {
                primary.server_left(stream, *partition);
            }
            let number = self.random.random_range(0..self.processes.len());
            if self.processes[number].leads()
                && self.random.random_bool(0.2)
                && let Office::Leads { primary, .. } = &mut self.processes[number].office
            {
                self.streams += 1;
                let hello = ServerHello {
                    partition: *partition,
                    structure: TREE.to_owned(),
                    generation: source(&self.tops)[partition],
                    root: self.tops[usize::from(*partition)].partition.root.raw(),
                    first_key: None,
                    lost: false,
                    connections: self.connections[partition].clone(),
                };
                // No stream is older than one that was there before.
                *home = primary.server_joined(self.streams, &hello).ok().map(|_| (number, self.streams));
            }
        }
    }
}

fn source(tops: &[TreeTop]) -> Generations {
    tops.iter()
        .map(|top| (top.partition.id, Generation { number: 1, low: top.partition.range.low }))
        .collect()
}
