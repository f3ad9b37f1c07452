//! Keys into tuples.

use std::borrow::Cow;

use super::{
    BYTES, DecodeError, END, ESCAPED, Element, FALSE, FromElement, LONG_NEGATIVE, LONG_POSITIVE,
    LONGEST_INTEGER, NONE, SHORT_INTEGER, TEXT, TIME, TRUE, Time, ZERO, length_of,
};

/// A tuple that is read from a key: a Rust tuple of up to eight elements, or a `Vec` of all [`Element`]s that there are.
pub trait FromTuple<'k>: Sized {
    /// Takes the tuple's elements off those of a key.
    ///
    /// # Errors
    /// When the next elements are not of its types.
    fn read(elements: &mut Elements<'k>) -> Result<Self, DecodeError>;
}

impl<'k> FromTuple<'k> for Vec<Element<'k>> {
    fn read(elements: &mut Elements<'k>) -> Result<Self, DecodeError> {
        let mut all = Self::new();
        while !elements.rest.is_empty() {
            all.push(elements.take()?);
        }
        Ok(all)
    }
}

impl<'k> FromTuple<'k> for () {
    fn read(_elements: &mut Elements<'k>) -> Result<Self, DecodeError> {
        Ok(())
    }
}

macro_rules! tuples {
    ($($($kind:ident)+;)+) => {$(
        impl<'k, $($kind: FromElement<'k>),+> FromTuple<'k> for ($($kind,)+) {
            fn read(elements: &mut Elements<'k>) -> Result<Self, DecodeError> {
                Ok(($(elements.take::<$kind>()?,)+))
            }
        }
    )+};
}

tuples! {
    A;
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
    A B C D E F G;
    A B C D E F G H;
}

/// The elements of a key that were not read yet.
#[derive(Clone, Debug)]
pub struct Elements<'k> {
    key: &'k [u8],
    rest: &'k [u8],
    /// Elements that were read.
    index: usize,
}

impl<'k> Elements<'k> {
    pub(super) fn of(key: &'k [u8]) -> Self {
        Self { key, rest: key, index: 0 }
    }

    /// The next element, of this type.
    ///
    /// # Errors
    /// When there is none of this type.
    pub fn take<E: FromElement<'k>>(&mut self) -> Result<E, DecodeError> {
        let index = self.index;
        if self.rest.is_empty() {
            return Err(DecodeError::End { index, expected: E::EXPECTED });
        }
        let element = self.element()?;
        self.index += 1;
        E::from_element(element).map_err(|found| DecodeError::Type {
            index,
            expected: E::EXPECTED,
            found: found.to_string(),
        })
    }

    /// Fails if there are elements left.
    pub(super) fn end(&self) -> Result<(), DecodeError> {
        match self.rest.is_empty() {
            true => Ok(()),
            false => Err(DecodeError::More { expected: self.index }),
        }
    }

    /// Reads an element. A code without an end is [`DecodeError::Short`].
    fn element(&mut self) -> Result<Element<'k>, DecodeError> {
        let at = self.key.len() - self.rest.len();
        let short = || DecodeError::Short { at };
        let [code] = self.bytes().ok_or_else(short)?;
        Ok(match code {
            NONE => Element::None,
            BYTES => Element::Bytes(self.escaped().ok_or_else(short)?),
            TEXT => {
                let text = match self.escaped().ok_or_else(short)? {
                    Cow::Borrowed(bytes) => std::str::from_utf8(bytes).map(Cow::Borrowed),
                    Cow::Owned(bytes) => {
                        String::from_utf8(bytes).map(Cow::Owned).map_err(|error| error.utf8_error())
                    }
                };
                Element::Text(text.map_err(|source| DecodeError::Text { at, source })?)
            }
            LONG_NEGATIVE | LONG_POSITIVE => {
                let [count] = self.bytes().ok_or_else(short)?;
                let is_negative = code == LONG_NEGATIVE;
                let length = usize::from(if is_negative { !count } else { count });
                if !(SHORT_INTEGER + 1..=LONGEST_INTEGER).contains(&length) {
                    return Err(DecodeError::Integer { at });
                }
                self.integer(at, length, is_negative)?
            }
            LONG_NEGATIVE..LONG_POSITIVE => self.integer(at, code.abs_diff(ZERO).into(), code < ZERO)?,
            FALSE => Element::Bool(false),
            TRUE => Element::Bool(true),
            TIME => {
                let micros = self.bytes().ok_or_else(short)?;
                Element::Time(Time::from_micros(i64::from_be_bytes(micros) ^ i64::MIN))
            }
            found => return Err(DecodeError::Code { at, found }),
        })
    }

    /// The next bytes; `None` if there are too few.
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*bytes)
    }

    /// Bytes up to their end, borrowed unless there is a zero byte in them; `None` if they have no end.
    fn escaped(&mut self) -> Option<Cow<'k, [u8]>> {
        let mut found = Cow::Borrowed(&[][..]);
        loop {
            let end = self.rest.iter().position(|&byte| byte == END)?;
            let (part, rest) = self.rest.split_at(end);
            match &mut found {
                Cow::Borrowed(_) => found = Cow::Borrowed(part),
                Cow::Owned(before) => before.extend_from_slice(part),
            }
            match rest[1..].strip_prefix(&[ESCAPED]) {
                Some(rest) => {
                    found.to_mut().push(END);
                    self.rest = rest;
                }
                None => {
                    self.rest = &rest[1..];
                    return Some(found);
                }
            }
        }
    }

    /// An integer of so many bytes. One that has fewer is refused, so that each has one form.
    fn integer(&mut self, at: usize, length: usize, is_negative: bool) -> Result<Element<'k>, DecodeError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(DecodeError::Short { at })?;
        self.rest = rest;
        let mut bytes = [0; LONGEST_INTEGER];
        for (byte, taken) in bytes[LONGEST_INTEGER - length..].iter_mut().zip(taken) {
            *byte = if is_negative { !taken } else { *taken };
        }
        let magnitude = u128::from_be_bytes(bytes);
        let number = match is_negative {
            true => 0i128.checked_sub_unsigned(magnitude),
            false => i128::try_from(magnitude).ok(),
        };
        let number = number.filter(|_| length_of(magnitude) == length);
        number.map(Element::Integer).ok_or(DecodeError::Integer { at })
    }
}
