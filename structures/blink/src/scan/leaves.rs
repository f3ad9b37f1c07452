//! The leaves of a range in the order of a scan, read ahead.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use fatbtree_remote_memory::{GlobalAddress, KeyRange};
use fatbtree_verbs::Verbs;
use futures_buffered::FuturesUnorderedBounded;
use futures_core::Stream;

use super::fetch::{Ask, Entries, Fetched, Holds, fetch};
use super::{Order, ScanOptions, ScanTrips};
use crate::config::Keys;
use crate::layers::Layer;
use crate::operation::{OperationError, Start};
use crate::pool::Pool;
use crate::super_root::Partition;

/// Leaves read ahead in the beginning.
const FIRST_WINDOW: usize = 2;

/// Leaves that make up for one guess that has failed.
const FAILURE: u32 = 4;

/// Failures that are borne.
const MOST_FAILURES: u32 = 3;

/// Bytes of values that the leaves read ahead should have together, at most.
const AHEAD_BYTES: usize = 4 << 20;

type Read<'p> = Pin<Box<dyn Future<Output = (u64, Result<Fetched, OperationError>)> + 'p>>;

/// A stream of what the leaves of a range hold: the entries of one leaf after the other, in ascending order.
pub(crate) struct Leaves<'p, V> {
    pool: &'p Pool<V>,
    /// The layer that is scanned; none: the first one.
    layer: Option<Rc<Layer>>,
    range: KeyRange,
    options: ScanOptions,
    /// Whether values are wanted, or keys only.
    values: bool,
    /// The key that the next leaf must be responsible for; none when the scan has ended.
    at: Option<u64>,
    /// A key of the next partition to begin with.
    seed: Option<u64>,
    /// The first seed is taken.
    begun: bool,
    /// Slots to come, in the order of the scan. All that they say of the tree is a guess.
    slots: VecDeque<Slot>,
    reads: FuturesUnorderedBounded<Read<'p>>,
    last_id: u64,
    /// Leaves to be read ahead.
    window: usize,
    /// Pairs of the leaves that were taken.
    taken: usize,
    /// Whether the switches are asked for each leaf, at keys that are guessed.
    guesses: bool,
    /// A parent was read since the last leaf was taken, and has not named the leaf of the next key.
    is_stuck: bool,
    /// Guesses that have failed lately: reads of leaves that were of no use, and leaves that no guess has met.
    failed: u32,
    /// Place to look for a leaf that no parent has named.
    hint: Option<GlobalAddress>,
    trips: ScanTrips,
}

/// A node to be read.
struct Slot {
    id: u64,
    /// The keys it should be responsible for.
    claim: KeyRange,
    /// The key by which the switches are asked, where no node has named the leaf: it may be any one between this key and the one before it.
    aim: Option<u64>,
    start: Start,
    /// None: the root.
    level: Option<u8>,
    /// Leaves that may come of it.
    leaves: usize,
    state: State,
}

enum State {
    Waiting,
    /// The read began after this many sequential round trips.
    Reading(u64),
    /// It was a leaf.
    Done(Result<Leaf, OperationError>),
}

struct Leaf {
    address: GlobalAddress,
    range: KeyRange,
    entries: Entries,
}

/// Position of keys, seen from the key that comes next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Behind,
    Here,
    Ahead,
}

impl<'p, V: Verbs> Leaves<'p, V> {
    pub(crate) fn new(
        pool: &'p Pool<V>,
        layer: Option<Rc<Layer>>,
        range: KeyRange,
        options: ScanOptions,
        values: bool,
    ) -> Self {
        let at = match options.order {
            _ if range.is_empty() => None,
            Order::Forward => Some(range.low),
            Order::Backward => Some(last_of(&range)),
        };
        // One more than the window, for a leaf that was not expected.
        let reads = FuturesUnorderedBounded::new(options.window.max(1) + 1);
        let mut leaves = Self {
            pool,
            layer,
            range,
            options,
            values,
            at,
            seed: at,
            begun: false,
            slots: VecDeque::new(),
            reads,
            last_id: 0,
            window: FIRST_WINDOW,
            taken: 0,
            guesses: matches!(options.start, Start::IndexRead | Start::CachedOrIndexRead)
                && options.wanted < usize::MAX,
            is_stuck: false,
            failed: 0,
            hint: None,
            trips: ScanTrips::default(),
        };
        // As many at once as are needed, if that is known.
        let first = if options.wanted == usize::MAX { FIRST_WINDOW } else { leaves.wanted() };
        leaves.window = first.clamp(1, options.window.max(1));
        leaves
    }

