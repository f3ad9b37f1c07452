//! Keys of bytes of public kinds, made from a number and a seed.
//!
//! | shape | an example | what it stands for |
//! |---|---|---|
//! | [`User`](KeyShape::User) | `user:4711` | counted records, as Redis and YCSB name them |
//! | [`Uuid`](KeyShape::Uuid) | `5cc2aee9-a13c-48a6-97e9-d7a23df3f32b` | version 4 of RFC 9562, as text |
//! | [`Url`](KeyShape::Url) | `https://coldapple.example/press/2018/01/little-forest-park-4712.html` | pages of hosts, some of which have many |
//! | [`Email`](KeyShape::Email) | `ivan.lang4711@applemail.example` | addresses, most of them at few providers |
//! | [`Trace`](KeyShape::Trace) | `YBO:hM:fpQPEfytlPHbziV` | cache keys of the public Twitter traces: a name space, then letters and digits |
//! | [`Random`](KeyShape::Random) | 32 bytes | digests |
//!
//! Two numbers never have the same key: each key holds its number, as decimal digits or after a bijection of 64 bits. Equal shapes, seeds and
//! numbers make equal keys on every machine, because integers alone are computed with. All hosts are below `.example`, which RFC 2606 reserves.
//!
//! ```
//! use fatbtree_workload::byte_keys::{ByteKeys, KeyShape};
//!
//! let keys = ByteKeys::new(KeyShape::User, 1);
//! assert_eq!(keys.key(4711), b"user:4711");
//! ```

use std::io::Write as _;
use std::str::FromStr;

use fatbtree_remote_memory::mix;
use thiserror::Error;

mod words;

pub(crate) use words::DIGITS;

/// Kind of keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyShape {
    /// `user:` and the number. The seed changes nothing.
    User,
    /// 36 characters of a random UUID.
    Uuid,
    /// Pages of 8191 hosts.
    Url,
    /// Addresses of people at 255 providers.
    Email,
    /// Names of 63 name spaces with 11 to 22 letters and digits.
    Trace,
    /// 32 random bytes.
    Random,
}

/// Error for a word that is no shape of keys.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("expected a shape of keys, which is user, uuid, url, email, trace or random, found {found:?}")]
pub struct UnknownShape {
    /// The word.
    pub found: String,
}

impl KeyShape {
    /// All shapes.
    pub const ALL: [Self; 6] = [Self::User, Self::Uuid, Self::Url, Self::Email, Self::Trace, Self::Random];

    /// Word on command lines and in figures.
    pub const fn word(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Uuid => "uuid",
            Self::Url => "url",
            Self::Email => "email",
            Self::Trace => "trace",
            Self::Random => "random",
        }
    }
}

impl FromStr for KeyShape {
    type Err = UnknownShape;

    fn from_str(word: &str) -> Result<Self, UnknownShape> {
        let shape = Self::ALL.into_iter().find(|shape| shape.word() == word);
        shape.ok_or_else(|| UnknownShape { found: word.to_owned() })
    }
}

/// Endless keys of a shape, by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteKeys {
    shape: KeyShape,
    seed: u64,
}

/// Step of the states of [`Draws`].
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Most bytes of a key that is made: a URL of the longest words and number.
pub const MOST_MADE_BYTES: usize = 112;

impl ByteKeys {
    /// Keys of a shape.
    pub const fn new(shape: KeyShape, seed: u64) -> Self {
        Self { shape, seed }
    }

    /// Shape of the keys.
    pub const fn shape(&self) -> KeyShape {
        self.shape
    }

    /// Key of a number.
    pub fn key(&self, number: u64) -> Vec<u8> {
        let mut key = Vec::with_capacity(MOST_MADE_BYTES);
        self.write(number, &mut key);
        key
    }

