//! Operations on records, and sources that draw them.

use crate::transactions::{Program, TransactionKind};
use crate::ycsb::WorkloadError;

/// Kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OperationKind {
    /// Reads a record.
    Read,
    /// Overwrites an existing record.
    Update,
    /// Adds a record.
    Insert,
    /// Reads a number of records in key order, from one on.
    Scan,
    /// Reads a record, then overwrites it.
    ReadModifyWrite,
    /// Sets a record, whether it exists or not.
    Put,
    /// Takes a record away.
    Delete,
    /// Reads and changes several records, or none.
    Transaction(TransactionKind),
}

impl OperationKind {
    /// All kinds on one record or a range: those of [`Proportions::as_array`](crate::ycsb::Proportions::as_array) in its order, then those that
    /// only traces have.
    pub const ALL: [OperationKind; 7] =
        [Self::Read, Self::Update, Self::Insert, Self::Scan, Self::ReadModifyWrite, Self::Put, Self::Delete];

    /// Name in reports, as in YCSB's.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "READ",
            Self::Update => "UPDATE",
            Self::Insert => "INSERT",
            Self::Scan => "SCAN",
            Self::ReadModifyWrite => "READ-MODIFY-WRITE",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
            Self::Transaction(kind) => kind.name(),
        }
    }
}

/// One operation to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// Kind of the operation.
    pub kind: OperationKind,
    /// Record number; pass that of an insert to [`Operations::acknowledge_insert`] when it is done.
    pub record: u64,
    /// Key of the record.
    pub key: u64,
    /// Records to read from `key` on; 0 unless it is a scan.
    pub scan_length: u32,
    /// Bytes of the value to write; `None` if all values of the run have the same length.
    pub value_bytes: Option<u32>,
    /// What to do, if it is a transaction.
    pub program: Option<Program>,
}

/// A source of operations: a [workload](crate::ycsb::Workload) or a [trace](crate::trace::Trace).
pub trait Operations {
    /// Draws the next operation.
    ///
    /// # Errors
    /// When there is none: the source has come to its end.
    fn next_operation(&mut self) -> Result<Operation, WorkloadError>;

    /// Notes that the insert of a record is done.
    fn acknowledge_insert(&mut self, record: u64);
}
