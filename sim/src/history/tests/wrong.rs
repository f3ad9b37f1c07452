//! Histories written by hand: wrong ones of each kind, each beside a right one that differs in as little as possible.

use fatbtree_verbs::time::Instant;

use crate::history::{Answer, Call, History, Violation};

use Answer::{Applied, AppliedOver, Found, NotApplied, NotAppliedFor};
use Call::{CompareAndSet, Delete, Get, Insert, Update, Upsert};

/// Time of the call, time of the answer, the call, and the answer, which is `None` if there was none.
type Line = (u64, u64, Call, Option<Answer>);

fn check_from(initial: Option<u64>, lines: &[Line]) -> Result<(), Violation> {
    let history = History::default();
    history.begin_with(initial.map(|value| (1, value)));
    let mut events: Vec<(u64, usize, bool)> = Vec::new();
    for (number, (asked, answered, _, answer)) in lines.iter().enumerate() {
        events.push((*asked, number, false));
        if answer.is_some() {
            events.push((*answered, number, true));
        }
    }
    events.sort_unstable();
    let mut ids = vec![None; lines.len()];
    for (at, number, is_answer) in events {
        let at = Instant::from_nanos(at);
        let (.., call, answer) = lines[number];
        match (is_answer, answer) {
            (true, Some(answer)) => history.answer(ids[number].unwrap(), at, answer),
            _ => ids[number] = Some(history.ask("client 1", at, 1, call)),
        }
    }
    history.check().map(drop)
}

#[track_caller]
fn right(lines: &[Line]) {
    if let Err(violation) = check_from(None, lines) {
        panic!("{violation}");
    }
}

#[track_caller]
fn wrong(lines: &[Line]) {
    assert!(check_from(None, lines).is_err(), "accepted: {lines:?}");
}

const fn did(asked: u64, answered: u64, call: Call, answer: Answer) -> Line {
    (asked, answered, call, Some(answer))
}

/// An operation whose result is unknown.
const fn lost(asked: u64, call: Call) -> Line {
    (asked, 0, call, None)
}

const WRITE: Line = did(0, 10, Upsert(7), Applied);

#[test]
fn stale_reads() {
    wrong(&[WRITE, did(20, 30, Get, Found(None))]);
    right(&[WRITE, did(5, 30, Get, Found(None))]);
    wrong(&[WRITE, did(20, 30, Upsert(8), Applied), did(40, 50, Get, Found(Some(7)))]);
    right(&[WRITE, did(20, 30, Upsert(8), Applied), did(25, 50, Get, Found(Some(7)))]);
}

#[test]
fn lost_updates() {
    // Both compared with the same value and both set.
    let compare = |asked, new, answer| did(asked, asked + 10, CompareAndSet { expected: 7, new }, answer);
    wrong(&[WRITE, compare(20, 8, Applied), compare(25, 9, Applied)]);
    right(&[WRITE, compare(20, 8, Applied), compare(25, 9, NotApplied)]);
    right(&[WRITE, compare(20, 8, NotAppliedFor(Some(9))), compare(25, 9, Applied)]);
    wrong(&[WRITE, compare(20, 8, NotAppliedFor(Some(6))), compare(25, 9, Applied)]);
    // Both say that they replaced the same value.
    wrong(&[
        WRITE,
        did(20, 30, Update(8), AppliedOver(Some(7))),
        did(25, 35, Update(9), AppliedOver(Some(7))),
    ]);
    right(&[
        WRITE,
        did(20, 30, Update(8), AppliedOver(Some(7))),
        did(25, 35, Update(9), AppliedOver(Some(8))),
    ]);
}

#[test]
fn values_that_were_never_written() {
    wrong(&[WRITE, did(20, 30, Get, Found(Some(8)))]);
    wrong(&[WRITE, did(20, 30, Delete, AppliedOver(Some(8)))]);
    // A write that was refused puts nothing.
    wrong(&[WRITE, did(20, 30, Insert(8), NotApplied), did(40, 50, Get, Found(Some(8)))]);
    right(&[WRITE, did(20, 30, Insert(8), NotApplied), did(40, 50, Get, Found(Some(7)))]);
}

#[test]
fn values_that_come_back_after_they_were_deleted() {
    let delete = did(20, 30, Delete, Applied);
    wrong(&[WRITE, delete, did(40, 50, Get, Found(Some(7)))]);
    wrong(&[WRITE, delete, did(40, 50, Get, Found(None)), did(60, 70, Get, Found(Some(7)))]);
    wrong(&[WRITE, delete, did(40, 50, Update(8), Applied)]);
    right(&[WRITE, delete, did(40, 50, Insert(8), Applied), did(60, 70, Get, Found(Some(8)))]);
}

#[test]
fn reads_in_another_order_than_writes() {
    let writes = [WRITE, did(20, 90, Upsert(8), Applied)];
    let [first, second] = writes;
    wrong(&[first, second, did(30, 40, Get, Found(Some(8))), did(50, 60, Get, Found(Some(7)))]);
    right(&[first, second, did(30, 40, Get, Found(Some(7))), did(50, 60, Get, Found(Some(8)))]);
    // Two readers that saw two concurrent writes in different orders.
    let both = [did(0, 90, Upsert(7), Applied), did(0, 90, Upsert(8), Applied)];
    let [one, two] = both;
    let reads = |first, then, at| {
        [did(at, at + 10, Get, Found(Some(first))), did(at + 20, at + 30, Get, Found(Some(then)))]
    };
    let [a, b] = reads(7, 8, 10);
    let [c, d] = reads(8, 7, 12);
    wrong(&[one, two, a, b, c, d]);
    right(&[one, two, a, b]);
}

