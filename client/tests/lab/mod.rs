//! A client, memory servers, and a network between them in virtual time, with a switch that rewrites index
//! reads.
#![allow(dead_code, unreachable_pub)] // each test file includes this module and uses its own part

pub mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use fatbtree_client::roce::{
    BreakReason, ClientConfig, ConnectionId, Done, Event, Mode, RemoteSide, RoceClient, SeededValues,
};
use fatbtree_index::plain::Regions;
use fatbtree_index::{GlobalAddress, KeyRange, SuperRoot, Tree};
use fatbtree_nic::time::{Duration, Instant};
use fatbtree_nic::{Access, Nic, NicConfig, QueuePairNumber};
use fatbtree_wire::{Extension, Frame, IndexHeader, hops};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const LATENCY: Duration = Duration::from_micros(2);

pub struct Server {
    pub nic: Nic,
    pub rkey: u32,
    /// The region as loaded.
    pub region: Vec<u8>,
    /// Answers nothing.
    pub dead: bool,
}

/// A frame on its way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    ToServer(usize),
    ToClient,
}

/// What happens to a frame; a decision of the test.
pub enum Fate {
    Pass,
    Drop,
}

/// Where the switches let an index read land, given the lab's trees.
pub type Landing = fn(&Lab, partition: u16, key: u64, seen: u32) -> GlobalAddress;

pub struct Lab {
    pub now: Instant,
    pub client: RoceClient<SeededValues>,
    pub servers: Vec<Server>,
    pub keys: Vec<u64>,
    pub config: ClientConfig,
    /// Server queue pairs whose index reads the switch admits.
    pub registered: BTreeSet<QueuePairNumber>,
    /// The server's end of each connection.
    pub server_queue_pairs: BTreeMap<ConnectionId, QueuePairNumber>,
    /// What the owner tells the client about registration on each new connection.
    pub claims_registered: bool,
    /// The switch registers every new queue pair.
    pub registers: bool,
    pub reconnects: bool,
    pub landing: Landing,
    /// Frames lost, in per mille.
    pub loss: u32,
    /// Decides over each frame, after loss.
    pub fate: fn(&mut Lab, Way, &Frame<'_>) -> Fate,
    pub rng: ChaCha8Rng,
    pub done: Vec<Done>,
    pub broken: Vec<(ConnectionId, BreakReason, u32)>,
    /// Servers drop a READ sent again under the same PSN with another address, as `rdma_rxe` does.
    pub strict: bool,
    /// For `fate` to count down.
    pub budget: u32,
    /// Per queue pair and PSN: index reads seen, and where the first landed.
    pub seen: BTreeMap<(u32, u32), (u32, GlobalAddress)>,
    queue: BTreeMap<(Instant, u64), (Way, Vec<u8>)>,
    sequence: u64,
}

impl Lab {
    /// `per_server` keys on each of `servers` servers; the key space is divided evenly.
    pub fn new(config: ClientConfig, servers: u16, per_server: u64, seed: u64) -> Lab {
        let width = u64::MAX / u64::from(servers);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut all_keys = Vec::new();
        let mut partitions = Vec::new();
        let mut built = Vec::new();
        for server in 0..servers {
            let low = u64::from(server) * width;
            let high = (server + 1 < servers).then(|| low + width);
            let step = width / (per_server + 1);
            let keys: Vec<u64> =
                (0..per_server).map(|i| low + i * step + rng.random_range(1..step)).collect();
            let (region, partition) = tree::build(&config.tree, server, KeyRange { low, high }, &keys);
            let address = Ipv4Addr::new(10, 0, 1, server as u8);
            let mut nic = Nic::new(NicConfig::new([2, 0, 0, 1, 0, server as u8], address), seed + 100);
            let iova = GlobalAddress::new(server, 0).raw();
            let rkey = nic.register_memory(iova, region.clone(), Access::READ).rkey;
            built.push(Server { nic, rkey, region, dead: false });
            partitions.push(partition);
            all_keys.extend(keys);
        }
        let nic = Nic::new(NicConfig::new([2, 0, 0, 0, 0, 9], Ipv4Addr::new(10, 0, 0, 9)), seed);
        let roots = SuperRoot::new(partitions).unwrap();
        let client = RoceClient::new(nic, config, roots, SeededValues { seed: tree::SEED }).unwrap();
        Lab {
            now: Instant::ZERO,
            client,
            servers: built,
            keys: all_keys,
            config,
            registered: BTreeSet::new(),
            server_queue_pairs: BTreeMap::new(),
            claims_registered: true,
            registers: true,
            reconnects: true,
            landing: |lab, partition, key, _| lab.node_above(partition, key, 0),
            loss: 0,
            fate: |_, _, _| Fate::Pass,
            rng,
            done: Vec::new(),
            broken: Vec::new(),
            strict: false,
            budget: 0,
            seen: BTreeMap::new(),
            queue: BTreeMap::new(),
            sequence: 0,
        }
    }

    /// Connects everything.
    pub fn connected(mut self) -> Lab {
        for id in self.client.connections().collect::<Vec<_>>() {
            self.connect(id);
        }
        self
    }

    /// What an owner does out of band.
    pub fn connect(&mut self, id: ConnectionId) {
        let local = self.client.reconnect(self.now, id).unwrap();
        let server = &mut self.servers[usize::from(id.partition)];
        let queue_pair = server.nic.create_queue_pair();
        server.nic.connect(queue_pair, local).unwrap();
        let endpoint = server.nic.local_endpoint(queue_pair).unwrap();
        let remote = RemoteSide { endpoint, rkey: server.rkey, registered: self.claims_registered };
        self.server_queue_pairs.insert(id, queue_pair);
        if self.registers {
            self.registered.insert(queue_pair);
        }
        self.client.connected(self.now, id, remote).unwrap();
    }

