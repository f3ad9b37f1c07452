//! Snapshots of the tree's top, read some nodes at a time while others write.

use std::sync::Arc;

use fatbtree_blink::{Partition, Regions, TopReader, TreeConfig, TreeTop, WalkError};
use tokio::sync::oneshot;

/// Errors from taking a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Enough requests wait already.
    #[error(
        "{waiting} requests for a snapshot wait already, as many as may; ask again when some are answered"
    )]
    Busy {
        /// Requests that wait.
        waiting: usize,
    },
    /// The tree cannot be read.
    #[error("the top of the tree could not be read in {tries} tries, the last time because: {error}")]
    Unreadable {
        /// Times it was tried from the root on.
        tries: u32,
        /// Error of the last attempt.
        error: WalkError,
    },
}

/// Receiver of a snapshot.
pub(crate) type Waiter = oneshot::Sender<Result<Arc<TreeTop>, SnapshotError>>;

/// Times a walk begins at the root before it is given up.
const TRIES: u32 = 16;

/// A walk under way, and the callers that wait for it.
#[derive(Debug)]
struct Run {
    reader: TopReader,
    tries: u32,
    waiters: Vec<Waiter>,
}

/// Snapshots, one walk at a time. A request during a walk gets the next one, which sees all that was written
/// before the request; all waiting requests share it.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    run: Option<Run>,
    next: Vec<Waiter>,
    /// Nodes of the largest top.
    nodes: usize,
    /// Requests that may wait.
    bound: usize,
    pub(crate) finished: u64,
    pub(crate) failed: u64,
}

impl Snapshots {
    pub(crate) fn new(nodes: usize, bound: usize) -> Self {
        Self { nodes, bound, ..Self::default() }
    }

    /// Requests that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.next.len() + self.run.as_ref().map_or(0, |run| run.waiters.len())
    }

    pub(crate) fn ask(&mut self, waiter: Waiter) {
        self.forget_the_gone();
        let waiting = self.waiting();
        if waiting < self.bound {
            self.next.push(waiter);
        } else {
            // The send fails if the caller has gone; that is harmless.
            let _ = waiter.send(Err(SnapshotError::Busy { waiting }));
        }
    }

    /// Reads up to `budget` nodes; says whether there is more to do.
    pub(crate) fn work(
        &mut self,
        memory: &Regions,
        config: &TreeConfig,
        partition: &Partition,
        budget: usize,
    ) -> bool {
        self.forget_the_gone();
        if self.run.is_none() && !self.next.is_empty() {
            let reader = TopReader::new(config, partition, self.nodes);
            self.run = Some(Run { reader, tries: 1, waiters: std::mem::take(&mut self.next) });
        }
        let Some(run) = &mut self.run else { return false };
        let result = match run.reader.read(memory, budget) {
            Ok(None) => return true,
            Ok(Some(top)) => Ok(Arc::new(top)),
            Err(error) if run.tries >= TRIES || matches!(error, WalkError::TooMany { .. }) => {
                Err(SnapshotError::Unreadable { tries: run.tries, error })
            }
            Err(_) => {
                run.tries += 1;
                run.reader = TopReader::new(config, partition, self.nodes);
                return true;
            }
        };
        match result {
            Ok(_) => self.finished += 1,
            Err(_) => self.failed += 1,
        }
        for waiter in std::mem::take(&mut run.waiters) {
            let _ = waiter.send(result.clone());
        }
        self.run = None;
        !self.next.is_empty()
    }

    /// Starts anew with another tree: waiting callers get that tree's top.
    pub(crate) fn begin_anew(&mut self) {
        if let Some(run) = self.run.take() {
            self.next.extend(run.waiters);
        }
    }

    /// Ends a walk whose callers have all gone.
    fn forget_the_gone(&mut self) {
        self.next.retain(|waiter| !waiter.is_closed());
        if let Some(run) = &mut self.run {
            run.waiters.retain(|waiter| !waiter.is_closed());
            if run.waiters.is_empty() {
                self.run = None;
            }
        }
    }
}
