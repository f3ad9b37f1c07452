//! A cluster: the network and who sits where in it.
//!
//! `file` holds the TOML shapes (with the place of every value), `validate` turns them into a [`Cluster`] or a
//! [`ClusterError`] that names line and field.

mod error;
mod file;
mod validate;

pub use error::{ClusterError, ClusterProblem};

use crate::fat_tree::{FatTree, HostId, SwitchId};

/// A memory server: one partition of the key space, on one host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MemoryServer {
    /// Where it is.
    pub host: HostId,
    /// Partition id, which is also the server number in the high 16 bits of its addresses.
    pub partition: u16,
    /// First key.
    pub low: u64,
    /// Last key (inclusive).
    pub high: u64,
    /// Its gRPC endpoint, `name-or-address:port`.
    pub grpc: String,
}

/// A client (compute server).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Client {
    /// Where it is.
    pub host: HostId,
    /// What people call it; by default the host's name.
    pub name: String,
}

/// Where a switch is controlled.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct P4RuntimeEndpoint {
    /// gRPC address, `name-or-address:port`.
    pub address: String,
    /// P4Runtime device id; several switches behind one address differ in it.
    pub device_id: u64,
}

/// Highest port number of a P4 target: ports have 9 bits.
const MAX_DEVICE_PORT: u16 = 511;

/// The network, the memory servers (by partition's low key), the clients (in file order), and the control endpoints.
///
/// Only a valid one can be made, by [`Cluster::from_toml`]: the partitions tile 0..=`u64::MAX`, no host has two
/// roles, no address or endpoint is there twice.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cluster {
    tree: FatTree,
    servers: Vec<MemoryServer>,
    clients: Vec<Client>,
    p4runtime: Vec<P4RuntimeEndpoint>,
    /// By switch, where the file says so: what each port is called on the device.
    device_ports: std::collections::BTreeMap<SwitchId, Vec<u16>>,
}

/// The commented example file, `topology/examples/cluster-k4.toml`.
const EXAMPLE: &str = include_str!("../examples/cluster-k4.toml");

impl Cluster {
    /// Reads a cluster file.
    ///
    /// # Errors
    /// The first thing wrong with it, with line, column and field (DESIGN §14): see [`ClusterProblem`].
    pub fn from_toml(text: &str) -> Result<Self, ClusterError> {
        validate::cluster(text)
    }

    /// The paper's four memory servers in one pod and two clients, as in `examples/cluster-k4.toml`.
    pub fn example() -> Self {
        Self::from_toml(EXAMPLE).expect("the example file is tested to be valid")
    }

    /// The text of the example file, for people to start from.
    pub fn example_toml() -> &'static str {
        EXAMPLE
    }

    /// The network.
    pub fn tree(&self) -> &FatTree {
        &self.tree
    }

    /// Memory servers, ordered by the low key of their partitions.
    pub fn servers(&self) -> &[MemoryServer] {
        &self.servers
    }

    /// Clients, in file order.
    pub fn clients(&self) -> &[Client] {
        &self.clients
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

    /// What a switch's port is called on the device: on hardware, the number behind the front panel's. The same number
    /// where the file says nothing.
    pub fn device_port(&self, switch: SwitchId, port: u16) -> u16 {
        let named = self.device_ports.get(&switch).and_then(|ports| ports.get(usize::from(port)));
        named.copied().unwrap_or(port)
    }

    /// Where a switch is controlled.
    ///
    /// # Panics
    /// When the id is another network's.
    pub fn p4runtime(&self, switch: SwitchId) -> &P4RuntimeEndpoint {
        &self.p4runtime[switch.0 as usize]
    }
}
