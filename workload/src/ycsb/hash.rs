//! The hash YCSB scatters record numbers with.

const OFFSET_BASIS: u64 = 0xCBF2_9CE4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01B3;

/// FNV-1a over the eight bytes of `value`, least significant byte first, folded to a non-negative `i64`.
///
/// This is YCSB's `Utils.fnvhash64`: the fold is Java's `Math.abs`, so results lie in `0..=2^63`. (For the
/// one input in 2^64 that hashes to `i64::MIN` Java's `abs` stays negative; here it is 2^63.) Both key names
/// (`insertorder=hashed`) and scrambled Zipfian ranks go through it, so a key drawn here is the key that YCSB
/// draws for the same rank.
///
/// ```
/// assert_eq!(fatbtree_workload::ycsb::fnv_hash64(0), 6_284_781_860_667_377_211);
/// ```
pub fn fnv_hash64(value: u64) -> u64 {
    let mut hash = OFFSET_BASIS;
    for byte in value.to_le_bytes() {
        hash ^= u64::from(byte);
        hash = hash.wrapping_mul(PRIME);
    }
    (hash as i64).unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// YCSB names its first records `user6284781860667377211`, `user8517097267634966620`, …: those figures
    /// appear in every YCSB load log.
    #[test]
    fn first_keys_are_those_of_ycsb() {
        assert_eq!(fnv_hash64(0), 6_284_781_860_667_377_211);
        assert_eq!(fnv_hash64(1), 8_517_097_267_634_966_620);
    }

    #[test]
    fn no_collision_in_a_million_records() {
        let mut keys: Vec<u64> = (0..1_000_000).map(fnv_hash64).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 1_000_000);
    }
}
