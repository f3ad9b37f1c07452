//! Changes of trees: against a model, and by many writers at once over plain memory.
#![allow(clippy::unwrap_used, reason = "a test says by failing what is wrong")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use fatbtree_index::node::{LeafBuilder, NodeSpec};
use fatbtree_index::{
    Change, Event, GlobalAddress, Integrity, KeyRange, OperationError, Partition, Pool, PoolConfig, Regions,
    RemoteSide, Start, SuperRoot, Superblock, Tree, TreeConfig, ValueLayout, Wish, Writer,
};
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::Instant;
use fatbtree_verbs::{Access, Device, Memory, Region, Remote};
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

const REGION: u64 = 4 << 20;
const CHUNK: u64 = 4 << 10;
const LOCKS: u32 = 16;

/// A memory server with an empty tree, and clients of it.
struct Lab {
    config: TreeConfig,
    network: PlainNetwork,
    server: PlainDevice,
    memory: Arc<Memory>,
    tree: Region,
    locks: Region,
    owners: Region,
    next_chunk: Rc<Cell<u64>>,
    partition: Partition,
}

type Client = Rc<Pool<PlainDevice>>;

impl Lab {
    fn new(config: TreeConfig) -> Self {
        let network = PlainNetwork::new();
        let mut server = network.device();
        let mut memory = Memory::anonymous(REGION).unwrap();
        let root = GlobalAddress::new(0, 64);
        let partition = Partition { id: 0, range: KeyRange::ALL, root, root_level: 0 };
        let superblock = Superblock { partition, config, generation: 1, region_bytes: REGION, version: 1 };
        memory.as_mut_slice()[..64].copy_from_slice(&superblock.to_bytes());
        let spec = NodeSpec {
            address: root,
            level: 0,
            range: KeyRange::ALL,
            sibling: GlobalAddress::NULL,
            version: 1,
        };
        let leaf = &mut memory.as_mut_slice()[64..64 + config.leaf_bytes() as usize];
        LeafBuilder::new(leaf, config.leaf_shape(), spec).finish();
        let memory: Arc<Memory> = memory.into();
        let tree = server.register(&memory, 0, Access::ALL).unwrap();
        let table = Memory::shared(u64::from(LOCKS) * 2).unwrap();
        let locks = server.register(&table, 0, Access::ALL).unwrap();
        let alive = Memory::shared(8192).unwrap();
        for word in 0..1024 {
            alive.write(word * 8, &[0xff; 8]).unwrap();
        }
        let owners = server.register(&alive, 0, Access::READ).unwrap();
        let next_chunk = Rc::new(Cell::new(8192));
        Self { config, network, server, memory, tree, locks, owners, next_chunk, partition }
    }

    fn client(&mut self, owner: u16, masked_atomics: bool) -> Client {
        self.client_behind(owner, masked_atomics, |_| None)
    }

    /// A client whose index reads land where `landing` says.
    fn client_behind(
        &mut self,
        owner: u16,
        masked_atomics: bool,
        mut landing: impl FnMut(u64) -> Option<GlobalAddress> + 'static,
    ) -> Client {
        let config = PoolConfig { tree: self.config, ..PoolConfig::default() };
        let roots = SuperRoot::new(vec![self.partition]).unwrap();
        let mut device = self.network.device();
        let rkey = self.tree.rkey;
        device.set_landing(move |key| landing(key).map(|at| Remote { address: at.raw(), rkey }));
        let pool = Pool::new(device, config, roots, u64::from(owner)).unwrap();
        let id = pool.connections()[0];
        let local = pool.open(id).unwrap();
        let queue_pair = self.server.create().unwrap();
        self.server.connect(queue_pair, &local).unwrap();
        let endpoint = self.server.endpoint(queue_pair).unwrap();
        pool.connected(id, RemoteSide { endpoint, rkey: self.tree.rkey, registered: true }).unwrap();
        let locks = Remote { address: self.locks.iova, rkey: self.locks.rkey };
        let owners = Remote { address: self.owners.iova, rkey: self.owners.rkey };
        pool.set_writer(0, Writer { locks, owners, count: LOCKS, owner, masked_atomics }).unwrap();
        Rc::new(pool)
    }

