//! A memory server on a simulated machine: that of production, on a simulated card. It dies and is started anew, with its memory or
//! without, and another tree takes the place of the one that it has.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use fatbtree_blink::{GlobalAddress, KeyRange, Keys, Partition, Regions, Superblock, Tree, ValueLayout};
use fatbtree_blink_host::{
    BytePairs, LoadOptions, LoadedTree, TreeHandle, TreeInfo, TreeMailbox, TreeServer, bulk_load,
    bulk_load_bytes, varying,
};
use fatbtree_memserver::{
    ClientId, MemoryServer, Origin, Refusal, ServerOptions, SessionKey, chunk_classes_bytes, mailbox,
};
use fatbtree_remote_memory::session_keeper::{Call, Granted};
use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{
    Access, Agreed, Capabilities, ConnectError, Device, DeviceMemoryError, Endpoint, Memory, QueuePair,
    QueuePairState, Region, RegisterError,
};
use rand::RngExt as _;

use super::Scenario;
use crate::stage::options;
use crate::trees::litter::{self, Resolved};
use crate::trees::values;
use crate::world::{Machine, Random, random};

/// Bytes for what is written, beside what is loaded.
const SPARE: u64 = 2 << 20;
const CHUNK: u64 = 2 << 10;
/// Nodes, and slots of chunks, that are looked at in a turn.
const BUDGET: usize = 64;
/// Offset of the root's address in a superblock.
const ROOT: u64 = 8;
/// Requests that wait in a process's mailbox.
const MAIL: usize = 16;

/// A memory server, in all its lives.
pub(super) struct Server {
    pub(super) machine: Machine,
    scenario: Scenario,
    pub(super) id: u16,
    pub(super) range: KeyRange,
    /// The process; `None` if it has died.
    process: RefCell<Option<TreeServer<Card>>>,
    /// Both ends of the process's mailbox, as long as the process lives.
    mailbox: RefCell<Option<(TreeHandle, TreeMailbox)>>,
    /// The tree, which outlives the process where it has a folder.
    kept: RefCell<Option<LoadedTree>>,
    /// Sessions that were opened, some of which have ended.
    opened: RefCell<Vec<SessionKey>>,
    /// Sessions that lapsed in former lives.
    lapsed: Cell<u64>,
    /// The root in its superblock before that was torn.
    torn: Cell<Option<GlobalAddress>>,
    /// Keys that stale switches lead to litter.
    pub(super) landings: RefCell<Vec<Resolved>>,
}

impl Server {
    /// A server without a process.
    pub(super) fn new(machine: Machine, scenario: &Scenario, id: u16) -> Self {
        Self {
            machine,
            scenario: scenario.clone(),
            id,
            range: scenario.range_of(id),
            process: RefCell::default(),
            mailbox: RefCell::default(),
            kept: RefCell::default(),
            opened: RefCell::default(),
            lapsed: Cell::new(0),
            torn: Cell::new(None),
            landings: RefCell::default(),
        }
    }

