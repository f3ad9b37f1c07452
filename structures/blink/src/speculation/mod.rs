//! Speculative lookups: a cache names the place of a key's entry, and one round trip reads that place instead of a leaf (SMART §5.2).
//!
//! ```text
//!   values in line                                     values out of line
//!
//!   entry cache: key ─► leaf, slot                     entry cache: key ─► record, bytes of the value
//!            │                                                  │
//!            │ one doorbell                                     │
//!     READ 64 │ READ 64                                    READ 24 + n
//!            ▼                                                  ▼
//!   leaf [header│ ... │ line with the entry│ ... ]     record [mark, version, key, length, CRC-32, value]
//!            └── checked against each other ──┘                └── checked by itself
//! ```
//!
//! A place that does not answer is forgotten, and the ordinary lookup follows; so it costs a round trip, never a wrong answer.
//! Lookups with [`Start::Cached`] and [`Start::CachedOrIndexRead`] speculate. All lookups and changes fill the cache with what they
//! read or write anyway. A change by [`Start::Cached`] begins at the leaf of the place if the index cache does not know the leaf.
//!
//! # Values in line: why two lines
//!
//! SMART reads the entry's line alone. It frees no leaf, so an entry that was right is right or gone. Here that line proves too little:
//!
//! * A merge frees the right leaf with a WRITE of its header. The entries stay in its lines, and their keys are changed elsewhere.
//! * A split moves keys at the moment in which the new leaf is there. The old leaf's lines are written after that, or much later, if
//!   the writer dies. The new leaf has another lock, so that its entries can change before.
//! * Memory that was freed becomes another leaf.
//!
//! Only the header says that a leaf is freed, is being split, or is another one. So the header is read with the line, by one chain.
//! That is 128 bytes instead of a leaf of 1024, two requests for the card, and one round trip. (A wide entry has two lines: 192 bytes.)
//!
//! # Values in line: why that is enough
//!
//! Let a whole write *W* of a leaf at this address carry version *v*, and the next one another version. Header and line are accepted
//! ([`read_entry`]) if both carry *v*, the header is a leaf's of this tree, at its own address, for a range with the key, not freed,
//! and without partner, and the line has an occupied entry of the key. Call the moment at which the header was read *h*, and the
//! moment at which the line was read *e*. Both are moments of the lookup, in any order: cards promise none for two READs.
//!
//! Between *W* and the next whole write the leaf has the key for one span of time. That span begins with *W* or, after a merge, when
//! the merged leaf is freed; it ends when a split's new leaf is there, when this leaf is freed, or with the next whole write. A
//! header without partner that is not freed was read within the span. There are three cases for the line:
//!
//! * *e* lies within the span. The entry was the key's at *e*, and the lookup takes effect then.
//! * *e* lies before the span. Then *W* wrote the line: it is a copy of the entry that the key had in another leaf, for a split or a
//!   merge. That leaf's lock is held from before the copy until the span has begun. So the copy was the key's value at *e* as well.
//! * *e* lies after the span, so *h* < end of the span ≤ *e*. An entry is written under the leaf's lock only. The writer that ends
//!   the span has held that lock since it read the leaf, and entries of a leaf that has a partner or is freed are not
//!   written until the next whole write. So the line shows the entry as it was at the end of the span. That moment is one of the
//!   lookup, and the lookup takes effect then.
//!
//! A new leaf on another server is the one leaf that lies in memory without partner before it has its keys. It is written to memory that
//! was no node before in this tree ([`write::split`](crate::node)), so no place names it.
//!
//! As everywhere, versions are told apart by their low byte: 256 whole writes of one leaf between *h* and *e* are not noticed.
//!
//! # Values out of line: the record by itself
//!
//! The place leads past the leaf, to the record. It is checked as a record to which a switch has led: key, checksum, and the mark that a
//! record has as long as an entry leads to it ([`record`](crate::record), "By a switch"). So a lookup takes one round trip instead of
//! two, and no bytes of a leaf are read. To lead to the entry's line instead would save bytes, but no round trip.
//!
//! # Values by length
//!
//! A key's value may lie in its entry now, and in a record after its next change, or the other way round. A place says which of the two it
//! names. An entry that points to a record has no value that could be taken for the key's, and a record that was given up has no mark: so
//! such a place does not answer.
//!
//! # Other trees
//!
//! A region can get another tree, where other things lie at the same addresses; a user's value there may look like a leaf. So places
//! carry the number of the tree, which changes whenever a client is told of new roots. An operation fills the cache under the
//! number that it found before its first READ. The server destroys the queue pairs of the former tree before a client hears of the
//! next one, so what was read from the former tree has a former number.

mod table;

use fatbtree_remote_memory::record::{RECORD_HEAD, read_hinted, record_bytes};
use fatbtree_remote_memory::{GlobalAddress, Path, Trouble};
use fatbtree_verbs::{Operation, Remote, Verbs};

use crate::config::MAX_VALUE;
use crate::descent::{Descent, Reason};
use crate::lookup::Value;
use crate::node::{LINE, entry_lines, read_entry};
use crate::operation::Start;

