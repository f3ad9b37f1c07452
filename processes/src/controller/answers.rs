//! Answers to operators.

use std::sync::Arc;

use fatbtree_controller::operator::{
    ClientStatus, Counters, Difference, DropCount, DroppedPacket, Drops, Explanation, HotPlace, Planned,
    Question, ReloadStatus, RoleState, ServerStatus, Status, Step, SwitchDifference, SwitchDrops,
    SwitchStatus, TableCounters,
};
use fatbtree_controller::{Change, Made, Plan, SwitchState, WayPoint, diff, drop_reason};
use fatbtree_remote_memory::byte_keys::show;
use fatbtree_topology::Switch;

use super::driver::{Driver, Reply, answer};
use super::planner::Counted;
use super::state::saved;

const FAT_ROOT: &str = "fat root";
const HOT_KEYS: &str = "hot keys";

impl Driver {
    pub(super) fn status(&self) -> Status {
        let (primary, cluster) = (&self.primary, &self.planner.cluster);
        let controller = primary.controller();
        let reload = controller.reload().map(|(new, _, stage)| ReloadStatus {
            epoch: new.plan().epoch(),
            plan: new.fingerprint().to_owned(),
            stage,
            entries: new.len(),
        });
        let servers = cluster.servers().iter().map(|server| {
            let connections: Vec<bool> =
                controller.connections(server.partition).map(|(_, told)| told).collect();
            let is_here = controller.server_is_here(server.partition);
            ServerStatus {
                name: server.name.clone(),
                address: server.grpc.clone(),
                partition: server.partition,
                state: match is_here {
                    false => RoleState::Silent,
                    true if primary.has_lost_its_tree(server.partition) => RoleState::Lost,
                    true => RoleState::Settled,
                },
                low: controller.trees().get(&server.partition).map(|tree| tree.low),
                first_key: primary.first_key(server.partition).map(show),
                registered: connections.iter().filter(|told| **told).count(),
                connections: connections.len(),
                structure: primary.other_structure(server.partition).map(str::to_owned),
                room: primary.room(server.partition).filter(|_| is_here),
            }
        });
        let clients = primary.clients().values().map(|client| {
            let host = cluster.tree().host_by_ip(client.address).map(|host| host.id);
            let named = cluster.clients().iter().find(|client| Some(client.host) == host);
            ClientStatus {
                name: named.map_or_else(|| client.address.to_string(), |client| client.name.clone()),
                index_reads: client.index_reads,
                stale_hints: client.stale_hints,
                hot_keys: client.hot_keys,
            }
        });
        let (epoch, plan) = controller.followed();
        let left_out = controller.left_out().map(|error| {
            format!("a plan that was kept is not of this cluster file; is something missing there? {error}")
        });
        let strangers = primary.strangers().map(|partition| {
            format!(
                "a memory server has registered partition {partition}, which the cluster file does not have; is a [[memory_server]] missing there?"
            )
        });
        let lost = cluster.servers().iter().filter(|server| primary.has_lost_its_tree(server.partition));
        let lost = lost.map(|server| {
            let name = &server.name;
            if let Some(kind) = primary.other_structure(server.partition) {
                return format!(
                    "memory server {name} came back without its part of the structure of kind {kind:?} and refuses all clients; load all servers again with `fatbtree load --structure {kind} --replace`"
                );
            }
            format!(
                "memory server {name} came back without its tree and refuses all clients; load all servers again with `fatbtree load --replace`, or begin with an empty tree by `fatbtree load --empty {name}`"
            )
        });
        Status {
            epoch,
            plan: plan.map(|plan| plan.fingerprint().to_owned()),
            entries: plan.map_or(0, |plan| plan.len()),
            reload,
            trouble: primary.trouble().map(str::to_owned),
            switches: cluster.tree().switches().iter().map(|switch| self.switch_status(switch)).collect(),
            servers: servers.collect(),
            clients: clients.collect(),
            refused_connections: controller.refused_connections(),
            hot_keys: primary.hot_key_reads().0,
            switches_down: primary.outages().switches.iter().map(|it| primary.switch_name(*it)).collect(),
            cables_down: primary.outages().cables.iter().map(|it| primary.cable_status(*it)).collect(),
            warnings: left_out.into_iter().chain(strangers).chain(lost).collect(),
        }
    }

    fn switch_status(&self, switch: &Switch) -> SwitchStatus {
        let (state, reason) = match self.primary.controller().switch(switch.id) {
            Some(SwitchState::Silent(reason)) => (RoleState::Silent, Some(reason.clone())),
            Some(SwitchState::Settled(_)) => (RoleState::Settled, None),
            Some(SwitchState::Converging { .. }) | None => (RoleState::Converging, None),
        };
        let held = self.held.get(&switch.id).copied().unwrap_or_default();
        let program = self.planner.programs.of(switch.role);
        let cookie = program.cookie().filter(|_| state != RoleState::Silent);
        SwitchStatus {
            name: switch.name(),
            role: switch.role.to_string(),
            address: self.planner.cluster.p4runtime(switch.id).address.clone(),
            state,
            reason,
            epoch: held.epoch,
            entries: held.entries,
            tables: program.occupancy(&held.counts),
            connections: self.primary.controller().desired().1.connections.of_switch(switch.id).count(),
            program: cookie.map(|cookie| format!("{cookie:016x}")),
        }
    }

