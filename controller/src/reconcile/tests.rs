//! Controllers that are killed at any write, switches that come back empty, freeze, or make only some of the changes, servers that are
//! filled anew: whatever happens, no packet is led by half of something, and in the end all switches hold one epoch and nothing else.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use fatbtree_blink::{TopNode, TreeTop};
use fatbtree_topology::{Cluster, Outages, PATHS, Peer, Routing, SwitchId};
use fatbtree_verbs::time::Instant;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::frequency::Frequencies;
use crate::plan::{Budget, HotKeys, Located, Placement, Plan, SETS, next_epoch};
use crate::tables::{Change, Entry, NodeKind, NodeSet, child, core_route, fat_root, fine, run};
use crate::test_support::{naive_path, top};
use crate::tree::Tree;

/// A switch: what it really holds, and what the controller believes, if it has read it.
#[derive(Default)]
struct Switch {
    holds: Observed,
    known: Option<Observed>,
    is_frozen: bool,
}

/// The plan's trees.
type Trees = (Arc<Vec<TreeTop>>, Generations);

/// A packet on its way down: it has its epoch, and the trees that the plan of that epoch was made from.
struct Packet {
    key: u64,
    epoch: u8,
    kind: NodeKind,
    address: u64,
    trees: Vec<Arc<Vec<TreeTop>>>,
    /// Switches that it is still to pass.
    down: VecDeque<SwitchId>,
}

struct World {
    random: ChaCha8Rng,
    cluster: Cluster,
    /// The fat root that the controller reads first.
    first: SwitchId,
    switches: BTreeMap<SwitchId, Switch>,
    controller: Controller,
    /// What the controller's disk has.
    disk: Option<(Plan, Generations)>,
    has_disk: bool,
    /// As the memory servers have them.
    trees: Trees,
    connections: BTreeMap<u16, Vec<Registration>>,
    /// What the plans of each epoch were made from, since it was begun last.
    epochs: BTreeMap<u8, Vec<Arc<Vec<TreeTop>>>>,
    keys: Vec<u64>,
    /// How often the record of a key was written elsewhere.
    moves: BTreeMap<u64, u64>,
    budget: Budget,
    last_begun: u8,
    differences: usize,
    splits: u64,
    packets: Vec<Packet>,
    landed: usize,
    misled: usize,
    /// Hot keys that were seen in the first switch of a client that was told to use it.
    hot: usize,
    now: u64,
}

const KEYS: u64 = 40_000;

/// As many hot keys as a first switch has room for.
const HOT_KEYS: usize = 3;

fn trees(random: &mut ChaCha8Rng, number: u64) -> Trees {
    let lows = [0, 1 << 62];
    let tops = lows.iter().zip(0u16..).map(|(low, id)| {
        let leaves: BTreeSet<u64> =
            (0..40).map(|_| low + random.random_range(0..KEYS)).chain([*low]).collect();
        let leaves: Vec<u64> = leaves.into_iter().collect();
        top(id, *low, &leaves, &[random.random_range(3..9), 4, 7])
    });
    let generations = lows.iter().zip(0u16..).map(|(low, id)| (id, Generation { number, low: *low }));
    (Arc::new(tops.collect()), generations.collect())
}

