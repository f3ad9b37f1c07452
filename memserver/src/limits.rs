//! Bounds: how much one client, one host, and all of them together may have.
//!
//! A client is counted three times: by itself, with all others of its host, and with all others of the server. What a host is
//! follows from the connection over which it asks, so a hostile one cannot choose it; what RoCE addresses it claims to
//! have it can choose, and so may only spend what its host has.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use fatbtree_verbs::time::{Duration, Instant};

/// The client a resource is charged to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct ClientId {
    /// The address from which it asks, as the transport tells.
    pub host: IpAddr,
    /// Its address on the data path, as it says: all its queue pairs are connected to this one.
    pub roce: Ipv4Addr,
}

impl ClientId {
    /// Thread of the server's own process, by its number. No host has its address, so no other client has its share.
    #[must_use]
    pub const fn local(number: u32) -> Self {
        Self { host: IpAddr::V4(Ipv4Addr::UNSPECIFIED), roce: Ipv4Addr::from_bits(number) }
    }

    pub(crate) fn is_local(&self) -> bool {
        self.host.is_unspecified()
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {} of host {}", self.roce, self.host)
    }
}

/// Resource with a bound.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Resource {
    /// Sessions.
    Sessions,
    /// Queue pairs.
    QueuePairs,
    /// Chunks, by their bytes. What was written to counts as long as it is the structure's, also when its session has ended.
    Chunks,
    /// Attempts to open a session or to connect a queue pair, refused ones included, in a span of time.
    Attempts,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sessions => "sessions",
            Self::QueuePairs => "queue pairs",
            Self::Chunks => "chunks",
            Self::Attempts => "attempts to open or connect",
        })
    }
}

/// Bound of each resource.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Sessions at a time.
    pub sessions: u32,
    /// Queue pairs at a time.
    pub queue_pairs: u32,
    /// Chunks that were given out; parts of them count as what they are.
    pub chunks: u32,
    /// Attempts to open or connect in each [`attempt_window`](Limits::attempt_window).
    pub attempts: u32,
}

impl Bounds {
    const fn of(&self, what: Resource) -> u32 {
        match what {
            Resource::Sessions => self.sessions,
            Resource::QueuePairs => self.queue_pairs,
            Resource::Chunks => self.chunks,
            Resource::Attempts => self.attempts,
        }
    }
}

/// Limits of clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bounds of each client: one RoCE address of one host.
    pub client: Bounds,
    /// Bounds of all clients of a host together.
    pub host: Bounds,
    /// Bounds of all clients together.
    pub server: Bounds,
    /// The span of time in which attempts are counted.
    pub attempt_window: Duration,
    /// Free blocks of one kind and size that are kept for others, at most. One takes about 50 bytes in memory.
    pub places: usize,
}

impl Default for Limits {
    /// A client gets 4 sessions, 256 queue pairs and 1024 chunks. A host gets enough for 2,000 clients that use less, the server for 8,000.
    fn default() -> Self {
        let client = Bounds { sessions: 4, queue_pairs: 256, chunks: 1024, attempts: 512 };
        let host = Bounds { sessions: 2048, queue_pairs: 8192, chunks: 8192, attempts: 16_384 };
        Self {
            client,
            host,
            server: Bounds { sessions: 8192, queue_pairs: 32_768, chunks: 65_536, attempts: 65_536 },
            attempt_window: Duration::from_secs(1),
            places: 1 << 14,
        }
    }
}

/// Holder of a share: a client, its host, or all clients together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Payer {
    /// The client's own.
    Client(ClientId),
    /// Its host's.
    Host(IpAddr),
    /// The share of all clients together.
    Server,
}

impl fmt::Display for Payer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Client(client) => client.fmt(f),
            Self::Host(host) => write!(f, "host {host}"),
            Self::Server => f.write_str("this server"),
        }
    }
}

/// A bound was met.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{payer} has {limit} {what}, as many as it may have; give some back, or try again later")]
pub struct OverBound {
    /// Holder of the share that is used up.
    pub payer: Payer,
    /// The resource.
    pub what: Resource,
    /// The bound.
    pub limit: u32,
}

/// Resources that each client, each host and the server have. Entries of zero are absent.
#[derive(Debug)]
pub(crate) struct Accounts {
    limits: Limits,
    /// Bytes of a chunk: chunks are counted in bytes.
    chunk_bytes: u64,
    counts: BTreeMap<(Payer, Resource), u64>,
    /// Attempts of the window that began then.
    window: Instant,
    attempts: BTreeMap<(Payer, Resource), u64>,
}

const fn payers(client: ClientId) -> [Payer; 3] {
    [Payer::Client(client), Payer::Host(client.host), Payer::Server]
}

impl Accounts {
    pub(crate) fn new(limits: &Limits, chunk_bytes: u64) -> Self {
        let (counts, attempts) = (BTreeMap::new(), BTreeMap::new());
        Self { limits: *limits, chunk_bytes, counts, window: Instant::ZERO, attempts }
    }

