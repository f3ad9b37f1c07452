//! Several fat roots: which of them get packets, which are waited for, and what comes back.

use fatbtree_blink::TreeTop;
use fatbtree_topology::{Cluster, Outages, SwitchId};

use super::*;
use crate::frequency::Frequencies;
use crate::plan::{Budget, Placement, Plan};
use crate::tables::{Change, Entry, core_route};
use crate::test_support::top;
use crate::tree::Tree;

/// Three leaves and two spines, and what they hold.
struct Fleet {
    cluster: Cluster,
    controller: Controller,
    switches: Vec<(SwitchId, Observed)>,
    tops: Vec<TreeTop>,
}

impl Fleet {
    fn new() -> Self {
        let [.., (_, text), _] = Cluster::examples();
        let cluster = Cluster::from_toml(text).unwrap();
        let switches =
            cluster.tree().switches().iter().map(|switch| (switch.id, Observed::default())).collect();
        let tops = [0u16, 1].map(|id| {
            let low = u64::from(id) << 62;
            top(id, low, &(0..300).map(|n| low + n * 10).collect::<Vec<_>>(), &[9, 7])
        });
        let controller = Controller::new(&cluster, 100, 0);
        let mut fleet = Self { controller, switches, tops: tops.to_vec(), cluster };
        for (partition, generation) in fleet.source() {
            fleet.controller.server_joined(partition, generation, &[]);
        }
        fleet.switches.iter().for_each(|(id, held)| fleet.controller.switch_read(*id, held.serving()));
        fleet
    }

    fn source(&self) -> Generations {
        let of = |id: u16| (id, Generation { number: 1, low: u64::from(id) << 62 });
        [0, 1].map(of).into()
    }

    fn id(&self, name: &str) -> SwitchId {
        self.cluster.tree().switch_by_name(name).unwrap().id
    }

    fn held(&mut self, name: &str) -> &mut Observed {
        let id = self.id(name);
        &mut self.switches.iter_mut().find(|(other, _)| *other == id).unwrap().1
    }

    /// One step of each switch but these.
    fn step(&mut self, but: &[&str]) {
        let but: Vec<SwitchId> = but.iter().map(|name| self.id(name)).collect();
        for (id, held) in self.switches.iter_mut().filter(|(id, _)| !but.contains(id)) {
            let (version, desired) = self.controller.desired();
            match desired.wanted(*id).next_changes(held) {
                None => self.controller.switch_settled(*id, version),
                Some(changes) => {
                    held.apply(&changes);
                    self.controller.switch_converging(*id);
                }
            }
        }
    }

    fn settle(&mut self, but: &[&str]) {
        (0..60).for_each(|_| self.step(but));
    }

    fn load(&mut self) {
        let tree = Tree::new(&self.tops).unwrap();
        let (placement, none) = (Placement::of(&self.cluster), Frequencies::none(&tree));
        let budget = Budget { fat_root_ranges: 20, ..Budget::bmv2() };
        let plan = Plan::new(self.cluster.tree(), &placement, &tree, &none, &budget, 1).unwrap();
        let source = self.source();
        self.controller.load(plan, source).unwrap();
    }

    /// To how many path numbers a leaf gives which spine.
    fn climbs(&mut self, leaf: &str) -> [usize; 2] {
        let held = self.held(leaf);
        let to = |port: u16| {
            let is = |entry: &&Entry| matches!(entry, Entry::CoreRoute(_, climb) if climb.port == port);
            held.entries().iter().filter(is).count()
        };
        [2, 3].map(to)
    }

    fn serving(&mut self, name: &str) -> Option<u8> {
        self.held(name).serving().map(|serving| serving.epoch)
    }
}

#[test]
fn both_get_packets_and_hold_the_plan() {
    let mut fleet = Fleet::new();
    fleet.settle(&[]);
    assert_eq!(fleet.climbs("leaf-2"), [32, 32]);
    fleet.load();
    fleet.settle(&[]);
    assert!(fleet.controller.reload().is_none());
    assert!(fleet.serving("spine-0").is_some() && fleet.serving("spine-0") == fleet.serving("spine-1"));
}

