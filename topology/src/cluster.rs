//! A cluster: the network and the roles in it.
//!
//! `file` holds the TOML shapes (with the place of every value), `validate` turns them into a [`Cluster`] or a
//! [`ClusterError`] that names line and field.

mod error;
mod file;
mod metrics;
mod network;
mod trust;
mod validate;
mod wires;

pub use error::{ClusterError, ClusterProblem};
pub use network::IN_FLIGHT_PORT;
pub use wires::{MAX_SEATS, NoWire, Seat, Wire};

use crate::network::{HostId, Network, SwitchId};
use crate::routing::Ends;

/// Kind of the keys with which memory servers begin. A load may change it.
#[derive(serde::Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[serde(rename_all = "lowercase")]
pub enum KeyKind {
    /// Numbers of 64 bits.
    #[default]
    Numbers,
    /// Strings of bytes. Borders between partitions are by their first eight bytes.
    Bytes,
}

/// Structure that the memory servers of a cluster hold.
#[derive(serde::Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[serde(rename_all = "lowercase")]
pub enum Structure {
    /// B-link trees: one for each partition.
    #[default]
    Tree,
    /// One hash table over all memory servers, whatever their partitions' keys.
    Hash,
    /// One Dolphin index over all memory servers, whatever their partitions' keys.
    Dolphin,
    /// Tables of transactions over all memory servers, whatever their partitions' keys.
    Dtx,
}

impl Structure {
    /// Its word in a cluster file.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Tree => "tree",
            Self::Hash => "hash",
            Self::Dolphin => "dolphin",
            Self::Dtx => "dtx",
        }
    }
}

/// A memory server: one partition of the key space, on one host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryServer {
    /// Its host.
    pub host: HostId,
    /// Its name; by default the host's.
    pub name: String,
    /// Partition id, which is also the server number in the high 16 bits of its addresses.
    pub partition: u16,
    /// First key; where keys are bytes, its first eight bytes, in big endian, with zeros behind.
    pub low: u64,
    /// Last key (inclusive), in the same way.
    pub high: u64,
    /// Its gRPC endpoint, `name-or-address:port`.
    pub grpc: String,
    /// Address for queries (UDP), `name-or-address:port`, if the file has one.
    pub query: Option<String>,
}

/// A client (compute server).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Client {
    /// Its host.
    pub host: HostId,
    /// Its name; by default the host's.
    pub name: String,
}

/// Address of a switch's P4Runtime server.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct P4RuntimeEndpoint {
    /// gRPC address, `name-or-address:port`.
    pub address: String,
    /// P4Runtime device id; several switches behind one address differ in it.
    pub device_id: u64,
}

/// Highest number of a port with a cable. Ports have 9 bits; 511 is none, and 510 leads to the controller (`p4/fatbtree_v1model.p4`).
const MAX_DEVICE_PORT: u16 = 509;

/// The pipe of a Tofino that a device port belongs to.
const fn pipe_of(device_port: u16) -> u16 {
    device_port / 128
}

/// The network, the memory servers (by partition's low key), the clients (in file order), and the control endpoints.
///
/// Only a valid cluster can be made, by [`Cluster::from_toml`]. Its partitions tile 0..=`u64::MAX`, no host has two
/// roles, and no address, endpoint, name or end of a wire is there twice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cluster {
    structure: Structure,
    keys: KeyKind,
    tree: Network,
    servers: Vec<MemoryServer>,
    clients: Vec<Client>,
    /// Addresses in the file: the first controller, then the standbys.
    controllers: Vec<String>,
    p4runtime: Vec<P4RuntimeEndpoint>,
    /// Names of ports on the device, by switch, where the file has them.
    device_ports: std::collections::BTreeMap<SwitchId, std::collections::BTreeMap<u16, u16>>,
    in_flight_port: u16,
    /// Wires, if the file has them.
    wires: Option<wires::Wires>,
    /// Folder of certificates, as the file has it.
    certificates: Option<std::path::PathBuf>,
    query_open: bool,
    /// Metrics addresses by name, if the file has a rule for them.
    metrics: std::collections::BTreeMap<String, String>,
}

