//! Regions that outlive their server.
use crate::common;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::sync::Arc;

use common::blocks::{Block, Blocks, LARGE, LARGE_BYTES, LoadedBlocks, RECORDS, Shape};
use common::lab::options;
use fatbtree_memserver::{
    ClientId, Folder, FolderError, FolderOwner, Grant, Keeping, MemoryServer, PartOptions, Storage,
    Tenant as _, kept, make_in, part_in,
};
use fatbtree_remote_memory::HEADER_BYTES;
use fatbtree_verbs::journal::LossyDisk;
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::Instant;

const CHUNK: u64 = 4096;
const NOW: Instant = Instant::ZERO;

fn owner() -> FolderOwner {
    FolderOwner { server: "left".to_owned(), partition: 3, address: Ipv4Addr::new(10, 0, 0, 2) }
}

type BlocksFolder = Folder<Shape>;
type BlocksStorage = Storage<Shape>;

fn open(path: &Path) -> Result<BlocksFolder, FolderError> {
    BlocksFolder::open(path, owner(), CHUNK)
}

fn part_of(folder: &BlocksFolder) -> Result<Option<LoadedBlocks>, FolderError> {
    part_in::<Blocks>(folder, CHUNK)
}

fn load(generation: u64, loaded: u32) -> PartOptions<Shape> {
    let options = PartOptions::new(3, Shape { loaded });
    PartOptions { generation, spare_bytes: 10 * CHUNK, chunk_bytes: CHUNK, ..options }
}

fn build(storage: &mut BlocksStorage, generation: u64, loaded: u32) -> LoadedBlocks {
    make_in::<Blocks>(storage, &load(generation, loaded)).unwrap()
}

#[test]
fn what_is_in_a_folder_can_be_read_by_its_owner_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("new");
    let mut storage = BlocksStorage::Folder(open(&path).unwrap().into());
    let part = build(&mut storage, 7, 100);
    storage.keep(kept(&part)).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    let files: Vec<_> = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() >= 5, "{files:?}");
    for file in files {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}

/// Number of loaded blocks, which all have the content of a generation.
fn check(part: &LoadedBlocks, generation: u64) -> u64 {
    let intact = Blocks::intact(part, generation);
    assert_eq!(intact, u64::from(part.tenant.description().shape.loaded), "generation {generation}");
    intact
}

fn serve(part: LoadedBlocks) -> MemoryServer<PlainDevice, Blocks> {
    let options = fatbtree_memserver::ServerOptions { chunk_bytes: CHUNK, ..options() };
    MemoryServer::new(PlainNetwork::new().device(), part, &options, 1).unwrap()
}

fn client() -> ClientId {
    ClientId { host: IpAddr::V4(Ipv4Addr::LOCALHOST), roce: Ipv4Addr::new(10, 0, 0, 9) }
}

#[test]
fn a_region_comes_back_with_what_was_written_and_its_chunks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new");
    let mut storage = BlocksStorage::Folder(open(&path).unwrap().into());
    let part = build(&mut storage, 1, 30);
    storage.keep(kept(&part)).unwrap();
    let (structure, spare) = (part.tenant.description(), part.spare.clone());
    let mut server = serve(part);
    let lease = server.open_session(NOW, client()).unwrap();
    let mut chunk = |kind| match server.allocate(NOW, lease.session, kind, 0).unwrap() {
        Grant::Chunk(chunk) => chunk,
        Grant::Blocks(_) => panic!("nothing was given back"),
    };
    let (large, records, unused) = (chunk(LARGE), chunk(RECORDS), chunk(LARGE));
    // A block, so that the chunk is in use.
    let block = Block { address: large.address, class: LARGE, version: 1, is_free: false };
    server.memory().write(large.address.offset(), &block.zeros()).unwrap();
    server.memory().write(records.address.offset(), b"written").unwrap();
    // Killed: nothing is closed.
    drop((server, storage));

    let part = part_of(&open(&path).unwrap()).unwrap().unwrap();
    assert_eq!((part.tenant.description(), part.spare.clone(), part.generation), (structure, spare, 1));
    assert_eq!(check(&part, 1), 30);
    let mut found = [0; 7];
    part.region.read(records.address.offset(), &mut found).unwrap();
    assert_eq!(&found, b"written");
    let mut server = serve(part);
    while server.work(NOW, 64) {}
    let lease = server.open_session(NOW, client()).unwrap();
    let mut kinds = vec![];
    while let Ok(Grant::Chunk(chunk)) = server.allocate(NOW, lease.session, RECORDS, 0) {
        assert!(
            chunk.address != large.address && chunk.address != unused.address,
            "they are for large blocks"
        );
        assert_ne!(chunk.address, records.address, "it is in use");
        kinds.push(chunk);
    }
    assert_eq!(kinds.len(), 7);
    let rest = server.allocate(NOW, lease.session, LARGE, 0).unwrap();
    let Grant::Chunk(rest) = rest else { panic!("nothing was given back") };
    assert_eq!(
        (rest.address.offset(), rest.bytes),
        (large.address.offset() + LARGE_BYTES, CHUNK - LARGE_BYTES),
        "after its block"
    );
    let rest = server.allocate(NOW, lease.session, LARGE, 0).unwrap();
    assert!(matches!(rest, Grant::Chunk(chunk) if chunk.address == unused.address));
}

