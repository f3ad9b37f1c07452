//! Sessions, queue pairs and chunks: given out within bounds, and taken back.

use fatbtree_remote_memory::session_keeper::{BLOCKS_AT_ONCE, Grant};
use fatbtree_remote_memory::{GlobalAddress, Origin, SessionId, SizeClass};
use fatbtree_verbs::journal::JournalError;
use fatbtree_verbs::time::Instant;
use fatbtree_verbs::{Agreed, ConnectError, Device, Endpoint, QueuePair, QueuePairNumber};
use rand::RngExt;

use super::{Connection, MemoryServer};
use crate::checks::Check;
use crate::chunk::{FIRST_PART, PartWanted};
use crate::event::{Event, FirstHop};
use crate::free_blocks::{GivenBack, TooManyBlocks};
use crate::limits::{ClientId, Resource};
use crate::owners::Owners;
use crate::refusal::{PathMtu, Refusal};
use crate::session::{Lease, Session, SessionKey, Told};
use crate::tenant::Tenant;

impl<D: Device, T: Tenant> MemoryServer<D, T> {
    // ---- sessions ----

    /// Opens a session.
    ///
    /// # Errors
    /// [`Refusal::OverBound`], [`Refusal::NoOwner`], [`Refusal::Lost`], [`Refusal::Older`], [`Refusal::Undecided`].
    pub fn open_session(&mut self, now: Instant, client: ClientId) -> Result<Lease, Refusal> {
        self.open_session_after(now, client, None)
    }

    /// Opens a session for a client that has `known` the structure of a generation in a former session: see
    /// [`known_before`](Self::known_before).
    ///
    /// # Errors
    /// As of `open_session`; also when that structure was lost, and this one is not meant to be its successor.
    pub fn open_session_after(
        &mut self,
        now: Instant,
        client: ClientId,
        known: Option<u64>,
    ) -> Result<Lease, Refusal> {
        self.advance(now);
        let is_another = known.is_some_and(|known| self.known_before(known));
        if is_another || self.info.origin == Origin::Lost {
            return Err(Refusal::Lost { partition: self.info.server });
        }
        if let Some(older) = self.older {
            return Err(older.into());
        }
        if self.is_undecided() {
            return Err(Refusal::Undecided { partition: self.info.server });
        }
        self.accounts.attempt(self.now, client)?;
        self.accounts.charge(client, Resource::Sessions)?;
        let mut session = SessionKey { host: client.host, id: SessionId(self.random.random()) };
        while self.sessions.contains(session) {
            session.id = SessionId(self.random.random());
        }
        let duration = self.options.lease;
        let begin = |owners: &mut Owners| owners.begin(session.id, &self.device, self.now, duration);
        let owner = match self.owners.as_mut().map(begin).transpose() {
            Ok(owner) => owner,
            Err(none) => {
                self.accounts.release(client, Resource::Sessions);
                return Err(none.into());
            }
        };
        self.sessions.open(session, client, owner, self.now + duration, self.reclaim.wait());
        self.reclaim.note_session();
        self.counters.sessions_opened += 1;
        Ok(Lease::new(session, duration, owner, 0))
    }

    /// Makes a session last as long as a new one from `now` on.
    ///
    /// # Errors
    /// [`Refusal::UnknownSession`]: it has ended.
    pub fn renew_session(&mut self, now: Instant, session: SessionKey) -> Result<Lease, Refusal> {
        self.renew_told(now, session, Told::default())
    }

    /// Renews the session of a client that has [settled](Told::settled) for the [wait](Lease::wait) `settled` of a sweep.
    ///
    /// # Errors
    /// As of `renew_session`.
    pub fn renew_settled(
        &mut self,
        now: Instant,
        session: SessionKey,
        settled: u64,
    ) -> Result<Lease, Refusal> {
        self.renew_told(now, session, Told { settled, ..Told::default() })
    }

