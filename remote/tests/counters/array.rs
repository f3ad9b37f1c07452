//! The index: counters by number, one a cache line, in an array that one client has made.

use std::rc::Rc;

use fatbtree_remote::{
    ChunkKind, ConnectionId, GlobalAddress, Held, LockError, Part, RemoteMemory, Trouble, Want,
};
use fatbtree_verbs::Verbs;

/// Bytes from one counter to the next: a line each, so that a READ never sees half of one.
const STRIDE: u32 = 64;

/// A fixed array of counters in one server's memory.
pub(crate) struct Counters<V> {
    memory: Rc<RemoteMemory<V>>,
    base: GlobalAddress,
}

impl<V: Verbs> Counters<V> {
    /// Makes an array of zeros in memory that the server gives.
    pub(crate) async fn create(memory: Rc<RemoteMemory<V>>, server: u16, len: u32) -> Result<Self, Trouble> {
        let want = Want { server, kind: ChunkKind::Records, bytes: len * STRIDE, is_fresh: true };
        loop {
            let Ok(writer) = memory.writer(server) else {
                // The first session is on its way.
                memory.pause(1).await;
                continue;
            };
            if let Some(Some(base)) = memory.in_space(server, &writer, |space| space.take(want)) {
                let zeros = vec![0; want.bytes as usize];
                let all = [Part { at: base, bytes: &zeros }];
                memory.write_chain(ConnectionId { server, lane: 0 }, &writer, &all, &[]).await?;
                return Ok(Self { memory, base });
            }
            memory.until_memory(want).await.expect("the server has memory");
        }
    }

    /// The array that another client has made.
    pub(crate) fn open(memory: Rc<RemoteMemory<V>>, base: GlobalAddress) -> Self {
        Self { memory, base }
    }

    /// Where it begins, for [`open`](Self::open).
    pub(crate) fn base(&self) -> GlobalAddress {
        self.base
    }

    fn at(&self, number: u32) -> GlobalAddress {
        GlobalAddress::new(self.base.server(), self.base.offset() + u64::from(number * STRIDE))
    }

    /// Reads a counter: one READ.
    pub(crate) async fn get(&self, number: u32) -> Result<u64, Trouble> {
        loop {
            match self.memory.read(self.memory.take_lane(), self.at(number), 8).await {
                Ok(bytes) => return Ok(word(&bytes)),
                Err(Trouble::Broke(_)) => {}
                Err(other) => return Err(other),
            }
        }
    }

    /// Adds to a counter under its lock, and returns the sum: CAS and READ in one round trip, WRITE and release in another.
    ///
    /// [`LockError::Unknown`]: it may have been added. After every other error it was not.
    pub(crate) async fn add(&self, number: u32, what: u64) -> Result<u64, LockError> {
        let (at, lane) = (self.at(number), self.memory.take_lane());
        loop {
            match self.try_add(at, lane, what).await {
                // Nothing was written: once more, on the next connection or in the next session.
                Err(LockError::Trouble(Trouble::Broke(_) | Trouble::Lapsed | Trouble::NotWriter(_))) => {
                    self.memory.pause(1).await;
                }
                ended => return ended,
            }
        }
    }

    async fn try_add(&self, at: GlobalAddress, lane: u8, what: u64) -> Result<u64, LockError> {
        let mut trips = 0;
        let (lock, bytes) = Held::lock_and_read(&self.memory, lane, at, 8, &mut trips).await?;
        let sum = word(&bytes) + what;
        lock.write_back(&[Part { at, bytes: &sum.to_le_bytes() }], &mut trips).await?;
        Ok(sum)
    }
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().expect("eight bytes were asked for"))
}
