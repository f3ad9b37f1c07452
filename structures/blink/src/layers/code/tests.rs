use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::layers::key::read;

/// Keys that begin alike, have zeros, or are unlike all others.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![3 => prop::sample::select(&[0, 1, 0x61, 0x62, 0xfe, 0xff][..]), 1 => any::<u8>()];
    (0..4_usize, prop::collection::vec(byte, 0..24)).prop_map(|(alike, rest)| {
        let begin = [&b"https://www.a"[..], b"https://b", b"", b"\0\0"][alike];
        [begin, &rest].concat()
    })
}

/// Codes of loads, and one of any rows.
fn code() -> impl Strategy<Value = KeyCode> {
    let loads = (prop::collection::btree_set(key(), 1..300), any::<bool>()).prop_map(|(mut keys, many)| {
        if many {
            keys.extend((0..2000).map(|n: u32| format!("https://www.{}.example/{n}", n % 31).into_bytes()));
        }
        of(&keys.into_iter().collect::<Vec<_>>())
    });
    let listed = || prop::collection::btree_map(any::<u8>(), 1..=u8::MAX, 1..20);
    let contexts =
        prop::collection::btree_map(prop::collection::vec(0..4_u8, 0..=2), (listed(), 0..8_u8), 0..12);
    let rows = contexts.prop_map(|rows| {
        let mut rows: Vec<_> = rows.into_iter().collect();
        rows.sort_by_key(|(context, _)| (context.len(), context.clone()));
        KeyCode::new(&described(&rows)).unwrap()
    });
    prop_oneof![4 => loads, 4 => rows, 1 => Just(KeyCode::NONE)]
}

type Listed = std::collections::BTreeMap<u8, u8>;

fn described(rows: &[(Vec<u8>, (Listed, u8))]) -> Vec<u8> {
    let row = |(context, (listed, other)): &(Vec<u8>, (Listed, u8))| {
        let listed: Vec<_> = listed.iter().map(|(byte, weight)| (*byte, *weight)).collect();
        model::describe(context, &listed, (*other).into())
    };
    rows.iter().flat_map(row).collect()
}

fn of(keys: &[Vec<u8>]) -> KeyCode {
    KeyCode::of_sorted(keys.len(), |at| &keys[at])
}

/// Words of keys, words beside them, and any others.
fn word(code: KeyCode, key: &[u8], kind: u8, any: u64) -> u64 {
    match kind {
        0 => code.word(key),
        1 => code.word(key).saturating_add(1),
        2 => code.word(key).saturating_sub(1),
        _ => any,
    }
}

