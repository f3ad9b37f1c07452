//! Operations of clients, each with its place in the history.

use std::cell::{Cell, RefCell};

use fatbtree_remote_memory::{Change, CommonError, KeyRange, Order, Portion, Structure};

use crate::history::{Answer, Call, History};
use crate::world::Machine;

/// Errors of a structure, as far as all structures have them in common.
pub(crate) trait InCommon {
    /// The error, if other structures have it, too.
    fn in_common(&self) -> Option<&CommonError>;
}

/// An operation of one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Act {
    Get,
    Insert,
    Update,
    Upsert,
    Delete,
    /// Reads, and swaps what it has read.
    Swap,
    /// Finds several keys: see [`Recorder::scan`] and [`Recorder::export`].
    Scan,
}

/// Operations by their results.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counts {
    /// Operations with an answer, the parts of scans among them.
    pub(crate) answered: u64,
    /// Changes of which the client does not know whether they were made.
    pub(crate) unknown: u64,
    /// Operations that gave up.
    pub(crate) refused: u64,
    /// Changes for which there was no memory.
    pub(crate) short: u64,
    /// Lookups in one round trip.
    pub(crate) hits: u64,
    /// Scans and exports that came to their end.
    pub(crate) scans: u64,
    /// Compare-and-swaps that applied.
    pub(crate) swaps: u64,
}

/// What all tasks of a seed share: the history, the words that values are made of, and what was wrong.
pub(crate) struct Recorder {
    history: History,
    words: Cell<u64>,
    wrong: RefCell<Option<String>>,
    counts: Cell<Counts>,
    /// Bytes of the value of a word, 8 or more.
    length: Box<dyn Fn(u64) -> usize>,
    /// Whether memory may be used up.
    is_scarce: bool,
}

impl Recorder {
    pub(crate) fn new(is_scarce: bool, length: impl Fn(u64) -> usize + 'static) -> Self {
        Self {
            history: History::default(),
            words: Cell::default(),
            wrong: RefCell::default(),
            counts: Cell::default(),
            length: Box::new(length),
            is_scarce,
        }
    }

    /// Notes what must never be.
    pub(crate) fn wrong(&self, what: String) {
        self.wrong.borrow_mut().get_or_insert(what);
    }

    /// Says what was wrong first.
    pub(crate) fn nothing_wrong(&self) -> Result<(), String> {
        self.wrong.take().map_or(Ok(()), Err)
    }

    /// Operations by their results; answers are counted when the history is checked.
    pub(crate) fn counts(&self) -> Counts {
        self.counts.get()
    }

    fn count(&self, one: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.get();
        one(&mut counts);
        self.counts.set(counts);
    }

    /// The history of all clients has an order.
    pub(crate) fn linearizable(&self) -> Result<(), String> {
        let checked = self.history.check().map_err(|violation| violation.to_string())?;
        self.count(|counts| {
            (counts.answered, counts.unknown) = (checked.answered as u64, checked.unknown as u64);
        });
        Ok(())
    }

    /// A value of its own: its word, again and again.
    fn draw_value(&self) -> (u64, Vec<u8>) {
        let word = self.words.get() + 1;
        self.words.set(word);
        (word, word.to_le_bytes().into_iter().cycle().take((self.length)(word)).collect())
    }

