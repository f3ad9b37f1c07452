//! Keys of bytes as Python has them: `bytes`, `str`, and tuples by the library's encoding (`fatbtree::tuple`).

use std::ops::Bound::{Excluded, Included, Unbounded};

use fatbtree::tuple::{self, Element, Time};
use fatbtree::{BytesRange, MAX_KEY_BYTES};
use pyo3::Borrowed;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyInt, PyString, PyTuple, PyType};

use crate::options::BatchKey;

/// A key.
pub(crate) struct BytesKey(Vec<u8>);

impl AsRef<[u8]> for BytesKey {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl BatchKey for BytesKey {
    /// It is too long, or an element of its tuple cannot be in one.
    fn cannot_be(error: &PyErr, py: Python<'_>) -> bool {
        error.is_instance_of::<PyValueError>(py)
    }
}

/// A key of `bytes` or `str`; `None` for another type.
fn plain(found: &Bound<'_, PyAny>) -> PyResult<Option<Vec<u8>>> {
    if let Ok(text) = found.cast::<PyString>() {
        return Ok(Some(text.to_cow()?.into_owned().into_bytes()));
    }
    Ok(found.extract::<PyBackedBytes>().ok().map(|bytes| bytes.to_vec()))
}

/// The elements of a tuple; a type error where a key is something else.
fn elements(found: &Bound<'_, PyAny>) -> PyResult<Vec<Element<'static>>> {
    let Ok(tuple) = found.cast::<PyTuple>() else {
        let kind = found.get_type().name()?;
        let hint = if found.is_instance_of::<PyInt>() {
            "; integers are keys of the client that connect gives, without bytes()"
        } else {
            ""
        };
        let message = format!("expected a key of type bytes, str or tuple, found {kind}{hint}");
        return Err(PyTypeError::new_err(message));
    };
    tuple.iter().enumerate().map(|(index, element)| to_element(index, &element)).collect()
}

fn to_element(index: usize, found: &Bound<'_, PyAny>) -> PyResult<Element<'static>> {
    let py = found.py();
    if found.is_none() {
        return Ok(Element::None);
    }
    // A bool is an int, too.
    if let Ok(is_true) = found.cast::<PyBool>() {
        return Ok(Element::Bool(is_true.is_true()));
    }
    if found.is_instance_of::<PyInt>() {
        let number = found.extract::<i128>().map_err(|error| match error.is_instance_of::<PyOverflowError>(py) {
            true => PyValueError::new_err(format!(
                "expected an integer from -2**127 to 2**127 - 1 for element {index} of the key, found one of {} bits",
                found.call_method0("bit_length").map_or_else(|_| "more".to_owned(), |bits| bits.to_string())
            )),
            false => error,
        });
        return Ok(Element::Integer(number?));
    }
    if let Ok(text) = found.cast::<PyString>() {
        return Ok(Element::Text(text.to_cow()?.into_owned().into()));
    }
    if let Ok(bytes) = found.extract::<PyBackedBytes>() {
        return Ok(Element::Bytes(bytes.to_vec().into()));
    }
    let clock = Clock::get(py)?;
    if found.is_instance(clock.datetime.bind(py))? {
        return Ok(Element::Time(clock.to_time(index, found)?));
    }
    Err(PyTypeError::new_err(format!(
        "expected None, bool, int, str, bytes or datetime for element {index} of the key, found {}",
        found.get_type().name()?
    )))
}

fn to_python<'py>(py: Python<'py>, element: Element<'_>) -> PyResult<Bound<'py, PyAny>> {
    Ok(match element {
        Element::None => py.None().into_bound(py),
        Element::Bytes(bytes) => PyBytes::new(py, &bytes).into_any(),
        Element::Text(text) => PyString::new(py, &text).into_any(),
        Element::Integer(number) => number.into_pyobject(py)?.into_any(),
        Element::Bool(is_true) => PyBool::new(py, is_true).to_owned().into_any(),
        Element::Time(time) => Clock::get(py)?.to_datetime(py, time)?,
    })
}

/// What the conversion of times needs of Python's module `datetime`.
struct Clock {
    datetime: Py<PyType>,
    timedelta: Py<PyType>,
    /// The beginning of 1970 in UTC.
    epoch: Py<PyAny>,
    microsecond: Py<PyAny>,
}

static CLOCK: PyOnceLock<Clock> = PyOnceLock::new();

impl Clock {
    fn get(py: Python<'_>) -> PyResult<&'static Self> {
        CLOCK.get_or_try_init(py, || {
            let module = py.import("datetime")?;
            let (datetime, timedelta) = (module.getattr("datetime")?, module.getattr("timedelta")?);
            let utc = module.getattr("timezone")?.getattr("utc")?;
            let epoch = datetime.call_method1("fromtimestamp", (0, utc))?.unbind();
            let microsecond = timedelta.call1((0, 0, 1))?.unbind();
            Ok(Self { datetime: datetime.extract()?, timedelta: timedelta.extract()?, epoch, microsecond })
        })
    }

    fn to_time(&self, index: usize, found: &Bound<'_, PyAny>) -> PyResult<Time> {
        if found.call_method0("utcoffset")?.is_none() {
            return Err(PyValueError::new_err(format!(
                "expected a datetime with a time zone for element {index} of the key, found {found} without; \
                 datetime.now(timezone.utc) has one"
            )));
        }
        let micros = found.sub(&self.epoch)?.floor_div(&self.microsecond)?;
        Ok(Time::from_micros(micros.extract()?))
    }

    fn to_datetime<'py>(&self, py: Python<'py>, time: Time) -> PyResult<Bound<'py, PyAny>> {
        let micros = time.as_micros();
        let after = self.timedelta.bind(py).call1((0, 0, micros));
        after.and_then(|after| self.epoch.bind(py).add(after)).map_err(|_| {
            PyValueError::new_err(format!(
                "the key has a time that datetime does not reach, {micros} microseconds from 1970"
            ))
        })
    }
}

/// Refuses what no tree takes.
fn checked(key: Vec<u8>) -> PyResult<Vec<u8>> {
    if key.len() > MAX_KEY_BYTES {
        let message = format!("expected a key of up to {MAX_KEY_BYTES} bytes, found one of {}", key.len());
        return Err(PyValueError::new_err(message));
    }
    Ok(key)
}

impl<'a, 'py> FromPyObject<'a, 'py> for BytesKey {
    type Error = PyErr;

    fn extract(found: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let key = match plain(&found)? {
            Some(key) => key,
            None => tuple::encode(&elements(&found)?),
        };
        checked(key).map(Self)
    }
}

/// The range of keys that begin with bytes, or of tuples that begin with elements.
pub(crate) struct Prefix(pub(crate) BytesRange);

impl<'a, 'py> FromPyObject<'a, 'py> for Prefix {
    type Error = PyErr;

    fn extract(found: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        Ok(Self(match plain(&found)? {
            Some(prefix) => BytesRange::prefix(&checked(prefix)?),
            None => {
                let range = tuple::prefix(&elements(&found)?);
                BytesRange { low: checked(range.low)?, ..range }
            }
        }))
    }
}

/// Keys from `start` up to, but without, `stop`; `None` is the end of all keys.
pub(crate) fn keys(start: Option<BytesKey>, stop: Option<BytesKey>) -> BytesRange {
    BytesRange::of((start.map_or(Unbounded, Included), stop.map_or(Unbounded, Excluded)))
}

/// The key of a tuple of None, bool, int, str, bytes and datetime: keys compare as their tuples do.
#[pyfunction]
pub(crate) fn encode_key<'py>(
    py: Python<'py>,
    elements: &Bound<'py, PyTuple>,
) -> PyResult<Bound<'py, PyBytes>> {
    let key: BytesKey = elements.extract()?;
    Ok(PyBytes::new(py, key.as_ref()))
}

/// The tuple of a key. Raises ValueError if the key is none of a tuple.
#[pyfunction]
pub(crate) fn decode_key<'py>(py: Python<'py>, key: PyBackedBytes) -> PyResult<Bound<'py, PyTuple>> {
    let elements: Vec<Element<'_>> =
        tuple::decode(&key).map_err(|error| PyValueError::new_err(error.to_string()))?;
    let found: PyResult<Vec<_>> = elements.into_iter().map(|element| to_python(py, element)).collect();
    PyTuple::new(py, found?)
}
