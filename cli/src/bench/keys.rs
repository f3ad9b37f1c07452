//! Keys that a bench asks for, and the values that they were loaded with.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use fatbtree_workload::byte_keys::{ByteKeys, MOST_MADE_BYTES};
use fatbtree_workload::ycsb::{InsertOrder, KeyFile, KeyMap, Workload, WorkloadSpec};
use fatbtree_workload::{Names, ScanParts, Values};

use super::process::{Key, Measured};
use super::{Arguments, ramp};
use crate::records::{Pairs, byte_keys_of, has_values, keys_of, pairs_of};
use crate::{count, room};

/// The keys that the memory servers were loaded with.
pub(super) enum Keys {
    /// Keys of YCSB.
    Hashed,
    /// Keys of a file, with their values if the file has some.
    Of { name: String, file: Arc<KeyFile>, pairs: Option<Pairs> },
    /// Keys of bytes that were made, by their numbers.
    Made(ByteKeys),
    /// Keys of bytes of a file, with their values if the file has some.
    BytesOf { name: String, pairs: Pairs<Vec<u8>>, have_values: bool },
}

/// Keys of bytes, each by its number among the names.
pub(super) struct Numbered {
    pub(super) names: Arc<Names>,
    /// The numbers of the loaded keys, and of those that the run may insert.
    pub(super) file: Arc<KeyFile>,
}

impl Keys {
    /// Reads the file that was loaded. Without a file, keys are those of YCSB, or, if they are bytes, of the shape that the command line names.
    ///
    /// # Errors
    /// When the file cannot be read, or the shape is not for these keys.
    pub(super) fn read(arguments: &Arguments, are_bytes: bool) -> Result<Self> {
        let Arguments { keys, key_shape, seed, .. } = arguments;
        if key_shape.is_given() && !are_bytes {
            bail!("--key-shape is for keys of bytes, and those of the memory servers are numbers");
        }
        if keys.is_some() && key_shape.is_given() {
            bail!("--key-shape is for keys that `load` has made: leave it out, or --keys");
        }
        let path = match keys.as_deref() {
            None if are_bytes => return Ok(Self::Made(key_shape.keys(*seed))),
            None => return Ok(Self::Hashed),
            Some(path) => path,
        };
        let name = path.display().to_string();
        if are_bytes {
            let (pairs, have_values) = byte_keys_of(path)?;
            return Ok(Self::BytesOf { name, pairs, have_values });
        }
        let (file, pairs) = match has_values(path) {
            true => {
                let pairs = pairs_of(path)?;
                (KeyFile::from(pairs.keys().collect::<Vec<_>>()), Some(pairs))
            }
            false => (keys_of(path)?, None),
        };
        Ok(Self::Of { name, file: file.into(), pairs })
    }

    /// The name of the file and the number of its keys, if they are of a file.
    fn file(&self) -> Option<(&str, u64)> {
        match self {
            Self::Of { name, file, .. } => Some((name, file.keys().len() as u64)),
            Self::BytesOf { name, pairs, .. } => Some((name, pairs.len() as u64)),
            Self::Hashed | Self::Made(_) => None,
        }
    }

    /// Number of these keys that the memory servers were loaded with. Keys that clients have put are not counted by them: whether those of a file
    /// are there is seen from the first, and others are looked for.
    ///
    /// # Errors
    /// When a memory server does not answer.
    pub(super) fn records(&self, process: &mut dyn Measured) -> Result<u64> {
        match (process.loaded(), self.file(), self) {
            (Some(0) | None, Some((_, keys)), _) => Ok(keys),
            (Some(0) | None, None, Self::Made(made)) => {
                search(|record| is_there(process, Key::Bytes(&made.key(record))))
            }
            (Some(loaded), ..) => Ok(loaded),
            (None, ..) => {
                let map = self.map(None);
                search(|record| map.key(record).map_or(Ok(false), |key| is_there(process, Key::Number(key))))
            }
        }
    }

    /// Names for keys of bytes: of `records` that are loaded, and of those that a run with this random number may insert.
    ///
    /// # Errors
    /// When they do not fit into memory.
    pub(super) fn numbered(
        &self,
        records: u64,
        run: u64,
        spec: &WorkloadSpec,
        arguments: &Arguments,
    ) -> Result<Option<Numbered>> {
        let (names, numbers) = match self {
            Self::Hashed | Self::Of { .. } => return Ok(None),
            Self::BytesOf { pairs, .. } => Names::of((0..pairs.len()).map(|at| pairs.key(at))),
            Self::Made(made) => {
                let (new, first) = (most_inserts(spec, arguments), first_insert(records, run));
                room::check(records + new, 1, MOST_MADE_BYTES as u64)?;
                Names::of((0..records).chain(first..first + new).map(|record| made.key(record)))
            }
        };
        Ok(Some(Numbered { names: names.into(), file: Arc::new(numbers.into()) }))
    }

    /// Map from the numbers of records to keys.
    pub(super) fn map(&self, numbered: Option<&Numbered>) -> KeyMap {
        match (self, numbered) {
            (Self::Of { file, .. }, _) | (_, Some(Numbered { file, .. })) => KeyMap::File(Arc::clone(file)),
            _ => KeyMap::Hashed,
        }
    }

