//! Python bindings of the client library: blocking and asyncio clients over one Rust type each.
//!
//! ```text
//!  Python thread ──► Client ──────► fatbtree::Client, waited for ─┐   without the interpreter's lock
//!  asyncio loop ───► AsyncClient ─► fatbtree::Client ─────────────┴─► the connection's own thread
//! ```
//!
//! A blocking method releases the interpreter's lock while it waits. An asynchronous one is a coroutine that the loop polls; the connection's
//! thread wakes the loop. Neither way enters an interpreter that ends (`wait.rs`). Documentation for users
//! is that of the package (`fatbtree/__init__.py`, `fatbtree/aio.py`) and of the blocking classes here; `_native.pyi` has the types.

mod aio;
mod aio_bytes;
mod bytes_client;
mod bytes_key;
mod client;
mod connection;
mod error;
mod options;
mod transaction;
mod wait;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::aio::{AsyncClient, AsyncScan};
    #[pymodule_export]
    use crate::aio_bytes::{AsyncBytesClient, AsyncBytesScan};
    #[pymodule_export]
    use crate::bytes_client::{BytesClient, BytesScan};
    #[pymodule_export]
    use crate::bytes_key::{decode_key, encode_key};
    #[pymodule_export]
    use crate::client::{Client, Scan};
    #[pymodule_export]
    use crate::transaction::{AsyncAttempts, AsyncTransaction, Transaction};
    #[pymodule_export]
    use crate::wait::end;
    use crate::{error, wait};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        error::add_to(module)?;
        wait::at_exit(module)?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
