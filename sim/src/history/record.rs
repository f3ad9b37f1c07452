//! Recording operations while they go on, and checking them afterwards.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;
use std::rc::Rc;

use fatbtree_verbs::time::Instant;

use super::check::{Timed, Verdict, check, first_unexplained};
use super::operation::{Answer, Call, Key, Value};

/// A record of operations. Clones are the same record: each client takes one.
///
/// Calls and answers are ordered by the time of recording. In a simulation of one thread they are recorded when they
/// happen. The times that callers give are for messages only.
#[derive(Clone, Debug, Default)]
pub struct History(Rc<RefCell<Record>>);

#[derive(Debug, Default)]
struct Record {
    initial: BTreeMap<Key, Value>,
    operations: Vec<Operation>,
    scans: Vec<Scan>,
    /// Counts calls and answers.
    last: u64,
}

#[derive(Clone, Debug)]
struct Operation {
    client: Rc<str>,
    key: Key,
    asked: Stamp,
    call: Call,
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug)]
enum Outcome {
    Unknown,
    Answered(Stamp, Answer),
    /// The operation is known not to have happened.
    Withdrawn,
}

#[derive(Clone, Debug)]
struct Scan {
    client: Rc<str>,
    range: RangeInclusive<Key>,
    asked: Stamp,
    answered: Option<(Stamp, Vec<(Key, Value)>)>,
}

/// A place in the order of calls and answers, and its time.
#[derive(Clone, Copy, Debug)]
struct Stamp {
    order: u64,
    at: Instant,
}

/// An operation of a [`History`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationId(usize);

/// A scan of a [`History`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanId(usize);

/// Operations that a check has looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Keys.
    pub keys: usize,
    /// Operations with answers, the parts of scans included.
    pub answered: usize,
    /// Operations whose answers were lost.
    pub unknown: usize,
}

/// An answer that nothing explains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The key.
    pub key: Key,
    /// The problem.
    pub what: String,
    /// Operations on the key up to there, the latest last.
    pub before: Vec<String>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key {}: {}", self.key, self.what)?;
        for line in &self.before {
            write!(f, "\n  {line}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Violation {}

/// Operations shown before the one that cannot be explained.
const SHOWN: usize = 24;

impl History {
    /// Sets the values before the first operation.
    pub fn begin_with(&self, pairs: impl IntoIterator<Item = (Key, Value)>) {
        self.0.borrow_mut().initial.extend(pairs);
    }

    /// A client calls an operation now. If its answer is never recorded, its result is unknown.
    #[must_use]
    pub fn ask(&self, client: &str, at: Instant, key: Key, call: Call) -> OperationId {
        let mut record = self.0.borrow_mut();
        let asked = record.stamp(at);
        record.operations.push(Operation {
            client: client.into(),
            key,
            asked,
            call,
            outcome: Outcome::Unknown,
        });
        OperationId(record.operations.len() - 1)
    }

    /// An operation is answered now.
    pub fn answer(&self, operation: OperationId, at: Instant, answer: Answer) {
        let mut record = self.0.borrow_mut();
        let answered = record.stamp(at);
        record.operations[operation.0].outcome = Outcome::Answered(answered, answer);
    }

    /// An operation failed in a way that says that it did not happen and never will: it was never posted.
    pub fn withdraw(&self, operation: OperationId) {
        self.0.borrow_mut().operations[operation.0].outcome = Outcome::Withdrawn;
    }

    /// Records that a client begins to scan a range now.
    #[must_use]
    pub fn ask_scan(&self, client: &str, at: Instant, range: RangeInclusive<Key>) -> ScanId {
        let mut record = self.0.borrow_mut();
        let asked = record.stamp(at);
        record.scans.push(Scan { client: client.into(), range, asked, answered: None });
        ScanId(record.scans.len() - 1)
    }

    /// Records the pairs that a scan has found in the whole of `range`, in this order. The range may be less than the
    /// scan asked for: a scan that stops after some pairs ends with the last of them.
    pub fn answer_scan(
        &self,
        scan: ScanId,
        at: Instant,
        range: RangeInclusive<Key>,
        found: Vec<(Key, Value)>,
    ) {
        let mut record = self.0.borrow_mut();
        let answered = record.stamp(at);
        let scan = &mut record.scans[scan.0];
        (scan.range, scan.answered) = (range, Some((answered, found)));
    }

    /// Operations recorded so far, without scans.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.borrow().operations.len()
    }

    /// Whether nothing was recorded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.borrow().last == 0
    }

    /// Looks for an order of each key's operations that explains all answers.
    ///
    /// # Errors
    /// The first answer that cannot be explained, of the lowest key that has one.
    pub fn check(&self) -> Result<Checked, Violation> {
        let record = self.0.borrow();
        let mut keys: BTreeSet<Key> = record.initial.keys().copied().collect();
        keys.extend(record.operations.iter().map(|operation| operation.key));
        let mut by_key: BTreeMap<Key, Vec<Operation>> = BTreeMap::new();
        for operation in &record.operations {
            if !matches!(operation.outcome, Outcome::Withdrawn) {
                by_key.entry(operation.key).or_default().push(operation.clone());
            }
        }
        for scan in &record.scans {
            scan.expand(&keys, &mut by_key)?;
        }
        let mut checked = Checked::default();
        for (key, operations) in by_key {
            let initial = record.initial.get(&key).copied();
            let timed: Vec<Timed> = operations.iter().map(Operation::timed).collect();
            checked.keys += 1;
            let answered = timed.iter().filter(|operation| operation.answered.is_some()).count();
            checked.answered += answered;
            checked.unknown += timed.len() - answered;
            match check(initial, &timed) {
                Verdict::Explained => {}
                Verdict::Unexplained => return Err(violation(key, initial, &operations, &timed)),
                Verdict::TooHard => {
                    let what = "too many orders are possible; use fewer clients, or let fewer of them die"
                        .to_owned();
                    return Err(Violation { key, what, before: Vec::new() });
                }
            }
        }
        Ok(checked)
    }
}

