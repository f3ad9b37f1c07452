//! The client for asyncio. Each coroutine is a future of the client library, which may be dropped at any `await`: a task may be cancelled.

use std::sync::Arc;

use fatbtree::Options;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::aio_bytes::AsyncBytesClient;
use crate::client::{Failures, failures, scan_of, stats_of};
use crate::connection::Connection;
use crate::error::raised;
use crate::options::{Arguments, Key, Pairs, Stop, keys, seconds};
use crate::transaction::{AsyncAttempts, AsyncTransaction};
use crate::wait::guarded;

/// A connection to a cluster, whose methods are coroutines.
#[pyclass(frozen, module = "fatbtree.aio")]
pub(crate) struct AsyncClient {
    connection: Connection,
}

/// Pairs of a scan that are handed to Python at once.
const PART: usize = 256;

pub(crate) fn bytes(value: fatbtree::Bytes) -> Py<PyBytes> {
    Python::attach(|py| PyBytes::new(py, &value).unbind())
}

#[pymethods]
impl AsyncClient {
    #[staticmethod]
    async fn connect(arguments: Arguments) -> PyResult<Self> {
        let options: Options = arguments.try_into()?;
        let client = guarded(options.connect()).await.map_err(raised)?;
        Ok(Self { connection: Connection::of(client) })
    }

    fn with_time_limit(&self, limit: f64) -> PyResult<Self> {
        Ok(Self { connection: self.connection.with_time_limit(seconds(limit)?)? })
    }

    fn bytes(&self) -> PyResult<AsyncBytesClient> {
        self.connection.share().map(AsyncBytesClient::new)
    }

    async fn get(&self, key: Key) -> PyResult<Option<Py<PyBytes>>> {
        Ok(guarded(self.connection.open()?.get(key.0)).await.map_err(raised)?.map(bytes))
    }

    async fn get_many(&self, keys: Vec<Key>) -> PyResult<Vec<Option<Py<PyBytes>>>> {
        let keys: Vec<u64> = keys.into_iter().map(|key| key.0).collect();
        let found = guarded(self.connection.open()?.get_many(keys)).await.map_err(raised)?;
        Ok(found.into_iter().map(|value| value.map(bytes)).collect())
    }

    // A coroutine's `()` would be an empty tuple.
    async fn put(&self, key: Key, value: PyBackedBytes) -> PyResult<Option<()>> {
        guarded(self.connection.open()?.put(key.0, value)).await.map(|()| None).map_err(raised)
    }

    async fn put_many(&self, pairs: Pairs<Key>) -> PyResult<Failures> {
        let Pairs { keys, pairs, failed } = pairs;
        let pairs = pairs.into_iter().map(|(Key(key), value)| (key, value));
        Ok(failures(failed, keys, guarded(self.connection.open()?.put_many(pairs)).await.map_err(raised)?))
    }

    async fn insert(&self, key: Key, value: PyBackedBytes) -> PyResult<bool> {
        guarded(self.connection.open()?.insert(key.0, value)).await.map_err(raised)
    }

    async fn update(&self, key: Key, value: PyBackedBytes) -> PyResult<bool> {
        guarded(self.connection.open()?.update(key.0, value)).await.map_err(raised)
    }

    async fn compare_and_swap(
        &self,
        key: Key,
        expected: PyBackedBytes,
        value: PyBackedBytes,
    ) -> PyResult<bool> {
        guarded(self.connection.open()?.compare_and_swap(key.0, expected, value)).await.map_err(raised)
    }

    async fn delete(&self, key: Key) -> PyResult<bool> {
        guarded(self.connection.open()?.delete(key.0)).await.map_err(raised)
    }

    #[pyo3(signature = (start=Key(0), stop=None, backward=false))]
    fn scan(&self, start: Key, stop: Option<Stop>, backward: bool) -> PyResult<AsyncScan> {
        let scan = scan_of(&self.connection.open()?, keys(start, stop), backward);
        Ok(AsyncScan { scan: Arc::new(tokio::sync::Mutex::new(scan)) })
    }

    fn pairs(&self) -> PyResult<AsyncScan> {
        Ok(AsyncScan { scan: Arc::new(tokio::sync::Mutex::new(self.connection.open()?.pairs())) })
    }

    async fn begin(&self) -> PyResult<AsyncTransaction> {
        guarded(self.connection.open()?.begin()).await.map(AsyncTransaction::new).map_err(raised)
    }

    fn attempts(&self) -> PyResult<AsyncAttempts> {
        Ok(AsyncAttempts::new(&self.connection.open()?))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        stats_of(py, self.connection.open()?.stats())
    }

    async fn close(&self) -> PyResult<Option<()>> {
        close(&self.connection).await;
        Ok(None)
    }
}

/// The pairs of a range of keys, or all, in parts.
#[pyclass(frozen, module = "fatbtree.aio")]
pub(crate) struct AsyncScan {
    scan: SharedScan<u64>,
}

#[pymethods]
impl AsyncScan {
    /// The next pairs; an empty list at the end. A part ends early where an error is: the next call raises it.
    async fn next_part(&self) -> PyResult<Vec<(u64, Py<PyBytes>)>> {
        next_part(Arc::clone(&self.scan), |key| key).await
    }
}

/// Closes a client.
pub(crate) async fn close(connection: &Connection) {
    if let Some(client) = connection.take() {
        guarded(client.close()).await;
    }
}

/// A scan that coroutines share.
pub(crate) type SharedScan<K> = Arc<tokio::sync::Mutex<fatbtree::Scan<K>>>;

/// The next pairs of a scan, with keys as Python has them.
pub(crate) async fn next_part<K: fatbtree::ScanKey, P>(
    scan: SharedScan<K>,
    key_of: impl Fn(K) -> P + Send,
) -> PyResult<Vec<(P, Py<PyBytes>)>> {
    let mut scan = scan.lock_owned().await;
    let Some(first) = guarded(scan.next()).await else { return Ok(Vec::new()) };
    let (key, value) = first.map_err(raised)?;
    let mut pairs = vec![(key_of(key), bytes(value))];
    // Those that are here already: nothing is lost if the task is cancelled, as there is no further `await`.
    while pairs.len() < PART
        && let Some((key, value)) = scan.next_ready()
    {
        pairs.push((key_of(key), bytes(value)));
    }
    Ok(pairs)
}
