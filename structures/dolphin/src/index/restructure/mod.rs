//! Structure changes: under the lock of one inner node, for that node and its leaves.
//!
//! ```text
//!   lock of the node on its server's card ─► READ node
//!     leaf: READ, WRITE "frozen", wait for announcements, READ again
//!     new leaves and nodes: WRITE, "unborn"
//!     one chain: WRITE "changing, to be so" ◄── from here on it counts
//!                WRITE the rest, the entry in the node, "open"; release of the lock
//! ```
//!
//! A node and its leaves lie on one server, so one session's lock fences all of them. Where a client
//! dies, the next one that finds the leaf takes the lock over and completes what is *changing*, or
//! takes "frozen" back: see [`settle`](Index::settle). Each WRITE can be done again.
//!
//! What is *unborn* is never used. Its memory may have been another leaf, to which old pointers lead;
//! if its client dies before it counts, it stays unborn for ever.
//!
//! A burst and a collapse put what is new on another server than the leaf, which may be away. So a change has its
//! [`Room`] before it locks anything. Under a lock it uses another server only if it is connected with it at that moment. If not,
//! it opens what is frozen, gives the lock back, and waits then ([`Stop::Absent`]). What is *changing* cannot be taken back: its
//! keys are the new part's, and wait for that part's server.
//!
//! Of two servers that lose their power, each comes back as it was at a moment of its own. So before a word on one server leads to something on
//! another one, that is on the other one's disk: the new part of a burst, of a collapse and of a node between two others. Before the
//! node above a node that has moved leads past it, all is on a disk that the former node led to.

mod gap;
mod grow;
mod merge;
mod settle;
mod split;

use fatbtree_remote_memory::{GlobalAddress, LockError, LockGuard, Part, Writer, bytes_of};
use fatbtree_verbs::{Buffer, MAX_BATCH, Operation, Output, Remote, Verbs};

use super::space::{Room, Wants};
use super::{Index, Op};
use crate::checks::Check;
use crate::entry::{Entry, NodeSize};
use crate::error::Stop;
use crate::inner::{Node, NodeState};
use crate::leaf::{LEAF_BYTES, LOCK, LOCK_BYTES, Leaf, LeafState, LockLine, NoLeaf, Use};

/// Times that a structure change looks for what it wants: others change the same.
const MOST_ROOMS: usize = 6;

/// Leaves that are frozen under the lock of their node.
type Frozen<'i, V> = (LockGuard<'i, V>, Vec<Buffer>);