    /// Runs `work` on the process, if it lives.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut TreeServer<Card>) -> T) -> Option<T> {
        self.process.borrow_mut().as_mut().map(work)
    }

    /// The memory of its tree, also when it has died.
    pub(super) fn memory(&self) -> Option<Arc<Memory>> {
        self.kept.borrow().as_ref().map(|kept| Arc::clone(&kept.region))
    }

    /// The partition as its superblock tells it now.
    pub(super) fn superblock(&self) -> Option<Partition> {
        let mut line = [0; 64];
        self.memory()?.read(0, &mut line).ok()?;
        Some(Superblock::parse(&line).ok()?.partition)
    }

    /// Leaves the superblock as a WRITE that was cut short would: the root of the next one, and nothing else of it.
    pub(super) fn tear_superblock(&self, root: GlobalAddress) {
        if let (Some(memory), Some(partition)) = (self.memory(), self.superblock())
            && memory.write(ROOT, &root.raw().to_le_bytes()).is_ok()
        {
            self.torn.set(Some(partition.root));
        }
    }

    /// Makes the superblock whole again.
    pub(super) fn mend_superblock(&self) {
        if let (Some(memory), None, Some(root)) = (self.memory(), self.superblock(), self.torn.take()) {
            let mended = memory.write(ROOT, &root.raw().to_le_bytes());
            mended.expect("a region has a first line");
        }
    }

    // ---- its lives ----

    /// A tree with these pairs, their values given by the words that name them.
    fn load(&self, pairs: &[(u64, u64)]) -> LoadedTree {
        let (config, range) = (self.scenario.config, self.range);
        let word = |key| pairs[pairs.partition_point(|(found, _)| *found < key)].1;
        let length = |key| match config.values() {
            ValueLayout::Inline(bytes) => bytes.into(),
            // The same whenever it is asked for, and so the same as other values have.
            ValueLayout::OutOfLine | ValueLayout::ByLength(_) => {
                8 + (word(key) % (self.scenario.longest as u64 - 7)) as u32
            }
        };
        let fill = |key, room: &mut [u8]| values::fill(key, word(key), room);
        let options = LoadOptions { range, spare_bytes: SPARE, ..LoadOptions::new(config, self.id) };
        let built = match config.keys() {
            Keys::Numbers => {
                let keys: Vec<u64> = pairs.iter().map(|(key, _)| *key).collect();
                bulk_load(&options, &keys, &mut varying(length, fill))
            }
            Keys::Bytes => {
                let mut made = BytePairs::default();
                for (key, _) in pairs {
                    let mut value = vec![0; length(*key) as usize];
                    fill(*key, &mut value);
                    made.push(&self.scenario.bytes_of(*key), &value).expect("they are short");
                }
                bulk_load_bytes(&options, &made)
            }
        };
        let mut tree = built.expect("there is memory for a small tree");
        if self.scenario.littered > 0 {
            // At the same place in each load: switches that were not told of a load lead to the same pieces as before.
            assert!(tree.spare.start <= litter::FROM, "a tree that was loaded ends before the litter");
            tree.spare.start = litter::FROM + litter::BYTES;
            let keys = self.scenario.keys_of(self.id).map(|number| self.scenario.key(number));
            let random = &mut random(self.scenario.seed, 80 + u64::from(self.id));
            let place = GlobalAddress::new(self.id, litter::FROM);
            *self.landings.borrow_mut() = litter::scatter(&config, &tree.region, place, keys, random);
        }
        let kinds = Memory::shared(chunk_classes_bytes(tree.spare.end - tree.spare.start, CHUNK));
        LoadedTree { chunk_classes: Some(kinds.expect("there is memory for a table")), ..tree }
    }

    fn keep(&self, tree: &LoadedTree) {
        *self.kept.borrow_mut() = Some(tree.clone());
    }

    /// Starts the process on a machine that has just booted, with the tree that was kept, or with a new one of these pairs.
    pub(super) fn begin(&self, pairs: &[(u64, u64)], random: &mut Random) {
        let kept = self.kept.borrow_mut().take();
        let tree = match kept {
            Some(kept) => {
                let mut line = [0; 64];
                kept.region.read(0, &mut line).expect("a region has a first line");
                let superblock = Superblock::parse(&line).expect("it is written whole");
                let partition = superblock.partition;
                let config = superblock.config.with_code(self.scenario.config.code());
                LoadedTree { partition, config, origin: Origin::Meant, ..kept }
            }
            None => self.load(pairs),
        };
        self.keep(&tree);
        let options = ServerOptions {
            access: ServerOptions::writable().access,
            lock_table_bytes: u64::from(self.scenario.locks) * 2,
            reclaim_every: Duration::from_micros(200),
            ..options(CHUNK, self.scenario.lease)
        };
        let card = Card(self.machine.clone());
        let process = MemoryServer::new(card, tree, &options, random.random_range(0..=u64::MAX));
        let mut process = process.expect("the tree goes with the card");
        // Where the numbers of owners begin, others may have been before.
        let host = [127, 0, 0, 1].into();
        for _ in 0..random.random_range(0..=self.scenario.strangers) {
            let client = ClientId { host, roce: [127, 0, 0, 1].into() };
            let lease = process.open_session(self.machine.now(), client).expect("there is room");
            process.close_session(self.machine.now(), lease.session).expect("it was opened");
        }
        *self.process.borrow_mut() = Some(process);
        *self.mailbox.borrow_mut() = Some(mailbox(MAIL));
    }

    /// Whether the tree that was kept can be walked, which a server makes sure of before it serves a tree from its folder.
    pub(super) fn is_whole(&self) -> bool {
        if self.scenario.hostile.is_none() {
            // Parts of it may lie on other servers.
            return true;
        }
        let (Some(memory), Some(partition)) = (self.memory(), self.superblock()) else { return false };
        let memory = Regions::new([(self.id, memory)]);
        let tree = Tree::new(&memory, &self.scenario.config, &partition);
        tree.for_each_internal(|_| {}).and_then(|()| tree.for_each_leaf(|_| {})).is_ok()
    }

    /// The tree that was kept is thrown away.
    pub(super) fn forget(&self) {
        self.kept.borrow_mut().take();
    }

    /// Asks the process, if it lives.
    pub(super) fn handle(&self) -> Option<TreeHandle> {
        self.mailbox.borrow().as_ref().map(|(handle, _)| handle.clone())
    }

    /// The process dies, and its memory with it unless it is kept. What its card has begun to write is written.
    pub(super) fn die(&self, keeps_memory: bool) {
        self.lapsed.set(self.lapsed());
        if let Some(mut process) = self.process.borrow_mut().take() {
            let rkey = process.info().region.rkey;
            process.device_mut().deregister(rkey);
        }
        if !keeps_memory {
            self.forget();
        }
        self.mailbox.borrow_mut().take();
        self.opened.borrow_mut().clear();
        self.machine.kill();
    }

    /// Replaces the server's tree by another one with these pairs.
    pub(super) fn replace(&self, pairs: &[(u64, u64)]) {
        let tree = self.load(pairs);
        self.keep(&tree);
        let installed = self.with(|process| process.install(self.machine.now(), tree));
        installed.expect("it lives").expect("the tree goes with the card");
    }

    /// Does the work that the process has by itself.
    pub(super) fn work(&self) {
        self.with(|process| {
            if let Some((_, mailbox)) = &mut *self.mailbox.borrow_mut() {
                mailbox.answer(self.machine.now(), process);
            }
            process.work(self.machine.now(), BUDGET);
            while process.poll_event().is_some() {}
        });
    }

    /// Sessions that have ended because they were not renewed, in all lives.
    pub(super) fn lapsed(&self) -> u64 {
        let count = |process: &mut TreeServer<Card>| {
            let found = process.statistics().into_iter().find(|(name, _)| name == "sessions_lapsed");
            found.map_or(0, |(_, count)| count)
        };
        self.lapsed.get() + self.with(count).unwrap_or(0)
    }

    // ---- what it does when it is asked ----

    /// Carries out a call of a client's keeper; `None` if the process has died.
    pub(super) fn carry_out(
        &self,
        client: &Machine,
        call: Call,
    ) -> Option<Result<Granted<TreeInfo>, Refusal>> {
        let roce = client.reactor().with(|card| card.address());
        let answer = self.with(|process| {
            process.carry_out(self.machine.now(), ClientId { host: roce.into(), roce }, call)
        });
        if let Some(Ok(Granted::Opened(opened))) = &answer {
            self.opened.borrow_mut().push(SessionKey { host: roce.into(), id: opened.session });
        }
        answer
    }

    /// Ends a session although its client is well.
    pub(super) fn end_one(&self, random: &mut Random) {
        let mut opened = self.opened.borrow_mut();
        if !opened.is_empty() {
            let number = random.random_range(0..opened.len());
            let session = opened.swap_remove(number);
            let ended = self.with(|process| process.close_session(self.machine.now(), session).is_ok());
            self.lapsed.set(self.lapsed.get() + u64::from(ended == Some(true)));
        }
    }
}

