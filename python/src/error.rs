//! Exceptions. Each says by `may_have_happened` whether a change may have been carried out all the same.

use std::error::Error as _;

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

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
    UnknownError,
    Error,
    "The change may have been carried out or not; read the key to find out."
);
create_exception!(fatbtree, TimedOutError, Error, "No answer within the time limit.");
create_exception!(fatbtree, ClosedError, Error, "The client was closed.");
create_exception!(fatbtree, UnsupportedError, Error, "The client's protocol does not have the operation.");

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    let all = [
        ("Error", py.get_type::<Error>()),
        ("ConnectError", py.get_type::<ConnectError>()),
        ("FailedError", py.get_type::<FailedError>()),
        ("UnknownError", py.get_type::<UnknownError>()),
        ("TimedOutError", py.get_type::<TimedOutError>()),
        ("ClosedError", py.get_type::<ClosedError>()),
        ("UnsupportedError", py.get_type::<UnsupportedError>()),
    ];
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
        fatbtree::Error::Unknown { .. } => UnknownError::new_err(message),
        fatbtree::Error::TimedOut { .. } => TimedOutError::new_err(message),
        fatbtree::Error::Closed { .. } => ClosedError::new_err(message),
        fatbtree::Error::Unsupported { .. } => UnsupportedError::new_err(message),
        _ => ConnectError::new_err(message),
    };
    let may_have_happened = error.may_have_happened();
    Python::attach(|py| match exception.value(py).setattr("may_have_happened", may_have_happened) {
        Ok(()) => exception,
        Err(failed) => failed,
    })
}