impl<V: Verbs> Index<V> {
    /// Carries out a structure change with the room that it turns out to want. Each attempt either ends the change, or says what it
    /// wants, and has nothing locked or frozen then. Nothing waits between the last block and the request for the lock, so both are of one
    /// session.
    async fn with_room<T>(
        &self,
        mut wants: Option<Wants>,
        op: &mut Op,
        mut change: impl AsyncFnMut(Option<&mut Room<'_, V>>, &mut Op) -> Result<Made<T>, Stop>,
    ) -> Result<T, Stop> {
        for _ in 0..MOST_ROOMS {
            let mut room = match wants {
                Some(wants) => Some(self.room(wants, op).await?),
                None => None,
            };
            match change(room.as_mut(), op).await? {
                Made::Done(done) => return Ok(done),
                Made::Wants(more) => wants = Some(more),
            }
        }
        Err(Stop::Later)
    }

    /// Takes the lock of a node and reads it.
    async fn enter(&self, parent: Entry, op: &mut Op) -> Result<(LockGuard<'_, V>, Node), Stop> {
        let (at, bytes) = (parent.at(), parent.size().bytes());
        let (guard, bytes) = LockGuard::lock_and_read(&self.memory, &op.lane, at, bytes).await?;
        match Node::parse(&bytes, at, parent.size()) {
            // Nothing is changed below a damaged node.
            Some(node) if node.damage().is_some() && Check::SoundNodes.on() => {
                guard.release(&op.lane).await?;
                op.state.anew = true;
                Err(op.doubt(at, parent.0, &bytes, node.damage().unwrap_or("an inner node")))
            }
            Some(node) if node.is(NodeState::Live) && node.prefix.covers(op.key) => Ok((guard, node)),
            found => {
                guard.release(&op.lane).await?;
                let moved = found.filter(|node| node.is(NodeState::Moved) && node.successor.is_inner());
                op.state.anew = match moved {
                    // The node above may lie on a server that is away.
                    Some(node) => !self.learn(node.successor, op).await?,
                    None => true,
                };
                Err(Stop::Anew)
            }
        }
    }

    /// Takes up the node in another one's place. Says whether it did.
    async fn learn(&self, successor: Entry, op: &mut Op) -> Result<bool, Stop> {
        let node = self.read_node(successor, op).await?;
        let known = node.filter(|node| node.is(NodeState::Live) && node.prefix.covers(op.key));
        Ok(known.is_some_and(|node| self.cache.put(&node, successor)))
    }

    /// Reads leaves of one server, with one doorbell.
    async fn read_leaves(
        &self,
        writer: &Writer,
        leaves: &[GlobalAddress],
        op: &mut Op,
    ) -> Result<Vec<Buffer>, Stop> {
        self.read_parts(writer, leaves, LEAF_BYTES as u32, op).await
    }

    /// Reads as many bytes at each address of one server, with as many doorbells as that takes.
    async fn read_parts(
        &self,
        writer: &Writer,
        from: &[GlobalAddress],
        len: u32,
        op: &mut Op,
    ) -> Result<Vec<Buffer>, Stop> {
        let Some(first) = from.first() else { return Ok(Vec::new()) };
        let path = op.lane.to(first.server());
        let mut all = Vec::with_capacity(from.len());
        for some in from.chunks(MAX_BATCH) {
            let read = |rkey| {
                some.iter().map(move |at| {
                    let from = Remote { address: at.raw(), rkey };
                    Operation::Read { from, len }
                })
            };
            for output in self.memory.batch(path, writer, read).await? {
                all.push(bytes_of(output)?);
            }
        }
        Ok(all)
    }

    /// Freezes leaves of a locked node and waits until no operation is announced on them. Returns what
    /// they hold then. If one of them is being changed, what a dead client has begun is completed
    /// first.
    async fn freeze<'i>(
        &'i self,
        guard: LockGuard<'i, V>,
        node: Node,
        leaves: &[GlobalAddress],
        op: &mut Op,
    ) -> Result<Frozen<'i, V>, Stop> {
        let writer = guard.writer();
        let before = self.read_leaves(&writer, leaves, op).await?;
        let stamps: Option<Vec<u64>> = before
            .iter()
            .map(|bytes| {
                Leaf::new(bytes).filter(|leaf| leaf.check(Use::Change).is_ok()).map(|leaf| leaf.stamp())
            })
            .collect();
        let Some(stamps) = stamps else {
            let torn = before.iter().filter_map(|bytes| Leaf::new(bytes));
            let is_whole = |leaf: Leaf<'_>| leaf.check(Use::Read) != Err(NoLeaf::Gone);
            if !Check::Settles.on() || !torn.into_iter().all(is_whole) {
                guard.release(&op.lane).await?;
                op.state.anew = true;
                return Err(Stop::Later);
            }
            // Where that wants room, the operation finds the leaf once more.
            self.settle_locked(guard, node, None, op).await?;
            return Err(Stop::Anew);
        };
        self.lock_lines(&guard, leaves, &stamps, LeafState::Frozen, op).await?;
        if !self.drain(&writer, leaves, op).await? {
            self.thaw(guard, leaves, &stamps, op).await?;
            return Err(Stop::Later);
        }
        Ok((guard, self.read_leaves(&writer, leaves, op).await?))
    }

    /// Opens frozen leaves again and releases the lock of their node.
    async fn thaw(
        &self,
        guard: LockGuard<'_, V>,
        leaves: &[GlobalAddress],
        stamps: &[u64],
        op: &mut Op,
    ) -> Result<(), Stop> {
        self.lock_lines(&guard, leaves, stamps, LeafState::Open, op).await?;
        Ok(guard.release(&op.lane).await?)
    }

    /// Opens frozen leaves again that were read, and releases the lock of their node.
    async fn thaw_read(
        &self,
        (guard, bytes): Frozen<'_, V>,
        leaves: &[GlobalAddress],
        op: &mut Op,
    ) -> Result<(), Stop> {
        let stamps: Vec<_> =
            bytes.iter().filter_map(|bytes| Leaf::new(bytes)).map(|leaf| leaf.stamp()).collect();
        self.thaw(guard, leaves, &stamps, op).await
    }

    async fn lock_lines(
        &self,
        guard: &LockGuard<'_, V>,
        leaves: &[GlobalAddress],
        stamps: &[u64],
        state: LeafState,
        op: &mut Op,
    ) -> Result<(), Stop> {
        let lines: Vec<_> = stamps.iter().map(|&stamp| LockLine::plain(stamp, state).to_bytes()).collect();
        let parts: Vec<_> = leaves.iter().zip(&lines).map(|(&at, line)| lock_part(at, line)).collect();
        Ok(guard.write(&parts, &op.lane).await?)
    }

    /// Writes what retires leaves, and releases the lock of their node. Then they are free memory.
    async fn retire(
        &self,
        guard: LockGuard<'_, V>,
        parts: &[Part<'_>],
        writer: &Writer,
        leaves: &[GlobalAddress],
        op: &mut Op,
    ) -> Result<(), LockError> {
        let free = || leaves.iter().for_each(|&leaf| self.free_leaf(writer, leaf));
        if !Check::FreesRetired.on() {
            free();
            return guard.restructure(parts, &op.lane).await;
        }
        guard.restructure(parts, &op.lane).await?;
        free();
        Ok(())
    }

    /// Waits until what was written to a server is on its disk, where something on the server `leads` is about to lead to it.
    async fn synced_before(&self, server: u16, leads: u16) -> Result<(), Stop> {
        match server == leads {
            true => Ok(()),
            false => Ok(self.memory.until_synced(server).await?),
        }
    }

    /// Lets what is unborn be used: swaps state words, each of which has a stamp of its own, so that
    /// this may come twice or late.
    async fn begin_use(&self, swaps: &[Swap], op: &mut Op) -> Result<(), Stop> {
        for of_one in swaps.chunk_by(|one, other| one.at.server() == other.at.server()) {
            let Some(first) = of_one.first() else { continue };
            let server = first.at.server();
            let writer = self.at_hand(server, op)?;
            for some in of_one.chunks(MAX_BATCH) {
                let swap = |rkey| {
                    some.iter().map(move |&Swap { at, from, to }| {
                        let at = Remote { address: at.raw(), rkey };
                        Operation::CompareSwap { at, compare: from, swap: to }
                    })
                };
                let path = op.lane.to(server);
                let outputs = self.memory.batch(path, &writer, swap).await?;
                debug_assert!(outputs.iter().all(|output| matches!(output, Output::Atomic(_))));
            }
            // Before the node above, perhaps on another server, leads there for good.
            self.memory.until_synced(server).await?;
        }
        Ok(())
    }
}

