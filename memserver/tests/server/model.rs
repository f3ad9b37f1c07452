//! Any sequence of requests, silences and broken connections, against a model of what each client holds.
use crate::common;

use std::collections::{BTreeMap, BTreeSet};

use common::blocks::CLASSES;
use common::lab::{Client, Lab, Pair, options};
use fatbtree_memserver::{
    Bounds, ClientId, Event, Limits, Payer, Refusal, Resource, ServerOptions, SessionKey, SizeClass,
};
use fatbtree_remote_memory::GlobalAddress;
use fatbtree_verbs::time::{Duration, Instant};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Open(usize),
    Renew(usize),
    Close(usize),
    Connect(usize),
    Disconnect(usize, usize),
    Break(usize, usize),
    Allocate(usize, usize),
    Write(usize, usize),
    Pass(u64),
    TakeEvents,
}

fn op() -> impl Strategy<Value = Op> {
    let n = 0..6_usize;
    prop_oneof![
        4 => n.clone().prop_map(Op::Open),
        3 => n.clone().prop_map(Op::Renew),
        1 => n.clone().prop_map(Op::Close),
        8 => n.clone().prop_map(Op::Connect),
        2 => (n.clone(), n.clone()).prop_map(|(s, at)| Op::Disconnect(s, at)),
        2 => (n.clone(), n.clone()).prop_map(|(s, at)| Op::Break(s, at)),
        6 => (n.clone(), 0..3_usize).prop_map(|(s, class)| Op::Allocate(s, class)),
        3 => (n.clone(), n).prop_map(|(s, at)| Op::Write(s, at)),
        3 => (0..6000_u64).prop_map(Op::Pass),
        1 => Just(Op::TakeEvents),
    ]
}

struct Session {
    key: SessionKey,
    client: usize,
    ends: Instant,
    pairs: Vec<Pair>,
    chunks: Vec<GlobalAddress>,
}

struct Model {
    lab: Lab,
    clients: Vec<Client>,
    limits: Limits,
    sessions: Vec<Session>,
    kinds: BTreeMap<GlobalAddress, SizeClass>,
    /// Chunks that were written to, and the clients that they are charged to.
    written: BTreeMap<GlobalAddress, ClientId>,
    /// Connections that the owner believes to be open.
    open: BTreeSet<u32>,
}

const CHUNKS: usize = 10;

impl Model {
    fn new() -> Self {
        let bounds = |n: u32| Bounds { sessions: 2 * n, queue_pairs: 3 * n, chunks: 3 * n, attempts: 10_000 };
        let limits = Limits { client: bounds(1), host: bounds(2), server: bounds(3), ..Limits::default() };
        let lab = Lab::new(ServerOptions { limits, ..options() });
        // Three clients of one host, and one of another.
        let clients = [1, 1, 1, 2].map(|host| lab.client().on_host(host)).into();
        let (kinds, written, open) = Default::default();
        Self { lab, clients, limits, sessions: vec![], kinds, written, open }
    }

    fn ids(&self) -> Vec<ClientId> {
        self.clients.iter().map(Client::id).collect()
    }

    /// Amount of `what` that clients selected by `payer` have.
    fn has(&self, payer: impl Fn(ClientId) -> bool, what: Resource) -> usize {
        let ids = self.ids();
        let sessions = self.sessions.iter().filter(|session| payer(ids[session.client]));
        match what {
            Resource::Sessions => sessions.count(),
            Resource::QueuePairs => sessions.map(|session| session.pairs.len()).sum(),
            Resource::Chunks => {
                let held = |session: &Session| {
                    session.chunks.iter().filter(|chunk| !self.written.contains_key(chunk)).count()
                };
                sessions.map(held).sum::<usize>()
                    + self.written.values().filter(|client| payer(**client)).count()
            }
            Resource::Attempts => 0,
        }
    }

    /// Whose bound is met.
    fn bound(&self, client: usize, what: Resource) -> Option<Payer> {
        let id = self.ids()[client];
        let of = |bounds: &Bounds| match what {
            Resource::Sessions => bounds.sessions,
            Resource::QueuePairs => bounds.queue_pairs,
            _ => bounds.chunks,
        };
        let met = |count: usize, bounds| count >= of(bounds) as usize;
        if met(self.has(|other| other == id, what), &self.limits.client) {
            Some(Payer::Client(id))
        } else if met(self.has(|other| other.host == id.host, what), &self.limits.host) {
            Some(Payer::Host(id.host))
        } else {
            met(self.has(|_| true, what), &self.limits.server).then_some(Payer::Server)
        }
    }

    fn expect_bound<T: std::fmt::Debug>(&self, client: usize, what: Resource, answer: &Result<T, Refusal>) {
        match (self.bound(client, what), answer) {
            (None, Ok(_)) => {}
            (Some(payer), Err(Refusal::OverBound(found))) => {
                assert_eq!((found.payer, found.what), (payer, what));
            }
            (bound, answer) => panic!("bound {bound:?}, answer {answer:?}"),
        }
    }

