//! A client without RDMA: it asks memory servers, which do the operations ([client-server mode](fatbtree_wire::query)).

mod byte_keys;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use fatbtree_blink::layers::KeyCode;
use fatbtree_query::{Answer, Ask, Identity, Requester, RequesterOptions, RequesterStats, ToServer};
use fatbtree_remote_memory::{
    BytesPairs, BytesRange, Change, KeyRange, LatencyBuckets, OperationLatencies, Order, Pairs, Portion,
    Structure, export_in_order,
};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_wire::query::{Op, Query, Status, records};

use crate::answer::NoAnswer;

/// Result and cost of an operation.
type Cost<T> = fatbtree_remote_memory::Answer<T, NoAnswer>;

/// Client that sends requests to memory servers, many at a time.
///
/// It belongs to one thread and is cheap to clone. Its operations are futures for any executor.
///
/// It has one or more *lanes*, each of which is a client by itself to the servers: a server remembers 64 requests of a client. Lanes may share
/// sockets; a server answers all of one socket in one thread. Requests take turns on lanes in bursts.
///
/// **Driving contract.** Time never goes back. The owner of the sockets hands in datagrams ([`handle`](Self::handle)), and calls
/// [`turn`](Self::turn) then and when [`poll_timeout`](Self::poll_timeout) has come. It also runs the futures that are woken, and sends
/// the datagrams of [`poll_transmit`](Self::poll_transmit).
#[derive(Clone)]
pub struct QueryClient {
    state: Rc<RefCell<State>>,
}

struct State {
    now: Instant,
    lanes: Vec<Lane>,
    /// The lane of the next request.
    next: usize,
    /// Number of requests that the lane was given one after the other.
    given: usize,
    /// Wakers of operations that found all lanes full.
    waiting: VecDeque<Waker>,
    /// Wakers of operations that sleep, by time and a number of their own.
    sleeping: BTreeMap<(Instant, u64), Waker>,
    naps: u64,
    latencies: OperationLatencies,
    /// Code of keys of bytes, as far as a memory server has said.
    code: KeyCode,
}

struct Lane {
    requester: Requester,
    asked: BTreeMap<u64, Asked>,
}

/// Request that an operation waits for.
enum Asked {
    Waiting(Option<Waker>),
    Answered(Answer),
}

impl std::fmt::Debug for QueryClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QueryClient").field("lanes", &self.lanes()).finish_non_exhaustive()
    }
}

/// Requests that go by one lane before the next has its turn: they leave, and come, with one system call.
const BURST: usize = 32;

impl QueryClient {
    /// A client with as many lanes as there are seeds, which others must not be able to guess.
    pub fn new(options: &RequesterOptions, seeds: impl IntoIterator<Item = u64>) -> Self {
        Self::of(seeds.into_iter().map(|seed| Requester::new(options.clone(), seed)))
    }

    /// A client for servers that want keys, with a lane for each number and key that they have given it.
    pub fn with_identities(
        options: &RequesterOptions,
        identities: impl IntoIterator<Item = Identity>,
    ) -> Self {
        let requester = |identity| Requester::with_identity(options.clone(), identity);
        Self::of(identities.into_iter().map(requester))
    }

    fn of(requesters: impl Iterator<Item = Requester>) -> Self {
        let lanes = requesters.map(|requester| Lane { requester, asked: BTreeMap::new() }).collect();
        let state = State {
            now: Instant::ZERO,
            lanes,
            next: 0,
            given: 0,
            waiting: VecDeque::new(),
            sleeping: BTreeMap::new(),
            naps: 0,
            latencies: OperationLatencies::default(),
            code: KeyCode::NONE,
        };
        Self { state: Rc::new(RefCell::new(state)) }
    }

    // ---- driving ----

    /// Number of lanes.
    pub fn lanes(&self) -> usize {
        self.state.borrow().lanes.len()
    }

