//! Connections that break, and what is told of them.
#![allow(clippy::unwrap_used, reason = "a test says by failing what is wrong")]

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use fatbtree_index::node::{LeafBuilder, NodeSpec};
use fatbtree_index::{
    BreakReason, Event, GlobalAddress, KeyRange, Partition, Pool, PoolConfig, RemoteSide, Start, SuperRoot,
};
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::Instant;
use fatbtree_verbs::{Access, Device, Failure, Memory, Operation, Region, Remote, Verbs, WorkRequest};

/// A pool with one connection to a tree of one empty leaf.
fn pool() -> (Pool<PlainDevice>, PlainDevice, Region) {
    let network = PlainNetwork::new();
    let (mut server, client) = (network.device(), network.device());
    let config = PoolConfig::default();
    let address = GlobalAddress::new(0, 64);
    let mut memory = Memory::anonymous(64 + 1024).unwrap();
    let spec = NodeSpec { address, level: 0, range: KeyRange::ALL, sibling: GlobalAddress::NULL, version: 1 };
    LeafBuilder::new(&mut memory.as_mut_slice()[64..], config.tree.leaf_shape(), spec).finish();
    let region = server.register(&memory.into(), 0, Access::ALL).unwrap();
    let partition = Partition { id: 0, range: KeyRange::ALL, root: address, root_level: 0 };
    let pool = Pool::new(client, config, SuperRoot::new(vec![partition]).unwrap(), 1).unwrap();
    connect(&pool, &mut server, region);
    (pool, server, region)
}

fn connect(pool: &Pool<PlainDevice>, server: &mut PlainDevice, region: Region) {
    let id = pool.connections()[0];
    let local = pool.open(id).unwrap();
    let queue_pair = server.create().unwrap();
    server.connect(queue_pair, &local).unwrap();
    let endpoint = server.endpoint(queue_pair).unwrap();
    pool.connected(id, RemoteSide { endpoint, rkey: region.rkey, registered: true }).unwrap();
}

/// The device names a broken queue pair before the operation that knows why has run.
#[test]
fn the_operation_says_why_its_connection_broke() {
    let (pool, mut server, region) = pool();
    let mut lookup = pin!(pool.lookup(5, Start::IndexRead));
    let mut context = Context::from_waker(Waker::noop());
    let mut told = Vec::new();
    let lookup = (0..20).find_map(|_| {
        if let Poll::Ready(lookup) = lookup.as_mut().poll(&mut context) {
            return Some(lookup);
        }
        pool.turn(Instant::ZERO);
        while let Some(Event::ConnectionBroken { reason, .. }) = pool.poll_event() {
            told.push(reason);
            connect(&pool, &mut server, region);
        }
        None
    });
    assert!(lookup.unwrap().result.unwrap().is_none());
    assert_eq!(told, [BreakReason::Unregistered], "no switch has rewritten the index read");
    assert_eq!((pool.stats().refused_index_reads, pool.stats().broken_connections), (1, 1));
}

#[test]
fn a_connection_that_breaks_in_silence_is_told_as_well() {
    let (pool, ..) = pool();
    let queue_pair = pool.queue_pair(pool.connections()[0]).unwrap();
    pool.reactor().with(|verbs| {
        let operation = Operation::Read { from: Remote { address: 0, rkey: 99 }, len: 8 };
        verbs.post(queue_pair, &[WorkRequest { tag: u64::MAX, signalled: true, operation }]).unwrap();
        while verbs.poll().is_some() {}
    });
    pool.turn(Instant::ZERO);
    let events: Vec<_> = std::iter::from_fn(|| pool.poll_event()).collect();
    let [Event::ConnectionBroken { reason, .. }] = events[..] else { panic!("{events:?}") };
    assert_eq!(reason, BreakReason::Failed(Failure::Flushed));
    assert_eq!(pool.next_deadline(), None);
}

/// A lookup that has waited for its connection is as patient with what it reads as any other.
#[test]
fn waiting_for_a_connection_does_not_wear_patience_out() {
    let (pool, mut server, region) = pool();
    let id = pool.connections()[0];
    pool.abandon(id).unwrap();
    pool.open(id).unwrap();
    // The root is a leaf: the first attempt leads nowhere.
    let stale = Start::Node { address: GlobalAddress::new(0, 64), level: 1 };
    let mut lookup = pin!(pool.lookup(5, stale));
    let mut context = Context::from_waker(Waker::noop());
    assert!(lookup.as_mut().poll(&mut context).is_pending());
    let late = Instant::ZERO + pool.config().limits.patience * 2;
    pool.turn(late);
    connect(&pool, &mut server, region);
    let lookup = (0..20).find_map(|_| match lookup.as_mut().poll(&mut context) {
        Poll::Ready(lookup) => Some(lookup),
        Poll::Pending => {
            pool.turn(late);
            None
        }
    });
    let lookup = lookup.unwrap();
    assert_eq!((lookup.result.unwrap().is_none(), lookup.trips.restarts), (true, 1));
}
