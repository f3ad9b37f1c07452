//! Data folders that were restored or damaged: what is refused, and what the refusal says.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::processes::Role;
use crate::common::spread::{load, single, structure_file};
use crate::common::{refused, run};

/// Puts a copy of a folder in the place of another one.
fn replace(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir_all(to).expect("a folder is made");
    for file in fs::read_dir(from).expect("the folder is there") {
        let file = file.expect("it is read");
        fs::copy(file.path(), to.join(file.file_name())).expect("a file is copied");
    }
}

/// A cluster of two servers with folders.
struct Cluster {
    folder: tempfile::TempDir,
    file: String,
    structure: &'static str,
}

impl Cluster {
    fn new(structure: &'static str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = structure_file(folder.path(), structure).to_str().expect("a plain path").to_owned();
        Self { folder, file, structure }
    }

    fn data(&self, server: &str) -> PathBuf {
        self.folder.path().join("data").join(server)
    }

    fn aside(&self, server: &str) -> PathBuf {
        self.folder.path().join("aside").join(server)
    }

    /// Runs the cluster while `work` is done, and stops it cleanly.
    fn run(&self, work: impl FnOnce(&str)) {
        let data = self.folder.path().join("data");
        let up = Role::start(&["up", &self.file, "--data", data.to_str().expect("a plain path")]);
        up.until("ready");
        work(&self.file);
        assert!(up.stop("INT").success());
    }
}

/// Lets a server be restored from a copy of an earlier moment, alone and with the other one.
fn restored_alone_and_together(structure: &'static str) {
    let cluster = Cluster::new(structure);
    let put = |file: &str, value: &str| {
        for key in 0..40_u64 {
            let key = key.wrapping_mul(0x0765_4321_0fed_cba9).to_string();
            assert_eq!(single(file, &["put", &key, value]).0, Some(0), "{structure}");
        }
    };
    cluster.run(|file| {
        load(file, &["--keys", "2000"]);
        put(file, "former");
    });
    for server in ["left", "right"] {
        replace(&cluster.data(server), &cluster.aside(server));
    }
    cluster.run(|file| put(file, "latter"));
    let latter = cluster.folder.path().join("latter");
    replace(&cluster.data("left"), &latter);

    // One of them from an older copy: every client is refused, however often the servers are started.
    for server in ["left", "right"] {
        let newer = cluster.folder.path().join("newer");
        replace(&cluster.data(server), &newer);
        replace(&cluster.aside(server), &cluster.data(server));
        for _ in 0..2 {
            cluster.run(|file| {
                let output = run(&["get", "0", "--cluster", file]);
                let text = String::from_utf8_lossy(&output.stderr).into_owned();
                let is_named =
                    text.contains(&format!("memory server {server} was restored from an older copy"));
                assert!(
                    is_named && output.stdout.is_empty(),
                    "{structure}: {:?}: {text}",
                    output.status.code()
                );
                assert!(text.matches(" UTC").count() == 2 && text.contains("copies of one moment"), "{text}");
                refused(
                    &["bench", "--cluster", file, "--operations", "1"],
                    &format!("memory server {server} was restored from an older copy"),
                );
            });
        }
        replace(&newer, &cluster.data(server));
    }
    // The folder of the last run again: nothing was lost.
    cluster.run(|file| assert_eq!(single(file, &["get", "0"]), (Some(0), "latter".to_owned())));
    // All of one moment.
    for server in ["left", "right"] {
        replace(&cluster.aside(server), &cluster.data(server));
    }
    cluster.run(|file| {
        assert_eq!(single(file, &["get", "0"]), (Some(0), "former".to_owned()));
        put(file, "again");
    });
    // One alone again, and loaded anew.
    replace(&latter, &cluster.data("left"));
    cluster.run(|file| {
        refused(&["bench", "--cluster", file, "--operations", "1"], "was restored from an older copy");
        load(file, &["--keys", "100", "--replace"]);
        put(file, "anew");
        assert_eq!(single(file, &["get", "0"]), (Some(0), "anew".to_owned()));
    });
    damaged(&cluster);
}

/// Flips one bit of the used part of a stopped server's region, many times: no start serves it.
fn damaged(cluster: &Cluster) {
    let left = cluster.data("left");
    let whole = cluster.folder.path().join("whole");
    replace(&left, &whole);
    let tree = fs::read_dir(&left).expect("the folder is there").filter_map(Result::ok);
    let mut trees = tree.filter(|file| file.file_name().to_string_lossy().starts_with("tree-"));
    let tree = trees.next().expect("there is a region").path();
    let bytes = fs::read(&tree).expect("it is read");
    let used: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at] != 0).collect();
    let data = left.to_str().expect("a plain path");
    for number in 0..24_usize {
        let at = used[(number * 0x9e37_79b1) % used.len()];
        let mut flipped = bytes.clone();
        flipped[at] ^= 1 << (number % 8);
        fs::write(&tree, &flipped).expect("it is written");
        refused(
            &[
                "memserver",
                "left",
                "--cluster",
                &cluster.file,
                "--structure",
                cluster.structure,
                "--data",
                data,
            ],
            "are not what they were when the server stopped; starting again is of no use",
        );
        replace(&whole, &left);
    }
    cluster.run(|file| assert_eq!(single(file, &["get", "0"]), (Some(0), "anew".to_owned())));
}

#[test]
fn a_hash_table() {
    restored_alone_and_together("hash");
}

#[test]
fn a_dolphin_index() {
    restored_alone_and_together("dolphin");
}

#[test]
fn trees() {
    restored_alone_and_together("tree");
}