    /// Handles a received datagram, which says for which lane it is.
    pub fn handle(&self, datagram: &[u8]) {
        let mut state = self.state.borrow_mut();
        let now = state.now;
        let query = Query::parse(datagram).ok();
        let client = query.as_ref().map(|query| query.header.client);
        let lane = state.lanes.iter().position(|lane| Some(lane.requester.client()) == client);
        // What is for nobody is counted with the first.
        if let Some(lane) = state.lanes.get_mut(lane.unwrap_or(0)) {
            lane.requester.handle_parsed(now, query);
        }
    }

    /// Takes note of the time, and wakes the operations that have an answer.
    pub fn turn(&self, now: Instant) {
        let mut state = self.state.borrow_mut();
        state.now = state.now.max(now);
        let State { now, lanes, waiting, sleeping, .. } = &mut *state;
        while let Some(sleeper) = sleeping.first_entry()
            && sleeper.key().0 <= *now
        {
            sleeper.remove().wake();
        }
        for lane in &mut *lanes {
            lane.requester.handle_timeout(*now);
            while let Some((id, answer)) = lane.requester.poll_answer() {
                // One that nobody waits for any more is dropped.
                if let Some(asked) = lane.asked.get_mut(&id)
                    && let Asked::Waiting(Some(waker)) = std::mem::replace(asked, Asked::Answered(answer))
                {
                    waker.wake();
                }
            }
        }
        if lanes.iter().any(|lane| lane.requester.has_room()) {
            waiting.drain(..).for_each(Waker::wake);
        }
    }

    /// The next datagram of a lane to be sent.
    pub fn poll_transmit(&self, lane: usize) -> Option<ToServer> {
        self.state.borrow_mut().lanes.get_mut(lane)?.requester.poll_transmit()
    }

    /// Latest time at which [`turn`](Self::turn) is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let state = self.state.borrow();
        let all = state.lanes.iter().filter_map(|lane| lane.requester.poll_timeout());
        all.chain(state.sleeping.first_key_value().map(|((at, _), _)| *at)).min()
    }

    /// Counters of all lanes together.
    pub fn stats(&self) -> RequesterStats {
        let state = self.state.borrow();
        state.lanes.iter().fold(RequesterStats::default(), |all, lane| {
            let RequesterStats { again, redirects, opens, led, stray, no_key } = lane.requester.stats();
            RequesterStats {
                again: all.again + again,
                redirects: all.redirects + redirects,
                opens: all.opens + opens,
                led: all.led + led,
                stray: all.stray + stray,
                no_key: all.no_key + no_key,
            }
        })
    }

    /// Latencies of its reads, writes and scans so far.
    pub fn latencies(&self) -> OperationLatencies {
        self.state.borrow().latencies
    }

    // ---- operations ----

    /// Sends a request, and waits for the answer. If the future is dropped meanwhile, the request may be carried out all the same.
    pub async fn ask(&self, ask: Ask) -> Answer {
        let mut ask = Some(ask);
        let (lane, id) = poll_fn(|context| self.poll_begin(&mut ask, context)).await;
        Waiting { client: self, lane, id }.await
    }

    /// Begins a request on the next lane that has room.
    fn poll_begin(&self, ask: &mut Option<Ask>, context: &mut Context<'_>) -> Poll<(usize, u64)> {
        let mut state = self.state.borrow_mut();
        let State { now, lanes, next, given, waiting, .. } = &mut *state;
        let count = lanes.len();
        for lane in (0..count).map(|n| (*next + n) % count) {
            let Lane { requester, asked } = &mut lanes[lane];
            if requester.has_room()
                && let Some(ask) = ask.take()
                && let Some(id) = requester.ask(*now, ask)
            {
                asked.insert(id, Asked::Waiting(None));
                *given = if lane == *next { *given + 1 } else { 1 };
                *next = lane;
                if *given >= BURST {
                    (*next, *given) = ((lane + 1) % count, 0);
                }
                return Poll::Ready((lane, id));
            }
        }
        waiting.push_back(context.waker().clone());
        Poll::Pending
    }
}

/// A request under way.
struct Waiting<'c> {
    client: &'c QueryClient,
    lane: usize,
    id: u64,
}

