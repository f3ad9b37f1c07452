//! All roles of a cluster file on this machine, as child processes.

mod child;
mod roles;

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use fatbtree_topology::Cluster;
use fatbtree_trust::Trust;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::stop::{control_runtime, listen, stop_signal};
use crate::{LivePage, NodeError};
use child::Child;
use roles::Role;

/// Options of `up`.
#[derive(Clone, Debug)]
pub struct UpOptions {
    /// The program whose subcommands are the roles.
    pub program: PathBuf,
    /// The file that roles are told.
    pub file: PathBuf,
    /// The cluster file as a value.
    pub cluster: Cluster,
    /// The operator's certificate.
    pub trust: Trust,
    /// Further arguments of memory servers.
    pub memory_server_arguments: Vec<String>,
    /// Further arguments of switches.
    pub switch_arguments: Vec<String>,
    /// Folder below which memory servers keep their trees, and the controller its plans.
    pub data: Option<PathBuf>,
    /// Whether a role that dies is started again.
    pub restart: bool,
    /// Time limit for a role's first answer.
    pub patience: Duration,
    /// Address of the live page: `name-or-address:port`. `None`: there is none.
    pub page: Option<String>,
}

/// Kind of a role.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RoleKind {
    /// `fatbtree switch`.
    Switch,
    /// `fatbtree memserver`.
    MemoryServer,
    /// `fatbtree controller`.
    Controller,
}

impl RoleKind {
    /// The subcommand.
    pub fn name(self) -> &'static str {
        match self {
            Self::Switch => "switch",
            Self::MemoryServer => "memserver",
            Self::Controller => "controller",
        }
    }
}

/// State of a role.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RoleState {
    /// Its process, by number, was started.
    Started(u32),
    /// The role answers, and a switch has its program and routes.
    Answers,
    /// The role runs, but does not answer any more. It may again.
    Silent,
    /// The process has ended.
    Ended(ExitStatus),
    /// The process has ended because it was told to, or was killed because it did not.
    Stopped {
        /// Whether it was killed.
        killed: bool,
    },
}

/// News of the cluster.
#[derive(Debug)]
pub enum UpNews<'a> {
    /// A role has another state.
    Role {
        /// Its name.
        name: &'a str,
        /// Kind of the role.
        kind: RoleKind,
        /// Address of its control channel.
        address: &'a str,
        /// Present state.
        state: RoleState,
    },
    /// Every role answers.
    Ready,
    /// Warning of the controller: all roles may answer, but something differs from the cluster file.
    Warning(&'a str),
    /// A role was started again, and cannot be made to work; it is tried again.
    Trouble(&'a NodeError),
}

/// Starts the roles of a file and keeps them.
#[derive(Debug)]
pub struct Supervisor {
    options: UpOptions,
    children: Vec<Child>,
}

/// Interval between looks at the processes.
const LOOK: Duration = Duration::from_millis(20);

impl Supervisor {
    /// Supervisor of these roles; none is started yet.
    ///
    /// # Errors
    /// When the file names no controller.
    pub fn new(options: UpOptions) -> Result<Self, NodeError> {
        let roles = roles::of(&options.cluster, &options.trust).ok_or(NodeError::NoController)?;
        Ok(Self { options, children: roles.into_iter().map(Child::new).collect() })
    }

    /// Starts all roles, and keeps them until Ctrl-C or SIGTERM; then stops them.
    ///
    /// # Errors
    /// When a role does not start, or another process listens at the address of the page. Those that did are stopped.
    pub fn run(mut self, mut tell: impl FnMut(UpNews<'_>)) -> Result<(), NodeError> {
        let runtime = control_runtime()?;
        let roles: Vec<Role> = self.children.iter().map(|child| child.role.clone()).collect();
        runtime.block_on(roles::are_free(&roles, &self.options.cluster))?;
        if let Some(address) = &self.options.page {
            let page = LivePage::new(&self.options.cluster, &self.options.trust);
            runtime.spawn(page.serve(listen(&runtime, address)?));
        }
        let result = runtime.block_on(async {
            let stop = stop_signal().map_err(NodeError::system("listening for signals"))?;
            tokio::select! {
                () = stop => Ok(()),
                error = self.keep(&mut tell) => Err(error),
            }
        });
        child::stop_all(&mut self.children, &mut tell);
        result
    }

    /// Keeps the roles running, until an error ends that.
    async fn keep(&mut self, tell: &mut impl FnMut(UpNews<'_>)) -> NodeError {
        // Roles that are on their way to answering; each gives its place.
        let mut rising: JoinSet<(usize, Result<(), NodeError>)> = JoinSet::new();
        for place in 0..self.children.len() {
            if let Err(error) = self.start(place, &mut rising, tell) {
                return error;
            }
        }
        let (looked, mut looks) = mpsc::channel(1);
        let roles: Vec<Role> = self.children.iter().map(|child| child.role.clone()).collect();
        // The task ends with this future, which owns the receiver of its channel.
        tokio::spawn(roles::watch(roles, looked));
        let mut was_ready = false;
        let mut warned = Vec::new();
        loop {
            while let Ok(look) = looks.try_recv() {
                let new = look.warnings.iter().filter(|warning| was_ready && !warned.contains(*warning));
                new.for_each(|warning| tell(UpNews::Warning(warning)));
                if was_ready {
                    warned.clone_from(&look.warnings);
                }
                self.children.iter_mut().for_each(|child| child.looked_at(&look, tell));
            }
            while let Some(risen) = rising.try_join_next() {
                match risen {
                    Ok((place, Ok(()))) => self.children[place].answers(tell),
                    Ok((_, Err(error))) if !was_ready => return error,
                    Ok((place, Err(error))) => {
                        tell(UpNews::Trouble(&error));
                        self.children[place].kill();
                    }
                    // Told to end, because its process has.
                    Err(_) => {}
                }
            }
            for place in 0..self.children.len() {
                let child = &mut self.children[place];
                if let Some(status) = child.ended(tell) {
                    if !was_ready {
                        return NodeError::Ended { role: child.role.name.clone(), status };
                    }
                    if self.options.restart {
                        child.due = Some(Instant::now() + child.pause());
                    }
                }
                if child.due.is_some_and(|due| due <= Instant::now())
                    && let Err(error) = self.start(place, &mut rising, tell)
                {
                    return error;
                }
            }
            let all_answer = self.children.iter().all(|child| child.answering);
            if all_answer && self.children.iter().any(|child| !child.announced) {
                self.children.iter_mut().for_each(|child| child.announced = true);
                was_ready = true;
                tell(UpNews::Ready);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn start(
        &mut self,
        place: usize,
        rising: &mut JoinSet<(usize, Result<(), NodeError>)>,
        tell: &mut impl FnMut(UpNews<'_>),
    ) -> Result<(), NodeError> {
        let Self { options, children } = self;
        let child = &mut children[place];
        child.start(options, tell)?;
        let (role, patience) = (child.role.clone(), options.patience);
        child.rising = Some(rising.spawn(async move { (place, role.rise(patience).await) }));
        Ok(())
    }
}
