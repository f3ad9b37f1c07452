//! Calculations: CRCs and checksums over fields, with BMv2's parameters.

use crc::{CRC_16_ARC, Crc};

use crate::code::{Slot, Words};

const CRC_16: Crc<u16> = Crc::<u16>::new(&CRC_16_ARC);

/// A hash algorithm, named as in v1model's `HashAlgorithm`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algorithm {
    /// CRC-32 of IEEE 802.3, reflected.
    Crc32,
    /// CRC-16 with polynomial 0x8005, reflected, initial value 0 ("ARC").
    Crc16,
    /// The Internet checksum, RFC 1071.
    Csum16,
    /// Xor of all 16-bit words.
    Xor16,
    /// The first eight bytes as a number.
    Identity,
}

impl Algorithm {
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "crc32" => Algorithm::Crc32,
            "crc16" => Algorithm::Crc16,
            "csum16" => Algorithm::Csum16,
            "xor16" => Algorithm::Xor16,
            "identity" => Algorithm::Identity,
            _ => return None,
        })
    }

    /// Width of the result.
    fn bits(self) -> u16 {
        match self {
            Algorithm::Crc32 => 32,
            Algorithm::Crc16 | Algorithm::Csum16 | Algorithm::Xor16 => 16,
            Algorithm::Identity => 64,
        }
    }

    /// Whether each result is the xor of the contributions of the input's bits and of the result of zeros.
    fn is_linear(self) -> bool {
        matches!(self, Algorithm::Crc32 | Algorithm::Crc16)
    }

    fn run(self, bytes: &[u8]) -> u64 {
        match self {
            Algorithm::Crc32 => u64::from(crc32fast::hash(bytes)),
            Algorithm::Crc16 => u64::from(CRC_16.checksum(bytes)),
            Algorithm::Csum16 => {
                let sum = words(bytes).fold(0u64, |sum, word| sum + u64::from(word));
                u64::from(!fold(sum))
            }
            Algorithm::Xor16 => u64::from(words(bytes).fold(0, |xor, word| xor ^ word)),
            Algorithm::Identity => bytes.iter().take(8).fold(0, |n, &byte| n << 8 | u64::from(byte)),
        }
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u16> + '_ {
    bytes.chunks(2).map(|pair| u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]))
}

/// One's complement sum of the 16-bit words of a number.
fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// One part of a calculation's input.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InputPart {
    /// A field, or a constant's low 64 bits.
    pub(crate) slot: Slot,
    /// Bits; more than 64 only for constants, whose upper bits are zero.
    pub(crate) width: u32,
    /// The header that must be valid for this part to be there.
    pub(crate) valid: Option<Slot>,
}

/// A named calculation.
#[derive(Debug, Clone)]
pub(crate) struct CalculationCode {
    algorithm: Algorithm,
    parts: Vec<InputPart>,
    payload: bool,
    /// Computation if all `headers` are valid.
    fast: Fast,
    headers: Vec<Slot>,
}

/// Ways that avoid laying out the input bit by bit.
#[derive(Debug, Clone)]
pub(crate) enum Fast {
    None,
    /// The Internet checksum needs no bytes: the sum of shifted fields is the same, because 2^16 = 1 in one's
    /// complement arithmetic.
    Sum(Vec<Term>),
    /// A CRC needs no bytes, either: what a field contributes is the xor of what its bytes do.
    Linear(Linear),
    /// Whole bytes only, at most [`BUFFER`] together: slot, shift to the top of a word, bytes.
    Bytes(Vec<(Slot, u8, u8)>),
}

/// A field of a sum: at most [`WIDEST`](Term::WIDEST) bits, shifted left to where 16-bit words have it, by 15 bits at most.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Term {
    pub(crate) slot: Slot,
    pub(crate) shift: u8,
}

impl Term {
    const WIDEST: u32 = 48;
}

/// A CRC by contributions.
#[derive(Debug, Clone)]
pub(crate) struct Linear {
    /// The CRC of the constants among zeros.
    pub(crate) base: u32,
    /// Fields that are not constants, and how many bytes each has.
    pub(crate) fields: Vec<(Slot, u8)>,
    /// Contributions of the values of each byte; of each field the lowest byte first.
    pub(crate) bytes: Vec<[u32; 256]>,
}

