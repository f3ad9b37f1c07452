//! The task that drives the keeper of one switch: a switch that hangs does not hold up the others.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use fatbtree_controller::election::Bid;
use fatbtree_controller::{
    Counts, Desired, Fleet, FleetOptions, Keeper, KeeperAnswer, KeeperNotice, KeeperRequest, Pace, Programs,
    PushError,
};
use fatbtree_topology::{Cluster, SwitchId};
use fatbtree_verbs::time;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::links::{LinkNews, carry, probes};

/// Size of a switch's content.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ObservedNow {
    /// Entries of plans.
    pub(super) entries: usize,
    pub(super) epoch: Option<u8>,
    /// Counts of all entries.
    pub(super) counts: Counts,
}

/// News of a switch.
#[derive(Debug)]
pub(super) enum KeeperNews {
    /// Notice of its keeper.
    Notice(KeeperNotice),
    /// Size of its content, sent before the notice that it holds what it should.
    Holds(Box<ObservedNow>),
    /// The switch has seen this bid, which is higher than that of a session with it.
    Outbid(Bid),
}

/// Connections to switches that answer.
#[derive(Clone, Default)]
pub(super) struct Reachable(Arc<Mutex<BTreeMap<SwitchId, Arc<Fleet>>>>);

impl Reachable {
    pub(super) fn all(&self) -> Vec<(SwitchId, Arc<Fleet>)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(id, fleet)| (*id, Arc::clone(fleet))).collect()
    }

    fn set(&self, switch: SwitchId, fleet: Option<Arc<Fleet>>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match fleet {
            Some(fleet) => drop(all.insert(switch, fleet)),
            None => drop(all.remove(&switch)),
        }
    }
}

/// The pace of all keepers of a controller, and the time that they count; clones share them.
#[derive(Clone, Debug)]
pub(super) struct SharedPace {
    began: Instant,
    pace: Arc<Mutex<Pace>>,
}

impl SharedPace {
    /// Pace in updates per second.
    pub(super) fn new(per_second: f64) -> Self {
        Self { began: Instant::now(), pace: Arc::new(Mutex::new(Pace::new(per_second))) }
    }

    fn now(&self) -> time::Instant {
        time::Instant::ZERO + self.began.elapsed().into()
    }

    fn poll_request(&self, keeper: &mut Keeper, version: u64, desired: &Desired) -> Option<KeeperRequest> {
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        keeper.poll_request(self.now(), (version, desired), &mut pace)
    }
}

/// Drives the [`Keeper`] of one switch.
pub(super) struct KeeperTask {
    pub(super) switch: SwitchId,
    pub(super) cluster: Arc<Cluster>,
    pub(super) programs: Programs,
    pub(super) bid: Bid,
    /// Sessions that were opened with the switch under this bid.
    pub(super) sessions: u64,
    pub(super) options: FleetOptions,
    pub(super) pace: SharedPace,
    pub(super) desired: watch::Receiver<(u64, Arc<Desired>)>,
    /// Number that grows when all switches are to be read back.
    pub(super) sync: watch::Receiver<u64>,
    pub(super) reachable: Reachable,
    pub(super) news: mpsc::Sender<(SwitchId, KeeperNews)>,
    /// Way to the watch of cables.
    pub(super) links: mpsc::Sender<LinkNews>,
}

/// The driver has ended, and takes no more news.
struct Stopped;

enum End {
    Stopped,
    Failed(PushError),
}

impl From<PushError> for End {
    fn from(error: PushError) -> Self {
        Self::Failed(error)
    }
}

impl From<Stopped> for End {
    fn from(Stopped: Stopped) -> Self {
        Self::Stopped
    }
}

/// The task that carries a switch's packets; it ends with this.
struct Carried(JoinHandle<()>);

