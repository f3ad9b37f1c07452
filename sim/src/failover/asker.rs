//! A client that looks up keys now and then, and how long each lookup took.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use fatbtree_blink::{Lookup, Start};
use fatbtree_blink_client::Client;
use fatbtree_blink_host::TreeInfo;
use fatbtree_remote_memory::session_keeper::{KeeperOptions, SessionKeeper};
use fatbtree_soft_nic::Nic;
use fatbtree_topology::HostId;
use fatbtree_verbs::time::{Duration, Instant};

/// A lookup that has not ended.
struct Running {
    began: Instant,
    future: Pin<Box<dyn Future<Output = Lookup>>>,
}

/// A client with its lookups.
pub(super) struct Asker {
    pub(super) client: Client<Nic>,
    pub(super) host: HostId,
    pub(super) keeper: SessionKeeper<TreeInfo>,
    /// Connections that the controller has told of: partition, and the server's queue pair.
    pub(super) registered: BTreeSet<(u16, u32)>,
    running: Vec<Running>,
    /// Begin and end of each lookup that has ended.
    ended: Vec<(Instant, Instant)>,
}

/// Stalls of lookups in a span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stood {
    /// The longest time without a lookup that ended.
    pub(super) still: Duration,
    /// Time from the beginning until the end of the last lookup that took long.
    pub(super) until: Duration,
}

/// A lookup that takes at least this long was held up by more than reordered packets that NICs had to repair.
const LONG: Duration = Duration::from_millis(250);

impl Asker {
    pub(super) fn new(client: Client<Nic>, host: HostId) -> Self {
        let keeper = SessionKeeper::new(client.pool().connections(), KeeperOptions::default());
        let (registered, running, ended) = (BTreeSet::new(), Vec::new(), Vec::new());
        Self { client, host, keeper, registered, running, ended }
    }

    pub(super) fn begin(&mut self, now: Instant, key: u64, start: Start) {
        let client = self.client.clone();
        let future = Box::pin(async move { client.lookup(key, start).await });
        self.running.push(Running { began: now, future });
    }

    pub(super) fn running(&self) -> usize {
        self.running.len()
    }

    /// Polls running lookups, and returns those that have ended.
    pub(super) fn poll(&mut self, now: Instant) -> Vec<Lookup> {
        let mut context = Context::from_waker(Waker::noop());
        let (mut lookups, ended) = (Vec::new(), &mut self.ended);
        self.running.retain_mut(|running| match running.future.as_mut().poll(&mut context) {
            Poll::Ready(lookup) => {
                ended.push((running.began, now));
                lookups.push(lookup);
                false
            }
            Poll::Pending => true,
        });
        lookups
    }

    /// Stalls of lookups in this span of time. Running lookups are taken to end now.
    pub(super) fn stood(&self, from: Instant, to: Instant, now: Instant) -> Stood {
        let mut stood = Stood::default();
        let mut last = from;
        for (_, at) in self.ended.iter().filter(|(_, at)| *at >= from) {
            stood.still = stood.still.max((*at).min(to) - last.min(to));
            last = *at;
        }
        stood.still = stood.still.max(to - last.min(to));
        let running = self.running.iter().map(|running| (running.began, now));
        let ended = self.ended.iter().copied().chain(running).filter(|(_, end)| *end >= from);
        for (_, end) in ended.filter(|(began, end)| *began < to && *end - *began > LONG) {
            stood.until = stood.until.max(end - from);
        }
        stood
    }
}
