//! Histories of transactions, and the check that they are strictly serializable.
//!
//! Every write has a number of its own, its *stamp*, and a transaction reads what it overwrites. So the writes of a key form a chain, and no
//! order has to be searched for. The check puts an arrow between two transactions where one must come before the other:
//!
//! ```text
//!   a write  ──► the write after it          a read ──► the write after what it has read
//!   a write  ──► a read of it                 a transaction ──► those that began after its end
//! ```
//!
//! A history is *strictly serializable* if the arrows form no circle (Papadimitriou 1979; Adya 1999). Transactions without an answer count if
//! another one has read what they wrote. What an aborted one wrote must never be read.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;

use fatbtree_verbs::time::Instant;

/// A key of a table.
pub type TableKey = (u8, u64);

/// Number of a transaction, and the stamp of what it writes. 0 stands for the initial state.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Stamp(pub u64);

/// Outcome of a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ending {
    /// It has no answer: it may have taken effect, or will, or never.
    #[default]
    Unknown,
    /// It has taken effect.
    Committed,
    /// It has not taken effect, and never will.
    Aborted,
}

#[derive(Clone, Debug)]
struct Run {
    client: String,
    begun: Instant,
    ended: Option<Instant>,
    ending: Ending,
    /// Keys that it has read, and the stamp of each. `None`: the key was absent.
    reads: Vec<(TableKey, Option<Stamp>)>,
    /// Keys that it writes, and whether they are present afterwards.
    writes: Vec<(TableKey, bool)>,
}

/// A history of transactions.
#[derive(Debug, Default)]
pub struct Transactions {
    runs: RefCell<Vec<Run>>,
}

/// A history that cannot be explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotSerializable(String);

impl fmt::Display for NotSerializable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotSerializable {}

/// A history that was explained.
#[derive(Clone, Debug, Default)]
pub struct Serialized {
    /// Whether each transaction, by stamp, has taken effect.
    effective: Vec<bool>,
    /// Transactions that were answered, and have taken effect.
    pub committed: usize,
    /// Transactions that have taken effect without an answer.
    pub without_answer: usize,
    /// Transactions that have not taken effect.
    pub aborted: usize,
}

impl Serialized {
    /// Whether a transaction has taken effect.
    #[must_use]
    pub fn has_taken_effect(&self, stamp: Stamp) -> bool {
        self.effective.get(stamp.0 as usize).copied().unwrap_or(false)
    }
}

impl Transactions {
    /// Notes that a transaction begins.
    pub fn begin(&self, client: &str, now: Instant) -> Stamp {
        let mut runs = self.runs.borrow_mut();
        let (reads, writes) = (Vec::new(), Vec::new());
        let client = client.to_owned();
        runs.push(Run { client, begun: now, ended: None, ending: Ending::Unknown, reads, writes });
        Stamp(runs.len() as u64)
    }

    /// Notes what a transaction has read of a key; `None`: it was absent.
    pub fn read(&self, of: Stamp, key: TableKey, found: Option<Stamp>) {
        self.runs.borrow_mut()[of.0 as usize - 1].reads.push((key, found));
    }

    /// Notes that a transaction writes a key that it has read, before it commits; and whether the key is present afterwards.
    pub fn write(&self, of: Stamp, key: TableKey, is_present: bool) {
        self.runs.borrow_mut()[of.0 as usize - 1].writes.push((key, is_present));
    }

    /// Notes how a transaction has ended.
    pub fn end(&self, of: Stamp, now: Instant, ending: Ending) {
        let run = &mut self.runs.borrow_mut()[of.0 as usize - 1];
        (run.ended, run.ending) = (Some(now), ending);
    }

    /// Checks the history.
    ///
    /// # Errors
    /// What cannot be explained.
    pub fn check(&self) -> Result<Serialized, NotSerializable> {
        Check::new(&self.runs.borrow()).run()
    }
}

struct Check<'r> {
    runs: &'r [Run],
    /// Whether each has taken effect.
    effective: Vec<bool>,
    /// Effective writers of a key's version, by what was before.
    behind: BTreeMap<(TableKey, Option<u64>), usize>,
    /// Arrows from each transaction, and then from each end of one, in time.
    arrows: Vec<Vec<u32>>,
}

