//! Histories of clients' calls and answers, and the check that they can be explained.
//!
//! ```text
//!   client 0   |--- upsert 7 ---|              |-- get: 7 --|
//!   client 1          |--- get: 7 ---|   |--- delete: applied ---|
//!   client 2        |--- insert 9 ... (the client died: it took effect, or will, or never)
//!              ───────────────────────────────────────────────────────► time
//!   explained by: upsert 7, get: 7, get: 7, delete
//! ```
//!
//! A history is *linearizable* if one order of all operations on a key explains it (Herlihy and Wing 1990). In this
//! order each operation lies between its call and its answer, and each answer is right. Operations whose answer was
//! lost may take effect at any later time, or never.
//!
//! A range scan counts as a get of each key in its range. Each get has a time of its own between the scan's call and
//! its answer. So a key that was there throughout must be found, and one that was absent throughout must not. A value
//! must be one that was there meanwhile. One order must explain these gets together with the other operations'
//! answers.
//!
//! * [`History`]: records calls, answers and scans; [`check`](History::check)s them.
//! * [`Transactions`]: the same for transactions on several keys, which must be strictly serializable.
//! * [`Call`], [`Answer`]: the operations. [`Violation`]: the answer that cannot be explained, and what was around it.
//!
//! # Example
//!
//! ```
//! use fatbtree_sim::history::{Answer, Call, History};
//! use fatbtree_verbs::time::Instant;
//!
//! let at = Instant::from_nanos;
//! let history = History::default();
//! let write = history.ask("client 0", at(0), 5, Call::Upsert(7));
//! history.answer(write, at(10), Answer::Applied);
//! let read = history.ask("client 1", at(20), 5, Call::Get);
//! history.answer(read, at(30), Answer::Found(None));
//! let violation = history.check().unwrap_err().to_string();
//! assert!(violation.starts_with("key 5: no order of operations explains \"get: found nothing\" of client 1"), "{violation}");
//! ```

mod check;
mod operation;
mod record;
mod transactions;

pub use operation::{Answer, Call, Key, Value};
pub use record::{Checked, History, OperationId, ScanId, Violation};
pub use transactions::{Ending, NotSerializable, Serialized, Stamp, TableKey, Transactions};

#[cfg(test)]
mod tests;
