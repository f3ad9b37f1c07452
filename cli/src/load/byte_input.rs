//! Keys of bytes and their values for a load: of a file, of a cache trace, or made.

use anyhow::{Result, bail};
use fatbtree_blink::value;
use fatbtree_blink_host::BytePairs;
use fatbtree_workload::byte_keys::value_number;

use super::Arguments;
use super::input::Source;
use crate::key_shape::made_keys;
use crate::memserver::MadeValues;
use crate::records::{Pairs, byte_keys_of};

/// Keys, ascending, and their values.
pub(super) struct ByteInput {
    pairs: Pairs<Vec<u8>>,
    values: Values,
}

/// Where values come from.
enum Values {
    Read,
    Made {
        seed: u64,
        bytes: u32,
    },
    /// Made, each of so many bytes.
    Sized {
        seed: u64,
        bytes: Vec<u32>,
    },
}

impl ByteInput {
    /// Reads or makes the keys that the command line names.
    pub(super) fn read(arguments: &Arguments) -> Result<Self> {
        let MadeValues { seed, value_bytes } = arguments.values;
        let made = Values::Made { seed, bytes: value_bytes };
        let source = arguments.source()?;
        if arguments.key_shape.is_given() && !matches!(source, Source::Count(_)) {
            bail!("--key-shape is for keys that are made, by --keys COUNT");
        }
        Ok(match source {
            Source::Count(count) => {
                Self { pairs: made_keys(arguments.key_shape.keys(seed), count)?, values: made }
            }
            Source::Keys(path) | Source::Csv(path) => {
                let (pairs, has_values) = byte_keys_of(&path)?;
                Self { pairs, values: if has_values { Values::Read } else { made } }
            }
            Source::Trace(path) => {
                let (trace, names) = crate::trace::read_named(&path)?;
                let preloaded = trace.preloaded();
                let (keys, bytes) = preloaded
                    .filter_map(|(number, bytes)| Some((names.name_of(number)?.to_vec(), bytes)))
                    .unzip::<_, _, Vec<_>, _>();
                if keys.is_empty() {
                    bail!(super::input::nothing_to_load(&path));
                }
                Self { pairs: Pairs::without_values(keys), values: Values::Sized { seed, bytes } }
            }
        })
    }

    /// Bytes of the value at a position.
    fn length(&self, at: usize) -> usize {
        match &self.values {
            Values::Read => self.pairs.value(at).len(),
            Values::Made { bytes, .. } => *bytes as usize,
            Values::Sized { bytes, .. } => bytes[at] as usize,
        }
    }

    /// The same, each with its value. The error has the position of a pair that cannot be loaded.
    pub(super) fn into_pairs(self) -> Result<BytePairs> {
        let (mut pairs, mut made) = (BytePairs::default(), Vec::new());
        for at in 0..self.pairs.len() {
            let key = self.pairs.key(at);
            let value = match &self.values {
                Values::Read => self.pairs.value(at),
                Values::Made { seed, .. } | Values::Sized { seed, .. } => {
                    made.resize(self.length(at), 0);
                    value::fill(value_number(key), *seed, &mut made);
                    &made
                }
            };
            pairs.push(key, value)?;
        }
        Ok(pairs)
    }
}
