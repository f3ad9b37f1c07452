//! Reloads: from one plan to the next, in stages that wait for the switches.

use std::sync::Arc;

use fatbtree_verbs::time::Instant;
use serde::{Deserialize, Serialize};

use super::{Controller, Generations, Notice};
use crate::plan::{Plan, PlanError, next_epoch};
use crate::reconcile::{Active, Loaded};

/// Stage of a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The new epoch is written beside the old one.
    Write,
    /// Packets are sent into it.
    Flip,
    /// The old one goes.
    Clear,
}

#[derive(Clone, Debug)]
pub(super) struct Reload {
    pub(super) new: Arc<Loaded>,
    pub(super) old: Option<Arc<Loaded>>,
    pub(super) source: Generations,
    pub(super) changes: usize,
    pub(super) stage: Stage,
    /// The version of what is desired in this stage.
    pub(super) version: u64,
    pub(super) began: Instant,
}

/// Reasons for which a plan is not loaded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// One at a time.
    #[error("a reload is under way, to epoch {epoch}; try again when it is done")]
    Busy {
        /// The epoch that it leads to.
        epoch: u8,
    },
    /// A switch with the fat root that packets are sent to was not read yet, or does not hold what it should.
    #[error(
        "{switch} does not answer, or does not hold yet what it should: `fatbtree control status` says why; wait for it"
    )]
    CoreSilent {
        /// Its name.
        switch: String,
    },
    /// The plan was made of other trees.
    #[error(
        "the plan was made of another tree of partition {partition}: it was loaded anew since; make a plan of this one"
    )]
    OtherTree {
        /// The partition.
        partition: u16,
    },
    /// The plan does not fit.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

impl Controller {
    /// Whether a plan is missing, and all that one can be made of is here.
    pub fn wants_plan(&self) -> bool {
        let missing = matches!(self.desired.active, Active::Nothing | Active::Unknown(_));
        missing && self.next_epoch().is_ok() && self.servers.values().all(|server| server.here)
    }

    /// The epoch of the next plan, unless it is a difference to the active one.
    ///
    /// # Errors
    /// When a reload is under way, or a fat root was not read yet.
    pub fn next_epoch(&self) -> Result<u8, Refused> {
        if let Some(reload) = &self.reload {
            return Err(Refused::Busy { epoch: reload.new.plan().epoch() });
        }
        // Until fat roots do what they are to do now, they may do what they did before.
        if let Some(root) = self.root_to_wait_for(self.turned) {
            return Err(Refused::CoreSilent { switch: self.cluster.tree().switch(root).name() });
        }
        Ok(next_epoch(self.last_begun))
    }

    /// Begins to load a plan, whatever its epoch: as a [difference](Plan::difference_to) to the active one if that is possible, else in the next
    /// epoch. `source` are the trees that it was made of. Returns the epoch.
    ///
    /// # Errors
    /// When it cannot be loaded, or not now.
    pub fn load(&mut self, plan: Plan, source: Generations) -> Result<u8, Refused> {
        let next = self.next_epoch()?;
        self.found_nothing = false;
        if let Some(partition) = self.other_tree(&source) {
            return Err(Refused::OtherTree { partition });
        }
        plan.check_network(&self.cluster)?;
        let old = self.desired.active.plan().cloned();
        // Ids are reused only if all switches are known to have dropped their old meaning.
        let is_difference = self.all_are_settled() && self.source == source;
        let staged = old.as_ref().filter(|_| is_difference).and_then(|old| plan.difference_to(old.plan()));
        let plan = match staged {
            Some(plan) => plan,
            None => {
                self.last_begun = next;
                plan.after(next, self.desired.active.serving().map_or(0, |serving| serving.parity))
            }
        };
        let new = Loaded::new(plan);
        let changes = new.changes_from(old.as_deref());
        let (staged, epoch) = (Arc::clone(&new), new.plan().epoch());
        self.change(|desired| desired.staged = Some(staged));
        let (version, began) = (self.version, self.now);
        self.reload = Some(Reload { new, old, source, changes, stage: Stage::Write, version, began });
        self.advance();
        Ok(epoch)
    }

