//! YCSB's core workloads: operations of clients, from property files of YCSB's own syntax, drawn from a seed.
//!
//! ```text
//!  a.properties ─▶ Properties ─▶ WorkloadSpec ─┐
//!  keys.txt ─────▶ KeyFile ────▶ KeyMap ───────┼─▶ Workload ─▶ Operation { kind, record, key, scan_length } …
//!  seed ───────────────────────────────────────┘
//! ```
//!
//! ```
//! use fatbtree_workload::ycsb::{KeyMap, Workload, WorkloadSpec, builtin};
//! use fatbtree_workload::{OperationKind, Operations as _};
//!
//! let mut properties = builtin("b")?;
//! properties.set("recordcount", "100000");
//! let spec = WorkloadSpec::from_properties(&properties)?;
//! let mut workload = Workload::new(&spec, KeyMap::from(spec.insert_order), 1)?;
//! let reads = (0..1000).filter(|_| workload.next_operation().is_ok_and(|op| op.kind == OperationKind::Read)).count();
//! assert!((900..1000).contains(&reads));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod builtin;
mod distribution;
mod hash;
mod keys;
mod names;
mod properties;
mod spec;
#[cfg(test)]
mod statistics;
mod zipf;

use std::collections::VecDeque;

use crate::operation::{Operation, OperationKind, Operations};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use thiserror::Error;

pub use builtin::{NAMES as BUILTIN_NAMES, UnknownWorkload, builtin};
pub use distribution::{RequestDistribution, SCRAMBLED_ITEMS, SCRAMBLED_ZETA, ScanLengthDistribution};
pub use hash::fnv_hash64;
pub use keys::{KeyFile, KeyMap};
pub use properties::{Origin, Properties, PropertiesError, Property};
pub use spec::{InsertOrder, Proportions, SpecError, WorkloadSpec};
pub use zipf::{DEFAULT_THETA, ZipfError, Zipfian, zeta};

use distribution::{Chooser, Range, ScanLength};

/// Reasons for which a workload cannot start or go on.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum WorkloadError {
    /// A Zipfian generator cannot be made.
    #[error(transparent)]
    Zipf(#[from] ZipfError),
    /// The key file is shorter than the workload's records.
    #[error(
        "the workload loads {records} records, the key file has {keys} keys; lower recordcount or add keys"
    )]
    TooFewKeys {
        /// Number of records, `recordcount`.
        records: u64,
        /// Distinct keys in the file.
        keys: u64,
    },
    /// All keys of the file are inserted.
    #[error(
        "the insert of record {record} needs a new key, and the key file has only {keys}; add keys or lower operationcount \
         or insertproportion"
    )]
    KeysUsedUp {
        /// The record to insert.
        record: u64,
        /// Distinct keys in the file.
        keys: u64,
    },
    /// All operations of a trace are done.
    #[error("the trace has only {operations} operations; ask for at most as many")]
    TraceEnded {
        /// Operations of the trace.
        operations: usize,
    },
    /// The number of the client is not below the number of clients.
    #[error("expected client < clients and at least 1 client, found client {client} of {clients}")]
    Stride {
        /// Number of this client.
        client: u64,
        /// Number of clients.
        clients: u64,
    },
}

/// An endless, seeded stream of operations; `WorkloadSpec::operation_count` of them are a run.
///
/// Two workloads of equal spec, keys and seed give equal streams, as long as inserts are acknowledged alike.
#[derive(Debug, Clone)]
pub struct Workload {
    rng: ChaCha8Rng,
    /// Upper bounds in [0, 1) of the first four kinds.
    bounds: [f64; 4],
    chooser: Chooser,
    scan_length: ScanLength,
    keys: KeyMap,
    records: u64,
    /// Number of the first new record.
    first_new: u64,
    client: u64,
    clients: u64,
    inserts: Inserts,
}

impl Workload {
    /// The stream of a single client.
    pub fn new(spec: &WorkloadSpec, keys: KeyMap, seed: u64) -> Result<Self, WorkloadError> {
        Self::for_client(spec, keys, seed, 0, 1)
    }