/// Maximum number of bytes with tables of a kilobyte each, which then fit a fast cache.
const FEW_BYTES: usize = 48;

/// Bytes of input that are laid out in a buffer of fixed size.
const BUFFER: usize = 120;

impl CalculationCode {
    pub(crate) fn new(algorithm: Algorithm, parts: Vec<InputPart>, payload: bool) -> Self {
        CalculationCode { algorithm, parts, payload, fast: Fast::None, headers: Vec::new() }
    }

    /// Width of the result, 16 to 64.
    pub(crate) fn bits(&self) -> u16 {
        self.algorithm.bits()
    }

    /// Chooses the way of computation, when the parts are final. `constants` are slots whose value never changes.
    pub(crate) fn finish(&mut self, constants: &[(Slot, u64)]) {
        self.headers = self.parts.iter().filter_map(|p| p.valid).collect();
        self.headers.sort_unstable();
        self.headers.dedup();
        let bits: u32 = self.parts.iter().map(|p| p.width).sum();
        let narrow = self.parts.iter().all(|p| p.width <= Term::WIDEST) && self.parts.len() < 1 << 10;
        self.fast = if self.payload {
            Fast::None
        } else if self.algorithm == Algorithm::Csum16 && narrow {
            // Each term has at most 48 + 15 bits; terms are folded as they are added.
            let mut end = 0;
            let terms = self.parts.iter().map(|part| {
                end += part.width;
                Term { slot: part.slot, shift: ((16 - end % 16) % 16) as u8 }
            });
            Fast::Sum(terms.collect())
        } else if let Some(linear) = self.contributions(constants) {
            Fast::Linear(linear)
        } else if bits as usize <= 8 * BUFFER && self.parts.iter().all(|p| p.width % 8 == 0 && p.width <= 64)
        {
            Fast::Bytes(
                self.parts.iter().map(|p| (p.slot, (64 - p.width) as u8, (p.width / 8) as u8)).collect(),
            )
        } else {
            Fast::None
        };
    }

    fn contributions(&self, constants: &[(Slot, u64)]) -> Option<Linear> {
        let bits: usize = self.parts.iter().map(|p| p.width as usize).sum();
        if !self.algorithm.is_linear() || bits > 8 * BUFFER {
            return None;
        }
        let zeros = vec![0; bits.div_ceil(8)];
        let base = self.algorithm.run(&zeros) as u32;
        // What a set bit contributes, counted from the first of the input.
        let contribution = |bit: usize| {
            let mut input = zeros.clone();
            input[bit / 8] = 0x80 >> (bit % 8);
            self.algorithm.run(&input) as u32 ^ base
        };
        let mut linear = Linear { base, fields: Vec::new(), bytes: Vec::new() };
        let mut end = 0;
        for part in &self.parts {
            end += part.width as usize;
            let width = part.width.min(64) as usize;
            let bit_of = |bit: usize| if bit < width { contribution(end - 1 - bit) } else { 0 };
            if let Some(&(_, value)) = constants.iter().find(|c| c.0 == part.slot) {
                for bit in (0..width).filter(|bit| value >> bit & 1 == 1) {
                    linear.base ^= bit_of(bit);
                }
                continue;
            }
            linear.fields.push((part.slot, width.div_ceil(8) as u8));
            for low in (0..width).step_by(8) {
                let bits = [0, 1, 2, 3, 4, 5, 6, 7].map(|bit| bit_of(low + bit));
                let of =
                    |value: usize| (0..8).filter(|bit| value >> bit & 1 == 1).fold(0, |x, bit| x ^ bits[bit]);
                linear.bytes.push(std::array::from_fn(of));
            }
        }
        (linear.bytes.len() <= FEW_BYTES).then_some(linear)
    }

    /// Reads `new` instead of the variable `old`, which holds the same.
    pub(crate) fn replace(&mut self, old: Slot, new: Slot) {
        for part in self.parts.iter_mut().filter(|p| p.slot == old && p.valid.is_none()) {
            part.slot = new;
        }
    }

