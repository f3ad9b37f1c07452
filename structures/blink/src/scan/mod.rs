//! Range scans: pairs in the order of their keys, leaves read ahead in parallel.
//!
//! ```text
//!                 root         slots, in the order of the scan; the first ones are read at once:
//!               ╱   │   ╲
//!  level 1    [ ]  [ ]  [ ]    [leaf] [leaf] [leaf] [level 1: 8 leaves] [level 1] ...
//!            ╱│╲   ...          done   read   read   waiting
//!  leaves   ▪ ▪ ▪              └ taken when it has the next key
//! ```
//!
//! A scan begins with the root of the first partition. An inner node that is read is replaced by its
//! children, so a scan knows which leaves come next and reads several at once. It reads as many in the beginning as the pairs that are
//! wanted need, or two if that is not known; and twice as many with each leaf that was taken, up to [`ScanOptions::window`]. Inner nodes count as the
//! leaves that they may lead to; so a short scan reads only the way to its first leaf, and a long one reads
//! the next level-1 nodes, which are its sub-ranges, while it still takes leaves of this one. It works
//! backwards as well as forwards, and on into the next partition. Nothing is read until the caller asks for
//! pairs.
//!
//! **Why no key is missed.** What the slots say of the tree is a guess. Each node is read by a [descent](crate::descent) for a key,
//! with all of its checks, and tells for which keys it was responsible when it was read. A leaf is taken only if it was for the key
//! that comes next, and that key moves on to the leaf's end, its fence or its partner's. So the leaves that
//! were taken tile the range. If the guess is wrong (nodes were split or merged), the leaf of the next key is
//! looked for by a descent of its own. So each key is answered once, by a leaf that was responsible for it at
//! some moment of the scan; a record that was replaced since is looked up again. A scan is not a snapshot:
//! two keys are answered at two moments.
//!
//! **In-network** (Fat-B+Tree section IV-C). With [`Start::IndexRead`] the switches find the first leaf of
//! the range. A scan whose end is not known has the walk beside it that finds the leaves after the first, so the first pairs come before
//! the walk has ended. One that knows how many pairs are [wanted](ScanOptions::wanted) has no walk: it asks the switches for all leaves at
//! once, at keys that are as far apart as leaves have been lately. An index read that lands at the leaves' parent names them all. One that
//! does not name the leaf of the next key is not taken again, so that a forged node holds no scan up.
//!
//! ```text
//!   index reads at   key     key + w    key + 2 w      w: 7/8 of the mean width of leaves
//!                     │         │          │
//!   leaves         [  ▼    ][   ▼   ][  ][ ▼     ]     no guess has met the third leaf: it is asked for by the key at which the second one ends
//! ```
//!
//! Where guesses fail too often a walk goes on. The paper cuts a range into
//! sub-ranges and asks for them in parallel; so can a caller here, with [`KeyRange::split_evenly`]: each part
//! begins with an index read of its own, all at the same time. Borders from inner nodes would be better
//! balanced but have to be read first; those that are read anyway are what a scan reads ahead by.
//!
//! **Round trips.** A range of N leaves over a tree of h levels takes h round trips until its first leaf is there, and about
//! N/window + 3 more, one after another: [`ScanTrips::sequential`]. Where several leaves are read at once,
//! [`ScanTrips::reads`] counts each. With switches that hold the way to all leaves, the pairs that are wanted take one or two.

mod fetch;
mod leaves;
mod spacing;

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use fatbtree_remote_memory::{KeyRange, Order};
use fatbtree_verbs::Verbs;
use futures_core::Stream;

use crate::config::Keys;
use crate::operation::{OperationError, Start, Trips};
use crate::pool::Pool;
pub(crate) use fetch::{Entries, Entry, entries_of, values_of};
pub(crate) use leaves::Leaves;

pub(crate) use spacing::Spacing;

/// Options of a scan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScanOptions {
    /// Order of the scan: the end that comes first.
    pub order: Order,
    /// Start of the search for the first leaf: with [`Start::Root`] by the walk that finds all others;
    /// otherwise beside it. Where switches are asked for the pairs that are [wanted](Self::wanted), each leaf is looked for so.
    pub start: Start,
    /// Leaves read ahead at most, at least 1. With values out of line fewer are, so that their values have about 4 MiB together.
    pub window: usize,
    /// Pairs that the caller is going to take, as far as it knows; `usize::MAX`: all. No more leaves are read ahead than these need, and those
    /// at once. The scan goes on beyond them.
    pub wanted: usize,
}

