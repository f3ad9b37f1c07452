//! Control channel of a memory server: carries calls of the session keeper there, and their answers to the data path.

use std::net::Ipv4Addr;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use fatbtree_memserver::ServerInfo;
use fatbtree_memserver::grpc::{Client, ClientError, Describe};
use fatbtree_memserver::session_keeper::{Call, CallId, Denied, Granted, NoAnswer};
use fatbtree_port::Waker;
use fatbtree_topology::MemoryServer;
use fatbtree_trust::{Peer, Trust};
use tokio::sync::OnceCell;

use crate::ask::ask_within;

/// Message from the control plane to the data path.
pub(super) enum Answer<S> {
    /// Answer to a call of the session keeper.
    Call { call: CallId, answer: Result<Granted<S>, Denied> },
    /// The first switch admits index reads to this queue pair of the server.
    Registered { partition: u16, queue_pair: u32 },
}

/// Way to the data path.
pub(super) struct Out<S> {
    pub(super) answers: mpsc::Sender<Answer<S>>,
    pub(super) waker: Waker,
}

impl<S> Clone for Out<S> {
    fn clone(&self) -> Self {
        Self { answers: self.answers.clone(), waker: self.waker.clone() }
    }
}

impl<S> Out<S> {
    pub(super) fn tell(&self, answer: Answer<S>) {
        // A data path that has ended needs no answer.
        let _ = self.answers.send(answer);
        self.waker.wake();
    }
}

/// Control channel of one memory server.
pub(super) struct Link<S> {
    peer: Peer,
    /// The client's address on the data path.
    roce: Ipv4Addr,
    /// Longest time for which a call may take.
    patience: Duration,
    out: Out<S>,
    server: OnceCell<Client>,
}

impl<S: Describe> Link<S> {
    pub(super) fn new(
        described: &MemoryServer,
        trust: &Trust,
        roce: Ipv4Addr,
        patience: Duration,
        out: Out<S>,
    ) -> Arc<Self> {
        let peer = trust.to(&described.grpc, &described.name);
        Arc::new(Self { peer, roce, patience, out, server: OnceCell::new() })
    }

    async fn server(&self) -> Result<Client, ClientError> {
        self.server.get_or_try_init(|| Client::connect(self.peer.clone())).await.cloned()
    }

    /// The server's description of itself, asked for as long as patience lasts.
    pub(super) async fn info(&self) -> Result<ServerInfo<S>, ClientError> {
        let ask = || async { self.server().await?.info().await };
        ask_within(self.patience, self.peer.address(), "for its description", ask).await
    }

    /// Carries a call to the server and its answer to the data path. A server that hangs does not delay the others.
    pub(super) async fn carry(self: Arc<Self>, id: CallId, call: Call) {
        let carried = async { self.server().await?.carry(self.roce, call).await };
        let answer = tokio::time::timeout(self.patience, carried).await;
        let answer = answer.map_or_else(|_| Err(NoAnswer.into()), |answer| answer.map_err(Denied::from));
        self.out.tell(Answer::Call { call: id, answer });
    }
}
