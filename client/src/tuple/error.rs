//! Errors from reading keys.

use std::str::Utf8Error;

/// Error from [`decode`](super::decode): the key is no tuple, or one of other types.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// No element begins with this byte.
    #[error("byte {at}: expected the code of an element, found {found:#04x}; is it the key of a tuple?")]
    #[non_exhaustive]
    Code {
        /// Its place in the key.
        at: usize,
        /// The byte.
        found: u8,
    },
    /// The key ends within an element.
    #[error("byte {at}: the key ends within the element that begins here; is it all of the key of a tuple?")]
    #[non_exhaustive]
    Short {
        /// Place of the element in the key.
        at: usize,
    },
    /// A text is not in UTF-8.
    #[error("byte {at}: expected a text in UTF-8; is it the key of a tuple?")]
    #[non_exhaustive]
    Text {
        /// Place of the element in the key.
        at: usize,
        /// Reason.
        source: Utf8Error,
    },
    /// An integer has more bytes than it needs, or more than an `i128` has.
    #[error(
        "byte {at}: expected an integer of up to 128 bits without leading zeros; is it the key of a tuple?"
    )]
    #[non_exhaustive]
    Integer {
        /// Place of the element in the key.
        at: usize,
    },
    /// The tuple has fewer elements.
    #[error(
        "expected {expected} for element {index} of the key, found its end; decode it as a shorter tuple"
    )]
    #[non_exhaustive]
    End {
        /// Number of the element, from 0 on.
        index: usize,
        /// Type of the element.
        expected: &'static str,
    },
    /// The tuple has more elements.
    #[error(
        "expected a key of {expected} elements, found more; decode it as a longer tuple, or as a Vec of elements"
    )]
    #[non_exhaustive]
    More {
        /// Number of elements.
        expected: usize,
    },
    /// An element has another type, or its value is not one of the type.
    #[error("expected {expected} for element {index} of the key, found {found}; decode it as another type")]
    #[non_exhaustive]
    Type {
        /// Number of the element, from 0 on.
        index: usize,
        /// Type of the element.
        expected: &'static str,
        /// What the key has.
        found: String,
    },
}
