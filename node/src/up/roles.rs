//! The roles of a file, and how each is brought to answer.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fatbtree_controller::{Base, Fleet, FleetOptions, Programs, cluster_base};
use fatbtree_memserver::grpc;
use fatbtree_topology::{Cluster, SwitchId};
use tokio::net::TcpStream;

use super::RoleKind;
use crate::NodeError;

/// A role by its name.
#[derive(Clone, Debug)]
pub(super) struct Role {
    pub(super) name: String,
    pub(super) kind: RoleKind,
    /// Where it is controlled.
    pub(super) address: String,
    /// If it is a switch.
    switch: Option<SwitchId>,
}

/// Memory servers first: they load their trees while the switches are programmed.
pub(super) fn of(cluster: &Cluster) -> Vec<Role> {
    let servers = cluster.servers().iter().map(|server| Role {
        name: server.name.clone(),
        kind: RoleKind::MemoryServer,
        address: server.grpc.clone(),
        switch: None,
    });
    let switches = cluster.tree().switches().iter().map(|switch| Role {
        name: switch.name(),
        kind: RoleKind::Switch,
        address: cluster.p4runtime(switch.id).address.clone(),
        switch: Some(switch.id),
    });
    servers.chain(switches).collect()
}

/// What switches are given, made once for all of them.
pub(super) struct Setup {
    cluster: Cluster,
    programs: Programs,
    base: BTreeMap<SwitchId, Base>,
}

impl Setup {
    pub(super) fn of(cluster: &Cluster) -> Result<Self, NodeError> {
        let (programs, base) = (Programs::v1model()?, cluster_base(cluster));
        Ok(Self { cluster: cluster.clone(), programs, base })
    }
}

const PAUSE: Duration = Duration::from_millis(20);

impl Role {
    /// Waits until it answers; gives a switch its program and routes.
    pub(super) async fn rise(&self, setup: &Setup, patience: Duration) -> Result<(), NodeError> {
        let began = Instant::now();
        while !self.answers().await {
            if began.elapsed() >= patience {
                return Err(NodeError::Silent {
                    role: self.name.clone(),
                    kind: self.kind.name(),
                    address: self.address.clone(),
                    seconds: patience.as_secs(),
                });
            }
            tokio::time::sleep(PAUSE).await;
        }
        let Some(switch) = self.switch else { return Ok(()) };
        let Setup { cluster, programs, base } = setup;
        let fleet = Fleet::connect_to(cluster, [switch], programs, FleetOptions::default()).await?;
        fleet.set_pipeline().await?;
        let own = base.get(&switch).map(|base| (switch, base.clone()));
        fleet.load_base(&own.into_iter().collect()).await?;
        Ok(())
    }

    async fn answers(&self) -> bool {
        match self.kind {
            RoleKind::Switch => TcpStream::connect(&self.address).await.is_ok(),
            RoleKind::MemoryServer => {
                match grpc::Client::connect(&format!("http://{}", self.address)).await {
                    Ok(mut server) => server.info().await.is_ok(),
                    Err(_) => false,
                }
            }
        }
    }
}
