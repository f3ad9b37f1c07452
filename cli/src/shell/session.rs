//! Commands on a structure, wherever it is, and their answers.

use std::cell::RefCell;
use std::io::{self, Write};

use anyhow::{Result, anyhow, bail};
use bytes::Bytes;
use fatbtree_blink::Keys;
use fatbtree_remote_memory::{Answer, BytesRange, Change, Order, Portion, Structure};
use fatbtree_workload::byte_keys::{ByteKeys, KeyShape};
use futures_buffered::join_all;

use super::command::{Command, Key, Range, show};
use super::place::Place;
use super::transaction::Open;

/// Why a structure answers operations on keys of bytes.
const HAS_BYTES: &str = "lines have keys of bytes where the structure has them";

/// Pairs that a walk asks for before it goes on.
const PAIRS_AT_ONCE: usize = 256;

/// Reason for which a command was not carried out.
pub(super) enum Trouble {
    /// The answer could not be written: the shell ends.
    Output(io::Error),
    /// The shell goes on.
    Command(anyhow::Error),
}

impl From<io::Error> for Trouble {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl From<anyhow::Error> for Trouble {
    fn from(error: anyhow::Error) -> Self {
        Self::Command(error)
    }
}

/// A structure and what it takes to print answers.
pub(super) struct Shell<P: Place, W> {
    place: P,
    trips: bool,
    /// Place for answers.
    pub(super) out: W,
    /// Operations of all commands so far.
    operations: u64,
    round_trips: u64,
    transaction: Option<Open<ErrorOf<P>>>,
}

/// Pairs of a scan, what follows them, and what they took.
struct Found {
    pairs: Vec<(Key, Bytes)>,
    rest: Option<Range>,
    round_trips: u32,
}

/// Errors of a place's structure.
type ErrorOf<P> = <<P as Place>::Structure as Structure>::Error;

impl<P: Place, W: Write> Shell<P, W> {
    pub(super) fn new(place: P, trips: bool, out: W) -> Self {
        Self { place, trips, out, operations: 0, round_trips: 0, transaction: None }
    }

    pub(super) fn into_place(self) -> P {
        self.place
    }

    /// Kind of the structure's keys.
    pub(super) fn keys(&self) -> Keys {
        self.place.keys()
    }

    /// Puts the keys 1 to `count`, or `user:1` to `user:count`. Returns the round trips.
    pub(super) fn load(&mut self, count: u64) -> Result<u64> {
        let (kind, users) = (self.keys(), ByteKeys::new(KeyShape::User, 0));
        let (structure, value) = (self.place.structure(), self.place.loaded_value());
        let keys = RefCell::new(1..count.saturating_add(1));
        let next = || keys.borrow_mut().next();
        let puts = async || {
            let mut round_trips = 0;
            while let Some(key) = next() {
                let value = value(key);
                let change = Change::Upsert(&value);
                let answer = match kind {
                    Keys::Numbers => structure.change(key, change).await,
                    Keys::Bytes => structure.change_bytes(&users.key(key), change).await.expect(HAS_BYTES),
                };
                if let Err(error) = answer.result {
                    // The others put no further key.
                    keys.replace(0..0);
                    return Err(error);
                }
                round_trips += u64::from(answer.round_trips);
            }
            Ok(round_trips)
        };
        let all = self.place.run(join_all((0..P::PUTS_AT_ONCE).map(|_| puts())))?;
        Ok(all.into_iter().sum::<Result<u64, ErrorOf<P>>>()?)
    }

    /// Writes an answer and what it has cost.
    fn answer(&mut self, answer: &str, round_trips: impl Into<u64>) -> Result<(), Trouble> {
        writeln!(self.out, "{answer}")?;
        self.cost(round_trips.into())
    }

    fn cost(&mut self, round_trips: u64) -> Result<(), Trouble> {
        self.operations += 1;
        self.round_trips += round_trips;
        if self.trips {
            let s = if round_trips == 1 { "" } else { "s" };
            writeln!(self.out, "({round_trips} round trip{s})")?;
        }
        Ok(())
    }

