//! Connections that break, and what is told of them.
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use fatbtree_blink::node::{LeafBuilder, NodeSpec, write_internal};
use fatbtree_blink::{
    BreakReason, CommonError, ConnectionId, Event, GlobalAddress, KeyRange, OperationError, Partition, Pool,
    PoolConfig, RemoteSide, Start, SuperRoot,
};
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::Instant;
use fatbtree_verbs::{Access, Device, Failure, Memory, Operation, Region, Remote, Verbs, WorkRequest};

/// A pool with one connection to a tree of one empty leaf.
fn pool() -> (Pool<PlainDevice>, PlainDevice, Region) {
    pool_with_lanes(1)
}

fn pool_with_lanes(lanes: u8) -> (Pool<PlainDevice>, PlainDevice, Region) {
    let network = PlainNetwork::new();
    let (mut server, client) = (network.device(), network.device());
    let config = PoolConfig { lanes, ..PoolConfig::default() };
    let address = GlobalAddress::new(0, 64);
    let mut memory = Memory::anonymous(64 + 1024).unwrap();
    let spec = NodeSpec { address, level: 0, range: KeyRange::ALL, sibling: GlobalAddress::NULL, version: 1 };
    LeafBuilder::new(&mut memory.as_mut_slice()[64..], config.tree.leaf_shape(), spec).finish();
    let region = server.register(&memory.into(), 0, Access::ALL).unwrap();
    let partition = Partition { id: 0, range: KeyRange::ALL, root: address, root_level: 0 };
    let pool = Pool::new(client, config, SuperRoot::new(vec![partition]).unwrap(), 1).unwrap();
    for id in pool.connections() {
        connect_one(&pool, &mut server, region, id);
    }
    (pool, server, region)
}

fn connect(pool: &Pool<PlainDevice>, server: &mut PlainDevice, region: Region) {
    connect_one(pool, server, region, pool.connections()[0]);
}

fn connect_one(pool: &Pool<PlainDevice>, server: &mut PlainDevice, region: Region, id: ConnectionId) {
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
    assert_eq!((pool.stats().remote.refused_index_reads, pool.stats().remote.broken_connections), (1, 1));
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
    assert!(pool.turn(Instant::ZERO), "there is something to be told");
    let events: Vec<_> = std::iter::from_fn(|| pool.poll_event()).collect();
    let [Event::ConnectionBroken { reason, .. }] = events[..] else { panic!("{events:?}") };
    assert_eq!(reason, BreakReason::Failed(Failure::Flushed));
    assert_eq!(pool.reactor().with(|verbs| verbs.state(queue_pair)), None, "it goes at once");
    assert_eq!(pool.poll_timeout(), None);
}

/// Counts how often it is woken.
#[derive(Default)]
struct Woken(AtomicU32);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Has the device break a queue pair, of which the pool hears only later.
fn break_in_secret(pool: &Pool<PlainDevice>) {
    let queue_pair = pool.queue_pair(pool.connections()[0]).unwrap();
    pool.reactor().with(|verbs| {
        let operation = Operation::Read { from: Remote { address: 0, rkey: 99 }, len: 8 };
        verbs.post(queue_pair, &[WorkRequest { tag: u64::MAX, signalled: false, operation }]).unwrap();
        while verbs.poll().is_some() {}
    });
}

/// The device does not take an index read, because its queue pair is broken: that is told at once, and the lookup waits for the
/// next connection.
#[test]
fn an_index_read_that_cannot_be_posted_begins_again() {
    let (pool, mut server, region) = pool();
    break_in_secret(&pool);
    let mut lookup = pin!(pool.lookup(5, Start::IndexRead));
    let mut context = Context::from_waker(Waker::noop());
    assert!(lookup.as_mut().poll(&mut context).is_pending());
    let Some(Event::ConnectionBroken { id, reason }) = pool.poll_event() else { panic!("it is known") };
    assert_eq!(reason, BreakReason::Failed(Failure::Flushed));
    assert!(!pool.is_registered(id));
    connect(&pool, &mut server, region);
    let lookup = pool.reactor().block_on(lookup);
    assert_eq!((lookup.result.unwrap().is_none(), lookup.trips.breaks), (true, 1));
}

