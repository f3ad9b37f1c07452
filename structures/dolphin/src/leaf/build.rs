//! Writing of leaves: new ones, and the lines of a changed one.

use fatbtree_remote_memory::GlobalAddress;

use super::{
    KEYS, LEAF_BYTES, LINE, LOCK, LOCK_BYTES, Leaf, LeafState, LockLine, MARK, PER_LINE, SLOTS, SUM, VALUES,
    free_word, key_offset, sum, value_offset,
};
use crate::entry::Entry;
use crate::word::Word;

/// Bytes of a leaf that no reader knows yet.
///
/// # Panics
/// When there are more items than slots.
pub(crate) fn build(
    own: GlobalAddress,
    parent: Entry,
    min: u64,
    max: u64,
    stamp: u64,
    items: &[(u64, Word)],
) -> Box<[u8; LEAF_BYTES]> {
    assert!(items.len() <= SLOTS, "a leaf has {SLOTS} slots");
    let mut bytes = Box::new([0; LEAF_BYTES]);
    head(&mut bytes[..], (own, parent), min, max, stamp);
    for slot in 0..SLOTS {
        let (key, value) = items.get(slot).copied().unwrap_or((free_word(min), Word::NONE));
        put(&mut bytes[..], slot, key, value);
    }
    let lock = LockLine::plain(stamp, LeafState::Unborn).to_bytes();
    bytes[LOCK as usize..][..LOCK_BYTES].copy_from_slice(&lock);
    bytes
}

/// All lines but the lock's of a leaf from which keys above `max` are taken, and slots of keys
/// that were deleted. Each line follows from what is there, so this may be done again where a part
/// of it was done.
pub(crate) fn rewritten(leaf: Leaf<'_>, max: u64, stamp: u64) -> Vec<u8> {
    let min = leaf.min();
    let mut bytes = vec![0; LOCK as usize];
    head(&mut bytes, (leaf.own(), leaf.parent()), min, max, stamp);
    for slot in 0..SLOTS {
        let (key, value) = (leaf.key(slot), leaf.value(slot));
        let stays = (min..=max).contains(&key) && !value.is_none();
        let (key, value) = if stays { (key, value) } else { (free_word(min), Word::NONE) };
        put(&mut bytes, slot, key, value);
    }
    bytes
}

fn head(bytes: &mut [u8], (own, parent): (GlobalAddress, Entry), min: u64, max: u64, stamp: u64) {
    for line in (0..LOCK as usize).step_by(LINE) {
        bytes[line..][..8].copy_from_slice(&stamp.to_le_bytes());
    }
    for (at, word) in [(8, MARK), (16, parent.0), (24, min), (32, max), (40, own.raw())] {
        bytes[at..][..8].copy_from_slice(&word.to_le_bytes());
    }
    let sum = sum(bytes);
    bytes[SUM..][..8].copy_from_slice(&sum.to_le_bytes());
}

fn put(bytes: &mut [u8], slot: usize, key: u64, value: Word) {
    bytes[key_offset(slot) as usize..][..8].copy_from_slice(&key.to_le_bytes());
    bytes[value_offset(slot) as usize..][..8].copy_from_slice(&value.0.to_le_bytes());
}

