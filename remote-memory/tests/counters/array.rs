//! The index: counters by number, one a cache line, in an array that the region's header names.

use std::rc::Rc;

use fatbtree_remote_memory::{
    GlobalAddress, HEADER_BYTES, Lane, LockError, LockGuard, Part, RegionHeader, RemoteMemory, SizeClass,
    Trouble, Want,
};
use fatbtree_verbs::Verbs;

/// Bytes from one counter to the next: a line each, so that a READ never sees half of one.
const STRIDE: u32 = 64;

const HEADER: u32 = HEADER_BYTES as u32;

/// Name of the structure. Its root is the array; the array's bytes are its configuration.
const STRUCTURE: [u8; 8] = *b"counters";

/// Memory of the array.
pub(crate) const ARRAY: SizeClass = SizeClass(0);

/// Address and bytes of the array that a header names, if there is one and the header is not being written.
pub(crate) fn array_of(header: &[u8]) -> Option<(GlobalAddress, u64)> {
    let header = RegionHeader::parse(header.first_chunk()?, &STRUCTURE)?;
    Some((header.root, u64::from_le_bytes(*header.configuration.first_chunk()?)))
}

fn header(base: GlobalAddress, bytes: u64) -> [u8; HEADER_BYTES] {
    let configuration = std::array::from_fn(|at| bytes.to_le_bytes().get(at).copied().unwrap_or(0));
    let (generation, region_bytes) = (1, 0);
    RegionHeader { structure: STRUCTURE, root: base, generation, region_bytes, configuration }.to_bytes()
}

/// A fixed array of counters in one server's memory.
pub(crate) struct Counters<V> {
    memory: Rc<RemoteMemory<V>>,
    base: GlobalAddress,
}

impl<V: Verbs> Counters<V> {
    /// Opens the array of a server, and makes one of zeros if there is none yet.
    pub(crate) async fn open(memory: Rc<RemoteMemory<V>>, server: u16, len: u32) -> Result<Self, LockError> {
        loop {
            match Self::find_or_make(&memory, server, len).await {
                Ok(Some(base)) => return Ok(Self { memory, base }),
                // It is not known what became of the attempt, or another client was quicker: the header tells.
                Ok(None)
                | Err(
                    LockError::Unknown(_)
                    | LockError::Trouble(Trouble::Broke(_) | Trouble::Lapsed | Trouble::NotWriter(_)),
                ) => {
                    memory.pause(1).await;
                }
                Err(other) => return Err(other),
            }
        }
    }

    async fn find_or_make(
        memory: &RemoteMemory<V>,
        server: u16,
        len: u32,
    ) -> Result<Option<GlobalAddress>, LockError> {
        let (at, lane) = (GlobalAddress::new(server, 0), memory.take_lane());
        if let Some((base, _)) = array_of(&memory.read(&lane, at, HEADER).await?) {
            return Ok(Some(base));
        }
        let writer = memory.writer(server)?;
        let want = Want { server, class: ARRAY, bytes: len * STRIDE, is_fresh: true };
        let Some(Some(block)) = memory.with_allocator(server, &writer, |allocator| allocator.take(want))
        else {
            memory.until_memory(want).await.expect("the server has memory");
            return Ok(None);
        };
        let base = block.address;
        let zeros = vec![0; want.bytes as usize];
        memory.write_chain(lane.to(server), &writer, &[Part { at: base, bytes: &zeros }], &[]).await?;
        // The header names it: from then on the memory is the array's, whatever becomes of this session.
        let (lock, found) = LockGuard::lock_and_read(memory, &lane, at, HEADER).await?;
        if array_of(&found).is_some() || lock.writer() != writer {
            lock.release(&lane).await?;
            return Ok(None);
        }
        let header = header(base, want.bytes.into());
        lock.write_back(&[Part { at, bytes: &header }], &lane).await?;
        Ok(Some(base))
    }

    /// The address of the first counter.
    pub(crate) fn base(&self) -> GlobalAddress {
        self.base
    }

    fn at(&self, number: u32) -> GlobalAddress {
        GlobalAddress::new(self.base.server(), self.base.offset() + u64::from(number * STRIDE))
    }

    /// Reads a counter: one READ.
    pub(crate) async fn get(&self, number: u32) -> Result<u64, Trouble> {
        loop {
            match self.memory.read(&self.memory.take_lane(), self.at(number), 8).await {
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
        self.change(number, |old| old + what).await.map(|(sum, _)| sum)
    }

    /// Changes a counter under its lock. Returns its new value and its round trips.
    pub(crate) async fn change(
        &self,
        number: u32,
        change: impl Fn(u64) -> u64,
    ) -> Result<(u64, u32), LockError> {
        let (at, lane) = (self.at(number), self.memory.take_lane());
        let _turn = self.memory.compete().await;
        loop {
            match self.try_change(at, &lane, &change).await {
                // Nothing was written: once more, on the next connection or in the next session.
                Err(LockError::Trouble(Trouble::Broke(_) | Trouble::Lapsed | Trouble::NotWriter(_))) => {
                    self.memory.pause(1).await;
                }
                ended => return ended.map(|new| (new, lane.round_trips())),
            }
        }
    }

    async fn try_change(
        &self,
        at: GlobalAddress,
        lane: &Lane,
        change: impl Fn(u64) -> u64,
    ) -> Result<u64, LockError> {
        let (lock, bytes) = LockGuard::lock_and_read(&self.memory, lane, at, 8).await?;
        let new = change(word(&bytes));
        lock.write_back(&[Part { at, bytes: &new.to_le_bytes() }], lane).await?;
        Ok(new)
    }
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().expect("eight bytes were asked for"))
}
