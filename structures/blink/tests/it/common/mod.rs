//! Memory servers with empty trees, and clients of them, over plain memory.
#![allow(dead_code, reason = "each test uses what it needs")]

pub(crate) mod byte_keys;
pub(crate) mod cache;
pub(crate) mod interleaved;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use fatbtree_blink::node::{InternalNode, LeafBuilder, NodeSpec};
use fatbtree_blink::record::{RECORD_ALIGN, is_record, read_hinted};
use fatbtree_blink::{
    Allocation, ConnectionId, Event, GlobalAddress, Integrity, KeyRange, LeafKind, Owner, Partition, Pool,
    PoolConfig, Regions, RemoteSide, SessionId, Shortage, SuperRoot, Superblock, Tree, TreeConfig,
    ValueLayout, Writer,
};
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::{Access, Device, IndexTarget, Memory, QueuePair, Region, Remote};

pub(crate) const REGION: u64 = 4 << 20;
const CHUNK: u64 = 8 << 10;
/// Session of every client, where sessions do not end.
pub(crate) const SESSION: SessionId = SessionId(0x5e55);
/// Locks, so few that nodes often share one.
const LOCKS: u32 = 16;
/// Locks, so many that nodes hardly ever share one.
pub(crate) const MANY_LOCKS: u64 = 1 << 16;

/// A network of memory servers, one a partition.
pub(crate) struct Lab {
    pub(crate) config: TreeConfig,
    /// Locks of a server that are used.
    pub(crate) locks: u32,
    /// Choice of its clients for new nodes.
    pub(crate) allocation: Allocation,
    /// Session in which memory is given out.
    pub(crate) session: Cell<SessionId>,
    pub(crate) network: PlainNetwork,
    pub(crate) servers: Vec<Server>,
}

/// A memory server with a tree.
pub(crate) struct Server {
    pub(crate) device: PlainDevice,
    pub(crate) memory: Arc<Memory>,
    pub(crate) tree: Region,
    pub(crate) locks: Region,
    pub(crate) owners: Region,
    pub(crate) next_chunk: Cell<u64>,
    /// Its ends of all connections.
    queue_pairs: Vec<QueuePair>,
    /// The partition as it was in the beginning: an empty leaf.
    pub(crate) partition: Partition,
}

pub(crate) type Client = Rc<Pool<PlainDevice>>;

impl Server {
    fn new(config: TreeConfig, mut device: PlainDevice, id: u16, range: KeyRange) -> Self {
        let mut memory = Memory::anonymous(REGION).unwrap();
        let root = GlobalAddress::new(id, 64);
        let partition = Partition { id, range, root, root_level: 0 };
        let superblock = Superblock { partition, config, generation: 1, region_bytes: REGION, version: 1 };
        memory.as_mut_slice()[..64].copy_from_slice(&superblock.to_bytes());
        let spec = NodeSpec { address: root, level: 0, range, sibling: GlobalAddress::NULL, version: 1 };
        let leaf = &mut memory.as_mut_slice()[64..64 + config.leaf_bytes() as usize];
        LeafBuilder::new(leaf, config.leaf_shape(), spec).finish();
        let memory: Arc<Memory> = memory.into();
        let base = GlobalAddress::new(id, 0).raw();
        let tree = device.register(&memory, base, Access::ALL).unwrap();
        let table = Memory::shared(MANY_LOCKS * 2).unwrap();
        let locks = device.register(&table, 0, Access::ALL).unwrap();
        let alive = Memory::shared(8192).unwrap();
        for word in 0..1024 {
            alive.write(word * 8, &[0xff; 8]).unwrap();
        }
        let owners = device.register(&alive, 0, Access::READ).unwrap();
        let (next_chunk, queue_pairs) = (Cell::new(8192), Vec::new());
        Self { device, memory, tree, locks, owners, next_chunk, queue_pairs, partition }
    }

    /// The tree memory of a server, as another process of it finds it.
    fn with_tree_of(self, former: &Self) -> Self {
        let bytes = &mut vec![0; REGION as usize];
        former.memory.read(0, bytes).unwrap();
        self.memory.write(0, bytes).unwrap();
        Self { next_chunk: former.next_chunk.clone(), ..self }
    }

