//! Blocking client, for threads that wait: no executor is needed.
//!
//! ```no_run
//! let db = fatbtree::blocking::connect("cluster.toml")?;
//! db.put(1, b"x")?;
//! assert_eq!(db.get(1)?.as_deref(), Some(&b"x"[..]));
//! for pair in db.scan(10..20) {
//!     let (key, value) = pair?;
//!     println!("{key}: {} bytes", value.len());
//! }
//! # Ok::<(), fatbtree::Error>(())
//! ```

use std::ops::RangeBounds;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake};
use std::thread::Thread;
use std::time::Duration;

use bytes::Bytes;

use crate::transaction::{Attempts, Item};
use crate::{BytesRange, Error, Options, ScanKey, Stats};

/// Wakes a thread that is parked.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread, which sleeps while the future waits.
fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Connects to a cluster, as [`fatbtree::connect`](crate::connect).
///
/// # Errors
/// As for [`Options::connect`].
pub fn connect(cluster_file: impl Into<PathBuf>) -> Result<Client, Error> {
    Client::connect(Options::new(cluster_file))
}

/// A [`Client`](crate::Client) whose methods wait.
#[derive(Clone, Debug)]
pub struct Client(crate::Client);

impl From<crate::Client> for Client {
    fn from(client: crate::Client) -> Self {
        Self(client)
    }
}

impl Client {
    /// Connects with these options.
    ///
    /// # Errors
    /// As for [`Options::connect`].
    pub fn connect(options: Options) -> Result<Self, Error> {
        block_on(options.connect()).map(Self)
    }

    /// The asynchronous client over the same connection.
    pub fn as_async(&self) -> &crate::Client {
        &self.0
    }

    /// See [`bytes`](crate::Client::bytes).
    #[must_use]
    pub fn bytes(&self) -> BytesClient {
        BytesClient(self.0.bytes())
    }

    /// See [`with_time_limit`](crate::Client::with_time_limit).
    #[must_use]
    pub fn with_time_limit(&self, limit: Duration) -> Self {
        Self(self.0.with_time_limit(limit))
    }

    /// See [`get`](crate::Client::get).
    ///
    /// # Errors
    /// When there is no answer.
    pub fn get(&self, key: u64) -> Result<Option<Bytes>, Error> {
        block_on(self.0.get(key))
    }

    /// See [`get_many`](crate::Client::get_many).
    ///
    /// # Errors
    /// When one of the keys has no answer.
    pub fn get_many(&self, keys: impl IntoIterator<Item = u64>) -> Result<Vec<Option<Bytes>>, Error> {
        block_on(self.0.get_many(keys))
    }

    /// See [`put`](crate::Client::put).
    ///
    /// # Errors
    /// When the value was not put, or [may have been](Error::may_have_happened).
    pub fn put(&self, key: u64, value: impl AsRef<[u8]>) -> Result<(), Error> {
        block_on(self.0.put(key, value))
    }

    /// See [`put_many`](crate::Client::put_many).
    ///
    /// # Errors
    /// When the client is closed.
    pub fn put_many<V: AsRef<[u8]>>(
        &self,
        pairs: impl IntoIterator<Item = (u64, V)>,
    ) -> Result<Vec<Result<(), Error>>, Error> {
        block_on(self.0.put_many(pairs))
    }

    /// See [`insert`](crate::Client::insert).
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn insert(&self, key: u64, value: impl AsRef<[u8]>) -> Result<bool, Error> {
        block_on(self.0.insert(key, value))
    }

    /// See [`update`](crate::Client::update).
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn update(&self, key: u64, value: impl AsRef<[u8]>) -> Result<bool, Error> {
        block_on(self.0.update(key, value))
    }

    /// See [`compare_and_swap`](crate::Client::compare_and_swap).
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn compare_and_swap(
        &self,
        key: u64,
        expected: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<bool, Error> {
        block_on(self.0.compare_and_swap(key, expected, value))
    }

    /// See [`delete`](crate::Client::delete).
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn delete(&self, key: u64) -> Result<bool, Error> {
        block_on(self.0.delete(key))
    }

    /// See [`scan`](crate::Client::scan).
    pub fn scan(&self, range: impl RangeBounds<u64>) -> Scan {
        Scan(self.0.scan(range))
    }

    /// See [`scan_backward`](crate::Client::scan_backward).
    pub fn scan_backward(&self, range: impl RangeBounds<u64>) -> Scan {
        Scan(self.0.scan_backward(range))
    }

    /// See [`pairs`](crate::Client::pairs).
    pub fn pairs(&self) -> Scan {
        Scan(self.0.pairs())
    }

    /// See [`begin`](crate::Client::begin).
    ///
    /// # Errors
    /// As for [`Client::begin`](crate::Client::begin).
    pub fn begin(&self) -> Result<Transaction, Error> {
        block_on(self.0.begin()).map(Transaction)
    }

    /// See [`transact`](crate::Client::transact).
    ///
    /// ```no_run
    /// # fn run(db: &fatbtree::blocking::Client) -> Result<(), fatbtree::Error> {
    /// db.transact(|tx| {
    ///     let found = tx.get_many_for_update([1, 2])?;
    ///     let [Some(one), Some(two)] = &found[..] else { return Ok(()) };
    ///     tx.put(1, two)?;
    ///     tx.put(2, one)
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of `work`, and of [`Transaction::commit`].
    pub fn transact<T>(
        &self,
        mut work: impl FnMut(&mut Transaction) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut attempts = Attempts::new(&self.0);
        loop {
            let mut tx = Transaction(block_on(attempts.begin())?);
            let result = work(&mut tx);
            if let Some(result) = block_on(attempts.end(tx.0, result)) {
                return result;
            }
        }
    }

    /// See [`stats`](crate::Client::stats).
    pub fn stats(&self) -> Stats {
        self.0.stats()
    }

    /// See [`close`](crate::Client::close).
    pub fn close(self) {
        block_on(self.0.close());
    }
}

/// A [`BytesClient`](crate::BytesClient) whose methods wait.
#[derive(Clone, Debug)]
pub struct BytesClient(crate::BytesClient);

impl BytesClient {
    /// See [`get`](crate::BytesClient::get).
    ///
    /// # Errors
    /// When there is no answer.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>, Error> {
        block_on(self.0.get(key))
    }

