//! Whatever datagrams come to a query worker, each answer is one, memory stays bounded, and an honest client is served afterwards.
#![no_main]

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use fatbtree_fuzz::{Counting, Input, held};
use fatbtree_blink::layers::KeyCode;
use fatbtree_blink::{Integrity, Pool, PoolConfig, RemoteSide, SuperRoot, TreeConfig, ValueLayout, value};
use fatbtree_blink_host::{LoadOptions, TreeServer, bulk_load, seeded};
use fatbtree_blink_host::query::{QueryWorker, ScanBounds, WorkerOptions};
use fatbtree_memserver::{Bounds, ClientId, Limits, MemoryServer, ServerOptions};
use fatbtree_soft_nic::{Nic, NicConfig};
use fatbtree_query::ResponderOptions;
use fatbtree_verbs::local::LocalVerbs;
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_wire::query::{Op, Query, QueryHeader, Status};
use libfuzzer_sys::fuzz_target;

#[global_allocator]
static MEMORY: Counting = Counting;

const SEED: u64 = 42;
const KEYS: u64 = 60;
const VALUE: usize = 16;
/// Keys that only the honest client writes: in the first leaf, in the last, and between.
const HONEST: [u64; 3] = [key_of(0), key_of(KEYS / 2), key_of(KEYS - 1)];
/// Source addresses of requests; two belong to one host.
const FROM: [([u8; 4], u16); 4] =
    [([10, 0, 0, 1], 1), ([10, 0, 0, 1], 2), ([10, 0, 0, 2], 1), ([10, 0, 0, 3], 1)];
const BOUNDS: ResponderOptions = ResponderOptions {
    partition: 0,
    secret: None,
    longest_value: 2048,
    running: 8,
    clients_per_host: 3,
    clients: 6,
    waiting_per_host: 4096,
    waiting: 8192,
    lease: Duration::from_secs(60),
    part: 200,
};
/// Bytes that datagrams may make a worker hold: all its bounds together, and what the tree's operations need.
const MOST_HELD: usize = 1 << 20;
/// Rounds in which everything ends that goes on by itself.
const ROUNDS: usize = 10_000;

const fn key_of(number: u64) -> u64 {
    number * 4 + 2
}

fuzz_target!(|bytes: &[u8]| {
    let mut lab = Lab::new();
    let before = held();
    let mut input = Input::new(bytes);
    while !input.is_empty() {
        match input.below(8) {
            0 => {
                let from = address(FROM[input.below(FROM.len())]);
                let most = input.below(256);
                lab.send(from, input.bytes(most));
            }
            1 => {
                // Up to 70 s: leases end.
                lab.now += Duration::from_micros([1, 1 << 10, 1 << 20, 70_000_000][input.below(4)]);
                lab.settle();
            }
            _ => {
                let (from, datagram) = lab.draw(&mut input);
                lab.send(from, &datagram);
                // Some come together.
                if input.below(4) != 0 {
                    lab.settle();
                }
            }
        }
        assert!(held().saturating_sub(before) < MOST_HELD, "{} bytes are held", held() - before);
    }
    lab.end();
});

struct Lab {
    server: TreeServer<Nic>,
    worker: QueryWorker,
    now: Instant,
    /// Cookies that the server has sent to unknown clients, by address.
    cookies: BTreeMap<SocketAddr, u64>,
    /// Last answer to the honest client.
    answer: Option<(QueryHeader, Vec<u8>)>,
    /// Whether a request came that may change the tree: neither garbage nor a read.
    changes: bool,
}

fn address((ip, port): ([u8; 4], u16)) -> SocketAddr {
    (Ipv4Addr::from(ip), port).into()
}

fn honest() -> SocketAddr {
    address(([10, 0, 0, 9], 9))
}

