//! Seeds of their own.

use super::{Aim, Scenario};

#[test]
fn a_seed_decides_everything() {
    let [one, other] = [3, 3].map(|seed| Scenario::from_seed(seed).run());
    assert_eq!(format!("{one:?}"), format!("{other:?}"));
    assert!(one.is_ok(), "{one:?}");
}

/// A client died in a merge when the new leaf was linked and the upper one was, too. The new leaf was split, so the upper one was in no
/// range of a merge any more, and operations on its keys waited for ever. The new leaf is linked last now.
#[test]
fn a_merge_that_is_left_half_done_is_completed() {
    for seed in [101_561, 107_965] {
        let outcome = Scenario::from_seed(seed).run();
        assert!(outcome.is_ok(), "seed {seed}: {outcome:?}");
    }
}

/// Whatever switches hold, answers are right: leaves that were split, merged or moved since, or are not linked yet, and places that
/// are none.
#[test]
fn clients_that_are_led_astray_answer_right() {
    for (seed, aim) in (0..60).zip([Aim::Splits, Aim::Merges, Aim::Bursts, Aim::All].into_iter().cycle()) {
        let low = [0, 4][seed as usize / 4 % 2];
        let unlinked = seed / 8 % 2 == 1;
        let scenario = Scenario { cache: 0, unlinked, ..Scenario::aimed(seed, aim) };
        let outcome = scenario.led(Some(low)).run();
        assert!(outcome.as_ref().is_ok_and(|outcome| outcome.answered > 0), "seed {seed}: {outcome:?}");
    }
}
