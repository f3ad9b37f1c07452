//! Scans: what was there throughout is found, what was absent throughout is not.

use fatbtree_verbs::time::Instant;

use crate::history::{Answer, Call, History};

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

fn written(history: &History, key: u64, value: u64) {
    let write = history.ask("writer", at(0), key, Call::Upsert(value));
    history.answer(write, at(0), Answer::Applied);
}

/// Keys 10 and 30 are there; 20 is inserted and 30 deleted while the scan goes on.
fn scanned(found: &[(u64, u64)]) -> Result<(), String> {
    let history = History::default();
    history.begin_with([(10, 1)]);
    written(&history, 30, 3);
    // Never there.
    let none = history.ask("reader", at(0), 40, Call::Get);
    history.answer(none, at(0), Answer::Found(None));
    let scan = history.ask_scan("scanner", at(10), 10..=50);
    let insert = history.ask("writer", at(20), 20, Call::Insert(2));
    history.answer(insert, at(25), Answer::Applied);
    let delete = history.ask("writer", at(30), 30, Call::Delete);
    history.answer(delete, at(35), Answer::Applied);
    history.answer_scan(scan, at(40), 10..=50, found.to_vec());
    history.check().map(drop).map_err(|violation| violation.to_string())
}

#[test]
fn what_comes_and_goes_may_be_found_and_what_stays_must() {
    for fine in [&[(10, 1)][..], &[(10, 1), (20, 2)], &[(10, 1), (30, 3)], &[(10, 1), (20, 2), (30, 3)]] {
        scanned(fine).unwrap();
    }
    // Backward.
    scanned(&[(30, 3), (20, 2), (10, 1)]).unwrap();
    for (wrong, why) in [
        (&[(20, 2), (30, 3)][..], "key 10: no order"),
        (&[(10, 7)], "key 10: no order"),
        (&[(10, 1), (40, 4)], "key 40: no order"),
        (
            &[(10, 1), (45, 4)],
            "key 45: the scan of 10 to 50 by scanner at 10 ns found a key that was never written",
        ),
        (&[(10, 1), (60, 4)], "found a key outside of its range"),
        (&[(10, 1), (10, 1)], "found keys twice"),
        (&[(10, 1), (30, 3), (20, 2)], "out of order"),
    ] {
        let message = scanned(wrong).expect_err("a wrong scan");
        assert!(message.contains(why), "{message}");
    }
}

/// Two scans that follow each other do not see a key go and come back.
#[test]
fn scans_agree_with_each_other_and_with_gets() {
    for (first, second, get, fine) in [
        (false, true, Some(5), true),
        (true, true, Some(5), true),
        (false, false, None, true),
        (true, false, None, false),
        (false, true, None, false),
    ] {
        let history = History::default();
        // Unknown when it took effect.
        let _ = history.ask("writer", at(0), 5, Call::Insert(5));
        for found in [first, second] {
            let scan = history.ask_scan("scanner", at(1), 0..=u64::MAX);
            history.answer_scan(scan, at(2), 0..=u64::MAX, if found { vec![(5, 5)] } else { vec![] });
        }
        let read = history.ask("reader", at(3), 5, Call::Get);
        history.answer(read, at(4), Answer::Found(get));
        assert_eq!(history.check().is_ok(), fine, "{first} {second} {get:?}");
    }
}

/// A scan without an answer proves nothing, and one that stopped early proves nothing about keys after its
/// end.
#[test]
fn half_scans() {
    let history = History::default();
    history.begin_with([(1, 1), (2, 2), (3, 3)]);
    let _ = history.ask_scan("one", at(0), 1..=3);
    let stopped = history.ask_scan("two", at(0), 1..=3);
    history.answer_scan(stopped, at(1), 1..=2, vec![(1, 1), (2, 2)]);
    let checked = history.check().unwrap();
    assert_eq!((checked.keys, checked.answered, checked.unknown), (2, 2, 0));
}
