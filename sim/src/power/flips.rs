//! Flipped bits: a server's folder is damaged between its end and its next start.
//!
//! A client writes, and the server ends: it stops, which leaves checksums of all files, or its process is killed, which leaves none. Then bits
//! of the folder's files are flipped, and a server is started from it. The start is refused, and the refusal says *damaged*; or each operation
//! of a client has a right answer, or an error that says *damaged*. None of them waits: damage does not go away. Damage of the journal's end
//! cannot be told from a write that a power failure has torn. So values are right that a key has had since the last sync.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use fatbtree_remote_memory::{Change, StructureClient as _};
use fatbtree_verbs::time::Duration;
use rand::RngExt as _;
use serde::Serialize;
use tempfile::TempDir;

use super::kinds::{Dolphin, Hash, HashOfBytes, Structure, Tree, TreeOfBytes, change, get};
use super::run::{self, Left, client, value};
use super::{Kind, Scenario};
use crate::world::{Random, random};

/// Times that a folder is damaged. Each begins with the files as the server has left them.
const TRIALS: u64 = 8;
/// Longest time of an operation on a damaged structure.
const LONGEST: Duration = Duration::from_secs(1);
/// Time within which a client of a damaged structure has asked for all keys.
const SOON: Duration = Duration::from_secs(60);

counters! {
    /// What a run has seen.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
    pub struct Outcome {
        /// Folders that were damaged.
        pub folders: u64,
        /// Bits that were flipped.
        pub bits: u64,
        /// Starts that were refused, after a stop and after a kill.
        pub refused: u64,
        /// Starts among them after a kill, where no checksums of all files are left.
        pub refused_after_kill: u64,
        /// Folders whose server was started, and of which a client was told that they are damaged.
        pub told: u64,
        /// Operations that were told so.
        pub errors: u64,
        /// Right answers of servers that were started.
        pub answers: u64,
    }
}

/// Runs a seed: a folder, damaged some times.
///
/// # Errors
/// A wrong answer, an error that does not say *damaged*, or an operation that waits.
pub fn run(seed: u64) -> Result<Outcome, String> {
    let scenario = Scenario::from_seed(seed);
    match scenario.kind {
        Kind::Tree => run_of::<Tree>(&scenario),
        Kind::Hash => run_of::<Hash>(&scenario),
        Kind::Dolphin => run_of::<Dolphin>(&scenario),
        Kind::TreeOfBytes => run_of::<TreeOfBytes>(&scenario),
        Kind::HashOfBytes => run_of::<HashOfBytes>(&scenario),
    }
}

fn run_of<S: Structure>(scenario: &Scenario) -> Result<Outcome, String> {
    let mut draw = random(scenario.seed, 160);
    let home = TempDir::new().map_err(|error| error.to_string())?;
    let left = run::write_for_a_while::<S>(scenario, home.path())?;
    let is_stopped = draw.random_range(0..3) == 0;
    if is_stopped || draw.random_bool(0.5) {
        // Of a killed server too, as if its journal had just been applied: then nothing is written over what is damaged.
        S::end(home.path(), 0, is_stopped).map_err(|error| error.to_string())?;
    }
    let files: Result<BTreeMap<_, _>, _> = fs::read_dir(home.path())
        .and_then(|entries| {
            let mut files = BTreeMap::new();
            for entry in entries {
                let entry = entry?;
                files.insert(entry.file_name().to_string_lossy().into_owned(), fs::read(entry.path())?);
            }
            Ok(files)
        })
        .map_err(|error| error.to_string());
    let files = files?;
    let mut outcome = Outcome::default();
    for trial in 0..TRIALS {
        let mut damaged = files.clone();
        let bits = flip(&mut damaged, &mut draw);
        let folder = TempDir::new().map_err(|error| error.to_string())?;
        for (name, bytes) in &damaged {
            fs::write(folder.path().join(name), bytes).map_err(|error| error.to_string())?;
        }
        let end = if is_stopped { "a stop" } else { "a kill" };
        let found = start::<S>(folder.path(), scenario.seed ^ trial << 32, &left);
        let found = found.map_err(|error| format!("trial {trial}, {end}, bits {bits:?}: {error}"))?;
        outcome.folders += 1;
        outcome.bits += bits.len() as u64;
        outcome.errors += found.errors;
        outcome.answers += found.answers;
        outcome.refused += u64::from(found.is_refused);
        outcome.refused_after_kill += u64::from(found.is_refused && !is_stopped);
        outcome.told += u64::from(found.errors > 0);
    }
    Ok(outcome)
}