impl<'r> Check<'r> {
    fn new(runs: &'r [Run]) -> Self {
        let effective = runs.iter().map(|run| run.ending == Ending::Committed).collect();
        Self { runs, effective, behind: BTreeMap::new(), arrows: Vec::new() }
    }

    fn run(mut self) -> Result<Serialized, NotSerializable> {
        self.find_effective()?;
        self.find_chains()?;
        self.draw_arrows();
        self.find_circle()?;
        let count = |ending: Ending, is: bool| {
            let runs = self.runs.iter().zip(&self.effective);
            runs.filter(|(run, effective)| run.ending == ending && **effective == is).count()
        };
        let mut effective = vec![true];
        effective.extend(&self.effective);
        Ok(Serialized {
            effective,
            committed: count(Ending::Committed, true),
            without_answer: count(Ending::Unknown, true),
            aborted: count(Ending::Aborted, false),
        })
    }

    fn name(&self, number: usize) -> String {
        let Run { client, begun, ended, ending, reads, writes } = &self.runs[number];
        let to = ended.map_or("…".to_owned(), |ended| ended.to_string());
        format!(
            "transaction {} of {client} ({begun} to {to}, {ending:?}; reads {reads:?}, writes {writes:?})",
            number + 1
        )
    }

    /// Finds the transactions without an answer whose writes were read.
    fn find_effective(&mut self) -> Result<(), NotSerializable> {
        let mut left: Vec<usize> = (0..self.runs.len()).filter(|&number| self.effective[number]).collect();
        while let Some(reader) = left.pop() {
            for (key, found) in &self.runs[reader].reads {
                let writer = match found {
                    Some(Stamp(0)) => continue,
                    Some(Stamp(stamp)) => *stamp as usize - 1,
                    None => match self.deleter(reader, *key)? {
                        Some(writer) => writer,
                        None => continue,
                    },
                };
                let run = self.runs.get(writer).ok_or_else(|| {
                    NotSerializable(format!("{} has read a stamp that does not exist", self.name(reader)))
                })?;
                if run.ending == Ending::Aborted || !run.writes.iter().any(|(of, _)| of == key) {
                    let (reader, writer) = (self.name(reader), self.name(writer));
                    return Err(NotSerializable(format!("{reader} has read of {key:?} what {writer} wrote")));
                }
                if !std::mem::replace(&mut self.effective[writer], true) {
                    left.push(writer);
                }
            }
        }
        Ok(())
    }

    /// The transaction that must have taken a key away, if it was present before a reader that has found it absent.
    fn deleter(&self, reader: usize, key: TableKey) -> Result<Option<usize>, NotSerializable> {
        let begun = self.runs[reader].begun;
        let writes = |present: bool| {
            let runs = self.runs.iter().enumerate();
            let alive = runs.filter(|(_, run)| {
                run.ending != Ending::Aborted && run.begun <= self.runs[reader].ended.unwrap_or(run.begun)
            });
            alive.filter(move |(_, run)| run.writes.contains(&(key, present))).map(|(number, _)| number)
        };
        let was_present = writes(true).any(|number| {
            self.effective[number] && self.runs[number].ended.is_some_and(|ended| ended < begun)
        });
        if !was_present {
            return Ok(None);
        }
        let mut deleters = writes(false);
        if writes(false).any(|number| self.effective[number]) {
            return Ok(None);
        }
        match (deleters.next(), deleters.next()) {
            (Some(one), None) => Ok(Some(one)),
            (Some(_), Some(_)) => Ok(None),
            (None, _) => Err(NotSerializable(format!(
                "{} has found {key:?} absent, which was there",
                self.name(reader)
            ))),
        }
    }

    /// What a transaction has read of a key, as the key of `behind`. `None`: it has not.
    fn before(&self, number: usize, key: TableKey) -> Option<Option<u64>> {
        let run = &self.runs[number];
        run.reads.iter().find(|(of, _)| *of == key).map(|(_, found)| found.map(|stamp| stamp.0))
    }

