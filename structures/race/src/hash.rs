//! What a key's hash decides: the subtable, two combined buckets, the fingerprint.

use fatbtree_remote_memory::mix;

use crate::layout::Shape;

/// Hash of a key, by its [word](crate::word_of). All bits of the word take part in each field.
///
/// ```text
///   bits 0..16   suffix: the low `depth` bits name the subtable
///   bits 24..56  first combined bucket; the second one comes from a further hash
///   bits 56..64  fingerprint
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hash(u64);

impl Hash {
    /// Hash of a key that is a number, or of the [word](crate::word_of) of one of bytes.
    #[must_use]
    pub const fn of(word: u64) -> Self {
        Self(mix(word.wrapping_add(0x9e37_79b9_7f4a_7c15)))
    }

    /// A hash with these low bits.
    pub(crate) const fn of_suffix(suffix: u32) -> Self {
        Self(suffix as u64)
    }

    /// The low `depth` bits, `depth` being 16 or less.
    #[must_use]
    pub const fn suffix(self, depth: u8) -> u32 {
        (self.0 & ((1 << depth) - 1)) as u32
    }

    /// Whether a key of a subtable of this local depth goes to the upper half when the subtable is split.
    #[must_use]
    pub const fn is_upper(self, depth: u8) -> bool {
        self.0 >> depth & 1 == 1
    }

    /// Eight bits that spare most comparisons of keys.
    #[must_use]
    pub const fn fingerprint(self) -> u8 {
        (self.0 >> 56) as u8
    }

    /// The two combined buckets, by number below [`Shape::combined_buckets`]. They are of different groups, where there are several.
    #[must_use]
    pub fn buckets(self, shape: &Shape) -> [u32; 2] {
        let count = u64::from(shape.combined_buckets());
        let choose = |word: u64| (((word & 0xffff_ffff) * count) >> 32) as u32;
        let (first, second) = (choose(self.0 >> 24), choose(mix(!self.0)));
        match first / 2 == second / 2 {
            true if shape.groups == 1 => [first, first ^ 1],
            true => [first, (second + 2) % shape.combined_buckets()],
            false => [first, second],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_in_a_row_are_spread() {
        let shape = Shape { groups: 8, ..Shape::default() };
        let mut used = vec![0_u32; 16 * 16];
        for key in 0..4_096 {
            let hash = Hash::of(key);
            let [first, second] = hash.buckets(&shape);
            assert!(first / 2 != second / 2 && second < 16);
            used[(hash.suffix(4) * 16 + first) as usize] += 1;
        }
        assert!(used.iter().all(|&count| (2..50).contains(&count)), "{used:?}");
    }

    #[test]
    fn two_halves_of_one_group_are_two_buckets() {
        let shape = Shape { groups: 1, ..Shape::default() };
        assert!((0..100).map(|key| Hash::of(key).buckets(&shape)).all(|[one, other]| one ^ 1 == other));
    }
}
