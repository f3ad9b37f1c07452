//! `sums.p4` against the same arithmetic in Rust.

use proptest::prelude::*;

use crate::{SUMS, Switch};

fn expected(a: u64, b: u32, c: u8, d: i16) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend(a.to_be_bytes());
    out.extend(b.to_be_bytes());
    out.push(c);
    out.extend(d.to_be_bytes());
    out.push(0x77);
    out.extend(a.wrapping_add(b.into()).to_be_bytes());
    out.extend(u64::from(b).wrapping_sub(a).to_be_bytes());
    out.extend(a.wrapping_mul(c.into()).to_be_bytes());
    out.extend(b.checked_shl(c.into()).unwrap_or(0).to_be_bytes());
    out.extend((b.checked_shr(c.into()).unwrap_or(0) ^ (b >> 3)).to_be_bytes());
    out.push(!c);
    out.push(c.wrapping_neg());
    out.extend([(b >> 12) as u8, c << 4 | 5]);
    out.push(c.saturating_add(b as u8));
    out.push(c.saturating_sub(b as u8));
    let mut compared = u8::from(a > u64::from(b));
    compared |= if b <= 1000 && c != 3 { 2 } else { 0 };
    compared |= if b < 10 || c == 3 { 8 } else { 4 };
    out.push(compared);
    out.extend(d.wrapping_add(b as i16).to_be_bytes());
    out.extend((d >> 2).to_be_bytes());
    out.push(if d < 0 { 1 } else { 2 } + if d >= -5 { 16 } else { 0 });
    out.extend(if c == 0 { b } else { c.into() }.to_be_bytes());
    let rounds: u32 = (0..u32::from(c)).sum();
    out.extend((rounds as u16).to_be_bytes());
    out.extend((b | u32::from(c)).to_be_bytes());
    out.extend((!u32::from(c)).to_be_bytes());
    out
}

proptest! {
    #[test]
    fn expressions_compute_what_p4_says(
        a in prop_oneof![any::<u64>(), 0..2000u64],
        b in prop_oneof![any::<u32>(), 0..1100u32],
        c in prop_oneof![any::<u8>(), 0..5u8],
        d in prop_oneof![any::<i16>(), -9..9i16],
    ) {
        let expected = expected(a, b, c, d);
        let mut frame = expected[..16].to_vec();
        frame.resize(expected.len(), 0xcc);
        let mut switch = Switch::new(SUMS);
        let (port, sent) = switch.one(0, &frame).unwrap();
        prop_assert_eq!(port, 1);
        prop_assert_eq!(sent, expected);
    }
}
