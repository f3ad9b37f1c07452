//! Whoever writes: stands in for the write operations of clients, which are still to come.
//!
//! One writer a tree, on a machine of its own, with WRITEs over verbs. What it is about to do is noted in a place that survives it
//! (a log, in a real system); its successor reads what is in memory and goes on from there.

use std::rc::Rc;

use fatbtree_blink::GlobalAddress;
use fatbtree_blink::node::LINE;
use fatbtree_blink::record::RecordPointer;
use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{Device as _, Error, Operation, Output, QueuePair, Remote};
use rand::RngExt as _;

use super::misuse::{CHILD, node_like_record, record_like_node};
use super::model::{Change, Model, Step};
use super::rules::Rule;
use super::setting::Setting;
use crate::history::{Answer, Call, OperationId};
use crate::world::{Machine, Random};

/// A tree and what its writer is about to do.
#[derive(Debug)]
pub(super) struct Tended {
    pub(super) model: Model,
    under_way: Option<UnderWay>,
    /// The WRITE of the first step may have been carried out, or a part of it.
    begun: bool,
}

#[derive(Debug)]
struct UnderWay {
    change: Change,
    operation: Option<(OperationId, Answer)>,
}

impl Tended {
    pub(super) fn new(model: Model) -> Self {
        Self { model, under_way: None, begun: false }
    }
}

/// What a writer can decide to do.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    /// Puts a value; splits the leaf instead, if it has no room.
    Upsert,
    Delete,
    Split,
    Merge,
    /// Tells the parent of a node that was split.
    Adopt,
    /// Writes a node anew.
    Rewrite,
}

impl Action {
    /// All of them, in the order of their weights.
    pub(super) const ALL: [Action; 6] =
        [Action::Upsert, Action::Delete, Action::Split, Action::Merge, Action::Adopt, Action::Rewrite];

    fn draw(weights: &[u32; Self::ALL.len()], random: &mut Random) -> Self {
        let mut draw = random.random_range(0..weights.iter().sum());
        for (action, &weight) in Self::ALL.into_iter().zip(weights) {
            match draw.checked_sub(weight) {
                Some(rest) => draw = rest,
                None => return action,
            }
        }
        unreachable!("what is drawn is less than all weights together")
    }
}

/// A writer in one life.
pub(super) struct Writer {
    machine: Machine,
    setting: Rc<Setting>,
    tree: usize,
    queue_pair: Option<QueuePair>,
    random: Random,
}

impl Writer {
    pub(super) fn new(machine: &Machine, tree: usize, setting: &Rc<Setting>, random: Random) -> Self {
        Self { machine: machine.clone(), setting: Rc::clone(setting), tree, queue_pair: None, random }
    }

    /// Goes on from where another writer stopped, and makes changes.
    pub(super) async fn run(mut self, changes: u32) {
        self.forget_if_broken();
        self.finish().await;
        for _ in 0..changes {
            self.begin();
            self.finish().await;
            let pace = self.setting.scenario.pace.as_nanos();
            if pace > 0 {
                let pause = Duration::from_nanos(self.random.random_range(0..=pace));
                self.machine.sleep(pause).await;
            }
        }
    }

    /// Makes one value of each key new.
    pub(super) async fn refresh(mut self, keys: &[u64]) {
        self.finish().await;
        for &key in keys {
            while self.has_no_room(key) {
                let split = self.tended(|tended, random| tended.model.split_leaf(key, random));
                let Some(change) = split else { break };
                self.note(change, None);
                self.finish().await;
            }
            self.upsert(key);
            self.finish().await;
        }
    }

    fn tended<T>(&mut self, work: impl FnOnce(&mut Tended, &mut Random) -> T) -> T {
        work(&mut self.setting.trees[self.tree].borrow_mut(), &mut self.random)
    }

    fn has_no_room(&mut self, key: u64) -> bool {
        self.tended(|tended, _| tended.model.has_no_room(key))
    }

    fn note(&mut self, change: Change, operation: Option<(OperationId, Answer)>) {
        self.setting.count(|outcome| outcome.changes += 1);
        self.tended(|tended, _| tended.under_way = Some(UnderWay { change, operation }));
    }

