//! One memory server's session, kept and used by a task of the control plane: a server that hangs holds up nobody else.

use std::net::Ipv4Addr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use fatbtree_blink::{ChunkKind, ConnectionId, SessionId};
use fatbtree_memserver::grpc::{Client, ClientError, Session};
use fatbtree_memserver::{Grant, ServerInfo};
use fatbtree_port::Waker;
use fatbtree_topology::MemoryServer;
use fatbtree_trust::Trust;
use fatbtree_verbs::{Endpoint, QueuePairNumber};
use tokio::sync::{mpsc as orders, oneshot};
use tokio::task::JoinHandle;

#[cfg(test)]
mod tests;

/// What the data path wants.
pub(super) enum Order {
    Connect {
        id: ConnectionId,
        local: Endpoint,
        replaces: Option<QueuePairNumber>,
    },
    Memory {
        kind: ChunkKind,
        bytes: u32,
    },
    /// What do you hold now?
    Look,
    Close(oneshot::Sender<()>),
}

/// What comes of it.
pub(super) enum Answer {
    /// A queue pair is connected in this session.
    Connected {
        id: ConnectionId,
        endpoint: Endpoint,
        info: ServerInfo,
        session: Session,
    },
    /// What the server holds now.
    Info {
        server: u16,
        info: ServerInfo,
        session: Session,
    },
    Lost {
        id: ConnectionId,
        error: ClientError,
    },
    /// The first switch admits index reads to this queue pair of the server.
    Registered {
        partition: u16,
        queue_pair: u32,
    },
    Memory {
        server: u16,
        /// In which it was given.
        session: SessionId,
        kind: ChunkKind,
        grant: Result<Grant, ClientError>,
    },
}

/// The way back to the data path.
pub(super) struct Out {
    pub(super) answers: mpsc::Sender<Answer>,
    pub(super) waker: Waker,
}

impl Out {
    pub(super) fn tell(&self, answer: Answer) {
        // A data path that has ended needs no answer.
        let _ = self.answers.send(answer);
        self.waker.wake();
    }
}

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(50);
/// The same where nothing waits for it.
const LONG_PAUSE: Duration = Duration::from_millis(500);

pub(super) struct Desk {
    server: Client,
    /// Its partition.
    number: u16,
    /// What the server has said of itself while the session lasted: never what its successor has said.
    info: ServerInfo,
    session: Session,
    keeper: JoinHandle<ClientError>,
    /// The keeper has given the session up.
    has_ended: bool,
    /// Our address on the data path.
    roce: Ipv4Addr,
    patience: Duration,
    out: Out,
}

