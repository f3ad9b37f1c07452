//! A controller that looks on: a session with each switch, in which it hears which controller is primary.

use std::time::{Duration, Instant};

use fatbtree_controller::election::{Bid, Election, Leadership, Seen, Verdict, Way};
use fatbtree_controller::{Ballot, FleetOptions};
use fatbtree_topology::SwitchId;
use fatbtree_verbs::time;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::state::StateFolder;
use super::{ControllerNews, Office};
use crate::NodeError;

/// Interval between looks at the election: switches that say nothing new count as well.
const TICK: Duration = Duration::from_millis(100);
/// Pause between two attempts to reach a switch.
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of notices of switches that wait to be looked at.
const WAITING: usize = 256;

impl Office {
    /// Looks on until this controller comes to lead.
    ///
    /// # Errors
    /// When another controller is primary, and this one was told to start.
    pub(super) async fn look_on(
        &mut self,
        way: Way,
        tell: &mut impl FnMut(ControllerNews),
    ) -> Result<Leadership, NodeError> {
        let mut told = None;
        loop {
            match self.look_on_until_suspended(way, &mut told, tell).await? {
                Some(leadership) => return Ok(leadership),
                None => tracing::info!("this process was suspended: it looks anew at all switches"),
            }
        }
    }

    /// Looks on until this controller comes to lead, or the process was suspended: `None`, since the switches' notices are out of date.
    ///
    /// `told` is the primary that was reported last.
    async fn look_on_until_suspended(
        &mut self,
        way: Way,
        told: &mut Option<Bid>,
        tell: &mut impl FnMut(ControllerNews),
    ) -> Result<Option<Leadership>, NodeError> {
        let began = Instant::now();
        let now = || time::Instant::ZERO + began.elapsed().into();
        let last = self.state.as_deref().and_then(StateFolder::last_bid);
        let ids = self.cluster.tree().switches().iter().map(|switch| switch.id);
        let mut election = Election::new(self.candidate, way, last, ids.clone(), now());
        let (seen, mut coming) = mpsc::channel(WAITING);
        let mut fleet = self.fleet.clone();
        fleet.election_id = Bid::to_look_on(self.candidate).election_id(0);
        // They end with this.
        let mut sessions = JoinSet::new();
        for switch in ids {
            let (cluster, options, seen) = (self.cluster.clone(), fleet.clone(), seen.clone());
            sessions.spawn(async move { look(&cluster, switch, &options, &seen).await });
        }
        let mut ticks = tokio::time::interval(TICK);
        loop {
            tokio::select! {
                Some((switch, seen)) = coming.recv() => election.saw(switch, seen, now()),
                // What came in before is of no use: the peer is told, and tries another controller.
                Some(input) = self.inputs.recv() => drop(input),
                _ = ticks.tick() => {}
            }
            match election.verdict(now()) {
                Verdict::Lead(leadership) => return Ok(Some(leadership)),
                Verdict::LookAnew => return Ok(None),
                Verdict::GiveUp { by } => {
                    return Err(NodeError::OtherController(by.candidate.to_string()));
                }
                Verdict::LookOn => {}
            }
            let reason = election.why_not(|switch| self.cluster.tree().switch(switch).name());
            if let Some(leader) = election.leader().filter(|leader| *told != Some(*leader)) {
                *told = Some(leader);
                tell(ControllerNews::StandsBy(reason.clone()));
            }
            self.standing.send_if_modified(|standing| {
                let is_new = standing.as_ref() != Err(&reason);
                if is_new {
                    *standing = Err(reason);
                }
                is_new
            });
        }
    }
}

/// Passes on what a switch says, until the receiver is dropped.
async fn look(
    cluster: &fatbtree_topology::Cluster,
    switch: SwitchId,
    options: &FleetOptions,
    news: &mpsc::Sender<(SwitchId, Seen)>,
) {
    loop {
        let mut ballot = Ballot::open(cluster, switch, options).await;
        loop {
            let seen = match &mut ballot {
                Ok(ballot) => ballot.next().await,
                Err(error) => Seen::Silent(error.to_string()),
            };
            let has_ended = matches!(seen, Seen::Silent(_));
            if news.send((switch, seen)).await.is_err() {
                return;
            }
            if has_ended {
                break;
            }
        }
        drop(ballot);
        tokio::time::sleep(PAUSE).await;
    }
}