#[test]
fn a_load_that_was_not_kept_leaves_the_old_region() {
    let folder = tempfile::tempdir().unwrap();
    let mut storage = BlocksStorage::Folder(open(folder.path()).unwrap().into());
    let first = build(&mut storage, 1, 100);
    storage.keep(kept(&first)).unwrap();
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
    assert_eq!(check(&part_of(&opened).unwrap().unwrap(), 1), 100);
    assert!(!names().contains(&"tree-2".to_owned()), "it is forgotten");

    let mut storage = BlocksStorage::Folder(opened.into());
    let second = build(&mut storage, 2, 50);
    storage.keep(kept(&second)).unwrap();
    storage.go_back().unwrap();
    let third = build(&mut storage, 3, 70);
    storage.keep(kept(&third)).unwrap();
    storage.settle();
    drop((second, third, storage));
    let part = part_of(&open(folder.path()).unwrap()).unwrap().unwrap();
    assert_eq!((check(&part, 3), part.generation), (70, 3));
    assert_eq!(names().iter().filter(|name| name.contains("-3")).count(), 3);
    assert_eq!(names().len(), 5, "{:?}", names());
}

/// Loads regions on a disk that fails in each of its operations, one after the other. Returns the number of folders that were left, or the
/// first one that is not taken or holds another region than it may.
fn load_and_fail(seed: u64, lies: Option<&'static str>) -> Result<u64, String> {
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(LossyDisk::new(seed));
    lies.into_iter().for_each(|part| disk.lie(part));
    disk.cut_in(0..1000);
    let keeping = Keeping { disk: Arc::clone(&disk) as _, ..Keeping::default() };
    let opened = BlocksFolder::open_with(folder.path(), owner(), CHUNK, keeping).unwrap();
    let mut storage = BlocksStorage::Folder(opened.into());
    // Generations that may be there from now on, until it is said that only the last one may.
    let mut may = vec![vec![None]];
    let mut begin = |also: u64| {
        may.push([may[may.len() - 1].clone(), vec![Some(also)]].concat());
        disk.mark(may.len() as u64 - 1);
        may.push(vec![Some(also)]);
        may.len() as u64 - 1
    };
    let load = |storage: &mut BlocksStorage, generation: u64| {
        let part = build(storage, generation, 2 * generation as u32);
        storage.keep(kept(&part)).unwrap();
        part
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
        let found = open(to.path()).and_then(|folder| part_of(&folder));
        let part = found.map_err(|error| format!("{context}: {error}"))?;
        let generation = part.as_ref().map(|part| part.generation);
        if !may[cut.mark as usize].contains(&generation) {
            return Err(format!(
                "{context}: generation {generation:?}, {:?} may be there",
                may[cut.mark as usize]
            ));
        }
        if let Some(part) = part {
            assert_eq!(check(&part, part.generation), 2 * part.generation, "{context}");
        }
    }
    Ok(cuts.len() as u64)
}

#[test]
fn a_power_failure_in_a_load_leaves_the_former_region_or_the_new_one() {
    let cuts: u64 = (0..10).map(|seed| load_and_fail(seed, None).unwrap()).sum();
    assert!(cuts > 300, "{cuts}");
    // Each kind of sync is needed.
    for part in ["names", "tree", "journal", "state.json"] {
        let missed = (0..10).find_map(|seed| load_and_fail(seed, Some(part)).err());
        assert!(missed.is_some(), "without syncs of {part} nothing is lost");
    }
}

/// A disk may have room for the files of a `keep` and not for those of a `go_back`: neither region is lost,
/// whatever is loaded then.
#[test]
fn where_going_back_fails_neither_region_is_removed_or_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mut storage = BlocksStorage::Folder(open(path).unwrap().into());
    let first = build(&mut storage, 1, 100);
    storage.keep(kept(&first)).unwrap();
    let second = build(&mut storage, 2, 50);
    storage.keep(kept(&second)).unwrap();
    // The copy is gone, and nothing can be written.
    let (copy, new) = (path.join("state.json.former"), path.join("state.json.new"));
    std::fs::remove_file(&copy).unwrap();
    std::fs::create_dir(&new).unwrap();
    assert!(storage.go_back().unwrap_err().to_string().contains("state.json.new"));
    storage.forget_others();
    for generation in [1, 2, 3] {
        let refused = make_in::<Blocks>(&mut storage, &load(generation, 2)).unwrap_err();
        assert!(refused.to_string().contains("state.json.new"), "{refused}");
        storage.forget_others();
    }
    assert_eq!((check(&first, 1), check(&second, 2)), (100, 50));
    let regions = || [1, 2, 3].map(|generation| path.join(format!("tree-{generation}")).exists());
    assert_eq!(regions(), [true, true, false]);
    // It can be written again.
    std::fs::remove_dir(&new).unwrap();
    let served = make_in::<Blocks>(&mut storage, &load(1, 1)).unwrap_err().to_string();
    assert!(served.contains("generation 1, which is served"), "{served}");
    drop(second);
    drop(build(&mut storage, 2, 70));
    storage.forget_others();
    assert_eq!(regions(), [true, false, false]);
    drop((first, storage));
    assert_eq!(check(&part_of(&open(path).unwrap()).unwrap().unwrap(), 1), 100);
}

