//! Many operations of one client at once, each polled only when something has woken it. One that waits for another holds no buffer, of
//! which there are few.

use std::net::Ipv4Addr;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use fatbtree_memserver::{ClientId, MemoryServer, ServerOptions};
use fatbtree_race::host::HashTable;
use fatbtree_race::{Shape, Table};
use fatbtree_remote_memory::session_keeper::{KeeperOptions, SessionKeeper};
use fatbtree_remote_memory::{Change, RemoteConfig, RemoteMemory};
use fatbtree_verbs::Access;
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::{Duration, Instant};

struct Lab {
    server: MemoryServer<PlainDevice, HashTable>,
    memory: Rc<RemoteMemory<PlainDevice>>,
    keeper: SessionKeeper<fatbtree_race::TableInfo>,
    now: Instant,
}

impl Lab {
    fn new() -> Self {
        let network = PlainNetwork::new();
        let shape = Shape { servers: 1, ..Shape::default() };
        let content = HashTable::make(0, shape, 1 << 30).expect("there is memory");
        let options = ServerOptions {
            access: Access::ALL,
            lease: Duration::from_secs(1 << 33),
            ..ServerOptions::writable()
        };
        let server =
            MemoryServer::new(network.device(), content, &options, 1).expect("nothing is in the way");
        let memory = RemoteMemory::new(network.device(), [0].into_iter(), RemoteConfig::default(), 1);
        let memory = Rc::new(memory.expect("nothing is in the way"));
        let keeper = SessionKeeper::new(memory.connections(), KeeperOptions::default());
        Self { server, memory, keeper, now: Instant::ZERO }
    }

    fn drive<T>(&mut self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        let client = ClientId { host: [127, 0, 0, 1].into(), roce: Ipv4Addr::from_bits(1) };
        loop {
            self.memory.turn(self.now);
            self.keeper
                .pump(self.now, &*self.memory, |_, call| self.server.carry_out(self.now, client, call));
            if let Poll::Ready(done) = work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return done;
            }
            self.now += Duration::from_micros(1);
        }
    }
}

#[test]
fn puts_at_once_go_on_over_splits() {
    const KEYS: u64 = 3_000;
    /// Far more than the device has buffers: 64.
    const AT_ONCE: usize = 1_000;
    let mut lab = Lab::new();
    let memory = Rc::clone(&lab.memory);
    let table = lab.drive(Table::open(memory, 0)).expect("the server lives");
    let keys = std::cell::RefCell::new(0..KEYS);
    let puts = async || {
        let mut put = 0;
        loop {
            let next = keys.borrow_mut().next();
            let Some(key) = next else { return Ok(put) };
            table.change(key, Change::Upsert(&key.to_le_bytes())).await.result?;
            put += 1;
        }
    };
    let all = lab.drive(futures_buffered::join_all((0..AT_ONCE).map(|_| puts())));
    let all: Result<Vec<u64>, fatbtree_race::TableError> = all.into_iter().collect();
    assert_eq!(all.map(|all| all.iter().sum()), Ok(KEYS), "after {:?}", lab.now);
}
