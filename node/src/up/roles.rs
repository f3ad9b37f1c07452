//! The roles of a file, and how each is brought to answer.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fatbtree_controller::grpc::Client;
use fatbtree_controller::operator::{Question, RoleState, Status};
use fatbtree_memserver::grpc;
use fatbtree_topology::Cluster;
use fatbtree_trust::{CONTROLLER, Peer, Trust};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

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

/// Who answers.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) began: Instant,
    /// By name. Where the controller is silent, nobody knows of switches.
    pub(super) answers: BTreeMap<String, bool>,
}

/// Between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Looks again and again who answers, until nobody wants to know.
pub(super) async fn watch(roles: Vec<Role>, looks: mpsc::Sender<Look>) {
    loop {
        tokio::time::sleep(LOOK).await;
        if looks.send(look(&roles).await).await.is_err() {
            return;
        }
    }
}

async fn look(roles: &[Role]) -> Look {
    let began = Instant::now();
    let mut asked = JoinSet::new();
    for role in roles.iter().filter(|role| role.kind == RoleKind::MemoryServer).cloned() {
        asked.spawn(async move {
            let answers = tokio::time::timeout(PATIENCE, role.answers()).await.unwrap_or(false);
            vec![(role.name, answers)]
        });
    }
    if let Some(controller) = roles.iter().find(|role| role.kind == RoleKind::Controller).cloned() {
        asked.spawn(async move {
            let status = controller.status().await;
            let switches = status.iter().flat_map(|status| &status.switches);
            let switches = switches.map(|switch| (switch.name.clone(), switch.state != RoleState::Silent));
            switches.chain([(controller.name, status.is_some())]).collect()
        });
    }
    Look { began, answers: asked.join_all().await.into_iter().flatten().collect() }
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
        let Some(status) = self.status().await else { return false };
        let is_this = |name: &str| name == self.name;
        match self.kind {
            RoleKind::Switch => {
                let mut switches = status.switches.iter();
                switches.any(|switch| is_this(&switch.name) && switch.state == RoleState::Settled)
            }
            RoleKind::Controller | RoleKind::MemoryServer => true,
        }
    }

    /// What the controller says.
    async fn status(&self) -> Option<Status> {
        let mut controller = Client::connect(self.controller.clone(), PATIENCE).await.ok()?;
        controller.ask(&Question::Status, PATIENCE).await.ok()
    }
}
