//! What clients of a seed do: SmallBank, and notes that come, change and go.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;

use fatbtree_dtx::workloads::smallbank::{
    ACCOUNT_BYTES, Account, CHECKING, Customers, INITIAL, Operation, SAVINGS,
};
use fatbtree_dtx::{BadShape, DtxError, Shape, TableShape, Tables, Transaction, Verdict, Want};
use fatbtree_remote_memory::CommonError;
use fatbtree_verbs::time::{Duration, Instant};
use rand::RngExt as _;

use super::Aim;
use crate::history::{Ending, Stamp, TableKey, Transactions};
use crate::world::{Machine, Random, SimDevice, random};

/// Table of notes: each key is put once, may be changed, and taken away.
pub(super) const NOTES: u8 = 2;

/// Bytes of a note: several lines.
const NOTE_BYTES: u16 = 150;

/// Tables for so many customers, and notes.
pub(super) fn shape(customers: u32, servers: u32, backups: u8) -> Result<Shape, BadShape> {
    let accounts = TableShape { nodes: customers.div_ceil(3), value_bytes: ACCOUNT_BYTES, slots: 8 };
    let notes = TableShape { nodes: 3, value_bytes: NOTE_BYTES, slots: 12 };
    let mut shape = Shape::new(&[accounts, accounts, notes], servers, backups)?;
    // Few: those of dead clients are needed again.
    shape.seats = 16;
    Ok(shape)
}

/// Everything that tasks of a seed share.
pub(super) struct Setting {
    pub(super) history: Transactions,
    pub(super) customers: Customers,
    pub(super) aim: Aim,
    /// Keys of notes that were given out.
    pub(super) notes: Cell<u64>,
    /// Money that each transaction makes, by stamp.
    pub(super) made: RefCell<Vec<(Stamp, i64)>>,
    wrong: RefCell<Option<String>>,
    pub(super) refused: Cell<u64>,
    pub(super) unknown: Cell<u64>,
}

impl Setting {
    pub(super) fn new(customers: u64, aim: Aim) -> Self {
        Self {
            history: Transactions::default(),
            customers: Customers { count: customers, hot: customers.min(2), hot_percent: 40 },
            aim,
            notes: Cell::new(0),
            made: RefCell::default(),
            wrong: RefCell::default(),
            refused: Cell::new(0),
            unknown: Cell::new(0),
        }
    }

    pub(super) fn wrong(&self, what: String) {
        self.wrong.borrow_mut().get_or_insert(what);
    }

    pub(super) fn take_wrong(&self) -> Option<String> {
        self.wrong.take()
    }

    /// The stamp in a note.
    pub(super) fn open_note(&self, key: u64, value: &[u8]) -> Stamp {
        let stamp = value.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        if !value.chunks(8).all(|chunk| *chunk == stamp.to_le_bytes()[..chunk.len()]) {
            self.wrong(format!("note {key}: a mixture"));
        }
        Stamp(stamp)
    }
}

fn note(stamp: Stamp) -> [u8; NOTE_BYTES as usize] {
    let word = stamp.0.to_le_bytes();
    std::array::from_fn(|at| word[at % 8])
}

/// A transaction of the campaign.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Bank(Operation),
    /// Reads one account and changes another one's stamp.
    Skew(u64, u64),
    /// Reads an account, and puts a note.
    Put {
        note: u64,
        account: u64,
    },
    /// Looks for a note, and changes the stamp of an account.
    Look {
        note: u64,
        account: u64,
    },
    /// Reads two notes.
    Read(u64, u64),
    /// Changes a note that is there.
    Change(u64),
    /// Takes a note away.
    Delete(u64),
    /// Several fetches of accounts, some of them wanted twice, read and then locked, or locked and not changed.
    Steps(u64),
}

/// A client in one life.
#[derive(Clone)]
pub(super) struct Living {
    pub(super) machine: Machine,
    pub(super) tables: Rc<Tables<SimDevice>>,
    pub(super) setting: Rc<Setting>,
}

impl Living {
    pub(super) async fn work(self, mut random: Random) {
        loop {
            let deed = self.draw(&mut random);
            if random.random_bool(0.08) {
                let limit = Duration::from_micros(random.random_range(1..60));
                self.within(limit, self.run(deed)).await;
            } else {
                drop(self.run(deed).await);
            }
        }
    }

