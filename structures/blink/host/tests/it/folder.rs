//! Trees that outlive their server.
use crate::common;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use common::lab::options;
use fatbtree_blink::node::{LeafBuilder, Node, NodeHeader, NodeSpec, write_internal};
use fatbtree_blink::record::RecordPointer;
use fatbtree_blink::size_class::{LEAVES, RECORDS};
use fatbtree_blink::{GlobalAddress, Integrity, KeyRange, Regions, Tree, TreeConfig, ValueLayout, value};
use fatbtree_blink_host::{
    Load, LoadOptions, LoadedTree, TreeFolder, TreeServer, TreeStorage, build_in, seeded, tree_in,
};
use fatbtree_memserver::{ClientId, FolderError, FolderOwner, MemoryServer};
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::Instant;

const CHUNK: u64 = 4096;
const NOW: Instant = Instant::ZERO;

fn owner() -> FolderOwner {
    FolderOwner { server: "left".to_owned(), partition: 3, address: Ipv4Addr::new(10, 0, 0, 2) }
}

fn open(path: &Path) -> Result<TreeFolder, FolderError> {
    TreeFolder::open(path, owner(), CHUNK)
}

fn load() -> LoadOptions {
    let config = TreeConfig::new(16, 1024, ValueLayout::OutOfLine).unwrap();
    let range = KeyRange { low: 5, high: Some(1 << 40) };
    LoadOptions { range, spare_bytes: 10 * CHUNK, ..LoadOptions::new(config, 3) }
}

fn build(storage: &mut TreeStorage, generation: u64, keys: u64) -> LoadedTree {
    let keys: Vec<u64> = (5..5 + keys).collect();
    let options = LoadOptions { generation, ..load() };
    build_in(storage, &options, u64::MAX, Load::Numbers(&keys, &mut seeded(generation, 100))).unwrap()
}

/// Checks the values against the seed and returns the number of keys.
fn check(tree: &LoadedTree, seed: u64) -> u64 {
    let memory = Regions::new([(3, tree.region.clone())]);
    let walk = Tree::new(&memory, &tree.config, &tree.partition);
    (5..)
        .take_while(|&key| {
            walk.get(key).unwrap().inspect(|found| assert!(value::check(key, seed, found))).is_some()
        })
        .count() as u64
}

fn serve(tree: LoadedTree) -> TreeServer<PlainDevice> {
    let options = fatbtree_memserver::ServerOptions { chunk_bytes: CHUNK, ..options() };
    MemoryServer::new(PlainNetwork::new().device(), tree, &options, 1).unwrap()
}

fn client() -> ClientId {
    ClientId { host: IpAddr::V4(Ipv4Addr::LOCALHOST), roce: Ipv4Addr::new(10, 0, 0, 9) }
}

#[test]
fn a_tree_comes_back_as_it_was_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let mut storage = TreeStorage::Folder(open(folder.path()).unwrap().into());
    let tree = build(&mut storage, 7, 3000);
    storage.keep(tree.kept()).unwrap();
    let (partition, counts, spare) = (tree.partition, tree.counts, tree.spare.clone());
    drop((tree, storage));
    let tree = tree_in(&open(folder.path()).unwrap()).unwrap().unwrap();
    assert_eq!(
        (tree.partition, tree.counts, tree.spare.clone(), tree.generation),
        (partition, counts, spare, 7)
    );
    assert_eq!(check(&tree, 7), 3000);
}

#[test]
fn a_damaged_tree_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mut storage = TreeStorage::Folder(open(path).unwrap().into());
    let tree = build(&mut storage, 1, 300);
    storage.keep(tree.kept()).unwrap();
    drop((tree, storage));
    let file = path.join("tree-1");
    let whole = std::fs::read(&file).unwrap();
    for (at, reason) in [(10, "no whole superblock"), (64 + 128, "torn")] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        std::fs::write(&file, &bytes).unwrap();
        let text = refusal(path);
        assert!(text.contains(reason) && text.contains(&file.display().to_string()), "{text}");
    }
}

/// Reason for which a folder is refused.
fn refusal(path: &Path) -> String {
    match open(path).and_then(|folder| tree_in(&folder)) {
        Err(error) => error.to_string(),
        Ok(tree) => panic!("it is taken: {tree:?}"),
    }
}

/// Names and contents of all files.
fn contents(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(path).unwrap().map(Result::unwrap);
    let read = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().unwrap();
        (name, std::fs::read(entry.path()).unwrap())
    };
    entries.map(read).collect()
}

