//! Places of work requests that the queues of a card use.

use fatbtree_verbs::time::{Duration, Instant};

/// Time over which places count as used.
const LATELY: Duration = Duration::from_micros(100);

/// Places that each machine at a card has used lately: the most requests that were posted and had not given their places back. A card does
/// not forget a work request when it is complete, but when its place in the cache is needed. So a thread that posts 32 and then polls 32 uses
/// 32 places, although fewer are filled on average; SMART's figure 4 counts them so, too (section 2.2, "outstanding work requests").
#[derive(Debug, Default)]
pub(super) struct Places {
    machines: Vec<Used>,
    sum: u64,
    /// Time from which on `most` counts.
    since: Instant,
}

#[derive(Clone, Copy, Debug, Default)]
struct Used {
    now: u64,
    most: u64,
    /// `most` of the span before.
    before: u64,
}

impl Used {
    fn lately(self) -> u64 {
        self.most.max(self.before)
    }
}

impl Places {
    /// Adds a machine and returns its number.
    pub(super) fn add(&mut self) -> usize {
        self.machines.push(Used::default());
        self.machines.len() - 1
    }

    /// Notes requests that a machine has posted.
    pub(super) fn post(&mut self, now: Instant, machine: usize, requests: u32) {
        if now - self.since > LATELY {
            self.since = now;
            for used in &mut self.machines {
                *used = Used { now: used.now, most: used.now, before: used.most };
            }
            self.sum = self.machines.iter().map(|used| used.lately()).sum();
        }
        let used = &mut self.machines[machine];
        let before = used.lately();
        used.now += u64::from(requests);
        used.most = used.most.max(used.now);
        self.sum += used.lately() - before;
    }

    /// Notes requests of a machine that have given back their places.
    pub(super) fn free(&mut self, machine: usize, requests: u32) {
        let used = &mut self.machines[machine];
        used.now = used.now.saturating_sub(requests.into());
    }

    /// Places used lately.
    pub(super) fn used(&self) -> u64 {
        self.sum
    }
}
