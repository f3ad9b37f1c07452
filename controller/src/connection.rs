//! Client connections: what a first-hop switch must know to admit index reads (paper §II, steps 4 and 5).

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;

use fatbtree_topology::{Cluster, Host, HostId, IN_FLIGHT_PORT, Network, SwitchId};

use crate::plan::Placement;
use crate::tables::{Change, Entry, roce_connection};

/// A connection that a client asks to have admitted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// Source address of the client's packets: one of its host's.
    pub client: Ipv4Addr,
    /// The memory server's partition.
    pub partition: u16,
    /// The server's queue pair number, 24 bits.
    pub dest_qp: u32,
    /// The rkey of the server's tree region.
    pub rkey: u32,
    /// The partition's root.
    pub root: u64,
    /// The path MTU: the longest READ that is answered in one packet, in bytes.
    pub mtu: u16,
}

impl fmt::Debug for Connection {
    /// Without the rkey: it permits writing to the tree.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, partition, dest_qp, root, mtu, rkey: _ } = self;
        f.debug_struct("Connection")
            .field("client", client)
            .field("partition", partition)
            .field("dest_qp", dest_qp)
            .field("root", root)
            .field("mtu", mtu)
            .finish_non_exhaustive()
    }
}

/// A connection that cannot be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// An address that no host has.
    #[error("client address {client}: no host of the network has it; add it to the cluster file")]
    UnknownAddress {
        /// The address.
        client: Ipv4Addr,
    },
    /// More than its table holds.
    #[error(
        "{switch} has room for {room} connections, and holds as many; close some, or use fewer queue pairs for each client"
    )]
    Full {
        /// The switch's name.
        switch: String,
        /// The size of its table.
        room: usize,
    },
    /// No such partition.
    #[error("partition {partition} is on no host; place its memory server in the cluster file")]
    UnknownPartition {
        /// The requested value.
        partition: u16,
    },
    /// Queue pair number out of range.
    #[error("queue pair {dest_qp:#x}: expected a number of 24 bits above 1 (0 and 1 are management's)")]
    QueuePair {
        /// The requested value.
        dest_qp: u32,
    },
    /// An rkey that says something else.
    #[error(
        "rkey {rkey} marks index reads and can be no region's; register the tree's region with another one"
    )]
    IndexReadRkey {
        /// 0 or 1.
        rkey: u32,
    },
    /// No path MTU of InfiniBand.
    #[error("path MTU {mtu}: expected 256, 512, 1024, 2048 or 4096 bytes")]
    Mtu {
        /// The requested value.
        mtu: u16,
    },
    /// A root on another server.
    #[error("root {root:#x} is on server {}, expected server {partition} for partition {partition}", root >> 48)]
    ForeignRoot {
        /// The requested value.
        root: u64,
        /// The partition.
        partition: u16,
    },
}

/// The registered connections, and where their entries are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connections {
    /// The UDP port of index packets between switches.
    in_flight_port: u16,
    /// Ports of hosts whose switches call them otherwise than the network does.
    device_ports: BTreeMap<HostId, u16>,
    entries: BTreeMap<(SwitchId, roce_connection::Key), roce_connection::Action>,
}

impl Default for Connections {
    fn default() -> Self {
        Self { in_flight_port: IN_FLIGHT_PORT, device_ports: BTreeMap::new(), entries: BTreeMap::new() }
    }
}

impl Connections {
    /// No connections, in a network whose devices call their ports as the network does.
    pub fn new() -> Self {
        Self::default()
    }

    /// No connections, with the ports of a cluster's devices.
    pub fn of(cluster: &Cluster) -> Self {
        let tree = cluster.tree();
        let device = |host: &Host| (host.id, cluster.device_port(tree.edge_of(host.id).id, host.index));
        let clients = cluster.clients().iter().map(|client| device(tree.host(client.host)));
        Self {
            in_flight_port: cluster.in_flight_port(),
            device_ports: clients.collect(),
            entries: BTreeMap::new(),
        }
    }