/// With one fat root, and with several.
fn network(seed: u64) -> String {
    let [_, (_, pair), (_, leaf_spine), (_, fat_tree)] = Cluster::examples();
    match seed % 5 {
        0 | 1 => fat_tree.to_owned(),
        2 => leaf_spine.replace("spines = 2", "spines = 3"),
        3 => fat_tree.replace("cores = \"one\"", "cores = \"all\""),
        _ => pair.to_owned(),
    }
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let cluster = Cluster::from_toml(&network(seed)).unwrap();
        let trees = trees(&mut random, 0);
        let set_nodes = [random.random_range(1..4); SETS];
        let fat_root_ranges = random.random_range(2..20);
        let budget = Budget { fat_root_ranges, set_nodes, hot_keys: HOT_KEYS, ..Budget::bmv2() };
        let mut world = Self {
            first: cluster.tree().roots()[0],
            switches: cluster.tree().switches().iter().map(|switch| (switch.id, Switch::default())).collect(),
            controller: Controller::new(&cluster, 100, 0),
            disk: None,
            has_disk: !seed.is_multiple_of(3),
            trees,
            connections: BTreeMap::new(),
            epochs: BTreeMap::new(),
            keys: (0..50).map(|at| at * KEYS / 50).collect(),
            moves: BTreeMap::new(),
            budget,
            last_begun: u8::MAX,
            differences: 0,
            splits: 0,
            packets: Vec::new(),
            landed: 0,
            misled: 0,
            hot: 0,
            now: 0,
            random,
            cluster,
        };
        world.servers_join();
        world
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.random.random_range(0..n) == 0
    }

    fn servers_join(&mut self) {
        for (partition, generation) in self.trees.1.clone() {
            let connections = self.connections.entry(partition).or_default().clone();
            self.controller.server_joined(partition, generation, &connections);
        }
    }

    fn kill_the_controller(&mut self) {
        let roots = self.cluster.tree().roots();
        self.first = roots[self.random.random_range(0..roots.len())];
        // A draw that comes to none of the epochs that were begun.
        let from = self.switches[&self.first].holds.serving().map(|serving| serving.epoch).unwrap_or(u8::MAX);
        let begun = std::iter::successors(Some(from), |epoch| Some(next_epoch(*epoch)));
        let draw = begun.take(254).position(|epoch| epoch == self.last_begun).unwrap_or(0) + 1;
        self.controller = Controller::new(&self.cluster, 100, draw as u8);
        // By the time that another one has started, no packet is under way that was sent before S_c sent them nowhere.
        if self.switches[&self.first].holds.serving().is_none() {
            self.packets.clear();
        }
        for switch in self.switches.values_mut() {
            switch.known = None;
        }
        if let Some((plan, source)) = self.disk.clone() {
            self.controller.restore(plan, source);
        }
        self.servers_join();
    }

    /// One thing that happens, to a switch that was drawn.
    fn work_on(&mut self, id: SwitchId, is_rough: bool) {
        let rough = |world: &mut Self, n| is_rough && world.one_in(n);
        let dies = rough(self, 60);
        let fails = rough(self, 8);
        let (version, desired) = self.controller.desired();
        let desired = Arc::clone(desired);
        let is_root = self.cluster.tree().is_root(id);
        let is_unread = desired.active == Active::Unread;
        let switch = self.switches.get_mut(&id).unwrap();
        if switch.is_frozen {
            switch.known = None;
            self.controller.switch_lost(id, "frozen".to_owned());
            return;
        }
        let Some(known) = &mut switch.known else {
            if is_root && is_unread && id != self.first {
                return;
            }
            switch.known = Some(switch.holds.clone());
            self.controller.switch_read(id, switch.holds.serving());
            return;
        };
        let Some(changes) = desired.wanted(id).next_changes(known) else {
            assert_eq!(*known, switch.holds);
            self.controller.switch_settled(id, version);
            return;
        };
        // In any order; not all of them if something goes wrong.
        let mut made = changes.clone();
        for at in (1..made.len()).rev() {
            made.swap(at, self.random.random_range(0..=at));
        }
        let most = made.len();
        if dies || fails {
            made.truncate(self.random.random_range(0..=most));
        }
        for change in &made {
            assert!(fits(&switch.holds, change), "{change:?} in {}", id.0);
            switch.holds.apply(std::slice::from_ref(change));
        }
        if is_root
            && let Some(epoch) = switch.holds.serving().map(|serving| serving.epoch)
            && made.iter().any(|c| matches!(c, Change::CoreRoute(_)))
        {
            // Whatever was planned for that epoch, it is that of the controller that flips.
            let plan = desired.active.plan().expect("only a plan is flipped to");
            assert_eq!(plan.plan().epoch(), epoch);
        }
        if dies {
            return self.kill_the_controller();
        }
        if fails {
            switch.known = None;
            return self.controller.switch_lost(id, "broken".to_owned());
        }
        known.apply(&changes);
        self.controller.switch_converging(id);
    }

    fn plan(&mut self) {
        let (tops, source) = self.trees.clone();
        let tree = Tree::new(&tops).unwrap();
        // Mostly what was asked for before is asked for again.
        for _ in 0..5 {
            let (at, key) = (self.random.random_range(0..self.keys.len()), self.key());
            self.keys[at] = key;
        }
        let visits: Vec<(u64, u64)> = self.keys.iter().map(|key| (*key, 1)).collect();
        let located: Vec<Located> = self.keys.iter().map(|key| self.locate(*key)).collect();
        let budget = self.budget.clone();
        let (topology, placement) = (self.cluster.tree(), Placement::of(&self.cluster));
        let active = self.controller.plan().map(|(loaded, _)| loaded.plan());
        let (hot, rest) = HotKeys::choose(&tree, &visits, &located, HOT_KEYS, active);
        let frequencies = Frequencies::from_weighted(&tree, &rest);
        let plan = Plan::following(topology, &placement, &tree, &frequencies, &budget, 1, active).unwrap();
        let plan = plan.with_hot_keys(hot);
        if let Ok(epoch) = self.controller.load(plan, source.clone()) {
            if epoch == self.last_begun {
                self.differences += 1;
            } else {
                self.epochs.remove(&epoch);
            }
            self.epochs.entry(epoch).or_default().push(tops);
            self.last_begun = epoch;
            // It is saved before the first entry is written.
            let plan = self.controller.reload().expect("it was begun").0.plan().clone();
            if self.has_disk {
                self.disk = Some((plan, source));
            }
        }
    }

    /// Where the record of a key lies. The address tells which tree it is of.
    fn locate(&self, key: u64) -> Located {
        let partition = key >> 62;
        let generation = self.trees.1[&(partition as u16)].number;
        let moves = self.moves.get(&key).copied().unwrap_or(0);
        let address = partition << 48 | 1 << 47 | generation << 36 | moves << 20 | (key % KEYS) << 4;
        Located { key, address }
    }

    /// No client is led to a record of a tree that its server does not have any more.
    fn check_hot_keys(&mut self) {
        let tree = self.cluster.tree();
        let first_hop = tree.edge_of(self.cluster.clients()[0].host).id;
        for (partition, source) in &self.trees.1 {
            if !self.controller.connections(*partition).any(|(_, told)| told) {
                continue;
            }
            let server = tree.host(self.cluster.server(*partition).unwrap().host).ip;
            for entry in self.switches[&first_hop].holds.entries() {
                if let Entry::HotKey(key, action) = entry
                    && key.dst_ip == server
                {
                    assert_eq!(action.address >> 36 & 0x7ff, source.number, "key {:#x}", key.key);
                    self.hot += 1;
                }
            }
        }
    }

    /// A node above leaves is split: it keeps its left half.
    fn split_inner(&mut self) {
        let key = self.key();
        self.splits += 1;
        let free = (1 << 40) + self.splits * 64;
        let tops = Arc::make_mut(&mut self.trees.0);
        let top = &mut tops[(key >> 62) as usize];
        let free = u64::from(top.partition.id) << 48 | free;
        let of_level = |top: &TreeTop, level: u8| {
            let nodes =
                top.nodes.iter().enumerate().filter(|(_, node)| node.level == level && node.low() <= key);
            nodes.max_by_key(|(_, node)| node.low()).map(|(at, _)| at)
        };
        let (Some(at), Some(parent)) = (of_level(top, 1), of_level(top, 2)) else { return };
        if top.nodes[at].children.len() < 2 || top.nodes[parent].children.len() == 16 {
            return;
        }
        let half = top.nodes[at].children.len() / 2;
        let children = top.nodes[at].children.split_off(half);
        let pivot = children[0].0;
        top.nodes.push(TopNode { address: free, level: 1, children });
        let siblings = &mut top.nodes[parent].children;
        siblings.insert(siblings.partition_point(|(low, _)| *low < pivot), (pivot, free));
    }

    /// A leaf is split: it keeps its left half.
    fn split(&mut self) {
        let key = self.key();
        self.splits += 1;
        let free = (1 << 40) + self.splits * 64;
        let tops = Arc::make_mut(&mut self.trees.0);
        let top = &mut tops[(key >> 62) as usize];
        let free = u64::from(top.partition.id) << 48 | free;
        let parents = top.nodes.iter_mut().filter(|node| node.level == 1 && node.low() <= key);
        let Some(parent) = parents.max_by_key(|node| node.low()) else { return };
        let at = parent.children.partition_point(|(low, _)| *low <= key);
        if parent.children.len() < 16 && parent.children[at - 1].0 != key {
            parent.children.insert(at, (key, free));
        }
    }

    fn key(&mut self) -> u64 {
        (self.random.random_range(0..2u64) << 62) + self.random.random_range(0..KEYS)
    }

    fn rough_step(&mut self) {
        self.now += 1;
        self.controller.at(Instant::from_nanos(self.now * 1_000_000));
        let ids: Vec<SwitchId> = self.switches.keys().copied().collect();
        let id = ids[self.random.random_range(0..ids.len())];
        match self.random.random_range(0..400) {
            0 => self.kill_the_controller(),
            1 | 2 => {
                let was_frozen = self.switches[&id].is_frozen;
                // It has lost all, or was only frozen.
                if !was_frozen && self.one_in(2) {
                    self.switches.insert(id, Switch::default());
                    if self.cluster.tree().is_root(id) {
                        self.packets.clear();
                    }
                    self.controller.switch_lost(id, "restarted".to_owned());
                    if self.controller.desired().1.active == Active::Unread {
                        // Its draw was meant for what S_c held before.
                        self.kill_the_controller();
                    }
                } else {
                    self.switches.get_mut(&id).unwrap().is_frozen = !was_frozen;
                }
            }
            3 => {
                let number = self.trees.1[&0].number + 1;
                self.trees = trees(&mut self.random, number);
                self.connections.clear();
                // A server's sessions end before it is filled anew.
                self.servers_join();
            }
            16..26 => self.split(),
            26..29 => self.split_inner(),
            29 => {
                let at = self.random.random_range(0..self.keys.len());
                *self.moves.entry(self.keys[at]).or_default() += 1;
            }
            4..8 => {
                let partition = self.random.random_range(0..2u16);
                let queue_pair = self.random.random_range(2..30);
                let registration = Registration {
                    client: self.cluster.tree().host(self.cluster.clients()[0].host).ip,
                    queue_pair,
                    rkey: self.random.random_range(2..1000),
                    root: self.trees.0[usize::from(partition)].partition.root.raw(),
                    mtu: 1024,
                };
                let of = self.connections.entry(partition).or_default();
                match of.iter().position(|other| other.queue_pair == queue_pair) {
                    Some(at) => {
                        let gone = of.remove(at);
                        self.controller.closed(partition, gone.client, gone.queue_pair);
                    }
                    None => {
                        of.push(registration);
                        self.controller.opened(partition, registration);
                    }
                }
            }
            // It is said so: packets go there all the same.
            399 => {
                let mut outages = Outages::none();
                if self.one_in(2) {
                    outages.switches.insert(id);
                }
                if let Some((port, _)) = self.cluster.tree().ports(id).next() {
                    outages.links.insert((id, port));
                }
                self.controller.network_changed(outages);
            }
            8..12 => {
                self.calm(12);
                self.plan();
            }
            12..16 => self.plan(),
            30..60 => self.send(),
            60..160 => self.hop(),
            _ => self.work_on(id, true),
        }
        while self.controller.poll_notice().is_some() {}
        self.check_hot_keys();
    }

    // ---- packets, as the switches' tables lead them ----

    /// The fat root that a packet of the client comes to by the tables of the switches.
    fn climb(&self, path: u8) -> Option<SwitchId> {
        let tree = self.cluster.tree();
        let mut at = tree.edge_of(self.cluster.clients()[0].host).id;
        while !tree.is_root(at) {
            let up = self.switches[&at].holds.entries().iter().find_map(|entry| match entry {
                Entry::CoreRoute(key, action) if key.path == path => Some(action.port),
                _ => None,
            });
            let Peer::Switch { switch, .. } = tree.peer(at, up?)? else { return None };
            at = switch;
        }
        Some(at)
    }

    fn send(&mut self) {
        let key = self.key();
        let path = self.random.random_range(0..PATHS);
        let Some(root) = self.climb(path) else { return };
        let holds = &self.switches[&root].holds;
        let Some(core_route::Action::Descend { epoch, sub_table }) = holds.core_route() else { return };
        if epoch == 0 {
            return;
        }
        let (mut table, mut slice) = (sub_table, 0u8);
        for stage in 0..4u8 {
            let value = (key >> (48 - 16 * u32::from(slice))) as u16;
            let hits = holds.entries().iter().filter_map(|entry| match entry {
                Entry::FatRoot(at, action)
                    if (at.stage, at.sub_table) == (stage, table) && (at.low..=at.high).contains(&value) =>
                {
                    Some((at.priority, *action))
                }
                _ => None,
            });
            match hits.max_by_key(|(priority, _)| *priority) {
                None => {}
                Some((_, fat_root::Action::NextTable { slice: next, sub_table })) => {
                    (slice, table) = (next, sub_table)
                }
                Some((_, fat_root::Action::Land { address, partition, kind })) => {
                    let trees = self.epochs.get(&epoch).expect("it was loaded").clone();
                    let down = self.down(root, partition);
                    let mut packet = Packet { key, epoch, kind, address, trees, down };
                    let role = self.cluster.tree().switch(root).role;
                    role.sets().iter().for_each(|set| packet.descend(holds, *set));
                    self.packets.push(packet);
                    return;
                }
            }
        }
        // None has an entry: it goes down with the root of its partition.
    }

    /// The switches from a fat root down to a memory server, without the first.
    fn down(&self, root: SwitchId, partition: u16) -> VecDeque<SwitchId> {
        let (tree, server) = (self.cluster.tree(), self.cluster.server(partition).unwrap().host);
        let routing = Routing::undisturbed(tree);
        let (mut at, mut down) = (root, VecDeque::new());
        while let Some(Peer::Switch { switch, .. }) = tree.peer(at, routing.down_port(at, server).unwrap()) {
            down.push_back(switch);
            at = switch;
        }
        down
    }

    fn hop(&mut self) {
        if self.packets.is_empty() {
            return;
        }
        let at = self.random.random_range(0..self.packets.len());
        let packet = &mut self.packets[at];
        if let Some(switch) = packet.down.pop_front() {
            let (holds, role) = (&self.switches[&switch].holds, self.cluster.tree().switch(switch).role);
            role.sets().iter().for_each(|set| packet.descend(holds, *set));
        } else {
            let Packet { key, address, trees, epoch, .. } = self.packets.swap_remove(at);
            // Plans of its epoch that were loaded meanwhile may lead it as well.
            let later = self.epochs.get(&epoch).into_iter().flatten();
            let trees = || trees.iter().chain(later.clone());
            let is_right = trees().any(|tops| naive_path(tops, key).contains(&address));
            // By one node of an old tree and one of a new one, neither of them half: a neighbour, from which links lead to the right.
            let is_left = || trees().any(|tops| low_of(tops, address).is_some_and(|low| low <= key));
            assert!(is_right || is_left(), "key {key:#x} of epoch {epoch}: {address:#x}");
            self.landed += 1;
            self.misled += usize::from(!is_right);
        }
    }

    // ---- the end ----

    /// Nothing goes wrong any more.
    fn settle(&mut self) {
        self.switches.values_mut().for_each(|switch| switch.is_frozen = false);
        self.controller.network_changed(Outages::none());
        self.servers_join();
        for _ in 0..60 {
            self.calm(1);
            if self.controller.wants_plan() {
                self.plan();
            }
        }
    }

    /// All switches are worked on, and nothing goes wrong meanwhile.
    fn calm(&mut self, rounds: usize) {
        for _ in 0..rounds {
            for id in self.switches.keys().copied().collect::<Vec<_>>() {
                self.work_on(id, false);
            }
        }
    }

    fn check(&self) {
        let (version, desired) = self.controller.desired();
        assert!(
            self.controller.reload().is_none() && desired.staged.is_none(),
            "{:?}",
            self.controller.reload()
        );
        let (loaded, source) = self.controller.plan().expect("a plan is active");
        assert_eq!(*source, self.trees.1);
        let mut planned = loaded.plan().entries();
        let bases = crate::cluster_base(&self.cluster);
        for (id, Switch { holds, .. }) in &self.switches {
            assert_eq!(self.controller.switch(*id), Some(&SwitchState::Settled(version)));
            let mut all: Vec<Entry> = bases[id].entries.clone();
            all.extend(planned.remove(id).unwrap_or_default());
            all.extend(desired.connections.of_switch(*id));
            let route =
                if self.cluster.tree().is_root(*id) { loaded.plan().descend() } else { bases[id].core_route };
            assert_eq!(*holds, Observed::new(all, Some(route)), "switch {}", id.0);
        }
        let connections: usize = self.connections.values().map(Vec::len).sum();
        assert_eq!(desired.connections.len(), connections);
        assert!((0..2).all(|id| self.controller.connections(id).all(|(_, told)| told)));
    }
}