/// Nothing of the old plan goes while one of them still leads packets into it.
#[test]
fn the_old_plan_stays_until_both_have_flipped() {
    let mut fleet = Fleet::new();
    fleet.settle(&[]);
    fleet.load();
    fleet.settle(&[]);
    let before = fleet.serving("spine-1");
    // Another epoch: a difference would be one of the same.
    fleet.tops.iter_mut().for_each(|top| {
        let shift = |address: &mut u64| *address += 1 << 30;
        shift(&mut top.partition.root.0);
        top.nodes.iter_mut().for_each(|node| {
            shift(&mut node.address);
            node.children.iter_mut().for_each(|(_, address)| shift(address));
        });
    });
    fleet.load();
    let old = |entry: &&Entry| matches!(entry, Entry::Coarse(key, _) if Some(key.epoch) == before);
    for _ in 0..60 {
        let is_late = fleet.controller.reload().is_some_and(|(_, _, stage)| stage == Stage::Flip);
        fleet.step(if is_late { &["spine-1"] } else { &[] });
    }
    assert_ne!((fleet.serving("spine-0"), before), (before, None), "one has flipped");
    assert_eq!(fleet.serving("spine-1"), before);
    assert_eq!(fleet.controller.reload().map(|(_, _, stage)| stage), Some(Stage::Flip));
    assert!(fleet.held("leaf-0").entries().iter().filter(old).count() > 0);
    fleet.settle(&[]);
    assert!(fleet.controller.reload().is_none() && fleet.serving("spine-1") == fleet.serving("spine-0"));
    assert_eq!(fleet.held("leaf-0").entries().iter().filter(old).count(), 0);
}

/// What a fat root that is away holds does no harm: no packet is led there, and others need not wait for it.
#[test]
fn one_that_does_not_answer_gets_no_packets_and_is_not_waited_for() {
    let mut fleet = Fleet::new();
    fleet.settle(&[]);
    let gone = fleet.id("spine-0");
    fleet.controller.switch_lost(gone, "gone".to_owned());
    assert_eq!(
        fleet.controller.next_epoch(),
        Err(Refused::CoreSilent { switch: "spine-0".to_owned() }),
        "packets may still be led there"
    );
    fleet.settle(&["spine-0"]);
    assert_eq!(fleet.climbs("leaf-2"), [0, 64]);
    fleet.load();
    fleet.settle(&["spine-0"]);
    assert!(fleet.controller.reload().is_none(), "{:?}", fleet.controller.reload());
    assert_eq!((fleet.serving("spine-0"), fleet.serving("spine-1").is_some()), (None, true));
    // It comes back empty, and gets packets only when it holds the plan.
    *fleet.held("spine-0") = Observed::default();
    fleet.controller.switch_read(gone, None);
    for _ in 0..60 {
        fleet.step(&[]);
        if fleet.climbs("leaf-2") != [0, 64] {
            assert_eq!(fleet.serving("spine-0"), fleet.serving("spine-1"), "it holds the plan by now");
        }
    }
    assert_eq!(fleet.climbs("leaf-2"), [32, 32]);
    let route = fleet.held("spine-0").core_route();
    assert!(matches!(route, Some(core_route::Action::Descend { .. })));
}

/// The same of one that is down, and answers all the time; and of a cable.
#[test]
fn packets_go_round_what_is_down() {
    let mut fleet = Fleet::new();
    fleet.settle(&[]);
    let spine = fleet.id("spine-1");
    let down = Outages { switches: [spine].into(), ..Outages::none() };
    fleet.controller.network_changed(down.clone());
    let version = fleet.controller.desired().0;
    fleet.controller.network_changed(down);
    assert_eq!(fleet.controller.desired().0, version, "nothing new");
    fleet.settle(&["spine-1"]);
    assert_eq!(fleet.climbs("leaf-1"), [64, 0]);
    fleet.load();
    fleet.settle(&["spine-1"]);
    assert!(fleet.controller.reload().is_none(), "one that is down is not waited for");
    fleet.controller.network_changed(Outages::none());
    for _ in 0..60 {
        fleet.step(&[]);
        if fleet.climbs("leaf-1") != [64, 0] {
            assert_eq!(fleet.serving("spine-1"), fleet.serving("spine-0"), "it holds the plan by now");
        }
    }
    assert_eq!(fleet.climbs("leaf-1"), [32, 32]);
    let cable = Outages { links: [(fleet.id("leaf-0"), 2)].into(), ..Outages::none() };
    fleet.controller.network_changed(cable);
    fleet.settle(&[]);
    assert_eq!(fleet.climbs("leaf-2"), [0, 64], "spine-0 does not reach leaf-0, where a memory server is");
}

/// One that was away may still lead into a fat root whose place is wanted for another: it stops before it changes anything.
#[test]
fn one_that_comes_back_stops_before_its_fat_root_is_written_over() {
    let mut fleet = Fleet::new();
    fleet.settle(&[]);
    fleet.load();
    fleet.settle(&[]);
    let held = fleet.held("spine-0").clone();
    let wanted = fleet.controller.desired().1.wanted(fleet.id("spine-0"));
    let Some(core_route::Action::Descend { epoch, sub_table }) = held.core_route() else {
        panic!("it serves")
    };
    let other = core_route::Action::Descend { epoch: epoch + 2, sub_table };
    let stale = Observed::new(held.entries()[5..].to_vec(), Some(other));
    let stop = Change::CoreRoute(core_route::Action::Descend { epoch: 0, sub_table: 0 });
    assert_eq!(wanted.next_changes(&stale), Some(vec![stop]));
}