    /// Two transactions must not overwrite the same.
    fn find_chains(&mut self) -> Result<(), NotSerializable> {
        for number in (0..self.runs.len()).filter(|&number| self.effective[number]) {
            for (key, _) in &self.runs[number].writes {
                let before = self
                    .before(number, *key)
                    .ok_or_else(|| NotSerializable(format!("{} writes {key:?} unread", self.name(number))))?;
                if let Some(other) = self.behind.insert((*key, before), number) {
                    let (one, other) = (self.name(number), self.name(other));
                    return Err(NotSerializable(format!("{one} and {other} overwrite the same {key:?}")));
                }
            }
        }
        Ok(())
    }

    fn draw_arrows(&mut self) {
        let count = self.runs.len();
        let mut ends: Vec<Instant> = (0..count)
            .filter(|&number| self.effective[number])
            .filter_map(|number| self.runs[number].ended)
            .collect();
        ends.sort_unstable();
        ends.dedup();
        let mut arrows = vec![Vec::new(); count + ends.len()];
        for at in 1..ends.len() {
            arrows[count + at - 1].push((count + at) as u32);
        }
        for number in (0..count).filter(|&number| self.effective[number]) {
            let run = &self.runs[number];
            if let Some(ended) = run.ended.filter(|_| run.ending == Ending::Committed) {
                let at = ends.partition_point(|end| *end < ended);
                arrows[number].push((count + at) as u32);
            }
            if let Some(at) = ends.partition_point(|end| *end < run.begun).checked_sub(1) {
                arrows[count + at].push(number as u32);
            }
            for (key, found) in &run.reads {
                if let Some(Stamp(stamp @ 1..)) = found {
                    arrows[*stamp as usize - 1].push(number as u32);
                }
                // An absence before the first insertion, and one after a deletion, look alike: the first write counts
                // where the key was never deleted.
                let is_sure = found.is_some() || !self.is_deleted(*key);
                let next = self.behind.get(&(*key, found.map(|stamp| stamp.0)));
                if let Some(&next) = next.filter(|&&next| next != number && is_sure) {
                    arrows[number].push(next as u32);
                }
            }
        }
        self.arrows = arrows;
    }

    /// Whether a key may have been deleted. Of several deletions without an answer one may have taken effect, and none is known to have.
    fn is_deleted(&self, key: TableKey) -> bool {
        self.runs.iter().any(|run| run.ending != Ending::Aborted && run.writes.contains(&(key, false)))
    }

