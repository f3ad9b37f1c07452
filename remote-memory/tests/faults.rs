//! All structures behave alike under faults: the same scripted faults, the same outcome, the same round trips.
//!
//! A device refuses a request for now, a connection breaks in a round trip, or an answer never comes. The operation goes on in each case, and
//! counts every round trip that it has waited for. Where the device refuses for longer than an operation has patience, it says so.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test says by failing what is wrong")]

use std::cell::Cell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};

use fatbtree_blink::{Limits, OperationError, PoolConfig, Start, TreeConfig};
use fatbtree_blink_client::Client;
use fatbtree_blink_host::{LoadOptions, load_cluster, seeded};
use fatbtree_dolphin::host::HybridIndex;
use fatbtree_dolphin::{Index, IndexError, NodeCache};
use fatbtree_dtx::host::{Content, HostTables};
use fatbtree_dtx::{DtxError, TableShape, Tables, Verdict, Want};
use fatbtree_memserver::{ClientId, MemoryServer, ServerOptions, Tenant};
use fatbtree_race::host::HashTable;
use fatbtree_race::{Table, TableError};
use fatbtree_remote_memory::session_keeper::{KeeperOptions, SessionKeeper};
use fatbtree_remote_memory::{Change, CommonError, Kept, RemoteConfig, RemoteMemory, Structure};
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{
    Access, Agreed, Capabilities, Completion, ConnectError, Device, DeviceMemoryError, Endpoint, Failure,
    Memory, PostError, QueuePair, QueuePairState, Region, RegisterError, Verbs, WorkRequest,
};

/// What happens to a chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// The device refuses it for now.
    Refused,
    /// The server fails to carry it out: the connection breaks.
    Broke,
    /// No answer comes: the connection breaks.
    TimedOut,
}

/// Faults of a device.
#[derive(Default)]
struct Script {
    /// Chains to be posted before the fault, and the fault.
    next: Cell<Option<(u32, Fault)>>,
    /// Chains that the device has accepted.
    posted: Cell<u32>,
    refuses_all: Cell<bool>,
}

impl Script {
    fn fault(&self) -> Option<Fault> {
        if self.refuses_all.get() {
            return Some(Fault::Refused);
        }
        let (before, fault) = self.next.get()?;
        self.next.set(before.checked_sub(1).map(|before| (before, fault)));
        (before == 0).then_some(fault)
    }
}

/// A plain device with faults.
struct FaultyDevice {
    device: PlainDevice,
    script: Rc<Script>,
    failed: VecDeque<Completion>,
}

impl Device for FaultyDevice {
    fn capabilities(&self) -> Capabilities {
        self.device.capabilities()
    }

    fn register(&mut self, memory: &Arc<Memory>, iova: u64, access: Access) -> Result<Region, RegisterError> {
        self.device.register(memory, iova, access)
    }

    fn register_device_memory(
        &mut self,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Region, RegisterError> {
        self.device.register_device_memory(len, iova, access)
    }

    fn read_device_memory(&self, rkey: u32, offset: u64, into: &mut [u8]) -> Result<(), DeviceMemoryError> {
        self.device.read_device_memory(rkey, offset, into)
    }

    fn deregister(&mut self, rkey: u32) {
        self.device.deregister(rkey);
    }

    fn create(&mut self) -> Result<QueuePair, ConnectError> {
        self.device.create()
    }

    fn endpoint(&self, queue_pair: QueuePair) -> Result<Endpoint, ConnectError> {
        self.device.endpoint(queue_pair)
    }

    fn connect(&mut self, queue_pair: QueuePair, remote: &Endpoint) -> Result<Agreed, ConnectError> {
        self.device.connect(queue_pair, remote)
    }

    fn state(&self, queue_pair: QueuePair) -> Option<QueuePairState> {
        self.device.state(queue_pair)
    }

    fn destroy(&mut self, queue_pair: QueuePair) {
        self.device.destroy(queue_pair);
    }

    fn poll_broken(&mut self) -> Option<QueuePair> {
        self.device.poll_broken()
    }
}

impl Verbs for FaultyDevice {
    fn post(&mut self, queue_pair: QueuePair, chain: &[WorkRequest<'_>]) -> Result<(), PostError> {
        let fault = self.script.fault();
        if fault != Some(Fault::Refused) {
            self.script.posted.set(self.script.posted.get() + 1);
        }
        let failure = match fault {
            None => return self.device.post(queue_pair, chain),
            Some(Fault::Refused) => {
                return Err(PostError::Full { queue_pair, what: "requests", found: 1, limit: 0 });
            }
            Some(Fault::Broke) => Failure::RemoteOperational,
            Some(Fault::TimedOut) => Failure::RetryExceeded,
        };
        let signalled = chain.iter().filter(|request| request.signalled);
        let failures = std::iter::once(failure).chain(std::iter::repeat(Failure::Flushed));
        let failed = |(request, failure): (&WorkRequest<'_>, Failure)| Completion {
            queue_pair,
            tag: request.tag,
            result: Err(failure),
        };
        self.failed.extend(signalled.zip(failures).map(failed));
        Ok(())
    }

    fn poll(&mut self) -> Option<Completion> {
        self.failed.pop_front().or_else(|| self.device.poll())
    }
}

/// Result of an operation, and its round trips.
type Ended = (Result<(), CommonError>, u32);

/// A structure with one key, as a client uses it.
trait Subject {
    /// Finds the key.
    async fn read(&self) -> Ended;