    /// Leaves that are still wanted, as far as is known.
    fn wanted(&self) -> usize {
        if self.options.wanted == usize::MAX {
            return usize::MAX;
        }
        let pairs = self.options.wanted.saturating_sub(self.taken);
        let capacity = self.pool.config().tree.leaf_capacity();
        self.pool.spacing().leaves(pairs, self.trips.leaves == 0, capacity).max(1)
    }

    /// Notes a guess that has failed. After too many a walk goes on.
    fn fail(&mut self) {
        self.failed = self.failed.saturating_add(FAILURE);
        if self.guesses && self.failed > MOST_FAILURES * FAILURE {
            self.guesses = false;
            self.slots.clear();
        }
    }

    fn partition_of(&self, key: u64) -> Partition {
        self.layer.as_ref().map_or_else(|| self.pool.partition_of(key), |layer| layer.partition())
    }

    /// Fails, once, where keys are no numbers.
    pub(crate) fn check_keys(&mut self) -> Result<(), OperationError> {
        match self.pool.check_keys(Keys::Numbers) {
            Err(error) if self.at.take().is_some() => Err(error),
            _ => Ok(()),
        }
    }

    pub(crate) fn trips(&self) -> ScanTrips {
        self.trips
    }

    pub(crate) fn is_backward(&self) -> bool {
        self.options.order == Order::Backward
    }

    fn place(&self, range: &KeyRange, at: u64) -> Place {
        match (range.contains(at), range.is_below(at) == self.is_backward()) {
            (true, _) => Place::Here,
            (false, true) => Place::Ahead,
            (false, false) => Place::Behind,
        }
    }

    /// The key that comes after all of `range`, if one does that is to be scanned.
    fn after(&self, range: &KeyRange) -> Option<u64> {
        let next = if self.is_backward() { range.low.checked_sub(1) } else { range.high };
        next.filter(|next| self.range.contains(*next))
    }

    fn slot(&mut self, claim: KeyRange, start: Start, level: Option<u8>, height: u8) -> Slot {
        self.last_id += 1;
        // Inner nodes are at least half full, mostly.
        let half = usize::from(self.pool.config().tree.fan_out() / 2).max(2);
        let leaves = half.saturating_pow(height.into());
        Slot { id: self.last_id, claim, aim: None, start, level, leaves, state: State::Waiting }
    }

    /// Slot of a leaf for which the switches are asked by a key: the last one of its claim, in the order of the scan.
    fn aimed(&mut self, aim: u64, claim: KeyRange) -> Slot {
        let slot = self.slot(claim, self.options.start, Some(0), 0);
        Slot { aim: Some(aim), ..slot }
    }

    /// Slot of the leaf that should follow the last slot.
    fn guess(&mut self) -> Option<Slot> {
        let last = self.slots.back().filter(|slot| slot.level == Some(0))?;
        let known = match (&last.state, last.aim) {
            (State::Done(Ok(leaf)), _) => leaf.range,
            (_, None) => last.claim,
            (_, Some(aim)) => {
                let step = self.pool.spacing().step()?;
                let (next, claim) = if self.is_backward() {
                    let next = aim.checked_sub(step)?;
                    (next, KeyRange { low: next, high: Some(aim) })
                } else {
                    let next = aim.checked_add(step)?;
                    (next, KeyRange { low: aim + 1, high: next.checked_add(1) })
                };
                // What another server has is asked for when this one's keys have ended: it may be away.
                let here = self.partition_of(aim).range;
                return (self.range.contains(next) && here.contains(next)).then(|| self.aimed(next, claim));
            }
        };
        let next = self.after(&known)?;
        Some(self.aimed(next, one(next)))
    }

    /// Slot of a leaf that no parent has named.
    fn slot_at(&mut self, at: u64) -> Slot {
        let claim = one(at);
        if self.guesses {
            return self.aimed(at, claim);
        }
        let start = match (self.hint, self.options.start) {
            (Some(address), _) => Start::Node { address, level: 0 },
            (None, Start::Node { .. }) => Start::Root,
            (None, start) => start,
        };
        self.slot(claim, start, Some(0), 0)
    }

