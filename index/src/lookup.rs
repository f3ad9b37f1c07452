//! One lookup, as a state machine over one-sided reads.

use crate::address::GlobalAddress;
use crate::config::TreeConfig;
use crate::node::{EntryValue, LeafNode, Node, NodeFault, NodeHeader};
use crate::record::{read_record, record_bytes};
use crate::super_root::{Partition, SuperRoot};
use crate::verbs::{OpId, PostError, ReadFailure, Verbs};

/// Where a lookup begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// At the root of the key's partition, with ordinary READs all the way.
    Root,
    /// With an index read: the switches choose the first node.
    IndexRead,
    /// At a node that the client knows from earlier. If the node has changed, the lookup notices.
    Node {
        /// Where the node was.
        address: GlobalAddress,
        /// Its level.
        level: u8,
    },
}

/// How often a lookup tries before it gives up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Times the same bytes are read again in a row because they were torn; then the lookup restarts.
    pub torn: u32,
    /// Siblings followed since the last start; then the lookup restarts.
    pub siblings: u32,
    /// Restarts from the partition's root; then the lookup fails with [`LookupError::GaveUp`].
    pub restarts: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { torn: 8, siblings: 32, restarts: 8 }
    }
}

/// What a lookup cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Trips {
    /// Reads completed, failed ones included.
    pub round_trips: u32,
    /// Reads of the same bytes again because they were torn.
    pub retries: u32,
    /// Walks begun again at the partition's root because a node failed its checks.
    pub restarts: u32,
    /// Steps to a right sibling.
    pub siblings_followed: u32,
    /// Tree nodes accepted, siblings included; records are not nodes.
    pub levels: u32,
    /// Level of the node on which the index read landed, if there was one and it was accepted.
    pub landed: Option<u8>,
}

/// What became of a lookup after a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Progress<'b> {
    /// Another read was posted.
    Posted,
    /// The lookup is done.
    Done(Outcome<'b>),
}

/// How a lookup ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Outcome<'b> {
    /// The value, in the buffer of the last completion.
    Found(&'b [u8]),
    /// The tree has no such key.
    NotFound,
    /// No answer. [`Lookup::restart`] continues after the cause is gone.
    Failed(LookupError),
}

/// Why a lookup has no answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LookupError {
    /// The index read failed: the connection is not registered at its switch, or the server is gone.
    #[error(
        "index read of key {key:#x} to partition {partition} failed: {failure}; reconnect and walk from the root"
    )]
    IndexRead {
        /// The key.
        key: u64,
        /// The partition asked.
        partition: u16,
        /// What the network card said.
        failure: ReadFailure,
    },
    /// An ordinary read failed.
    #[error("read at {address} for key {key:#x} failed: {failure}; reconnect and walk from the root")]
    Read {
        /// The key.
        key: u64,
        /// What was read.
        address: GlobalAddress,
        /// What the network card said.
        failure: ReadFailure,
    },
    /// Nothing that was read made sense, time after time.
    #[error(
        "gave up key {key:#x} after {restarts} restarts from root {root}; the last node was refused: {fault}"
    )]
    GaveUp {
        /// The key.
        key: u64,
        /// The partition's root.
        root: GlobalAddress,
        /// Restarts made.
        restarts: u32,
        /// Why the last node was refused.
        fault: NodeFault,
    },
}

/// The read that is under way, or to be posted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Idle,
    Index,
    Node {
        address: GlobalAddress,
        level: u8,
    },
    /// The root may have become a level higher than the super-root says, never lower.
    Root {
        address: GlobalAddress,
        level: u8,
    },
    Record {
        address: GlobalAddress,
        length: u32,
    },
}

/// One lookup. Reuse it: [`Lookup::reset`] for the next key, nothing is allocated.
///
/// **Driving contract.** After [`start`](Self::start) exactly one read is under way until
/// [`Progress::Done`]. Feed its completion to [`on_read`](Self::on_read) or [`on_failure`](Self::on_failure).
/// When one of these returns a [`PostError`], no read is under way: call [`resume`](Self::resume) when posting can
/// succeed, or [`restart`](Self::restart) after a reconnection. A completion for another operation must not be fed.
///
/// Every node is checked before a step is taken from it: magic, format, free bit, the version of every line, own
/// address, level, fences. A torn node is read again; a key right of the node's high fence moved to a sibling in a
/// split; anything else was reached by a stale pointer, and the walk begins again at the partition's own root, without
/// the switches. So a stale cache, in a switch or in a client, costs round trips, never a wrong answer.
///
/// ```text
///            start                    torn: same read again
///              │                      ┌──────────┐
///   Root ──► ┌─▼──────────────────────▼─┐        │   leaf, inline   ┌────────────┐
///   Index ─► │ read node, check         ├────────┘ ────────────────►│ Found      │
///   Node ──► │                          │ ── leaf, no such key ────►│ NotFound   │
///            └─▲───────────┬──────────▲─┘                           └─────▲──────┘
///              └───────────┘          │ stale: restart at root            │
///           child, right sibling      └────────── read record ────────────┘
/// ```
#[derive(Clone, Debug)]
pub struct Lookup {
    op: OpId,
    config: TreeConfig,
    limits: Limits,
    key: u64,
    partition: u16,
    root: GlobalAddress,
    root_level: u8,
    step: Step,
    torn_in_a_row: u32,
    siblings_in_a_row: u32,
    accepted: Option<(GlobalAddress, u8)>,
    trips: Trips,
}

