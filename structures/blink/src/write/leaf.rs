//! One leaf under its lock: an entry, or a split.

use std::ops::Range;

use fatbtree_remote_memory::record::{
    RECORD_HEAD, RecordPointer, UNPUBLISHED, next_record_version, published, record_bytes, write_record,
};
use fatbtree_remote_memory::{Check, GlobalAddress, LockGuard, Part, Spare, Want, Writer};
use fatbtree_verbs::{Buffer, Verbs};

use super::merge::is_thin;
use crate::descent::{Descent, LockedPlace, Reason};
use crate::node::{EntryValue, LeafEditor, LeafShape, LeafView, NewValue, NodeFault, next_version};
use crate::operation::Start;
use crate::size_class::{RECORDS, of_node};
use crate::speculation::EntryPart;
use fatbtree_remote_memory::Change;

/// A node that is locked, where it is, and what it held when it was locked.
pub(crate) struct Locked<'p, V: Verbs> {
    pub(crate) guard: LockGuard<'p, V>,
    pub(crate) address: GlobalAddress,
    pub(crate) bytes: Buffer,
}

/// Memory for a new node, and the version that the node begins with.
pub(super) struct NewNode<'p, V: Verbs> {
    pub(super) place: Spare<'p, V>,
    pub(super) version: u32,
}

/// A record that is written with the leaf that points to it.
struct NewRecord<'p, V: Verbs> {
    place: Spare<'p, V>,
    pointer: RecordPointer,
    bytes: Vec<u8>,
}

/// What a leaf has of a key that is to be changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Former {
    /// Slot of the entry.
    pub(crate) slot: Option<usize>,
    /// The record to which it leads.
    pub(crate) record: Option<RecordPointer>,
}

/// What an entry is to have.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Content<'v> {
    /// The value itself.
    InEntry(&'v [u8]),
    /// A pointer to a record of this value.
    InRecord(&'v [u8]),
}

/// Slot and content of the entry of a key in a locked leaf.
pub(crate) fn present<'l>(
    leaf: &'l [u8],
    shape: &LeafShape,
    key: u64,
) -> Result<(Option<usize>, Option<EntryValue<'l>>), NodeFault> {
    let view = LeafView::new(&leaf[..shape.bytes() as usize], shape);
    let slot = view.slot_of(key)?;
    let value = slot.map(|slot| view.value(slot)).transpose()?;
    Ok((slot, value))
}

/// The record to which an entry leads.
pub(crate) fn record_of(value: EntryValue<'_>) -> Option<RecordPointer> {
    match value {
        EntryValue::Record(record) => Some(record),
        EntryValue::Inline(_) | EntryValue::Layer(_) => None,
    }
}

/// Result of an attempt at a change.
pub(crate) enum Outcome {
    /// The change is carried out, or there is nothing to be done.
    Done(bool),
    /// The key is deleted, and the leaf is thin now.
    Thin,
    /// The leaf was full and is split now: begin again at this leaf.
    Split(GlobalAddress),
}

impl<'p, V: Verbs> Descent<'p, V> {
    /// One attempt at a change.
    pub(super) async fn mutate(&mut self, start: Start, change: Change<'_>) -> Result<Outcome, Reason> {
        let leaf = self.locate(start, 0).await?;
        let locked = self.lock_node(leaf, 0).await?;
        let shape = *self.tree().leaf_shape();
        let (slot, present) = match present(&locked.bytes, &shape, self.key()) {
            Ok(found) => found,
            Err(fault) => return self.without(locked.guard, Reason::Fault(fault)).await,
        };
        let is_expected = match (change.expected(), present) {
            (Some(expected), Some(present)) => self.has_value(present, expected).await,
            _ => Ok(true),
        };
        let applies = match is_expected {
            Ok(is_expected) => is_expected && change.applies(slot.is_some()),
            Err(reason) => return self.without(locked.guard, reason).await,
        };
        if !applies {
            locked.guard.release(self.lane()).await?;
            return Ok(Outcome::Done(false));
        }
        let former = Former { slot, record: present.and_then(record_of) };
        let new = change.value().map(|value| match shape.holds(value.len()) {
            true => Content::InEntry(value),
            false => Content::InRecord(value),
        });
        self.change_entry(locked, former, new).await
    }

