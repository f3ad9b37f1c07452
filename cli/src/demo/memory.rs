//! Memory for what clients write: asked for between frames, brought by gRPC.

use anyhow::{Context, Result};
use fatbtree_blink::{ChunkKind, SessionId};
use fatbtree_memserver::{Grant, grpc};
use tokio::sync::mpsc as tokio_mpsc;

/// A client's request for memory of a server.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) server: u16,
    pub(super) kind: ChunkKind,
    pub(super) bytes: u32,
}

/// A server's answer.
pub(super) struct Brought {
    pub(super) server: u16,
    /// Session in which the memory was given.
    pub(super) session: SessionId,
    pub(super) grant: Grant,
}

/// Requests on their way: one for each server and kind.
const ON_THE_WAY: usize = 256;

/// End at which the data path's thread asks for memory, and takes it.
pub(super) struct Desk {
    pub(super) wanted: tokio_mpsc::Sender<Wanted>,
    pub(super) brought: std::sync::mpsc::Receiver<Result<Brought>>,
}

/// End that brings the memory.
pub(super) struct Porter {
    wanted: tokio_mpsc::Receiver<Wanted>,
    bring: std::sync::mpsc::Sender<Result<Brought>>,
}

/// A desk and its porter.
pub(super) fn desk() -> (Desk, Porter) {
    let (wanted, asked) = tokio_mpsc::channel(ON_THE_WAY);
    let (bring, brought) = std::sync::mpsc::channel();
    (Desk { wanted, brought }, Porter { wanted: asked, bring })
}

impl Porter {
    /// Brings memory as long as the data path may ask for it: memory that others have freed, or chunks of the
    /// servers' spare memory. It is taken in the client's sessions, and made the tree's. Sessions come in the order
    /// of the servers.
    pub(super) async fn serve(mut self, mut sessions: Vec<(grpc::Client, grpc::Session)>) {
        while let Some(Wanted { server, kind, bytes }) = self.wanted.recv().await {
            let grant = match sessions.get_mut(usize::from(server)) {
                Some((client, session)) => {
                    let grant = client.memory(session.id, kind, bytes).await;
                    grant.map(|grant| (session.id, grant)).map_err(anyhow::Error::from)
                }
                None => Err(anyhow::anyhow!("there is no memory server {server}")),
            };
            // A data path that has ended needs no memory.
            let brought = grant.map(|(session, grant)| Brought { server, session, grant });
            let _ = self.bring.send(brought.with_context(|| format!("getting memory for {kind}")));
        }
    }
}
