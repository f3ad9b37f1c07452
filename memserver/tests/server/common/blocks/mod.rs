//! The smallest tenant with blocks of several classes: blocks of two sizes, and records.
//!
//! ```text
//!   layout   Block, what memory says of one; Shape, what a region's header says
//!   part     Blocks, a Tenant and a Part
//! ```
//!
//! A region holds a header, large blocks that are loaded with a known content, and chunks. A large block that is in use names the records
//! that are in use. Clients are played by tests: they write blocks into memory that the server has given to them.

mod layout;
mod part;

pub use layout::{Block, CLASSES, Info, LARGE, LARGE_BYTES, RECORDS, SMALL, SMALL_BYTES, Shape, bytes_of};
pub use part::{Blocks, LoadedBlocks, part, place};
