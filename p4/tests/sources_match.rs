//! What is in `build/` came from the sources beside it.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn sources() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for part in [".", "include"] {
        for entry in std::fs::read_dir(folder().join(part)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "p4") {
                let name = Path::new(part).join(path.file_name().unwrap());
                let name = name.strip_prefix(".").unwrap_or(&name).display().to_string();
                let digest = Sha256::digest(std::fs::read(&path).unwrap());
                found.insert(name, digest.iter().map(|byte| format!("{byte:02x}")).collect());
            }
        }
    }
    found
}

#[test]
fn the_compiled_programs_are_of_these_sources() {
    let wrong = "the P4 sources are not those that p4/build was compiled from";
    assert_eq!(recorded("build/sources.sha256"), sources(), "{wrong}: run p4/compile.sh and commit both");
}

/// The compiler for Tofino takes long to build. Where it has not seen the sources yet, a page says what that means, and where it has, none.
#[test]
fn the_programs_for_tofino_are_of_these_sources_or_a_page_says_how_far_they_are_behind() {
    let is_behind = recorded("build/tofino/sources.sha256") != sources();
    let page = folder().join("build/tofino/BEHIND.md");
    assert_eq!(
        is_behind,
        page.exists(),
        "run p4/compile_tofino.sh, or say in {} what is not compiled",
        page.display()
    );
}

/// The hashes that a compilation has noted.
fn recorded(file: &str) -> BTreeMap<String, String> {
    std::fs::read_to_string(folder().join(file))
        .unwrap()
        .lines()
        .map(|line| line.split_once("  ").expect("a hash, two spaces, a path"))
        .map(|(hash, name)| (name.to_owned(), hash.to_owned()))
        .collect()
}

#[test]
fn the_program_names_every_table_of_the_design() {
    let program: serde_json::Value = serde_json::from_str(fatbtree_p4::PROGRAM).unwrap();
    let tables: Vec<&str> = program["pipelines"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|pipeline| pipeline["tables"].as_array().unwrap())
        .map(|table| table["name"].as_str().unwrap())
        .collect();
    let mut expected = vec!["roce_connection", "core_route", "partition_route", "ipv4_route", "last_hop"]
        .into_iter()
        .map(str::to_owned)
        .collect::<Vec<_>>();
    expected.extend((0..4).map(|stage| format!("fat_root_{stage}")));
    for set in ["node_set_a", "node_set_b", "node_set_c"] {
        for step in ["coarse", "fine"] {
            expected.push(format!("{set}.{step}"));
            expected.push(format!("{set}.{step}_whole"));
            expected.extend((1..=3).map(|i| format!("{set}.{step}_compare_{i}")));
        }
        expected.push(format!("{set}.run"));
        expected.push(format!("{set}.child"));
    }
    for name in expected {
        assert!(
            tables.iter().any(|table| table.ends_with(&format!(".{name}"))),
            "no table {name}: {tables:?}"
        );
    }
}
