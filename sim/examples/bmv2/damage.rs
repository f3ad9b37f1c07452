//! Damage to frames on a cable.

use rand::RngExt as _;

use crate::Random;

/// Flips bits, overwrites bytes, cuts off or appends; sometimes the IPv4 checksum is right nevertheless, so that the damage is seen by what
/// comes after it.
pub(crate) fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    if bytes.is_empty() {
        return;
    }
    for _ in 0..random.random_range(1..4u8) {
        let at = random.random_range(0..bytes.len().max(1));
        match random.random_range(0..8u8) {
            0..3 => flip(bytes, at, random),
            // Headers are in front.
            3..5 => flip(bytes, at % 96, random),
            5 => {
                for byte in bytes.iter_mut().skip(at).take(4) {
                    *byte = random.random();
                }
            }
            6 => bytes.truncate(at.max(1)),
            _ => bytes.extend((0..random.random_range(1..40u8)).map(|_| random.random::<u8>())),
        }
    }
    if random.random() {
        mend_ipv4(bytes);
    }
}

fn flip(bytes: &mut [u8], at: usize, random: &mut Random) {
    if let Some(byte) = bytes.get_mut(at) {
        *byte ^= 1 << random.random_range(0..8u8);
    }
}

/// Makes the checksum of an IPv4 header without options right, if there is one at the usual place.
pub(crate) fn mend_ipv4(bytes: &mut [u8]) {
    let Some(header) = bytes.get_mut(14..34) else { return };
    header[10..12].fill(0);
    let words = header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    header[10..12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}
