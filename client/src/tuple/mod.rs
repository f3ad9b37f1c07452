//! Typed keys: tuples of integers, texts, bytes, times, booleans and `None` as [keys of bytes](crate::BytesClient), in the tuples' order.
//!
//! ```
//! use std::time::{Duration, SystemTime};
//!
//! use fatbtree::tuple;
//!
//! let day = |day: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(86_400 * day);
//! let key = |user: u64, at| tuple::encode(&("order", user, at));
//!
//! // Keys compare as their tuples do: 9 comes before 10, and times in between stay together.
//! assert!(key(9, day(7)) < key(10, day(1)) && key(10, day(1)) < key(10, day(2)));
//!
//! // What begins with the tuple ("order", 10) is a range: all orders of a user, and nothing else.
//! let orders = tuple::prefix(&("order", 10));
//! assert!(orders.contains(&key(10, day(1))) && !orders.contains(&key(9, day(7))) && !orders.contains(&key(101, day(1))));
//!
//! let (kind, user, at): (String, u64, SystemTime) = tuple::decode(&key(10, day(2)))?;
//! assert_eq!((&kind[..], user, at), ("order", 10, day(2)));
//! # Ok::<(), tuple::DecodeError>(())
//! ```
//!
//! With a cluster whose keys are bytes:
//!
//! ```no_run
//! use std::time::{Duration, SystemTime};
//!
//! use fatbtree::{blocking, tuple};
//!
//! let orders = blocking::connect("cluster.toml")?.bytes();
//! let now = SystemTime::now();
//! orders.put(tuple::encode(&("order", 4711, now)), "two lamps")?;
//!
//! // All orders of the user, and those of the last day.
//! for pair in orders.scan_range(tuple::prefix(&("order", 4711)), false) {
//!     let (key, order) = pair?;
//!     let (_, user, at): (String, u64, SystemTime) = tuple::decode(&key)?;
//!     println!("{user} {at:?} {order:?}");
//! }
//! let yesterday = now - Duration::from_secs(86_400);
//! let since = tuple::encode(&("order", 4711, yesterday))..=tuple::encode(&("order", 4711, now));
//! println!("{} orders since yesterday", orders.scan(since).count());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Order
//!
//! Elements compare by their kind first, in the order of [`Element`]'s variants, then by their value. A tuple comes before all longer ones
//! that begin with it. Integers of all types are one kind: `7u8` and `7i64` are the same element. So keys can be read back by another
//! type, and a program in Python reads what a program in Rust has written.
//!
//! # Format
//!
//! One code a kind, then the value; elements follow each other. It is the format of FoundationDB's [tuple layer], whose range of codes for
//! users has the time.
//!
//! | element | bytes |
//! |---|---|
//! | `None` | `00` |
//! | bytes | `01`, the bytes with `00 ff` for each zero byte, `00` |
//! | text | `02`, the UTF-8 with `00 ff` for each zero byte, `00` |
//! | integer from 0 to 2^64 - 1 | `14` + *n*, its *n* bytes, big endian, without leading zeros |
//! | integer from -(2^64 - 1) to -1 | `14` - *n*, the complement of the magnitude's *n* bytes |
//! | greater ones, smaller ones | `1d` *n*, *n* bytes; `0b` *n* ^ `ff`, complement of *n* bytes |
//! | false, true | `26`, `27` |
//! | time | `40`, microseconds since 1970 as a 64-bit number, big endian, with its sign bit flipped |
//!
//! Each tuple has one form: what [`decode`] accepts, [`encode`] gives again. No element begins with `ff`, so all tuples that begin with
//! one lie between its key and its key with `ff` at the end. Text is prefix-safe: `("ab",)` does not begin with `("a",)`.
//!
//! # Why a module of our own
//!
//! None of the crates of this kind fits (2026-11). `foundationdb-tuple` 0.11 has this format without times. As dynamic elements, which
//! Python needs, it does not read back integers above 2^63 - 1 unless it has big numbers. It reads `16 00 01` as 1, so two keys are one
//! tuple. It recurses into tuples inside of tuples without a bound: where it is not optimised, 1,000 times `05` overflow a stack of 2 MiB.
//! `storekey` 0.11, `memcomparable` 0.2 and `ordcode` 0.2 need the types of a key to read it; `tuple_key` 0.18 numbers fields as protocol
//! buffers do. What is used of the format, without floats and tuples inside of tuples, is about as long as an adapter would be.
//!
//! [tuple layer]: https://github.com/apple/foundationdb/blob/main/design/tuple.md

mod convert;
mod element;
mod error;
mod read;
mod write;

use crate::BytesRange;

pub use convert::{FromElement, ToElement};
pub use element::{Element, Time};
pub use error::DecodeError;
pub use read::{Elements, FromTuple};
pub use write::ToTuple;

/// The key of a tuple.
///
/// A tree refuses a key of more than [`MAX_KEY_BYTES`](crate::MAX_KEY_BYTES), as it refuses any key that is longer.
#[must_use]
pub fn encode(tuple: &(impl ToTuple + ?Sized)) -> Vec<u8> {
    let mut key = Vec::with_capacity(32);
    tuple.write(&mut key);
    key
}

/// The range of the keys of all tuples that begin with these elements, and of this tuple itself. Keys that are no tuples may lie in it, too,
/// if they begin like one.
#[must_use]
pub fn prefix(tuple: &(impl ToTuple + ?Sized)) -> BytesRange {
    let low = encode(tuple);
    let high = Some([&low[..], &[AFTER_ALL]].concat());
    BytesRange { low, high }
}

/// Reads the tuple of a key: by the types of a Rust tuple, or as a `Vec` of [`Element`]s.
///
/// # Errors
/// When the bytes are no tuple of these types. They are not trusted: any bytes give a tuple or an error.
pub fn decode<'k, T: FromTuple<'k>>(key: &'k [u8]) -> Result<T, DecodeError> {
    let mut elements = Elements::of(key);
    let tuple = T::read(&mut elements)?;
    elements.end()?;
    Ok(tuple)
}

// Codes of elements.
const NONE: u8 = 0x00;
const BYTES: u8 = 0x01;
const TEXT: u8 = 0x02;
/// An integer of more than [`SHORT_INTEGER`] bytes below zero. Between the two: zero's code and the number of bytes, less if it is below zero.
const LONG_NEGATIVE: u8 = 0x0b;
const ZERO: u8 = 0x14;
const LONG_POSITIVE: u8 = 0x1d;
const FALSE: u8 = 0x26;
const TRUE: u8 = 0x27;
const TIME: u8 = 0x40;

/// Ends bytes and text.
const END: u8 = 0x00;
/// Makes an [`END`] before it a zero byte of the value.
const ESCAPED: u8 = 0xff;
/// Greater than all codes.
const AFTER_ALL: u8 = 0xff;

/// Bytes of an integer whose code says their number.
const SHORT_INTEGER: usize = 8;
/// Bytes of the longest integer.
const LONGEST_INTEGER: usize = size_of::<i128>();

/// Bytes of an integer's magnitude without leading zeros.
fn length_of(magnitude: u128) -> usize {
    LONGEST_INTEGER - magnitude.leading_zeros() as usize / 8
}
