//! Keys of bytes: they stand before everything else in the payload of a request, and in records of their own in a scan's answer.
//!
//! ```text
//!   get, delete         key
//!   put, update         key, value
//!   scan                first key, end of the range (the first key behind it; nothing: no end)
//!   answer of a scan    key to go on from (or NONE), then records: key, length of the value (4), value
//!
//!   key                 length (2), bytes
//! ```
//!
//! The header's key is the *word* of the key, so that switches lead it: eight bytes which the tree's code of keys makes of it. A client takes
//! the key's first eight bytes until a server says [another code](super::Status::OtherCode).

/// Longest key of a request: the least key behind the longest one of a tree, from which a scan goes on.
pub const LONGEST: usize = 4097;

/// Bytes of a key's length.
const LENGTH: usize = 2;

/// Length that stands for no key.
const NONE: u16 = u16::MAX;

/// Bytes that keys of one request take at most: a scan has two.
pub const MOST_BYTES: u32 = 2 * (LENGTH + LONGEST) as u32;

/// A payload that does not have what it must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BytesError {
    /// The payload ends within a key or a record.
    #[error("byte {at} of a query's payload: expected {expected} more bytes, found {found}; drop it")]
    Cut {
        /// Offset of what is cut.
        at: usize,
        /// Number of bytes that it needs.
        expected: usize,
        /// Number of bytes found.
        found: usize,
    },
    /// A key is longer than any.
    #[error(
        "byte {at} of a query's payload: expected a key of at most {LONGEST} bytes, found {found}; drop it"
    )]
    Long {
        /// Offset of the key.
        at: usize,
        /// Its length.
        found: usize,
    },
    /// Bytes behind what there can be.
    #[error("byte {at} of a query's payload: expected its end, found {found} bytes more; drop it")]
    Behind {
        /// Offset of these bytes.
        at: usize,
        /// Their number.
        found: usize,
    },
}

/// Appends a key.
///
/// # Panics
/// When the key is longer than [`LONGEST`].
pub fn push(payload: &mut Vec<u8>, key: &[u8]) {
    assert!(key.len() <= LONGEST, "keys have at most {LONGEST} bytes, found {}", key.len());
    payload.extend_from_slice(&(key.len() as u16).to_be_bytes());
    payload.extend_from_slice(key);
}

/// Appends a key, or what stands for none.
///
/// # Panics
/// As [`push`].
pub fn push_option(payload: &mut Vec<u8>, key: Option<&[u8]>) {
    match key {
        Some(key) => push(payload, key),
        None => payload.extend_from_slice(&NONE.to_be_bytes()),
    }
}

/// Appends a record of a scan's answer.
///
/// # Panics
/// When the key is longer than [`LONGEST`], or the value than 4 GB.
pub fn push_record(payload: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    push(payload, key);
    let len = u32::try_from(value.len()).expect("values are shorter than 4 GB");
    payload.extend_from_slice(&len.to_be_bytes());
    payload.extend_from_slice(value);
}

/// Key and value of a record.
pub type Record<'p> = (&'p [u8], &'p [u8]);

/// Reader of a payload, from its beginning to its end.
#[derive(Clone, Debug)]
pub struct Reader<'p> {
    payload: &'p [u8],
    at: usize,
}

impl<'p> Reader<'p> {
    /// Reader of a whole payload.
    pub fn new(payload: &'p [u8]) -> Self {
        Self { payload, at: 0 }
    }

    /// What has not been read.
    pub fn rest(&self) -> &'p [u8] {
        &self.payload[self.at..]
    }

    fn take(&mut self, expected: usize) -> Result<&'p [u8], BytesError> {
        let (at, rest) = (self.at, self.rest());
        let taken = rest.get(..expected).ok_or(BytesError::Cut { at, expected, found: rest.len() })?;
        self.at += expected;
        Ok(taken)
    }

    fn number<const N: usize>(&mut self) -> Result<[u8; N], BytesError> {
        Ok(*self.take(N)?.first_chunk().expect("so many bytes were taken"))
    }

    fn key_of(&mut self, at: usize, length: u16) -> Result<&'p [u8], BytesError> {
        match usize::from(length) {
            found if found > LONGEST => Err(BytesError::Long { at, found }),
            length => self.take(length),
        }
    }

    /// The next key.
    ///
    /// # Errors
    /// When it is cut, or too long.
    pub fn key(&mut self) -> Result<&'p [u8], BytesError> {
        let at = self.at;
        let length = u16::from_be_bytes(self.number()?);
        self.key_of(at, length)
    }

    /// The next key, or `None` if none stands there.
    ///
    /// # Errors
    /// As [`key`](Self::key).
    pub fn option(&mut self) -> Result<Option<&'p [u8]>, BytesError> {
        let at = self.at;
        match u16::from_be_bytes(self.number()?) {
            NONE => Ok(None),
            length => self.key_of(at, length).map(Some),
        }
    }

    /// The next record, or `None` at the end.
    ///
    /// # Errors
    /// When it is cut, or its key too long.
    pub fn record(&mut self) -> Result<Option<Record<'p>>, BytesError> {
        if self.rest().is_empty() {
            return Ok(None);
        }
        let key = self.key()?;
        let length = u32::from_be_bytes(self.number()?) as usize;
        Ok(Some((key, self.take(length)?)))
    }

    /// Checks that nothing follows.
    ///
    /// # Errors
    /// When something does.
    pub fn end(&self) -> Result<(), BytesError> {
        match self.rest().len() {
            0 => Ok(()),
            found => Err(BytesError::Behind { at: self.at, found }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let mut payload = Vec::new();
        push_option(&mut payload, None);
        push(&mut payload, b"ab");
        push_record(&mut payload, b"", b"xyz");
        assert_eq!(payload, *b"\xff\xff\0\x02ab\0\0\0\0\0\x03xyz");
        let mut reader = Reader::new(&payload);
        assert_eq!((reader.option(), reader.key()), (Ok(None), Ok(&b"ab"[..])));
        assert_eq!(reader.end(), Err(BytesError::Behind { at: 6, found: 9 }));
        assert_eq!(reader.record(), Ok(Some((&b""[..], &b"xyz"[..]))));
        assert_eq!((reader.record(), reader.end()), (Ok(None), Ok(())));
    }

    #[test]
    fn what_is_cut_or_too_long_is_refused() {
        let mut payload = Vec::new();
        push_record(&mut payload, b"key", b"value");
        for length in 1..payload.len() {
            let error = Reader::new(&payload[..length]).record().expect_err("it is cut");
            assert!(matches!(error, BytesError::Cut { expected, found, .. } if found < expected), "{error}");
        }
        let long = [&4098_u16.to_be_bytes()[..], &[0; 5000]].concat();
        let expected = BytesError::Long { at: 0, found: 4098 };
        assert_eq!((Reader::new(&long).key(), Reader::new(&long).option()), (Err(expected), Err(expected)));
        let longest = [&4097_u16.to_be_bytes()[..], &[0; 4097]].concat();
        assert_eq!(Reader::new(&longest).key().map(<[u8]>::len), Ok(4097));
        assert_eq!(
            Reader::new(&longest[..4098]).key(),
            Err(BytesError::Cut { at: 2, expected: 4097, found: 4096 })
        );
        assert_eq!(Reader::new(b"\0").option(), Err(BytesError::Cut { at: 0, expected: 2, found: 1 }));
    }
}