impl Packet {
    /// Looks into a node set.
    fn descend(&mut self, holds: &Observed, set: NodeSet) {
        let (epoch, address) = (self.epoch, self.address);
        let entries = || holds.entries().iter();
        let node = entries().find_map(|entry| match entry {
            Entry::Coarse(key, action) if (key.set, key.epoch, key.address) == (set, epoch, address) => {
                Some((key.whole, *action))
            }
            _ => None,
        });
        let Some((whole, node)) = node.filter(|_| self.kind == NodeKind::Inner) else { return };
        let (slot, quarter) = (node.slot, node.last.below(self.key) as u8);
        let key = fine::Key { set, whole, epoch, slot, quarter };
        let fine = entries().find_map(|entry| match entry {
            Entry::Fine(at, action) if *at == key => Some(action.last.below(self.key) as u8),
            _ => None,
        });
        let branch = 4 * quarter + fine.expect("a node that is there is whole");
        let child = entries().find_map(|entry| match entry {
            Entry::Child(at, action) if *at == (child::Key { set, epoch, slot, branch }) => {
                Some(action.offset)
            }
            Entry::Run(at, action) if *at == (run::Key { set, stride: node.stride, branch }) => {
                Some(node.first_child + u64::from(action.distance))
            }
            _ => None,
        });
        self.address = self.address >> 48 << 48 | child.expect("a node that is there is whole");
        self.kind = node.kind;
    }
}

