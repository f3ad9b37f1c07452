//! A disk that is full: what needs more of it is refused by name, what is there is served on, and all goes on when there is room again.
//!
//! Once on a small file system in a mount namespace, where the machine allows that, and once with a bound on the length of files,
//! everywhere.
use crate::common;

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Command, Output};
use std::task::{Context, Waker};

use common::blocks::{Blocks, LARGE, RECORDS, Shape};
use fatbtree_memserver::{
    ClientId, Folder, FolderOwner, MemoryServer, PartOptions, Refusal, ServerOptions, SessionKey, Storage,
    kept, make_in, part_in,
};
use fatbtree_remote_memory::record::{RecordPointer, UNPUBLISHED, read_record, record_bytes, write_record};
use fatbtree_remote_memory::{Event, RemoteConfig, RemoteMemory, RemoteSide, Shortage, Taken, Want};
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::Instant;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

const CHUNK: u64 = 64 << 10;
const LOADED: u32 = 50;
/// Bytes of each record's value.
const VALUE: u32 = 100;

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

/// Folder whose files have a maximum length.
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

fn open(path: &Path) -> Storage<Shape> {
    let owner = FolderOwner { server: "left".to_owned(), partition: 0, address: Ipv4Addr::new(10, 0, 0, 2) };
    Storage::Folder(Folder::open(path, owner, CHUNK).unwrap().into())
}

fn load(generation: u64, loaded: u32, spare_bytes: u64) -> PartOptions<Shape> {
    let options = PartOptions::new(0, Shape { loaded });
    PartOptions { generation, spare_bytes, chunk_bytes: CHUNK, ..options }
}

/// A server and a client of it.
struct World {
    server: MemoryServer<PlainDevice, Blocks>,
    memory: RemoteMemory<PlainDevice>,
    session: SessionKey,
    /// Refusals of the client's requests for memory.
    refused: Vec<Refusal>,
}

impl World {
    fn new(storage: &mut Storage<Shape>) -> Self {
        let part = match storage {
            Storage::Folder(folder) => part_in::<Blocks>(folder, CHUNK).unwrap(),
            Storage::Memory => None,
        };
        let part = part.unwrap_or_else(|| {
            let part = make_in::<Blocks>(storage, &load(1, LOADED, 64 * CHUNK)).unwrap();
            storage.keep(kept(&part)).unwrap();
            part
        });
        assert_eq!(Blocks::intact(&part, 1), u64::from(LOADED));
        let network = PlainNetwork::new();
        let options = ServerOptions { chunk_bytes: CHUNK, ..ServerOptions::writable() };
        let mut server = MemoryServer::new(network.device(), part, &options, 1).unwrap();
        let memory =
            RemoteMemory::new(network.device(), [0].into_iter(), RemoteConfig::default(), 1).unwrap();
        let (id, now) = (memory.connections()[0], Instant::ZERO);
        let local = memory.open(id).unwrap();
        let client = ClientId { host: IpAddr::V4(Ipv4Addr::LOCALHOST), roce: local.ip };
        let lease = server.open_session(now, client).unwrap();
        memory.set_writer(0, server.info().writer(lease.owner, true).unwrap()).unwrap();
        let endpoint = server.connect(now, lease.session, &local, None).unwrap();
        let remote = RemoteSide { endpoint, rkey: server.info().region.rkey, registered: false };
        memory.connected(id, remote).unwrap();
        Self { server, memory, session: lease.session, refused: Vec::new() }
    }