proptest! {
    #[test]
    fn words_are_in_the_order_of_the_keys(code in code(), one in key(), other in key()) {
        let (low, high) = if one < other { (one, other) } else { (other, one) };
        prop_assert!(code.word(&low) <= code.word(&high));
    }

    /// What a layer below leaves out is what all keys of the word have.
    #[test]
    fn keys_of_a_word_begin_alike(code in code(), one in key(), other in key(), more in key()) {
        let (one, other) = (Spelled::of(&one), [&one[..], &other].concat());
        let other = if more.len() > 12 { more } else { other };
        let other = Spelled::of(&other);
        let word = code.word_of(&one);
        let common: Vec<u8> = code.common(word).collect();
        prop_assert_eq!(one.compare(0, &common), std::cmp::Ordering::Equal);
        if code.word_of(&other) == word {
            prop_assert_eq!(other.compare(0, &common), std::cmp::Ordering::Equal);
        }
        prop_assert_eq!(code.has_all_of(&one, word), one.has_ended(common.len()));
        if one.has_ended(common.len()) {
            prop_assert_eq!(read(&common), read(one.bytes()));
        }
    }

    #[test]
    fn borders_are_keys(code in code(), one in key(), other in key(), kind in 0..4_u8, any: u64) {
        let border = word(code, &one, kind, any);
        let least = code.least_key(border);
        prop_assert_eq!(code.word(&other) >= border, other >= least, "{:x} {:?}", border, least);
        prop_assert!(code.least_key(code.word(&other)) <= other);
    }

    #[test]
    fn borders_can_be_read(code in code(), key in key(), kind in 0..4_u8, any: u64) {
        let border = word(code, &key, kind, any);
        let (shortest, least) = (code.shortest_key(border), code.least_key(border));
        prop_assert!(shortest >= least && code.word(&shortest) == code.word(&least), "{:?} {:?}", shortest, least);
        if code.word(&key) == border {
            prop_assert!(shortest.len() <= key.len(), "{:?}", shortest);
        }
    }

    #[test]
    fn any_word_has_a_beginning(code in code(), key in key(), kind in 0..4_u8, any: u64) {
        let word = word(code, &key, kind, any);
        let common: Vec<u8> = code.common(word).collect();
        let key = read(&common);
        // The least key that begins so has no greater word.
        prop_assert!(code.word(&key) <= word);
    }

    #[test]
    fn a_region_has_it_and_every_byte_matters(code in code(), at in 0..KeyCode::AREA, flip in 1..=u8::MAX) {
        let mut area: [u8; KeyCode::AREA] = code.to_area().try_into().unwrap();
        prop_assert_eq!(KeyCode::parse_area(&area), Some(code));
        area[at] ^= flip;
        prop_assert_eq!(KeyCode::parse_area(&area), None);
    }

    #[test]
    fn any_bytes_are_a_code_or_not(mut bytes in prop::collection::vec(0..8_u8, 0..40), key in key()) {
        bytes.truncate(40);
        if let Ok(code) = KeyCode::new(&bytes) {
            prop_assert_eq!(code.description(), &bytes[..]);
            code.common(code.word(&key)).count();
        }
    }
}

/// A load of keys, how many of them have a word of their own, and bytes of the description.
fn told_apart(keys: impl Iterator<Item = String>) -> (f64, usize) {
    let keys: BTreeSet<_> = keys.map(String::into_bytes).collect();
    let keys: Vec<_> = keys.into_iter().collect();
    let code = of(&keys);
    let mut words: Vec<u64> = keys.iter().map(|key| code.word(key)).collect();
    words.dedup();
    (words.len() as f64 / keys.len() as f64, code.description().len())
}

#[test]
fn keys_that_begin_alike_are_told_apart() {
    let (urls, bytes) =
        told_apart((0..20_000).map(|n| format!("https://www.example.org/page/{}/{n:05}", n % 7)));
    assert!(urls > 0.999 && bytes < 3000, "{urls} {bytes}");
    let (long, bytes) =
        told_apart((0..5_000).map(|n| format!("{}{n}", "a prefix of 25 bytes, and ".repeat(4))));
    assert!(long > 0.999 && bytes < 3000, "{long} {bytes}");
}

/// However well the bytes of a key can be guessed, so that a word is read in bounded time.
#[test]
fn a_word_has_no_more_than_512_bytes() {
    let code = KeyCode::new(&[2, 0, b'a', b'a', b'a', 1]).unwrap();
    let keys = [&[b'a'; 4095][..], &[b'a'; 4096], &[&[b'a'; 600][..], b"b"].concat()];
    let words = keys.map(|key| code.word(key));
    let common: Vec<u8> = code.common(words[0]).collect();
    assert!(
        (500..=512).contains(&common.len()) && common.iter().all(|byte| *byte == b'a'),
        "{}",
        common.len()
    );
    assert!(words.iter().all(|word| *word == words[0]));
    assert!(!code.has_all_of(&Spelled::of(&[b'a'; 513]), words[0]));
}

