//! Work of a controller that leads: the requests of its keepers, and the orders of its primary.

use fatbtree_controller::operator::Question;
use fatbtree_controller::{
    Budget, ControllerNews, Frequencies, Generations, KeeperNotice, KeeperRequest, Loaded, Made, Order, Plan,
    Tree,
};
use fatbtree_topology::SwitchId;
use fatbtree_verbs::time::Duration;
use rand::RngExt;

use super::{World, Write};
use crate::rivals::process::Office;

impl World {
    /// Carries out what a leader's keeper asks of its switch, until that takes time.
    pub(super) fn keep(&mut self, number: usize, switch: SwitchId) -> Result<(), String> {
        let Some(at) = self.ids.iter().position(|id| *id == switch) else { return Ok(()) };
        loop {
            let Office::Leads { primary, keepers, .. } = &mut self.processes[number].office else {
                return Ok(());
            };
            let Some(keeper) = keepers.get_mut(&switch) else { return Ok(()) };
            let (version, desired) = primary.controller().desired();
            let request = keeper.poll_request(self.now, (version, desired), &mut self.pace);
            while let Some(notice) = keeper.poll_notice() {
                let was_unread =
                    matches!(notice, KeeperNotice::Read(_)) && primary.controller().plan().is_none();
                primary.switch_noticed(switch, &notice);
                // A kept plan is taken for the active plan only if it is that plan.
                if was_unread && let Some((found, _)) = primary.controller().plan() {
                    let plan = found.plan();
                    if self.plans.get(&plan.epoch()) != Some(plan) {
                        return Err(format!("epoch {} is taken for another plan", plan.epoch()));
                    }
                    self.outcome.resumed += 1;
                }
            }
            let answer = match request {
                None => return Ok(()),
                Some(KeeperRequest::Open) => {
                    self.open(number, switch);
                    return Ok(());
                }
                Some(KeeperRequest::Write(changes)) => {
                    // Mostly it is there at once; sometimes long after its controller was put out.
                    let most = if self.random.random_bool(0.02) { 3_000 } else { 30 };
                    let arrives = self.now + Duration::from_millis(self.random.random_range(0..most));
                    let Some(session) = self.processes[number].sessions.get(&switch) else { return Ok(()) };
                    let (stream, election_id) = (session.stream, session.election_id);
                    self.writes.push(Write { arrives, from: number, switch, stream, election_id, changes });
                    return Ok(());
                }
                Some(request) => {
                    let Some(session) = self.processes[number].sessions.get(&switch) else { return Ok(()) };
                    let value = &mut self.switches[at];
                    self.network
                        .answer(value, switch, session.stream, request)
                        .map_err(|error| error.to_string())?
                }
            };
            self.answered(number, switch, answer);
        }
    }

    /// Work of the driver of a leader.
    pub(super) fn leads(&mut self, number: usize) -> Result<(), String> {
        loop {
            let now = self.now;
            let Office::Leads { primary, .. } = &mut self.processes[number].office else { return Ok(()) };
            primary.handle_timeout(now);
            let Some(order) = primary.poll_order() else { return Ok(()) };
            match order {
                Order::Plan { active, source, epoch, .. } => {
                    let made = self.make_plan(active.as_deref(), source, epoch);
                    if let Office::Leads { primary, .. } = &mut self.processes[number].office {
                        primary.planned(made);
                    }
                }
                Order::Keep => self.keeps_plan(number),
                Order::Tell(ControllerNews::Reloaded { .. }) => self.outcome.reloads += 1,
                Order::Tell(ControllerNews::Void) => {
                    return Err("a plan is void, although no tree has changed".to_owned());
                }
                Order::Follow(_) => return Err("a follower that heard of no client sees a gain".to_owned()),
                Order::Sync(_) | Order::Registered(..) | Order::Answer(..) | Order::Tell(_) => {}
            }
        }
    }

    /// An operator wants another plan. What cannot be loaded now is not loaded.
    pub(super) fn asks_for_plan(&mut self, number: usize) {
        if let Office::Leads { primary, .. } = &mut self.processes[number].office {
            primary.asked_for_plan(0, Question::Reload { plan: None });
        }
    }

    pub(super) fn make_plan(
        &mut self,
        active: Option<&Loaded>,
        source: Generations,
        epoch: u8,
    ) -> Result<Made, String> {
        let tree = Tree::new(&self.tops).map_err(|error| error.to_string())?;
        let keys: Vec<u64> = (0..30)
            .map(|_| {
                let top = &self.tops[self.random.random_range(0..self.tops.len())];
                top.partition.range.low + self.random.random_range(0..100)
            })
            .collect();
        let frequencies = Frequencies::from_keys(&tree, &keys);
        let ranges = self.random.random_range(self.tops.len()..=20);
        let budget = Budget { fat_root_ranges: ranges, ..Budget::bmv2() };
        let (topology, placement) = (self.network.tree(), self.network.placement());
        let old = active.map(Loaded::plan);
        let plan = Plan::following(topology, placement, &tree, &frequencies, &budget, epoch, old);
        let plan = plan.map_err(|error| error.to_string())?;
        Ok(Made { plan, source, cost_active: None, cost: Default::default() })
    }

    /// Stores the plan on disk before its first entry is written.
    pub(super) fn keeps_plan(&mut self, number: usize) {
        let process = &mut self.processes[number];
        let Office::Leads { primary, .. } = &process.office else { return };
        if let Some((new, source, _)) = primary.controller().reload() {
            let plan = new.plan().clone();
            process.disk.plan = Some((plan.clone(), source.clone()));
            self.plans.insert(plan.epoch(), plan);
        }
    }
}
