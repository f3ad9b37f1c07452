//! Clients that live settle for the sweep of a server: what they do before they let it go on.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Waker};

use fatbtree_memserver::{ClientId, MemoryServer, ServerOptions};
use fatbtree_race::host::HashTable;
use fatbtree_race::{BLOCKS, Check as TableCheck, Shape, TableInfo};
use fatbtree_remote_memory::session_keeper::{Call, Check, KeeperOptions, SessionKeeper};
use fatbtree_remote_memory::{Block, GlobalAddress, RemoteConfig, RemoteMemory};
use fatbtree_sim::hash::{Aim, Scenario};
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{Access, Operation, Remote};

/// A server whose sweep waits for a client, and the client with its keeper.
struct Lab {
    server: MemoryServer<PlainDevice, HashTable>,
    memory: Rc<RemoteMemory<PlainDevice>>,
    keeper: SessionKeeper<TableInfo>,
    now: Instant,
}

impl Lab {
    /// A client that has freed a block, and learns of the first wait when it renews its session next.
    fn new() -> Self {
        let network = PlainNetwork::new();
        let content = HashTable::make(0, Shape::default(), 16 << 20).expect("nothing is in the way");
        let options = ServerOptions {
            access: Access::ALL,
            reclaim_every: Duration::from_nanos(1),
            ..ServerOptions::writable()
        };
        let server =
            MemoryServer::new(network.device(), content, &options, 1).expect("nothing is in the way");
        let config = RemoteConfig::default();
        let memory =
            RemoteMemory::new(network.device(), [0].into_iter(), config, 1).expect("there are lanes");
        let memory = Rc::new(memory);
        let keeper = SessionKeeper::new(memory.connections(), KeeperOptions::default());
        let mut lab = Self { server, memory, keeper, now: Instant::ZERO };
        lab.calls();
        assert!(lab.keeper.is_connected());
        let writer = lab.memory.writer(0).expect("it has a session");
        let block = Block { address: GlobalAddress::new(0, 64), version: None };
        lab.memory.with_allocator(0, &writer, |allocator| allocator.put_back(BLOCKS, 64, block));
        // A session that ends is a reason for a sweep.
        let session = lab.server.open_session(lab.now, client()).expect("nothing is in the way").session;
        lab.server.close_session(lab.now, session).expect("nothing is in the way");
        for _ in 0..100_000 {
            lab.now += Duration::from_micros(1);
            lab.server.work(lab.now, 64);
        }
        lab
    }

    /// All calls that the keeper makes, each carried out at once.
    fn calls(&mut self) -> Vec<Call> {
        let mut calls = Vec::new();
        self.keeper.pump(self.now, &*self.memory, |_, call| {
            calls.push(call.clone());
            self.server.carry_out(self.now, client(), call)
        });
        calls
    }

    /// What the client says of sweeps, in its renewals after the one by which it is told: the highest wait, and how many blocks it gives
    /// back.
    fn settled(&mut self) -> (u64, usize) {
        self.keeper.doubt(0);
        let calls = self.calls();
        let settled = calls.iter().filter_map(|call| match call {
            Call::Renew { settled, .. } => Some(*settled),
            _ => None,
        });
        let blocks = calls.iter().map(|call| match call {
            Call::GiveBack { places, .. } => places.addresses.len(),
            _ => 0,
        });
        (settled.max().unwrap_or_default(), blocks.sum())
    }
}

fn client() -> ClientId {
    ClientId { host: [127, 0, 0, 1].into(), roce: [0, 0, 0, 1].into() }
}

#[test]
fn a_client_that_does_nothing_settles_at_once() {
    let mut lab = Lab::new();
    assert_eq!(lab.settled(), (1, 1));
    assert_eq!(lab.settled(), (1, 0), "its word is repeated, and one wait needs it once");
}

#[test]
fn an_operation_that_is_under_way_ends_first() {
    let under_way = || {
        let mut lab = Lab::new();
        let operation = lab.memory.begin();
        let before = lab.settled();
        // One that begins now is not waited for.
        let _later = lab.memory.begin();
        drop(operation);
        (before, lab.settled())
    };
    assert_eq!(under_way(), ((0, 0), (1, 1)));
    assert_eq!(Check::SettleOperations.without(under_way).0, (1, 1));
}

#[test]
fn a_request_of_an_operation_that_was_dropped_ends_first() {
    let under_way = || {
        let mut lab = Lab::new();
        let at = Remote { address: GlobalAddress::new(0, 0).raw(), rkey: lab.server.info().region.rkey };
        let [id] = lab.memory.connections()[..1] else { unreachable!("there is a connection") };
        let queue_pair = lab.memory.queue_pair(id).expect("it is up");
        {
            let mut read =
                pin!(lab.memory.reactor().chain(queue_pair, [Operation::Read { from: at, len: 8 }]));
            assert!(read.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        let before = lab.settled();
        lab.memory.turn(lab.now);
        (before, lab.settled())
    };
    assert_eq!(under_way(), ((0, 0), (1, 1)));
    assert_eq!(Check::SettleRequests.without(under_way).0, (1, 1));
}

#[test]
fn blocks_that_it_has_freed_come_to_the_server_first() {
    assert_eq!(Check::SettleBlocks.without(|| Lab::new().settled()), (1, 0));
}

/// A connection that has broken may still carry out what was posted on it.
#[test]
fn a_connection_that_broke_is_made_anew_first() {
    let mut lab = Lab::new();
    lab.keeper.doubt(0);
    let (id, call) = lab.keeper.poll_call(lab.now, &*lab.memory).expect("it renews its session");
    let answer = lab.server.carry_out(lab.now, client(), call);
    lab.memory.sever(0);
    lab.keeper.handle_answer(lab.now, &*lab.memory, id, answer);
    let calls = lab.calls();
    let at = |is_it: fn(&Call) -> bool| calls.iter().position(is_it).expect("it is made");
    let connects = at(|call| matches!(call, Call::Connect { .. }));
    assert!(connects < at(|call| matches!(call, Call::Renew { settled: 1, .. })), "{calls:?}");
}

/// Seeds among which a failure must be.
const MOST: u64 = 600;

/// The first seed that fails without a check and not with it, on one server.
fn first_failure(aim: Aim, run: impl Fn(&Scenario) -> Result<(), String>) -> Option<(u64, String)> {
    let scenario = |seed| Scenario { servers: 0b010, ..Scenario::aimed(seed, aim) };
    (0..MOST).find_map(|seed| {
        let why = run(&scenario(seed)).err()?;
        scenario(seed).run().is_ok().then_some((seed, why))
    })
}

/// Clients that die and others that work: a client that does not settle as it must is found.
#[test]
fn seeds_find_clients_that_do_not_settle() {
    let without =
        |check: Check| first_failure(Aim::Blocks, |scenario| check.without(|| scenario.run().map(drop)));
    assert_eq!(Check::ALL.len(), 3, "each is left out in a test of this file");
    for check in [Check::SettleOperations, Check::SettleBlocks] {
        let found = without(check);
        println!("{check:?}: {found:?}");
        assert!(found.is_some(), "without {check:?} {MOST} seeds pass");
    }
    let never_split = |scenario: &Scenario| TableCheck::Splits.without(|| scenario.run().map(drop));
    assert!(first_failure(Aim::Splits, never_split).is_some());
}
