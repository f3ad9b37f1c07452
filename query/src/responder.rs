//! The server's end.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use fatbtree_wire::query::{Assembly, Op, Query, QueryHeader, Status, datagrams};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::PART;
use crate::cookie::Cookies;
use crate::known::{Known, Seen};

/// What a server gives, and to whom at most.
#[derive(Clone, Copy, Debug)]
pub struct ResponderOptions {
    /// The partition that it answers for: redirects and cookies say whose they are.
    pub partition: u16,
    /// Longest value of a put or update, bytes.
    pub longest_value: u32,
    /// Requests that are at work at one time; those over it are told that it is busy.
    pub running: usize,
    /// Clients that are known, of one host. Each takes about 10 KB. When there is another, the one goes that has written nothing for longest,
    /// if that is at least a second.
    pub clients_per_host: usize,
    /// Clients that are known in all.
    pub clients: usize,
    /// Bytes of values of which parts are missing, of one host.
    pub waiting_per_host: u64,
    /// A client is forgotten that has written nothing for so long.
    pub lease: Duration,
    /// Bytes of a payload in one packet.
    pub part: usize,
}

impl Default for ResponderOptions {
    fn default() -> Self {
        Self {
            partition: 0,
            longest_value: 1 << 16,
            running: 1024,
            clients_per_host: 256,
            clients: 4096,
            waiting_per_host: 1 << 20,
            lease: Duration::from_secs(60),
            part: PART,
        }
    }
}

/// A client that has written within so long does not make room for another of its host.
const QUIET: Duration = Duration::from_secs(1);

/// A request that is at work.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticket(u64);

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// To be given back with the outcome.
    pub ticket: Ticket,
    /// The operation; never [`Op::Open`].
    pub op: Op,
    /// The key; of a scan, the first.
    pub key: u64,
    /// Of a scan: the last key.
    pub range_end: u64,
    /// Of a scan: the most records.
    pub limit: u32,
    /// A node that the key may be below; 0: none is known. Nobody vouches for it.
    pub address: u64,
    /// Of a put or update.
    pub value: Vec<u8>,
}

/// What became of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The write was carried out.
    Done,
    /// The value.
    Value(Vec<u8>),
    /// Records of a scan.
    Records {
        /// As [`records`](fatbtree_wire::query::records) has them.
        payload: Vec<u8>,
        /// The key to go on from; none where the range has ended.
        next: Option<u64>,
    },
    /// The key is not there.
    NotFound,
    /// It is this partition's.
    Redirect(u16),
    /// The value is longer than the tree takes.
    TooLarge,
    /// It could not, and nothing was changed; it may be asked again.
    Failed,
    /// It may have been carried out or not.
    Unknown,
    /// What is held for the key fails its checks. Nothing was changed.
    Damaged,
}

/// A datagram for a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ToClient {
    /// Where it goes.
    pub to: SocketAddr,
    /// The datagram.
    pub bytes: Vec<u8>,
}

/// What came and went.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ResponderStats {
    /// Datagrams that are no requests.
    pub damaged: u64,
    /// Requests that were handed on.
    pub requests: u64,
    /// Writes that came again, and were answered from memory or are at work.
    pub again: u64,
    /// Requests that were refused for a bound.
    pub busy: u64,
}

/// What a write's packet came to.
enum Received {
    /// It is to be carried out, with this value.
    Whole(Vec<u8>),
    /// It is not, and the client is told why.
    Told(Status),
    /// It was before: its response.
    Again(QueryHeader),
    /// More of it has to come, or it is at work.
    Nothing,
}

struct Running {
    from: SocketAddr,
    header: QueryHeader,
    led: bool,
}

/// Takes datagrams, hands on requests, answers.
pub struct Responder {
    options: ResponderOptions,
    random: ChaCha8Rng,
    cookies: Cookies,
    clients: HashMap<u64, Known>,
    /// Of each host, clients that are known and bytes that wait.
    hosts: BTreeMap<IpAddr, Held>,
    running: HashMap<u64, Running>,
    next_ticket: u64,
    /// The number of the answer before: 48 bits of it are sent.
    execution: u64,
    transmit: VecDeque<ToClient>,
    stats: ResponderStats,
}

#[derive(Clone, Copy, Default)]
struct Held {
    clients: usize,
    waiting: u64,
}

impl std::fmt::Debug for Responder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Responder")
            .field("clients", &self.clients.len())
            .field("running", &self.running.len())
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

