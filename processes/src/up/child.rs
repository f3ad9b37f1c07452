//! A role's process.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use fatbtree_trust::CONTROLLER;
use tokio::task::AbortHandle;

use super::roles::{Look, Role};
use super::{RoleKind, RoleState, UpNews, UpOptions};
use crate::NodeError;

#[derive(Debug)]
pub(super) struct Child {
    pub(super) role: Role,
    process: Option<std::process::Child>,
    /// Handle of the task that waits until the role answers.
    pub(super) rising: Option<AbortHandle>,
    pub(super) answering: bool,
    /// Whether it has answered, and all roles were reported as ready.
    pub(super) announced: bool,
    /// Time at which it is started again.
    pub(super) due: Option<Instant>,
    started: Instant,
    /// Time at which the role last began to answer, or became silent.
    since: Instant,
    is_silent: bool,
    /// Whether it was started before.
    is_again: bool,
    pause: Duration,
}

/// Pause before a role that has lived long is started again. The pause doubles each time that the role dies at once.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A role that lives for so long does not die at once.
const LONG: Duration = Duration::from_secs(10);

impl Child {
    pub(super) fn new(role: Role) -> Self {
        Self {
            role,
            process: None,
            rising: None,
            answering: false,
            announced: false,
            due: None,
            started: Instant::now(),
            since: Instant::now(),
            is_silent: false,
            is_again: false,
            pause: SHORTEST_PAUSE,
        }
    }

    fn tell(&self, state: RoleState, tell: &mut impl FnMut(UpNews<'_>)) {
        tell(UpNews::Role {
            name: &self.role.name,
            kind: self.role.kind,
            address: &self.role.address,
            state,
        });
    }

    /// Starts the process. It lives no longer than this one: it ends when the pipe to its standard input does.
    pub(super) fn start(
        &mut self,
        options: &UpOptions,
        tell: &mut impl FnMut(UpNews<'_>),
    ) -> Result<(), NodeError> {
        let mut command = Command::new(&options.program);
        // The supervisor speaks for all of them.
        command.env_remove(crate::notify::SOCKET);
        let Role { kind, name, .. } = &self.role;
        command.arg(kind.name());
        if *kind != RoleKind::Controller {
            command.arg(name);
        }
        command.arg("--cluster").arg(&options.file);
        match kind {
            RoleKind::MemoryServer => _ = command.args(&options.memory_server_arguments),
            RoleKind::Switch => _ = command.args(&options.switch_arguments),
            // One that is started again does not take the place of another one that took its place.
            RoleKind::Controller if self.role.name != CONTROLLER || self.is_again => {
                command.arg(format!("--standby={}", self.role.address));
            }
            RoleKind::Controller => {}
        }
        self.is_again = true;
        let folder = match kind {
            RoleKind::MemoryServer => Some("--data"),
            RoleKind::Controller => Some("--state"),
            RoleKind::Switch => None,
        };
        if let (Some(option), Some(data)) = (folder, &options.data) {
            command.arg(option).arg(data.join(name));
        }
        command.arg("--until-stdin-ends").stdin(Stdio::piped()).stdout(Stdio::null());
        // Ctrl-C at a terminal is for the supervisor, which stops them one and all.
        command.process_group(0);
        let process = command.spawn().map_err(NodeError::system("starting a role's process"))?;
        (self.started, self.due) = (Instant::now(), None);
        let number = process.id();
        self.process = Some(process);
        self.tell(RoleState::Started(number), tell);
        Ok(())
    }

    pub(super) fn answers(&mut self, tell: &mut impl FnMut(UpNews<'_>)) {
        (self.answering, self.is_silent, self.since) = (true, false, Instant::now());
        self.tell(RoleState::Answers, tell);
    }

    /// Takes note of a look at whether the role still answers.
    pub(super) fn looked_at(&mut self, look: &Look, tell: &mut impl FnMut(UpNews<'_>)) {
        let Some(answers) = look.answers.get(&self.role.name).filter(|_| look.began > self.since) else {
            return;
        };
        if *answers && self.is_silent {
            self.answers(tell);
        } else if !answers && self.answering {
            (self.answering, self.announced, self.is_silent) = (false, false, true);
            self.since = Instant::now();
            self.tell(RoleState::Silent, tell);
        }
    }

    /// Exit of the process, if it has ended since the last call.
    pub(super) fn ended(&mut self, tell: &mut impl FnMut(UpNews<'_>)) -> Option<ExitStatus> {
        let status = self.process.as_mut()?.try_wait().ok().flatten()?;
        self.process = None;
        (self.answering, self.announced, self.is_silent) = (false, false, false);
        if let Some(rising) = self.rising.take() {
            rising.abort();
        }
        self.tell(RoleState::Ended(status), tell);
        Some(status)
    }

    /// Time to wait before it is started again.
    pub(super) fn pause(&mut self) -> Duration {
        self.pause = match self.started.elapsed() < LONG {
            true => (self.pause * 2).min(LONGEST_PAUSE),
            false => SHORTEST_PAUSE,
        };
        self.pause
    }

    pub(super) fn kill(&mut self) {
        if let Some(process) = &mut self.process {
            // One that has ended needs no killing.
            let _ = process.kill();
        }
    }
}

/// Time after which a role that was told to end is killed.
const PATIENCE: Duration = Duration::from_secs(5);

/// Tells all children to end, and waits until they have.
pub(super) fn stop_all(children: &mut [Child], tell: &mut impl FnMut(UpNews<'_>)) {
    for child in children.iter_mut() {
        child.process.as_mut().map(|process| process.stdin.take());
    }
    let end = Instant::now() + PATIENCE;
    for child in children {
        let Some(mut process) = child.process.take() else { continue };
        let mut killed = false;
        while matches!(process.try_wait(), Ok(None)) {
            if Instant::now() >= end && !killed {
                killed = true;
                let _ = process.kill();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        child.tell(RoleState::Stopped { killed }, tell);
    }
}
