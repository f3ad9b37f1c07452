//! The smallest structure at both ends: counters by number, one a cache line, in an array on each server that the region's header names.
//!
//! ```text
//!   layout   Shape, what a header says        client   array: Counters, a Structure and a Spread
//!                                             server   part: Array, a Tenant and a Part
//! ```
//!
//! Counter `n` lies on server `n mod servers`. The first client that opens the structure makes the arrays, in memory that servers give it.

mod array;
pub(crate) mod layout;
mod part;

pub(crate) use array::Counters;
pub(crate) use layout::Shape;
pub(crate) use part::Array;