    /// Replaces the content of `key` by the key of a number. Allocates nothing if there is room for [`MOST_MADE_BYTES`].
    pub fn write(&self, number: u64, key: &mut Vec<u8>) {
        key.clear();
        // A bijection of the numbers.
        let scrambled = mix(number ^ mix(self.seed ^ STEP));
        let mut draws = Draws(scrambled);
        let written = match self.shape {
            KeyShape::User => write!(key, "user:{number}"),
            KeyShape::Uuid => {
                // Six bits of a UUID say its version; 60 of the first 64 bits, and the four after the variant, hold the number.
                let (version, variant) = (0x4000, 0x8000_0000_0000_0000);
                let first = scrambled >> 16 << 16 | version | scrambled >> 4 & 0xfff;
                let second = variant | (scrambled & 0xf) << 58 | draws.next() >> 6;
                let (a, b, c) = (first >> 32, first >> 16 & 0xffff, first & 0xffff);
                write!(key, "{a:08x}-{b:04x}-{c:04x}-{:04x}-{:012x}", second >> 48, second & 0xffff_ffff_ffff)
            }
            KeyShape::Url => url(number, &mut draws, key),
            KeyShape::Email => {
                let (first, last) = (draws.one_of(&words::FIRST_NAMES), draws.one_of(&words::LAST_NAMES));
                let between = draws.one_of(&[".", ".", ".", "", "", "_"]);
                let provider = draws.skewed(8);
                let noun = words::NOUNS[provider as usize % words::NOUNS.len()];
                let kind = ["mail", "net", "works", "post"][provider as usize / words::NOUNS.len()];
                write!(key, "{first}{between}{last}{number}@{noun}{kind}.example")
            }
            KeyShape::Trace => {
                let space = mix(draws.skewed(6) + 1);
                letters(2 + space as usize % 3, space, key);
                key.push(b':');
                letters(1 + (space >> 8) as usize % 2, !space, key);
                key.push(b':');
                letters(ALL_DIGITS, scrambled, key);
                letters((space >> 16) as usize % 12, draws.next(), key);
                Ok(())
            }
            KeyShape::Random => {
                key.extend_from_slice(&scrambled.to_be_bytes());
                (0..3).for_each(|_| key.extend_from_slice(&draws.next().to_be_bytes()));
                Ok(())
            }
        };
        written.expect("bytes are written to memory");
    }
}

/// A page of a host. Its number is the last run of digits.
fn url(number: u64, draws: &mut Draws, key: &mut Vec<u8>) -> std::io::Result<()> {
    let host = draws.skewed(13);
    let www = ["www.", "www.", ""][(mix(host + 1) % 3) as usize];
    let (adjective, noun) = (host as usize % 64, host as usize / 64 % 64);
    // 4096 hosts, and as many with a hyphen.
    let between = if host < 1 << 12 { "" } else { "-" };
    let (adjective, noun) = (words::ADJECTIVES[adjective], words::NOUNS[noun]);
    let section = draws.one_of(&words::SECTIONS);
    write!(key, "https://{www}{adjective}{between}{noun}.example/{section}")?;
    let path = draws.next() % 8;
    if path == 0 {
        return write!(key, "?lang={}&id={number}", draws.one_of(&["en", "de", "fr", "es"]));
    }
    let [one, two, three] =
        [&words::ADJECTIVES, &words::NOUNS, &words::NOUNS].map(|words| draws.one_of(words));
    match path {
        1..4 => {
            let (year, month) = (2005 + draws.next() % 21, 1 + draws.next() % 12);
            write!(key, "/{year}/{month:02}/{one}-{two}-{three}-{number}.html")
        }
        _ => write!(key, "/{one}-{two}-{three}-{number}"),
    }
}

/// Number for the value that is made for a key of bytes.
///
/// A value of [`fatbtree_blink::value`] follows from a number; this one is that of all bytes of the key.
#[must_use]
pub fn value_number(key: &[u8]) -> u64 {
    key.chunks(8).fold(key.len() as u64, |number, chunk| {
        let word = chunk.iter().fold(0, |word: u64, byte| word << 8 | u64::from(*byte));
        mix(number.rotate_left(7) ^ mix(word ^ 1))
    })
}

