//! The software switch: BMv2 JSON in, packets through, P4Runtime beside it.
//!
//! The crate has two halves. The *engine*, here at the top, runs programs that `p4c-bm2-ss` compiled for v1model; it
//! is sans-IO, owned by the driver that feeds it frames, and knows nothing but the JSON. [`service`] puts P4Runtime in
//! front of it.
//!
//! ```text
//!   p4c's JSON --json--> document --lower--> operations over one flat array of u64
//!                                              |                                     Program, shared (Arc)
//!                                              |      tables by match kind, counters, registers
//!                                              v      (insert, modify, delete, counters, defaults)
//!   frame, port, time ---> parser > verify > ingress > egress > update > deparser ---> Output
//!                                                                                     Pipeline, one per switch
//! ```
//!
//! A program is lowered once: fields become slots, expressions three-address operations, dummy tables plain code, small
//! const tables masked compares. Operations are run one by one. Switches of one process that run the same text share their
//! program, and those that are driven with one [`Output`] share the memory a packet is worked on in. What the format has
//! and this switch does not run is refused when it is loaded, by name ([`LoadError::Unsupported`]): meters, clones,
//! digests, action profiles, header stacks and unions, varbits, value sets, ageing, resubmission, computing with more than
//! 64 bits; and so is a program whose tables, counters and registers take more than 1 GiB when they are full
//! ([`LoadError::TooLarge`]).
//!
//! Where BMv2's `simple_switch` and the P4 specification leave a choice, the switch does what `simple_switch` does: parser
//! errors do not drop, port 511 does, `egress_spec` starts at 0, priorities in the JSON count downwards (and are turned
//! round here: in this API, as in P4Runtime, a larger priority wins). Unlike there, fields of invalid headers and
//! unwritten variables always read 0.
//!
//! # Example
//!
//! ```
//! use fatbtree_switch::{Entry, MatchValue, Output, Pipeline, Program};
//!
//! let json = include_str!("../tests/data/router.json");
//! let program = Program::load(json)?;
//! let mut pipeline = Pipeline::new(program.clone());
//!
//! let route = program.table("ingress.route").expect("the program has it");
//! let to_next_hop = program.table_action(route, "ingress.to_next_hop").expect("the table has it");
//! let key = vec![MatchValue::Lpm { value: 0x0a01_0000, prefix_len: 16 }];
//! pipeline.insert(route, &Entry::new(key, to_next_hop, vec![1]))?;
//!
//! let mut out = Output::new();
//! pipeline.process(0, 1, &[0xff; 60], &mut out); // not IPv4: this program drops it
//! assert!(out.is_empty());
//! assert_eq!(out.drops().total(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bits;
mod code;
mod compute;
mod control;
mod entry;
mod error;
mod hash;
mod json;
mod lower;
mod machine;
mod output;
#[cfg(fuzzing)]
mod paths;
mod pipe;
mod pipeline;
mod program;
pub mod service;
mod step;
mod table;

pub use entry::{
    ActionCall, ActionRef, CounterData, CounterRef, Entry, MatchKind, MatchValue, RegisterRef, TableRef,
};
pub use error::{ErrorClass, LoadError, TableError};
pub use output::{DropReason, Drops, Frames, Output};
pub use pipe::{MAX_FRAME, Pipe};
pub use pipeline::{Pipeline, Replica};
pub use program::{ActionInfo, ArrayInfo, KeyField, ParamInfo, Program, TableInfo};
