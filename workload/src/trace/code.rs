//! Map from the strings of a trace to 64-bit keys that keeps their order.

/// Code of the strings of a trace: what all begin with is left out, and the bytes that follow are digits.
///
/// The base is one more than the number of distinct bytes after the common beginning, and digit 0 means that the
/// string has ended. As many digits as fit 64 bits make the key: 8 of arbitrary bytes, 10 of letters and digits, 18 of
/// decimal digits. Keys are in the order of the strings; strings whose first digits are equal have the same key.
///
/// ```
/// use fatbtree_workload::trace::KeyCode;
/// let code = KeyCode::of([&b"tweet:1a"[..], b"tweet:1b", b"tweet:2", b"tweet:2a"]);
/// assert_eq!((code.prefix(), code.digits()), (&b"tweet:"[..], 27));
/// assert!(code.key(b"tweet:1a") < code.key(b"tweet:1b") && code.key(b"tweet:2") < code.key(b"tweet:2a"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyCode {
    prefix: Vec<u8>,
    /// Digit of each byte, from 1; 0 where no string has it.
    digit: Vec<u8>,
    base: u64,
    digits: u32,
}

impl KeyCode {
    /// Code of some strings.
    pub fn of<'s>(strings: impl IntoIterator<Item = &'s [u8]> + Clone) -> Self {
        let mut prefix: Option<&[u8]> = None;
        for string in strings.clone() {
            let shared = prefix
                .map_or(string.len(), |prefix| prefix.iter().zip(string).take_while(|(a, b)| a == b).count());
            prefix = Some(&string[..shared]);
        }
        let prefix = prefix.unwrap_or_default().to_vec();
        let mut is_used = [false; 256];
        for string in strings {
            string[prefix.len()..].iter().for_each(|byte| is_used[usize::from(*byte)] = true);
        }
        let mut used = 0u16;
        let digit = is_used.iter().map(|is_used| {
            used += u16::from(*is_used);
            if *is_used { used } else { 0 }
        });
        let digits: Vec<u16> = digit.collect();
        // All 256 bytes and the end are 257 digits. The last byte shares the digit of the one before: such strings
        // are merged, and stay in order.
        let digit = digits.into_iter().map(|digit| digit.min(255) as u8).collect();
        let base = u64::from(used.min(255)) + 1;
        let fits = |digits: &u32| u128::from(base).pow(digits + 1) <= 1 << 64;
        let digits = if base == 1 { 0 } else { (0..64).take_while(fits).count() };
        Self { prefix, digit, base, digits: digits as u32 }
    }

    /// Beginning that all strings share, which is left out.
    pub fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    /// Number of bytes after the shared beginning that make a key.
    pub fn digits(&self) -> u32 {
        self.digits
    }

    /// The key of a string, one of those that the code was made of.
    pub fn key(&self, string: &[u8]) -> u64 {
        let rest = string.get(self.prefix.len()..).unwrap_or_default();
        let digit = |at: u32| rest.get(at as usize).map_or(0, |byte| self.digit[usize::from(*byte)]);
        (0..self.digits).fold(0, |key, at| key * self.base + u64::from(digit(at)))
    }
}
