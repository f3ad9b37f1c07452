//! A cluster whose trees are written to while its switches are reloaded: real switches, cards, memory servers and clients, in virtual
//! time.

#![allow(clippy::unwrap_used, unreachable_pub, reason = "test support")]

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use fatbtree_blink::{
    BreakReason, Change, ConnectionId, Event, PoolConfig, RemoteSide, Start, TreeConfig, TreeTop, ValueLayout,
};
use fatbtree_blink_client::KeySample;
use fatbtree_blink_host::{LoadOptions, TreeRequest, load_cluster, seeded};
use fatbtree_controller::{Budget, Frequencies, Placement, Plan, Tree};
use fatbtree_memserver::{self as memserver, ClientId, FirstHop, Grant, Request, ServerOptions, SessionKey};
use fatbtree_sim::{
    Client, Clock, Cluster, Control, FaultyWires, Network, VirtualClock, Wires, described, registration,
};
use fatbtree_soft_nic::faults::FaultRates;
use fatbtree_soft_nic::{Nic, NicConfig};
use fatbtree_topology::{HostId, Network as Topology, SwitchId};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_workload::ycsb::{KeyMap, Workload, WorkloadSpec, builtin};
use fatbtree_workload::{LoadGenerator, LoopOptions, Values};
use tokio::sync::oneshot;

const SERVERS: u16 = 2;
const SEED: u64 = 7;
const DEPTH: usize = 8;

/// Propagation and processing of one hop.
const HOP: Duration = Duration::from_nanos(500);
/// Interval between batches of a reload.
const WRITE: Duration = Duration::from_micros(20);
/// Changes in one batch.
const BATCH: usize = 24;
/// Sessions do not end before the test does.
const LEASE: Duration = Duration::from_secs(1 << 33);

type Work<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

pub struct Living {
    clock: VirtualClock,
    network: Network,
    cluster: Cluster<FaultyWires>,
    pub clients: Vec<Client>,
    client_hosts: Vec<HostId>,
    sessions: BTreeMap<(usize, u16), SessionKey>,
    control: Control,
    /// Clients whose connections the controller is not told of, though they believe that it was.
    forgotten: BTreeSet<usize>,
    /// Time at which a reload goes on.
    write_at: Instant,
    /// Requests of a reload; connections refused.
    pub written: u64,
    pub refused: u64,
    values: Values,
    /// Records that are there for certain: those below.
    records: u64,
    /// Records from here on were never inserted.
    next: u64,
}

impl Living {
    /// Two servers and two clients, all of whose connections are registered. Leaves and inner nodes are full: the first inserts split
    /// them.
    pub fn new(records: u64) -> Self {
        let tree = Topology::one_core(4).unwrap();
        let in_pod = |pod: u16| tree.hosts().iter().filter(move |host| host.pod == pod).map(|host| host.id);
        let server_hosts: Vec<HostId> = in_pod(0).take(usize::from(SERVERS)).collect();
        let client_hosts: Vec<HostId> = in_pod(1).take(2).collect();
        let described = described("k = 4", &tree, &server_hosts, &[]).unwrap();

        let config = TreeConfig::new(8, 256, ValueLayout::Inline(8)).unwrap();
        let mut keys: Vec<u64> = (0..records).filter_map(|record| KeyMap::Hashed.key(record)).collect();
        keys.sort_unstable();
        let options = LoadOptions { spare_bytes: 8 << 20, fill: 1.0, ..LoadOptions::new(config, 0) };
        let loaded = load_cluster(&options, SERVERS, &keys, &mut seeded(SEED, 8)).unwrap();
        let roots = loaded.roots.clone();
        let options = ServerOptions { lease: LEASE, chunk_bytes: 64 << 10, ..ServerOptions::writable() };
        let on_host = |server: u16| nic(&tree, server_hosts[usize::from(server)]);
        let servers = loaded.serve(&options, SEED, on_host).unwrap();
        let pool = PoolConfig { tree: config, ..PoolConfig::default() };
        let client = |host: &HostId| Client::new(nic(&tree, *host), pool, roots.clone(), SEED).unwrap();
        let clients: Vec<Client> = client_hosts.iter().map(client).collect();

        let network = Network::new(tree, Placement::of(&described));
        let mut switches = network.switches().unwrap();
        let mut control = Control::new(&described, BATCH, 0);
        control.settle(&network, &mut switches).unwrap();
        let servers = server_hosts.into_iter().zip(servers).collect();
        let on_hosts = client_hosts.iter().copied().zip(clients.iter().cloned()).collect();
        let wires = FaultyWires::new(HOP, FaultRates::NONE, SEED);
        let cluster = Cluster::new(network.tree(), switches, servers, on_hosts, wires);
        let mut living = Self {
            clock: VirtualClock::new(),
            network,
            cluster,
            clients,
            client_hosts,
            sessions: BTreeMap::new(),
            control,
            forgotten: BTreeSet::new(),
            write_at: Instant::ZERO,
            written: 0,
            refused: 0,
            values: Values::new(SEED, 8).with_keys(Arc::from(keys)),
            records,
            next: records,
        };
        for client in 0..living.clients.len() {
            for id in living.clients[client].pool().connections() {
                living.connect(client, id, true);
            }
        }
        living
    }