impl Future for Waiting<'_> {
    type Output = Answer;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answer> {
        let mut state = self.client.state.borrow_mut();
        let asked = &mut state.lanes[self.lane].asked;
        match asked.get_mut(&self.id) {
            Some(Asked::Waiting(waker)) => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            _ => match asked.remove(&self.id) {
                Some(Asked::Answered(answer)) => Poll::Ready(answer),
                // It was polled again after its end, which futures need not bear.
                _ => Poll::Pending,
            },
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.client.state.borrow_mut().lanes[self.lane].asked.remove(&self.id);
    }
}

/// Sleep until a point in time.
struct Nap<'c> {
    client: &'c QueryClient,
    at: Instant,
    number: u64,
}

impl Future for Nap<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.client.state.borrow_mut();
        if state.now >= self.at {
            return Poll::Ready(());
        }
        state.sleeping.insert((self.at, self.number), context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Nap<'_> {
    fn drop(&mut self) {
        self.client.state.borrow_mut().sleeping.remove(&(self.at, self.number));
    }
}

const STRANGE: NoAnswer = NoAnswer::Server("the server has answered something else than was asked");
const LOST: NoAnswer = NoAnswer::Server("no server has answered in time");
const FORWARDS: NoAnswer = NoAnswer::Server("queries have no scan_backward");

/// Reason for which a server does not do what it was asked for, in words for the user.
fn refused(status: Status) -> NoAnswer {
    NoAnswer::Server(match status {
        Status::Damaged => {
            "the server's data for this key is damaged: it fails its checks; restore the server's folder or load the tree again"
        }
        Status::TreeLost => {
            "the memory server has lost its tree: it was started again with an empty one; load it again, or say that this is meant \
             (fatbtree load --empty)"
        }
        Status::NoKey => {
            "the server answers only clients with a key of its cluster: check that the cluster file has the servers' [trust], and start the \
             client again if their queries.secret is another by now"
        }
        Status::TooLarge => {
            "the value is longer than this tree or its server takes: queries take values of up to 900,000 bytes, and clients with RDMA take longer \
             ones"
        }
        Status::Redirect => {
            "the memory servers send this key from one to another; check that all were started with one cluster file"
        }
        Status::Refused => {
            "the server has refused it: perhaps its tree has keys of the other kind, numbers or bytes; or it is of another release"
        }
        _ => "the server has refused it",
    })
}

impl Structure for QueryClient {
    type Value = Vec<u8>;
    type Error = NoAnswer;
    /// The next key.
    type Cursor = u64;

    const NAME: &'static str = "tree";

    /// An insert is carried out as an upsert: the protocol has none.
    const LACKS: &'static [&'static str] = &["insert", "compare_and_swap", "scan_backward"];

    /// The time of the last [`turn`](Self::turn).
    fn now(&self) -> Instant {
        self.state.borrow().now
    }

    fn sleep_until(&self, at: Instant) -> impl Future<Output = ()> {
        let mut state = self.state.borrow_mut();
        state.naps += 1;
        Nap { client: self, at, number: state.naps }
    }

    async fn get(&self, key: u64) -> Cost<Option<Vec<u8>>> {
        let began = self.now();
        let result = found(self.ask(Ask::get(key)).await);
        self.answered(|latencies| &mut latencies.reads, began, 1, result)
    }

    async fn change(&self, key: u64, change: Change<'_>) -> Cost<bool> {
        let began = self.now();
        let (op, value) = match asked(change) {
            Ok(asked) => asked,
            Err(error) => return Cost { result: Err(error), round_trips: 0 },
        };
        let result = written(self.ask(Ask { op, value: value.to_vec(), ..Ask::get(key) }).await);
        self.answered(|latencies| &mut latencies.writes, began, 1, result)
    }

    async fn scan(&self, range: KeyRange, order: Order, most: usize) -> Cost<Pairs> {
        if order == Order::Backward {
            return Cost { result: Err(FORWARDS), round_trips: 0 };
        }
        let began = self.now();
        let last = range.high.map_or(u64::MAX, |high| high.saturating_sub(1));
        let (mut found, mut trips) = (Vec::with_capacity(most), 0);
        let (mut from, mut result) = (Some(range.low).filter(|_| !range.is_empty()), Ok(()));
        while let Some(key) = from.filter(|_| found.len() < most && result.is_ok()) {
            let limit = u32::try_from(most - found.len()).unwrap_or(u32::MAX);
            trips += 1;
            match self.ask(Ask::scan(key, last, limit)).await {
                Answer::Records { payload, next } => {
                    // The next part lies after this one; a server that says otherwise would be asked for ever.
                    from = next.filter(|next| *next > key && *next <= last);
                    let payload = Bytes::from(payload);
                    for record in records::read(&payload) {
                        match record {
                            Ok((key, value)) => found.push((key, payload.slice_ref(value))),
                            Err(_) => result = Err(STRANGE),
                        }
                    }
                }
                other => result = Err(no_answer(&other)),
            }
        }
        self.answered(|latencies| &mut latencies.scans, began, trips, result.map(|()| found))
    }

    fn export(&self, from: u64, most: usize) -> impl Future<Output = Cost<Portion<Bytes, u64>>> {
        export_in_order(self, from, most)
    }

    async fn get_bytes(&self, key: &[u8]) -> Option<Cost<Option<Vec<u8>>>> {
        Some(self.get_by_bytes(key).await)
    }

    async fn change_bytes(&self, key: &[u8], change: Change<'_>) -> Option<Cost<bool>> {
        Some(self.change_by_bytes(key, change).await)
    }

    async fn scan_bytes(&self, range: BytesRange, order: Order, most: usize) -> Option<Cost<BytesPairs>> {
        Some(self.scan_by_bytes(range, order, most).await)
    }

    fn is_unknown(error: &NoAnswer) -> bool {
        *error == NoAnswer::Unknown
    }
}

