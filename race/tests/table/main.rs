//! The hash table on memory servers of production, in a simulated network.

mod lab;
mod model;
mod campaign;
mod load;
mod missing;