/// A bit that was flipped: file, byte, bit.
type Bit = (String, usize, u8);

/// Flips some bits in some files, most of them in what was written.
fn flip(files: &mut BTreeMap<String, Vec<u8>>, draw: &mut Random) -> Vec<Bit> {
    let kinds: &[&str] = match draw.random_range(0..10) {
        0..6 => &["tree-"],
        6..8 => &["journal-"],
        8 => &["state.json", "chunks-", "sums-"],
        _ => &["tree-", "journal-", "chunks-"],
    };
    let names: Vec<String> =
        files.keys().filter(|name| kinds.iter().any(|kind| name.starts_with(kind))).cloned().collect();
    let written: Vec<Vec<usize>> = names
        .iter()
        .map(|name| (0..files[name].len()).filter(|&at| files[name][at] != 0).collect())
        .collect();
    let count = [1, 1, 2, 8, 64][draw.random_range(0..5)];
    let flip_one = |_| {
        let file = draw.random_range(0..names.len());
        let (bytes, written) = (files.get_mut(&names[file])?, &written[file]);
        let is_anywhere = written.is_empty() || draw.random_range(0..8) == 0;
        let at = match is_anywhere {
            true => draw.random_range(0..bytes.len().max(1)),
            false => written[draw.random_range(0..written.len())],
        };
        let bit = draw.random_range(0..8);
        *bytes.get_mut(at)? ^= 1 << bit;
        Some((names[file].clone(), at, bit))
    };
    (0..count).filter_map(flip_one).collect()
}

/// What was found in a damaged folder.
#[derive(Default)]
struct Found {
    is_refused: bool,
    errors: u64,
    answers: u64,
}

/// Starts a server, and has a client read, write and read again.
fn start<S: Structure>(folder: &Path, seed: u64, left: &Left) -> Result<Found, String> {
    let mut found = Found::default();
    let content = match S::found(folder, 0) {
        Ok(content) => content.ok_or("the folder is taken for an empty one")?,
        Err(error) => {
            found.is_refused = true;
            return says_damaged(&error.to_string()).map(|()| found);
        }
    };
    let world = run::world(seed);
    let server = run::Server::<S>::start(&world, content)?;
    let (machine, client) = client(&world, &[server], seed, |_| ());
    let (keys, clock) = (run::keys(), machine.clone());
    let task = machine.spawn(async move {
        let mut answers = Vec::new();
        if let Err(error) = client.ready().await {
            return vec![(0, Asked::Opened, Err(error.to_string()), Duration::ZERO)];
        }
        for asked in [Asked::Read, Asked::Written, Asked::ReadAgain] {
            for &key in &keys {
                let began = clock.now();
                let answer = match asked {
                    Asked::Written => {
                        change::<S>(&client, key, Change::Upsert(&value(key))).await.map(|()| None)
                    }
                    _ => get::<S>(&client, key).await,
                };
                answers.push((key, asked, answer, clock.now().saturating_since(began)));
            }
        }
        answers
    });
    let ended = world.run_until(|| task.has_ended(), SOON);
    ended.map_err(|stuck| format!("a client does not end: {stuck}"))?;
    let mut written = BTreeSet::new();
    for (key, asked, answer, took) in task.take().ok_or("the machine lives")? {
        let at = |error: String| format!("key {key}, {asked:?}: {error}");
        if took > LONGEST {
            return Err(at(format!("{answer:?} after {took:?}")));
        }
        let now = match answer {
            Ok(now) => now,
            Err(error) => {
                says_damaged(&error).map_err(at)?;
                found.errors += 1;
                continue;
            }
        };
        found.answers += 1;
        match asked {
            Asked::Written => _ = written.insert(key),
            // A write that was told of damage may have been carried out.
            Asked::ReadAgain if now == Some(value(key)) => {}
            Asked::ReadAgain if written.contains(&key) => {
                return Err(at("it was written, and has another value".to_owned()));
            }
            _ => _ = left.check(key, now.as_deref()).map_err(at)?,
        }
    }
    Ok(found)
}

/// What a client asks for.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Opened,
    Read,
    Written,
    ReadAgain,
}

fn says_damaged(error: &str) -> Result<(), String> {
    match error.contains("damaged") {
        true => Ok(()),
        false => Err(format!("an error that does not say damaged: {error}")),
    }
}