    /// Amount of `what` that the client may still have, of `least` that it needs.
    pub(crate) fn room(&self, client: ClientId, what: Resource, least: u64) -> Result<u64, OverBound> {
        let counts = match what {
            Resource::Attempts => &self.attempts,
            _ => &self.counts,
        };
        let unit = if what == Resource::Chunks { self.chunk_bytes } else { 1 };
        let bounds = [&self.limits.client, &self.limits.host, &self.limits.server];
        let mut room = u64::MAX;
        for (payer, bounds) in payers(client).into_iter().zip(bounds) {
            let limit = bounds.of(what);
            let has = counts.get(&(payer, what)).copied().unwrap_or(0);
            let left = (u64::from(limit) * unit).saturating_sub(has);
            if left < least {
                return Err(OverBound { payer, what, limit });
            }
            room = room.min(left);
        }
        Ok(room)
    }

    /// Counts one more of `what` for the client, or nothing when a bound is met.
    pub(crate) fn charge(&mut self, client: ClientId, what: Resource) -> Result<(), OverBound> {
        self.room(client, what, 1)?;
        self.add(client, what, 1);
        Ok(())
    }

    /// Counts an amount more.
    pub(crate) fn add(&mut self, client: ClientId, what: Resource, amount: u64) {
        let counts = match what {
            Resource::Attempts => &mut self.attempts,
            _ => &mut self.counts,
        };
        for payer in payers(client) {
            *counts.entry((payer, what)).or_insert(0) += amount;
        }
    }

    /// Counts an attempt. All attempts are forgotten when a new window begins.
    pub(crate) fn attempt(&mut self, now: Instant, client: ClientId) -> Result<(), OverBound> {
        if now - self.window >= self.limits.attempt_window {
            self.window = now;
            self.attempts.clear();
        }
        self.charge(client, Resource::Attempts)
    }

    /// Counts one less.
    pub(crate) fn release(&mut self, client: ClientId, what: Resource) {
        self.subtract(client, what, 1);
    }

    /// Counts an amount less.
    pub(crate) fn subtract(&mut self, client: ClientId, what: Resource, amount: u64) {
        for payer in payers(client) {
            if let Some(count) = self.counts.get_mut(&(payer, what)) {
                *count -= amount;
                if *count == 0 {
                    self.counts.remove(&(payer, what));
                }
            }
        }
    }

    /// All of `what` together.
    pub(crate) fn total(&self, what: Resource) -> u64 {
        self.counts.get(&(Payer::Server, what)).copied().unwrap_or(0)
    }

    /// Number of entries, bounded by the limits of the server.
    #[cfg(test)]
    pub(crate) fn entries(&self) -> usize {
        self.counts.len() + self.attempts.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(host: u32, roce: u32) -> ClientId {
        ClientId { host: IpAddr::V4(Ipv4Addr::from_bits(host)), roce: Ipv4Addr::from_bits(roce) }
    }

    #[test]
    fn nobody_is_remembered_who_has_nothing() {
        let mut accounts = Accounts::new(&Limits::default(), 4096);
        for n in 0..100 {
            accounts.charge(client(n / 3, n), Resource::Sessions).unwrap();
            accounts.charge(client(n / 3, n), Resource::QueuePairs).unwrap();
        }
        assert_eq!(accounts.total(Resource::Sessions), 100);
        for n in 0..100 {
            accounts.release(client(n / 3, n), Resource::Sessions);
            accounts.release(client(n / 3, n), Resource::QueuePairs);
        }
        assert_eq!(accounts.entries(), 0);
    }

    /// Memory for attempts is bounded, from however many clients and hosts they come.
    #[test]
    fn attempts_are_forgotten_with_their_window_and_bounded_within_it() {
        let bounds = |attempts| Bounds { sessions: 1, queue_pairs: 1, chunks: 1, attempts };
        let limits = Limits { client: bounds(2), host: bounds(4), server: bounds(100), ..Limits::default() };
        let mut accounts = Accounts::new(&limits, 4096);
        for window in 1..4 {
            let now = Instant::ZERO + limits.attempt_window * window;
            let attempts = (0..10_000).filter(|&n| accounts.attempt(now, client(n, n)).is_ok()).count();
            assert_eq!(attempts, 100);
            assert!(accounts.entries() <= 201, "{} entries", accounts.entries());
        }
        let now = Instant::ZERO + limits.attempt_window * 9;
        let of_one_client = (0..9).filter(|_| accounts.attempt(now, client(1, 1)).is_ok()).count();
        let of_its_host = (2..9).filter(|&n| accounts.attempt(now, client(1, n)).is_ok()).count();
        assert_eq!((of_one_client, of_its_host), (2, 2), "four from one host");
    }
}
