//! The whole data path as one value: switches, memory servers and clients, and the wires between them.

use fatbtree_soft_nic::Nic;
use fatbtree_switch::Output;
use fatbtree_switch::service::Switch;
use fatbtree_topology::{HostId, Network as Topology, Peer, SwitchId};
use fatbtree_verbs::time::Instant;

use crate::wires::{Attachment, Wires};

/// A client of the cluster.
pub type Client = fatbtree_blink_client::Client<Nic>;
/// A memory server of the cluster.
pub type MemoryServer = fatbtree_blink_host::TreeServer<Nic>;

/// Nodes of a tree that a memory server reads for a snapshot before it looks for frames again.
const SNAPSHOT_NODES: usize = 64;

/// Tells the time: the wall's, or the simulation's.
pub trait Clock {
    /// The time now; never goes back.
    fn now(&self) -> Instant;
}

/// Switches, memory servers, clients, and the wires between them.
///
/// **Driving contract.** The owner calls [`step`](Self::step) until it returns `false`: nothing has arrived. It polls
/// the clients' futures and looks at their events through [`with_client`](Self::with_client). It calls
/// [`handle_timeout`](Self::handle_timeout) when [`poll_timeout`](Self::poll_timeout) is due. The cluster never
/// waits and never reads a clock of its own.
///
/// **Full wires.** A host sends only while its wire [has room](Wires::has_room). Until then its NIC holds requests,
/// not frames. Switches have no such choice.
pub struct Cluster<W> {
    switches: Vec<Switch>,
    servers: Vec<MemoryServer>,
    clients: Vec<Client>,
    /// Far end of the wire, per switch and port.
    switch_links: Vec<Vec<Option<Attachment>>>,
    /// Port of the edge switch, per server, then per client.
    host_links: Vec<Attachment>,
    /// Hosts that found no room on their wire.
    held_up: Vec<usize>,
    wires: W,
    output: Output,
}

impl<W: Wires> Cluster<W> {
    /// Wires everything up as `tree` says. `switches` come in the order of `tree.switches()`; hosts that are neither
    /// server nor client do not exist, and frames to them end at their port.
    pub fn new(
        tree: &Topology,
        switches: Vec<Switch>,
        servers: Vec<(HostId, MemoryServer)>,
        clients: Vec<(HostId, Client)>,
        wires: W,
    ) -> Self {
        let first_host = switches.len();
        let hosts: Vec<HostId> =
            servers.iter().map(|(host, _)| *host).chain(clients.iter().map(|(host, _)| *host)).collect();
        let node_of_host = |wanted: HostId| {
            hosts.iter().position(|host| *host == wanted).map(|index| (first_host + index) as u32)
        };

        let mut switch_links = vec![Vec::new(); switches.len()];
        for (index, links) in switch_links.iter_mut().enumerate() {
            let id = SwitchId(index as u32);
            for (port, peer) in tree.ports(id) {
                let end = match peer {
                    Peer::Switch { switch, port } => Some(Attachment { node: switch.0, port }),
                    Peer::Host(host) => node_of_host(host).map(|node| Attachment { node, port: 0 }),
                };
                let port = usize::from(port);
                if links.len() <= port {
                    links.resize(port + 1, None);
                }
                links[port] = end;
            }
        }
        let host_links = hosts
            .iter()
            .map(|host| {
                let edge = tree.edge_of(*host).id;
                let (port, _) = tree
                    .ports(edge)
                    .find(|(_, peer)| *peer == Peer::Host(*host))
                    .expect("a host hangs on a port of its own edge switch");
                Attachment { node: edge.0, port }
            })
            .collect();
        Self {
            switches,
            servers: servers.into_iter().map(|(_, server)| server).collect(),
            clients: clients.into_iter().map(|(_, client)| client).collect(),
            switch_links,
            host_links,
            held_up: Vec::new(),
            wires,
            output: Output::new(),
        }
    }

