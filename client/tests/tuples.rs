//! Tuples as keys: their order, their bytes, and what is refused.
#![allow(clippy::unwrap_used, reason = "a test says by failing what is wrong")]

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use fatbtree::Bytes;
use fatbtree::tuple::{self, DecodeError, Element, Time};
use proptest::prelude::*;

type Elements = Vec<Element<'static>>;

/// Bytes that are codes, ends and their neighbours, rather than any.
fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![
        4 => prop::sample::select(vec![0, 1, 2, 0x0b, 0x0c, 0x13, 0x14, 0x15, 0x1c, 0x1d, 0x26, 0x27, 0x40, 0xfe, 0xff]),
        1 => any::<u8>(),
    ]
}

fn character() -> impl Strategy<Value = char> {
    prop_oneof![4 => prop::sample::select(vec!['\0', '\u{1}', 'a', 'b', '\u{ff}', '\u{10ffff}']), 1 => any::<char>()]
}

/// Integers of all lengths, those at which the length changes among them.
fn integer() -> impl Strategy<Value = i128> {
    let near_power = (0..128u32, -1..=1i128, any::<bool>()).prop_map(|(bits, more, is_negative)| {
        let number = 1i128.wrapping_shl(bits).wrapping_add(more);
        if is_negative { number.wrapping_neg() } else { number }
    });
    prop_oneof![
        near_power,
        -300..300i128,
        (any::<i128>(), 0..128u32).prop_map(|(number, bits)| number >> bits)
    ]
}

fn element() -> impl Strategy<Value = Element<'static>> {
    prop_oneof![
        1 => Just(Element::None),
        3 => prop::collection::vec(byte(), 0..6).prop_map(|bytes| Element::Bytes(bytes.into())),
        3 => prop::collection::vec(character(), 0..6)
            .prop_map(|text| Element::Text(text.into_iter().collect::<String>().into())),
        3 => integer().prop_map(Element::Integer),
        1 => any::<bool>().prop_map(Element::Bool),
        2 => prop_oneof![any::<i64>(), -2..2i64].prop_map(|micros| Element::Time(Time::from_micros(micros))),
    ]
}