impl QueryClient {
    fn answered<T>(
        &self,
        which: impl FnOnce(&mut OperationLatencies) -> &mut LatencyBuckets,
        began: Instant,
        round_trips: u32,
        result: Result<T, NoAnswer>,
    ) -> Cost<T> {
        let latency: Duration = self.now() - began;
        which(&mut self.state.borrow_mut().latencies).record(latency.as_nanos());
        Cost { result, round_trips }
    }
}

/// The operation that makes a change, and its value.
fn asked(change: Change<'_>) -> Result<(Op, &[u8]), NoAnswer> {
    match change {
        Change::Insert(value) | Change::Upsert(value) => Ok((Op::Put, value)),
        Change::Update(value) => Ok((Op::Update, value)),
        Change::Delete => Ok((Op::Delete, &[])),
        Change::CompareAndSwap { .. } => Err(NoAnswer::Server("queries have no compare_and_swap")),
    }
}

/// What a get has found.
fn found(answer: Answer) -> Result<Option<Vec<u8>>, NoAnswer> {
    match answer {
        Answer::Value(value) => Ok(Some(value)),
        Answer::NotFound => Ok(None),
        other => Err(no_answer(&other)),
    }
}

/// Whether a change was made.
fn written(answer: Answer) -> Result<bool, NoAnswer> {
    match answer {
        Answer::Written => Ok(true),
        Answer::NotFound => Ok(false),
        other => Err(no_answer(&other)),
    }
}

fn no_answer(answer: &Answer) -> NoAnswer {
    match answer {
        Answer::Lost => LOST,
        Answer::Unknown => NoAnswer::Unknown,
        Answer::Refused(status) => refused(*status),
        Answer::Value(_)
        | Answer::Written
        | Answer::Records { .. }
        | Answer::NotFound
        | Answer::OtherCode(_) => STRANGE,
    }
}

#[cfg(test)]
mod tests {
    use fatbtree_blink::OperationError;

    use super::*;

    /// Clients of both protocols get the same message from a server that has lost its tree.
    #[test]
    fn a_lost_tree_is_told_in_the_words_of_rdma_clients() {
        let NoAnswer::Server(words) = refused(Status::TreeLost) else { panic!("nothing was changed") };
        let rdma = OperationError::TreeLost { key: 1, server: 2 }.to_string();
        let words = words.strip_prefix("the memory server ").expect("the server is named first");
        assert!(rdma.ends_with(words), "{rdma}, {words}");
    }
}
