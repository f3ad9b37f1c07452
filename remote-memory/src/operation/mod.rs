//! What operations of all structures have in common, whatever the structure.
//!
//! ```text
//!   attempt ──► answer
//!    ▲   │
//!    │   └─ Stop: at once, after a pause, when a server is connected, never
//!    └────────┘ as long as the operation has patience
//! ```
//!
//! * [`Op`]: an operation on its way. [`RemoteMemory::attempt`](crate::RemoteMemory::attempt) tries it again, and decides how long.
//! * [`Lane`]: its queue pairs. Round trips are counted here and nowhere else, whatever their outcome.
//! * [`Backoff`]: its pauses. [`Suspicion`]: damage told from change. [`Attempts`]: how often operations try.
//! * [`Spare`]: a block that an operation has taken, until something leads to it.
//! * [`CommonError`]: what ends an operation of any structure.

mod attempt;
mod attempts;
mod backoff;
mod blocks;
mod error;
mod lane;
mod suspicion;

pub use attempt::{Op, Stop};
pub use attempts::Attempts;
pub use backoff::{Backoff, Growth, Pauses};
pub use blocks::{Spare, Taken};
pub use error::CommonError;
pub use lane::{Lane, Path};
pub use suspicion::Suspicion;
