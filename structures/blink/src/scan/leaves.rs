//! The leaves of a range in the order of a scan, read ahead.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use fatbtree_remote_memory::{GlobalAddress, KeyRange};
use fatbtree_verbs::Verbs;
use futures_buffered::FuturesUnorderedBounded;
use futures_core::Stream;

use super::fetch::{Ask, Fetched, Holds, fetch};
use super::{Order, ScanOptions, ScanTrips};
use crate::operation::{OperationError, Start};
use crate::pool::Pool;

/// Leaves read ahead in the beginning.
const FIRST_WINDOW: usize = 2;

/// Bytes of values that the leaves read ahead should have together, at most.
const AHEAD_BYTES: usize = 4 << 20;

type Read<'p> = Pin<Box<dyn Future<Output = (u64, Result<Fetched, OperationError>)> + 'p>>;

/// Pairs of one leaf, in ascending order.
pub(super) type Pairs = Vec<(u64, Bytes)>;

/// A stream of what the leaves of a range hold.
pub(super) struct Leaves<'p, V> {
    pool: &'p Pool<V>,
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
    /// Place to look for a leaf that no parent has named.
    hint: Option<GlobalAddress>,
    trips: ScanTrips,
}

/// A node to be read.
struct Slot {
    id: u64,
    /// The keys it should be responsible for.
    claim: KeyRange,
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
    pairs: Pairs,
}

/// Position of keys, seen from the key that comes next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Behind,
    Here,
    Ahead,
}

impl<'p, V: Verbs> Leaves<'p, V> {
    pub(super) fn new(pool: &'p Pool<V>, range: KeyRange, options: ScanOptions, values: bool) -> Self {
        let at = match options.order {
            _ if range.is_empty() => None,
            Order::Forward => Some(range.low),
            Order::Backward => Some(last_of(&range)),
        };
        // One more than the window, for a leaf that was not expected.
        let reads = FuturesUnorderedBounded::new(options.window.max(1) + 1);
        Self {
            pool,
            range,
            options,
            values,
            at,
            seed: at,
            begun: false,
            slots: VecDeque::new(),
            reads,
            last_id: 0,
            window: FIRST_WINDOW.min(options.window.max(1)),
            hint: None,
            trips: ScanTrips::default(),
        }
    }

    pub(super) fn trips(&self) -> ScanTrips {
        self.trips
    }

    pub(super) fn is_backward(&self) -> bool {
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
        Slot { id: self.last_id, claim, start, level, leaves, state: State::Waiting }
    }

    /// Slot of a leaf that no parent has named.
    fn slot_at(&mut self, at: u64) -> Slot {
        let claim = KeyRange { low: at, high: at.checked_add(1) };
        let start = match (self.hint, self.options.start) {
            (Some(address), _) => Start::Node { address, level: 0 },
            (None, Start::Node { .. }) => Start::Root,
            (None, start) => start,
        };
        self.slot(claim, start, Some(0), 0)
    }

    /// Takes the next leaf, if it is there.
    fn take(&mut self, at: u64) -> Option<Result<Pairs, OperationError>> {
        loop {
            let Some(slot) = self.slots.pop_front() else {
                self.seed = Some(at);
                return None;
            };
            let range = match &slot.state {
                State::Done(Ok(leaf)) => leaf.range,
                State::Done(Err(_)) | State::Waiting | State::Reading(_) => slot.claim,
            };
            match (self.place(&range, at), slot.state) {
                (Place::Here, State::Done(Ok(leaf))) => return Some(Ok(self.consume(at, slot.start, leaf))),
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
                    let missing = self.slot_at(at);
                    self.slots.push_front(missing);
                    return None;
                }
                (Place::Behind, state) => self.trips.unused += u64::from(matches!(state, State::Done(Ok(_)))),
            }
        }
    }

    fn consume(&mut self, at: u64, start: Start, leaf: Leaf) -> Pairs {
        self.trips.leaves += 1;
        let bytes: usize = leaf.pairs.iter().map(|(_, value)| value.len()).sum();
        let most = (AHEAD_BYTES / bytes.max(1)).clamp(1, self.options.window.max(1));
        self.window = (self.window * 2).min(most);
        self.at = self.after(&leaf.range);
        let backward = self.is_backward();
        let found_from = match start {
            Start::Node { address, level: 0 } if backward => Some(address),
            _ => (!backward).then_some(leaf.address),
        };
        let partition = self.pool.partition_of(at).range;
        self.hint = found_from.filter(|_| self.at.is_some_and(|next| partition.contains(next)));
        let mut pairs = leaf.pairs;
        // Keys before `at`, in the order of the scan, were in an earlier leaf.
        pairs.retain(|(key, _)| if backward { *key <= at } else { *key >= at });
        pairs
    }

    /// Reads ahead as many leaves as the window allows, and the inner nodes that lead to as many more.
    fn issue(&mut self, at: u64) {
        let (mut ahead, mut index) = (0, 0);
        while ahead < 2 * self.window {
            if index == self.slots.len() {
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
        let partition = self.pool.partition_of(key);
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
                let claim = KeyRange { low: key, high: key.checked_add(1) };
                let slot = self.slot(claim, start, Some(0), 0);
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
        let key = match self.options.order {
            Order::Forward => at.max(slot.claim.low),
            Order::Backward => at.min(last_of(&slot.claim)),
        };
        let ask = Ask { key, start: slot.start, level: slot.level, keep: self.range, values: self.values };
        let (pool, id) = (self.pool, slot.id);
        self.reads.push(Box::pin(async move { (id, fetch(pool, ask).await) }));
    }

    /// Notes what a read has brought.
    fn arrived(&mut self, id: u64, result: Result<Fetched, OperationError>) {
        if let Ok(fetched) = &result {
            self.trips.add(&fetched.trips);
        }
        let Some(index) = self.slots.iter().position(|slot| slot.id == id) else {
            self.trips.unused += u64::from(matches!(result, Ok(Fetched { holds: Holds::Pairs(_), .. })));
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
            Holds::Pairs(pairs) => slot.state = State::Done(Ok(Leaf { address, range, pairs })),
            Holds::Children(level, children) => self.expand(index, level - 1, &range, &children),
            Holds::Nothing => drop(self.slots.remove(index)),
        }
    }

    /// Puts the children of a node where the node was.
    fn expand(&mut self, index: usize, level: u8, range: &KeyRange, children: &[(u64, GlobalAddress)]) {
        let Some(at) = self.at else { return };
        let backward = self.is_backward();
        let behind = self.slots.split_off(index + 1);
        self.slots.pop_back();
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
    }
}

impl<V: Verbs> Stream for Leaves<'_, V> {
    type Item = Result<Pairs, OperationError>;

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

/// The highest key of a range that has one.
fn last_of(range: &KeyRange) -> u64 {
    range.high.map_or(u64::MAX, |high| high.saturating_sub(1))
}