    /// Renews the session of a client that tells something.
    ///
    /// # Errors
    /// As of `renew_session`.
    pub fn renew_told(&mut self, now: Instant, session: SessionKey, told: Told) -> Result<Lease, Refusal> {
        self.advance(now);
        let duration = self.options.lease;
        // A wait that has not begun was not told to any client, and none keeps more than there is.
        let settled = if told.settled > self.reclaim.wait() { 0 } else { told.settled };
        let told = Told { settled, keeps: told.keeps.min(self.info.region.len) };
        let Some(found) = self.sessions.renew(session, self.now + duration, told) else {
            return Err(Refusal::UnknownSession(session));
        };
        let wait = self.reclaim.present_wait().filter(|&wait| found.holds_up(wait)).unwrap_or_default();
        let lease = Lease::new(session, duration, found.owner, wait);
        self.reclaim.look();
        Ok(lease)
    }

    /// Brings everything that was carried out before to the disk, and waits until it is there, for a client that is about to rely on it on
    /// another server. Nothing to do where the region lies in memory.
    ///
    /// # Errors
    /// [`Refusal::UnknownSession`]: it has ended. Or the disk has failed.
    pub fn sync_session(&mut self, now: Instant, session: SessionKey) -> Result<(), Refusal> {
        self.advance(now);
        self.session(session)?;
        let failed = |error: JournalError| ConnectError::Driver { what: "sync", reason: error.to_string() };
        Ok(self.sync_journal().map_err(failed)?)
    }

    /// Ends a session: takes back everything it holds.
    ///
    /// # Errors
    /// [`Refusal::UnknownSession`]: it has ended.
    pub fn close_session(&mut self, now: Instant, session: SessionKey) -> Result<(), Refusal> {
        self.advance(now);
        if self.end(session) { Ok(()) } else { Err(Refusal::UnknownSession(session)) }
    }

    // ---- queue pairs ----

    /// Makes a queue pair, connects it to the client's, and says how to reach it. [`Event::Opened`] tells the owner.
    ///
    /// A client that connects anew says which queue pair of the session it `replaces`, by the number that it was told: that one is
    /// destroyed first. So nothing that was posted on it is carried out after the client has asked, on the new one, what became of it.
    /// One that the session does not have is gone already.
    ///
    /// # Errors
    /// When the session has ended, a bound is met, the client's endpoint is not its own or cannot be, or the device refuses. A queue pair
    /// that was to be replaced is gone then, too.
    pub fn connect(
        &mut self,
        now: Instant,
        session: SessionKey,
        client: &Endpoint,
        replaces: Option<QueuePairNumber>,
    ) -> Result<Endpoint, Refusal> {
        self.advance(now);
        // A broken queue pair makes room for its replacement.
        self.take_broken();
        self.watch_header();
        let Session { client: payer, queue_pairs, .. } = self.session(session)?;
        let (payer, old) = (*payer, replaces.and_then(|number| queue_pairs.get(&number).copied()));
        if let Some(old) = old {
            self.destroy(old);
            self.counters.queue_pairs_replaced += 1;
        }
        self.accounts.attempt(self.now, payer)?;
        client.check()?;
        if client.ip != payer.roce {
            return Err(Refusal::OtherAddress { expected: payer.roce, found: client.ip });
        }
        self.accounts.charge(payer, Resource::QueuePairs)?;
        let (queue_pair, local) = match self.accept(client) {
            Ok(accepted) => accepted,
            Err(refusal) => {
                self.accounts.release(payer, Resource::QueuePairs);
                return Err(refusal);
            }
        };
        let hop = FirstHop {
            client: client.ip,
            server: self.address,
            queue_pair: local.queue_pair,
            partition: self.info.server,
            rkey: self.info.region.rkey,
            root: self.tenant.root(),
            mtu: u16::try_from(Agreed::between(&local, client).mtu.bytes()).expect("4096 at most"),
        };
        let opening = self.events.push(Event::Opened(hop));
        self.connections.insert(queue_pair, Connection { session, hop, opening });
        if let Some(session) = self.sessions.get_mut(session) {
            session.queue_pairs.insert(local.queue_pair, queue_pair);
        }
        self.counters.queue_pairs_opened += 1;
        Ok(local)
    }

