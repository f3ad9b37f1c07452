//! A session keeper between remote memory and memory servers, by calls that are refused, lost, or answered late.
use crate::common;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use common::blocks::{self, Blocks, CLASSES, Info, LARGE, RECORDS, SMALL, Shape};
use common::lab::options;
use fatbtree_memserver::{ClientId, MemoryServer, NoOwner, PartOptions, Refusal, ServerOptions, SizeClass};
use fatbtree_remote_memory::session_keeper::{
    Call, CallId, Granted, KeeperOptions, NoAnswer, Notice, SessionKeeper,
};
use fatbtree_remote_memory::{
    ConnectionId, GlobalAddress, RESTING, RemoteConfig, RemoteMemory, Shortage, Spare, Trouble, Want, Writer,
};
use fatbtree_verbs::Endpoint;
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::{Duration, Instant};
use proptest::prelude::*;

const SERVERS: u16 = 2;
const LANES: u8 = 2;

/// A place of the smallest record.
const RECORD: Want = Want { server: 1, class: RECORDS, bytes: 64, is_fresh: false };

type Waits = Pin<Box<dyn Future<Output = Result<(), Shortage>>>>;

struct Lab {
    servers: Vec<MemoryServer<PlainDevice, Blocks>>,
    memory: Rc<RemoteMemory<PlainDevice>>,
    keeper: SessionKeeper<Info>,
    client: ClientId,
    now: Instant,
    under_way: BTreeMap<CallId, Call>,
    /// The last call of each server that was answered.
    answered: BTreeMap<u16, CallId>,
    notices: Vec<Notice>,
    /// Operations that wait for memory.
    waiting: Vec<Waits>,
    /// Results of operations that have ended.
    ended: Vec<Result<(), Shortage>>,
}

/// Fate of a call.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fate {
    Answered,
    RequestLost,
    AnswerLost,
    StructureLost,
    Undecided,
    Refused,
    /// Answered as if it had been another call.
    Senseless,
}

impl Lab {
    fn new(kept: KeeperOptions) -> Self {
        let network = PlainNetwork::new();
        let serve = |id| {
            let part =
                PartOptions { spare_bytes: 10 * 4096 + 64, ..PartOptions::new(id, Shape { loaded: 3 }) };
            let options = ServerOptions { lock_table_bytes: 64, ..ServerOptions::writable() };
            let options = ServerOptions { chunk_bytes: 4096, lease: self::options().lease, ..options };
            MemoryServer::new(network.device(), blocks::part(&part), &options, 1).unwrap()
        };
        let config = RemoteConfig { lanes: LANES, ..RemoteConfig::default() };
        let memory = RemoteMemory::new(network.device(), 0..SERVERS, config, 1).unwrap();
        let endpoint = memory.open(memory.connections()[0]).unwrap();
        let Endpoint { ip, .. } = endpoint;
        Self {
            servers: (0..SERVERS).map(serve).collect(),
            keeper: SessionKeeper::new(memory.connections(), kept),
            memory: Rc::new(memory),
            client: ClientId { host: [127, 0, 0, 1].into(), roce: ip },
            now: Instant::ZERO,
            under_way: BTreeMap::new(),
            answered: BTreeMap::new(),
            notices: Vec::new(),
            waiting: Vec::new(),
            ended: Vec::new(),
        }
    }

    /// Takes all calls. A server that has one under way gets a renewal at most.
    fn poll(&mut self) {
        self.memory.turn(self.now);
        while let Some((id, call)) = self.keeper.poll_call(self.now, &*self.memory) {
            let other = self.under_way.insert(id, call);
            assert!(other.is_none(), "two calls are under way: {other:?}");
        }
        self.notices.extend(std::iter::from_fn(|| self.keeper.poll_notice()));
        self.go_on();
    }

