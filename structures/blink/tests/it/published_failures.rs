//! Known failures of the published code of Sherman and of trees like it, each as a test of ours.
//!
//! | there | here |
//! |---|---|
//! | a scan misses keys that are inserted meanwhile | `scan.rs`: `a_scan_returns_every_key_that_was_present_throughout`, `keys_that_a_split_moves_between_two_steps_are_not_missed` |
//! | a scan assumes that every inner node is cached | `scan.rs`: all of them, whose clients have no cache |
//! | inserts at once into a small tree race on its root | [`inserts_at_once_into_an_empty_tree_lose_nothing`] |
//! | "not found" for a key that is being updated | [`a_key_that_is_updated_is_found_at_any_moment`] |
//! | the two-level version passes a torn node | the simulator's memory tears: `sim`, `trees/tests/missing.rs`, `writers/tests.rs` |
//! | deletes are not finished | [`an_emptied_tree_is_a_small_tree`] |
//! | crashes and deadlocks with more threads or machines | `sim`, `writers`: clients die at any await, links and cards fail; `client`'s stress on real threads |
use crate::common;

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use common::{Client, Lab, configs, value_of};
use fatbtree_blink::{Change, Start};
use fatbtree_verbs::time::{Duration, Instant};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Work of a client.
type Work = Pin<Box<dyn Future<Output = ()>>>;

/// Lets all of it go on in an order that the seed decides, until it has ended.
fn interleave(lab: &Lab, mut running: Vec<(Client, Work)>, seed: u64) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let (mut now, mut context) = (Instant::ZERO, Context::from_waker(Waker::noop()));
    while !running.is_empty() {
        let at = random.random_range(0..running.len());
        let (client, work) = &mut running[at];
        let polled = work.as_mut().poll(&mut context);
        lab.serve(client);
        now += Duration::from_nanos(300);
        client.turn(now);
        if polled == Poll::Ready(()) {
            drop(running.swap_remove(at));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// "Insert 10,240 keys first", it says there.
    #[test]
    fn inserts_at_once_into_an_empty_tree_lose_nothing(shape in 0..14usize, seed: u64) {
        let config = configs()[shape];
        let mut lab = Lab::new(config);
        let clients: Vec<Client> = (1..=8).map(|owner| lab.client(owner, owner % 2 == 0)).collect();
        let work = (0..40u64).map(|key| {
            let client = Rc::clone(&clients[key as usize % clients.len()]);
            let (writer, value) = (Rc::clone(&client), value_of(&config, key));
            let insert = async move {
                assert_eq!(writer.mutate(key, Change::Insert(&value), Start::Root).await.result, Ok(true));
            };
            (client, Box::pin(insert) as Work)
        });
        interleave(&lab, work.collect(), seed);
        prop_assert!(lab.contents().into_iter().eq((0..40).map(|key| (key, value_of(&config, key)))));
        prop_assert!(lab.servers[0].partition().root_level >= 1);
        lab.assert_unlocked(&clients[0]);
    }

    #[test]
    fn a_key_that_is_updated_is_found_at_any_moment(shape in 0..14usize, seed: u64) {
        let config = configs()[shape];
        let mut lab = Lab::new(config);
        let clients: Vec<Client> = (1..=4).map(|owner| lab.client(owner, true)).collect();
        for key in 0..6 {
            let value = value_of(&config, 0);
            lab.run(&clients[0], clients[0].mutate(key, Change::Insert(&value), Start::Root)).result.unwrap();
        }
        // The others write, and make the leaf split and move.
        let work = (0..clients.len()).map(|at| {
            let client = Rc::clone(&clients[at]);
            let does = async move {
                for step in 0..30u64 {
                    let value = value_of(&config, 1 + step % 3);
                    if at == 0 {
                        let found = client.lookup(3, Start::Root).await.result.unwrap();
                        let found = found.expect("it was always there");
                        assert!((0..4).any(|number| *found == value_of(&config, number)[..]));
                    } else if step % 5 == 0 {
                        let beside = 10 + step * 4 + at as u64;
                        client.mutate(beside, Change::Upsert(&value), Start::Root).await.result.unwrap();
                    } else {
                        let update = client.mutate(3, Change::Update(&value), Start::Root).await;
                        assert_eq!(update.result, Ok(true));
                    }
                }
            };
            (Rc::clone(&clients[at]), Box::pin(does) as Work)
        });
        interleave(&lab, work.collect(), seed);
    }
}

#[test]
fn an_emptied_tree_is_a_small_tree() {
    for config in configs() {
        // A merge gives up where two of its nodes share a lock.
        let mut lab = Lab::with_many_locks(config);
        let client = lab.client(1, true);
        let change =
            |key, mutation: Change<'_>| lab.run(&client, client.mutate(key, mutation, Start::Root)).result;
        let mut used = Vec::new();
        for round in 0..3 {
            for key in 0..2_000 {
                assert_eq!(change(key, Change::Insert(&value_of(&config, key))), Ok(true));
            }
            let nodes = lab.nodes().len();
            for key in 0..2_000 {
                assert_eq!(change(key * 7_919 % 2_000, Change::Delete), Ok(true));
            }
            assert!(lab.contents().is_empty());
            let left = lab.nodes().len();
            assert!(left * 20 < nodes, "{left} of {nodes} nodes are left, in round {round}");
            used.push(lab.servers[0].next_chunk.get());
        }
        assert!(used[2] < used[0] + used[0] / 4, "memory is used again: {used:?} bytes");
    }
}
