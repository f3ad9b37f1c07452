//! A small program's P4Info, shaped like p4c's output, for this crate's own tests.

/// Two node sets with a `child` table each, a range table, an LPM table, a const table and counters.
pub(crate) const P4INFO: &str = include_str!("../testdata/small.p4info.txtpb");
