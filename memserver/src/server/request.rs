//! Requests from another thread, each with the way back.

use fatbtree_remote_memory::session_keeper::{Call, Grant, Granted};
use fatbtree_remote_memory::{GlobalAddress, ServerInfo, SizeClass};
use fatbtree_verbs::time::Instant;
use fatbtree_verbs::{Device, Endpoint, QueuePairNumber};
use tokio::sync::oneshot;

use super::{Counter, MemoryServer, RegionBytes, ServerError};
use crate::free_blocks::GivenBack;
use crate::limits::ClientId;
use crate::moments::OlderCopy;
use crate::refusal::Refusal;
use crate::session::{Lease, SessionKey, Told};
use crate::tenant::{Loaded, Tenant};

/// The way back.
pub type Reply<T> = oneshot::Sender<T>;

/// Requests to a memory server; see the methods of [`MemoryServer`].
#[derive(Debug)]
pub enum Request<T: Tenant> {
    /// The server's content.
    Info(Reply<ServerInfo<T::Description>>),
    /// All counters.
    Statistics(Reply<Vec<Counter>>),
    /// Use of the region.
    RegionBytes(Reply<RegionBytes>),
    /// A request that only the structure answers.
    Tenant(T::Request),
    /// A session.
    Open {
        /// The client.
        client: ClientId,
        /// Generation that the client has known in a former session.
        known: Option<u64>,
        /// The way back.
        reply: Reply<Result<Lease, Refusal>>,
    },
    /// A call of a session keeper.
    Call {
        /// The client.
        client: ClientId,
        /// The call.
        call: Call,
        /// The way back.
        reply: Reply<Result<Granted<T::Description>, Refusal>>,
    },
    /// The structure that a controller has known before.
    Heard {
        /// Its generation, if there was one.
        former: Option<u64>,
        /// The way back: whether it was another structure, and the present one is not meant to be its successor.
        reply: Reply<bool>,
    },
    /// The server's folder is an older copy.
    Older {
        /// What was found.
        older: OlderCopy,
        /// The way back.
        reply: Reply<()>,
    },
    /// More time.
    Renew {
        /// The session.
        session: SessionKey,
        /// What the client tells.
        told: Told,
        /// The way back.
        reply: Reply<Result<Lease, Refusal>>,
    },
    /// Everything that was carried out before is on the disk.
    Sync {
        /// The session.
        session: SessionKey,
        /// The way back.
        reply: Reply<Result<(), Refusal>>,
    },
    /// The end of a session.
    Close {
        /// The session.
        session: SessionKey,
        /// The way back.
        reply: Reply<Result<(), Refusal>>,
    },
    /// A connection.
    Connect {
        /// The session.
        session: SessionKey,
        /// The client's end.
        client: Endpoint,
        /// The server's queue pair that it replaces.
        replaces: Option<QueuePairNumber>,
        /// The way back.
        reply: Reply<Result<Endpoint, Refusal>>,
    },
    /// The end of a connection.
    Disconnect {
        /// The session.
        session: SessionKey,
        /// The server's queue pair.
        queue_pair: QueuePairNumber,
        /// The way back.
        reply: Reply<Result<(), Refusal>>,
    },
    /// Memory for blocks.
    Allocate {
        /// The session.
        session: SessionKey,
        /// Class of memory.
        class: SizeClass,
        /// Bytes of a block, where its class has several sizes; 0 asks for a chunk there.
        bytes: u32,
        /// The way back.
        reply: Reply<Result<Grant, Refusal>>,
    },
    /// Blocks that were freed.
    GiveBack {
        /// The session.
        session: SessionKey,
        /// Wait of a sweep for which the client had settled when it asked.
        settled: u64,
        /// Class of memory.
        class: SizeClass,
        /// Bytes of each block, where their class has several sizes.
        bytes: u32,
        /// Their addresses.
        addresses: Vec<GlobalAddress>,
        /// The way back.
        reply: Reply<Result<GivenBack, Refusal>>,
    },
    /// Another structure.
    Install {
        /// The structure with its region.
        loaded: Box<Loaded<T>>,
        /// Told when the server begins: from then on it takes as long as the device takes to register the memory.
        begun: Reply<()>,
        /// The way back.
        reply: Reply<Result<ServerInfo<T::Description>, ServerError>>,
    },
    /// A chunk becomes the structure's.
    Publish {
        /// The session.
        session: SessionKey,
        /// Address of the chunk.
        address: GlobalAddress,
        /// The way back.
        reply: Reply<Result<(), Refusal>>,
    },
    /// A chunk comes back.
    Free {
        /// The session.
        session: SessionKey,
        /// Address of the chunk.
        address: GlobalAddress,
        /// The way back.
        reply: Reply<Result<(), Refusal>>,
    },
}

