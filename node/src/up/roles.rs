//! The roles of a file, and how each is brought to answer.

use std::time::{Duration, Instant};

use fatbtree_controller::grpc::Client;
use fatbtree_controller::operator::{Question, RoleState, Status};
use fatbtree_memserver::grpc;
use fatbtree_topology::Cluster;
use fatbtree_trust::{CONTROLLER, Peer, Trust};

use super::RoleKind;
use crate::NodeError;

/// A role by its name.
#[derive(Clone, Debug)]
pub(super) struct Role {
    pub(super) name: String,
    pub(super) kind: RoleKind,
    /// Where it is controlled.
    pub(super) address: String,
    /// Where the controller is, who knows what a switch holds.
    controller: Peer,
    trust: Trust,
}

/// Memory servers first: they load their trees while the switches are programmed. None where there is no controller.
pub(super) fn of(cluster: &Cluster, trust: &Trust) -> Option<Vec<Role>> {
    let controller = cluster.controller()?.to_owned();
    let to = trust.to(&controller, CONTROLLER);
    let role = |kind, name: String, address: String| {
        let (controller, trust) = (to.clone(), trust.clone());
        Role { name, kind, address, controller, trust }
    };
    let servers = cluster.servers().iter();
    let servers =
        servers.map(|server| role(RoleKind::MemoryServer, server.name.clone(), server.grpc.clone()));
    let switches =
        cluster.tree().switches().iter().map(|switch| {
            role(RoleKind::Switch, switch.name(), cluster.p4runtime(switch.id).address.clone())
        });
    let controller = role(RoleKind::Controller, CONTROLLER.to_owned(), controller);
    Some(servers.chain([controller]).chain(switches).collect())
}

const PAUSE: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(2);

impl Role {
    /// Waits until it does its work: a switch has its program and routes.
    pub(super) async fn rise(&self, patience: Duration) -> Result<(), NodeError> {
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
        Ok(())
    }

    async fn answers(&self) -> bool {
        if self.kind == RoleKind::MemoryServer {
            return match grpc::Client::connect(self.trust.to(&self.address, &self.name)).await {
                Ok(mut server) => server.info().await.is_ok(),
                Err(_) => false,
            };
        }
        let Ok(mut controller) = Client::connect(self.controller.clone(), PATIENCE).await else {
            return false;
        };
        let Ok(status) = controller.ask::<Status>(&Question::Status, PATIENCE).await else { return false };
        let is_this = |name: &str| name == self.name;
        match self.kind {
            RoleKind::Switch => {
                let mut switches = status.switches.iter();
                switches.any(|switch| is_this(&switch.name) && switch.state == RoleState::Settled)
            }
            RoleKind::Controller | RoleKind::MemoryServer => true,
        }
    }
}