    /// The call under way at a server; where there is a renewal beside it, the renewal if `renews`.
    fn take(&mut self, server: u16, renews: bool) -> Option<(CallId, Call)> {
        let mut there = self.under_way.iter().filter(|(id, _)| id.server() == server);
        let is_it = |call: &Call| matches!(call, Call::Renew { .. }) == renews;
        let id = *there.clone().find(|(_, call)| is_it(call)).or_else(|| there.next())?.0;
        Some((id, self.under_way.remove(&id)?))
    }

    /// Answers the call under way at a server, and the renewal beside it.
    fn answer(&mut self, server: u16, fate: Fate) {
        while let Some((id, call)) = self.take(server, false) {
            self.answer_with(id, call, fate);
        }
    }

    fn answer_with(&mut self, id: CallId, call: Call, fate: Fate) {
        let server = id.server();
        self.answered.insert(server, id);
        let (now, partition, is_open) = (self.now, server, matches!(call, Call::Open { .. }));
        let carry_out = || self.servers[usize::from(server)].carry_out(now, self.client, call);
        let answer = match fate {
            Fate::Answered => carry_out(),
            Fate::RequestLost => return self.tell(id, Err(NoAnswer)),
            Fate::AnswerLost => {
                let _ = carry_out();
                return self.tell(id, Err(NoAnswer));
            }
            Fate::StructureLost => Err(Refusal::Lost { partition }),
            Fate::Undecided => Err(Refusal::Undecided { partition }),
            Fate::Refused => Err(Refusal::NoOwner(NoOwner::InUse)),
            Fate::Senseless if is_open => Ok(Granted::Done),
            Fate::Senseless => {
                let opened = self.servers[0].carry_out(now, self.client, Call::Open { known: None });
                opened.or(Ok(Granted::Done))
            }
        };
        self.tell(id, answer);
    }

    fn tell(
        &mut self,
        id: CallId,
        answer: Result<Granted<Info>, impl Into<fatbtree_remote_memory::session_keeper::Denied>>,
    ) {
        self.keeper.handle_answer(self.now, &*self.memory, id, answer);
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        let now = self.now;
        for server in &mut self.servers {
            server.work(now, 16);
        }
    }

    /// Time passes, and every call meets this fate at once.
    fn run(&mut self, time: Duration, fate: Fate) {
        let end = self.now + time;
        while self.now < end {
            self.settle(fate);
            self.pass(Duration::from_millis(5));
        }
    }

    /// All calls that there are without a pause.
    fn settle(&mut self, fate: Fate) {
        for _ in 0..100 {
            self.poll();
            if self.under_way.is_empty() {
                return;
            }
            (0..SERVERS).for_each(|server| self.answer(server, fate));
        }
        panic!("calls follow each other without an end: {:?}", self.notices.last());
    }

    fn end_session(&mut self, server: u16) {
        let (now, at) = (self.now, usize::from(server));
        if let Some(session) = self.keeper.session(server) {
            let _ = self.servers[at].carry_out(now, self.client, Call::Close { session });
        }
    }

    /// Begins to wait for memory, as an operation does.
    fn want(&mut self, server: u16, class: SizeClass) {
        let (memory, want) = (Rc::clone(&self.memory), Want { server, class, bytes: 1024, is_fresh: true });
        self.waiting.push(Box::pin(async move { memory.until_memory(want).await }));
        self.go_on();
    }

    /// Connects to servers of which the first one has a disk. The second one gives memory for records.
    fn with_disk() -> Self {
        let mut lab = Self::new(KeeperOptions::default());
        lab.settle(Fate::Answered);
        let writer = lab.memory.writer(0).expect("a session");
        lab.memory.set_writer(0, Writer { syncs: true, ..writer }).expect("there is such a server");
        lab.want(1, RECORDS);
        lab.settle(Fate::Answered);
        lab
    }

