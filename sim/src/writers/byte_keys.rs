//! Keys of bytes in place of numbers: three to a group, which begin alike, so that layers come and go.
//!
//! ```text
//!   number   0        1         2          3             4             5        6         7          8
//!   key      g0       g0 \0     g0 a       g1 aaaaaaaa1  g1 aaaaaaaa2  g1 b     g2 x…     g2 x…x1    g2 x…x2
//! ```
//!
//! The eight bytes g are those of the group's first number's key, so groups lie on the servers where numbers would.

use super::Scenario;

/// Keys of a group.
pub(super) const GROUP: u64 = 3;

/// Ends of the keys of a group, in their order.
fn end(group: u64, member: u64) -> Vec<u8> {
    match (group % GROUP, member) {
        (0, 0) => Vec::new(),
        (0, 1) => vec![0],
        (0, _) => b"a".to_vec(),
        (1, 2) => b"b".to_vec(),
        (1, member) => [&b"aaaaaaaa"[..], &[b'1' + member as u8]].concat(),
        // Longer than the prefix of a layer.
        (_, 0) => vec![b'x'; 100],
        (_, member) => [&[b'x'; 195][..], &[b'1' + member as u8]].concat(),
    }
}

impl Scenario {
    /// The key of bytes in place of a number's key.
    pub(super) fn bytes_of(&self, key: u64) -> Vec<u8> {
        let number = key / self.key(1);
        let group = number / GROUP;
        let mut begin = self.key(group * GROUP).to_be_bytes();
        if !group.is_multiple_of(2) {
            // Without zeros, which take two bytes: so a key ends where the first word does.
            begin.iter_mut().for_each(|byte| *byte = (*byte).max(1));
        }
        [&begin[..], &end(group, number % GROUP)].concat()
    }

    /// The number's key in place of which this one is.
    pub(super) fn key_of(&self, bytes: &[u8]) -> Option<u64> {
        let (first, _) = bytes.split_first_chunk()?;
        let group = u64::from_be_bytes(*first) / self.key(1) / GROUP;
        let all = (group * GROUP..(group + 1) * GROUP).map(|number| self.key(number));
        all.into_iter().find(|key| self.bytes_of(*key) == bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_bytes_are_in_the_order_of_the_numbers_and_on_their_servers() {
        for seed in 0..50 {
            let scenario = Scenario::byte_keys(seed);
            let all = scenario.keys * u64::from(scenario.servers);
            let keys: Vec<u64> = (0..all).map(|number| scenario.key(number)).collect();
            let bytes: Vec<Vec<u8>> = keys.iter().map(|key| scenario.bytes_of(*key)).collect();
            assert!(bytes.is_sorted_by(|one, other| one < other), "seed {seed}");
            for (key, bytes) in keys.iter().zip(&bytes) {
                assert_eq!(scenario.key_of(bytes), Some(*key));
                let word = scenario.config.prefix().word(bytes);
                let server = |key: u64| scenario.ids().find(|id| scenario.range_of(*id).contains(key));
                assert_eq!(server(word), server(*key), "seed {seed}");
            }
        }
    }
}