    /// The partition as the superblock describes it now.
    pub(crate) fn partition(&self) -> Partition {
        let mut line = [0; 64];
        self.memory.read(0, &mut line).unwrap();
        Superblock::parse(&line).unwrap().partition
    }
}

impl Lab {
    /// One server with all keys.
    pub(crate) fn new(config: TreeConfig) -> Self {
        Self::with_partitions(config, &[])
    }

    /// The same; nodes hardly ever share a lock.
    pub(crate) fn with_many_locks(config: TreeConfig) -> Self {
        Self { locks: MANY_LOCKS as u32, ..Self::new(config) }
    }

    /// Several servers; the keys are cut at `cuts`.
    pub(crate) fn with_partitions(config: TreeConfig, cuts: &[u64]) -> Self {
        let network = PlainNetwork::new();
        let lows = std::iter::once(0).chain(cuts.iter().copied());
        let highs = cuts.iter().copied().map(Some).chain([None]);
        let ranges = lows.zip(highs).map(|(low, high)| KeyRange { low, high });
        let servers =
            (0..).zip(ranges).map(|(id, range)| Server::new(config, network.device(), id, range)).collect();
        let (allocation, session) = (Allocation::default(), Cell::new(SESSION));
        Self { config, locks: LOCKS, allocation, session, network, servers }
    }

    pub(crate) fn roots(&self) -> SuperRoot {
        SuperRoot::new(self.servers.iter().map(|server| server.partition).collect()).unwrap()
    }

    pub(crate) fn client(&mut self, owner: u16, masked_atomics: bool) -> Client {
        self.client_behind(owner, masked_atomics, |_, _| None)
    }

    /// A client whose index reads land where `landing` says.
    pub(crate) fn client_behind(
        &mut self,
        owner: u16,
        masked_atomics: bool,
        mut landing: impl FnMut(u64, IndexTarget) -> Option<GlobalAddress> + 'static,
    ) -> Client {
        let config = PoolConfig { tree: self.config, allocation: self.allocation, ..PoolConfig::default() };
        let mut device = self.network.device();
        let rkeys: Vec<u32> = self.servers.iter().map(|server| server.tree.rkey).collect();
        device.set_landing(move |key, target| {
            landing(key, target).map(|at| Remote { address: at.raw(), rkey: rkeys[usize::from(at.server())] })
        });
        let pool = Pool::new(device, config, self.roots(), u64::from(owner)).unwrap();
        for id in pool.connections() {
            let number = owner;
            self.connect(&pool, id, Owner { session: SESSION, number }, masked_atomics);
        }
        Rc::new(pool)
    }

    /// Connects a client that has a session with the server.
    pub(crate) fn connect(
        &mut self,
        pool: &Pool<PlainDevice>,
        id: ConnectionId,
        owner: Owner,
        masked_atomics: bool,
    ) {
        let server = &mut self.servers[usize::from(id.server)];
        let local = pool.open(id).unwrap();
        let queue_pair = server.device.create().unwrap();
        server.queue_pairs.push(queue_pair);
        server.device.connect(queue_pair, &local).unwrap();
        let endpoint = server.device.endpoint(queue_pair).unwrap();
        let remote = |region: Region| Remote { address: region.iova, rkey: region.rkey };
        let (locks, owners) = (remote(server.locks), remote(server.owners));
        let writer = Writer { locks, owners, count: self.locks, owner, masked_atomics, syncs: false };
        pool.set_writer(id.server, writer).unwrap();
        pool.connected(id, RemoteSide { endpoint, rkey: server.tree.rkey, registered: true }).unwrap();
    }

    /// Starts a server anew, with an empty tree or with the former one. Its lock table is empty, its memory has the same keys as before,
    /// and it knows none of its clients.
    pub(crate) fn restart(&mut self, server: u16, keeps_tree: bool) {
        let former = &mut self.servers[usize::from(server)];
        former.queue_pairs.drain(..).for_each(|queue_pair| former.device.destroy(queue_pair));
        let mut anew = Server::new(self.config, self.network.device(), server, former.partition.range);
        if keeps_tree {
            anew = anew.with_tree_of(former);
        }
        let rkeys = |server: &Server| [server.tree.rkey, server.locks.rkey, server.owners.rkey];
        assert_eq!(rkeys(&anew), rkeys(former), "a card may give keys again");
        self.servers[usize::from(server)] = anew;
    }