    /// Destroys a queue pair; it is named by the number that [`connect`](Self::connect) has told.
    ///
    /// # Errors
    /// When the session has ended or has no such queue pair.
    pub fn disconnect(
        &mut self,
        now: Instant,
        session: SessionKey,
        queue_pair: QueuePairNumber,
    ) -> Result<(), Refusal> {
        self.advance(now);
        let found = self.session(session)?.queue_pairs.get(&queue_pair).copied();
        let found = found.ok_or(Refusal::UnknownQueuePair { session, queue_pair })?;
        self.destroy(found);
        Ok(())
    }

    // ---- chunks ----

    /// Gives out memory for blocks: ones that clients have [given back](Self::give_back), if there are any, else a part of a chunk, which grows
    /// with what the session has got of the class. `bytes` is the size of a block where its class has several sizes; 0 asks for a part there.
    ///
    /// # Errors
    /// When the session has ended, a bound is met, no chunk of this class is left, or the disk has no room for it.
    pub fn allocate(
        &mut self,
        now: Instant,
        session: SessionKey,
        class: SizeClass,
        bytes: u32,
    ) -> Result<Grant, Refusal> {
        self.advance(now);
        let payer = self.session(session)?.client;
        let places = self.places.take(&self.tenant, &self.chunks, class, bytes);
        if std::mem::take(&mut self.places.wants_sweep) {
            self.reclaim.note_loss();
        }
        if let Some(places) = places {
            return Ok(Grant::Blocks(places));
        }
        let size = u64::from(self.chunks.size(class).max(bytes)).max(1);
        let room = self.accounts.room(payer, Resource::Chunks, size)?;
        let given = self.session(session)?.given.get(&class).copied().unwrap_or(0);
        let want = PartWanted { class, least: bytes.into(), wished: given.max(FIRST_PART).min(room) };
        let chunk = self.chunks.allocate(&self.region, want, session)?;
        self.accounts.add(payer, Resource::Chunks, chunk.bytes);
        if let Some(session) = self.sessions.get_mut(session) {
            session.chunks.insert(chunk.address);
            *session.given.entry(class).or_default() += chunk.bytes;
        }
        Ok(Grant::Chunk(chunk))
    }

    /// Takes freed blocks for others to use. `bytes` is the size of each where their class has several sizes. What cannot be a free block of
    /// this class is refused, what is on a list already is left there.
    ///
    /// The client forgets them before it asks, and does not ask again when no answer comes.
    ///
    /// # Errors
    /// When the session has ended, or there are more than [`BLOCKS_AT_ONCE`](crate::BLOCKS_AT_ONCE).
    pub fn give_back(
        &mut self,
        now: Instant,
        session: SessionKey,
        class: SizeClass,
        bytes: u32,
        addresses: &[GlobalAddress],
    ) -> Result<GivenBack, Refusal> {
        self.give_back_settled(now, session, u64::MAX, class, bytes, addresses)
    }

    /// Takes freed blocks of a client that had [settled](Self::renew_settled) for the wait `settled` when it asked. If it has settled for
    /// a later one by now the request comes late: the blocks are refused, because the server has taken them for lost.
    ///
    /// # Errors
    /// As of `give_back`.
    pub fn give_back_settled(
        &mut self,
        now: Instant,
        session: SessionKey,
        settled: u64,
        class: SizeClass,
        bytes: u32,
        addresses: &[GlobalAddress],
    ) -> Result<GivenBack, Refusal> {
        self.advance(now);
        if self.session(session)?.is_late(settled) && Check::SettleLate.on() {
            return Ok(GivenBack { refused: addresses.len() as u32, ..GivenBack::default() });
        }
        let found = addresses.len();
        if found > BLOCKS_AT_ONCE {
            return Err(TooManyBlocks { found }.into());
        }
        let given_back = self.places.put(&self.tenant, &self.chunks, class, bytes, addresses);
        self.reclaim.strike(addresses);
        let each = u64::from(self.chunks.size(class).max(bytes));
        self.reclaim.note_lost(u64::from(given_back.dropped) * each);
        if let Some(session) = self.sessions.get_mut(session) {
            session.keeps = session.keeps.saturating_sub(each * found as u64);
        }
        Ok(given_back)
    }

