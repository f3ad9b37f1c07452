//! Calls of clients' session keepers.

use fatbtree_remote_memory::ReturnedBlocks;
use fatbtree_remote_memory::session_keeper::{Call, Granted, Opened};
use fatbtree_verbs::Device;
use fatbtree_verbs::time::Instant;

use super::{MemoryServer, Reply};
use crate::limits::ClientId;
use crate::refusal::Refusal;
use crate::session::{Lease, SessionKey, Told};
use crate::tenant::Tenant;

impl<D: Device, T: Tenant> MemoryServer<D, T> {
    /// Carries out a call of a client's [`SessionKeeper`](fatbtree_remote_memory::session_keeper::SessionKeeper). A [local](ClientId::local) client is
    /// connected by a link.
    ///
    /// # Errors
    /// As the method of the call.
    pub fn carry_out(
        &mut self,
        now: Instant,
        client: ClientId,
        call: Call,
    ) -> Result<Granted<T::Description>, Refusal> {
        let key = |id| SessionKey { host: client.host, id };
        Ok(match call {
            Call::Open { known } => {
                let Lease { session, duration: lease, owner, .. } =
                    self.open_session_after(now, client, known)?;
                self.watch_header();
                let opened = Opened { session: session.id, lease, owner, info: self.info };
                Granted::Opened(Box::new(opened))
            }
            Call::Renew { session, settled, keeps } => {
                let Lease { wait, .. } = self.renew_told(now, key(session), Told { settled, keeps })?;
                Granted::Renewed { wait }
            }
            Call::Sync { session } => self.sync_session(now, key(session)).map(|()| Granted::Done)?,
            Call::Connect { session, local, replaces } if client.is_local() => {
                Granted::Attached(Box::new(self.attach(now, key(session), &local, replaces)?))
            }
            Call::Connect { session, local, replaces } => {
                Granted::Connected(self.connect(now, key(session), &local, replaces)?)
            }
            Call::Allocate { session, class, bytes } => {
                Granted::Supplied(self.allocate(now, key(session), class, bytes)?)
            }
            Call::GiveBack { places, settled } => {
                let ReturnedBlocks { session, class, bytes, addresses, .. } = places;
                self.give_back_settled(now, key(session), settled, class, bytes, &addresses)?;
                Granted::Done
            }
            Call::Close { session } => self.close_session(now, key(session)).map(|()| Granted::Done)?,
        })
    }

    /// Carries out a call that came by the mailbox. Grants to a client that does not wait any more are taken back at once.
    pub(super) fn handle_call(
        &mut self,
        now: Instant,
        client: ClientId,
        call: Call,
        reply: Reply<Result<Granted<T::Description>, Refusal>>,
    ) {
        let (asked, answer) = (call.clone(), self.carry_out(now, client, call));
        let Some(granted) = self.tell(reply, answer) else { return };
        let key = |id| SessionKey { host: client.host, id };
        match (asked, granted) {
            (_, Granted::Opened(opened)) => drop(self.end(key(opened.session))),
            (Call::Connect { session, .. }, Granted::Connected(end)) => {
                // The queue pair is there: it was connected just now.
                drop(self.disconnect(now, key(session), end.queue_pair));
            }
            (Call::Connect { session, .. }, Granted::Attached(attached)) => {
                self.detach(key(session), attached.endpoint.queue_pair);
            }
            (Call::Allocate { session, .. }, Granted::Supplied(grant)) => {
                self.take_back(key(session), &grant)
            }
            _ => {}
        }
    }
}