/// The first key of a leaf, if it is there.
fn low_of(tops: &[TreeTop], leaf: u64) -> Option<u64> {
    let parents = tops.iter().flat_map(|top| &top.nodes).filter(|node| node.level == 1);
    parents.flat_map(|node| &node.children).find(|(_, address)| *address == leaf).map(|(low, _)| *low)
}

/// Whether a switch takes a change: it inserts nothing twice, and no more hot keys than it has room for; it modifies and deletes nothing
/// that is not there.
fn fits(holds: &Observed, change: &Change) -> bool {
    let has = |entry: &Entry| holds.entries().binary_search_by(|held| held.cmp_keys(entry)).is_ok();
    match change {
        Change::Insert(entry @ Entry::HotKey(..)) => {
            let is_hot = |entry: &&Entry| matches!(entry, Entry::HotKey(..));
            !has(entry) && holds.entries().iter().filter(is_hot).count() < HOT_KEYS
        }
        Change::Insert(entry) => !has(entry),
        Change::Modify(entry) | Change::Delete(entry) => has(entry),
        Change::CoreRoute(_) => true,
    }
}

#[test]
fn a_first_switch_that_is_full_takes_no_more_connections() {
    let mut world = World::new(1);
    world.controller = Controller::new(&world.cluster, 2, 0);
    let client = world.cluster.tree().host(world.cluster.clients()[0].host).ip;
    for queue_pair in 2..5 {
        world.controller.opened(0, Registration { client, queue_pair, rkey: 7, root: 64, mtu: 1024 });
    }
    let registered = |world: &World| world.controller.desired().1.connections.len();
    assert_eq!((registered(&world), world.controller.refused_connections()), (2, 1));
    assert_eq!(world.controller.connections(0).count(), 2);
    world.controller.closed(0, client, 2);
    world.controller.opened(0, Registration { client, queue_pair: 4, rkey: 7, root: 64, mtu: 1024 });
    assert_eq!((registered(&world), world.controller.refused_connections()), (2, 1));
}