    /// Has a workload of `records` insert keys that no other run inserts.
    pub(super) fn inserting(&self, workload: Workload, records: u64, run: u64) -> Workload {
        match self {
            // The names of its inserts are in the map already.
            Self::Made(_) => workload,
            _ => workload.inserting_from(first_insert(records, run)),
        }
    }

    /// Refuses a workload that does not go with these keys, of which the servers hold so many.
    pub(super) fn check(&self, workload: &str, spec: &WorkloadSpec, records: u64) -> Result<()> {
        match (self, self.file()) {
            (Self::Hashed, _) if spec.insert_order != InsertOrder::Hashed => {
                bail!("--workload {workload}: insertorder=ordered, but memory servers load hashed keys")
            }
            (_, None) => Ok(()),
            (_, Some(_)) if spec.proportions.insert > 0.0 => bail!(
                "--workload {workload} inserts, and all keys of a file are loaded: use one that does not, such as a, b, c or f"
            ),
            (_, Some((name, keys))) if keys != records => bail!(
                "--keys {name}: it has {}, the memory servers were loaded with {records}; give the file that they were loaded with",
                count::of(keys, "key")
            ),
            (_, Some(_)) => Ok(()),
        }
    }

    /// Whether the file has their values as well.
    pub(super) fn have_values(&self) -> bool {
        matches!(self, Self::Of { pairs: Some(_), .. } | Self::BytesOf { have_values: true, .. })
    }

    /// Message for the case that the servers were loaded with none of these keys.
    pub(super) fn are_absent(&self, cluster: &Path) -> String {
        let cluster = cluster.display();
        match self {
            Self::Made(made) => format!(
                "the memory servers do not hold the key {}: give --key-shape and --seed of the load, or, if it was one of your own keys, these \
                 with --keys FILE. If they are empty: fatbtree load --cluster {cluster} --keys 1e6 --key-type bytes",
                made.key(0).escape_ascii()
            ),
            _ => format!(
                "the memory servers hold no keys that were loaded. If they are empty: fatbtree load --cluster {cluster} --keys 1e6. If they \
                 hold keys of your own, give these with --keys FILE, such as `fatbtree scan .. --csv` writes, and --workload c, which only reads"
            ),
        }
    }

    /// Message for the case that the servers do not have the first of these keys.
    pub(super) fn are_missing(&self, cluster: &Path) -> String {
        match (self, self.file()) {
            (_, Some((name, _))) => format!(
                "--keys {name}: the memory servers were loaded with other keys; give the file that they were loaded with"
            ),
            (Self::Made(_), _) => self.are_absent(cluster),
            _ => "the memory servers hold other keys than YCSB's: give these with --keys FILE, and --workload c, which only reads; or \
                  measure on other servers, because a load replaces what these hold"
                .to_owned(),
        }
    }

    /// Division of a scan into parts.
    pub(super) fn parts(&self, parts: u16, records: u64) -> ScanParts {
        let width = match self {
            Self::Hashed => u64::MAX,
            Self::Of { file, .. } => {
                let (first, last) = (file.keys().iter().min(), file.keys().iter().max());
                last.zip(first).map_or(0, |(last, first)| last - first)
            }
            Self::Made(_) | Self::BytesOf { .. } => {
                return ScanParts { count: parts, spacing: Names::SPACING };
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
            Self::BytesOf { pairs, have_values: true, .. } => {
                let names = values.names().cloned();
                values.loaded_with(move |key, bytes| {
                    let name = names.as_ref().and_then(|names| names.name_of(key));
                    name.and_then(|name| pairs.value_of_bytes(name)) == Some(bytes)
                })
            }
            _ => values,
        }
    }
}

/// The keys of the first `records` of a map, ascending.
pub(super) fn sorted(map: &KeyMap, records: u64) -> Vec<u64> {
    let mut keys: Vec<u64> = (0..records).filter_map(|record| map.key(record)).collect();
    keys.sort_unstable();
    keys
}

/// The first record that a run inserts: 2³¹ numbers for each of 2³² runs.
fn first_insert(records: u64, run: u64) -> u64 {
    records.saturating_add((run >> 32) << 31)
}

/// Inserts that a run may make: those to expect, and ten times their standard deviation.
fn most_inserts(spec: &WorkloadSpec, arguments: &Arguments) -> u64 {
    let sum: f64 = spec.proportions.as_array().iter().sum();
    let ramp: u32 = if arguments.ramp { ramp::shares().sum() } else { 0 };
    let operations = arguments.operations as f64 * f64::from(100 + ramp) / 100.0;
    let expected = operations * spec.proportions.insert / sum;
    (expected + 10.0 * expected.sqrt()).min(operations).ceil() as u64
}

/// Whether a key is there.
fn is_there(process: &mut dyn Measured, key: Key<'_>) -> Result<bool> {
    let found = process.find(key)?;
    found.map(|value| value.is_some()).context("looking for the keys that are there")
}

/// Number of records that are there, from the first one on: they are looked for in halves, because a load inserts all of them, and workloads
/// insert others far beyond.
fn search(mut is_there: impl FnMut(u64) -> Result<bool>) -> Result<u64> {
    let (mut least, mut above) = (0, 1_u64);
    while is_there(above - 1)? {
        least = above;
        above = above.saturating_mul(2);
    }
    while above - least > 1 {
        let middle = least + (above - least) / 2;
        match is_there(middle - 1)? {
            true => least = middle,
            false => above = middle,
        }
    }
    Ok(least)
}
