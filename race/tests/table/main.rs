//! The hash table on memory servers of production, in a simulated network.

mod campaign;
mod lab;
mod load;
mod missing;
mod model;