/// Clients come and go all the time; what the switches hold for a plan stays meanwhile.
#[test]
fn a_switch_that_takes_in_a_client_holds_up_no_reload() {
    let mut world = World::new(1);
    world.settle();
    let first = world.first;
    world.controller.next_epoch().unwrap();
    let client = world.cluster.tree().host(world.cluster.clients()[0].host).ip;
    world.controller.opened(0, Registration { client, queue_pair: 99, rkey: 7, root: 64, mtu: 1024 });
    world.controller.switch_converging(first);
    world.controller.next_epoch().unwrap();
    // One that was read may have come back empty.
    let serving = world.switches[&first].holds.serving();
    world.controller.switch_read(first, serving);
    world.controller.switch_converging(first);
    assert!(matches!(world.controller.next_epoch(), Err(Refused::CoreSilent { .. })));
}

#[test]
fn whatever_happens_the_fleet_converges() {
    let seeds = std::env::var("FATBTREE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(300);
    let (mut landed, mut misled, mut hot, mut reloads, mut differences) = (0, 0, 0, 0, 0);
    for seed in 0..seeds {
        println!("seed {seed}"); // Shown when the test fails.
        let mut world = World::new(seed);
        for _ in 0..2_000 {
            world.rough_step();
        }
        landed += world.landed;
        misled += world.misled;
        hot += world.hot;
        reloads += world.epochs.len();
        differences += world.differences;
        world.settle();
        world.check();
    }
    let told =
        format!("{landed} packets, {misled} of them misled, {reloads} epochs, {differences} differences");
    println!("{told}");
    assert!(landed > 0 && hot > 0 && reloads > 2 * seeds as usize && differences > seeds as usize, "{told}");
}

/// A packet that was led by a node of the one tree may be on its way to a node of the other.
#[test]
fn nodes_of_two_plans_are_never_led_into_at_once() {
    let (mut differences, mut both_were_there) = (0, 0);
    for seed in 0..100 {
        let mut world = World::new(seed);
        world.settle();
        let nodes = |plan: &Plan| -> BTreeSet<Entry> {
            let entries = plan.entries().into_values().flatten();
            entries.filter(|entry| matches!(entry, Entry::Coarse(..))).collect()
        };
        let old = nodes(world.controller.plan().expect("it has settled").0.plan());
        (0..2).for_each(|_| world.split_inner());
        world.plan();
        let Some((loaded, ..)) = world.controller.reload() else { continue };
        let new = nodes(loaded.plan());
        if new.first().is_some_and(|entry| old.first().map(epoch_of) != Some(epoch_of(entry))) {
            continue;
        }
        differences += 1;
        let ids: Vec<SwitchId> = world.switches.keys().copied().collect();
        while world.controller.reload().is_some() {
            for id in &ids {
                world.work_on(*id, false);
                let held: BTreeSet<Entry> =
                    world.switches.values().flat_map(|switch| switch.holds.entries()).copied().collect();
                let holds = |a: &BTreeSet<Entry>, b| a.difference(b).any(|entry| held.contains(entry));
                assert!(!(holds(&old, &new) && holds(&new, &old)), "seed {seed}");
                both_were_there += usize::from(holds(&old, &new) || holds(&new, &old));
            }
            while world.controller.poll_notice().is_some() {}
        }
        world.settle();
        world.check();
    }
    assert!(differences > 10 && both_were_there > 10, "{differences} differences");
}

fn epoch_of(entry: &Entry) -> u8 {
    match entry {
        Entry::Coarse(key, _) => key.epoch,
        other => panic!("{other:?}"),
    }
}