#[test]
fn keys_without_a_pattern_have_no_code() {
    let draw =
        |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mut keys: Vec<_> =
        (1..5000).map(|n| [draw(n).to_be_bytes(), draw(!n).to_be_bytes()].concat()).collect();
    keys.sort_unstable();
    assert_eq!(of(&keys), KeyCode::NONE);
    assert_eq!(of(&[]), KeyCode::NONE);
}

/// A load may be small, and keys may come later that no load had.
#[test]
fn few_keys_teach_a_code_for_many() {
    let code = of(&[b"https://a/1".to_vec(), b"https://a/2".to_vec()]);
    assert!(code.word(b"https://a/1") < code.word(b"https://a/2"));
    let apart = |kind: &str| {
        let later: BTreeSet<_> = (0..1000).map(|n| code.word(format!("{kind}{n}").as_bytes())).collect();
        later.len()
    };
    let found = [apart("https://a/"), apart("https://b/"), apart("ftp://"), apart("")];
    assert!(found[0] > 990 && found[2] > 500, "{found:?}");
}

/// Keys so long that only some are looked at, from all parts of the load.
#[test]
fn long_keys_teach_a_code_as_well() {
    let kind = |n: u32| if n < 10_000 { "a" } else { "zebras-are-at-the-end" };
    let long = |n: u32| [&[b'p'; 400][..], format!("{}{n:05}", kind(n)).as_bytes()].concat();
    let keys: Vec<_> = (0..20_000).map(long).collect();
    let code = of(&keys);
    let words: BTreeSet<_> = keys.iter().map(|key| code.word(key)).collect();
    assert!(words.len() > 19_900, "{}", words.len());
}

/// Contexts that need more than there is room for.
#[test]
fn a_description_is_never_too_long() {
    let draw = |n: u64| fatbtree_remote_memory::mix(n);
    let words: Vec<Vec<u8>> =
        (0..300).map(|word| (0..9).map(|at| 33 + (draw(word * 9 + at) % 90) as u8).collect()).collect();
    let one_of = |n: u64| &words[(draw(n) % 300) as usize][..];
    let keys: BTreeSet<_> =
        (0..20_000).map(|n| [one_of(n), one_of(!n), n.to_string().as_bytes()].concat()).collect();
    let keys: Vec<_> = keys.into_iter().collect();
    let code = of(&keys);
    assert!((KeyCode::MOST - 20..=KeyCode::MOST).contains(&code.description().len()), "{code:?}");
}

#[test]
fn a_damaged_description_is_refused_by_the_row() {
    let row = |context: &[u8], listed: &[(u8, u8)]| {
        (context.to_vec(), (listed.iter().copied().collect::<Listed>(), 0_u8))
    };
    let (one, two) = (row(b"", &[(b'a', 3), (b'b', 1)]), row(b"a", &[(b'b', 9)]));
    let good = described(&[one.clone(), two.clone()]);
    assert_eq!(KeyCode::new(&good).unwrap().description(), good);
    let refused = |bytes: &[u8]| KeyCode::new(bytes).unwrap_err();
    assert_eq!(refused(&good[..good.len() - 1]), CodeError::Row { at: 6 });
    assert_eq!(refused(&described(&[two.clone(), one])), CodeError::Row { at: 5 }, "rows in order");
    assert_eq!(refused(&described(&[two.clone(), two])), CodeError::Row { at: 5 }, "each context once");
    assert_eq!(refused(&[0, 1, b'b', 1, b'a', 1]), CodeError::Row { at: 0 }, "bytes in order");
    assert_eq!(refused(&[0, 0, b'a', 0]), CodeError::Row { at: 0 }, "a weight");
    assert_eq!(refused(&[3, 0, 1, 2, 3, b'a', 1]), CodeError::Row { at: 0 }, "a context of three bytes");
    assert_eq!(refused(&[8 << 2, 0, b'a', 1]), CodeError::Row { at: 0 }, "too wide");
    assert_eq!(refused(&[1; KeyCode::MOST + 1]), CodeError::Long { found: KeyCode::MOST + 1 });
}