impl Responder {
    /// Knows nobody. The seed must be one that clients cannot guess.
    pub fn new(options: ResponderOptions, seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let cookies = Cookies::new(&mut random);
        // Not from 0: a server that is started anew must not give the numbers that it gave before.
        let execution = random.next_u64();
        Self {
            options,
            random,
            cookies,
            clients: HashMap::new(),
            hosts: BTreeMap::new(),
            running: HashMap::new(),
            next_ticket: 0,
            execution,
            transmit: VecDeque::new(),
            stats: ResponderStats::default(),
        }
    }

    /// What came and went so far.
    pub fn stats(&self) -> ResponderStats {
        self.stats
    }

    /// A datagram has come. What is to be done now, if it was all of a request.
    pub fn handle(&mut self, now: Duration, from: SocketAddr, datagram: &[u8]) -> Option<Request> {
        let (header, part) = match Query::parse(datagram) {
            Ok(Query { header, part }) if header.status.is_none() => (header, part),
            _ => {
                self.stats.damaged += 1;
                return None;
            }
        };
        if !header.op.brings_value() && header.total > 0 {
            self.tell(from, &header, Status::Refused);
            return None;
        }
        match header.op {
            Op::Open => {
                let status = self.open(now, from, &header);
                self.tell(from, &header, status);
                None
            }
            Op::Get | Op::Scan => self.run(from, header, Vec::new()),
            Op::Put | Op::Update | Op::Delete => match self.receive(now, from, &header, part) {
                Received::Whole(value) => self.run(from, header, value),
                Received::Told(status) => {
                    self.tell(from, &header, status);
                    None
                }
                Received::Again(response) => {
                    self.stats.again += 1;
                    self.send(from, response, &[]);
                    None
                }
                Received::Nothing => None,
            },
        }
    }

    fn open(&mut self, now: Duration, from: SocketAddr, header: &QueryHeader) -> Status {
        if header.range_end != self.cookies.of(from, header.client) {
            return Status::NotOpen;
        }
        if let Some(known) = self.clients.get_mut(&header.client) {
            // It may come from another port than before. What it holds is counted where it is: not from another host.
            if known.address.ip() != from.ip() {
                return Status::Refused;
            }
            (known.address, known.last_seen) = (from, now);
            return Status::Done;
        }
        let held = self.hosts.get(&from.ip()).map_or(0, |held| held.clients);
        let is_full = held >= self.options.clients_per_host && !self.forget_quietest(now, from.ip());
        if is_full || self.clients.len() >= self.options.clients {
            self.stats.busy += 1;
            return Status::Busy;
        }
        self.hosts.entry(from.ip()).or_default().clients += 1;
        self.clients.insert(header.client, Known::new(from, header.request, now));
        Status::Done
    }

    /// A part of a write.
    fn receive(&mut self, now: Duration, from: SocketAddr, header: &QueryHeader, part: &[u8]) -> Received {
        if header.total > self.options.longest_value {
            return Received::Told(Status::TooLarge);
        }
        let id = header.request;
        let known = self.clients.get_mut(&header.client).filter(|known| known.address == from);
        let Some(known) = known else { return Received::Told(Status::NotOpen) };
        known.last_seen = now;
        match known.look(id) {
            Seen::New => {}
            Seen::Running => {
                self.stats.again += 1;
                return Received::Nothing;
            }
            Seen::Again(response) => return Received::Again(response),
            Seen::Forgotten => return Received::Told(Status::Forgotten),
            Seen::Occupied => return Received::Told(Status::Busy),
        }
        let held = self.hosts.entry(from.ip()).or_default();
        held.waiting -= u64::from(known.waiting(id));
        let mut parts = match known.take_parts(id) {
            Some(parts) => parts,
            // Nothing is allocated for somebody who has too much already.
            None if held.waiting + u64::from(header.total) > self.options.waiting_per_host => {
                self.stats.busy += 1;
                return Received::Told(Status::Busy);
            }
            None => Assembly::new(header.total),
        };
        if parts.add(header.total, header.offset, part).is_err() {
            self.stats.damaged += 1;
        }
        if !parts.is_whole() {
            held.waiting += u64::from(parts.total());
            known.receives(id, parts);
            return Received::Nothing;
        }
        // One that there is no room for comes again, whole.
        if self.running.len() < self.options.running {
            known.runs(id);
        }
        Received::Whole(parts.finish().unwrap_or_default())
    }

