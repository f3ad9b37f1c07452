//! Server end of the query protocol.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_wire::host_of;
use fatbtree_wire::query::bytes::{BytesError, MOST_BYTES, Reader};
use fatbtree_wire::query::{Assembly, Op, Query, QueryHeader, Status};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::PART;
use crate::cookie::Cookies;
use crate::hosts::Hosts;
use crate::key::{Secret, sealed};
use crate::known::{Known, Seen};

/// Limits on the resources that a server gives to clients and hosts.
#[derive(Clone, Copy, Debug)]
pub struct ResponderOptions {
    /// Partition that the server owns; its responses with cookies name it.
    pub partition: u16,
    /// Source of client keys: only clients with a key are answered. `None` if all clients are.
    pub secret: Option<Secret>,
    /// Longest value of a put or update, in bytes.
    pub longest_value: u32,
    /// Places for requests in progress. A request takes one, and a scan one more for every [64 records](SCAN_RECORDS)
    /// that it asks for. A host may have as many as are left for others; requests beyond that are refused as busy.
    /// Peers that have not opened are one host together, and those over its share are told to open.
    pub running: usize,
    /// Maximum number of known clients of one host, of about 10 KB each. At the limit, a new client replaces the one
    /// that has been silent for longest, if that is at least a second.
    pub clients_per_host: usize,
    /// Maximum number of known clients. At the limit, the host that has most of them gives one up for a host that has
    /// fewer.
    pub clients: usize,
    /// Limit on the partially received values of one host, in bytes.
    pub waiting_per_host: u64,
    /// Limit on the partially received values of all hosts, in bytes. At the limit, the host that has most of them
    /// gives them up for a host that has fewer.
    pub waiting: u64,
    /// Silence after which a client is forgotten.
    pub lease: Duration,
    /// Bytes of a payload in one packet.
    pub part: usize,
}

impl Default for ResponderOptions {
    fn default() -> Self {
        Self {
            partition: 0,
            secret: None,
            longest_value: 1 << 16,
            running: 1024,
            clients_per_host: 256,
            clients: 4096,
            waiting_per_host: 1 << 20,
            waiting: 64 << 20,
            lease: Duration::from_secs(60),
            part: PART,
        }
    }
}

/// Minimum silence of a client before another client of its host replaces it.
const QUIET: Duration = Duration::from_secs(1);

/// Number of records for which a scan takes one more place: reading them takes about as long as a few lookups.
pub const SCAN_RECORDS: u32 = 64;

/// Divisor of the places: no request takes a larger share. Scans are therefore executed even where there are few
/// places.
const LARGEST_SHARE: usize = 16;

/// Name of a request in progress.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticket(u64);

/// A request for the responder's owner to execute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Ticket to give back with the outcome.
    pub ticket: Ticket,
    /// The operation; never [`Op::Open`].
    pub op: Op,
    /// The key; of a scan, the first. Of a key of bytes what the client says that switches know of it.
    pub key: u64,
    /// The key in bytes, if it is one.
    pub bytes: Option<BytesKey>,
    /// The last key of a scan.
    pub range_end: u64,
    /// Maximum number of records of a scan.
    pub limit: u32,
    /// Address of a node that the key may be below; 0 if none is known. It is not authenticated.
    pub address: u64,
    /// The value of a put or update.
    pub value: Vec<u8>,
}

/// A key of bytes, of a scan the first.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BytesKey {
    /// The key.
    pub key: Vec<u8>,
    /// The first key behind the range of a scan, if there is one.
    pub high: Option<Vec<u8>>,
}

/// Bytes of a payload that its key takes at most.
const fn most_key(header: &QueryHeader) -> u32 {
    if header.bytes { MOST_BYTES } else { 0 }
}

/// Takes the key from the beginning of a payload: what remains is the value of a put or update.
fn take_key(op: Op, payload: &mut Vec<u8>) -> Result<BytesKey, BytesError> {
    let mut reader = Reader::new(payload);
    let key = reader.key()?.to_vec();
    let high = if op == Op::Scan { reader.option()?.map(<[u8]>::to_vec) } else { None };
    if !op.brings_value() {
        reader.end()?;
    }
    let read = payload.len() - reader.rest().len();
    payload.drain(..read);
    Ok(BytesKey { key, high })
}

