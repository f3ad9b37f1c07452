//! The hash table on memory servers of production, in a simulated network.

mod load;
mod model;
mod sweep;