impl Lab {
    fn new() -> Self {
        let keys: Vec<u64> = (0..KEYS).map(key_of).collect();
        let config = TreeConfig::with_integrity(4, 256, ValueLayout::SHORT, Integrity::Checksums);
        let config = config.expect("there is room for four entries");
        let load = LoadOptions { spare_bytes: 256 << 10, ..LoadOptions::new(config, 0) };
        let tree = bulk_load(&load, &keys, &mut seeded(SEED, VALUE as u32)).expect("the keys are sorted");
        let bounds = Bounds { sessions: 1 << 12, queue_pairs: 1 << 14, chunks: 1 << 12, attempts: 1 << 20 };
        let options = ServerOptions {
            chunk_bytes: 8 << 10,
            local_clients: true,
            lock_table_bytes: 2 << 6,
            limits: Limits { client: bounds, host: bounds, server: bounds, ..Limits::default() },
            ..ServerOptions::writable()
        };
        let nic = Nic::new(NicConfig::new([2, 0, 0, 0, 0, 1], [10, 0, 0, 100].into()), SEED);
        let server = MemoryServer::new(nic.expect("there is memory"), tree, &options, SEED);
        let server = server.expect("the tree goes with the device");
        let worker = WorkerOptions {
            servers: vec![(0, 0)],
            responder: BOUNDS,
            scans: ScanBounds { records: 64, bytes: 4096 },
            cache: None,
            session: Default::default(),
        };
        let host = server.local().expect("it has local clients").clone();
        let worker = QueryWorker::new(&host, server.info(), worker, SEED).expect("there is memory");
        let mut lab = Self {
            server,
            worker,
            now: Instant::ZERO,
            cookies: BTreeMap::new(),
            answer: None,
            changes: false,
        };
        lab.settle();
        for from in FROM {
            lab.open(address(from), 1, 1);
        }
        lab
    }

    /// A request with some of its fields overwritten, and from where it comes.
    fn draw(&self, input: &mut Input<'_>) -> (SocketAddr, Vec<u8>) {
        let from = address(FROM[input.below(FROM.len())]);
        let op = Op::ALL[input.below(Op::ALL.len())];
        let key = match input.below(3) {
            0 => input.number(),
            _ => key_of(input.below(KEYS as usize) as u64),
        };
        let mut header = QueryHeader::request(op, key, input.below(4) as u64, input.number());
        header.address = match input.below(3) {
            0 => 0,
            // Nodes lie at multiples of 64, but not at all of them.
            1 => input.number().wrapping_mul(64),
            _ => input.number(),
        };
        (header.walk.levels, header.walk.partition) = (input.byte(), input.byte().into());
        // The tree has numbers for keys: what is asked for keys of bytes is read, and refused.
        header.bytes = op != Op::Open && input.below(4) == 0;
        let mut part: &[u8] = &[];
        if header.bytes {
            let most = input.below(256);
            part = input.bytes(most);
            header.total = part.len() as u32 + u32::from(input.short() % 64);
            header.walk.key = KeyCode::NONE.word(part.get(2..).unwrap_or_default());
        }
        match op {
            Op::Open if input.below(4) != 0 => {
                header.range_end = self.cookies.get(&from).copied().unwrap_or(0);
            }
            Op::Scan => (header.range_end, header.limit) = (input.number(), input.byte().into()),
            Op::Put | Op::Update if !header.bytes => {
                let most = input.below(256);
                part = input.bytes(most);
                header.total = part.len() as u32;
                if input.below(2) == 1 {
                    header.offset = input.below(64) as u32;
                    header.total += header.offset + u32::from(input.short() % 512);
                }
            }
            _ => {}
        }
        let mut datagram = [&header.to_bytes()[..], part].concat();
        input.overwrite(&mut datagram);
        (from, datagram)
    }

    fn send(&mut self, from: SocketAddr, datagram: &[u8]) {
        let found = Query::parse(datagram).ok().map(|query| query.header);
        if found.is_some_and(|header| header.op.is_write() && HONEST.contains(&header.walk.key)) {
            return;
        }
        self.changes |= found.is_some_and(|header| !matches!(header.op, Op::Get | Op::Scan));
        self.worker.handle(self.now, from, datagram);
        assert!(self.worker.under_way() <= BOUNDS.running + 2);
        self.take_answers();
    }

    fn take_answers(&mut self) {
        while let Some(sent) = self.worker.poll_transmit() {
            assert!(FROM.map(address).contains(&sent.to) || sent.to == honest(), "{}", sent.to);
            let Query { header, part } =
                Query::parse(&sent.bytes).expect("an answer is a datagram of the protocol");
            let status = header.status.expect("servers answer");
            assert!(part.len() <= BOUNDS.part);
            if status == Status::NotOpen {
                self.cookies.insert(sent.to, header.range_end);
            }
            if sent.to == honest() {
                self.answer = Some((header, part.to_vec()));
            }
        }
    }

