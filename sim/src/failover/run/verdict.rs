//! Verdict on a run: whether everything is whole again, and how long lookups were held up.

use std::collections::BTreeSet;

use fatbtree_controller::Observed;
use fatbtree_controller::tables::Entry;
use fatbtree_topology::{Network as Topology, Peer, SwitchId};

use super::super::{BINS, Outcome};
use super::{HELD_UP, Run, Step, millis};
use crate::cluster::Clock as _;

impl Run<'_> {
    /// Whether all switches hold what they should, and deal index packets over all fat roots, by their own tables.
    pub(super) fn is_whole_again(&mut self) -> Step<bool> {
        if !self.control.is_whole() {
            return Ok(false);
        }
        let mut held = Vec::new();
        for (value, switch) in self.cluster.switches_mut().iter_mut().zip(self.network.tree().switches()) {
            match self.network.read_back(value, switch.id) {
                Ok(found) => held.push(found),
                // The switch is back, and its program is not loaded yet.
                Err(_) => return Ok(false),
            }
        }
        let tree = self.network.tree();
        let serving = self.control.controller().desired().1.active.serving();
        for root in tree.roots() {
            if held[root.0 as usize].serving() != serving {
                return Err(format!("{root:?} is settled, and serves {:?}", held[root.0 as usize].serving()));
            }
        }
        for asker in &self.askers {
            let edge = tree.edge_of(asker.host).id;
            let roots: BTreeSet<SwitchId> =
                (0..fatbtree_topology::PATHS).filter_map(|path| climbs_to(tree, &held, edge, path)).collect();
            if roots.len() != tree.roots().len() {
                return Err(format!("all are settled, and index packets go to {roots:?} only"));
            }
        }
        Ok(true)
    }

    pub(super) fn judge(&mut self) -> Step<Outcome> {
        let now = self.clock.now();
        let (died, back) = (self.died.ok_or("nothing died")?, self.back.ok_or("nothing came back")?);
        let has_ways = self.scenario.shape.has_ways_round();
        self.outcome.runs = 1;
        self.outcome.runs_with_ways = u64::from(has_ways);
        self.outcome.lost = self.cluster.wires().lost;
        if self.scenario.without.fault {
            self.outcome.calm = self.calm();
        }
        if !has_ways {
            return Ok(self.outcome);
        }
        for (number, asker) in self.askers.iter().enumerate() {
            let (dead, again) = (asker.stood(died, back, now), asker.stood(back, now, now));
            let outcome = &mut self.outcome;
            outcome.stood_still_ms = outcome.stood_still_ms.max(millis(dead.still));
            outcome.held_up_ms = outcome.held_up_ms.max(millis(dead.until));
            outcome.stood_still_back_ms = outcome.stood_still_back_ms.max(millis(again.still));
            outcome.held_up_back_ms = outcome.held_up_back_ms.max(millis(again.until));
            outcome.stood[(millis(dead.until) as usize / 50).min(BINS - 1)] += 1;
            if dead.until > HELD_UP || again.until > HELD_UP {
                return Err(format!(
                    "lookups of client {number} were held up until {} after the death, {} after the return; stood still for {}, {}",
                    dead.until, again.until, dead.still, again.still
                ));
            }
        }
        Ok(self.outcome)
    }
}

/// Follows the entries for a path number up to a fat root.
fn climbs_to(tree: &Topology, held: &[Observed], edge: SwitchId, path: u8) -> Option<SwitchId> {
    let mut switch = edge;
    for _ in 0..3 {
        if tree.is_root(switch) {
            return Some(switch);
        }
        let port = held[switch.0 as usize].entries().iter().find_map(|entry| match entry {
            Entry::CoreRoute(key, climb) if key.path == path => Some(climb.port),
            _ => None,
        })?;
        match tree.peer(switch, port)? {
            Peer::Switch { switch: next, .. } => switch = next,
            Peer::Host(_) => return None,
        }
    }
    None
}