impl<D: Device, T: Tenant> MemoryServer<D, T> {
    /// Answers a request. Grants to a caller that does not wait any more are taken back at once.
    pub fn handle(&mut self, now: Instant, request: Request<T>) {
        self.counters.requests += 1;
        match request {
            Request::Info(reply) => {
                self.advance(now);
                self.watch_header();
                let _ = reply.send(self.info);
            }
            Request::Statistics(reply) => {
                self.advance(now);
                let _ = reply.send(self.statistics());
            }
            Request::RegionBytes(reply) => {
                self.advance(now);
                let _ = reply.send(self.region_bytes());
            }
            Request::Tenant(request) => self.tenant.handle(request),
            Request::Heard { former, reply } => {
                self.advance(now);
                let _ = reply.send(self.heard(former));
            }
            Request::Older { older, reply } => {
                self.advance(now);
                self.found_older(older);
                let _ = reply.send(());
            }
            Request::Call { client, call, reply } => self.handle_call(now, client, call, reply),
            Request::Open { client, known, reply } => {
                let answer = self.open_session_after(now, client, known);
                if let Some(lease) = self.tell(reply, answer) {
                    self.end(lease.session);
                }
            }
            Request::Renew { session, told, reply } => {
                let answer = self.renew_told(now, session, told);
                self.tell(reply, answer);
            }
            Request::Sync { session, reply } => {
                let answer = self.sync_session(now, session);
                self.tell(reply, answer);
            }
            Request::Close { session, reply } => {
                let answer = self.close_session(now, session);
                self.tell(reply, answer);
            }
            Request::Connect { session, client, replaces, reply } => {
                let answer = self.connect(now, session, &client, replaces);
                if let Some(local) = self.tell(reply, answer) {
                    // The queue pair is there: it was connected just now.
                    let _ = self.disconnect(now, session, local.queue_pair);
                }
            }
            Request::Disconnect { session, queue_pair, reply } => {
                let answer = self.disconnect(now, session, queue_pair);
                self.tell(reply, answer);
            }
            Request::Allocate { session, class, bytes, reply } => {
                let answer = self.allocate(now, session, class, bytes);
                match self.tell(reply, answer) {
                    Some(Grant::Chunk(chunk)) => drop(self.free(now, session, chunk.address)),
                    Some(Grant::Blocks(places)) => self.places.put_back(&places),
                    None => {}
                }
            }
            Request::GiveBack { session, settled, class, bytes, addresses, reply } => {
                let answer = self.give_back_settled(now, session, settled, class, bytes, &addresses);
                self.tell(reply, answer);
            }
            Request::Install { loaded, begun, reply } => {
                // The installation goes on, whether the caller waits for it or not.
                let _ = begun.send(());
                let installed = self.install(now, *loaded);
                let _ = reply.send(installed.map(|()| self.info));
            }
            Request::Publish { session, address, reply } => {
                let answer = self.publish(now, session, address);
                self.tell(reply, answer);
            }
            Request::Free { session, address, reply } => {
                let answer = self.free(now, session, address);
                self.tell(reply, answer);
            }
        }
    }

    /// Answers the caller. Returns the grant if the caller does not wait any more.
    pub(super) fn tell<A>(
        &mut self,
        reply: Reply<Result<A, Refusal>>,
        answer: Result<A, Refusal>,
    ) -> Option<A> {
        self.counters.refused += u64::from(answer.is_err());
        reply.send(answer).err()?.ok()
    }
}
