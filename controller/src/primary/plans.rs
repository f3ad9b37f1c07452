//! Plans of a primary: when one is made, and how it is loaded or given up.

use std::sync::Arc;

use fatbtree_verbs::time::Duration;

use super::{Answer, ControllerNews, Order, Primary, Ticket};
use crate::cost::Cost;
use crate::follow::{Follower, Replanned};
use crate::grpc::ClientReport;
use crate::operator::{Question, Reloaded};
use crate::plan::Plan;
use crate::reconcile::Generations;

/// After a plan that could not be made.
const PAUSE: Duration = Duration::from_millis(500);

/// Purpose of a plan.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Purpose {
    /// None is active.
    Start,
    /// An operator has asked for it.
    Operator(Question, Ticket),
    /// The follower thinks that it is worth it; of these trees.
    Follow(Generations),
}

/// A plan, the trees that it was made of, and what it is worth.
#[derive(Clone, Debug)]
pub struct Made {
    /// The plan.
    pub plan: Plan,
    /// The trees, as they were known before they were read.
    pub source: Generations,
    /// Cost of an average visit down to the leaf under the active plan, if there is one.
    pub cost_active: Option<Cost>,
    /// Cost under this plan.
    pub cost: Cost,
}

impl Primary {
    /// Orders a plan, if one is missing or worth it.
    pub(super) fn think(&mut self) {
        let is_busy = self.planning.is_some() || self.controller.reload().is_some();
        if is_busy || self.now < self.not_before || !self.others.is_empty() {
            return;
        }
        if self.controller.wants_plan() {
            return self.make_plan(Purpose::Start);
        }
        let due = self.follower.as_ref().and_then(Follower::poll_timeout);
        if due.is_some_and(|due| due <= self.now)
            && self.missing_server().is_none()
            && let Some(follower) = self.follower.clone()
        {
            self.planning = Some(Purpose::Follow(self.controller.trees()));
            self.orders.push_back(Order::Follow(Box::new(follower)));
        }
    }

    pub(super) fn make_plan(&mut self, purpose: Purpose) {
        if let Some(reason) = self.nothing_to_plan() {
            if let Purpose::Operator(_, ticket) = purpose {
                self.answer(ticket, Err(reason));
            }
            return;
        }
        match self.controller.next_epoch() {
            Ok(epoch) => {
                self.planning = Some(purpose);
                self.orders.push_back(Order::Plan {
                    active: self.controller.plan().map(|(loaded, _)| Arc::clone(loaded)),
                    keys: self.keys.iter().copied().collect(),
                    source: self.controller.trees(),
                    epoch,
                });
            }
            Err(refused) => {
                if let Purpose::Operator(_, ticket) = purpose {
                    self.answer(ticket, Err(refused.to_string()));
                }
            }
        }
    }

    /// Takes the result of [`Order::Plan`].
    pub fn planned(&mut self, made: Result<Made, String>) {
        let Some(purpose) = self.planning.take() else { return };
        self.meanwhile = ClientReport::default();
        match (purpose, made) {
            (Purpose::Operator(_, ticket), Err(trouble)) => self.answer(ticket, Err(trouble)),
            (Purpose::Operator(Question::Reload { .. }, ticket), Ok(made)) => {
                self.load(made.plan, made.source, "an operator has asked for it", Some(ticket));
            }
            (Purpose::Operator(question, ticket), Ok(made)) => {
                self.answer(ticket, Ok(Answer::Made(question, Box::new(made))));
            }
            (_, Ok(made)) => self.load(made.plan, made.source, "none was active", None),
            (_, Err(trouble)) => self.cannot_plan(trouble),
        }
    }

    /// Takes the result of [`Order::Follow`]: the follower, and another plan if that is worth it.
    pub fn followed(&mut self, mut follower: Follower, replanned: Result<Option<Replanned>, String>) {
        let Some(Purpose::Follow(source)) = self.planning.take() else { return };
        let ClientReport { keys, index_reads, stale_hints, hot_keys: _ } =
            std::mem::take(&mut self.meanwhile);
        follower.report(index_reads, stale_hints, &keys);
        // Its plan may have been taken out meanwhile, or replaced.
        self.follower = self.follower.is_some().then_some(follower);
        let active = self.controller.plan().map(|(loaded, _)| loaded.plan());
        if self.follower.as_ref().map(Follower::active) != active {
            self.follow_plan();
        }
        match replanned {
            Ok(None) => self.trouble = None,
            Ok(Some(Replanned { plan, stale_hints, costs: (before, after) })) => {
                let because = format!(
                    "{:.1} % of index reads with a stale hint; {before} to the leaf, {after} by this plan",
                    100.0 * stale_hints
                );
                self.load(plan, source, &because, None);
            }
            Err(trouble) => self.cannot_plan(trouble),
        }
    }

    fn cannot_plan(&mut self, trouble: String) {
        if self.trouble.as_ref() != Some(&trouble) {
            self.tell(ControllerNews::Trouble(trouble.clone()));
        }
        self.trouble = Some(trouble);
        self.not_before = self.now + PAUSE;
    }

    pub(super) fn load(&mut self, plan: Plan, source: Generations, because: &str, ticket: Option<Ticket>) {
        match self.controller.load(plan, source) {
            Err(refused) => match ticket {
                Some(ticket) => self.answer(ticket, Err(refused.to_string())),
                None => self.trouble = Some(refused.to_string()),
            },
            Ok(_) => {
                (self.trouble, self.because) = (None, because.to_owned());
                self.waiting.extend(ticket);
                self.orders.push_back(Order::Keep);
            }
        }
    }

    pub(super) fn reloaded(&mut self, epoch: u8, changes: usize, took: Duration) {
        let loaded = self.controller.plan().map(|(loaded, _)| loaded);
        let entries = loaded.map_or(0, |loaded| loaded.len());
        let plan = loaded.map_or_else(String::new, |loaded| loaded.fingerprint().to_owned());
        let because = std::mem::take(&mut self.because);
        self.tell(ControllerNews::Reloaded { epoch, plan: plan.clone(), entries, changes, took, because });
        let done = Reloaded { epoch, plan, entries, changes, seconds: took.as_secs_f64() };
        for ticket in std::mem::take(&mut self.waiting) {
            self.answer(ticket, Ok(Answer::Reloaded(done.clone())));
        }
        self.follow_plan();
        if let Some(follower) = &mut self.follower {
            follower.spent(self.now, changes);
        }
    }

    pub(super) fn void(&mut self) {
        self.tell(ControllerNews::Void);
        self.follower = None;
        for ticket in std::mem::take(&mut self.waiting) {
            self.answer(ticket, Err("the trees were filled anew meanwhile; try again".to_owned()));
        }
    }

    /// The active plan is followed from now on.
    fn follow_plan(&mut self) {
        let Some((loaded, _)) = self.controller.plan() else { return };
        let plan = loaded.plan().clone();
        match &mut self.follower {
            Some(follower) => follower.loaded(plan),
            None => {
                let topology = self.controller.cluster().tree();
                let mut follower = Follower::new(topology, &self.placement, plan, self.follow);
                follower.report(0, 0, self.keys.make_contiguous());
                self.follower = Some(follower);
            }
        }
    }

    /// A plan that was found active is followed as well.
    pub(super) fn restore_follower(&mut self) {
        if self.follower.is_none() && self.planning.is_none() && self.controller.reload().is_none() {
            self.follow_plan();
        }
    }
}
