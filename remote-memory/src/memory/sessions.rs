//! The client's state at each server in the present session: credentials, memory for new nodes, locks.

use std::collections::btree_map::Entry;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::task::{Poll, Waker};

use fatbtree_verbs::{Operation, Verbs};

use super::{RemoteMemory, Trouble, bytes_of};
use crate::address::GlobalAddress;
use crate::allocator::{Allocator, ReturnedBlocks, SURPLUS, Shortage, SizeClass, Want};
use crate::checks::Check;
use crate::connection::{ConnectError, ConnectionId, Event};
use crate::locks::{LockId, SessionId, Writer};
use crate::operation::Lane;
use crate::session::Session;

impl<V: Verbs> RemoteMemory<V> {
    /// Lets operations write to the memory of a server, under the locks that the server has given the client.
    ///
    /// A client whose session has ended has lost everything that it had of the server, and the next session has another
    /// [name](SessionId). It is told here before the first queue pair of the new session is [`connected`](Self::connected). Then all
    /// is forgotten that hangs on the former one: locks, rests of chunks, places that were freed. Operations that
    /// were writing meanwhile cannot tell what became of that, and say so.
    ///
    /// # Errors
    /// When there is no such server.
    pub fn set_writer(&self, server: u16, writer: Writer) -> Result<(), ConnectError> {
        let mut state = self.state.borrow_mut();
        state.connections.get_mut(ConnectionId { server, lane: 0 })?;
        let waiting = match state.sessions.entry(server) {
            Entry::Vacant(entry) => {
                entry.insert(Session::new(server, writer));
                Vec::new()
            }
            Entry::Occupied(mut entry) => entry.get_mut().renew(server, writer),
        };
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Brings a chunk of memory for what is new, as [`Event::MemoryWanted`] asks for. It is the index's already: it is not given back. What was given in another session than the present one is not the client's any more, and is left alone.
    pub fn grant(&self, session: SessionId, address: GlobalAddress, bytes: u64, class: SizeClass) {
        self.granted(session, address.server(), |allocator| allocator.grant(address, bytes, class));
    }

    /// Brings places that others have freed, as [`grant`](Self::grant) brings a chunk. `bytes` is the size of a record's place; other
    /// classes have their own.
    pub fn grant_blocks(
        &self,
        session: SessionId,
        server: u16,
        class: SizeClass,
        bytes: u32,
        addresses: &[GlobalAddress],
    ) {
        self.granted(session, server, |allocator| allocator.grant_blocks(class, bytes, addresses));
    }

    fn granted(&self, session: SessionId, server: u16, grant: impl FnOnce(&mut Allocator) -> Vec<Waker>) {
        let mut state = self.state.borrow_mut();
        let present = state.sessions.get_mut(&server);
        let is_given =
            |present: &&mut Session| present.writer.owner.session == session || !Check::SessionIdentity.on();
        let waiting =
            present.filter(is_given).map(|present| grant(&mut present.allocator)).unwrap_or_default();
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Says that there is no memory, as [`Event::MemoryWanted`] asks for. The operations that wait for it end;
    /// later ones ask again.
    pub fn refuse_memory(&self, server: u16, class: SizeClass, why: Shortage) {
        let mut state = self.state.borrow_mut();
        let waiting = state.sessions.get_mut(&server).map(|session| session.allocator.refuse(class, why));
        drop(state);
        waiting.into_iter().flatten().for_each(Waker::wake);
    }

    /// Waits until everything that the server has carried out by now is on its disk: what is written to another server afterwards, and
    /// relies on it, cannot outlive it. Ready at once where nothing is kept on a disk.
    ///
    /// # Errors
    /// When the session has ended meanwhile, the server does not answer or was given up, or after half of the
    /// [`patience`](crate::RemoteConfig::patience): structure changes wait here, and keys of other servers wait for them.
    pub async fn until_synced(&self, server: u16) -> Result<(), Trouble> {
        let writer = self.writer(server)?;
        if !writer.syncs || !Check::SyncedFirst.on() {
            return Ok(());
        }
        let number = self.in_session(server, &writer, |session| session.syncs.ask());
        let number = number.ok_or(Trouble::Lapsed)?;
        self.push_event(Event::SyncWanted { server });
        let mut patience = pin!(self.reactor.sleep(self.config.patience / 2));
        poll_fn(|context| {
            match self.in_session(server, &writer, |session| session.syncs.poll(number, context.waker())) {
                Some(None) => patience.as_mut().poll(context).map(|()| Err(Trouble::Lapsed)),
                Some(Some(true)) => Poll::Ready(Ok(())),
                Some(Some(false)) | None => Poll::Ready(Err(Trouble::Lapsed)),
            }
        })
        .await
    }

    /// Says that the server is asked to sync now, as [`Event::SyncWanted`] asks for.
    pub fn sync_begins(&self, server: u16) {
        if let Some(session) = self.state.borrow_mut().sessions.get_mut(&server) {
            session.syncs.begin();
        }
    }

    /// Says that the server has done the sync for which it was asked last, or that it does none.
    pub fn sync_ends(&self, server: u16, is_done: bool) {
        let mut state = self.state.borrow_mut();
        let Some(session) = state.sessions.get_mut(&server) else { return };
        let waiting = session.syncs.end(is_done);
        let rested = session.take_rested();
        drop(state);
        self.end_rest(&rested);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Places that the client has freed and not used again, above [`SURPLUS`](crate::SURPLUS) of each class and size on each server.
    /// They are not the client's any more: their server takes them, in the session that they name, and is asked once.
    pub fn surplus(&self) -> Vec<ReturnedBlocks> {
        self.returned(SURPLUS)
    }

    /// All of them, when the client is closed, and those that were set aside.
    pub fn take_returned(&self) -> Vec<ReturnedBlocks> {
        let servers: Vec<u16> = self.state.borrow().sessions.keys().copied().collect();
        let mut returned = self.returned(0);
        returned.extend(servers.into_iter().flat_map(|server| self.take_set_aside(server)));
        returned
    }

    fn returned(&self, keep: usize) -> Vec<ReturnedBlocks> {
        let mut state = self.state.borrow_mut();
        let of_one =
            |session: &mut Session| session.allocator.take_returned(session.writer.owner.session, keep);
        state.sessions.values_mut().flat_map(of_one).collect()
    }

    /// The identity under which the client writes to a server.
    ///
    /// # Errors
    /// When it may not.
    pub fn writer(&self, server: u16) -> Result<Writer, Trouble> {
        let state = self.state.borrow();
        state.sessions.get(&server).map(|session| session.writer).ok_or(Trouble::NotWriter(server))
    }

    /// The session that an owner number of a server belongs to now, by a READ of the server's table of owners. `None` if no session has
    /// the number. Once an owner's session is not named any more, nothing that it has posted is written there.
    ///
    /// # Errors
    /// As [`post`](Self::post).
    pub async fn session_of(
        &self,
        lane: &Lane,
        server: u16,
        number: u16,
    ) -> Result<Option<SessionId>, Trouble> {
        let path = lane.to(server);
        self.until_up(path.id).await?;
        let from = self.writer(server)?.name_of(number);
        let [name] = self.post(path, |_| [Operation::Read { from, len: 8 }]).await?;
        let name = bytes_of(name)?.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        Ok((name != 0).then_some(SessionId(name)))
    }

    /// The next server after `server` to which the client may write; after the last one, the first.
    pub fn next_writable(&self, server: u16) -> Option<u16> {
        let state = self.state.borrow();
        let behind = state.sessions.range(server.saturating_add(1)..).next();
        behind.or_else(|| state.sessions.first_key_value()).map(|(next, _)| *next)
    }

    /// Does something with the allocator that the client has on `server`, in the session of `writer`. `None`: that has ended.
    pub fn with_allocator<T>(
        &self,
        server: u16,
        writer: &Writer,
        work: impl FnOnce(&mut Allocator) -> T,
    ) -> Option<T> {
        self.in_session(server, writer, |session| work(&mut session.allocator))
    }

    /// Does something with the locks, or with what else the client has of `server`, in the session of `writer`. `None`: that has ended.
    pub(crate) fn in_session<T>(
        &self,
        server: u16,
        writer: &Writer,
        work: impl FnOnce(&mut Session) -> T,
    ) -> Option<T> {
        let mut state = self.state.borrow_mut();
        let session = state.sessions.get_mut(&server)?;
        session.writer.owner.is(writer.owner).then(|| work(session))
    }

    /// A lock that was left unfinished while no operation waited for it, and the session that it is of.
    pub(crate) fn take_left(&self) -> Option<(LockId, Writer)> {
        let mut state = self.state.borrow_mut();
        let mut sessions = state.sessions.values_mut();
        sessions.find_map(|session| Some((session.locks.take_left()?, session.writer)))
    }

    /// Waits until there is memory for a node or record, or another session: then it is worth another attempt.
    ///
    /// # Errors
    /// When the owner says that there is none.
    pub async fn until_memory(&self, want: Want) -> Result<(), Shortage> {
        let Want { server, class, bytes, .. } = want;
        let Ok(writer) = self.writer(server) else { return Ok(()) };
        let mut before = None;
        poll_fn(|context| {
            let wait = |session: &mut Session| {
                let (refusals, shortage) = session.allocator.refusals(class);
                if session.allocator.has(want) {
                    return Ok(Ok(()));
                }
                if *before.get_or_insert(refusals) != refusals {
                    return Ok(Err(shortage));
                }
                Err(session.allocator.wait(class, context.waker()))
            };
            match self.in_session(server, &writer, wait) {
                // The next attempt asks in the next session.
                None => Poll::Ready(Ok(())),
                Some(Ok(has)) => Poll::Ready(has),
                Some(Err(asks)) => {
                    if asks {
                        self.push_event(Event::MemoryWanted { server, class, bytes });
                    }
                    Poll::Pending
                }
            }
        })
        .await
    }
}
