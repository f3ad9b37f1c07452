//! Damage told from change: what an operation has read several times, always the same, and always wrong.
//!
//! Other clients write while an operation reads, so what is wrong once may be right a moment later. But the word that leads to a block never
//! comes back once it has changed. So where the word is found again, the block was linked all the time, and was wrong all the time.

use crate::address::GlobalAddress;
use crate::mix::mix;

/// Readings after which damage is sure: one, and two that confirm it.
const SURE: u32 = 3;

/// What an operation has found to be wrong.
#[derive(Clone, Copy, Debug)]
pub struct Suspicion {
    at: GlobalAddress,
    evidence: u64,
    times: u32,
}

impl Default for Suspicion {
    fn default() -> Self {
        Self { at: GlobalAddress::NULL, evidence: 0, times: 0 }
    }
}

impl Suspicion {
    /// Notes that `bytes`, read at an address to which the word `link` leads, are wrong. Says whether they are damaged for sure.
    #[must_use]
    pub fn is_sure(&mut self, at: GlobalAddress, link: u64, bytes: &[u8]) -> bool {
        let evidence = mix(link) ^ u64::from(crc32fast::hash(bytes));
        if (self.at, self.evidence) != (at, evidence) {
            *self = Self { at, evidence, times: 0 };
        }
        self.times += 1;
        self.times >= SURE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stays_the_same_is_damaged() {
        let (at, mut found) = (GlobalAddress::new(1, 64), Suspicion::default());
        for number in 0..10 {
            assert!(!found.is_sure(at, 7, &[number]), "another client writes there");
            assert!(!found.is_sure(at, number.into(), b"same"), "another word leads there");
        }
        assert_eq!([0; 3].map(|_| found.is_sure(at, 7, b"same")), [false, false, true]);
        assert!(!found.is_sure(GlobalAddress::new(1, 128), 7, b"same"));
    }
}
