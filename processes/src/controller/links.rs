//! The task that watches cables and switches: it sends and receives probes, and derives outages from them.
//!
//! ```text
//!   Keeper ─ channel open, lost ─┐                      ┌─▶ outages ─▶ Driver
//!                                ├─▶ Watch { LinkMonitor }
//!   carry() ─ frames from it ────┘        │             └─▶ samples of what is dropped
//!      ▲                                  │
//!      └────────── probes for it ─────────┘
//! ```
//!
//! It is a task of its own, and does nothing else: a probe waits neither for a plan that is made nor for a table that is written.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use fatbtree_controller::links::{Cable, Channel, LinkMonitor, Outages, Probe, is_probe};
use fatbtree_controller::{Packet, PacketReceiver, PacketSender};
use fatbtree_topology::SwitchId;
use fatbtree_verbs::time;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// Maximum number of frames that wait for a switch; further frames are lost.
const WAITING: usize = 256;

/// Samples of dropped packets that are kept, the newest.
const SAMPLES: usize = 64;

/// Bytes of each dropped packet that are kept.
const SAMPLE: usize = 128;

/// News for the watch of cables.
pub(super) enum LinkNews {
    /// A switch is connected; it takes probes here, if its program has packets.
    Open(SwitchId, Option<mpsc::Sender<Probe>>),
    /// The switch is out of reach.
    Lost(SwitchId),
    /// The switch has passed a frame on.
    Packet(SwitchId, Packet),
}

/// A packet that was dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) unix_ms: u64,
    pub(super) switch: SwitchId,
    pub(super) port: u16,
    /// Reason of the drop: the number under which such packets are counted.
    pub(super) reason: usize,
    pub(super) length: usize,
    pub(super) bytes: Vec<u8>,
}

/// The newest samples.
#[derive(Clone, Default)]
pub(super) struct Samples(Arc<Mutex<VecDeque<Sample>>>);

impl Samples {
    pub(super) fn all(&self) -> Vec<Sample> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    fn push(&self, sample: Sample) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= SAMPLES {
            all.pop_front();
        }
        all.push_back(sample);
    }
}

/// Sends a switch's probes and tells of what it passes on, until its session ends.
pub(super) async fn carry(
    switch: SwitchId,
    sender: PacketSender,
    mut receiver: PacketReceiver,
    mut probes: mpsc::Receiver<Probe>,
    news: mpsc::Sender<LinkNews>,
) {
    let sending = async {
        while let Some(Probe { port, frame, .. }) = probes.recv().await {
            if sender.send(port, frame).await.is_err() {
                return;
            }
        }
    };
    let receiving = async {
        while let Some(packet) = receiver.receive().await {
            if news.send(LinkNews::Packet(switch, packet)).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = sending => {}
        () = receiving => {}
    }
}

/// Channel for a switch's probes.
pub(super) fn probes() -> (mpsc::Sender<Probe>, mpsc::Receiver<Probe>) {
    mpsc::channel(WAITING)
}

pub(super) struct Watch {
    monitor: LinkMonitor,
    /// Start of the monitor's clock.
    began: Instant,
    ways: BTreeMap<SwitchId, mpsc::Sender<Probe>>,
    news: mpsc::Receiver<LinkNews>,
    outages: watch::Sender<Outages>,
    samples: Samples,
}

impl Watch {
    /// Watch of these cables. `token` is drawn at random.
    pub(super) fn new(
        cables: Vec<Cable>,
        switches: impl IntoIterator<Item = SwitchId>,
        token: u64,
        news: mpsc::Receiver<LinkNews>,
        outages: watch::Sender<Outages>,
        samples: Samples,
    ) -> Self {
        let monitor = LinkMonitor::new(cables, switches, token, time::Instant::ZERO);
        Self { monitor, began: Instant::now(), ways: BTreeMap::new(), news, outages, samples }
    }

    /// Watches until all senders of news are dropped.
    pub(super) async fn watch(mut self) {
        loop {
            let due = self.monitor.poll_timeout().map(|due| self.began + (due - time::Instant::ZERO).into());
            tokio::select! {
                news = self.news.recv() => match news {
                    Some(news) => self.take(news),
                    None => return,
                },
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    // What has arrived comes first.
                    for _ in 0..WAITING {
                        let Ok(news) = self.news.try_recv() else { break };
                        self.take(news);
                    }
                    self.monitor.handle_timeout(self.now());
                }
            }
            while let Some(probe) = self.monitor.poll_transmit() {
                if let Some(way) = self.ways.get(&probe.switch) {
                    // One that is full loses it, as a cable would.
                    let _ = way.try_send(probe);
                }
            }
            if let Some(outages) = self.monitor.poll_outages() {
                self.outages.send_replace(outages.clone());
            }
        }
    }

    fn now(&self) -> time::Instant {
        time::Instant::ZERO + self.began.elapsed().into()
    }

    fn take(&mut self, news: LinkNews) {
        let now = self.now();
        match news {
            LinkNews::Open(switch, way) => {
                self.monitor.set_channel(now, switch, Channel::Open { has_packets: way.is_some() });
                match way {
                    Some(way) => drop(self.ways.insert(switch, way)),
                    None => drop(self.ways.remove(&switch)),
                }
            }
            LinkNews::Lost(switch) => {
                self.ways.remove(&switch);
                self.monitor.set_channel(now, switch, Channel::Lost);
            }
            LinkNews::Packet(switch, Packet { port, reason: 0, frame }) => {
                if is_probe(&frame) {
                    self.monitor.handle_probe(now, switch, port, &frame);
                }
            }
            LinkNews::Packet(switch, Packet { port, reason, mut frame }) => {
                let length = frame.len();
                frame.truncate(SAMPLE);
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                self.samples.push(Sample {
                    unix_ms: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
                    switch,
                    port,
                    reason: usize::from(reason),
                    length,
                    bytes: frame,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests;
