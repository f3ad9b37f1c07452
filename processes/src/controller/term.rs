//! A controller that leads, from its beginning to the moment when a switch has a higher bid.

use std::sync::Arc;

use fatbtree_controller::election::{Bid, Leadership};
use fatbtree_controller::links::{Outages, cables};
use fatbtree_controller::{Controller, Placement, Primary};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::driver::{Channels, Driver};
use super::keeper::{KeeperTask, Reachable, SharedPace};
use super::links::{Samples, Watch};
use super::planner::Planner;
use super::state::StateFolder;
use super::{ControllerNews, Office, WAITING};
use crate::NodeError;

impl Office {
    /// Leads until another controller does. It knows nothing yet: switches are read back, and memory servers and clients come to it now.
    ///
    /// # Errors
    /// When the state folder cannot be used.
    pub(super) async fn lead(
        &mut self,
        Leadership { bid, goes_on }: Leadership,
        tell: &mut impl FnMut(ControllerNews),
    ) -> Result<(), NodeError> {
        let Self { cluster, trust, programs, budget, .. } = self;
        let (cluster, programs) = (Arc::clone(cluster), programs.clone());
        let mut controller = Controller::new(&cluster, programs.connections(), rand::random());
        let folder = match self.state.as_deref().map(StateFolder::open).transpose()? {
            Some((folder, plans)) if goes_on => {
                plans.into_iter().for_each(|(plan, source)| controller.restore(plan, source));
                Some(folder)
            }
            // Another controller has loaded plans since, and may have used the same epochs.
            Some((folder, _)) => {
                folder.forget().map_err(|source| folder.error(source))?;
                Some(folder)
            }
            None => None,
        };
        if let Some(folder) = &folder
            && let Err(error) = folder.keep_bid(bid)
        {
            tracing::warn!(%error, "the bid is not kept: a controller that is started again will make another plan");
        }
        let (version, first) = controller.desired();
        let (desired, wanted) = watch::channel((version, Arc::clone(first)));
        let (sync, syncs) = watch::channel(0);
        let (news, switches) = mpsc::channel(WAITING);
        let reachable = Reachable::default();
        let (links, link_news) = mpsc::channel(WAITING);
        let (told_of_outages, outages) = watch::channel(Outages::default());
        let samples = Samples::default();
        let switch_ids = cluster.tree().switches().iter().map(|switch| switch.id);
        let watch = Watch::new(
            cables(&cluster),
            switch_ids,
            rand::random(),
            link_news,
            told_of_outages,
            samples.clone(),
        );
        // They end with this: then no session is left in which this controller is primary.
        let mut tasks = JoinSet::new();
        tasks.spawn(watch.watch());
        let pace = SharedPace::new(f64::from(self.writes_per_s.get()));
        for switch in cluster.tree().switches() {
            let keeper = KeeperTask {
                switch: switch.id,
                cluster: Arc::clone(&cluster),
                programs: programs.clone(),
                bid,
                sessions: 0,
                options: self.fleet.clone(),
                pace: pace.clone(),
                desired: wanted.clone(),
                sync: syncs.clone(),
                reachable: reachable.clone(),
                news: news.clone(),
                links: links.clone(),
            };
            tasks.spawn(keeper.keep());
        }
        let placement = Placement::of(&cluster);
        let (trust, budget) = (trust.clone(), budget.clone());
        let planner = Planner { trust, cluster, placement, programs, budget, reachable };
        let channels = Channels { desired, sync, switches, outages, samples };
        let driver = Driver::new(Primary::new(controller, self.follow), planner, folder, channels, bid);
        tell(ControllerNews::Leads(bid.term));
        self.standing.send_modify(|standing| *standing = Ok(()));
        let by: Bid = driver.drive(&mut self.inputs, &mut *tell).await;
        let reason = format!("{} is", by.candidate);
        self.standing.send_modify(|standing| *standing = Err(reason));
        Ok(())
    }
}
