//! Keys of bytes in place of numbers: three to a group, which begin alike, so that layers come and go.
//!
//! ```text
//!   number   0        1         2          3             4             5        6         7          8
//!   key      g0       g0 \0     g0 a       g1 aaaaaaaa1  g1 aaaaaaaa2  g1 b     g2 x…     g2 x…x1    g2 x…x2
//! ```
//!
//! The eight bytes g are those of the group's first number's key, so groups lie on the servers where numbers would.

use fatbtree_blink::layers::KeyCode;
use rand::RngExt as _;

use super::Scenario;
use crate::world::{Random, random};

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

/// A code of keys, which tells some of them apart and not others: widths of bytes are drawn. There are few, because a process keeps each.
pub(super) fn code(draw: &mut Random) -> KeyCode {
    let draw = &mut random(draw.random_range(0..256), 88);
    let mut description = vec![];
    for context in [&[][..], b"x", b"xx"] {
        let mut listed: Vec<u8> =
            [0, 1, b'1', b'a', b'b', b'x'].into_iter().filter(|_| draw.random()).collect();
        if listed.is_empty() {
            listed.push(draw.random());
        }
        description.extend([context.len() as u8 | draw.random_range(0..8) << 2, (listed.len() - 1) as u8]);
        description.extend(context);
        description.extend(listed.iter().flat_map(|byte| [*byte, 1 << draw.random_range(0..8)]));
    }
    KeyCode::new(&description).expect("bytes are listed in their order")
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
                let word = scenario.config.code().word(bytes);
                let server = |key: u64| scenario.ids().find(|id| scenario.range_of(*id).contains(key));
                assert_eq!(server(word), server(*key), "seed {seed}");
            }
        }
    }
}
