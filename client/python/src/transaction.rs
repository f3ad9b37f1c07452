//! Transactions, blocking and for asyncio.

use fatbtree::transaction::{Attempts, Item};
use fatbtree::{Bytes, Error};
use pyo3::Borrowed;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::{PyBytes, PyTuple};
use tokio::sync::Mutex;

use crate::aio::bytes;
use crate::client::value;
use crate::error::{ClosedError, ConflictError, raised};
use crate::options::Key;
use crate::wait::{guarded, wait};

/// A key of table 0, or a table's number with a key.
pub(crate) struct Place(Item);

impl<'a, 'py> FromPyObject<'a, 'py> for Place {
    type Error = PyErr;

    fn extract(found: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        match found.cast::<PyTuple>() {
            Ok(pair) if pair.len() == 2 => {
                let (table, key) = (pair.get_item(0)?.extract::<u8>()?, pair.get_item(1)?.extract::<Key>()?);
                Ok(Self((table, key.0).into()))
            }
            _ => found.extract::<Key>().map(|key| Self(key.0.into())),
        }
    }
}

/// A transaction, unless it has ended. Another thread or task may be within.
struct Open(Mutex<Option<fatbtree::Transaction>>);

impl Open {
    fn new(tx: fatbtree::Transaction) -> Self {
        Self(Mutex::new(Some(tx)))
    }

    /// Reads values; `None` where the transaction has ended.
    async fn read(&self, items: Vec<Place>, for_update: bool) -> Option<Result<Vec<Option<Bytes>>, Error>> {
        let mut tx = self.0.lock().await;
        let (tx, items) = (tx.as_mut()?, items.into_iter().map(|place| place.0));
        Some(match for_update {
            true => tx.get_many_for_update(items).await,
            false => tx.get_many(items).await,
        })
    }

    async fn put(&self, item: Place, value: PyBackedBytes) -> Option<Result<(), Error>> {
        Some(self.0.lock().await.as_mut()?.put(item.0, value).await)
    }

    async fn insert(&self, item: Place, value: PyBackedBytes) -> Option<Result<bool, Error>> {
        Some(self.0.lock().await.as_mut()?.insert(item.0, value).await)
    }

    async fn delete(&self, item: Place) -> Option<Result<bool, Error>> {
        Some(self.0.lock().await.as_mut()?.delete(item.0).await)
    }

    async fn commit(&self) -> Option<Result<(), Error>> {
        Some(self.0.lock().await.take()?.commit().await)
    }

    /// Aborts it, if it has not ended.
    async fn abort(&self) -> Result<(), Error> {
        match self.0.lock().await.take() {
            Some(tx) => tx.abort().await,
            None => Ok(()),
        }
    }

    /// Leaves a block: commits, or aborts after an exception, if the block has not ended it.
    async fn leave(&self, is_raised: bool) -> Result<(), Error> {
        match self.0.lock().await.take() {
            Some(tx) if is_raised => {
                // Nothing has changed, also if this fails, and a second exception would hide the first.
                let _aborted = tx.abort().await;
                Ok(())
            }
            Some(tx) => tx.commit().await,
            None => Ok(()),
        }
    }
}

/// The result of a step. Needs the interpreter.
fn done<T>(result: Option<Result<T, Error>>) -> PyResult<T> {
    let ended = || ClosedError::new_err("the transaction has ended; begin another one");
    result.ok_or_else(ended)?.map_err(raised)
}

/// A transaction: reads and changes of several items at one moment, or none. An item is a key, which is one of table 0, or `(table, key)`.
///
/// A context manager: it commits at the end of its block, and aborts after an exception. What it has read is certain when it is committed.
/// After an exception of a method it can only be aborted. One that is open for longer than the client's time limit is aborted: it holds locks.
#[pyclass(frozen, module = "fatbtree")]
pub(crate) struct Transaction(Open);

impl Transaction {
    pub(crate) fn new(tx: fatbtree::Transaction) -> Self {
        Self(Open::new(tx))
    }

    /// Runs `work` with transactions until one commits, as [`fatbtree::Client::transact`] does.
    pub(crate) fn run<'py>(
        py: Python<'py>,
        client: &fatbtree::Client,
        work: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut attempts = Attempts::new(client);
        loop {
            let tx = wait(py, attempts.begin())?.map_err(raised)?;
            let tx = Bound::new(py, Self::new(tx))?;
            let result = work.call1((&tx,)).and_then(|value| tx.get().commit(py).map(|()| value));
            let error = match result {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            // It holds no lock when this returns.
            tx.get().leave(py, true)?;
            let is_conflict = error.is_instance_of::<ConflictError>(py);
            if !is_conflict || !wait(py, attempts.pause())?.map_err(raised)? {
                return Err(error);
            }
        }
    }

    fn leave(&self, py: Python<'_>, is_raised: bool) -> PyResult<()> {
        wait(py, self.0.leave(is_raised))?.map_err(raised)
    }
}

