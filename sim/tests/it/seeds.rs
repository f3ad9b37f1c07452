//! A thousand seeds of the whole path: every lookup is answered right.

use fatbtree_sim::Scenario;
use fatbtree_sim::seeds::{Campaign, Seeds};

#[test]
fn every_seed_is_answered() {
    let report = Campaign::default().run(Seeds::fixed(1_000), |seed| Scenario::from_seed(seed).run());
    let total = report.into_result().unwrap_or_else(|failures| panic!("{failures}"));

    // Safety holds trivially where nothing happens: the seeds must have been rough, and lookups answered all the same.
    println!("{total:?}");
    assert!(total.faults.iter().all(|count| *count > 1_000), "too few faults: {total:?}");
    assert!(
        total.reloads > 500
            && total.reconnections > 10
            && total.refused_index_reads > 10
            && total.lapsed > 10,
        "too calm: {total:?}"
    );
    assert_eq!((total.wrong, total.failed), (0, 0), "{total:?}");
}

#[test]
fn a_seed_replays_itself() {
    for seed in [3, 77, 512] {
        let once = Scenario::from_seed(seed).run().unwrap();
        let again = Scenario::from_seed(seed).run().unwrap();
        assert_eq!(once, again, "seed {seed} gave two different runs");
    }
}
