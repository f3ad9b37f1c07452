//! Switches' effect on requests that pass: landings of index reads, delays and losses.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{IndexTarget, QueuePair, Remote};

use super::{MachineId, Random};

/// An index read that passes the switches.
#[derive(Clone, Copy, Debug)]
pub struct IndexRead {
    /// The client that sends the index read.
    pub client: MachineId,
    /// The memory server that the index read is addressed to.
    pub server: MachineId,
    /// The client's queue pair, which no other connection of the world has.
    pub queue_pair: QueuePair,
    /// The key.
    pub key: u64,
    /// Permitted target of the index read.
    pub target: IndexTarget,
    /// Bytes it asks for.
    pub len: u32,
}

/// Effect of the switches on an index read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// The switches rewrite it to this place on its server.
    At(Remote),
    /// The switches do not know the connection: the index read passes as it is, and the server refuses it.
    Unregistered,
}

/// Whether a message passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// The message passes at once.
    Go,
    /// The message passes later by this time.
    Wait(Duration),
    /// The message never passes.
    Lost,
}

/// The switches of a world. They are asked in the order of virtual time and draw only from the generator they are given.
pub trait Switches {
    /// An index read passes at `now`. A request that is sent again passes again, and may land elsewhere.
    fn resolve(&mut self, now: Instant, read: &IndexRead, random: &mut Random) -> Resolved;

    /// A request or an answer leaves `from` for `to` at `now`.
    fn pass(&mut self, _now: Instant, _from: MachineId, _to: MachineId, _random: &mut Random) -> Passage {
        Passage::Go
    }
}

/// Switches that know no connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSwitches;

impl Switches for NoSwitches {
    fn resolve(&mut self, _now: Instant, _read: &IndexRead, _random: &mut Random) -> Resolved {
        Resolved::Unregistered
    }
}

/// Switches with a cache by key range, which can be behind the tree, and which can stand still. Clones are the same switches: give
/// one to the world and keep one.
///
/// ```
/// use fatbtree_sim::world::{CachedSwitches, MachineId};
/// use fatbtree_verbs::{QueuePair, Remote};
///
/// let (switches, server) = (CachedSwitches::default(), MachineId(1));
/// let at = |address| Remote { address, rkey: 7 };
/// switches.register(QueuePair(3), at(0));
/// switches.cache(server, 0..=99, at(64));
/// switches.cache(server, 50..=59, at(128)); // the rest stays
/// assert_eq!(switches.find(server, 55), Some(at(128)));
/// assert_eq!(switches.find(server, 99), Some(at(64)));
/// assert_eq!(switches.find(server, 100), None, "lands at the root");
/// switches.cache_key(server, 55, at(192)); // for reads that may be led to records
/// ```
#[derive(Clone, Debug, Default)]
pub struct CachedSwitches(Rc<RefCell<Cached>>);

#[derive(Debug, Default)]
struct Cached {
    /// Landing of an index read without a matching range: the root that the connection was registered with.
    registered: BTreeMap<QueuePair, Remote>,
    /// Ranges by server and first key: the last key, and the target.
    ranges: BTreeMap<(MachineId, u64), (u64, Remote)>,
    /// Hot keys by server, with the landing of reads that may be led to records.
    keys: BTreeMap<(MachineId, u64), Remote>,
    /// Time before which nothing passes.
    still_until: Instant,
    dark: bool,
}

impl CachedSwitches {
    /// Registers a queue pair, whose index reads land at `root` unless a cache has another place for their key.
    pub fn register(&self, queue_pair: QueuePair, root: Remote) {
        self.0.borrow_mut().registered.insert(queue_pair, root);
    }

    /// Forgets a queue pair.
    pub fn unregister(&self, queue_pair: QueuePair) {
        self.0.borrow_mut().registered.remove(&queue_pair);
    }

    /// Caches a range: index reads of these keys land at `at` from now on.
    pub fn cache(&self, server: MachineId, keys: std::ops::RangeInclusive<u64>, at: Remote) {
        let (low, high) = keys.into_inner();
        self.forget_ranges(server, low, high);
        self.0.borrow_mut().ranges.insert((server, low), (high, at));
    }

    /// Caches a hot key: its index reads land at `at` from now on if they may land on records. Ranges are ignored
    /// then.
    pub fn cache_key(&self, server: MachineId, key: u64, at: Remote) {
        self.0.borrow_mut().keys.insert((server, key), at);
    }

    /// Forgets what caches have for these keys: their index reads land at the root from now on.
    pub fn forget(&self, server: MachineId, keys: std::ops::RangeInclusive<u64>) {
        let (low, high) = keys.into_inner();
        self.forget_ranges(server, low, high);
        self.0.borrow_mut().keys.retain(|&(at, key), _| at != server || !(low..=high).contains(&key));
    }

    fn forget_ranges(&self, server: MachineId, low: u64, high: u64) {
        let ranges = &mut self.0.borrow_mut().ranges;
        let touched: Vec<_> = ranges
            .range((server, 0)..=(server, high))
            .filter(|(_, (last, _))| *last >= low)
            .map(|(&(_, first), &(last, at))| (first, last, at))
            .collect();
        for (first, last, at) in touched {
            ranges.remove(&(server, first));
            if first < low {
                ranges.insert((server, first), (low - 1, at));
            }
            if last > high {
                ranges.insert((server, high + 1), (last, at));
            }
        }
    }

    /// Target in the caches; `None` if they know only the root.
    #[must_use]
    pub fn find(&self, server: MachineId, key: u64) -> Option<Remote> {
        let ranges = &self.0.borrow().ranges;
        let (_, &(last, at)) = ranges.range((server, 0)..=(server, key)).next_back()?;
        (key <= last).then_some(at)
    }

    /// Freezes the switches: messages wait, and none passes before `until`.
    pub fn freeze(&self, until: Instant) {
        self.0.borrow_mut().still_until = until;
    }

    /// Sets whether everything is lost, as while a program is loaded anew.
    pub fn set_dark(&self, dark: bool) {
        self.0.borrow_mut().dark = dark;
    }

    /// Ends the effects of [`freeze`](Self::freeze) and [`set_dark`](Self::set_dark).
    pub fn heal(&self) {
        let mut cached = self.0.borrow_mut();
        (cached.still_until, cached.dark) = (Instant::ZERO, false);
    }
}

impl Switches for CachedSwitches {
    fn resolve(&mut self, _now: Instant, read: &IndexRead, _random: &mut Random) -> Resolved {
        let Some(&root) = self.0.borrow().registered.get(&read.queue_pair) else {
            return Resolved::Unregistered;
        };
        let hot =
            self.0.borrow().keys.get(&(read.server, read.key)).copied().filter(|_| read.target.or_record());
        Resolved::At(hot.or_else(|| self.find(read.server, read.key)).unwrap_or(root))
    }

    fn pass(&mut self, now: Instant, _from: MachineId, _to: MachineId, _random: &mut Random) -> Passage {
        let cached = self.0.borrow();
        match (cached.dark, cached.still_until.saturating_since(now)) {
            (true, _) => Passage::Lost,
            (false, Duration::ZERO) => Passage::Go,
            (false, wait) => Passage::Wait(wait),
        }
    }
}