    /// Registers a connection; registering it again with other values changes it. The change, if any, is for the client's
    /// edge switch.
    ///
    /// # Errors
    /// A host, partition, queue pair, rkey or root that cannot be.
    pub fn register(
        &mut self,
        topology: &Network,
        placement: &Placement,
        connection: Connection,
    ) -> Result<(SwitchId, Option<Change>), ConnectionError> {
        let Connection { client, partition, dest_qp, rkey, root, mtu } = connection;
        let (switch, key) = self.place(topology, placement, client, partition, dest_qp)?;
        if rkey <= 1 {
            return Err(ConnectionError::IndexReadRkey { rkey });
        }
        if !(256..=4096).contains(&mtu) || !mtu.is_power_of_two() {
            return Err(ConnectionError::Mtu { mtu });
        }
        if root >> 48 != u64::from(partition) {
            return Err(ConnectionError::ForeignRoot { root, partition });
        }
        let action = roce_connection::Action { rkey, partition, root, udp_port: self.in_flight_port, mtu };
        let entry = Entry::RoceConnection(key, action);
        let change = match self.entries.insert((switch, key), action) {
            None => Some(Change::Insert(entry)),
            Some(old) if old != action => Some(Change::Modify(entry)),
            Some(_) => None,
        };
        Ok((switch, change))
    }

    /// Forgets a connection that was closed; `None` when it was not registered.
    ///
    /// # Errors
    /// A host or partition that cannot be.
    pub fn unregister(
        &mut self,
        topology: &Network,
        placement: &Placement,
        client: Ipv4Addr,
        partition: u16,
        dest_qp: u32,
    ) -> Result<Option<(SwitchId, Change)>, ConnectionError> {
        let (switch, key) = self.place(topology, placement, client, partition, dest_qp)?;
        let old = self.entries.remove(&(switch, key));
        Ok(old.map(|action| (switch, Change::Delete(Entry::RoceConnection(key, action)))))
    }

    /// The tree of a partition has a new root: the changes for all its connections. The old root stays a valid start (it
    /// keeps its left half and knows its sibling), so there is no hurry.
    pub fn reroot(&mut self, partition: u16, root: u64) -> Vec<(SwitchId, Change)> {
        let mut changes = Vec::new();
        for ((switch, key), action) in &mut self.entries {
            if action.partition == partition && action.root != root {
                action.root = root;
                changes.push((*switch, Change::Modify(Entry::RoceConnection(*key, *action))));
            }
        }
        changes
    }

