//! A small cluster whose frames a test carries by hand, hop by hop.

#![allow(
    clippy::unwrap_used,
    dead_code,
    unreachable_pub,
    reason = "test support: each test file uses a part of it"
)]

use std::collections::BTreeSet;

use fatbtree_blink::{Regions, SuperRoot, TreeConfig, TreeTop, ValueLayout};
use fatbtree_blink_host::{LoadOptions, load_cluster, seeded};
use fatbtree_controller::{
    Budget, Connection, Connections, Frequencies, HotKeys, Located, Placement, Plan, Tree,
};
use fatbtree_memserver::{ClientId, ServerOptions};
use fatbtree_sim::{MemoryServer, Network};
use fatbtree_soft_nic::{Nic, NicConfig};
use fatbtree_switch::Output;
use fatbtree_switch::service::Switch;
use fatbtree_topology::{HostId, Network as Topology, Peer};
use fatbtree_verbs::time::Instant;
use fatbtree_verbs::{Device, IndexTarget, Operation, QueuePair, Verbs, WorkRequest};
use fatbtree_wire::{Extension, Frame, Reth};

pub const NOW: Instant = Instant::ZERO;

/// A frame somewhere in the network.
pub struct Passing {
    pub frame: Vec<u8>,
    /// The switch that sent it, and the host it arrives at, if it does.
    pub at: Peer,
}

/// Switches with a plan, memory servers, and one client NIC with a queue pair to each of them.
pub struct Bench {
    pub network: Network,
    pub switches: Vec<Switch>,
    pub servers: Vec<MemoryServer>,
    pub server_hosts: Vec<HostId>,
    pub client: Nic,
    pub client_host: HostId,
    pub queue_pairs: Vec<QueuePair>,
    /// The READ that the client has posted to each server.
    posted: Vec<Vec<u8>>,
    pub roots: SuperRoot,
    pub config: TreeConfig,
    pub plan: Option<Plan>,
    /// The trees' memory.
    pub memory: Regions,
    /// Their inner nodes.
    pub tops: Vec<TreeTop>,
}

/// Hot keys at most.
const HOT_KEYS: usize = 50;

/// Options of the cluster to build.
pub struct Setup {
    pub keys: BTreeSet<u64>,
    pub servers: u16,
    /// None: nothing is loaded beyond routes.
    pub budget: Option<Budget>,
    pub registered: bool,
}

impl Bench {
    pub fn new(setup: &Setup) -> Self {
        let tree = Topology::one_core(4).unwrap();
        let mut in_first_pod: Vec<_> =
            tree.hosts().iter().filter(|host| host.pod == 0).map(|host| host.id).collect();
        in_first_pod.truncate(usize::from(setup.servers));
        let client_host = tree.hosts().iter().find(|host| host.pod == 1).unwrap().id;
        Self::within(tree, in_first_pod, client_host, setup)
    }

    /// The same in any network, with a memory server on each of these hosts.
    pub fn within(tree: Topology, server_hosts: Vec<HostId>, client_host: HostId, setup: &Setup) -> Self {
        let placement: Placement = (0..).zip(server_hosts.iter().copied()).collect();
        let placement = placement.with_clients([client_host]);

        let config = TreeConfig::new(16, 1024, ValueLayout::Inline(8)).unwrap();
        let sorted: Vec<u64> = setup.keys.iter().copied().collect();
        let options = LoadOptions::new(config, 0);
        let loaded = load_cluster(&options, setup.servers, &sorted, &mut seeded(1, 8)).unwrap();
        let (memory, tops, roots) = (loaded.memory(), loaded.tops().unwrap(), loaded.roots.clone());
        let on_host = |server: u16| nic(&tree, server_hosts[usize::from(server)]);
        let servers = loaded.serve(&ServerOptions::default(), 1, on_host).unwrap();

        let client = nic(&tree, client_host);
        let network = Network::new(tree, placement);
        let mut switches = network.switches().unwrap();
        let plan = setup.budget.as_ref().map(|budget| {
            let tree = Tree::new(&tops).unwrap();
            let visits: Vec<(u64, u64)> = sorted.iter().map(|key| (*key, 1)).collect();
            let some = sorted.iter().step_by(7).map(|key| {
                let partition = roots.partition_of(*key);
                let place =
                    fatbtree_blink::Tree::new(&memory, &config, partition).place_of(*key, &mut 0).unwrap();
                Located { key: *key, address: place.unwrap().raw() }
            });
            let (hot, rest) = HotKeys::choose(&tree, &visits, &some.collect::<Vec<_>>(), HOT_KEYS, None);
            let frequencies = Frequencies::from_weighted(&tree, &rest);
            let plan = Plan::new(network.tree(), network.placement(), &tree, &frequencies, budget, 1);
            plan.unwrap().with_hot_keys(hot)
        });
        if let Some(plan) = &plan {
            network.load(&mut switches, plan).unwrap();
        }
        let mut bench = Self {
            network,
            switches,
            servers,
            server_hosts,
            client,
            client_host,
            queue_pairs: Vec::new(),
            posted: Vec::new(),
            roots,
            config,
            plan,
            memory,
            tops,
        };
        for partition in 0..setup.servers {
            let queue_pair = bench.connect(partition, setup.registered);
            bench.queue_pairs.push(queue_pair);
            bench.client.post(queue_pair, &[index_read(0)]).unwrap();
            let mut frame = Vec::new();
            assert!(bench.client.poll_transmit(NOW, &mut frame));
            bench.posted.push(frame);
        }
        bench
    }

