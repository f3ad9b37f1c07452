//! Snapshots of a tree that others write to meanwhile.
use crate::common;

use std::collections::BTreeMap;
use std::sync::Arc;

use fatbtree_blink::node::{LINE, Node, NodeHeader, NodeSpec, next_version, write_internal};
use fatbtree_blink::{
    GlobalAddress, KeyRange, Partition, Superblock, Tree, TreeConfig, TreeTop, ValueLayout, WalkError,
};
use fatbtree_blink_host::{LoadOptions, LoadedTree, SnapshotError, TreeRequest, TreeServer, WalkLimits};
use fatbtree_memserver::{MemoryServer, Request, ServerOptions};
use fatbtree_verbs::Memory;
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::Instant;
use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tokio::sync::oneshot;

type Answer = oneshot::Receiver<Result<Arc<TreeTop>, SnapshotError>>;

const NOW: Instant = Instant::ZERO;

fn config() -> TreeConfig {
    TreeConfig::new(5, 256, ValueLayout::Inline(8)).unwrap()
}

fn server(keys: u64, options: ServerOptions) -> TreeServer<PlainDevice> {
    bounded_server(keys, options, WalkLimits::default())
}

fn bounded_server(keys: u64, options: ServerOptions, walks: WalkLimits) -> TreeServer<PlainDevice> {
    let load = LoadOptions { spare_bytes: 1 << 20, ..LoadOptions::new(config(), 2) };
    let tree = common::load(&load, &(0..keys).map(|key| key * 10).collect::<Vec<_>>());
    let tree = LoadedTree { walks, ..tree };
    MemoryServer::new(PlainNetwork::new().device(), tree, &options, 1).unwrap()
}

fn ask(server: &mut TreeServer<PlainDevice>) -> Answer {
    let (reply, answer) = oneshot::channel();
    server.handle(NOW, Request::Tenant(TreeRequest::Snapshot(reply)));
    answer
}

/// Lets the server work until it has nothing more to read.
fn finish(server: &mut TreeServer<PlainDevice>) -> u32 {
    let mut turns = 0;
    while server.work(NOW, 7) {
        turns += 1;
        assert!(turns < 100_000, "it never ends");
    }
    turns
}

/// A client that writes internal nodes, as one with locks would: a node at a time, line by line.
struct Writer {
    memory: Arc<Memory>,
    partition: Partition,
    /// Offset of the next new node.
    free: u64,
    random: ChaCha8Rng,
    /// Lines still to be written, the first one first.
    pending: Vec<(u64, [u8; LINE])>,
    splits: u64,
}

struct Parsed {
    header: NodeHeader,
    children: Vec<(u64, GlobalAddress)>,
}

impl Writer {
    fn new(server: &TreeServer<PlainDevice>, seed: u64) -> Self {
        let memory = Arc::clone(server.memory());
        let free = memory.len() - (1 << 20) - 256;
        Self {
            memory,
            partition: server.info().partition,
            free,
            random: ChaCha8Rng::seed_from_u64(seed),
            pending: vec![],
            splits: 0,
        }
    }

    fn read(&self, address: GlobalAddress) -> Parsed {
        let mut bytes = vec![0; config().internal_bytes() as usize];
        self.memory.read(address.offset(), &mut bytes).unwrap();
        match Node::read(&config(), &bytes) {
            Ok(Node::Internal(node)) => {
                Parsed { header: *node.header(), children: node.children().collect() }
            }
            other => panic!("{address}: {other:?}"),
        }
    }

    /// A random internal node above the leaves.
    fn any_node(&mut self) -> GlobalAddress {
        let key = self.random.random_range(0..5000);
        let mut at = self.partition.root;
        let level = self.random.random_range(1..=self.partition.root_level);
        loop {
            let node = self.read(at);
            if node.header.range().is_below(key) {
                at = node.header.sibling;
            } else if node.header.level == level {
                return at;
            } else {
                at = node.children.iter().rev().find(|(pivot, _)| *pivot <= key).unwrap().1;
            }
        }
    }

    /// Queues a node's lines before all others, in any order: the node is torn until the last of them is written.
    fn write(&mut self, spec: &NodeSpec, children: &[(u64, GlobalAddress)]) {
        let mut bytes = vec![0; config().internal_bytes() as usize];
        self.memory.read(spec.address.offset(), &mut bytes).unwrap();
        let version = next_version(&bytes);
        write_internal(&mut bytes, &NodeSpec { version, ..*spec }, children, config().integrity());
        let mut lines: Vec<(u64, [u8; LINE])> = bytes
            .chunks_exact(LINE)
            .enumerate()
            .map(|(at, line)| (spec.address.offset() + (at * LINE) as u64, line.try_into().unwrap()))
            .collect();
        for at in (1..lines.len()).rev() {
            lines.swap(at, self.random.random_range(0..=at));
        }
        lines.extend(std::mem::take(&mut self.pending));
        self.pending = lines;
    }

