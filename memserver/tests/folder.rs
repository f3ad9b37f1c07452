//! Trees that outlive their server.
#![allow(clippy::unwrap_used, reason = "a test says by failing what is wrong")]

mod common;

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use common::lab::options;
use fatbtree_index::{ChunkKind, KeyRange, Regions, Tree, TreeConfig, ValueLayout, value};
use fatbtree_memserver::{
    ClientId, Folder, FolderError, FolderOwner, LoadOptions, LoadedTree, MemoryServer, Storage, Supply,
    seeded,
};
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::Instant;

const CHUNK: u64 = 4096;
const NOW: Instant = Instant::ZERO;

fn owner() -> FolderOwner {
    FolderOwner { server: "left".to_owned(), partition: 3, address: Ipv4Addr::new(10, 0, 0, 2) }
}

fn open(path: &Path) -> Result<Folder, FolderError> {
    Folder::open(path, owner(), CHUNK)
}

fn load() -> LoadOptions {
    let config = TreeConfig::new(16, 1024, ValueLayout::OutOfLine).unwrap();
    let range = KeyRange { low: 5, high: Some(1 << 40) };
    LoadOptions { range, spare_bytes: 10 * CHUNK, ..LoadOptions::new(config, 3) }
}

fn build(storage: &Storage, generation: u64, keys: u64) -> LoadedTree {
    let keys: Vec<u64> = (5..5 + keys).collect();
    let options = LoadOptions { generation, ..load() };
    storage.build(&options, u64::MAX, &keys, &mut seeded(generation, 100)).unwrap()
}

/// How many keys there are, with values of that seed.
fn check(tree: &LoadedTree, seed: u64) -> u64 {
    let memory = Regions::new([(3, tree.region.clone())]);
    let walk = Tree::new(&memory, &tree.config, &tree.partition);
    (5..)
        .take_while(|&key| {
            walk.get(key).unwrap().inspect(|found| assert!(value::check(key, seed, found))).is_some()
        })
        .count() as u64
}

fn serve(tree: LoadedTree) -> MemoryServer<PlainDevice> {
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
    let mut storage = Storage::Folder(open(&path).unwrap().into());
    let tree = build(&storage, 1, 3000);
    storage.keep(&tree).unwrap();
    let (partition, counts, spare) = (tree.partition, tree.counts, tree.spare.clone());
    let mut server = serve(tree);
    let lease = server.open_session(NOW, client()).unwrap();
    let mut chunk = |kind| match server.allocate(NOW, lease.session, kind, 0).unwrap() {
        Supply::Chunk(chunk) => chunk,
        Supply::Places(_) => panic!("nothing was given back"),
    };
    let (leaves, records, unused) =
        (chunk(ChunkKind::Leaves), chunk(ChunkKind::Records), chunk(ChunkKind::Leaves));
    for chunk in [leaves, records] {
        server.publish(NOW, lease.session, chunk.address).unwrap();
    }
    // A node, so that the chunk is in use.
    let mut node = vec![0; 1024];
    server.memory().read(64, &mut node).unwrap();
    server.memory().write(leaves.address.offset(), &node).unwrap();
    server.memory().write(records.address.offset(), b"written").unwrap();
    // Killed: nothing is closed.
    drop((server, storage));

    let tree = open(&path).unwrap().tree().unwrap().unwrap();
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
    while let Ok(Supply::Chunk(chunk)) = server.allocate(NOW, lease.session, ChunkKind::Records, 0) {
        assert!(chunk.address != leaves.address && chunk.address != unused.address, "they are for leaves");
        assert_ne!(chunk.address, records.address, "it is in use");
        kinds.push(chunk);
    }
    assert_eq!(kinds.len(), 7);
    let rest = server.allocate(NOW, lease.session, ChunkKind::Leaves, 0).unwrap();
    let Supply::Chunk(rest) = rest else { panic!("nothing was given back") };
    assert_eq!(
        (rest.address.offset(), rest.bytes),
        (leaves.address.offset() + 1024, CHUNK - 1024),
        "behind its node"
    );
    let rest = server.allocate(NOW, lease.session, ChunkKind::Leaves, 0).unwrap();
    assert!(matches!(rest, Supply::Chunk(chunk) if chunk.address == unused.address));
}

#[test]
fn a_load_that_was_not_kept_leaves_the_old_tree() {
    let folder = tempfile::tempdir().unwrap();
    let mut storage = Storage::Folder(open(folder.path()).unwrap().into());
    let first = build(&storage, 1, 100);
    storage.keep(&first).unwrap();
    drop(build(&storage, 2, 50));
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
    assert_eq!(check(&opened.tree().unwrap().unwrap(), 1), 100);
    assert!(!names().contains(&"tree-2".to_owned()), "it is forgotten");

    let mut storage = Storage::Folder(opened.into());
    let second = build(&storage, 2, 50);
    storage.keep(&second).unwrap();
    storage.go_back().unwrap();
    let third = build(&storage, 3, 70);
    storage.keep(&third).unwrap();
    storage.forget_others();
    drop((second, third, storage));
    let tree = open(folder.path()).unwrap().tree().unwrap().unwrap();
    assert_eq!((check(&tree, 3), tree.generation), (70, 3));
    assert_eq!(names().iter().filter(|name| name.contains("-3")).count(), 3);
    assert_eq!(names().len(), 5, "{:?}", names());
}

#[test]
fn folders_of_others_and_damaged_ones_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mut storage = Storage::Folder(open(path).unwrap().into());
    let tree = build(&storage, 1, 300);
    let text = open(path).unwrap_err().to_string();
    assert!(text.contains("is used by another process"), "{text}");
    storage.keep(&tree).unwrap();
    drop((tree, storage));

    let other = FolderOwner { server: "right".to_owned(), ..owner() };
    let text = Folder::open(path, other, CHUNK).unwrap_err().to_string();
    assert!(text.contains("belongs to memory server left (partition 3, 10.0.0.2), not to right"), "{text}");
    assert!(matches!(Folder::open(path, owner(), 8192), Err(FolderError::Chunks { found: CHUNK, .. })));

    let damage = |file: &str, change: &dyn Fn(&mut Vec<u8>), reason: &str| {
        let file = path.join(file);
        let whole = std::fs::read(&file).unwrap();
        let mut bytes = whole.clone();
        change(&mut bytes);
        std::fs::write(&file, &bytes).unwrap();
        let refused = open(path).and_then(|folder| folder.tree()).map(|tree| tree.is_some());
        let text = refused.unwrap_err().to_string();
        assert!(text.contains(reason), "{text}");
        std::fs::write(&file, whole).unwrap();
    };
    damage("state.json", &|text| text.truncate(40), "move the folder away");
    damage("state.json", &|text| *text = br#"{"format": 1}"#.to_vec(), "another version");
    damage("tree-1", &|bytes| bytes[10] ^= 1, "no whole superblock");
    damage("tree-1", &|bytes| bytes.truncate(5000), "it has 5000 bytes");
    damage("tree-1", &|bytes| bytes.truncate(5), "not inside of 5 bytes");
    damage("tree-1", &|bytes| bytes[64 + 128] ^= 1, "torn");
    damage("writes-1", &|bytes| bytes[7] = 9, "are not inside of 4096 bytes");
    std::fs::remove_file(path.join("chunks-1")).unwrap();
    let text = open(path).unwrap().tree().unwrap_err().to_string();
    assert!(text.contains("chunks-1"), "{text}");
}
