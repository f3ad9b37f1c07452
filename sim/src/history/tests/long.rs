//! Long histories are checked soon.

use rand::RngExt as _;
use rand::seq::SliceRandom as _;

use crate::history::check::{Timed, Verdict, check};
use crate::history::{Answer, Call};
use crate::world::{Random, random};

/// A right history of `clients` clients, each with one operation after the other. Each operation happens at a moment
/// between its call and its answer. Some are slow, some have no answer.
fn history(draw: &mut Random, length: usize, clients: usize, unknown: f64, slow: u64) -> Vec<Timed> {
    let mut free = vec![0u64; clients];
    let mut planned = Vec::new();
    for number in 0..length {
        let client = draw.random_range(0..clients);
        let asked = free[client] + draw.random_range(1..50);
        let span = if draw.random_bool(0.01) { slow } else { 100 };
        let moment = asked + draw.random_range(1..=span);
        let answered = moment + draw.random_range(1..=span);
        free[client] = answered;
        planned.push((moment, asked, answered, number as u64));
    }
    planned.sort_unstable();
    let mut state = None;
    let mut all = Vec::new();
    for (_, asked, answered, number) in planned {
        let value = number + 1;
        let call = match draw.random_range(0..10) {
            0..5 => Call::Get,
            5 => Call::Insert(value),
            6 => Call::Update(value),
            7 => Call::Upsert(value),
            8 => Call::CompareAndSet { expected: state.unwrap_or(1), new: value },
            _ => Call::Delete,
        };
        let (new, applied) = call.apply(state);
        let answer = if call == Call::Get { Answer::Found(state) } else { Answer::of(applied) };
        let known = draw.random_bool(1.0 - unknown);
        if known || draw.random_bool(0.5) {
            state = new;
        }
        // Times that no two share.
        let (asked, answered) = (asked * (1 << 20) + number, answered * (1 << 20) + (1 << 19) + number);
        all.push(Timed { asked, call, answered: known.then_some((answered, answer)) });
    }
    all.shuffle(draw);
    all
}

#[test]
fn many_operations_on_one_key() {
    for (seed, length, clients, unknown, slow) in [
        (1, 20_000, 4, 0.0, 100),
        (2, 5_000, 16, 0.0, 100),
        (3, 3_000, 8, 0.01, 100),
        (4, 2_000, 8, 0.0, 100_000),
        (5, 1_000, 8, 0.1, 10_000),
    ] {
        let draw = &mut random(seed, 0);
        let mut right = history(draw, length, clients, unknown, slow);
        assert_eq!(check(None, &right), Verdict::Explained, "seed {seed}");
        // A value that was never written, in the middle.
        let gets: Vec<usize> = (0..right.len())
            .filter(|&number| right[number].call == Call::Get && right[number].answered.is_some())
            .collect();
        let wrong = gets[gets.len() / 2];
        right[wrong].answered = right[wrong].answered.map(|(at, _)| (at, Answer::Found(Some(1 << 40))));
        assert_eq!(check(None, &right), Verdict::Unexplained, "seed {seed}");
    }
}

/// Many operations without an answer, and an answer that nothing explains: all ways to use them must be gone through, and they are
/// few, because most of them are the same.
#[test]
fn many_operations_without_an_answer() {
    let open = |number: u64, call| Timed { asked: number, call, answered: None };
    let done =
        |number: u64, call, answer| Timed { asked: number, call, answered: Some((number + 1, answer)) };
    let mut all = Vec::new();
    // Twelve whose values a client has seen, or compared with.
    for number in 0..12 {
        all.push(open(number, Call::Upsert(1 + number)));
        all.push(done(
            10_000 + 2 * number,
            Call::CompareAndSet { expected: 1 + number, new: 99 },
            Answer::NotApplied,
        ));
    }
    // Many that are all the same.
    for number in 0..100 {
        all.push(open(100 + number, Call::Upsert(1_000 + number)));
        all.push(open(300 + number, Call::Delete));
    }
    for number in 0..20 {
        // Between each two of them one of the deletes took effect.
        all.push(done(1_000 + 10 * number, Call::Insert(5_000 + number), Answer::Applied));
    }
    assert_eq!(check(None, &all), Verdict::Explained);
    all.push(done(20_000, Call::Get, Answer::Found(Some(77))));
    assert_eq!(check(None, &all), Verdict::Unexplained);
}
