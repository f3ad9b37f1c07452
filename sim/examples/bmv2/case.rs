//! One switch of a network, with all the entries that it gets: routes, connections, hot keys, and two epochs of a plan.

use std::collections::BTreeMap;
use std::error::Error;

use fatbtree_blink::{GlobalAddress, KeyRange, Partition, TopNode, TreeTop};
use fatbtree_controller::{
    Budget, Change, Connection, Connections, Entry, Frequencies, HotKeys, Located, Placement, Plan, SETS,
    Tree,
};
use fatbtree_topology::{Cores, HostId, Network, SwitchId};
use rand::{RngExt as _, SeedableRng as _};

use crate::Random;

/// The epochs that the switch holds; the second one is active.
pub(crate) const EPOCHS: [u8; 2] = [7, 8];
/// Numbers of the partitions, not in the order of their keys.
pub(crate) const PARTITIONS: [u16; 4] = [2, 0, 7, 65535];
/// Leaves of each partition's tree.
const LEAVES: usize = 800;

/// A switch to be compared.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) network: Network,
    pub(crate) placement: Placement,
    pub(crate) switch: SwitchId,
    /// Changes that are written after the base, in this order.
    pub(crate) changes: Vec<Change>,
    /// The connections of the network's clients.
    pub(crate) connections: Vec<Connection>,
    /// Keys at which a compare may go wrong: pivots, and those beside them.
    pub(crate) keys: Vec<u64>,
    /// Keys with entries of their own.
    pub(crate) hot: Vec<u64>,
    /// Addresses of inner nodes, and the first keys of the children of each.
    pub(crate) nodes: Vec<(u64, Vec<u64>)>,
    /// The nodes that this switch has, and in which epoch: positions in `nodes`.
    pub(crate) cached: Vec<(u8, usize)>,
}

/// Ranges of the fat root in each epoch, and nodes of each set by role ([`fatbtree_controller::ROLE_SETS`]), so that the role in question
/// gets some: what is above takes the nodes first.
fn room(role: &str) -> ([usize; 2], [usize; SETS]) {
    match role {
        "edge" => ([10, 20], [8, 2, 2, 60, 60, 30, 60, 30, 30, 60]),
        _ => ([25, 60], [40, 20, 20, 60, 60, 30, 60, 30, 30, 60]),
    }
}

/// The role that `--role` means, the network, and the switch in it.
const CASES: [(&str, &str, &str); 6] = [
    ("core", "fat tree", "core-0"),
    ("aggregation", "fat tree", "agg-0-0"),
    ("edge", "fat tree", "edge-0-0"),
    ("single", "pair", "switch-0"),
    ("single", "single", "switch-0"),
    ("folded", "folded", "switch-0"),
];

/// The cases of a role; of all roles where none is named. A case is the same with the others and without them.
pub(crate) fn cases(role: Option<&str>, seed: u64) -> Result<Vec<(Case, Random)>, Box<dyn Error>> {
    let mut cases = Vec::new();
    for (number, (name, kind, switch)) in (0u64..).zip(CASES) {
        if role.is_none_or(|role| role == name) {
            let mut random = Random::seed_from_u64(seed);
            random.set_stream(number);
            cases.push((Case::new(name, kind, switch, &mut random)?, random));
        }
    }
    match cases.is_empty() {
        true => Err("--role: expected core, aggregation, edge, single or folded".into()),
        false => Ok(cases),
    }
}

