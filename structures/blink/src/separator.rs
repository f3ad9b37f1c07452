//! Short separators: where one node ends and the next begins.
//!
//! Any value above the last key of the left node, and not above the first key of the right one, parts the two. The switches
//! match keys in slices from the front, so of all of these the value with the most trailing zero bits costs them least: the slices
//! that are zero need no table. This is the suffix truncation of prefix B-trees (Bayer and Unterauer 1977), of bits.

use std::cmp::Reverse;
use std::ops::RangeInclusive;

/// The value `s` with `a < s <= b` that has the most trailing zero bits, for `a < b`.
///
/// Let `d` be the highest bit in which the two differ. Above it they agree; `a` has a zero there and `b` a one. The result is
/// what they agree on, the one, and `d` zeros:
///
/// * it is above `a`, which has a zero at `d`, and not above `b`, which is the same with other bits for the zeros;
/// * no other value between them has as many zeros: `a` and `b` lie in one block of `2^(d+1)` values, of which only the
///   middle and the beginning are multiples of `2^d`, and the beginning is not above `a`.
///
/// ```
/// use fatbtree_blink::separator;
///
/// assert_eq!(separator(0x1234_5677, 0x1235_0001), 0x1235_0000);
/// assert_eq!(separator(6, 7), 7, "of neighbours only the upper one is left");
/// ```
#[inline]
#[must_use]
pub const fn separator(a: u64, b: u64) -> u64 {
    debug_assert!(a < b, "there is nothing to part");
    // Without a difference, which the caller rules out: `b`.
    let different = match (a ^ b).checked_ilog2() {
        Some(bit) => bit,
        None => 0,
    };
    b >> different << different
}

/// Chooses a cut of ascending keys, of the places in `window`: the one whose separator has the most trailing
/// zero bits. Returns the place of the first key after the cut, and the separator.
///
/// It is the separator of the whole window, from the key before it to its last one: of all values there the one with the most zeros,
/// and there is no other with as many. So no two places are equally good.
///
/// # Panics
/// When the window is empty, or does not lie within `1..keys.len()`.
///
/// ```
/// use fatbtree_blink::cut_keys;
///
/// let keys = [0x10, 0x11, 0x1e, 0x23, 0x24, 0x25];
/// assert_eq!(cut_keys(&keys, 2..=5), (3, 0x20));
/// assert_eq!(cut_keys(&keys, 4..=5), (4, 0x24));
/// ```
#[inline]
#[must_use]
pub fn cut_keys(keys: &[u64], window: RangeInclusive<usize>) -> (usize, u64) {
    let (first, last) = window.into_inner();
    let separator = separator(keys[first - 1], keys[last]);
    (first + keys[first..last].partition_point(|&key| key < separator), separator)
}

/// Chooses a cut of nodes, of the places in `window`, when `pivot` returns the low key of each. The pivot
/// there has the most trailing zero bits; of such places the one nearest to `wanted` is taken. A pivot is
/// what it is, so none between two of them can be chosen.
///
/// # Panics
/// When the window is empty.
#[inline]
#[must_use]
pub fn cut_nodes(window: RangeInclusive<usize>, wanted: usize, pivot: impl Fn(usize) -> u64) -> (usize, u64) {
    let rank = |at: &usize| (Reverse(pivot(*at).trailing_zeros()), at.abs_diff(wanted));
    let at = window.min_by_key(rank).expect("there is a place to cut");
    (at, pivot(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(a: u64, b: u64) {
        let s = separator(a, b);
        assert!(a < s && s <= b, "{a:#x} < {s:#x} <= {b:#x}");
        // A value with more zeros would be a multiple of this.
        let more = 2_u128 << s.trailing_zeros();
        let next = (u128::from(a) / more + 1) * more;
        assert!(next > u128::from(b), "{next:#x} lies between {a:#x} and {b:#x}, and is shorter than {s:#x}");
    }

    #[test]
    fn it_is_the_shortest_of_all_small_ones() {
        for a in 0..200_u64 {
            for b in a + 1..=200 {
                let shortest = (a + 1..=b).max_by_key(|s| s.trailing_zeros());
                assert_eq!(Some(separator(a, b)), shortest, "{a} {b}");
            }
        }
    }

    #[test]
    fn the_ends_of_the_key_space() {
        assert_eq!(separator(0, u64::MAX), 1 << 63);
        assert_eq!(separator(0, 1), 1);
        assert_eq!(separator(u64::MAX - 1, u64::MAX), u64::MAX);
    }

    proptest! {
        #[test]
        fn it_parts_any_two_keys_and_is_the_shortest_that_does(
            a in prop_oneof![Just(0), any::<u64>()],
            b in prop_oneof![Just(u64::MAX), any::<u64>()],
            near in 1..1000_u64,
        ) {
            if a != b {
                check(a.min(b), a.max(b));
            }
            for (low, high) in [(a, a.saturating_add(1)), (a, a.saturating_add(near)), (b.saturating_sub(near), b)] {
                if low < high {
                    check(low, high);
                }
            }
        }

        #[test]
        fn a_cut_of_keys_is_the_best_in_its_window(
            keys in prop::collection::btree_set(prop_oneof![0..64_u64, any::<u64>()], 2..40),
            ends in (0..40_usize, 0..40_usize),
        ) {
            let keys: Vec<u64> = keys.into_iter().collect();
            let place = |n: usize| 1 + n % (keys.len() - 1);
            let (first, last) = (place(ends.0).min(place(ends.1)), place(ends.0).max(place(ends.1)));
            let zeros = |at: usize| separator(keys[at - 1], keys[at]).trailing_zeros();
            let (at, found) = cut_keys(&keys, first..=last);
            prop_assert!((first..=last).contains(&at));
            prop_assert_eq!(found, separator(keys[at - 1], keys[at]));
            prop_assert!((first..=last).all(|other| other == at || zeros(other) < zeros(at)));
        }

        #[test]
        fn a_cut_of_nodes_is_the_best_in_its_window(
            lows in prop::collection::vec(0..64_u64, 1..40), wanted in 0..50_usize, ends in (0..40_usize, 0..40_usize),
        ) {
            let place = |n: usize| n % lows.len();
            let (first, last) = (place(ends.0).min(place(ends.1)), place(ends.0).max(place(ends.1)));
            let (at, found) = cut_nodes(first..=last, wanted, |at| lows[at]);
            prop_assert!((first..=last).contains(&at));
            prop_assert_eq!(found, lows[at]);
            for (other, low) in lows.iter().enumerate().take(last + 1).skip(first) {
                let (better, nearer) = (low.trailing_zeros(), other.abs_diff(wanted));
                prop_assert!(better <= found.trailing_zeros());
                prop_assert!(better < found.trailing_zeros() || nearer >= at.abs_diff(wanted));
            }
        }
    }
}