    /// Rewrites a node, or splits it: the new right half first, then the left one. Parents learn nothing of it.
    fn begin(&mut self) {
        let address = self.any_node();
        let Parsed { header, children } = self.read(address);
        let spec = NodeSpec {
            address,
            level: header.level,
            range: header.range(),
            sibling: header.sibling,
            version: 0,
        };
        if children.len() < 2 || self.random.random_range(0..3) == 0 {
            self.write(&spec, &children);
            return;
        }
        self.splits += 1;
        let (left, right) = children.split_at(children.len() / 2);
        let middle = right[0].0;
        let new = GlobalAddress::new(address.server(), self.free);
        self.free += u64::from(config().internal_bytes());
        if address == self.partition.root {
            self.grow(header.level + 1, (header.low, address), (middle, new));
        }
        // Queued last, written first.
        let left_range = KeyRange { high: Some(middle), ..spec.range };
        self.write(&NodeSpec { range: left_range, sibling: new, ..spec }, left);
        let right_range = KeyRange { low: middle, ..spec.range };
        self.write(&NodeSpec { address: new, range: right_range, ..spec }, right);
    }

    /// A new root over both halves of the old one.
    fn grow(&mut self, level: u8, left: (u64, GlobalAddress), right: (u64, GlobalAddress)) {
        let address = GlobalAddress::new(left.1.server(), self.free);
        self.free += u64::from(config().internal_bytes());
        let mut line = [0; LINE];
        self.memory.read(0, &mut line).unwrap();
        let mut superblock = Superblock::parse(&line).unwrap();
        superblock.version = superblock.version.wrapping_add(1);
        (superblock.partition.root, superblock.partition.root_level) = (address, level);
        self.pending.push((0, superblock.to_bytes()));
        let spec = NodeSpec {
            address,
            level,
            range: self.partition.range,
            sibling: GlobalAddress::NULL,
            version: 0,
        };
        self.write(&spec, &[left, right]);
        self.partition = superblock.partition;
    }

    /// Writes some lines.
    fn step(&mut self, lines: usize) {
        for _ in 0..lines {
            if self.pending.is_empty() {
                self.begin();
            }
            let (offset, line) = self.pending.remove(0);
            self.memory.write(offset, &line).unwrap();
        }
    }

    /// Writes all that was begun.
    fn settle(&mut self) {
        for (offset, line) in std::mem::take(&mut self.pending) {
            self.memory.write(offset, &line).unwrap();
        }
    }
}

/// Every key is led to its leaf by the snapshot alone, going right where a split has moved it.
fn leads_every_key_home(top: &TreeTop, tree: &Tree<'_>, keys: impl Iterator<Item = u64>) {
    let places: BTreeMap<u64, usize> =
        top.nodes.iter().enumerate().map(|(place, node)| (node.address, place)).collect();
    assert_eq!(places.len(), top.nodes.len(), "a node is listed twice");
    for key in keys {
        let mut at = top.partition.root.raw();
        let mut level = top.partition.root_level;
        while level > 0 {
            let mut place =
                *places.get(&at).unwrap_or_else(|| panic!("{at:#x} of level {level} is not there"));
            // The parent was read before the child was split.
            while top.nodes.get(place + 1).is_some_and(|right| right.level == level && right.low() <= key) {
                place += 1;
            }
            let node = &top.nodes[place];
            assert_eq!(node.level, level);
            at = node.children.iter().rev().find(|(pivot, _)| *pivot <= key).unwrap_or(&node.children[0]).1;
            level -= 1;
        }
        let home = tree.find_node_path(key).unwrap().pop().unwrap().address;
        assert_eq!(GlobalAddress(at), home, "key {key}: no leaf was split");
    }
}

#[test]
fn a_tree_that_stands_still_is_shown_whole() {
    for keys in [0, 1, 5, 100, 5000] {
        let mut server = server(keys, ServerOptions::default());
        let mut answer = ask(&mut server);
        assert!(answer.try_recv().is_err(), "nothing is read before work()");
        let turns = finish(&mut server);
        let top = answer.try_recv().unwrap().unwrap();
        let info = *server.info();
        assert_eq!((top.partition, top.nodes.len() as u64), (info.partition, info.counts.internal_nodes));
        assert_eq!(u64::from(turns), info.counts.internal_nodes / 7, "a few nodes at a time");
        let memory = fatbtree_blink::Regions::new([(2, Arc::clone(server.memory()))]);
        let tree = Tree::new(&memory, &info.config, &info.partition);
        leads_every_key_home(&top, &tree, (0..50_000).step_by(7));
    }
}