    /// Changes the entry of the key in a locked leaf, or takes it away.
    pub(crate) async fn change_entry(
        &mut self,
        locked: Locked<'p, V>,
        former: Former,
        new: Option<Content<'_>>,
    ) -> Result<Outcome, Reason> {
        let Locked { guard, address, bytes: mut leaf } = locked;
        let Former { slot, record: old } = former;
        let shape = *self.tree().leaf_shape();
        let mut editor = LeafEditor::new(&mut leaf.as_mut_slice()[..shape.bytes() as usize], &shape);
        let Some(new) = new else {
            let slot = slot.expect("only what is there is deleted");
            let changed = self.written_back(editor.remove(slot));
            let left = editor.count();
            let entry = Part { at: address.behind(changed.start as u64), bytes: &leaf[changed] };
            self.write_entry(guard, entry, old, None).await?;
            self.forget_place();
            let is_thin = is_thin(self.tree(), 0, left);
            return Ok(if is_thin { Outcome::Thin } else { Outcome::Done(true) });
        };
        let Some(slot) = slot.or_else(|| editor.free_slot(self.key())) else {
            let locked = Locked { guard, address, bytes: leaf };
            // Seldom, and large: in places of their own, so that a change in general is small.
            let child = Box::pin(self.split_leaf(locked)).await?;
            Box::pin(self.tell_parents(child)).await;
            return Ok(Outcome::Split(address));
        };
        let mut record = match new {
            Content::InEntry(_) => None,
            Content::InRecord(value) => match self.new_record(address.server(), value).await {
                Ok(record) => Some(record),
                Err(reason) => return self.without(guard, reason).await,
            },
        };
        let new = match (&record, new) {
            (Some(record), _) => NewValue::Record(record.pointer),
            (None, Content::InEntry(value) | Content::InRecord(value)) => NewValue::Inline(value),
        };
        let changed = self.written_back(editor.put(slot, self.key(), new));
        let entry = Part { at: address.behind(changed.start as u64), bytes: &leaf[changed] };
        record.iter_mut().for_each(|record| record.place.set_held(true));
        let written = self.write_entry(guard, entry, old, record.as_ref()).await;
        if let (Err(reason), Some(record)) = (&written, &mut record) {
            record.place.set_held(reason.may_be_done());
        }
        written?;
        match &record {
            Some(record) => self.note_place(record.pointer.address, EntryPart::Record(record.pointer.length)),
            None => self.note_place(address, EntryPart::Slot(slot as u32)),
        }
        Ok(Outcome::Done(true))
    }

    /// Writes an entry back and gives the lock back, and what has to go with them of the records that the entry led to and will
    /// lead to, in the order that [`record`](crate::record) explains. The place of the record that it led to is free then.
    async fn write_entry(
        &mut self,
        guard: LockGuard<'p, V>,
        entry: Part<'_>,
        former: Option<RecordPointer>,
        new: Option<&NewRecord<'p, V>>,
    ) -> Result<(), Reason> {
        let (mut old, mut writer) = (former, guard.writer());
        if let Some(record) = old.take_if(|old| old.address.server() != entry.at.server()) {
            writer = match self.unpublish_elsewhere(record).await {
                Ok(writer) => writer,
                Err(reason) => return self.without(guard, reason).await,
            };
        }
        let unpublish = old.map(|old| Part { at: old.address, bytes: &UNPUBLISHED });
        let mark = new.map_or(UNPUBLISHED, |new| published(new.pointer.version));
        let new = new.map(|new| {
            let at = new.pointer.address;
            (Part { at, bytes: &new.bytes }, Part { at, bytes: &mark })
        });
        let parts: &[Part<'_>] = match (new, unpublish) {
            (None, None) => &[entry],
            (None, Some(unpublish)) if !Check::UnpublishedFirst.on() => &[entry, unpublish],
            (Some((record, publish)), Some(unpublish)) if !Check::UnpublishedFirst.on() => {
                &[record, entry, unpublish, publish]
            }
            (None, Some(unpublish)) => &[unpublish, entry],
            (Some((record, publish)), None) => &[record, entry, publish],
            (Some((record, publish)), Some(unpublish)) => &[record, unpublish, entry, publish],
        };
        guard.write_back(parts, self.lane()).await?;
        if let Some(record) = former {
            self.free_record(record, &writer);
        }
        Ok(())
    }

    /// Takes the mark away from a record on another server than its leaf. Says in which session.
    async fn unpublish_elsewhere(&mut self, record: RecordPointer) -> Result<Writer, Reason> {
        let writer = self.pool().writer(record.address.server())?;
        self.write_elsewhere(&Part { at: record.address, bytes: &UNPUBLISHED }, &writer).await?;
        Ok(writer)
    }

