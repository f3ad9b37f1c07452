//! Clients on real threads, killed and born again.

use fatbtree_sim::threads::{Options, run};

#[test]
fn threads_that_are_killed_lose_nothing_that_was_acknowledged() {
    for seed in 1..=2 {
        let options = Options { seed, ..Options::default() };
        let report = run(&options).unwrap_or_else(|failure| panic!("{failure}"));
        let kills = u64::from(options.kills) * u64::from(options.threads);
        assert_eq!(report.killed, kills, "{report:?}");
        assert!(report.lapsed >= kills, "killed clients close no sessions: {report:?}");
        assert!(report.splits > 0 && report.merges > 0 && report.cut_short > 0, "{report:?}");
        assert_eq!(report.keys, options.keys, "all are written in the end");
    }
}