    /// Memory for a block, of the client's or of the server's.
    fn take(&mut self, want: Want) -> Result<Taken, Shortage> {
        let Self { server, memory, session, refused } = self;
        let writer = memory.writer(0).unwrap();
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Some(block) = memory.take_at_hand(&writer, want) {
                return Ok(block.keep());
            }
            let mut waits = pin!(memory.until_memory(want));
            while waits.as_mut().poll(&mut context)?.is_pending() {
                while let Some(event) = memory.poll_event() {
                    let Event::MemoryWanted { server: number, class, bytes } = event else {
                        panic!("{event:?}")
                    };
                    match server.allocate(Instant::ZERO, *session, class, bytes) {
                        Ok(grant) => grant.hand_to(memory, number, session.id),
                        Err(refusal) => {
                            memory.refuse_memory(number, class, refusal.shortage());
                            refused.push(refusal);
                        }
                    }
                }
            }
        }
    }

    /// Writes a record of a key, as a client does.
    fn write(&mut self, key: u64) -> Result<Record, Shortage> {
        let taken = self.take(Want::record(0, RECORDS, VALUE))?;
        let (address, version) = (taken.block.address, taken.block.version.unwrap_or(1));
        let mut bytes = vec![0; record_bytes(VALUE) as usize];
        write_record(&mut bytes, key, version, UNPUBLISHED, |value| value.fill(key as u8));
        let lane = self.memory.take_lane();
        self.memory.reactor().block_on(self.memory.write(&lane, address, &bytes)).unwrap();
        Ok(Record { key, taken, pointer: RecordPointer { address, length: VALUE, version } })
    }

    /// Whether a record is read as it was written.
    fn is(&self, record: &Record) -> bool {
        let (lane, len) = (self.memory.take_lane(), record_bytes(VALUE));
        let read = self.memory.read(&lane, record.pointer.address, len);
        let bytes = self.memory.reactor().block_on(read).unwrap();
        read_record(&bytes, record.key, record.pointer) == Ok(&[record.key as u8; VALUE as usize][..])
    }
}

/// A record that was written.
struct Record {
    key: u64,
    taken: Taken,
    pointer: RecordPointer,
}

/// The body of the tests.
fn serves_on(disk: &dyn Disk) {
    let folder = disk.folder();
    let mut storage = open(&folder);
    let mut world = World::new(&mut storage);
    let room = world.server.memory().len() - 64 * CHUNK;
    // A first chunk of each of two classes.
    world.take(Want { server: 0, class: LARGE, bytes: 1024, is_fresh: false }).unwrap();
    let mut records: Vec<_> = (0..100).map(|key| world.write(key).unwrap()).collect();
    // Longer than the journal, which has its room already.
    disk.fill(room + 16 * CHUNK);
    let shortage = loop {
        match world.write(records.len() as u64) {
            Ok(record) => records.push(record),
            Err(shortage) => break shortage,
        }
        assert!(records.len() < 100_000, "the disk is never full");
    };
    assert_eq!(shortage, disk.shortage());
    let text = world.refused.last().unwrap().to_string();
    let file = folder.join("tree-1").display().to_string();
    assert!(text.contains(&file) && text.contains(disk.words()), "{text}");
    // Again and again, and it costs nothing.
    for _ in 0..20 {
        assert!(world.write(0).is_err());
    }
    // Records are read and unlinked; places that they have left are used again.
    assert!(records.iter().all(|record| world.is(record)));
    for record in records.drain(..50) {
        world.memory.put_back_after(0, &record.taken);
    }
    for key in 1_000_000..1_000_050 {
        records.push(world.write(key).unwrap());
    }
    assert!(world.write(0).is_err());
    // Access to memory that was not given out ends no process.
    let memory = world.server.memory();
    let last = memory.len() - 8;
    let before = last / 8 * 8 - 2048;
    assert!(memory.write(before, &[1; 8]).is_err() && memory.update(before, |_| 1).is_err());
    let mut found = [1; 8];
    memory.read(last, &mut found).unwrap();
    assert_eq!(found, [0; 8]);
    // A load finds no room, and leaves nothing.
    let refused = make_in::<Blocks>(&mut storage, &load(2, 100_000, 1 << 20)).unwrap_err().to_string();
    assert!(refused.contains(&folder.display().to_string()), "{refused}");
    storage.forget_others();
    assert!(!folder.join("tree-2").exists());
    drop((world, storage));

    // The server is started again, on the full disk.
    let mut storage = open(&folder);
    let mut world = World::new(&mut storage);
    assert!(records.iter().all(|record| world.is(record)));
    disk.make_room();
    records.extend((2_000_000..2_002_000).map(|key| world.write(key).unwrap()));
    assert!(records.iter().all(|record| world.is(record)));

    // A commit is undone on a disk that is full by then.
    let other = make_in::<Blocks>(&mut storage, &load(2, 3, 0)).unwrap();
    storage.keep(kept(&other)).unwrap();
    world.server.commit().unwrap();
    disk.fill(0);
    storage.go_back().unwrap();
    storage.forget_others();
    drop((other, storage));
    disk.make_room();
    let mut storage = open(&folder);
    assert!(World::new(&mut storage).is(records.last().unwrap()));
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
    passed(
        &again("trap '' XFSZ && exec \"$0\" \"$@\"", &mut shell, "full_disk::with_bounded_files").unwrap(),
    );
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
    match again(words, &mut shell, "full_disk::on_a_small_file_system") {
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