    /// See [`get_many`](crate::BytesClient::get_many).
    ///
    /// # Errors
    /// When one of the keys has no answer.
    pub fn get_many<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Bytes>>, Error> {
        block_on(self.0.get_many(keys))
    }

    /// See [`put_many`](crate::BytesClient::put_many).
    ///
    /// # Errors
    /// When the client is closed.
    pub fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Vec<Result<(), Error>>, Error> {
        block_on(self.0.put_many(pairs))
    }

    /// See [`put`](crate::BytesClient::put).
    ///
    /// # Errors
    /// When the value was not put, or [may have been](Error::may_have_happened).
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<(), Error> {
        block_on(self.0.put(key, value))
    }

    /// See [`insert`](crate::BytesClient::insert).
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool, Error> {
        block_on(self.0.insert(key, value))
    }

    /// See [`update`](crate::BytesClient::update).
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn update(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool, Error> {
        block_on(self.0.update(key, value))
    }

    /// See [`compare_and_swap`](crate::BytesClient::compare_and_swap).
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn compare_and_swap(
        &self,
        key: impl AsRef<[u8]>,
        expected: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<bool, Error> {
        block_on(self.0.compare_and_swap(key, expected, value))
    }

    /// See [`delete`](crate::BytesClient::delete).
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        block_on(self.0.delete(key))
    }

    /// See [`scan`](crate::BytesClient::scan).
    pub fn scan<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Scan<Bytes> {
        Scan(self.0.scan(range))
    }

    /// See [`scan_backward`](crate::BytesClient::scan_backward).
    pub fn scan_backward<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Scan<Bytes> {
        Scan(self.0.scan_backward(range))
    }

    /// See [`scan_prefix`](crate::BytesClient::scan_prefix).
    pub fn scan_prefix(&self, prefix: impl AsRef<[u8]>) -> Scan<Bytes> {
        Scan(self.0.scan_prefix(prefix))
    }

    /// See [`scan_range`](crate::BytesClient::scan_range).
    pub fn scan_range(&self, range: BytesRange, backward: bool) -> Scan<Bytes> {
        Scan(self.0.scan_range(range, backward))
    }

    /// See [`pairs`](crate::BytesClient::pairs).
    pub fn pairs(&self) -> Scan<Bytes> {
        Scan(self.0.pairs())
    }
}

/// Pairs, of a range of keys or all, as an iterator that waits.
#[derive(Debug)]
pub struct Scan<K: ScanKey = u64>(crate::Scan<K>);

impl<K: ScanKey> Iterator for Scan<K> {
    type Item = Result<(K, Bytes), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        block_on(self.0.next())
    }
}

/// A [`Transaction`](crate::Transaction) whose methods wait.
#[derive(Debug)]
pub struct Transaction(crate::Transaction);

impl Transaction {
    /// See [`get`](crate::Transaction::get).
    ///
    /// # Errors
    /// As of [`get`](crate::Transaction::get), like all others.
    pub fn get(&mut self, item: impl Into<Item>) -> Result<Option<Bytes>, Error> {
        block_on(self.0.get(item))
    }

    /// See [`get_many`](crate::Transaction::get_many).
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn get_many(
        &mut self,
        items: impl IntoIterator<Item = impl Into<Item>>,
    ) -> Result<Vec<Option<Bytes>>, Error> {
        block_on(self.0.get_many(items))
    }

    /// See [`get_for_update`](crate::Transaction::get_for_update).
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn get_for_update(&mut self, item: impl Into<Item>) -> Result<Option<Bytes>, Error> {
        block_on(self.0.get_for_update(item))
    }

    /// See [`get_many_for_update`](crate::Transaction::get_many_for_update).
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn get_many_for_update(
        &mut self,
        items: impl IntoIterator<Item = impl Into<Item>>,
    ) -> Result<Vec<Option<Bytes>>, Error> {
        block_on(self.0.get_many_for_update(items))
    }

    /// See [`put`](crate::Transaction::put).
    ///
    /// # Errors
    /// As for [`get`](Self::get); and when the value is too long.
    pub fn put(&mut self, item: impl Into<Item>, value: impl AsRef<[u8]>) -> Result<(), Error> {
        block_on(self.0.put(item, value))
    }

    /// See [`insert`](crate::Transaction::insert).
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub fn insert(&mut self, item: impl Into<Item>, value: impl AsRef<[u8]>) -> Result<bool, Error> {
        block_on(self.0.insert(item, value))
    }

    /// See [`delete`](crate::Transaction::delete).
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub fn delete(&mut self, item: impl Into<Item>) -> Result<bool, Error> {
        block_on(self.0.delete(item))
    }

    /// See [`commit`](crate::Transaction::commit).
    ///
    /// # Errors
    /// As of [`commit`](crate::Transaction::commit).
    pub fn commit(self) -> Result<(), Error> {
        block_on(self.0.commit())
    }

    /// See [`abort`](crate::Transaction::abort).
    ///
    /// # Errors
    /// As of [`abort`](crate::Transaction::abort).
    pub fn abort(self) -> Result<(), Error> {
        block_on(self.0.abort())
    }
}
