//! Input of a load: keys that are counted, a file of keys, a CSV file of keys and values, or a trace.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Error, Result, bail};
use fatbtree_blink::value;
use fatbtree_blink_host::sort_keys;
use fatbtree_memserver::grpc::LoadData;

use crate::records::{Pairs, has_values, keys_of, pairs_of};
use crate::{count, memserver, room};

/// Source of keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Source {
    Count(u64),
    Keys(PathBuf),
    Csv(PathBuf),
    Trace(PathBuf),
}

impl FromStr for Source {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if count::parse(text).is_some() {
            let count = count::positive(text).map_err(Error::msg)?;
            return Ok(Self::Count(count));
        }
        let path = PathBuf::from(text);
        if !path.exists() {
            bail!("--keys {text}: neither a count such as 4711, 1e6 or 2M, nor a file");
        }
        Ok(if has_values(&path) { Self::Csv(path) } else { Self::Keys(path) })
    }
}

/// Keys, strictly ascending, and their values.
#[derive(Debug)]
pub(super) struct Input {
    keys: Vec<u64>,
    values: Values,
}

#[derive(Debug)]
enum Values {
    Made {
        seed: u64,
        bytes: u32,
    },
    Read(Pairs),
    /// Bytes of each value.
    Sized {
        seed: u64,
        bytes: Vec<u32>,
    },
}

impl Input {
    pub(super) fn read(source: &Source, seed: u64, value_bytes: u32) -> Result<Self> {
        let values = Values::Made { seed, bytes: value_bytes };
        Ok(match source {
            Source::Count(count) => {
                // The memory servers look after themselves; here are the keys.
                room::check(*count, 1, 8)?;
                let mut keys: Vec<u64> = memserver::hashed_keys(*count).collect();
                sort_keys(&mut keys)?;
                Self { keys, values }
            }
            Source::Keys(path) => {
                let mut keys = keys_of(path)?.into_keys();
                sort_keys(&mut keys)?;
                Self { keys, values }
            }
            Source::Csv(path) => {
                let pairs = pairs_of(path)?;
                Self { keys: pairs.keys().collect(), values: Values::Read(pairs) }
            }
            Source::Trace(path) => {
                let trace = crate::trace::read(path)?;
                let (keys, bytes): (Vec<u64>, Vec<u32>) = trace.preloaded().unzip();
                if keys.is_empty() {
                    bail!(nothing_to_load(path));
                }
                Self { keys, values: Values::Sized { seed, bytes } }
            }
        })
    }
}

/// Message for a trace without keys that are there at first.
pub(super) fn nothing_to_load(path: &Path) -> String {
    format!(
        "--trace {}: each of its keys is set before it is read, so there is nothing to load; run it on empty memory servers",
        path.display()
    )
}

impl Input {
    /// Bytes of all values together.
    pub(super) fn value_bytes(&self) -> u64 {
        (0..self.keys.len()).map(|at| u64::from(self.length(at))).sum()
    }
}

impl LoadData for Input {
    fn keys(&self) -> &[u64] {
        &self.keys
    }

    fn length(&self, at: usize) -> u32 {
        match &self.values {
            Values::Made { bytes, .. } => *bytes,
            Values::Read(pairs) => pairs.value(at).len() as u32,
            Values::Sized { bytes, .. } => bytes[at],
        }
    }

    fn append(&self, at: usize, to: &mut Vec<u8>) {
        match &self.values {
            Values::Made { seed, .. } | Values::Sized { seed, .. } => {
                let from = to.len();
                to.resize(from + self.length(at) as usize, 0);
                value::fill(self.keys[at], *seed, &mut to[from..]);
            }
            Values::Read(pairs) => to.extend_from_slice(pairs.value(at)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, text: &str) -> Result<Input> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("it is written");
        Input::read(&path.to_str().expect("plain").parse()?, 7, 16)
    }

    fn values(input: &Input) -> Vec<(u64, Vec<u8>)> {
        let value = |at| {
            let mut bytes = vec![];
            input.append(at, &mut bytes);
            assert_eq!(bytes.len(), input.length(at) as usize);
            (input.keys[at], bytes)
        };
        (0..input.keys.len()).map(value).collect()
    }

    #[test]
    fn counts_are_told_from_files() {
        assert_eq!("2k".parse::<Source>().expect("a count"), Source::Count(2000));
        for (text, reason) in [("0", "expected a number"), ("nowhere.txt", "nor a file"), ("1e99", "64 bits")]
        {
            let error = text.parse::<Source>().expect_err(text).to_string();
            assert!(error.contains(reason), "{error}");
        }
        let input = Input::read(&Source::Count(1000), 7, 16).expect("they fit");
        assert!(input.keys.is_sorted_by(|a, b| a < b) && input.keys.len() == 1000);
    }

    #[test]
    fn keys_are_read_and_sorted_and_their_values_made() {
        let input = read("keys.txt", "9\n0x1_0\n\n 3 \r\n9\n18446744073709551615\n").expect("they are keys");
        assert_eq!(input.keys, [3, 9, 16, u64::MAX]);
        assert!(values(&input).iter().all(|(key, bytes)| value::check(*key, 7, bytes) && bytes.len() == 16));
    }

    #[test]
    fn values_are_read_with_their_keys() {
        let input = read("people.CSV", "key,value\n7,seven\n0x2,\"two\nand more\"\n5,\n").expect("it is CSV");
        let expected = [(2, &b"two\nand more"[..]), (5, b""), (7, b"seven")];
        assert_eq!(values(&input), expected.map(|(key, value)| (key, value.to_vec())));
    }
}