/// Owner of a name in a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Named<'a> {
    /// A switch.
    Switch(&'a crate::Switch),
    /// A memory server.
    MemoryServer(&'a MemoryServer),
    /// A client.
    Client(&'a Client),
}

/// The commented example file, `topology/examples/cluster-k4.toml`.
const EXAMPLE: &str = include_str!("../examples/cluster-k4.toml");

/// The smallest fat tree with two memory servers and a client, all on one machine: `topology/examples/local.toml`.
const LOCAL: &str = include_str!("../examples/local.toml");

/// Examples with one switch, with two, and with leaves and spines.
const SINGLE: &str = include_str!("../examples/single.toml");
const PAIR: &str = include_str!("../examples/pair.toml");
const LEAF_SPINE: &str = include_str!("../examples/leaf-spine.toml");

impl Cluster {
    /// Reads a cluster file.
    ///
    /// # Errors
    /// The first thing wrong with it, with line, column and field (docs/src/invariants.md "Bad input"): see [`ClusterProblem`].
    pub fn from_toml(text: &str) -> Result<Self, ClusterError> {
        validate::cluster(text)
    }

    /// Structure that the memory servers hold: `structure = "hash"`, `"dolphin"` or `"dtx"` before the first section, or trees.
    pub fn structure(&self) -> Structure {
        self.structure
    }

    /// Kind of the keys with which memory servers begin, if they begin empty: `keys = "bytes"` before the first section, or numbers.
    pub fn keys(&self) -> KeyKind {
        self.keys
    }

    /// The paper's four memory servers in one pod and two clients, as in `examples/cluster-k4.toml`.
    pub fn example() -> Self {
        Self::from_toml(EXAMPLE).expect("the example file is tested to be valid")
    }

    /// Text of the example file, a starting point for other files.
    pub fn example_toml() -> &'static str {
        EXAMPLE
    }

    /// Text of a file that works as it stands on one machine, with all roles as processes.
    ///
    /// Its network is the smallest fat tree that has room for two memory servers and a client.
    pub fn local_toml() -> &'static str {
        LOCAL
    }

    /// Examples for each kind of network by its name, as in `kind = "leaf-spine"`.
    pub fn examples() -> [(&'static str, &'static str); 4] {
        [("single", SINGLE), ("pair", PAIR), ("leaf-spine", LEAF_SPINE), ("fat-tree", LOCAL)]
    }

    /// The role with this name: a switch's, a memory server's or a client's own, or that of the host where one of them is.
    pub fn named(&self, name: &str) -> Option<Named<'_>> {
        let on = |host: HostId| self.tree.host(host).name() == name;
        let switch = self.tree.switch_by_name(name).map(Named::Switch);
        let server = || self.servers.iter().find(|s| s.name == name || on(s.host)).map(Named::MemoryServer);
        let client = || self.clients.iter().find(|c| c.name == name || on(c.host)).map(Named::Client);
        switch.or_else(server).or_else(client)
    }

    /// Wires of a switch: for each port that is wired, in their order.
    ///
    /// # Errors
    /// When the file does not say where wires are, or one leads to something that is not a process.
    pub fn switch_wires(&self, switch: SwitchId) -> Result<Vec<(u16, Wire)>, NoWire> {
        let wires = self.wires.as_ref().ok_or(NoWire::NotDescribed)?;
        self.tree
            .ports(switch)
            .map(|(port, _)| Ok((port, wires.of_switch(&self.tree, switch, port)?)))
            .collect()
    }

    /// Wire of a host; that of the first client where several have seats.
    ///
    /// # Errors
    /// As for [`switch_wires`](Self::switch_wires).
    pub fn host_wire(&self, host: HostId) -> Result<Wire, NoWire> {
        Ok(self.seat(host, 0)?.wire)
    }

    /// Number of client processes that a host has seats for: 1, or the length of its range of UDP ports.
    pub fn seats(&self, host: HostId) -> u16 {
        self.tree.address_count(host)
    }

    /// Seat number `n` of a host: the address and the wire of one client process.
    ///
    /// # Errors
    /// As for [`switch_wires`](Self::switch_wires).
    ///
    /// # Panics
    /// When the host has fewer [`seats`](Self::seats).
    pub fn seat(&self, host: HostId, n: u16) -> Result<Seat, NoWire> {
        self.wires.as_ref().ok_or(NoWire::NotDescribed)?.of_seat(&self.tree, host, n)
    }

    /// The network.
    pub fn tree(&self) -> &Network {
        &self.tree
    }

    /// Hosts that index packets come from and go to.
    pub fn ends(&self) -> Ends {
        let (servers, clients) =
            (self.servers.iter().map(|at| at.host), self.clients.iter().map(|at| at.host));
        Ends::new(&self.tree, servers, clients)
    }

    /// The UDP destination port of index packets between switches.
    pub fn in_flight_port(&self) -> u16 {
        self.in_flight_port
    }

    /// Memory servers, ordered by the low key of their partitions.
    pub fn servers(&self) -> &[MemoryServer] {
        &self.servers
    }

    /// Clients, in file order.
    pub fn clients(&self) -> &[Client] {
        &self.clients
    }

    /// Address at which the controller answers memory servers, clients and operators: its gRPC endpoint, `name-or-address:port`.
    pub fn controller(&self) -> Option<&str> {
        self.controllers.first().map(String::as_str)
    }

    /// Addresses of the controller and of the standbys (`controller.standby`), one of which takes its place when it is gone.
    pub fn controllers(&self) -> &[String] {
        &self.controllers
    }

    /// Folder of certificates, relative to the file. Every gRPC channel then has mutual TLS, and every role shows the certificate of its
    /// name.
    /// `None` if channels are plaintext.
    pub fn certificates(&self) -> Option<&std::path::Path> {
        self.certificates.as_deref()
    }

    /// Whether memory servers answer queries of all clients, although there are [certificates](Self::certificates). Otherwise they
    /// answer only clients with a key, which they hand out to clients with certificates.
    pub fn query_open(&self) -> bool {
        self.query_open
    }

    /// Address of a role's metrics (HTTP), by its own name or `controller`: `name-or-address:port`. `None` if it serves none.
    pub fn metrics(&self, name: &str) -> Option<&str> {
        self.metrics.get(name).map(String::as_str)
    }

    /// The memory server of a partition.
    pub fn server(&self, partition: u16) -> Option<&MemoryServer> {
        self.servers.iter().find(|server| server.partition == partition)
    }

    /// The memory server whose partition holds `key`.
    pub fn server_of_key(&self, key: u64) -> &MemoryServer {
        let after = self.servers.partition_point(|server| server.low <= key);
        &self.servers[after.checked_sub(1).expect("validated: the first partition begins at key 0")]
    }

    /// Same cluster for switches that need no [loopback ports](Network::loopback_ports), without these ports.
    #[must_use]
    pub fn in_one_pass(mut self) -> Self {
        self.tree.loopback_ports.clear();
        self
    }

    /// Number of a switch's port on the device: on hardware, the number behind the front panel's. The same number
    /// where the file says nothing.
    pub fn device_port(&self, switch: SwitchId, port: u16) -> u16 {
        let named = self.device_ports.get(&switch).and_then(|ports| ports.get(&port));
        named.copied().unwrap_or(port)
    }

    /// Address of a switch's P4Runtime server.
    ///
    /// # Panics
    /// When the id is another network's.
    pub fn p4runtime(&self, switch: SwitchId) -> &P4RuntimeEndpoint {
        &self.p4runtime[switch.0 as usize]
    }
}