impl Lookup {
    /// A lookup that posts its reads as `op` in trees of shape `config`.
    #[must_use]
    pub fn new(op: OpId, config: &TreeConfig) -> Self {
        Self {
            op,
            config: *config,
            limits: Limits::default(),
            key: 0,
            partition: 0,
            root: GlobalAddress::NULL,
            root_level: 0,
            step: Step::Idle,
            torn_in_a_row: 0,
            siblings_in_a_row: 0,
            accepted: None,
            trips: Trips::default(),
        }
    }

    /// The same with other limits.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Makes the lookup ready for another key: counters are zero, nothing is under way.
    pub fn reset(&mut self, key: u64) {
        self.key = key;
        self.step = Step::Idle;
        self.torn_in_a_row = 0;
        self.siblings_in_a_row = 0;
        self.accepted = None;
        self.trips = Trips::default();
    }

    /// Gives the lookup another operation number, for owners that count generations.
    pub fn set_op(&mut self, op: OpId) {
        self.op = op;
    }

    /// The operation number.
    #[must_use]
    pub fn op(&self) -> OpId {
        self.op
    }

    /// The key looked for.
    #[must_use]
    pub fn key(&self) -> u64 {
        self.key
    }

    /// The partition asked; known after [`start`](Self::start).
    #[must_use]
    pub fn partition(&self) -> u16 {
        self.partition
    }

    /// What the lookup has cost so far.
    #[must_use]
    pub fn trips(&self) -> Trips {
        self.trips
    }

    /// Address and level of the node in the completion that was fed last, if it was a node and passed all checks:
    /// clients that cache nodes may keep it.
    #[must_use]
    pub fn accepted(&self) -> Option<(GlobalAddress, u8)> {
        self.accepted
    }

    /// Posts the first read.
    ///
    /// # Errors
    /// When it could not be posted; [`resume`](Self::resume) tries again.
    pub fn start<V: Verbs>(
        &mut self,
        roots: &SuperRoot,
        start: Start,
        verbs: &mut V,
    ) -> Result<(), PostError> {
        self.start_in(roots.partition_of(self.key), start, verbs)
    }

    /// Like [`start`](Self::start), for owners that know the key's partition already.
    ///
    /// # Errors
    /// When it could not be posted; [`resume`](Self::resume) tries again.
    pub fn start_in<V: Verbs>(
        &mut self,
        partition: &Partition,
        start: Start,
        verbs: &mut V,
    ) -> Result<(), PostError> {
        self.partition = partition.id;
        self.root = partition.root;
        self.root_level = partition.root_level;
        self.step = match start {
            Start::Root => self.root_step(),
            Start::IndexRead => Step::Index,
            Start::Node { address, level } => Step::Node { address, level },
        };
        self.resume(verbs)
    }

    /// Begins again at the partition's root with ordinary READs; the costs so far still count. For use after a failed
    /// read and a reconnection.
    ///
    /// # Errors
    /// When the read could not be posted; [`resume`](Self::resume) tries again.
    pub fn restart<V: Verbs>(&mut self, verbs: &mut V) -> Result<(), PostError> {
        self.trips.restarts += 1;
        self.torn_in_a_row = 0;
        self.siblings_in_a_row = 0;
        self.step = self.root_step();
        self.resume(verbs)
    }

    /// Posts the read that could not be posted before.
    ///
    /// # Errors
    /// When it still cannot.
    pub fn resume<V: Verbs>(&mut self, verbs: &mut V) -> Result<(), PostError> {
        match self.step {
            Step::Idle => Ok(()),
            Step::Index => verbs.index_read(self.op, self.partition, self.key, self.config.max_node_bytes()),
            Step::Node { address, level } | Step::Root { address, level } => {
                verbs.read(self.op, address, self.config.node_bytes(level))
            }
            Step::Record { address, length } => verbs.read(self.op, address, record_bytes(length)),
        }
    }