    /// Without the rule, what was begun is taken for done.
    fn forget_if_broken(&mut self) {
        if self.setting.scenario.broken == Some(Rule::Finish) {
            self.tended(|tended, _| {
                if let Some(under_way) = &mut tended.under_way {
                    under_way.change.steps.pop_front();
                    tended.begun = false;
                }
            });
        }
    }

    /// Decides on a change and notes it.
    fn begin(&mut self) {
        let key = self.setting.draw_key(self.tree, &mut self.random);
        let change = match Action::draw(&self.setting.scenario.weights, &mut self.random) {
            Action::Upsert if !self.has_no_room(key) => return self.upsert(key),
            Action::Upsert => {
                let split = self.tended(|tended, random| tended.model.split_leaf(key, random));
                if self.setting.scenario.broken == Some(Rule::NothingEarly) && !self.has_no_room(key) {
                    return self.upsert_in(key, split);
                }
                split
            }
            Action::Delete => return self.delete(key),
            Action::Split => self.tended(|tended, random| tended.model.split_any(random)),
            Action::Merge => self.tended(|tended, random| tended.model.merge(random)),
            Action::Adopt => self.tended(|tended, random| tended.model.adopt(random)),
            Action::Rewrite => self.tended(|tended, random| Some(tended.model.rewrite(random))),
        };
        if let Some(change) = change {
            self.note(change, None);
        }
    }

    fn upsert(&mut self, key: u64) {
        self.upsert_in(key, None);
    }

    /// Puts a value; as a part of a split, if there is one.
    fn upsert_in(&mut self, key: u64, split: Option<Change>) {
        let lengths = &self.setting.scenario.lengths;
        let length = lengths[self.random.random_range(0..lengths.len())];
        let word = self.setting.next_word();
        let change = self.tended(|tended, random| tended.model.upsert(key, word, length, random));
        match (change, split) {
            (Some(change), None) => self.ask(key, Call::Upsert(word), change),
            (Some(change), Some(split)) => self.ask(key, Call::Upsert(word), change.within(split)),
            (None, Some(split)) => self.note(split, None),
            (None, None) => {}
        }
    }

    fn delete(&mut self, key: u64) {
        if let Some(change) = self.tended(|tended, _| tended.model.delete(key)) {
            self.ask(key, Call::Delete, change);
        }
    }

    fn ask(&mut self, key: u64, call: Call, change: Change) {
        let asked = self.setting.history.ask(&self.machine.name(), self.machine.now(), key, call);
        self.note(change, Some((asked, Answer::Applied)));
    }

    /// Does all steps of the change under way, however often it takes.
    async fn finish(&mut self) {
        while let Some(step) = self.next_step() {
            if self.carry_out(step).await.is_err() {
                if let Some(queue_pair) = self.queue_pair.take() {
                    self.machine.reactor().with(|card| card.destroy(queue_pair));
                }
                self.machine.sleep(Duration::from_micros(5)).await;
                continue;
            }
            self.tended(|tended, _| {
                tended.begun = false;
                if let Some(under_way) = &mut tended.under_way {
                    under_way.change.steps.pop_front();
                }
            });
            if self.random.random_bool(self.setting.scenario.hesitant) {
                let pause = Duration::from_nanos(self.random.random_range(0..50_000));
                self.machine.sleep(pause).await;
            }
        }
        let done = self.tended(|tended, _| {
            let UnderWay { change, operation } = tended.under_way.take()?;
            tended.model.done(change);
            operation
        });
        if let Some((operation, answer)) = done {
            self.setting.history.answer(operation, self.machine.now(), answer);
        }
        self.misuse().await;
    }

    /// What is to be done next. An entry whose WRITE may have been cut short is made good with its whole leaf.
    fn next_step(&mut self) -> Option<Step> {
        self.tended(|tended, _| {
            let step = *tended.under_way.as_ref()?.change.steps.front()?;
            Some(match step {
                Step::Entry { leaf, .. } if tended.begun => Step::Node(leaf),
                step => step,
            })
        })
    }