    fn run(&mut self, from: SocketAddr, header: QueryHeader, value: Vec<u8>) -> Option<Request> {
        if self.running.len() >= self.options.running {
            self.stats.busy += 1;
            self.tell(from, &header, Status::Busy);
            return None;
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.running.insert(ticket, Running { from, header, led: false });
        self.stats.requests += 1;
        Some(Request {
            ticket: Ticket(ticket),
            op: header.op,
            key: header.walk.key,
            range_end: header.range_end,
            limit: header.limit,
            address: header.address,
            value,
        })
    }

    /// A request has begun at the node of its [address](Request::address): its answer says so.
    pub fn begins_there(&mut self, ticket: Ticket) {
        if let Some(running) = self.running.get_mut(&ticket.0) {
            running.led = true;
        }
    }

    /// A request has come to its end. Those that nobody knows are passed over.
    pub fn finish(&mut self, ticket: Ticket, outcome: Outcome) {
        let Some(Running { from, header, led }) = self.running.remove(&ticket.0) else { return };
        let (mut partition, mut next) = (self.options.partition, None);
        let (status, payload) = match outcome {
            Outcome::Done => (Status::Done, Vec::new()),
            Outcome::Value(value) => (Status::Done, value),
            Outcome::Records { payload, next: key } => {
                next = key;
                (Status::Done, payload)
            }
            Outcome::NotFound => (Status::NotFound, Vec::new()),
            Outcome::Redirect(other) => {
                partition = other;
                (Status::Redirect, Vec::new())
            }
            Outcome::TooLarge => (Status::TooLarge, Vec::new()),
            Outcome::Failed => (Status::Failed, Vec::new()),
            Outcome::Unknown => (Status::Unknown, Vec::new()),
            Outcome::Damaged => (Status::Damaged, Vec::new()),
        };
        self.execution = self.execution.wrapping_add(1);
        let mut response = header.response(status);
        (response.execution, response.limit) = ((self.execution >> 32) as u16, self.execution as u32);
        (response.range_end, response.walk.partition) = (next.unwrap_or(0), partition);
        response.address = if led { header.address } else { 0 };
        if header.op.is_write()
            && let Some(known) = self.clients.get_mut(&header.client)
        {
            // A redirect stays one, for the client has gone elsewhere with it. One that failed may be tried again.
            let is_over = status != Status::Failed;
            known.ends(header.request, is_over.then_some(response));
        }
        self.send(from, response, &payload);
    }

    /// Forgets clients whose lease has ended.
    pub fn handle_timeout(&mut self, now: Duration) {
        let lease = self.options.lease;
        self.forget(|_, known| now.saturating_sub(known.last_seen) >= lease);
    }

    /// Makes room for another client of a host. Says whether there is some.
    fn forget_quietest(&mut self, now: Duration, host: IpAddr) -> bool {
        let of_host = self.clients.iter().filter(|(_, known)| known.address.ip() == host);
        let quietest = of_host.min_by_key(|(client, known)| (known.last_seen, **client));
        let goes = quietest.filter(|(_, known)| now.saturating_sub(known.last_seen) >= QUIET);
        let Some(goes) = goes.map(|(client, _)| *client) else { return false };
        self.forget(|client, _| client == goes);
        true
    }

    fn forget(&mut self, goes: impl Fn(u64, &Known) -> bool) {
        let Self { clients, hosts, cookies, random, .. } = self;
        clients.retain(|client, known| {
            let stays = !goes(*client, known);
            if !stays {
                cookies.forget(*client, random);
                if let Some(held) = hosts.get_mut(&known.address.ip()) {
                    held.clients -= 1;
                    held.waiting -= known.all_waiting();
                }
            }
            stays
        });
        hosts.retain(|_, held| held.clients > 0);
    }

    /// When to call [`handle_timeout`](Self::handle_timeout) next, if ever.
    pub fn next_deadline(&self) -> Option<Duration> {
        self.clients.values().map(|known| known.last_seen + self.options.lease).min()
    }

    /// The next datagram to be sent.
    pub fn poll_transmit(&mut self) -> Option<ToClient> {
        self.transmit.pop_front()
    }

    /// Answers without carrying anything out.
    fn tell(&mut self, to: SocketAddr, header: &QueryHeader, status: Status) {
        let mut response = header.response(status);
        response.walk.partition = self.options.partition;
        if status == Status::NotOpen {
            response.range_end = self.cookies.of(to, header.client);
        }
        self.send(to, response, &[]);
    }

    fn send(&mut self, to: SocketAddr, response: QueryHeader, payload: &[u8]) {
        let datagrams = datagrams(&response, payload, self.options.part);
        self.transmit.extend(datagrams.map(|bytes| ToClient { to, bytes }));
    }
}
