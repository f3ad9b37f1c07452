//! Seeds of their own.

use super::Scenario;

#[test]
fn a_seed_decides_everything() {
    let [one, other] = [3, 3].map(|seed| Scenario::from_seed(seed).run());
    assert_eq!(format!("{one:?}"), format!("{other:?}"));
    assert!(one.is_ok(), "{one:?}");
}
