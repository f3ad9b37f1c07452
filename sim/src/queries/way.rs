//! The way of queries: frames, compiled switches, and a controller that loads one plan after the other.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use fatbtree_blink::{Regions, Superblock, TopReader, TreeConfig};
use fatbtree_blink_host::TreeServer;
use fatbtree_controller::{Budget, Frequencies, Notice, Placement, Plan, Tree};
use fatbtree_soft_nic::Nic;
use fatbtree_switch::Output;
use fatbtree_switch::service::Switch;
use fatbtree_topology::{Host, HostId, Network as Topology, Peer, SwitchId};
use fatbtree_wire::query::{DIRECT_QUERY_UDP_PORT, QUERY_UDP_PORT};
use fatbtree_wire::{Ethernet, UdpFrame};
use rand::RngExt as _;
use rand::seq::SliceRandom as _;

use crate::control::{Control, described};
use crate::network::{Network, WriteRefused};
use crate::world::Random;

/// First port of clients, which have a port for each lane.
const FIRST_PORT: u16 = 40_000;

/// Changes in one write of the controller.
const PIECE: usize = 64;

/// A frame that has come to its host.
pub(super) enum Arrived {
    /// A query to the server: the sender and the datagram.
    Query(SocketAddr, Vec<u8>),
    /// An answer to a client's lane.
    Answer { client: usize, datagram: Vec<u8> },
    /// A damaged frame.
    Damaged,
    /// A frame at a host that it does not concern.
    Elsewhere,
}

/// Hosts, and the switches between them.
pub(super) struct Way {
    network: Network,
    switches: Vec<Switch>,
    server: Host,
    clients: Vec<Host>,
    /// A host that is neither server nor client.
    other: Host,
    config: TreeConfig,
    budget: Budget,
    control: Control,
    output: Output,
    pub(super) reloads: u64,
}

impl Way {
    /// Creates hosts in a network that is drawn, with nothing loaded beyond routes.
    pub(super) fn new(config: TreeConfig, clients: usize, random: &mut Random) -> Result<Self, String> {
        let (kind, tree) = match random.random_range(0..4) {
            0..2 => ("kind = \"single\"\nhosts = 4", Topology::single(4)),
            2 => ("kind = \"pair\"\nhosts = 3", Topology::pair(3)),
            _ => ("kind = \"leaf-spine\"\nleaves = 2\nspines = 2\nhosts = 2", Topology::leaf_spine(2, 2, 2)),
        };
        let tree = tree.map_err(|error| error.to_string())?;
        // The server is as near to one client as to another, or not.
        let mut hosts: Vec<Host> = tree.hosts().to_vec();
        let first = random.random_range(0..hosts.len());
        hosts.rotate_left(first);
        let mut hosts = hosts.into_iter();
        let mut host = || hosts.next().ok_or("there are four hosts");
        let (server, other) = (host()?, host()?);
        let clients = (0..clients).map(|_| host()).collect::<Result<Vec<_>, _>>()?;
        let described = described(kind, &tree, &[server.id], &[])?;
        let network = Network::new(tree, Placement::of(&described));
        let mut switches = network.switches().map_err(|error| error.to_string())?;
        let mut control = Control::new(&described, PIECE, random.random());
        control.settle(&network, &mut switches).map_err(|error| error.to_string())?;
        // Little room, so that some keys are led far, some a little, some not at all.
        let budget = Budget {
            fat_root_ranges: random.random_range(2..60),
            set_nodes: std::array::from_fn(|_| random.random_range(0..12)),
            ..Budget::bmv2()
        };
        Ok(Self {
            network,
            switches,
            server,
            clients,
            other,
            config,
            budget,
            control,
            output: Output::new(),
            reloads: 0,
        })
    }

    /// Frame of a client's query. A query that switches may lead is sometimes sent to the other host.
    pub(super) fn query(
        &self,
        client: usize,
        lane: usize,
        direct: bool,
        datagram: &[u8],
        random: &mut Random,
    ) -> Vec<u8> {
        let any = !direct && self.control.controller.plan().is_some() && random.random_bool(0.3);
        let to = if any { &self.other } else { &self.server };
        let port = if direct { DIRECT_QUERY_UDP_PORT } else { QUERY_UDP_PORT };
        let from = &self.clients[client];
        frame(from, FIRST_PORT + lane as u16, to, (to.ip, port).into(), datagram)
    }

    /// Frame of the server's answer; `None` if the address is no client's.
    pub(super) fn answer(&self, to: SocketAddr, datagram: &[u8]) -> Option<Vec<u8>> {
        let SocketAddr::V4(to) = to else { return None };
        let client = self.clients.iter().find(|client| client.ip == *to.ip())?;
        Some(frame(&self.server, QUERY_UDP_PORT, client, to.into(), datagram))
    }

    pub(super) fn server(&self) -> HostId {
        self.server.id
    }

    pub(super) fn client(&self, client: usize) -> HostId {
        self.clients[client].id
    }

    /// Client and lane of an address.
    pub(super) fn lane_of(&self, address: SocketAddr) -> Option<(usize, usize)> {
        let SocketAddr::V4(address) = address else { return None };
        let client = self.clients.iter().position(|client| client.ip == *address.ip())?;
        Some((client, usize::from(address.port().checked_sub(FIRST_PORT)?)))
    }

