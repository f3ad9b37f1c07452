//! Places of keys, as the controller asks for them to tell switches of hot keys.
use crate::common;

use common::lab::{Lab, SERVER, config, options};
use fatbtree_blink::node::{NodeHeader, offsets};
use fatbtree_blink::record::{read_hinted, record_bytes};
use fatbtree_blink::{Regions, Tree, TreeConfig, ValueLayout};
use fatbtree_blink_host::{
    KeyPlaces, LoadOptions, LocateError, MAX_LOCATE_KEYS, SnapshotError, TreeRequest, WalkLimits,
};
use fatbtree_memserver::Request;
use fatbtree_verbs::time::Duration;
use tokio::sync::oneshot;

type Answer = oneshot::Receiver<Result<KeyPlaces, LocateError>>;

fn ask(lab: &mut Lab, keys: impl IntoIterator<Item = u64>) -> Answer {
    let (reply, answer) = oneshot::channel();
    lab.server
        .handle(lab.now, Request::Tenant(TreeRequest::Locate { keys: keys.into_iter().collect(), reply }));
    answer
}

/// The server works until it has nothing more to do.
fn work(lab: &mut Lab) {
    let rounds = (0..10_000).take_while(|_| lab.server.work(lab.now, 10)).count();
    assert!(rounds < 10_000, "it never ends");
}

fn counter(lab: &Lab, name: &str) -> u64 {
    lab.server.statistics().into_iter().find(|(found, _)| *found == name).unwrap().1
}

#[test]
fn keys_are_found_where_a_walk_finds_them() {
    let mut lab = Lab::new(options());
    let mut answer = ask(&mut lab, 0..1000);
    work(&mut lab);
    let places = answer.try_recv().unwrap().unwrap();
    let partition = lab.server.info().partition;
    let memory = Regions::new([(SERVER, lab.server.memory().clone())]);
    let config = config();
    let tree = Tree::new(&memory, &config, &partition);
    for (key, place) in (0..1000).zip(&places) {
        assert_eq!(*place, Some(tree.find_node_path(key).unwrap().last().unwrap().address), "key {key}");
    }
    assert_eq!((places.len(), counter(&lab, "keys_located")), (1000, 1000));
}

#[test]
fn requests_have_bounds() {
    let mut lab = Lab::bounded(WalkLimits { locate_requests: 2, ..WalkLimits::default() });
    let most = MAX_LOCATE_KEYS as u64;
    let refused = ask(&mut lab, 0..=most).try_recv().unwrap().unwrap_err();
    assert_eq!(refused, LocateError::TooMany { found: MAX_LOCATE_KEYS + 1 });
    let mut first = ask(&mut lab, 0..most);
    let second = ask(&mut lab, [1]);
    let busy = ask(&mut lab, [2]).try_recv().unwrap().unwrap_err();
    assert_eq!(busy, LocateError::Busy { waiting: 2 });
    // A caller that has gone takes no room.
    drop(second);
    let mut third = ask(&mut lab, [3]);
    work(&mut lab);
    assert_eq!(first.try_recv().unwrap().unwrap().len(), MAX_LOCATE_KEYS);
    assert_eq!(third.try_recv().unwrap().unwrap().len(), 1);
    assert_eq!(ask(&mut lab, []).try_recv().ok(), None);
}

#[test]
fn nobody_waits_for_what_nobody_wants() {
    let mut lab = Lab::new(options());
    drop(ask(&mut lab, 0..1000));
    let mut wanted = ask(&mut lab, [7]);
    work(&mut lab);
    assert!(wanted.try_recv().unwrap().is_ok());
    assert_eq!(counter(&lab, "keys_located"), 1);
}

/// A tree takes the place of another, whose keys lay elsewhere, while keys are located.
#[test]
fn no_place_is_of_the_former_tree() {
    let mut lab = Lab::new(options());
    let mut answer = ask(&mut lab, 0..1000);
    lab.server.work(lab.now, 10);
    let load = LoadOptions { spare_bytes: 10 * 4096, ..LoadOptions::new(config(), SERVER) };
    let keys: Vec<u64> = (0..1000).filter(|key| key % 100 == 0).collect();
    lab.server.install(lab.now, common::load(&load, &keys)).unwrap();
    work(&mut lab);
    let places = answer.try_recv().unwrap().unwrap();
    let partition = lab.server.info().partition;
    let memory = Regions::new([(SERVER, lab.server.memory().clone())]);
    let config = config();
    let tree = Tree::new(&memory, &config, &partition);
    for (key, place) in (0..1000).zip(places) {
        assert_eq!(place, tree.place_of(key, &mut 0).unwrap(), "key {key}");
    }
}

