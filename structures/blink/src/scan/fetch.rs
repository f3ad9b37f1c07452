//! One node for a scan: a leaf with its pairs, or an inner node with its children.

use std::future::poll_fn;
use std::pin::Pin;

use bytes::Bytes;
use fatbtree_remote_memory::record::RecordPointer;
use fatbtree_remote_memory::{GlobalAddress, KeyRange};
use fatbtree_verbs::Verbs;
use futures_buffered::FuturesUnorderedBounded;
use futures_core::Stream;

use crate::config::TreeConfig;
use crate::descent::{Descent, Reason};
use crate::layers::Layer;
use crate::lookup::Place;
use crate::node::{EntryValue, LeafNode, Node, NodeFault, NodeHeader, each_key_once};
use crate::operation::{OperationError, Start, Trips};
use crate::pool::Pool;

/// Records of one leaf that are read at the same time: all of a usual one. Those for which the device has no buffer wait.
const RECORDS_AT_ONCE: usize = 64;

/// Request for a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    /// A key that the node is responsible for.
    pub(super) key: u64,
    pub(super) start: Start,
    /// Its level; none means the root of the key's partition.
    pub(super) level: Option<u8>,
    /// Whether a leaf's parent does as well, if the switches lead no further.
    pub(super) or_parent: bool,
    /// Pairs outside of it are not wanted.
    pub(super) keep: KeyRange,
    /// Whether values are wanted, or keys only.
    pub(super) values: bool,
}

/// A node that was read.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) address: GlobalAddress,
    /// The keys that it is responsible for.
    pub(super) range: KeyRange,
    pub(super) holds: Holds,
    /// Its round trips, those for records included.
    pub(super) trips: Trips,
    /// Round trips one after another.
    pub(super) depth: u32,
}

#[derive(Debug)]
pub(super) enum Holds {
    /// The entries of a leaf, in ascending order of their keys.
    Entries(Entries),
    /// The children of a node of this level, with their pivots.
    Children(u8, Vec<(u64, GlobalAddress)>),
    /// The tree has no such level any more.
    Nothing,
}

/// Content of an entry, its record included.
#[derive(Clone, Debug)]
pub(crate) enum Entry {
    /// The value in the entry.
    Inline(Bytes),
    /// The value in the record.
    Record(Bytes),
    /// The layer to which the entry leads, where keys are bytes.
    Layer(GlobalAddress),
}

impl Entry {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Inline(value) | Self::Record(value) => value.len(),
            Self::Layer(_) => 0,
        }
    }
}

/// Entries with their keys.
pub(crate) type Entries = Vec<(u64, Entry)>;

/// Content of an entry as its leaf has it.
pub(crate) enum Found {
    Here(Entry),
    Record(RecordPointer),
}

/// Content of a node when it was read.
enum Copied {
    Leaf(Vec<(u64, Found)>),
    Internal(u8, Vec<(u64, GlobalAddress)>),
}

/// Reads a node, whatever happens to it meanwhile.
pub(super) async fn fetch<V: Verbs>(
    pool: &Pool<V>,
    layer: Option<&Layer>,
    ask: Ask,
) -> Result<Fetched, OperationError> {
    let mut descent = Descent::within(pool, layer, ask.key);
    let mut asked_superblock = false;
    let (address, range, copied) = loop {
        let reason = match descent.begin(ask.start).await {
            Err(reason) => reason,
            Ok(start) => {
                let root_level = descent.partition().root_level;
                let level = ask.level.unwrap_or(root_level);
                if start == Start::Root && root_level < level {
                    let range = KeyRange { low: ask.key, high: Some(ask.key) };
                    let address = GlobalAddress::NULL;
                    let (trips, _) = descent.end();
                    let depth = trips.round_trips;
                    return Ok(Fetched { address, range, holds: Holds::Nothing, trips, depth });
                }
                match read(&mut descent, start, level, &ask).await {
                    Ok((_, range, _))
                        if ask.level.is_none() && range != descent.partition().range && !asked_superblock =>
                    {
                        // It was the root once: where is the root now?
                        asked_superblock = true;
                        descent.refresh_root().await;
                        continue;
                    }
                    Ok(read) => break read,
                    Err(reason) => reason,
                }
            }
        };
        descent.recover(reason).await?;
    };
    let above = descent.lane().round_trips();
    let (holds, below) = match copied {
        Copied::Internal(level, children) => (Holds::Children(level, children), 0),
        Copied::Leaf(mut entries) => {
            entries.retain(|(key, _)| range.contains(*key));
            let (entries, depth) = values_of(&mut descent, entries).await?;
            (Holds::Entries(entries), depth)
        }
    };
    let (trips, _) = descent.end();
    Ok(Fetched { address, range, holds, trips, depth: above + below })
}

/// One attempt. The copies free the registered buffer.
async fn read<V: Verbs>(
    descent: &mut Descent<'_, V>,
    start: Start,
    level: u8,
    ask: &Ask,
) -> Result<(GlobalAddress, KeyRange, Copied), Reason> {
    let tree = *descent.tree();
    let copy = |node: &Node<'_>, bytes: &[u8]| {
        let header = node.header();
        Ok((header.address, header.low, copy(&tree, node, bytes, ask)?))
    };
    let (mut first, mut level) = (None, level);
    if ask.or_parent && start == Start::IndexRead {
        let bytes = descent.ask_for_node().await?;
        // Whether it is a node at all, and which one, the descent finds out.
        let landed = bytes.first_chunk().map_or(level, |line| NodeHeader::parse(line).level);
        (first, level) = (Some(bytes), landed.clamp(level, level + 1));
    }
    let (buffer, (address, low, copied)) = descent.descend(start, first, level, copy).await?;
    drop(buffer);
    Ok((address, KeyRange { low, high: descent.high() }, copied))
}

