//! Packet sequence numbers: 24 bits that wrap (IBTA volume 1, section 9.7.2).

use std::fmt;

/// A packet sequence number. Two of them compare only by their [distance](Self::since), which is right as long as they are less than
/// 2^23 apart; the send queue's limits ensure that.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    const MASK: u32 = 0xff_ffff;

    /// The low 24 bits of `value`.
    pub const fn new(value: u32) -> Psn {
        Psn(value & Psn::MASK)
    }

    /// The number, below 2^24.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The number `count` packets later.
    pub const fn plus(self, count: u32) -> Psn {
        Psn::new(self.0.wrapping_add(count))
    }

    /// The number before this one.
    pub const fn previous(self) -> Psn {
        Psn::new(self.0.wrapping_sub(1))
    }

    /// The count of packets nearest to `near` whose lower 24 bits are this number. `None` if it would lie before 0.
    pub(crate) const fn nearest(self, near: u64) -> Option<u64> {
        near.checked_add_signed(self.since(Psn::new(near as u32)) as i64)
    }

    /// Number of packets by which this number is after `other`; negative when it is before.
    pub const fn since(self, other: Psn) -> i32 {
        // The difference is moved to the upper 24 bits, so that the shift back extends its sign.
        ((self.0.wrapping_sub(other.0) << 8) as i32) >> 8
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Psn({:#08x})", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wraps() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.plus(1), Psn::new(0));
        assert_eq!(Psn::new(0).previous(), last);
        assert_eq!(Psn::new(2).since(last), 3);
        assert_eq!(last.since(Psn::new(2)), -3);
    }

    proptest! {
        #[test]
        fn distance_undoes_plus(start: u32, count in 0u32..1 << 23) {
            let start = Psn::new(start);
            prop_assert_eq!(start.plus(count).since(start), count as i32);
            prop_assert_eq!(start.since(start.plus(count)), -(count as i32));
        }

        #[test]
        fn the_nearest_count_has_the_number_and_is_near(number: u32, near in 0u64..1 << 40) {
            let number = Psn::new(number);
            match number.nearest(near) {
                Some(count) => {
                    prop_assert_eq!(Psn::new(count as u32), number);
                    prop_assert!(count.abs_diff(near) <= 1 << 23);
                }
                None => prop_assert!(near < 1 << 23),
            }
        }
    }
}
