//! The invariant CRC: in full, and by difference.
//!
//! The ICRC is the CRC-32 of Ethernet over a message made from the frame (IBTA volume 1, section 7.8.1; annex A17):
//! eight bytes of ones in place of the local route header, then IPv4, UDP, BTH and the rest up to the ICRC, with every
//! field that routers may change replaced by ones: TOS, TTL and checksum of IPv4, the UDP checksum, and the byte of
//! the BTH that carries FECN and BECN. It travels least significant byte first; here it is a `u32` of those
//! four bytes in little-endian order, which is exactly what `crc32fast` and zlib return.
//!
//! # By difference
//!
//! CRC-32 is linear: for messages of equal length, `crc(m) ^ crc(m')` depends only on `m ^ m'`. So a switch that
//! changes some fields of a message needs no more than the difference of those fields to [`mend`] its ICRC. What was damaged
//! on the way stays damaged: recomputing the ICRC would bless it.
//!
//! Between the first and the last hop the same map also covers the index header and what the ICRC leaves out, see
//! [`InFlightDelta`].

use crate::{
    Bth, ETHERNET_LEN, ICRC_LEN, IN_FLIGHT, INDEX_UDP_PORT, IPV4_LEN, IndexHeader, PREFIX_LEN, ROCE_UDP_PORT,
};
use crc32fast::Hasher;

/// Number of bytes of ones that stand for the local route header.
pub(crate) const DUMMY_LRH_LEN: usize = 8;

/// Bytes of IPv4 and UDP that routers may change: TOS, TTL and checksum of IPv4, checksum of UDP. They count as ones.
pub(crate) const MASKED_IP_UDP: [usize; 6] = [1, 8, 10, 11, IPV4_LEN + 6, IPV4_LEN + 7];

/// The byte of the BTH with FECN, BECN and reserved bits, which counts as ones.
pub(crate) const MASKED_BTH: usize = 4;

/// Length of the message up to the end of the BTH, in bytes.
const MASKED_LEN: usize = DUMMY_LRH_LEN + (PREFIX_LEN - ETHERNET_LEN) + Bth::LEN;

/// Maximum number of bytes after the BTH with which a message of headers is hashed at once. One call of the CRC on
/// one buffer is faster than two.
const SHORT_REST: usize = 32;

/// The ICRC that `frame` should end with; `frame` runs from the Ethernet header to the end of the ICRC, without trailing
/// Ethernet padding. `None` when it is too short to hold Ethernet, IPv4, UDP, BTH and ICRC.
pub fn full(frame: &[u8]) -> Option<u32> {
    let (ip_udp, bth, rest) = split(frame, PREFIX_LEN)?;
    Some(of_message(ip_udp, bth, rest))
}

/// The ICRC an index read in flight should end with, given the frame with its index header: the full ICRC of the
/// frame without the header, mended by the header and what the ICRC leaves out. `None` when it is too short.
pub fn in_flight(frame: &[u8]) -> Option<u32> {
    let (ip_udp, bth, rest) = split(frame, PREFIX_LEN + IndexHeader::LEN)?;
    // What the last hop restores: lengths, port and mark (checksums are masked anyway).
    let mut restored = *ip_udp;
    let less = |high: u8, low: u8| {
        u16::from_be_bytes([high, low]).wrapping_sub(IndexHeader::LEN as u16).to_be_bytes()
    };
    [restored[2], restored[3]] = less(ip_udp[2], ip_udp[3]);
    [restored[IPV4_LEN + 4], restored[IPV4_LEN + 5]] = less(ip_udp[IPV4_LEN + 4], ip_udp[IPV4_LEN + 5]);
    let port = u16::from_be_bytes([ip_udp[IPV4_LEN + 2], ip_udp[IPV4_LEN + 3]]);
    let port = port.wrapping_add(ROCE_UDP_PORT.wrapping_sub(INDEX_UDP_PORT)).to_be_bytes();
    restored[6] ^= IN_FLIGHT;
    [restored[IPV4_LEN + 2], restored[IPV4_LEN + 3]] = port;
    let header = frame[PREFIX_LEN..].first_chunk()?;
    let left_out = InFlightDelta::left_out_of(frame, PREFIX_LEN + IndexHeader::LEN)?;
    let delta = InFlightDelta { index_header: *header, left_out, va: 0, rkey: 0 };
    Some(delta.mend(of_message(&restored, bth, rest)))
}

/// IPv4 and UDP, BTH, and what lies between BTH and ICRC.
type Parts<'a> = (&'a [u8; IPV4_LEN + 8], &'a [u8; Bth::LEN], &'a [u8]);

fn split(frame: &[u8], bth_at: usize) -> Option<Parts<'_>> {
    let message = frame.get(..frame.len().checked_sub(ICRC_LEN)?)?;
    let ip_udp = message.get(ETHERNET_LEN..)?.first_chunk()?;
    let (bth, rest) = message.get(bth_at..)?.split_first_chunk()?;
    Some((ip_udp, bth, rest))
}

/// The CRC of the message: masked headers, then `rest`.
#[inline]
fn of_message(ip_udp: &[u8; IPV4_LEN + 8], bth: &[u8; Bth::LEN], rest: &[u8]) -> u32 {
    let mut message = [0xff; MASKED_LEN + SHORT_REST];
    message[DUMMY_LRH_LEN..DUMMY_LRH_LEN + 28].copy_from_slice(ip_udp);
    message[DUMMY_LRH_LEN + 28..MASKED_LEN].copy_from_slice(bth);
    for at in MASKED_IP_UDP {
        message[DUMMY_LRH_LEN + at] = 0xff;
    }
    message[MASKED_LEN - Bth::LEN + MASKED_BTH] = 0xff;
    if rest.len() <= SHORT_REST {
        let end = MASKED_LEN + rest.len();
        message[MASKED_LEN..end].copy_from_slice(rest);
        crc32fast::hash(&message[..end])
    } else {
        let mut hasher = Hasher::new();
        hasher.update(&message[..MASKED_LEN]);
        hasher.update(rest);
        hasher.finalize()
    }
}

