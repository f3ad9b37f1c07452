//! Client end of the query protocol.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_wire::query::{Assembly, Op, Query, QueryHeader, Status, WINDOW, bytes};
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::PART;
use crate::key::{Identity, Key, sealed};

/// Timing and bounds of a client.
#[derive(Clone, Debug)]
pub struct RequesterOptions {
    /// Servers by key: the first key and the number of each, ascending from key 0. One entry if the switches choose
    /// the server by key.
    pub servers: Vec<(u64, u16)>,
    /// Time without an answer before a request is sent again. It doubles each time, up to `longest_pause`.
    pub first_pause: Duration,
    /// Limit up to which the time between two transmissions doubles.
    pub longest_pause: Duration,
    /// Time after which an unanswered request is given up.
    pub patience: Duration,
    /// Maximum number of redirects that a request follows.
    pub redirects: u32,
    /// Longest accepted answer, in bytes.
    pub longest_answer: u32,
    /// Bytes of a payload in one packet.
    pub part: usize,
}

impl Default for RequesterOptions {
    fn default() -> Self {
        Self {
            servers: vec![(0, 0)],
            first_pause: Duration::from_millis(10),
            longest_pause: Duration::from_millis(500),
            patience: Duration::from_secs(5),
            redirects: 8,
            longest_answer: 1 << 20,
            part: PART,
        }
    }
}

/// Operation of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ask {
    /// Operation; not [`Op::Open`], which the requester sends by itself.
    pub op: Op,
    /// Whether the key is [bytes], at the beginning of `value`. Then `key` is what switches know of it.
    pub bytes: bool,
    /// The key; of a scan, the first.
    pub key: u64,
    /// The last key of a scan.
    pub range_end: u64,
    /// Maximum number of records of a scan.
    pub limit: u32,
    /// The value of a put or update.
    pub value: Vec<u8>,
}

impl Ask {
    /// Reads the value of a key.
    pub fn get(key: u64) -> Self {
        Self { op: Op::Get, bytes: false, key, range_end: 0, limit: 0, value: Vec::new() }
    }

    /// Writes a key, whether or not it exists.
    pub fn put(key: u64, value: Vec<u8>) -> Self {
        Self { op: Op::Put, value, ..Self::get(key) }
    }

    /// Writes an existing key.
    pub fn update(key: u64, value: Vec<u8>) -> Self {
        Self { op: Op::Update, value, ..Self::get(key) }
    }

    /// Removes a key.
    pub fn delete(key: u64) -> Self {
        Self { op: Op::Delete, ..Self::get(key) }
    }

    /// Reads the first `limit` records from `key` to `last`.
    pub fn scan(key: u64, last: u64, limit: u32) -> Self {
        Self { op: Op::Scan, range_end: last, limit, ..Self::get(key) }
    }

    /// An operation on a key of bytes, of which switches know `word`; of a put or update with its value. It is no scan.
    ///
    /// # Panics
    /// When the key is longer than [`bytes::LONGEST`].
    pub fn of_bytes(op: Op, word: u64, key: &[u8], value: &[u8]) -> Self {
        let mut payload = Vec::with_capacity(2 + key.len() + value.len());
        bytes::push(&mut payload, key);
        payload.extend_from_slice(value);
        Self { op, bytes: true, value: payload, ..Self::get(word) }
    }

    /// Reads the first `limit` records of keys of bytes from `low`, of which switches know `word`, up to before `high`.
    ///
    /// # Panics
    /// As [`of_bytes`](Self::of_bytes).
    pub fn scan_bytes(word: u64, low: &[u8], high: Option<&[u8]>, limit: u32) -> Self {
        let mut payload = Vec::new();
        bytes::push(&mut payload, low);
        bytes::push_option(&mut payload, high);
        Self { op: Op::Scan, bytes: true, limit, value: payload, ..Self::get(word) }
    }
}

/// Outcome of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// The value of the key.
    Value(Vec<u8>),
    /// The write was carried out, once.
    Written,
    /// Records of the range.
    Records {
        /// Payload in the format of [`records`](fatbtree_wire::query::records), or of [`bytes`].
        payload: Vec<u8>,
        /// Key to continue from; `None` at the end of the range.
        next: Option<u64>,
    },
    /// The server's tree has this code of keys, so that the word of this one is another; nothing was changed. `None` of a write.
    OtherCode(Option<Vec<u8>>),
    /// The key is not there, and nothing was changed.
    NotFound,
    /// The server refuses the request or cannot execute it ([`Status::Damaged`], [`Status::TreeLost`]); nothing was
    /// changed.
    Refused(Status),
    /// No answer came in time to a request that changes nothing.
    Lost,
    /// The write may have been carried out or not.
    Unknown,
}