    async fn carry_out(&mut self, step: Step) -> Result<(), Error> {
        let (place, len) = self.tended(|tended, _| tended.model.place(step));
        let found = self.read(place, len).await?;
        let Some((to, mut data)) = self.tended(|tended, random| tended.model.bytes(step, found, random))
        else {
            return Ok(());
        };
        self.tended(|tended, _| tended.begun = true);
        let scenario = &self.setting.scenario;
        if step == Step::Superblock && scenario.tears_superblocks() && self.random.random_bool(0.4) {
            // As if a word-wise WRITE was cut short for good: what it announces is only a help.
            self.setting.count(|outcome| outcome.torn_superblocks += 1);
            data.truncate(8 * self.random.random_range(2..LINE / 8));
        }
        let in_pieces = scenario.pieces && matches!(step, Step::Node(_) | Step::Record { .. });
        self.dare();
        if in_pieces { self.write_pieces(to, &data).await } else { self.write(to, &data).await }
    }

    /// Some WRITEs are the last thing that their machine does.
    fn dare(&mut self) {
        if !self.setting.calm.get() && self.random.random_bool(self.setting.scenario.daring) {
            self.machine.kill_after_polls(self.random.random_range(0..3));
        }
    }

    async fn queue_pair(&mut self) -> Result<(QueuePair, u32), Error> {
        let server = &self.setting.servers[self.tree];
        let queue_pair = match self.queue_pair {
            Some(queue_pair) => queue_pair,
            // Anew: a WRITE of an earlier connection that comes late would land on what is written now.
            None => loop {
                if let Ok(queue_pair) = self.machine.dial_anew(&server.machine).await {
                    break *self.queue_pair.insert(queue_pair);
                }
                self.machine.sleep(Duration::from_micros(20)).await;
            },
        };
        Ok((queue_pair, server.region.get().rkey))
    }

    async fn read(&mut self, from: GlobalAddress, len: u32) -> Result<Vec<u8>, Error> {
        let (queue_pair, rkey) = self.queue_pair().await?;
        let from = Remote { address: from.raw(), rkey };
        match self.machine.reactor().chain(queue_pair, [Operation::Read { from, len }]).await? {
            [Output::Read(bytes)] => Ok(bytes.to_vec()),
            other => unreachable!("a READ gave {other:?}"),
        }
    }

    async fn write(&mut self, to: GlobalAddress, data: &[u8]) -> Result<(), Error> {
        let (queue_pair, rkey) = self.queue_pair().await?;
        let to = Remote { address: to.raw(), rkey };
        self.machine.reactor().chain(queue_pair, [Operation::Write { to, data }]).await?;
        Ok(())
    }

    /// Writes some lines at a time, in any order: a node larger than a packet may come so.
    async fn write_pieces(&mut self, to: GlobalAddress, data: &[u8]) -> Result<(), Error> {
        let piece = LINE * self.random.random_range(1..=2);
        let mut starts: Vec<usize> = (0..data.len()).step_by(piece).collect();
        for last in (1..starts.len()).rev() {
            starts.swap(last, self.random.random_range(0..=last));
        }
        for start in starts {
            let at = GlobalAddress::new(to.server(), to.offset() + start as u64);
            self.write(at, &data[start..data.len().min(start + piece)]).await?;
        }
        Ok(())
    }

    /// Without the rules that nodes stay nodes and records stay records, what was freed becomes the other, with a user's bytes.
    async fn misuse(&mut self) {
        let config = self.setting.scenario.config;
        let bytes = match self.setting.scenario.broken {
            Some(Rule::NodesStayNodes) => {
                let record = self.setting.litter[self.tree].records.first().copied();
                record.and_then(|(key, record)| {
                    let (at, before) = self.tended(|tended, _| tended.model.space.misuse_node())?;
                    let bytes = node_like_record(&config, at, before, key, record);
                    Some((GlobalAddress(at.raw() - before as u64), bytes))
                })
            }
            Some(Rule::RecordsStayRecords) => {
                let length = self.setting.scenario.lengths[0];
                let record = self.tended(|tended, _| tended.model.space.misuse_record(CHILD));
                record.and_then(|(address, version, key)| {
                    record_like_node(&config, RecordPointer { address, length, version }, key)
                })
            }
            _ => None,
        };
        if let Some((at, bytes)) = bytes {
            // If it is not written, so be it.
            let _ = self.write(at, &bytes).await;
        }
    }
}
