//! Transactions, blocking and for asyncio.

use fatbtree::transaction::{Attempts, Item};
use fatbtree::{Bytes, Error};
use pyo3::Borrowed;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
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
        match found.extract::<(u8, Key)>() {
            Ok((table, key)) => Ok(Self((table, key.0).into())),
            Err(_) => found.extract::<Key>().map(|key| Self(key.0.into())),
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
    async fn abort(&self) -> Option<Result<(), Error>> {
        match self.0.lock().await.take() {
            Some(tx) => Some(tx.abort().await),
            None => Some(Ok(())),
        }
    }
}

/// The result of a step. Needs the interpreter.
fn done<T>(result: Option<Result<T, Error>>) -> PyResult<T> {
    let ended = || ClosedError::new_err("the transaction has ended; begin another one");
    result.ok_or_else(ended)?.map_err(raised)
}

/// A transaction whose methods wait.
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
            tx.get().abort(py)?;
            let is_conflict = error.is_instance_of::<ConflictError>(py);
            if !is_conflict || !wait(py, attempts.pause())?.map_err(raised)? {
                return Err(error);
            }
        }
    }
}

#[pymethods]
impl Transaction {
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

    fn put(&self, py: Python<'_>, item: Place, value: PyBackedBytes) -> PyResult<()> {
        done(wait(py, self.0.put(item, value))?)
    }

    fn insert(&self, py: Python<'_>, item: Place, value: PyBackedBytes) -> PyResult<bool> {
        done(wait(py, self.0.insert(item, value))?)
    }

    fn delete(&self, py: Python<'_>, item: Place) -> PyResult<bool> {
        done(wait(py, self.0.delete(item))?)
    }

    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        done(wait(py, self.0.commit())?)
    }

    fn abort(&self, py: Python<'_>) -> PyResult<()> {
        done(wait(py, self.0.abort())?)
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
        match kind {
            None => self.commit(py),
            Some(_) => self.abort(py),
        }
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
        done(guarded(self.0.abort()).await).map(|()| None)
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
