//! Path-finding: from the deepest node that the cache knows, or from the root, to a key's leaf.
//!
//! ```text
//!   cache: leaf? ───────────────────────────────► READ leaf ─► in its range, whole? ─► done
//!     │ node, or nothing                              ▲   │ no
//!     │ led by switches? ask them first, once ────────┤   │
//!     ▼                                               │   ▼
//!   READ node ─► moved? its successor                 │  READ the parent that the leaf names
//!             ─► leaf by range ───────────────────────┘  (backtracking)
//!             ─► node by its exact byte: READ it
//!             ─► neither: a gap, the key is absent
//! ```
//!
//! Nodes are hints: what they lead to is checked at the leaf. Only a *gap* is an answer by itself.
//! It counts if the node was read by this operation and is in use.

use fatbtree_remote_memory::GlobalAddress;
use fatbtree_verbs::{Buffer, Verbs};

use super::announce::Announced;
use super::led::Led;
use super::{Index, Op};
use crate::checks::Check;
use crate::entry::Entry;
use crate::error::Stop;
use crate::inner::{Choice, Node, NodeState};
use crate::key::Prefix;
use crate::leaf::{LEAF_BYTES, Leaf, NoLeaf, Use};

/// Nodes that one descent reads: depths, and some that have moved.
const MOST_NODES: usize = 24;

/// Leaves that one attempt reads.
const MOST_LEAVES: usize = 6;

/// Times that an operation finds a structure change in its way before it takes the lock and looks
/// whether that goes on.
const PATIENT: u32 = 3;

/// End of a descent.
enum Landing {
    /// The leaf, and the node that names it.
    Leaf { at: GlobalAddress, parent: Entry, prefix: Option<Prefix>, fresh: bool },
    /// No leaf has the key.
    Gap(Gap),
    /// The cache does not know the leaf, and the switches were not asked yet.
    Unknown,
}

/// Why no leaf has a key.
#[derive(Clone, Copy, Debug)]
pub(super) enum Gap {
    /// The key lies between the children of this node.
    In { node: Entry, keys: Alike },
    /// A child of this node stands for the key's byte, and for a longer prefix that is not the key's.
    Above { node: Entry, child: Entry, below: Prefix, keys: Alike },
}

/// Lowest and highest key of which the same is true.
type Alike = (u64, u64);

impl Gap {
    /// Lowest and highest key of which the same is true.
    pub(super) fn keys(self) -> Alike {
        match self {
            Self::In { keys, .. } | Self::Above { keys, .. } => keys,
        }
    }
}

/// A leaf that answers for a key.
pub(super) struct Held<'i, V: Verbs> {
    pub(super) bytes: Buffer,
    pub(super) at: GlobalAddress,
    /// The node above, as the leaf or the node itself has told.
    pub(super) parent: Entry,
    /// Prefix of that node, where it is known.
    pub(super) below: Option<Prefix>,
    /// The announcement of a change.
    pub(super) announced: Option<Announced<'i, V>>,
}

impl<V: Verbs> Held<'_, V> {
    pub(super) fn leaf(&self) -> Leaf<'_> {
        Leaf::new(&self.bytes).expect("as many bytes were asked for, and looked at")
    }
}

/// Where a key is.
pub(super) enum Reached<'i, V: Verbs> {
    Leaf(Held<'i, V>),
    Gap(Gap),
}

