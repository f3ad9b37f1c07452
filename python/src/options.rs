//! Arguments of `connect`.

use std::path::PathBuf;
use std::time::Duration;

use fatbtree::{Options, Protocol};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

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

/// Keys from `start` up to, but without, `stop`; `None` is the end of all keys.
pub(crate) fn keys(start: u64, stop: Option<u64>) -> (std::ops::Bound<u64>, std::ops::Bound<u64>) {
    use std::ops::Bound;
    (Bound::Included(start), stop.map_or(Bound::Unbounded, Bound::Excluded))
}