/// Mends an ICRC after the last bytes of its message changed by `delta` (old xor new, `delta.len()` bytes that end where
/// the ICRC begins): `icrc ^ crc32(delta) ^ crc32(zeros)`.
///
/// The map is linear, so differences may be mended one by one or together, in any order, and mending twice undoes.
pub fn mend(icrc: u32, delta: &[u8]) -> u32 {
    let mut zeros = Hasher::new();
    let mut left = delta.len();
    while left > 0 {
        let step = left.min(ZEROS.len());
        zeros.update(&ZEROS[..step]);
        left -= step;
    }
    icrc ^ crc32fast::hash(delta) ^ zeros.finalize()
}

const ZEROS: [u8; 64] = [0; 64];

/// Changes of one hop to an index read, each field old xor new; fields outside the ICRC count as zero.
///
/// | hop | `index_header` | `left_out` | `va`, `rkey` |
/// |---|---|---|---|
/// | first | the new header | the frame's | key to root, target to rkey |
/// | intermediate | old ^ new | 0 | old ^ new |
/// | last | the old header | the frame's | old ^ new |
///
/// Header, source MAC and the BTH's congestion byte are no part of the ICRC's message, but they enter the same linear map as if they stood in front
/// of it. The last hop takes out the very bytes that arrive there: if they are not those the first hop put in,
/// the difference stays in the ICRC and the server's NIC drops the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct InFlightDelta {
    /// Difference of the index header.
    pub index_header: [u8; IndexHeader::LEN],
    /// Difference of what the ICRC leaves out and nothing else protects: source MAC (6 bytes), then the byte of the BTH
    /// that carries FECN and BECN.
    pub left_out: [u8; 7],
    /// Difference of RETH.va.
    pub va: u64,
    /// Difference of RETH.rkey.
    pub rkey: u32,
}

// The switches are programmed for this length and hash nothing else.
const _: () = assert!(InFlightDelta::LEN == 39);

impl InFlightDelta {
    /// Size of the difference in bytes: header, what is left out, va, rkey, and the unchanged DMA length between rkey
    /// and ICRC.
    pub const LEN: usize = IndexHeader::LEN + 7 + 8 + 4 + 4;

    /// CRC-32 of [`Self::LEN`] zero bytes, the constant part of the map.
    pub const CRC_OF_ZEROS: u32 = 0x80f2_f420;

    /// The difference as bytes, in the order in which they are hashed.
    pub fn to_bytes(&self) -> [u8; InFlightDelta::LEN] {
        let mut bytes = [0; InFlightDelta::LEN];
        bytes[..16].copy_from_slice(&self.index_header);
        bytes[16..23].copy_from_slice(&self.left_out);
        bytes[23..31].copy_from_slice(&self.va.to_be_bytes());
        bytes[31..35].copy_from_slice(&self.rkey.to_be_bytes());
        bytes
    }

    /// Fields of `frame`, whose BTH begins at `bth_at`, that the ICRC leaves out. `None` if the frame is too short.
    pub fn left_out_of(frame: &[u8], bth_at: usize) -> Option<[u8; 7]> {
        let mut left_out = [0; 7];
        left_out[..6].copy_from_slice(frame.get(6..12)?);
        left_out[6] = *frame.get(bth_at + 4)?;
        Some(left_out)
    }

    /// The ICRC after this change.
    pub fn mend(&self, icrc: u32) -> u32 {
        icrc ^ crc32fast::hash(&self.to_bytes()) ^ InFlightDelta::CRC_OF_ZEROS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn constant_of_zeros() {
        assert_eq!(crc32fast::hash(&[0; InFlightDelta::LEN]), InFlightDelta::CRC_OF_ZEROS);
    }

    #[test]
    fn too_short_is_none() {
        let frame = [0; 100];
        for len in 0..58 {
            assert_eq!(full(&frame[..len]), None);
        }
        assert!(full(&frame[..58]).is_some());
        for len in 0..74 {
            assert_eq!(in_flight(&frame[..len]), None);
        }
        assert!(in_flight(&frame[..74]).is_some());
    }

    proptest! {
        #[test]
        fn mending_equals_recomputing(message in prop::collection::vec(any::<u8>(), 0..200),
                                      delta in prop::collection::vec(any::<u8>(), 0..200)) {
            let delta = &delta[..delta.len().min(message.len())];
            let mut changed = message.clone();
            let tail = message.len() - delta.len();
            for (byte, change) in changed[tail..].iter_mut().zip(delta) {
                *byte ^= change;
            }
            prop_assert_eq!(mend(crc32fast::hash(&message), delta), crc32fast::hash(&changed));
        }

        #[test]
        fn the_delta_struct_is_the_generic_map(index_header: [u8; 16], left_out: [u8; 7], va: u64, rkey: u32, icrc: u32) {
            let delta = InFlightDelta { index_header, left_out, va, rkey };
            prop_assert_eq!(delta.mend(icrc), mend(icrc, &delta.to_bytes()));
            prop_assert_eq!(delta.mend(delta.mend(icrc)), icrc);
        }
    }
}