/// A controller that starts, and reads an empty one first, goes on with what the other one has.
#[test]
fn an_empty_one_that_is_read_first_does_not_end_the_plan() {
    let mut fleet = Fleet::new();
    fleet.settle(&[]);
    fleet.load();
    fleet.settle(&[]);
    let (plan, source) =
        fleet.controller.plan().map(|(loaded, of)| (loaded.plan().clone(), of.clone())).unwrap();
    *fleet.held("spine-0") = Observed::default();
    let [first, second] = ["spine-0", "spine-1"].map(|name| fleet.id(name));
    for draw in [0, 253, 254] {
        let mut controller = Controller::new(&fleet.cluster, 100, draw);
        controller.restore(plan.clone(), source.clone());
        controller.switch_read(first, None);
        assert_eq!(controller.desired().1.active, Active::Nothing);
        controller.switch_read(second, fleet.held("spine-1").serving());
        assert_eq!(controller.plan().map(|(loaded, _)| loaded.plan()), Some(&plan));
        let version = controller.desired().0;
        fleet.switches.iter().for_each(|(id, _)| controller.switch_settled(*id, version + 1));
        assert_ne!(controller.next_epoch(), Ok(plan.epoch()));
    }
}

/// Packets go round what is down before the rest of a plan is written, however much that is.
#[test]
fn routes_do_not_wait_for_a_plan() {
    let mut fleet = Fleet::new();
    fleet.settle(&[]);
    fleet.load();
    let spine = fleet.id("spine-1");
    fleet.controller.network_changed(Outages { switches: [spine].into(), ..Outages::none() });
    let planned = |entry: &&Entry| {
        matches!(entry, Entry::Coarse(..) | Entry::Fine(..) | Entry::Child(..) | Entry::Run(..))
    };
    for steps in 0.. {
        if fleet.climbs("leaf-0") == [64, 0] {
            assert!((1..=2).contains(&steps), "{steps}");
            break;
        }
        fleet.step(&[]);
    }
    assert_eq!(fleet.held("leaf-0").entries().iter().filter(planned).count(), 0);
    fleet.settle(&["spine-1"]);
    assert!(fleet.held("leaf-0").entries().iter().filter(planned).count() > 0, "there is a plan to wait for");
}

/// A cable comes back while a plan is being written: the plan is not put active by what switches held before.
#[test]
fn a_reload_goes_on_once_packets_go_where_they_go_now() {
    let mut fleet = Fleet::new();
    let cable = Outages { links: [(fleet.id("leaf-0"), 2)].into(), ..Outages::none() };
    fleet.controller.network_changed(cable);
    fleet.settle(&[]);
    assert_eq!(fleet.climbs("leaf-1"), [0, 64], "spine-0 does not reach leaf-0, where a memory server is");
    fleet.load();
    // The others hold the plan, and know nothing of the cable that comes back now.
    fleet.settle(&["leaf-2"]);
    fleet.controller.network_changed(Outages::none());
    fleet.settle(&["leaf-0", "leaf-1", "spine-0", "spine-1"]);
    assert_eq!((fleet.climbs("leaf-2"), fleet.climbs("leaf-1")), ([32, 32], [0, 64]));
    assert_eq!(fleet.controller.reload().map(|(_, _, stage)| stage), Some(Stage::Write));
    fleet.settle(&[]);
    assert!(fleet.controller.reload().is_none());
    assert_eq!((fleet.climbs("leaf-1"), fleet.serving("spine-0")), ([32, 32], fleet.serving("spine-1")));
}

/// One that has routes, and does not know yet that it is a fat root, would send index packets up again.
#[test]
fn an_empty_one_turns_packets_round_before_it_has_routes() {
    let mut fleet = Fleet::new();
    fleet.settle(&[]);
    fleet.load();
    fleet.settle(&[]);
    let wanted = fleet.controller.desired().1.wanted(fleet.id("spine-0"));
    let nowhere = Change::CoreRoute(core_route::Action::Descend { epoch: 0, sub_table: 0 });
    let mut held = Observed::default();
    let first = wanted.next_changes(&held).unwrap();
    assert_eq!(first, [nowhere]);
    held.apply(&first);
    let routes = wanted.next_changes(&held).unwrap();
    assert!(!routes.is_empty() && routes.iter().all(|change| change.is_route() && *change != nowhere));
}
