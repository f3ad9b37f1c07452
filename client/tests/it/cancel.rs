//! Futures that are dropped before their end leave every key right, and no lock behind.

use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use fatbtree::{Client, blocking};
use futures_buffered::FuturesUnorderedBounded;
use futures_core::Stream as _;

use crate::common::Running;

const KEYS: u64 = 16;
const ROUNDS: u64 = 40;

/// Polls a future so many times, with pauses in which its operation goes on, and drops it. Says whether it has ended before.
fn poll_and_drop<F: Future>(future: F, polls: u64, pause: Duration) -> bool {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..polls {
        if future.as_mut().poll(&mut context).is_ready() {
            return true;
        }
        std::thread::sleep(pause);
    }
    false
}

/// A value says which key it belongs to.
fn value(key: u64, round: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&key.to_le_bytes());
    bytes[8..].copy_from_slice(&round.to_le_bytes());
    bytes
}

fn is_right(key: u64, bytes: &[u8]) -> bool {
    bytes.len() == 16 && bytes[..8] == key.to_le_bytes()
}

#[test]
fn futures_dropped_after_any_number_of_polls_leave_the_tree_right() {
    let cluster = Running::start();
    let db = blocking::Client::connect(cluster.options()).unwrap();
    let client = db.as_async();
    for key in 0..KEYS {
        db.put(key, value(key, 0)).unwrap();
    }
    for round in 1..=ROUNDS {
        let pause = Duration::from_micros(round * 7 % 50 * 10);
        for key in 0..KEYS {
            let polls = (round + key) % 4;
            poll_and_drop(client.put(key, value(key, round)), polls, pause);
            poll_and_drop(client.get(key), polls, pause);
            poll_and_drop(client.update(key, value(key, round)), polls, pause);
            poll_and_drop(client.compare_and_swap(key, value(key, round), value(key, round)), polls, pause);
            let mut scan = client.scan(..KEYS);
            let taken = poll_and_drop(scan.next(), polls, pause);
            let (first, value) = next_of(&mut scan);
            assert_eq!(first, u64::from(taken), "a dropped `next` loses no pair");
            assert!(is_right(first, &value));
        }
    }
    // A lock that stayed would hold this up.
    for key in 0..KEYS {
        assert!(is_right(key, &db.get(key).unwrap().unwrap()));
        db.with_time_limit(Duration::from_secs(10)).put(key, value(key, u64::MAX)).unwrap();
    }
    for pair in db.scan(..) {
        let (key, found) = pair.unwrap();
        assert!(key < KEYS && found[..] == value(key, u64::MAX));
    }
    db.close();
}

fn next_of(scan: &mut fatbtree::Scan) -> (u64, fatbtree::Bytes) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(scan.next()).unwrap().unwrap()
}

async fn change(db: Client, key: u64, round: u64) {
    db.put(key, value(key, round)).await.unwrap();
    db.delete(key).await.unwrap();
    db.put(key, value(key, round)).await.unwrap();
}

/// No lock was left: one that stayed would hold this up.
async fn is_right_after(db: &Client) {
    let quick = db.with_time_limit(Duration::from_secs(10));
    for key in 0..KEYS {
        quick.put(key, value(key, u64::MAX)).await.unwrap();
        assert_eq!(quick.get(key).await.unwrap().as_deref(), Some(&value(key, u64::MAX)[..]));
    }
    assert_eq!(db.stats().failed, 0);
}

async fn abort_tasks() {
    let cluster = Running::start();
    let db = cluster.client().await;
    for round in 0..100u64 {
        let tasks: Vec<_> = (0..KEYS).map(|key| tokio::spawn(change(db.clone(), key, round))).collect();
        tokio::time::sleep(Duration::from_micros(round * 37 % 3000)).await;
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }
    is_right_after(&db).await;
    db.close().await;
}

#[tokio::test]
async fn tasks_of_tokio_that_are_aborted_leave_the_tree_right() {
    abort_tasks().await;
}

/// A task is polled on one thread and dropped on another.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn tasks_on_several_threads_that_are_aborted_leave_the_tree_right() {
    abort_tasks().await;
}

/// An executor without tokio, as small as can be: it polls what was woken, and drops the rest in the middle.
#[test]
fn futures_dropped_by_another_executor_leave_the_tree_right() {
    let cluster = Running::start();
    let db = blocking::Client::connect(cluster.options()).unwrap();
    let client = db.as_async();
    let mut ended = 0;
    for round in 0..100u64 {
        let mut futures: FuturesUnorderedBounded<_> =
            (0..KEYS).map(|key| change(client.clone(), key, round)).collect();
        let mut context = Context::from_waker(Waker::noop());
        // On a loaded machine none may end in a short round: one round is long.
        let micros = if round == 99 && ended == 0 { 10_000_000 } else { round * 53 % 4000 };
        let until = Instant::now() + Duration::from_micros(micros);
        while Instant::now() < until {
            match Pin::new(&mut futures).poll_next(&mut context) {
                Poll::Ready(Some(())) => ended += 1,
                Poll::Ready(None) => break,
                Poll::Pending => std::thread::yield_now(),
            }
        }
    }
    assert!(ended > 0, "no future has ended");
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(is_right_after(client));
    db.close();
}

/// A change whose time is over is given up in the middle: its lock is given back all the same.
#[tokio::test]
async fn changes_beyond_their_time_limit_leave_no_lock() {
    let cluster = Running::start();
    let db = cluster.client().await;
    let (mut timed_out, mut done) = (0, 0);
    for round in 0..300u64 {
        let hasty = db.with_time_limit(Duration::from_micros(round * 5));
        for key in 0..4 {
            match hasty.put(key, value(key, round)).await {
                Ok(()) => done += 1,
                Err(fatbtree::Error::TimedOut { .. }) => timed_out += 1,
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(timed_out > 0 && done > 0, "{timed_out} timed out, {done} done");
    for key in 0..4 {
        db.with_time_limit(Duration::from_secs(10)).put(key, value(key, u64::MAX)).await.unwrap();
        assert_eq!(db.get(key).await.unwrap().as_deref(), Some(&value(key, u64::MAX)[..]));
    }
    db.close().await;
}
