//! A disk that is full: what needs more of it is refused by name, what is there is served on, and all goes on when there is room again.
//!
//! Once on a small file system in a mount namespace, where the machine allows that, and once with a bound on the length of files,
//! everywhere.
#![allow(clippy::unwrap_used, reason = "a test says by failing what is wrong")]

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Command, Output};
use std::task::{Context, Poll, Waker};

use fatbtree_blink::{
    Change, Event, Integrity, OperationError, Pool, PoolConfig, RemoteSide, Shortage, Start, SuperRoot,
    TreeConfig, ValueLayout, value,
};
use fatbtree_blink_host::{LoadOptions, TreeFolder, TreeServer, TreeStorage, build_in, seeded, tree_in};
use fatbtree_memserver::{
    ClientId, FolderOwner, Grant, MemoryServer, Refusal, ServerOptions, SessionKey, SizeClass,
};
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::{Duration, Instant};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

const CHUNK: u64 = 64 << 10;
const KEYS: u64 = 500;
const SEED: u64 = 7;

/// A disk that can be full.
trait Disk {
    fn folder(&self) -> PathBuf;
    /// Fills the disk: files can be no longer than this, or no file can become longer than it is.
    fn fill(&self, bytes: u64);
    fn make_room(&self);
    /// Shortage that a client is told then.
    fn shortage(&self) -> Shortage;
    /// Words of the server's message.
    fn words(&self) -> &'static str;
}

/// TreeFolder whose files have a maximum length.
struct Bounded(tempfile::TempDir);

impl Disk for Bounded {
    fn folder(&self) -> PathBuf {
        self.0.path().join("left")
    }

    fn fill(&self, bytes: u64) {
        let (_, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
        setrlimit(Resource::RLIMIT_FSIZE, bytes, hard).unwrap();
    }

    fn make_room(&self) {
        let (_, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
        setrlimit(Resource::RLIMIT_FSIZE, hard, hard).unwrap();
    }

    /// The disk is not full.
    fn shortage(&self) -> Shortage {
        Shortage::Unknown
    }

    fn words(&self) -> &'static str {
        "though it is not full: File too large"
    }
}

/// A small file system.
struct Small(PathBuf);

impl Small {
    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }
}

impl Disk for Small {
    fn folder(&self) -> PathBuf {
        self.0.join("left")
    }

    fn fill(&self, _: u64) {
        let filler = std::fs::File::create(self.filler()).unwrap();
        let mut file = &filler;
        while std::io::Write::write(&mut file, &[1; 4096]).is_ok() {}
    }

    fn make_room(&self) {
        std::fs::remove_file(self.filler()).unwrap();
    }

    fn shortage(&self) -> Shortage {
        Shortage::Disk
    }

    fn words(&self) -> &'static str {
        "no room on the disk"
    }
}

fn config() -> TreeConfig {
    TreeConfig::with_integrity(16, 1024, ValueLayout::OutOfLine, Integrity::Checksums).unwrap()
}

fn open(path: &Path) -> TreeFolder {
    let owner = FolderOwner { server: "left".to_owned(), partition: 0, address: Ipv4Addr::new(10, 0, 0, 2) };
    TreeFolder::open(path, owner, CHUNK).unwrap()
}

/// A server and a client of it.
struct World {
    server: TreeServer<PlainDevice>,
    pool: Pool<PlainDevice>,
    session: SessionKey,
    /// Refusals of the client's requests for memory.
    refused: Vec<Refusal>,
}

impl World {
    fn new(storage: &mut TreeStorage) -> Self {
        let tree = match storage {
            TreeStorage::Folder(folder) => tree_in(folder).unwrap(),
            TreeStorage::Memory => None,
        };
        let tree = tree.unwrap_or_else(|| {
            let keys: Vec<u64> = (0..KEYS).collect();
            let options = LoadOptions { spare_bytes: 64 * CHUNK, ..LoadOptions::new(config(), 0) };
            let tree = build_in(storage, &options, u64::MAX, &keys, &mut seeded(SEED, 100)).unwrap();
            storage.keep(tree.kept()).unwrap();
            tree
        });
        let network = PlainNetwork::new();
        let roots = SuperRoot::new(vec![tree.partition]).unwrap();
        let options = ServerOptions { chunk_bytes: CHUNK, ..ServerOptions::writable() };
        let mut server = MemoryServer::new(network.device(), tree, &options, 1).unwrap();
        let pool_config = PoolConfig { tree: config(), ..PoolConfig::default() };
        let pool = Pool::new(network.device(), pool_config, roots, 1).unwrap();
        let (id, now) = (pool.connections()[0], Instant::ZERO);
        let local = pool.open(id).unwrap();
        let client = ClientId { host: IpAddr::V4(Ipv4Addr::LOCALHOST), roce: local.ip };
        let lease = server.open_session(now, client).unwrap();
        pool.set_writer(0, server.info().writer(lease.owner, true).unwrap()).unwrap();
        let endpoint = server.connect(now, lease.session, &local, None).unwrap();
        let remote = RemoteSide { endpoint, rkey: server.info().region.rkey, registered: false };
        pool.connected(id, remote).unwrap();
        Self { server, pool, session: lease.session, refused: Vec::new() }
    }

