//! What befalls the folders that memory servers keep their trees in: a disk that is full, or loses what was not synced, and damage while a
//! server is stopped.

#![allow(clippy::print_stdout, reason = "what was drawn, and how long it took")]

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fatbtree_processes::ClientProcess;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

use crate::common::fatbtree;
use crate::common::processes::{Role, client_options};
use crate::common::repository::root;

/// Bytes of the small disk: twice what the trees take.
const DISK: &str = "192m";
/// Bytes of a value that is inserted while the disk is full.
const VALUE: usize = 1000;
/// Insertions after which a full disk must have refused one: far more than all chunks that servers give out beforehand.
const MOST_INSERTS: u64 = 200_000;
/// Name of the client that inserts. The one that asks is another host.
const WRITER: &str = "writer";
/// A server that refuses its folder says so at once.
const PATIENCE: Duration = Duration::from_secs(30);

/// The disk that folders lie on.
pub(crate) struct Disk {
    /// Whether folders are damaged.
    damages: bool,
    /// A process whose mount namespace has the disk, where it is not that of the machine.
    keeper: Option<Role>,
    /// Whether this disk loses what was not synced; otherwise it is small.
    loses: bool,
}

/// What fills a disk. It is removed with this.
pub(crate) struct Filled(PathBuf);

impl Drop for Filled {
    fn drop(&mut self) {
        // Where it cannot be removed the next round finds the disk full, and says so.
        let _ = fs::remove_file(&self.0);
    }
}

impl Disk {
    /// A small disk at `data`, if that is `wanted` and possible.
    pub(crate) fn wanted(wanted: bool, data: &Path) -> Self {
        if !wanted {
            println!("FATBTREE_CHAOS_FOLDERS is not 1: no folder is damaged, and the disk is not filled");
            return Self { damages: false, keeper: None, loses: false };
        }
        let may_mount = Command::new("unshare").args(["-m", "true"]).stderr(Stdio::null()).status();
        if !may_mount.is_ok_and(|status| status.success()) {
            println!(
                "the disk is not filled: a small one cannot be mounted (that takes root, and unshare of util-linux)"
            );
            return Self { damages: true, keeper: None, loses: false };
        }
        let mut command = Command::new("unshare");
        let script = "mount -t tmpfs -o size=$2 tmpfs \"$1\" && echo mounted && exec sleep infinity";
        command.args(["-m", "--propagation", "private", "sh", "-c", script, "sh"]);
        let keeper = Role::of({
            command.arg(data).arg(DISK);
            command
        });
        keeper.until("mounted");
        Self { damages: true, keeper: Some(keeper), loses: false }
    }

    /// A disk at `data` that loses what was not synced when its power is [cut](Self::cut). That takes root.
    pub(crate) fn losing(data: &Path, seed: u64) -> Self {
        let mut command = Command::new("unshare");
        let script = root().join("scripts/losing_disk.py");
        command.args(["-m", "--propagation", "private", "python3"]).arg(script).arg(data);
        command.arg(seed.to_string()).stdin(Stdio::piped());
        let keeper = Role::of(command);
        keeper.until("ready");
        Self { damages: false, keeper: Some(keeper), loses: true }
    }

    /// Whether its power can be cut.
    pub(crate) fn loses(&self) -> bool {
        self.loses
    }

    /// Cuts the power of these folders at one moment.
    pub(crate) fn cut(&self, names: &[&str]) {
        let keeper = self.keeper.as_ref().expect("it is a losing disk");
        keeper.tell(&format!("cut {}", names.join(" ")));
        println!("  {}", keeper.until("cut"));
    }

    pub(crate) fn damages(&self) -> bool {
        self.damages
    }

    pub(crate) fn is_small(&self) -> bool {
        self.keeper.is_some() && !self.loses
    }

    /// The program with these arguments, where it sees the disk.
    fn command(&self, arguments: &[&str]) -> Command {
        let program = fatbtree();
        let Some(keeper) = &self.keeper else {
            let mut program = program;
            program.args(arguments);
            return program;
        };
        let mut command = Command::new("nsenter");
        command.args(["-t", &keeper.id().to_string(), "-m"]).arg(program.get_program()).args(arguments);
        command
    }

    /// A path on the disk as this process reaches it.
    fn seen(&self, path: &Path) -> PathBuf {
        match &self.keeper {
            Some(keeper) => PathBuf::from(format!("/proc/{}/root{}", keeper.id(), path.display())),
            None => path.to_owned(),
        }
    }

    /// Starts a cluster whose trees lie on the disk.
    pub(crate) fn start_up(&self, cluster: &str, data: &Path) -> Role {
        let data = data.to_str().expect("a plain path");
        // Clients look for all that was acknowledged.
        let sync: &[&str] = if self.loses { &["--sync", "0"] } else { &[] };
        Role::of(self.command(&[&["up", cluster, "--keys", "20000", "--data", data], sync].concat()))
    }

    /// Fills the disk to its last block.
    pub(crate) fn fill(&self, data: &Path) -> Filled {
        let path = self.seen(&data.join("filler"));
        let mut file = File::create(&path).expect("a file on the disk");
        let filled = Filled(path);
        for block in [1 << 20, 1 << 12] {
            let block = vec![0xa5_u8; block];
            while file.write_all(&block).is_ok() {}
        }
        filled
    }

