//! Trees that outlive their server.
use crate::common;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use common::lab::options;
use fatbtree_blink::node::{LeafBuilder, Node, NodeHeader, NodeSpec, write_internal};
use fatbtree_blink::record::RecordPointer;
use fatbtree_blink::size_class::{LEAVES, RECORDS};
use fatbtree_blink::{GlobalAddress, Integrity, KeyRange, Regions, Tree, TreeConfig, ValueLayout, value};
use fatbtree_blink_host::{
    LoadOptions, LoadedTree, TreeFolder, TreeServer, TreeStorage, build_in, seeded, tree_in,
};
use fatbtree_memserver::{ClientId, FolderError, FolderOwner, Grant, Keeping, MemoryServer};
use fatbtree_verbs::journal::LossyDisk;
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
    build_in(storage, &options, u64::MAX, &keys, &mut seeded(generation, 100)).unwrap()
}

#[test]
fn what_is_in_a_folder_can_be_read_by_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("new");
    let mut storage = TreeStorage::Folder(open(&path).unwrap().into());
    let tree = build(&mut storage, 7, 100);
    storage.keep(tree.kept()).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    let files: Vec<_> = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() >= 5, "{files:?}");
    for file in files {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
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
fn a_tree_comes_back_with_what_was_written_and_its_chunks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new");
    let mut storage = TreeStorage::Folder(open(&path).unwrap().into());
    let tree = build(&mut storage, 1, 3000);
    storage.keep(tree.kept()).unwrap();
    let (partition, counts, spare) = (tree.partition, tree.counts, tree.spare.clone());
    let mut server = serve(tree);
    let lease = server.open_session(NOW, client()).unwrap();
    let mut chunk = |kind| match server.allocate(NOW, lease.session, kind, 0).unwrap() {
        Grant::Chunk(chunk) => chunk,
        Grant::Blocks(_) => panic!("nothing was given back"),
    };
    let (leaves, records, unused) = (chunk(LEAVES), chunk(RECORDS), chunk(LEAVES));
    // A node, so that the chunk is in use.
    let mut node = vec![0; 1024];
    server.memory().read(64, &mut node).unwrap();
    server.memory().write(leaves.address.offset(), &node).unwrap();
    server.memory().write(records.address.offset(), b"written").unwrap();
    // Killed: nothing is closed.
    drop((server, storage));

    let tree = tree_in(&open(&path).unwrap()).unwrap().unwrap();
    assert_eq!(
        (tree.partition, tree.counts, tree.spare.clone(), tree.generation),
        (partition, counts, spare, 1)
    );
    assert_eq!(check(&tree, 1), 3000);
    let mut found = [0; 7];
    tree.region.read(records.address.offset(), &mut found).unwrap();
    assert_eq!(&found, b"written");
    let mut server = serve(tree);
    while server.work(NOW, 64) {}
    let lease = server.open_session(NOW, client()).unwrap();
    let mut kinds = vec![];
    while let Ok(Grant::Chunk(chunk)) = server.allocate(NOW, lease.session, RECORDS, 0) {
        assert!(chunk.address != leaves.address && chunk.address != unused.address, "they are for leaves");
        assert_ne!(chunk.address, records.address, "it is in use");
        kinds.push(chunk);
    }
    assert_eq!(kinds.len(), 7);
    let rest = server.allocate(NOW, lease.session, LEAVES, 0).unwrap();
    let Grant::Chunk(rest) = rest else { panic!("nothing was given back") };
    assert_eq!(
        (rest.address.offset(), rest.bytes),
        (leaves.address.offset() + 1024, CHUNK - 1024),
        "after its node"
    );
    let rest = server.allocate(NOW, lease.session, LEAVES, 0).unwrap();
    assert!(matches!(rest, Grant::Chunk(chunk) if chunk.address == unused.address));
}