    fn memory(&mut self, class: SizeClass, bytes: u32) -> Result<Grant, Refusal> {
        self.server.allocate(Instant::ZERO, self.session, class, bytes)
    }

    fn upsert(&mut self, key: u64, seed: u64) -> Result<bool, OperationError> {
        let mut bytes = [0; 100];
        value::fill(key, seed, &mut bytes);
        self.mutate(key, Change::Upsert(&bytes))
    }

    fn mutate(&mut self, key: u64, mutation: Change<'_>) -> Result<bool, OperationError> {
        let pool = std::mem::replace(&mut self.pool, unconnected());
        let result = {
            let mut change = pin!(pool.mutate(key, mutation, Start::Root));
            let mut context = Context::from_waker(Waker::noop());
            let mut now = Instant::ZERO;
            loop {
                if let Poll::Ready(done) = change.as_mut().poll(&mut context) {
                    break done.result;
                }
                now += Duration::from_millis(1);
                assert!(now < Instant::ZERO + Duration::from_secs(60), "it never ends");
                pool.turn(now);
                while let Some(event) = pool.poll_event() {
                    let Event::MemoryWanted { server, class, bytes } = event else { panic!("{event:?}") };
                    match self.memory(class, bytes) {
                        Ok(grant) => grant.hand_to(&pool, server, self.session.id),
                        Err(refusal) => {
                            pool.refuse_memory(server, class, refusal.shortage());
                            self.refused.push(refusal);
                        }
                    }
                }
            }
        };
        self.pool = pool;
        result
    }

    fn is(&self, key: u64, seed: u64) -> bool {
        let found = self.pool.reactor().block_on(self.pool.lookup(key, Start::Root)).result.unwrap();
        found.is_some_and(|found| value::check(key, seed, &found))
    }
}

fn unconnected() -> Pool<PlainDevice> {
    let partition = fatbtree_blink::Partition {
        id: 0,
        range: fatbtree_blink::KeyRange::ALL,
        root: fatbtree_blink::GlobalAddress::new(0, 64),
        root_level: 0,
    };
    let roots = SuperRoot::new(vec![partition]).unwrap();
    Pool::new(PlainNetwork::new().device(), PoolConfig::default(), roots, 1).unwrap()
}

