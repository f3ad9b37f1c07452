//! The connection of a client, whatever its keys.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;

use crate::error::{ClosedError, raised};
use crate::wait::wait;

/// `None` when it was closed. The lock is held for a moment, with the interpreter's: a fork finds it free.
pub(crate) struct Connection(Mutex<Option<fatbtree::Client>>);

impl Connection {
    pub(crate) fn of(client: fatbtree::Client) -> Self {
        Self(Mutex::new(Some(client)))
    }

    /// The client, for one operation.
    pub(crate) fn open(&self) -> PyResult<fatbtree::Client> {
        let client = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        client.clone().ok_or_else(|| ClosedError::new_err("the client is closed; connect again"))
    }

    /// Another one over the same connection.
    pub(crate) fn share(&self) -> PyResult<Self> {
        self.open().map(Self::of)
    }

    /// Another one over the same connection, whose operations have this time limit.
    pub(crate) fn with_time_limit(&self, limit: Duration) -> PyResult<Self> {
        Ok(Self::of(self.open()?.with_time_limit(limit)))
    }

    /// Runs an operation without the interpreter's lock.
    pub(crate) fn run<T: Send, F: Future<Output = Result<T, fatbtree::Error>> + Send>(
        &self,
        py: Python<'_>,
        operation: impl FnOnce(fatbtree::Client) -> F,
    ) -> PyResult<T> {
        wait(py, operation(self.open()?))?.map_err(raised)
    }

    /// The client, to be closed; `None` if it is.
    pub(crate) fn take(&self) -> Option<fatbtree::Client> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Closes the client, and waits for its end.
    pub(crate) fn close(&self, py: Python<'_>) -> PyResult<()> {
        self.take().map_or(Ok(()), |client| wait(py, client.close()))
    }
}
