//! Arguments of `connect`.

use std::path::PathBuf;
use std::time::Duration;

use fatbtree::{Options, Protocol};
use pyo3::Borrowed;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyString, PyTuple};

use crate::client::Failures;
use crate::error::out_of_range;

/// Arguments of `connect`, as the Python side has checked them to be there.
#[derive(FromPyObject)]
pub(crate) struct Arguments {
    #[pyo3(item)]
    cluster_file: PathBuf,
    #[pyo3(item)]
    client: Option<String>,
    #[pyo3(item)]
    protocol: String,
    #[pyo3(item)]
    device: Option<String>,
    #[pyo3(item)]
    lanes: u8,
    #[pyo3(item)]
    root_to_leaf: bool,
    #[pyo3(item)]
    cache: u64,
    #[pyo3(item)]
    entry_cache: u64,
    #[pyo3(item)]
    patience: f64,
    #[pyo3(item)]
    time_limit: f64,
}

pub(crate) fn seconds(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("expected seconds from 0 on, found {seconds}")))
}

impl TryFrom<Arguments> for Options {
    type Error = PyErr;

    fn try_from(given: Arguments) -> PyResult<Self> {
        let protocol = match given.protocol.as_str() {
            "rdma" => Protocol::Rdma,
            "query" => Protocol::Query,
            other => {
                let message = format!("expected protocol \"rdma\" or \"query\", found {other:?}");
                return Err(PyValueError::new_err(message));
            }
        };
        let mut options = Self::new(given.cluster_file)
            .protocol(protocol)
            .lanes(given.lanes)
            .root_to_leaf(given.root_to_leaf)
            .cache(given.cache)
            .entry_cache(given.entry_cache)
            .patience(seconds(given.patience)?)
            .time_limit(seconds(given.time_limit)?);
        if let Some(client) = given.client {
            options = options.client(client);
        }
        if let Some(device) = given.device {
            options = options.rdma_device(device);
        }
        Ok(options)
    }
}

/// A key.
#[derive(Clone, Copy)]
pub(crate) struct Key(pub(crate) u64);

impl<'a, 'py> FromPyObject<'a, 'py> for Key {
    type Error = PyErr;

    fn extract(found: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let py = found.py();
        found.extract::<u64>().map(Self).map_err(|error| {
            if error.is_instance_of::<PyOverflowError>(py) {
                out_of_range(&found)
            } else if error.is_instance_of::<PyTypeError>(py) {
                wrong_type(&found)
            } else {
                error
            }
        })
    }
}

/// The exception for a key that is no integer.
fn wrong_type(found: &Bound<'_, PyAny>) -> PyErr {
    let kind = match found.get_type().name() {
        Ok(kind) => kind,
        Err(error) => return error,
    };
    let is_bytes = found.is_instance_of::<PyString>()
        || found.is_instance_of::<PyTuple>()
        || found.extract::<PyBackedBytes>().is_ok();
    let hint = if is_bytes { "; keys of bytes are for the client that bytes() gives" } else { "" };
    PyTypeError::new_err(format!("expected a key of type int, found {kind}{hint}"))
}

/// The key before which a range ends: 2**64 is the end of all keys, and `None`.
#[derive(Clone, Copy)]
pub(crate) struct Stop(Option<u64>);

impl<'a, 'py> FromPyObject<'a, 'py> for Stop {
    type Error = PyErr;

    fn extract(found: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        match found.extract::<u128>() {
            Ok(end) if end == 1 << 64 => Ok(Self(None)),
            _ => Ok(Self(Some(found.extract::<Key>()?.0))),
        }
    }
}

/// A key that may be one of many.
pub(crate) trait BatchKey: for<'a, 'py> FromPyObject<'a, 'py, Error = PyErr> {
    /// Whether the exception says that there can be no such key; others are about the call.
    fn cannot_be(error: &PyErr, py: Python<'_>) -> bool;
}

impl BatchKey for Key {
    fn cannot_be(error: &PyErr, py: Python<'_>) -> bool {
        error.is_instance_of::<PyOverflowError>(py)
    }
}

/// Pairs of `put_many`. Those whose keys cannot be have failed already.
pub(crate) struct Pairs<K> {
    pub(crate) keys: Vec<Py<PyAny>>,
    pub(crate) pairs: Vec<(K, PyBackedBytes)>,
    pub(crate) failed: Failures,
}

impl<'a, 'py, K: BatchKey> FromPyObject<'a, 'py> for Pairs<K> {
    type Error = PyErr;

    fn extract(found: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let given: Vec<(Bound<'py, PyAny>, PyBackedBytes)> = found.extract()?;
        let mut all = Self { keys: Vec::new(), pairs: Vec::new(), failed: Failures::new() };
        for (key, value) in given {
            match key.extract::<K>() {
                Ok(extracted) => {
                    all.pairs.push((extracted, value));
                    all.keys.push(key.unbind());
                }
                Err(error) if K::cannot_be(&error, found.py()) => all.failed.push((key.unbind(), error)),
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }
}

/// Keys from `start` up to, but without, `stop`; `None` is the end of all keys.
pub(crate) fn keys(start: Key, stop: Option<Stop>) -> (std::ops::Bound<u64>, std::ops::Bound<u64>) {
    use std::ops::Bound;
    let stop = stop.and_then(|stop| stop.0);
    (Bound::Included(start.0), stop.map_or(Bound::Unbounded, Bound::Excluded))
}