impl Record {
    fn stamp(&mut self, at: Instant) -> Stamp {
        self.last += 1;
        Stamp { order: self.last, at }
    }
}

impl Operation {
    fn timed(&self) -> Timed {
        let answered = match self.outcome {
            Outcome::Answered(stamp, answer) => Some((stamp.order, answer)),
            Outcome::Unknown | Outcome::Withdrawn => None,
        };
        Timed { asked: self.asked.order, call: self.call, answered }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, asked, call, outcome, .. } = self;
        match outcome {
            Outcome::Answered(answered, answer) => {
                write!(f, "{} to {}, {client}: {call}: {answer}", asked.at, answered.at)
            }
            Outcome::Unknown | Outcome::Withdrawn => write!(f, "{} to ?, {client}: {call}", asked.at),
        }
    }
}

impl Scan {
    /// A scan as gets of the keys in its range, each of which happened some time between its call and its answer.
    fn expand(
        &self,
        keys: &BTreeSet<Key>,
        by_key: &mut BTreeMap<Key, Vec<Operation>>,
    ) -> Result<(), Violation> {
        let Some((answered, found)) = &self.answered else { return Ok(()) };
        let Self { client, range, .. } = self;
        let wrong = |key: Key, what: &str| {
            let what = format!(
                "the scan of {} to {} by {client} at {} {what}",
                range.start(),
                range.end(),
                self.asked.at
            );
            Err(Violation { key, what, before: vec![format!("found {found:?}")] })
        };
        let up = found.is_sorted_by(|left, right| left.0 < right.0);
        let down = found.is_sorted_by(|left, right| left.0 > right.0);
        let values: BTreeMap<Key, Value> = found.iter().copied().collect();
        for (key, _) in found {
            if !range.contains(key) {
                return wrong(*key, "found a key outside of its range");
            }
            if !up && !down {
                return wrong(*key, "found keys twice or out of order");
            }
            if !keys.contains(key) {
                return wrong(*key, "found a key that was never written");
            }
        }
        if range.is_empty() {
            return Ok(());
        }
        for &key in keys.range(range.clone()) {
            let answer = Answer::Found(values.get(&key).copied());
            let outcome = Outcome::Answered(*answered, answer);
            let client: Rc<str> = format!("{client} (scan)").into();
            let operation = Operation { client, key, asked: self.asked, call: Call::Get, outcome };
            by_key.entry(key).or_default().push(operation);
        }
        Ok(())
    }
}

fn violation(key: Key, initial: Option<Value>, operations: &[Operation], timed: &[Timed]) -> Violation {
    let Some(number) = first_unexplained(initial, timed) else {
        let what = "no order of operations explains the answers".to_owned();
        return Violation { key, what, before: Vec::new() };
    };
    let Operation { client, call, .. } = &operations[number];
    let answered = timed[number].answered;
    let answer = answered.map_or(String::new(), |(_, answer)| answer.to_string());
    let what = format!("no order of operations explains \"{call}: {answer}\" of {client}; up to there:");
    let limit = answered.map_or(0, |(at, _)| at);
    let mut before: Vec<(u64, String)> = operations
        .iter()
        .zip(timed)
        .filter(|(_, timed)| timed.asked <= limit)
        .map(|(operation, timed)| {
            (timed.answered.map_or(u64::MAX, |(at, _)| at.min(limit)), operation.to_string())
        })
        .collect();
    // Those without an answer may be to blame, however old they are.
    before.sort_by_key(|(answered, _)| *answered);
    let open = before.iter().filter(|(answered, _)| *answered == u64::MAX).count();
    let skip = before.len().saturating_sub(SHOWN + open);
    let mut lines: Vec<String> = before.into_iter().skip(skip).map(|(_, line)| line).collect();
    if skip > 0 {
        lines.insert(0, format!("({skip} operations before)"));
    }
    if let Some(value) = initial {
        lines.insert(0, format!("initially {value}"));
    }
    Violation { key, what, before: lines }
}