    fn apply(&mut self, op: &Op) {
        let now = self.lab.now;
        let pick = |at: usize, len: usize| (len > 0).then(|| at % len);
        match *op {
            Op::Open(n) => {
                let client = n % self.clients.len();
                let answer = self.lab.open(&self.clients[client]);
                self.expect_bound(client, Resource::Sessions, &answer);
                if let Ok(key) = answer {
                    let ends = now + Duration::from_secs(10);
                    self.sessions.push(Session { key, client, ends, pairs: vec![], chunks: vec![] });
                }
            }
            Op::Pass(millis) => {
                self.lab.pass(Duration::from_millis(millis));
                let now = self.lab.now;
                self.sessions.retain(|session| session.ends > now);
            }
            Op::TakeEvents => self.take_events(),
            Op::Renew(n)
            | Op::Close(n)
            | Op::Connect(n)
            | Op::Disconnect(n, _)
            | Op::Break(n, _)
            | Op::Allocate(n, _)
            | Op::Write(n, _) => {
                if let Some(at) = pick(n, self.sessions.len()) {
                    self.apply_to(op, at, now);
                }
            }
        }
    }

    fn apply_to(&mut self, op: &Op, at: usize, now: Instant) {
        let (key, client) = (self.sessions[at].key, self.sessions[at].client);
        let pick = |at: usize, len: usize| (len > 0).then(|| at % len);
        match *op {
            Op::Renew(_) => {
                self.lab.server.renew_session(now, key).unwrap();
                self.sessions[at].ends = now + Duration::from_secs(10);
            }
            Op::Close(_) => {
                self.lab.server.close_session(now, key).unwrap();
                self.lab.server.work(now, 100);
                self.sessions.remove(at);
            }
            Op::Connect(_) => {
                let answer = self.lab.connect(&mut self.clients[client], key);
                self.expect_bound(client, Resource::QueuePairs, &answer);
                self.sessions[at].pairs.extend(answer);
            }
            Op::Disconnect(_, n) | Op::Break(_, n) => {
                let Some(n) = pick(n, self.sessions[at].pairs.len()) else { return };
                let pair = self.sessions[at].pairs.remove(n);
                if let Op::Break(..) = op {
                    self.clients[client].break_pair(pair);
                    self.lab.server.work(now, 1);
                } else {
                    self.lab.server.disconnect(now, key, pair.there).unwrap();
                }
            }
            Op::Allocate(_, class) => {
                let class = CLASSES[class];
                let taken: BTreeSet<_> =
                    self.sessions.iter().flat_map(|s| s.chunks.iter().copied()).collect();
                match self.lab.allocate(key, class) {
                    Ok(chunk) => {
                        assert_eq!(self.bound(client, Resource::Chunks), None);
                        let free =
                            !taken.contains(&chunk.address) && !self.written.contains_key(&chunk.address);
                        assert!(free, "{} is somebody's", chunk.address);
                        assert_eq!(*self.kinds.entry(chunk.address).or_insert(class), class);
                        self.sessions[at].chunks.push(chunk.address);
                    }
                    Err(Refusal::NoChunk(_)) => {
                        assert_eq!(self.kinds.len(), CHUNKS);
                        let free = |(address, found): (&GlobalAddress, &SizeClass)| {
                            *found == class && !taken.contains(address) && !self.written.contains_key(address)
                        };
                        assert!(!self.kinds.iter().any(free), "one was free");
                    }
                    refused => self.expect_bound(client, Resource::Chunks, &refused),
                }
            }
            Op::Write(_, n) => {
                let Some(n) = pick(n, self.sessions[at].chunks.len()) else { return };
                let address = self.sessions[at].chunks[n];
                // Used up: nothing of it comes back.
                self.lab.fill(address, self.kinds[&address]);
                self.written.insert(address, self.ids()[client]);
            }
            Op::Open(_) | Op::Pass(_) | Op::TakeEvents => {}
        }
    }

    fn take_events(&mut self) {
        for event in self.lab.events() {
            match event {
                Event::Opened(hop) => {
                    assert!(self.open.insert(hop.queue_pair.0), "{hop:?} was opened twice")
                }
                Event::Closed(hop) => {
                    assert!(self.open.remove(&hop.queue_pair.0), "{hop:?} was not open")
                }
                Event::NewRoot(_) | Event::Reloaded { .. } | Event::Lost { .. } | Event::Ask(_) => {
                    panic!("no client moves the root, no operator loads, and the blocks lie on one server")
                }
            }
        }
        let pairs = self.sessions.iter().flat_map(|session| &session.pairs);
        assert_eq!(self.open, pairs.map(|pair| pair.there.0).collect());
    }

    fn check(&self) {
        let pairs = self.has(|_| true, Resource::QueuePairs);
        let held = self.sessions.iter().map(|session| session.chunks.len()).sum();
        let all = self.has(|_| true, Resource::Chunks);
        let counts = ["sessions", "queue_pairs", "chunks_held", "chunks_published"];
        let expected = [self.sessions.len(), pairs, held, all].map(|count| count as u64);
        assert_eq!(counts.map(|name| self.lab.counter(name)), expected);
        assert_eq!(self.lab.watch().queue_pairs.len(), pairs);
        assert!(self.lab.counter("events_not_taken") <= 2 * 9);
        let first_end = self.sessions.iter().map(|session| session.ends).min();
        assert_eq!(self.lab.server.poll_timeout(), first_end);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn everybody_holds_what_the_model_says(ops in prop::collection::vec(op(), 1..120)) {
        let mut model = Model::new();
        for op in &ops {
            model.apply(op);
            model.check();
        }
        model.take_events();
        // Silence gives everything back.
        model.lab.pass(Duration::from_secs(10));
        model.sessions.clear();
        model.check();
        model.take_events();
    }
}