    /// Frees new blocks of server 1 to which words on server 0 led.
    fn unlink(&mut self, count: usize) -> Vec<GlobalAddress> {
        let writer = self.memory.writer(1).expect("a session");
        let want = Want { is_fresh: true, ..RECORD };
        let mut freed = Vec::new();
        while freed.len() < count {
            let taken = self.memory.take_at_hand(&writer, want).map(Spare::keep);
            let Some(taken) = taken else {
                // Server 0 may have a call under way.
                self.want(1, RECORDS);
                self.poll();
                self.answer(1, Fate::Answered);
                continue;
            };
            self.memory.put_back_after(0, &taken);
            freed.push(taken.block.address);
        }
        freed
    }

    /// Takes a block on server 1 that was freed before, or a new one if there is one.
    fn take_again(&self) -> Option<GlobalAddress> {
        let writer = self.memory.writer(1).ok()?;
        let taken = self.memory.with_allocator(1, &writer, |allocator| allocator.take(RECORD))?;
        taken.map(|block| block.address)
    }

    /// Whether server 0 is asked to sync.
    fn is_syncing(&self) -> bool {
        self.under_way.iter().any(|(id, call)| id.server() == 0 && matches!(call, Call::Sync { .. }))
    }

    fn go_on(&mut self) {
        let Self { waiting, ended, .. } = self;
        waiting.retain_mut(|waits| match waits.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Pending => true,
            Poll::Ready(memory) => {
                ended.push(memory);
                false
            }
        });
    }

    fn is_up(&self) -> bool {
        self.memory.connections().into_iter().all(|id| self.memory.link(id).is_ok())
    }

    fn trouble(&self, server: u16) -> Option<Trouble> {
        let id = ConnectionId { server, lane: 1 };
        self.memory.link(id).err()
    }

    fn count(&self, is: impl Fn(&Notice) -> bool) -> usize {
        self.notices.iter().filter(|notice| is(notice)).count()
    }
}

fn opened(notice: &Notice) -> bool {
    matches!(notice, Notice::Opened { .. })
}

fn denied(notice: &Notice) -> bool {
    matches!(notice, Notice::Denied { .. })
}

#[test]
fn sessions_are_opened_once_and_renewed() {
    let mut lab = Lab::new(KeeperOptions::default());
    lab.run(Duration::from_secs(60), Fate::Answered);
    assert!(lab.is_up() && lab.keeper.is_connected());
    assert_eq!((lab.count(opened), lab.count(denied)), (usize::from(SERVERS), 0));
    let renewals = lab.servers[0].poll_timeout().unwrap();
    assert!(renewals > lab.now, "the lease goes on");
}

/// A third of the renewals is answered, and the session lasts.
#[test]
fn two_renewals_may_be_lost() {
    let mut lab =
        Lab::new(KeeperOptions { longest_pause: Duration::from_secs(2), ..KeeperOptions::default() });
    lab.settle(Fate::Answered);
    for _ in 0..10 {
        lab.pass(Duration::from_millis(3_400));
        lab.poll();
        (0..SERVERS).for_each(|server| lab.answer(server, Fate::RequestLost));
        lab.settle(Fate::Answered);
    }
    assert_eq!(lab.count(opened), usize::from(SERVERS));
}

/// Each call takes longer than a third of the lease: a renewal is due whenever the next call is chosen.
#[test]
fn slow_calls_leave_room_for_others_than_renewals() {
    let mut lab = Lab::new(KeeperOptions::default());
    for _ in 0..20 {
        lab.poll();
        lab.pass(Duration::from_secs(4));
        (0..SERVERS).for_each(|server| lab.answer(server, Fate::Answered));
    }
    lab.poll();
    assert!(lab.is_up());
    assert_eq!(lab.count(opened), usize::from(SERVERS));
}

