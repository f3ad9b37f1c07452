//! A line of a trace.

use thiserror::Error;

use crate::operation::OperationKind;

/// A line, which borrows its key from the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line<'t> {
    /// Seconds since the trace began.
    pub timestamp: u64,
    /// Key.
    pub key: &'t [u8],
    /// Bytes of the value; 0 where a read found none.
    pub value_bytes: u32,
    /// Number of the client.
    pub client: u64,
    /// Operation.
    pub operation: TraceOperation,
    /// Time to live in seconds; 0 if the operation has none.
    pub ttl: u64,
}

/// Reasons for which a line cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadLine {
    /// Too few fields.
    #[error(
        "expected timestamp,key,key size,value size,client,operation,TTL, which are 7 fields, found {found}"
    )]
    Fields {
        /// Number of fields.
        found: usize,
    },
    /// A field that is no number, or too large.
    #[error("{field}: expected a number of at most {most}, found {found:?}")]
    Number {
        /// Name of the field.
        field: &'static str,
        /// Largest number.
        most: u64,
        /// Its text.
        found: String,
    },
    /// A key whose length is not the one that the line says.
    #[error("key size: expected {found}, the bytes of the key, found {said}")]
    KeySize {
        /// The length that the line says.
        said: u64,
        /// The length of the key.
        found: usize,
    },
    /// An operation without a name of the format.
    #[error(
        "operation: expected get, gets, set, add, replace, cas, append, prepend, delete, incr or decr, found {found:?}"
    )]
    Operation {
        /// Its text.
        found: String,
    },
    /// A value that no index takes.
    #[error("value size: {found} bytes; values of at most {most} are possible")]
    Value {
        /// Bytes of the value.
        found: u32,
        /// Largest number of bytes.
        most: u32,
    },
    /// A line that does not end.
    #[error("expected lines of less than {most} bytes, found a longer one")]
    Long {
        /// Bytes that are read.
        most: u64,
    },
}

/// Operations of a trace, with the names that the format gives them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceOperation {
    /// Reads a value.
    Get,
    /// Reads a value and its number for `cas`.
    Gets,
    /// Sets a value.
    Set,
    /// Sets the value of an absent key.
    Add,
    /// Sets the value of a present key.
    Replace,
    /// Sets a value unless another client has changed it.
    Cas,
    /// Adds bytes after a value.
    Append,
    /// Adds bytes before a value.
    Prepend,
    /// Takes a key away.
    Delete,
    /// Increments a number.
    Incr,
    /// Decrements a number.
    Decr,
}

impl TraceOperation {
    const ALL: [(Self, &'static str); 11] = [
        (Self::Get, "get"),
        (Self::Gets, "gets"),
        (Self::Set, "set"),
        (Self::Add, "add"),
        (Self::Replace, "replace"),
        (Self::Cas, "cas"),
        (Self::Append, "append"),
        (Self::Prepend, "prepend"),
        (Self::Delete, "delete"),
        (Self::Incr, "incr"),
        (Self::Decr, "decr"),
    ];

    /// Kind of operation that stands for it here.
    pub fn kind(self) -> OperationKind {
        match self {
            Self::Get | Self::Gets => OperationKind::Read,
            Self::Set => OperationKind::Put,
            Self::Add => OperationKind::Insert,
            Self::Replace | Self::Cas | Self::Append | Self::Prepend | Self::Incr | Self::Decr => {
                OperationKind::Update
            }
            Self::Delete => OperationKind::Delete,
        }
    }
}

impl<'t> Line<'t> {
    /// Reads a line without its end. A key may contain commas: its size is known from both sides.
    ///
    /// # Errors
    /// When a field is missing, is no number, or has another length than the line says.
    pub fn parse(line: &'t [u8]) -> Result<Self, BadLine> {
        let commas = line.iter().filter(|byte| **byte == b',').count();
        let mut ends = line.rsplitn(6, |byte| *byte == b',');
        let mut last = || ends.next().unwrap_or_default();
        let (ttl, operation, client, value, key_size, first) =
            (last(), last(), last(), last(), last(), last());
        let Some(comma) = first.iter().position(|byte| *byte == b',').filter(|_| commas >= 6) else {
            return Err(BadLine::Fields { found: commas + 1 });
        };
        let (timestamp, key) = (&first[..comma], &first[comma + 1..]);
        let said = number("key size", key_size, u64::MAX)?;
        if said != key.len() as u64 {
            return Err(BadLine::KeySize { said, found: key.len() });
        }
        let named = TraceOperation::ALL.into_iter().find(|(_, name)| name.as_bytes() == operation);
        let (operation, _) = named.ok_or_else(|| BadLine::Operation { found: text(operation) })?;
        Ok(Self {
            timestamp: number("timestamp", timestamp, u64::MAX)?,
            key,
            value_bytes: number("value size", value, u32::MAX.into())? as u32,
            client: number("client", client, u64::MAX)?,
            operation,
            ttl: number("TTL", ttl, u64::MAX)?,
        })
    }
}

fn number(field: &'static str, bytes: &[u8], most: u64) -> Result<u64, BadLine> {
    let parsed = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
    parsed.filter(|number| *number <= most).ok_or_else(|| BadLine::Number { field, most, found: text(bytes) })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned()
}
