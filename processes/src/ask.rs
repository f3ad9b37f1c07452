//! Questions to a memory server over gRPC when a process starts, and the server may not answer yet.

use std::future::Future;
use std::time::{Duration, Instant};

use fatbtree_memserver::grpc::ClientError;

/// Interval between attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Asks the server at `address` until it answers, refuses for good, or `patience` has passed. `what` completes "has not answered".
///
/// # Errors
/// The last attempt's that had an answer; [`ClientError::Deadline`] if none had one, as where the server is frozen.
pub(crate) async fn ask_within<T, F: Future<Output = Result<T, ClientError>>>(
    patience: Duration,
    address: &str,
    what: &'static str,
    ask: impl Fn() -> F,
) -> Result<T, ClientError> {
    let began = Instant::now();
    let mut last = None;
    loop {
        let left = patience.saturating_sub(began.elapsed());
        match tokio::time::timeout(left, ask()).await {
            Ok(Err(error)) if !error.is_final() && began.elapsed() < patience => {
                last = Some(error);
                tokio::time::sleep(PAUSE).await;
            }
            Ok(answer) => return answer,
            // The attempt that was cut off says less than the one before it.
            Err(_) => {
                let late =
                    || ClientError::Deadline { address: address.to_owned(), call: what, after: patience };
                return Err(last.unwrap_or_else(late));
            }
        }
    }
}