/// Outcome of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The write was carried out.
    Done,
    /// The value.
    Value(Vec<u8>),
    /// Records of a scan.
    Records {
        /// Payload in the format of [`records`](fatbtree_wire::query::records), or of [`bytes`](fatbtree_wire::query::bytes).
        payload: Vec<u8>,
        /// Key to continue from; `None` at the end of the range, and where keys are bytes.
        next: Option<u64>,
    },
    /// The tree has another code of keys than the client knows: this one.
    OtherCode(Vec<u8>),
    /// The key is not there.
    NotFound,
    /// The key belongs to this partition.
    Redirect(u16),
    /// The value is longer than the tree takes.
    TooLarge,
    /// The tree has no such keys. Nothing was changed.
    Refused,
    /// The request failed, and nothing was changed; it may be sent again.
    Failed,
    /// The request may have been executed or not.
    Unknown,
    /// The tree's data for the key fails its checks. Nothing was changed.
    Damaged,
    /// The server has lost its tree. Nothing was changed.
    TreeLost,
}

/// A datagram for a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ToClient {
    /// Destination of the datagram.
    pub to: SocketAddr,
    /// Content of the datagram.
    pub bytes: Vec<u8>,
}

/// Counts of packets and requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ResponderStats {
    /// Datagrams that are not valid requests.
    pub damaged: u64,
    /// Requests handed to the owner.
    pub requests: u64,
    /// Writes that came again, and were answered from memory or are at work.
    pub again: u64,
    /// Requests refused because of a limit.
    pub busy: u64,
    /// Requests without the tag of their client's key.
    pub no_key: u64,
}

/// Result of a packet with a part of a payload.
enum Received {
    /// The request is to be executed, with this payload.
    Whole(Vec<u8>),
    /// The write is not to be executed, and the client is told why.
    Told(Status),
    /// The write has ended before, with this response.
    Again(QueryHeader),
    /// More parts must arrive, or the write is in progress.
    Nothing,
}

struct Running {
    from: SocketAddr,
    /// Host whose places the request takes, if the client has proved its address.
    host: Option<IpAddr>,
    places: usize,
    header: QueryHeader,
    led: bool,
}