impl Desk {
    /// Opens a session, trying as long as `patience` lasts.
    pub(super) async fn open(
        described: &MemoryServer,
        trust: &Trust,
        roce: Ipv4Addr,
        patience: Duration,
        out: Out,
    ) -> Result<Self, ClientError> {
        let peer = trust.to(&described.grpc, &described.name);
        let began = Instant::now();
        loop {
            let opened = async {
                let mut server = Client::connect(peer.clone()).await?;
                let session = server.open_session(roce).await?;
                let info = info_in(&mut server, session).await?;
                Ok::<_, ClientError>((server, info, session))
            };
            match opened.await {
                Ok((server, info, session)) => {
                    let keeper = tokio::spawn(server.clone().keep_session(session));
                    let number = described.partition;
                    return Ok(Self {
                        server,
                        number,
                        info,
                        session,
                        keeper,
                        has_ended: false,
                        roce,
                        patience,
                        out,
                    });
                }
                Err(error) if ends(&error) || began.elapsed() >= patience => return Err(error),
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    pub(super) fn info(&self) -> &ServerInfo {
        &self.info
    }

    pub(super) async fn serve(mut self, mut orders: orders::Receiver<Order>) {
        loop {
            let order = tokio::select! {
                biased;
                order = orders.recv() => order,
                // The session has ended: the server was started again, or loaded anew. Connections find that out as they are used; ranges may
                // have moved to servers with none in use.
                _ = &mut self.keeper, if !self.has_ended => {
                    self.has_ended = true;
                    Some(Order::Look)
                }
                // It could not be opened anew.
                () = tokio::time::sleep(LONG_PAUSE), if self.has_ended => Some(Order::Look),
            };
            let Some(order) = order else { break };
            match order {
                Order::Look => self.look().await,
                Order::Connect { id, local, replaces } => {
                    let former = self.session.id;
                    let connected = self.keep_asking(move |mut server, session| {
                        // What the queue pair replaces is one of the former session, and gone with it.
                        let replaces = replaces.filter(|_| session.id == former);
                        async move { server.connect_queue_pair(session, local, replaces).await }
                    });
                    let answer = match connected.await {
                        Ok(endpoint) => {
                            Answer::Connected { id, endpoint, info: self.info, session: self.session }
                        }
                        Err(error) => Answer::Lost { id, error },
                    };
                    self.out.tell(answer);
                }
                Order::Memory { kind, bytes } => {
                    let granted = self.keep_asking(move |mut server, session| async move {
                        server.memory(session, kind, bytes).await
                    });
                    let grant = granted.await;
                    let (server, session) = (self.number, self.session.id);
                    self.out.tell(Answer::Memory { server, session, kind, grant });
                }
                Order::Close(done) => {
                    self.keeper.abort();
                    if let Err(error) = self.server.close_session(self.session).await {
                        tracing::info!(%error, "session not closed");
                    }
                    // Whoever asked may have given up.
                    let _ = done.send(());
                    return;
                }
            }
        }
        self.keeper.abort();
    }

    /// Asks for what the server holds, in a new session if the old one has ended.
    async fn look(&mut self) {
        // Whoever asks again and again is answered at this pace.
        tokio::time::sleep(PAUSE).await;
        let looked = async {
            if !self.has_ended {
                match info_in(&mut self.server, self.session).await {
                    Err(error) if error.session_has_ended() => {}
                    info => {
                        self.info = info?;
                        self.tell_info();
                        return Ok(());
                    }
                }
            }
            self.open_again().await
        };
        if let Err(error) = looked.await {
            // The next connection that is made finds out.
            tracing::info!(%error, "not asked");
        }
    }

    /// Opens a new session, perhaps with a server that was started again, and tells the data path of it.
    async fn open_again(&mut self) -> Result<(), ClientError> {
        self.keeper.abort();
        self.has_ended = true;
        let known = Some(self.info.generation);
        let session = self.server.open_session_after(self.roce, known).await?;
        self.info = info_in(&mut self.server, session).await?;
        self.session = session;
        self.keeper = tokio::spawn(self.server.clone().keep_session(self.session));
        self.has_ended = false;
        self.tell_info();
        Ok(())
    }

    fn tell_info(&self) {
        let (server, info, session) = (self.number, self.info, self.session);
        self.out.tell(Answer::Info { server, info, session });
    }

    /// Asks for something until the server gives or refuses it, or `patience` has passed; in a new session if the old one has ended.
    async fn keep_asking<T, F: Future<Output = Result<T, ClientError>>>(
        &mut self,
        ask: impl Fn(Client, Session) -> F,
    ) -> Result<T, ClientError> {
        let began = Instant::now();
        loop {
            let asked = match ask(self.server.clone(), self.session).await {
                Err(error) if error.session_has_ended() => match self.open_again().await {
                    Ok(()) => ask(self.server.clone(), self.session).await,
                    Err(error) => Err(error),
                },
                asked => asked,
            };
            match asked {
                Err(error) if !ends(&error) && began.elapsed() < self.patience => {
                    tokio::time::sleep(PAUSE).await;
                }
                asked => return asked,
            }
        }
    }
}

/// What the server holds, if it is the one that has the session. In this order: another tree, or another process, ends the session.
async fn info_in(server: &mut Client, session: Session) -> Result<ServerInfo, ClientError> {
    let info = server.info().await?;
    server.renew_session(session).await?;
    Ok(info)
}

/// Whether there is no use in asking again, in a new session if need be.
fn ends(error: &ClientError) -> bool {
    error.is_final() && !error.session_has_ended()
}
