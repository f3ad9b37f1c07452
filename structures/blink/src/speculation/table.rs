//! The entry cache: a table of a fixed size that threads read and fill without locks.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use fatbtree_remote_memory::{Check, GlobalAddress, mix};

/// Place that the [`EntryCache`] names for a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryPlace {
    /// Address of the key's leaf or record.
    pub address: GlobalAddress,
    /// What lies there, and where in it the value is.
    pub part: EntryPart,
}

/// What lies at a place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EntryPart {
    /// A leaf with the value in the entry of this slot.
    Slot(u32),
    /// A record with a value of so many bytes.
    Record(u32),
}

impl EntryPart {
    /// Bit that tells a slot from a length.
    const SLOT: u32 = 1 << 31;

    const fn word(self) -> u32 {
        match self {
            Self::Slot(slot) => slot | Self::SLOT,
            Self::Record(length) => length & !Self::SLOT,
        }
    }

    const fn of(word: u32) -> Self {
        match word & Self::SLOT {
            0 => Self::Record(word),
            _ => Self::Slot(word & !Self::SLOT),
        }
    }
}

/// Content of an [`EntryCache`], and counters of a pool's use of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EntryCacheStats {
    /// Lookups of this pool that the named place answered, in one round trip.
    pub hits: u64,
    /// Lookups of this pool whose key the cache did not have.
    pub misses: u64,
    /// Lookups of this pool that the named place did not answer. Each cost a round trip.
    pub stale: u64,
    /// Changes of this pool that began at the leaf that the cache named.
    pub starts: u64,
    /// Bytes that the whole cache occupies.
    pub bytes: u64,
    /// Places in the whole cache.
    pub entries: u64,
}

/// Places in a set. A key has one set.
const WAYS: usize = 4;

/// Bit of [`Slot::detail`] that a hit sets, so that other places go first.
const USED: u64 = 1 << 63;

/// Bits of [`Slot::detail`] for the part of a place; the tree's number is above them.
const PART_BITS: u32 = 32;
const TREE: u64 = (1 << (63 - PART_BITS)) - 1;

/// A place as the table holds it. All zeros: none.
///
/// A reader that gets words of two places gets a `check` that is that of neither, and takes the slot for another key's (the way of
/// R. Hyatt's and T. Mann's lockless hash tables).
#[derive(Debug, Default)]
struct Slot {
    /// The key, mixed with the other two words.
    check: AtomicU64,
    address: AtomicU64,
    /// [`USED`], number of the tree, part.
    detail: AtomicU64,
}

/// Slots that lie in two cache lines of the processor at most.
#[derive(Debug, Default)]
#[repr(align(32))]
struct Set([Slot; WAYS]);

/// Places of keys' entries, for all threads of a process: share it by `Arc`, and give it to each thread's
/// [`Pool`](crate::Pool::set_entry_cache).
///
/// ```text
///           ┌ set: 4 slots, 96 bytes ─────────────────────────────┐
///   key ──► │ check │ address │ part, tree, used │  × 4            │  the key's slot has check = key ⊕ address ⊕ mix(detail)
///           └─────────────────────────────────────────────────────┘
/// ```
///
/// **Nothing in it is trusted**: a lookup verifies what it reads at the named place. So a slot may be lost, torn or stale; that costs
/// a round trip.
///
/// **Bounded.** All memory is taken at once, and is as many sets as fit the limit. Neither reading nor filling takes a lock or
/// allocates. Where a set is full, a place goes that was not used since the others were.
pub struct EntryCache {
    limit: u64,
    sets: Box<[Set]>,
    /// Number of the tree; one more when the client hears of another one.
    tree: AtomicU32,
}

const _: () = assert!(size_of::<Set>() == WAYS * 3 * 8);

impl std::fmt::Debug for EntryCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EntryCache").field("limit", &self.limit).field("places", &self.capacity()).finish()
    }
}

impl Slot {
    /// The words of a place, all but the used bit.
    fn words(key: u64, tree: u32, place: EntryPlace) -> [u64; 3] {
        let detail = u64::from(place.part.word()) | (u64::from(tree) & TREE) << PART_BITS;
        let address = place.address.raw();
        [key ^ address ^ mix(detail), address, detail]
    }

    #[inline]
    fn read(&self) -> (u64, EntryPlace, u64) {
        let (check, address) = (self.check.load(Relaxed), self.address.load(Relaxed));
        let detail = self.detail.load(Relaxed);
        let key = check ^ address ^ mix(detail & !USED);
        (key, EntryPlace { address: GlobalAddress(address), part: EntryPart::of(detail as u32) }, detail)
    }

