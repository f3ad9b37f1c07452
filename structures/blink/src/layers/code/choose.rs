//! The model that keys of a load choose: rows that save more of the keys than they take.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::model::{CONTEXT, Row, WHOLE, describe};
use crate::layers::key::Spelled;

/// Keys that are looked at, at most, and bytes of them.
const SAMPLES: usize = 1 << 14;
const SAMPLE_BYTES: usize = 1 << 21;

/// Samples from one that is looked at to the next, so that those for which bytes are left lie among all. A prime: each is looked at.
const STRIDE: usize = 10_000_019;

/// Bytes of a key that are looked at behind those that it shares with its neighbours: keys that come later will share more.
const BEHIND: usize = 2;

/// Keys that a load stands for at least: of a tree with few keys, more are to come that begin as these do.
const FEW: usize = 1024;

/// How often each byte was found behind a context.
type Counts = BTreeMap<u8, u32>;

/// A row that the model could have.
struct Candidate<'c> {
    context: &'c [u8],
    row: Row,
    description: Vec<u8>,
    /// Bits that it saves, in units of 2⁻⁸.
    saved: u64,
}

/// Description of the model for these keys, which are sorted: up to so many bytes.
pub(super) fn of_sorted<'k>(count: usize, key: impl Fn(usize) -> &'k [u8], most: usize) -> Vec<u8> {
    let counts = count_all(count, key);
    let each = (FEW / count.max(1)).max(1) as u64;
    let even = Row::even();
    let mut chosen: BTreeMap<(usize, &[u8]), Candidate<'_>> = BTreeMap::new();
    let mut left = most;
    for length in 0..=CONTEXT {
        let mut candidates: Vec<_> = counts
            .iter()
            .filter(|(context, _)| context.len() == length)
            .filter_map(|(context, counts)| {
                // Contexts begin with the last byte, so a shorter one is a beginning.
                let shorter = (0..length).rev().find_map(|length| chosen.get(&(length, &context[..length])));
                candidate(context, counts, each, shorter.map_or(&even, |shorter| &shorter.row))
            })
            .collect();
        candidates.sort_by_key(|one| Reverse(one.saved / one.description.len() as u64));
        for one in candidates {
            if one.description.len() <= left {
                left -= one.description.len();
                chosen.insert((length, one.context), one);
            }
        }
    }
    chosen.into_values().flat_map(|one| one.description).collect()
}

/// Counts what follows each context of up to two bytes, in keys at equal distances.
fn count_all<'k>(count: usize, key: impl Fn(usize) -> &'k [u8]) -> BTreeMap<Vec<u8>, Counts> {
    let mut counts: BTreeMap<Vec<u8>, Counts> = BTreeMap::new();
    let (samples, mut left) = (count.min(SAMPLES), SAMPLE_BYTES);
    for sample in 0..samples {
        let at = ((sample * STRIDE % samples) as u64 * count as u64 / samples as u64) as usize;
        let (before, here) = (at.saturating_sub(1), Spelled::of(key(at)));
        let shared = [before, (at + 1).min(count - 1)]
            .into_iter()
            .filter(|other| *other != at)
            .map(|other| here.common(&Spelled::of(key(other)), 0, here.bytes().len()));
        // Further bytes do not tell it from its neighbours. The zero behind a key is one that does.
        let end = (shared.max().unwrap_or(0) + 1 + BEHIND).min(here.bytes().len() + 1);
        let Some(rest) = left.checked_sub(end) else { break };
        left = rest;
        let mut last = [0; CONTEXT];
        for at in 0..end {
            let byte = here.byte(at);
            for length in 0..=CONTEXT {
                let counts = match counts.get_mut(&last[..length]) {
                    Some(counts) => counts,
                    None => counts.entry(last[..length].to_vec()).or_default(),
                };
                *counts.entry(byte).or_default() += 1;
            }
            last = [byte, last[0]];
        }
    }
    counts
}

/// The row for what was counted behind a context, if it saves more than it takes compared with that of a shorter context. Each key stands for
/// so many.
fn candidate<'c>(context: &'c [u8], counts: &Counts, each: u64, shorter: &Row) -> Option<Candidate<'c>> {
    let (all, most) = (counts.values().sum::<u32>(), *counts.values().max()?);
    // A context in which many bytes were found has others as well: each found byte counts once more, for one that was not.
    let others = u64::from(WHOLE) * counts.len() as u64 / (u64::from(all) + counts.len() as u64) / 256;
    let other = others.max(1).ilog2().min(7);
    let weight = |count: u32| (u64::from(count) * 255 / u64::from(most)).max(1) as u8;
    let listed: Vec<_> = counts.iter().map(|(byte, count)| (*byte, weight(*count))).collect();
    let row = Row::new(&listed, other)?;
    let description = describe(context, &listed, other);
    let bits = |row: &Row| -> u64 {
        counts.iter().map(|(byte, count)| u64::from(*count) * u64::from(bits_of(row.width(*byte)))).sum()
    };
    let saved = each * bits(shorter).checked_sub(bits(&row))?;
    let taken = 8 * 256 * description.len() as u64;
    (saved > taken).then_some(Candidate { context, row, description, saved })
}

/// Bits that a byte of this width takes of a word, in units of 2⁻⁸. In integers, so that all machines choose alike.
fn bits_of(width: u32) -> u32 {
    let whole = width.ilog2();
    // The fraction of the logarithm, bit by bit: a number from 1 to 2 is squared, and halved if it has passed 2.
    let (mut rest, mut fraction) = ((u64::from(width) << 31) >> whole, 0);
    for _ in 0..8 {
        rest = (rest * rest) >> 31;
        fraction = (fraction << 1) | u32::from(rest >= 1 << 32);
        rest >>= u32::from(rest >= 1 << 32);
    }
    256 * WHOLE.ilog2() - (whole * 256 + fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_logarithms() {
        for width in [1, 2, 3, 5, 100, 255, 256, 4711, 65_535, 65_536] {
            let expected = 256.0 * (16.0 - f64::from(width).log2());
            let found = f64::from(bits_of(width));
            assert!((0.0..=1.01).contains(&(found - expected)), "{width}: {found}, expected {expected}");
        }
    }
}
