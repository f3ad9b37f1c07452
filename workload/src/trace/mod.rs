//! Cache traces in the format of the public Twitter traces, as operations.
//!
//! ```text
//!  timestamp,key,key size,value size,client,operation,TTL       a line an operation
//!      0,tweet:1a,8,213,7,get,0    ─▶ Line ─▶ KeyCode ─▶ Operation { Read, key, .. }
//! ```
//!
//! (Yang, Yue, Rashmi: A large scale analysis of hundreds of in-memory cache clusters at Twitter, OSDI 2020; the format
//! is that of its published files.)
//!
//! | operation of the trace | done as |
//! |---|---|
//! | `get`, `gets` | read |
//! | `set` | put |
//! | `add` | insert |
//! | `replace`, `cas`, `append`, `prepend`, `incr`, `decr` | update |
//! | `delete` | delete |
//!
//! **Keys** are strings in a trace, and 64-bit numbers here. [`KeyCode`] maps one to the other in order, as far as 64
//! bits go. Strings that differ only after that become one key; [`Trace::merged`] counts them. With [`Trace::read_named`] strings stay what they are,
//! for structures of keys of bytes.
//!
//! **Keys that are there at first.** A key whose first line found a value, which is a line other than `set` and `add`
//! with a value size above 0, was in the cache when the trace began. [`Trace::preloaded`] has these keys; load them
//! first. Time stamps, clients and times to live are read and not used: operations are done at the pace of the run, and
//! no key expires.
//!
//! ```
//! use fatbtree_workload::trace::Trace;
//! use fatbtree_workload::{OperationKind, Operations as _};
//!
//! let lines = "0,tweet:1a,8,213,7,get,0\n0,tweet:1b,8,0,9,get,0\n1,tweet:1b,8,99,9,set,3600\n";
//! let mut trace = Trace::read("lines", lines.as_bytes(), usize::MAX)?;
//! assert_eq!(trace.preloaded().map(|(_, bytes)| bytes).collect::<Vec<_>>(), [213]);
//! let kinds = [(); 3].map(|()| trace.next_operation().map(|operation| operation.kind));
//! assert_eq!(kinds, [Ok(OperationKind::Read), Ok(OperationKind::Read), Ok(OperationKind::Put)]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod code;
mod line;
mod make;

use std::collections::BTreeMap;
use std::io::{BufRead, Read as _};
use std::ops::Range;
use std::sync::Arc;

use fatbtree_blink::MAX_VALUE;
use fatbtree_blink::value::STAMPED_BYTES;
use thiserror::Error;

use crate::names::Names;
use crate::operation::{Operation, OperationKind, Operations};
use crate::ycsb::WorkloadError;

pub use code::KeyCode;
pub use line::{BadLine, Line};
pub use make::{Maker, MakerError};

/// Bytes of the longest line that is read.
const LONGEST_LINE: u64 = 4096;

/// Reasons for which a trace cannot be read.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The input failed.
    #[error("{name}:{line}: {error}")]
    Io {
        /// Name of the input.
        name: String,
        /// Line number, from 1.
        line: usize,
        /// The error.
        error: std::io::Error,
    },
    /// A line has another format.
    #[error("{name}:{line}: {bad}")]
    Line {
        /// Name of the input.
        name: String,
        /// Line number, from 1.
        line: usize,
        /// What is wrong with it.
        bad: BadLine,
    },
    /// There is no line.
    #[error("{name}: no operations in it; a line is timestamp,key,key size,value size,client,operation,TTL")]
    Empty {
        /// Name of the input.
        name: String,
    },
}

/// The operations of a trace, in its order.
#[derive(Debug, Clone)]
pub struct Trace {
    steps: Arc<[Step]>,
    /// Keys that are there at first and the sizes of their values, ascending.
    preloaded: Arc<[(u64, u32)]>,
    keys: usize,
    merged: usize,
    code: KeyCode,
    next: usize,
}

/// An operation, in as few bytes as possible.
#[derive(Debug, Clone, Copy)]
struct Step {
    key: u64,
    value_bytes: u32,
    kind: OperationKind,
}

/// Each key's place in the text, with its operation.
type Lines = Vec<(Range<usize>, Step)>;

/// The distinct keys of lines, ascending.
fn strings<'t>(text: &'t [u8], lines: &Lines) -> Vec<&'t [u8]> {
    let mut strings: Vec<&[u8]> = lines.iter().map(|(range, _)| &text[range.clone()]).collect();
    strings.sort_unstable();
    strings.dedup();
    strings
}

impl Trace {
    /// Reads the first `most` operations of a trace; `name` is for error messages. Empty lines are passed over.
    ///
    /// Values are as long as the trace says, but at least [`STAMPED_BYTES`] so that each can say which write it comes
    /// from.
    ///
    /// # Errors
    /// With the line, when the input fails or a line has another format; when there is no line.
    pub fn read(name: &str, input: impl BufRead, most: usize) -> Result<Self, TraceError> {
        let (text, lines) = Self::lines(name, input, most)?;
        let strings = strings(&text, &lines);
        let code = KeyCode::of(strings.iter().copied());
        let of = |string: &[u8]| code.key(string);
        let (steps, first) = Self::steps(&text, lines, of);
        let merged = strings.len() - first.len();
        Ok(Self::of(steps, first, merged, code))
    }

