//! Query workers and RDMA clients on one tree, in one thread.
#![allow(clippy::unwrap_used, reason = "a test says by failing what is wrong")]

mod borders;
mod burst;
mod byte_keys;
mod damage;
mod lab;
mod lost;

use std::collections::BTreeMap;

use fatbtree_blink::{Change, Integrity, Start};
use fatbtree_blink_host::{LoadOptions, bulk_load, seeded};
use fatbtree_memserver::{MemoryServer, ServerError};
use fatbtree_query::{Answer, Ask, Requester, RequesterOptions};
use fatbtree_verbs::plain::PlainNetwork;
use fatbtree_verbs::time::Duration;
use fatbtree_wire::query::{Op, QueryHeader, Status, records};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use lab::{Lab, SEED, Worker, address, ask, config, options, rdma, value_of};

#[test]
fn a_tree_that_tears_between_its_clients_is_refused() {
    let load = LoadOptions::new(config(Integrity::LineVersions), 1);
    let tree = bulk_load(&load, &[], &mut seeded(SEED, 20)).unwrap();
    let refused = MemoryServer::new(PlainNetwork::new().device(), tree, &options(), 1).unwrap_err();
    assert_eq!(refused, ServerError::Integrity);
}

#[test]
fn what_is_asked_is_answered_as_a_model_answers() {
    let keys: Vec<u64> = (0..500).map(|n| 1000 + n * 10).collect();
    let mut lab = Lab::new(&keys);
    let mut workers = [lab.worker(1), lab.worker(2)];
    let mut model: BTreeMap<u64, Vec<u8>> = keys.iter().map(|&key| (key, value_of(key, SEED))).collect();
    let servers = vec![(0, 1)];
    let options = RequesterOptions { servers, ..RequesterOptions::default() };
    let mut clients = [Requester::new(options.clone(), 1), Requester::new(options, 2)];
    let mut random = ChaCha8Rng::seed_from_u64(7);
    for step in 0..4000 {
        let which = random.random_range(0..2);
        let (worker, client) = (&mut workers[which], &mut clients[which]);
        let key = 1000 + random.random_range(0..8000);
        let new = value_of(key, step);
        let present = model.contains_key(&key);
        let (asked, expected) = match random.random_range(0..6) {
            0 => (
                Ask::get(key),
                model.get(&key).map_or(Answer::NotFound, |value| Answer::Value(value.clone())),
            ),
            1 | 2 => {
                model.insert(key, new.clone());
                (Ask::put(key, new), Answer::Written)
            }
            3 if present => {
                model.insert(key, new.clone());
                (Ask::update(key, new), Answer::Written)
            }
            3 => (Ask::update(key, new), Answer::NotFound),
            4 => (
                Ask::delete(key),
                if model.remove(&key).is_some() { Answer::Written } else { Answer::NotFound },
            ),
            _ => {
                let (last, limit) = (key + random.random_range(0..300), random.random_range(1..40));
                let all: Vec<_> = model.range(key..=last).collect();
                let next = all.get(limit).map(|_| *all[limit - 1].0 + 1);
                // A full answer leaves open whether there is more.
                let next = next.or_else(|| {
                    (all.len() == limit && *all[limit - 1].0 < last).then(|| *all[limit - 1].0 + 1)
                });
                let mut payload = Vec::new();
                all.iter().take(limit).for_each(|(key, value)| records::push(&mut payload, **key, value));
                (Ask::scan(key, last, limit as u32), Answer::Records { payload, next })
            }
        };
        let said = format!("step {step}: {asked:?}");
        let found = ask(&mut lab, worker, client, which as u16, asked, |_| ());
        assert_eq!(found, expected, "{said}");
    }
    // An RDMA client finds the same.
    let tree = rdma(&mut lab);
    for key in 1000..9000 {
        let found = tree.reactor().block_on(tree.lookup(key, Start::Root)).result.unwrap();
        assert_eq!(found.as_deref(), model.get(&key).map(|value| &value[..]), "key {key}");
    }
    assert!(workers.iter().map(|worker| worker.worker.stats().pool.splits).sum::<u64>() > 20);
}

#[test]
fn a_session_that_has_lapsed_is_followed_by_another_and_writes_of_both_kinds_meet() {
    let keys: Vec<u64> = (0..100).map(|n| 1000 + n * 10).collect();
    let mut lab = Lab::new(&keys);
    let mut worker = lab.worker(1);
    let mut client = Requester::new(RequesterOptions::default(), 1);
    let tree = rdma(&mut lab);
    let put = |key, seed| Ask::put(key, value_of(key, seed));
    assert_eq!(ask(&mut lab, &mut worker, &mut client, 1, put(1000, 1), |_| ()), Answer::Written);
    let change = tree.reactor().block_on(tree.mutate(1000, Change::Update(&value_of(1000, 2)), Start::Root));
    assert_eq!(change.result, Ok(true));
    assert_eq!(
        ask(&mut lab, &mut worker, &mut client, 1, Ask::get(1000), |_| ()),
        Answer::Value(value_of(1000, 2))
    );
    // Its thread sleeps until its lease has ended.
    lab.now += Duration::from_secs(30);
    lab.server.handle_timeout(lab.now);
    for n in 0..400 {
        let key = 1000 + n;
        assert_eq!(ask(&mut lab, &mut worker, &mut client, 1, put(key, 3), |_| ()), Answer::Written, "{key}");
    }
    let [first, second] = worker.opened[..] else { panic!("{:?}", worker.opened) };
    assert!(second.0 != first.0 && second.1 != first.1);
    assert_eq!(worker.worker.stats().pool.remote.broken_connections, 1);
}

