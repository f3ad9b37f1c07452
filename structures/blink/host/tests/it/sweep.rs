//! A server finds what no leaf leads to and no client has: after a start, and beside clients.
use crate::common;

use common::lab::SERVER;
use fatbtree_blink::node::{EntryValue, LINE, LeafBuilder, LeafNode, NodeSpec, mark_free, set_partner};
use fatbtree_blink::record::{RecordPointer, place_bytes, published, record_bytes, write_record};
use fatbtree_blink::size_class::{LEAVES, RECORDS};
use fatbtree_blink::{GlobalAddress, KeyRange, TreeConfig, ValueLayout};
use fatbtree_blink_host::{LoadOptions, LoadedTree, TreeServer};
use fatbtree_memserver::{
    ClientId, Grant, MemoryServer, ServerOptions, SessionKey, SizeClass, chunk_classes_bytes,
};
use fatbtree_verbs::Memory;
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::{Duration, Instant};

const CHUNK: u64 = 64 << 10;
const VALUE: u32 = 100;
const PLACE: u32 = place_bytes(VALUE);

/// A leaf as it was read: its address, keys, and entries.
type Leaf = (GlobalAddress, KeyRange, Vec<(u64, RecordPointer)>);

/// A server of a tree with records, to which clients are played: they write its memory.
struct Lab {
    tree: LoadedTree,
    server: TreeServer<PlainDevice>,
    now: Instant,
}

fn serve(tree: &LoadedTree) -> TreeServer<PlainDevice> {
    let reclaim_every = Duration::from_nanos(1);
    let options = ServerOptions { chunk_bytes: CHUNK, reclaim_every, ..ServerOptions::writable() };
    MemoryServer::new(PlainNetwork::new().device(), tree.clone(), &options, 1).unwrap()
}

impl Lab {
    /// 300 keys from 1,000 on, in leaves that are half full.
    fn new() -> Self {
        let config = TreeConfig::new(16, 1024, ValueLayout::OutOfLine).unwrap();
        let spare_bytes = 10 * CHUNK;
        let options = LoadOptions { spare_bytes, fill: 0.4, ..LoadOptions::new(config, SERVER) };
        let tree = common::load(&options, &(1000..1300).collect::<Vec<_>>());
        let spare = tree.spare.end - tree.spare.start;
        let classes = Memory::shared(chunk_classes_bytes(spare, CHUNK)).unwrap();
        let tree = LoadedTree { chunk_classes: Some(classes), ..tree };
        Self { server: serve(&tree), tree, now: Instant::ZERO }
    }

    fn restart(&mut self) {
        self.server = serve(&self.tree);
    }

    fn work(&mut self) {
        for _ in 0..2_000 {
            self.step();
        }
    }

    fn step(&mut self) {
        self.now += Duration::from_micros(1);
        self.server.work(self.now, 1);
    }

    fn open(&mut self) -> SessionKey {
        let client = ClientId { host: [127, 0, 0, 1].into(), roce: [10, 0, 0, 1].into() };
        self.server.open_session(self.now, client).unwrap().session
    }

    fn close(&mut self, session: SessionKey) {
        self.server.close_session(self.now, session).unwrap();
    }

    fn take(&mut self, session: SessionKey, class: SizeClass, bytes: u32) -> Grant {
        self.server.allocate(self.now, session, class, bytes).unwrap()
    }

    fn chunk(&mut self, session: SessionKey, class: SizeClass, bytes: u32) -> GlobalAddress {
        match self.take(session, class, bytes) {
            Grant::Chunk(chunk) => chunk.address,
            Grant::Blocks(blocks) => panic!("no block should be free: {blocks:?}"),
        }
    }

    fn put(&self, at: GlobalAddress, bytes: &[u8]) {
        self.server.memory().write(at.offset(), bytes).unwrap();
    }

    fn record(&self, at: GlobalAddress, key: u64) -> RecordPointer {
        let mut record = vec![0; record_bytes(VALUE) as usize];
        write_record(&mut record, key, 1, published(1), |value| value.fill(0));
        self.put(at, &record);
        RecordPointer { address: at, length: VALUE, version: 1 }
    }