    /// All slots that it reads.
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> + '_ {
        self.parts.iter().flat_map(|p| [Some(p.slot), p.valid]).flatten()
    }

    /// Computes over the packet's fields; `rest` is what the parser has not taken. `scratch` is overwritten.
    pub(crate) fn run(&self, slots: &Words, rest: &[u8], scratch: &mut Vec<u8>) -> u64 {
        let get = |slot: Slot| slots[usize::from(slot)];
        let complete = self.headers.iter().all(|&h| get(h) != 0);
        match &self.fast {
            Fast::Sum(terms) if complete => {
                let mut sum = 0u64;
                for &Term { slot, shift, .. } in terms {
                    let term = get(slot) << (shift & 15);
                    sum += (term & 0xffff_ffff) + (term >> 32);
                }
                return u64::from(!fold(sum));
            }
            Fast::Linear(linear) if complete => return u64::from(linear.run(slots)),
            Fast::Bytes(parts) if complete => {
                let mut buffer = [0; BUFFER + 8];
                let mut at = 0;
                for &(slot, shift, bytes) in parts {
                    let word = get(slot) << (shift & 63);
                    if let Some(place) = buffer[at..].first_chunk_mut() {
                        *place = word.to_be_bytes();
                    }
                    at = (at + usize::from(bytes)).min(BUFFER);
                }
                return self.algorithm.run(&buffer[..at]);
            }
            _ => {}
        }
        scratch.clear();
        // Bits not yet in `scratch`, fewer than 8.
        let (mut bits, mut held) = (0u32, 0u32);
        for part in &self.parts {
            if part.valid.is_some_and(|valid| get(valid) == 0) {
                continue;
            }
            let mut width = part.width;
            while width > 64 {
                let step = (width - 64).min(24);
                push_bits(scratch, &mut bits, &mut held, 0, step);
                width -= step;
            }
            let value = get(part.slot);
            if width > 32 {
                push_bits(scratch, &mut bits, &mut held, (value >> 32) as u32, width - 32);
                width = 32;
            }
            push_bits(scratch, &mut bits, &mut held, value as u32, width);
        }
        if held > 0 {
            let pad = 8 - held;
            push_bits(scratch, &mut bits, &mut held, 0, pad);
        }
        if self.payload {
            scratch.extend_from_slice(rest);
        }
        self.algorithm.run(scratch)
    }
}

impl Linear {
    #[inline]
    fn run(&self, slots: &Words) -> u32 {
        let mut bytes = self.bytes.iter();
        self.fields.iter().fold(self.base, |crc, &(slot, count)| {
            let mut value = slots[usize::from(slot)];
            bytes.by_ref().take(count.into()).fold(crc, |crc, contributions| {
                let contribution = contributions[value as usize & 255];
                value >>= 8;
                crc ^ contribution
            })
        })
    }
}

