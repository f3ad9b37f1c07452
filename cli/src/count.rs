//! Numbers as people write them.

use std::fmt;

/// A count: `4711`, `1_000_000`, `1,000,000`, `1e6`, `20k`, `2M`, `1.5G` (decimal multiples). `None` if it is no
/// count.
pub(crate) fn parse(text: &str) -> Option<Result<u64, String>> {
    let plain = text.replace(['_', ','], "");
    let (number, exponent) = match plain.split_once(['e', 'E']) {
        Some((number, exponent)) => (number, exponent.parse::<u32>().ok()?),
        None => match plain.char_indices().next_back()? {
            (at, 'k' | 'K') => (&plain[..at], 3),
            (at, 'M') => (&plain[..at], 6),
            (at, 'G') => (&plain[..at], 9),
            _ => (plain.as_str(), 0),
        },
    };
    let (whole, part) = number.split_once('.').unwrap_or((number, ""));
    let is_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_digits(whole) || !is_digits(part) {
        return None;
    }
    let too_many = || format!("{text}: more than 64 bits can count");
    let places = u32::try_from(part.len()).ok()?;
    if places > exponent {
        return Some(Err(format!("{text}: not a whole number")));
    }
    let digits = format!("{whole}{part}").parse::<u64>();
    let value = digits.ok().and_then(|digits| digits.checked_mul(10u64.checked_pow(exponent - places)?));
    Some(value.ok_or_else(too_many))
}

/// `1 key`, `2 keys`.
pub(crate) fn of(count: impl Into<u64>, what: &str) -> String {
    let count = count.into();
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// A key that was asked for: decimal, or hexadecimal with 0x. Keys in the answer are written in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AskedKey {
    pub(crate) key: u64,
    is_hexadecimal: bool,
}

impl AskedKey {
    /// Any key, in the notation of this one.
    pub(crate) fn show(self, key: u64) -> String {
        if self.is_hexadecimal { format!("{key:#x}") } else { key.to_string() }
    }
}

impl fmt::Display for AskedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.show(self.key))
    }
}

/// Reads an argument that is a key.
pub(crate) fn key(text: &str) -> Result<AskedKey, String> {
    key_of(text)
        .ok_or_else(|| format!("expected a 64-bit key such as 4711, 1_000, 1e6 or 0x1267, found {text:?}"))
}

/// A key: decimal, also such as 1e6, or hexadecimal; underscores between its digits are passed over.
pub(crate) fn key_of(text: &str) -> Option<AskedKey> {
    let text = text.trim();
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    // The parser would take a sign.
    if !digits.starts_with(|c: char| c.is_digit(radix)) {
        return None;
    }
    let is_power = |c: char| c.is_ascii_digit() || ['_', '.', 'e', 'E'].contains(&c);
    if radix == 10 && digits.contains(['e', 'E']) && digits.chars().all(is_power) {
        return Some(AskedKey { key: parse(digits)?.ok()?, is_hexadecimal: false });
    }
    let key = match digits.contains('_') {
        true => u64::from_str_radix(&digits.replace('_', ""), radix),
        false => u64::from_str_radix(digits, radix),
    };
    Some(AskedKey { key: key.ok()?, is_hexadecimal: radix == 16 })
}

/// Reads an option that is a count.
pub(crate) fn any(text: &str) -> Result<u64, String> {
    parse(text).unwrap_or_else(|| Err(expected(text)))
}

/// Reads an option that is a count of at least 1.
pub(crate) fn positive(text: &str) -> Result<u64, String> {
    any(text).and_then(|count| if count > 0 { Ok(count) } else { Err(expected(text)) })
}

fn expected(text: &str) -> String {
    format!("expected a number such as 4711, 1e6 or 2M, found {text:?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_answered_as_they_were_asked_for() {
        let (decimal, hexadecimal) = (key("4711").unwrap(), key("0x1267").unwrap());
        assert_eq!((decimal.key, hexadecimal.key), (4711, 4711));
        assert_eq!((decimal.to_string(), hexadecimal.to_string()), ("4711".into(), "0x1267".into()));
        assert_eq!((decimal.show(16), hexadecimal.show(16)), ("16".into(), "0x10".into()));
        assert_eq!((key("1_000").unwrap().key, key("0X10").unwrap().to_string()), (1000, "0x10".into()));
        assert_eq!((key("1e6").unwrap().key, key("1.5E3").unwrap().key), (1_000_000, 1500));
        assert_eq!(key("0x1e6").unwrap().key, 0x1e6);
        assert!(
            ["4711x", "0x", "", "+1", "1.5", "1e", "1e-3", "1e20", "2k", "1,000"]
                .iter()
                .all(|text| key(text).is_err())
        );
    }

    #[test]
    fn numbers_are_read_as_people_write_them() {
        let numbers = [
            ("4711", 4711),
            ("1_000_000", 1_000_000),
            ("1,000", 1000),
            ("1e6", 1_000_000),
            ("2.5E3", 2500),
            ("20k", 20_000),
            ("2M", 2_000_000),
            ("1.5G", 1_500_000_000),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, number) in numbers {
            assert_eq!((positive(text), any(text)), (Ok(number), Ok(number)), "{text}");
        }
        for text in ["", "k", "keys.txt", "-1", "0x10", "e6", "1e", "1 2", "M2", "."] {
            assert!(parse(text).is_none(), "{text}");
        }
        for text in ["1e20", "18446744073709551616", "1.5", "2.55k1", "1e9999", "0"] {
            assert!(positive(text).is_err(), "{text}");
        }
        assert_eq!(any("0"), Ok(0));
        assert_eq!((of(1u16, "key"), of(2u64, "memory server")), ("1 key".into(), "2 memory servers".into()));
    }
}
