//! The hash table on memory servers of production, in a simulated network.

mod load;
mod memory;
mod model;
mod room;
mod settle;
mod sweep;
