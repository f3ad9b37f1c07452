//! Payloads over one packet: split into parts, and put together again in whatever order the parts arrive.

use std::collections::BTreeMap;

use super::QueryHeader;

/// Reason why a part does not belong to a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartError {
    /// The part states another length of the whole payload than the parts before.
    #[error("expected a part of {expected} bytes in all, found one of {found}; drop it")]
    Total {
        /// Length of the whole payload in bytes.
        expected: u32,
        /// Length that the part states.
        found: u32,
    },
    /// The part lies outside, or overlaps another part without being the same.
    #[error("expected a part after or before those that are there, found bytes {offset} to {end}; drop it")]
    Place {
        /// Beginning of the part.
        offset: u32,
        /// End of the part.
        end: u32,
    },
}

/// Headers and parts of a payload, of at most `most` bytes each; an empty payload has one part without bytes.
///
/// # Panics
/// When `most` is 0 or the payload is longer than 4 GB.
pub fn parts<'a>(
    header: &QueryHeader,
    payload: &'a [u8],
    most: usize,
) -> impl Iterator<Item = (QueryHeader, &'a [u8])> {
    let header =
        QueryHeader { total: u32::try_from(payload.len()).expect("at most 4 GB"), offset: 0, ..*header };
    let empty = payload.is_empty().then_some((header, payload));
    let parts = payload.chunks(most).enumerate().map(move |(n, part)| {
        let offset = u32::try_from(n * most).expect("it is less than the payload");
        (QueryHeader { offset, ..header }, part)
    });
    empty.into_iter().chain(parts)
}

/// A header and its part as they go over the network.
pub fn datagram(header: &QueryHeader, part: &[u8]) -> Vec<u8> {
    let mut datagram = Vec::with_capacity(QueryHeader::LEN + part.len());
    datagram.extend_from_slice(&header.to_bytes());
    datagram.extend_from_slice(part);
    datagram
}

/// A partially received payload.
///
/// ```
/// use fatbtree_wire::query::{Assembly, Op, QueryHeader, parts};
///
/// let header = QueryHeader::request(Op::Put, 7, 1, 1);
/// let sent: Vec<_> = parts(&header, b"a value over several packets", 10).collect();
/// let mut assembly = Assembly::new(sent[0].0.total);
/// for (header, part) in sent.iter().rev() {
///     assembly.add(header.total, header.offset, part)?;
/// }
/// assert_eq!(assembly.finish().as_deref(), Some(&b"a value over several packets"[..]));
/// # Ok::<(), fatbtree_wire::query::PartError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Assembly {
    payload: Vec<u8>,
    /// Start and length of each received part.
    there: BTreeMap<u32, u32>,
    missing: u32,
}

impl Assembly {
    /// Creates a payload of `total` bytes, none of them received yet. The caller has checked that there is memory for
    /// it.
    pub fn new(total: u32) -> Self {
        Self { payload: vec![0; total as usize], there: BTreeMap::new(), missing: total }
    }

    /// Puts a part in its place. A part that is there already changes nothing.
    ///
    /// # Errors
    /// When the part does not belong to this payload; it changes nothing then.
    pub fn add(&mut self, total: u32, offset: u32, part: &[u8]) -> Result<(), PartError> {
        let expected = self.payload.len() as u32;
        if total != expected {
            return Err(PartError::Total { expected, found: total });
        }
        let end = u64::from(offset) + part.len() as u64;
        let place = PartError::Place { offset, end: u32::try_from(end).unwrap_or(u32::MAX) };
        if end > u64::from(total) {
            return Err(place);
        }
        let (len, end) = (part.len() as u32, end as u32);
        if part.is_empty() || self.there.get(&offset) == Some(&len) {
            return Ok(());
        }
        let before = self.there.range(..=offset).next_back().is_some_and(|(at, len)| at + len > offset);
        let behind = self.there.range(offset..end).next().is_some();
        if before || behind {
            return Err(place);
        }
        self.payload[offset as usize..end as usize].copy_from_slice(part);
        self.there.insert(offset, len);
        self.missing -= len;
        Ok(())
    }

    /// Length of the whole payload in bytes.
    pub fn total(&self) -> u32 {
        self.payload.len() as u32
    }

    /// Whether the whole payload has been received.
    pub fn is_whole(&self) -> bool {
        self.missing == 0
    }

    /// The payload, if all of it has been received.
    pub fn finish(self) -> Option<Vec<u8>> {
        self.is_whole().then_some(self.payload)
    }
}
