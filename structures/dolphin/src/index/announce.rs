//! The ternary lock of a leaf, taken apart: each client's operations are counted in a line of its own.
//!
//! ```text
//!   operation on leaf L                              structure change of L
//!   [WRITE L into a word of my line, READ L]         WRITE "frozen" into L's lock line
//!     frozen? take the word back, pause              READ which owners live, READ their lines
//!   [WRITE the value, WRITE 0 into my word]            any word says L? read again
//! ```
//!
//! Of the two, one sees the other: both write first and read then. Dolphin's lock is one word that
//! all operations add to. Here the parts of that sum lie apart, each at its owner's:
//!
//! * The part of a dead owner does not count. Its bit in the server's table of owners is cleared when
//!   nothing that it has posted can come any more.
//! * An announcement may be written twice. Nothing is known of an addition whose answer was lost.
//! * Operations on a hot leaf do not meet at one word: there is no atomic.
//!
//! A word that may still be set, because its operation was dropped or its connection broke, is *left*.
//! The next operation uses it first, and on the same lane: after all that was posted there.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::{Poll, Waker};

use arrayvec::ArrayVec;
use fatbtree_remote_memory::{
    CommonError, ConnectionId, GlobalAddress, Owner, Path, Trouble, Writer, bytes_of,
};
use fatbtree_verbs::{Buffer, MAX_BATCH, Operation, Output, Remote, Verbs};

use super::{Index, Op};
use crate::checks::Check;
use crate::error::Stop;
use crate::layout::{ANNOUNCEMENTS, LINE_BYTES, line_offset};
use crate::leaf::{COUNT, LEAF_BYTES};

/// The client's line on each server.
#[derive(Default)]
pub(super) struct Lines(BTreeMap<u16, Line>);

struct Line {
    owner: Owner,
    ready: Ready,
    /// A bit for each word in use.
    used: u8,
    /// Words that may be set still: the lane on which that was posted.
    left: [Option<u8>; ANNOUNCEMENTS],
    waiting: Vec<Waker>,
}

/// What an owner of this number has left in the line, before this client, must be cleared first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ready {
    No,
    Making,
    Yes,
}

/// Answers of one doorbell.
type Outputs = ArrayVec<Output, MAX_BATCH>;

enum Turn {
    Word { number: u8, lane: u8 },
    Make,
    Wait,
}

/// A word of the client's line, for one operation.
pub(super) struct Announced<'i, V: Verbs> {
    index: &'i Index<V>,
    server: u16,
    number: u8,
    lane: u8,
    writer: Writer,
    /// The leaf, as long as the word may be set.
    set: Option<GlobalAddress>,
}

impl<V: Verbs> Drop for Announced<'_, V> {
    fn drop(&mut self) {
        let mut lines = self.index.lines.borrow_mut();
        // A session that has ended has no line.
        let Some(line) = lines.0.get_mut(&self.server) else { return };
        if line.owner == self.writer.owner {
            line.used &= !(1 << self.number);
            line.left[usize::from(self.number)] = self.set.map(|_| self.lane);
            line.waiting.drain(..).for_each(Waker::wake);
            if self.set.is_some() {
                self.index.memory.tell_unfinished(self.server);
            }
        }
    }
}

impl Line {
    fn turn(&mut self, lane: u8) -> Turn {
        match self.ready {
            Ready::Making => return Turn::Wait,
            Ready::No => {
                self.ready = Ready::Making;
                return Turn::Make;
            }
            Ready::Yes => {}
        }
        let free = |number: &usize| self.used >> number & 1 == 0;
        let words = || (0..ANNOUNCEMENTS).filter(free);
        let left = words().find(|&number| self.left[number].is_some());
        let Some(number) = left.or_else(|| words().next()) else { return Turn::Wait };
        self.used |= 1 << number;
        Turn::Word { number: number as u8, lane: self.left[number].unwrap_or(lane) }
    }
}

impl<V: Verbs> Index<V> {
    /// Does something with the client's line of a session.
    fn with_line<T>(&self, server: u16, owner: Owner, work: impl FnOnce(&mut Line) -> T) -> T {
        let mut lines = self.lines.borrow_mut();
        let new =
            || Line { owner, ready: Ready::No, used: 0, left: [None; ANNOUNCEMENTS], waiting: Vec::new() };
        let line = lines.0.entry(server).or_insert_with(new);
        if line.owner != owner {
            let former = std::mem::replace(line, new());
            former.waiting.into_iter().for_each(Waker::wake);
        }
        work(line)
    }