/// A byte of any file is another one: the folder is refused with the file's name, or the byte is a record's, whose readers are told, or it
/// means nothing. No key is ever missing or has another value.
#[test]
fn no_byte_that_is_wrong_is_served() {
    const KEYS: u64 = 120;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mut storage = TreeStorage::Folder(open(path).unwrap().into());
    let config = TreeConfig::with_integrity(5, 256, ValueLayout::OutOfLine, Integrity::Checksums).unwrap();
    let keys: Vec<u64> = (5..5 + KEYS).collect();
    let options = LoadOptions { config, ..load() };
    let tree = build_in(&mut storage, &options, u64::MAX, Load::Numbers(&keys, &mut seeded(1, 100))).unwrap();
    storage.keep(tree.kept()).unwrap();
    let nodes =
        64 + tree.counts.leaf_nodes * 256 + tree.counts.internal_nodes * u64::from(config.internal_bytes());
    let loaded = tree.spare.start;
    let mut server = serve(tree);
    let session = server.open_session(NOW, client()).unwrap().session;
    server.allocate(NOW, session, LEAVES, 0).unwrap();
    server.allocate(NOW, session, RECORDS, 0).unwrap();
    server.sync().unwrap();
    drop((server, storage));

    for (name, whole) in contents(path).iter().filter(|(name, _)| *name != "lock") {
        let file = path.join(name);
        let (len, step) = match name.as_str() {
            "tree-1" => (loaded, 11),
            "journal-1" => (5_000, 61),
            _ => (whole.len() as u64, 3),
        };
        for at in (0..len.min(20_000)).step_by(step) {
            let mut bytes = whole.clone();
            bytes[at as usize] ^= 1 << (at % 8);
            std::fs::write(&file, &bytes).unwrap();
            let tree = match open(path).and_then(|folder| tree_in(&folder)) {
                Err(error) => {
                    let text = error.to_string();
                    assert!(text.contains(&file.display().to_string()), "byte {at} of {name}: {text}");
                    continue;
                }
                Ok(tree) => tree.unwrap(),
            };
            let means_nothing = match name.as_str() {
                // One of two headers is enough, and no change is noted.
                "journal-1" => true,
                "tree-1" => at >= nodes,
                // White space.
                "state.json" => whole[at as usize].is_ascii_whitespace(),
                _ => false,
            };
            assert!(means_nothing, "byte {at} of {name} is taken");
            let memory = Regions::new([(3, tree.region.clone())]);
            let walk = Tree::new(&memory, &tree.config, &tree.partition);
            for &key in keys.iter().filter(|_| name == "tree-1") {
                let found =
                    walk.get(key).map(|found| found.is_some_and(|found| value::check(key, 1, &found)));
                assert!(found.unwrap_or(true), "byte {at} of {name}: key {key} is missing or another one");
            }
        }
        std::fs::write(&file, whole).unwrap();
    }
}

/// Nodes that are whole, and lead elsewhere: checksums do not show that.
#[test]
fn pointers_and_ranges_are_checked_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mut storage = TreeStorage::Folder(open(path).unwrap().into());
    let tree = build(&mut storage, 1, 300);
    storage.keep(tree.kept()).unwrap();
    let (region, config, root) = (tree.region.clone(), tree.config, tree.partition.root);
    let (spare, counts) = (tree.spare.clone(), tree.counts);
    let leaf = GlobalAddress::new(3, 64);
    drop((tree, storage));
    let node = |at: GlobalAddress| {
        let mut bytes = vec![0; 1024];
        region.read(at.offset(), &mut bytes).unwrap();
        bytes
    };
    let header = |at| *Node::read(&config, &node(at)).unwrap().header();
    let spec = |at| {
        let NodeHeader { level, sibling, version, .. } = header(at);
        NodeSpec { address: at, level, range: header(at).range(), sibling, version }
    };
    let file = std::fs::File::options().write(true).open(path.join("tree-1")).unwrap();
    let refused = |at: GlobalAddress, bytes: &[u8], reason: &str| {
        let whole = node(at);
        file.write_all_at(bytes, at.offset()).unwrap();
        let text = refusal(path);
        assert!(text.contains(reason) && text.contains("tree-1"), "{text}");
        file.write_all_at(&whole, at.offset()).unwrap();
    };
    let with_record = |record: GlobalAddress| {
        let mut bytes = node(leaf);
        let mut builder = LeafBuilder::new(&mut bytes, config.leaf_shape(), spec(leaf));
        builder.push_record(5, RecordPointer { address: record, length: 100, version: 1 });
        builder.finish();
        bytes
    };
    let nodes = 64 + counts.leaf_nodes * 1024 + counts.internal_nodes * u64::from(config.internal_bytes());
    for elsewhere in [
        GlobalAddress::new(9, nodes),
        GlobalAddress::new(3, 64),
        GlobalAddress::new(3, spare.start),
        GlobalAddress::new(3, 1 << 40),
        GlobalAddress::new(3, spare.start - 64),
    ] {
        refused(leaf, &with_record(elsewhere), &format!("leads to {elsewhere} for records"));
    }
    let with_range = |range| {
        let mut bytes = node(leaf);
        LeafBuilder::new(&mut bytes, config.leaf_shape(), NodeSpec { range, ..spec(leaf) }).finish();
        bytes
    };
    let range = spec(leaf).range;
    refused(leaf, &with_range(KeyRange { low: 4, ..range }), "low fence is 0x4, 0x5 was expected");
    refused(leaf, &with_range(KeyRange { high: Some(8), ..range }), "low fence");
    let children = || match Node::read(&config, &node(root)).unwrap() {
        Node::Internal(node) => node.children().collect::<Vec<_>>(),
        Node::Leaf(_) => panic!("300 keys are more than a leaf"),
    };
    type Children = Vec<(u64, GlobalAddress)>;
    let with_children = |change: &dyn Fn(&mut Children)| {
        let (mut bytes, mut children) = (node(root), children());
        change(&mut children);
        write_internal(&mut bytes, &spec(root), &children, config.integrity());
        bytes
    };
    let elsewhere = GlobalAddress::new(7, 64);
    refused(root, &with_children(&|children| children[0].1 = elsewhere), "7:0x40");
    refused(root, &with_children(&|children| children[1].0 += 1), "pivot");
    let behind = GlobalAddress::new(3, spare.start + CHUNK);
    refused(root, &with_children(&|children| children[1].1 = behind), &behind.to_string());
    assert_eq!(check(&tree_in(&open(path).unwrap()).unwrap().unwrap(), 1), 300);
}
