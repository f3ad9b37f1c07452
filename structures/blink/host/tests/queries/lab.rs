//! A memory server, its query workers and an RDMA client, in one thread and in virtual time.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use fatbtree_blink::size_class::RECORDS;
use fatbtree_blink::{
    IndexCache, Integrity, KeyRange, Owner, Pool, PoolConfig, RemoteSide, SessionId, TreeConfig, ValueLayout,
    value,
};
use fatbtree_blink_host::query::{QueryWorker, WorkerOptions};
use fatbtree_blink_host::{LoadOptions, TreeServer, bulk_load, seeded};
use fatbtree_memserver::{ClientId, Grant, MemoryServer, ServerOptions};
use fatbtree_query::{Answer, Ask, Requester, ResponderOptions};
use fatbtree_remote_memory::session_keeper::Granted;
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::{Duration, Instant};

pub(crate) const SEED: u64 = 42;

pub(crate) fn config(integrity: Integrity) -> TreeConfig {
    TreeConfig::with_integrity(5, 256, ValueLayout::OutOfLine, integrity).unwrap()
}

/// A server with one partition of two, and everything that is asked of it answered at once.
pub(crate) struct Lab {
    pub(crate) network: PlainNetwork,
    pub(crate) server: TreeServer<PlainDevice>,
    pub(crate) now: Instant,
}

pub(crate) const RANGE: KeyRange = KeyRange { low: 1000, high: Some(1 << 40) };

pub(crate) fn options() -> ServerOptions {
    ServerOptions { chunk_bytes: 1 << 14, local_clients: true, ..ServerOptions::writable() }
}

impl Lab {
    pub(crate) fn new(keys: &[u64]) -> Self {
        Self::of(config(Integrity::Checksums), RANGE, keys)
    }

    /// A server with a tree of this layout, which is for a range of keys.
    pub(crate) fn of(config: TreeConfig, range: KeyRange, keys: &[u64]) -> Self {
        let network = PlainNetwork::new();
        let load = LoadOptions { spare_bytes: 4 << 20, range, ..LoadOptions::new(config, 1) };
        let tree = bulk_load(&load, keys, &mut seeded(SEED, 20)).unwrap();
        let server = MemoryServer::new(network.device(), tree, &options(), 1).unwrap();
        Self { network, server, now: Instant::ZERO }
    }

    pub(crate) fn worker(&mut self, number: u32) -> Worker {
        self.worker_with(number, None)
    }

    pub(crate) fn worker_with(&mut self, number: u32, cache: Option<Arc<IndexCache>>) -> Worker {
        let worker = self.begin(number, cache);
        let mut worker = Worker { worker, number, opened: Vec::new(), replaced: 0 };
        worker.settle(self);
        worker
    }

    fn begin(&self, number: u32, cache: Option<Arc<IndexCache>>) -> QueryWorker {
        let KeyRange { low, high } = self.server.info().partition.range;
        let options = WorkerOptions {
            servers: vec![(0, 0), (low, 1), (high.unwrap(), 2)],
            responder: ResponderOptions::default(),
            scans: Default::default(),
            cache,
            session: Default::default(),
        };
        let host = self.server.local().unwrap().clone();
        QueryWorker::new(&host, self.server.info(), options, u64::from(number)).unwrap()
    }
}

pub(crate) struct Worker {
    pub(crate) worker: QueryWorker,
    pub(crate) number: u32,
    /// Sessions so far, and the owners of their locks.
    pub(crate) opened: Vec<(SessionId, Option<Owner>)>,
    /// Times that a tree of another layout came, with which the worker began anew.
    pub(crate) replaced: u32,
}

impl Worker {
    /// Until it needs nothing more.
    pub(crate) fn settle(&mut self, lab: &mut Lab) {
        loop {
            self.worker.turn(lab.now);
            let Some((id, call)) = self.worker.poll_call(lab.now) else { return };
            let answer = lab.server.carry_out(lab.now, ClientId::local(self.number), call);
            if let Ok(Granted::Opened(opened)) = &answer {
                self.opened.push((opened.session, opened.owner));
            }
            if self.worker.handle_answer(lab.now, id, answer).is_err() {
                self.replaced += 1;
                let seed = u64::from(self.number + 1000 * self.replaced);
                self.worker.begin_anew(lab.server.local().unwrap(), seed).unwrap();
            }
        }
    }
}

pub(crate) fn address(port: u16) -> SocketAddr {
    (Ipv4Addr::new(10, 0, 0, 9), port).into()
}

/// Asks one thing and waits for the answer. Every datagram of the client is changed by `touch` on its way.
pub(crate) fn ask(
    lab: &mut Lab,
    worker: &mut Worker,
    client: &mut Requester,
    port: u16,
    ask: Ask,
    touch: impl Fn(&mut [u8]),
) -> Answer {
    let id = client.ask(lab.now, ask).unwrap();
    for _ in 0..2000 {
        while let Some(mut datagram) = client.poll_transmit() {
            touch(&mut datagram.bytes);
            worker.worker.handle(lab.now, address(port), &datagram.bytes);
        }
        worker.settle(lab);
        while let Some(datagram) = worker.worker.poll_transmit() {
            assert_eq!(datagram.to, address(port));
            client.handle(lab.now, &datagram.bytes);
        }
        if let Some((answered, answer)) = client.poll_answer() {
            assert_eq!(answered, id);
            return answer;
        }
        lab.now += Duration::from_millis(1);
        client.handle_timeout(lab.now);
    }
    panic!("no answer");
}

pub(crate) fn value_of(key: u64, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; 20];
    value::fill(key, seed, &mut bytes);
    bytes
}

pub(crate) fn rdma(lab: &mut Lab) -> Pool<PlainDevice> {
    let info = *lab.server.info();
    let below = fatbtree_blink::Partition {
        id: 0,
        range: KeyRange { low: 0, high: Some(RANGE.low) },
        ..info.partition
    };
    let above =
        fatbtree_blink::Partition { id: 2, range: KeyRange { low: 1 << 40, high: None }, ..info.partition };
    let roots = fatbtree_blink::SuperRoot::new(vec![below, info.partition, above]).unwrap();
    let config = PoolConfig { tree: info.config, ..PoolConfig::default() };
    let pool = Pool::new(lab.network.device(), config, roots, 9).unwrap();
    let id = pool.connections().into_iter().find(|id| id.server == 1).unwrap();
    let local = pool.open(id).unwrap();
    let client = ClientId { host: [127, 0, 0, 1].into(), roce: local.ip };
    let lease = lab.server.open_session(lab.now, client).unwrap();
    let endpoint = lab.server.connect(lab.now, lease.session, &local, None).unwrap();
    pool.set_writer(1, info.writer(lease.owner, true).unwrap()).unwrap();
    pool.connected(id, RemoteSide { endpoint, rkey: info.region.rkey, registered: false }).unwrap();
    let records = RECORDS;
    let grant = lab.server.allocate(lab.now, lease.session, records, 0).unwrap();
    assert!(matches!(grant, Grant::Chunk(_)), "{grant:?}");
    grant.hand_to(&pool, 1, lease.session.id);
    pool
}