    fn leaves(&self) -> Vec<Leaf> {
        let memory = common::memory(&self.tree);
        let mut leaves = vec![];
        let read = |leaf: &LeafNode<'_>| {
            let entries = leaf.entries().map(|entry| match entry.unwrap() {
                (key, EntryValue::Record(record)) => (key, record),
                (key, EntryValue::Inline(_) | EntryValue::Layer(_)) => {
                    panic!("the value of {key} is out of line")
                }
            });
            leaves.push((leaf.header().address, leaf.header().range(), entries.collect()));
        };
        common::walk(&self.tree, &memory).for_each_leaf(read).unwrap();
        leaves
    }

    /// Writes a leaf, as a client would.
    fn put_leaf(&self, (address, range, entries): &Leaf, sibling: GlobalAddress, partner: GlobalAddress) {
        let mut node = vec![0; 1024];
        self.server.memory().read(address.offset(), &mut node).unwrap();
        let version = fatbtree_blink::node::next_version(&node);
        let spec = NodeSpec { address: *address, level: 0, range: *range, sibling, version };
        let mut builder = LeafBuilder::new(&mut node, self.tree.config.leaf_shape(), spec);
        entries.iter().for_each(|(key, record)| builder.push_record(*key, *record));
        builder.finish();
        set_partner(node.first_chunk_mut().unwrap(), partner);
        self.put(*address, &node);
    }

    fn free_leaf(&self, address: GlobalAddress) {
        let mut line = [0; LINE];
        self.server.memory().read(address.offset(), &mut line).unwrap();
        mark_free(&mut line);
        self.put(address, &line);
    }

    fn count(&self, name: &str) -> u64 {
        let all = self.server.statistics();
        all.into_iter().find(|(found, _)| found == name).unwrap().1
    }
}

fn behind(at: GlobalAddress, bytes: u64) -> GlobalAddress {
    GlobalAddress(at.raw() + bytes)
}

/// Two records to which no leaf leads, one to which one does, and a freed node: what a client leaves that dies.
fn left() -> (Lab, SessionKey, [GlobalAddress; 2]) {
    let mut lab = Lab::new();
    let session = lab.open();
    let records = lab.chunk(session, RECORDS, PLACE);
    let node = lab.chunk(session, LEAVES, 0);
    for at in 0..2 {
        lab.record(behind(records, at * u64::from(PLACE)), 1000);
    }
    let linked = lab.record(behind(records, 2 * u64::from(PLACE)), 1299);
    let leaves = lab.leaves();
    let last = leaves.last().unwrap();
    let mut leaf = last.clone();
    leaf.2.last_mut().unwrap().1 = linked;
    lab.put_leaf(&leaf, GlobalAddress::NULL, GlobalAddress::NULL);
    lab.put_leaf(&(node, KeyRange::ALL, vec![]), GlobalAddress::NULL, GlobalAddress::NULL);
    lab.free_leaf(node);
    (lab, session, [records, node])
}

/// However the process has ended: the blocks are found in the region.
#[test]
fn what_nothing_leads_to_is_free_again_after_a_start() {
    let (mut lab, _, [records, node]) = left();
    lab.restart();
    // Those of the record that was linked instead of another one, too.
    assert_eq!((lab.count("free_blocks"), lab.count("chunks_published")), (4, 2));
    let session = lab.open();
    let Grant::Blocks(blocks) = lab.take(session, RECORDS, PLACE) else { panic!("two records are free") };
    assert_eq!(blocks.addresses, [records, behind(records, PLACE.into())]);
    let Grant::Blocks(blocks) = lab.take(session, LEAVES, 0) else { panic!("a node is free") };
    assert_eq!(blocks.addresses, [node]);
    // What was never written to is free, too.
    assert_eq!(lab.chunk(session, RECORDS, PLACE), behind(records, 3 * u64::from(PLACE)));
    assert_eq!(lab.chunk(session, LEAVES, 0), behind(node, 1024));
}

