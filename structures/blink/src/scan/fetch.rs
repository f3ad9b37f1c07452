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
use crate::node::{EntryValue, Node, NodeFault, NodeHeader, each_key_once};
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
    /// The pairs of a leaf, in ascending order of their keys.
    Pairs(Vec<(u64, Bytes)>),
    /// The children of a node of this level, with their pivots.
    Children(u8, Vec<(u64, GlobalAddress)>),
    /// The tree has no such level any more.
    Nothing,
}

/// The value of a key as its leaf has it.
enum Found {
    Here(Bytes),
    Record(RecordPointer),
}

/// Content of a node when it was read.
enum Copied {
    Leaf(Vec<(u64, Found)>),
    Internal(u8, Vec<(u64, GlobalAddress)>),
}

/// Reads a node, whatever happens to it meanwhile.
pub(super) async fn fetch<V: Verbs>(pool: &Pool<V>, ask: Ask) -> Result<Fetched, OperationError> {
    let mut descent = Descent::new(pool, ask.key);
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
            let (pairs, depth) = values_of(&mut descent, entries).await?;
            (Holds::Pairs(pairs), depth)
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
    let tree = descent.pool().config().tree;
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
    let bytes = &bytes[..tree.leaf_bytes() as usize];
    // One copy, which all values share.
    let shared = if ask.values && tree.leaf_shape().has_values() {
        Bytes::copy_from_slice(bytes)
    } else {
        Bytes::new()
    };
    let mut entries = Vec::with_capacity(tree.leaf_capacity());
    for entry in leaf.entries() {
        let (key, value) = entry?;
        if !ask.keep.contains(key) {
            continue;
        }
        let found = match value {
            _ if !ask.values => Found::Here(Bytes::new()),
            EntryValue::Inline(value) => {
                let start = value.as_ptr().addr() - bytes.as_ptr().addr();
                Found::Here(shared.slice(start..start + value.len()))
            }
            EntryValue::Record(record) => Found::Record(record),
        };
        entries.push((key, found));
    }
    entries.sort_unstable_by_key(|(key, _)| *key);
    each_key_once(&entries)?;
    Ok(Copied::Leaf(entries))
}

/// Reads the records of a leaf, some at a time; says how many round trips that took one after another. A key that has gone
/// meanwhile is left out.
async fn values_of<V: Verbs>(
    descent: &mut Descent<'_, V>,
    entries: Vec<(u64, Found)>,
) -> Result<(Vec<(u64, Bytes)>, u32), OperationError> {
    let mut pairs: Vec<(u64, Option<Bytes>)> = Vec::with_capacity(entries.len());
    let mut records = Vec::new();
    for (at, (key, found)) in entries.into_iter().enumerate() {
        pairs.push(match found {
            Found::Here(value) => (key, Some(value)),
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
        let (value, trips): (Option<Bytes>, Trips) = result?;
        pairs[at].1 = value;
        clock = clock.max(begun + trips.round_trips);
        descent.lane().add(trips.round_trips);
        add(descent.trips_mut(), &trips);
    }
    Ok((pairs.into_iter().filter_map(|(key, value)| Some((key, value?))).collect(), clock))
}

/// The value in a record; or, if the record is not this key's any more, whatever a lookup finds.
async fn value_of<V: Verbs>(
    mut descent: Descent<'_, V>,
    record: RecordPointer,
) -> Result<(Option<Bytes>, Trips), OperationError> {
    let mut attempt = descent.read_value(record).await.map(Some);
    let value = loop {
        match attempt {
            Ok(value) => break value.map(|value| Bytes::copy_from_slice(&value)),
            Err(reason) => descent.recover(reason).await?,
        }
        attempt = match descent.begin(Start::Root).await {
            Ok(start) => descent.get(start).await,
            Err(reason) => Err(reason),
        };
    };
    Ok((value, descent.end().0))
}

fn add(all: &mut Trips, more: &Trips) {
    all.retries += more.retries;
    all.restarts += more.restarts;
    all.breaks += more.breaks;
    all.siblings_followed += more.siblings_followed;
    all.levels += more.levels;
}