/// Server end of the protocol: takes datagrams, hands requests to its owner, and sends the answers.
pub struct Responder {
    options: ResponderOptions,
    random: ChaCha8Rng,
    cookies: Cookies,
    clients: HashMap<u64, Known>,
    hosts: Hosts,
    running: HashMap<u64, Running>,
    next_ticket: u64,
    /// Number of the previous answer, of which 48 bits are sent.
    execution: u64,
    transmit: VecDeque<ToClient>,
    stats: ResponderStats,
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
    /// Creates a responder without clients. Clients must not be able to guess the seed.
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
            hosts: Hosts::default(),
            running: HashMap::new(),
            next_ticket: 0,
            execution,
            transmit: VecDeque::new(),
            stats: ResponderStats::default(),
        }
    }

    /// Counts since the start.
    pub fn stats(&self) -> ResponderStats {
        self.stats
    }

    /// Processes a received datagram. Returns the request to execute, if the datagram completes one.
    pub fn handle(&mut self, now: Instant, from: SocketAddr, datagram: &[u8]) -> Option<Request> {
        let (header, part) = match Query::parse(datagram) {
            Ok(Query { header, part }) if header.status.is_none() => (header, part),
            _ => {
                self.stats.damaged += 1;
                return None;
            }
        };
        if let Some(secret) = self.options.secret
            && secret.key_of(header.client).tag(&header, part) != header.tag
        {
            self.stats.no_key += 1;
            // Without a tag: a client is never given the tags of others.
            let refused = header.response(Status::NoKey);
            self.transmit.extend(
                sealed(&refused, &[], self.options.part, None).map(|bytes| ToClient { to: from, bytes }),
            );
            return None;
        }
        if !header.op.brings_value() && header.total > most_key(&header) {
            self.tell(from, &header, Status::Refused);
            return None;
        }
        match header.op {
            Op::Open => {
                let status = self.open(now, from, &header);
                self.tell(from, &header, status);
                None
            }
            Op::Get | Op::Scan => {
                let host = self.proven(now, from, header.client);
                // A scan's answer is long, and so is the work for it: neither is for an address that may be another host's. Where keys
                // are wanted no answer is: the request may be another client's, sent again.
                if host.is_none() && (header.op == Op::Scan || self.options.secret.is_some()) {
                    self.tell(from, &header, Status::NotOpen);
                    return None;
                }
                // A long key comes in parts, which only a client that has opened may leave here.
                if part.len() < header.total as usize {
                    return self.receive_and_run(now, from, header, part);
                }
                self.run(from, host, header, part.to_vec())
            }
            Op::Put | Op::Update | Op::Delete => self.receive_and_run(now, from, header, part),
        }
    }

    /// Processes a part of a payload. Returns the request to execute, if the part completes one.
    fn receive_and_run(
        &mut self,
        now: Instant,
        from: SocketAddr,
        header: QueryHeader,
        part: &[u8],
    ) -> Option<Request> {
        match self.receive(now, from, &header, part) {
            Received::Whole(value) => {
                // One that there is no room for comes again, whole.
                let request = self.run(from, Some(host_of(from.ip())), header, value)?;
                // A read may be carried out again.
                if header.op.is_write()
                    && let Some(known) = self.clients.get_mut(&header.client)
                {
                    known.runs(header.request);
                }
                Some(request)
            }
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
        }
    }

    fn open(&mut self, now: Instant, from: SocketAddr, header: &QueryHeader) -> Status {
        // 0 is the number of many that read only.
        if header.client == 0 {
            return Status::Refused;
        }
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
        let host = host_of(from.ip());
        if !self.make_room(now, host) {
            self.stats.busy += 1;
            return Status::Busy;
        }
        self.hosts.change(Some(host), |held| held.clients += 1);
        self.clients.insert(header.client, Known::new(from, header.request, now));
        Status::Done
    }

    /// Host of a client that has opened from this address, and therefore receives what is sent there.
    fn proven(&mut self, now: Instant, from: SocketAddr, client: u64) -> Option<IpAddr> {
        let known = self.clients.get_mut(&client).filter(|known| known.address == from)?;
        known.last_seen = now;
        Some(host_of(from.ip()))
    }

    /// Processes a part of a payload: of a write, or of a read whose key is long.
    fn receive(&mut self, now: Instant, from: SocketAddr, header: &QueryHeader, part: &[u8]) -> Received {
        if header.total > self.options.longest_value + most_key(header) {
            return Received::Told(Status::TooLarge);
        }
        let (id, total) = (header.request, u64::from(header.total));
        let Some(host) = self.proven(now, from, header.client) else {
            return Received::Told(Status::NotOpen);
        };
        // What waits in its place already goes, or is this value's.
        let waited = self.clients.get_mut(&header.client).map_or(0, |known| u64::from(known.waiting(id)));
        let has_room =
            part.len() as u64 == total || self.make_room_for_value(host, total.saturating_sub(waited));
        let Some(known) = self.clients.get_mut(&header.client) else { return Received::Nothing };
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
        let waited = u64::from(known.waiting(id));
        let parts = known.take_parts(id);
        self.hosts.change(Some(host), |held| held.waiting -= waited);
        let mut parts = match parts {
            Some(parts) => parts,
            // Nothing is allocated for a host that has too much already.
            None if !has_room
                || self.hosts.of(Some(host)).waiting + total > self.options.waiting_per_host =>
            {
                self.stats.busy += 1;
                return Received::Told(Status::Busy);
            }
            None => Assembly::new(header.total),
        };
        if parts.add(header.total, header.offset, part).is_err() {
            self.stats.damaged += 1;
        }
        if !parts.is_whole() {
            let waits = u64::from(parts.total());
            self.hosts.change(Some(host), |held| held.waiting += waits);
            known.receives(id, parts);
            return Received::Nothing;
        }
        Received::Whole(parts.finish().unwrap_or_default())
    }

    fn run(
        &mut self,
        from: SocketAddr,
        host: Option<IpAddr>,
        header: QueryHeader,
        mut value: Vec<u8>,
    ) -> Option<Request> {
        let bytes = match header.bytes.then(|| take_key(header.op, &mut value)).transpose() {
            Ok(bytes) => bytes,
            Err(_) => {
                self.stats.damaged += 1;
                self.tell(from, &header, Status::Refused);
                return None;
            }
        };
        if value.len() as u64 > self.options.longest_value.into() {
            self.tell(from, &header, Status::TooLarge);
            return None;
        }
        let places = self.places_of(&header);
        if !self.hosts.take_places(host, places, self.options.running) {
            self.stats.busy += 1;
            // A client that has opened has its host's places, whatever others do.
            let has_opened = host.is_some() || header.client == 0;
            self.tell(from, &header, if has_opened { Status::Busy } else { Status::NotOpen });
            return None;
        }
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.running.insert(ticket, Running { from, host, places, header, led: false });
        self.stats.requests += 1;
        Some(Request {
            ticket: Ticket(ticket),
            op: header.op,
            key: header.walk.key,
            bytes,
            range_end: header.range_end,
            limit: header.limit,
            address: header.address,
            value,
        })
    }

    /// Number of places that a request takes.
    fn places_of(&self, header: &QueryHeader) -> usize {
        let records = if header.op == Op::Scan { header.limit } else { 0 };
        let most = (self.options.running / LARGEST_SHARE).max(1);
        (1 + (records / SCAN_RECORDS) as usize).min(most)
    }

    /// Notes that a request began at the node of its [address](Request::address), so that its answer says so.
    pub fn begins_there(&mut self, ticket: Ticket) {
        if let Some(running) = self.running.get_mut(&ticket.0) {
            running.led = true;
        }
    }

    /// Ends a request and answers it. Unknown tickets are ignored.
    pub fn finish(&mut self, ticket: Ticket, outcome: Outcome) {
        let Some(running) = self.running.remove(&ticket.0) else { return };
        let Running { from, host, places, header, led } = running;
        self.hosts.change(host, |held| held.places -= places);
        let (mut partition, mut next) = (self.options.partition, None);
        let (status, payload) = match outcome {
            Outcome::Done => (Status::Done, Vec::new()),
            Outcome::Value(value) => (Status::Done, value),
            Outcome::Records { payload, next: key } => {
                next = key;
                (Status::Done, payload)
            }
            // A write's answer is kept, without payload: its client reads to learn more.
            Outcome::OtherCode(_) if header.op.is_write() => (Status::OtherCode, Vec::new()),
            Outcome::OtherCode(description) => (Status::OtherCode, description),
            Outcome::NotFound => (Status::NotFound, Vec::new()),
            Outcome::Redirect(other) => {
                partition = other;
                (Status::Redirect, Vec::new())
            }
            Outcome::TooLarge => (Status::TooLarge, Vec::new()),
            Outcome::Refused => (Status::Refused, Vec::new()),
            Outcome::Failed => (Status::Failed, Vec::new()),
            Outcome::Unknown => (Status::Unknown, Vec::new()),
            Outcome::Damaged => (Status::Damaged, Vec::new()),
            Outcome::TreeLost => (Status::TreeLost, Vec::new()),
        };
        // A client gets no more packets than it has sent until it has shown that it receives them.
        if host.is_none() && payload.len() > self.options.part {
            self.tell(from, &header, Status::NotOpen);
            return;
        }
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

    /// Ends all requests that are being executed, because what executes them has gone: writes may have been carried out.
    pub fn abandon(&mut self) {
        let of = |(ticket, running): (&u64, &Running)| (*ticket, running.header.op.is_write());
        for (ticket, is_write) in self.running.iter().map(of).collect::<Vec<_>>() {
            self.finish(Ticket(ticket), if is_write { Outcome::Unknown } else { Outcome::Failed });
        }
    }

    /// Forgets clients whose lease has ended.
    pub fn handle_timeout(&mut self, now: Instant) {
        let lease = self.options.lease;
        self.forget(|_, known| now - known.last_seen >= lease);
    }

    /// Makes room for another client of a host. Returns whether there is room.
    fn make_room(&mut self, now: Instant, host: IpAddr) -> bool {
        let own = self.hosts.of(Some(host)).clients;
        if own >= self.options.clients_per_host {
            return self.forget_quietest(now, QUIET, |other| other == host);
        }
        if self.clients.len() < self.options.clients {
            return true;
        }
        match self.hosts.fullest(|held| held.clients) {
            Some((fullest, clients)) if clients > own + 1 => {
                self.forget_quietest(now, Duration::ZERO, |other| other == fullest)
            }
            _ => self.forget_quietest(now, QUIET, |_| true),
        }
    }

    /// Forgets the client of some hosts that has been silent for longest, if that is at least `quiet`. Returns
    /// whether there was one.
    fn forget_quietest(&mut self, now: Instant, quiet: Duration, of: impl Fn(IpAddr) -> bool) -> bool {
        let candidates = self.clients.iter().filter(|(_, known)| of(host_of(known.address.ip())));
        let quietest = candidates.min_by_key(|(client, known)| (known.last_seen, **client));
        let goes = quietest.filter(|(_, known)| now - known.last_seen >= quiet);
        let Some(goes) = goes.map(|(client, _)| *client) else { return false };
        self.forget(|client, _| client == goes);
        true
    }

    /// Makes room for a partially received value, and returns whether there is room. The host that has most such
    /// bytes gives them up, and sends them again.
    fn make_room_for_value(&mut self, host: IpAddr, total: u64) -> bool {
        if self.hosts.all().waiting + total <= self.options.waiting {
            return true;
        }
        let own = self.hosts.of(Some(host)).waiting;
        let fullest = self.hosts.fullest(|held| held.waiting).filter(|(_, waiting)| *waiting > own + total);
        let Some((fullest, waiting)) = fullest else { return false };
        let of_fullest = self.clients.values_mut().filter(|known| host_of(known.address.ip()) == fullest);
        of_fullest.for_each(Known::drop_parts);
        self.hosts.change(Some(fullest), |held| held.waiting -= waiting);
        self.hosts.all().waiting + total <= self.options.waiting
    }

    fn forget(&mut self, goes: impl Fn(u64, &Known) -> bool) {
        let Self { clients, hosts, cookies, random, .. } = self;
        clients.retain(|client, known| {
            let stays = !goes(*client, known);
            if !stays {
                cookies.forget(*client, random);
                let waiting = known.all_waiting();
                hosts.change(Some(host_of(known.address.ip())), |held| {
                    held.clients -= 1;
                    held.waiting -= waiting;
                });
            }
            stays
        });
    }

    /// Time at which to call [`handle_timeout`](Self::handle_timeout) next, if ever.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.clients.values().map(|known| known.last_seen + self.options.lease).min()
    }

    /// The next datagram to be sent.
    pub fn poll_transmit(&mut self) -> Option<ToClient> {
        self.transmit.pop_front()
    }

    /// Answers a request without executing it.
    fn tell(&mut self, to: SocketAddr, header: &QueryHeader, status: Status) {
        let mut response = header.response(status);
        response.walk.partition = self.options.partition;
        if status == Status::NotOpen {
            response.range_end = self.cookies.of(to, header.client);
        }
        self.send(to, response, &[]);
    }

    fn send(&mut self, to: SocketAddr, response: QueryHeader, payload: &[u8]) {
        let key = self.options.secret.map(|secret| secret.key_of(response.client));
        let datagrams = sealed(&response, payload, self.options.part, key);
        self.transmit.extend(datagrams.map(|bytes| ToClient { to, bytes }));
    }
}
