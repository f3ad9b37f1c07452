//! Plans on disk, and the bid under which they are kept: what a controller that is started again must know of the active epoch.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use fatbtree_controller::election::Bid;
use fatbtree_controller::operator::SavedPlan;
use fatbtree_controller::{Generations, Plan};

use crate::NodeError;

/// A folder with a file for each epoch that may be found active, and one with the bid of the controller that kept them.
#[derive(Debug)]
pub(super) struct StateFolder(PathBuf);

/// The file with the bid: an election id, in decimal digits.
const BID: &str = "bid";

/// A plan as it is kept.
pub(super) fn saved(plan: &Plan, source: &Generations) -> SavedPlan {
    let plan = serde_json::from_str(&plan.to_json()).expect("a plan's JSON is JSON");
    SavedPlan { source: source.clone(), plan }
}

/// The plan of what was kept.
pub(super) fn plan_of(saved: &SavedPlan) -> Result<Plan, String> {
    Plan::from_json(&saved.plan.to_string()).map_err(|error| error.to_string())
}

impl StateFolder {
    /// Opens a folder, or makes it; gives the plans in it. A file that cannot be read is left out, with a warning.
    pub(super) fn open(folder: &Path) -> Result<(Self, Vec<(Plan, Generations)>), NodeError> {
        let failed = |source| NodeError::State { folder: folder.to_owned(), source };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        let mut plans = Vec::new();
        for entry in fs::read_dir(folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if epoch_of(&path).is_none() {
                continue;
            }
            match read(&path) {
                Ok(plan) => plans.push(plan),
                Err(error) => tracing::warn!(file = %path.display(), error, "a saved plan is left out"),
            }
        }
        Ok((Self(folder.to_owned()), plans))
    }

    /// The bid under which the plans of a folder were kept. Without it, or if it cannot be read, none of them counts.
    pub(super) fn last_bid(folder: &Path) -> Option<Bid> {
        let file = folder.join(BID);
        let bid = match fs::read_to_string(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => Err(error.to_string()),
            Ok(text) => text
                .trim()
                .parse()
                .map_err(|error: std::num::ParseIntError| format!("expected an election id: {error}")),
        };
        bid.map(Bid::of)
            .inspect_err(
                |error| tracing::warn!(file = %file.display(), error, "the saved plans are left out"),
            )
            .ok()
    }

    /// Keeps the bid of a controller that begins to lead, before any switch has seen it. Plans of other controllers are forgotten by then.
    pub(super) fn keep_bid(&self, bid: Bid) -> io::Result<()> {
        self.replace(BID, format_args!("{}\n", bid.election_id(0)))
    }

    /// Forgets all plans.
    pub(super) fn forget(&self) -> io::Result<()> {
        self.forget_but(&[])
    }

    fn forget_but(&self, stay: &[u8]) -> io::Result<()> {
        for entry in fs::read_dir(&self.0)? {
            let path = entry?.path();
            if epoch_of(&path).is_some_and(|epoch| !stay.contains(&epoch)) {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    /// An error with the folder's name.
    pub(super) fn error(&self, source: io::Error) -> NodeError {
        NodeError::State { folder: self.0.clone(), source }
    }

    /// Keeps a plan before the first of its entries is written, and forgets those of other epochs than `stay`.
    pub(super) fn keep(&self, plan: &Plan, source: &Generations, stay: &[u8]) -> io::Result<()> {
        let kept = self.try_to_keep(plan, source, stay);
        if kept.is_err() {
            // Another plan of this epoch must not be taken for it.
            let _ = fs::remove_file(self.0.join(format!("epoch-{}.json", plan.epoch())));
        }
        kept
    }

    fn try_to_keep(&self, plan: &Plan, source: &Generations, stay: &[u8]) -> io::Result<()> {
        // A [`SavedPlan`]; a plan is large, and is not turned into a tree of values and back on the way.
        let (source, text) = (serde_json::to_string(source)?, plan.to_json());
        let file = format!("epoch-{}.json", plan.epoch());
        self.replace(&file, format_args!("{{\"source\":{source},\"plan\":{text}}}"))?;
        self.forget_but(&[stay, &[plan.epoch()]].concat())
    }

    /// Replaces a file as a whole: after a crash of the machine, too, it is the old one or the new one, and the new one once this returns.
    fn replace(&self, name: &str, content: fmt::Arguments<'_>) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(&self.0)?;
        file.write_fmt(content)?;
        file.as_file().sync_all()?;
        file.persist(self.0.join(name))?;
        File::open(&self.0)?.sync_all()
    }
}

fn epoch_of(path: &Path) -> Option<u8> {
    path.file_name()?.to_str()?.strip_prefix("epoch-")?.strip_suffix(".json")?.parse().ok()
}

fn read(path: &Path) -> Result<(Plan, Generations), String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let saved: SavedPlan = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    Ok((plan_of(&saved)?, saved.source))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use fatbtree_controller::election::Candidate;

    use super::*;

    #[test]
    fn a_bid_is_kept_as_a_whole_and_a_damaged_one_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        assert_eq!(StateFolder::last_bid(&path), None, "there is no folder yet");
        let (state, _) = StateFolder::open(&path).unwrap();
        assert_eq!(StateFolder::last_bid(&path), None, "it is new");
        for (term, address) in [(1, "127.0.0.1:9690"), (Bid::LAST_TERM, "[::1]:9690"), (7, "0.0.0.0:9690")] {
            let address: SocketAddr = address.parse().unwrap();
            let bid = Bid { term, candidate: Candidate::new(address, u16::MAX) };
            state.keep_bid(bid).unwrap();
            assert_eq!(StateFolder::last_bid(&path), Some(bid));
        }
        state.forget().unwrap();
        assert!(StateFolder::last_bid(&path).is_some(), "plans are forgotten, not the bid");
        for damaged in ["", "-1", "seven", "340282366920938463463374607431768211456"] {
            fs::write(path.join(BID), damaged).unwrap();
            assert_eq!(StateFolder::last_bid(&path), None, "{damaged:?}");
        }
        let files = fs::read_dir(&path).unwrap().count();
        assert_eq!(files, 1, "nothing else is left behind");
    }
}
