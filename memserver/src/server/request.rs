//! Requests from another thread, each with the way back.

use fatbtree_remote_memory::ServerInfo;
use fatbtree_remote_memory::session_keeper::{Call, Granted};
use fatbtree_verbs::Device;
use fatbtree_verbs::time::Instant;
use tokio::sync::oneshot;

use super::{Counter, MemoryServer, RegionBytes, ServerError};
use crate::fellows::{Answer, Ask, Unanswered};
use crate::limits::ClientId;
use crate::moments::OlderCopy;
use crate::refusal::Refusal;
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
    /// A question of another server of the structure.
    Ask {
        /// The question.
        ask: Ask,
        /// The way back.
        reply: Reply<Result<Answer, Unanswered>>,
    },
    /// The answer to a question of this server; `None` if there is none.
    Answered {
        /// The question.
        ask: Ask,
        /// The answer.
        answer: Option<Answer>,
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
            Request::Ask { ask, reply } => self.asked(now, ask, reply),
            Request::Answered { ask, answer } => {
                self.advance(now);
                self.answered(&ask, answer);
            }
            Request::Call { client, call, reply } => self.handle_call(now, client, call, reply),
            Request::Install { loaded, begun, reply } => {
                // The installation goes on, whether the caller waits for it or not.
                let _ = begun.send(());
                let installed = self.install(now, *loaded);
                let _ = reply.send(installed.map(|()| self.info));
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
