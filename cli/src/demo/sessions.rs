//! The client's sessions with the memory servers: kept between frames, their calls carried by gRPC.

use anyhow::{Context, Result, bail};
use fatbtree_blink_host::TreeInfo;
use fatbtree_memserver::grpc;
use fatbtree_remote_memory::session_keeper::{
    Call, CallId, Denied, Granted, KeeperOptions, Notice, SessionKeeper,
};
use fatbtree_sim::Client;
use fatbtree_verbs::time::Instant;
use tokio::sync::mpsc as tokio_mpsc;

/// Calls on their way: for each server one, and a renewal beside it.
const ON_THE_WAY: usize = 256;

/// A call to a server.
type Asked = (CallId, Call);

/// The answer to a call.
type Answered = (CallId, Result<Granted<TreeInfo>, Denied>);

/// End of the data path's thread: calls go out, answers come in.
pub(super) struct Desk {
    calls: tokio_mpsc::Sender<Asked>,
    answers: std::sync::mpsc::Receiver<Answered>,
}

/// End that carries calls to the servers.
pub(super) struct Carrier {
    calls: tokio_mpsc::Receiver<Asked>,
    answers: std::sync::mpsc::Sender<Answered>,
}

/// Both ends of the way that calls and answers take.
pub(super) fn desk() -> (Desk, Carrier) {
    let (calls, asked) = tokio_mpsc::channel(ON_THE_WAY);
    let (answered, answers) = std::sync::mpsc::channel();
    (Desk { calls, answers }, Carrier { calls: asked, answers: answered })
}

/// Keeper of the client's sessions, on the data path's thread.
pub(super) struct Sessions {
    keeper: SessionKeeper<TreeInfo>,
    desk: Desk,
}

impl Sessions {
    /// Sessions of a client without connections.
    pub(super) fn new(client: &Client, desk: Desk) -> Self {
        Self { keeper: SessionKeeper::new(client.pool().connections(), KeeperOptions::default()), desk }
    }

    /// The keeper.
    pub(super) fn keeper(&self) -> &SessionKeeper<TreeInfo> {
        &self.keeper
    }

    /// Takes answers, and makes the calls that are due.
    ///
    /// # Errors
    /// When a server refuses, or a connection breaks: nothing is ever lost here.
    pub(super) fn turn(&mut self, now: Instant, client: &Client) -> Result<()> {
        let (pool, Self { keeper, desk }) = (client.pool(), self);
        while let Ok((call, answer)) = desk.answers.try_recv() {
            keeper.handle_answer(now, pool, call, answer);
        }
        while let Some(asked) = keeper.poll_call(now, pool) {
            desk.calls.try_send(asked)?;
        }
        while let Some(notice) = keeper.poll_notice() {
            match notice {
                Notice::Opened { .. } | Notice::Connected { .. } => {}
                Notice::Broken { id, reason } => bail!("the {id} broke: {reason}"),
                Notice::Unfinished { server } => {
                    bail!("a write to memory server {server} gave up while it had a lock")
                }
                Notice::Lost { server } => bail!("memory server {server} has lost its tree"),
                Notice::OutOfReach { server } => bail!("memory server {server} does not answer"),
                Notice::Denied { server, denied } => bail!("memory server {server}: {denied}"),
            }
        }
        Ok(())
    }
}

impl Carrier {
    /// Carries calls of the client at `roce` as long as the data path may make any. Servers come in the order of their numbers. A server
    /// that is busy does not delay the others.
    pub(super) async fn serve(mut self, servers: Vec<grpc::Client>, roce: std::net::Ipv4Addr) -> Result<()> {
        while let Some((id, call)) = self.calls.recv().await {
            let server = id.server();
            let client = servers.get(usize::from(server));
            let mut client = client.with_context(|| format!("there is no memory server {server}"))?.clone();
            let answers = self.answers.clone();
            tokio::spawn(async move {
                let answer = client.call(roce, call).await.map_err(Denied::from);
                // A data path that has ended needs no answer.
                let _ = answers.send((id, answer));
            });
        }
        Ok(())
    }
}