/// A server grants a lease of no time. A renewal follows another after the first pause at the earliest.
#[test]
fn a_lease_of_no_time_is_not_renewed_without_a_pause() {
    let mut lab = Lab::new(KeeperOptions::default());
    lab.poll();
    let (id, open) = lab.take(0, false).unwrap();
    let mut answer = lab.servers[0].carry_out(lab.now, lab.client, open);
    if let Ok(Granted::Opened(opened)) = &mut answer {
        opened.lease = Duration::ZERO;
    }
    lab.tell(id, answer);
    let mut renewals = 0;
    for _ in 0..200 {
        lab.pass(Duration::from_millis(1));
        lab.poll();
        let is_renewal =
            |(id, call): (&CallId, &Call)| id.server() == 0 && matches!(call, Call::Renew { .. });
        renewals += lab.under_way.iter().filter(|there| is_renewal(*there)).count();
        lab.settle(Fate::Answered);
    }
    assert!((1..=25).contains(&renewals), "{renewals} renewals in a fifth of a second");
}

/// A driver that sleeps until something is due wakes for a renewal beside a slow call, and once.
#[test]
fn a_renewal_is_due_until_it_is_under_way() {
    let surplus = Duration::from_secs(1_000);
    let mut lab = Lab::new(KeeperOptions { surplus, ..KeeperOptions::default() });
    lab.poll();
    lab.answer(0, Fate::Answered);
    lab.poll();
    assert!(lab.keeper.poll_timeout() <= lab.now + Duration::from_secs(4), "beside the call");
    lab.pass(Duration::from_secs(4));
    lab.poll();
    let is_call = |(id, call): (&CallId, &Call)| id.server() == 0 && !matches!(call, Call::Renew { .. });
    while lab.under_way.iter().any(is_call) {
        assert!(lab.keeper.poll_timeout() > lab.now, "both are under way");
        let (id, call) = lab.take(0, false).unwrap();
        lab.answer_with(id, call, Fate::Answered);
        lab.poll();
    }
    assert_eq!(lab.under_way.iter().filter(|(id, _)| id.server() == 0).count(), 1, "the renewal");
    assert!(lab.keeper.poll_timeout() > lab.now, "it is under way");
}

/// A call takes longer than the lease. A renewal beside it keeps the session.
#[test]
fn a_session_lasts_through_a_slow_call_by_renewals_beside_it() {
    for is_renewed in [true, false] {
        let mut lab = Lab::new(KeeperOptions::default());
        lab.poll();
        lab.answer(0, Fate::Answered);
        lab.poll();
        let at_0 = |lab: &Lab| lab.under_way.iter().filter(|(id, _)| id.server() == 0).count();
        assert!(matches!(lab.under_way.values().next(), Some(Call::Connect { .. })));
        assert_eq!(at_0(&lab), 1, "no renewal is due");
        for _ in 0..5 {
            lab.pass(Duration::from_secs(4));
            lab.poll();
            assert_eq!(at_0(&lab), 2, "a renewal is under way");
            if is_renewed && let Some((id, renewal)) = lab.take(0, true) {
                lab.answer_with(id, renewal, Fate::Answered);
            }
        }
        lab.settle(Fate::Answered);
        assert!(lab.is_up());
        let ended = usize::from(!is_renewed);
        assert_eq!((lab.count(opened), lab.count(denied)), (usize::from(SERVERS) + ended, ended));
    }
}

/// Four clients of this address have died without closing. Their sessions count until their leases end.
#[test]
fn sessions_of_clients_that_died_are_waited_for() {
    let patience = Some(Duration::from_secs(30));
    let mut lab = Lab::new(KeeperOptions { patience, ..KeeperOptions::default() });
    let (now, client) = (lab.now, lab.client);
    for server in &mut lab.servers {
        for _ in 0..4 {
            server.carry_out(now, client, Call::Open { known: None }).unwrap();
        }
    }
    let lease = options().lease;
    lab.run(lease / 2, Fate::Answered);
    let is_refused = |notice: &Notice| matches!(notice, Notice::Denied { denied, .. } if denied.to_string().contains("has 4 sessions"));
    assert!(lab.notices.iter().any(is_refused) && !lab.keeper.is_connected());
    lab.run(lease, Fate::Answered);
    assert!(
        !lab.notices.iter().any(|notice| matches!(notice, Notice::OutOfReach { .. })),
        "{:?}",
        lab.notices
    );
    assert!(lab.keeper.is_connected());
}