    /// Reads operations as [`read`](Self::read) does, for a structure of keys of bytes: each string is a key, by its number among the names.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_named(name: &str, input: impl BufRead, most: usize) -> Result<(Self, Names), TraceError> {
        let (text, lines) = Self::lines(name, input, most)?;
        let strings = strings(&text, &lines);
        let (names, code) = (Names::of(&strings).0, KeyCode::of(strings.iter().copied()));
        let of = |string: &[u8]| names.number(string).expect("each string has a number");
        let (steps, first) = Self::steps(&text, lines, of);
        Ok((Self::of(steps, first, 0, code), names))
    }

    /// Reads lines: the text of all keys, and each key's place in it with its operation, of which the key is still missing.
    fn lines(name: &str, mut input: impl BufRead, most: usize) -> Result<(Vec<u8>, Lines), TraceError> {
        let (mut text, mut lines): (Vec<u8>, Lines) = (Vec::new(), Vec::new());
        let (mut line, mut number) = (Vec::new(), 0);
        while lines.len() < most {
            line.clear();
            number += 1;
            let read = (&mut input).take(LONGEST_LINE).read_until(b'\n', &mut line);
            let io = |error| TraceError::Io { name: name.to_owned(), line: number, error };
            let read = read.map_err(io)?;
            let bad = |bad| TraceError::Line { name: name.to_owned(), line: number, bad };
            if read as u64 == LONGEST_LINE {
                return Err(bad(BadLine::Long { most: LONGEST_LINE }));
            }
            if read == 0 {
                break;
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            let Line { key, value_bytes, operation, .. } = Line::parse(line.trim_ascii()).map_err(bad)?;
            if value_bytes > MAX_VALUE {
                return Err(bad(BadLine::Value { found: value_bytes, most: MAX_VALUE }));
            }
            let from = text.len();
            text.extend_from_slice(key);
            lines.push((from..text.len(), Step { key: 0, value_bytes, kind: operation.kind() }));
        }
        if lines.is_empty() {
            return Err(TraceError::Empty { name: name.to_owned() });
        }
        Ok((text, lines))
    }

    /// Operations, and the keys with the sizes of the values that they have at first, if they are there then.
    fn steps(
        text: &[u8],
        lines: Lines,
        key: impl Fn(&[u8]) -> u64,
    ) -> (Vec<Step>, BTreeMap<u64, Option<u32>>) {
        let mut first: BTreeMap<u64, Option<u32>> = BTreeMap::new();
        let steps = lines
            .into_iter()
            .map(|(range, step)| {
                let key = key(&text[range]);
                let makes = matches!(step.kind, OperationKind::Put | OperationKind::Insert);
                let value_bytes = step.value_bytes.max(STAMPED_BYTES as u32);
                let found = (!makes && step.value_bytes > 0).then_some(value_bytes);
                first.entry(key).or_insert(found);
                Step { key, value_bytes, ..step }
            })
            .collect();
        (steps, first)
    }

    fn of(steps: Vec<Step>, first: BTreeMap<u64, Option<u32>>, merged: usize, code: KeyCode) -> Self {
        let keys = first.len();
        let preloaded = first.into_iter().filter_map(|(key, found)| Some((key, found?))).collect();
        Self { steps: steps.into(), preloaded, keys, merged, code, next: 0 }
    }

    /// Number of operations.
    #[expect(clippy::len_without_is_empty, reason = "a trace has at least one operation")]
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Number of distinct keys.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// Number of strings that share the key of another one.
    pub fn merged(&self) -> usize {
        self.merged
    }

    /// Map from strings to keys.
    pub fn code(&self) -> &KeyCode {
        &self.code
    }

    /// Keys that are there before the first operation, ascending, and the bytes of their values.
    pub fn preloaded(&self) -> impl Iterator<Item = (u64, u32)> {
        self.preloaded.iter().copied()
    }

    /// Bytes of the value that a key has before the first operation; `None` if it is absent then.
    pub fn preloaded_bytes(&self, key: u64) -> Option<u32> {
        let at = self.preloaded.binary_search_by_key(&key, |(key, _)| *key).ok()?;
        Some(self.preloaded[at].1)
    }

    /// Number of operations of a kind.
    pub fn count(&self, kind: OperationKind) -> usize {
        self.steps.iter().filter(|step| step.kind == kind).count()
    }
}

impl Operations for Trace {
    fn next_operation(&mut self) -> Result<Operation, WorkloadError> {
        let Some(Step { key, value_bytes, kind }) = self.steps.get(self.next).copied() else {
            return Err(WorkloadError::TraceEnded { operations: self.steps.len() });
        };
        let record = self.next as u64;
        self.next += 1;
        Ok(Operation { kind, record, key, scan_length: 0, value_bytes: Some(value_bytes), program: None })
    }

    fn acknowledge_insert(&mut self, _: u64) {}
}

#[cfg(test)]
mod tests;