impl Case {
    fn new(
        role: &'static str,
        kind: &'static str,
        switch: &str,
        random: &mut Random,
    ) -> Result<Self, Box<dyn Error>> {
        let network = match kind {
            "pair" => Network::pair(8)?,
            "single" => Network::single(16)?,
            "folded" => Network::folded(16, Vec::new())?,
            _ => Network::fat_tree(4, Cores::All)?,
        };
        let switch = network.switch_by_name(switch).ok_or("no such switch")?.id;
        // Each edge switch of the fat tree has a server here, or a client, or both.
        let servers = [1, 4, 7, 10].map(HostId);
        let clients = network.hosts().iter().map(|host| host.id).filter(|id| !servers.contains(id));
        let clients: Vec<HostId> = clients.collect();
        let placement = PARTITIONS.into_iter().zip(servers).collect::<Placement>();
        let placement = placement.with_clients(clients.iter().copied());

        let tops = tops(random);
        let tree = Tree::new(&tops)?;
        let keys: Vec<u64> =
            tops.iter().flat_map(|top| &top.nodes).flat_map(|node| &node.children).map(|c| c.0).collect();
        let hot_keys: Vec<u64> =
            (0..200).map(|_| keys[random.random_range(0..keys.len())] ^ random.random_range(0..2)).collect();
        let visits: Vec<(u64, u64)> = hot_keys.iter().map(|key| (*key, 5)).collect();
        let located: Vec<Located> = hot_keys
            .iter()
            .map(|key| Located {
                key: *key,
                address: u64::from(tree.partition_of(*key)) << 48 | 1 << 47 | (key & 0xffff_ffff) << 4,
            })
            .collect();
        let (ranges, set_nodes) = room(role);
        let mut entries: Vec<Entry> = Vec::new();
        let mut descend = None;
        for (epoch, ranges) in EPOCHS.into_iter().zip(ranges) {
            let samples: Vec<u64> = (0..4000).map(|_| keys[random.random_range(0..keys.len())]).collect();
            let frequencies = Frequencies::from_keys(&tree, &samples);
            let budget = Budget { fat_root_ranges: ranges, set_nodes, ..Budget::bmv2() };
            let hot = HotKeys::choose(&tree, &visits, &located, 100, None).0;
            let plan =
                Plan::new(&network, &placement, &tree, &frequencies, &budget, epoch)?.with_hot_keys(hot);
            entries.extend(plan.entries().remove(&switch).unwrap_or_default());
            descend = network.is_root(switch).then(|| Change::CoreRoute(plan.descend()));
        }
        let connections = connect(&network, &clients, &tops, random);
        let mut registered = Connections::new();
        for connection in &connections {
            registered.register(&network, &placement, *connection)?;
        }
        entries.extend(registered.of_switch(switch));
        // Entries of both epochs, such as hot keys, are there once.
        let mut by_key: Vec<Entry> = entries;
        by_key.sort_by(Entry::cmp_keys);
        by_key.dedup_by(|a, b| a.cmp_keys(b).is_eq());
        let hot = by_key.iter().filter_map(|entry| match entry {
            Entry::HotKey(key, _) => Some(key.key),
            _ => None,
        });
        let hot: Vec<u64> = hot.collect::<std::collections::BTreeSet<u64>>().into_iter().collect();
        let hot = if hot.is_empty() { hot_keys } else { hot };
        let firsts = |node: &TopNode| node.children.iter().map(|child| child.0).collect();
        let nodes = tops.iter().flat_map(|top| &top.nodes).map(|node| (node.address, firsts(node)));
        let nodes: Vec<(u64, Vec<u64>)> = nodes.collect();
        let cached = by_key.iter().filter_map(|entry| match entry {
            Entry::Coarse(key, _) => {
                Some((key.epoch, nodes.iter().position(|(address, _)| *address == key.address)?))
            }
            _ => None,
        });
        let cached = cached.collect();
        let changes = by_key.into_iter().map(Change::Insert).chain(descend).collect();
        Ok(Self { name: role, network, placement, switch, changes, connections, keys, hot, nodes, cached })
    }

    /// Number of entries of each table that are written beside the base; for people.
    pub(crate) fn tables(&self) -> BTreeMap<String, usize> {
        let mut tables = BTreeMap::new();
        for change in &self.changes {
            if let Change::Insert(entry) = change {
                *tables.entry(entry.table().to_owned()).or_default() += 1;
            }
        }
        tables
    }
}

/// A few queue pairs of each client with each server.
fn connect(network: &Network, clients: &[HostId], tops: &[TreeTop], random: &mut Random) -> Vec<Connection> {
    let mut connections = Vec::new();
    let here = clients.iter().filter(|client| network.is_plugged_in(**client));
    for client in here {
        for top in tops {
            for mtu in [256, 1024, 4096] {
                connections.push(Connection {
                    client: network.host(*client).ip,
                    partition: top.partition.id,
                    dest_qp: random.random_range(2..1 << 24),
                    rkey: random.random_range(2..=u32::MAX),
                    root: top.partition.root.raw(),
                    mtu,
                });
            }
        }
    }
    connections
}

/// The tops of four partitions: trees of nodes of all widths, some wider than a switch can hold; some children at equal distances and
/// some not; some nodes told apart by the high halves of their keys, some by the low ones, some by whole keys.
fn tops(random: &mut Random) -> Vec<TreeTop> {
    let count = LEAVES * PARTITIONS.len();
    let mut keys = std::collections::BTreeSet::new();
    while keys.len() < count {
        keys.insert(match random.random_range(0..5u8) {
            0 => random.random(),
            1 => random.random_range(1..100_000),
            2 => u64::MAX - random.random_range(0..1000),
            3 => random.random_range(0..70_000) << 32,
            _ => 0x4000_0000_0000_0000 | random.random_range(0..2_000_000u64) << 16,
        });
    }
    let keys: Vec<u64> = keys.into_iter().collect();
    let parts = keys.chunks(LEAVES).zip(PARTITIONS).enumerate();
    parts.map(|(n, (leaves, id))| top(id, if n == 0 { 0 } else { leaves[0] }, leaves, random)).collect()
}

fn top(id: u16, low: u64, leaves: &[u64], random: &mut Random) -> TreeTop {
    let mut address = u64::from(id) << 48;
    let mut fresh = |random: &mut Random| {
        // Now and then a gap: siblings on both sides of it are no run.
        address += if random.random_range(0..60u8) == 0 { 64 * 1000 } else { 512 };
        address
    };
    let mut level: Vec<(u64, u64)> = leaves.iter().map(|key| (*key, fresh(random))).collect();
    level[0].0 = low;
    let (mut nodes, mut height) = (Vec::new(), 0);
    while level.len() > 1 {
        height += 1;
        let mut above = Vec::new();
        let mut rest = level.as_slice();
        while !rest.is_empty() {
            let width = [2, 2, 3, 3, 5, 16, 17][random.random_range(0..7usize)].min(rest.len());
            let (children, more) = rest.split_at(width);
            let node = TopNode { address: fresh(random), level: height, children: children.to_vec() };
            above.push((node.low(), node.address));
            nodes.push(node);
            rest = more;
        }
        level = above;
    }
    let range = KeyRange { low, high: None };
    let partition = Partition { id, range, root: GlobalAddress(level[0].1), root_level: height };
    TreeTop { partition, nodes, reads: Default::default() }
}