fn elements() -> impl Strategy<Value = Elements> {
    prop::collection::vec(element(), 0..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn what_is_read_is_what_was_written(tuple in elements()) {
        let key = tuple::encode(&tuple);
        prop_assert_eq!(tuple::decode::<Vec<Element<'_>>>(&key).unwrap(), tuple);
    }

    #[test]
    fn keys_are_in_the_order_of_tuples(both in elements(), a in elements(), b in elements()) {
        let [a, b] = [a, b].map(|end| [&both[..], &end].concat());
        prop_assert_eq!(tuple::encode(&a).cmp(&tuple::encode(&b)), a.cmp(&b));
    }

    /// Elements of one kind, in which a wrong byte shows more often.
    #[test]
    fn integers_are_in_their_order(a in integer(), b in integer()) {
        prop_assert_eq!(tuple::encode(&(a,)).cmp(&tuple::encode(&(b,))), a.cmp(&b));
    }

    #[test]
    fn a_prefix_has_the_tuples_that_begin_so(tuple in elements(), other in elements(), length in 0..5usize) {
        let begin = &tuple[..length.min(tuple.len())];
        let range = tuple::prefix(begin);
        prop_assert!(range.contains(&tuple::encode(&tuple)));
        prop_assert_eq!(range.contains(&tuple::encode(&other)), other.starts_with(begin));
        // Bytes that go on where the last element ends are another element.
        prop_assert!(!range.contains(&[&tuple::encode(begin)[..], b"\xffa\0"].concat()));
    }

    /// Nothing but a tuple or an error, and each tuple has one form only.
    #[test]
    fn any_bytes_are_refused_or_are_the_key_of_their_tuple(key in prop::collection::vec(byte(), 0..24)) {
        if let Ok(found) = tuple::decode::<Vec<Element<'_>>>(&key) {
            prop_assert_eq!(tuple::encode(&found), key);
        }
    }

    #[test]
    fn damaged_keys_are_refused_or_are_the_key_of_their_tuple(
        tuple in elements(), at in any::<prop::sample::Index>(), byte in byte(), cut in any::<bool>(),
    ) {
        let mut key = tuple::encode(&tuple);
        key.push(0);
        let at = at.index(key.len());
        if cut { key.truncate(at) } else { key[at] = byte }
        if let Ok(found) = tuple::decode::<Vec<Element<'_>>>(&key) {
            prop_assert_eq!(tuple::encode(&found), key);
        }
    }

    #[test]
    fn times_of_the_system_lose_no_more_than_nanoseconds(seconds in 0..20_000_000_000u64, nanos in 0..1_000_000_000u32, is_before: bool) {
        let distance = Duration::new(seconds, nanos);
        let epoch = SystemTime::UNIX_EPOCH;
        let time = if is_before { epoch - distance } else { epoch + distance };
        let (found,): (SystemTime,) = tuple::decode(&tuple::encode(&(time,))).unwrap();
        prop_assert!(found <= time && time.duration_since(found).unwrap() < Duration::from_micros(1));
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// As `foundationdb-tuple` 0.11 writes them, but for the time, which FoundationDB has no code for.
#[test]
fn bytes_are_those_of_foundationdb() {
    let tuple = ("order", 4711u64, -1i64, 0u64, true, false, None::<u64>, *b"a\0b");
    assert_eq!(hex(&tuple::encode(&tuple)), "026f726465720016126713fe14272600016100ff6200");
    assert_eq!(hex(&tuple::encode(&(u64::MAX, i64::MIN))), "1cffffffffffffffff0c7fffffffffffffff");
    let integers =
        (i128::MAX, i128::MIN, 1i128 << 64, -(1i128 << 64), -255i64, -256i64, -i128::from(u64::MAX));
    assert_eq!(
        hex(&tuple::encode(&integers)),
        "1d107fffffffffffffffffffffffffffffff0bef7fffffffffffffffffffffffffffffff1d090100000000000000000bf6feffff\
         ffffffffffff130012feff0c0000000000000000"
    );
    assert_eq!(hex(&tuple::encode(&())), "");
    let at = SystemTime::UNIX_EPOCH + Duration::from_micros(0x0123_4567_89ab);
    assert_eq!(
        hex(&tuple::encode(&(at, Time::from_micros(-1)))),
        "40800001234567 89ab407fffffffffffffff".replace(' ', "")
    );
}

#[test]
fn types_are_those_that_were_asked_for() {
    let key = tuple::encode(&("a\0", Some(7u8), None::<bool>, vec![0u8, 255], Bytes::from("x"), -5i16));
    let found: (String, u64, Option<bool>, Vec<u8>, Bytes, i8) = tuple::decode(&key).unwrap();
    assert_eq!(found, ("a\0".to_owned(), 7, None, vec![0, 255], Bytes::from("x"), -5));

    let say = |error: DecodeError| error.to_string();
    let key = tuple::encode(&("user", 300));
    let error = say(tuple::decode::<(String, u8)>(&key).unwrap_err());
    assert_eq!(
        error,
        "expected an integer of type u8 for element 1 of the key, found the integer 300; decode it as another type"
    );
    let error = say(tuple::decode::<(Vec<u8>, u64)>(&key).unwrap_err());
    assert!(error.contains("expected bytes for element 0 of the key, found text"), "{error}");
    let error = say(tuple::decode::<(String, u64, bool)>(&key).unwrap_err());
    assert!(error.contains("expected a boolean for element 2 of the key, found its end"), "{error}");
    let error = say(tuple::decode::<(String,)>(&key).unwrap_err());
    assert!(error.contains("expected a key of 1 elements, found more"), "{error}");
    assert_eq!(tuple::decode(&[]), Ok(()));
}

#[test]
fn what_is_no_tuple_is_refused_by_its_place() {
    let refused = |key: &[u8]| tuple::decode::<Vec<Element<'_>>>(key).unwrap_err().to_string();
    let cases: [(&[u8], &str); 16] = [
        (b"user:4711", "byte 0: expected the code of an element, found 0x75"),
        (b"\x02a\0\x05", "byte 3: expected the code of an element, found 0x05"),
        (b"\x02a\0\xff", "byte 0: the key ends within"),
        (b"\x02a", "byte 0: the key ends within"),
        (b"\x27\x16\x01", "byte 1: the key ends within"),
        (b"\x40\0\0\0\0\0\0\0", "byte 0: the key ends within"),
        (b"\x1d", "byte 0: the key ends within"),
        (b"\x02\xff\0", "byte 0: expected a text in UTF-8"),
        (b"\x02\0\xff\xff\0", "byte 0: expected a text in UTF-8"),
        // Zero in a byte, one in two bytes, a minus zero, an integer of eight bytes behind the code of longer ones.
        (b"\x15\0", "byte 0: expected an integer of up to 128 bits without leading zeros"),
        (b"\x16\0\x01", "byte 0: expected an integer"),
        (b"\x13\xff", "byte 0: expected an integer"),
        (b"\x1d\x08\xff\xff\xff\xff\xff\xff\xff\xff", "byte 0: expected an integer"),
        // Longer than 128 bits, and as long but without a bit for the sign.
        (
            b"\x1d\x11\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
            "byte 0: expected an integer",
        ),
        (b"\x0b\xef\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", "byte 0: expected an integer"),
        (
            b"\x1d\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff",
            "byte 0: expected an integer",
        ),
    ];
    for (key, expected) in cases {
        let error = refused(key);
        assert!(error.starts_with(expected), "{}: {error}", hex(key));
    }
}

#[test]
fn times_beyond_all_times_are_the_last_one() {
    for micros in [i64::MIN, -1, 0, i64::MAX] {
        let time = Time::from_micros(micros);
        assert_eq!(time.to_system().map(Time::from), Some(time));
    }
    let far = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 62);
    assert_eq!(Time::from(far), Time::from_micros(i64::MAX));
    let long_ago = SystemTime::UNIX_EPOCH - Duration::from_secs(1 << 62);
    assert_eq!(Time::from(long_ago), Time::from_micros(i64::MIN));
}

#[test]
fn the_page_shows_the_example_that_is_compiled() {
    let module = include_str!("../src/tuple/mod.rs");
    let (_, example) = module.split_once("//! ```no_run\n").unwrap();
    let code =
        example.lines().map(|line| line.trim_start_matches("//!").strip_prefix(' ').unwrap_or_default());
    let code: Vec<&str> = code.take_while(|line| !line.starts_with('#')).collect();
    let page = include_str!("../../docs/src/embed.md");
    assert!(code.len() > 10 && page.contains(&format!("```rust\n{}\n```\n", code.join("\n"))), "{code:?}");
}
