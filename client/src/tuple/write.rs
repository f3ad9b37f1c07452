//! Tuples into keys.

use super::{
    BYTES, END, ESCAPED, Element, FALSE, LONG_NEGATIVE, LONG_POSITIVE, LONGEST_INTEGER, NONE, SHORT_INTEGER,
    TEXT, TIME, TRUE, ToElement, ZERO, length_of,
};

/// A tuple of elements: a Rust tuple of up to eight, or a slice of [`Element`]s. `()` is the tuple without elements.
pub trait ToTuple {
    /// Appends the elements to a key.
    fn write(&self, key: &mut Vec<u8>);
}

impl ToTuple for [Element<'_>] {
    fn write(&self, key: &mut Vec<u8>) {
        self.iter().for_each(|element| write(element, key));
    }
}

impl ToTuple for Vec<Element<'_>> {
    fn write(&self, key: &mut Vec<u8>) {
        self[..].write(key);
    }
}

impl ToTuple for () {
    fn write(&self, _key: &mut Vec<u8>) {}
}

macro_rules! tuples {
    ($($(($kind:ident $at:tt))+;)+) => {$(
        impl<$($kind: ToElement),+> ToTuple for ($($kind,)+) {
            fn write(&self, key: &mut Vec<u8>) {
                $(write(&self.$at.to_element(), key);)+
            }
        }
    )+};
}

tuples! {
    (A 0);
    (A 0) (B 1);
    (A 0) (B 1) (C 2);
    (A 0) (B 1) (C 2) (D 3);
    (A 0) (B 1) (C 2) (D 3) (E 4);
    (A 0) (B 1) (C 2) (D 3) (E 4) (F 5);
    (A 0) (B 1) (C 2) (D 3) (E 4) (F 5) (G 6);
    (A 0) (B 1) (C 2) (D 3) (E 4) (F 5) (G 6) (H 7);
}

fn write(element: &Element<'_>, key: &mut Vec<u8>) {
    match element {
        Element::None => key.push(NONE),
        Element::Bytes(bytes) => write_escaped(BYTES, bytes, key),
        Element::Text(text) => write_escaped(TEXT, text.as_bytes(), key),
        Element::Integer(number) => write_integer(*number, key),
        Element::Bool(is_true) => key.push(if *is_true { TRUE } else { FALSE }),
        Element::Time(time) => {
            key.push(TIME);
            // Without a sign, and in the same order.
            key.extend_from_slice(&(time.as_micros() ^ i64::MIN).to_be_bytes());
        }
    }
}

fn write_escaped(code: u8, bytes: &[u8], key: &mut Vec<u8>) {
    key.push(code);
    let mut parts = bytes.split(|&byte| byte == END);
    key.extend_from_slice(parts.next().unwrap_or_default());
    for part in parts {
        key.extend_from_slice(&[END, ESCAPED]);
        key.extend_from_slice(part);
    }
    key.push(END);
}

/// Longer integers are further away from zero: of those below it, the code falls with the length, and bytes are complements.
fn write_integer(number: i128, key: &mut Vec<u8>) {
    let magnitude = number.unsigned_abs();
    let length = length_of(magnitude);
    let count = length as u8;
    match (length <= SHORT_INTEGER, number < 0) {
        (true, false) => key.push(ZERO + count),
        (true, true) => key.push(ZERO - count),
        (false, false) => key.extend_from_slice(&[LONG_POSITIVE, count]),
        (false, true) => key.extend_from_slice(&[LONG_NEGATIVE, !count]),
    }
    let bytes = if number < 0 { !magnitude } else { magnitude }.to_be_bytes();
    key.extend_from_slice(&bytes[LONGEST_INTEGER - length..]);
}
