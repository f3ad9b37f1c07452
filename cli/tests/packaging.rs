//! `packaging/`: units call the program as it is, and what the package lists is there.

mod common;
#[path = "common/processes.rs"]
mod processes;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::fatbtree;
use processes::{Role, cluster_file_like};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate has a folder").to_owned()
}

fn units() -> Vec<(String, String)> {
    let folder = fs::read_dir(root().join("packaging/systemd")).expect("a folder");
    let paths = folder.map(|entry| entry.expect("it can be read").path()).filter(|path| path.is_file());
    let name = |path: &Path| path.file_name().and_then(|name| name.to_str()).expect("UTF-8").to_owned();
    paths.map(|path| (name(&path), fs::read_to_string(&path).expect("text"))).collect()
}

/// The command line of the unit for a role of the example.
fn line(unit: &str, role: &str) -> String {
    let units = units();
    let (_, text) = units.iter().find(|(name, _)| name == unit).expect("the unit is there");
    let line =
        text.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/fatbtree ")).expect("a line");
    line.replace("%i", role).replace(" $OPTIONS", "")
}

#[test]
fn units_start_the_roles_of_a_cluster() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = cluster_file_like(folder.path(), &["topology", "example", "single"]);
    let (file, state) = (file.to_str().expect("plain"), folder.path().to_str().expect("plain"));
    for (unit, role, ready) in [
        ("fatbtree-switch@.service", "switch-0", "waits for a controller"),
        ("fatbtree-memserver@.service", "left", "gRPC on"),
        ("fatbtree-controller.service", "controller", "controller on"),
    ] {
        let line =
            line(unit, role).replace("/etc/fatbtree/cluster.toml", file).replace("/var/lib/fatbtree", state);
        let role = Role::start(&line.split(' ').collect::<Vec<_>>());
        role.until(ready);
        assert!(role.stop("TERM").success(), "{unit}: {line}");
    }
}

#[test]
fn systemd_understands_the_units() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = fatbtree().get_program().to_str().expect("a plain path").to_owned();
    for (name, text) in units() {
        let text = text.replace("ExecStart=/usr/bin/fatbtree", &format!("ExecStart={program}"));
        fs::write(folder.path().join(name), text).expect("a file");
    }
    let common = "fatbtree-.service.d";
    fs::create_dir(folder.path().join(common)).expect("a folder");
    let from = root().join("packaging/systemd").join(common).join("common.conf");
    fs::copy(from, folder.path().join(common).join("common.conf")).expect("it is there");
    let mut command = Command::new("systemd-analyze");
    command.args(["verify", "--man=no", "fatbtree-switch@core-0.service", "fatbtree-memserver@left.service"]);
    command
        .arg("fatbtree-controller.service")
        .env("SYSTEMD_UNIT_PATH", format!("{}:", folder.path().display()));
    match command.output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success() && !said.contains("fatbtree"), "{said}");
        }
        Err(error) => eprintln!("SKIPPED: no systemd-analyze here: {error}"),
    }
}

/// cargo-deb replaces `target/release` by the folder of the profile; what lies in `packaging` there is made by `packaging/deb.sh`.
#[test]
fn what_the_package_lists_is_there() {
    let text = fs::read_to_string(root().join("cli/Cargo.toml")).expect("text");
    let section =
        text.split("\nassets = [\n").nth(1).and_then(|rest| rest.split("\n]").next()).expect("assets");
    let script = fs::read_to_string(root().join("packaging/deb.sh")).expect("text");
    for line in section.lines() {
        let path = line.trim().strip_prefix("[\"").and_then(|rest| rest.split('"').next()).expect("a path");
        if let Some(made) = path.strip_prefix("target/release/packaging/") {
            let made = made.trim_start_matches("man/*");
            assert!(script.contains(made.trim_end_matches(".gz")), "deb.sh does not make {path}");
        } else if let Some(kept) = path.strip_prefix("../") {
            let fixed = kept.split('*').next().expect("a beginning");
            assert!(root().join(fixed).exists(), "{path} is not there");
        } else {
            assert_eq!(path, "target/release/fatbtree");
        }
    }
    let container = fs::read_to_string(root().join("packaging/Containerfile")).expect("text");
    assert!(container.contains("--profile dist") && script.contains("--profile dist"));
}
