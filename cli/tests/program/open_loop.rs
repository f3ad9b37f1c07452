//! `bench --rate` and `--ramp`, for clients of both kinds.

use crate::common::processes::{Role, bench, cluster_file_like};
use crate::common::run;

#[test]
fn loads_begin_at_their_times_and_what_is_too_much_is_said() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file_like(folder.path(), &["topology", "example", "single"]);
    let cluster = file.to_str().expect("a plain path");
    let up = Role::start(&["up", cluster, "--serve", "queries", "--keys", "5000"]);
    up.until("ready");
    for protocol in ["roce", "query"] {
        // So little that any machine keeps up; a busy one begins some operations late.
        let result = bench(cluster, &["--protocol", protocol, "--rate", "200", "--operations", "400"]);
        assert_eq!((&result["operations"], &result["wrong"]), (&400.into(), &0.into()), "{result}");
        let step = &result["load"][0];
        assert_eq!(step["intended_per_s"], 200.0, "{result}");
        assert!(result["seconds"].as_f64().is_some_and(|seconds| seconds > 1.9), "{result}");

        // A thousand million a second are too many for any.
        let result = bench(cluster, &["--protocol", protocol, "--rate", "1e9", "--operations", "5000"]);
        assert_eq!(result["load"][0]["kept_up"], false, "{result}");
    }

    let picture = folder.path().join("ramp.svg");
    let picture = picture.to_str().expect("a plain path");
    let words =
        ["--cluster", cluster, "--operations", "1000", "--workload", "a", "--ramp", "--picture", picture];
    let output = run(&[&["bench"], &words[..]].concat());
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains(" 10 % ") && said.contains("0 wrong, 0 failed"), "{said}");
    let svg = std::fs::read_to_string(picture).expect("it was drawn");
    assert!(svg.starts_with("<svg") && svg.contains("p99.9"), "{svg}");

    for (arguments, why) in [
        (&["--rate", "0"][..], "expected operations a second such as 5000"),
        (&["--rate", "fast"], "expected operations a second such as 5000"),
        (&["--rate", "5", "--depth", "3"], "cannot be used with"),
        (&["--rate", "5", "--ramp"], "cannot be used with"),
        (&["--picture", "ramp.svg"], "--ramp"),
        (&["--ramp", "--picture", "no/such/ramp.svg"], "cannot be written"),
    ] {
        let refused = run(&[&["bench", "--cluster", cluster, "--operations", "10"], arguments].concat());
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(why), "{arguments:?}: {said}");
    }
    assert!(up.stop("INT").success());
}