/// The body of the tests.
fn serves_on(disk: &dyn Disk) {
    let folder = disk.folder();
    let mut storage = TreeStorage::Folder(open(&folder).into());
    let mut world = World::new(&mut storage);
    let room = world.server.memory().len() - 64 * CHUNK;
    // A first chunk of each class.
    for key in KEYS..KEYS + 100 {
        world.upsert(key, SEED).unwrap();
    }
    // Longer than the journal, which has its room already.
    disk.fill(room + 16 * CHUNK);
    let mut key = KEYS + 100;
    let error = loop {
        match world.upsert(key, SEED) {
            Ok(_) => key += 1,
            Err(error) => break error,
        }
        assert!(key < 100_000, "the disk is never full");
    };
    let text = error.to_string();
    assert!(matches!(error, OperationError::NoMemory { why, .. } if why == disk.shortage()), "{text}");
    let text = world.refused.last().unwrap().to_string();
    let file = folder.join("tree-1").display().to_string();
    assert!(text.contains(&file) && text.contains(disk.words()), "{text}");
    // Again and again, and it costs nothing.
    for _ in 0..20 {
        assert!(world.upsert(key, SEED).is_err());
    }
    // Present keys are read, deleted, and rewritten: places that records have left are used again.
    assert!((0..key).all(|key| world.is(key, SEED)));
    for _ in 0..3 {
        key -= 1;
        assert_eq!(world.mutate(key, Change::Delete), Ok(true));
    }
    for key in 0..50 {
        world.upsert(key, SEED + 1).unwrap();
        world.upsert(key, SEED + 2).unwrap();
    }
    // Access to memory that was not given out ends no process.
    let memory = world.server.memory();
    let last = memory.len() - 8;
    assert!(memory.write(last - 64, &[1; 8]).is_err() && memory.update(last / 8 * 8 - 64, |_| 1).is_err());
    let mut found = [1; 8];
    memory.read(last, &mut found).unwrap();
    assert_eq!(found, [0; 8]);
    // A load finds no room, and leaves nothing.
    let keys: Vec<u64> = (0..100_000).collect();
    let options = LoadOptions { generation: 2, spare_bytes: 1 << 20, ..LoadOptions::new(config(), 0) };
    let refused =
        build_in(&mut storage, &options, u64::MAX, &keys, &mut seeded(SEED, 100)).unwrap_err().to_string();
    assert!(refused.contains(&folder.display().to_string()), "{refused}");
    storage.forget_others();
    assert!(!folder.join("tree-2").exists());
    drop((world, storage));

    // The server is started again, on the full disk.
    let mut storage = TreeStorage::Folder(open(&folder).into());
    let mut world = World::new(&mut storage);
    assert!((50..key).all(|key| world.is(key, SEED)) && (0..50).all(|key| world.is(key, SEED + 2)));
    disk.make_room();
    for key in key..key + 2000 {
        world.upsert(key, SEED).unwrap();
    }
    assert!((50..key + 2000).all(|key| world.is(key, SEED)));

    // A commit is undone on a disk that is full by then.
    let options = LoadOptions { generation: 2, ..LoadOptions::new(config(), 0) };
    let other = build_in(&mut storage, &options, u64::MAX, &[1, 2, 3], &mut seeded(SEED, 100)).unwrap();
    storage.keep(other.kept()).unwrap();
    world.server.commit().unwrap();
    disk.fill(0);
    storage.go_back().unwrap();
    storage.forget_others();
    drop((other, storage));
    disk.make_room();
    let mut storage = TreeStorage::Folder(open(&folder).into());
    assert!(World::new(&mut storage).is(key + 1999, SEED));
}

/// Runs the test of this name again, by a shell's words.
fn again(words: &str, shell: &mut Command, test: &str) -> std::io::Result<Output> {
    shell
        .args(["sh", "-c", words])
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", test, "--nocapture"])
        .output()
}

fn passed(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{:?}: {text}{errors}", output.status);
}

/// The signal that tells of a file that is too long is ignored: the system call fails then.
#[test]
fn a_server_whose_files_cannot_grow_serves_on() {
    let mut shell = Command::new("env");
    passed(&again("trap '' XFSZ && exec \"$0\" \"$@\"", &mut shell, "with_bounded_files").unwrap());
}

#[test]
#[ignore = "bounds the files of its process: a_server_whose_files_cannot_grow_serves_on starts it"]
fn with_bounded_files() {
    serves_on(&Bounded(tempfile::tempdir().unwrap()));
}

/// The same where a write to a mapped file really finds no room, which would end the process. The other test is there where the machine has
/// no namespaces.
#[test]
fn a_server_on_a_full_file_system_serves_on() {
    let folder = tempfile::tempdir().unwrap();
    let mut shell = Command::new("unshare");
    shell.arg("-rm").env("FATBTREE_SMALL_DISK", folder.path());
    let words = "mount -t tmpfs -o size=6m small \"$FATBTREE_SMALL_DISK\" && exec \"$0\" \"$@\"";
    match again(words, &mut shell, "on_a_small_file_system") {
        Ok(output) if String::from_utf8_lossy(&output.stdout).contains("test result") => passed(&output),
        other => eprintln!("SKIPPED: no file system can be mounted in a namespace here: {other:?}"),
    }
}

#[test]
#[ignore = "fills a small file system: a_server_on_a_full_file_system_serves_on mounts it"]
fn on_a_small_file_system() {
    let path = std::env::var_os("FATBTREE_SMALL_DISK").expect("the test that starts this one has mounted it");
    serves_on(&Small(path.into()));
}
