//! Plans, answers and notices of a primary.

use crate::common;

use std::collections::BTreeMap;

use common::{plan, top};
use fatbtree_blink::TreeTop;
use fatbtree_controller::grpc::{ClientReport, ServerHello, ServerNews, TREE};
use fatbtree_controller::operator::Question;
use fatbtree_controller::{
    Answer, Budget, Client, Controller, ControllerNews, FollowOptions, Generation, Generations, KeeperNotice,
    Made, Observed, Order, Outdated, Primary, Registration, Ticket,
};
use fatbtree_topology::{Cluster, SwitchId};
use fatbtree_verbs::time::{Duration, Instant};

type Answers = Vec<(Ticket, Result<Answer, String>)>;

/// Leaves of each tree.
const LEAVES: u64 = 300;

const RELOAD: Question = Question::Reload { plan: None };

/// A primary, its switches, and what is done with its orders.
struct World {
    primary: Primary,
    switches: BTreeMap<SwitchId, Observed>,
    tops: Vec<TreeTop>,
    now: Instant,
    /// Orders that were carried out.
    done: Vec<Order>,
    /// Plans cannot be made, for this reason.
    trouble: Option<String>,
}

impl World {
    fn new() -> Self {
        let [.., (_, text), _] = Cluster::examples();
        let cluster = Cluster::from_toml(text).unwrap();
        let switches =
            cluster.tree().switches().iter().map(|switch| (switch.id, Observed::default())).collect();
        let tops =
            cluster.servers().iter().map(|server| top(server.partition, server.low, LEAVES, 13)).collect();
        let primary = Primary::new(Controller::new(&cluster, 100, 0), FollowOptions::default());
        Self { primary, switches, tops, now: Instant::ZERO, done: Vec::new(), trouble: None }
    }

    /// Primary with servers, and all switches read.
    fn running() -> Self {
        let mut world = Self::new();
        world.servers_come(0);
        let ids: Vec<SwitchId> = world.switches.keys().copied().collect();
        ids.iter().for_each(|id| world.primary.switch_noticed(*id, &KeeperNotice::Read(None)));
        world
    }

    fn servers_come(&mut self, stream: u64) {
        for partition in [0, 1] {
            assert_eq!(self.primary.server_joined(stream, &self.hello(partition, 1)), Ok(None));
        }
    }

    fn hello(&self, partition: u16, number: u64) -> ServerHello {
        let partition_of = &self.tops[usize::from(partition)].partition;
        let generation = Generation { number, low: partition_of.range.low };
        let root = partition_of.root.raw();
        let structure = TREE.to_owned();
        ServerHello {
            partition,
            structure,
            generation,
            root,
            first_key: None,
            lost: false,
            connections: Vec::new(),
        }
    }

    fn made(&self, source: Generations, epoch: u8) -> Result<Made, String> {
        if let Some(trouble) = &self.trouble {
            return Err(trouble.clone());
        }
        let budget = Budget { fat_root_ranges: 20, ..Budget::bmv2() };
        let plan = plan(self.primary.cluster(), LEAVES, &budget, &[], epoch);
        Ok(Made { plan, source, cost_active: None, cost: Default::default() })
    }

    /// Carries out orders but those of plans, which it returns.
    fn obey(&mut self) -> Vec<Order> {
        self.primary.handle_timeout(self.now);
        let mut plans = Vec::new();
        while let Some(order) = self.primary.poll_order() {
            match order {
                Order::Plan { .. } | Order::Follow(_) => plans.push(order),
                order => self.done.push(order),
            }
        }
        plans
    }

    /// Until nothing happens any more.
    fn settle(&mut self) {
        for _ in 0..200 {
            for order in self.obey() {
                match order {
                    Order::Plan { source, epoch, .. } => self.primary.planned(self.made(source, epoch)),
                    order => panic!("{order:?}"),
                }
            }
            for (id, held) in &mut self.switches {
                let (version, desired) = self.primary.controller().desired();
                let notice = match desired.wanted(*id).next_changes(held) {
                    None => KeeperNotice::Settled(version),
                    Some(changes) => {
                        held.apply(&changes);
                        KeeperNotice::Converging
                    }
                };
                self.primary.switch_noticed(*id, &notice);
            }
        }
        assert!(self.obey().is_empty());
    }

    /// News and answers since the last call.
    fn told(&mut self) -> (Vec<ControllerNews>, Answers) {
        let (mut news, mut answers) = (Vec::new(), Vec::new());
        for order in self.done.drain(..) {
            match order {
                Order::Tell(told) => news.push(told),
                Order::Answer(ticket, answer) => answers.push((ticket, answer)),
                _ => {}
            }
        }
        (news, answers)
    }

    /// The answer to the only question.
    fn answer(&mut self) -> Result<Answer, String> {
        let (_, mut answers) = self.told();
        assert_eq!(answers.len(), 1, "{answers:?}");
        answers.remove(0).1
    }
}