    // ---- the control plane ----

    fn connect(&mut self, client: usize, id: ConnectionId, registered: bool) {
        let (now, pool) = (self.clock.now(), self.clients[client].pool());
        let (local, replaces) = (pool.open(id).unwrap(), pool.replaces(id));
        let server = &mut self.cluster.servers_mut()[usize::from(id.server)];
        let session = self.sessions.entry((client, id.server)).or_insert_with(|| {
            let who = ClientId { host: local.ip.into(), roce: local.ip };
            let lease = server.open_session(now, who).unwrap();
            let writer = server.info().writer(lease.owner, true).unwrap();
            pool.set_writer(id.server, writer).unwrap();
            lease.session
        });
        let endpoint = server.connect(now, *session, &local, replaces).unwrap();
        let rkey = server.info().region.rkey;
        self.follow_servers();
        pool_of(&self.clients, client).connected(id, RemoteSide { endpoint, rkey, registered }).unwrap();
    }

    /// The controller keeps the first-hop entries as the servers say.
    fn follow_servers(&mut self) {
        for server in 0..SERVERS {
            while let Some(event) = self.cluster.servers_mut()[usize::from(server)].poll_event() {
                let controller = &mut self.control.controller;
                match event {
                    memserver::Event::Opened(hop) => {
                        if !self.forgotten.contains(&self.client_of(&hop)) {
                            self.control.controller.opened(hop.partition, registration(&hop));
                        }
                    }
                    memserver::Event::Closed(hop) => {
                        controller.closed(hop.partition, hop.client, hop.queue_pair.0);
                    }
                    memserver::Event::NewRoot(tree) | memserver::Event::Reloaded { structure: tree, .. } => {
                        controller.rerooted(tree.partition.id, tree.partition.root.raw());
                    }
                    memserver::Event::Lost { .. } | memserver::Event::Ask(_) => {
                        unreachable!("no server is started again, and a tree lies on one server")
                    }
                }
                self.settle_first_hops();
            }
        }
    }

    /// Clients are told of their connections when their first switches have them.
    fn settle_first_hops(&mut self) {
        for host in &self.client_hosts {
            let edge = self.network.tree().edge_of(*host).id;
            self.control.settle_one(&self.network, self.cluster.switches_mut(), edge).unwrap();
        }
    }

    fn client_of(&self, hop: &FirstHop) -> usize {
        let ip = |host: &HostId| self.network.tree().host(*host).ip == hop.client;
        self.client_hosts.iter().position(ip).unwrap()
    }

    /// Makes the controller forget a client's connections, though the client believes that they are
    /// registered; or mends that.
    pub fn forget(&mut self, client: usize, forgotten: bool) {
        if forgotten {
            self.forgotten.insert(client)
        } else {
            self.forgotten.remove(&client)
        };
        for id in self.clients[client].pool().connections() {
            let pool = self.clients[client].pool();
            if forgotten {
                let queue_pair = pool.replaces(id).unwrap().0;
                let ip = self.network.tree().host(self.client_hosts[client]).ip;
                self.control.controller.closed(id.server, ip, queue_pair);
                self.settle_first_hops();
            } else {
                pool.abandon(id).unwrap();
                self.connect(client, id, true);
            }
        }
    }

    /// The trees' tops, as the servers read them.
    pub fn tops(&mut self) -> Vec<TreeTop> {
        let now = self.clock.now();
        let read = |server: &mut fatbtree_sim::MemoryServer| {
            let (reply, mut answer) = oneshot::channel();
            server.handle(now, Request::Tenant(TreeRequest::Snapshot(reply)));
            while server.work(now, 64) {}
            (*answer.try_recv().unwrap().unwrap()).clone()
        };
        self.cluster.servers_mut().iter_mut().map(read).collect()
    }

