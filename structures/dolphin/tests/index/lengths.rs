//! Values of all lengths at which something changes: what is taken can be read.

use std::collections::BTreeMap;

use fatbtree_dolphin::host::LoadOptions;
use fatbtree_dolphin::{IndexError, MAX_VALUE, Shape, place_bytes};
use fatbtree_remote_memory::{CommonError, KeyRange};

use crate::load::with_loaded;

/// The last length of each size of records' places, and those beside it.
fn lengths(most: u32) -> Vec<u32> {
    let ends = (0..=most).filter(|length| *length == most || place_bytes(*length) < place_bytes(length + 1));
    let around = ends.flat_map(|end| [end.saturating_sub(1), end, end + 1]);
    let mut lengths: Vec<u32> =
        [0, 1, 7, 8, 9].into_iter().chain(around).filter(|length| *length <= most).collect();
    lengths.sort_unstable();
    lengths.dedup();
    lengths
}

fn value(number: u64, length: u32) -> Vec<u8> {
    number
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .to_le_bytes()
        .into_iter()
        .cycle()
        .take(length as usize)
        .collect()
}

/// A value is loaded or put, updated, read and scanned. What is longer than the bound is refused.
fn all_lengths(most: u32) {
    let lengths = lengths(most);
    let shape = Shape { servers: 0b11, max_value: most };
    let options = LoadOptions { spare_bytes: 192 << 20, ..LoadOptions::new(shape) };
    let key = |number: usize| (number as u64) << 53;
    let content: BTreeMap<u64, Vec<u8>> =
        (0..).zip(&lengths).map(|(number, &length)| (key(number), value(1, length))).collect();
    with_loaded(&options, &content, |index| async move {
        for (number, &length) in lengths.iter().enumerate() {
            let key = key(number);
            let get = async |key: u64| {
                let found = index.get(key).await.result;
                found.unwrap_or_else(|error| panic!("{length} bytes: {error}")).map(|found| found.to_vec())
            };
            assert!(get(key).await == Some(value(1, length)), "{length} bytes that were loaded");
            assert_eq!(index.update(key, &value(2, length)).await.result, Ok(true), "{length}");
            assert_eq!(index.insert(key + 1, &value(3, length)).await.result, Ok(true), "{length}");
            assert!(get(key).await == Some(value(2, length)), "{length} bytes of an update");
            assert!(get(key + 1).await == Some(value(3, length)), "{length} bytes of an insertion");
            let scanned = index.scan(KeyRange::of(key..key + 2), 9).await.result.expect("all can be read");
            assert_eq!(scanned.len(), 2, "{length}");
            assert!(
                scanned.iter().zip([2, 3]).all(|((_, found), number)| **found == value(number, length)[..])
            );
            assert_eq!(index.delete(key + 1).await.result, Ok(true), "{length}");
        }
        let long = index.upsert(5, &vec![0; most as usize + 1]).await.result;
        assert_eq!(long, Err(IndexError::Common(CommonError::TooLong { found: most as usize + 1, most })));
        index.verify().await.expect("the structure is right");
    });
}

#[test]
fn what_is_taken_can_be_read_at_every_border_of_a_size() {
    all_lengths(MAX_VALUE);
    // A bound that is no border, and one that is.
    all_lengths(1_000);
    all_lengths(place_bytes(1_000) - 24);
}