    /// Delivers one frame and sends what it causes; a client's futures are woken, if it was what they wait for. `false`:
    /// nothing has arrived by now.
    pub fn step(&mut self, clock: &impl Clock) -> bool {
        if !self.held_up.is_empty() {
            self.go_on(clock);
        }
        // Time matters to hosts alone, and asking for it costs as much as a switch's parser.
        let Some(mut delivery) = self.wires.receive(clock) else { return false };
        let node = delivery.to.node as usize;
        if let Some(switch) = self.switches.get_mut(node) {
            self.output.clear();
            switch.forward_frame(0, delivery.to.port, &mut delivery.frame, &mut self.output);
            // A port without a wire: the frame leaves and is lost.
            let links = &self.switch_links[node];
            let far_end = |port: u16| links.get(usize::from(port)).copied().flatten();
            if let Some(port) = self.output.take_only(&mut delivery.frame) {
                match far_end(port) {
                    Some(to) => self.wires.send(clock, to, delivery.frame),
                    None => self.wires.recycle(delivery.frame),
                }
                return true;
            }
            for (port, frame) in &self.output {
                if let Some(to) = far_end(port) {
                    let mut buffer = self.wires.buffer();
                    buffer.extend_from_slice(frame);
                    self.wires.send(clock, to, buffer);
                }
            }
        } else {
            let host = node - self.switches.len();
            let now = clock.now();
            match self.servers.get_mut(host) {
                Some(server) => server.device_mut().handle_frame(now, &delivery.frame),
                None => {
                    let client = &self.clients[host - self.servers.len()];
                    client.pool().reactor().with(|nic| nic.handle_frame(now, &delivery.frame));
                    client.turn(now);
                }
            }
            self.transmit(host, clock, now);
        }
        self.wires.recycle(delivery.frame);
        true
    }

    /// Sends what the controller has given a switch to send.
    pub fn send_packets_out(&mut self, switch: SwitchId, clock: &impl Clock) {
        let node = switch.0 as usize;
        self.output.clear();
        self.switches[node].handle_packets_out(0, &mut self.output);
        for (port, frame) in &self.output {
            if let Some(to) = self.switch_links[node].get(usize::from(port)).copied().flatten() {
                let mut buffer = self.wires.buffer();
                buffer.extend_from_slice(frame);
                self.wires.send(clock, to, buffer);
            }
        }
    }

    /// Runs `work` on a client at the present time, for example to poll its futures, and sends the frames that
    /// follow.
    pub fn with_client<T>(
        &mut self,
        client: usize,
        clock: &impl Clock,
        work: impl FnOnce(&Client, Instant) -> T,
    ) -> T {
        let now = clock.now();
        self.clients[client].turn(now);
        let answer = work(&self.clients[client], now);
        self.transmit(self.servers.len() + client, clock, now);
        answer
    }

    /// Earliest time at which something is due at a host.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let of_server = |server: &MemoryServer| [server.poll_timeout(), server.device().poll_timeout()];
        let of_client =
            |client: &Client| [client.poll_timeout(), client.pool().reactor().with(|nic| nic.poll_timeout())];
        let servers = self.servers.iter().flat_map(of_server);
        servers.chain(self.clients.iter().flat_map(of_client)).flatten().min()
    }

    /// Lets all hosts do what is due, and what servers do between frames.
    pub fn handle_timeout(&mut self, clock: &impl Clock) {
        let now = clock.now();
        for host in 0..self.host_links.len() {
            match self.servers.get_mut(host) {
                Some(server) => {
                    server.device_mut().handle_timeout(now);
                    server.work(now, SNAPSHOT_NODES);
                }
                None => {
                    let client = &self.clients[host - self.servers.len()];
                    client.pool().reactor().with(|nic| nic.handle_timeout(now));
                    client.turn(now);
                }
            }
            self.transmit(host, clock, now);
        }
    }

    /// The wires.
    pub fn wires(&self) -> &W {
        &self.wires
    }

    /// The wires, to change what befalls frames.
    pub fn wires_mut(&mut self) -> &mut W {
        &mut self.wires
    }

    /// The switches, in the order of the topology.
    pub fn switches_mut(&mut self) -> &mut [Switch] {
        &mut self.switches
    }

    /// The memory servers, in the order given.
    pub fn servers_mut(&mut self) -> &mut [MemoryServer] {
        &mut self.servers
    }

    /// The clients, in the order given.
    pub fn clients(&self) -> &[Client] {
        &self.clients
    }

    /// Lets hosts send on that found no room on their wire.
    #[cold]
    fn go_on(&mut self, clock: &impl Clock) {
        let now = clock.now();
        for host in std::mem::take(&mut self.held_up) {
            self.transmit(host, clock, now);
        }
    }

    fn transmit(&mut self, host: usize, clock: &impl Clock, now: Instant) {
        let to = self.host_links[host];
        loop {
            if !self.wires.has_room(to) {
                if !self.held_up.contains(&host) {
                    self.held_up.push(host);
                }
                return;
            }
            let mut frame = self.wires.buffer();
            let more = match self.servers.get_mut(host) {
                Some(server) => server.device_mut().poll_transmit(now, &mut frame),
                None => {
                    let reactor = self.clients[host - self.servers.len()].pool().reactor();
                    reactor.with(|nic| nic.poll_transmit(now, &mut frame))
                }
            };
            if !more {
                self.wires.recycle(frame);
                return;
            }
            self.wires.send(clock, to, frame);
        }
    }
}
