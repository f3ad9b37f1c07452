//! The whole data path as one value: switches, memory servers and clients, and the wires between them.

use fatbtree_client::roce::{RoceClient, SeededValues};
use fatbtree_nic::time::Instant;
use fatbtree_switch::Output;
use fatbtree_switch::service::Switch;
use fatbtree_topology::{FatTree, HostId, Peer, SwitchId};

use crate::server::ServerNode;
use crate::wires::{Attachment, Wires};

/// A client of the cluster.
pub type Client = RoceClient<SeededValues>;

/// Tells the time: the wall's, or the simulation's.
pub trait Clock {
    /// The time now; never goes back.
    fn now(&self) -> Instant;
}

/// Switches, memory servers, clients, and the wires between them.
///
/// **Driving contract.** Whoever owns it calls [`step`](Self::step) until it returns `false` (nothing has arrived), then
/// looks at the clients' events, posts new work through [`with_client`](Self::with_client), and calls
/// [`handle_timeouts`](Self::handle_timeouts) when [`next_timeout`](Self::next_timeout) is due. It never waits and never
/// reads a clock of its own.
pub struct Cluster<W> {
    switches: Vec<Switch>,
    servers: Vec<ServerNode>,
    clients: Vec<Client>,
    /// Per switch and port: where the wire ends.
    switch_links: Vec<Vec<Option<Attachment>>>,
    /// Per server, then per client: the port of its edge switch.
    host_links: Vec<Attachment>,
    wires: W,
    output: Output,
}

impl<W: Wires> Cluster<W> {
    /// Wires everything up as `tree` says. `switches` come in the order of `tree.switches()`; hosts that are neither
    /// server nor client do not exist, and frames to them end at their port.
    pub fn new(
        tree: &FatTree,
        switches: Vec<Switch>,
        servers: Vec<(HostId, ServerNode)>,
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
            wires,
            output: Output::new(),
        }
    }

    /// Delivers one frame and sends what it causes. `false`: nothing has arrived by now.
    pub fn step(&mut self, clock: &impl Clock) -> bool {
        // Time matters to hosts alone, and asking for it costs as much as a switch's parser.
        let Some(mut delivery) = self.wires.receive(clock) else { return false };
        let node = delivery.to.node as usize;
        if let Some(switch) = self.switches.get_mut(node) {
            self.output.clear();
            switch.forward_frame(0, delivery.to.port, &mut delivery.frame, &mut self.output);
            // A port without a wire: the frame leaves and nobody is there.
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
                Some(server) => server.nic_mut().handle_frame(now, &delivery.frame),
                None => self.clients[host - self.servers.len()].handle_frame(now, &delivery.frame),
            }
            self.transmit(host, clock, now);
        }
        self.wires.recycle(delivery.frame);
        true
    }

    /// Posts work at a client, or reads its events, at the time given, and sends what that causes.
    pub fn with_client<T>(
        &mut self,
        client: usize,
        clock: &impl Clock,
        work: impl FnOnce(&mut Client, Instant) -> T,
    ) -> T {
        let now = clock.now();
        let answer = work(&mut self.clients[client], now);
        self.transmit(self.servers.len() + client, clock, now);
        answer
    }

    /// When the earliest timer of a NIC runs out.
    pub fn next_timeout(&self) -> Option<Instant> {
        let servers = self.servers.iter().filter_map(|server| server.nic().poll_timeout());
        servers.chain(self.clients.iter().filter_map(Client::poll_timeout)).min()
    }

    /// Lets all NICs do what is due.
    pub fn handle_timeouts(&mut self, clock: &impl Clock) {
        let now = clock.now();
        for host in 0..self.host_links.len() {
            match self.servers.get_mut(host) {
                Some(server) => server.nic_mut().handle_timeout(now),
                None => self.clients[host - self.servers.len()].handle_timeout(now),
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
    pub fn servers_mut(&mut self) -> &mut [ServerNode] {
        &mut self.servers
    }

    /// The clients, in the order given.
    pub fn clients(&self) -> &[Client] {
        &self.clients
    }

    fn transmit(&mut self, host: usize, clock: &impl Clock, now: Instant) {
        let to = self.host_links[host];
        loop {
            let mut frame = self.wires.buffer();
            let more = match self.servers.get_mut(host) {
                Some(server) => server.nic_mut().poll_transmit(now, &mut frame),
                None => self.clients[host - self.servers.len()].poll_transmit(now, &mut frame),
            };
            if !more {
                self.wires.recycle(frame);
                return;
            }
            self.wires.send(clock, to, frame);
        }
    }
}