/// Random numbers of a key (SplitMix64).
#[derive(Clone)]
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    fn one_of<'w>(&mut self, words: &[&'w str]) -> &'w str {
        words[(self.next() % words.len() as u64) as usize]
    }

    /// A number below 2ᵏ - 1, the lower the more often: each of the `blocks` k blocks 0, 1 to 2, 3 to 6 and so on has equal chances, as ranks of Zipf's law
    /// with exponent 1 nearly have.
    fn skewed(&mut self, blocks: u64) -> u64 {
        let (block, within) = (self.next() % blocks, self.next());
        (1 << block) - 1 + (within & ((1 << block) - 1))
    }
}

/// Digits of base 62 that hold 64 bits.
const ALL_DIGITS: usize = 11;

/// Adds so many digits of a number, the lowest first.
fn letters(count: usize, mut number: u64, key: &mut Vec<u8>) {
    for _ in 0..count {
        key.push(DIGITS[(number % 62) as usize]);
        number /= 62;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use proptest::prelude::*;

    use super::*;

    /// Numbers of figures depend on the keys: what a number and a seed make must stay.
    #[test]
    fn keys_stay_as_they_are() {
        let of = |shape| String::from_utf8(ByteKeys::new(shape, 1).key(4711)).expect("text");
        assert_eq!(of(KeyShape::User), "user:4711");
        assert_eq!(of(KeyShape::Uuid), "5cc2aee9-a13c-48a6-97e9-d7a23df3f32b");
        assert_eq!(of(KeyShape::Url), "https://late-meadow.example/about?lang=en&id=4711");
        assert_eq!(of(KeyShape::Email), "ivan.lang4711@applemail.example");
        assert_eq!(of(KeyShape::Trace), "yzW:H:lRB2L2cElx76LF3ICDA1h6");
        let random = [
            0x5c, 0xc2, 0xae, 0xe9, 0xa1, 0x3c, 0x8a, 0x65, 0xfa, 0x75, 0xe8, 0x8f, 0x7c, 0xfc, 0xca, 0xcd,
            0x05, 0x14, 0x91, 0x96, 0x79, 0x77, 0x2c, 0x24, 0x4d, 0xf7, 0xa9, 0x50, 0x52, 0x7d, 0xa0, 0x20,
        ];
        assert_eq!(ByteKeys::new(KeyShape::Random, 1).key(4711), random);
        assert_eq!((value_number(b""), value_number(b"user:4711")), (0, 0x8a1a_0fda_ec3c_d077));
    }

    #[test]
    fn shapes_are_named_by_words() {
        for shape in KeyShape::ALL {
            assert_eq!(shape.word().parse(), Ok(shape));
        }
        let error = "urls".parse::<KeyShape>().expect_err("no such word").to_string();
        assert!(error.contains("url, email") && error.contains("\"urls\""), "{error}");
    }

    #[test]
    fn keys_of_many_numbers_are_distinct() {
        for shape in KeyShape::ALL {
            let keys = ByteKeys::new(shape, 3);
            let distinct: HashSet<Vec<u8>> = (0..100_000).map(|number| keys.key(number)).collect();
            assert_eq!(distinct.len(), 100_000, "{shape:?}");
            let values: HashSet<u64> = distinct.iter().map(|key| value_number(key)).collect();
            assert_eq!(values.len(), 100_000, "{shape:?}");
        }
    }

    /// Few hosts have many pages, and many have few.
    #[test]
    fn hosts_are_skewed() {
        let keys = ByteKeys::new(KeyShape::Url, 1);
        let mut hosts: HashMap<String, u32> = HashMap::new();
        for number in 0..100_000 {
            let url = String::from_utf8(keys.key(number)).expect("text");
            *hosts.entry(url.split('/').nth(2).expect("a host").to_owned()).or_default() += 1;
        }
        let mut pages: Vec<u32> = hosts.into_values().collect();
        pages.sort_unstable_by(|one, other| other.cmp(one));
        // One of 13 blocks is one host.
        assert!((7_000..8_500).contains(&pages[0]), "{}", pages[0]);
        assert!((7_500..=8_191).contains(&pages.len()), "{}", pages.len());
        assert!(pages[pages.len() / 2] < 5, "{}", pages[pages.len() / 2]);
    }

    /// What a key holds of its number: the number, or all 64 bits after the bijection.
    fn held(shape: KeyShape, key: &[u8]) -> u64 {
        let text = String::from_utf8_lossy(key);
        match shape {
            KeyShape::User | KeyShape::Url | KeyShape::Email => {
                let digits = text.split(|char: char| !char.is_ascii_digit()).rfind(|run| !run.is_empty());
                digits.and_then(|digits| digits.parse().ok()).expect("a number")
            }
            KeyShape::Uuid => {
                let uuid = u128::from_str_radix(&text.replace('-', ""), 16).expect("hexadecimal");
                let (first, second) = ((uuid >> 64) as u64, uuid as u64);
                first >> 16 << 16 | (first & 0xfff) << 4 | second >> 58 & 0xf
            }
            KeyShape::Trace => {
                let id = text.split(':').nth(2).expect("an id").bytes().take(11);
                let digits = id.map(|digit| DIGITS.iter().position(|one| *one == digit).expect("a digit"));
                digits.rev().fold(0, |number, digit| number * 62 + digit as u64)
            }
            KeyShape::Random => u64::from_be_bytes(*key.first_chunk().expect("8 bytes")),
        }
    }

    proptest! {
        #[test]
        fn two_numbers_never_share_a_key(
            (one, other) in (prop_oneof![any::<u64>(), 0..1000u64], prop_oneof![any::<u64>(), 0..1000u64]),
            bit in 0..64u32,
            seed: u64,
        ) {
            for shape in KeyShape::ALL {
                let keys = ByteKeys::new(shape, seed);
                let mut written = vec![7; 3];
                keys.write(one, &mut written);
                prop_assert_eq!(&written, &keys.key(one), "it depends on what was there before");
                prop_assert!(written.len() <= MOST_MADE_BYTES, "{} bytes", written.len());
                prop_assert_eq!(keys.key(other) == written, one == other);
                prop_assert_ne!(keys.key(one ^ 1 << bit), written.clone());
                if shape != KeyShape::User {
                    prop_assert_ne!(ByteKeys::new(shape, seed ^ 1).key(one), written);
                }
            }
        }

        #[test]
        fn keys_hold_their_numbers_and_look_as_their_kind_does(
            number in prop_oneof![any::<u64>(), 0..1000u64],
            seed: u64,
        ) {
            for shape in KeyShape::ALL {
                let expected = match shape {
                    KeyShape::User | KeyShape::Url | KeyShape::Email => number,
                    KeyShape::Uuid | KeyShape::Trace | KeyShape::Random => mix(number ^ mix(seed ^ STEP)),
                };
                prop_assert_eq!(held(shape, &ByteKeys::new(shape, seed).key(number)), expected);
            }
            let text = |shape| String::from_utf8(ByteKeys::new(shape, seed).key(number)).expect("text");
            let uuid = text(KeyShape::Uuid);
            let parts: Vec<usize> = uuid.split('-').map(str::len).collect();
            prop_assert_eq!(&parts, &[8, 4, 4, 4, 12]);
            prop_assert!(uuid.chars().all(|char| char == '-' || char.is_ascii_hexdigit() && !char.is_uppercase()));
            prop_assert!(uuid.as_bytes()[14] == b'4' && b"89ab".contains(&uuid.as_bytes()[19]), "{}", uuid);
            let url = text(KeyShape::Url);
            prop_assert!(url.starts_with("https://") && url.contains(".example/"), "{}", url);
            let email = text(KeyShape::Email);
            prop_assert!(email.ends_with(".example") && email.matches('@').count() == 1, "{}", email);
            let trace = text(KeyShape::Trace);
            prop_assert!(trace.split(':').count() == 3 && (15..=30).contains(&trace.len()), "{}", trace);
            prop_assert_eq!(ByteKeys::new(KeyShape::Random, seed).key(number).len(), 32);
        }
    }
}
