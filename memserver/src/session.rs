//! Sessions: what a client holds, and until when.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use fatbtree_remote_memory::{GlobalAddress, Owner, SessionId, SizeClass};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{QueuePair, QueuePairNumber};

use crate::limits::ClientId;

/// Names a session. Only the host that has opened it can use it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct SessionKey {
    /// The address from which the client asks, as the transport tells.
    pub host: IpAddr,
    /// Random, chosen by the server; no other session ever has it.
    pub id: SessionId,
}

impl fmt::Display for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "session {} of host {}", self.id, self.host)
    }
}

/// A session and its time. Everything that was taken in the session is given back when the lease ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    /// The session.
    pub session: SessionKey,
    /// Time for which it lasts after it was opened or renewed. Renew it in good time: after a third of this.
    pub duration: Duration,
    /// Owner under which the session holds locks, where the server has a lock table. The number is no other
    /// session's, nor in any lock that a former one has left.
    pub owner: Option<Owner>,
    /// Number of the wait of a [sweep](crate::Tenant::swept) that this session holds up: the client is to settle; 0: none.
    pub wait: u64,
}

impl Lease {
    pub(crate) fn new(session: SessionKey, duration: Duration, number: Option<u16>, wait: u64) -> Self {
        let owner = number.map(|number| Owner { session: session.id, number });
        Self { session, duration, owner, wait }
    }
}

/// What a client tells when it renews its session.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Told {
    /// Highest [wait](Lease::wait) of a sweep for which it has settled: operations that were under way when it was told of the wait have
    /// ended, and blocks that it had freed by then it has given back, or forgotten.
    pub settled: u64,
    /// Bytes of freed blocks of the server that it keeps for itself.
    pub keeps: u64,
}

/// Resources of one session.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) client: ClientId,
    pub(crate) owner: Option<u16>,
    /// Queue pairs by the number that the client knows.
    pub(crate) queue_pairs: BTreeMap<QueuePairNumber, QueuePair>,
    /// Parts of chunks.
    pub(crate) chunks: BTreeSet<GlobalAddress>,
    /// Bytes of all parts that it was given, by class.
    pub(crate) given: BTreeMap<SizeClass, u64>,
    /// Bytes of freed blocks that its client keeps, as far as it has told and not given back since.
    pub(crate) keeps: u64,
    /// Queue pairs of a local client.
    pub(crate) links: BTreeSet<QueuePairNumber>,
    /// Number of the wait of a sweep in which it was opened, or for which its client has settled.
    since: u64,
    /// Highest wait for which its client has settled.
    settled: u64,
    ends: Instant,
}

impl Session {
    /// Whether it holds up this wait of a sweep.
    pub(crate) fn holds_up(&self, wait: u64) -> bool {
        self.since < wait
    }

    /// Whether a call that was made before the client has settled comes late.
    pub(crate) fn is_late(&self, settled: u64) -> bool {
        settled < self.settled
    }
}

/// All sessions.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    all: BTreeMap<SessionKey, Session>,
    /// Sessions by the time of their end.
    ends: BTreeSet<(Instant, SessionKey)>,
}

impl Sessions {
    /// Bytes of freed blocks that clients keep, as far as they have told.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.all.values().fold(0, |sum, session| sum.saturating_add(session.keeps))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether there is such a session.
    pub(crate) fn contains(&self, key: SessionKey) -> bool {
        self.all.contains_key(&key)
    }

    pub(crate) fn open(
        &mut self,
        key: SessionKey,
        client: ClientId,
        owner: Option<u16>,
        ends: Instant,
        since: u64,
    ) {
        let (queue_pairs, chunks, links) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        let (given, keeps, settled) = (BTreeMap::new(), 0, 0);
        let session =
            Session { client, owner, queue_pairs, chunks, given, keeps, links, since, settled, ends };
        self.all.insert(key, session);
        self.ends.insert((ends, key));
    }

    pub(crate) fn get(&self, key: SessionKey) -> Option<&Session> {
        self.all.get(&key)
    }

    pub(crate) fn get_mut(&mut self, key: SessionKey) -> Option<&mut Session> {
        self.all.get_mut(&key)
    }

    /// Moves a session's end, if there is such a session, and notes what its client tells.
    pub(crate) fn renew(&mut self, key: SessionKey, ends: Instant, told: Told) -> Option<&Session> {
        let session = self.all.get_mut(&key)?;
        let Told { settled, keeps } = told;
        session.keeps = keeps;
        session.settled = session.settled.max(settled);
        session.since = session.since.max(settled);
        self.ends.remove(&(session.ends, key));
        session.ends = ends;
        self.ends.insert((ends, key));
        Some(session)
    }

    pub(crate) fn remove(&mut self, key: SessionKey) -> Option<Session> {
        let session = self.all.remove(&key)?;
        self.ends.remove(&(session.ends, key));
        Some(session)
    }

    /// The session of a local link. There are few links.
    pub(crate) fn of_link(&self, link: QueuePairNumber) -> Option<SessionKey> {
        self.all.iter().find(|(_, session)| session.links.contains(&link)).map(|(key, _)| *key)
    }

    /// Whether all sessions were opened in this wait of a sweep or later, or have settled for it.
    pub(crate) fn all_since(&self, wait: u64) -> bool {
        !self.all.values().any(|session| session.holds_up(wait))
    }

    /// End of the session that ends first.
    pub(crate) fn first_end(&self) -> Option<Instant> {
        self.ends.first().map(|(at, _)| *at)
    }

    /// A session whose lease has ended by `now`.
    pub(crate) fn lapsed(&self, now: Instant) -> Option<SessionKey> {
        self.ends.first().filter(|(at, _)| *at <= now).map(|(_, key)| *key)
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = SessionKey> {
        self.all.keys().copied()
    }
}
