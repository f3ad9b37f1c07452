//! Keys of bytes and their values for a load: of a file, of a cache trace, or made.

use anyhow::{Context, Result, bail};
use fatbtree_blink::value;
use fatbtree_blink_host::BytePairs;
use fatbtree_workload::byte_keys::{MOST_MADE_BYTES, value_number};

use super::Arguments;
use super::input::{Source, nothing_to_load};
use crate::memserver::MadeValues;
use crate::records::byte_keys_of;
use crate::room;

/// Reads or makes the keys that the command line names, each with its value, in the order of the keys.
pub(super) fn read(arguments: &Arguments) -> Result<BytePairs> {
    let MadeValues { seed, value_bytes } = arguments.values;
    let source = arguments.source()?;
    if arguments.key_shape.is_given() && !matches!(source, Source::Count(_)) {
        bail!("--key-shape is for keys that are made, by --keys COUNT");
    }
    let (mut pairs, mut made) = (BytePairs::default(), Vec::new());
    let mut push_made = |pairs: &mut BytePairs, key: &[u8], bytes: u32| {
        made.resize(bytes as usize, 0);
        value::fill(value_number(key), seed, &mut made);
        pairs.push(key, &made)
    };
    match source {
        Source::Count(count) => {
            room::check(count, 1, MOST_MADE_BYTES as u64)?;
            let (keys, mut key) = (arguments.key_shape.keys(seed), Vec::new());
            for number in 0..count {
                keys.write(number, &mut key);
                push_made(&mut pairs, &key, value_bytes)?;
            }
        }
        Source::Keys(path) | Source::Csv(path) => {
            let (found, has_values) = byte_keys_of(&path)?;
            let mut push = |at| match has_values {
                true => pairs.push(found.key(at), found.value(at)),
                false => push_made(&mut pairs, found.key(at), value_bytes),
            };
            (0..found.len()).try_for_each(&mut push).with_context(|| path.display().to_string())?;
        }
        Source::Trace(path) => {
            let (trace, names) = crate::trace::read_named(&path)?;
            for (number, bytes) in trace.preloaded() {
                let name = names.name_of(number).context("each key of a trace has a name")?;
                push_made(&mut pairs, name, bytes)?;
            }
            if pairs.is_empty() {
                bail!(nothing_to_load(&path));
            }
        }
    }
    Ok(pairs.sorted())
}