    /// Inserts keys until one is refused: the disk is full. What was refused says why.
    pub(crate) fn insert_until_refused(&self, file: &Path, first: u64) {
        let mut process = writer(file);
        let client = process.client().clone();
        let inserted = process.run(async {
            for number in 0..MOST_INSERTS {
                if let Err(error) = client.upsert(first + number, &[7; VALUE]).await {
                    let found = client.get(first).await;
                    assert!(matches!(found, Ok(Some(_))) || number == 0, "reads go on: {found:?}");
                    return Some((number, error.to_string()));
                }
            }
            None
        });
        let refused = inserted.expect("the client is not stopped");
        let (number, why) = refused.expect("a full disk refuses insertions");
        println!("  the disk is full: after {number} insertions {why}");
        assert!(why.contains("no more memory") || why.contains("no room"), "{why}");
    }

    /// Inserts a key: there is room again. Servers may need a moment to notice.
    pub(crate) fn insert_again(&self, file: &Path, key: u64) {
        let mut process = writer(file);
        let (client, began) = (process.client().clone(), Instant::now());
        while let Err(error) = process.run(client.upsert(key, &[8; VALUE])).expect("it is not stopped") {
            assert!(began.elapsed() < PATIENCE, "there is room again, but: {error}");
            process.run_for(Duration::from_millis(100)).expect("it is not stopped");
        }
    }

    /// Damages the folder of a memory server that is stopped, sees that the server refuses it by the name of the file, and puts the
    /// folder back as it was.
    pub(crate) fn damage_and_restore(
        &self,
        cluster: &str,
        folder: &Path,
        server: &str,
        random: &mut ChaCha8Rng,
    ) {
        let (seen, copy) = (self.seen(folder), tempfile::tempdir().expect("a temporary folder"));
        let files: Vec<PathBuf> = fs::read_dir(&seen)
            .expect("the server has a folder")
            .map(|entry| entry.expect("it can be read").path())
            .filter(|path| path.is_file())
            .collect();
        let saved = |path: &Path| copy.path().join(path.file_name().expect("a file has a name"));
        files.iter().for_each(|path| copy_sparse(path, &saved(path)));
        let damaged = damage(&files, random);
        let folder_name = folder.to_str().expect("a plain path");
        let arguments = ["memserver", server, "--cluster", cluster, "--data", folder_name];
        let mut child = self.command(&arguments);
        let mut child = child.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
        let began = Instant::now();
        let status = loop {
            match child.try_wait().expect("it is ours") {
                Some(status) => break status,
                None if began.elapsed() > PATIENCE => {
                    let _ = child.kill();
                    panic!("{server} serves a folder in which {damaged} is damaged");
                }
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let mut text = String::new();
        let stderr = child.stderr.as_mut().expect("piped");
        stderr.read_to_string(&mut text).expect("text");
        println!("  {server} refuses it: {}", text.trim());
        assert!(!status.success() && text.contains(&damaged), "expected {damaged} to be named: {text}");
        for path in fs::read_dir(&seen).expect("it is still there").flatten().map(|entry| entry.path()) {
            if path.is_file() {
                fs::remove_file(&path).expect("it is removed");
            }
        }
        files.iter().for_each(|path| copy_sparse(&saved(path), path));
    }
}

/// The cluster file's text with one more client.
pub(crate) fn with_writer(text: &str) -> String {
    format!("{text}\n[[client]]\nname = \"{WRITER}\"\nhost = \"host-1-1-0\"\n")
}

/// A client in this process.
fn writer(file: &Path) -> ClientProcess {
    ClientProcess::open(&client_options(file, Some(WRITER))).expect("the servers run")
}

/// Flips bytes in a file, or cuts it. Says which.
fn damage(files: &[PathBuf], random: &mut ChaCha8Rng) -> String {
    let of = |start: &str| {
        let name = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
        let found = files
            .iter()
            .find_map(|path| Some((path, name(path)?)).filter(|(_, name)| name.starts_with(start)));
        found.unwrap_or_else(|| panic!("there is no {start} in the folder"))
    };
    let (path, name) = match random.random_range(0..4) {
        0 => of("state.json"),
        _ => of("tree-"),
    };
    let mut file = OpenOptions::new().read(true).write(true).open(path).expect("it can be opened");
    let len = file.metadata().expect("it has a length").len();
    if random.random_bool(0.3) {
        file.set_len(len / 2).expect("it is cut");
        return name;
    }
    // The superblock, and what a node is known by in the header of the first leaf; or the beginning of a text.
    let at = if name.starts_with("tree-") { random.random_range(0..64 + 4) } else { 0 };
    let mut bytes = [0; 8];
    file.seek(SeekFrom::Start(at)).expect("it is long enough");
    file.read_exact(&mut bytes).expect("it is long enough");
    bytes.iter_mut().for_each(|byte| *byte ^= random.random_range(1..=u8::MAX));
    file.seek(SeekFrom::Start(at)).expect("it is long enough");
    file.write_all(&bytes).expect("it is written");
    name
}

/// Copies a file, but takes no room for what is zero: regions are mostly that.
fn copy_sparse(from: &Path, to: &Path) {
    let (mut source, mut target) =
        (File::open(from).expect("it can be read"), File::create(to).expect("it can be written"));
    let len = source.metadata().expect("it has a length").len();
    let mut block = vec![0; 1 << 16];
    let mut at = 0;
    while at < len {
        let part = &mut block[..(len - at).min(1 << 16) as usize];
        source.read_exact(part).expect("it can be read");
        if part.iter().any(|byte| *byte != 0) {
            target.seek(SeekFrom::Start(at)).expect("files are long enough");
            target.write_all(part).expect("there is room for what was there");
        }
        at += part.len() as u64;
    }
    target.set_len(len).expect("it is as long");
}
