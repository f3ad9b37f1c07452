//! The client's handle to trees or a hash table whose keys are bytes.

use std::ops::RangeBounds;

use bytes::Bytes;
use fatbtree_remote_memory::{BytesRange, Order};

use crate::engine::Change;
use crate::scan::Scan;
use crate::service::Ask;
use crate::{Client, Error};

/// A [`Client`] of trees whose keys are byte strings, of up to 4,096 bytes, in their order: names, URLs, composite keys; or of a hash table
/// with such keys. From [`Client::bytes`].
///
/// Keys of several elements, such as a user's number and a time, are [tuples](crate::tuple).
///
/// Both are loaded with `fatbtree load --key-type bytes`. Operations end with an error that says so where keys are numbers. A hash table has
/// no order of keys: scans of it are refused, and [`pairs`](Self::pairs) gives all.
///
/// ```no_run
/// # async fn example() -> Result<(), fatbtree::Error> {
/// let names = fatbtree::connect("cluster.toml").await?.bytes();
/// names.put("user:4711", "Ada").await?;
/// assert_eq!(names.get("user:4711").await?.as_deref(), Some(&b"Ada"[..]));
/// let mut users = names.scan_prefix("user:");
/// while let Some(pair) = users.next().await {
///     let (name, value) = pair?;
///     println!("{name:?} {value:?}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct BytesClient(pub(crate) Client);

impl BytesClient {
    async fn change(&self, key: impl AsRef<[u8]>, change: Change) -> Result<bool, Error> {
        let key = Bytes::copy_from_slice(key.as_ref());
        self.0.ask(true, |answer| Ask::ChangeBytes(key, change, answer)).await
    }

    /// The value of a key; `None` if the key is not there.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Bytes>, Error> {
        let key = Bytes::copy_from_slice(key.as_ref());
        self.0.ask(false, |answer| Ask::GetBytes(key, answer)).await
    }

    /// The values of keys, in their order. Cheaper than a [`get`](Self::get) each.
    ///
    /// # Errors
    /// When one of them has no answer.
    pub async fn get_many<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Result<Vec<Option<Bytes>>, Error> {
        let keys = keys.into_iter().map(|key| Bytes::copy_from_slice(key.as_ref())).collect();
        self.0.ask(false, |answer| Ask::GetManyBytes(keys, answer)).await
    }

    /// Puts many values, in no certain order, and returns the result of each. Cheaper than a [`put`](Self::put) each.
    ///
    /// # Errors
    /// When the client is closed; the result of each pair is in the vector.
    pub async fn put_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &self,
        pairs: impl IntoIterator<Item = (K, V)>,
    ) -> Result<Vec<Result<(), Error>>, Error> {
        let copy = |(key, value): (K, V)| {
            (Bytes::copy_from_slice(key.as_ref()), Bytes::copy_from_slice(value.as_ref()))
        };
        let pairs = pairs.into_iter().map(copy).collect();
        self.0.ask(true, |answer| Ask::PutManyBytes(pairs, answer)).await
    }

    /// Puts a value, whether the key exists or not.
    ///
    /// # Errors
    /// When the value was not put, or [may have been](Error::may_have_happened).
    pub async fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<(), Error> {
        let value = Bytes::copy_from_slice(value.as_ref());
        self.change(key, Change::Put(value)).await.map(drop)
    }

    /// Puts a value if the key does not exist, and returns whether it was put.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub async fn insert(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool, Error> {
        let value = Bytes::copy_from_slice(value.as_ref());
        self.change(key, Change::Insert(value)).await
    }

    /// Replaces the value if the key exists, and returns whether it did.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub async fn update(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<bool, Error> {
        let value = Bytes::copy_from_slice(value.as_ref());
        self.change(key, Change::Update(value)).await
    }

    /// Replaces the value if it is `expected`, and returns whether it was.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub async fn compare_and_swap(
        &self,
        key: impl AsRef<[u8]>,
        expected: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
    ) -> Result<bool, Error> {
        let [expected, value] = [expected.as_ref(), value.as_ref()].map(Bytes::copy_from_slice);
        self.change(key, Change::CompareAndSwap { expected, value }).await
    }

    /// Deletes a key, and returns whether it existed.
    ///
    /// # Errors
    /// As for [`put`](Self::put).
    pub async fn delete(&self, key: impl AsRef<[u8]>) -> Result<bool, Error> {
        self.change(key, Change::Delete).await
    }

    /// The pairs of a range of keys in ascending order, as a stream.
    pub fn scan<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Scan<Bytes> {
        Scan::of_bytes(self.0.clone(), BytesRange::of(range), Order::Forward)
    }

    /// The pairs of a range of keys in descending order, as a stream: the last ones first.
    pub fn scan_backward<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Scan<Bytes> {
        Scan::of_bytes(self.0.clone(), BytesRange::of(range), Order::Backward)
    }

    /// The pairs of all keys that begin with these bytes, in ascending order, as a stream.
    pub fn scan_prefix(&self, prefix: impl AsRef<[u8]>) -> Scan<Bytes> {
        Scan::of_bytes(self.0.clone(), BytesRange::prefix(prefix.as_ref()), Order::Forward)
    }

    /// The pairs of a range of keys, as a stream, in descending order if `backward`.
    pub fn scan_range(&self, range: BytesRange, backward: bool) -> Scan<Bytes> {
        let order = if backward { Order::Backward } else { Order::Forward };
        Scan::of_bytes(self.0.clone(), range, order)
    }

    /// All pairs, as a stream: those of trees in ascending order of keys, those of a hash table in no order.
    pub fn pairs(&self) -> Scan<Bytes> {
        Scan::all_of_bytes(self.0.clone())
    }

    /// The client.
    pub fn client(&self) -> &Client {
        &self.0
    }
}
