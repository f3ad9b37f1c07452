//! The blocking client of keys of bytes.

use fatbtree::Bytes;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::bytes_key::{BytesKey, Prefix, keys};
use crate::client::{Failures, failures, next_of, stats_of, value};
use crate::connection::Connection;
use crate::options::{Pairs, seconds};

/// A client of trees or a hash table whose keys are bytes, whose methods wait; `Client.bytes` gives one. Any number of threads share it.
///
/// Keys are `bytes`, `str` (its UTF-8), or a tuple as of `encode_key`, of up to 4,096 bytes. What is read are `bytes`.
///
/// A context manager: it closes the connection at the end of its block.
#[pyclass(frozen, module = "fatbtree")]
pub(crate) struct BytesClient {
    connection: Connection,
}

impl BytesClient {
    pub(crate) fn new(connection: Connection) -> Self {
        Self { connection }
    }

    /// Runs an operation without the interpreter's lock.
    fn run<T: Send, F: Future<Output = Result<T, fatbtree::Error>> + Send>(
        &self,
        py: Python<'_>,
        operation: impl FnOnce(fatbtree::BytesClient) -> F,
    ) -> PyResult<T> {
        self.connection.run(py, |client| operation(client.bytes()))
    }

    fn begin_scan(&self, range: fatbtree::BytesRange, backward: bool) -> PyResult<BytesScan> {
        Ok(BytesScan::of(self.connection.open()?.bytes().scan_range(range, backward)))
    }
}

#[pymethods]
impl BytesClient {
    /// A client over the same connection, whose operations take at most so many seconds.
    fn with_time_limit(&self, limit: f64) -> PyResult<Self> {
        self.connection.with_time_limit(seconds(limit)?).map(Self::new)
    }

    /// The value of a key; None if the key is not there.
    fn get<'py>(&self, py: Python<'py>, key: BytesKey) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(value(py, self.run(py, async move |client| client.get(key).await)?))
    }

    /// The values of keys, in their order. Cheaper than a `get` each.
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<BytesKey>,
    ) -> PyResult<Vec<Option<Bound<'py, PyBytes>>>> {
        let found = self.run(py, async move |client| client.get_many(keys).await)?;
        Ok(found.into_iter().map(|bytes| value(py, bytes)).collect())
    }

    /// Puts many pairs of key and value, in no certain order. Returns a list of those that failed: key and exception.
    fn put_many(&self, py: Python<'_>, pairs: Pairs<BytesKey>) -> PyResult<Failures> {
        let Pairs { keys, pairs, failed } = pairs;
        let results = self.run(py, async move |client| client.put_many(pairs).await)?;
        Ok(failures(failed, keys, results))
    }

    /// Puts a value, whether the key exists or not.
    fn put(&self, py: Python<'_>, key: BytesKey, value: PyBackedBytes) -> PyResult<()> {
        self.run(py, async move |client| client.put(key, &value).await)
    }

    /// Puts a value if the key does not exist, and returns whether it was put.
    fn insert(&self, py: Python<'_>, key: BytesKey, value: PyBackedBytes) -> PyResult<bool> {
        self.run(py, async move |client| client.insert(key, &value).await)
    }

    /// Replaces the value if the key exists, and returns whether it did.
    fn update(&self, py: Python<'_>, key: BytesKey, value: PyBackedBytes) -> PyResult<bool> {
        self.run(py, async move |client| client.update(key, &value).await)
    }

    /// Replaces the value if it is `expected`, and returns whether it was.
    fn compare_and_swap(
        &self,
        py: Python<'_>,
        key: BytesKey,
        expected: PyBackedBytes,
        value: PyBackedBytes,
    ) -> PyResult<bool> {
        self.run(py, async move |client| client.compare_and_swap(key, &expected, &value).await)
    }

    /// Deletes a key, and returns whether it existed.
    fn delete(&self, py: Python<'_>, key: BytesKey) -> PyResult<bool> {
        self.run(py, async move |client| client.delete(key).await)
    }

    /// The pairs with keys from `start` up to, but without, `stop`, in ascending or descending order.
    #[pyo3(signature = (start=None, stop=None, backward=false))]
    fn scan(&self, start: Option<BytesKey>, stop: Option<BytesKey>, backward: bool) -> PyResult<BytesScan> {
        self.begin_scan(keys(start, stop), backward)
    }

    /// The pairs with keys that begin with these bytes or this text, or with tuples that begin with this one.
    #[pyo3(signature = (prefix, backward=false))]
    fn scan_prefix(&self, prefix: Prefix, backward: bool) -> PyResult<BytesScan> {
        self.begin_scan(prefix.0, backward)
    }

    /// All pairs, in ascending order, or in no order where the structure has none, as a hash table.
    fn pairs(&self) -> PyResult<BytesScan> {
        Ok(BytesScan::of(self.connection.open()?.bytes().pairs()))
    }

    /// Operations so far, by their results, and their time in seconds.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        stats_of(py, self.connection.open()?.stats())
    }

    /// Ends the connection, and waits for its end.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.connection.close(py)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _kind: Py<PyAny>,
        _raised: Py<PyAny>,
        _trace: Py<PyAny>,
    ) -> PyResult<()> {
        self.close(py)
    }
}

/// Iterator over the pairs of a range of keys of bytes, or all: tuples of key and value. It is no snapshot of one moment: a key that is there
/// throughout is in it once, and no key is in it twice.
#[pyclass(frozen, module = "fatbtree")]
pub(crate) struct BytesScan {
    scan: tokio::sync::Mutex<fatbtree::Scan<Bytes>>,
}

impl BytesScan {
    fn of(scan: fatbtree::Scan<Bytes>) -> Self {
        Self { scan: tokio::sync::Mutex::new(scan) }
    }
}

#[pymethods]
impl BytesScan {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)>> {
        let pair = next_of(py, &self.scan)?;
        Ok(pair.map(|(key, value)| (PyBytes::new(py, &key), value)))
    }
}
