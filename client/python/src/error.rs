//! Exceptions. Each says by `may_have_happened` whether a change may have been carried out all the same.

use std::error::Error as _;

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyOverflowError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};

create_exception!(fatbtree, Error, PyException, "Base of all exceptions of this package.");
create_exception!(
    fatbtree,
    ConnectError,
    Error,
    "The client cannot connect, or the cluster file has an error."
);
create_exception!(fatbtree, FailedError, Error, "The operation was not carried out.");
create_exception!(
    fatbtree,
    ConflictError,
    FailedError,
    "Another transaction was in the way. Nothing has changed; begin anew."
);
create_exception!(
    fatbtree,
    UnknownError,
    Error,
    "The change may have been carried out or not; read the key to find out."
);
create_exception!(fatbtree, TimedOutError, Error, "No answer within the time limit.");
create_exception!(fatbtree, ClosedError, Error, "The client was closed.");
create_exception!(
    fatbtree,
    UnsupportedError,
    Error,
    "The client's protocol, or the structure in the memory servers, does not have the operation."
);

/// The class of errors of keys that are out of range: both this package's, and `OverflowError`.
static OUT_OF_RANGE: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// The exception for a key that is out of range.
pub(crate) fn out_of_range(found: &Bound<'_, PyAny>) -> PyErr {
    let py = found.py();
    let message = format!("expected a key from 0 to 2**64 - 1, found {found}");
    match OUT_OF_RANGE.get(py) {
        Some(class) => PyErr::from_type(class.bind(py).clone(), message),
        None => PyOverflowError::new_err(message),
    }
}

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let all = [
        ("Error", py.get_type::<Error>()),
        ("ConnectError", py.get_type::<ConnectError>()),
        ("FailedError", py.get_type::<FailedError>()),
        ("ConflictError", py.get_type::<ConflictError>()),
        ("UnknownError", py.get_type::<UnknownError>()),
        ("TimedOutError", py.get_type::<TimedOutError>()),
        ("ClosedError", py.get_type::<ClosedError>()),
        ("UnsupportedError", py.get_type::<UnsupportedError>()),
    ];
    // It has two bases, which only Python's own `type` gives a class.
    let bases = (py.get_type::<Error>(), py.get_type::<PyOverflowError>());
    let fields = PyDict::new(py);
    fields.set_item("__module__", "fatbtree")?;
    fields.set_item("__doc__", "A key is out of range: expected 0 to 2**64 - 1.")?;
    let class = py.get_type::<PyType>().call1(("OutOfRangeError", bases, fields))?;
    let out_of_range: Py<PyType> = class.extract()?;
    module.add("OutOfRangeError", out_of_range.bind(py))?;
    // It is not made twice: a module is initialised once.
    let _ = OUT_OF_RANGE.set(py, out_of_range);
    // For instances that Python code makes.
    all[0].1.setattr("may_have_happened", false)?;
    all.into_iter().try_for_each(|(name, exception)| module.add(name, exception))
}

/// The exception of an error, with the messages of its causes.
pub(crate) fn raised(error: fatbtree::Error) -> PyErr {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        let text = source.to_string();
        // Some messages end with their cause's.
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        cause = source.source();
    }
    let exception = match &error {
        fatbtree::Error::Failed { .. } => FailedError::new_err(message),
        fatbtree::Error::Conflict { .. } => ConflictError::new_err(message),
        fatbtree::Error::Unknown { .. } => UnknownError::new_err(message),
        fatbtree::Error::TimedOut { .. } => TimedOutError::new_err(message),
        fatbtree::Error::Closed { .. } | fatbtree::Error::Forked { .. } => ClosedError::new_err(message),
        fatbtree::Error::Unsupported { .. } | fatbtree::Error::NotInStructure { .. } => {
            UnsupportedError::new_err(message)
        }
        fatbtree::Error::ReadFile { .. }
        | fatbtree::Error::ClusterFile { .. }
        | fatbtree::Error::NoClient { .. }
        | fatbtree::Error::Connect { .. }
        | fatbtree::Error::Thread { .. } => ConnectError::new_err(message),
        // A later version of the library has more.
        _ => Error::new_err(message),
    };
    let may_have_happened = error.may_have_happened();
    Python::attach(|py| match exception.value(py).setattr("may_have_happened", may_have_happened) {
        Ok(()) => exception,
        Err(failed) => failed,
    })
}
