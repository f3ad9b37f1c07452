//! The checker against a slow judge that tries all orders.

use proptest::prelude::*;

use crate::history::check::{Timed, Verdict, check};
use crate::history::{Answer, Call};

/// Tries every order of the operations, and every choice of those without an answer.
fn judge(state: Option<u64>, left: &mut Vec<Timed>) -> bool {
    if left.iter().all(|operation| operation.answered.is_none()) {
        return true;
    }
    for number in 0..left.len() {
        let next = left.remove(number);
        let in_time =
            left.iter().all(|other| other.answered.is_none_or(|(answered, _)| next.asked < answered));
        let state = match next.answered {
            Some((_, answer)) => next.call.explain(answer, state),
            None => Some(next.call.apply(state).0),
        };
        let explained = in_time && state.is_some_and(|state| judge(state, left));
        left.insert(number, next);
        if explained {
            return true;
        }
    }
    false
}

fn call(value: u64) -> impl Strategy<Value = Call> {
    let old = 1u64..4;
    prop_oneof![
        3 => Just(Call::Get),
        2 => Just(Call::Insert(value)),
        2 => Just(Call::Update(value)),
        2 => Just(Call::Upsert(value)),
        2 => old.prop_map(move |expected| Call::CompareAndSet { expected, new: value }),
        2 => Just(Call::Delete),
    ]
}

fn answer() -> impl Strategy<Value = Answer> {
    let found = || prop::option::of(1u64..8);
    prop_oneof![
        found().prop_map(Answer::Found),
        Just(Answer::Applied),
        Just(Answer::NotApplied),
        found().prop_map(Answer::AppliedOver),
        found().prop_map(Answer::NotAppliedFor),
    ]
}

/// An operation of an execution: its call, the times before and after its moment, and three draws. These decide
/// whether it is answered, whether it happens if not, and how much the answer tells.
type Step = (Call, u64, u64, u8, bool, bool);

fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    // Values of their own, as simulations have them; comparisons are with earlier ones often enough.
    let step = |number: u64| (call(number), 0u64..60, 0u64..60, 0u8..10, any::<bool>(), any::<bool>());
    (0..=most as u64).prop_flat_map(move |count| (1..=count).map(step).collect::<Vec<_>>())
}

/// Carries the steps out one after the other, and lets each be asked before and answered after its moment.
fn execute(initial: Option<u64>, steps: &[Step], unknown: u8) -> Vec<Timed> {
    let mut state = initial;
    let mut all = Vec::new();
    for (number, &(call, before, after, known, happens, tells)) in (0u64..).zip(steps) {
        let moment = 100 + number * 10;
        // Two of a kind at one time would leave their order open.
        let asked = (moment - before) * 128 + number;
        if known < unknown {
            if happens {
                state = call.apply(state).0;
            }
            all.push(Timed { asked, call, answered: None });
            continue;
        }
        let (new, applied) = call.apply(state);
        let answer = match (call, tells, applied) {
            (Call::Get, ..) => Answer::Found(state),
            (_, true, true) => Answer::AppliedOver(state),
            (_, true, false) => Answer::NotAppliedFor(state),
            (_, false, _) => Answer::of(applied),
        };
        state = new;
        all.push(Timed { asked, call, answered: Some(((moment + after) * 128 + 64 + number, answer)) });
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Operations that happened one after the other are explained.
    #[test]
    fn what_happened_is_accepted(steps in steps(40), initial in prop::option::of(1u64..3), unknown in 0u8..5) {
        let history = execute(initial, &steps, unknown);
        prop_assert_eq!(check(initial, &history), Verdict::Explained);
    }

    /// A right history of which one thing was changed is judged as the judge does.
    #[test]
    fn changed_histories_are_judged_right(
        steps in steps(6),
        unknown in 0u8..5,
        at in any::<prop::sample::Index>(),
        changed in answer(),
        moved in -4_000i64..4_000,
    ) {
        let mut history = execute(None, &steps, unknown);
        if !history.is_empty() {
            let number = at.index(history.len());
            let operation = &mut history[number];
            operation.asked = operation.asked.saturating_add_signed(moved);
            operation.answered = operation.answered.map(|(at, _)| (at.max(operation.asked + 1), changed));
        }
        let expected = judge(None, &mut history.clone());
        prop_assert_eq!(check(None, &history) == Verdict::Explained, expected, "{:?}", history);
    }

    /// Random histories are judged right, too.
    #[test]
    fn random_histories_are_judged_right(
        all in prop::collection::vec(
            (0u64..40, 1u64..20, (1u64..6).prop_flat_map(call), answer(), 0u8..10),
            0..8,
        ),
        unknown in 0u8..9,
    ) {
        let history: Vec<Timed> = (0u64..)
            .zip(all)
            .map(|(number, (asked, span, call, answer, known))| {
                // Answers that the call can give, mostly: else all is nonsense.
                let answer = match (call, answer) {
                    (Call::Get, Answer::AppliedOver(found) | Answer::NotAppliedFor(found)) => Answer::Found(found),
                    (Call::Get, Answer::Applied) => Answer::Found(Some(5)),
                    (Call::Get, Answer::NotApplied) => Answer::Found(None),
                    (_, Answer::Found(_)) => Answer::Applied,
                    (_, answer) => answer,
                };
                let answered = (known >= unknown).then_some(((asked + span) * 128 + 64 + number, answer));
                Timed { asked: asked * 128 + number, call, answered }
            })
            .collect();
        let expected = judge(None, &mut history.clone());
        prop_assert_eq!(check(None, &history) == Verdict::Explained, expected, "{:?}", history);
    }
}

/// The properties above mean something: of the histories that they judge many are right and many are wrong.
#[test]
fn the_judge_says_both() {
    use proptest::strategy::ValueTree as _;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let (mut accepted, mut all) = (0, 0);
    for _ in 0..500 {
        let strategy = (steps(6), 0u8..5, any::<prop::sample::Index>(), answer());
        let (steps, unknown, at, changed) = strategy.new_tree(&mut runner).unwrap().current();
        let mut history = execute(None, &steps, unknown);
        if history.is_empty() {
            continue;
        }
        let operation = at.index(history.len());
        history[operation].answered = history[operation].answered.map(|(at, _)| (at, changed));
        accepted += u32::from(judge(None, &mut history));
        all += 1;
    }
    assert!(accepted * 5 > all && accepted * 5 < all * 4, "{accepted} of {all} are right");
}