/// Appends the low `width` (at most 32) bits of `value`.
fn push_bits(out: &mut Vec<u8>, bits: &mut u32, held: &mut u32, value: u32, width: u32) {
    let mut all = (u64::from(*bits) << width) | (u64::from(value) & ((1 << width) - 1));
    *held += width;
    while *held >= 8 {
        *held -= 8;
        out.push((all >> *held) as u8);
        all &= (1 << *held) - 1;
    }
    *bits = all as u32;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::code::Slots;

    #[test]
    fn check_values_of_the_standards() {
        assert_eq!(Algorithm::Crc32.run(b"123456789"), 0xcbf4_3926);
        assert_eq!(Algorithm::Crc16.run(b"123456789"), 0xbb3d); // CRC-16/ARC
        assert_eq!(Algorithm::Identity.run(&[1, 2, 3]), 0x010203);
        assert_eq!(Algorithm::Identity.run(&[1, 2, 3, 4, 5, 6, 7, 8, 9]), 0x0102_0304_0506_0708);
        assert_eq!(Algorithm::Xor16.run(&[0x12, 0x34, 0x56]), 0x1234 ^ 0x5600);
        // RFC 1071 section 3: the sum of these is ddf2.
        assert_eq!(Algorithm::Csum16.run(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), 0x220d);
    }

    #[test]
    fn fields_are_laid_side_by_side_and_invalid_headers_skipped() {
        let mut slots = Slots::default();
        for (slot, value) in
            [(0, 0x4), (1, 0x5), (2, 0x123), (3, 0xffff_0000_1111_2222), (4, 0x1), (5, 0), (6, 1)]
        {
            slots.set(slot, value);
        }
        let part = |slot, width, valid| InputPart { slot, width, valid };
        let parts = vec![
            part(0, 4, Some(6)),
            part(1, 4, Some(6)),
            part(2, 12, Some(5)), // its header is not there
            part(5, 128, None),
            part(2, 12, None),
            part(3, 64, None),
            part(4, 1, None),
        ];
        let mut scratch = Vec::new();
        CalculationCode::new(Algorithm::Identity, parts, true).run(slots.words(), &[0xab], &mut scratch);
        let mut expected = vec![0x45];
        expected.extend([0; 16]);
        expected.extend([0x12, 0x3f, 0xff, 0xf0, 0x00, 0x01, 0x11, 0x12, 0x22, 0x28, 0xab]);
        assert_eq!(scratch, expected);
    }

    #[test]
    fn the_sum_of_shifted_fields_is_the_internet_checksum() {
        let mut slots = Slots::default();
        let fields = [
            (0u16, 0x4, 4),
            (1, 0x5, 4),
            (2, 0xb8, 8),
            (3, 0x1234, 16),
            (4, 0x5, 3),
            (5, 0x1fff, 13),
            (6, 0xc0a8_0001, 32),
            (7, 0x1234_5678_9abc, 48),
            (8, 0x7f, 8),
        ];
        for (slot, value, _) in fields {
            slots.set(slot, value);
        }
        let parts: Vec<_> =
            fields.iter().map(|&(slot, _, width)| InputPart { slot, width, valid: None }).collect();
        let mut fast = CalculationCode::new(Algorithm::Csum16, parts.clone(), false);
        fast.finish(&[]);
        assert!(matches!(fast.fast, Fast::Sum(_)));
        assert_eq!(run(&fast, &slots), run(&CalculationCode { fast: Fast::None, ..fast.clone() }, &slots));
    }

    fn run(code: &CalculationCode, slots: &Slots) -> u64 {
        code.run(slots.words(), &[], &mut Vec::new())
    }

    proptest! {
        /// Contributions, byte by byte and bit by bit, give the same result, whichever parts are constants.
        #[test]
        fn a_crc_is_the_sum_of_contributions(
            fields in prop::collection::vec((1..=64u32, any::<u64>(), any::<bool>()), 1..12),
            crc16 in any::<bool>(),
        ) {
            let mut slots = Slots::default();
            let mut constants = Vec::new();
            let mut parts = Vec::new();
            for (slot, &(width, value, constant)) in (0..).zip(&fields) {
                let value = crate::table::ones(width as u16) & value;
                slots.set(slot, value);
                parts.push(InputPart { slot, width, valid: None });
                if constant {
                    constants.push((slot, value));
                }
            }
            let algorithm = if crc16 { Algorithm::Crc16 } else { Algorithm::Crc32 };
            let mut code = CalculationCode::new(algorithm, parts, false);
            let expected = run(&code, &slots);
            code.finish(&constants);
            let bytes: u32 = fields.iter().filter(|f| !f.2).map(|f| f.0.div_ceil(8)).sum();
            prop_assert_eq!(matches!(code.fast, Fast::Linear(_)), bytes as usize <= FEW_BYTES);
            prop_assert_eq!(run(&code, &slots), expected);
        }
    }

    #[test]
    fn whole_bytes_are_laid_out_at_once() {
        let mut slots = Slots::default();
        let widths = [8u32, 16, 24, 32, 40, 48, 56, 64, 64, 8];
        let part = |slot: usize, width| InputPart { slot: slot as u16, width, valid: None };
        let parts: Vec<_> = widths.iter().enumerate().map(|(at, &width)| part(at, width)).collect();
        for (at, width) in widths.iter().enumerate() {
            slots.set(at as u16, 0xf1e2_d3c4_b5a6_9788 >> (64 - width));
        }
        let mut fast = CalculationCode::new(Algorithm::Identity, parts, false);
        fast.finish(&[]);
        assert!(matches!(fast.fast, Fast::Bytes(_)));
        assert_eq!(run(&fast, &slots), run(&CalculationCode { fast: Fast::None, ..fast.clone() }, &slots));
    }
}
