//! Keys that a bench asks for, and the values that they were loaded with.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, bail};
use fatbtree_workload::ycsb::{InsertOrder, KeyFile, KeyMap, WorkloadSpec};
use fatbtree_workload::{ScanParts, Values};

use crate::count;
use crate::records::{Pairs, has_values, keys_of, pairs_of};

/// The keys that the memory servers were loaded with.
pub(super) enum Keys {
    /// Keys of YCSB.
    Hashed,
    /// Keys of a file, with their values if the file has some.
    Of { name: String, file: Arc<KeyFile>, pairs: Option<Pairs> },
}

impl Keys {
    /// Reads the file that was loaded; without a file, keys are those of YCSB.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(super) fn read(path: Option<&Path>) -> Result<Self> {
        let Some(path) = path else { return Ok(Self::Hashed) };
        let name = path.display().to_string();
        let (file, pairs) = match has_values(path) {
            true => {
                let pairs = pairs_of(path)?;
                (KeyFile::from(pairs.keys().collect::<Vec<_>>()), Some(pairs))
            }
            false => (keys_of(path)?, None),
        };
        Ok(Self::Of { name, file: file.into(), pairs })
    }

    /// Map from the numbers of records to keys.
    pub(super) fn map(&self) -> KeyMap {
        match self {
            Self::Hashed => KeyMap::Hashed,
            Self::Of { file, .. } => KeyMap::File(Arc::clone(file)),
        }
    }

    /// Refuses a workload that does not go with these keys, of which the servers hold so many.
    pub(super) fn check(&self, workload: &str, spec: &WorkloadSpec, records: u64) -> Result<()> {
        match self {
            Self::Hashed if spec.insert_order != InsertOrder::Hashed => {
                bail!("--workload {workload}: insertorder=ordered, but memory servers load hashed keys")
            }
            Self::Hashed => Ok(()),
            Self::Of { .. } if spec.proportions.insert > 0.0 => bail!(
                "--workload {workload} inserts, and all keys of a file are loaded: use one that does not, such as a, b, c or f"
            ),
            Self::Of { name, file, .. } if file.keys().len() as u64 != records => bail!(
                "--keys {name}: it has {}, the memory servers were loaded with {records}; give the file that they were loaded with",
                count::of(file.keys().len() as u64, "key")
            ),
            Self::Of { .. } => Ok(()),
        }
    }

    /// Whether the file has their values as well.
    pub(super) fn have_values(&self) -> bool {
        matches!(self, Self::Of { pairs: Some(_), .. })
    }

    /// Message for the case that the servers do not have the first of these keys.
    pub(super) fn are_missing(&self) -> String {
        match self {
            Self::Hashed => "the memory servers hold other keys than YCSB's: give these with --keys FILE, and --workload c, which only reads; or \
                             measure on other servers, because a load replaces what these hold"
                .to_owned(),
            Self::Of { name, .. } => format!(
                "--keys {name}: the memory servers were loaded with other keys; give the file that they were loaded with"
            ),
        }
    }

    /// All keys, ascending.
    pub(super) fn sorted(&self, records: u64) -> Vec<u64> {
        let map = self.map();
        let mut keys: Vec<u64> = (0..records).filter_map(|record| map.key(record)).collect();
        keys.sort_unstable();
        keys
    }

    /// Division of a scan into parts.
    pub(super) fn parts(&self, parts: u16, records: u64) -> ScanParts {
        let width = match self {
            Self::Hashed => u64::MAX,
            Self::Of { file, .. } => {
                let (first, last) = (file.keys().iter().min(), file.keys().iter().max());
                last.zip(first).map_or(0, |(last, first)| last - first)
            }
        };
        ScanParts { count: parts, spacing: (width / records.max(1)).max(1) }
    }

    /// The values that the keys have, if they were not made.
    pub(super) fn loaded_with(self, values: Values) -> Values {
        match self {
            Self::Of { pairs: Some(pairs), .. } => {
                values.loaded_with(move |key, bytes| pairs.value_of(key) == Some(bytes))
            }
            _ => values,
        }
    }
}