impl Drop for Carried {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A session with the switch.
struct Session {
    fleet: Arc<Fleet>,
    _carried: Option<Carried>,
}

impl KeeperTask {
    /// Drives the switch's keeper until the driver ends.
    pub(super) async fn keep(mut self) {
        let program = self.programs.of(self.cluster.tree().switch(self.switch).role);
        let mut keeper = Keeper::new(self.switch, program.cookie());
        let mut session = None;
        loop {
            let error = match self.step(&mut keeper, &mut session).await {
                Ok(()) => continue,
                Err(End::Stopped) => return,
                Err(End::Failed(error)) => error,
            };
            session = None;
            keeper.handle_lost(self.pace.now(), error.to_string());
            self.reachable.set(self.switch, None);
            // The receiver is gone only after the controller has ended.
            let _ = self.links.send(LinkNews::Lost(self.switch)).await;
            if let Some(highest) = error.outbid()
                && self.tell(KeeperNews::Outbid(Bid::of(highest))).await.is_err()
            {
                return;
            }
        }
    }

    /// Carries out a request, or waits for something new.
    async fn step(&mut self, keeper: &mut Keeper, session: &mut Option<Session>) -> Result<(), End> {
        let (version, desired) = self.desired.borrow_and_update().clone();
        keeper.handle_sync(*self.sync.borrow_and_update());
        let request = self.pace.poll_request(keeper, version, &desired);
        while let Some(notice) = keeper.poll_notice() {
            self.notice(notice, keeper, session).await?;
        }
        let answer = match request {
            Some(KeeperRequest::Open) => {
                *session = Some(Session { fleet: self.connect().await?, _carried: None });
                KeeperAnswer::Opened
            }
            Some(request) => match session {
                Some(Session { fleet, .. }) => {
                    let answer = fleet.answer(self.switch, request).await?;
                    if let KeeperAnswer::Holds(_) = answer {
                        self.reachable.set(self.switch, Some(Arc::clone(fleet)));
                    }
                    answer
                }
                // The value asks for a session first.
                None => return Ok(()),
            },
            None => return self.wait(keeper, session.as_ref()).await,
        };
        keeper.handle_answer(self.pace.now(), answer);
        Ok(())
    }

