//! The session with the memory server, kept by the session keeper of production; gRPC carries its calls.

use std::net::Ipv4Addr;
use std::sync::mpsc;
use std::time::Duration;

use fatbtree_blink::ConnectionId;
use fatbtree_blink_client::Client;
use fatbtree_blink_host::{TreeInfo, TreeServerInfo};
use fatbtree_ibverbs::RdmaDevice;
use fatbtree_memserver::grpc::{self, ClientError};
use fatbtree_remote_memory::session_keeper::{CallId, Denied, Granted, KeeperOptions, Notice, SessionKeeper};
use fatbtree_verbs::time::{self, Instant};
use tokio::runtime::Runtime;

/// Connections to the server.
pub(crate) const LANES: u8 = 2;
/// Time for which operations wait for a server that does not answer.
const PATIENCE: time::Duration = time::Duration::from_secs(5);
/// Time within which all connections are up, and within which the session is closed: an emulated machine is slow.
const SOON: Duration = Duration::from_secs(30);
/// Interval in which an answer is looked for.
const LOOK: Duration = Duration::from_millis(1);

type Answer = (CallId, Result<Granted<TreeInfo>, Denied>);

pub(crate) struct ServerSession {
    runtime: Runtime,
    server: grpc::Client,
    /// The client's address on the data path.
    roce: Ipv4Addr,
    keeper: SessionKeeper<TreeInfo>,
    answered: mpsc::Sender<Answer>,
    answers: mpsc::Receiver<Answer>,
}

fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl ServerSession {
    /// Asks the server for its description. Sessions and connections follow in the turns.
    pub(crate) fn new(url: &str, device: &RdmaDevice) -> Result<(Self, TreeServerInfo), String> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(said)?;
        let asked = runtime.block_on(async {
            let mut server = grpc::Client::connect(url).await?;
            let info: TreeServerInfo = server.info().await?;
            Ok::<_, ClientError>((server, info))
        });
        let (server, info) = asked.map_err(said)?;
        let lanes = (0..LANES).map(|lane| ConnectionId { server: info.partition.id, lane });
        let options = KeeperOptions { patience: Some(PATIENCE), ..KeeperOptions::default() };
        let (answered, answers) = mpsc::channel();
        let keeper = SessionKeeper::new(lanes, options);
        Ok((Self { runtime, server, roce: device.address(), keeper, answered, answers }, info))
    }

    /// Takes answers, makes calls, and prints what became of connections.
    pub(crate) fn turn(&mut self, now: Instant, client: &Client<RdmaDevice>) {
        let pool = client.pool();
        while let Ok((call, answer)) = self.answers.try_recv() {
            self.keeper.handle_answer(now, pool, call, answer);
        }
        while let Some((id, call)) = self.keeper.poll_call(now, pool) {
            let (mut server, roce, answered) = (self.server.clone(), self.roce, self.answered.clone());
            self.runtime.spawn(async move {
                let answer = server.call(roce, call).await.map_err(Denied::from);
                // A client that has ended needs no answer.
                let _ = answered.send((id, answer));
            });
        }
        while let Some(notice) = self.keeper.poll_notice() {
            match notice {
                Notice::Connected { id } => println!("connected lane={}", id.lane),
                Notice::Broken { id, reason } => println!("broke lane={} reason={reason}", id.lane),
                Notice::OutOfReach { .. } | Notice::Lost { .. } => {
                    let down = pool.connections().into_iter().filter(|id| pool.queue_pair(*id).is_none());
                    down.for_each(|id| println!("lost lane={} reason={notice:?}", id.lane));
                }
                Notice::Denied { denied, .. } => println!("denied {denied}"),
                Notice::Opened { .. } | Notice::Unfinished { .. } => {}
            }
        }
    }

    /// Waits until all connections are up.
    pub(crate) fn connect(
        &mut self,
        client: &Client<RdmaDevice>,
        began: std::time::Instant,
    ) -> Result<(), String> {
        match self.turn_until(client, began, SessionKeeper::is_connected) {
            true => Ok(()),
            false => Err(format!("not connected within {SOON:?}: look at the memory server's log")),
        }
    }

    /// Gives back what the server holds for the client. A server that is gone needs nothing.
    pub(crate) fn close(&mut self, client: &Client<RdmaDevice>, began: std::time::Instant) {
        self.keeper.close(client.pool());
        if self.keeper.session(client.pool().connections()[0].server).is_some()
            && !self.turn_until(client, began, SessionKeeper::is_closed)
        {
            println!("session not closed");
        }
    }

    fn turn_until(
        &mut self,
        client: &Client<RdmaDevice>,
        began: std::time::Instant,
        is_done: impl Fn(&SessionKeeper<TreeInfo>) -> bool,
    ) -> bool {
        let end = std::time::Instant::now() + SOON;
        while !is_done(&self.keeper) {
            if std::time::Instant::now() >= end {
                return false;
            }
            self.turn(super::now(began), client);
            std::thread::sleep(LOOK);
        }
        true
    }
}