/// A datagram for a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ToServer {
    /// Number of the server.
    pub server: u16,
    /// Whether the datagram must reach this server: switches must not send it to another. See
    /// [`DIRECT_QUERY_UDP_PORT`](fatbtree_wire::query::DIRECT_QUERY_UDP_PORT).
    pub direct: bool,
    /// Content of the datagram.
    pub bytes: Vec<u8>,
}

/// Counts of packets and requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RequesterStats {
    /// Requests that were sent again.
    pub again: u64,
    /// Redirects that were followed.
    pub redirects: u64,
    /// Opens that were sent.
    pub opens: u64,
    /// Answers that report that the server began at a node found by switches.
    pub led: u64,
    /// Datagrams that match no request, or lack the tag of this client's key.
    pub stray: u64,
    /// Refusals for lack of the right key.
    pub no_key: u64,
}

/// A request under way.
#[derive(Debug)]
struct Pending {
    ask: Ask,
    server: u16,
    /// Whether a redirect chose this server: a switch that sends the request elsewhere knows less.
    direct: bool,
    pause: Duration,
    again_at: Instant,
    given_up_at: Instant,
    redirects: u32,
    answer: Option<Part>,
    /// Whether an unauthenticated refusal says that a server wants another key than this client's.
    no_key: bool,
}

impl Pending {
    fn due(&self) -> Instant {
        self.again_at.min(self.given_up_at)
    }
}

/// A partially received answer.
#[derive(Debug)]
struct Part {
    /// Number of the execution, in the two parts that the header carries.
    execution: (u16, u32),
    parts: Assembly,
}

/// State of this client's Open at one server.
#[derive(Debug)]
struct Opened {
    cookie: u64,
    /// Lower limit of the ids of writes that the server carries out.
    floor: u64,
    /// Time at which the last Open was sent.
    asked_at: Option<Instant>,
    /// Requests to send again when the Open is answered.
    waiting: BTreeSet<u64>,
}

/// Client end of the protocol: sends requests, repeats unanswered ones, and takes the answers.
#[derive(Debug)]
pub struct Requester {
    options: RequesterOptions,
    random: ChaCha8Rng,
    client: u64,
    key: Option<Key>,
    next: u64,
    pending: BTreeMap<u64, Pending>,
    /// Earliest time at which a request can be due. The request in question may have been answered meanwhile.
    due: Option<Instant>,
    /// State by partition.
    opened: BTreeMap<u16, Opened>,
    transmit: VecDeque<ToServer>,
    answers: VecDeque<(u64, Answer)>,
    stats: RequesterStats,
}

