//! The client of keys of bytes for asyncio, by coroutines as in `aio.rs`.

use std::sync::Arc;

use fatbtree::Bytes;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::aio::{SharedScan, bytes, close, next_part};
use crate::bytes_key::{BytesKey, Prefix, keys};
use crate::client::{Failures, failures, stats_of};
use crate::connection::Connection;
use crate::error::raised;
use crate::options::{Pairs, seconds};
use crate::wait::guarded;

/// A client of trees or a hash table whose keys are bytes, whose methods are coroutines.
#[pyclass(frozen, module = "fatbtree.aio")]
pub(crate) struct AsyncBytesClient {
    connection: Connection,
}

impl AsyncBytesClient {
    pub(crate) fn new(connection: Connection) -> Self {
        Self { connection }
    }

    fn open(&self) -> PyResult<fatbtree::BytesClient> {
        Ok(self.connection.open()?.bytes())
    }

    fn begin_scan(&self, range: fatbtree::BytesRange, backward: bool) -> PyResult<AsyncBytesScan> {
        Ok(AsyncBytesScan::of(self.open()?.scan_range(range, backward)))
    }
}

#[pymethods]
impl AsyncBytesClient {
    fn with_time_limit(&self, limit: f64) -> PyResult<Self> {
        self.connection.with_time_limit(seconds(limit)?).map(Self::new)
    }

    async fn get(&self, key: BytesKey) -> PyResult<Option<Py<PyBytes>>> {
        Ok(guarded(self.open()?.get(key)).await.map_err(raised)?.map(bytes))
    }

    async fn get_many(&self, keys: Vec<BytesKey>) -> PyResult<Vec<Option<Py<PyBytes>>>> {
        let found = guarded(self.open()?.get_many(keys)).await.map_err(raised)?;
        Ok(found.into_iter().map(|value| value.map(bytes)).collect())
    }

    async fn put_many(&self, pairs: Pairs<BytesKey>) -> PyResult<Failures> {
        let Pairs { keys, pairs, failed } = pairs;
        let results = guarded(self.open()?.put_many(pairs)).await.map_err(raised)?;
        Ok(failures(failed, keys, results))
    }

    // A coroutine's `()` would be an empty tuple.
    async fn put(&self, key: BytesKey, value: PyBackedBytes) -> PyResult<Option<()>> {
        guarded(self.open()?.put(key, value)).await.map(|()| None).map_err(raised)
    }

    async fn insert(&self, key: BytesKey, value: PyBackedBytes) -> PyResult<bool> {
        guarded(self.open()?.insert(key, value)).await.map_err(raised)
    }

    async fn update(&self, key: BytesKey, value: PyBackedBytes) -> PyResult<bool> {
        guarded(self.open()?.update(key, value)).await.map_err(raised)
    }

    async fn compare_and_swap(
        &self,
        key: BytesKey,
        expected: PyBackedBytes,
        value: PyBackedBytes,
    ) -> PyResult<bool> {
        guarded(self.open()?.compare_and_swap(key, expected, value)).await.map_err(raised)
    }

    async fn delete(&self, key: BytesKey) -> PyResult<bool> {
        guarded(self.open()?.delete(key)).await.map_err(raised)
    }

    #[pyo3(signature = (start=None, stop=None, backward=false))]
    fn scan(
        &self,
        start: Option<BytesKey>,
        stop: Option<BytesKey>,
        backward: bool,
    ) -> PyResult<AsyncBytesScan> {
        self.begin_scan(keys(start, stop), backward)
    }

    #[pyo3(signature = (prefix, backward=false))]
    fn scan_prefix(&self, prefix: Prefix, backward: bool) -> PyResult<AsyncBytesScan> {
        self.begin_scan(prefix.0, backward)
    }

    fn pairs(&self) -> PyResult<AsyncBytesScan> {
        Ok(AsyncBytesScan::of(self.open()?.pairs()))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        stats_of(py, self.connection.open()?.stats())
    }

    async fn close(&self) -> PyResult<Option<()>> {
        close(&self.connection).await;
        Ok(None)
    }
}

/// The pairs of a range of keys of bytes, or all, in parts.
#[pyclass(frozen, module = "fatbtree.aio")]
pub(crate) struct AsyncBytesScan {
    scan: SharedScan<Bytes>,
}

impl AsyncBytesScan {
    fn of(scan: fatbtree::Scan<Bytes>) -> Self {
        Self { scan: Arc::new(tokio::sync::Mutex::new(scan)) }
    }
}

#[pymethods]
impl AsyncBytesScan {
    /// The next pairs; an empty list at the end. A part ends early where an error is: the next call raises it.
    async fn next_part(&self) -> PyResult<Vec<(Py<PyBytes>, Py<PyBytes>)>> {
        next_part(Arc::clone(&self.scan), bytes).await
    }
}