impl<V: Verbs> Index<V> {
    /// Finds and reads the leaf of the operation's key.
    pub(super) async fn reach(&self, op: &mut Op, how: Use) -> Result<Reached<'_, V>, Stop> {
        let mut from = None;
        for _ in 0..MOST_LEAVES {
            let (at, parent, prefix, fresh) = match self.descend(op, from.take()).await? {
                Landing::Leaf { at, parent, prefix, fresh } => (at, parent, prefix, fresh),
                Landing::Gap(gap) => return Ok(Reached::Gap(gap)),
                Landing::Unknown => match self.ask_switches(op, how).await? {
                    Led::To(held) => return Ok(Reached::Leaf(held)),
                    Led::At { at, parent } => (at, parent, None, false),
                    Led::Beside(parent) => {
                        from = Some((parent, None));
                        continue;
                    }
                    Led::Astray => continue,
                },
            };
            let (bytes, mut announced) = match how {
                Use::Read => (self.read(at, LEAF_BYTES as u32, op).await?, None),
                Use::Change => {
                    let mut announced = self.word_on(at.server(), op).await?;
                    (announced.announce(at, op).await?, Some(announced))
                }
            };
            let Some(leaf) = Leaf::new(&bytes) else { return Err(Stop::Later) };
            let verdict = leaf.check(how);
            let stray = leaf.stray().filter(|_| verdict == Ok(()) && Check::SoundHeaders.on());
            if verdict == Ok(()) && leaf.covers(op.key) && stray.is_none() {
                return Ok(Reached::Leaf(Held { bytes, at, parent, below: prefix, announced }));
            }
            let is_wrong = match verdict {
                Ok(()) => stray.is_some(),
                Err(NoLeaf::Damaged) => true,
                // The node that leads here was read by this operation.
                Err(NoLeaf::Gone) => fresh,
                Err(NoLeaf::Busy) => leaf.is_mixed(),
            };
            if is_wrong
                && let Stop::Failed(error) = op.doubt(
                    at,
                    parent.0,
                    &leaf.skeleton(),
                    "a leaf in use: with its sum, one stamp, and keys of its range",
                )
            {
                if let Some(announced) = &mut announced {
                    announced.clear(op).await?;
                }
                return Err(error.into());
            }
            let waits = verdict == Err(NoLeaf::Busy) && leaf.covers(op.key);
            if !fresh && !waits {
                let above = up(leaf, parent);
                if let Some(prefix) = prefix {
                    self.cache.forget(prefix);
                }
                let mut node = None;
                match &mut announced {
                    Some(announced) if above.at().server() == at.server() => {
                        let bytes = announced.clear_and_read(above.at(), above.size().bytes(), op).await?;
                        node = Node::parse(&bytes, above.at(), above.size());
                    }
                    Some(announced) => announced.clear(op).await?,
                    None => {}
                }
                from = Some((above, node));
                continue;
            }
            if let Some(announced) = &mut announced {
                announced.clear(op).await?;
            }
            drop(announced);
            if waits {
                return self.wait_for(parent, op).await;
            }
            // The node above was read before the leaf: if it says the same still, no leaf has the key.
            if verdict == Ok(())
                && leaf.max() < op.key
                && let Some(node) = self.read_node(parent, op).await?
                && node.is_live()
                && matches!(node.choose(op.key), Choice::Leaf(entry) if entry.at() == at)
            {
                let keys = (leaf.max() + 1, node.end_of(op.key));
                return Ok(Reached::Gap(Gap::In { node: parent, keys }));
            }
            if verdict == Err(NoLeaf::Busy) {
                return self.wait_for(parent, op).await;
            }
            from = Some((parent, None));
        }
        op.state.anew = true;
        Err(Stop::Later)
    }

    /// A structure change is in the way: it is waited for, or completed if it takes too long.
    async fn wait_for<T>(&self, parent: Entry, op: &mut Op) -> Result<T, Stop> {
        op.state.busy += 1;
        if op.state.busy > PATIENT && Check::Pauses.on() {
            op.state.busy = 0;
            self.settle(parent, op).await?;
            return Err(Stop::Anew);
        }
        Err(Stop::Later)
    }

    /// Walks down to the leaf of the operation's key, by the cache or from a node, which may have been
    /// read already.
    async fn descend(&self, op: &mut Op, from: Option<(Entry, Option<Node>)>) -> Result<Landing, Stop> {
        let (from, mut given) = from.unzip();
        let known = if from.is_none() && !op.state.anew { self.cache.lookup(op.key) } else { None };
        let mut next = match (from, known) {
            (Some(from), _) => from,
            (None, Some(known)) => match known.choice {
                Choice::Leaf(entry) => {
                    let (parent, prefix) = (known.node, Some(known.prefix));
                    return Ok(Landing::Leaf { at: entry.at(), parent, prefix, fresh: false });
                }
                _ if self.may_ask_switches(op) => return Ok(Landing::Unknown),
                Choice::Inner(entry) => entry,
                Choice::Gap => known.node,
            },
            (None, None) if self.may_ask_switches(op) => return Ok(Landing::Unknown),
            (None, None) => self.shape.root(),
        };
        // The node above, if this operation has read it, and its entry.
        let mut above: Option<(Entry, Entry)> = None;
        for _ in 0..MOST_NODES {
            let node = match given.take().flatten() {
                Some(node) => Some(node),
                None => self.read_node(next, op).await?,
            };
            let Some(node) = node else {
                // Nothing else leads to the root, and what a node leads to that is in use.
                let is_linked = above.is_some() || next == self.shape.root();
                if is_linked && let stop @ Stop::Failed(_) = op.doubt(next.at(), next.0, &[], "an inner node")
                {
                    return Err(stop);
                }
                return Err(astray(op));
            };
            if node.is(NodeState::Moved) {
                if node.successor.is_inner() && above.is_none() {
                    next = node.successor;
                    continue;
                }
                self.relink(next, op).await?;
                return Err(astray(op));
            }
            if !node.is_live() {
                // Linked, and not begun to be used.
                if let Some((above, _)) = above {
                    self.settle(above, op).await?;
                }
                return Err(astray(op));
            }
            if !node.prefix.covers(op.key) && Check::Prefix.on() {
                let Some((entry, child)) = above else { return Err(astray(op)) };
                let below = node.prefix;
                let (node, again) = (entry, self.read_node(entry, op).await?);
                let again = again.filter(|again| again.is_live());
                let (first, last) = again.as_ref().map_or((op.key, op.key), |again| {
                    (again.prefix.first_of(child.byte()), again.prefix.last_of(child.byte()))
                });
                let is_before = op.key < below.low();
                let keys = if is_before { (first, below.low() - 1) } else { (below.high() + 1, last) };
                return match again.map(|again| again.choose(op.key)) {
                    Some(Choice::Inner(entry)) if entry == child => {
                        Ok(Landing::Gap(Gap::Above { node, child, below, keys }))
                    }
                    _ => Err(astray(op)),
                };
            }
            self.cache.put(&node, next);
            let choice = node.choose(op.key);
            match choice {
                Choice::Leaf(entry)
                    if Check::RangeMatch.on() || entry.byte() == node.prefix.byte_of(op.key) =>
                {
                    let (at, parent, prefix) = (entry.at(), next, Some(node.prefix));
                    self.depth.set(node.prefix.depth());
                    return Ok(Landing::Leaf { at, parent, prefix, fresh: true });
                }
                Choice::Inner(entry) => {
                    above = Some((next, entry));
                    next = entry;
                }
                Choice::Gap | Choice::Leaf(_) => {
                    let keys = (node.begin_of(op.key), node.end_of(op.key));
                    return Ok(Landing::Gap(Gap::In { node: next, keys }));
                }
            }
        }
        Err(astray(op))
    }
}

/// What the cache, or an old pointer, has led to is of no use: the next attempt begins at the root.
fn astray(op: &mut Op) -> Stop {
    op.state.anew = true;
    if op.attempts > 2 { Stop::Later } else { Stop::Anew }
}

/// The node to go on with where a leaf was not the key's: the one that the leaf names.
fn up(leaf: Leaf<'_>, parent: Entry) -> Entry {
    let up = leaf.parent();
    if leaf.is_leaf() && up.is_inner() && !up.is_empty() { up } else { parent }
}
