//! Damaged memory under a query: the client is told what it is, and is not left to wait.

use fatbtree_blink::node::{LINE, NodeHeader, offsets, set_partner};
use fatbtree_blink::{GlobalAddress, Regions, Tree};
use fatbtree_blink_host::query::worker_cache;
use fatbtree_query::{Answer, Ask, Requester, RequesterOptions};
use fatbtree_verbs::time::Duration;
use fatbtree_wire::query::Status;
use proptest::prelude::*;

use crate::lab::{Lab, SEED, Worker, ask, value_of};

/// Flips a bit of the value of a key, where it lies in the tree's memory.
fn flip(lab: &Lab, key: u64) {
    let memory = lab.server.memory();
    let mut all = vec![0; usize::try_from(memory.len()).unwrap()];
    memory.read(0, &mut all).unwrap();
    let value = value_of(key, SEED);
    let at = all.windows(value.len()).position(|window| window == value).unwrap();
    memory.write(at as u64 + 7, &[value[7] ^ 4]).unwrap();
}

#[test]
fn a_query_for_a_damaged_record_is_refused_by_that_name_and_counted() {
    let keys: Vec<u64> = (0..100).map(|n| 1000 + n * 10).collect();
    let mut lab = Lab::new(&keys);
    let mut worker = lab.worker(1);
    let mut client = Requester::new(RequesterOptions::default(), 1);
    let (damaged, whole) = (1000 + 50 * 10, 1000 + 51 * 10);
    flip(&lab, damaged);
    let mut say = |lab: &mut Lab, worker: &mut Worker, what| ask(lab, worker, &mut client, 1, what, |_| ());
    let began = lab.now;
    let refused = Answer::Refused(Status::Damaged);
    assert_eq!(say(&mut lab, &mut worker, Ask::get(damaged)), refused);
    assert!(lab.now - began < Duration::from_secs(2), "it took {:?}", lab.now - began);
    assert!(worker.worker.stats().damaged > 0);
    assert_eq!(say(&mut lab, &mut worker, Ask::scan(1000, 2000, 100)), refused);
    // Its neighbours are as they were, and what is written anew is whole.
    assert_eq!(say(&mut lab, &mut worker, Ask::get(whole)), Answer::Value(value_of(whole, SEED)));
    assert_eq!(say(&mut lab, &mut worker, Ask::put(damaged, value_of(damaged, 7))), Answer::Written);
    assert_eq!(say(&mut lab, &mut worker, Ask::get(damaged)), Answer::Value(value_of(damaged, 7)));
}

/// Changes a word of a node's header and makes its line whole again, as a forger of nodes would.
fn forge(lab: &Lab, node: GlobalAddress, field: usize, word: u64) {
    let memory = lab.server.memory();
    let mut line = [0; LINE];
    memory.read(node.offset(), &mut line).unwrap();
    line[field..field + 8].copy_from_slice(&word.to_le_bytes());
    let partner = NodeHeader::parse(&line).partner;
    set_partner(&mut line, partner);
    memory.write(node.offset(), &line).unwrap();
}

/// All nodes: leaves, and those above.
fn nodes(lab: &Lab) -> Vec<NodeHeader> {
    let memory = Regions::new([(1, std::sync::Arc::clone(lab.server.memory()))]);
    let info = *lab.server.info();
    let tree = Tree::new(&memory, &info.config, &info.partition);
    let mut nodes = Vec::new();
    tree.for_each_leaf(|leaf| nodes.push(*leaf.header())).unwrap();
    tree.for_each_internal(|node| nodes.push(*node.header())).unwrap();
    nodes
}

const FIELDS: [usize; 7] = [
    offsets::LOW,
    offsets::HIGH,
    offsets::SIBLING,
    offsets::FIRST_CHILD,
    offsets::PARTNER,
    offsets::ADDRESS,
    // Version byte, level, magic, flags, format and count.
    offsets::VERSION,
];

/// A worker has the locks of its own server alone.
#[test]
fn a_write_that_a_forged_node_leads_to_another_server_is_refused_by_that_name() {
    let keys: Vec<u64> = (0..100).map(|n| 1000 + n * 10).collect();
    let mut lab = Lab::new(&keys);
    let above = nodes(&lab).into_iter().find(|node| node.level == 1 && node.low <= 1000).unwrap();
    let mut worker = lab.worker(1);
    forge(&lab, above.address, offsets::FIRST_CHILD, GlobalAddress::new(2, 64).raw());
    let mut client = Requester::new(RequesterOptions::default(), 1);
    for what in [Ask::get(1000), Ask::put(1000, value_of(1000, 1)), Ask::delete(1000)] {
        let found = ask(&mut lab, &mut worker, &mut client, 1, what.clone(), |_| ());
        assert_eq!(found, Answer::Refused(Status::Damaged), "{what:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// A client with write access forges nodes: every request is answered in time all the same, and the
    /// worker lives.
    #[test]
    fn forged_nodes_stop_no_worker(
        forged in prop::collection::vec((any::<prop::sample::Index>(), 0..FIELDS.len(), 0..4u8, any::<u64>()), 1..6),
        asked in prop::collection::vec((0..5u8, 0..1200u64), 1..8),
        cached: bool,
    ) {
        let keys: Vec<u64> = (0..100).map(|n| 1000 + n * 10).collect();
        let mut lab = Lab::new(&keys);
        let all = nodes(&lab);
        let mut worker = lab.worker_with(1, cached.then(|| worker_cache(1 << 20)));
        for (node, field, kind, number) in forged {
            let node = node.get(&all);
            let found = match FIELDS[field] {
                offsets::LOW => node.low,
                offsets::HIGH => node.high,
                _ => u64::from(node.level) << 8 | 0xfb7e << 16 | 4 << 32 | u64::from(node.format) << 40 | u64::from(node.count) << 48,
            };
            let word = match kind {
                0 => number,
                1 => all[number as usize % all.len()].address.raw(),
                2 => 1000 + number % 1200,
                _ => found ^ 1 << (number % 64),
            };
            forge(&lab, node.address, FIELDS[field], word);
        }
        let mut client = Requester::new(RequesterOptions::default(), 1);
        for (number, (what, key)) in asked.into_iter().enumerate() {
            let key = 1000 + key;
            let what = match what {
                0 => Ask::get(key),
                1 => Ask::put(key, value_of(key, number as u64)),
                2 => Ask::delete(key),
                3 => Ask::scan(key, u64::MAX, 1000),
                _ => Ask::update(key, value_of(key, number as u64)),
            };
            let began = lab.now;
            // Damaged, refused, unknown or right: it is an answer, and comes in time.
            ask(&mut lab, &mut worker, &mut client, 1, what, |_| ());
            prop_assert!(lab.now - began < Duration::from_secs(2));
        }
    }
}
