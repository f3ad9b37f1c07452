//! Scans of keys of bytes: through each layer where its entry stands.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;

use bytes::Bytes;
use fatbtree_remote_memory::byte_keys::parts;
use fatbtree_remote_memory::{BytesRange, GlobalAddress, KeyRange, Order};
use fatbtree_verbs::Verbs;
use futures_core::Stream;

use super::head::LayerState;
use super::open::Found;
use super::{Beginning, LESS, Layer, Spelled, key};
use crate::config::Keys;
use crate::descent::{Descent, Reason};
use crate::node::{LINE, Node, NodeFault, revive};
use crate::operation::{OperationError, Start};
use crate::pool::Pool;
use crate::scan::{Entries, Entry, Leaves, ScanOptions, ScanTrips, entries_of, values_of};

/// A scan under way. See [`Pool::scan`] for what it promises.
pub struct BytesScan<'p, V: Verbs> {
    pool: &'p Pool<V>,
    range: BytesRange,
    /// Words of the first layer that are looked at.
    within: KeyRange,
    options: ScanOptions,
    /// The layers in which it is, the first one first. Empty: it has not begun, or has ended.
    levels: Vec<Level<'p, V>>,
    begun: bool,
    /// The key of the last pair.
    last: Option<Bytes>,
    /// Of attempts to go on from there.
    recovery: Option<Descent<'p, V>>,
    taken: usize,
    /// Of layers that are done.
    trips: ScanTrips,
}

struct Level<'p, V> {
    /// What all keys here begin with, as far as where the prefix begins.
    path: Vec<u8>,
    layer: Option<Rc<Layer>>,
    /// More to come; none: all is in `entries`.
    leaves: Option<Leaves<'p, V>>,
    /// In the order of the scan.
    entries: VecDeque<(u64, Entry)>,
}

impl<V: Verbs> std::fmt::Debug for BytesScan<'_, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BytesScan").field("range", &self.range).finish_non_exhaustive()
    }
}

impl<V: Verbs> Pool<V> {
    /// Scans keys of bytes, with their values, in their order.
    pub fn scan_bytes(&self, range: BytesRange, options: ScanOptions) -> BytesScan<'_, V> {
        self.scan_bytes_within(range, KeyRange::ALL, options)
    }

    /// The same for those keys alone whose [words](super::KeyCode::word) in the first layer are in a range, such as a partition's.
    pub fn scan_bytes_within(
        &self,
        range: BytesRange,
        within: KeyRange,
        options: ScanOptions,
    ) -> BytesScan<'_, V> {
        BytesScan {
            pool: self,
            range,
            within,
            options,
            levels: Vec::new(),
            begun: false,
            last: None,
            recovery: None,
            taken: 0,
            trips: ScanTrips::default(),
        }
    }
}

impl<'p, V: Verbs> BytesScan<'p, V> {
    /// Cost of the scan so far.
    #[must_use]
    pub fn trips(&self) -> ScanTrips {
        let mut trips = self.trips;
        self.levels.iter().filter_map(|level| level.leaves.as_ref()).for_each(|leaves| {
            trips.add_all(&leaves.trips());
        });
        trips
    }

    /// The next pair; none at the end, and after an error.
    ///
    /// # Errors
    /// When the next leaf cannot be read.
    pub async fn next(&mut self) -> Option<Result<(Bytes, Bytes), OperationError>> {
        if !std::mem::replace(&mut self.begun, true) {
            if let Err(error) = self.pool.check_keys(Keys::Bytes) {
                return Some(Err(error));
            }
            self.levels.extend(self.level(Vec::new(), None));
        }
        loop {
            let stepped = match self.step().await {
                Err(OperationError::NoLayer { key, layer }) => {
                    self.begin_again(key, layer).await.map(|()| None)
                }
                stepped => stepped,
            };
            match stepped {
                Ok(Some(pair)) => return Some(Ok(pair)),
                Ok(None) if self.levels.is_empty() => return None,
                Ok(None) => {}
                Err(error) => {
                    self.levels.clear();
                    return Some(Err(error));
                }
            }
        }
    }

    /// Begins again behind the last pair: the layer at `layer`, to which an entry of the first layer's key `key` led, is not there. It has gone, and
    /// its keys with it; or it is coming; or the whole tree is another one, which was loaded meanwhile.
    async fn begin_again(&mut self, key: u64, layer: GlobalAddress) -> Result<(), OperationError> {
        while !self.levels.is_empty() {
            self.pop();
        }
        match (&self.last, self.options.order) {
            (None, _) => {}
            (Some(last), Order::Forward) => self.range.low = [&last[..], &[0]].concat(),
            (Some(last), Order::Backward) => self.range.high = Some(last.to_vec()),
        }
        let recovery = self.recovery.get_or_insert_with(|| Descent::new(self.pool, key));
        recovery.recover(Reason::Fault(NodeFault::NoLayer { layer })).await?;
        self.levels.extend(self.level(Vec::new(), None));
        Ok(())
    }