    fn serve(&self, client: &Client) {
        while let Some(event) = client.poll_event() {
            let Event::MemoryWanted { server: 0, kind } = event else { panic!("{event:?}") };
            let at = self.next_chunk.get();
            self.next_chunk.set(at + CHUNK);
            assert!(at + 2 * CHUNK <= REGION, "the region is full");
            client.supply(GlobalAddress::new(0, at), CHUNK, kind);
        }
    }

    /// Runs one operation to its end.
    fn run<T>(&self, client: &Client, work: impl Future<Output = T>) -> T {
        let mut work = Box::pin(work);
        let mut context = Context::from_waker(Waker::noop());
        let mut now = client.reactor().now();
        loop {
            if let Poll::Ready(value) = work.as_mut().poll(&mut context) {
                return value;
            }
            self.serve(client);
            if !client.turn(now) {
                now = client.next_deadline().unwrap_or(now);
            }
        }
    }

    /// All keys and values, by a walk over the leaves that checks each node's place in the tree.
    fn contents(&self) -> BTreeMap<u64, Vec<u8>> {
        let regions = Regions::new([(0, Arc::clone(&self.memory))]);
        let mut line = [0; 64];
        self.memory.read(0, &mut line).unwrap();
        let partition = Superblock::parse(&line).unwrap().partition;
        let tree = Tree::new(&regions, &self.config, &partition);
        let mut keys = Vec::new();
        let mut next = Some(0);
        tree.for_each_leaf(|leaf| {
            assert_eq!(Some(leaf.header().low), next, "leaves tile the keys");
            next = leaf.header().range().high;
            keys.extend(leaf.entries().map(|entry| entry.unwrap().0));
        })
        .unwrap();
        assert_eq!(next, None);
        let found: BTreeMap<_, _> =
            keys.iter().map(|&key| (key, tree.get(key).unwrap().expect("it was just there"))).collect();
        assert_eq!(found.len(), keys.len(), "a key is in two leaves");
        found
    }

    /// All nodes.
    fn nodes(&self) -> Vec<GlobalAddress> {
        let regions = Regions::new([(0, Arc::clone(&self.memory))]);
        let mut line = [0; 64];
        self.memory.read(0, &mut line).unwrap();
        let tree = Tree::new(&regions, &self.config, &Superblock::parse(&line).unwrap().partition);
        let mut nodes = Vec::new();
        tree.for_each_leaf(|leaf| nodes.push(leaf.header().address)).unwrap();
        tree.for_each_internal(|node| nodes.push(node.header().address)).unwrap();
        nodes
    }

    /// All locks are free.
    fn assert_unlocked(&self, client: &Client) {
        let id = client.connections()[0];
        let queue_pair = client.queue_pair(id).unwrap();
        let read = |word: u32| fatbtree_verbs::Operation::Read {
            from: Remote { address: u64::from(word) * 8, rkey: self.locks.rkey },
            len: 8,
        };
        for word in 0..LOCKS / 4 {
            let [output] =
                client.reactor().block_on(client.reactor().chain(queue_pair, [read(word)])).unwrap();
            let fatbtree_verbs::Output::Read(bytes) = output else { panic!() };
            assert_eq!(*bytes, [0; 8], "word {word}");
        }
    }
}

fn configs() -> Vec<TreeConfig> {
    let mut all = Vec::new();
    for integrity in [Integrity::LineVersions, Integrity::Checksums] {
        for values in [ValueLayout::Inline(8), ValueLayout::Inline(60), ValueLayout::OutOfLine] {
            let leaf_bytes = if values == ValueLayout::Inline(60) { 64 * 7 } else { 64 * 3 };
            all.push(TreeConfig::with_integrity(4, leaf_bytes, values, integrity).unwrap());
        }
    }
    all
}

