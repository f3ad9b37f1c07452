//! Who is who.

use fatbtree_topology::Cluster;
use fatbtree_trust::Roster;

/// Who may speak for a partition, and for an address on the data path.
pub fn roster_of(cluster: &Cluster) -> Roster {
    let servers = cluster.servers().iter();
    let clients = cluster.clients().iter();
    Roster {
        partitions: servers.map(|server| (server.partition, server.name.clone())).collect(),
        clients: clients.map(|client| (cluster.tree().host(client.host).ip, client.name.clone())).collect(),
    }
}
