//! Local clients: threads of the server's process that work on the same memory, in sessions like all others.

use std::sync::Arc;

use fatbtree_remote_memory::session_keeper::Attached;
use fatbtree_verbs::local::LocalHost;
use fatbtree_verbs::time::Instant;
use fatbtree_verbs::{ConnectError, Device, Endpoint, QueuePairNumber};

use super::MemoryServer;
use crate::limits::{ClientId, Resource};
use crate::refusal::Refusal;
use crate::session::SessionKey;
use crate::tenant::Tenant;

impl<D: Device, T: Tenant> MemoryServer<D, T> {
    /// Access for local clients, where they are allowed
    /// ([`ServerOptions::local_clients`](crate::ServerOptions::local_clients)).
    #[must_use]
    pub fn local(&self) -> Option<&LocalHost> {
        self.local.as_ref()
    }

    /// Makes a link for a local client, in the place of a queue pair. It ends with the session: when that is over, nothing that the client
    /// posts is carried out any more. One that it `replaces` ends first.
    ///
    /// # Errors
    /// When the session has ended, a bound is met, or the server has no local clients. A link that was to be replaced is gone then, too.
    pub fn attach(
        &mut self,
        now: Instant,
        session: SessionKey,
        client: &Endpoint,
        replaces: Option<QueuePairNumber>,
    ) -> Result<Attached, Refusal> {
        self.advance(now);
        self.take_broken_links();
        let payer = self.session(session)?.client;
        if let Some(old) = replaces {
            self.detach(session, old);
        }
        self.accounts.attempt(self.now, payer)?;
        let Some(local) = &self.local else {
            let reason = "expected a server with local clients, found one without; start it with ServerOptions::local_clients";
            return Err(ConnectError::Driver { what: "make a local link", reason: reason.to_owned() }.into());
        };
        self.accounts.charge(payer, Resource::QueuePairs)?;
        let endpoint = match local.accept(client) {
            Ok(endpoint) => endpoint,
            Err(error) => {
                self.accounts.release(payer, Resource::QueuePairs);
                return Err(error.into());
            }
        };
        if let Some(session) = self.sessions.get_mut(session) {
            session.links.insert(endpoint.queue_pair);
        }
        let (memory, places) = (Arc::clone(&self.region), Arc::new(self.chunks.layout()));
        Ok(Attached { endpoint, memory, places })
    }

    /// Ends a link of a session, if it is one.
    pub(super) fn detach(&mut self, session: SessionKey, link: QueuePairNumber) {
        if let Some(session) = self.sessions.get_mut(session)
            && session.links.remove(&link)
        {
            let client = session.client;
            self.unlink(client, link);
        }
    }

    /// Links that broke are ended: their clients make others.
    pub(super) fn take_broken_links(&mut self) {
        while let Some(link) = self.local.as_ref().and_then(LocalHost::poll_broken) {
            let owner = self.sessions.of_link(link);
            if let Some(session) = owner {
                self.detach(session, link);
            }
        }
    }

    pub(super) fn unlink(&mut self, client: ClientId, link: QueuePairNumber) {
        if let Some(local) = &self.local {
            local.disconnect(link);
        }
        self.accounts.release(client, Resource::QueuePairs);
    }
}