    /// A plan from nothing but tops and keys that are asked for.
    pub fn plan(&mut self, budget: &Budget, keys: &[u64]) -> Plan {
        let tree = Tree::new(&self.tops()).unwrap();
        let frequencies = Frequencies::from_keys(&tree, keys);
        let (topology, placement) = (self.network.tree(), self.network.placement());
        Plan::new(topology, placement, &tree, &frequencies, budget, 1).unwrap()
    }

    pub fn network(&self) -> &Network {
        &self.network
    }

    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Begins a reload: it goes on while clients work, a request at a time, until [`finish_reload`](Self::finish_reload).
    pub fn begin_reload(&mut self, plan: Plan) {
        let trees = self.control.controller.trees();
        self.control.controller.load(plan, trees).unwrap();
        self.write_at = self.clock.now();
    }

    pub fn reload_is_under_way(&self) -> bool {
        self.control.controller.reload().is_some()
    }

    /// Says which plan is active then: that of the reload, in its epoch.
    pub fn finish_reload(&mut self) -> Plan {
        self.control.settle(&self.network, self.cluster.switches_mut()).unwrap();
        assert!(!self.reload_is_under_way());
        self.control.controller.plan().unwrap().0.plan().clone()
    }

    /// The next request of a reload, to any switch that has one.
    fn write(&mut self) {
        let order: Vec<SwitchId> = self.network.tree().switches().iter().map(|switch| switch.id).collect();
        let switches = self.cluster.switches_mut();
        let has_written = self.control.step_first(&self.network, switches, &order).unwrap();
        self.written += u64::from(has_written);
        self.write_at = self.clock.now() + WRITE;
    }

    // ---- what clients do ----

    /// New records by the first client.
    pub fn insert(&mut self, count: u64) {
        let spec = self.spec(0.0, 1.0);
        let mut workload = Workload::new(&spec, KeyMap::Hashed, SEED).unwrap();
        self.work(vec![(0, &mut workload, count)]);
        assert_eq!(self.records, self.next, "after a mix, the set of records is unknown");
        (self.records, self.next) = (self.records + count, self.next + count);
    }

    /// Deletes all records but the first `left`, by the first client, which then finds none of them. Those that it inserts later lie in
    /// nodes that were freed.
    pub fn shrink(&mut self, left: u64) {
        assert_eq!(self.records, self.next, "after a mix, the set of records is unknown");
        let (client, gone) = (self.clients[0].clone(), left..self.records);
        let work = async move {
            for key in gone.clone().filter_map(|record| KeyMap::Hashed.key(record)) {
                let change = client.starting(Start::IndexRead).mutate(key, Change::Delete).await;
                assert_eq!(change.result, Ok(true), "{key:#x} was there");
            }
            for key in gone.filter_map(|record| KeyMap::Hashed.key(record)) {
                let lookup = client.lookup(key, Start::IndexRead).await;
                assert!(lookup.result.unwrap().is_none(), "{key:#x} is gone");
            }
        };
        self.drive(vec![(0, Box::pin(work))]);
        self.records = left;
    }

    /// Lookups of any records by the first client, each with an index read: mean round trips.
    pub fn round_trips(&mut self, lookups: u64) -> f64 {
        self.clients[0].set_sample(Some(KeySample::new(1 << 14, SEED)));
        let mut workload = Workload::new(&self.spec(1.0, 0.0), KeyMap::Hashed, SEED).unwrap();
        let trips = self.work(vec![(0, &mut workload, lookups)]);
        trips[0]
    }

    /// Lookups and inserts by all clients at once; `inserts` is the share of the latter.
    pub fn mix(&mut self, operations: u64, inserts: f64) {
        let (spec, clients) = (self.spec(1.0 - inserts, inserts), self.clients.len() as u64);
        let workload =
            |client| Workload::for_client(&spec, KeyMap::Hashed, self.next, client, clients).unwrap();
        let mut workloads: Vec<Workload> = (0..clients).map(workload).collect();
        let work = workloads.iter_mut().enumerate().map(|(client, workload)| (client, workload, operations));
        self.work(work.collect());
        self.next += operations * clients;
    }

