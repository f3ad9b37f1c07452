//! Control channel of a memory server: carries calls of the session keeper there, and their answers to the data path.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use fatbtree_memserver::ServerInfo;
use fatbtree_memserver::grpc::{Client, ClientError, Describe};
use fatbtree_port::Waker;
use fatbtree_remote_memory::SessionId;
use fatbtree_remote_memory::session_keeper::{Call, CallId, Denied, Granted, NoAnswer};

use crate::ask::ask_within;
use crate::channels::Channels;

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
    /// The server's number.
    number: u16,
    channels: Arc<Channels>,
    /// The client's address on the data path.
    roce: Ipv4Addr,
    /// Longest time for which a call may take.
    patience: Duration,
    is_out_of_reach: AtomicBool,
    out: Out<S>,
}

impl<S: Describe> Link<S> {
    pub(super) fn new(
        number: u16,
        channels: Arc<Channels>,
        roce: Ipv4Addr,
        patience: Duration,
        out: Out<S>,
    ) -> Arc<Self> {
        Arc::new(Self { number, channels, roce, patience, is_out_of_reach: AtomicBool::new(false), out })
    }

    async fn server(&self) -> Result<Client, ClientError> {
        self.channels.client(self.number).await
    }

    /// The server's description of itself, asked for as long as patience lasts.
    pub(super) async fn info(&self) -> Result<ServerInfo<S>, ClientError> {
        let ask = || async {
            let answer = async { self.server().await?.info().await }.await;
            self.is_out_of_reach.store(answer.is_err(), Ordering::Relaxed);
            answer
        };
        ask_within(self.patience, self.channels.address(self.number), "for its description", ask).await
    }

    /// Closes a session that is not used.
    pub(super) async fn leave(self: Arc<Self>, session: SessionId) {
        let closed = async { self.server().await?.call::<S>(self.roce, Call::Close { session }).await };
        // If the server does not answer, the session ends with its lease.
        drop(tokio::time::timeout(self.patience, closed).await);
    }

    /// Whether the last question for a description ended without an answer, as where nothing listens at the server's address.
    pub(super) fn is_out_of_reach(&self) -> bool {
        self.is_out_of_reach.load(Ordering::Relaxed)
    }

    /// Carries a call to the server and its answer to the data path. A server that hangs does not delay the others. One that was started
    /// again is compared with them before a session is opened there.
    pub(super) async fn carry(self: Arc<Self>, id: CallId, call: Call) {
        let carried = async {
            self.channels.before(self.number, &call).await?;
            Ok::<_, Denied>(self.server().await?.call(self.roce, call).await?)
        };
        let answer = tokio::time::timeout(self.patience, carried).await;
        let answer = answer.unwrap_or_else(|_| Err(NoAnswer.into()));
        self.out.tell(Answer::Call { call: id, answer });
    }
}