    /// Connects what is not connected.
    pub fn connect_all_down(&mut self) {
        for id in self.client.connections().collect::<Vec<_>>() {
            if self.client.queue_pair(id).is_none() {
                self.connect(id);
            }
        }
    }

    /// The node `level` levels above the leaf of `key`, or the root if that is lower.
    pub fn node_above(&self, partition: u16, key: u64, level: u8) -> GlobalAddress {
        let regions =
            Regions::new(self.servers.iter().zip(0u16..).map(|(server, id)| (id, &server.region[..])));
        let partition = self.client.roots().partition(partition).unwrap();
        let tree = Tree::new(&regions, &self.config.tree, partition);
        let path = tree.find_node_path(key).unwrap();
        path.iter().rfind(|step| step.level >= level).unwrap_or(&path[0]).address
    }

    /// Looks up `keys` one after the other, `depth` at once, and waits for the end.
    pub fn run(&mut self, keys: impl IntoIterator<Item = u64>, mode: Mode) -> Vec<Done> {
        let mut keys = keys.into_iter().peekable();
        let from = self.done.len();
        let deadline = self.now + Duration::from_secs(60);
        loop {
            while self.client.room() > 0
                && let Some(key) = keys.next()
            {
                self.client.submit(self.now, key, mode).unwrap();
            }
            if self.client.under_way() == 0 && keys.peek().is_none() {
                self.settle();
                return self.done[from..].to_vec();
            }
            let goes_on = self.step() && self.now < deadline;
            assert!(goes_on || self.client.under_way() == 0, "lookups do not end: {:?}", self.client);
        }
    }

    /// Takes what the NICs have to send and the client has to say.
    pub fn settle(&mut self) {
        let mut frame = Vec::new();
        loop {
            let mut busy = false;
            while self.client.poll_transmit(self.now, &mut frame) {
                self.send_to_server(frame.clone());
                busy = true;
            }
            for server in 0..self.servers.len() {
                while self.servers[server].nic.poll_transmit(self.now, &mut frame) {
                    if !self.servers[server].dead {
                        self.send(Way::ToClient, frame.clone());
                    }
                    busy = true;
                }
            }
            while let Some(event) = self.client.poll_event() {
                match event {
                    Event::Done(done) => self.done.push(done),
                    Event::ConnectionBroken { id, reason, affected } => {
                        self.broken.push((id, reason, affected));
                        if self.reconnects {
                            self.connect(id);
                        }
                    }
                }
                busy = true;
            }
            if !busy {
                return;
            }
        }
    }

    /// To the next frame or deadline; false when there is none.
    pub fn step(&mut self) -> bool {
        self.settle();
        let timeout = self.servers.iter().map(|server| server.nic.poll_timeout()).fold(
            self.client.poll_timeout(),
            |earliest, next| match (earliest, next) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            },
        );
        let arrival = self.queue.first_key_value().map(|(&(at, _), _)| at);
        let Some(next) = arrival.into_iter().chain(timeout).min() else { return false };
        self.now = self.now.max(next);
        if arrival == Some(next) {
            let (_, (way, frame)) = self.queue.pop_first().unwrap();
            match way {
                Way::ToClient => self.client.handle_frame(self.now, &frame),
                Way::ToServer(server) if !self.servers[server].dead => {
                    self.servers[server].nic.handle_frame(self.now, &frame);
                }
                Way::ToServer(_) => {}
            }
        } else {
            self.client.handle_timeout(self.now);
            self.servers.iter_mut().for_each(|server| server.nic.handle_timeout(self.now));
        }
        self.settle();
        true
    }

    /// The client's edge switch and all behind it: rewrites index reads of registered connections.
    fn send_to_server(&mut self, mut frame: Vec<u8>) {
        let parsed = Frame::parse(&frame).unwrap();
        let server = usize::from(parsed.ipv4.destination.octets()[3]);
        if let Extension::Reth(reth) = parsed.extension
            && reth.rkey == 0
            && self.registered.contains(&QueuePairNumber(parsed.bth.destination_qp))
        {
            let packet = (parsed.bth.destination_qp, parsed.bth.psn);
            let count = self.seen.get(&packet).map_or(0, |&(count, _)| count);
            let landing = (self.landing)(self, server as u16, reth.va, count);
            let seen = self.seen.entry(packet).or_insert((0, landing));
            seen.0 += 1;
            if self.strict && seen.1 != landing {
                return;
            }
            let header = IndexHeader {
                epoch: 1,
                partition: server as u16,
                node_id: 1,
                key: reth.va,
                ..IndexHeader::default()
            };
            assert!(hops::admit(&mut frame, &header, 64, self.servers[server].rkey));
            assert!(hops::step(&mut frame, |_, va, _| *va = landing.raw()));
            assert!(hops::strip(&mut frame));
        }
        self.send(Way::ToServer(server), frame);
    }

    fn send(&mut self, way: Way, frame: Vec<u8>) {
        if self.rng.random_range(0..1000) < self.loss {
            return;
        }
        let fate = self.fate;
        if let Fate::Drop = fate(self, way, &Frame::parse(&frame).unwrap()) {
            return;
        }
        self.queue.insert((self.now + LATENCY, self.sequence), (way, frame));
        self.sequence += 1;
    }
}