    /// Replaces the key's value.
    async fn write(&self) -> Ended;
}

/// A structure of keys and values. `common` takes the cause out of its error, which is one that all structures have.
struct Keyed<S: Structure> {
    structure: S,
    common: fn(S::Error) -> CommonError,
}

impl<S: Structure> Subject for Keyed<S> {
    async fn read(&self) -> Ended {
        let found = self.structure.get(KEY).await;
        (found.result.map(|value| assert!(value.is_some())).map_err(self.common), found.round_trips)
    }

    async fn write(&self) -> Ended {
        let changed = self.structure.change(KEY, Change::Update(&VALUE)).await;
        (changed.result.map(|applied| assert!(applied)).map_err(self.common), changed.round_trips)
    }
}

fn of_tree(error: OperationError) -> CommonError {
    let OperationError::Common { error, key: KEY } = error else { panic!("{error}") };
    error
}

fn of_table(error: TableError) -> CommonError {
    let TableError::Common(error) = error else { panic!("{error}") };
    error
}

fn of_index(error: IndexError) -> CommonError {
    let IndexError::Common(error) = error else { panic!("{error}") };
    error
}

impl Subject for Tables<FaultyDevice> {
    async fn read(&self) -> Ended {
        let found = self.run(async |tx| Ok(Verdict::Commit(tx.read(0, KEY).await?.is_some()))).await;
        (found.result.map(|is_there| assert!(is_there)).map_err(of_tables), found.round_trips)
    }