/// A server that stops leaves nothing to its journal: the region's own file has all that was written.
#[test]
fn a_server_that_stops_has_everything_in_the_file_of_its_region() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mut storage = BlocksStorage::Folder(open(path).unwrap().into());
    let part = build(&mut storage, 1, 300);
    storage.keep(kept(&part)).unwrap();
    let mut server = serve(part);
    let session = server.open_session(NOW, client()).unwrap().session;
    server.allocate(NOW, session, LARGE, 0).unwrap();
    server.memory().write(64, &[1; 8]).unwrap();
    let files = || ["tree-1", "chunks-1"].map(|name| std::fs::read(path.join(name)).unwrap());
    let [_, classes] = files();
    assert_eq!(classes, vec![0; classes.len()], "only the journal has it");
    server.sync().unwrap();
    let [tree, classes] = files();
    assert_eq!(tree[64..72], [1; 8]);
    assert_eq!(classes[0], LARGE.0 + 1);
}

#[test]
fn folders_of_others_and_damaged_ones_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mut storage = BlocksStorage::Folder(open(path).unwrap().into());
    let part = build(&mut storage, 1, 300);
    let text = open(path).unwrap_err().to_string();
    assert!(text.contains("is used by another process"), "{text}");
    storage.keep(kept(&part)).unwrap();
    drop((part, storage));

    let other = FolderOwner { server: "right".to_owned(), ..owner() };
    let text = BlocksFolder::open(path, other, CHUNK).unwrap_err().to_string();
    assert!(text.contains("belongs to memory server left (partition 3, 10.0.0.2), not to right"), "{text}");
    assert!(matches!(BlocksFolder::open(path, owner(), 8192), Err(FolderError::Chunks { found: CHUNK, .. })));

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
    damage("tree-1", &|bytes| bytes[10] ^= 1, "whole header");
    damage("tree-1", &|bytes| bytes.truncate(5000), "it has 5000 bytes");
    damage("tree-1", &|bytes| bytes.truncate(5), "it has 5 bytes");
    damage("tree-1", &|bytes| bytes[HEADER_BYTES + 128] ^= 1, "torn");
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
    match open(path).and_then(|folder| part_of(&folder)) {
        Err(error) => error.to_string(),
        Ok(part) => panic!("it is taken: {part:?}"),
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
    let mut storage = BlocksStorage::Folder(open(path).unwrap().into());
    let first = build(&mut storage, 1, 100);
    storage.keep(kept(&first)).unwrap();
    drop((first, storage));
    let older = contents(path);
    let mut storage = BlocksStorage::Folder(open(path).unwrap().into());
    let second = build(&mut storage, 2, 50);
    storage.keep(kept(&second)).unwrap();
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
    // The state of another moment than its region.
    std::fs::write(path.join("state.json"), &older["state.json"]).unwrap();
    refused("does not speak of ");
    std::fs::write(path.join("state.json"), &whole["state.json"]).unwrap();
    std::fs::write(path.join("tree-1"), &older["tree-1"]).unwrap();
    refused("does not speak of tree-1");
    std::fs::remove_file(path.join("tree-1")).unwrap();
    // Files of no region are left alone.
    std::fs::write(path.join("tree-notes.txt"), "oaks").unwrap();
    assert_eq!(check(&part_of(&open(path).unwrap()).unwrap().unwrap(), 2), 50);
    assert!(contents(path).contains_key("tree-notes.txt"));
}

/// A byte of any file is another one: the folder is refused with the file's name, or the byte means nothing.
#[test]
fn no_byte_that_is_wrong_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mut storage = BlocksStorage::Folder(open(path).unwrap().into());
    let part = build(&mut storage, 1, 5);
    storage.keep(kept(&part)).unwrap();
    let loaded = part.spare.start;
    let mut server = serve(part);
    let session = server.open_session(NOW, client()).unwrap().session;
    server.allocate(NOW, session, LARGE, 0).unwrap();
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
        for at in (0..len).step_by(step) {
            let mut bytes = whole.clone();
            bytes[at as usize] ^= 1 << (at % 8);
            std::fs::write(&file, &bytes).unwrap();
            if let Err(error) = open(path).and_then(|folder| part_of(&folder)) {
                let text = error.to_string();
                assert!(text.contains(&file.display().to_string()), "byte {at} of {name}: {text}");
                continue;
            }
            let means_nothing = match name.as_str() {
                // One of two headers is enough, and no change is noted.
                "journal-1" => true,
                // White space.
                "state.json" => whole[at as usize].is_ascii_whitespace(),
                _ => false,
            };
            assert!(means_nothing, "byte {at} of {name} is taken");
        }
        std::fs::write(&file, whole).unwrap();
    }
}
