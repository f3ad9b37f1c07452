//! What switches do with a plan's entries, read as naively as possible.

use std::collections::BTreeMap;

use fatbtree_topology::{Network, NodeSet, Peer, Routing, SwitchId};

use crate::plan::{PlannedPartition, Resolved};
use crate::tables::{Change, Entry, NodeKind, child, coarse, core_route, fat_root, fine, hot_key, run};

/// Room for hot keys in these tests.
pub(super) const HOT_KEYS: usize = 6;

/// The entries of one switch, as its tables hold them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Switch {
    pub(super) hot: BTreeMap<hot_key::Key, hot_key::Action>,
    fat_root: BTreeMap<fat_root::Key, fat_root::Action>,
    coarse: BTreeMap<coarse::Key, coarse::Action>,
    fine: BTreeMap<fine::Key, fine::Action>,
    runs: BTreeMap<run::Key, run::Action>,
    children: BTreeMap<child::Key, child::Action>,
}

/// All switches, and what each fat root does with index packets.
#[derive(Clone)]
pub(super) struct Fabric {
    topology: Network,
    pub(super) switches: BTreeMap<SwitchId, Switch>,
    routes: BTreeMap<SwitchId, core_route::Action>,
}

impl Fabric {
    pub(super) fn empty(topology: &Network) -> Self {
        let nowhere = core_route::Action::Descend { epoch: 0, sub_table: 0 };
        let routes = topology.roots().iter().map(|root| (*root, nowhere)).collect();
        Self { topology: topology.clone(), switches: BTreeMap::new(), routes }
    }

    pub(super) fn apply(&mut self, switch: SwitchId, change: Change) {
        let tables = self.switches.entry(switch).or_default();
        let put = |there: bool, change: &Change| {
            assert_eq!(there, matches!(change, Change::Modify(_)), "{change:?}")
        };
        match change {
            Change::CoreRoute(action) => {
                assert!(self.routes.insert(switch, action).is_some(), "it holds the fat root");
            }
            Change::Insert(Entry::HotKey(key, action)) | Change::Modify(Entry::HotKey(key, action)) => {
                put(tables.hot.insert(key, action).is_some(), &change);
                assert!(tables.hot.len() <= HOT_KEYS, "the table is full");
            }
            Change::Insert(Entry::FatRoot(key, action)) | Change::Modify(Entry::FatRoot(key, action)) => {
                put(tables.fat_root.insert(key, action).is_some(), &change);
            }
            Change::Insert(Entry::Coarse(key, action)) | Change::Modify(Entry::Coarse(key, action)) => {
                put(tables.coarse.insert(key, action).is_some(), &change);
            }
            Change::Insert(Entry::Fine(key, action)) | Change::Modify(Entry::Fine(key, action)) => {
                put(tables.fine.insert(key, action).is_some(), &change);
            }
            Change::Insert(Entry::Run(key, action)) | Change::Modify(Entry::Run(key, action)) => {
                put(tables.runs.insert(key, action).is_some(), &change);
            }
            Change::Insert(Entry::Child(key, action)) | Change::Modify(Entry::Child(key, action)) => {
                put(tables.children.insert(key, action).is_some(), &change);
            }
            Change::Delete(Entry::HotKey(key, _)) => assert!(tables.hot.remove(&key).is_some()),
            Change::Delete(Entry::FatRoot(key, _)) => assert!(tables.fat_root.remove(&key).is_some()),
            Change::Delete(Entry::Coarse(key, _)) => assert!(tables.coarse.remove(&key).is_some()),
            Change::Delete(Entry::Fine(key, _)) => assert!(tables.fine.remove(&key).is_some()),
            Change::Delete(Entry::Run(key, _)) => assert!(tables.runs.remove(&key).is_some()),
            Change::Delete(Entry::Child(key, _)) => assert!(tables.children.remove(&key).is_some()),
            other => panic!("{other:?} is none of a plan's"),
        }
    }