    /// Waits for a word of the client's line on a server.
    pub(super) async fn word_on(&self, server: u16, op: &mut Op) -> Result<Announced<'_, V>, Stop> {
        loop {
            let writer = self.writer(server, &op.lane).await?;
            match self.with_line(server, writer.owner, |line| line.turn(op.lane.number())) {
                Turn::Word { number, lane } => {
                    let is_left = self.with_line(server, writer.owner, |line| {
                        line.left[usize::from(number)].take().is_some()
                    });
                    let set = is_left.then_some(GlobalAddress::NULL);
                    return Ok(Announced { index: self, server, number, lane, writer, set });
                }
                Turn::Make => {
                    let mut making = Making { index: self, server, owner: writer.owner, made: false };
                    let path = op.lane.to(server);
                    let clear = |rkey| {
                        let to = Remote { address: line_of(server, writer.owner).raw(), rkey };
                        [Operation::Write { to, data: &[0; LINE_BYTES as usize] }]
                    };
                    // A number comes again after 65,536 sessions of one life of the server, for a start clears all lines: more than a test
                    // has. What its former owner has left would stop structure changes of those leaves as long as this client lives.
                    self.memory.chain(path, &writer, clear).await?;
                    making.made = true;
                }
                Turn::Wait => {
                    let mut asked = false;
                    poll_fn(|context| {
                        if std::mem::replace(&mut asked, true) {
                            return Poll::Ready(());
                        }
                        let wait = |line: &mut Line| line.waiting.push(context.waker().clone());
                        self.with_line(server, writer.owner, wait);
                        Poll::Pending
                    })
                    .await;
                }
            }
        }
    }

    /// Takes back words that operations of this client have left on a server, before it waits for the
    /// announcements of all clients.
    pub(super) async fn take_back(&self, server: u16, op: &mut Op) -> Result<(), Stop> {
        let writer = self.writer(server, &op.lane).await?;
        let any = |line: &mut Line| line.left.iter().filter(|left| left.is_some()).count();
        for _ in 0..self.with_line(server, writer.owner, any) {
            let mut word = self.word_on(server, op).await?;
            if word.set.is_none() {
                break;
            }
            word.clear(op).await?;
        }
        Ok(())
    }
}

impl<V: Verbs> Index<V> {
    /// Takes back what dropped operations have left: their announcements, and locks of structure changes. The
    /// owner runs it when [`Event::Unfinished`](fatbtree_remote_memory::Event::Unfinished) comes. The next operations
    /// of this client do so, too; until then other clients cannot split the leaves in question.
    pub async fn finish(&self) {
        self.memory.finish().await;
        let servers: Vec<u16> = self.lines.borrow().0.keys().copied().collect();
        for server in servers {
            // What fails here stays left, for the next operation; or its session has ended.
            self.take_back(server, &mut self.op(0)).await.ok();
        }
    }
}

/// The line of an owner.
pub(super) fn line_of(server: u16, owner: Owner) -> GlobalAddress {
    GlobalAddress::new(server, line_offset(owner.number))
}

/// The clearing of a line that is under way.
struct Making<'i, V: Verbs> {
    index: &'i Index<V>,
    server: u16,
    owner: Owner,
    made: bool,
}

impl<V: Verbs> Drop for Making<'_, V> {
    fn drop(&mut self) {
        let mut lines = self.index.lines.borrow_mut();
        let Some(line) = lines.0.get_mut(&self.server).filter(|line| line.owner == self.owner) else {
            return;
        };
        line.ready = if self.made { Ready::Yes } else { Ready::No };
        line.waiting.drain(..).for_each(Waker::wake);
    }
}

