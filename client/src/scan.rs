//! Scans as streams.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use fatbtree_remote_memory::{BytesRange, KeyRange, Order};
use futures_core::Stream;

use crate::engine::{BytesPart, Left, Part};
use crate::service::Ask;
use crate::{Client, Error};

/// Pairs of the first part of a scan. Each part is twice as long as the one before, so that a short scan reads little.
const FIRST: usize = 32;
/// Pairs of a part at most.
const LONGEST: usize = 1024;

/// Pairs, and what is left of the scan.
type Found<K> = (Vec<(K, Bytes)>, Option<<K as ScanKey>::Left>);

/// A part that was asked for.
pub(crate) type Asked<K> = Pin<Box<dyn Future<Output = Result<Found<K>, Error>> + Send>>;

/// Keys that are scanned: [`u64`], or [`Bytes`].
pub trait ScanKey: Sized + Unpin + Send + 'static {
    /// What is left of a scan.
    #[doc(hidden)]
    type Left: fmt::Debug + Send + Unpin;

    /// Asks for the next pairs.
    #[doc(hidden)]
    fn ask(client: Client, left: Self::Left, most: usize) -> Asked<Self>;
}

/// What is left of a scan of numbers.
#[doc(hidden)]
#[derive(Debug)]
pub struct LeftOfNumbers(Left);

/// What is left of a scan of keys of bytes.
#[doc(hidden)]
#[derive(Debug)]
pub struct LeftOfBytes(Left<BytesRange>);

impl ScanKey for u64 {
    type Left = LeftOfNumbers;

    fn ask(client: Client, LeftOfNumbers(left): LeftOfNumbers, most: usize) -> Asked<Self> {
        Box::pin(async move {
            let Part { pairs, rest } = client.ask(false, |answer| Ask::Scan(left, most, answer)).await?;
            Ok((pairs, rest.map(LeftOfNumbers)))
        })
    }
}

impl ScanKey for Bytes {
    type Left = LeftOfBytes;

    fn ask(client: Client, LeftOfBytes(left): LeftOfBytes, most: usize) -> Asked<Self> {
        Box::pin(async move {
            let BytesPart { pairs, rest } =
                client.ask(false, |answer| Ask::ScanBytes(left, most, answer)).await?;
            Ok((pairs, rest.map(LeftOfBytes)))
        })
    }
}

/// Pairs as a [`Stream`]: those of a range of keys in ascending order, from [`Client::scan`], or in descending order, from
/// [`Client::scan_backward`], or all, from [`Client::pairs`]; and those of keys of bytes, from [`BytesClient`](crate::BytesClient).
///
/// A scan is no snapshot of one moment: a key that is there throughout is in it once, and no key is in it twice. Pairs are read in parts, and
/// the next part is asked for while pairs of the last one are taken. After an error the stream ends.
pub struct Scan<K: ScanKey = u64> {
    client: Client,
    /// What was not asked for yet. `None` while a part is on its way, and at the end.
    left: Option<K::Left>,
    most: usize,
    part: Option<Asked<K>>,
    found: VecDeque<(K, Bytes)>,
}

impl<K: ScanKey> fmt::Debug for Scan<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scan").field("left", &self.left).finish_non_exhaustive()
    }
}

impl Scan {
    /// The pairs of some keys.
    pub(crate) fn of(client: Client, keys: KeyRange, order: Order) -> Self {
        Self::begin(client, Some(LeftOfNumbers(Left::Keys(keys, order))).filter(|_| !keys.is_empty()))
    }

    /// All pairs.
    pub(crate) fn all(client: Client) -> Self {
        Self::begin(client, Some(LeftOfNumbers(Left::All)))
    }
}

impl Scan<Bytes> {
    /// The pairs of some keys of bytes.
    pub(crate) fn of_bytes(client: Client, keys: BytesRange, order: Order) -> Self {
        Self::begin(client, Some(LeftOfBytes(Left::Keys(keys, order))))
    }

    /// All pairs whose keys are bytes.
    pub(crate) fn all_of_bytes(client: Client) -> Self {
        Self::begin(client, Some(LeftOfBytes(Left::All)))
    }
}

impl<K: ScanKey> Scan<K> {
    fn begin(client: Client, left: Option<K::Left>) -> Self {
        Self { client, left, most: FIRST, part: None, found: VecDeque::new() }
    }

    /// The next pair; `None` at the end. Dropping this future loses no pair.
    pub async fn next(&mut self) -> Option<Result<(K, Bytes), Error>> {
        poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// The next pair, if it was read already. `None` does not mean the end.
    pub fn next_ready(&mut self) -> Option<(K, Bytes)> {
        self.found.pop_front()
    }

    fn ask(&mut self, left: K::Left) {
        self.part = Some(K::ask(self.client.clone(), left, self.most));
    }

    fn poll_part(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let Some(part) = &mut self.part else { return Poll::Ready(Ok(())) };
        let Poll::Ready(done) = part.as_mut().poll(context) else { return Poll::Pending };
        self.part = None;
        let (pairs, rest) = match done {
            Ok(found) => found,
            Err(error) => return Poll::Ready(Err(error)),
        };
        self.left = rest;
        self.most = LONGEST.min(2 * self.most);
        self.found.extend(pairs);
        Poll::Ready(Ok(()))
    }
}

impl<K: ScanKey> Stream for Scan<K> {
    type Item = Result<(K, Bytes), Error>;

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
