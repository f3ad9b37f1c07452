//! One switch, kept by a task of its own: one that hangs holds up nobody else.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fatbtree_controller::{Counts, Desired, Fleet, FleetOptions, Held, Programs, PushError, Serving, Wanted};
use fatbtree_topology::{Cluster, SwitchId};
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;

/// What a switch holds, in numbers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HeldNow {
    /// Entries of plans.
    pub(super) entries: usize,
    pub(super) epoch: Option<u8>,
    /// Of all entries.
    pub(super) counts: Counts,
}

/// What becomes of a switch.
#[derive(Debug)]
pub(super) enum KeeperNews {
    /// It answers, and was read: it sends packets there.
    Read(Option<Serving>),
    /// It is given what it lacks.
    Converging,
    /// It holds what was desired at a version.
    Settled { version: u64, held: HeldNow },
    /// It was read back, because everybody was told to, for this time, and holds what it should after so many changes.
    Synced { number: u64, mended: usize },
    /// It does not answer, or refuses.
    Lost(String),
}

/// Connections to switches that answer.
#[derive(Clone, Default)]
pub(super) struct Reachable(Arc<Mutex<BTreeMap<SwitchId, Arc<Fleet>>>>);

impl Reachable {
    pub(super) fn all(&self) -> Vec<(SwitchId, Arc<Fleet>)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(id, fleet)| (*id, Arc::clone(fleet))).collect()
    }

    fn set(&self, switch: SwitchId, fleet: Option<Arc<Fleet>>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match fleet {
            Some(fleet) => drop(all.insert(switch, fleet)),
            None => drop(all.remove(&switch)),
        }
    }
}

pub(super) struct Keeper {
    pub(super) switch: SwitchId,
    pub(super) cluster: Arc<Cluster>,
    pub(super) programs: Programs,
    pub(super) options: FleetOptions,
    pub(super) desired: watch::Receiver<(u64, Arc<Desired>)>,
    /// Counted up when all switches are to be read back.
    pub(super) sync: watch::Receiver<u64>,
    pub(super) reachable: Reachable,
    pub(super) news: mpsc::Sender<(SwitchId, KeeperNews)>,
}

/// Between two tries to reach a switch.
const PAUSE: Duration = Duration::from_millis(100);
/// Between two looks at what a switch runs.
const LOOK: Duration = Duration::from_secs(1);

/// Nobody wants to know any more.
struct Stopped;

enum End {
    Stopped,
    Failed(PushError),
}

impl From<PushError> for End {
    fn from(error: PushError) -> Self {
        Self::Failed(error)
    }
}

impl From<Stopped> for End {
    fn from(Stopped: Stopped) -> Self {
        Self::Stopped
    }
}

impl Keeper {
    /// Never ends by itself.
    pub(super) async fn keep(mut self) {
        loop {
            let ended = match self.connect().await {
                Ok(fleet) => self.keep_connected(&fleet).await,
                Err(error) => Err(End::Failed(error)),
            };
            self.reachable.set(self.switch, None);
            let Err(End::Failed(error)) = ended else { return };
            if self.tell(KeeperNews::Lost(error.to_string())).await.is_err() {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn tell(&self, news: KeeperNews) -> Result<(), Stopped> {
        self.news.send((self.switch, news)).await.map_err(|_| Stopped)
    }

    async fn connect(&self) -> Result<Arc<Fleet>, PushError> {
        let Self { switch, cluster, programs, options, .. } = self;
        Ok(Arc::new(Fleet::connect_to(cluster, [*switch], programs, options.clone()).await?))
    }

    async fn keep_connected(&mut self, fleet: &Arc<Fleet>) -> Result<(), End> {
        let switch = self.switch;
        let ours = self.programs.of(self.cluster.tree().switch(switch).role).cookie();
        let runs_ours = |cookie: Option<u64>| ours.is_none() || cookie == ours;
        if !runs_ours(fleet.cookie(switch).await?) {
            fleet.set_pipeline().await?;
        }
        let mut held = self.read(fleet).await?;
        let mut sync = Some(*self.sync.borrow_and_update());
        let mut mended = 0;
        self.reachable.set(switch, Some(Arc::clone(fleet)));
        let mut is_told = None;
        // What it was seen to hold: mostly something else is wanted of another switch.
        let mut settled: Option<Wanted> = None;
        // However often something else is wanted: connections come and go all the time when the way to servers is broken, and it may be
        // this switch that has come back empty.
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut session = pin!(fleet.session_ends(switch));
        loop {
            let (version, desired) = self.desired.borrow_and_update().clone();
            let wanted = desired.wanted(switch);
            if settled.as_ref() != Some(&wanted)
                && let Some(changes) = wanted.next_changes(&held)
            {
                settled = None;
                if is_told.take().is_some() {
                    self.tell(KeeperNews::Converging).await?;
                }
                fleet.apply(&[(switch, changes.clone())].into(), None).await?;
                held.apply(&changes);
                mended += changes.len();
                continue;
            }
            settled = Some(wanted);
            if is_told != Some(version) {
                is_told = Some(version);
                let (entries, epoch) = held.planned();
                let held = HeldNow { entries, epoch, counts: held.counts() };
                self.tell(KeeperNews::Settled { version, held }).await?;
            }
            if let Some(number) = sync.take() {
                self.tell(KeeperNews::Synced { number, mended }).await?;
            }
            tokio::select! {
                ended = &mut session => return Err(End::Failed(ended)),
                changed = self.desired.changed() => changed.map_err(|_| Stopped)?,
                changed = self.sync.changed() => {
                    changed.map_err(|_| Stopped)?;
                    (sync, mended) = (Some(*self.sync.borrow_and_update()), 0);
                    (held, is_told, settled) = (self.read(fleet).await?, None, None);
                }
                _ = looks.tick() => {
                    if !runs_ours(fleet.cookie(switch).await?) {
                        fleet.set_pipeline().await?;
                        (held, is_told, settled) = (self.read(fleet).await?, None, None);
                    }
                }
            }
        }
    }

    async fn read(&self, fleet: &Fleet) -> Result<Held, End> {
        let held = fleet.read_back().await?.remove(&self.switch).unwrap_or_default();
        self.tell(KeeperNews::Read(held.serving())).await?;
        Ok(held)
    }
}
