//! A memory server is asked over the network for another one of its table: what comes is what its part leads to, and only the server itself
//! may ask.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fatbtree_memserver::grpc::{Client, ClientError, Emptying, ServiceOptions, ask, serve_part};
use fatbtree_memserver::{
    Answer, Ask, ClientId, Grant, MemoryServer, Question, ServerOptions, Storage, mailbox,
};
use fatbtree_race::host::HashTable;
use fatbtree_race::{BlockPointer, PAIRS, Place, Shape, Slot};
use fatbtree_remote_memory::{GlobalAddress, Keys, name_of};
use fatbtree_trust::{Door, Peer, Roster, Trust, make_certificates};
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::Instant;
use tokio::net::TcpListener;
use tonic::Code;

use crate::quiet::{FIRST_SLOT, MEMBERS};

const SHAPE: Shape =
    Shape { groups: 64, directory_bits: 4, servers: 0b111, max_value: 1_000, keys: Keys::Numbers };

/// The server that is asked; those that ask.
const LEFT: u16 = 1;
const OWN: u16 = 0;
const OTHER: u16 = 2;

/// Bytes of the regions of those that ask.
const BYTES: u64 = 32 << 20;

/// Offsets on the asking server to which the part leads.
const LED_TO: [u64; 4] = [64, 4096, (16 << 20) + 64, BYTES - 64];

fn members() -> u64 {
    name_of([OWN, LEFT, OTHER].map(|number| (number, 1)))
}

fn question(by: u16, question: Question) -> Ask {
    Ask { sweep: 7, by, of: LEFT, members: members(), question }
}

fn marks(by: u16) -> Ask {
    question(by, Question::Marks { bytes: BYTES })
}

/// A server whose part leads to blocks of the first one.
fn server() -> MemoryServer<PlainDevice, HashTable> {
    let content = HashTable::make(LEFT, SHAPE, 16 << 20).expect("nothing is in the way");
    let (device, options) = (PlainNetwork::new().device(), ServerOptions::writable());
    let mut server = MemoryServer::new(device, content, &options, 1).expect("nothing is in the way");
    let client = ClientId { host: [127, 0, 0, 1].into(), roce: [10, 0, 0, 1].into() };
    let session = server.open_session(Instant::ZERO, client).expect("nothing is in the way").session;
    let Ok(Grant::Chunk(pairs)) = server.allocate(Instant::ZERO, session, PAIRS, 0) else {
        panic!("there is memory")
    };
    let put = |offset: u64, word: u64| {
        server.memory().write(offset, &word.to_le_bytes()).expect("it lies in the region");
    };
    put(MEMBERS, members());
    for (number, at) in (0..).zip(LED_TO) {
        let place = Place::of(GlobalAddress::new(OWN, at)).expect("pointers reach it");
        let slot = Slot::new(BlockPointer { fingerprint: 1, units: 1, version: 1, place });
        put(pairs.address.offset() + FIRST_SLOT + 8 * number, slot.0);
    }
    server.close_session(Instant::ZERO, session).expect("it is open");
    server
}

/// The same behind a service.
struct Serving {
    address: SocketAddr,
    stopped: Arc<AtomicBool>,
    data_path: Option<std::thread::JoinHandle<()>>,
}

impl Serving {
    async fn start(trust: Trust) -> Self {
        let (handle, mut mail) = mailbox(16);
        let stopped = Arc::<AtomicBool>::default();
        let until = Arc::clone(&stopped);
        let data_path = std::thread::spawn(move || {
            let mut server = server();
            let clock = std::time::Instant::now();
            while !until.load(Ordering::Relaxed) {
                let now = Instant::from_nanos(clock.elapsed().as_nanos() as u64);
                mail.answer(now, &mut server);
                server.work(now, 64);
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let address = listener.local_addr().expect("it listens");
        let names = [(OWN, "own"), (LEFT, "left"), (OTHER, "other")];
        let partitions = names.map(|(number, name)| (number, name.to_owned())).into();
        let roster = Roster { partitions, ..Roster::default() };
        let door = Door { trust, roster: roster.into(), ..Door::from(listener) };
        let emptying = Emptying {
            storage: Storage::Memory,
            shape: SHAPE,
            spare_bytes: 16 << 20,
            chunk_bytes: ServerOptions::writable().chunk_bytes,
        };
        let options = ServiceOptions::default();
        tokio::spawn(serve_part::<HashTable>(options, emptying, door, handle, std::future::pending()));
        Self { address, stopped, data_path: Some(data_path) }
    }

    async fn client(&self, to: impl Into<Peer>) -> Client {
        Client::connect(to).await.expect("it listens")
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        if let Some(data_path) = self.data_path.take() {
            let _ = data_path.join();
        }
    }
}

fn code(answer: Result<Answer, ClientError>) -> Option<Code> {
    answer.expect_err("it is refused").code()
}

#[tokio::test]
async fn what_a_part_leads_to_comes_whole() {
    let serving = Serving::start(Trust::default()).await;
    let client = serving.client(&serving.address.to_string()).await;
    let Ok(Answer::Marks { quiet, marks: found }) = ask(&client, marks(OWN)).await else {
        panic!("it has no session")
    };
    let marked = (0..BYTES).step_by(64).filter(|&at| found.is_marked(at..at + 64));
    assert_eq!(marked.collect::<Vec<_>>(), LED_TO);
    // Nothing leads to the other server.
    let Ok(Answer::Marks { marks: found, .. }) = ask(&client, marks(OTHER)).await else {
        panic!("it has no session")
    };
    assert!(!found.is_marked(0..BYTES));

    assert!(matches!(ask(&client, question(OWN, Question::IsQuiet(quiet))).await, Ok(Answer::Quiet)));
    let refused = [
        question(OWN, Question::IsQuiet(!quiet)),
        Ask { members: 1, ..marks(OWN) },
        Ask { of: OTHER, ..marks(OWN) },
        marks(LEFT),
        marks(9),
    ];
    for question in refused {
        assert_eq!(code(ask(&client, question).await), Some(Code::FailedPrecondition), "{question:?}");
    }
    let too_large = question(OWN, Question::Marks { bytes: u64::MAX });
    assert_eq!(code(ask(&client, too_large).await), Some(Code::InvalidArgument));
}

#[tokio::test]
async fn a_server_asks_for_its_own_partition_only() {
    let folder = tempfile::tempdir().expect("there is a disk");
    let path = folder.path().join("set");
    make_certificates(&path, ["own", "left", "other", "client"], 1).expect("the folder is new");
    let trust = |name| Trust::read(&path, name).expect("it was made");
    let serving = Serving::start(trust("left")).await;
    for (name, by, expected) in [
        ("own", OWN, None),
        ("other", OTHER, None),
        ("other", OWN, Some(Code::PermissionDenied)),
        ("client", OWN, Some(Code::PermissionDenied)),
        ("own", 9, Some(Code::PermissionDenied)),
    ] {
        let client = serving.client(trust(name).to(serving.address.to_string(), "left")).await;
        let found = ask(&client, marks(by)).await.err().and_then(|refused| refused.code());
        assert_eq!(found, expected, "{name} for partition {by}");
    }
}