    /// Destination of a frame that no switch touches.
    pub(super) fn end_of_cable(&self, from: HostId, frame: &[u8]) -> HostId {
        let to_client = self.clients.iter().find(|client| frame.starts_with(&client.mac.0));
        to_client.filter(|_| from == self.server.id).map_or(self.server.id, |client| client.id)
    }

    /// Passes a frame through all switches. Returns its last host and its bytes there; `None` if it is dropped.
    pub(super) fn pass(&mut self, from: HostId, frame: &[u8]) -> Option<(HostId, Vec<u8>)> {
        let tree = self.network.tree();
        let edge = tree.edge_of(from).id;
        let (mut port, _) = tree.ports(edge).find(|(_, peer)| *peer == Peer::Host(from))?;
        let (mut switch, mut bytes) = (edge, frame.to_vec());
        // A frame that is damaged may be anything, but goes round no longer than its time to live.
        for _ in 0..16 {
            self.output.clear();
            self.switches[switch.0 as usize].handle_frame(0, port, &bytes, &mut self.output);
            let (out, sent) = self.output.iter().next()?;
            bytes = sent.to_vec();
            match tree.peer(switch, out)? {
                Peer::Host(host) => return Some((host, bytes)),
                Peer::Switch { switch: next, port: next_port } => (switch, port) = (next, next_port),
            }
        }
        None
    }

    /// Meaning of a frame for the host that it has come to.
    pub(super) fn arrived(&self, at: HostId, frame: &[u8]) -> Arrived {
        let Ok(found) = UdpFrame::parse(frame) else { return Arrived::Damaged };
        let (ip, port): (Ipv4Addr, u16) = (*found.destination.ip(), found.destination.port());
        if at == self.server.id && ip == self.server.ip {
            let is_ours = (QUERY_UDP_PORT..=DIRECT_QUERY_UDP_PORT).contains(&port);
            let from = SocketAddr::V4(found.source);
            return if is_ours { Arrived::Query(from, found.payload.to_vec()) } else { Arrived::Elsewhere };
        }
        let answer = self.lane_of(SocketAddrV4::new(ip, port).into());
        match answer.filter(|(client, _)| at == self.clients[*client].id) {
            Some((client, _)) => Arrived::Answer { client, datagram: found.payload.to_vec() },
            None => Arrived::Elsewhere,
        }
    }

    /// Makes the controller's next step: a request to a switch, or a plan of the tree as it is now.
    pub(super) fn reload(&mut self, server: &TreeServer<Nic>, random: &mut Random) -> Result<(), String> {
        let said = |error: WriteRefused| error.to_string();
        if self.control.controller.reload().is_none() {
            let Some(plan) = self.planned(server, random) else { return Ok(()) };
            let trees = self.control.controller.trees();
            return self.control.controller.load(plan, trees).map(drop).map_err(|error| error.to_string());
        }
        let mut order: Vec<SwitchId> =
            (0..self.switches.len()).map(|number| SwitchId(number as u32)).collect();
        order.shuffle(random);
        self.control.step_first(&self.network, &mut self.switches, &order).map_err(said)?;
        while let Some(notice) = self.control.controller.poll_notice() {
            self.reloads += u64::from(matches!(notice, Notice::Reloaded { .. }));
        }
        Ok(())
    }

    /// Makes all steps to the next plan, if there is one.
    pub(super) fn load(&mut self, server: &TreeServer<Nic>, random: &mut Random) -> Result<(), String> {
        self.reload(server, random)?;
        while self.control.controller.reload().is_some() {
            self.reload(server, random)?;
        }
        Ok(())
    }

    /// A plan for the tree; `None` while the tree cannot be read, or there is nothing to cache.
    fn planned(&self, server: &TreeServer<Nic>, random: &mut Random) -> Option<Plan> {
        let memory = Regions::new([(0, std::sync::Arc::clone(server.memory()))]);
        let mut line = [0; fatbtree_blink::node::LINE];
        server.memory().read(0, &mut line).ok()?;
        let superblock = Superblock::parse(&line).ok()?;
        let mut partition = server.info().partition;
        (partition.root, partition.root_level) = (superblock.partition.root, superblock.partition.root_level);
        let top = TopReader::new(&self.config, &partition, 1 << 16).read(&memory, 1 << 16).ok()??;
        let tree = Tree::new(&[top]).ok()?;
        let keys: Vec<u64> =
            (0..random.random_range(0..50)).map(|_| random.random_range(0..=u64::MAX)).collect();
        let frequencies = Frequencies::from_keys(&tree, &keys);
        let (network, placement) = (self.network.tree(), self.network.placement());
        Plan::new(network, placement, &tree, &frequencies, &self.budget, 1).ok()
    }
}

fn frame(from: &Host, port: u16, to: &Host, destination: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let SocketAddr::V4(destination) = destination else { return frame };
    UdpFrame {
        ethernet: Ethernet { destination: to.mac.0, source: from.mac.0 },
        source: SocketAddrV4::new(from.ip, port),
        destination,
        payload,
    }
    .emit(&mut frame);
    frame
}
