//! Execution of a request: one operation on the tree.

use std::rc::Rc;

use fatbtree_blink::{
    BreakReason, Change, CommonError, ConnectionId, KeyRange, OperationError, Partition, Pool, ScanOptions,
    Start,
};
use fatbtree_query::{BytesKey, Outcome, Request};
use fatbtree_remote_memory::BytesRange;
use fatbtree_verbs::{Failure, Verbs};
use fatbtree_wire::query::{Op, bytes, records};

/// Bounds of the answer to one scan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScanBounds {
    /// Records.
    pub records: u32,
    /// Bytes of its payload, about; a single record may have more.
    pub bytes: usize,
}

impl Default for ScanBounds {
    /// 4096 records, 256 KiB.
    fn default() -> Self {
        Self { records: 4096, bytes: 256 << 10 }
    }
}

/// Carries out a request for a key of `own`.
pub(super) async fn carry_out<V: Verbs>(
    pool: Rc<Pool<V>>,
    request: Request,
    start: Start,
    own: Partition,
    bounds: ScanBounds,
) -> Outcome {
    let Request { op, key, bytes, value, .. } = &request;
    let change = match (op, bytes) {
        (Op::Get, _) => {
            let found = match bytes {
                None => pool.lookup(*key, start).await.result,
                Some(bytes) => pool.lookup_bytes(&bytes.key, start).await.result,
            };
            return match found {
                Ok(Some(value)) => Outcome::Value(value.to_vec()),
                Ok(None) => Outcome::NotFound,
                Err(error) => failed(&error, &own),
            };
        }
        (Op::Scan, None) => return scan(&pool, &request, &own, bounds).await,
        (Op::Scan, Some(bytes)) => return scan_bytes(&pool, &request, bytes, &own, bounds).await,
        (Op::Put, _) => Change::Upsert(value),
        (Op::Update, _) => Change::Update(value),
        (Op::Delete, _) => Change::Delete,
        // The responder has answered it.
        (Op::Open, _) => return Outcome::Failed,
    };
    let changed = match bytes {
        None => pool.mutate(*key, change, start).await.result,
        Some(bytes) => pool.mutate_bytes(&bytes.key, change, start).await.result,
    };
    written(changed, &own)
}

fn written(result: Result<bool, OperationError>, own: &Partition) -> Outcome {
    match result {
        Ok(true) => Outcome::Done,
        Ok(false) => Outcome::NotFound,
        Err(error) => failed(&error, own),
    }
}

fn failed(error: &OperationError, own: &Partition) -> Outcome {
    match error {
        OperationError::Unknown { .. } => Outcome::Unknown,
        OperationError::ValueSize { .. } => Outcome::TooLarge,
        OperationError::Keys { .. } | OperationError::KeyBytes { .. } => Outcome::Refused,
        // Read again and again for as long as an operation has patience: no writer takes that long. Or a pointer leads out of this
        // server's memory, each time that it is followed.
        error @ (OperationError::GaveUp { .. }
        | OperationError::Damaged { .. }
        | OperationError::Common { error: CommonError::UnknownServer(_), .. }
        | OperationError::ConnectionBroke {
            last: BreakReason::Failed(Failure::RemoteAccess), ..
        }) => {
            tracing::debug!(%error, "a query has found damage");
            Outcome::Damaged
        }
        // A worker works on its own server alone: a pointer leads to another one.
        error @ OperationError::Common {
            error: CommonError::NotWriter(server) | CommonError::Abandoned(ConnectionId { server, .. }),
            ..
        } if *server != own.id => {
            tracing::debug!(%error, "a query has found damage");
            Outcome::Damaged
        }
        error @ OperationError::TreeLost { .. } => {
            tracing::debug!(%error, "a query for a tree that was lost");
            Outcome::TreeLost
        }
        error => {
            tracing::debug!(%error, "a query has failed");
            Outcome::Failed
        }
    }
}

/// The records of a range that are this partition's, as many as one answer takes.
async fn scan<V: Verbs>(pool: &Pool<V>, request: &Request, own: &Partition, bounds: ScanBounds) -> Outcome {
    let wanted = KeyRange::of(request.key..=request.range_end);
    if wanted.is_empty() || request.limit == 0 {
        return Outcome::Records { payload: Vec::new(), next: None };
    }
    // The next partition has what is after this one's end.
    let behind = own.range.high.filter(|&high| !wanted.is_below(high));
    let part = KeyRange { low: wanted.low, high: behind.or(wanted.high) };
    let most = request.limit.min(bounds.records);
    let mut scan = pool.scan(part, ScanOptions { wanted: most as usize, ..ScanOptions::default() });
    let (mut payload, mut count, mut last) = (Vec::new(), 0, None);
    while count < most && payload.len() < bounds.bytes {
        match scan.next().await {
            // An answer is not much longer than its bound, whatever values are.
            Some(Ok((key, value))) if count > 0 && payload.len() + value.len() > bounds.bytes => {
                return Outcome::Records { payload, next: Some(key) };
            }
            Some(Ok((key, value))) => {
                records::push(&mut payload, key, &value);
                (count, last) = (count + 1, Some(key));
            }
            Some(Err(error)) => return failed(&error, own),
            // All of this partition's: on from the next one's first key, if the range goes on and the client wants more.
            None => return Outcome::Records { payload, next: behind },
        }
    }
    let next = last.and_then(|last: u64| last.checked_add(1)).filter(|&next| !wanted.is_below(next));
    Outcome::Records { payload, next }
}

/// The records of a range of keys of bytes that are this partition's, as many as one answer takes, behind the key to go on from.
async fn scan_bytes<V: Verbs>(
    pool: &Pool<V>,
    request: &Request,
    BytesKey { key: low, high }: &BytesKey,
    own: &Partition,
    bounds: ScanBounds,
) -> Outcome {
    let answer = |next: Option<&[u8]>, found: &[u8]| {
        let mut payload = Vec::with_capacity(found.len() + low.len() + 8);
        bytes::push_option(&mut payload, next);
        payload.extend_from_slice(found);
        Outcome::Records { payload, next: None }
    };
    let range = BytesRange { low: low.clone(), high: high.clone() };
    if request.limit == 0 || high.as_ref().is_some_and(|high| high <= low) {
        return answer(None, &[]);
    }
    // The next partition has what is after this one's end.
    let border = own.range.high.map(|high| pool.config().tree.code().least_key(high));
    let behind = border.filter(|border| high.as_ref().is_none_or(|high| border < high));
    let most = request.limit.min(bounds.records);
    let options = ScanOptions { wanted: most as usize, ..ScanOptions::default() };
    let mut scan = pool.scan_bytes_within(range, own.range, options);
    let (mut found, mut count) = (Vec::new(), 0);
    let mut last = None;
    while count < most && found.len() < bounds.bytes {
        match scan.next().await {
            // An answer is not much longer than its bound, whatever values are.
            Some(Ok((key, value))) if count > 0 && found.len() + value.len() > bounds.bytes => {
                return answer(Some(&key), &found);
            }
            Some(Ok((key, value))) => {
                bytes::push_record(&mut found, &key, &value);
                (count, last) = (count + 1, Some(key));
            }
            Some(Err(error)) => return failed(&error, own),
            None => return answer(behind.as_deref(), &found),
        }
    }
    let next = last.map(|last| [&last[..], &[0]].concat());
    answer(next.as_deref().filter(|next| high.as_ref().is_none_or(|high| *next < &high[..])), &found)
}