fn value_of(config: &TreeConfig, number: u64) -> Vec<u8> {
    let len = match config.values() {
        ValueLayout::Inline(len) => usize::from(len),
        ValueLayout::OutOfLine => (number % 50) as usize,
    };
    number.to_le_bytes().into_iter().cycle().take(len).collect()
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Get,
    Upsert,
    Insert,
    Update,
    Delete,
}

fn wish(kind: Kind, value: &[u8]) -> Wish<'_> {
    match kind {
        Kind::Upsert => Wish::Upsert(value),
        Kind::Insert => Wish::Insert(value),
        Kind::Update => Wish::Update(value),
        Kind::Get | Kind::Delete => Wish::Delete,
    }
}

/// What a map does.
fn apply(model: &mut BTreeMap<u64, Vec<u8>>, kind: Kind, key: u64, value: &[u8]) -> bool {
    let there = model.contains_key(&key);
    let applies = match kind {
        Kind::Upsert => true,
        Kind::Insert => !there,
        Kind::Update | Kind::Delete => there,
        Kind::Get => false,
    };
    match kind {
        _ if !applies => {}
        Kind::Delete => drop(model.remove(&key)),
        _ => drop(model.insert(key, value.to_vec())),
    }
    applies
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        2 => Just(Kind::Get), 4 => Just(Kind::Upsert), 3 => Just(Kind::Insert), 2 => Just(Kind::Update), 2 => Just(Kind::Delete)
    ]
}

fn key() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 0..300u64, 1 => any::<u64>(), 1 => Just(u64::MAX), 1 => u64::MAX - 50..=u64::MAX]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_writer_does_what_a_map_does(
        shape in 0..6usize, masked: bool, steps in prop::collection::vec((kind(), key()), 1..400)
    ) {
        let config = configs()[shape];
        let mut lab = Lab::new(config);
        let client = lab.client(7, masked);
        let mut model = BTreeMap::new();
        for (number, (kind, key)) in (1u64..).zip(steps) {
            let value = value_of(&config, number);
            if let Kind::Get = kind {
                let found = lab.run(&client, client.lookup(key, Start::Root)).result.unwrap();
                prop_assert_eq!(found.map(|value| value.to_vec()), model.get(&key).cloned());
                continue;
            }
            let change = lab.run(&client, client.change(key, wish(kind, &value), Start::Root));
            prop_assert_eq!(change.result.unwrap(), apply(&mut model, kind, key, &value));
        }
        prop_assert_eq!(lab.contents(), model);
        lab.assert_unlocked(&client);
    }

    /// Several clients, many operations of each at a time, in an order that the seed decides; each key has one writer.
    #[test]
    fn many_writers_lose_nothing(shape in 0..6usize, seed: u64) {
        let config = configs()[shape];
        let mut lab = Lab::new(config);
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let clients: Vec<Client> = (1..=4).map(|owner| lab.client(owner, owner % 2 == 0)).collect();
        let mut now = Instant::ZERO;
        type Running = Pin<Box<dyn Future<Output = Change>>>;
        let mut running: Vec<(usize, Kind, Vec<u8>, Running)> = Vec::new();
        let (mut model, mut busy) = (BTreeMap::new(), std::collections::BTreeSet::new());
        let (mut begun, mut still) = (0u64, 0);
        while begun < 600 || !running.is_empty() {
            if begun < 600 && running.len() < 24 {
                let key = random.random_range(0..120u64);
                if busy.insert(key) {
                    begun += 1;
                    let kinds = [Kind::Upsert, Kind::Insert, Kind::Update, Kind::Delete];
                    let kind = kinds[random.random_range(0..4usize)];
                    let value = value_of(&config, begun);
                    let (at, copy) = (random.random_range(0..clients.len()), value.clone());
                    let client = Rc::clone(&clients[at]);
                    let change = async move { client.change(key, wish(kind, &copy), Start::Root).await };
                    running.push((at, kind, value, Box::pin(change)));
                }
            }
            let at = random.random_range(0..running.len());
            let client = &clients[running[at].0];
            let mut context = Context::from_waker(Waker::noop());
            if let Poll::Ready(change) = running[at].3.as_mut().poll(&mut context) {
                let (_, kind, value, _) = running.swap_remove(at);
                busy.remove(&change.key);
                prop_assert_eq!(change.result.unwrap(), apply(&mut model, kind, change.key, &value), "{:?}", kind);
                still = 0;
            } else {
                lab.serve(client);
                if random.random_bool(0.5) {
                    now += fatbtree_verbs::time::Duration::from_nanos(500);
                    client.turn(now);
                }
                still += 1;
                prop_assert!(still < 1_000_000, "writers wait for each other");
            }
        }
        prop_assert_eq!(lab.contents(), model);
        lab.assert_unlocked(&clients[0]);
    }
}