/// End of an attempt at a structure change.
enum Made<T> {
    Done(T),
    /// It wants other room. Nothing is locked or frozen.
    Wants(Wants),
}

/// A state word that changes.
#[derive(Clone, Copy, Debug)]
struct Swap {
    at: GlobalAddress,
    from: u64,
    to: u64,
}

impl Swap {
    fn leaf(at: GlobalAddress, stamp: u64) -> Self {
        let (from, to) = (stamp | LeafState::Unborn as u64, stamp | LeafState::Open as u64);
        Self { at: at.behind(LOCK), from, to }
    }

    fn node(at: GlobalAddress, stamp: u64) -> Self {
        let (from, to) = (stamp | NodeState::Unborn as u64, stamp | NodeState::Live as u64);
        Self { at: at.behind(crate::inner::STATE), from, to }
    }
}

/// Gives the lock of a node back after a step on another server has failed.
async fn give_up<T, V: Verbs>(guard: LockGuard<'_, V>, stop: Stop, op: &mut Op) -> Result<T, Stop> {
    guard.release(&op.lane).await?;
    Err(stop)
}

fn lock_part(at: GlobalAddress, line: &[u8; LOCK_BYTES]) -> Part<'_> {
    Part { at: at.behind(LOCK), bytes: line }
}

/// The entry by which leaves name the node above.
fn upward(size: NodeSize, at: GlobalAddress) -> Result<Entry, Stop> {
    Entry::inner(0, size, at).ok_or_else(|| out_of_reach(at))
}

fn out_of_reach(at: GlobalAddress) -> Stop {
    crate::error::IndexError::OutOfReach { at }.into()
}
