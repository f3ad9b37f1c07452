//! The header of requests and responses.

use std::fmt;

use super::{BYTES, MAX_PAYLOAD, Op, RESPONSE, Status};
use crate::IndexHeader;
use crate::error::ParseError;

/// Header of each part of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueryHeader {
    /// Key of the request, and the place to which the switches have led it.
    pub walk: IndexHeader,
    /// Address of a node that the key is below, with 16 bits of server and 48 of offset; 0 if none is known.
    pub address: u64,
    /// The operation.
    pub op: Op,
    /// Whether the key is [bytes](super::bytes), in the payload. Never of [`Op::Open`].
    pub bytes: bool,
    /// Outcome of the operation; `None` in a request.
    pub status: Option<Status>,
    /// Number of the execution to which a response's parts belong, upper 16 bits of 48.
    pub execution: u16,
    /// Maximum number of records of a scan, in a request. In a response, the lower 32 bits of its execution's number.
    pub limit: u32,
    /// Number of the client; 0 for requests that need none.
    pub client: u64,
    /// Number of the request among the client's.
    pub request: u64,
    /// Last key, key to continue from, or cookie: see the [table](super).
    pub range_end: u64,
    /// Length of the whole payload in bytes.
    pub total: u32,
    /// Offset of this part in the payload.
    pub offset: u32,
    /// Keyed tag over the result of [`signed`](Self::signed) and this part; 0 if there is no key.
    pub tag: u64,
}

/// A datagram of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Query<'a> {
    /// Header of the datagram.
    pub header: QueryHeader,
    /// This part of the payload.
    pub part: &'a [u8],
}

/// Reason why a datagram is not one of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueryError {
    /// The datagram ends before the header does.
    #[error(
        "query header: expected {} bytes, found {found}; the datagram is cut short, drop it",
        QueryHeader::LEN
    )]
    Truncated {
        /// Number of bytes found.
        found: usize,
    },
    /// The index header at the beginning is wrong.
    #[error(transparent)]
    Walk(#[from] ParseError),
    /// A number has no meaning.
    #[error("query {field}: expected one of the numbers that are defined, found {found}; drop it")]
    Number {
        /// The field.
        field: &'static str,
        /// The found value.
        found: u8,
    },
    /// The part does not lie inside the payload.
    #[error(
        "query payload: expected a part of at most {MAX_PAYLOAD} bytes, found bytes {offset} to {end} of {total}; drop it"
    )]
    Part {
        /// Beginning of the part.
        offset: u32,
        /// End of the part.
        end: u64,
        /// Length of the whole payload in bytes.
        total: u32,
    },
}

impl QueryHeader {
    /// Bytes on the wire.
    pub const LEN: usize = 72;

    /// A request, as a client sends it.
    pub fn request(op: Op, key: u64, client: u64, request: u64) -> Self {
        Self {
            walk: IndexHeader { key, ..IndexHeader::default() },
            address: 0,
            op,
            bytes: false,
            status: None,
            execution: 0,
            limit: 0,
            client,
            request,
            range_end: 0,
            total: 0,
            offset: 0,
            tag: 0,
        }
    }

    /// A response to this request, without payload.
    #[must_use]
    pub fn response(&self, status: Status) -> Self {
        Self { address: 0, status: Some(status), limit: 0, range_end: 0, total: 0, offset: 0, ..*self }
    }

    /// Bytes before the part that the tag covers: everything in front of the tag. In a request they leave out what
    /// switches may change on its way: the index header except the key, and the address.
    #[inline]
    pub fn signed(&self) -> [u8; Self::LEN - 8] {
        let mut bytes = [0; Self::LEN - 8];
        bytes.copy_from_slice(&self.to_bytes()[..Self::LEN - 8]);
        if self.status.is_none() {
            bytes[..8].fill(0);
            bytes[16..24].fill(0);
        }
        bytes
    }

