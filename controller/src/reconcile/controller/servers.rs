//! Memory servers and their clients' connections, as a controller knows them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;

use fatbtree_topology::SwitchId;
use serde::{Deserialize, Serialize};

use super::{Controller, Generation, Generations, Notice};
use crate::connection::{Connection, ConnectionError};

/// A connection that a memory server has accepted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Registration {
    /// Source address of the client's packets.
    pub client: Ipv4Addr,
    /// The server's queue pair number.
    pub queue_pair: u32,
    /// Key of the tree memory.
    pub rkey: u32,
    /// The root of the server's tree.
    pub root: u64,
    /// The path MTU in bytes.
    pub mtu: u16,
}

impl fmt::Debug for Registration {
    /// Without the rkey: it permits writing to the tree.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, queue_pair, root, mtu, rkey: _ } = self;
        f.debug_struct("Registration")
            .field("client", client)
            .field("queue_pair", queue_pair)
            .field("root", root)
            .field("mtu", mtu)
            .finish_non_exhaustive()
    }
}

/// A memory server as the controller knows it.
#[derive(Clone, Debug, Default)]
pub(super) struct Server {
    /// Whether it is connected to the controller.
    pub(super) here: bool,
    pub(super) generation: Option<Generation>,
    /// Its clients' connections, by client and queue pair.
    pub(super) connections: BTreeMap<(Ipv4Addr, u32), Registration>,
}

impl Controller {
    /// A memory server is here, with these connections and no others.
    pub fn server_joined(&mut self, partition: u16, generation: Generation, connections: &[Registration]) {
        let Some(server) = self.servers.get_mut(&partition) else { return };
        (server.here, server.generation) = (true, Some(generation));
        let stay: BTreeSet<(Ipv4Addr, u32)> = connections.iter().map(|c| (c.client, c.queue_pair)).collect();
        let gone = server.connections.values().filter(|c| !stay.contains(&(c.client, c.queue_pair)));
        for gone in gone.copied().collect::<Vec<_>>() {
            self.closed(partition, gone.client, gone.queue_pair);
        }
        self.check_trees();
        connections.iter().for_each(|connection| self.opened(partition, *connection));
    }

    /// A memory server has another tree.
    pub fn server_refilled(&mut self, partition: u16, generation: Generation) {
        let Some(server) = self.servers.get_mut(&partition) else { return };
        server.generation = Some(generation);
        self.check_trees();
    }

    /// A memory server is not here any more. Its entries stay: they do no harm, and it may come back with the same connections.
    pub fn server_left(&mut self, partition: u16) {
        if let Some(server) = self.servers.get_mut(&partition) {
            server.here = false;
        }
    }

    /// A memory server has accepted a connection.
    pub fn opened(&mut self, partition: u16, connection: Registration) {
        let Registration { client, queue_pair, .. } = connection;
        match self.register(partition, &connection) {
            Ok((edge, changed)) => {
                self.version += u64::from(changed);
                self.pending.insert((partition, client, queue_pair), (self.version, edge));
                if let Some(server) = self.servers.get_mut(&partition) {
                    server.connections.insert((client, queue_pair), connection);
                }
            }
            Err(error) => {
                self.refused_connections += 1;
                tracing::warn!(partition, %client, queue_pair, %error, "connection not registered");
            }
        }
        self.advance();
    }

    /// A connection is gone.
    pub fn closed(&mut self, partition: u16, client: Ipv4Addr, queue_pair: u32) {
        let Some(server) = self.servers.get_mut(&partition) else { return };
        server.connections.remove(&(client, queue_pair));
        self.pending.remove(&(partition, client, queue_pair));
        let Self { cluster, placement, desired, .. } = self;
        let connections = &mut Arc::make_mut(desired).connections;
        // It was registered with the same numbers.
        let _ = connections.unregister(cluster.tree(), placement, client, partition, queue_pair);
        self.version += 1;
    }

    /// Wants a connection at its client's first switch, if there is room; says which switch that is, and whether anything changes.
    fn register(
        &mut self,
        partition: u16,
        connection: &Registration,
    ) -> Result<(SwitchId, bool), ConnectionError> {
        let Registration { client, queue_pair, rkey, root, mtu } = *connection;
        let Self { cluster, placement, desired, connections_per_switch: room, .. } = self;
        let (tree, room) = (cluster.tree(), *room);
        let connections = &mut Arc::make_mut(desired).connections;
        let wanted = Connection { client, partition, dest_qp: queue_pair, rkey, root, mtu };
        let (edge, change) = connections.register(tree, placement, wanted)?;
        if connections.of_switch(edge).count() > room {
            // It was registered just now.
            let _ = connections.unregister(tree, placement, client, partition, queue_pair);
            return Err(ConnectionError::Full { switch: tree.switch(edge).name(), room });
        }
        Ok((edge, change.is_some()))
    }

    /// A server's tree has another root.
    pub fn rerooted(&mut self, partition: u16, root: u64) {
        if root >> 48 == u64::from(partition) {
            self.change(|desired| desired.connections.reroot(partition, root));
        }
    }

    /// Connections to a partition that are registered, and whether clients were told so.
    pub fn connections(&self, partition: u16) -> impl Iterator<Item = (&Registration, bool)> {
        let all = self.servers.get(&partition).into_iter().flat_map(|server| server.connections.values());
        all.map(move |c| (c, !self.pending.contains_key(&(partition, c.client, c.queue_pair))))
    }

    /// Whether a memory server is connected to the controller.
    pub fn server_is_here(&self, partition: u16) -> bool {
        self.servers.get(&partition).is_some_and(|server| server.here)
    }

    /// Known trees of the servers that have registered.
    pub fn trees(&self) -> Generations {
        let known = self.servers.iter().filter_map(|(id, server)| Some((*id, server.generation?)));
        known.collect()
    }

    /// Connections that were not registered: no switch knows their client.
    pub fn refused_connections(&self) -> u64 {
        self.refused_connections
    }

    /// Index reads need the first switch to know the connection, and no fat root to lead by a plan that is void.
    pub(super) fn tell_registered(&mut self) {
        let ready: Vec<(u16, Ipv4Addr, u32)> = self
            .pending
            .iter()
            .filter(|(_, (version, edge))| {
                // Before the last turn it may have kept hot keys of trees that are gone.
                self.is_settled(*edge, self.turned.max(*version)) && self.roots_are_settled(*version)
            })
            .map(|(key, _)| *key)
            .collect();
        for (partition, client, queue_pair) in ready {
            self.pending.remove(&(partition, client, queue_pair));
            let server = self.servers.get(&partition);
            let connection = server.and_then(|server| server.connections.get(&(client, queue_pair)));
            if let Some(connection) = connection {
                self.notices.push_back(Notice::Registered(partition, *connection));
            }
        }
    }
}
