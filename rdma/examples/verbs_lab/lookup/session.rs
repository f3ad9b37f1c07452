//! The session with the memory server: opened, kept and ended over gRPC, and the queue pairs in it.

use std::net::Ipv4Addr;

use fatbtree_blink::{ConnectionId, Pool, RemoteSide};
use fatbtree_blink_host::TreeServerInfo;
use fatbtree_memserver::grpc::{Client, ClientError, Session};
use fatbtree_rdma::RdmaDevice;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// All the control plane there is: calls wait, and a task keeps the session.
pub(crate) struct ServerSession {
    runtime: Runtime,
    server: Client,
    session: Session,
    keeper: JoinHandle<ClientError>,
    /// Our address on the data path.
    roce: Ipv4Addr,
    /// Key of the tree memory.
    rkey: u32,
}

fn said(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl ServerSession {
    /// Opens a session for queue pairs of `device`; the server says what it holds.
    pub(crate) fn open(url: &str, device: &RdmaDevice) -> Result<(Self, TreeServerInfo), String> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(said)?;
        let roce = device.address();
        let (server, info, session) = runtime
            .block_on(async {
                let mut server = Client::connect(url).await?;
                let info = server.info().await?;
                let session = server.open_session(roce).await?;
                Ok::<_, ClientError>((server, info, session))
            })
            .map_err(said)?;
        let keeper = runtime.spawn(server.clone().keep_session(session));
        let rkey = info.region.rkey;
        Ok((Self { runtime, server, session, keeper, roce, rkey }, info))
    }

    /// Makes a connection, in a new session when this one has ended: an emulated machine may stand still for longer than a
    /// lease.
    pub(crate) fn connect(&mut self, pool: &Pool<RdmaDevice>, id: ConnectionId) -> Result<(), String> {
        let local = pool.open(id).map_err(said)?;
        let endpoint = self.runtime.block_on(async {
            match self.server.connect_queue_pair(self.session.id, local, pool.replaces(id)).await {
                Err(error) if error.session_has_ended() => {
                    self.keeper.abort();
                    self.session = self.server.open_session(self.roce).await?;
                    self.keeper = tokio::spawn(self.server.clone().keep_session(self.session));
                    self.server.connect_queue_pair(self.session.id, local, None).await
                }
                result => result,
            }
        });
        let endpoint = endpoint.map_err(said)?;
        let agreed =
            pool.connected(id, RemoteSide { endpoint, rkey: self.rkey, registered: false }).map_err(said)?;
        println!(
            "connected lane={} queue_pair={} mtu={} reads={}",
            id.lane, endpoint.queue_pair.0, agreed.mtu, agreed.outstanding_reads
        );
        Ok(())
    }

    /// Gives back what the server holds for us. A server that is gone needs nothing.
    pub(crate) fn close(&mut self) {
        self.keeper.abort();
        if let Err(error) = self.runtime.block_on(self.server.close_session(self.session.id)) {
            println!("session not closed: {error}");
        }
    }
}
