//! The software switch: BMv2 JSON in, packets through.

mod code;
mod control;
mod entry;
mod error;
mod hash;
mod json;
mod lower;
mod machine;
mod output;
mod pipeline;
mod program;
pub mod service;
mod table;

pub use entry::{
    ActionCall, ActionRef, CounterData, CounterRef, Entry, MatchKind, MatchValue, RegisterRef, TableRef,
};
pub use error::{ErrorClass, LoadError, TableError};
pub use output::{DropReason, Drops, Frames, Output};
pub use pipeline::{MAX_FRAME, Pipeline, Replica};
pub use program::{ActionInfo, ArrayInfo, KeyField, ParamInfo, Program, TableInfo};