fn is_reloaded(news: &ControllerNews) -> bool {
    matches!(news, ControllerNews::Reloaded { .. })
}

#[test]
fn the_first_plan_is_made_when_all_are_here_and_is_kept_before_it_is_desired() {
    let mut world = World::new();
    let ids: Vec<SwitchId> = world.switches.keys().copied().collect();
    ids.iter().for_each(|id| world.primary.switch_noticed(*id, &KeeperNotice::Read(None)));
    world.settle();
    assert!(world.obey().is_empty(), "there are no servers");
    world.servers_come(0);
    let mut orders = world.obey();
    let Some(Order::Plan { active: None, source, epoch, .. }) = orders.pop() else { panic!("{orders:?}") };
    assert!(world.obey().is_empty(), "one at a time");
    world.primary.planned(world.made(source, epoch));
    let keep = std::iter::from_fn(|| world.primary.poll_order()).any(|order| matches!(order, Order::Keep));
    assert!(keep, "it is kept with the first orders after it was accepted");
    world.settle();
    let (news, _) = world.told();
    assert_eq!(news.iter().filter(|news| is_reloaded(news)).count(), 1, "{news:?}");
    assert!(world.primary.controller().plan().is_some());
}

#[test]
fn operators_are_told_why_there_is_no_plan_now() {
    let mut world = World::running();
    world.settle();
    world.told();
    world.primary.server_left(0, 1);
    world.primary.asked_for_plan(1, RELOAD);
    world.obey();
    assert!(world.answer().unwrap_err().contains("does not answer"));

    world.servers_come_again(1);
    world.primary.asked_for_plan(2, RELOAD);
    assert_eq!(world.obey().len(), 1);
    world.primary.asked_for_plan(3, Question::Plan);
    world.obey();
    assert!(world.answer().unwrap_err().contains("a plan is being made"));
    let (source, epoch) = (world.primary.controller().trees(), 9);
    world.primary.planned(world.made(source.clone(), epoch));
    world.obey();
    assert!(world.told().1.is_empty(), "it is being loaded");
    world.primary.asked_to_roll_back(4);
    world.obey();
    assert!(world.answer().unwrap_err().contains("no plan was active before"));
    world.primary.asked_to_load(5, world.made(source, epoch).unwrap().plan, Generations::new());
    world.obey();
    assert!(world.answer().unwrap_err().contains("a reload is under way"));
    world.settle();
    assert!(matches!(world.answer(), Ok(Answer::Reloaded(_))));
    world.primary.asked_to_roll_back(6);
    world.settle();
    assert!(matches!(world.answer(), Ok(Answer::Reloaded(_))), "it is active again");
    world.primary.asked_for_plan(7, Question::Diff);
    world.settle();
    assert!(matches!(world.answer(), Ok(Answer::Made(Question::Diff, _))), "it is not loaded");
}

impl World {
    fn servers_come_again(&mut self, stream: u64) {
        let hello = self.hello(1, 1);
        assert_eq!(self.primary.server_joined(stream, &hello), Ok(None), "it has the tree of before");
        self.done.clear();
    }
}

/// Switches lead reads of trees only.
#[test]
fn a_cluster_of_another_structure_has_no_plan() {
    let mut world = World::new();
    for partition in [0, 1] {
        let hello = ServerHello { structure: "hash".to_owned(), ..world.hello(partition, 1) };
        assert_eq!(world.primary.server_joined(0, &hello), Ok(None));
    }
    let ids: Vec<SwitchId> = world.switches.keys().copied().collect();
    ids.iter().for_each(|id| world.primary.switch_noticed(*id, &KeeperNotice::Read(None)));
    world.settle();
    assert!(world.primary.controller().wants_plan(), "only the structure is in the way");
    assert!(world.obey().is_empty() && world.primary.trouble().is_none());
    assert_eq!(world.primary.other_structure(1), Some("hash"));
    world.told();
    world.primary.asked_for_plan(1, RELOAD);
    assert!(world.obey().is_empty());
    let refused = world.answer().unwrap_err();
    assert!(refused.contains("there is nothing to plan") && refused.contains("\"hash\""), "{refused}");
    // They come back with trees: then there is a plan.
    world.servers_come(1);
    assert_eq!(world.obey().len(), 1);
}

#[test]
fn trouble_is_told_once_and_the_next_plan_waits() {
    let mut world = World::running();
    world.trouble = Some("no tops".to_owned());
    world.settle();
    assert_eq!(world.primary.trouble(), Some("no tops"));
    for _ in 0..3 {
        world.now += Duration::from_millis(500);
        let orders = world.obey();
        assert_eq!(orders.len(), 1, "it tries again");
        world.primary.planned(Err("no tops".to_owned()));
        assert!(world.obey().is_empty(), "not at once");
    }
    let (news, _) = world.told();
    let troubles = news.iter().filter(|news| matches!(news, ControllerNews::Trouble(_))).count();
    assert_eq!(troubles, 1, "{news:?}");
    world.trouble = None;
    world.now += Duration::from_secs(1);
    world.settle();
    assert_eq!(world.primary.trouble(), None);
}