    /// The stream of client number `client` of `clients`: its own random stream of the seed, its own share of
    /// the new record numbers (every `clients`-th). It reads loaded records and its own new ones.
    pub fn for_client(
        spec: &WorkloadSpec,
        keys: KeyMap,
        seed: u64,
        client: u64,
        clients: u64,
    ) -> Result<Self, WorkloadError> {
        if client >= clients {
            return Err(WorkloadError::Stride { client, clients });
        }
        if keys.capacity() < spec.record_count {
            return Err(WorkloadError::TooFewKeys { records: spec.record_count, keys: keys.capacity() });
        }
        let weights = spec.proportions.as_array();
        let sum: f64 = weights.iter().sum();
        let mut bounds = [0.0; 4];
        let mut below = 0.0;
        for (bound, weight) in bounds.iter_mut().zip(weights) {
            below += weight / sum;
            *bound = below;
        }
        // As YCSB: twice the inserts to expect, so that the scrambled range need not change during the run.
        let inserts = spec.operation_count as f64 / clients as f64 * spec.proportions.insert / sum;
        let range = Range {
            start: spec.insert_start,
            count: spec.insert_count,
            records: spec.record_count,
            expected_inserts: (inserts * 2.0) as u64,
        };
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(client);
        Ok(Workload {
            rng,
            bounds,
            chooser: Chooser::new(spec.distribution, range)?,
            scan_length: ScanLength::new(
                spec.scan_length_distribution,
                spec.min_scan_length,
                spec.max_scan_length,
            )?,
            keys,
            records: spec.record_count,
            first_new: spec.record_count,
            client,
            clients,
            inserts: Inserts { next: spec.record_count, pending: VecDeque::new() },
        })
    }

    /// Numbers new records from `first` on, or from after the loaded ones if that is more. Runs one after the other
    /// then do not insert the same keys.
    #[must_use]
    pub fn inserting_from(self, first: u64) -> Self {
        Self { first_new: first.max(self.records), ..self }
    }

    fn insert(&mut self) -> Result<Operation, WorkloadError> {
        let record = self.global(self.inserts.next);
        let key =
            self.keys.key(record).ok_or(WorkloadError::KeysUsedUp { record, keys: self.keys.capacity() })?;
        self.inserts.next += 1;
        self.inserts.pending.push_back(false);
        Ok(Operation {
            kind: OperationKind::Insert,
            record,
            key,
            scan_length: 0,
            value_bytes: None,
            program: None,
        })
    }

    /// Key of a record, as the loader needs it.
    pub fn key(&self, record: u64) -> Option<u64> {
        self.keys.key(record)
    }

    /// Number of a record over all clients. A client counts its new records on without gaps; over all clients they
    /// interleave.
    fn global(&self, record: u64) -> u64 {
        match record.checked_sub(self.records) {
            Some(beyond) => self.first_new + beyond * self.clients + self.client,
            None => record,
        }
    }
}

impl Operations for Workload {
    /// Fails only if an insert finds the key file used up.
    #[inline]
    fn next_operation(&mut self) -> Result<Operation, WorkloadError> {
        let u = self.rng.random::<f64>();
        let kind = OperationKind::ALL[self.bounds.iter().filter(|bound| u >= **bound).count()];
        if kind == OperationKind::Insert {
            return self.insert();
        }
        let last = self.inserts.acknowledged() - 1;
        let drawn = self.chooser.draw(&mut self.rng, last);
        let record = self.global(drawn);
        let key = self.keys.key(record).expect("records that exist were given their key when made");
        let scan_length = if kind == OperationKind::Scan { self.scan_length.draw(&mut self.rng) } else { 0 };
        Ok(Operation { kind, record, key, scan_length, value_bytes: None, program: None })
    }

    /// The record of the insert may be drawn once all inserts before it are in the tree, too. Unknown or repeated record
    /// numbers change nothing.
    fn acknowledge_insert(&mut self, record: u64) {
        let Some(beyond) = record.checked_sub(self.first_new) else { return };
        if beyond % self.clients == self.client {
            self.inserts.acknowledge(self.records + beyond / self.clients);
        }
    }
}

/// New records: drawn in order, acknowledged in any.
#[derive(Debug, Clone)]
struct Inserts {
    next: u64,
    /// Whether each record drawn and not yet passed is acknowledged. The front never is.
    pending: VecDeque<bool>,
}

impl Inserts {
    /// Number of records that may be drawn from.
    fn acknowledged(&self) -> u64 {
        self.next - self.pending.len() as u64
    }

    fn acknowledge(&mut self, record: u64) {
        let Some(at) = record.checked_sub(self.acknowledged()) else { return };
        if let Some(pending) = self.pending.get_mut(at as usize) {
            *pending = true;
        }
        while self.pending.front() == Some(&true) {
            self.pending.pop_front();
        }
    }
}

#[cfg(test)]
mod tests;