    /// Brings memory that a client asks for.
    pub(crate) fn serve(&self, client: &Client) {
        while let Some(event) = client.poll_event() {
            let (server, class) = match event {
                Event::MemoryWanted { server, class, .. } => (server, class),
                // The client's next change finishes it.
                Event::Unfinished { .. } => continue,
                Event::SyncWanted { .. } | Event::ConnectionBroken { .. } => panic!("{event:?}"),
            };
            let next = &self.servers[usize::from(server)].next_chunk;
            let at = next.get();
            if at + 2 * CHUNK > REGION {
                client.refuse_memory(server, class, Shortage::Region);
                continue;
            }
            next.set(at + CHUNK);
            let session = self.session.get();
            client.grant(session, GlobalAddress::new(server, at), CHUNK, class);
        }
    }

    /// Runs one operation to its end.
    pub(crate) fn run<T>(&self, client: &Client, work: impl Future<Output = T>) -> T {
        let mut work = Box::pin(work);
        let mut context = Context::from_waker(Waker::noop());
        let mut now = client.reactor().now();
        loop {
            if let Poll::Ready(value) = work.as_mut().poll(&mut context) {
                return value;
            }
            self.serve(client);
            if !client.turn(now) {
                now = client.poll_timeout().unwrap_or(now);
            }
        }
    }

    /// Does something with each partition's tree where it lies.
    pub(crate) fn each_tree(&self, mut work: impl FnMut(&Server, &Tree<'_>)) {
        let memories = self.servers.iter().map(|server| (server.partition.id, Arc::clone(&server.memory)));
        let regions = Regions::new(memories);
        for server in &self.servers {
            work(server, &Tree::new(&regions, &self.config, &server.partition()));
        }
    }

    /// All keys and values, by a walk over the leaves that checks each node's place in the tree, and that no record is marked but those
    /// which entries lead to.
    pub(crate) fn contents(&self) -> BTreeMap<u64, Vec<u8>> {
        let (mut found, mut named) = (BTreeMap::new(), BTreeMap::new());
        self.each_tree(|server, tree| {
            let mut keys = Vec::new();
            let mut next = Some(server.partition.range.low);
            tree.for_each_leaf(|leaf| {
                assert_eq!(Some(leaf.header().low), next, "leaves tile the keys");
                next = leaf.header().range().high;
                keys.extend(leaf.entries().map(|entry| entry.unwrap().0));
            })
            .unwrap();
            assert_eq!(next, server.partition.range.high);
            for key in keys {
                let value = tree.get(key).unwrap().expect("it was just there");
                assert!(found.insert(key, value).is_none(), "a key is in two leaves");
                named.extend(tree.record_of(key).unwrap().map(|record| (record.address, key)));
            }
        });
        assert_eq!(self.marked(), named, "who is led to a record that is marked takes its value");
        found
    }

    /// All records that a reader would accept when led to them, with their keys.
    fn marked(&self) -> BTreeMap<GlobalAddress, u64> {
        let mut marked = BTreeMap::new();
        for server in &self.servers {
            let mut bytes = vec![0; server.next_chunk.get() as usize];
            server.memory.read(0, &mut bytes).unwrap();
            for at in (0..bytes.len()).step_by(RECORD_ALIGN as usize) {
                let record = &bytes[at..];
                if is_record(record)
                    && let Some(key) = record.get(8..16).and_then(|key| key.first_chunk())
                    && read_hinted(record, u64::from_le_bytes(*key)).is_ok()
                {
                    let address = GlobalAddress::new(server.partition.id, at as u64);
                    marked.insert(address, u64::from_le_bytes(*key));
                }
            }
        }
        marked
    }

    /// All nodes: leaves first.
    pub(crate) fn nodes(&self) -> Vec<GlobalAddress> {
        let mut nodes = Vec::new();
        self.each_tree(|_, tree| tree.for_each_leaf(|leaf| nodes.push(leaf.header().address)).unwrap());
        self.each_tree(|_, tree| tree.for_each_internal(|node| nodes.push(node.header().address)).unwrap());
        nodes
    }

    /// Whether any partition has nodes on another server than its own.
    pub(crate) fn is_spread(&self) -> bool {
        let spread = Cell::new(false);
        self.each_tree(|server, tree| {
            let elsewhere = |address: GlobalAddress| address.server() != server.partition.id;
            let note = |address| spread.set(spread.get() || elsewhere(address));
            tree.for_each_leaf(|leaf| note(leaf.header().address)).unwrap();
            tree.for_each_internal(|node| note(node.header().address)).unwrap();
        });
        spread.get()
    }

    /// Leaves from left to right, with their lowest keys.
    pub(crate) fn leaves(&self) -> Vec<(u64, GlobalAddress)> {
        let mut leaves = Vec::new();
        self.each_tree(|_, tree| {
            tree.for_each_leaf(|leaf| leaves.push((leaf.header().low, leaf.header().address))).unwrap();
        });
        leaves
    }

    /// The leaves' parents, with their lowest keys.
    pub(crate) fn parents(&self) -> Vec<(u64, GlobalAddress)> {
        let mut parents = Vec::new();
        self.each_tree(|_, tree| {
            let note = |node: &InternalNode<'_>| {
                let header = node.header();
                parents.extend((header.level == 1).then_some((header.low, header.address)));
            };
            tree.for_each_internal(note).unwrap();
        });
        parents.sort_unstable();
        parents
    }