#[test]
fn keys_of_others_are_redirected_and_scans_end_at_the_border() {
    let last = (1 << 40) - 1;
    let mut lab = Lab::new(&[1000, last]);
    let mut worker = lab.worker(1);
    let options = RequesterOptions { redirects: 0, servers: vec![(0, 1)], ..RequesterOptions::default() };
    let mut client = Requester::new(options, 1);
    for key in [0, 999, 1 << 40, u64::MAX] {
        let found = ask(&mut lab, &mut worker, &mut client, 1, Ask::get(key), |_| ());
        assert_eq!(found, Answer::Refused(Status::Redirect), "{key}");
    }
    assert_eq!(worker.worker.stats().redirected, 4);
    let scan = |lab: &mut Lab, worker: &mut Worker, client: &mut Requester, from, to, limit| match ask(
        lab,
        worker,
        client,
        1,
        Ask::scan(from, to, limit),
        |_| (),
    ) {
        Answer::Records { payload, next } => {
            (records::read(&payload).map(|record| record.unwrap().0).collect::<Vec<_>>(), next)
        }
        other => panic!("{other:?}"),
    };
    let mut scan = |from, to, limit| scan(&mut lab, &mut worker, &mut client, from, to, limit);
    assert_eq!(scan(1001, u64::MAX, 10), (vec![last], Some(1 << 40)));
    assert_eq!(scan(1000, last, 10), (vec![1000, last], None));
    assert_eq!(scan(1000, u64::MAX, 2), (vec![1000, last], Some(1 << 40)));
    assert_eq!(scan(1000, u64::MAX, 1), (vec![1000], Some(1001)));
    assert_eq!(scan(2000, 1500, 1), (vec![], None));
    assert_eq!(scan(1000, u64::MAX, 0), (vec![], None));
}

/// Puts an address into requests, as switches do.
fn led_to(address: u64) -> impl Fn(&mut [u8]) {
    move |datagram| datagram[16..24].copy_from_slice(&address.to_be_bytes())
}

#[test]
fn an_address_that_is_right_saves_the_walk_and_one_that_is_wrong_costs_one() {
    let keys: Vec<u64> = (0..2000).map(|n| 1000 + n * 10).collect();
    let mut lab = Lab::new(&keys);
    let mut worker = lab.worker(1);
    let mut client = Requester::new(RequesterOptions::default(), 1);
    let memory = fatbtree_blink::Regions::new([(1, std::sync::Arc::clone(lab.server.memory()))]);
    let info = *lab.server.info();
    let key = 1000 + 10 * 777;
    let path = fatbtree_blink::Tree::new(&memory, &info.config, &info.partition).find_node_path(key).unwrap();
    let leaf = path.last().unwrap().address;
    let mut reads = |address: u64, key: u64| {
        let (before, told) = (worker.worker.stats(), client.stats().led);
        let found = ask(&mut lab, &mut worker, &mut client, 1, Ask::get(key), led_to(address));
        assert_eq!(found, Answer::Value(value_of(key, SEED)));
        let after = worker.worker.stats();
        assert_eq!(client.stats().led - told, after.led - before.led, "the answer says where it began");
        (
            after.pool.remote.reads - before.pool.remote.reads,
            after.led - before.led,
            after.stale_hints - before.stale_hints,
        )
    };
    let walk = path.len() as u64 + 1;
    assert_eq!(reads(0, key), (walk, 0, 0));
    assert_eq!(reads(leaf.raw(), key), (2, 1, 0), "the leaf, the record");
    assert_eq!(reads(path[1].address.raw(), key), (walk - 1, 1, 0));
    assert_eq!(reads(leaf.raw(), 1000), (walk, 0, 1), "another key's leaf");
    for wrong in [leaf.raw() + 64, leaf.raw() ^ 1 << 48, 64 - 8, u64::MAX, leaf.raw() + (1 << 40)] {
        assert_eq!(reads(wrong, key), (walk, 0, 1), "{wrong:#x}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Whatever comes: no panic, no wrong answer to others, and memory only within bounds.
    #[test]
    fn hostile_datagrams_change_nothing(
        datagrams in prop::collection::vec((any::<u64>(), 0..8_u8, any::<u64>(), prop::collection::vec(any::<u8>(), 0..100), any::<prop::sample::Index>()), 1..60),
    ) {
        let keys: Vec<u64> = (0..100).map(|n| 1000 + n * 10).collect();
        let mut lab = Lab::new(&keys);
        let mut worker = lab.worker(1);
        for (key, op, number, tail, index) in datagrams {
            let mut bytes = match Op::of(op) {
                Some(op) => QueryHeader { address: number, limit: number as u32, range_end: number, ..QueryHeader::request(op, 1000 + key % 3000, number, number % 7) }.to_bytes().to_vec(),
                None => Vec::new(),
            };
            bytes.extend(&tail);
            if !bytes.is_empty() && key % 2 == 0 {
                let at = index.index(bytes.len());
                bytes[at] = key as u8;
            }
            worker.worker.handle(lab.now, address(7), &bytes);
            worker.settle(&mut lab);
            while worker.worker.poll_transmit().is_some() {}
        }
        prop_assert_eq!(worker.worker.under_way(), 0);
        let mut client = Requester::new(RequesterOptions::default(), 1);
        for key in [1000, 1010, 1990] {
            let found = ask(&mut lab, &mut worker, &mut client, 1, Ask::get(key), |_| ());
            prop_assert_eq!(found, Answer::Value(value_of(key, SEED)));
        }
    }
}