impl Default for ScanOptions {
    /// Forward, from the root, up to 16 leaves at a time, all pairs.
    fn default() -> Self {
        Self { order: Order::Forward, start: Start::Root, window: 16, wanted: usize::MAX }
    }
}

/// Cost of a scan so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ScanTrips {
    /// Reads completed, failed ones included.
    pub reads: u64,
    /// Round trips one after another, if each takes as long: what the scan waited for.
    pub sequential: u64,
    /// Leaves taken.
    pub leaves: u64,
    /// Leaves whose read was wasted, because other leaves had their keys.
    pub unused: u64,
    /// Reads of the same bytes again because they were torn.
    pub retries: u64,
    /// Walks begun again at a root because a node failed its checks.
    pub restarts: u64,
    /// Walks begun again because the connection broke.
    pub breaks: u64,
    /// Steps to a right sibling.
    pub siblings_followed: u64,
}

impl ScanTrips {
    pub(crate) fn add_all(&mut self, other: &Self) {
        self.reads += other.reads;
        self.sequential += other.sequential;
        self.leaves += other.leaves;
        self.unused += other.unused;
        self.retries += other.retries;
        self.restarts += other.restarts;
        self.breaks += other.breaks;
        self.siblings_followed += other.siblings_followed;
    }

    pub(crate) fn add(&mut self, trips: &Trips) {
        self.reads += u64::from(trips.round_trips);
        self.retries += u64::from(trips.retries);
        self.restarts += u64::from(trips.restarts);
        self.breaks += u64::from(trips.breaks);
        self.siblings_followed += u64::from(trips.siblings_followed);
    }
}

/// A scan under way: a stream of keys and values.
///
/// Values are copies that hold no registered buffer, so as many can be kept as there is memory; those in line of one leaf share a copy
/// of it. After an error the stream ends.
pub struct Scan<'p, V> {
    leaves: Leaves<'p, V>,
    /// Pairs of the leaf that was taken last.
    pairs: std::vec::IntoIter<(u64, Entry)>,
}

impl<V> std::fmt::Debug for Scan<'_, V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Scan").field("pairs", &self.pairs).finish_non_exhaustive()
    }
}

impl<V: Verbs> Pool<V> {
    /// Scans a range: its keys and their values, in order. See [`ScanOptions`]; nothing is read before the stream is polled.
    pub fn scan(&self, range: KeyRange, options: ScanOptions) -> Scan<'_, V> {
        Scan { leaves: Leaves::new(self, None, range, options, true), pairs: Entries::new().into_iter() }
    }

    /// Counts the keys of a range: reads its leaves and no records. As with a scan, keys are counted at different moments.
    ///
    /// # Errors
    /// When a part of the range has no answer.
    pub async fn len(&self, range: KeyRange) -> Result<u64, OperationError> {
        self.check_keys(Keys::Numbers)?;
        let options = ScanOptions { window: 32, ..ScanOptions::default() };
        let mut leaves = Leaves::new(self, None, range, options, false);
        let mut count = 0;
        while let Some(pairs) = poll_fn(|context| Pin::new(&mut leaves).poll_next(context)).await {
            count += pairs?.len() as u64;
        }
        Ok(count)
    }
}

impl<V: Verbs> Scan<'_, V> {
    /// The next pair; none at the end.
    ///
    /// # Errors
    /// When the next leaf cannot be read; the stream ends then.
    pub async fn next(&mut self) -> Option<Result<(u64, Bytes), OperationError>> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// Cost of the scan so far.
    #[must_use]
    pub fn trips(&self) -> ScanTrips {
        self.leaves.trips()
    }
}

impl<V: Verbs> Stream for Scan<'_, V> {
    type Item = Result<(u64, Bytes), OperationError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Err(error) = this.leaves.check_keys() {
                return Poll::Ready(Some(Err(error)));
            }
            if let Some((key, entry)) = this.pairs.next() {
                return Poll::Ready(Some(match entry {
                    Entry::Inline(value) | Entry::Record(value) => Ok((key, value)),
                    Entry::Layer(_) => Err(OperationError::Keys { tree: Keys::Bytes }),
                }));
            }
            match ready!(Pin::new(&mut this.leaves).poll_next(context)) {
                Some(Ok(mut pairs)) => {
                    if this.leaves.is_backward() {
                        pairs.reverse();
                    }
                    this.pairs = pairs.into_iter();
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }
}
