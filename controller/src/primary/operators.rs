//! Requests of operators.

use std::collections::BTreeMap;

use fatbtree_topology::SwitchId;

use super::plans::{Made, Purpose};
use super::{Order, Primary};
use crate::operator::{Question, Reloaded, Synced};
use crate::plan::Plan;
use crate::reconcile::{Generations, SwitchState};

/// A question's number, which its driver gives.
pub type Ticket = u64;

/// Result of an operator's request.
#[derive(Clone, Debug)]
pub enum Answer {
    /// A plan is active.
    Reloaded(Reloaded),
    /// All switches that answer were read back, and hold what they should.
    Synced(Synced),
    /// A plan was made, which is not loaded.
    Made(Question, Box<Made>),
}

/// Switches that are being read back for an operator.
#[derive(Clone, Debug)]
pub(super) struct Sync {
    number: u64,
    /// With how many entries were mended.
    done: BTreeMap<SwitchId, usize>,
    ticket: Ticket,
}

impl Primary {
    pub(super) fn answer(&mut self, ticket: Ticket, answer: Result<Answer, String>) {
        self.orders.push_back(Order::Answer(ticket, answer));
    }

    /// An operator asks for a plan: to see it, to see what it would change, or to have it loaded, as the question says.
    pub fn asked_for_plan(&mut self, ticket: Ticket, question: Question) {
        if let Some(name) = self.missing_server() {
            let trouble = format!(
                "memory server {name} does not answer, and a plan is made of all trees: wait for it, or start it again"
            );
            self.answer(ticket, Err(trouble));
        } else if self.planning.is_some() {
            self.answer(ticket, Err("a plan is being made; try again in a moment".to_owned()));
        } else {
            self.make_plan(Purpose::Operator(question, ticket));
        }
    }

    /// An operator brings a plan.
    pub fn asked_to_load(&mut self, ticket: Ticket, plan: Plan, source: Generations) {
        match self.nothing_to_plan() {
            Some(reason) => self.answer(ticket, Err(reason)),
            None => self.load(plan, source, "an operator has brought it", Some(ticket)),
        }
    }

    /// An operator wants the plan back that was active before.
    pub fn asked_to_roll_back(&mut self, ticket: Ticket) {
        match self.controller.previous().cloned() {
            None => self.answer(ticket, Err("no plan was active before this one".to_owned())),
            Some((plan, source)) => {
                self.load(plan, source, "an operator has gone back to it", Some(ticket));
            }
        }
    }

    /// An operator wants all switches read back.
    pub fn asked_to_sync(&mut self, ticket: Ticket) {
        self.sync += 1;
        self.syncs.push(Sync { number: self.sync, done: BTreeMap::new(), ticket });
        self.orders.push_back(Order::Sync(self.sync));
        self.finish_syncs();
    }

    pub(super) fn switch_synced(&mut self, switch: SwitchId, number: u64, mended: usize) {
        for sync in self.syncs.iter_mut().filter(|sync| sync.number <= number) {
            sync.done.insert(switch, mended);
        }
    }

    /// Those that do not answer are not waited for.
    pub(super) fn finish_syncs(&mut self) {
        if self.syncs.is_empty() {
            return;
        }
        let switches = self.controller.cluster().tree().switches();
        let silent: BTreeMap<SwitchId, (String, String)> = switches
            .iter()
            .filter_map(|switch| match self.controller.switch(switch.id) {
                Some(SwitchState::Silent(reason)) => Some((switch.id, (switch.name(), reason.clone()))),
                _ => None,
            })
            .collect();
        let is_done = |sync: &mut Sync| {
            switches
                .iter()
                .all(|switch| sync.done.contains_key(&switch.id) || silent.contains_key(&switch.id))
        };
        for sync in self.syncs.extract_if(.., is_done) {
            let others = silent.iter().filter(|(switch, _)| !sync.done.contains_key(switch));
            let synced = Synced {
                settled: sync.done.len(),
                mended: sync.done.values().sum(),
                others: others.map(|(_, other)| other.clone()).collect(),
            };
            self.orders.push_back(Order::Answer(sync.ticket, Ok(Answer::Synced(synced))));
        }
    }
}