/// A renewal beside a call is refused. The answer to the call belongs to the session that has ended.
#[test]
fn an_answer_from_a_session_that_has_ended_connects_nothing() {
    let mut lab = Lab::new(KeeperOptions::default());
    lab.poll();
    lab.answer(0, Fate::Answered);
    lab.poll();
    let (id, connect) = lab.take(0, false).unwrap();
    let late = lab.servers[0].carry_out(lab.now, lab.client, connect);
    lab.end_session(0);
    lab.pass(Duration::from_secs(4));
    lab.poll();
    let (renewal, refused) = lab.take(0, true).unwrap();
    lab.answer_with(renewal, refused, Fate::Answered);
    assert_eq!(lab.keeper.session(0), None);
    lab.poll();
    assert!(lab.take(0, false).is_none(), "the call to the former session is under way");
    lab.tell(id, late);
    assert_eq!(lab.count(|notice| matches!(notice, Notice::Connected { .. })), 0);
    lab.settle(Fate::Answered);
    assert!(lab.is_up());
}

#[test]
fn a_session_that_has_ended_is_replaced_at_once_with_all_its_connections() {
    let mut lab = Lab::new(KeeperOptions::default());
    lab.settle(Fate::Answered);
    let former = lab.keeper.session(0);
    lab.end_session(0);
    lab.keeper.doubt(0);
    lab.settle(Fate::Answered);
    assert!(lab.is_up() && lab.keeper.session(0) != former);
    assert_eq!(lab.count(|notice| matches!(notice, Notice::Broken { .. })), usize::from(LANES));
    assert_eq!(lab.count(opened), usize::from(SERVERS) + 1);
}

#[test]
fn memory_is_brought_or_refused_with_the_reason() {
    let mut lab = Lab::new(KeeperOptions::default());
    lab.settle(Fate::Answered);
    for class in [LARGE, RECORDS] {
        lab.want(1, class);
    }
    lab.settle(Fate::Answered);
    lab.poll();
    assert_eq!(lab.ended, [Ok(()), Ok(())]);
    let published = lab.servers[1].statistics().into_iter().find(|(name, _)| name == "chunks_published");
    assert_eq!(published.unwrap().1, 2);

    // All that is left.
    let session = lab.keeper.session(1).unwrap();
    let all = Call::Allocate { session, class: LARGE, bytes: 0 };
    while lab.servers[1].carry_out(lab.now, lab.client, all.clone()).is_ok() {}
    lab.want(1, SMALL);
    lab.settle(Fate::Answered);
    lab.poll();
    assert_eq!(lab.ended.pop(), Some(Err(Shortage::Region)));
}

#[test]
fn a_lost_structure_fails_operations_until_there_is_another() {
    let mut lab = Lab::new(KeeperOptions::default());
    lab.settle(Fate::Answered);
    lab.end_session(0);
    lab.keeper.doubt(0);
    lab.poll();
    lab.answer(0, Fate::Answered);
    lab.run(Duration::from_secs(2), Fate::StructureLost);
    assert!(matches!(lab.trouble(0), Some(Trouble::Lost(0))), "{:?}", lab.trouble(0));
    assert_eq!(lab.count(|notice| matches!(notice, Notice::Lost { server: 0 })), 1);
    lab.want(0, LARGE);
    lab.settle(Fate::StructureLost);
    lab.poll();
    assert_eq!(lab.ended.pop(), Some(Err(Shortage::Lost)));
    lab.run(Duration::from_secs(2), Fate::Answered);
    assert!(lab.is_up());
}

#[test]
fn operations_wait_for_a_silent_server_as_long_as_their_patience() {
    let patience = Some(Duration::from_secs(3));
    let mut lab = Lab::new(KeeperOptions { patience, ..KeeperOptions::default() });
    lab.settle(Fate::Answered);
    lab.memory.sever(0);
    lab.run(Duration::from_secs(2), Fate::RequestLost);
    assert!(matches!(lab.trouble(0), Some(Trouble::Broke(_))), "{:?}", lab.trouble(0));
    lab.run(Duration::from_secs(3), Fate::RequestLost);
    assert!(matches!(lab.trouble(0), Some(Trouble::Abandoned(_))), "{:?}", lab.trouble(0));
    lab.run(Duration::from_secs(2), Fate::Answered);
    assert!(lab.is_up());
}