/// A READ that is refused is no index read that no switch has rewritten.
#[test]
fn a_refused_read_is_not_called_unregistered() {
    let (pool, mut server, region) = pool();
    let id = pool.connections()[0];
    pool.abandon(id).unwrap();
    connect(&pool, &mut server, Region { rkey: region.rkey ^ 1, ..region });
    let mut lookup = pin!(pool.lookup(5, Start::Root));
    assert!(lookup.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    pool.turn(Instant::ZERO);
    let reason = BreakReason::Failed(Failure::RemoteAccess);
    assert_eq!(pool.poll_event(), Some(Event::ConnectionBroken { id, reason }));
    assert_eq!(pool.stats().remote.refused_index_reads, 0);
}

#[test]
fn all_who_wait_for_a_connection_are_woken_once() {
    let (pool, mut server, region) = pool();
    let id = pool.connections()[0];
    break_in_secret(&pool);
    pool.turn(Instant::ZERO);
    let woken = [(); 2].map(|()| Arc::new(Woken::default()));
    let mut lookups = [(); 2].map(|()| Box::pin(pool.lookup(5, Start::Root)));
    for (lookup, woken) in lookups.iter_mut().zip(&woken) {
        let waker = Waker::from(Arc::clone(woken));
        for _ in 0..3 {
            assert!(lookup.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
    }
    // To begin to connect once more gives the first attempt up.
    pool.open(id).unwrap();
    let first = pool.queue_pair(id).unwrap();
    connect(&pool, &mut server, region);
    assert_eq!(pool.reactor().with(|verbs| verbs.state(first)), None);
    assert_eq!(woken.map(|woken| woken.0.load(Ordering::Relaxed)), [1, 1]);
    for lookup in lookups {
        assert!(pool.reactor().block_on(lookup).result.unwrap().is_none());
    }
}

/// Operations take the lanes in turn; a lane that is given up takes those on it along, and its queue pair.
#[test]
fn lanes_are_taken_in_turn() {
    let (pool, ..) = pool_with_lanes(2);
    let given_up = pool.connections()[1];
    let queue_pair = pool.queue_pair(given_up).unwrap();
    pool.abandon(given_up).unwrap();
    assert_eq!(pool.reactor().with(|verbs| verbs.state(queue_pair)), None);
    pool.set_registered(given_up, true).unwrap();
    assert!(!pool.is_registered(given_up), "nothing is sent there");
    for round in 0..3 {
        let ends = [(); 2].map(|()| pool.reactor().block_on(pool.lookup(5, Start::Root)).result);
        assert!(ends[0].is_ok(), "round {round}");
        let error = CommonError::Abandoned(given_up);
        assert_eq!(ends[1].as_ref().err(), Some(&OperationError::Common { key: 5, error }), "round {round}");
    }
}

/// Servers need not be numbered without gaps.
#[test]
fn a_connection_is_found_by_its_server() {
    let at = |id, low, high| {
        let range = KeyRange { low, high };
        Partition { id, range, root: GlobalAddress::new(id, 64), root_level: 0 }
    };
    let partitions = vec![at(3, 0, Some(5)), at(0, 5, Some(9)), at(2, 9, None)];
    let device = PlainNetwork::new().device();
    let pool = Pool::new(device, PoolConfig::default(), SuperRoot::new(partitions).unwrap(), 1).unwrap();
    for id in pool.connections() {
        pool.open(id).unwrap();
    }
    let opened: Vec<_> = pool.connections().into_iter().map(|id| pool.queue_pair(id)).collect();
    assert!(opened.is_sorted() && opened.iter().all(Option::is_some), "{opened:?}");
    let unknown = ConnectionId { server: 1, lane: 0 };
    assert_eq!((pool.queue_pair(unknown), pool.open(unknown).is_err()), (None, true));
}

/// A pointer leads to a server that is not connected yet: the lookup waits there, and does not begin again.
#[test]
fn a_connection_that_is_down_is_waited_for_on_the_way() {
    let network = PlainNetwork::new();
    let (mut server, client) = (network.device(), network.device());
    let config = PoolConfig::default();
    let (root, leaf) = (GlobalAddress::new(0, 64), GlobalAddress::new(1, 64));
    let (half, rest) = (KeyRange { low: 0, high: Some(1 << 63) }, KeyRange { low: 1 << 63, high: None });
    let spec =
        |address, level, range| NodeSpec { address, level, range, sibling: GlobalAddress::NULL, version: 1 };
    let mut memories = [(); 2].map(|()| Memory::anonymous(64 + 1024).unwrap());
    let bytes = &mut memories[0].as_mut_slice()[64..64 + config.tree.internal_bytes() as usize];
    write_internal(bytes, &spec(root, 1, half), &[(0, leaf)], config.tree.integrity());
    let bytes = &mut memories[1].as_mut_slice()[64..];
    LeafBuilder::new(bytes, config.tree.leaf_shape(), spec(leaf, 0, KeyRange::ALL)).finish();
    let regions: Vec<Region> = (0..)
        .zip(memories)
        .map(|(id, memory)| {
            server.register(&memory.into(), GlobalAddress::new(id, 0).raw(), Access::ALL).unwrap()
        })
        .collect();
    let partitions = vec![
        Partition { id: 0, range: half, root, root_level: 1 },
        Partition { id: 1, range: rest, root: leaf, root_level: 0 },
    ];
    let pool = Pool::new(client, config, SuperRoot::new(partitions).unwrap(), 1).unwrap();
    let ids = pool.connections();
    connect_one(&pool, &mut server, regions[0], ids[0]);
    let mut lookup = pin!(pool.lookup(5, Start::Root));
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..10 {
        assert!(lookup.as_mut().poll(&mut context).is_pending());
        pool.turn(Instant::ZERO);
    }
    connect_one(&pool, &mut server, regions[1], ids[1]);
    let lookup = pool.reactor().block_on(lookup);
    assert!(lookup.result.unwrap().is_none());
    assert_eq!((lookup.trips.breaks, lookup.trips.round_trips), (0, 2));
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
