//! What lies in a part of a chunk: help for [`Tenant::find`](crate::Tenant::find).
//!
//! Clients use the parts of chunks that they have from their begin. So a walk from there meets each block where it begins, and never takes the
//! inside of a block for the begin of one. A client that has died may have left memory that it never wrote, which is all zeros, or the first
//! packets of a block: its head is among them. Where neither explains what is found, the walk goes on only after the last
//! byte that is not zero, and the longest block that may end there.

use std::ops::Range;

use fatbtree_verbs::Memory;

use crate::tenant::Found;

/// Bytes that are looked at in one step.
const BLOCK: u64 = 4096;

/// Offset of the first byte that is not 0.
#[must_use]
pub fn first_byte(memory: &Memory, within: Range<u64>) -> Option<u64> {
    let mut from = within.start;
    while from < within.end {
        let mut block = [0; BLOCK as usize];
        let block = &mut block[..(within.end - from).min(BLOCK) as usize];
        let found = memory.read(from, block).ok().and_then(|()| block.iter().position(|&byte| byte != 0));
        if let Some(first) = found {
            return Some(from + first as u64);
        }
        from += block.len() as u64;
    }
    None
}

/// Offset of the last byte that is not 0.
fn last_byte(memory: &Memory, within: Range<u64>) -> Option<u64> {
    let mut to = within.end;
    while to > within.start {
        let from = to.saturating_sub(BLOCK).max(within.start);
        let mut block = [0; BLOCK as usize];
        let block = &mut block[..(to - from) as usize];
        let found = memory.read(from, block).ok().and_then(|()| block.iter().rposition(|&byte| byte != 0));
        if let Some(last) = found {
            return Some(from + last as u64);
        }
        to = from;
    }
    None
}

/// What lies at the begin of a part in which all blocks have `bytes`. `stamp` tells that of the block at an offset; `None` if nothing was
/// ever written there.
pub fn find_slot(within: Range<u64>, bytes: u64, stamp: impl FnOnce(u64) -> Option<u64>) -> Found {
    let end = within.start.saturating_add(bytes);
    match end <= within.end {
        false => Found::Nothing(within.end),
        true => stamp(within.start).map_or(Found::Nothing(end), |stamp| Found::Block { end, stamp }),
    }
}

/// What lies at the begin of a part in which blocks of several sizes, up to `longest`, begin at multiples of `step`. The first `step` bytes of
/// a block are never all zeros. `block` tells end and stamp of the block that begins at an offset, if one does.
pub fn find_block(
    memory: &Memory,
    within: Range<u64>,
    (step, longest): (u64, u64),
    block: impl FnOnce(u64) -> Option<(u64, u64)>,
) -> Found {
    let from = within.start.next_multiple_of(step);
    if from >= within.end {
        return Found::Nothing(within.end);
    }
    if let Some((end, stamp)) = block(from).filter(|(end, _)| *end <= within.end) {
        return Found::Block { end, stamp };
    }
    let to = from.saturating_add(BLOCK).min(within.end);
    match first_byte(memory, from..to).map(|first| first / step * step) {
        None => Found::Nothing(to),
        Some(next) if next > from => Found::Nothing(next),
        Some(_) => {
            let last = last_byte(memory, from..within.end).unwrap_or(from);
            Found::Unclear(last.saturating_add(1).saturating_add(longest).min(within.end))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of this test: the first byte says how many words they have.
    fn block_at(memory: &Memory, at: u64) -> Option<(u64, u64)> {
        let mut head = [0; 2];
        memory.read(at, &mut head).unwrap();
        (head[1] == 0xab).then(|| (at + 8 * u64::from(head[0]), u64::from(head[0])))
    }

    fn find(memory: &Memory, within: Range<u64>) -> Found {
        find_block(memory, within, (8, 80), |at| block_at(memory, at))
    }

    #[test]
    fn a_walk_meets_blocks_and_what_was_never_written() {
        let memory = Memory::shared(16 << 10).unwrap();
        assert_eq!(find(&memory, 0..8192), Found::Nothing(4096));
        memory.write(0, &[5, 0xab]).unwrap();
        memory.write(8, &[9, 0xab]).unwrap();
        memory.write(120, &[2, 0xab]).unwrap();
        assert_eq!(find(&memory, 0..8192), Found::Block { end: 40, stamp: 5 });
        assert_eq!(find(&memory, 40..8192), Found::Nothing(120));
        assert_eq!(find(&memory, 120..8192), Found::Block { end: 136, stamp: 2 });
        assert_eq!(find(&memory, 133..140), Found::Nothing(140));
        // A block that reaches over the end is none: then nothing can be told.
        assert_eq!(find(&memory, 120..128), Found::Unclear(128));
        // Other bytes: the last block may begin at the last byte.
        memory.write(5000, &[1]).unwrap();
        memory.write(6000, &[1]).unwrap();
        assert_eq!(find(&memory, 5000..8192), Found::Unclear(6081));
        assert_eq!(find(&memory, 6081..8192), Found::Nothing(8192));
    }

    #[test]
    fn slots_are_written_or_not() {
        let stamp = |at: u64| (at == 64).then_some(7);
        assert_eq!(find_slot(0..150, 64, stamp), Found::Nothing(64));
        assert_eq!(find_slot(64..150, 64, stamp), Found::Block { end: 128, stamp: 7 });
        assert_eq!(find_slot(128..150, 64, stamp), Found::Nothing(150));
    }
}