    pub(super) fn show(&self, reply: Reply) {
        match self.primary.controller().plan() {
            Some((loaded, source)) => answer(reply, Ok(&saved(loaded.plan(), source))),
            None => answer::<()>(reply, Err(self.no_plan())),
        }
    }

    fn no_plan(&self) -> String {
        let why = self.primary.trouble().map_or(String::new(), |trouble| format!(": {trouble}"));
        format!("no plan is active that this controller knows{why}")
    }

    pub(super) fn explain(&self, key: u64, reply: Reply) {
        let Some((loaded, _)) = self.primary.controller().plan() else {
            return answer::<()>(reply, Err(self.no_plan()));
        };
        let (plan, tree) = (loaded.plan(), self.planner.cluster.tree());
        let way = plan.way(key);
        let last = way.last().copied();
        let steps = way.into_iter().map(|point| {
            let (table, switches) = plan.place(&point);
            let WayPoint { low, next, address, cached, .. } = point;
            let switches = switches.iter().map(|switch| tree.switch(*switch).name()).collect::<Vec<_>>();
            Step { switch: switches.join(", "), table, low, next, address, cached }
        });
        let landing = plan.resolve(key);
        let because = match last.filter(|point| plan.is_last(point, landing.partition)) {
            Some(point) => format!("{} is the last node set on the way", plan.place(&point).0),
            None => format!(
                "the node at {:#x} is a leaf, or it is cached in no switch further on: others were visited more often",
                landing.address
            ),
        };
        let (epoch, partition, address) = (plan.epoch(), landing.partition, landing.address);
        let steps = steps.collect();
        let hot = plan.hot_address(key).map(|address| HotPlace {
            address,
            switches: plan.first_hops().iter().map(|switch| tree.switch(*switch).name()).collect(),
        });
        answer(reply, Ok(&Explanation { key, epoch, partition, address, hot, steps, because }));
    }

    pub(super) fn count(&self, reply: Reply) {
        let (planner, epoch) = (self.planner.clone(), self.primary.controller().desired().1.active.epoch());
        let loaded = self.primary.controller().plan().map(|(loaded, _)| Arc::clone(loaded));
        let (_, hot) = self.primary.hot_key_reads();
        tokio::spawn(async move {
            let (counted, silent) = planner.counters().await;
            let tree = planner.cluster.tree();
            let tables = loaded.map_or_else(Vec::new, |loaded| tables(loaded.plan(), hot, counted));
            let silent = silent.into_iter().map(|switch| tree.switch(switch).name()).collect();
            answer(reply, Ok(&Counters { epoch, tables, silent }));
        });
    }

    pub(super) fn count_drops(&self, reply: Reply) {
        let (planner, samples) = (self.planner.clone(), self.samples.all());
        tokio::spawn(async move {
            let (counted, silent) = planner.drops().await;
            let name = |switch| planner.cluster.tree().switch(switch).name();
            let switches = counted.into_iter().map(|(switch, counts)| {
                let reasons = counts.into_iter().map(|(reason, packets)| DropCount { reason, packets });
                SwitchDrops { name: name(switch), reasons: reasons.collect() }
            });
            let samples = samples.into_iter().map(|sample| DroppedPacket {
                unix_ms: sample.unix_ms,
                switch: name(sample.switch),
                port: sample.port,
                reason: drop_reason(sample.reason),
                length: sample.length,
                bytes: sample.bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
            });
            let (switches, samples) = (switches.collect(), samples.collect());
            let silent = silent.into_iter().map(name).collect();
            answer(reply, Ok(&Drops { switches, samples, silent }));
        });
    }

    pub(super) fn answer_made(&self, question: &Question, made: &Made, reply: Reply) {
        let Made { plan, source, cost_active, cost } = made;
        if *question == Question::Plan {
            let planned = Planned {
                summary: plan.summary(),
                text: plan.print(),
                saved: saved(plan, source),
                trips_active: cost_active.map(|cost| cost.round_trips),
                trips: cost.round_trips,
                bytes_active: cost_active.map(|cost| cost.bytes),
                bytes: cost.bytes,
            };
            return answer(reply, Ok(&planned));
        }
        let old = self.primary.controller().plan().map(|(loaded, _)| loaded.plan());
        let difference = old.and_then(|old| plan.difference_to(old));
        let changes =
            diff(&old.map(Plan::entries).unwrap_or_default(), &difference.as_ref().unwrap_or(plan).entries());
        let switches = changes.into_iter().map(|(switch, changes)| {
            let mut difference = SwitchDifference {
                name: self.planner.cluster.tree().switch(switch).name(),
                insert: 0,
                modify: 0,
                delete: 0,
            };
            for change in changes {
                match change {
                    Change::Insert(_) => difference.insert += 1,
                    Change::Delete(_) => difference.delete += 1,
                    Change::Modify(_) | Change::CoreRoute(_) => difference.modify += 1,
                }
            }
            difference
        });
        answer(reply, Ok(&Difference { switches: switches.collect() }));
    }
}

/// Index reads that hot keys have ended, as clients report them, and counters of tables, summed over all switches.
fn tables(plan: &Plan, hot: u64, counted: Counted) -> Vec<TableCounters> {
    let hot = TableCounters { table: HOT_KEYS.to_owned(), hits: hot, stops: hot };
    let names = std::iter::once(FAT_ROOT.to_owned()).chain(plan.layer_names());
    let sums = names.zip(plan.hits_and_stops(counted));
    let sums = sums.map(|(table, (hits, stops))| TableCounters { table, hits, stops });
    std::iter::once(hot).chain(sums).collect()
}
