//! Scans as streams.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::ops::{Bound, RangeBounds, RangeInclusive};
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_core::Stream;

use crate::service::Ask;
use crate::{Client, Error};

/// Pairs of the first part of a scan. Each part is twice as long as the one before, so that a short scan reads little.
const FIRST: usize = 32;
/// Pairs of a part at most.
const LONGEST: usize = 1024;

type Part = Pin<Box<dyn Future<Output = Result<Vec<(u64, Bytes)>, Error>> + Send>>;

/// The pairs of a range of keys in ascending order: a [`Stream`], from [`Client::scan`].
///
/// A scan is no snapshot of one moment: it misses no pair that is there throughout. Pairs are read in parts, and the next part is asked for
/// while pairs of the last one are taken. After an error the stream ends.
pub struct Scan {
    client: Client,
    /// Keys that were not asked for yet.
    left: Option<RangeInclusive<u64>>,
    most: usize,
    part: Option<Part>,
    found: VecDeque<(u64, Bytes)>,
}

impl fmt::Debug for Scan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scan").field("left", &self.left).finish_non_exhaustive()
    }
}

impl Scan {
    pub(crate) fn new(client: Client, range: impl RangeBounds<u64>) -> Self {
        let low = match range.start_bound() {
            Bound::Included(low) => Some(*low),
            Bound::Excluded(below) => below.checked_add(1),
            Bound::Unbounded => Some(0),
        };
        let high = match range.end_bound() {
            Bound::Included(high) => Some(*high),
            Bound::Excluded(above) => above.checked_sub(1),
            Bound::Unbounded => Some(u64::MAX),
        };
        let left = low.zip(high).map(|(low, high)| low..=high).filter(|keys| !keys.is_empty());
        Self { client, left, most: FIRST, part: None, found: VecDeque::new() }
    }

    /// The next pair; `None` at the end. Dropping this future loses no pair.
    pub async fn next(&mut self) -> Option<Result<(u64, Bytes), Error>> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// The next pair, if it was read already. `None` does not mean the end.
    pub fn next_ready(&mut self) -> Option<(u64, Bytes)> {
        self.found.pop_front()
    }

    fn ask(&mut self, keys: RangeInclusive<u64>) {
        let (client, most) = (self.client.clone(), self.most);
        self.part =
            Some(Box::pin(async move { client.ask(false, |answer| Ask::Scan(keys, most, answer)).await }));
    }

    fn poll_part(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let (Some(part), Some(keys)) = (&mut self.part, &self.left) else { return Poll::Ready(Ok(())) };
        let Poll::Ready(pairs) = part.as_mut().poll(context) else { return Poll::Pending };
        self.part = None;
        let pairs = match pairs {
            Ok(pairs) => pairs,
            Err(error) => {
                self.left = None;
                return Poll::Ready(Err(error));
            }
        };
        // A part with fewer pairs is the last one.
        let next = pairs.last().filter(|_| pairs.len() >= self.most).and_then(|(key, _)| key.checked_add(1));
        self.left = next.map(|next| next..=*keys.end()).filter(|keys| !keys.is_empty());
        self.most = LONGEST.min(2 * self.most);
        self.found.extend(pairs);
        Poll::Ready(Ok(()))
    }
}

impl Stream for Scan {
    type Item = Result<(u64, Bytes), Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if this.part.is_none()
                && this.found.len() < this.most / 4
                && let Some(keys) = this.left.clone()
            {
                this.ask(keys);
            }
            let polled = this.poll_part(context);
            if let Poll::Ready(Err(error)) = polled {
                this.found.clear();
                return Poll::Ready(Some(Err(error)));
            }
            if let Some(pair) = this.found.pop_front() {
                return Poll::Ready(Some(Ok(pair)));
            }
            if polled.is_pending() {
                return Poll::Pending;
            }
            if this.left.is_none() {
                return Poll::Ready(None);
            }
        }
    }
}