fn copy(tree: &TreeConfig, node: &Node<'_>, bytes: &[u8], ask: &Ask) -> Result<Copied, NodeFault> {
    let leaf = match node {
        Node::Internal(node) => return Ok(Copied::Internal(node.header().level, node.children().collect())),
        Node::Leaf(leaf) => leaf,
    };
    entries_of(tree, leaf, bytes, ask.keep, ask.values).map(Copied::Leaf)
}

/// Copies the entries of a leaf, which lies at the beginning of `bytes`, in ascending order of their keys.
pub(crate) fn entries_of(
    tree: &TreeConfig,
    leaf: &LeafNode<'_>,
    bytes: &[u8],
    keep: KeyRange,
    values: bool,
) -> Result<Vec<(u64, Found)>, NodeFault> {
    let bytes = &bytes[..tree.leaf_bytes() as usize];
    // One copy, which all values share.
    let shared =
        if values && tree.leaf_shape().has_values() { Bytes::copy_from_slice(bytes) } else { Bytes::new() };
    let mut entries = Vec::with_capacity(tree.leaf_capacity());
    for entry in leaf.entries() {
        let (key, value) = entry?;
        if !keep.contains(key) {
            continue;
        }
        let found = match value {
            EntryValue::Layer(layer) => Found::Here(Entry::Layer(layer)),
            _ if !values => Found::Here(Entry::Inline(Bytes::new())),
            EntryValue::Inline(value) => {
                let start = value.as_ptr().addr() - bytes.as_ptr().addr();
                Found::Here(Entry::Inline(shared.slice(start..start + value.len())))
            }
            EntryValue::Record(record) => Found::Record(record),
        };
        entries.push((key, found));
    }
    entries.sort_unstable_by_key(|(key, _)| *key);
    each_key_once(&entries)?;
    Ok(entries)
}

/// Reads the records of a leaf, some at a time; says how many round trips that took one after another. A key that has gone
/// meanwhile is left out.
pub(crate) async fn values_of<V: Verbs>(
    descent: &mut Descent<'_, V>,
    entries: Vec<(u64, Found)>,
) -> Result<(Entries, u32), OperationError> {
    let mut pairs: Vec<(u64, Option<Entry>)> = Vec::with_capacity(entries.len());
    let mut records = Vec::new();
    for (at, (key, found)) in entries.into_iter().enumerate() {
        pairs.push(match found {
            Found::Here(entry) => (key, Some(entry)),
            Found::Record(record) => {
                records.push((at, key, record));
                (key, None)
            }
        });
    }
    let (mut records, mut clock) = (records.into_iter(), 0);
    let mut reads = FuturesUnorderedBounded::new(RECORDS_AT_ONCE);
    loop {
        while reads.len() < RECORDS_AT_ONCE
            && let Some((at, key, record)) = records.next()
        {
            let (begun, descent) = (clock, descent.for_key(key));
            reads.push(async move { (at, begun, value_of(descent, record).await) });
        }
        let next = poll_fn(|context| Pin::new(&mut reads).poll_next(context)).await;
        let Some((at, begun, result)) = next else { break };
        let (entry, trips): (Option<Entry>, Trips) = result?;
        pairs[at].1 = entry;
        clock = clock.max(begun + trips.round_trips);
        descent.lane().add(trips.round_trips);
        add(descent.trips_mut(), &trips);
    }
    Ok((pairs.into_iter().filter_map(|(key, entry)| Some((key, entry?))).collect(), clock))
}

/// The value in a record; or, if the record is not this key's any more, whatever its entry has.
async fn value_of<V: Verbs>(
    mut descent: Descent<'_, V>,
    record: RecordPointer,
) -> Result<(Option<Entry>, Trips), OperationError> {
    let mut attempt = read_entry(&mut descent, record).await;
    let entry = loop {
        match attempt {
            Ok(entry) => break entry,
            Err(reason) => descent.recover(reason).await?,
        }
        attempt = match descent.begin(Start::Root).await {
            Ok(start) => find_entry(&mut descent, start).await,
            Err(reason) => Err(reason),
        };
    };
    Ok((entry, descent.end().0))
}

async fn read_entry<V: Verbs>(
    descent: &mut Descent<'_, V>,
    record: RecordPointer,
) -> Result<Option<Entry>, Reason> {
    let value = descent.read_value(record).await?;
    Ok(Some(Entry::Record(Bytes::copy_from_slice(&value))))
}

async fn find_entry<V: Verbs>(descent: &mut Descent<'_, V>, start: Start) -> Result<Option<Entry>, Reason> {
    let key = descent.key();
    let (leaf, place) =
        descent.descend(start, None, 0, |node, bytes| Place::in_leaf(node, bytes, key)).await?;
    match place {
        Place::Nowhere => Ok(None),
        Place::Inline { value, .. } => Ok(Some(Entry::Inline(Bytes::copy_from_slice(&leaf[value])))),
        Place::Layer(layer) => Ok(Some(Entry::Layer(layer))),
        Place::Record(record) => {
            drop(leaf);
            read_entry(descent, record).await
        }
    }
}

fn add(all: &mut Trips, more: &Trips) {
    all.retries += more.retries;
    all.restarts += more.restarts;
    all.breaks += more.breaks;
    all.siblings_followed += more.siblings_followed;
    all.levels += more.levels;
    all.layers += more.layers;
}