    /// Takes an entry, or reads more. `None`: go on.
    async fn step(&mut self) -> Result<Option<(Bytes, Bytes)>, OperationError> {
        let Some(level) = self.levels.last_mut() else { return Ok(None) };
        let Some((word, entry)) = level.entries.front().cloned() else {
            let Some(leaves) = &mut level.leaves else {
                self.pop();
                return Ok(None);
            };
            match poll_fn(|context| Pin::new(&mut *leaves).poll_next(context)).await {
                Some(entries) => level.entries = in_order(entries?, self.options.order),
                None => self.pop(),
            }
            return Ok(None);
        };
        let pair = match entry {
            Entry::Inline(value) => {
                let beginning = Beginning::of(&self.pool.config().tree, level.layer.as_deref());
                let spelled = [&level.path[..], &beginning.common(word)].concat();
                Some((Bytes::from(key::read(&spelled)), value))
            }
            Entry::Record(record) => {
                parts(&record).map(|(found, value)| (record.slice_ref(found), record.slice_ref(value)))
            }
            Entry::Layer(leaf) => {
                let opened = self.open(word, leaf).await?;
                // Only now: what is dropped before begins here again.
                if let Some(level) = self.levels.last_mut() {
                    level.entries.pop_front();
                }
                self.levels.extend(opened);
                return Ok(None);
            }
        };
        level.entries.pop_front();
        let pair = pair.filter(|(key, _)| self.range.contains(key));
        if let Some((key, _)) = &pair {
            self.taken += 1;
            self.last = Some(key.clone());
            if let Some(recovery) = self.recovery.take() {
                self.add(recovery);
            }
        }
        Ok(pair)
    }

    fn pop(&mut self) {
        if let Some(Level { leaves: Some(leaves), .. }) = self.levels.pop() {
            self.trips.add_all(&leaves.trips());
        }
    }

    /// A layer that is read leaf by leaf. `None`: no keys of the range can be there.
    fn level(&self, path: Vec<u8>, layer: Option<Rc<Layer>>) -> Option<Level<'p, V>> {
        let mut range = self.words(&path, Beginning::of(&self.pool.config().tree, layer.as_deref()))?;
        if layer.is_none() {
            let highs = [range.high, self.within.high].into_iter().flatten();
            range = KeyRange { low: range.low.max(self.within.low), high: highs.min() };
            if range.is_empty() {
                return None;
            }
        }
        let start = if layer.is_some() { Start::Root } else { self.options.start };
        let wanted = self.options.wanted.saturating_sub(self.taken).max(1);
        let options = ScanOptions { start, wanted, ..self.options };
        let leaves = Some(Leaves::new(self.pool, layer.clone(), range, options, true));
        Some(Level { path, layer, leaves, entries: VecDeque::new() })
    }

    /// The words of a layer in which keys of the range may be. `None`: there are no such keys.
    fn words(&self, path: &[u8], beginning: Beginning<'_>) -> Option<KeyRange> {
        use std::cmp::Ordering::{Equal, Greater, Less};
        let low = Spelled::of(&self.range.low);
        let low = match low.compare(0, path) {
            Less => LESS,
            Equal => beginning.word(&low),
            Greater => return None,
        };
        let high = match self.range.high.as_deref().map(Spelled::of) {
            None => None,
            Some(high) => match high.compare(0, path) {
                Less => return None,
                Equal => beginning.word(&high).checked_add(1),
                Greater => None,
            },
        };
        Some(KeyRange { low, high })
    }

    /// Opens the layer below an entry of the last level. `None`: it has no keys of the range.
    async fn open(&mut self, word: u64, leaf: GlobalAddress) -> Result<Option<Level<'p, V>>, OperationError> {
        let Some(level) = self.levels.last() else { return Ok(None) };
        let (path, above) = (&level.path, level.layer.clone());
        let mut descent = Descent::within(self.pool, above.as_deref(), word);
        let path = [path, &descent.beginning().common(word)[..]].concat();
        let found = loop {
            match descent.open(leaf).await {
                Ok(found) => break Ok(found),
                Err(Reason::Fault(NodeFault::NoLayer { layer })) => {
                    break Err(OperationError::NoLayer { key: descent.record_key(), layer });
                }
                Err(reason) => descent.recover(reason).await?,
            }
        };
        self.add(descent);
        let Found { layer, mut block, state } = found?;
        if state == LayerState::Gone {
            return Ok(None);
        }
        let Some(words) = self.words(&path, layer.beginning()) else { return Ok(None) };
        let line = block.as_mut_slice().first_chunk_mut::<LINE>().expect("a block has many lines");
        if state == LayerState::Coming {
            revive(line);
        }
        let layer = Rc::new(layer);
        let entries = match Node::read(layer.tree(), &block) {
            Ok(Node::Leaf(node))
                if node.header().range().high.is_none() && node.header().partner.is_null() =>
            {
                entries_of(layer.tree(), &node, &block, words, true).ok()
            }
            _ => None,
        };
        drop(block);
        let Some(entries) = entries else { return Ok(self.level(path, Some(layer))) };
        let mut within = Descent::within(self.pool, Some(&layer), words.low);
        let entries = values_of(&mut within, entries).await;
        self.add(within);
        let entries = in_order(entries?.0, self.options.order);
        Ok(Some(Level { path, layer: Some(layer), leaves: None, entries }))
    }

    /// Adds what a descent has cost.
    fn add(&mut self, descent: Descent<'p, V>) {
        let (trips, _) = descent.end();
        self.trips.add(&trips);
        self.trips.sequential += u64::from(trips.round_trips);
    }
}

fn in_order(entries: Entries, order: Order) -> VecDeque<(u64, Entry)> {
    match order {
        Order::Forward => entries.into(),
        Order::Backward => entries.into_iter().rev().collect(),
    }
}
