//! Plans on disk: what a controller that is started again must know of the epoch in force.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use fatbtree_controller::operator::SavedPlan;
use fatbtree_controller::{Incarnations, Plan};

use crate::NodeError;

/// A folder with a file for each epoch that may be found in force.
#[derive(Debug)]
pub(super) struct StateFolder(PathBuf);

/// A plan as it is kept.
pub(super) fn saved(plan: &Plan, made_of: &Incarnations) -> SavedPlan {
    let plan = serde_json::from_str(&plan.to_json()).expect("a plan's JSON is JSON");
    SavedPlan { made_of: made_of.clone(), plan }
}

/// The plan of what was kept.
pub(super) fn plan_of(saved: &SavedPlan) -> Result<Plan, String> {
    Plan::from_json(&saved.plan.to_string()).map_err(|error| error.to_string())
}

impl StateFolder {
    /// Opens a folder, or makes it; gives the plans in it. A file that cannot be read is left out, with a warning.
    pub(super) fn open(folder: &Path) -> Result<(Self, Vec<(Plan, Incarnations)>), NodeError> {
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
    pub(super) fn keep(&self, plan: &Plan, made_of: &Incarnations, stay: &[u8]) -> io::Result<()> {
        let kept = self.try_to_keep(plan, made_of, stay);
        if kept.is_err() {
            // Another plan of this epoch must not be taken for it.
            let _ = fs::remove_file(self.0.join(format!("epoch-{}.json", plan.epoch())));
        }
        kept
    }

    fn try_to_keep(&self, plan: &Plan, made_of: &Incarnations, stay: &[u8]) -> io::Result<()> {
        // A [`SavedPlan`]; a plan is large, and is not turned into a tree of values and back on the way.
        let (made_of, text) = (serde_json::to_string(made_of)?, plan.to_json());
        let mut file = tempfile::NamedTempFile::new_in(&self.0)?;
        write!(file, "{{\"made_of\":{made_of},\"plan\":{text}}}")?;
        file.flush()?;
        file.as_file().sync_all()?;
        file.persist(self.0.join(format!("epoch-{}.json", plan.epoch())))?;
        self.forget_but(&[stay, &[plan.epoch()]].concat())
    }
}

fn epoch_of(path: &Path) -> Option<u8> {
    path.file_name()?.to_str()?.strip_prefix("epoch-")?.strip_suffix(".json")?.parse().ok()
}

fn read(path: &Path) -> Result<(Plan, Incarnations), String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let saved: SavedPlan = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    Ok((plan_of(&saved)?, saved.made_of))
}