    /// Locks the node of `level` that is responsible for the key, wherever it has moved since `node` was found, and reads it. Brings
    /// to its end what others have left half done there.
    pub(crate) async fn lock_node(
        &mut self,
        mut node: GlobalAddress,
        level: u8,
    ) -> Result<Locked<'p, V>, Reason> {
        let (pool, len) = (self.pool(), self.tree().node_bytes(level));
        loop {
            let (guard, bytes) = LockGuard::lock_and_read(pool, self.lane(), node, len).await?;
            match self.place_of_locked(node, level, &bytes) {
                Ok(LockedPlace::Here) => return Ok(Locked { guard, address: node, bytes }),
                Ok(LockedPlace::Moved(to)) => {
                    guard.release(self.lane()).await?;
                    node = to;
                }
                Ok(LockedPlace::Unsettled) => {
                    Box::pin(self.settle(Locked { guard, address: node, bytes })).await?
                }
                Err(fault) => return self.without(guard, Reason::Fault(fault)).await,
            }
        }
    }

    /// Bytes of a leaf that are written back after a change of these bytes. The versions of all other lines
    /// stay as they are.
    pub(crate) fn written_back(&self, changed: Range<usize>) -> Range<usize> {
        let techniques = self.pool().config().techniques;
        if techniques.two_level_versions { changed } else { 0..self.tree().leaf_bytes() as usize }
    }

    /// Whether an entry of a locked leaf has this value.
    async fn has_value(&mut self, found: EntryValue<'_>, expected: &[u8]) -> Result<bool, Reason> {
        match found {
            EntryValue::Inline(value) => Ok(value == expected),
            EntryValue::Record(record) if record.length as usize != expected.len() => Ok(false),
            EntryValue::Record(record) => Ok(&*self.read_value(record).await? == expected),
            EntryValue::Layer(layer) => Err(Reason::Fault(NodeFault::NoLayers { layer })),
        }
    }

    /// Writes something on any server, in the session of `writer`: a node to which nothing leads yet, or the mark of a record.
    pub(super) async fn write_elsewhere(&mut self, part: &Part<'_>, writer: &Writer) -> Result<(), Reason> {
        let (path, parts) = (self.lane().to(part.at.server()), std::slice::from_ref(part));
        Ok(self.pool().write_chain(path, writer, parts, &[]).await?)
    }

    /// Gives up an attempt: the lock goes back, nothing was changed.
    pub(crate) async fn without<T>(&mut self, guard: LockGuard<'p, V>, reason: Reason) -> Result<T, Reason> {
        guard.release(self.lane()).await?;
        Err(reason)
    }

    /// Memory for a node beside those of `server`, if need be such that was no node before.
    pub(super) async fn new_node(
        &mut self,
        server: u16,
        level: u8,
        is_fresh: bool,
    ) -> Result<NewNode<'p, V>, Reason> {
        let (class, bytes) = (of_node(self.tree(), level), self.tree().node_bytes(level));
        let want = Want { server, class, bytes, is_fresh };
        let writer = self.pool().writer(server)?;
        let place = self.pool().take_at_hand(&writer, want).ok_or(Reason::Memory(want))?;
        // Versions go on from what is there.
        let version = next_version(&self.pool().read(self.lane(), place.address(), bytes).await?);
        Ok(NewNode { place, version })
    }

    /// The record of a value that no entry holds.
    async fn new_record(&mut self, server: u16, value: &[u8]) -> Result<NewRecord<'p, V>, Reason> {
        let (pool, length) = (self.pool(), value.len() as u32);
        let writer = pool.writer(server)?;
        let want = Want::record(server, RECORDS, length);
        let place = pool.take_at_hand(&writer, want).ok_or(Reason::Memory(want))?;
        let address = place.address();
        let version = match place.taken.block.version {
            Some(version) => version,
            None => next_record_version(&pool.read(self.lane(), address, RECORD_HEAD as u32).await?),
        };
        let mut bytes = vec![0; record_bytes(length) as usize];
        let mark = if Check::PublishedLast.on() { UNPUBLISHED } else { published(version) };
        write_record(&mut bytes, self.record_key(), version, mark, |room| room.copy_from_slice(value));
        Ok(NewRecord { place, pointer: RecordPointer { address, length, version }, bytes })
    }

    /// Lets the place of a record be used again, to which no leaf leads any more since the session of `writer`. In a later one it is
    /// not this client's.
    fn free_record(&self, record: RecordPointer, writer: &Writer) {
        self.pool().note_moved(self.record_key());
        let server = record.address.server();
        self.pool().with_allocator(server, writer, |allocator| allocator.free_record(RECORDS, record));
    }
}