#[test]
fn a_load_that_was_not_kept_leaves_the_old_tree() {
    let folder = tempfile::tempdir().unwrap();
    let mut storage = TreeStorage::Folder(open(folder.path()).unwrap().into());
    let first = build(&mut storage, 1, 100);
    storage.keep(first.kept()).unwrap();
    drop(build(&mut storage, 2, 50));
    // Killed while the state was written, too.
    std::fs::write(folder.path().join("state.json.new"), b"{").unwrap();
    drop((first, storage));
    let names = || {
        let names = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert!(names().contains(&"tree-2".to_owned()));
    let opened = open(folder.path()).unwrap();
    assert_eq!(check(&tree_in(&opened).unwrap().unwrap(), 1), 100);
    assert!(!names().contains(&"tree-2".to_owned()), "it is forgotten");

    let mut storage = TreeStorage::Folder(opened.into());
    let second = build(&mut storage, 2, 50);
    storage.keep(second.kept()).unwrap();
    storage.go_back().unwrap();
    let third = build(&mut storage, 3, 70);
    storage.keep(third.kept()).unwrap();
    storage.settle();
    drop((second, third, storage));
    let tree = tree_in(&open(folder.path()).unwrap()).unwrap().unwrap();
    assert_eq!((check(&tree, 3), tree.generation), (70, 3));
    assert_eq!(names().iter().filter(|name| name.contains("-3")).count(), 3);
    assert_eq!(names().len(), 5, "{:?}", names());
}

/// Loads trees on a disk that fails in each of its operations, one after the other. Returns the number of folders that were left, or the first
/// one that is not taken or holds another tree than it may.
fn load_and_fail(seed: u64, lies: Option<&'static str>) -> Result<u64, String> {
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(LossyDisk::new(seed));
    lies.into_iter().for_each(|part| disk.lie(part));
    disk.cut_in(0..1000);
    let keeping = Keeping { disk: Arc::clone(&disk) as _, ..Keeping::default() };
    let opened = TreeFolder::open_with(folder.path(), owner(), CHUNK, keeping).unwrap();
    let mut storage = TreeStorage::Folder(opened.into());
    // Generations that may be there from now on, until it is said that only the last one may.
    let mut may = vec![vec![None]];
    let mut begin = |also: u64| {
        may.push([may[may.len() - 1].clone(), vec![Some(also)]].concat());
        disk.mark(may.len() as u64 - 1);
        may.push(vec![Some(also)]);
        may.len() as u64 - 1
    };
    let load = |storage: &mut TreeStorage, generation: u64| {
        let tree = build(storage, generation, 20 * generation);
        storage.keep(tree.kept()).unwrap();
        tree
    };
    let is_done = begin(1);
    let first = load(&mut storage, 1);
    storage.settle();
    disk.mark(is_done);
    let is_done = begin(2);
    let second = load(&mut storage, 2);
    disk.mark(is_done);
    let is_done = begin(1);
    storage.go_back().unwrap();
    disk.mark(is_done);
    let is_done = begin(3);
    let third = load(&mut storage, 3);
    storage.settle();
    disk.mark(is_done);
    drop((first, second, third, storage));
    let cuts = disk.cuts();
    for cut in &cuts {
        let to = tempfile::tempdir().unwrap();
        cut.restore(folder.path(), to.path()).unwrap();
        let context = format!("seed {seed}, operation {}, {}", cut.operation, cut.kind);
        let found = open(to.path()).and_then(|folder| tree_in(&folder));
        let tree = found.map_err(|error| format!("{context}: {error}"))?;
        let generation = tree.as_ref().map(|tree| tree.generation);
        if !may[cut.mark as usize].contains(&generation) {
            return Err(format!(
                "{context}: generation {generation:?}, {:?} may be there",
                may[cut.mark as usize]
            ));
        }
        if let Some(tree) = tree {
            assert_eq!(check(&tree, tree.generation), 20 * tree.generation, "{context}");
        }
    }
    Ok(cuts.len() as u64)
}

#[test]
fn a_power_failure_in_a_load_leaves_the_former_tree_or_the_new_one() {
    let cuts: u64 = (0..10).map(|seed| load_and_fail(seed, None).unwrap()).sum();
    assert!(cuts > 300, "{cuts}");
    // Each kind of sync is needed.
    for part in ["names", "tree", "journal", "state.json"] {
        let missed = (0..10).find_map(|seed| load_and_fail(seed, Some(part)).err());
        assert!(missed.is_some(), "without syncs of {part} nothing is lost");
    }
}

/// A disk may have room for the files of a `keep` and not for those of a `go_back`: neither tree is lost,
/// whatever is loaded then.
#[test]
fn where_going_back_fails_neither_tree_is_removed_or_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mut storage = TreeStorage::Folder(open(path).unwrap().into());
    let first = build(&mut storage, 1, 100);
    storage.keep(first.kept()).unwrap();
    let second = build(&mut storage, 2, 50);
    storage.keep(second.kept()).unwrap();
    // The copy is gone, and nothing can be written.
    let (copy, new) = (path.join("state.json.former"), path.join("state.json.new"));
    std::fs::remove_file(&copy).unwrap();
    std::fs::create_dir(&new).unwrap();
    assert!(storage.go_back().unwrap_err().to_string().contains("state.json.new"));
    storage.forget_others();
    for generation in [1, 2, 3] {
        let keys: Vec<u64> = (5..25).collect();
        let options = LoadOptions { generation, ..load() };
        let refused =
            build_in(&mut storage, &options, u64::MAX, &keys, &mut seeded(generation, 100)).unwrap_err();
        assert!(refused.to_string().contains("state.json.new"), "{refused}");
        storage.forget_others();
    }
    assert_eq!((check(&first, 1), check(&second, 2)), (100, 50));
    let trees = || [1, 2, 3].map(|generation| path.join(format!("tree-{generation}")).exists());
    assert_eq!(trees(), [true, true, false]);
    // It can be written again.
    std::fs::remove_dir(&new).unwrap();
    let again = LoadOptions { generation: 1, ..load() };
    let served = build_in(&mut storage, &again, u64::MAX, &[5], &mut seeded(1, 100)).unwrap_err().to_string();
    assert!(served.contains("generation 1, which is served"), "{served}");
    drop(second);
    drop(build(&mut storage, 2, 70));
    storage.forget_others();
    assert_eq!(trees(), [true, false, false]);
    drop((first, storage));
    assert_eq!(check(&tree_in(&open(path).unwrap()).unwrap().unwrap(), 1), 100);
}

