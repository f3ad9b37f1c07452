//! The top of a tree that others write to, read some nodes at a time.
use std::sync::Arc;

use fatbtree_blink::node::{NodeFault, NodeSpec, write_internal};
use fatbtree_blink::{
    GlobalAddress, Integrity, KeyRange, Partition, Regions, TopReader, Tree, TreeConfig, ValueLayout,
    WalkError,
};
use fatbtree_verbs::Memory;

const NODE: u64 = 128;

fn config() -> TreeConfig {
    TreeConfig::new(4, 256, ValueLayout::Inline(8)).unwrap()
}

fn place(slot: u64) -> GlobalAddress {
    GlobalAddress::new(0, 64 + slot * NODE)
}

fn partition() -> Partition {
    Partition { id: 0, range: KeyRange::ALL, root: place(0), root_level: 2 }
}

fn put(
    memory: &Memory,
    slot: u64,
    level: u8,
    range: KeyRange,
    sibling: Option<u64>,
    children: &[(u64, u64)],
) {
    let address = place(slot);
    let sibling = sibling.map_or(GlobalAddress::NULL, place);
    let spec = NodeSpec { address, level, range, sibling, version: 1 };
    let children: Vec<_> = children.iter().map(|&(pivot, child)| (pivot, GlobalAddress(child))).collect();
    let mut bytes = [0; NODE as usize];
    write_internal(&mut bytes, &spec, &children, Integrity::LineVersions);
    memory.write(address.offset(), &bytes).unwrap();
}

/// A root in slot 0 over nodes in slots 1 and 2; their children are leaves that the test does not read.
fn tree() -> (Arc<Memory>, Regions) {
    let memory = Memory::shared(64 + 16 * NODE).unwrap();
    put(&memory, 0, 2, KeyRange::ALL, None, &[(0, place(1).raw()), (50, place(2).raw())]);
    put(&memory, 1, 1, KeyRange { low: 0, high: Some(50) }, Some(2), &[(0, 8), (20, 9)]);
    put(&memory, 2, 1, KeyRange { low: 50, high: None }, None, &[(50, 10)]);
    (Arc::clone(&memory), Regions::new([(0, memory)]))
}

#[test]
fn what_stands_still_is_read_as_the_walk_reads_it() {
    let (_, regions) = tree();
    let mut expected = vec![];
    Tree::new(&regions, &config(), &partition())
        .for_each_internal(|node| expected.push(node.header().address.raw()))
        .unwrap();
    for budget in 1..5 {
        let mut reader = TopReader::new(&config(), &partition(), 3);
        let top = loop {
            if let Some(top) = reader.read(&regions, budget).unwrap() {
                break top;
            }
        };
        assert_eq!(top.partition, partition());
        assert_eq!(top.nodes.iter().map(|node| node.address).collect::<Vec<_>>(), expected);
        assert_eq!((top.nodes[1].low(), &top.nodes[1].children[..]), (0, &[(0, 8), (20, 9)][..]));
    }
}

#[test]
fn a_torn_node_is_read_again_and_a_split_is_followed() {
    let (memory, regions) = tree();
    let mut reader = TopReader::new(&config(), &partition(), 10);
    assert_eq!(reader.read(&regions, 1).unwrap(), None);
    // The second line of the node that comes next is another version's.
    memory.write(place(1).offset() + 64, &[2]).unwrap();
    assert_eq!(reader.read(&regions, 100).unwrap(), None, "it ends its turn at a torn node");
    // It was a split: half of it is in slot 3 now.
    put(&memory, 3, 1, KeyRange { low: 20, high: Some(50) }, Some(2), &[(20, 9)]);
    put(&memory, 1, 1, KeyRange { low: 0, high: Some(20) }, Some(3), &[(0, 8)]);
    let top = reader.read(&regions, 100).unwrap().unwrap();
    let addresses: Vec<_> = top.nodes.iter().map(|node| node.address).collect();
    assert_eq!(addresses, [0, 1, 3, 2].map(|slot| place(slot).raw()));
}

#[test]
fn a_node_that_stays_damaged_ends_it() {
    let (memory, regions) = tree();
    memory.write(place(1).offset() + 64, &[2]).unwrap();
    let mut reader = TopReader::new(&config(), &partition(), 10);
    let mut turns = 0;
    let error = loop {
        turns += 1;
        assert!(turns < 10_000, "it never ends");
        match reader.read(&regions, 100) {
            Ok(top) => assert_eq!(top, None),
            Err(error) => break error,
        }
    };
    assert_eq!(error, WalkError::Damaged { address: place(1), fault: NodeFault::Torn { line: 1 } });
}

#[test]
fn more_nodes_than_allowed_and_circles_of_siblings_end_it() {
    let (memory, regions) = tree();
    let mut reader = TopReader::new(&config(), &partition(), 2);
    assert_eq!(reader.read(&regions, 100), Err(WalkError::TooMany { limit: 2 }));
    // The last node leads back to the first one, which does not begin where the last one ends.
    put(&memory, 2, 1, KeyRange { low: 50, high: Some(90) }, Some(1), &[(50, 10)]);
    let mut reader = TopReader::new(&config(), &partition(), 1000);
    let fault = NodeFault::Neighbour { found: 0, expected: 90 };
    let damaged = WalkError::Damaged { address: place(1), fault };
    let end = (0..10_000).find_map(|_| reader.read(&regions, 2).err()).expect("it never ends");
    assert_eq!(end, damaged);
    let (config, partition) = (config(), partition());
    let tree = Tree::new(&regions, &config, &partition);
    let mut visited = 0;
    assert_eq!(tree.for_each_internal(|_| visited += 1), Err(damaged));
    assert_eq!(visited, 3);
    let mut nodes = 0;
    let lost = tree.place_of(95, &mut nodes).unwrap_err();
    let is_circle = matches!(lost, WalkError::Damaged { fault: NodeFault::SiblingChain { .. }, .. });
    assert!(is_circle, "{lost}");
    assert!(nodes < 50, "{nodes}");
}
