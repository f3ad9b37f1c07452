//! Work of clients, until they are killed or have finished.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::atomic::Ordering;

use fatbtree_blink::{
    Change, CommonError, KeyRange, OperationError, Order, ScanOptions, Start, Verified, VerifyError,
};
use rand::RngExt as _;

use super::life::{Life, Place, Task};
use super::log::{Entries, Log};
use super::wires::Port;
use crate::history::{Answer, Call};
use crate::world::{Random, random};

counters! {
    /// Counters of the clients of a thread.
    #[derive(Clone, Copy, Debug, Default)]
    pub(super) struct Tally {
        pub(super) failed: u64,
        pub(super) cut_short: u64,
        pub(super) killed: u64,
        pub(super) inherited_locks: u64,
        pub(super) splits: u64,
        pub(super) merges: u64,
    }
}

/// The key of a number: anywhere, in the order of the numbers.
pub(super) fn key_of(number: u64) -> u64 {
    number * 0x0000_0400_0000_0003
}

/// All lives of a thread's client.
pub(super) fn live(place: &Place<'_>, mut port: Port) -> Result<(Entries, Tally), String> {
    let options = place.options;
    let log = RefCell::new(Log::new(place.order, place.clock));
    let mut tally = Tally::default();
    let mut draw = random(options.seed, 1_000 + u64::from(place.number));
    let mut left = options.operations;
    for number in 0..=options.kills {
        let life = Life::begin(place, number)?;
        // About as many in each life, and then it may be any moment.
        let kills_left = u64::from(options.kills - number);
        let dies_after = (kills_left > 0).then(|| draw.random_range(0..=2 * left / (kills_left + 1)));
        let budget = Rc::new(Cell::new(left));
        let failed = Rc::new(Cell::new(0));
        let mut work: Vec<Task<'_>> = Vec::new();
        for _ in 0..options.depth {
            let worker = Worker {
                life: Rc::clone(&life),
                log: &log,
                random: random(draw.random_range(0..=u64::MAX), 7),
                budget: Rc::clone(&budget),
                failed: Rc::clone(&failed),
            };
            work.push(Box::pin(worker.run()));
        }
        let dead =
            run(&life, &mut port, &mut work, || dies_after.is_some_and(|at| left - budget.get() >= at))?;
        if dead {
            tally.killed += 1;
            tally.cut_short += work.len() as u64;
        } else {
            run(&life, &mut port, &mut vec![Box::pin(life.end())], || false)?;
        }
        let stats = life.client.pool().stats();
        tally += Tally {
            failed: failed.get(),
            inherited_locks: stats.remote.inherited_locks,
            splits: stats.splits,
            merges: stats.merges,
            ..Tally::default()
        };
        left = budget.get();
    }
    Ok((log.into_inner().finish(), tally))
}

/// Moves a life on until its work has ended, or it is killed; says whether it was.
fn run<'l>(
    life: &Rc<Life<'l>>,
    port: &mut Port,
    work: &mut Vec<Task<'_>>,
    is_killed: impl Fn() -> bool,
) -> Result<bool, String> {
    let (place, mut chores) = (life.place, life.chores());
    let (mut answers, mut since) = (life.answers.get(), place.clock.now());
    loop {
        if is_killed() {
            return Ok(true);
        }
        if life.turn(port, &mut chores, work) {
            return Ok(false);
        }
        if let Some(why) = life.wrong.borrow_mut().take() {
            return Err(format!("{}: {why}", life.name));
        }
        let now = place.clock.now();
        if life.answers.get() != answers {
            (answers, since) = (life.answers.get(), now);
        }
        if now - since > place.options.patience {
            return Err(format!("{}: no answer for {}", life.name, now - since));
        }
    }
}

/// Checks the end, after all threads have ended: waits until dead sessions have ended, too, scans all keys,
/// and verifies the tree.
pub(super) fn audit(place: &Place<'_>, mut port: Port) -> Result<(Entries, Verified), String> {
    let log = RefCell::new(Log::new(place.order, place.clock));
    let found = Rc::new(Cell::new(None));
    let life = Life::begin(place, 0)?;
    let worker = Worker {
        life: Rc::clone(&life),
        log: &log,
        random: random(place.options.seed, 8),
        budget: Rc::default(),
        failed: Rc::default(),
    };
    let keeps = Rc::clone(&found);
    run(&life, &mut port, &mut vec![Box::pin(worker.audit(keeps))], || false)?;
    run(&life, &mut port, &mut vec![Box::pin(life.end())], || false)?;
    match found.take() {
        Some(verified) => Ok((log.into_inner().finish(), verified)),
        None => Err("the tree was not verified".to_owned()),
    }
}

/// A worker, which does one operation after the other.
struct Worker<'p, 'l> {
    life: Rc<Life<'p>>,
    log: &'l RefCell<Log<'p>>,
    random: Random,
    /// Operations that are left for this thread.
    budget: Rc<Cell<u64>>,
    failed: Rc<Cell<u64>>,
}

impl Worker<'_, '_> {
    async fn run(mut self) {
        /// Operations of a thread between a time of growth and one of decay.
        const ERA: u64 = 500;
        while let Some(left) = self.budget.get().checked_sub(1) {
            self.budget.set(left);
            let done = match self.random.random_range(0..20) {
                0 => {
                    let (one, other) = (self.draw_key(), self.draw_key());
                    let order = if self.random.random_bool(0.5) { Order::Forward } else { Order::Backward };
                    // Some are long, most are not.
                    let high =
                        if left.is_multiple_of(64) { one.max(other) } else { one.saturating_add(key_of(20)) };
                    self.scan(one.min(high), high, order).await
                }
                1..8 => self.get().await,
                what => self.write(what, left / ERA).await,
            };
            match done {
                Ok(()) => self.life.answers.set(self.life.answers.get() + 1),
                // It says why, and is no answer: whether a write was carried out is not known.
                Err(_) => self.failed.set(self.failed.get() + 1),
            }
        }
    }