/// An index read from any place that is told ends within the region, and brings all of the record.
#[test]
fn records_that_an_index_read_cannot_bring_have_no_place() {
    let config = TreeConfig::new(16, 1024, ValueLayout::OutOfLine).unwrap();
    let load = LoadOptions { spare_bytes: 0, ..LoadOptions::new(config, SERVER) };
    let keys: Vec<u64> = (0..3000).collect();
    let loaded = common::load(&load, &keys);
    let memory = common::memory(&loaded);
    let tree = Tree::new(&memory, &config, &loaded.partition);
    let read = config.max_node_bytes();
    let mut last = 0;
    for key in keys {
        let place = tree.place_of(key, &mut 0).unwrap();
        assert_eq!(place.is_some(), record_bytes(common::length(&config, key)) <= read, "key {key}");
        let Some(place) = place else { continue };
        let mut bytes = vec![0; read as usize];
        memory.read(place, &mut bytes).unwrap();
        assert_eq!(read_hinted(&bytes, key).unwrap(), common::value_of(&config, key), "key {key}");
        last = last.max(place.offset());
    }
    let behind = loaded.region.len() - last;
    assert!(behind < 2 * u64::from(read), "one of the last records has a place: {behind}");
}

/// Two clients have written nodes to one place, or one has written anything: siblings lead round and round, of leaves and of the nodes
/// above. Each turn of the server reads as many nodes as it may, all the same, so it has time for frames,
/// leases and requests; and each caller is answered.
#[test]
fn circles_of_siblings_take_no_more_of_a_turn_than_other_trees() {
    let mut lab = Lab::new(options());
    let memory = lab.server.memory().clone();
    let partition = lab.server.info().partition;
    let (config, regions) = (config(), Regions::new([(SERVER, memory.clone())]));
    let tree = Tree::new(&regions, &config, &partition);
    let (mut above, mut leaves) = (Vec::new(), Vec::new());
    tree.for_each_internal(|node| above.push(*node.header())).unwrap();
    tree.for_each_leaf(|leaf| leaves.push(*leaf.header())).unwrap();
    let put = |node: &NodeHeader, at: usize, word: u64| {
        memory.write(node.address.offset() + at as u64, &word.to_le_bytes()).unwrap();
    };
    let (last, first) = (leaves.last().unwrap(), leaves.first().unwrap());
    memory.write(last.address.offset() + offsets::FLAGS as u64, &[0]).unwrap();
    put(last, offsets::HIGH, last.low + 1);
    put(last, offsets::SIBLING, last.address.raw());
    let [.., left, right] = &above[..] else { panic!("two nodes of a level: {above:?}") };
    assert_eq!(left.level, right.level);
    put(left, offsets::SIBLING, left.address.raw());

    let mut places = ask(&mut lab, first.low..last.low + 500);
    let (reply, mut top) = oneshot::channel();
    lab.server.handle(lab.now, Request::Tenant(TreeRequest::Snapshot(reply)));
    let session = lab.open().unwrap();
    let (mut read, mut most, mut rounds) = (0, 0, 0);
    const BUDGET: usize = 10;
    while lab.server.work(lab.now, BUDGET) {
        let now_read = counter(&lab, "keys_located_nodes");
        (read, most) = (now_read, most.max(now_read - read));
        lab.now += Duration::from_millis(1);
        lab.server.renew_session(lab.now, session).unwrap();
        rounds += 1;
        assert!(rounds < 100_000, "it never ends");
    }
    assert!(most <= BUDGET as u64 + 40, "{most} nodes in a turn");
    let places = places.try_recv().unwrap().unwrap();
    let found = places.iter().filter(|place| place.is_some()).count() as u64;
    assert_eq!(found, last.low + 1 - first.low, "all but those after the circle");
    let error = top.try_recv().unwrap().unwrap_err();
    assert!(matches!(error, SnapshotError::Unreadable { .. }), "{error}");
    assert!(error.to_string().contains("its left neighbour ends at"), "{error}");
}
