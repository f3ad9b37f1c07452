//! Drives a [`Primary`]: takes what comes in, carries out its orders, publishes what is desired.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fatbtree_controller::election::Bid;
use fatbtree_controller::grpc::{Input, Registered};
use fatbtree_controller::links::Outages;
use fatbtree_controller::operator::Question;
use fatbtree_controller::{
    Answer, ControllerNews, Desired, Follower, Made, Order, Primary, Replanned, Ticket,
};
use fatbtree_topology::SwitchId;
use fatbtree_verbs::time;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot, watch};

use super::keeper::{KeeperNews, ObservedNow};
use super::links::Samples;
use super::planner::Planner;
use super::state::{StateFolder, plan_of};

pub(super) type Reply = oneshot::Sender<Result<String, String>>;

/// Result of a planning task.
enum Thought {
    Planned(Result<Made, String>),
    Followed(Box<Follower>, Result<Option<Replanned>, String>),
}

/// Channels to the switches' keepers, and from the tasks that have news.
pub(super) struct Channels {
    pub(super) desired: watch::Sender<(u64, Arc<Desired>)>,
    pub(super) sync: watch::Sender<u64>,
    pub(super) switches: mpsc::Receiver<(SwitchId, KeeperNews)>,
    pub(super) outages: watch::Receiver<Outages>,
    pub(super) samples: Samples,
}

pub(super) struct Driver {
    pub(super) primary: Primary,
    pub(super) planner: Planner,
    folder: Option<StateFolder>,
    desired: watch::Sender<(u64, Arc<Desired>)>,
    sync: watch::Sender<u64>,
    switches: mpsc::Receiver<(SwitchId, KeeperNews)>,
    /// Bid with which this controller leads.
    bid: Bid,
    outages: watch::Receiver<Outages>,
    /// Samples of dropped packets.
    pub(super) samples: Samples,
    thoughts: (mpsc::Sender<Thought>, mpsc::Receiver<Thought>),
    /// The ways to clients, by the numbers of their streams.
    clients: BTreeMap<u64, mpsc::Sender<Registered>>,
    /// Last size of a switch's content, by switch.
    pub(super) held: BTreeMap<SwitchId, ObservedNow>,
    /// Questions that wait, and the number of the newest.
    replies: BTreeMap<Ticket, Reply>,
    ticket: Ticket,
    began: Instant,
}

/// Interval between looks for what is due.
const TICK: Duration = Duration::from_millis(250);

impl Driver {
    pub(super) fn new(
        primary: Primary,
        planner: Planner,
        folder: Option<StateFolder>,
        channels: Channels,
        bid: Bid,
    ) -> Self {
        let Channels { desired, sync, switches, outages, samples } = channels;
        Self {
            primary,
            planner,
            folder,
            desired,
            sync,
            switches,
            bid,
            outages,
            samples,
            thoughts: mpsc::channel(4),
            clients: BTreeMap::new(),
            held: BTreeMap::new(),
            replies: BTreeMap::new(),
            ticket: 0,
            began: Instant::now(),
        }
    }

    /// Drives the primary until a switch has seen a higher bid, and returns that bid.
    pub(super) async fn drive(
        mut self,
        inputs: &mut mpsc::Receiver<Input>,
        mut tell: impl FnMut(ControllerNews),
    ) -> Bid {
        let mut ticks = tokio::time::interval(TICK);
        loop {
            tokio::select! {
                Some((switch, news)) = self.switches.recv() => match news {
                    KeeperNews::Outbid(by) if by > self.bid => return by,
                    // One that is not higher, of a session before: the keeper bids again.
                    KeeperNews::Outbid(_) => {}
                    KeeperNews::Holds(held) => drop(self.held.insert(switch, *held)),
                    KeeperNews::Notice(notice) => self.now().switch_noticed(switch, &notice),
                },
                Some(input) = inputs.recv() => self.came(input),
                Some(thought) = self.thoughts.1.recv() => match thought {
                    Thought::Planned(made) => self.now().planned(made),
                    Thought::Followed(follower, replanned) => self.now().followed(*follower, replanned),
                },
                Ok(()) = self.outages.changed() => {
                    let outages = self.outages.borrow_and_update().clone();
                    self.now().network_changed(outages);
                }
                _ = ticks.tick() => {}
            }
            self.primary.handle_timeout(self.time());
            while let Some(order) = self.primary.poll_order() {
                self.obey(order, &mut tell);
            }
            self.publish();
        }
    }

    /// Time since the term began.
    fn time(&self) -> time::Instant {
        time::Instant::ZERO + self.began.elapsed().into()
    }

    /// The primary, with its clock set to the present time.
    fn now(&mut self) -> &mut Primary {
        self.primary.at(self.time());
        &mut self.primary
    }