#[test]
fn an_older_stream_of_a_server_says_nothing_and_strangers_are_noted() {
    let mut world = World::running();
    world.settle();
    let other = world.hello(0, 2);
    assert_eq!(world.primary.server_joined(7, &other), Ok(Some(1)), "it had another tree before");
    assert_eq!(world.primary.server_joined(6, &world.hello(0, 1)), Err(Outdated));
    world.primary.server_left(6, 0);
    world.primary.server_news(6, 0, ServerNews::Lost);
    assert!(world.primary.controller().server_is_here(0) && !world.primary.has_lost_its_tree(0));
    world.obey();
    let (news, _) = world.told();
    assert!(news.contains(&ControllerNews::Void), "{news:?}");
    world.primary.server_news(7, 0, ServerNews::Lost);
    assert!(world.primary.has_lost_its_tree(0));

    let stranger = ServerHello { partition: 9, ..other };
    assert_eq!(world.primary.server_joined(8, &stranger), Ok(None));
    assert_eq!(world.primary.strangers().collect::<Vec<_>>(), [9]);
    world.primary.server_left(8, 9);
    assert_eq!(world.primary.strangers().count(), 0);
}

#[test]
fn all_streams_of_a_client_are_told_of_its_connections() {
    let mut world = World::running();
    let address = world.primary.cluster().tree().host(world.primary.cluster().clients()[0].host).ip;
    world.primary.client_joined(1, address);
    world.primary.client_joined(2, [192, 0, 2, 1].into());
    let root = world.tops[1].partition.root.raw();
    let connection = Registration { client: address, queue_pair: 17, rkey: 4711, root, mtu: 1024 };
    world.primary.server_news(0, 1, ServerNews::Opened(connection));
    world.settle();
    world.primary.client_joined(3, address);
    world.obey();
    let told = world.done.iter().filter_map(|order| match order {
        Order::Registered(stream, registered) => Some((*stream, *registered)),
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), [(1, (1, 17)), (3, (1, 17))]);
}

#[test]
fn a_sync_waits_for_all_switches_that_answer() {
    let mut world = World::running();
    world.settle();
    world.told();
    let ids: Vec<SwitchId> = world.switches.keys().copied().collect();
    world.primary.asked_to_sync(1);
    world.obey();
    assert!(world.done.iter().any(|order| matches!(order, Order::Sync(1))));
    for id in &ids[1..] {
        world.obey();
        assert!(world.told().1.is_empty(), "{id:?} was not read yet");
        world.primary.switch_noticed(*id, &KeeperNotice::Synced { number: 1, mended: 2 });
    }
    world.primary.switch_noticed(ids[0], &KeeperNotice::Lost("it hangs".to_owned()));
    world.obey();
    let Ok(Answer::Synced(synced)) = world.answer() else { panic!("it is done") };
    assert_eq!((synced.settled, synced.mended), (ids.len() - 1, 2 * (ids.len() - 1)));
    assert_eq!(synced.others, [(world.primary.switch_name(ids[0]), "it hangs".to_owned())]);
}

/// Reports of clients while the follower is being asked are not forgotten.
#[test]
fn reports_reach_a_follower_that_is_being_asked() {
    let mut world = World::running();
    world.settle();
    let address = [10, 0, 0, 1].into();
    world.primary.client_joined(1, address);
    let report = |keys: usize| ClientReport {
        keys: (0..keys as u64).map(|n| n % 3_000).collect(),
        index_reads: 100,
        stale_hints: 100,
        hot_keys: 50,
    };
    world.primary.client_reported(1, &report(1_000));
    world.now += Duration::from_secs(60);
    let mut orders = world.obey();
    let Some(Order::Follow(follower)) = orders.pop() else { panic!("{orders:?}") };
    world.primary.client_reported(1, &report(1_000));
    let mut asked = *follower;
    assert!(asked.replan(world.now, &world.tops, [], &[]).unwrap().is_none(), "the tree is the same");
    assert_eq!(asked.poll_timeout(), None);
    world.primary.followed(asked, Ok(None));
    world.now += Duration::from_secs(60);
    assert_eq!(world.obey().len(), 1, "what was reported meanwhile is looked into");
    assert_eq!(
        world.primary.clients()[&1],
        Client { address, index_reads: 200, stale_hints: 200, hot_keys: 100 }
    );
    world.primary.client_left(1);
    assert_eq!(world.primary.hot_key_reads(), (100, 100), "also those of clients that have left");
}