    /// The epoch in which a fat root sends packets down.
    pub(super) fn epoch(&self, root: SwitchId) -> u8 {
        match self.routes[&root] {
            core_route::Action::Descend { epoch, .. } => epoch,
            other => panic!("a fat root descends, and does not {other:?}"),
        }
    }

    /// An index read that meets a fat root now.
    pub(super) fn read(&self, root: SwitchId, home: &PlannedPartition, key: u64) -> Resolved {
        self.read_under_way(self, root, home, key)
    }

    /// The switches that packets pass from a fat root on, to the host of a partition.
    fn down(&self, root: SwitchId, home: &PlannedPartition) -> Vec<SwitchId> {
        let host = self.topology.host_by_ip(home.ip).expect("a memory server's").id;
        let routing = Routing::undisturbed(&self.topology);
        let mut down = vec![root];
        loop {
            let port = routing.down_port(down[down.len() - 1], host).expect("everything is up");
            match self.topology.peer(down[down.len() - 1], port).expect("it is wired") {
                Peer::Switch { switch, .. } => down.push(switch),
                Peer::Host(_) => return down,
            }
        }
    }

    /// An index read that met a fat root when the network was `before`, and all else now. (A switch handles a packet
    /// as a whole, so `core_route` and fat root are always of one moment.)
    pub(super) fn read_under_way(
        &self,
        before: &Self,
        root: SwitchId,
        home: &PlannedPartition,
        key: u64,
    ) -> Resolved {
        let none = Switch::default();
        let at = |switch: SwitchId| self.switches.get(&switch).unwrap_or(&none);
        let mut landing =
            Resolved { address: home.root, partition: home.id, levels: 0, kind: NodeKind::Undescribed };
        let core_route::Action::Descend { epoch, mut sub_table } = before.routes[&root] else {
            panic!("a fat root descends")
        };
        let mut slice = 0u8;
        for stage in 0..4u8 {
            let value = (key >> (48 - 16 * slice)) as u16;
            let tables = &before.switches.get(&root).unwrap_or(&none).fat_root;
            let hit = tables
                .iter()
                .filter(|(k, _)| {
                    k.stage == stage && k.sub_table == sub_table && (k.low..=k.high).contains(&value)
                })
                .max_by_key(|(k, _)| k.priority);
            match hit {
                None => {}
                Some((_, fat_root::Action::NextTable { slice: next_slice, sub_table: next })) => {
                    (slice, sub_table) = (*next_slice, *next);
                }
                Some((_, fat_root::Action::Land { address, partition, kind })) => {
                    if *partition == home.id {
                        (landing.address, landing.levels, landing.kind) = (*address, 1, *kind);
                    }
                    break;
                }
            }
        }
        for switch in self.down(root, home).into_iter().map(at) {
            for set in NodeSet::ALL {
                let address = landing.address;
                let node = [false, true].iter().find_map(|whole| {
                    let action = switch.coarse.get(&coarse::Key { set, whole: *whole, epoch, address })?;
                    Some((*whole, *action))
                });
                let Some((whole, node)) = node.filter(|_| landing.kind == NodeKind::Inner) else { continue };
                let (slot, quarter) = (node.slot, node.last.below(key) as u8);
                let found = switch.fine.get(&fine::Key { set, whole, epoch, slot, quarter });
                // A quarter that is missing is compared with nothing: the differences are all zero.
                let branch = 4 * quarter + found.map_or(0, |found| found.last.below(key) as u8);
                let offset = match node.stride {
                    0 => switch
                        .children
                        .get(&child::Key { set, epoch, slot, branch })
                        .map(|child| child.offset),
                    stride => {
                        let run = switch.runs.get(&run::Key { set, stride, branch });
                        // Without a carry.
                        let low = |run: &run::Action| (node.first_child as u32).wrapping_add(run.distance);
                        run.map(|run| node.first_child >> 32 << 32 | u64::from(low(run)))
                    }
                };
                landing.kind = offset.map_or(NodeKind::Undescribed, |_| node.kind);
                if let Some(offset) = offset {
                    landing.address = landing.address >> 48 << 48 | offset;
                    landing.levels += 1;
                }
            }
        }
        landing
    }
}