impl<V: Verbs> Announced<'_, V> {
    pub(super) fn writer(&self) -> &Writer {
        &self.writer
    }

    /// The way of an operation to the leaf's server, on the lane of the announcement.
    fn path<'o>(&self, op: &'o Op) -> Path<'o> {
        op.lane.by(ConnectionId { server: self.server, lane: self.lane })
    }

    fn word(&self, rkey: u32) -> Remote {
        let line = line_of(self.server, self.writer.owner);
        Remote { address: line.raw() + 8 * u64::from(self.number), rkey }
    }

    /// Announces the operation on a leaf and reads it: a round trip.
    pub(super) async fn announce(&mut self, leaf: GlobalAddress, op: &mut Op) -> Result<Buffer, Stop> {
        // As published, the count is taken back where it was added.
        if !Check::OwnCounts.on() && self.set.is_some_and(|set| !set.is_null()) {
            self.clear(op).await?;
        }
        self.set = Some(leaf);
        let word = leaf.raw().to_le_bytes();
        let chain = |rkey| {
            let count = match Check::OwnCounts.on() {
                true => Operation::Write { to: self.word(rkey), data: &word },
                false => add(leaf, rkey, 1),
            };
            [count, Operation::Read { from: Remote { address: leaf.raw(), rkey }, len: LEAF_BYTES as u32 }]
        };
        let [_, bytes] = self.index.memory.chain(self.path(op), &self.writer, chain).await?;
        Ok(bytes_of(bytes)?)
    }

    /// Ends the announcement: a round trip.
    pub(super) async fn clear(&mut self, op: &mut Op) -> Result<(), Stop> {
        let chain = |rkey| [self.end(rkey)];
        self.index.memory.chain(self.path(op), &self.writer, chain).await?;
        self.set = None;
        Ok(())
    }

    /// Ends the announcement and reads bytes on the same server: a round trip.
    pub(super) async fn clear_and_read(
        &mut self,
        from: GlobalAddress,
        len: u32,
        op: &mut Op,
    ) -> Result<Buffer, Stop> {
        let read = |rkey| Operation::Read { from: Remote { address: from.raw(), rkey }, len };
        let [_, bytes] =
            self.index.memory.chain(self.path(op), &self.writer, |rkey| [self.end(rkey), read(rkey)]).await?;
        self.set = None;
        Ok(bytes_of(bytes)?)
    }

    /// Posts operations on the leaf's server: a round trip, in the session of the announcement.
    pub(super) async fn post<'d, const N: usize>(
        &self,
        operations: impl FnOnce(u32) -> [Operation<'d>; N],
        op: &mut Op,
    ) -> Result<[Output; N], Stop> {
        Ok(self.index.memory.chain(self.path(op), &self.writer, operations).await?)
    }

    /// Posts the operations by which a change takes effect, and the end of the announcement: a round
    /// trip. The answer is that of the operation `at`.
    ///
    /// # Errors
    /// [`CommonError::Unknown`] when the connection broke under it.
    pub(super) async fn conclude<'d, const N: usize>(
        &mut self,
        operations: impl FnOnce(u32) -> [Operation<'d>; N],
        op: &mut Op,
    ) -> Result<[Output; N], Stop> {
        let concluded = self.post_last(operations, op).await?;
        self.set = None;
        let Some(outputs) = concluded else { return Ok(std::array::from_fn(|_| Output::Written)) };
        let mut outputs = outputs.into_iter();
        Ok(std::array::from_fn(|_| outputs.next().unwrap_or(Output::Written)))
    }

    /// `None`: posted, and not waited for.
    async fn post_last<'d, const N: usize>(
        &self,
        operations: impl FnOnce(u32) -> [Operation<'d>; N],
        op: &Op,
    ) -> Result<Option<Outputs>, Stop> {
        let batch = |rkey| operations(rkey).into_iter().chain([self.end(rkey)]);
        let mut posted = pin!(self.index.memory.batch(self.path(op), &self.writer, batch));
        if !Check::AwaitsLast.on() {
            // As published, nothing waits for the WRITE.
            let is_done = poll_fn(|context| Poll::Ready(posted.as_mut().poll(context).is_ready())).await;
            return if is_done { Err(Stop::Later) } else { Ok(None) };
        }
        let outputs = posted.await.map_err(|trouble| match trouble {
            Trouble::Broke(reason) => CommonError::Unknown(reason).into(),
            // Nothing was posted.
            other => Stop::from(other),
        })?;
        Ok(Some(outputs))
    }

    /// The operation that ends the announcement.
    fn end<'d>(&self, rkey: u32) -> Operation<'d> {
        match self.set.filter(|leaf| !leaf.is_null() && !Check::OwnCounts.on()) {
            Some(leaf) => add(leaf, rkey, 1_u64.wrapping_neg()),
            None => Operation::Write { to: self.word(rkey), data: &[0; 8] },
        }
    }
}

/// Adds to the count of a leaf, as published.
fn add<'d>(leaf: GlobalAddress, rkey: u32, add: u64) -> Operation<'d> {
    Operation::FetchAdd { at: Remote { address: leaf.behind(COUNT).raw(), rkey }, add }
}