    fn write(&self, [check, address, detail]: [u64; 3]) {
        self.check.store(check, Relaxed);
        self.address.store(address, Relaxed);
        self.detail.store(detail, Relaxed);
    }

    fn is_used(&self) -> bool {
        self.detail.load(Relaxed) & USED != 0
    }
}

impl EntryCache {
    /// Bytes of the smallest cache: one set.
    pub const LEAST_BYTES: u64 = size_of::<Set>() as u64;

    /// An empty cache that occupies at most `limit` bytes: 24 a place. Below [`LEAST_BYTES`](Self::LEAST_BYTES) it is switched off.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        let sets = usize::try_from(limit / Self::LEAST_BYTES).unwrap_or(usize::MAX);
        Self { limit, sets: (0..sets).map(|_| Set::default()).collect(), tree: AtomicU32::new(0) }
    }

    /// Bytes that it may occupy.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes that it occupies, full or not.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        size_of_val::<[Set]>(&self.sets) as u64
    }

    /// Places that fit.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.sets.len() * WAYS
    }

    /// Content of the cache; counts the places one by one. Counters of operations belong to pools: see
    /// [`Pool::entry_cache_stats`](crate::Pool::entry_cache_stats).
    #[must_use]
    pub fn stats(&self) -> EntryCacheStats {
        let slots = self.sets.iter().flat_map(|set| &set.0);
        let entries = slots.filter(|slot| !self.is_spare(slot)).count() as u64;
        EntryCacheStats { bytes: self.bytes(), entries, ..EntryCacheStats::default() }
    }

    /// Number of the tree that clients were last told of. An operation asks for it before its first READ, and
    /// [fills](Self::put) under that number.
    #[inline]
    #[must_use]
    pub fn tree(&self) -> u32 {
        self.tree.load(Relaxed)
    }

    /// Makes all places invisible, as when another tree lies there; also those that operations fill which have begun before.
    pub fn clear(&self) {
        self.tree.fetch_add(1, Relaxed);
    }

    /// Last known place of the key's entry.
    #[inline]
    #[must_use]
    pub fn get(&self, key: u64) -> Option<EntryPlace> {
        let (slot, place) = self.find(key)?;
        if !slot.is_used() {
            slot.detail.fetch_or(USED, Relaxed);
        }
        Some(place)
    }

    /// Notes the place of a key's entry, which an operation has read that began when the [number of the tree](Self::tree) was `tree`.
    pub fn put(&self, key: u64, place: EntryPlace, tree: u32) {
        let Some(set) = self.set_of(key).filter(|_| tree == self.tree()) else { return };
        let [check, address, detail] = Slot::words(key, tree, place);
        if let Some((slot, known)) = self.find(key) {
            if known != place {
                slot.write([check, address, detail | slot.detail.load(Relaxed) & USED]);
            }
            return;
        }
        let spare = set.0.iter().find(|slot| self.is_spare(slot));
        let victim = spare.or_else(|| set.0.iter().find(|slot| !slot.is_used())).unwrap_or_else(|| {
            // All were used: all must show it again.
            for slot in &set.0 {
                slot.detail.fetch_and(!USED, Relaxed);
            }
            &set.0[key as usize % WAYS]
        });
        victim.write([check, address, detail]);
    }

    /// Removes the place of a key, if it is still the one that the cache names.
    pub fn forget(&self, key: u64, place: EntryPlace) {
        if let Some((slot, known)) = self.find(key)
            && known == place
        {
            // A place that another thread puts there meanwhile may be lost.
            slot.write([0; 3]);
        }
    }

    #[inline]
    fn find(&self, key: u64) -> Option<(&Slot, EntryPlace)> {
        let tree = self.tree();
        self.set_of(key)?.0.iter().find_map(|slot| {
            let (found, place, detail) = slot.read();
            let is_its = found == key && !place.address.is_null();
            (is_its && (is_of(detail, tree) || !Check::SpeculatedTree.on())).then_some((slot, place))
        })
    }

    /// Whether a slot has no place of the present tree.
    fn is_spare(&self, slot: &Slot) -> bool {
        let (_, place, detail) = slot.read();
        place.address.is_null() || !is_of(detail, self.tree())
    }

    /// The set of a key; none has one where there is no room.
    #[inline]
    fn set_of(&self, key: u64) -> Option<&Set> {
        let at = (u128::from(mix(key)) * self.sets.len() as u128) >> 64;
        self.sets.get(at as usize)
    }
}

/// Whether a detail is of the tree with this number.
#[inline]
fn is_of(detail: u64, tree: u32) -> bool {
    (detail & !USED) >> PART_BITS == u64::from(tree) & TREE
}

#[cfg(test)]
mod tests;