    async fn wait(&mut self, keeper: &Keeper, session: Option<&Session>) -> Result<(), End> {
        let ends = async {
            match session {
                Some(session) => session.fleet.session_ends(self.switch).await,
                None => std::future::pending().await,
            }
        };
        let due = async {
            match keeper.poll_timeout() {
                Some(at) => {
                    tokio::time::sleep_until(self.pace.began + (at - time::Instant::ZERO).into()).await;
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            ended = ends => Err(End::Failed(ended)),
            changed = self.desired.changed() => Ok(changed.map_err(|_| Stopped)?),
            changed = self.sync.changed() => Ok(changed.map_err(|_| Stopped)?),
            () = due => Ok(()),
        }
    }

    async fn notice(
        &self,
        notice: KeeperNotice,
        keeper: &Keeper,
        session: &mut Option<Session>,
    ) -> Result<(), Stopped> {
        match (&notice, session) {
            (KeeperNotice::Runs, Some(session)) => {
                session._carried = self.carry_packets(&session.fleet).await;
            }
            (KeeperNotice::Settled(_), _) => {
                let held = keeper.held();
                let ((entries, epoch), counts) = (held.planned(), held.counts());
                self.tell(KeeperNews::Holds(Box::new(ObservedNow { entries, epoch, counts }))).await?;
            }
            _ => {}
        }
        self.tell(KeeperNews::Notice(notice)).await
    }

    async fn tell(&self, news: KeeperNews) -> Result<(), Stopped> {
        self.news.send((self.switch, news)).await.map_err(|_| Stopped)
    }

    async fn connect(&mut self) -> Result<Arc<Fleet>, PushError> {
        let Self { switch, cluster, programs, bid, sessions, options, .. } = self;
        options.election_id = bid.election_id(*sessions);
        *sessions += 1;
        Ok(Arc::new(Fleet::connect_to(cluster, [*switch], programs, options.clone()).await?))
    }

    /// Starts a task that carries the switch's packets: a probe does not wait for a table that is written.
    async fn carry_packets(&self, fleet: &Fleet) -> Option<Carried> {
        let (switch, news) = (self.switch, self.links.clone());
        let (way, carried) = fleet.packets(switch).map_or((None, None), |(sender, receiver)| {
            let (way, probes) = probes();
            let task = tokio::spawn(carry(switch, sender, receiver, probes, news));
            (Some(way), Some(Carried(task)))
        });
        let _ = self.links.send(LinkNews::Open(switch, way)).await;
        carried
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc as requests;
    use std::thread;
    use std::time::Duration;

    use fatbtree_controller::election::Candidate;
    use fatbtree_controller::{Controller, Generation, Registration};
    use fatbtree_switch::service::{Switch, mailbox_with_waker, serve};
    use tokio::net::TcpListener;

    use super::*;

    const DEVICE: u64 = 5;

    /// Request to the thread that owns the switch.
    enum Ask {
        /// Begins anew: empty, and without sessions. Connected controllers are not told.
        Restart,
        /// Number of connections that it admits; `None` if it has no program.
        Connections(requests::Sender<Option<usize>>),
    }

    /// A switch on a port of its own.
    async fn a_switch() -> (String, requests::Sender<Ask>) {
        let (asks, asked) = requests::channel::<Ask>();
        let (give, mailbox) = requests::channel();
        thread::spawn(move || {
            let owner = thread::current();
            let (mailbox, mut inbox) = mailbox_with_waker(move || owner.unpark());
            give.send(mailbox).unwrap();
            let mut switch = Switch::new(DEVICE);
            loop {
                inbox.try_drain(&mut switch);
                match asked.try_recv() {
                    Ok(Ask::Restart) => switch = Switch::new(DEVICE),
                    Ok(Ask::Connections(reply)) => {
                        let admitted = switch.pipeline().map(|pipeline| {
                            let table =
                                pipeline.program().table("ingress.first_hop.roce_connection").unwrap();
                            pipeline.len(table)
                        });
                        reply.send(admitted).unwrap();
                    }
                    Err(requests::TryRecvError::Empty) => thread::park_timeout(Duration::from_millis(1)),
                    Err(requests::TryRecvError::Disconnected) => return,
                }
            }
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(serve(listener, mailbox.recv().unwrap(), std::future::pending()));
        (address, asks)
    }

    /// A switch that has restarted is noticed by what it runs, though something is wanted of other switches all the time: clients that
    /// cannot reach their servers connect again and again.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_switch_that_comes_back_empty_gets_program_and_connections_while_others_change() {
        let (address, asks) = a_switch().await;
        let text = format!(
            "[network]\nk = 2\n[[memory_server]]\nhost = \"host-0-0-0\"\ngrpc = \"127.0.0.1:1\"\n[[switch]]\nname = \"edge-1-0\"\np4runtime = \"{address}\"\ndevice_id = {DEVICE}\n",
        );
        let cluster = Arc::new(Cluster::from_toml(&text).unwrap());
        let switch = cluster.tree().switch_by_name("edge-1-0").unwrap().id;
        let client = cluster.tree().hosts().iter().find(|host| host.name() == "host-1-0-0").unwrap().ip;
        let mut controller = Controller::new(&cluster, 100, 0);
        let connection = Registration { client, queue_pair: 17, rkey: 4711, root: 64, mtu: 1024 };
        controller.server_joined(0, Generation { number: 1, low: 0 }, &[connection]);
        let (version, first) = controller.desired();
        let (desired, wanted) = watch::channel((version, Arc::clone(first)));
        let (_sync, sync) = watch::channel(0);
        let (news, mut told) = mpsc::channel(16);
        let keeper = KeeperTask {
            switch,
            cluster: Arc::clone(&cluster),
            programs: Programs::v1model().unwrap(),
            bid: Bid { term: 1, candidate: Candidate::new(([127, 0, 0, 1], 9690).into(), 0) },
            sessions: 0,
            options: FleetOptions::default(),
            pace: SharedPace::new(1e6),
            desired: wanted,
            sync,
            reachable: Reachable::default(),
            news,
            links: mpsc::channel(16).0,
        };
        tokio::spawn(keeper.keep());
        tokio::spawn(async move { while told.recv().await.is_some() {} });
        // Something else of another switch: of this one the same.
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(50)).await;
                desired.send_modify(|(version, _)| *version += 1);
            }
        });
        let admits_one = async || {
            let began = Instant::now();
            loop {
                let (reply, answer) = requests::channel();
                asks.send(Ask::Connections(reply)).unwrap();
                if answer.recv().unwrap() == Some(1) {
                    return;
                }
                assert!(
                    began.elapsed() < Duration::from_secs(30),
                    "it has no program, or not its connections"
                );
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        admits_one().await;
        asks.send(Ask::Restart).unwrap();
        admits_one().await;
    }
}
