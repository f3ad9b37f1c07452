//! Identities: the names of a cluster's roles, and the certificates by which they are known.

use std::path::{Path, PathBuf};

use fatbtree_topology::Cluster;
use fatbtree_trust::{Roster, Trust};

use crate::NodeError;

/// The folder of a cluster's certificates; `None` if the cluster file names none. `file` is the path of the cluster file.
pub fn certificates_of(cluster: &Cluster, file: &Path) -> Option<PathBuf> {
    Some(file.parent().unwrap_or(Path::new("")).join(cluster.certificates()?))
}

/// The certificate and key of a role of the cluster. `file` is the path of the cluster file.
///
/// # Errors
/// When the cluster file names a folder of certificates, and the folder has no good ones for the role.
pub fn trust_of(cluster: &Cluster, file: &Path, name: &str) -> Result<Trust, NodeError> {
    match certificates_of(cluster, file) {
        None => Ok(Trust::default()),
        Some(folder) => Ok(Trust::read(&folder, name)?),
    }
}

/// Peers that may speak for a partition, and for an address on the data path.
pub fn roster_of(cluster: &Cluster) -> Roster {
    let servers = cluster.servers().iter();
    let clients = cluster.clients().iter();
    Roster {
        partitions: servers.map(|server| (server.partition, server.name.clone())).collect(),
        clients: clients
            .flat_map(|client| {
                let address = |n| (cluster.tree().address(client.host, n), client.name.clone());
                (0..cluster.seats(client.host)).map(address)
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_the_addresses_of_all_its_seats() {
        let text = Cluster::local_toml().replace("12200-12231", "12200-12209");
        let cluster = Cluster::from_toml(&text).unwrap();
        let clients = roster_of(&cluster).clients;
        assert_eq!(clients.len(), 10);
        assert!(clients.values().all(|name| name == "client"));
        assert!(clients.contains_key(&[172, 16, 0, 9].into()));
    }
}