    fn spec(&self, read: f64, insert: f64) -> WorkloadSpec {
        let mut properties = builtin("c").unwrap();
        for (name, value) in [
            ("recordcount", self.next.to_string()),
            ("insertstart", "0".to_owned()),
            ("insertcount", self.records.to_string()),
            ("requestdistribution", "uniform".to_owned()),
            ("readproportion", read.to_string()),
            ("insertproportion", insert.to_string()),
        ] {
            properties.set(name, &value);
        }
        WorkloadSpec::from_properties(&properties).unwrap()
    }

    /// Every answer is checked. Says the mean round trips of each.
    fn work(&mut self, work: Vec<(usize, &mut Workload, u64)>) -> Vec<f64> {
        let values = std::mem::replace(&mut self.values, Values::new(0, 0));
        let mut loops = vec![LoadGenerator::new(); work.len()];
        let options = LoopOptions { start: Start::IndexRead, depth: DEPTH };
        let futures = work.into_iter().zip(&mut loops).map(|((client, workload, operations), run)| {
            let (handle, values) = (self.clients[client].clone(), &values);
            let work = async move {
                run.run(&handle, workload, operations, options, values).await.unwrap();
            };
            (client, Box::pin(work) as Work<'_>)
        });
        let futures = futures.collect();
        self.drive(futures);
        self.values = values;
        let mut trips = Vec::new();
        for run in loops {
            assert_eq!(run.first_wrong(), None);
            trips.push(run.recorder().summary(1).round_trips);
        }
        trips
    }

    fn drive(&mut self, mut futures: Vec<(usize, Work<'_>)>) {
        let mut context = Context::from_waker(Waker::noop());
        loop {
            while self.cluster.step(&self.clock) {}
            let (cluster, clock) = (&mut self.cluster, &self.clock);
            futures.retain_mut(|(client, future)| {
                let poll = |_: &Client, _| future.as_mut().poll(&mut context);
                cluster.with_client(*client, clock, poll) == Poll::Pending
            });
            self.follow_servers();
            if self.attend() {
                continue;
            }
            if futures.is_empty() {
                return;
            }
            let reload = self.reload_is_under_way().then_some(self.write_at);
            let next = [self.cluster.wires().next_arrival(), self.cluster.poll_timeout(), reload];
            let next = next.into_iter().flatten().min().expect("something is under way");
            self.clock.advance_to(next);
            if self.cluster.poll_timeout().is_some_and(|at| at <= self.clock.now()) {
                self.cluster.handle_timeout(&self.clock);
            }
            if reload.is_some_and(|at| at <= self.clock.now()) {
                self.write();
            }
        }
    }

    /// Does what the clients ask for; says whether there was anything.
    fn attend(&mut self) -> bool {
        let mut any = false;
        for client in 0..self.clients.len() {
            while let Some(event) = self.clients[client].poll_event() {
                any = true;
                match event {
                    Event::MemoryWanted { server, class, bytes } => {
                        let now = self.clock.now();
                        let session = self.sessions[&(client, server)];
                        let memory = &mut self.cluster.servers_mut()[usize::from(server)];
                        let pool = self.clients[client].pool();
                        match memory.allocate(now, session, class, bytes).unwrap() {
                            Grant::Chunk(chunk) => {
                                pool.grant(session.id, chunk.address, chunk.bytes, class);
                            }
                            Grant::Blocks(places) => {
                                pool.grant_blocks(session.id, server, class, places.bytes, &places.addresses);
                            }
                        }
                    }
                    Event::ConnectionBroken { id, reason } => {
                        assert_eq!(reason, BreakReason::Unregistered, "nothing is lost here");
                        self.refused += 1;
                        self.connect(client, id, false);
                    }
                    Event::SyncWanted { server } => panic!("server {server} has no disk"),
                    Event::Unfinished { server } => panic!("a write to server {server} gave up"),
                }
            }
        }
        any
    }

    /// Checks the trees and counts their keys.
    pub fn verify(&mut self) {
        let client = self.clients[0].clone();
        self.drive(vec![(
            0,
            Box::pin(async move {
                client.verify().await.unwrap();
            }),
        )]);
    }
}

fn pool_of(clients: &[Client], client: usize) -> &fatbtree_blink::Pool<Nic> {
    clients[client].pool()
}

fn nic(tree: &Topology, host: HostId) -> Nic {
    let host = tree.host(host);
    Nic::new(NicConfig::new(host.mac.0, host.ip), u64::from(host.id.0) + SEED).unwrap()
}