impl Requester {
    /// Creates a client without a key. Others must not be able to guess the seed: the client's number comes from it.
    pub fn new(options: RequesterOptions, seed: u64) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let client = random.next_u64().max(1);
        Self::of(options, random, client, None)
    }

    /// Creates a client with the number and the key that servers have given it.
    pub fn with_identity(options: RequesterOptions, identity: Identity) -> Self {
        let Identity { client, key } = identity;
        Self::of(options, ChaCha8Rng::seed_from_u64(client), client, Some(key))
    }

    fn of(options: RequesterOptions, random: ChaCha8Rng, client: u64, key: Option<Key>) -> Self {
        Self {
            options,
            random,
            client,
            key,
            next: 1,
            pending: BTreeMap::new(),
            due: None,
            opened: BTreeMap::new(),
            transmit: VecDeque::new(),
            answers: VecDeque::new(),
            stats: RequesterStats::default(),
        }
    }

    /// Number by which servers know this client.
    pub fn client(&self) -> u64 {
        self.client
    }

    /// Whether another request may be started now.
    pub fn has_room(&self) -> bool {
        let oldest = self.pending.keys().next().copied().unwrap_or(self.next);
        self.next - oldest < WINDOW
    }

    /// Starts a request. Returns its number, by which its answer is known; `None` if the window of requests is full.
    pub fn ask(&mut self, now: Instant, ask: Ask) -> Option<u64> {
        if !self.has_room() {
            return None;
        }
        let id = self.next;
        self.next += 1;
        let at = self.options.servers.partition_point(|(low, _)| *low <= ask.key).saturating_sub(1);
        let server = self.options.servers.get(at).map_or(0, |(_, server)| *server);
        let pause = self.options.first_pause;
        let pending = Pending {
            ask,
            server,
            direct: false,
            pause,
            again_at: now,
            given_up_at: now + self.options.patience,
            redirects: 0,
            answer: None,
            no_key: false,
        };
        self.pending.insert(id, pending);
        self.send(now, id);
        Some(id)
    }

    /// Number of requests in progress.
    pub fn under_way(&self) -> usize {
        self.pending.len()
    }

    /// Counts since the start.
    pub fn stats(&self) -> RequesterStats {
        self.stats
    }

    /// The next datagram to be sent.
    pub fn poll_transmit(&mut self) -> Option<ToServer> {
        self.transmit.pop_front()
    }

    /// The next answer, with its request's number.
    pub fn poll_answer(&mut self) -> Option<(u64, Answer)> {
        self.answers.pop_front()
    }

    /// Time at which to call [`handle_timeout`](Self::handle_timeout) next, if ever. That call may find nothing to
    /// do.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.due
    }

    /// Sends unanswered requests again, and gives up those that have waited too long.
    pub fn handle_timeout(&mut self, now: Instant) {
        // Asked all the time: it must cost nothing while nothing is due.
        if self.due.is_none_or(|due| now < due) {
            return;
        }
        let due: Vec<u64> =
            self.pending.iter().filter(|(_, pending)| pending.due() <= now).map(|(id, _)| *id).collect();
        for id in due {
            let pending = &self.pending[&id];
            if pending.given_up_at <= now {
                // A write may have been carried out all the same: of it nothing is known.
                let is_refused = pending.no_key && !pending.ask.op.is_write();
                self.end(id, is_refused.then_some(Answer::Refused(Status::NoKey)));
            } else {
                self.stats.again += 1;
                self.send(now, id);
            }
        }
        self.due = self.pending.values().map(Pending::due).min();
    }

    /// Processes a received datagram.
    pub fn handle(&mut self, now: Instant, datagram: &[u8]) {
        self.handle_parsed(now, Query::parse(datagram).ok());
    }

    /// Processes a received datagram that is already parsed; `None` if it is not one of the protocol.
    pub fn handle_parsed(&mut self, now: Instant, query: Option<Query<'_>>) {
        if !query.is_some_and(|query| self.take(now, query)) {
            self.stats.stray += 1;
        }
    }

    /// Processes a response; returns false if it answers nothing.
    fn take(&mut self, now: Instant, Query { header, part }: Query<'_>) -> bool {
        let Some(status) = header.status.filter(|_| header.client == self.client) else { return false };
        if let Some(key) = self.key
            && key.tag(&header, part) != header.tag
        {
            // It is not authenticated: it is remembered, and told if nothing else comes.
            if status == Status::NoKey
                && let Some(pending) = self.pending.get_mut(&header.request)
            {
                pending.no_key = true;
                self.stats.no_key += 1;
            }
            return false;
        }
        if header.op == Op::Open {
            return self.opened(now, &header, status);
        }
        let Some(pending) = self.pending.get_mut(&header.request) else { return false };
        let Ask { op, bytes, key, .. } = pending.ask;
        if (op, bytes, key) != (header.op, header.bytes, header.walk.key) {
            return false;
        }
        // Of a long answer, once: with its last part.
        let led = u64::from(header.address != 0);
        match status {
            Status::Done | Status::OtherCode => {
                if header.total > self.options.longest_answer {
                    self.end(header.request, Some(Answer::Refused(Status::TooLarge)));
                    return true;
                }
                // Parts of two executions are never put together: between them the value may have changed.
                let (execution, total) = ((header.execution, header.limit), header.total);
                let answer = pending.answer.take().filter(|answer| answer.execution == execution);
                let mut answer = answer.unwrap_or_else(|| Part { execution, parts: Assembly::new(total) });
                let is_good = answer.parts.add(header.total, header.offset, part).is_ok();
                if answer.parts.is_whole() {
                    let payload = answer.parts.finish().unwrap_or_default();
                    let next = Some(header.range_end).filter(|next| *next != 0);
                    let answer = match header.op {
                        op if status == Status::OtherCode => {
                            Answer::OtherCode((!op.is_write()).then_some(payload))
                        }
                        Op::Get => Answer::Value(payload),
                        Op::Scan => Answer::Records { payload, next },
                        Op::Open | Op::Put | Op::Update | Op::Delete => Answer::Written,
                    };
                    self.stats.led += led;
                    self.end(header.request, Some(answer));
                } else {
                    pending.answer = Some(answer);
                }
                is_good
            }
            Status::NotFound => {
                self.stats.led += led;
                self.end(header.request, Some(Answer::NotFound))
            }
            Status::NoKey => {
                self.stats.no_key += 1;
                self.end(header.request, Some(Answer::Refused(status)))
            }
            Status::Refused | Status::TooLarge | Status::Damaged | Status::TreeLost => {
                self.end(header.request, Some(Answer::Refused(status)))
            }
            Status::Forgotten | Status::Unknown => self.end(header.request, None),
            // Nothing was changed: the timer asks again.
            Status::Busy | Status::Failed => true,
            // Said twice, it leads there once.
            Status::Redirect if pending.direct && pending.server == header.walk.partition => true,
            Status::Redirect => {
                pending.redirects += 1;
                if pending.redirects > self.options.redirects {
                    return self.end(header.request, Some(Answer::Refused(status)));
                }
                (pending.server, pending.direct, pending.answer) = (header.walk.partition, true, None);
                self.stats.redirects += 1;
                self.send(now, header.request);
                true
            }
            Status::NotOpen => self.open(now, &header),
        }
    }

    /// Handles the response of a server that does not know this client, and gives it a cookie. However many parts and
    /// requests are answered so, one Open is sent in a while.
    fn open(&mut self, now: Instant, header: &QueryHeader) -> bool {
        let (partition, cookie, id) = (header.walk.partition, header.range_end, header.request);
        let known = self.opened.get(&partition).map(|opened| opened.cookie);
        if known != Some(cookie) {
            let floor = match known {
                // It was never opened with, so it has carried out nothing.
                None => self.pending.keys().next().copied().unwrap_or(id),
                // It has forgotten this client, and with it what it has carried out: the outcome of writes in flight is unknown.
                Some(_) => self.next,
            };
            self.opened.insert(partition, Opened { cookie, floor, asked_at: None, waiting: BTreeSet::new() });
        }
        let Some(opened) = self.opened.get_mut(&partition) else { return false };
        let is_write = header.op.is_write();
        if is_write && id < opened.floor {
            return self.end(id, None);
        }
        opened.waiting.insert(id);
        let floor = opened.floor;
        // Later it is lost, or its answer is.
        let is_on_its_way = |at| now < at + self.options.first_pause;
        if opened.asked_at.is_some_and(is_on_its_way) {
            return true;
        }
        opened.asked_at = Some(now);
        let Some(pending) = self.pending.get(&id) else { return false };
        // To the server that sent the cookie, whichever server has the key by now.
        let open = QueryHeader::request(Op::Open, pending.ask.key, self.client, floor);
        let open = QueryHeader { range_end: cookie, ..open };
        self.stats.opens += 1;
        let datagrams = sealed(&open, &[], self.options.part, self.key);
        self.transmit.extend(datagrams.map(|bytes| ToServer { server: partition, direct: true, bytes }));
        true
    }

    /// Handles the answer to an Open: the requests that wait for it are sent again, once.
    fn opened(&mut self, now: Instant, header: &QueryHeader, status: Status) -> bool {
        let opened = self.opened.get_mut(&header.walk.partition);
        let opened = opened.filter(|opened| opened.floor == header.request);
        let Some(opened) = opened.filter(|_| status == Status::Done) else {
            // What comes again asks again.
            return status != Status::Done;
        };
        for id in std::mem::take(&mut opened.waiting) {
            self.send(now, id);
        }
        true
    }

    fn send(&mut self, now: Instant, id: u64) {
        let Some(pending) = self.pending.get_mut(&id) else { return };
        // Not all clients at the same time.
        let spread = self.random.next_u64() % (pending.pause.as_nanos() / 4).max(1);
        pending.again_at = now + pending.pause + Duration::from_nanos(spread);
        pending.pause = (pending.pause * 2).min(self.options.longest_pause);
        self.due = self.due.into_iter().chain([pending.due()]).min();
        let Ask { op, bytes, key, range_end, limit, value } = &pending.ask;
        let request = QueryHeader::request(*op, *key, self.client, id);
        let header = QueryHeader { bytes: *bytes, range_end: *range_end, limit: *limit, ..request };
        let (server, direct) = (pending.server, pending.direct);
        let datagrams = sealed(&header, value, self.options.part, self.key);
        self.transmit.extend(datagrams.map(|bytes| ToServer { server, direct, bytes }));
    }

    /// Ends a request, with or without an answer.
    fn end(&mut self, id: u64, answer: Option<Answer>) -> bool {
        let Some(pending) = self.pending.remove(&id) else { return false };
        if self.pending.is_empty() {
            self.due = None;
        }
        self.opened.values_mut().for_each(|opened| _ = opened.waiting.remove(&id));
        let none = if pending.ask.op.is_write() { Answer::Unknown } else { Answer::Lost };
        self.answers.push_back((id, answer.unwrap_or(none)));
        true
    }
}