#[test]
fn patience_counts_from_the_call_that_has_no_answer() {
    let patience = Some(Duration::from_secs(3));
    let mut lab = Lab::new(KeeperOptions { patience, ..KeeperOptions::default() });
    lab.settle(Fate::Answered);
    lab.memory.sever(0);
    lab.poll();
    lab.pass(Duration::from_secs(3));
    lab.answer(0, Fate::RequestLost);
    assert!(matches!(lab.trouble(0), Some(Trouble::Abandoned(_))), "{:?}", lab.trouble(0));
}

/// A server that answers nothing is asked with pauses that double.
#[test]
fn pauses_double_up_to_the_longest() {
    let mut lab = Lab::new(KeeperOptions::default());
    lab.run(Duration::from_secs(10), Fate::Refused);
    let asked = lab.count(denied) / usize::from(SERVERS);
    assert!(
        (20..30).contains(&asked),
        "{asked} calls in ten seconds: at 0, 10, 30, 70, 150, 310, 630, 1130 ms ..."
    );
}

#[test]
fn places_are_given_back_and_sessions_closed_in_the_end() {
    let mut lab = Lab::new(KeeperOptions::default());
    lab.settle(Fate::Answered);
    lab.want(0, RECORDS);
    lab.settle(Fate::Answered);
    lab.keeper.close(&*lab.memory);
    lab.poll();
    while lab.keeper.session(0).is_some() {
        lab.answer(0, Fate::Answered);
        lab.poll();
    }
    assert!(lab.keeper.poll_timeout() > lab.now, "nothing is due while the other server is asked to close");
    lab.settle(Fate::Answered);
    assert!(lab.keeper.is_closed() && lab.keeper.poll_call(lab.now, &*lab.memory).is_none());
    for server in &lab.servers {
        assert!(server.statistics().contains(&("sessions".to_owned(), 0)));
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Poll,
    Answer(u16, Fate),
    AnswerRenewal(u16, Fate),
    /// An answer to nothing.
    Stray(u16),
    EndSession(u16),
    Break(u16),
    Doubt(u16),
    Want(u16, SizeClass),
    Pass(u64),
}

fn op() -> impl Strategy<Value = Op> {
    const FATES: [Fate; 9] = [
        Fate::Answered,
        Fate::Answered,
        Fate::Answered,
        Fate::RequestLost,
        Fate::AnswerLost,
        Fate::StructureLost,
        Fate::Undecided,
        Fate::Refused,
        Fate::Senseless,
    ];
    prop_oneof![
        8 => Just(Op::Poll),
        8 => (0..SERVERS, prop::sample::select(&FATES[..])).prop_map(|(server, fate)| Op::Answer(server, fate)),
        2 => (0..SERVERS, prop::sample::select(&FATES[..]))
            .prop_map(|(server, fate)| Op::AnswerRenewal(server, fate)),
        1 => (0..SERVERS).prop_map(Op::Stray),
        1 => (0..SERVERS).prop_map(Op::EndSession),
        2 => (0..SERVERS).prop_map(Op::Break),
        1 => (0..SERVERS).prop_map(Op::Doubt),
        2 => (0..SERVERS, prop::sample::select(&CLASSES[..])).prop_map(|(server, class)| Op::Want(server, class)),
        4 => (0..4_000_u64).prop_map(Op::Pass),
    ]
}

proptest! {
    /// One call under way at a server at most, and a renewal; what the keeper believes is so; and in the end everything is up, and nothing waits.
    #[test]
    fn any_order_of_answers_ends_connected(ops in prop::collection::vec(op(), 0..120), patience in any::<bool>()) {
        let patience = patience.then_some(Duration::from_secs(5));
        let mut lab = Lab::new(KeeperOptions { patience, ..KeeperOptions::default() });
        for op in ops {
            match op {
                Op::Poll => {
                    lab.poll();
                    prop_assert_eq!(lab.keeper.is_connected(), lab.is_up());
                }
                Op::Answer(server, fate) => lab.answer(server, fate),
                Op::AnswerRenewal(server, fate) => {
                    if let Some((id, call)) = lab.take(server, true) {
                        lab.answer_with(id, call, fate);
                    }
                }
                Op::Stray(server) => {
                    if let Some(id) = lab.answered.get(&server).copied().filter(|id| !lab.under_way.contains_key(id)) {
                        lab.tell(id, Err(NoAnswer));
                    }
                }
                Op::EndSession(server) => lab.end_session(server),
                Op::Break(server) => lab.memory.sever(server),
                Op::Doubt(server) => lab.keeper.doubt(server),
                Op::Want(server, class) => lab.want(server, class),
                Op::Pass(time) => lab.pass(Duration::from_millis(time)),
            }
        }
        lab.run(Duration::from_secs(30), Fate::Answered);
        prop_assert!(lab.is_up() && lab.keeper.is_connected(), "{:?}", lab.notices.last());
        prop_assert!(lab.waiting.is_empty(), "{} operations wait for memory", lab.waiting.len());
        lab.keeper.close(&*lab.memory);
        lab.settle(Fate::Answered);
        prop_assert!(lab.keeper.is_closed());
    }
}

/// A power failure of server 0 alone would bring back the words that led to them.
#[test]
fn blocks_on_another_server_rest_until_the_change_is_on_the_disk() {
    let mut lab = Lab::with_disk();
    let mut freed = lab.unlink(RESTING - 1);
    lab.settle(Fate::Answered);
    assert!(lab.take_again().is_none_or(|at| !freed.contains(&at)), "it is used before the sync");
    freed.extend(lab.unlink(1));
    lab.poll();
    assert!(lab.is_syncing(), "enough blocks rest");
    lab.answer(0, Fate::RequestLost);
    assert!(lab.take_again().is_none_or(|at| !freed.contains(&at)), "the server has not synced");
    freed.extend(lab.unlink(RESTING));
    lab.run(Duration::from_millis(5), Fate::RequestLost);
    lab.pass(Duration::from_secs(1));
    freed.extend(lab.unlink(RESTING));
    lab.poll();
    assert!(lab.is_syncing(), "the next blocks have it asked again");
    let late = lab.unlink(1);
    lab.answer(0, Fate::Answered);
    let again: Vec<_> = (0..freed.len()).filter_map(|_| lab.take_again()).collect();
    assert!(again.len() == freed.len() && again.iter().all(|at| freed.contains(at)), "{again:?}");
    assert!(lab.take_again().is_none_or(|at| !late.contains(&at)), "it was unlinked after the sync began");
}

#[test]
fn a_client_that_is_closed_gives_back_what_rests() {
    for fate in [Fate::Answered, Fate::RequestLost] {
        let mut lab = Lab::with_disk();
        let freed = lab.unlink(3);
        lab.keeper.close(&*lab.memory);
        lab.poll();
        assert!(lab.is_syncing());
        assert_eq!(lab.under_way.len(), 1, "no session is closed before");
        let mut returned = Vec::new();
        for _ in 0..10 {
            returned.extend(lab.under_way.values().filter_map(|call| match call {
                Call::GiveBack { places, .. } => Some(places.addresses.clone()),
                _ => None,
            }));
            (0..SERVERS).for_each(|server| lab.answer(server, fate));
            lab.poll();
        }
        assert!(lab.keeper.is_closed());
        let returned = returned.concat();
        let expected = fate == Fate::Answered;
        assert!(freed.iter().all(|at| returned.contains(at) == expected), "{fate:?}: {returned:?}");
    }
}
