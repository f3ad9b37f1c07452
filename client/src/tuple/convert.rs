//! Rust's types as elements.

use std::borrow::Cow;
use std::time::SystemTime;

use bytes::Bytes;

use super::{Element, Time};

/// A type whose values are elements of tuples. Implement it for types of your own:
///
/// ```
/// use fatbtree::tuple::{self, Element, ToElement};
///
/// struct User(u64);
///
/// impl ToElement for User {
///     fn to_element(&self) -> Element<'_> {
///         self.0.to_element()
///     }
/// }
///
/// assert_eq!(tuple::encode(&("order", User(7))), tuple::encode(&("order", 7)));
/// ```
pub trait ToElement {
    /// The value as an element.
    fn to_element(&self) -> Element<'_>;
}

/// A type that is read from elements of tuples.
pub trait FromElement<'k>: Sized {
    /// What is expected, for errors.
    const EXPECTED: &'static str;

    /// The value.
    ///
    /// # Errors
    /// The element, if it is none of this type.
    fn from_element(element: Element<'k>) -> Result<Self, Element<'k>>;
}

macro_rules! integers {
    ($($integer:ident)+) => {$(
        impl ToElement for $integer {
            fn to_element(&self) -> Element<'_> {
                Element::Integer((*self).into())
            }
        }

        impl<'k> FromElement<'k> for $integer {
            const EXPECTED: &'static str = concat!("an integer of type ", stringify!($integer));

            fn from_element(element: Element<'k>) -> Result<Self, Element<'k>> {
                match element {
                    Element::Integer(number) => number.try_into().map_err(|_| element),
                    other => Err(other),
                }
            }
        }
    )+};
}

integers!(u8 u16 u32 u64 i8 i16 i32 i64 i128);

/// Types that have the values of one variant, or some of them.
macro_rules! kinds {
    ($($kind:ty, $expected:literal: |$value:ident| $to:expr, $pattern:pat => $from:expr;)+) => {$(
        impl ToElement for $kind {
            fn to_element(&self) -> Element<'_> {
                let $value = self;
                $to
            }
        }

        impl<'k> FromElement<'k> for $kind {
            const EXPECTED: &'static str = $expected;

            fn from_element(element: Element<'k>) -> Result<Self, Element<'k>> {
                match element {
                    $pattern => $from,
                    other => Err(other),
                }
            }
        }
    )+};
}

kinds! {
    bool, "a boolean": |value| Element::Bool(*value), Element::Bool(found) => Ok(found);
    String, "text": |value| value[..].to_element(), Element::Text(found) => Ok(found.into_owned());
    Vec<u8>, "bytes": |value| value[..].to_element(), Element::Bytes(found) => Ok(found.into_owned());
    Bytes, "bytes": |value| value[..].to_element(), Element::Bytes(found) => Ok(found.into_owned().into());
    Time, "a time": |value| Element::Time(*value), Element::Time(found) => Ok(found);
    SystemTime, "a time of the system": |value| Element::Time((*value).into()),
        Element::Time(found) => found.to_system().ok_or(Element::Time(found));
}

impl ToElement for str {
    fn to_element(&self) -> Element<'_> {
        Element::Text(self.into())
    }
}

impl ToElement for [u8] {
    fn to_element(&self) -> Element<'_> {
        Element::Bytes(self.into())
    }
}

impl<const N: usize> ToElement for [u8; N] {
    fn to_element(&self) -> Element<'_> {
        self[..].to_element()
    }
}

impl<T: ToElement + ?Sized> ToElement for &T {
    fn to_element(&self) -> Element<'_> {
        (**self).to_element()
    }
}

impl<T: ToElement> ToElement for Option<T> {
    fn to_element(&self) -> Element<'_> {
        self.as_ref().map_or(Element::None, ToElement::to_element)
    }
}

impl<'k, T: FromElement<'k>> FromElement<'k> for Option<T> {
    const EXPECTED: &'static str = T::EXPECTED;

    fn from_element(element: Element<'k>) -> Result<Self, Element<'k>> {
        match element {
            Element::None => Ok(None),
            other => T::from_element(other).map(Some),
        }
    }
}

impl ToElement for Element<'_> {
    fn to_element(&self) -> Element<'_> {
        match self {
            Element::Bytes(bytes) => Element::Bytes(Cow::Borrowed(bytes)),
            Element::Text(text) => Element::Text(Cow::Borrowed(text)),
            Element::None => Element::None,
            Element::Integer(number) => Element::Integer(*number),
            Element::Bool(is_true) => Element::Bool(*is_true),
            Element::Time(time) => Element::Time(*time),
        }
    }
}

impl<'k> FromElement<'k> for Element<'k> {
    const EXPECTED: &'static str = "an element";

    fn from_element(element: Element<'k>) -> Result<Self, Element<'k>> {
        Ok(element)
    }
}