    /// Until nothing more goes on at this moment.
    fn settle(&mut self) {
        for _ in 0..ROUNDS {
            if self.server.poll_timeout().is_some_and(|at| at <= self.now) {
                self.server.handle_timeout(self.now);
            }
            self.server.work(self.now, 64);
            while self.server.poll_event().is_some() {}
            self.worker.turn(self.now);
            self.take_answers();
            let Some((id, call)) = self.worker.poll_call(self.now) else { return };
            let answer = self.server.carry_out(self.now, ClientId::local(0), call);
            self.worker.handle_answer(self.now, id, answer).expect("the tree stays");
        }
        panic!("a worker makes calls without an end");
    }

    /// Until all requests have ended.
    fn finish(&mut self) {
        self.settle();
        for _ in 0..ROUNDS {
            if self.worker.under_way() == 0 {
                return;
            }
            self.now = self.worker.poll_timeout().max(self.now + Duration::from_nanos(1));
            self.settle();
        }
        panic!("{} requests have no end", self.worker.under_way());
    }

    /// An honest client's request and its answer; it asks again where the server could not.
    fn ask(&mut self, from: SocketAddr, header: &QueryHeader, part: &[u8]) -> (QueryHeader, Vec<u8>) {
        for _ in 0..10 {
            self.answer = None;
            self.worker.handle(self.now, from, &[&header.to_bytes()[..], part].concat());
            self.finish();
            match self.answer.take() {
                Some((found, _)) if matches!(found.status, Some(Status::Failed | Status::Busy)) => {}
                Some(answer) => return answer,
                None => {}
            }
        }
        panic!("no answer to {header:?}");
    }

    fn open(&mut self, from: SocketAddr, client: u64, floor: u64) {
        let open = QueryHeader::request(Op::Open, 0, client, floor);
        self.worker.handle(self.now, from, &open.to_bytes());
        self.take_answers();
        let range_end = self.cookies.get(&from).copied().expect("an unknown client gets a cookie");
        self.worker.handle(self.now, from, &QueryHeader { range_end, ..open }.to_bytes());
        self.take_answers();
    }

    /// Ends all requests. Then an honest client reads its keys and writes, and the tree is verified.
    fn end(&mut self) {
        self.finish();
        for key in HONEST {
            self.reads(key, &value_of(key));
        }
        if !self.changes {
            return;
        }
        self.now += Duration::from_secs(100);
        self.settle();
        let (key, value) = (key_of(KEYS / 2), [7; 40]);
        self.open(honest(), 99, 1);
        let put = QueryHeader { total: 40, ..QueryHeader::request(Op::Put, key, 99, 1) };
        match self.ask(honest(), &put, &value).0.status {
            Some(Status::Done) => self.reads(key, &value),
            other => panic!("an honest client's put: {other:?}"),
        }
        self.verify();
    }

    fn reads(&mut self, key: u64, value: &[u8]) {
        let (header, found) = self.ask(honest(), &QueryHeader::request(Op::Get, key, 0, key), &[]);
        assert_eq!((header.status, &found[..]), (Some(Status::Done), value), "{header:?}");
    }

    /// A walk over the whole tree.
    fn verify(&mut self) {
        let info = *self.server.info();
        let host = self.server.local().expect("it has local clients").clone();
        let verbs = LocalVerbs::new(&host, &LocalVerbs::BUFFERS).expect("there is memory");
        let roots = SuperRoot::new(vec![info.partition]).expect("it has all keys");
        let config = PoolConfig { tree: info.config, ..PoolConfig::default() };
        let pool = Pool::new(verbs, config, roots, SEED).expect("the tree can be");
        let session = self.server.open_session(self.now, ClientId::local(1)).expect("there is room").session;
        for id in pool.connections() {
            let local = pool.open(id).expect("it is down");
            let attached = self.server.attach(self.now, session, &local, None).expect("there is room");
            let remote = RemoteSide { endpoint: attached.endpoint, rkey: info.region.rkey, registered: false };
            pool.connected(id, remote).expect("it was opened");
        }
        let mut walk = pin!(pool.verify());
        for _ in 0..ROUNDS {
            match walk.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Ok(found)) => return assert!(found.keys >= HONEST.len() as u64),
                Poll::Ready(Err(error)) => panic!("{error}"),
                Poll::Pending => {
                    pool.turn(self.now);
                    self.now += Duration::from_micros(1);
                }
            }
        }
        panic!("a walk over the tree without an end");
    }
}

fn value_of(key: u64) -> [u8; VALUE] {
    let mut bytes = [0; VALUE];
    value::fill(key, SEED, &mut bytes);
    bytes
}
