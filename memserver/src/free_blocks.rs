//! Free blocks: single blocks that clients have freed and given back, to be used again by others.
//!
//! ```text
//!   client: frees a block ─► its own list ─► too many, or it closes ─► give_back ─► list of the server ─► allocate: any client
//! ```
//!
//! Each class has a list, or one for each size of its blocks if there are several. Oldest go first. Lists are bounded: what is over the
//! bound is dropped, and lost to the structure. A block that is given back is checked, as far as a server can: it lies where blocks of this
//! class lie, begins where one begins, and the [tenant](crate::Tenant::is_free) finds it free. A client that gives back what others use
//! damages the structure, as it could by a WRITE.
//!
//! A client forgets what it gives back before it asks, and does not ask again when no answer comes: another
//! client may have it by then.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fatbtree_remote_memory::session_keeper::{BLOCKS_AT_ONCE, FreeBlocks};
use fatbtree_remote_memory::{GlobalAddress, SizeClass};

use crate::chunk::ChunkTable;
use crate::tenant::Tenant;

/// Results for places that were given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GivenBack {
    /// Places that are on the list now.
    pub kept: u32,
    /// Places that were on a list before, as a whole or in part.
    pub known: u32,
    /// Places for which the list had no room.
    pub dropped: u32,
    /// Places that cannot be of the stated class.
    pub refused: u32,
}

/// More places than a request may name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{found} places are given back at once; give back up to {BLOCKS_AT_ONCE} in each request")]
pub struct TooManyBlocks {
    /// Number of places in the request.
    pub found: usize,
}

/// All lists of a server.
#[derive(Debug)]
pub(crate) struct FreeLists {
    server: u16,
    /// Places on each list, at most.
    bound: usize,
    lists: BTreeMap<(SizeClass, u32), VecDeque<u64>>,
    /// Bytes of every place that is on a list, by its offset.
    listed: BTreeMap<u64, u32>,
    /// Bytes of all of them.
    bytes: u64,
    /// Lists for which blocks came that had no room.
    short: BTreeSet<(SizeClass, u32)>,
    /// Whether one of them has run empty: a sweep would find more for it.
    pub(crate) wants_sweep: bool,
    pub(crate) counts: FreeListCounts,
}

/// Counters of all places.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FreeListCounts {
    pub(crate) given_back: u64,
    pub(crate) dropped: u64,
    pub(crate) refused: u64,
    pub(crate) given_out: u64,
}

impl FreeLists {
    pub(crate) fn new(server: u16, bound: usize) -> Self {
        let (lists, listed, counts) = (BTreeMap::new(), BTreeMap::new(), FreeListCounts::default());
        Self { server, bound, lists, listed, bytes: 0, short: BTreeSet::new(), wants_sweep: false, counts }
    }

    /// Puts places on their list.
    pub(crate) fn put<T: Tenant>(
        &mut self,
        tenant: &T,
        chunks: &ChunkTable,
        class: SizeClass,
        bytes: u32,
        addresses: &[GlobalAddress],
    ) -> GivenBack {
        let bytes = size(chunks, class, bytes);
        let mut given_back = GivenBack::default();
        for &address in addresses {
            let outcome = if !self.may_be(tenant, chunks, class, bytes, address) {
                &mut given_back.refused
            } else if self.is_listed(address.offset(), bytes) {
                &mut given_back.known
            } else if self.add(class, bytes, address.offset()) {
                &mut given_back.kept
            } else {
                &mut given_back.dropped
            };
            *outcome += 1;
        }
        self.counts.given_back += u64::from(given_back.kept);
        self.counts.dropped += u64::from(given_back.dropped);
        self.counts.refused += u64::from(given_back.refused);
        given_back
    }

    /// Takes the oldest places of a list; nothing if there are none that are free still.
    pub(crate) fn take<T: Tenant>(
        &mut self,
        tenant: &T,
        chunks: &ChunkTable,
        class: SizeClass,
        bytes: u32,
    ) -> Option<FreeBlocks> {
        let bytes = size(chunks, class, bytes);
        let list = self.lists.get_mut(&(class, bytes))?;
        let mut addresses = vec![];
        while addresses.len() < BLOCKS_AT_ONCE
            && let Some(offset) = list.pop_front()
        {
            self.listed.remove(&offset);
            self.bytes -= u64::from(bytes);
            if tenant.is_free(class, offset..offset + u64::from(bytes)) {
                addresses.push(GlobalAddress::new(self.server, offset));
            } else {
                self.counts.refused += 1;
            }
        }
        if list.is_empty() {
            self.lists.remove(&(class, bytes));
            self.wants_sweep |= self.short.remove(&(class, bytes));
        }
        self.counts.given_out += addresses.len() as u64;
        (!addresses.is_empty()).then_some(FreeBlocks { class, bytes, addresses })
    }

    /// Takes back places that were never announced to a client.
    pub(crate) fn put_back(&mut self, places: &FreeBlocks) {
        self.counts.given_out -= places.addresses.len() as u64;
        for address in places.addresses.iter().rev() {
            self.listed.insert(address.offset(), places.bytes);
            self.bytes += u64::from(places.bytes);
            self.lists.entry((places.class, places.bytes)).or_default().push_front(address.offset());
        }
    }

    /// Bytes of all places on lists.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Places on all lists.
    pub(crate) fn len(&self) -> usize {
        self.listed.len()
    }

    fn add(&mut self, class: SizeClass, bytes: u32, offset: u64) -> bool {
        if self.bound == 0 {
            return false;
        }
        let list = self.lists.entry((class, bytes)).or_default();
        if list.len() >= self.bound {
            self.short.insert((class, bytes));
            return false;
        }
        list.push_back(offset);
        self.listed.insert(offset, bytes);
        self.bytes += u64::from(bytes);
        true
    }

    /// Whether a part of it is on a list.
    pub(crate) fn is_listed(&self, offset: u64, bytes: u32) -> bool {
        let below = self.listed.range(..offset + u64::from(bytes)).next_back();
        below.is_some_and(|(&from, &listed)| from + u64::from(listed) > offset)
    }

    /// Whether a place of this class and size may lie there, and is free as far as its memory says.
    fn may_be<T: Tenant>(
        &self,
        tenant: &T,
        chunks: &ChunkTable,
        class: SizeClass,
        bytes: u32,
        address: GlobalAddress,
    ) -> bool {
        let (offset, len) = (address.offset(), u64::from(bytes));
        GlobalAddress::new(self.server, offset) == address
            && chunks.may_lie(class, offset, len)
            && tenant.is_free(class, offset..offset + len)
    }
}

/// Bytes of a place: blocks of a class have one size, or the one that the client names.
fn size(chunks: &ChunkTable, class: SizeClass, bytes: u32) -> u32 {
    match chunks.size(class) {
        0 => bytes,
        size => size,
    }
}