    /// All entries of a switch, for one that came back empty.
    pub fn of_switch(&self, switch: SwitchId) -> impl Iterator<Item = Entry> + '_ {
        let of = self.entries.iter().filter(move |((at, _), _)| *at == switch);
        of.map(|((_, key), action)| Entry::RoceConnection(*key, *action))
    }

    /// Number of registered connections.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn place(
        &self,
        topology: &Network,
        placement: &Placement,
        client: Ipv4Addr,
        partition: u16,
        dest_qp: u32,
    ) -> Result<(SwitchId, roce_connection::Key), ConnectionError> {
        let host = topology.host_by_ip(client).ok_or(ConnectionError::UnknownAddress { client })?;
        let server = placement.host(partition).ok_or(ConnectionError::UnknownPartition { partition })?;
        if !(2..1 << 24).contains(&dest_qp) {
            return Err(ConnectionError::QueuePair { dest_qp });
        }
        let port = self.device_ports.get(&host.id).copied().unwrap_or(host.index);
        let dst_ip = topology.host(server).ip;
        let key = roce_connection::Key { port, src_mac: host.mac, src_ip: client, dst_ip, dest_qp };
        Ok((host.edge, key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn register_change_and_forget() {
        let cluster = Cluster::example();
        let (topology, placement) = (cluster.tree(), Placement::of(&cluster));
        let client = topology.host(cluster.clients()[0].host).ip;
        let good = Connection { client, partition: 2, dest_qp: 17, rkey: 9, root: 2 << 48 | 64, mtu: 1024 };
        let mut connections = Connections::new();
        let mut register = |connection| connections.register(topology, &placement, connection);
        let (switch, change) = register(good).unwrap();
        assert_eq!(topology.switch(switch).name(), "edge-1-0");
        let Some(Change::Insert(Entry::RoceConnection(key, action))) = change else { panic!("{change:?}") };
        assert_eq!((key.port, key.src_mac.to_string().as_str()), (0, "02:00:0a:01:00:02"));
        assert_eq!(
            (key.src_ip.to_string().as_str(), key.dst_ip.to_string().as_str()),
            ("10.1.0.2", "10.0.1.2")
        );
        assert_eq!((action.rkey, action.partition, action.root, action.mtu), (9, 2, 2 << 48 | 64, 1024));
        assert_eq!(register(good).unwrap().1, None);
        assert!(matches!(register(Connection { rkey: 10, ..good }).unwrap().1, Some(Change::Modify(_))));
        assert!(matches!(register(Connection { dest_qp: 18, ..good }).unwrap().1, Some(Change::Insert(_))));

        for (bad, reason) in [
            (Connection { client: Ipv4Addr::new(10, 9, 9, 9), ..good }, "10.9.9.9: no host"),
            (Connection { partition: 4, ..good }, "on no host"),
            (Connection { dest_qp: 1, ..good }, "24 bits"),
            (Connection { dest_qp: 1 << 24, ..good }, "24 bits"),
            (Connection { rkey: 0, ..good }, "rkey 0"),
            (Connection { rkey: 1, ..good }, "rkey 1"),
            (Connection { root: 64, ..good }, "server 0"),
            (Connection { mtu: 1000, ..good }, "1024"),
        ] {
            let error = register(bad).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        assert_eq!(connections.reroot(1, 0), []);
        assert_eq!(connections.reroot(2, 2 << 48 | 128).len(), 2);
        assert_eq!(connections.reroot(2, 2 << 48 | 128).len(), 0);
        assert_eq!(connections.of_switch(switch).count(), 2);
        let gone = connections.unregister(topology, &placement, client, 2, 17).unwrap();
        assert!(matches!(gone, Some((_, Change::Delete(_)))));
        assert_eq!(connections.unregister(topology, &placement, client, 2, 17), Ok(None));
        assert_eq!(connections.len(), 1);
    }

    #[test]
    fn clients_of_one_host_differ_by_address() {
        let text = Cluster::local_toml().replace("12200-12231", "12200-12209");
        let cluster = Cluster::from_toml(&text).unwrap();
        let (topology, placement) = (cluster.tree(), Placement::of(&cluster));
        let host = cluster.clients()[0].host;
        let mut connections = Connections::of(&cluster);
        let keys = [0, 1, 9].map(|n| {
            let client = topology.address(host, n);
            let wanted =
                Connection { client, partition: 1, dest_qp: 17, rkey: 9, root: 1 << 48 | 64, mtu: 1024 };
            let (switch, change) = connections.register(topology, &placement, wanted).unwrap();
            let Some(Change::Insert(Entry::RoceConnection(key, _))) = change else { panic!("{change:?}") };
            assert_eq!((switch, key.src_ip), (topology.edge_of(host).id, client));
            (key.port, key.src_mac)
        });
        assert_eq!(keys, [(0, topology.host(host).mac); 3]);
        let stranger = Connection {
            client: Ipv4Addr::new(172, 16, 0, 10),
            partition: 1,
            dest_qp: 17,
            rkey: 9,
            root: 1 << 48 | 64,
            mtu: 1024,
        };
        assert!(matches!(
            connections.register(topology, &placement, stranger),
            Err(ConnectionError::UnknownAddress { .. })
        ));
    }
}
