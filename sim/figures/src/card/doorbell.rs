//! Doorbell registers and queue pairs that threads share, and the locks around them.

use std::collections::VecDeque;

use fatbtree_verbs::time::{Duration, Instant};

/// Way in which the threads of a client share queue pairs and doorbell registers (SMART, sections 3.1 and 4.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Resources {
    /// One queue pair for all threads.
    SharedQueuePair,
    /// A queue pair for so many threads; registers as the driver gives them out.
    ThreadsPerQueuePair(u32),
    /// A queue pair a thread; registers as the driver gives them out.
    QueuePairPerThread,
    /// A queue pair and a register a thread, without locks: thread domains.
    #[default]
    DoorbellPerThread,
}

/// Registers of mlx5's default: 4 for low latency, each of one queue pair and without a lock, and 12 that the others share
/// in turn (SMART, section 2.2).
const LOW_LATENCY: u32 = 4;
const SHARED: u32 = 12;

impl Resources {
    /// Threads of a queue pair.
    fn threads(self) -> u32 {
        match self {
            Self::SharedQueuePair => u32::MAX,
            Self::ThreadsPerQueuePair(threads) => threads.max(1),
            Self::QueuePairPerThread | Self::DoorbellPerThread => 1,
        }
    }

    /// Queue pair of a thread, if it shares one.
    pub(super) fn queue_pair(self, thread: u32) -> Option<u32> {
        (self.threads() > 1).then(|| thread / self.threads())
    }

    /// Register of a thread's queue pair to the `peer`th machine, if it has a lock. The queue pairs of all `threads` to one machine are made
    /// before those to the next one. So the two of a thread share a register where the number of threads is a multiple of 12: SMART's section
    /// 6.2.2 sees twice as many threads at each register with 47 and 49 threads than with 48.
    pub(super) fn register(self, thread: u32, peer: u32, threads: u32) -> Option<u32> {
        let of_each = threads.div_ceil(self.threads());
        let queue_pair = peer * of_each + thread / self.threads();
        let is_shared = self != Self::DoorbellPerThread && queue_pair >= LOW_LATENCY;
        is_shared.then(|| (queue_pair - LOW_LATENCY) % SHARED)
    }
}

/// A lock that threads take in the order in which they come.
#[derive(Debug, Default)]
pub(super) struct Lock {
    /// Times at which its holder and those who wait will have released it.
    releases: VecDeque<Instant>,
    /// The thread that came last.
    last: Option<u32>,
}

impl Lock {
    /// Threads at the lock when another one comes, itself included, and the time at which it has the lock. The thread that had it last is one
    /// of them: its core has the lock's cache line.
    pub(super) fn come(&mut self, thread: u32, now: Instant) -> (u32, Instant) {
        while self.releases.front().is_some_and(|&release| release <= now) {
            self.releases.pop_front();
        }
        let others = self.last.replace(thread).is_some_and(|last| last != thread);
        let threads = (self.releases.len() as u32 + 1).max(1 + u32::from(others));
        (threads, self.releases.back().copied().unwrap_or(now))
    }

    /// The last that came releases it at this time.
    pub(super) fn release(&mut self, at: Instant) {
        self.releases.push_back(at);
    }
}

/// Time for which a thread holds a register with so many threads at it. With one it is within the time of a post. SMART's
/// figure 3, a queue pair a thread: 2.3, 3.7, 5 and 7.7 threads a register take 0.38, 0.54, 0.76 and 1.01 µs a request, and
/// 0.10 + 0.125 n µs are 0.39, 0.56, 0.73 and 1.06. The part that grows is the lock's cache line on its way.
pub(super) fn register_hold(threads: u32) -> Duration {
    let waiting = if threads < 2 { 0 } else { 125 * u64::from(threads) };
    Duration::from_nanos(100 + waiting)
}

/// Time for which a thread holds a queue pair with so many threads at it. SMART's figure 3: one queue pair for 8, 16, 32, 48
/// and from 64 threads on; 2 threads at 24, where each pair has a register of its own; 4 threads at 48, likewise.
pub(super) fn queue_pair_hold(threads: u32) -> Duration {
    const MEASURED: [(u32, u64); 8] =
        [(1, 100), (2, 830), (4, 1540), (8, 1700), (16, 2300), (32, 2900), (48, 3700), (64, 3900)];
    let above = MEASURED.partition_point(|&(at, _)| at < threads).clamp(1, MEASURED.len() - 1);
    let ((from, low), (to, high)) = (MEASURED[above - 1], MEASURED[above]);
    let part = u64::from(threads.clamp(from, to) - from);
    Duration::from_nanos(low + (high - low) * part / u64::from(to - from))
}
