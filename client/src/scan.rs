//! Scans as streams.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use fatbtree_remote_memory::{KeyRange, Order};
use futures_core::Stream;

use crate::engine::{Left, Part};
use crate::service::Ask;
use crate::{Client, Error};

/// Pairs of the first part of a scan. Each part is twice as long as the one before, so that a short scan reads little.
const FIRST: usize = 32;
/// Pairs of a part at most.
const LONGEST: usize = 1024;

type Asked = Pin<Box<dyn Future<Output = Result<Part, Error>> + Send>>;

/// Pairs as a [`Stream`]: those of a range of keys in ascending order, from [`Client::scan`], or in descending order, from
/// [`Client::scan_backward`], or all, from [`Client::pairs`].
///
/// A scan is no snapshot of one moment: a key that is there throughout is in it once, and no key is in it twice. Pairs are read in parts, and
/// the next part is asked for while pairs of the last one are taken. After an error the stream ends.
pub struct Scan {
    client: Client,
    /// What was not asked for yet. `None` while a part is on its way, and at the end.
    left: Option<Left>,
    most: usize,
    part: Option<Asked>,
    found: VecDeque<(u64, Bytes)>,
}

impl fmt::Debug for Scan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scan").field("left", &self.left).finish_non_exhaustive()
    }
}

impl Scan {
    /// The pairs of some keys.
    pub(crate) fn of(client: Client, keys: KeyRange, order: Order) -> Self {
        Self::begin(client, Some(Left::Keys(keys, order)).filter(|_| !keys.is_empty()))
    }

    /// All pairs.
    pub(crate) fn all(client: Client) -> Self {
        Self::begin(client, Some(Left::All))
    }

    fn begin(client: Client, left: Option<Left>) -> Self {
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

    fn ask(&mut self, left: Left) {
        let (client, most) = (self.client.clone(), self.most);
        self.part =
            Some(Box::pin(async move { client.ask(false, |answer| Ask::Scan(left, most, answer)).await }));
    }

    fn poll_part(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let Some(part) = &mut self.part else { return Poll::Ready(Ok(())) };
        let Poll::Ready(done) = part.as_mut().poll(context) else { return Poll::Pending };
        self.part = None;
        let Part { pairs, rest } = match done {
            Ok(part) => part,
            Err(error) => return Poll::Ready(Err(error)),
        };
        self.left = rest;
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
                && let Some(left) = this.left.take()
            {
                this.ask(left);
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
