//! Runs one after the other, and side by side: none of them knows what another has written.

mod common;
#[path = "common/processes.rs"]
mod processes;

use common::run;
use processes::{Role, bench, cluster_file};

#[test]
fn runs_that_write_follow_one_another_and_run_side_by_side() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file(folder.path());
    let cluster = file.to_str().expect("a plain path");
    let text = std::fs::read_to_string(&file).expect("the file");
    let second = "\n[[client]]\nname = \"second\"\nhost = \"host-2-0-0\"\n";
    std::fs::write(&file, text + second).expect("the file is written");
    let up = Role::start(&["up", cluster, "--keys", "5000"]);
    up.until("ready");
    let right = |further: &[&str]| {
        let result = bench(cluster, further);
        assert_eq!((&result["wrong"], &result["failed"]), (&0.into(), &0.into()), "{further:?}: {result}");
    };
    for workload in ["a", "c", "e", "e", "d", "d", "f"] {
        right(&["--workload", workload]);
    }
    // Both update the same hot keys, and insert.
    for workload in ["a", "d"] {
        std::thread::scope(|scope| {
            for client in ["client", "second"] {
                scope.spawn(move || {
                    right(&["--client", client, "--workload", workload, "--operations", "10000"]);
                });
            }
        });
    }
    // What was loaded is still told from other values.
    let lying = run(&["bench", "--cluster", cluster, "--operations", "1000", "--seed", "1"]);
    assert_eq!(lying.status.code(), Some(1));
    let short =
        run(&["bench", "--cluster", cluster, "--operations", "1", "--workload", "a", "--value-bytes", "8"]);
    let refused = String::from_utf8_lossy(&short.stderr).into_owned();
    assert!(refused.contains("at least 16 bytes to say who wrote it"), "{refused}");
    assert!(up.stop("INT").success());
}
