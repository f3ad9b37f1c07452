//! Carries questions of a memory server to the other servers of its structure, by tasks of the control plane.

use std::collections::BTreeMap;

use fatbtree_memserver::grpc::{Client, ClientError, Deadlines, WALK, ask};
use fatbtree_memserver::{Answer, Ask, Handle, OlderCopy, Question, Tenant};
use fatbtree_topology::MemoryServer;
use fatbtree_trust::{Peer, Trust};
use tokio::sync::mpsc;

/// Reasons for which another server's word does not count.
#[derive(Debug, thiserror::Error)]
enum NoWord {
    #[error("the cluster file has no memory server of partition {0}")]
    Unknown(u16),
    #[error("memory server of partition {0} does not answer: it is busy, or it hangs")]
    Late(u16),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Older(#[from] OlderCopy),
}

/// The other memory servers of the cluster, and the one that asks them.
pub(super) struct Messenger<T: Tenant> {
    peers: BTreeMap<u16, Peer>,
    handle: Handle<T>,
}

impl<T: Tenant> Clone for Messenger<T> {
    fn clone(&self) -> Self {
        Self { peers: self.peers.clone(), handle: self.handle.clone() }
    }
}

impl<T: Tenant<Description: Send, Request: Send> + Send + 'static> Messenger<T> {
    pub(super) fn new(servers: &[MemoryServer], trust: &Trust, handle: Handle<T>) -> Self {
        let peer = |server: &MemoryServer| (server.partition, trust.to(&server.grpc, &server.name));
        Self { peers: servers.iter().map(peer).collect(), handle }
    }

    /// Carries questions until there are no more. A sweep asks each server once at a time.
    pub(super) async fn serve(self, mut asks: mpsc::UnboundedReceiver<Ask>) {
        while let Some(ask) = asks.recv().await {
            let messenger = self.clone();
            tokio::spawn(async move {
                let answer = messenger.carry(ask).await.map_err(|error| {
                    // Clients that work are the usual reason. Another sweep follows.
                    tracing::debug!(partition = ask.of, %error, "a sweep for lost blocks has ended without effect");
                });
                let _ = messenger.handle.answered(ask, answer.ok()).await;
            });
        }
    }

    async fn carry(&self, question: Ask) -> Result<Answer, NoWord> {
        let Ask { by, of, .. } = question;
        let peer = self.peers.get(&of).ok_or(NoWord::Unknown(of))?;
        let deadlines = Deadlines { call: WALK, ..Deadlines::default() };
        let mut client = Client::connect_with(peer.clone(), deadlines).await?;
        if let Question::Marks { .. } = question.question {
            // An older copy of its folder does not know what leads here by now.
            // A server that stands still is not waited for as long as one that walks.
            let moments = tokio::time::timeout(Deadlines::default().call, client.moments());
            let compared = moments.await.map_err(|_| NoWord::Late(of))??;
            if let Some(heard) = self.handle.moments().heard().get(&of) {
                compared.own.agrees(by, heard)?;
            }
        }
        Ok(ask(&client, question).await?)
    }
}
