//! Format of a probe on a wire.
//!
//! | bytes | |
//! |---|---|
//! | 0–5 | destination 01:80:c2:00:00:0e, which no bridge forwards (IEEE 802.1Q, table 8-1) |
//! | 6–11 | source 02:00:00:00:00:01 |
//! | 12–13 | EtherType 0x88b5, for local experiments (IEEE 802) |
//! | 14 | version, 1 |
//! | 15–18 | the switch that sends it |
//! | 19–20 | its port |
//! | 21–24 | sequence number of the direction |
//! | 25–32 | token of the monitor |
//! | 33–59 | zero, up to the shortest Ethernet frame |

use fatbtree_topology::SwitchId;

use super::CableEnd;

/// EtherType of probes.
pub const ETHER_TYPE: u16 = 0x88b5;

const ETHERNET: [u8; 14] = [0x01, 0x80, 0xc2, 0, 0, 0x0e, 0x02, 0, 0, 0, 0, 0x01, 0x88, 0xb5];
const VERSION: u8 = 1;
/// Without the zeros.
const LEN: usize = 33;
const FRAME: usize = 60;

/// Content of a probe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Found {
    pub(super) from: CableEnd,
    pub(super) sequence: u32,
}

pub(super) fn write(from: CableEnd, sequence: u32, token: u64) -> Vec<u8> {
    let mut frame = Vec::with_capacity(FRAME);
    frame.extend_from_slice(&ETHERNET);
    frame.push(VERSION);
    frame.extend_from_slice(&from.switch.0.to_be_bytes());
    frame.extend_from_slice(&from.port.to_be_bytes());
    frame.extend_from_slice(&sequence.to_be_bytes());
    frame.extend_from_slice(&token.to_be_bytes());
    frame.resize(FRAME, 0);
    frame
}

/// `None` for any other frame, and for a probe with another token.
pub(super) fn read(frame: &[u8], token: u64) -> Option<Found> {
    let fields = frame.get(ETHERNET.len()..LEN).filter(|_| frame.starts_with(&ETHERNET))?;
    let (version, fields) = fields.split_first()?;
    let (switch, fields) = fields.split_first_chunk()?;
    let (port, fields) = fields.split_first_chunk()?;
    let (sequence, found) = fields.split_first_chunk()?;
    (*version == VERSION && found == token.to_be_bytes()).then(|| Found {
        from: CableEnd { switch: SwitchId(u32::from_be_bytes(*switch)), port: u16::from_be_bytes(*port) },
        sequence: u32::from_be_bytes(*sequence),
    })
}

/// Whether a frame is a probe of any controller.
pub fn is_probe(frame: &[u8]) -> bool {
    frame.get(12..14) == Some(&ETHER_TYPE.to_be_bytes())
}