pub use table::{EntryCache, EntryCacheStats, EntryPart, EntryPlace};

impl<V: Verbs> Descent<'_, V> {
    /// Reads the place that the entry cache names for the key. `None` if there is none, or if it does not answer. `its` takes the key's value out of
    /// what was read, which has the key of the entry; `None`, if it is another key's.
    #[inline]
    pub(crate) async fn speculate(
        &mut self,
        start: Start,
        its: impl FnOnce(EntryPart, Value) -> Option<Value>,
    ) -> Result<Option<Value>, Reason> {
        if !matches!(start, Start::Cached | Start::CachedOrIndexRead) {
            return Ok(None);
        }
        let Some(place) = self.place_of_entry() else { return Ok(None) };
        let value = match place.part {
            EntryPart::Slot(slot) => self.read_entry_at(place.address, slot as usize).await?,
            EntryPart::Record(length) => self.read_record_at(place.address, length).await?,
        };
        let (key, value) = (self.key(), value.and_then(|value| its(place.part, value)));
        match &value {
            Some(_) => {
                self.trips_mut().speculated = true;
                self.pool().count_entries(|stats| stats.hits += 1);
            }
            None => {
                self.pool().entries(|entries| entries.forget(key, place));
                self.pool().count_entries(|stats| stats.stale += 1);
            }
        }
        Ok(value)
    }

    /// The place of the key's entry, if its server can be reached now.
    #[inline]
    fn place_of_entry(&self) -> Option<EntryPlace> {
        let found = self.pool().entries(|entries| entries.get(self.key()))?;
        if found.is_none() {
            self.pool().count_entries(|stats| stats.misses += 1);
        }
        let shape = self.pool().config().tree.leaf_shape();
        let may_be = |part| match part {
            EntryPart::Slot(slot) => shape.has_values() && (slot as usize) < shape.capacity(),
            EntryPart::Record(length) => shape.has_records() && length <= MAX_VALUE,
        };
        found.filter(|place| may_be(place.part) && self.pool().link(self.path_to(place.address).id).is_ok())
    }

    fn path_to(&self, address: GlobalAddress) -> Path<'_> {
        self.lane().to(address.server())
    }

    async fn read_entry_at(&mut self, address: GlobalAddress, slot: usize) -> Result<Option<Value>, Reason> {
        let (pool, tree) = (self.pool(), &self.pool().config().tree);
        let lines = entry_lines(tree.leaf_shape(), slot);
        let at = GlobalAddress(address.raw() + lines.start as u64);
        let path = self.path_to(address);
        let (queue_pair, rkey) = pool.link(path.id)?;
        let read = |at: GlobalAddress, len: usize| Operation::Read {
            from: Remote { address: at.raw(), rkey },
            len: len as u32,
        };
        let reads = [read(address, LINE), read(at, lines.len())];
        let [header, lines] = match pool.fetch(path, queue_pair, reads).await {
            Ok(lines) => lines,
            // There may be one buffer, which is enough for the ordinary lookup.
            Err(Trouble::Refused(_)) => return Ok(None),
            Err(trouble) => return Err(trouble.into()),
        };
        let found = read_entry(tree, address, slot, self.key(), &header, &lines).ok();
        Ok(found.map(|value| Value::within(lines, value)))
    }

    async fn read_record_at(&mut self, address: GlobalAddress, length: u32) -> Result<Option<Value>, Reason> {
        let bytes = self.pool().read(self.lane(), address, record_bytes(length)).await?;
        let found = read_hinted(&bytes, self.key()).ok().map(|value| RECORD_HEAD..RECORD_HEAD + value.len());
        Ok(found.map(|value| Value::within(bytes, value)))
    }

    /// Start of a change: at the leaf that the entry cache names, if the index cache does not know the leaf.
    pub(crate) fn start_of_change(&self, start: Start) -> Start {
        let asks_caches = matches!(start, Start::Cached | Start::CachedOrIndexRead);
        if !asks_caches || !self.pool().config().tree.leaf_shape().has_values() {
            return start;
        }
        let place = self.pool().entries(|entries| entries.get(self.key())).flatten();
        match place {
            Some(EntryPlace { address, part: EntryPart::Slot(_) })
                if self.pool().cached(|cache| cache.leaf_of(self.key())).is_none() =>
            {
                self.pool().count_entries(|stats| stats.starts += 1);
                Start::Node { address, level: 0 }
            }
            _ => start,
        }
    }

    /// Notes where the key's entry or record lies.
    #[inline]
    pub(crate) fn note_place(&self, address: GlobalAddress, part: EntryPart) {
        // Keys of a layer below the first one have words that keys of other layers have as well.
        if self.layer().is_some() {
            return;
        }
        let (key, tree) = (self.key(), self.entry_tree());
        self.pool().entries(|entries| entries.put(key, EntryPlace { address, part }, tree));
    }

    /// The key has no entry any more.
    pub(crate) fn forget_place(&self) {
        if self.layer().is_some() {
            return;
        }
        let key = self.key();
        self.pool().entries(|entries| {
            if let Some(place) = entries.get(key) {
                entries.forget(key, place);
            }
        });
    }
}