#[test]
fn what_a_client_leaves_that_dies_is_found_beside_one_that_settles() {
    let (mut lab, session, _) = left();
    let other = lab.open();
    lab.close(session);
    lab.work();
    assert_eq!(lab.count("blocks_reclaimed"), 0, "the other one may have them");
    for _ in 0..2 {
        let wait = lab.server.renew_session(lab.now, other).unwrap().wait;
        assert!(wait > 0);
        lab.server.renew_settled(lab.now, other, wait).unwrap();
        lab.work();
    }
    assert_eq!((lab.count("blocks_reclaimed"), lab.count("region_bytes_lost")), (4, 0));
}

/// A leaf and its right neighbour, when the walk of a sweep has just passed the first one; and a record that nothing leads to.
fn between(lab: &mut Lab) -> (Vec<Leaf>, usize) {
    let session = lab.open();
    let records = lab.chunk(session, RECORDS, PLACE);
    lab.record(records, 1000);
    lab.close(session);
    let leaves = lab.leaves();
    let at = leaves.len() / 2;
    // Looks at the rest of the chunk first, and begins.
    while lab.count("chunk_tails_came_back") == 0 {
        lab.step();
    }
    (leaves, at)
}

/// A merge moves entries to the left, where the walk has been.
#[test]
fn records_are_found_in_use_whose_leaf_is_merged_away_during_the_walk() {
    for steps in 0..24 {
        let mut lab = Lab::new();
        let (leaves, at) = between(&mut lab);
        (0..steps).for_each(|_| lab.step());
        let (left, right) = (&leaves[at], &leaves[at + 1]);
        let range = KeyRange { low: left.1.low, high: right.1.high };
        let union = (left.0, range, left.2.iter().chain(&right.2).copied().collect());
        let next = leaves[at + 2].0;
        lab.put_leaf(&union, next, right.0);
        lab.free_leaf(right.0);
        lab.put_leaf(&union, next, GlobalAddress::NULL);
        lab.work();
        // The record that nothing leads to, and the right leaf, if it was freed before the sweep came there.
        let found = lab.count("blocks_reclaimed");
        assert!((1..=2).contains(&found), "{found} after {steps} steps");
    }
}

/// A split that stopped half-way: the upper leaf has changed since, and only the lower one's partner leads to it.
#[test]
fn records_are_found_in_use_whose_leaf_is_known_as_a_partner_only() {
    let (mut lab, _, [records, node]) = left();
    let leaves = lab.leaves();
    let (at, new) = (leaves.len() / 2, lab.record(behind(records, 3 * u64::from(PLACE)), 1_000));
    let (lower, next) = (&leaves[at], leaves[at + 1].0);
    let middle = lower.2.len() / 2;
    let (from, high) = (lower.2[middle].0, lower.1.high);
    // An update after the second write of the split.
    let mut entries = lower.2[middle..].to_vec();
    let key = entries[0].0;
    entries[0].1 = lab.record(new.address, key);
    lab.put_leaf(&(node, KeyRange { low: from, high }, entries), next, GlobalAddress::NULL);
    lab.put_leaf(lower, next, node);
    lab.restart();
    // The two records of `left`, and the one that is linked no more in the last leaf. The stale entry in the lower leaf counts still.
    assert_eq!(lab.count("free_blocks"), 3);
}

/// Where a leaf lies on another server, nothing is told of records.
#[test]
fn where_the_tree_leads_to_another_server_no_record_is_taken_for_lost() {
    let (mut lab, _, _) = left();
    let leaves = lab.leaves();
    let (before, last) = (&leaves[leaves.len() - 2], leaves.last().unwrap());
    lab.put_leaf(before, GlobalAddress::new(SERVER + 1, last.0.offset()), GlobalAddress::NULL);
    lab.restart();
    assert_eq!(lab.count("free_blocks"), 1, "a freed node says so itself");
}