    /// Takes the next leaf, if it is there.
    fn take(&mut self, at: u64) -> Option<Result<Entries, OperationError>> {
        loop {
            let Some(slot) = self.slots.pop_front() else {
                if self.guesses {
                    let next = self.slot_at(at);
                    self.slots.push_back(next);
                } else {
                    self.seed = Some(at);
                }
                return None;
            };
            let range = match &slot.state {
                State::Done(Ok(leaf)) => leaf.range,
                State::Done(Err(_)) | State::Waiting | State::Reading(_) => slot.claim,
            };
            match (self.place(&range, at), slot.state) {
                (Place::Here, State::Done(Ok(leaf))) => return Some(Ok(self.consume(at, slot.start, leaf))),
                // It is another key's error, perhaps of a leaf beyond.
                (Place::Here, State::Done(Err(_))) if slot.aim.is_some_and(|aim| aim != at) => {
                    self.ask_anew(at)
                }
                (Place::Here, State::Done(Err(error))) => {
                    self.at = None;
                    self.slots.clear();
                    return Some(Err(error));
                }
                (Place::Here, state) => {
                    self.slots.push_front(Slot { state, ..slot });
                    return None;
                }
                (Place::Ahead, state) => {
                    self.slots.push_front(Slot { state, ..slot });
                    self.ask_anew(at);
                    return None;
                }
                (Place::Behind, State::Done(Ok(_))) => self.unused(),
                (Place::Behind, _) => {}
            }
        }
    }

    /// A leaf was read for keys that other leaves had.
    fn unused(&mut self) {
        self.trips.unused += 1;
        self.fail();
    }

    /// Looks for the leaf of the next key, which no slot is for.
    fn ask_anew(&mut self, at: u64) {
        self.fail();
        if self.guesses || !self.slots.is_empty() {
            let slot = self.slot_at(at);
            self.slots.push_front(slot);
        } else {
            self.seed = Some(at);
        }
    }

    fn consume(&mut self, at: u64, start: Start, leaf: Leaf) -> Entries {
        // Of a leaf at an end of the range, pairs were left out.
        let ends_within = |high| self.range.high.is_none_or(|end| high <= end);
        let is_whole = self.range.low <= leaf.range.low && leaf.range.high.is_some_and(ends_within);
        if is_whole && self.layer.is_none() {
            self.pool.note_leaf(&leaf.range, leaf.entries.len());
        }
        self.trips.leaves += 1;
        self.failed = self.failed.saturating_sub(1);
        self.is_stuck = false;
        let bytes: usize = leaf.entries.iter().map(|(_, entry)| entry.len()).sum();
        let most = (AHEAD_BYTES / bytes.max(1)).clamp(1, self.options.window.max(1));
        self.window = (self.window * 2).min(most);
        self.at = self.after(&leaf.range);
        let backward = self.is_backward();
        let found_from = match start {
            Start::Node { address, level: 0 } if backward => Some(address),
            _ => (!backward).then_some(leaf.address),
        };
        let partition = self.partition_of(at).range;
        self.hint = found_from.filter(|_| self.at.is_some_and(|next| partition.contains(next)));
        let mut entries = leaf.entries;
        // Keys before `at`, in the order of the scan, were in an earlier leaf.
        entries.retain(|(key, _)| if backward { *key <= at } else { *key >= at });
        self.taken += entries.len();
        entries
    }

    /// Reads ahead as many leaves as the window allows, and the inner nodes that lead to as many more.
    fn issue(&mut self, at: u64) {
        let (mut ahead, mut index) = (0, 0);
        let most = self.wanted().min(2 * self.window);
        while ahead < most {
            if index == self.slots.len() {
                if self.guesses {
                    let Some(slot) = self.guess() else { return };
                    self.slots.push_back(slot);
                    continue;
                }
                let Some(key) = self.seed.take() else { return };
                self.begin_partition(key);
                continue;
            }
            let slot = &self.slots[index];
            let in_window = ahead < self.window || slot.level != Some(0);
            // A forged root may be of any level.
            ahead = ahead.saturating_add(slot.leaves);
            if in_window && matches!(slot.state, State::Waiting) {
                if self.reads.len() == self.reads.capacity() {
                    return;
                }
                self.read(index, at);
            }
            index += 1;
        }
    }

    fn begin_partition(&mut self, key: u64) {
        let partition = self.partition_of(key);
        // A walk from the root finds the first leaf by itself; where another way may be shorter it is tried beside the walk. And
        // if a walk has left something out, the next leaf at least is found.
        let is_first = !std::mem::replace(&mut self.begun, true);
        let first = match self.options.start {
            Start::Root => None,
            Start::Node { .. } if !is_first => None,
            start => Some(start),
        };
        let again = self.hint.is_some() && self.slots.is_empty();
        if partition.root_level > 0 {
            if again {
                let slot = self.slot_at(key);
                self.slots.push_back(slot);
            } else if let Some(start) = first {
                let slot = self.slot(one(key), start, Some(0), 0);
                self.slots.push_back(slot);
            }
        }
        let root = self.slot(partition.range, Start::Root, None, partition.root_level);
        self.slots.push_back(root);
        self.seed = self.after(&partition.range);
    }

