//! The way down a tree, shared by all operations: reads nodes, checks them, follows siblings, begins again.

use std::ops::Range;

use fatbtree_remote::record::{RECORD_HEAD, is_record, read_led_to};
use fatbtree_remote::{BreakReason, Check, ConnectionId, GlobalAddress, LockError, Shortage, Trouble, Want};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{Buffer, IndexTarget, Verbs};

use crate::node::{LINE, Node, NodeFault, NodeHeader};
use crate::operation::{OperationError, Start, Trips};
use crate::pool::Pool;
use crate::super_root::Partition;
use crate::superblock::{SUPERBLOCK_BYTES, Superblock};

/// Why one attempt of an operation did not lead to its end.
pub(crate) enum Reason {
    /// What was read is not what was meant: a stale pointer led here.
    Fault(NodeFault),
    /// Something is the matter with the connection.
    Trouble(Trouble),
    /// Somebody else holds a lock for very long.
    Locked,
    /// Memory is needed on a server before the operation can go on.
    Memory(Want),
    /// The connection broke while the operation wrote, and what became of that cannot be found out any more.
    Unknown(BreakReason),
}

impl From<LockError> for Reason {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Trouble(trouble) => Reason::Trouble(trouble),
            LockError::Locked => Reason::Locked,
            LockError::Unknown(reason) => Reason::Unknown(reason),
        }
    }
}

impl From<Trouble> for Reason {
    fn from(trouble: Trouble) -> Self {
        Reason::Trouble(trouble)
    }
}

/// What is read next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Index,
    Node { address: GlobalAddress, level: u8 },
}

/// What the switches have led a lookup to.
pub(crate) enum Led {
    /// The record of the key.
    Record { record: Buffer, value: Range<usize> },
    /// Something else, to be taken for a node.
    Node(Buffer),
    /// A record that does not count.
    Stale,
}

/// What a checked node leads to.
enum Decision<T> {
    Arrived(T),
    Go(Step),
    /// The node has a partner, which decides who has the upper keys.
    Ask,
}

/// What a partner was found to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Upper {
    /// It has the keys from here up.
    From(u64),
    /// It has none: the node with the partner has them all.
    Nothing,
}

/// A node as its parent should know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Child {
    /// Its lowest key.
    pub(crate) low: u64,
    pub(crate) address: GlobalAddress,
    /// The parent's level.
    pub(crate) parent_level: u8,
}

/// One operation's way through the tree.
///
/// Every node is checked before a step is taken from it: magic, format, free bit, the version of every line, own address,
/// level, fences. A torn node is read again after a pause; a key right of the node's high fence moved to a sibling in a split;
/// anything else was reached by a stale pointer, and the walk begins again at the partition's own root, without the
/// switches. So a stale cache, in a switch or in a client, costs round trips, never a wrong answer.
///
/// ```text
///            begin                    torn: same read again
///              │                      ┌──────────┐
///   Root ──► ┌─▼──────────────────────▼─┐        │
///   Index ─► │ read node, check         ├────────┘      arrived at the level wanted
///   Node ──► │                          ├─────────────────────────────────────────►
///            └─▲───────────┬────────────┘
///              └───────────┘            │ stale: recover, begin at the root
///           child, right sibling        ▼
/// ```
pub(crate) struct Descent<'p, V: Verbs> {
    pool: &'p Pool<V>,
    key: u64,
    lane: u8,
    partition: Partition,
    started: Instant,
    /// When something that was read made no sense for the first time.
    lost_since: Option<Instant>,
    /// No more index reads: one has led astray, or its connection broke.
    walks: bool,
    /// Siblings followed and partners asked since the last start.
    siblings: u32,
    /// The node that the cache has led this attempt to, and its level.
    cached: Option<(GlobalAddress, u8)>,
    /// The switches have led this attempt to the node that is read, and nothing says yet whether it is the key's.
    by_switches: bool,
    /// The level of the node that pointed to the one that is read: its parent or, after a sibling step, none.
    pointed_from: Option<u8>,
    /// A node on the way that its parent has no pointer to.
    untold: Option<Child>,
    /// Where the keys end of the node that was arrived at.
    high: Option<u64>,
    trips: Trips,
}

