//! Shape of a node, which decides how switches hold it: which half of its pivots is compared, and whether its children are a run.

use serde::{Deserialize, Serialize};

use super::CachedNode;
use crate::tables::pivots::Last;
use crate::tables::run::STRIDE_BYTES;
use crate::tree::MAX_BRANCHES;

/// The part of an address that says where in its server.
pub(super) const OFFSET: u64 = (1 << 48) - 1;
/// The part of an offset that the distance of a sibling is added to, without a carry.
const LOW: u64 = (1 << 32) - 1;

/// Which part of the keys a node is searched by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pivots {
    /// The high halves: no pivot has anything in its low half.
    High,
    /// The low halves: all keys that come to the node have the same high half.
    Low,
    /// Both: there are few places for such nodes.
    Whole,
}

impl Pivots {
    /// Shape of a node that keys from `from` to `high` come to, and whose children but the first begin at `pivots`, in order.
    pub(crate) fn of(from: u64, high: u64, pivots: impl Iterator<Item = u64> + Clone) -> Self {
        let half = |key: u64| key >> 32;
        if pivots.clone().all(|pivot| pivot & LOW == 0) {
            Self::High
        } else if half(from) == half(high) && pivots.clone().all(|pivot| half(pivot) == half(from)) {
            Self::Low
        } else {
            Self::Whole
        }
    }

    /// Operands of a comparison: last keys before three children.
    pub(super) fn last(self, last: [u64; 3]) -> Last {
        match self {
            Self::High => Last::High(last.map(|key| (key >> 32) as u32)),
            Self::Low => Last::Low(last.map(|key| key as u32)),
            Self::Whole => Last::Whole(last),
        }
    }
}

/// The distance of children that lie at equal ones, in units of [`STRIDE_BYTES`]; none, if those at these addresses, in key order, do not, or
/// there is but one.
pub(crate) fn stride(addresses: impl Iterator<Item = u64> + Clone) -> Option<u8> {
    let offsets = addresses.map(|address| address & OFFSET);
    let first = offsets.clone().next()?;
    let distance = offsets.clone().nth(1)?.checked_sub(first)?;
    let stride = u8::try_from(distance / STRIDE_BYTES).ok()?;
    let is_run = (0..).zip(offsets.clone()).all(|(branch, offset)| offset == first + branch * distance);
    let last = offsets.last()?;
    let is_whole = distance.is_multiple_of(STRIDE_BYTES) && stride != 0;
    (is_whole && is_run && first & !LOW == last & !LOW).then_some(stride)
}

/// Distance of each child from the first one, in bytes.
pub(super) fn distances(stride: u8) -> impl Iterator<Item = (u8, u32)> {
    let bytes = u32::from(stride) * STRIDE_BYTES as u32;
    (0..MAX_BRANCHES as u8).map(move |branch| (branch, u32::from(branch) * bytes))
}

impl CachedNode {
    /// Whether its children are a run: such a node takes no entries for them.
    pub fn is_regular(&self) -> bool {
        self.stride != 0
    }

    /// Whether its children lie as its stride says.
    pub(super) fn stride_is_right(&self) -> bool {
        let found = stride(self.children.iter().map(|child| child.address));
        self.stride == 0 || self.children.len() == 1 || found == Some(self.stride)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pivots_are_compared_by_half_where_that_decides() {
        let of = |from: u64, high: u64, pivots: &[u64]| Pivots::of(from, high, pivots.iter().copied());
        assert_eq!(of(7, u64::MAX, &[]), Pivots::High);
        assert_eq!(of(7, u64::MAX, &[1 << 32, 5 << 32]), Pivots::High);
        assert_eq!(of(7, LOW, &[9, 1 << 31]), Pivots::Low);
        assert_eq!(of(5 << 32, 5 << 32 | LOW, &[5 << 32 | 1]), Pivots::Low);
        assert_eq!(of(7, 1 << 32, &[9]), Pivots::Whole, "keys of another high half come as well");
        assert_eq!(
            of(7, LOW, &[9, 1 << 32 | 1]),
            Pivots::Whole,
            "a pivot after the node's keys: the tree was changed meanwhile"
        );
        assert_eq!(of(7, u64::MAX, &[1 << 32, 5 << 32 | 1]), Pivots::Whole);
    }

    #[test]
    fn a_run_has_equal_distances_and_no_carry() {
        let of = |addresses: &[u64]| stride(addresses.iter().copied());
        let server = 7 << 48;
        assert_eq!(of(&[server | 640, server | 1664, server | 2688]), Some(16));
        for none in [&[0, 64, 192][..], &[64, 0], &[64, 64], &[0, 65], &[0, 256 * 64], &[640], &[]] {
            assert_eq!(of(none), None, "{none:?}");
        }
        let border = 3 << 32;
        assert_eq!(of(&[border - 128, border - 64]), Some(1));
        assert_eq!(of(&[border - 64, border]), None);
        assert_eq!(of(&[border, border + 255 * 64]), Some(255));
    }
}