    /// Takes the bytes of the read that is under way, and goes on from there.
    ///
    /// # Errors
    /// When the next read could not be posted; [`resume`](Self::resume) tries again.
    #[inline]
    pub fn on_read<'b, V: Verbs>(
        &mut self,
        bytes: &'b [u8],
        verbs: &mut V,
    ) -> Result<Progress<'b>, PostError> {
        self.trips.round_trips += 1;
        self.accepted = None;
        let result = match self.step {
            Step::Record { length, .. } => read_record(bytes, self.key, length).map(Decision::Found),
            _ => self.on_node(bytes),
        };
        match result {
            Ok(Decision::Found(value)) => Ok(self.done(Outcome::Found(value))),
            Ok(Decision::NotFound) => Ok(self.done(Outcome::NotFound)),
            Ok(Decision::Go(step)) => {
                self.torn_in_a_row = 0;
                self.step = step;
                self.resume(verbs).map(|()| Progress::Posted)
            }
            Err(fault) => self.on_fault(fault, verbs),
        }
    }

    /// Takes note that the read under way failed. The queue pair is broken, so nothing more is posted: the outcome
    /// says what failed, and [`restart`](Self::restart) goes on after a reconnection.
    pub fn on_failure(&mut self, failure: ReadFailure) -> Outcome<'static> {
        self.trips.round_trips += 1;
        self.accepted = None;
        let key = self.key;
        let error = match self.step {
            Step::Index | Step::Idle => LookupError::IndexRead { key, partition: self.partition, failure },
            Step::Node { address, .. } | Step::Root { address, .. } | Step::Record { address, .. } => {
                LookupError::Read { key, address, failure }
            }
        };
        self.step = Step::Idle;
        Outcome::Failed(error)
    }

    fn root_step(&self) -> Step {
        Step::Root { address: self.root, level: self.root_level }
    }

    fn done<'b>(&mut self, outcome: Outcome<'b>) -> Progress<'b> {
        self.step = Step::Idle;
        Progress::Done(outcome)
    }

    #[inline]
    fn on_node<'b>(&mut self, bytes: &'b [u8]) -> Result<Decision<'b>, NodeFault> {
        let node = Node::read(&self.config, bytes)?;
        let header = node.header();
        self.check_place(header)?;
        let range = header.range();
        if self.key < range.low {
            return Err(NodeFault::KeyLeft { low: range.low });
        }
        self.trips.levels += 1;
        self.accepted = Some((header.address, header.level));
        if self.step == Step::Index {
            self.trips.landed = Some(header.level);
        }
        if range.is_below(self.key) {
            return self.follow_sibling(header);
        }
        match node {
            Node::Internal(node) => {
                let child = node.find(self.key)?;
                Ok(Decision::Go(Step::Node { address: child, level: header.level - 1 }))
            }
            Node::Leaf(leaf) => Self::on_leaf(&leaf, self.key),
        }
    }

    fn on_leaf<'b>(leaf: &LeafNode<'b>, key: u64) -> Result<Decision<'b>, NodeFault> {
        Ok(match leaf.find(key)? {
            None => Decision::NotFound,
            Some(EntryValue::Inline(value)) => Decision::Found(value),
            Some(EntryValue::Record { address, length }) => Decision::Go(Step::Record { address, length }),
        })
    }

    /// Whether the node is the one that was asked for, as far as the way here tells.
    fn check_place(&self, header: &NodeHeader) -> Result<(), NodeFault> {
        let found = header.address;
        match self.step {
            Step::Node { address: expected, .. } | Step::Root { address: expected, .. }
                if found != expected =>
            {
                Err(NodeFault::Address { found, expected })
            }
            Step::Node { level, .. } if header.level != level => {
                Err(NodeFault::Level { found: header.level, expected: level })
            }
            Step::Index => {
                // An index read does not say where it landed, but it is this server that answered.
                let server = self.root.server();
                if found.server() != server || found.is_null() {
                    return Err(NodeFault::Server { found, server });
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn follow_sibling<'b>(&mut self, header: &NodeHeader) -> Result<Decision<'b>, NodeFault> {
        if header.sibling.is_null() {
            return Err(NodeFault::NoSibling { high: header.high });
        }
        if self.siblings_in_a_row >= self.limits.siblings {
            return Err(NodeFault::SiblingChain { followed: self.siblings_in_a_row });
        }
        self.siblings_in_a_row += 1;
        self.trips.siblings_followed += 1;
        Ok(Decision::Go(Step::Node { address: header.sibling, level: header.level }))
    }

    #[cold]
    fn on_fault<'b, V: Verbs>(&mut self, fault: NodeFault, verbs: &mut V) -> Result<Progress<'b>, PostError> {
        if fault.is_torn() && self.torn_in_a_row < self.limits.torn {
            self.torn_in_a_row += 1;
            self.trips.retries += 1;
            return self.resume(verbs).map(|()| Progress::Posted);
        }
        if self.trips.restarts >= self.limits.restarts {
            let (key, root, restarts) = (self.key, self.root, self.trips.restarts);
            return Ok(self.done(Outcome::Failed(LookupError::GaveUp { key, root, restarts, fault })));
        }
        self.restart(verbs).map(|()| Progress::Posted)
    }
}

/// What a checked node or record leads to.
enum Decision<'b> {
    Found(&'b [u8]),
    NotFound,
    Go(Step),
}