const _: () = assert!(SLOTS == PER_LINE * (VALUES - KEYS) / LINE);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{NoLeaf, Place, Use, tombstone};
    use super::*;

    const STAMP: u64 = 0x1230;
    const OWN: GlobalAddress = GlobalAddress(0x0003_0000_0000_1400);

    fn open(bytes: &mut [u8]) {
        let stamp = Leaf::new(bytes).unwrap().stamp();
        let lock = LockLine::plain(stamp, LeafState::Open).to_bytes();
        bytes[LOCK as usize..][..LOCK_BYTES].copy_from_slice(&lock);
    }

    #[test]
    fn slots_lie_where_lines_have_room() {
        assert_eq!([0, 6, 7, 48].map(key_offset), [72, 120, 136, 512 - 8]);
        assert_eq!([0, 48].map(value_offset), [520, 952]);
        assert_eq!(LOCK, 960);
    }

    #[test]
    fn a_leaf_is_read_as_it_was_written() {
        let parent = Entry::leaf(1, GlobalAddress::new(0, 640)).unwrap();
        for (min, max) in [(0, 0x7fff), (1 << 63, u64::MAX)] {
            let items = [(min, Word(5)), (max, Word(6))];
            let mut bytes = build(OWN, parent, min, max, STAMP, &items);
            let leaf = Leaf::new(&bytes[..]).unwrap();
            assert_eq!((leaf.min(), leaf.max(), leaf.parent(), leaf.stamp()), (min, max, parent, STAMP));
            assert_eq!(leaf.check(Use::Read), Err(NoLeaf::Busy), "unborn");
            open(&mut bytes[..]);
            let leaf = Leaf::new(&bytes[..]).unwrap();
            assert_eq!((leaf.check(Use::Read), leaf.check(Use::Change)), (Ok(()), Ok(())));
            assert_eq!(leaf.find(max), Place::At(1, Word(6)));
            assert_eq!(leaf.find(min + 1), Place::Nowhere(Some(2)));
            assert_eq!(leaf.items().collect::<Vec<_>>(), items);
            // Neither word can be a key of this leaf.
            assert!(!(min..=max).contains(&free_word(min)) && !(min..=max).contains(&tombstone(min)));
            for bit in 64 * 2..64 * 7 {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(
                    Leaf::new(&bytes[..]).unwrap().check(Use::Read),
                    Err(NoLeaf::Damaged),
                    "bit {bit}"
                );
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            for line in 0..15 {
                bytes[line * 64] ^= 8;
                assert_eq!(Leaf::new(&bytes[..]).unwrap().check(Use::Read), Err(NoLeaf::Busy), "line {line}");
                bytes[line * 64] ^= 8;
            }
        }
    }

    #[test]
    fn lock_lines() {
        let partner = Entry::leaf(7, GlobalAddress::new(2, 6400)).unwrap();
        for task in [Task::Clean, Task::Split, Task::Burst, Task::Merge, Task::Collapse] {
            let line = LockLine::changing(STAMP, task, 77, partner);
            assert_eq!(LockLine::parse(&line.to_bytes()), line);
            assert!(line.is(LeafState::Changing) && line.stamp() == STAMP);
        }
        assert_eq!(LockLine::parse(&[0xff; 64]).task, None);
    }

    use super::super::Task;

    proptest! {
        /// Whatever lines were written of a change, doing it again gives the same leaf.
        #[test]
        fn a_change_can_be_done_again(
            keys in prop::collection::btree_set(0..1_000_u64, 0..=SLOTS),
            dead in prop::collection::vec(any::<bool>(), SLOTS),
            at in 0..1_000_u64,
            done in prop::collection::vec(any::<bool>(), 15),
        ) {
            let items: Vec<_> = keys.iter().map(|&key| (key, Word(key + 1))).collect();
            let mut bytes = build(OWN, Entry::EMPTY, 0, 999, STAMP, &items);
            for (slot, _) in dead.iter().enumerate().filter(|&(slot, dead)| *dead && slot < items.len()) {
                bytes[key_offset(slot) as usize..][..8].copy_from_slice(&tombstone(0).to_le_bytes());
            }
            let whole = rewritten(Leaf::new(&bytes[..]).unwrap(), at, STAMP + 8);
            let mut half = bytes.clone();
            for (line, _) in done.iter().enumerate().filter(|(_, done)| **done) {
                half[line * 64..][..64].copy_from_slice(&whole[line * 64..][..64]);
            }
            prop_assert_eq!(&rewritten(Leaf::new(&half[..]).unwrap(), at, STAMP + 8), &whole);
            let mut expected: Vec<_> = items.iter().zip(&dead).filter(|((key, _), dead)| *key <= at && !**dead)
                .map(|(item, _)| *item).collect();
            bytes[..LOCK as usize].copy_from_slice(&whole);
            let mut left: Vec<_> = Leaf::new(&bytes[..]).unwrap().items().collect();
            left.sort_unstable_by_key(|(key, _)| *key);
            expected.sort_unstable_by_key(|(key, _)| *key);
            prop_assert_eq!(left, expected);
        }
    }
}