    fn publish(&self) {
        let (version, desired) = self.primary.controller().desired();
        self.desired.send_if_modified(|published| {
            let is_new = published.0 != version;
            if is_new {
                *published = (version, Arc::clone(desired));
            }
            is_new
        });
    }

    // ---- what comes in ----

    fn came(&mut self, input: Input) {
        let primary = self.now();
        match input {
            Input::ServerJoined { stream, hello, former } => {
                if let Ok(known) = primary.server_joined(stream, &hello) {
                    // If its stream has ended, the word is not needed.
                    let _ = former.send(known);
                }
            }
            Input::ServerNews { stream, partition, news } => primary.server_news(stream, partition, news),
            Input::ServerLeft { stream, partition } => primary.server_left(stream, partition),
            Input::ClientJoined { stream, address, registered } => {
                primary.client_joined(stream, address);
                self.clients.insert(stream, registered);
            }
            Input::ClientReport { stream, report } => primary.client_reported(stream, &report),
            Input::ClientLeft { stream } => {
                primary.client_left(stream);
                self.clients.remove(&stream);
            }
            Input::Asked { question, reply } => self.asked(question, reply),
        }
    }

    fn asked(&mut self, question: Question, reply: Reply) {
        match question {
            Question::Plan | Question::Diff | Question::Reload { plan: None } => {
                let ticket = self.waits(reply);
                self.primary.asked_for_plan(ticket, question);
            }
            Question::Reload { plan: Some(saved) } => match plan_of(&saved) {
                Err(error) => drop(reply.send(Err(error))),
                Ok(plan) => {
                    let ticket = self.waits(reply);
                    self.primary.asked_to_load(ticket, plan, saved.source);
                }
            },
            Question::Rollback => {
                let ticket = self.waits(reply);
                self.primary.asked_to_roll_back(ticket);
            }
            Question::Sync => {
                let ticket = self.waits(reply);
                self.primary.asked_to_sync(ticket);
            }
            Question::Status => answer(reply, Ok(&self.status())),
            Question::Show => self.show(reply),
            Question::Explain { key } => self.explain(key, reply),
            Question::Counters => self.count(reply),
            Question::Drops => self.count_drops(reply),
        }
    }

    fn waits(&mut self, reply: Reply) -> Ticket {
        self.ticket += 1;
        self.replies.insert(self.ticket, reply);
        self.ticket
    }

    // ---- what is to be done ----

    fn obey(&mut self, order: Order, tell: &mut impl FnMut(ControllerNews)) {
        match order {
            Order::Plan { active, keys, source, epoch } => {
                let made = self.planner.clone().plan(active, keys, source, epoch);
                self.think(async move { Thought::Planned(made.await) });
            }
            Order::Follow(follower) => {
                let followed = self.planner.clone().follow(*follower, self.time());
                self.think(async move {
                    let (follower, replanned) = followed.await;
                    Thought::Followed(Box::new(follower), replanned)
                });
            }
            Order::Keep => self.keep_plan(),
            Order::Sync(number) => drop(self.sync.send_replace(number)),
            Order::Registered(stream, registered) => {
                if let Some(client) = self.clients.get(&stream) {
                    // A client that does not take them walks from the root.
                    let _ = client.try_send(registered);
                }
            }
            Order::Answer(ticket, answered) => {
                let Some(reply) = self.replies.remove(&ticket) else { return };
                match answered {
                    Ok(Answer::Reloaded(done)) => answer(reply, Ok(&done)),
                    Ok(Answer::Synced(synced)) => answer(reply, Ok(&synced)),
                    Ok(Answer::Made(question, made)) => self.answer_made(&question, &made, reply),
                    Err(trouble) => answer::<()>(reply, Err(trouble)),
                }
            }
            Order::Tell(news) => tell(news),
        }
    }

    fn think(&self, thought: impl Future<Output = Thought> + Send + 'static) {
        let thoughts = self.thoughts.0.clone();
        tokio::spawn(async move {
            // A driver that has ended needs no plan.
            let _ = thoughts.send(thought.await).await;
        });
    }

    /// Saves the plan before its first entry is published.
    fn keep_plan(&self) {
        let controller = self.primary.controller();
        let (Some(folder), Some((new, source, _))) = (&self.folder, controller.reload()) else {
            return;
        };
        let active = controller.plan().map(|(loaded, _)| loaded.plan().epoch());
        let stay: Vec<u8> = active.into_iter().collect();
        if let Err(error) = folder.keep(new.plan(), source, &stay) {
            tracing::warn!(%error, "the plan is not kept: a controller that is started again will make another one");
        }
    }
}

/// Answers a question; the asking task may be gone.
pub(super) fn answer<T: Serialize>(reply: Reply, answer: Result<&T, String>) {
    let json = answer.map(|answer| serde_json::to_string(answer).expect("answers always serialise"));
    let _ = reply.send(json);
}
