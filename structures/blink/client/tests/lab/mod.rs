//! A client, memory servers, and a network between them in virtual time, with a switch that rewrites index
//! reads.
#![allow(dead_code, unreachable_pub)] // each test file includes this module and uses its own part

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use fatbtree_blink::{
    BreakReason, ConnectionId, Event, GlobalAddress, KeyRange, OperationError, PoolConfig, Regions,
    RemoteSide, Start, SuperRoot, Tree, Trips, ValueLayout, value,
};
use fatbtree_blink_client::Client;
use fatbtree_blink_host::{LoadOptions, LoadedTree, bulk_load, varying};
use fatbtree_soft_nic::{Nic, NicConfig};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{Access, Device, IndexTarget, QueuePair, QueuePairNumber};
use fatbtree_wire::{Extension, Frame, IndexHeader, hops};
use futures_core::Stream;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const LATENCY: Duration = Duration::from_micros(2);
const SEED: u64 = 7;

pub struct Server {
    pub nic: Nic,
    pub rkey: u32,
    pub tree: LoadedTree,
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

/// Whether a stream of lookups has been woken since it was polled.
#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What came of a lookup.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    pub key: u64,
    /// The value was there, and right.
    pub answer: Answer,
    pub trips: Trips,
    pub latency: Duration,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Found,
    Wrong,
    NotFound,
    Failed(OperationError),
}

pub struct Lab {
    pub now: Instant,
    pub client: Client<Nic>,
    pub servers: Vec<Server>,
    pub keys: Vec<u64>,
    pub config: PoolConfig,
    /// Server queue pairs whose index reads the switch admits.
    pub registered: BTreeSet<QueuePairNumber>,
    /// The server's end of each connection.
    pub server_queue_pairs: BTreeMap<ConnectionId, QueuePair>,
    /// What the owner tells the client about registration on each new connection.
    pub claims_registered: bool,
    /// The switch registers every new queue pair.
    pub registers: bool,
    /// The owner reconnects at once what broke.
    pub reconnects: bool,
    pub landing: Landing,
    /// Frames lost, of 1000.
    pub loss: u32,
    pub fate: fn(&mut Lab, Way, &Frame<'_>) -> Fate,
    pub rng: ChaCha8Rng,
    pub broken: Vec<(ConnectionId, BreakReason)>,
    /// The server drops a READ that was sent again and rewritten to another address, as rdma_rxe does.
    pub strict: bool,
    /// For `fate`.
    pub budget: u32,
    /// Index reads seen by the switch: how often, and where the first one landed.
    seen: BTreeMap<(u32, u32), (u32, GlobalAddress)>,
    queue: BTreeMap<(Instant, u64), (Way, Vec<u8>)>,
    sequence: u64,
}

/// Bytes of the value of a key, where values are kept out of line.
pub fn value_length(key: u64) -> u32 {
    (key % 90) as u32 + 8
}

pub fn client_nic_config() -> NicConfig {
    NicConfig::new([2, 0, 0, 0, 0, 9], Ipv4Addr::new(10, 0, 0, 9))
}

impl Lab {
    /// `per_server` keys on each of `servers` servers; the key space is divided evenly.
    pub fn new(config: PoolConfig, servers: u16, per_server: u64, seed: u64) -> Lab {
        Lab::with_nics(config, servers, per_server, seed, client_nic_config(), |config| config)
    }

    pub fn with_nics(
        config: PoolConfig,
        servers: u16,
        per_server: u64,
        seed: u64,
        client_nic: NicConfig,
        server_nic: impl Fn(NicConfig) -> NicConfig,
    ) -> Lab {
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
            let inline = match config.tree.values() {
                ValueLayout::Inline(len) => Some(u32::from(len)),
                ValueLayout::OutOfLine | ValueLayout::ByLength(_) => None,
            };
            let mut values = varying(
                move |key| inline.unwrap_or_else(|| value_length(key)),
                |key, out: &mut [u8]| value::fill(key, SEED, out),
            );
            let range = KeyRange { low, high };
            let options = LoadOptions { range, fill: 0.5, ..LoadOptions::new(config.tree, server) };
            let tree = bulk_load(&options, &keys, &mut values).unwrap();
            let address = Ipv4Addr::new(10, 0, 1, server as u8);
            let nic = server_nic(NicConfig::new([2, 0, 0, 1, 0, server as u8], address));
            let mut nic = Nic::new(nic, seed + 100).unwrap();
            let iova = GlobalAddress::new(server, 0).raw();
            let rkey = nic.register(&tree.region, iova, Access::READ).unwrap().rkey;
            partitions.push(tree.partition);
            built.push(Server { nic, rkey, tree, dead: false });
            all_keys.extend(keys);
        }
        let roots = SuperRoot::new(partitions).unwrap();
        let client = Client::new(Nic::new(client_nic, seed).unwrap(), config, roots, seed).unwrap();
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
        self.connect_all_down();
        self
    }

    /// What an owner does out of band.
    pub fn connect(&mut self, id: ConnectionId) {
        let remote = self.accept(id);
        self.client.pool().connected(id, remote).unwrap();
    }