    /// The bytes on the wire.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..16].copy_from_slice(&self.walk.to_bytes());
        bytes[16..24].copy_from_slice(&self.address.to_be_bytes());
        let marks = [(self.status.is_some(), RESPONSE), (self.bytes, BYTES)];
        let marks = marks.into_iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, mark)| all | mark);
        bytes[24] = self.op as u8 | marks;
        bytes[25] = self.status.map_or(0, |status| status as u8);
        bytes[26..28].copy_from_slice(&self.execution.to_be_bytes());
        bytes[28..32].copy_from_slice(&self.limit.to_be_bytes());
        bytes[32..40].copy_from_slice(&self.client.to_be_bytes());
        bytes[40..48].copy_from_slice(&self.request.to_be_bytes());
        bytes[48..56].copy_from_slice(&self.range_end.to_be_bytes());
        bytes[56..60].copy_from_slice(&self.total.to_be_bytes());
        bytes[60..64].copy_from_slice(&self.offset.to_be_bytes());
        bytes[64..].copy_from_slice(&self.tag.to_be_bytes());
        bytes
    }
}

impl<'a> Query<'a> {
    /// Reads a datagram of any bytes.
    ///
    /// # Errors
    /// The first error, from the beginning to the end.
    #[inline]
    pub fn parse(datagram: &'a [u8]) -> Result<Self, QueryError> {
        let Some((header, part)) = datagram.split_first_chunk::<{ QueryHeader::LEN }>() else {
            return Err(QueryError::Truncated { found: datagram.len() });
        };
        let mut fields = Fields { bytes: header, at: 0 };
        let walk = IndexHeader::parse(&fields.take())?;
        let address = u64::from_be_bytes(fields.take());
        let [kind, status] = fields.take();
        let (op, bytes) = (Op::of(kind & !(RESPONSE | BYTES)), kind & BYTES != 0);
        // An open is for no key.
        let op = op.filter(|op| !(bytes && *op == Op::Open));
        let op = op.ok_or(QueryError::Number { field: "operation", found: kind })?;
        let status = match (kind & RESPONSE != 0, Status::of(status)) {
            (true, Some(status)) => Some(status),
            (false, Some(Status::Done)) => None,
            _ => return Err(QueryError::Number { field: "status", found: status }),
        };
        let header = QueryHeader {
            walk,
            address,
            op,
            bytes,
            status,
            execution: u16::from_be_bytes(fields.take()),
            limit: u32::from_be_bytes(fields.take()),
            client: u64::from_be_bytes(fields.take()),
            request: u64::from_be_bytes(fields.take()),
            range_end: u64::from_be_bytes(fields.take()),
            total: u32::from_be_bytes(fields.take()),
            offset: u32::from_be_bytes(fields.take()),
            tag: u64::from_be_bytes(fields.take()),
        };
        let (offset, total) = (header.offset, header.total);
        let end = u64::from(offset) + part.len() as u64;
        // An empty part of a payload that is not empty would say nothing.
        if end > u64::from(total) || total > MAX_PAYLOAD || (part.is_empty() && total > 0) {
            return Err(QueryError::Part { offset, end, total });
        }
        Ok(Self { header, part })
    }
}

impl fmt::Display for Query<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let QueryHeader { walk, op, status, client, request, total, offset, .. } = &self.header;
        write!(f, "{op} {:#x} (client {client:#x}, request {request})", walk.key)?;
        if let Some(status) = status {
            write!(f, ": {status}")?;
        }
        if *total > 0 {
            write!(f, ", bytes {offset}..{} of {total}", u64::from(*offset) + self.part.len() as u64)?;
        }
        Ok(())
    }
}

/// Takes fields from a header, one after the other.
struct Fields<'a> {
    bytes: &'a [u8; QueryHeader::LEN],
    at: usize,
}

