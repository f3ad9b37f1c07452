//! The blocking client.

use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::bytes_client::BytesClient;
use crate::connection::Connection;
use crate::error::raised;
use crate::options::{Arguments, Key, Pairs, Stop, keys, seconds};
use crate::transaction::Transaction;
use crate::wait::wait;

/// A connection to a cluster, whose methods wait; `connect` gives one. Any number of threads share it.
///
/// A context manager: it closes the connection at the end of its block.
#[pyclass(frozen, module = "fatbtree")]
pub(crate) struct Client {
    connection: Connection,
}

pub(crate) fn value(py: Python<'_>, bytes: Option<fatbtree::Bytes>) -> Option<Bound<'_, PyBytes>> {
    bytes.map(|bytes| PyBytes::new(py, &bytes))
}

/// What `put_many` gives back: the exception of each pair that was not put, by its key.
pub(crate) type Failures = Vec<(Py<PyAny>, PyErr)>;

/// Adds the pairs that were not put to those whose keys cannot be.
pub(crate) fn failures(
    mut failed: Failures,
    keys: Vec<Py<PyAny>>,
    results: Vec<Result<(), fatbtree::Error>>,
) -> Failures {
    let pairs = keys.into_iter().zip(results);
    failed.extend(pairs.filter_map(|(key, result)| Some((key, raised(result.err()?)))));
    failed
}

pub(crate) fn stats_of(py: Python<'_>, stats: fatbtree::Stats) -> PyResult<Bound<'_, PyAny>> {
    let dict = pyo3::types::PyDict::new(py);
    dict.set_item("reads", stats.reads)?;
    dict.set_item("changes", stats.changes)?;
    dict.set_item("scans", stats.scans)?;
    dict.set_item("failed", stats.failed)?;
    dict.set_item("unknown", stats.unknown)?;
    dict.set_item("seconds", stats.time.as_secs_f64())?;
    Ok(dict.into_any())
}

pub(crate) fn scan_of(
    client: &fatbtree::Client,
    keys: impl std::ops::RangeBounds<u64>,
    backward: bool,
) -> fatbtree::Scan {
    if backward { client.scan_backward(keys) } else { client.scan(keys) }
}

#[pymethods]
impl Client {
    #[new]
    fn new(py: Python<'_>, arguments: Arguments) -> PyResult<Self> {
        let options = arguments.try_into()?;
        let client = wait(py, fatbtree::Options::connect(options))?.map_err(raised)?;
        Ok(Self { connection: Connection::of(client) })
    }

    /// A client over the same connection, whose operations take at most so many seconds.
    fn with_time_limit(&self, limit: f64) -> PyResult<Self> {
        Ok(Self { connection: self.connection.with_time_limit(seconds(limit)?)? })
    }

    /// A client over the same connection to trees or a hash table whose keys are bytes.
    fn bytes(&self) -> PyResult<BytesClient> {
        self.connection.share().map(BytesClient::new)
    }

    /// The value of a key; None if the key is not there.
    fn get<'py>(&self, py: Python<'py>, key: Key) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(value(py, self.connection.run(py, async move |client| client.get(key.0).await)?))
    }

    /// The values of keys, in their order. Cheaper than a `get` each.
    fn get_many<'py>(&self, py: Python<'py>, keys: Vec<Key>) -> PyResult<Vec<Option<Bound<'py, PyBytes>>>> {
        let keys: Vec<u64> = keys.into_iter().map(|key| key.0).collect();
        let found = self.connection.run(py, async move |client| client.get_many(keys).await)?;
        Ok(found.into_iter().map(|bytes| value(py, bytes)).collect())
    }

    /// Puts a value, whether the key exists or not.
    fn put(&self, py: Python<'_>, key: Key, value: PyBackedBytes) -> PyResult<()> {
        self.connection.run(py, async move |client| client.put(key.0, &value).await)
    }

    /// Puts many pairs of key and value, in no certain order. Returns a list of those that failed: key and exception.
    fn put_many(&self, py: Python<'_>, pairs: Pairs<Key>) -> PyResult<Failures> {
        let Pairs { keys, pairs, failed } = pairs;
        let pairs = pairs.into_iter().map(|(Key(key), value)| (key, value));
        Ok(failures(failed, keys, self.connection.run(py, async move |client| client.put_many(pairs).await)?))
    }

    /// Puts a value if the key does not exist, and returns whether it was put. Not with `protocol="query"`.
    fn insert(&self, py: Python<'_>, key: Key, value: PyBackedBytes) -> PyResult<bool> {
        self.connection.run(py, async move |client| client.insert(key.0, &value).await)
    }

    /// Replaces the value if the key exists, and returns whether it did.
    fn update(&self, py: Python<'_>, key: Key, value: PyBackedBytes) -> PyResult<bool> {
        self.connection.run(py, async move |client| client.update(key.0, &value).await)
    }

    /// Replaces the value if it is `expected`, and returns whether it was. Not with `protocol="query"`.
    fn compare_and_swap(
        &self,
        py: Python<'_>,
        key: Key,
        expected: PyBackedBytes,
        value: PyBackedBytes,
    ) -> PyResult<bool> {
        self.connection.run(py, async move |client| client.compare_and_swap(key.0, &expected, &value).await)
    }

    /// Deletes a key, and returns whether it existed.
    fn delete(&self, py: Python<'_>, key: Key) -> PyResult<bool> {
        self.connection.run(py, async move |client| client.delete(key.0).await)
    }

    /// The pairs with keys from `start` up to, but without, `stop`, in ascending or descending order.
    #[pyo3(signature = (start=Key(0), stop=None, backward=false))]
    fn scan(&self, start: Key, stop: Option<Stop>, backward: bool) -> PyResult<Scan> {
        let scan = scan_of(&self.connection.open()?, keys(start, stop), backward);
        Ok(Scan { scan: tokio::sync::Mutex::new(scan) })
    }

    /// All pairs, in ascending order, or in no order where the structure has none, as a hash table.
    fn pairs(&self) -> PyResult<Scan> {
        Ok(Scan { scan: tokio::sync::Mutex::new(self.connection.open()?.pairs()) })
    }

    /// Begins a transaction. Raises UnsupportedError where there are none.
    fn begin(&self, py: Python<'_>) -> PyResult<Transaction> {
        self.connection.run(py, async move |client| client.begin().await).map(Transaction::new)
    }

    /// Calls `work(transaction)` and commits, again after each ConflictError, as long as the time limit lasts. Returns what `work` has
    /// returned. After an exception of `work` the transaction is aborted. What `work` does besides must bear to be done again.
    fn transact<'py>(&self, py: Python<'py>, work: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        Transaction::run(py, &self.connection.open()?, work)
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

/// Iterator over the pairs of a range of keys, or all: tuples of key and value. It is no snapshot of one moment: a key that is there
/// throughout is in it once, and no key is in it twice.
#[pyclass(frozen, module = "fatbtree")]
pub(crate) struct Scan {
    scan: tokio::sync::Mutex<fatbtree::Scan>,
}

#[pymethods]
impl Scan {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<(u64, Bound<'py, PyBytes>)>> {
        next_of(py, &self.scan)
    }
}

/// The next pair of a scan, waited for.
pub(crate) fn next_of<'py, K: fatbtree::ScanKey>(
    py: Python<'py>,
    scan: &tokio::sync::Mutex<fatbtree::Scan<K>>,
) -> PyResult<Option<(K, Bound<'py, PyBytes>)>> {
    // Another thread may be within.
    let next = wait(py, async { scan.lock().await.next().await })?;
    let pair = next.transpose().map_err(raised)?;
    Ok(pair.map(|(key, bytes)| (key, PyBytes::new(py, &bytes))))
}