    /// The server's half of it.
    pub fn accept(&mut self, id: ConnectionId) -> RemoteSide {
        let local = self.client.pool().open(id).unwrap();
        let server = &mut self.servers[usize::from(id.server)];
        let queue_pair = server.nic.create().unwrap();
        server.nic.connect(queue_pair, &local).unwrap();
        let endpoint = server.nic.endpoint(queue_pair).unwrap();
        self.server_queue_pairs.insert(id, queue_pair);
        if self.registers {
            self.registered.insert(endpoint.queue_pair);
        }
        RemoteSide { endpoint, rkey: server.rkey, registered: self.claims_registered }
    }

    /// Connects what is not connected.
    pub fn connect_all_down(&mut self) {
        for id in self.client.pool().connections() {
            if self.client.pool().queue_pair(id).is_none() {
                self.connect(id);
            }
        }
    }

    /// The node `level` levels above the leaf of `key`, or the root if that is lower.
    pub fn node_above(&self, partition: u16, key: u64, level: u8) -> GlobalAddress {
        let regions = self.servers.iter().zip(0u16..);
        let regions = Regions::new(regions.map(|(server, id)| (id, Arc::clone(&server.tree.region))));
        let partition = self.servers[usize::from(partition)].tree.partition;
        let path = Tree::new(&regions, &self.config.tree, &partition).find_node_path(key).unwrap();
        path.iter().rfind(|step| step.level >= level).unwrap_or(&path[0]).address
    }

    /// Looks up `keys`, some at once, and waits for the end of all.
    pub fn run(&mut self, keys: impl IntoIterator<Item = u64>, start: Start) -> Vec<Done> {
        self.run_with(keys, start, 8, |_| {})
    }

    /// The same with another number at once, and with `meanwhile` called before every step.
    pub fn run_with(
        &mut self,
        keys: impl IntoIterator<Item = u64>,
        start: Start,
        depth: usize,
        mut meanwhile: impl FnMut(&mut Lab),
    ) -> Vec<Done> {
        let client = self.client.clone();
        let mut lookups = pin!(client.lookup_many(keys, start, depth));
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        let deadline = self.now + Duration::from_secs(60);
        let mut done = Vec::new();
        loop {
            woken.0.store(false, Ordering::Relaxed);
            match lookups.as_mut().poll_next(&mut context) {
                Poll::Ready(None) => {
                    self.settle();
                    return done;
                }
                Poll::Ready(Some(lookup)) => {
                    let answer = match lookup.result {
                        Ok(Some(bytes)) if value::check(lookup.key, SEED, &bytes) => Answer::Found,
                        Ok(Some(_)) => Answer::Wrong,
                        Ok(None) => Answer::NotFound,
                        Err(error) => Answer::Failed(error),
                    };
                    done.push(Done { key: lookup.key, answer, trips: lookup.trips, latency: lookup.latency });
                }
                Poll::Pending => {
                    meanwhile(self);
                    // What `meanwhile` did may have woken lookups without a frame on its way.
                    let goes_on = self.step() && self.now < deadline;
                    assert!(
                        goes_on || woken.0.load(Ordering::Relaxed),
                        "lookups do not end: {:?}",
                        self.client
                    );
                }
            }
        }
    }

    /// Takes what the NICs have to send and the client has to say.
    pub fn settle(&mut self) {
        let mut frame = Vec::new();
        loop {
            let mut busy = self.client.turn(self.now);
            while self.client_nic(|nic, now| nic.poll_transmit(now, &mut frame)) {
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
            while let Some(Event::ConnectionBroken { id, reason }) = self.client.poll_event() {
                self.broken.push((id, reason));
                if self.reconnects {
                    self.connect(id);
                }
                busy = true;
            }
            if !busy {
                return;
            }
        }
    }

    pub fn client_nic<T>(&self, work: impl FnOnce(&mut Nic, Instant) -> T) -> T {
        let now = self.now;
        self.client.pool().reactor().with(|nic| work(nic, now))
    }

    /// To the next frame or deadline; false when there is none.
    pub fn step(&mut self) -> bool {
        self.settle();
        let timeouts = self.servers.iter().map(|server| server.nic.poll_timeout());
        let timeouts =
            timeouts.chain([self.client_nic(|nic, _| nic.poll_timeout()), self.client.poll_timeout()]);
        let arrival = self.queue.first_key_value().map(|(&(at, _), _)| at);
        let Some(next) = arrival.into_iter().chain(timeouts.flatten()).min() else { return false };
        self.now = self.now.max(next);
        if arrival == Some(next) {
            let (_, (way, frame)) = self.queue.pop_first().unwrap();
            match way {
                Way::ToClient => self.client_nic(|nic, now| nic.handle_frame(now, &frame)),
                Way::ToServer(server) if !self.servers[server].dead => {
                    self.servers[server].nic.handle_frame(self.now, &frame);
                }
                Way::ToServer(_) => {}
            }
        } else {
            self.client_nic(|nic, now| nic.handle_timeout(now));
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
            && IndexTarget::of_rkey(reth.rkey).is_some()
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
            let header =
                IndexHeader { epoch: 1, partition: server as u16, key: reth.va, ..IndexHeader::default() };
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