impl Fields<'_> {
    #[inline]
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let field = std::array::from_fn(|n| self.bytes[self.at + n]);
        self.at += N;
        field
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::IndexFlags;

    #[test]
    fn golden_bytes() {
        let header = QueryHeader {
            walk: IndexHeader {
                flags: IndexFlags::INNER,
                epoch: 2,
                levels: 3,
                partition: 0x0405,
                path: 6,
                slice: 7,
                key: 0x0809_0a0b_0c0d_0e0f,
            },
            address: 0x1011_1213_1415_1617,
            op: Op::Scan,
            bytes: false,
            status: Some(Status::Busy),
            execution: 0x1a1b,
            limit: 0x1c1d_1e1f,
            client: 0x2021_2223_2425_2627,
            request: 0x2829_2a2b_2c2d_2e2f,
            range_end: 0x3031_3233_3435_3637,
            total: 4,
            offset: 1,
            tag: 0x4041_4243_4445_4647,
        };
        let mut golden = [0; QueryHeader::LEN + 2];
        golden.iter_mut().zip(0..).for_each(|(byte, n)| *byte = n);
        (golden[0], golden[1]) = (4, 2);
        (golden[24], golden[25]) = (0x86, 6);
        golden[56..64].copy_from_slice(&[0, 0, 0, 4, 0, 0, 0, 1]);
        assert_eq!(header.to_bytes(), golden[..QueryHeader::LEN]);
        let found = Query { header, part: &[72, 73] };
        assert_eq!(Query::parse(&golden), Ok(found));
        let said = "scan 0x8090a0b0c0d0e0f (client 0x2021222324252627, request 2893890600475373103): busy, bytes 1..3 of 4";
        assert_eq!(found.to_string(), said);
        golden[24] = 0xc6;
        let found = Query { header: QueryHeader { bytes: true, ..header }, part: &[72, 73] };
        assert_eq!(found.header.to_bytes(), golden[..QueryHeader::LEN]);
        assert_eq!(Query::parse(&golden), Ok(found));
    }

    #[test]
    fn what_is_none_is_refused_by_field() {
        let good = QueryHeader::request(Op::Get, 7, 1, 2).to_bytes();
        let but = |at: usize, byte: u8| {
            let mut bytes = good;
            bytes[at] = byte;
            Query::parse(&bytes).map(|_| ()).unwrap_err().to_string()
        };
        assert!(but(0, 9).starts_with("index header version: expected 4"));
        assert!(but(24, 0).starts_with("query operation"));
        assert!(but(24, 7).starts_with("query operation"));
        assert!(but(24, 0x41).starts_with("query operation"), "an open of bytes");
        assert!(but(24, 0x47).starts_with("query operation"));
        assert!(but(25, 1).starts_with("query status"), "a request has none");
        assert!(but(63, 1).contains("found bytes 1 to 1 of 0"));
        assert!(but(59, 1).contains("found bytes 0 to 0 of 1"), "an empty part of something");
        assert!(but(56, 0x80).contains("at most 16777216 bytes"));
        assert_eq!(Query::parse(&good[..71]), Err(QueryError::Truncated { found: 71 }));
    }

    #[test]
    fn the_tag_covers_everything_but_what_switches_change_in_requests() {
        let request = QueryHeader { tag: 9, ..QueryHeader::request(Op::Put, 7, 1, 2) };
        let response = request.response(Status::Done);
        // Version, operation and status are not any number.
        for at in (1..QueryHeader::LEN).filter(|at| ![24, 25].contains(at) && !(56..64).contains(at)) {
            for (header, is_request) in [(request, true), (response, false)] {
                let mut bytes = header.to_bytes();
                bytes[at] ^= 1;
                let changed = Query::parse(&bytes).unwrap().header;
                let by_switches = is_request && (at < 8 || (16..24).contains(&at));
                let is_covered = at < 64 && !by_switches;
                assert_eq!(changed.signed() != header.signed(), is_covered, "byte {at}");
            }
        }
        for other in [Op::Update, Op::Delete] {
            assert_ne!(QueryHeader { op: other, ..request }.signed(), request.signed());
        }
        assert_ne!(QueryHeader { bytes: true, ..request }.signed(), request.signed());
        assert_ne!(request.response(Status::Failed).signed(), response.signed());
        assert_ne!(QueryHeader { total: 1, ..request }.signed(), request.signed());
        assert_ne!(QueryHeader { offset: 1, ..request }.signed(), request.signed());
    }
}
