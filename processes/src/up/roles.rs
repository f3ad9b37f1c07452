//! The roles of a file, and how each is brought to answer.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use fatbtree_controller::grpc::{Client, ClientError, Controllers};
use fatbtree_controller::operator::{Question, RoleState, Status};
use fatbtree_memserver::grpc;
use fatbtree_topology::Cluster;
use fatbtree_trust::{CONTROLLER, Trust};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::RoleKind;
use crate::NodeError;

/// A role by its name.
#[derive(Clone, Debug)]
pub(super) struct Role {
    pub(super) name: String,
    pub(super) kind: RoleKind,
    /// Address of its control channel.
    pub(super) address: String,
    /// Controllers, the primary of which knows what a switch holds.
    controllers: Controllers,
    trust: Trust,
}

/// Roles of a cluster. Memory servers come first: they load their trees while the switches are programmed. `None` if there is no
/// controller.
pub(super) fn of(cluster: &Cluster, trust: &Trust) -> Option<Vec<Role>> {
    let (controller, standbys) = cluster.controllers().split_first()?;
    let all = cluster.controllers().iter();
    let to = Controllers::new(all.map(|address| trust.to(address, CONTROLLER)));
    let role = |kind, name: String, address: String| {
        let (controllers, trust) = (to.clone(), trust.clone());
        Role { name, kind, address, controllers, trust }
    };
    let servers = cluster.servers().iter();
    let servers =
        servers.map(|server| role(RoleKind::MemoryServer, server.name.clone(), server.grpc.clone()));
    let switches =
        cluster.tree().switches().iter().map(|switch| {
            role(RoleKind::Switch, switch.name(), cluster.p4runtime(switch.id).address.clone())
        });
    let controller = role(RoleKind::Controller, CONTROLLER.to_owned(), controller.clone());
    let standbys = standbys.iter().zip(1..).map(|(address, number): (_, u32)| {
        role(RoleKind::Controller, format!("standby-{number}"), address.clone())
    });
    Some(servers.chain([controller]).chain(standbys).chain(switches).collect())
}

/// Answers of all roles.
#[derive(Debug)]
pub(super) struct Look {
    pub(super) began: Instant,
    /// Answers by name. Where the controller is silent, nothing is known of switches.
    pub(super) answers: BTreeMap<String, bool>,
    /// Warnings of the controller.
    pub(super) warnings: Vec<String>,
}

/// Interval between two looks.
const LOOK: Duration = Duration::from_secs(1);

/// Looks repeatedly which roles answer, until the receiver is dropped.
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
    let status = roles.first().cloned().map(|any| tokio::spawn(async move { any.status().await }));
    let mut asked = JoinSet::new();
    for role in roles.iter().filter(|role| role.kind != RoleKind::Switch).cloned() {
        asked.spawn(async move {
            let answers = tokio::time::timeout(PATIENCE, role.answers()).await.unwrap_or(false);
            (role.name, answers)
        });
    }
    let mut answers: BTreeMap<String, bool> = asked.join_all().await.into_iter().collect();
    let status = match status {
        Some(status) => status.await.ok().flatten(),
        None => None,
    };
    let Some(status) = status else { return Look { began, answers, warnings: Vec::new() } };
    answers.extend(status.switches.into_iter().map(|it| (it.name, it.state != RoleState::Silent)));
    let trouble = status.trouble.map(|trouble| format!("no new plan: {trouble}"));
    Look { began, answers, warnings: status.warnings.into_iter().chain(trouble).collect() }
}

/// Time limit for a process to accept a connection: those of `up` are on this machine.
const ACCEPTS: Duration = Duration::from_millis(500);

/// Checks that no process listens where the roles are to listen.
///
/// # Errors
/// The first role whose address is taken. A controller says of which cluster it is.
pub(super) async fn are_free(roles: &[Role], cluster: &Cluster) -> Result<(), NodeError> {
    for role in roles {
        let connected = tokio::time::timeout(ACCEPTS, TcpStream::connect(&role.address)).await;
        if !matches!(connected, Ok(Ok(_))) {
            continue;
        }
        let (role_name, address) = (role.name.clone(), role.address.clone());
        let found = match role.status().await {
            Some(status) if is_of(&status, cluster) => "this cluster runs already".to_owned(),
            Some(status) => {
                let names = |names: Vec<&String>| names.into_iter().cloned().collect::<Vec<_>>().join(", ");
                format!(
                    "another cluster runs there, with the switches {} and the memory servers {}",
                    names(status.switches.iter().map(|switch| &switch.name).collect()),
                    names(status.servers.iter().map(|server| &server.name).collect()),
                )
            }
            None => "another process listens there".to_owned(),
        };
        return Err(NodeError::Taken { role: role_name, address, found });
    }
    Ok(())
}

/// Whether a controller is of this cluster: the same switches and memory servers at the same addresses.
fn is_of(status: &Status, cluster: &Cluster) -> bool {
    let switches = cluster.tree().switches().iter();
    let switches = switches.map(|it| (it.name(), cluster.p4runtime(it.id).address.clone()));
    let servers = cluster.servers().iter().map(|it| (it.name.clone(), it.grpc.clone()));
    let theirs = status.switches.iter().map(|it| (it.name.clone(), it.address.clone()));
    let theirs = theirs.chain(status.servers.iter().map(|it| (it.name.clone(), it.address.clone())));
    theirs.collect::<BTreeSet<_>>() == switches.chain(servers).collect()
}

const PAUSE: Duration = Duration::from_millis(100);
const PATIENCE: Duration = Duration::from_secs(2);

impl Role {
    /// Waits until the role does its work: a switch has its program and routes.
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
        match self.kind {
            RoleKind::MemoryServer => {
                match grpc::Client::connect(self.trust.to(&self.address, &self.name)).await {
                    Ok(mut server) => server.statistics().await.is_ok(),
                    Err(_) => false,
                }
            }
            RoleKind::Switch => self.status().await.is_some_and(|status| {
                let mut switches = status.switches.iter();
                switches.any(|switch| switch.name == self.name && switch.state == RoleState::Settled)
            }),
            RoleKind::Controller => {
                let to = self.trust.to(&self.address, CONTROLLER);
                let answer =
                    async { Client::connect(to, PATIENCE).await?.ask(&Question::Status, PATIENCE).await };
                let answer: Result<Status, _> = answer.await;
                match answer {
                    Ok(_) => true,
                    // A standby does its work while there is a primary.
                    Err(ClientError::NotPrimary { .. }) => self.status().await.is_some(),
                    Err(_) => false,
                }
            }
        }
    }

    /// Status from the primary controller.
    async fn status(&self) -> Option<Status> {
        self.controllers.ask(&Question::Status, PATIENCE, PATIENCE).await.ok()
    }
}