/// The card of a server's machine. Queue pairs that break are told to the machine's reactor first.
#[derive(Debug)]
pub(super) struct Card(Machine);

impl Device for Card {
    fn capabilities(&self) -> Capabilities {
        self.0.reactor().with(|card| card.capabilities())
    }

    fn register(&mut self, memory: &Arc<Memory>, iova: u64, access: Access) -> Result<Region, RegisterError> {
        self.0.reactor().with(|card| card.register(memory, iova, access))
    }

    fn register_device_memory(
        &mut self,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Region, RegisterError> {
        self.0.reactor().with(|card| card.register_device_memory(len, iova, access))
    }

    fn read_device_memory(&self, rkey: u32, offset: u64, into: &mut [u8]) -> Result<(), DeviceMemoryError> {
        self.0.reactor().with(|card| card.read_device_memory(rkey, offset, into))
    }

    fn deregister(&mut self, rkey: u32) {
        self.0.reactor().with(|card| card.deregister(rkey));
    }

    fn create(&mut self) -> Result<QueuePair, ConnectError> {
        self.0.reactor().with(|card| card.create())
    }

    fn endpoint(&self, queue_pair: QueuePair) -> Result<Endpoint, ConnectError> {
        self.0.reactor().with(|card| card.endpoint(queue_pair))
    }

    fn connect(&mut self, queue_pair: QueuePair, remote: &Endpoint) -> Result<Agreed, ConnectError> {
        self.0.reactor().with(|card| card.connect(queue_pair, remote))
    }

    fn state(&self, queue_pair: QueuePair) -> Option<QueuePairState> {
        self.0.reactor().with(|card| card.state(queue_pair))
    }

    fn destroy(&mut self, queue_pair: QueuePair) {
        self.0.reactor().with(|card| card.destroy(queue_pair));
    }

    fn poll_broken(&mut self) -> Option<QueuePair> {
        self.0.reactor().poll_broken().map(|broken| broken.queue_pair)
    }
}
