//! Answer of a scan: keys and values, ascending, each `key (8), length of the value (4), value`.

/// Bytes of a record without its value.
pub const RECORD_LEN: usize = 12;

/// A payload that ends within a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("record at byte {at} of a scan's answer: expected {expected} bytes, found {found}; drop the answer")]
pub struct RecordError {
    /// Offset of the record.
    pub at: usize,
    /// Number of bytes that the record needs.
    pub expected: usize,
    /// Number of bytes found.
    pub found: usize,
}

/// Appends a record.
///
/// # Panics
/// When the value is longer than 4 GB.
pub fn push(payload: &mut Vec<u8>, key: u64, value: &[u8]) {
    payload.extend_from_slice(&key.to_be_bytes());
    let len = u32::try_from(value.len()).expect("values are shorter than 4 GB");
    payload.extend_from_slice(&len.to_be_bytes());
    payload.extend_from_slice(value);
}

/// Reads the records of a payload. Ends after the first error.
pub fn read(payload: &[u8]) -> impl Iterator<Item = Result<(u64, &[u8]), RecordError>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = payload.get(at..).filter(|rest| !rest.is_empty())?;
        let record = record(rest).map_err(|expected| RecordError { at, expected, found: rest.len() });
        at = match &record {
            Ok((_, value)) => at + RECORD_LEN + value.len(),
            Err(_) => payload.len(),
        };
        Some(record)
    })
}

/// The first record; the error is the number of bytes that it needs.
fn record(bytes: &[u8]) -> Result<(u64, &[u8]), usize> {
    let (key, rest) = bytes.split_first_chunk::<8>().ok_or(RECORD_LEN)?;
    let (len, rest) = rest.split_first_chunk::<4>().ok_or(RECORD_LEN)?;
    let len = u32::from_be_bytes(*len) as usize;
    let value = rest.get(..len).ok_or(RECORD_LEN + len)?;
    Ok((u64::from_be_bytes(*key), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_that_is_cut_short_is_found_out() {
        let mut payload = Vec::new();
        push(&mut payload, 7, b"seven");
        push(&mut payload, 9, b"");
        let all: Vec<_> = read(&payload).collect();
        assert_eq!(all, [Ok((7, &b"seven"[..])), Ok((9, &b""[..]))]);
        let cut: Vec<_> = read(&payload[..20]).collect();
        assert_eq!(cut, [Ok((7, &b"seven"[..])), Err(RecordError { at: 17, expected: 12, found: 3 })]);
        let cut: Vec<_> = read(&payload[..15]).collect();
        assert_eq!(cut, [Err(RecordError { at: 0, expected: 17, found: 15 })]);
        assert_eq!(read(&[]).count(), 0);
    }
}