    /// Writes the answer of a command that has read the whole structure, many blocks at a time, and its READs since there were `before`.
    fn walked(&mut self, answer: &str, before: u64) -> Result<(), Trouble> {
        writeln!(self.out, "{answer}")?;
        if self.trips {
            writeln!(self.out, "({} reads)", self.place.reads() - before)?;
        }
        Ok(())
    }

    /// Carries out a change. The two `answers` are for one that was applied, and for one that was not.
    fn mutate(&mut self, key: &Key, change: Change<'_>, answers: [&str; 2]) -> Result<(), Trouble> {
        let structure = self.place.structure();
        let Answer { result, round_trips } = match key {
            Key::Number(key) => self.place.run(structure.change(*key, change))?,
            Key::Bytes(key) => self.place.run(structure.change_bytes(key, change))?.expect(HAS_BYTES),
        };
        let applied = result.map_err(anyhow::Error::from)?;
        self.answer(answers[usize::from(!applied)], round_trips)
    }

    /// Reads the next pairs of a range, about `most`.
    fn pairs(&mut self, keys: Range, most: usize, order: Order) -> Result<Found> {
        if P::Structure::LACKS.contains(&"scan") {
            bail!(
                "a {} has no order of keys: `fatbtree scan` without a range prints all pairs",
                P::Structure::NAME
            );
        }
        let structure = self.place.structure();
        match keys {
            Range::Numbers(keys) => {
                let Answer { result, round_trips } = self.place.run(structure.scan(keys, order, most))?;
                let Portion { pairs, rest } = Portion::of(result?, most, keys, order);
                let pairs = pairs.into_iter().map(|(key, value)| (Key::Number(key), value));
                Ok(Found { pairs: pairs.collect(), rest: rest.map(Range::Numbers), round_trips })
            }
            Range::Bytes(keys) => {
                let scanned = self.place.run(structure.scan_bytes(keys.clone(), order, most))?;
                let Answer { result, round_trips } = scanned.expect(HAS_BYTES);
                let Portion { pairs, rest } = Portion::of_bytes(result?, most, keys, order);
                let pairs = pairs.into_iter().map(|(key, value)| (Key::Bytes(key.into()), value));
                Ok(Found { pairs: pairs.collect(), rest: rest.map(Range::Bytes), round_trips })
            }
        }
    }

    /// Counts all pairs.
    fn count(&mut self) -> Result<u64> {
        let mut found = 0;
        if self.keys() == Keys::Bytes {
            let mut left = Some(Range::Bytes(BytesRange::all()));
            while let Some(keys) = left {
                let Found { pairs, rest, .. } = self.pairs(keys, PAIRS_AT_ONCE, Order::Forward)?;
                (left, found) = (rest, found + pairs.len() as u64);
            }
            return Ok(found);
        }
        let mut next = Some(Default::default());
        while let Some(cursor) = next {
            let structure = self.place.structure();
            let exported = self.place.run(structure.export(cursor, PAIRS_AT_ONCE))?;
            let Portion { pairs, rest } = exported.result?;
            (next, found) = (rest, found + pairs.len() as u64);
        }
        Ok(found)
    }

    /// Prints the pairs of a range, some at a time: a long scan is printed as it goes.
    fn scan(&mut self, keys: Range, limit: u64, order: Order) -> Result<(), Trouble> {
        let (mut left, mut found, mut all) = (Some(keys), 0, 0);
        while found < limit
            && let Some(keys) = left.take()
        {
            let most = (limit - found).min(PAIRS_AT_ONCE as u64) as usize;
            let Found { pairs, rest, round_trips } = self.pairs(keys, most, order)?;
            all += u64::from(round_trips);
            (left, found) = (rest, found + pairs.len() as u64);
            for (key, value) in &pairs {
                writeln!(self.out, "{} {}", key.show(), show(value))?;
            }
        }
        self.cost(all)
    }

