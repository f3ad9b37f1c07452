//! The blocking client.

use std::sync::{Mutex, PoisonError};

use fatbtree::blocking;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::error::raised;
use crate::options::{Arguments, keys, seconds};

/// A connection to a cluster, whose methods wait.
#[pyclass(frozen, module = "fatbtree")]
pub(crate) struct Client {
    /// `None` when it was closed.
    client: Mutex<Option<blocking::Client>>,
}

pub(crate) fn value(py: Python<'_>, bytes: Option<fatbtree::Bytes>) -> Option<Bound<'_, PyBytes>> {
    bytes.map(|bytes| PyBytes::new(py, &bytes))
}

/// What `put_many` gives back: the exception of each pair that was not put, by its key.
pub(crate) type Failures = Vec<(u64, PyErr)>;

pub(crate) fn failures(keys: Vec<u64>, results: Vec<Result<(), fatbtree::Error>>) -> Failures {
    let pairs = keys.into_iter().zip(results);
    pairs.filter_map(|(key, result)| Some((key, raised(result.err()?)))).collect()
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

impl Client {
    /// The connection, for one operation.
    fn open(&self) -> PyResult<blocking::Client> {
        let client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        client
            .clone()
            .ok_or_else(|| crate::error::ClosedError::new_err("the client is closed; connect again"))
    }

    /// Runs an operation without the interpreter's lock.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        operation: impl FnOnce(&blocking::Client) -> Result<T, fatbtree::Error> + Send,
    ) -> PyResult<T> {
        let client = self.open()?;
        py.detach(|| operation(&client)).map_err(raised)
    }
}

#[pymethods]
impl Client {
    #[new]
    fn new(py: Python<'_>, arguments: Arguments) -> PyResult<Self> {
        let options = arguments.try_into()?;
        let client = py.detach(|| blocking::Client::connect(options)).map_err(raised)?;
        Ok(Self { client: Mutex::new(Some(client)) })
    }

    fn with_time_limit(&self, limit: f64) -> PyResult<Self> {
        let client = self.open()?.with_time_limit(seconds(limit)?);
        Ok(Self { client: Mutex::new(Some(client)) })
    }

    fn get<'py>(&self, py: Python<'py>, key: u64) -> PyResult<Option<Bound<'py, PyBytes>>> {
        Ok(value(py, self.run(py, |client| client.get(key))?))
    }

    fn get_many<'py>(&self, py: Python<'py>, keys: Vec<u64>) -> PyResult<Vec<Option<Bound<'py, PyBytes>>>> {
        let found = self.run(py, |client| client.get_many(keys))?;
        Ok(found.into_iter().map(|bytes| value(py, bytes)).collect())
    }

    fn put(&self, py: Python<'_>, key: u64, value: PyBackedBytes) -> PyResult<()> {
        self.run(py, |client| client.put(key, &value))
    }

    fn put_many(&self, py: Python<'_>, pairs: Vec<(u64, PyBackedBytes)>) -> PyResult<Failures> {
        let keys = pairs.iter().map(|(key, _)| *key).collect();
        Ok(failures(keys, self.run(py, |client| client.put_many(pairs))?))
    }

    fn insert(&self, py: Python<'_>, key: u64, value: PyBackedBytes) -> PyResult<bool> {
        self.run(py, |client| client.insert(key, &value))
    }

    fn update(&self, py: Python<'_>, key: u64, value: PyBackedBytes) -> PyResult<bool> {
        self.run(py, |client| client.update(key, &value))
    }

    fn compare_and_swap(
        &self,
        py: Python<'_>,
        key: u64,
        expected: PyBackedBytes,
        value: PyBackedBytes,
    ) -> PyResult<bool> {
        self.run(py, |client| client.compare_and_swap(key, &expected, &value))
    }

    fn delete(&self, py: Python<'_>, key: u64) -> PyResult<bool> {
        self.run(py, |client| client.delete(key))
    }

    #[pyo3(signature = (start=0, stop=None))]
    fn scan(&self, start: u64, stop: Option<u64>) -> PyResult<Scan> {
        Ok(Scan { scan: Mutex::new(self.open()?.scan(keys(start, stop))) })
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        stats_of(py, self.open()?.stats())
    }

    fn close(&self, py: Python<'_>) {
        let client = self.client.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(client) = client {
            py.detach(|| client.close());
        }
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(&self, py: Python<'_>, _kind: Py<PyAny>, _raised: Py<PyAny>, _trace: Py<PyAny>) {
        self.close(py);
    }
}

/// Iterator over the pairs of a range of keys.
#[pyclass(frozen, module = "fatbtree")]
pub(crate) struct Scan {
    scan: Mutex<blocking::Scan>,
}

#[pymethods]
impl Scan {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<(u64, Bound<'py, PyBytes>)>> {
        // The lock is taken without the interpreter's: another thread may be within.
        let next = py.detach(|| self.scan.lock().unwrap_or_else(PoisonError::into_inner).next());
        let pair = next.transpose().map_err(raised)?;
        Ok(pair.map(|(key, bytes)| (key, PyBytes::new(py, &bytes))))
    }
}
