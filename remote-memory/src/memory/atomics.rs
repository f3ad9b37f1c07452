//! Words that several clients change without a lock.

use fatbtree_verbs::{Operation, Output, Remote, Verbs};

use super::{RemoteMemory, Trouble, no_answer, word_of};
use crate::address::GlobalAddress;
use crate::locks::Writer;
use crate::operation::{Lane, Path};

impl<V: Verbs> RemoteMemory<V> {
    /// Posts operations on one server's memory with one doorbell, when the connection there is up, and waits until all are done.
    /// `operations` is told the rkey of that memory.
    ///
    /// What is written under a [lock](crate::LockGuard) is written by the guard: it fences a client whose session has ended.
    ///
    /// # Errors
    /// When nothing was posted, or the connection broke: then the first of the operations may have been carried out, or all.
    pub async fn post<'d, const N: usize>(
        &self,
        path: Path<'_>,
        operations: impl FnOnce(u32) -> [Operation<'d>; N],
    ) -> Result<[Output; N], Trouble> {
        let (queue_pair, rkey) = self.link_when_up(path.id).await?;
        let done = self.reactor.chain(queue_pair, operations(rkey)).await;
        self.waited(path, queue_pair, done)
    }

    /// Writes bytes at an address.
    ///
    /// # Errors
    /// As [`post`](Self::post).
    pub async fn write(&self, lane: &Lane, to: GlobalAddress, data: &[u8]) -> Result<(), Trouble> {
        let write = |rkey| [Operation::Write { to: Remote { address: to.raw(), rkey }, data }];
        self.post(lane.to(to.server()), write).await.map(drop)
    }

    /// Adds to a word, and returns what it was before.
    ///
    /// # Errors
    /// As [`post`](Self::post).
    pub async fn fetch_add(&self, lane: &Lane, at: GlobalAddress, add: u64) -> Result<u64, Trouble> {
        self.atomic(lane, at, |at| Operation::FetchAdd { at, add }).await
    }

    /// Replaces a word if it is `compare`, and returns what it was before.
    ///
    /// # Errors
    /// As [`post`](Self::post).
    pub async fn compare_swap(
        &self,
        lane: &Lane,
        at: GlobalAddress,
        compare: u64,
        swap: u64,
    ) -> Result<u64, Trouble> {
        let found = self.atomic(lane, at, |at| Operation::CompareSwap { at, compare, swap }).await?;
        self.note_attempt(found != compare);
        Ok(found)
    }

    /// The same in the session of `writer`, or not at all.
    ///
    /// # Errors
    /// As [`chain`](Self::chain).
    pub async fn compare_swap_in(
        &self,
        lane: &Lane,
        writer: &Writer,
        at: GlobalAddress,
        compare: u64,
        swap: u64,
    ) -> Result<u64, Trouble> {
        let swap = |rkey| {
            let at = Remote { address: at.raw(), rkey };
            [Operation::CompareSwap { at, compare, swap }]
        };
        let [found] = self.chain(lane.to(at.server()), writer, swap).await?;
        let found = word_of(&found)?;
        self.note_attempt(found != compare);
        Ok(found)
    }

    /// Reads a word.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn read_word(&self, lane: &Lane, at: GlobalAddress) -> Result<u64, Trouble> {
        let bytes = self.read(lane, at, 8).await?;
        bytes.first_chunk().map(|bytes| u64::from_le_bytes(*bytes)).ok_or_else(no_answer)
    }

    /// Replaces a word by what `change` makes of it, however often other clients are quicker: after each such attempt it
    /// [pauses](Self::pause_after_conflict). Returns what the word was before and is now; both are the same where `change` returns `None`,
    /// which leaves the word alone.
    ///
    /// # Errors
    /// As [`post`](Self::post).
    pub async fn update(
        &self,
        lane: &Lane,
        at: GlobalAddress,
        mut change: impl FnMut(u64) -> Option<u64>,
    ) -> Result<(u64, u64), Trouble> {
        let _turn = self.compete().await;
        let mut before = self.read_word(lane, at).await?;
        for attempt in 0.. {
            let Some(after) = change(before) else { break };
            let found = self.compare_swap(lane, at, before, after).await?;
            if found == before {
                return Ok((before, after));
            }
            before = found;
            self.pause_after_conflict(attempt, None).await;
        }
        Ok((before, before))
    }

    async fn atomic(
        &self,
        lane: &Lane,
        at: GlobalAddress,
        operation: impl FnOnce(Remote) -> Operation<'static>,
    ) -> Result<u64, Trouble> {
        let post = |rkey| [operation(Remote { address: at.raw(), rkey })];
        let [found] = self.post(lane.to(at.server()), post).await?;
        word_of(&found)
    }
}