    async fn write(&self) -> Ended {
        let changed = self.run(async |tx| {
            let [item] = tx.fetch([Want::write(0, KEY)]).await?;
            tx.put(item, &VALUE)?;
            Ok(Verdict::Commit(()))
        });
        let changed = changed.await;
        (changed.result.map_err(of_tables), changed.round_trips)
    }
}

fn of_tables(error: DtxError) -> CommonError {
    let DtxError::Common(error) = error else { panic!("{error}") };
    error
}

const KEY: u64 = 7;
const VALUE: [u8; 8] = *b"a value.";

/// Far more than an operation takes when nothing is in the way.
const PATIENCE: Duration = Duration::from_millis(50);

/// Runs operations of a structure, with a fault at each of their round trips.
async fn judge(structure: &str, subject: &impl Subject, script: &Script) {
    // What is learned or given once is there from here on.
    subject.write().await.0.expect("nothing is in the way");
    subject.read().await.0.expect("nothing is in the way");
    let (result, clean) = subject.read().await;
    assert_eq!(result, Ok(()), "{structure}");
    for fault in [Fault::Refused, Fault::Broke, Fault::TimedOut] {
        for before in 0..clean {
            script.next.set(Some((before, fault)));
            script.posted.set(0);
            let (result, round_trips) = subject.read().await;
            assert_eq!((result, script.next.get()), (Ok(()), None), "{structure}, {fault:?}");
            assert_eq!(round_trips, script.posted.get(), "{structure}: {fault:?} after {before} of {clean}");
            // A long READ that is refused is tried again by itself, in pieces.
            if fault != Fault::Refused {
                assert_eq!(
                    round_trips,
                    before + 1 + clean,
                    "{structure}: {fault:?} after {before} of {clean}"
                );
            }
        }
        let (result, clean) = subject.write().await;
        assert_eq!(result, Ok(()), "{structure}");
        script.next.set(Some((0, fault)));
        let (result, round_trips) = subject.write().await;
        assert_eq!((result, script.next.get()), (Ok(()), None), "{structure}, {fault:?}");
        let lost = u32::from(fault != Fault::Refused);
        assert!(round_trips >= clean + lost, "{structure}: {round_trips} after {fault:?}, else {clean}");
    }
    script.refuses_all.set(true);
    for (result, round_trips) in [subject.read().await, subject.write().await] {
        let is_said = matches!(result, Err(CommonError::Refused(PostError::Full { .. })));
        assert!(is_said && round_trips == 0, "{structure}: {result:?} after {round_trips} round trips");
    }
    script.refuses_all.set(false);
    assert_eq!(subject.read().await, (Ok(()), clean), "{structure}");
}

/// Drives a client, its session and the server until some work has ended.
fn drive<T: Tenant, K: Kept>(
    server: &mut MemoryServer<PlainDevice, T>,
    memory: &K,
    work: impl Future<Output = ()>,
) {
    let options = KeeperOptions::default();
    let mut keeper = SessionKeeper::new(memory.remote().connections(), options);
    let client = ClientId { host: [127, 0, 0, 1].into(), roce: [0, 0, 0, 1].into() };
    let (mut work, mut now) = (pin!(work), Instant::ZERO);
    while now < Instant::ZERO + Duration::from_secs(10) {
        memory.remote().turn(now);
        keeper.pump(now, memory, |_, call| server.carry_out(now, client, call));
        if work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            return;
        }
        now += Duration::from_micros(1);
    }
    panic!("nothing is in the way any more");
}

/// A device of a client on a network, and its faults.
fn device(network: &PlainNetwork) -> (FaultyDevice, Rc<Script>) {
    let script = Rc::<Script>::default();
    let failed = VecDeque::new();
    (FaultyDevice { device: network.device(), script: Rc::clone(&script), failed }, script)
}

/// A server of a structure, and the memory of a client.
fn begin<T: Tenant>(
    content: fatbtree_memserver::Loaded<T>,
) -> (MemoryServer<PlainDevice, T>, Rc<RemoteMemory<FaultyDevice>>, Rc<Script>) {
    let network = PlainNetwork::new();
    let options = ServerOptions { access: Access::ALL, ..ServerOptions::writable() };
    let server = MemoryServer::new(network.device(), content, &options, 1).expect("there is memory");
    let (device, script) = device(&network);
    let config = RemoteConfig { patience: PATIENCE, ..RemoteConfig::default() };
    let memory = RemoteMemory::new(device, [0].into_iter(), config, 1).expect("there are lanes");
    (server, Rc::new(memory), script)
}

#[test]
fn trees_go_on_and_count_each_round_trip() {
    let options = LoadOptions { spare_bytes: 1 << 23, ..LoadOptions::new(TreeConfig::default(), 0) };
    let keys: Vec<u64> = (0..1_000).collect();
    let cluster = load_cluster(&options, 1, &keys, &mut seeded(42, 8)).expect("the keys ascend");
    let (network, roots) = (PlainNetwork::new(), cluster.roots.clone());
    let options = ServerOptions { access: Access::ALL, ..ServerOptions::writable() };
    let mut servers = cluster.serve(&options, 1, |_| network.device()).expect("there is memory");
    let (device, script) = device(&network);
    let limits = Limits { patience: PATIENCE, ..Limits::default() };
    let config = PoolConfig { limits, ..PoolConfig::default() };
    let client = Client::new(device, config, roots, 1).expect("the tree fits");
    let subject = Keyed { structure: client.starting(Start::Root), common: of_tree };
    drive(&mut servers[0], client.pool(), judge("tree", &subject, &script));
}

#[test]
fn hash_tables_go_on_and_count_each_round_trip() {
    let content =
        HashTable::make(0, fatbtree_race::Shape::default(), 32 << 20).expect("the shape is possible");
    let (mut server, memory, script) = begin(content);
    let work = async {
        let table = Table::open(Rc::clone(&memory), 0).await.expect("the server lives");
        assert_eq!(table.insert(KEY, &VALUE).await.result, Ok(true));
        judge("hash table", &Keyed { structure: table, common: of_table }, &script).await;
    };
    drive(&mut server, &*memory, work);
}

#[test]
fn hybrid_indexes_go_on_and_count_each_round_trip() {
    let content =
        HybridIndex::make(0, fatbtree_dolphin::Shape::default(), 32 << 20).expect("the shape is possible");
    let (mut server, memory, script) = begin(content);
    let work = async {
        let cache = Rc::new(NodeCache::new(1 << 20));
        let index = Index::open(Rc::clone(&memory), 0, cache).await.expect("the server lives");
        assert_eq!(index.insert(KEY, &VALUE).await.result, Ok(true));
        judge("hybrid index", &Keyed { structure: index, common: of_index }, &script).await;
    };
    drive(&mut server, &*memory, work);
}

#[test]
fn transactions_go_on_and_count_each_round_trip() {
    let shape = fatbtree_dtx::Shape::new(&[TableShape::for_items(100, 8)], 0b1, 0).expect("it is possible");
    let content = HostTables::make(0, shape, Content::Empty, 1).expect("the shape is possible");
    let (mut server, memory, script) = begin(content);
    let work = async {
        let tables = Tables::open(Rc::clone(&memory), 0).await.expect("the server lives");
        let mut tx = tables.begin().await.expect("there are seats");
        assert_eq!(tx.insert(0, KEY, &VALUE).await, Ok(true));
        tx.commit().await.expect("nothing is in the way");
        judge("transactions", &tables, &script).await;
    };
    drive(&mut server, &*memory, work);
}