    fn read(&mut self, index: usize, at: u64) {
        let slot = &mut self.slots[index];
        slot.state = State::Reading(self.trips.sequential);
        let key = match (slot.aim, self.options.order) {
            (Some(aim), _) => aim,
            (None, Order::Forward) => at.max(slot.claim.low),
            (None, Order::Backward) => at.min(last_of(&slot.claim)),
        };
        // One parent that does not name the leaf of the next key is enough.
        let (start, level, or_parent) = (slot.start, slot.level, slot.aim.is_some() && !self.is_stuck);
        let ask = Ask { key, start, level, or_parent, keep: self.range, values: self.values };
        let (pool, id, layer) = (self.pool, slot.id, self.layer.clone());
        self.reads.push(Box::pin(async move { (id, fetch(pool, layer.as_deref(), ask).await) }));
    }

    /// Notes what a read has brought.
    fn arrived(&mut self, id: u64, result: Result<Fetched, OperationError>) {
        if let Ok(fetched) = &result {
            self.trips.add(&fetched.trips);
        }
        let Some(index) = self.slots.iter().position(|slot| slot.id == id) else {
            if matches!(result, Ok(Fetched { holds: Holds::Entries(_), .. })) {
                self.unused();
            }
            return;
        };
        let slot = &mut self.slots[index];
        let State::Reading(begun) = slot.state else { unreachable!("a slot is read once") };
        let fetched = match result {
            Ok(fetched) => fetched,
            Err(error) => {
                slot.state = State::Done(Err(error));
                return;
            }
        };
        self.trips.sequential = self.trips.sequential.max(begun + u64::from(fetched.depth));
        let Fetched { address, range, holds, .. } = fetched;
        match holds {
            Holds::Entries(entries) => slot.state = State::Done(Ok(Leaf { address, range, entries })),
            Holds::Children(level, children) => self.expand(index, level - 1, &range, &children),
            Holds::Nothing => drop(self.slots.remove(index)),
        }
    }

    /// Puts the children of a node where the node was.
    fn expand(&mut self, index: usize, level: u8, range: &KeyRange, children: &[(u64, GlobalAddress)]) {
        let Some(at) = self.at else { return };
        let backward = self.is_backward();
        let mut behind = self.slots.split_off(index + 1);
        let Some(node) = self.slots.pop_back() else { return };
        // What lies before a guess is others'. Later guesses for which nothing has come are leaves that are named now.
        let at = match backward {
            true => at.min(last_of(&node.claim)),
            false => at.max(node.claim.low),
        };
        let is_named = |slot: &Slot| slot.aim.is_some_and(|aim| range.contains(aim));
        behind.retain(|slot| matches!(slot.state, State::Done(_)) || !is_named(slot));
        let mut add = |number: usize| {
            let (low, address) = children[number];
            let high = children.get(number + 1).map_or(range.high, |(next, _)| Some(*next));
            let claim = KeyRange { low, high };
            let is_wanted = claim.overlaps(range)
                && claim.overlaps(&self.range)
                && self.place(&claim, at) != Place::Behind;
            if is_wanted {
                let slot = self.slot(claim, Start::Node { address, level }, Some(level), level);
                self.slots.push_back(slot);
            }
        };
        match backward {
            true => (0..children.len()).rev().for_each(&mut add),
            false => (0..children.len()).for_each(&mut add),
        }
        self.slots.extend(behind);
        self.is_stuck |= !self.slots.iter().any(|slot| self.at.is_some_and(|at| slot.claim.contains(at)));
    }
}

impl<V: Verbs> Stream for Leaves<'_, V> {
    type Item = Result<Entries, OperationError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            let Some(at) = this.at else { return Poll::Ready(None) };
            if let Some(leaf) = this.take(at) {
                return Poll::Ready(Some(leaf));
            }
            this.issue(at);
            match Pin::new(&mut this.reads).poll_next(context) {
                Poll::Ready(Some((id, result))) => this.arrived(id, result),
                Poll::Ready(None) => unreachable!("the first slot is read, and there is one"),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

/// One key.
fn one(key: u64) -> KeyRange {
    KeyRange { low: key, high: key.checked_add(1) }
}

/// The highest key of a range that has one.
fn last_of(range: &KeyRange) -> u64 {
    range.high.map_or(u64::MAX, |high| high.saturating_sub(1))
}