/// A server that stops leaves nothing to its journal: the tree's own file has all that was written.
#[test]
fn a_server_that_stops_has_everything_in_the_file_of_its_tree() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mut storage = TreeStorage::Folder(open(path).unwrap().into());
    let tree = build(&mut storage, 1, 300);
    storage.keep(tree.kept()).unwrap();
    let mut server = serve(tree);
    let session = server.open_session(NOW, client()).unwrap().session;
    server.allocate(NOW, session, LEAVES, 0).unwrap();
    server.memory().write(64, &[1; 8]).unwrap();
    let files = || ["tree-1", "chunks-1"].map(|name| std::fs::read(path.join(name)).unwrap());
    let [_, classes] = files();
    assert_eq!(classes, vec![0; classes.len()], "only the journal has it");
    server.sync().unwrap();
    let [tree, classes] = files();
    assert_eq!(tree[64..72], [1; 8]);
    assert_eq!(classes[0], LEAVES.0 + 1);
}

#[test]
fn folders_of_others_and_damaged_ones_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mut storage = TreeStorage::Folder(open(path).unwrap().into());
    let tree = build(&mut storage, 1, 300);
    let text = open(path).unwrap_err().to_string();
    assert!(text.contains("is used by another process"), "{text}");
    storage.keep(tree.kept()).unwrap();
    drop((tree, storage));

    let other = FolderOwner { server: "right".to_owned(), ..owner() };
    let text = TreeFolder::open(path, other, CHUNK).unwrap_err().to_string();
    assert!(text.contains("belongs to memory server left (partition 3, 10.0.0.2), not to right"), "{text}");
    assert!(matches!(TreeFolder::open(path, owner(), 8192), Err(FolderError::Chunks { found: CHUNK, .. })));

    let damage = |file: &str, change: &dyn Fn(&mut Vec<u8>), reason: &str| {
        let file = path.join(file);
        let whole = std::fs::read(&file).unwrap();
        let mut bytes = whole.clone();
        change(&mut bytes);
        std::fs::write(&file, &bytes).unwrap();
        let text = refusal(path);
        assert!(text.contains(reason) && text.contains(&file.display().to_string()), "{text}");
        std::fs::write(&file, whole).unwrap();
    };
    damage("state.json", &|text| text.truncate(40), "move the folder away");
    damage("state.json", &|text| *text = br#"{"format": 1}"#.to_vec(), "another version");
    damage("tree-1", &|bytes| bytes[10] ^= 1, "no whole superblock");
    damage("tree-1", &|bytes| bytes.truncate(5000), "it has 5000 bytes");
    damage("tree-1", &|bytes| bytes.truncate(5), "it has 5 bytes");
    damage("tree-1", &|bytes| bytes[64 + 128] ^= 1, "torn");
    let headers = |bytes: &mut Vec<u8>| {
        let half = bytes.len() / 2;
        [0, half].iter().for_each(|&at| bytes[at] ^= 1);
    };
    damage("journal-1", &headers, "neither of its halves has a header");
    damage("journal-1", &|bytes| bytes.truncate(9), "it has 9 bytes");
    damage("chunks-1", &|bytes| bytes[9] = 1, "chunk 1 of 10");
    damage("chunks-1", &|bytes| bytes.truncate(9), "it has 9 bytes");
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

/// Whatever of a folder was not restored, or was put there beside it: nothing is removed, and the folder is refused by that name.
#[test]
fn a_folder_that_was_restored_in_part_is_refused_and_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mut storage = TreeStorage::Folder(open(path).unwrap().into());
    let first = build(&mut storage, 1, 100);
    storage.keep(first.kept()).unwrap();
    drop((first, storage));
    let older = contents(path);
    let mut storage = TreeStorage::Folder(open(path).unwrap().into());
    let second = build(&mut storage, 2, 50);
    storage.keep(second.kept()).unwrap();
    storage.settle();
    drop((second, storage));
    let whole = contents(path);

    let refused = |reason: &str| {
        let before = contents(path);
        let text = refusal(path);
        assert!(text.contains(reason) && text.contains("restored in part"), "{text}");
        assert_eq!(contents(path), before, "{text}");
    };
    for name in whole.keys().filter(|name| *name != "lock") {
        std::fs::remove_file(path.join(name)).unwrap();
        match name.as_str() {
            "state.json" => refused("but no state.json"),
            name => refused(&format!("{name} is missing")),
        }
        std::fs::write(path.join(name), &whole[name]).unwrap();
    }
    // The state of another moment than its tree.
    std::fs::write(path.join("state.json"), &older["state.json"]).unwrap();
    refused("does not speak of ");
    std::fs::write(path.join("state.json"), &whole["state.json"]).unwrap();
    std::fs::write(path.join("tree-1"), &older["tree-1"]).unwrap();
    refused("does not speak of tree-1");
    std::fs::remove_file(path.join("tree-1")).unwrap();
    // Files of no tree are left alone.
    std::fs::write(path.join("tree-notes.txt"), "oaks").unwrap();
    assert_eq!(check(&tree_in(&open(path).unwrap()).unwrap().unwrap(), 2), 50);
    assert!(contents(path).contains_key("tree-notes.txt"));
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
    let tree = build_in(&mut storage, &options, u64::MAX, &keys, &mut seeded(1, 100)).unwrap();
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