    /// Carries out a command and writes its answer.
    pub(super) fn carry_out(&mut self, command: Command) -> Result<(), Trouble> {
        let command = match self.in_transaction(command)? {
            None => return Ok(()),
            Some(command) => command,
        };
        match command {
            Command::Get(key) => {
                let structure = self.place.structure();
                let Answer { result, round_trips } = match &key {
                    Key::Number(key) => self.place.run(structure.get(*key))?,
                    Key::Bytes(key) => self.place.run(structure.get_bytes(key))?.expect(HAS_BYTES),
                };
                let answer = result.map_err(anyhow::Error::from)?.map(|value| show(value.as_ref()));
                self.answer(answer.as_deref().unwrap_or("not there"), round_trips)
            }
            Command::Put(key, value) => self.mutate(&key, Change::Upsert(&value), ["ok", "ok"]),
            Command::Insert(key, value) => {
                self.mutate(&key, Change::Insert(&value), ["inserted", "there already"])
            }
            Command::Update(key, value) => {
                self.mutate(&key, Change::Update(&value), ["updated", "not there"])
            }
            Command::Delete(key) => self.mutate(&key, Change::Delete, ["deleted", "not there"]),
            Command::Load(count) => {
                let round_trips = self.load(count)?;
                self.answer("ok", round_trips)
            }
            Command::Verify => {
                let before = self.place.reads();
                let found = self.place.verify()?;
                self.walked(&found, before)
            }
            Command::Stats => {
                writeln!(
                    self.out,
                    "gets, changes, scans and loads: {}; round trips one after another: {}",
                    self.operations, self.round_trips
                )?;
                for line in self.place.statistics() {
                    writeln!(self.out, "{line}")?;
                }
                Ok(())
            }
            Command::Scan { keys, limit, order } => self.scan(keys, limit, order),
            Command::Len => {
                let before = self.place.reads();
                let count = self.count()?;
                self.walked(&count.to_string(), before)
            }
            Command::CompareAndSet(..) if P::Structure::LACKS.contains(&"compare_and_swap") => {
                Err(anyhow!("a {} has no cas; it has get and update", P::Structure::NAME).into())
            }
            Command::CompareAndSet(key, expected, value) => {
                let change = Change::CompareAndSwap { expected: &expected, value: &value };
                self.mutate(&key, change, ["set", "not set"])
            }
            Command::Begin | Command::Commit | Command::Abort | Command::Help | Command::Quit => Ok(()),
        }
    }

    /// Carries out what begins or ends a transaction, or is a step of one. Returns any other command.
    fn in_transaction(&mut self, command: Command) -> Result<Option<Command>, Trouble> {
        let is_step = command.is_step();
        match command {
            Command::Begin | Command::Commit | Command::Abort if !P::Structure::TRANSACTS => {
                let structure = P::Structure::NAME;
                Err(anyhow!("a {structure} has no transactions; see `fatbtree shell --structure dtx`").into())
            }
            Command::Begin => {
                if self.transaction.is_some() {
                    return Err(anyhow!("a transaction has begun; commit or abort it first").into());
                }
                let structure = self.place.structure();
                self.transaction =
                    Some(self.place.run(Open::begin(structure))?.map_err(anyhow::Error::from)?);
                Ok(writeln!(self.out, "ok").map(|()| None)?)
            }
            command if !is_step && !command.ends() => Ok(Some(command)),
            command => {
                let Some(open) = &mut self.transaction else {
                    return match command.ends() {
                        true => Err(anyhow!("no transaction has begun; type begin first").into()),
                        false => Ok(Some(command)),
                    };
                };
                let ends = command.ends();
                let answer = self.place.run(open.carry_out(command))?;
                // After an error nothing of it can be committed.
                let failed = answer.is_err();
                if failed && !ends {
                    self.place.run(open.carry_out(Command::Abort))?.map_err(anyhow::Error::from)?;
                }
                if failed || ends {
                    self.transaction = None;
                }
                let answer = answer.map_err(|error| match P::Structure::is_unknown(&error) {
                    true => anyhow::Error::from(error),
                    false => anyhow::Error::from(error).context("the transaction is aborted"),
                })?;
                Ok(writeln!(self.out, "{answer}").map(|()| None)?)
            }
        }
    }
}