impl<'p, V: Verbs> Descent<'p, V> {
    pub(crate) fn new(pool: &'p Pool<V>, key: u64) -> Self {
        let (lane, started) = (pool.take_lane(), pool.reactor().now());
        let partition = pool.partition_of(key);
        let trips = Trips::default();
        Self {
            pool,
            key,
            lane,
            partition,
            started,
            lost_since: None,
            walks: false,
            siblings: 0,
            cached: None,
            by_switches: false,
            pointed_from: None,
            untold: None,
            high: None,
            trips,
        }
    }

    /// One for another key of an operation that goes on: on the same lane, whose order it relies on.
    pub(crate) fn beside(&self, key: u64) -> Self {
        let partition = self.pool.partition_of(key);
        let started = self.pool.reactor().now();
        let trips = Trips::default();
        Self {
            key,
            partition,
            started,
            lost_since: None,
            walks: false,
            siblings: 0,
            cached: None,
            by_switches: false,
            pointed_from: None,
            untold: None,
            high: None,
            trips,
            ..*self
        }
    }

    pub(crate) fn key(&self) -> u64 {
        self.key
    }

    pub(crate) fn pool(&self) -> &'p Pool<V> {
        self.pool
    }

    pub(crate) fn lane(&self) -> u8 {
        self.lane
    }

    pub(crate) fn partition(&self) -> &Partition {
        &self.partition
    }

    pub(crate) fn trips_mut(&mut self) -> &mut Trips {
        &mut self.trips
    }

    /// What it cost, and how long it took.
    pub(crate) fn end(self) -> (Trips, Duration) {
        (self.trips, self.pool.reactor().now() - self.started)
    }

    fn connection(&self) -> ConnectionId {
        ConnectionId { server: self.partition.root.server(), lane: self.lane }
    }

    /// Prepares an attempt: waits for the connection, and says where the walk really begins.
    pub(crate) async fn begin(&mut self, start: Start) -> Result<Start, Reason> {
        self.partition = self.pool.partition_of(self.key);
        let registered = self.pool.until_up(self.connection()).await?;
        self.cached = None;
        let start = match start {
            _ if self.walks => Start::Root,
            Start::Cached | Start::CachedOrIndexRead => self.ask_cache(start, registered),
            start => start,
        };
        Ok(match start {
            Start::IndexRead if !registered => {
                self.walks = true;
                self.pool.count(|stats| stats.unregistered += 1);
                Start::Root
            }
            start => start,
        })
    }

    #[inline]
    fn ask_cache(&mut self, start: Start, registered: bool) -> Start {
        if let Some(leaf) = self.pool.cached(|cache| cache.leaf_of(self.key)) {
            self.pool.count_cache(|stats| stats.hits += 1);
            self.cached = Some((leaf, 0));
            return Start::Node { address: leaf, level: 0 };
        }
        self.pool.count_cache(|stats| stats.misses += 1);
        if start == Start::CachedOrIndexRead && registered {
            return Start::IndexRead;
        }
        self.cached = self.pool.cached(|cache| cache.below_top(self.key, self.partition.root_level));
        match (self.cached, start) {
            (Some((address, level)), _) => Start::Node { address, level },
            (None, Start::CachedOrIndexRead) => Start::IndexRead,
            (None, _) => Start::Root,
        }
    }

    /// Prepares the next attempt after one that led nowhere.
    ///
    /// # Errors
    /// When there is none to be made.
    #[cold]
    pub(crate) async fn recover(&mut self, reason: Reason) -> Result<(), OperationError> {
        let key = self.key;
        let fault = match reason {
            Reason::Trouble(Trouble::Broke(last)) => {
                self.walks = true;
                self.trips.breaks += 1;
                let breaks = self.trips.breaks;
                if breaks > self.pool.config().limits.reconnects {
                    return Err(OperationError::ConnectionBroke { key, breaks, last });
                }
                self.pool.count(|stats| stats.restarts += 1);
                return Ok(());
            }
            Reason::Trouble(Trouble::Lapsed) => {
                // The next attempt is made in the next session.
                self.pool.count(|stats| stats.restarts += 1);
                self.pool.pause(self.trips.restarts).await;
                return Ok(());
            }
            Reason::Trouble(Trouble::Abandoned(id)) => return Err(OperationError::Abandoned { key, id }),
            Reason::Trouble(Trouble::Lost(server)) => {
                return Err(OperationError::TreeLost { key, server });
            }
            Reason::Trouble(Trouble::UnknownServer(server)) => {
                return Err(OperationError::UnknownServer { key, server });
            }
            Reason::Trouble(Trouble::NotWriter(server)) => {
                return Err(OperationError::NotWriter { key, server });
            }
            Reason::Trouble(Trouble::Refused(error)) => return Err(OperationError::Refused { key, error }),
            Reason::Locked => return Err(OperationError::Locked { key }),
            Reason::Unknown(last) => return Err(OperationError::Unknown { key, last }),
            Reason::Memory(want) => {
                let (server, kind) = (want.server, want.kind);
                let supplied = self.pool.until_memory(want).await;
                return supplied.map_err(|why| match why {
                    Shortage::TreeLost => OperationError::TreeLost { key, server },
                    why => OperationError::NoMemory { key, server, kind, why },
                });
            }
            Reason::Fault(fault) => fault,
        };
        if !fault.is_torn() {
            self.count_astray();
        }
        if let Some((child, level)) = self.cached.take() {
            self.pool.tell_cache(|cache| cache.forget(level.saturating_add(1), key, child));
            self.pool.count_cache(|stats| stats.stale += 1);
        }
        // Time spent waiting for a connection is nobody's fault here.
        let now = self.pool.reactor().now();
        if now - *self.lost_since.get_or_insert(now) > self.pool.config().limits.patience {
            let (root, restarts) = (self.partition.root, self.trips.restarts);
            return Err(OperationError::GaveUp { key, root, restarts, fault });
        }
        let walked = std::mem::replace(&mut self.walks, true);
        self.trips.restarts += 1;
        self.pool.count(|stats| stats.fallbacks += 1);
        if walked {
            // It began at the root already: perhaps that is not the root any more, perhaps somebody is at work there.
            self.pool.pause(self.trips.restarts).await;
            self.refresh_root().await;
        }
        Ok(())
    }

    /// Asks the region's superblock for the root. What goes wrong here goes wrong again in the next attempt, and is told
    /// then.
    pub(crate) async fn refresh_root(&mut self) {
        let place = GlobalAddress::new(self.partition.root.server(), 0);
        let Ok(bytes) = self.pool.read(self.lane, place, SUPERBLOCK_BYTES).await else { return };
        self.trips.round_trips += 1;
        let Ok(found) = Superblock::parse(&bytes) else { return };
        if found.check(&self.partition, &self.pool.config().tree).is_err() {
            return;
        }
        let Partition { id, root, root_level, .. } = found.partition;
        if (root, root_level) != (self.partition.root, self.partition.root_level) {
            self.pool.set_root(id, root, root_level);
            self.pool.count(|stats| stats.new_roots += 1);
        }
    }

    /// Walks to the node at `level` that is responsible for the key. `arrive` looks at it, while it can still be read again if
    /// it turns out to be torn. Returns the node's bytes and what `arrive` made of them.
    #[inline]
    pub(crate) async fn descend<T>(
        &mut self,
        start: Start,
        level: u8,
        arrive: impl FnMut(&Node<'_>, &[u8]) -> Result<T, NodeFault>,
    ) -> Result<(Buffer, T), Reason> {
        self.descend_from(start, None, level, arrive).await
    }

    /// The same where the node at the start may have been read already.
    #[inline]
    pub(crate) async fn descend_from<T>(
        &mut self,
        start: Start,
        mut first: Option<Buffer>,
        level: u8,
        mut arrive: impl FnMut(&Node<'_>, &[u8]) -> Result<T, NodeFault>,
    ) -> Result<(Buffer, T), Reason> {
        let mut step = self.first_step(start);
        loop {
            let (bytes, arrived) = self.take_step(&mut step, first.take(), level, &mut arrive).await?;
            if let Some(what) = arrived {
                return Ok((bytes, what));
            }
        }
    }

    /// Walks until it is known where the node at `level` is that is responsible for the key: the last read of
    /// [`descend`](Self::descend) is left to the caller, who locks the node with it. The node may have been split meanwhile.
    pub(crate) async fn locate(&mut self, start: Start, level: u8) -> Result<GlobalAddress, Reason> {
        let mut step = self.first_step(start);
        loop {
            if let Step::Node { address, level: found } = step
                && found == level
            {
                return Ok(address);
            }
            let mut arrive = |node: &Node<'_>, _: &[u8]| Ok(node.header().address);
            if let Some(address) = self.take_step(&mut step, None, level, &mut arrive).await?.1 {
                return Ok(address);
            }
        }
    }

    fn first_step(&mut self, start: Start) -> Step {
        self.siblings = 0;
        self.pointed_from = None;
        self.by_switches = start == Start::IndexRead;
        match start {
            Start::Root | Start::Cached | Start::CachedOrIndexRead => {
                Step::Node { address: self.partition.root, level: self.partition.root_level }
            }
            Start::IndexRead => Step::Index,
            Start::Node { address, level } => Step::Node { address, level },
        }
    }

    /// Lets the switches lead to the key, be it to its record. For lookups where values are out of line.
    #[inline]
    pub(crate) async fn ask_switches(&mut self) -> Result<Led, Reason> {
        let len = self.pool.config().tree.max_node_bytes();
        let id = self.connection();
        let bytes = self.pool.index_read(id, self.key, len, IndexTarget::NodeOrRecord).await?;
        self.trips.round_trips += 1;
        if !is_record(&bytes) {
            return Ok(Led::Node(bytes));
        }
        let value = read_led_to(&bytes, self.key).map(|value| RECORD_HEAD..RECORD_HEAD + value.len());
        let Ok(value) = value else {
            // Whatever is wrong with it, also if it was written meanwhile: the way by the leaf is as long as asking once more.
            self.pool.count(|stats| {
                stats.astray += 1;
                stats.stale_records += 1;
            });
            self.pool.note_moved(self.key);
            return Ok(Led::Stale);
        };
        self.trips.landed_on_record = true;
        self.pool.count(|stats| stats.records += 1);
        Ok(Led::Record { record: bytes, value })
    }

    /// The node that was read is not the key's any more. If the switches have led here, they are behind the tree.
    fn count_astray(&mut self) {
        if std::mem::take(&mut self.by_switches) {
            self.pool.count(|stats| stats.astray += 1);
        }
    }

    /// Reads a node until it is whole, and decides: what `arrive` made of it, or nothing and the next step.
    #[inline]
    async fn take_step<T>(
        &mut self,
        step: &mut Step,
        mut first: Option<Buffer>,
        level: u8,
        arrive: &mut impl FnMut(&Node<'_>, &[u8]) -> Result<T, NodeFault>,
    ) -> Result<(Buffer, Option<T>), Reason> {
        let mut torn = 0;
        let mut asked = None;
        loop {
            let bytes = match first.take() {
                Some(bytes) => bytes,
                None => {
                    let bytes = self.read_step(*step).await?;
                    self.trips.round_trips += 1;
                    bytes
                }
            };
            match self.decide(*step, level, &bytes, asked, arrive) {
                Ok(Decision::Arrived(what)) => return Ok((bytes, Some(what))),
                Ok(Decision::Go(next)) => {
                    *step = next;
                    return Ok((bytes, None));
                }
                Ok(Decision::Ask) => asked = self.ask(step, &bytes, &mut torn).await?,
                Err(fault) => self.pause_if_torn(fault, &mut torn).await?,
            }
        }
    }

    /// Asks a node's partner who has the node's upper keys.
    ///
    /// If the partner has the key, it is the next step. If it has others, the node is what it was when it was read, as far as this
    /// key is concerned. If it has none, the node has them all, but only if it is still the node that was read: between the two
    /// reads it may have been split and merged. So it is read once more. In each case the node is read again, and `asked` says what
    /// is known of it.
    #[cold]
    async fn ask(&mut self, step: &mut Step, bytes: &[u8], torn: &mut u32) -> Result<Option<Asked>, Reason> {
        self.step_aside().map_err(Reason::Fault)?;
        let header = header_of(bytes);
        *step = Step::Node { address: header.address, level: header.level };
        let upper = match self.upper(&header).await? {
            Ok(upper) => upper,
            Err(fault) => {
                self.pause_if_torn(fault, torn).await?;
                return Ok(None);
            }
        };
        if let Upper::From(low) = upper
            && self.key >= low
        {
            if let Some(parent_level) = self.pointed_from.take() {
                self.untold = Some(Child { low, address: header.partner, parent_level });
            }
            self.count_astray();
            self.teach_cache(header.level, low, header.partner);
            *step = Step::Node { address: header.partner, level: header.level };
            return Ok(None);
        }
        Ok(Some(Asked { version: header.version, partner: header.partner, upper }))
    }

    /// Which keys of a node its partner has. An error of the inner kind says that the partner is being written.
    pub(crate) async fn upper(&mut self, header: &NodeHeader) -> Result<Result<Upper, NodeFault>, Reason> {
        let tree = self.pool.config().tree;
        let bytes = self.pool.read(self.lane, header.partner, tree.node_bytes(header.level)).await?;
        self.trips.round_trips += 1;
        Ok(match Node::read(&tree, &bytes) {
            Ok(node) => {
                let found = node.header();
                let is_its_half = found.address == header.partner
                    && found.level == header.level
                    && found.low > header.low
                    && header.range().contains(found.low);
                Ok(if is_its_half { Upper::From(found.low) } else { Upper::Nothing })
            }
            Err(fault) if fault.is_torn() => Err(fault),
            Err(_) => Ok(Upper::Nothing),
        })
    }

    /// Reads bytes at an address until `check` accepts them.
    #[inline]
    pub(crate) async fn read_checked<T>(
        &mut self,
        address: GlobalAddress,
        len: u32,
        check: impl Fn(&[u8]) -> Result<T, NodeFault>,
    ) -> Result<(Buffer, T), Reason> {
        let mut torn = 0;
        loop {
            let bytes = self.pool.read(self.lane, address, len).await?;
            self.trips.round_trips += 1;
            match check(&bytes) {
                Ok(what) => return Ok((bytes, what)),
                Err(fault) => self.pause_if_torn(fault, &mut torn).await?,
            }
        }
    }

    /// What was torn is read again after a pause, some times; anything else ends the attempt.
    #[cold]
    pub(crate) async fn pause_if_torn(&mut self, fault: NodeFault, torn: &mut u32) -> Result<(), Reason> {
        if !fault.is_torn() || *torn >= self.pool.config().limits.torn {
            return Err(Reason::Fault(fault));
        }
        self.trips.retries += 1;
        self.pool.count(|stats| stats.retries += 1);
        self.pool.pause(*torn).await;
        *torn += 1;
        Ok(())
    }

    #[inline]
    async fn read_step(&self, step: Step) -> Result<Buffer, Trouble> {
        let tree = &self.pool.config().tree;
        match step {
            Step::Index => {
                // Where values are in line there are no records, and all that switches know are nodes.
                let target = match tree.leaf_shape().is_inline() {
                    true => IndexTarget::NodeOrRecord,
                    false => IndexTarget::Node,
                };
                self.pool.index_read(self.connection(), self.key, tree.max_node_bytes(), target).await
            }
            Step::Node { address, level } => self.pool.read(self.lane, address, tree.node_bytes(level)).await,
        }
    }

    #[inline]
    fn decide<T>(
        &mut self,
        step: Step,
        level: u8,
        bytes: &[u8],
        asked: Option<Asked>,
        arrive: &mut impl FnMut(&Node<'_>, &[u8]) -> Result<T, NodeFault>,
    ) -> Result<Decision<T>, NodeFault> {
        let node = Node::read(&self.pool.config().tree, bytes)?;
        let header = node.header();
        self.check_place(step, header)?;
        let range = header.range();
        if self.key < range.low && Check::LowFence.on() {
            return Err(NodeFault::KeyLeft { low: range.low });
        }
        // A node with a partner is being split or merged: it is read again soon.
        if let Node::Internal(node) = &node
            && header.partner.is_null()
        {
            self.pool.tell_cache(|cache| cache.put(node, &self.partition));
        }
        let decision = if range.is_below(self.key) && Check::HighFence.on() {
            Decision::Go(self.sibling_of(header)?)
        } else if !header.partner.is_null()
            && asked.is_none_or(|asked| !asked.is_of(header))
            && Check::Partner.on()
        {
            Decision::Ask
        } else if header.level == level {
            self.high = match asked {
                Some(Asked { upper: Upper::From(low), .. }) if !header.partner.is_null() => Some(low),
                _ => range.high,
            };
            Decision::Arrived(arrive(&node, bytes)?)
        } else {
            match node {
                Node::Internal(node) if header.level > level => {
                    self.pointed_from = Some(header.level);
                    Decision::Go(Step::Node { address: node.find(self.key), level: header.level - 1 })
                }
                // An index read went further down than it was to: rightly, for all that is known.
                _ => {
                    self.by_switches = false;
                    return Err(NodeFault::Level { found: header.level, expected: level });
                }
            }
        };
        if !matches!(decision, Decision::Ask) {
            self.by_switches = false;
        }
        self.trips.levels += 1;
        if step == Step::Index {
            self.trips.landed = Some(header.level);
        }
        Ok(decision)
    }

    /// Checks a node of `level` that was read under its lock, and tells what is to be done with it.
    pub(crate) fn place_of_locked(
        &mut self,
        address: GlobalAddress,
        level: u8,
        bytes: &[u8],
    ) -> Result<LockedPlace, NodeFault> {
        match self.decide(Step::Node { address, level }, level, bytes, None, &mut |_, _| Ok(()))? {
            Decision::Go(Step::Node { address, .. }) => Ok(LockedPlace::Moved(address)),
            Decision::Ask => self.step_aside().map(|()| LockedPlace::Unsettled),
            Decision::Arrived(()) | Decision::Go(Step::Index) => Ok(LockedPlace::Here),
        }
    }

    /// Where the keys end that the node which was arrived at is responsible for: its high fence or, if its partner has its upper keys,
    /// the partner's low one.
    pub(crate) fn high(&self) -> Option<u64> {
        self.high
    }

    /// A node that was met on the way although its parent has no pointer to it. It is told once.
    pub(crate) fn take_untold(&mut self) -> Option<Child> {
        self.untold.take()
    }

    /// Notes such a node.
    pub(crate) fn note_untold(&mut self, child: Child) {
        self.untold = Some(child);
    }

    /// Whether the node is the one that was asked for, as far as the way here tells.
    #[inline]
    fn check_place(&self, step: Step, header: &NodeHeader) -> Result<(), NodeFault> {
        let found = header.address;
        match step {
            Step::Node { address: expected, .. } if found != expected && Check::Address.on() => {
                Err(NodeFault::Address { found, expected })
            }
            Step::Node { level, .. } if header.level != level && Check::Level.on() => {
                Err(NodeFault::Level { found: header.level, expected: level })
            }
            Step::Index => {
                // An index read does not say where it landed, but it is this server that answered.
                let server = self.partition.root.server();
                let here = found.server() == server && !found.is_null();
                if here || !Check::Server.on() { Ok(()) } else { Err(NodeFault::Server { found, server }) }
            }
            Step::Node { .. } => Ok(()),
        }
    }

    fn sibling_of(&mut self, header: &NodeHeader) -> Result<Step, NodeFault> {
        if header.sibling.is_null() && Check::Sibling.on() {
            return Err(NodeFault::NoSibling { high: header.high });
        }
        if let Some(parent_level) = self.pointed_from.take() {
            let (low, address) = (header.high, header.sibling);
            self.untold = Some(Child { low, address, parent_level });
        }
        self.step_aside()?;
        self.trips.siblings_followed += 1;
        self.count_astray();
        self.teach_cache(header.level, header.high, header.sibling);
        Ok(Step::Node { address: header.sibling, level: header.level })
    }
}

impl<V: Verbs> Descent<'_, V> {
    /// Counts a step that does not lead down: only those could be taken without end.
    fn step_aside(&mut self) -> Result<(), NodeFault> {
        if self.siblings >= self.pool.config().limits.siblings && Check::SiblingChain.on() {
            return Err(NodeFault::SiblingChain { followed: self.siblings });
        }
        self.siblings += 1;
        Ok(())
    }

    /// The node that was read has been split: the copy of the parent in the cache, which may have led here, learns of the other half.
    fn teach_cache(&mut self, level: u8, low: u64, address: GlobalAddress) {
        let child = Child { low, address, parent_level: level.saturating_add(1) };
        self.pool.teach_cache(child);
        if self.cached.take_if(|(_, cached)| *cached == level).is_some() {
            self.pool.count_cache(|stats| stats.stale += 1);
        }
    }
}

/// What a node that was read under its lock is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LockedPlace {
    /// The one that is responsible for the key.
    Here,
    /// The key is in this one, or further on.
    Moved(GlobalAddress),
    /// It has a partner: whoever was at work here did not come to an end.
    Unsettled,
}

/// What a partner has said of a node.
#[derive(Clone, Copy, Debug)]
struct Asked {
    version: u32,
    partner: GlobalAddress,
    upper: Upper,
}

impl Asked {
    /// Whether it holds for the node as it has been read now.
    fn is_of(&self, header: &NodeHeader) -> bool {
        (self.version, self.partner) == (header.version, header.partner)
    }
}

/// The header of a node whose lines were checked.
fn header_of(bytes: &[u8]) -> NodeHeader {
    NodeHeader::parse(bytes.first_chunk::<LINE>().expect("a node that was checked has a line"))
}