/// Index reads of writers land on any node that there is or was: at worst it costs round trips.
#[test]
fn writers_find_their_leaf_wherever_the_switches_send_them() {
    for config in configs() {
        let mut lab = Lab::new(config);
        let landing = Rc::new(Cell::new(lab.partition.root));
        let seen = Rc::clone(&landing);
        let client = lab.client_behind(3, true, move |_| Some(seen.get()));
        let mut model = BTreeMap::new();
        let mut nodes = vec![lab.partition.root];
        for number in 1..600u64 {
            let key = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
            landing.set(nodes[number as usize % nodes.len()]);
            let (kind, value) =
                (if number % 7 == 0 { Kind::Delete } else { Kind::Upsert }, value_of(&config, number));
            let change = lab.run(&client, client.change(key, wish(kind, &value), Start::IndexRead));
            assert_eq!(change.result.unwrap(), apply(&mut model, kind, key, &value));
            if number % 50 == 0 {
                nodes = lab.nodes();
            }
        }
        assert!(client.stats().index_reads > 500 && nodes.len() > 10);
        assert_eq!(lab.contents(), model);
    }
}

#[test]
fn an_update_takes_three_round_trips_where_the_leaf_is_a_child_of_the_root() {
    let config = configs()[0];
    let mut lab = Lab::new(config);
    let client = lab.client(1, true);
    let value = value_of(&config, 1);
    for key in 0..10 {
        lab.run(&client, client.change(key, Wish::Insert(&value), Start::Root)).result.unwrap();
    }
    let change = lab.run(&client, client.change(5, Wish::Update(&value), Start::Root));
    assert!(change.result.unwrap());
    assert_eq!(change.trips.round_trips, 3, "the root; lock and leaf; entry and unlock");
}

#[test]
fn who_was_given_no_locks_does_not_write() {
    let config = configs()[0];
    let mut lab = Lab::new(config);
    let pool = {
        let writer = lab.client(1, true);
        drop(writer);
        let roots = SuperRoot::new(vec![lab.partition]).unwrap();
        let config = PoolConfig { tree: config, ..PoolConfig::default() };
        let pool = Pool::new(lab.network.device(), config, roots, 1).unwrap();
        let id = pool.connections()[0];
        let local = pool.open(id).unwrap();
        let queue_pair = lab.server.create().unwrap();
        lab.server.connect(queue_pair, &local).unwrap();
        let endpoint = lab.server.endpoint(queue_pair).unwrap();
        pool.connected(id, RemoteSide { endpoint, rkey: lab.tree.rkey, registered: false }).unwrap();
        Rc::new(pool)
    };
    let value = value_of(&config, 1);
    let change = lab.run(&pool, pool.change(5, Wish::Upsert(&value), Start::Root));
    assert_eq!(change.result, Err(OperationError::NotWriter { key: 5, server: 0 }));
    let change = lab.run(&pool, pool.change(5, Wish::Upsert(&value[1..]), Start::Root));
    let text = change.result.unwrap_err().to_string();
    assert!(text.contains("a value of 7 bytes was given, this tree takes exactly 8"), "{text}");
}