    fn find_circle(&self) -> Result<(), NotSerializable> {
        #[derive(Clone, Copy, PartialEq)]
        enum Mark {
            New,
            Open,
            Done,
        }
        let mut marks = vec![Mark::New; self.arrows.len()];
        for first in 0..self.arrows.len() {
            if marks[first] != Mark::New {
                continue;
            }
            marks[first] = Mark::Open;
            let mut path = vec![(first, 0)];
            while let Some((at, next)) = path.last_mut() {
                let Some(&to) = self.arrows[*at].get(*next) else {
                    marks[*at] = Mark::Done;
                    path.pop();
                    continue;
                };
                *next += 1;
                match marks[to as usize] {
                    Mark::Done => {}
                    Mark::New => {
                        marks[to as usize] = Mark::Open;
                        path.push((to as usize, 0));
                    }
                    Mark::Open => {
                        let from = path.iter().position(|(at, _)| *at == to as usize).unwrap_or(0);
                        let circle = path[from..].iter().filter(|(at, _)| *at < self.runs.len());
                        let names: Vec<String> = circle.map(|(at, _)| self.name(*at)).collect();
                        return Err(NotSerializable(format!(
                            "each before the next, and the last before the first: {}",
                            names.join("; ")
                        )));
                    }
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: TableKey = (0, 1);
    const B: TableKey = (0, 2);

    /// A transaction from `begun` to `ended` that reads and writes.
    fn run(
        history: &Transactions,
        times: (u64, u64),
        reads: &[(TableKey, Option<u64>)],
        writes: &[TableKey],
    ) -> Stamp {
        let stamp = history.begin("client", Instant::from_nanos(times.0));
        reads.iter().for_each(|(key, found)| history.read(stamp, *key, found.map(Stamp)));
        writes.iter().for_each(|key| history.write(stamp, *key, true));
        history.end(stamp, Instant::from_nanos(times.1), Ending::Committed);
        stamp
    }

    #[test]
    fn a_history_one_after_the_other_is_explained() {
        let history = Transactions::default();
        run(&history, (0, 1), &[(A, Some(0)), (B, Some(0))], &[A]);
        run(&history, (2, 3), &[(A, Some(1)), (B, Some(0))], &[A, B]);
        run(&history, (4, 5), &[(A, Some(2)), (B, Some(2))], &[]);
        let found = history.check().unwrap();
        assert_eq!((found.committed, found.without_answer), (3, 0));
    }

    #[test]
    fn lost_updates_skew_stale_reads_and_dirty_reads_are_found() {
        let lost = Transactions::default();
        run(&lost, (0, 9), &[(A, Some(0))], &[A]);
        run(&lost, (0, 9), &[(A, Some(0))], &[A]);
        assert!(lost.check().unwrap_err().to_string().contains("overwrite the same"));
        let skew = Transactions::default();
        run(&skew, (0, 9), &[(A, Some(0)), (B, Some(0))], &[A]);
        run(&skew, (0, 9), &[(A, Some(0)), (B, Some(0))], &[B]);
        assert!(skew.check().unwrap_err().to_string().contains("before the first"));
        let stale = Transactions::default();
        run(&stale, (0, 1), &[(A, Some(0))], &[A]);
        run(&stale, (2, 3), &[(A, Some(0))], &[]);
        assert!(stale.check().is_err());
        let dirty = Transactions::default();
        let writer = run(&dirty, (0, 1), &[(A, Some(0))], &[A]);
        dirty.end(writer, Instant::from_nanos(1), Ending::Aborted);
        run(&dirty, (2, 3), &[(A, Some(1))], &[]);
        assert!(dirty.check().unwrap_err().to_string().contains("has read of"));
    }

    /// Serializable, but not strictly: the first one reads before, and writes after, others that have ended meanwhile.
    #[test]
    fn time_counts() {
        let history = Transactions::default();
        run(&history, (0, 9), &[(A, Some(0)), (B, Some(0))], &[A]);
        run(&history, (1, 2), &[(B, Some(0))], &[B]);
        run(&history, (3, 4), &[(A, Some(0))], &[]);
        assert!(history.check().is_err());
    }

    #[test]
    fn an_open_transaction_counts_if_it_was_read() {
        let history = Transactions::default();
        let open = run(&history, (0, 1), &[(A, Some(0)), (B, Some(0))], &[A, B]);
        history.end(open, Instant::from_nanos(1), Ending::Unknown);
        assert!(!history.check().unwrap().has_taken_effect(open));
        run(&history, (2, 3), &[(A, Some(1))], &[]);
        assert!(history.check().unwrap().has_taken_effect(open));
        run(&history, (4, 5), &[(B, Some(0))], &[]);
        assert!(history.check().is_err(), "one of its writes is there, and the other is not");
    }

    /// One of two deletions without an answer has taken effect.
    #[test]
    fn a_key_may_have_been_taken_away_by_either_of_two() {
        let history = Transactions::default();
        run(&history, (0, 1), &[(A, None)], &[A]);
        for _ in 0..2 {
            let open = history.begin("client", Instant::from_nanos(2));
            history.read(open, A, Some(Stamp(1)));
            history.write(open, A, false);
        }
        run(&history, (8, 9), &[(A, None)], &[]);
        assert_eq!(history.check().unwrap().committed, 2);
    }

    #[test]
    fn a_key_that_was_there_does_not_vanish() {
        let history = Transactions::default();
        run(&history, (0, 1), &[(A, None)], &[A]);
        run(&history, (2, 3), &[(A, None)], &[]);
        assert!(history.check().is_err());
    }
}