    fn connect(&mut self, partition: u16, registered: bool) -> QueuePair {
        let queue_pair = self.client.create().unwrap();
        let local = self.client.endpoint(queue_pair).unwrap();
        let server = &mut self.servers[usize::from(partition)];
        let client = ClientId { host: local.ip.into(), roce: local.ip };
        let session = server.open_session(NOW, client).unwrap().session;
        let remote = server.connect(NOW, session, &local, None).unwrap();
        self.client.connect(queue_pair, &remote).unwrap();
        if registered {
            let info = server.info();
            let connection = Connection {
                client: local.ip,
                partition,
                dest_qp: remote.queue_pair.0,
                rkey: info.region.rkey,
                root: info.partition.root.raw(),
                mtu: 1024,
            };
            let (switch, change) = Connections::new()
                .register(self.network.tree(), self.network.placement(), connection)
                .unwrap();
            self.network.write(&mut self.switches[switch.0 as usize], switch, &[change.unwrap()]).unwrap();
        }
        queue_pair
    }

    /// The frame of an index read for `key`: the one read that the client's NIC has posted to the key's server, asking
    /// for this key.
    pub fn index_read(&self, key: u64) -> Vec<u8> {
        self.index_read_of(key, IndexTarget::NodeOrRecord)
    }

    /// The same for what is wanted.
    pub fn index_read_of(&self, key: u64, target: IndexTarget) -> Vec<u8> {
        let partition = self.roots.partition_of(key).id;
        let mut read = Frame::parse(&self.posted[usize::from(partition)]).unwrap();
        read.extension = Extension::Reth(Reth { va: key, rkey: target.rkey(), length: 1024 });
        let mut frame = Vec::new();
        read.emit(&mut frame);
        let icrc = Frame::parse(&frame).unwrap().expected_icrc();
        let end = frame.len() - 4;
        frame[end..].copy_from_slice(&icrc.to_le_bytes());
        frame
    }

    /// The hops of a frame that a host sends: where it is after each switch. Ends at a host, or where it is dropped.
    pub fn hops(&mut self, from: HostId, frame: &[u8]) -> Vec<Passing> {
        let mut hops: Vec<Passing> = Vec::new();
        let edge = self.network.tree().edge_of(from).id;
        let in_port = self.network.tree().ports(edge).find(|(_, peer)| *peer == Peer::Host(from)).unwrap().0;
        let (mut switch, mut port, mut bytes) = (edge, in_port, frame.to_vec());
        loop {
            let Some(passing) = self.hop(switch.0, port, &bytes) else { return hops };
            let at = passing.at;
            bytes.clone_from(&passing.frame);
            hops.push(passing);
            match at {
                Peer::Switch { switch: next, port: next_port } => (switch, port) = (next, next_port),
                Peer::Host(_) => return hops,
            }
            assert!(hops.len() < 10, "the frame goes round in circles");
        }
    }

    /// One switch; `None` when it drops the frame.
    pub fn hop(&mut self, switch: u32, port: u16, frame: &[u8]) -> Option<Passing> {
        let mut output = Output::new();
        self.switches[switch as usize].handle_frame(0, port, frame, &mut output);
        let (port, sent) = output.iter().next()?;
        let at = self.network.tree().peer(fatbtree_topology::SwitchId(switch), port)?;
        Some(Passing { frame: sent.to_vec(), at })
    }

    /// The server that a host is.
    pub fn server_at(&mut self, host: HostId) -> &mut MemoryServer {
        let number =
            self.server_hosts.iter().position(|server| *server == host).expect("no server on this host");
        &mut self.servers[number]
    }
}

/// An index read of the largest node.
pub fn index_read(key: u64) -> WorkRequest<'static> {
    WorkRequest {
        tag: 0,
        signalled: true,
        operation: Operation::IndexRead { key, len: 1024, target: IndexTarget::NodeOrRecord },
    }
}

fn nic(tree: &Topology, host: HostId) -> Nic {
    let host = tree.host(host);
    Nic::new(NicConfig::new(host.mac.0, host.ip), u64::from(host.id.0)).unwrap()
}
