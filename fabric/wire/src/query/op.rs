//! Operations and their outcomes.

use std::fmt;

/// Bit of the operation's byte that marks a response.
pub const RESPONSE: u8 = 0x80;

/// Bit of the operation's byte that marks a request whose key is [bytes](super::bytes), and its response.
pub const BYTES: u8 = 0x40;

/// Operation of a client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Op {
    /// Makes this client known, so that it may write.
    Open = 1,
    /// Reads the value of a key.
    Get = 2,
    /// Writes a key, whether or not it exists.
    Put = 3,
    /// Writes an existing key.
    Update = 4,
    /// Removes a key.
    Delete = 5,
    /// Reads keys and values of a range.
    Scan = 6,
}

impl Op {
    /// All operations.
    pub const ALL: [Self; 6] = [Self::Open, Self::Get, Self::Put, Self::Update, Self::Delete, Self::Scan];

    /// Operation with this number.
    pub fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|op| *op as u8 == number)
    }

    /// Whether the operation must not be executed twice.
    pub const fn is_write(self) -> bool {
        matches!(self, Self::Put | Self::Update | Self::Delete)
    }

    /// Whether a request of this operation has a payload.
    pub const fn brings_value(self) -> bool {
        matches!(self, Self::Put | Self::Update)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Get => "get",
            Self::Put => "put",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Scan => "scan",
        })
    }
}

/// Outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Status {
    /// The request was carried out.
    Done = 0,
    /// The key is not there; nothing was changed.
    NotFound = 1,
    /// The key belongs to another partition, which the index header names: ask there.
    Redirect = 2,
    /// The server does not know this client: open with the enclosed cookie. Nothing was changed.
    NotOpen = 3,
    /// The request is invalid, or asks for something that this server does not do. Nothing was changed.
    Refused = 4,
    /// The value is longer than this tree takes, or the scan asks for more than the server gives.
    TooLarge = 5,
    /// The server is busy; nothing was changed: ask again, later.
    Busy = 6,
    /// The id is older than all that are remembered. The request is not carried out now, and may have been before.
    Forgotten = 7,
    /// The server could not carry the request out, and nothing was changed.
    Failed = 8,
    /// The server could not go on: the request may have been carried out or not.
    Unknown = 9,
    /// The tree's data for the key fails its checks, however often it is read. Nothing was changed, and asking again
    /// does not help: the server's memory or its files are damaged.
    Damaged = 10,
    /// The server answers only clients that have a key, and this request does not bear the tag of its client's. Nothing was
    /// changed.
    NoKey = 11,
    /// The server was started again with an empty tree and has lost the one that it had. Nothing was changed, and asking again does
    /// not help until it is loaded.
    TreeLost = 12,
    /// This server's tree has another code of keys than the client knows: their [word](super::bytes) is another one. Nothing was
    /// changed. The answer to a read brings the code.
    OtherCode = 13,
}

impl Status {
    /// All outcomes.
    pub const ALL: [Self; 14] = [
        Self::Done,
        Self::NotFound,
        Self::Redirect,
        Self::NotOpen,
        Self::Refused,
        Self::TooLarge,
        Self::Busy,
        Self::Forgotten,
        Self::Failed,
        Self::Unknown,
        Self::Damaged,
        Self::NoKey,
        Self::TreeLost,
        Self::OtherCode,
    ];

    /// Outcome with this number.
    pub fn of(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Done => "done",
            Self::NotFound => "not found",
            Self::Redirect => "redirect",
            Self::NotOpen => "not open",
            Self::Refused => "refused",
            Self::TooLarge => "too large",
            Self::Busy => "busy",
            Self::Forgotten => "forgotten",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
            Self::Damaged => "damaged",
            Self::NoKey => "no key",
            Self::TreeLost => "tree lost",
            Self::OtherCode => "other code",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_lead_back() {
        assert!(Op::ALL.into_iter().all(|op| Op::of(op as u8) == Some(op)));
        assert!(Status::ALL.into_iter().all(|status| Status::of(status as u8) == Some(status)));
        assert_eq!((Op::of(0), Op::of(7), Status::of(14)), (None, None, None));
    }
}