    /// The word of a value that was read.
    fn open(&self, key: u64, value: &[u8]) -> Option<u64> {
        let word = value.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))?;
        let is_whole = value.chunks(8).all(|chunk| *chunk == word.to_le_bytes()[..chunk.len()]);
        if !is_whole || word > self.words.get() {
            self.wrong(format!("key {key:#x}: a value of {} bytes that no client wrote", value.len()));
        }
        Some(word)
    }

    fn opened(&self, pairs: impl IntoIterator<Item = (u64, impl AsRef<[u8]>)>) -> Vec<(u64, u64)> {
        let open = |(key, value): (u64, _)| Some((key, self.open(key, AsRef::as_ref(&value))?));
        pairs.into_iter().filter_map(open).collect()
    }

    /// Carries out an operation of one key. Returns why there is no answer.
    pub(crate) async fn operate<S: Structure<Error: InCommon>>(
        &self,
        machine: &Machine,
        structure: &S,
        key: u64,
        act: Act,
    ) -> Result<(), S::Error> {
        let (name, now) = (machine.name(), || machine.now());
        let mut read = None;
        if let Act::Get | Act::Swap = act {
            let asked = self.history.ask(&name, now(), key, Call::Get);
            let fatbtree_remote_memory::Answer { result, round_trips } = structure.get(key).await;
            let found = result?;
            self.count(|counts| counts.hits += u64::from(round_trips == 1));
            read = found.and_then(|value| {
                let value = value.as_ref();
                Some((self.open(key, value)?, value.to_vec()))
            });
            self.history.answer(asked, now(), Answer::Found(read.as_ref().map(|(word, _)| *word)));
            if act == Act::Get || read.is_none() {
                return Ok(());
            }
        }
        let (word, value) = self.draw_value();
        let (call, change) = match act {
            Act::Swap if let Some((seen, expected)) = &read => (
                Call::CompareAndSet { expected: *seen, new: word },
                Change::CompareAndSwap { expected, value: &value },
            ),
            Act::Insert => (Call::Insert(word), Change::Insert(&value)),
            Act::Update => (Call::Update(word), Change::Update(&value)),
            Act::Upsert => (Call::Upsert(word), Change::Upsert(&value)),
            Act::Delete | Act::Get | Act::Swap | Act::Scan => (Call::Delete, Change::Delete),
        };
        let asked = self.history.ask(&name, now(), key, call);
        match structure.change(key, change).await.result {
            Ok(applied) => {
                self.count(|counts| counts.swaps += u64::from(applied && act == Act::Swap));
                self.history.answer(asked, now(), Answer::of(applied));
                Ok(())
            }
            Err(error) if S::is_unknown(&error) => Err(error),
            Err(error) => {
                self.history.withdraw(asked);
                match error.in_common() {
                    Some(CommonError::NoMemory { .. }) if self.is_scarce => {
                        self.count(|counts| counts.short += 1);
                    }
                    _ => self.refuse(&error, || format!("key {key:#x}")),
                }
                Err(error)
            }
        }
    }

    /// Counts an operation that ends with an error. Nothing is wrong if it has given up.
    fn refuse<E: InCommon + ToString>(&self, error: &E, what: impl FnOnce() -> String) {
        self.count(|counts| counts.refused += 1);
        if !matches!(error.in_common(), Some(CommonError::GaveUp { .. })) {
            self.wrong(format!("{}: {}", what(), error.to_string()));
        }
    }

    /// Carries out one of the last operations: it must succeed. A connection may break once more, because a session has just ended; and
    /// where memory has an end, nothing may be put.
    pub(crate) async fn must<S: Structure<Error: InCommon>>(
        &self,
        machine: &Machine,
        structure: &S,
        key: u64,
        act: Act,
    ) -> Result<(), String> {
        let mut result = self.operate(machine, structure, key, act).await;
        if result.as_ref().is_err_and(S::is_unknown) {
            result = self.operate(machine, structure, key, act).await;
        }
        let is_short = |error: &S::Error| matches!(error.in_common(), Some(CommonError::NoMemory { .. }));
        match result {
            Err(error) if self.is_scarce && act == Act::Upsert && is_short(&error) => Ok(()),
            result => result.map_err(|error| format!("key {key:#x}: {error}")),
        }
    }

    /// Scans up to `most` keys from one on, of those up to `last`, or from `last` down.
    pub(crate) async fn scan<S: Structure>(
        &self,
        machine: &Machine,
        structure: &S,
        (from, last): (u64, u64),
        most: usize,
        order: Order,
    ) -> Result<usize, S::Error> {
        let asked = self.history.ask_scan(&machine.name(), machine.now(), from..=last);
        let range = KeyRange::of(from..=last);
        let is_backward = order == Order::Backward;
        let found = structure.scan(range, order, most).await.result?;
        let count = found.len();
        let mut pairs = self.opened(found);
        if is_backward {
            pairs.reverse();
        }
        if !pairs.is_sorted_by(|one, other| one.0 < other.0) {
            self.wrong(format!("a scan from {from:#x} is out of order: {pairs:x?}, {order:?}"));
        }
        let is_cut = count >= most;
        let seen = match is_backward {
            true => pairs.first().filter(|_| is_cut).map_or(from, |(key, _)| *key)..=last,
            false => from..=pairs.last().filter(|_| is_cut).map_or(last, |(key, _)| *key),
        };
        self.history.answer_scan(asked, machine.now(), seen, pairs);
        self.count(|counts| counts.scans += 1);
        Ok(count)
    }

    /// Exports all pairs, `most` at a time. It is explained as a scan of all keys: each is found, or not, as at some moment of it.
    pub(crate) async fn export<S: Structure<Error: InCommon>>(
        &self,
        machine: &Machine,
        structure: &S,
        most: usize,
    ) -> Result<(), S::Error> {
        let asked = self.history.ask_scan(&machine.name(), machine.now(), 0..=u64::MAX);
        let (mut found, mut next) = (Vec::new(), Some(S::Cursor::default()));
        while let Some(cursor) = next {
            let exported = structure.export(cursor, most).await.result;
            let Portion { pairs, rest } =
                exported.inspect_err(|error| self.refuse(error, || "export".to_owned()))?;
            found.extend(self.opened(pairs));
            next = rest;
        }
        found.sort_unstable();
        self.history.answer_scan(asked, machine.now(), 0..=u64::MAX, found);
        self.count(|counts| counts.scans += 1);
        Ok(())
    }
}