    /// Runs something until a time limit, and drops it then: nothing is known of its outcome.
    async fn within<T>(&self, limit: Duration, work: impl Future<Output = T>) {
        let (mut work, mut limit) = (pin!(work), pin!(self.machine.sleep(limit)));
        poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Ready(_) => Poll::Ready(()),
            Poll::Pending => limit.as_mut().poll(context).map(drop),
        })
        .await;
    }

    fn draw(&self, random: &mut Random) -> Deed {
        let Setting { customers, notes, aim, .. } = &*self.setting;
        let mut below = |most: u64| random.random_range(0..most);
        let kind = match aim {
            Aim::All => below(13),
            Aim::Steps => 10,
            Aim::Notes => 6 + below(4),
            Aim::Absence => 5 + below(3),
            Aim::Accounts => below(5),
        };
        let account = below(customers.count);
        let known = notes.get().max(1);
        // Notes that were put last, and those that will be put next.
        let near = (known + 1).saturating_sub(below(5));
        match kind {
            10.. => Deed::Steps(below(u64::MAX)),
            0..4 => Deed::Bank(customers.operation(&mut below)),
            4 => Deed::Skew(account, below(customers.count)),
            5 | 6 if *aim != Aim::Notes || known < 4 => {
                notes.set(notes.get() + 1);
                Deed::Put { note: notes.get(), account }
            }
            5 | 7 if *aim != Aim::Notes => Deed::Look { note: near, account },
            6..9 if *aim == Aim::Notes && below(2) == 0 => Deed::Change(1 + below(known)),
            9 if *aim != Aim::Notes => Deed::Delete(near),
            8 if *aim != Aim::Notes => Deed::Change(near),
            _ => Deed::Read(1 + below(known), near),
        }
    }

    /// Runs a transaction, and notes what it has seen. Returns why it has not committed.
    async fn run(&self, deed: Deed) -> Result<(), DtxError> {
        let Setting { history, made, refused, unknown, .. } = &*self.setting;
        let (name, last) = (self.machine.name(), Cell::new(None));
        let answer = self.tables.run(async |tx| {
            if let Some(before) = last.take() {
                history.end(before, self.machine.now(), Ending::Aborted);
            }
            let stamp = history.begin(&name, self.machine.now());
            last.set(Some(stamp));
            let (verdict, sum) = self.attempt(tx, deed, stamp).await?;
            made.borrow_mut().push((stamp, sum));
            Ok(verdict)
        });
        let answer = answer.await;
        let ending = match &answer.result {
            Ok(()) => Ending::Committed,
            Err(DtxError::Unknown) => {
                unknown.set(unknown.get() + 1);
                Ending::Unknown
            }
            Err(error) => {
                refused.set(refused.get() + 1);
                if !matches!(
                    error,
                    DtxError::Common(CommonError::GaveUp { .. })
                        | DtxError::Full { .. }
                        | DtxError::NoSeat(_)
                ) {
                    self.setting.wrong(format!("{deed:?}: {error}"));
                }
                Ending::Aborted
            }
        };
        if let Some(stamp) = last.get() {
            history.end(stamp, self.machine.now(), ending);
        }
        answer.result
    }

    /// One attempt: what is read and written goes into the history. Returns the money that it makes, too.
    async fn attempt(
        &self,
        tx: &mut Transaction<'_, SimDevice>,
        deed: Deed,
        stamp: Stamp,
    ) -> Result<(Verdict<()>, i64), DtxError> {
        let Setting { history, .. } = &*self.setting;
        let began = self.machine.now();
        let account = |tx: &Transaction<'_, SimDevice>, item, want: Want| {
            let found = tx.value(item).and_then(Account::from_bytes);
            self.see(stamp, began, (want.table, want.key), found.map(|account| Stamp(account.stamp)));
            found
        };
        let see_note = |tx: &Transaction<'_, SimDevice>, item, key: u64| {
            let found = tx.value(item).map(|value| self.setting.open_note(key, value));
            self.see(stamp, began, (NOTES, key), found);
            found
        };
        let mut sum = 0;
        match deed {
            Deed::Bank(operation) => {
                let see = |want: Want, before: Account, after: Option<Account>| {
                    self.see(stamp, began, (want.table, want.key), Some(Stamp(before.stamp)));
                    if let Some(after) = after {
                        history.write(stamp, (want.table, want.key), true);
                        sum += after.money - before.money;
                    }
                };
                operation.carry_out(tx, stamp.0, see).await?;
            }
            Deed::Skew(one, other) => {
                let wants = [Want::read(CHECKING, one), Want::write(SAVINGS, other)];
                let [read, written] = tx.fetch(wants).await?;
                account(tx, read, wants[0]);
                self.stamp(tx, written, account(tx, written, wants[1]), wants[1], stamp)?;
            }
            Deed::Put { note: key, account: of } => {
                let wants = [Want::write(NOTES, key), Want::read(CHECKING, of)];
                let [new, read] = tx.fetch(wants).await?;
                account(tx, read, wants[1]);
                if see_note(tx, new, key).is_none() {
                    tx.put(new, &note(stamp))?;
                    history.write(stamp, (NOTES, key), true);
                }
            }
            Deed::Look { note: key, account: of } => {
                let wants = [Want::read(NOTES, key), Want::write(CHECKING, of)];
                let [read, written] = tx.fetch(wants).await?;
                see_note(tx, read, key);
                self.stamp(tx, written, account(tx, written, wants[1]), wants[1], stamp)?;
            }
            Deed::Read(one, other) => {
                let [a, b] = tx.fetch([Want::read(NOTES, one), Want::read(NOTES, other)]).await?;
                see_note(tx, a, one);
                if one != other {
                    see_note(tx, b, other);
                }
            }
            Deed::Change(key) => {
                let [item] = tx.fetch([Want::write(NOTES, key)]).await?;
                if see_note(tx, item, key).is_some() {
                    tx.put(item, &note(stamp))?;
                    history.write(stamp, (NOTES, key), true);
                }
            }
            Deed::Delete(key) => {
                let [item] = tx.fetch([Want::write(NOTES, key)]).await?;
                if see_note(tx, item, key).is_some() {
                    tx.remove(item)?;
                    history.write(stamp, (NOTES, key), false);
                }
            }
            Deed::Steps(seed) => return Ok((self.steps(tx, seed, stamp).await?, 0)),
        }
        Ok((Verdict::Commit(()), sum))
    }

    /// Several fetches, of two accounts each. In the end it may be aborted: then it has only read.
    async fn steps(
        &self,
        tx: &mut Transaction<'_, SimDevice>,
        seed: u64,
        stamp: Stamp,
    ) -> Result<Verdict<()>, DtxError> {
        let draw = &mut random(seed, 77);
        let aborts = draw.random_bool(0.15);
        let mut known = BTreeMap::<TableKey, Stamp>::new();
        for _ in 0..draw.random_range(1..4) {
            let began = self.machine.now();
            let wants = [(); 2].map(|()| {
                let key = draw.random_range(0..self.setting.customers.count);
                Want { table: draw.random_range(0..2), key, writes: draw.random_bool(0.5) }
            });
            let items = tx.fetch(wants).await?;
            for (want, item) in wants.into_iter().zip(items) {
                let key = (want.table, want.key);
                let Some(found) = tx.value(item).and_then(Account::from_bytes) else {
                    self.setting.wrong(format!("account {key:?} is gone"));
                    continue;
                };
                let present = *known.entry(key).or_insert_with(|| {
                    self.see(stamp, began, key, Some(Stamp(found.stamp)));
                    Stamp(found.stamp)
                });
                if present != Stamp(found.stamp) {
                    self.setting.wrong(format!("account {key:?} has changed under a transaction"));
                }
                if want.writes && present != stamp && !aborts && draw.random_bool(0.6) {
                    self.stamp(tx, item, Some(found), want, stamp)?;
                    known.insert(key, stamp);
                } else if want.writes && aborts {
                    tx.put(item, &[0; ACCOUNT_BYTES as usize])?;
                    known.insert(key, Stamp(0));
                }
            }
        }
        if aborts {
            return Ok(Verdict::Abort(()));
        }
        Ok(Verdict::Commit(()))
    }

    /// Notes what a transaction has read. What becomes of the transaction or not, each item was as it was read at some moment meanwhile.
    fn see(&self, stamp: Stamp, began: Instant, key: TableKey, found: Option<Stamp>) {
        let Setting { history, .. } = &*self.setting;
        history.read(stamp, key, found);
        let alone = history.begin(&self.machine.name(), began);
        history.read(alone, key, found);
        history.end(alone, self.machine.now(), Ending::Committed);
    }

    /// Changes an account's stamp, and leaves its money.
    fn stamp(
        &self,
        tx: &mut Transaction<'_, SimDevice>,
        item: fatbtree_dtx::Item,
        found: Option<Account>,
        want: Want,
        stamp: Stamp,
    ) -> Result<(), DtxError> {
        let Some(found) = found else { return Ok(()) };
        tx.put(item, &Account { stamp: stamp.0, ..found }.to_bytes())?;
        self.setting.history.write(stamp, (want.table, want.key), true);
        Ok(())
    }

    /// Puts the accounts, before anything else happens.
    pub(super) async fn open_bank(self) -> Result<(), DtxError> {
        for customer in 0..self.setting.customers.count {
            let mut tx = self.tables.begin().await?;
            let account = Account { money: INITIAL, stamp: 0 };
            for table in [SAVINGS, CHECKING] {
                tx.insert(table, customer, &account.to_bytes()).await?;
            }
            tx.commit().await?;
        }
        Ok(())
    }

    /// Last operations: each must succeed. A connection may break once more, because a session has just ended.
    pub(super) async fn end(self, number: u64) -> Result<(), String> {
        let customers = (0..self.setting.customers.count).filter(|customer| customer % 4 == number);
        let accounts = customers.flat_map(|of| {
            let skew = |one, other| [Deed::Skew(one, other), Deed::Look { note: 1, account: other }];
            skew(of, of)
        });
        let notes = (1..=self.setting.notes.get() + 2).filter(|note| note % 4 == number);
        for deed in accounts.chain(notes.map(|note| Deed::Read(note, note))).collect::<Vec<_>>() {
            let mut result = self.run(deed).await;
            if let Err(DtxError::Unknown | DtxError::Common(CommonError::GaveUp { .. })) = result {
                result = self.run(deed).await;
            }
            result.map_err(|error| format!("{deed:?}: {error}"))?;
        }
        Ok(())
    }
}