#[pymethods]
impl Transaction {
    /// The value of an item, with the transaction's own changes; None if it is not there. With `for_update` the item is locked, which saves
    /// a round trip before a change, and a conflict later. Raises ConflictError when another transaction changes it.
    #[pyo3(signature = (item, for_update=false))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        item: Place,
        for_update: bool,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let found = done(wait(py, self.0.read(vec![item], for_update))?)?.pop();
        Ok(value(py, found.flatten()))
    }

    /// The values of items, in their order, in as many round trips as one.
    #[pyo3(signature = (items, for_update=false))]
    fn get_many<'py>(
        &self,
        py: Python<'py>,
        items: Vec<Place>,
        for_update: bool,
    ) -> PyResult<Vec<Option<Bound<'py, PyBytes>>>> {
        let found = done(wait(py, self.0.read(items, for_update))?)?;
        Ok(found.into_iter().map(|bytes| value(py, bytes)).collect())
    }

    /// Puts a value, whether one is there or not. Others see it after the commit.
    fn put(&self, py: Python<'_>, item: Place, value: PyBackedBytes) -> PyResult<()> {
        done(wait(py, self.0.put(item, value))?)
    }

    /// Puts a value if none is there, and returns whether it was put.
    fn insert(&self, py: Python<'_>, item: Place, value: PyBackedBytes) -> PyResult<bool> {
        done(wait(py, self.0.insert(item, value))?)
    }

    /// Takes a value away, and returns whether it was there.
    fn delete(&self, py: Python<'_>, item: Place) -> PyResult<bool> {
        done(wait(py, self.0.delete(item))?)
    }

    /// Commits: all changes take effect at one moment. Nothing has changed after a ConflictError; other exceptions say by
    /// `may_have_happened` whether it may have been committed.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        done(wait(py, self.0.commit())?)
    }

    /// Ends the transaction without a change, if it has not ended.
    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        wait(py, self.0.abort())?.map_err(raised)
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<Py<PyAny>>,
        _raised: Option<Py<PyAny>>,
        _trace: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        self.leave(py, kind.is_some())
    }
}

/// A transaction whose methods are coroutines.
#[pyclass(frozen, module = "fatbtree.aio")]
pub(crate) struct AsyncTransaction(Open);

impl AsyncTransaction {
    pub(crate) fn new(tx: fatbtree::Transaction) -> Self {
        Self(Open::new(tx))
    }
}

#[pymethods]
impl AsyncTransaction {
    #[pyo3(signature = (item, for_update=false))]
    async fn get(&self, item: Place, for_update: bool) -> PyResult<Option<Py<PyBytes>>> {
        let found = done(guarded(self.0.read(vec![item], for_update)).await)?.pop();
        Ok(found.flatten().map(bytes))
    }

    #[pyo3(signature = (items, for_update=false))]
    async fn get_many(&self, items: Vec<Place>, for_update: bool) -> PyResult<Vec<Option<Py<PyBytes>>>> {
        let found = done(guarded(self.0.read(items, for_update)).await)?;
        Ok(found.into_iter().map(|value| value.map(bytes)).collect())
    }

    // A coroutine's `()` would be an empty tuple.
    async fn put(&self, item: Place, value: PyBackedBytes) -> PyResult<Option<()>> {
        done(guarded(self.0.put(item, value)).await).map(|()| None)
    }

    async fn insert(&self, item: Place, value: PyBackedBytes) -> PyResult<bool> {
        done(guarded(self.0.insert(item, value)).await)
    }

    async fn delete(&self, item: Place) -> PyResult<bool> {
        done(guarded(self.0.delete(item)).await)
    }

    async fn commit(&self) -> PyResult<Option<()>> {
        done(guarded(self.0.commit()).await).map(|()| None)
    }

    async fn abort(&self) -> PyResult<Option<()>> {
        guarded(self.0.abort()).await.map(|()| None).map_err(raised)
    }

    async fn leave(&self, is_raised: bool) -> PyResult<Option<()>> {
        guarded(self.0.leave(is_raised)).await.map(|()| None).map_err(raised)
    }
}

/// Attempts at one transaction, for asyncio: its Python side has the loop.
#[pyclass(frozen, module = "fatbtree.aio")]
pub(crate) struct AsyncAttempts(Mutex<Attempts>);

impl AsyncAttempts {
    pub(crate) fn new(client: &fatbtree::Client) -> Self {
        Self(Mutex::new(Attempts::new(client)))
    }
}

#[pymethods]
impl AsyncAttempts {
    async fn begin(&self) -> PyResult<AsyncTransaction> {
        let begun = guarded(async { self.0.lock().await.begin().await }).await;
        begun.map(AsyncTransaction::new).map_err(raised)
    }

    async fn pause(&self) -> PyResult<bool> {
        guarded(async { self.0.lock().await.pause().await }).await.map_err(raised)
    }
}