    // ---- taking back ----

    /// Takes back memory of which its client could not be told.
    pub(super) fn take_back(&mut self, session: SessionKey, grant: &Grant) {
        match grant {
            Grant::Blocks(places) => self.places.put_back(places),
            Grant::Chunk(chunk) => {
                let bytes = self.chunks.take_back(chunk.address);
                if let Some(session) = self.sessions.get_mut(session) {
                    session.chunks.remove(&chunk.address);
                    self.accounts.subtract(session.client, Resource::Chunks, bytes);
                }
            }
        }
    }

    /// Ends sessions whose leases have ended by `now`; before anything else is done at that time.
    pub(super) fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
        while let Some(session) = self.sessions.lapsed(self.now) {
            self.counters.sessions_lapsed += 1;
            // A client that closes its session has given back what it had.
            let kept = self.sessions.get(session).map_or(0, |session| session.keeps);
            self.reclaim.note_lost(kept);
            self.end(session);
        }
    }

    /// Destroys queue pairs that broke.
    pub(super) fn take_broken(&mut self) {
        while let Some(queue_pair) = self.device.poll_broken() {
            self.counters.queue_pairs_broken += u64::from(self.destroy(queue_pair));
        }
        self.take_broken_links();
    }

    /// Takes back everything a session holds: queue pairs first, so that nothing is written into the chunks any more.
    pub(super) fn end(&mut self, key: SessionKey) -> bool {
        let Some(session) = self.sessions.remove(key) else { return false };
        self.reclaim.note_loss();
        let Session { client, owner, queue_pairs, chunks, links, .. } = session;
        for link in links {
            self.unlink(client, link);
        }
        for queue_pair in queue_pairs.into_values() {
            self.destroy(queue_pair);
        }
        // From now on nothing is written that the session has posted: waiting clients may take its locks.
        if let (Some(owners), Some(owner)) = (&mut self.owners, owner) {
            owners.end(owner);
        }
        for address in chunks {
            // It is the structure's, and stays paid for as far as it was used.
            self.chunks.end(address, client);
        }
        self.accounts.release(client, Resource::Sessions);
        true
    }

    /// Ends all sessions.
    pub(super) fn end_all(&mut self) {
        for key in self.sessions.keys().collect::<Vec<_>>() {
            self.end(key);
        }
    }

    pub(super) fn session(&self, key: SessionKey) -> Result<&Session, Refusal> {
        self.sessions.get(key).ok_or(Refusal::UnknownSession(key))
    }

    /// Destroys a connected queue pair; says whether it was one.
    fn destroy(&mut self, queue_pair: QueuePair) -> bool {
        let Some(Connection { session, hop, opening }) = self.connections.remove(&queue_pair) else {
            return false;
        };
        self.device.destroy(queue_pair);
        self.events.close(opening, hop);
        let payer = ClientId { host: session.host, roce: hop.client };
        self.accounts.release(payer, Resource::QueuePairs);
        if let Some(session) = self.sessions.get_mut(session) {
            session.queue_pairs.remove(&hop.queue_pair);
        }
        true
    }

    fn accept(&mut self, client: &Endpoint) -> Result<(QueuePair, Endpoint), Refusal> {
        let queue_pair = self.device.create()?;
        let joined = self.join(queue_pair, client);
        if joined.is_err() {
            self.device.destroy(queue_pair);
        }
        joined.map(|local| (queue_pair, local))
    }

    fn join(&mut self, queue_pair: QueuePair, client: &Endpoint) -> Result<Endpoint, Refusal> {
        let local = self.device.endpoint(queue_pair)?;
        let mtu = Agreed::between(&local, client).mtu;
        PathMtu::check(self.reach, mtu)?;
        self.device.connect(queue_pair, client)?;
        Ok(local)
    }
}