#[test]
fn a_tree_that_is_rewritten_and_split_meanwhile_is_shown_as_it_was_at_about_one_moment() {
    let mut splits = 0;
    let mut levels = std::collections::BTreeSet::new();
    for seed in 0..60 {
        let mut server = server(500, ServerOptions::default());
        let mut writer = Writer::new(&server, seed);
        for round in 0..6 {
            let mut answer = ask(&mut server);
            let mut turns = 0;
            while server.work(NOW, 1 + (seed as usize + round) % 4) {
                writer.step(1 + round);
                turns += 1;
                assert!(turns < 20_000, "it never ends");
            }
            let top = answer.try_recv().unwrap().unwrap();
            writer.settle();
            // The superblock is seen with the next turn.
            server.work(NOW, 1);
            assert_eq!(server.info().partition, writer.partition);
            levels.insert(top.partition.root_level);
            let memory = fatbtree_blink::Regions::new([(2, Arc::clone(server.memory()))]);
            let tree = Tree::new(&memory, &config(), &writer.partition);
            leads_every_key_home(&top, &tree, (0..5000).step_by(3));
        }
        splits += writer.splits;
    }
    assert!(splits > 500, "{splits} splits");
    assert!(levels.len() > 1, "roots were split, too: {levels:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// A client with write access may write anything to tree memory: a snapshot of it may fail, and no more.
    #[test]
    fn garbage_in_the_tree_neither_panics_nor_loops(
        writes in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>(), 0..4_u8), 1..40),
        snapshots in 1..4_usize,
    ) {
        let mut server = server(200, ServerOptions::default());
        let info = *server.info();
        let memory = Arc::clone(server.memory());
        let nodes = info.counts.leaf_nodes * 256 + info.counts.internal_nodes * 128;
        let words = ((64 + nodes) / 8) as usize;
        for (index, (place, word, kind)) in writes.into_iter().enumerate() {
            let at = place.index(words) as u64 * 8;
            let found = memory.update(at, |found| match kind {
                // Anything, a pointer or key of the tree, a bit of what is there, a header of a node.
                0 => word,
                1 => GlobalAddress::new(2, 64 + word % nodes / 128 * 128).raw(),
                2 => found ^ 1 << (word % 64),
                _ => u64::from_le_bytes([word as u8, (word >> 8) as u8 % 5, 0x7e, 0xfb, 0, 0, 5, 0]),
            });
            found.unwrap();
            if index % 9 == 0 {
                server.work(NOW, 3);
            }
        }
        for _ in 0..snapshots {
            let mut answer = ask(&mut server);
            finish(&mut server);
            match answer.try_recv().unwrap() {
                Ok(top) => prop_assert!(top.nodes.len() as u64 <= nodes / 8),
                Err(error) => prop_assert!(matches!(error, SnapshotError::Unreadable { .. }), "{}", error),
            }
        }
    }
}

#[test]
fn requests_share_a_reading_and_are_bounded() {
    let walks = WalkLimits { snapshot_requests: 4, ..WalkLimits::default() };
    let mut server = bounded_server(1000, ServerOptions::default(), walks);
    let mut first = ask(&mut server);
    server.work(NOW, 1);
    // Requests that come while it is read see all that was written before them: they share the next one.
    let mut later: Vec<_> = (0..3).map(|_| ask(&mut server)).collect();
    let mut refused = ask(&mut server);
    assert_eq!(refused.try_recv().unwrap(), Err(SnapshotError::Busy { waiting: 4 }));
    finish(&mut server);
    let first = first.try_recv().unwrap().unwrap();
    let tops: Vec<_> = later.iter_mut().map(|answer| answer.try_recv().unwrap().unwrap()).collect();
    assert!(tops.iter().all(|top| Arc::ptr_eq(top, &tops[0])) && !Arc::ptr_eq(&first, &tops[0]));
    let counter = |server: &TreeServer<_>, name| {
        server.statistics().into_iter().find(|(found, _)| found == name).unwrap().1
    };
    assert_eq!(counter(&server, "snapshots"), 2);

    // A caller that has gone takes no place, and nothing is read without a caller.
    for _ in 0..20 {
        drop(ask(&mut server));
    }
    assert!(!server.work(NOW, 1));
    let gone = ask(&mut server);
    assert!(server.work(NOW, 1));
    drop(gone);
    assert!(!server.work(NOW, 1));
    assert_eq!(counter(&server, "snapshots"), 2);
}

#[test]
fn a_top_that_cannot_be_read_is_an_error_and_not_a_loop() {
    let walks = WalkLimits { snapshot_nodes: 20, ..WalkLimits::default() };
    let mut small = bounded_server(1000, ServerOptions::default(), walks);
    let mut answer = ask(&mut small);
    finish(&mut small);
    let too_many = SnapshotError::Unreadable { tries: 1, error: WalkError::TooMany { limit: 20 } };
    assert_eq!(answer.try_recv().unwrap(), Err(too_many));

    let mut server = server(1000, ServerOptions::default());
    let mut answer = ask(&mut server);
    finish(&mut server);
    let node = GlobalAddress(answer.try_recv().unwrap().unwrap().nodes[5].address);
    server.memory().write(node.offset() + 64, &[99]).unwrap();
    let mut answer = ask(&mut server);
    finish(&mut server);
    let error = answer.try_recv().unwrap().unwrap_err();
    assert!(matches!(error, SnapshotError::Unreadable { tries: 16, .. }), "{error}");
    assert!(error.to_string().contains("torn read"), "{error}");
}