    /// All locks are free.
    pub(crate) fn assert_unlocked(&self, client: &Client) {
        for id in client.connections() {
            let queue_pair = client.queue_pair(id).unwrap();
            let rkey = self.servers[usize::from(id.server)].locks.rkey;
            for word in 0..self.locks / 4 {
                let from = Remote { address: u64::from(word) * 8, rkey };
                let read = fatbtree_verbs::Operation::Read { from, len: 8 };
                let [output] = client.reactor().block_on(client.reactor().chain(queue_pair, [read])).unwrap();
                let fatbtree_verbs::Output::Read(bytes) = output else { panic!() };
                assert_eq!(*bytes, [0; 8], "word {word}");
            }
        }
    }
}

/// Tiny nodes: values in line, wide, out of line and by their length, with line versions and with checksums; then leaves of buckets.
pub(crate) fn configs() -> Vec<TreeConfig> {
    let mut all = Vec::new();
    for integrity in [Integrity::LineVersions, Integrity::Checksums] {
        let layouts = [
            ValueLayout::Inline(8),
            ValueLayout::Inline(60),
            ValueLayout::OutOfLine,
            ValueLayout::SHORT,
            ValueLayout::ByLength(19),
            ValueLayout::ByLength(60),
        ];
        for values in layouts {
            let is_wide = matches!(values, ValueLayout::Inline(60) | ValueLayout::ByLength(60));
            let leaf_bytes = if is_wide { 64 * 7 } else { 64 * 3 };
            all.push(TreeConfig::with_integrity(4, leaf_bytes, values, integrity).unwrap());
        }
    }
    for integrity in [Integrity::LineVersions, Integrity::Checksums] {
        for values in
            [ValueLayout::Inline(8), ValueLayout::OutOfLine, ValueLayout::SHORT, ValueLayout::ByLength(20)]
        {
            let plain = TreeConfig::with_integrity(4, 64 * 5, values, integrity).unwrap();
            all.push(plain.with_leaves(LeafKind::Buckets).unwrap());
        }
    }
    all
}

/// Bytes as this tree takes them, each number its own.
pub(crate) fn value_of(config: &TreeConfig, number: u64) -> Vec<u8> {
    let len = match config.values() {
        ValueLayout::Inline(len) => usize::from(len),
        ValueLayout::OutOfLine | ValueLayout::ByLength(_) => (number % 50) as usize,
    };
    number.to_le_bytes().into_iter().cycle().take(len).collect()
}
