//! Calls and answers of each thread, with their places among all.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};

use fatbtree_verbs::time::Instant;

use super::Clock;
use crate::history::{Answer, Call, History};

/// Numbers calls and answers of all threads. Of two of which one happened before the other it has the smaller number.
#[derive(Debug, Default)]
pub(super) struct Order(AtomicU64);

impl Order {
    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

#[derive(Clone, Copy, Debug)]
struct Stamp {
    order: u64,
    at: Instant,
}

/// A range, and all that was found in it.
type Found = (RangeInclusive<u64>, Vec<(u64, u64)>);

#[derive(Debug)]
enum What {
    Call { key: u64, call: Call, answer: Option<(Stamp, Answer)> },
    Scan { range: RangeInclusive<u64>, answer: Option<(Stamp, Found)> },
}

#[derive(Debug)]
struct Entry {
    client: String,
    asked: Stamp,
    what: What,
}

/// An entry of a [`Log`].
#[derive(Clone, Copy, Debug)]
pub(super) struct EntryId(usize);

/// Calls of one thread.
#[derive(Debug)]
pub(super) struct Log<'o> {
    order: &'o Order,
    clock: Clock,
    entries: Vec<Entry>,
}

impl<'o> Log<'o> {
    pub(super) fn new(order: &'o Order, clock: Clock) -> Self {
        Self { order, clock, entries: Vec::new() }
    }

    fn stamp(&self) -> Stamp {
        Stamp { order: self.order.next(), at: self.clock.now() }
    }

    fn push(&mut self, client: &str, what: What) -> EntryId {
        let asked = self.stamp();
        self.entries.push(Entry { client: client.to_owned(), asked, what });
        EntryId(self.entries.len() - 1)
    }

    pub(super) fn ask(&mut self, client: &str, key: u64, call: Call) -> EntryId {
        self.push(client, What::Call { key, call, answer: None })
    }

    pub(super) fn ask_scan(&mut self, client: &str, range: RangeInclusive<u64>) -> EntryId {
        self.push(client, What::Scan { range, answer: None })
    }

    pub(super) fn answer(&mut self, entry: EntryId, given: Answer) {
        let stamp = self.stamp();
        if let What::Call { answer, .. } = &mut self.entries[entry.0].what {
            *answer = Some((stamp, given));
        }
    }

    pub(super) fn answer_scan(&mut self, entry: EntryId, range: RangeInclusive<u64>, found: Vec<(u64, u64)>) {
        let stamp = self.stamp();
        if let What::Scan { answer, .. } = &mut self.entries[entry.0].what {
            *answer = Some((stamp, (range, found)));
        }
    }

    /// The entries, without the parts of the log that belong to the thread.
    pub(super) fn finish(self) -> Entries {
        Entries(self.entries)
    }
}

/// Calls of one thread that has ended.
#[derive(Debug)]
pub(super) struct Entries(Vec<Entry>);

/// All threads' calls and answers, in their order.
pub(super) fn history(initial: impl IntoIterator<Item = (u64, u64)>, logs: Vec<Entries>) -> History {
    type Answered = Box<dyn FnOnce(&History)>;
    let history = History::default();
    history.begin_with(initial);
    let mut entries: Vec<Entry> = logs.into_iter().flat_map(|log| log.0).collect();
    entries.sort_unstable_by_key(|entry| entry.asked.order);
    // Calls that are asked and not answered yet, by the place of their answers.
    let mut open: BTreeMap<u64, Answered> = BTreeMap::new();
    for Entry { client, asked, what } in entries {
        while let Some(first) = open.first_entry().filter(|first| *first.key() < asked.order) {
            first.remove()(&history);
        }
        match what {
            What::Call { key, call, answer } => {
                let id = history.ask(&client, asked.at, key, call);
                if let Some((Stamp { order, at }, answer)) = answer {
                    open.insert(order, Box::new(move |history| history.answer(id, at, answer)));
                }
            }
            What::Scan { range, answer } => {
                let id = history.ask_scan(&client, asked.at, range);
                if let Some((Stamp { order, at }, (range, found))) = answer {
                    open.insert(order, Box::new(move |history| history.answer_scan(id, at, range, found)));
                }
            }
        }
    }
    open.into_values().for_each(|answer| answer(&history));
    history
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_threads_have_asked_is_told_in_its_order() {
        let (order, clock) = (Order::default(), Clock::start());
        let (mut one, mut other) = (Log::new(&order, clock), Log::new(&order, clock));
        let write = one.ask("one", 5, Call::Upsert(7));
        one.answer(write, Answer::Applied);
        let read = other.ask("other", 5, Call::Get);
        other.answer(read, Answer::Found(None));
        let lost = history([], vec![one.finish(), other.finish()]).check();
        assert!(lost.is_err(), "the write ended before the read began");

        let (mut one, mut other) = (Log::new(&order, clock), Log::new(&order, clock));
        let (write, read) = (one.ask("one", 5, Call::Upsert(7)), other.ask("other", 5, Call::Get));
        one.answer(write, Answer::Applied);
        other.answer(read, Answer::Found(None));
        history([], vec![one.finish(), other.finish()]).check().expect("they were under way together");
    }
}