#[test]
fn reads_from_the_future() {
    wrong(&[did(0, 10, Get, Found(Some(7))), did(20, 30, Upsert(7), Applied)]);
    right(&[did(0, 25, Get, Found(Some(7))), did(20, 30, Upsert(7), Applied)]);
    // Also of a write whose result is unknown.
    wrong(&[did(0, 10, Get, Found(Some(7))), lost(20, Upsert(7))]);
}

#[test]
fn writes_without_an_answer() {
    // It may take effect, at once or much later, or never.
    right(&[lost(0, Upsert(7)), did(10, 20, Get, Found(Some(7)))]);
    right(&[lost(0, Upsert(7)), did(10, 20, Get, Found(None)), did(30, 40, Get, Found(Some(7)))]);
    right(&[lost(0, Upsert(7)), did(10, 20, Get, Found(None)), did(30, 40, Get, Found(None))]);
    // But once it did, it did, and it does not do so twice.
    wrong(&[lost(0, Upsert(7)), did(10, 20, Get, Found(Some(7))), did(30, 40, Get, Found(None))]);
    let seen = [lost(0, Upsert(7)), did(10, 20, Get, Found(Some(7))), did(30, 40, Upsert(8), Applied)];
    let [a, b, c] = seen;
    wrong(&[a, b, c, did(50, 60, Get, Found(Some(8))), did(70, 80, Get, Found(Some(7)))]);
    right(&[a, b, c, did(50, 60, Get, Found(Some(8))), did(70, 80, Get, Found(Some(8)))]);
    // Twice, with a delete between.
    let deleted = [lost(0, Insert(7)), did(10, 20, Get, Found(Some(7))), did(30, 40, Delete, Applied)];
    let [a, b, c] = deleted;
    wrong(&[a, b, c, did(50, 60, Get, Found(Some(7)))]);
    right(&[a, b, c, did(50, 60, Get, Found(None))]);
}

#[test]
fn operations_without_an_answer_that_enable_each_other() {
    let chain = [
        lost(0, Insert(1)),
        lost(0, CompareAndSet { expected: 1, new: 2 }),
        lost(0, CompareAndSet { expected: 2, new: 3 }),
    ];
    let [a, b, c] = chain;
    right(&[a, b, c, did(10, 20, Get, Found(Some(3)))]);
    wrong(&[a, c, did(10, 20, Get, Found(Some(3)))]);
    wrong(&[b, c, did(10, 20, Get, Found(Some(3)))]);
    right(&[a, b, c, did(10, 20, Get, Found(Some(1))), did(30, 40, Get, Found(Some(3)))]);
    wrong(&[a, b, c, did(10, 20, Get, Found(Some(3))), did(30, 40, Get, Found(Some(2)))]);
    // A delete with an unknown result explains that a key is gone; one delete explains it once.
    let gone = [WRITE, lost(12, Delete), did(20, 30, Insert(8), Applied)];
    let [a, b, c] = gone;
    right(&[a, b, c]);
    wrong(&[a, b, c, did(40, 50, Insert(9), Applied)]);
    right(&[a, b, lost(12, Delete), c, did(40, 50, Insert(9), Applied)]);
    // An update whose value no client saw explains nothing without a key to update.
    wrong(&[lost(0, Update(5)), did(10, 20, Insert(6), NotApplied)]);
    right(&[lost(0, Upsert(5)), did(10, 20, Insert(6), NotApplied)]);
}

#[test]
fn answers_that_a_call_never_gives() {
    wrong(&[did(0, 10, Get, Applied)]);
    wrong(&[did(0, 10, Get, NotApplied)]);
    wrong(&[did(0, 10, Upsert(1), Found(None))]);
    wrong(&[did(0, 10, Upsert(1), NotApplied)]);
    wrong(&[did(0, 10, Delete, Found(None))]);
}

#[test]
fn what_was_there_before() {
    let read = |found| [did(0, 10, Get, Found(found))];
    assert!(check_from(Some(4), &read(Some(4))).is_ok());
    assert!(check_from(Some(4), &read(None)).is_err());
    assert!(check_from(None, &read(None)).is_ok());
}

#[test]
fn what_was_withdrawn_never_happened() {
    let at = Instant::from_nanos;
    let history = History::default();
    let write = history.ask("one", at(0), 1, Upsert(7));
    history.withdraw(write);
    let read = history.ask("two", at(10), 1, Get);
    history.answer(read, at(20), Found(Some(7)));
    assert!(history.check().is_err());
}

#[test]
fn the_message_names_the_answer_and_what_was_around_it() {
    let violation = check_from(
        Some(3),
        &[WRITE, lost(2, Delete), did(15, 18, Get, Found(Some(7))), did(20, 30, Get, Found(Some(3)))],
    );
    assert_eq!(
        violation.unwrap_err().to_string(),
        "key 1: no order of operations explains \"get: found 3\" of client 1; up to there:\n  \
         initially 3\n  \
         0 ns to 10 ns, client 1: upsert 7: applied\n  \
         15 ns to 18 ns, client 1: get: found 7\n  \
         20 ns to 30 ns, client 1: get: found 3\n  \
         2 ns to ?, client 1: delete"
    );
}