    fn all_are_settled(&self) -> bool {
        self.switches.keys().all(|switch| self.is_settled(*switch, self.version))
    }

    /// The active plan, and what it was made of.
    pub fn plan(&self) -> Option<(&Arc<Loaded>, &Generations)> {
        self.desired.active.plan().map(|loaded| (loaded, &self.source))
    }

    /// The epoch that index reads follow, and its plan, if that is known: until all fat roots have turned to a new plan, those of the one
    /// before.
    pub fn followed(&self) -> (Option<u8>, Option<&Arc<Loaded>>) {
        match &self.reload {
            Some(Reload { stage: Stage::Flip, old, .. }) => {
                (old.as_ref().map(|old| old.plan().epoch()), old.as_ref())
            }
            _ => (self.desired.active.epoch(), self.desired.active.plan()),
        }
    }

    /// The plan that was active before.
    pub fn previous(&self) -> Option<&(Plan, Generations)> {
        self.previous.as_ref()
    }

    /// The plan that is being loaded, and how far that is.
    pub fn reload(&self) -> Option<(&Arc<Loaded>, &Generations, Stage)> {
        self.reload.as_ref().map(|reload| (&reload.new, &reload.source, reload.stage))
    }

    /// Does what the state of the switches allows.
    pub(super) fn advance(&mut self) {
        self.all_go_round |= self.answering_are_settled(self.rerouted);
        self.tell_registered();
        while let Some(Reload { new, old, stage, version, .. }) = &self.reload {
            let (new, old, version) = (Arc::clone(new), old.clone(), *version);
            let stage = match stage {
                Stage::Write if self.are_settled(version) => {
                    self.turn(Active::Plan(new));
                    self.change(|desired| desired.staged = old);
                    self.turned = self.version;
                    Stage::Flip
                }
                Stage::Flip if self.roots_are_settled(version) => {
                    self.change(|desired| desired.staged = None);
                    Stage::Clear
                }
                Stage::Clear if self.are_settled(version) => {
                    self.finish_reload();
                    return;
                }
                _ => return,
            };
            let version = self.version;
            if let Some(reload) = &mut self.reload {
                if stage == Stage::Flip {
                    let before = std::mem::replace(&mut self.source, reload.source.clone());
                    self.previous = reload.old.as_ref().map(|old| (old.plan().clone(), before));
                }
                (reload.stage, reload.version) = (stage, version);
            }
        }
    }

    fn finish_reload(&mut self) {
        if let Some(Reload { new, changes, began, .. }) = self.reload.take() {
            let took = self.now - began;
            self.notices.push_back(Notice::Reloaded { epoch: new.plan().epoch(), changes, took });
        }
    }

    /// A plan leads to where nodes lay when it was made. Once a tree was loaded anew, it must lead no packet.
    pub(super) fn check_trees(&mut self) {
        let differs = |source: &Generations| self.other_tree(source).is_some();
        if self.reload.as_ref().is_some_and(|reload| differs(&reload.source)) {
            self.reload = None;
            self.change(|desired| {
                desired.staged = None;
            });
        }
        let void = self.desired.active.plan().is_some() && self.other_tree(&self.source).is_some();
        if void {
            self.previous = None;
            self.found_nothing = false;
            self.turn(Active::Nothing);
            self.notices.push_back(Notice::Void);
        }
    }

    /// A partition whose tree is known to be another one.
    fn other_tree(&self, source: &Generations) -> Option<u16> {
        let known = self.servers.iter().filter_map(|(id, server)| Some((*id, server.generation?)));
        known.into_iter().find(|(id, now)| source.get(id) != Some(now)).map(|(id, _)| id)
    }
}
