//! Memory for what clients write: asked for between frames, brought by gRPC.

use anyhow::{Context, Result};
use fatbtree_index::ChunkKind;
use fatbtree_memserver::{Chunk, Supply, grpc};
use tokio::sync::mpsc as tokio_mpsc;

/// A client has asked for memory of a server.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) server: u16,
    pub(super) kind: ChunkKind,
}

/// Requests on their way: one for each server and kind.
const ON_THE_WAY: usize = 256;

/// Where the thread of the data path asks for memory, and takes it.
pub(super) struct Desk {
    pub(super) wanted: tokio_mpsc::Sender<Wanted>,
    pub(super) brought: std::sync::mpsc::Receiver<Result<Chunk>>,
}

/// Who brings it.
pub(super) struct Porter {
    wanted: tokio_mpsc::Receiver<Wanted>,
    bring: std::sync::mpsc::Sender<Result<Chunk>>,
}

/// A desk and its porter.
pub(super) fn desk() -> (Desk, Porter) {
    let (wanted, asked) = tokio_mpsc::channel(ON_THE_WAY);
    let (bring, brought) = std::sync::mpsc::channel();
    (Desk { wanted, brought }, Porter { wanted: asked, bring })
}

impl Porter {
    /// Takes chunks of the servers' spare memory in the client's sessions, which come in the order of the servers, and makes them
    /// the tree's, as long as somebody may ask.
    pub(super) async fn serve(mut self, mut sessions: Vec<(grpc::Client, grpc::Session)>) {
        while let Some(Wanted { server, kind }) = self.wanted.recv().await {
            let chunk = match sessions.get_mut(usize::from(server)) {
                Some((client, session)) => take(client, *session, kind).await,
                None => Err(anyhow::anyhow!("there is no memory server {server}")),
            };
            // A data path that has ended needs no memory.
            let _ = self.bring.send(chunk.with_context(|| format!("getting memory for {kind}")));
        }
    }
}

async fn take(client: &mut grpc::Client, session: grpc::Session, kind: ChunkKind) -> Result<Chunk> {
    let Supply::Chunk(chunk) = client.allocate(session, kind, 0).await? else {
        anyhow::bail!("the memory server brought places that were used before, where a chunk was asked for")
    };
    client.publish(session, chunk.address).await?;
    Ok(chunk)
}