    /// Draws a key. Half of all operations are about a few keys, which lie side by side.
    fn draw_key(&mut self) -> u64 {
        const HOT: u64 = 16;
        let keys = self.life.place.options.keys;
        let most = if self.random.random_bool(0.5) { keys.min(HOT) } else { keys };
        key_of(self.random.random_range(0..most))
    }

    async fn get(&mut self) -> Result<(), OperationError> {
        let key = self.draw_key();
        let asked = self.log.borrow_mut().ask(&self.life.name, key, Call::Get);
        let found = self.life.client.lookup(key, Start::Cached).await.result?;
        let word = found.map(|bytes| word_of(&bytes));
        self.log.borrow_mut().answer(asked, Answer::Found(word));
        Ok(())
    }

    async fn upsert(&mut self, key: u64) -> Result<(), OperationError> {
        let word = self.next_word();
        self.mutate(key, Call::Upsert(word), Change::Upsert(&word.to_le_bytes())).await
    }

    fn next_word(&self) -> u64 {
        self.life.place.words.fetch_add(1, Ordering::Relaxed) + 1
    }

    async fn write(&mut self, what: u32, era: u64) -> Result<(), OperationError> {
        let key = self.draw_key();
        let word = self.next_word();
        let bytes = word.to_le_bytes();
        let (call, mutation) = match what {
            8..10 => (Call::Update(word), Change::Update(&bytes)),
            10..12 => (Call::Upsert(word), Change::Upsert(&bytes)),
            12 | 13 => (Call::Insert(word), Change::Insert(&bytes)),
            14 | 15 => (Call::Delete, Change::Delete),
            _ if era.is_multiple_of(2) => (Call::Insert(word), Change::Insert(&bytes)),
            _ => (Call::Delete, Change::Delete),
        };
        self.mutate(key, call, mutation).await
    }

    async fn mutate(&mut self, key: u64, call: Call, mutation: Change<'_>) -> Result<(), OperationError> {
        let asked = self.log.borrow_mut().ask(&self.life.name, key, call);
        let change = self.life.client.pool().mutate(key, mutation, Start::Cached).await;
        self.log.borrow_mut().answer(asked, Answer::of(change.result?));
        Ok(())
    }

    async fn scan(&mut self, low: u64, high: u64, order: Order) -> Result<(), OperationError> {
        let asked = self.log.borrow_mut().ask_scan(&self.life.name, low..=high);
        let options = ScanOptions { order, start: Start::Cached, ..ScanOptions::default() };
        let mut scan = self.life.client.pool().scan(KeyRange::of(low..=high), options);
        let mut pairs = Vec::new();
        while let Some(pair) = scan.next().await {
            let (key, value) = pair?;
            pairs.push((key, word_of(&value)));
        }
        self.log.borrow_mut().answer_scan(asked, low..=high, pairs);
        Ok(())
    }

    async fn audit(mut self, found: Rc<Cell<Option<Verified>>>) {
        if let Err(why) = self.try_audit(&found).await {
            self.life.fail(why);
        }
    }

    async fn try_audit(&mut self, found: &Cell<Option<Verified>>) -> Result<(), String> {
        let place = self.life.place;
        while !self.life.has_session() {
            self.life.client.pool().reactor().sleep(place.options.lease).await;
        }
        loop {
            let all = place.handle.statistics().await.map_err(|gone| gone.to_string())?;
            // The auditor has one.
            if all.contains(&("sessions".to_owned(), 1)) {
                break;
            }
            self.life.client.pool().reactor().sleep(place.options.lease).await;
        }
        self.look(found).await?;
        // No dead client holds a lock any more, and unfinished splits and merges block no operation.
        for number in 0..place.options.keys {
            loop {
                let done = self.upsert(key_of(number)).await;
                if !self.is_to_be_repeated(done)? {
                    break;
                }
            }
        }
        self.look(found).await
    }

    /// Scans all keys, and verifies the tree.
    async fn look(&mut self, found: &Cell<Option<Verified>>) -> Result<(), String> {
        loop {
            let done = self.scan(0, u64::MAX, Order::Forward).await;
            if !self.is_to_be_repeated(done)? {
                break;
            }
        }
        loop {
            match self.life.client.verify().await {
                Ok(verified) => {
                    found.set(Some(verified));
                    return Ok(());
                }
                Err(VerifyError::Unreadable { error, .. }) => drop(self.is_to_be_repeated(Err(error))?),
                Err(damage) => return Err(damage.to_string()),
            }
        }
    }

    /// Whether the auditor does something again: it has lost its own session, or a connection. On a machine with more work than processors no
    /// thread can promise to renew a session in time. A write that may or may not have been carried out stays in the history as such.
    ///
    /// # Errors
    /// Any other one: no client is left that could be its cause.
    fn is_to_be_repeated(&self, done: Result<(), OperationError>) -> Result<bool, String> {
        use OperationError::{Common, ConnectionBroke, Unknown};
        match done {
            Ok(()) => {
                self.life.answers.set(self.life.answers.get() + 1);
                Ok(false)
            }
            Err(
                Unknown { .. } | ConnectionBroke { .. } | Common { error: CommonError::Abandoned(_), .. },
            ) => Ok(true),
            Err(error) => Err(format!("in the end: {error}")),
        }
    }
}

fn word_of(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
