//! The tables on memory servers of production, in a simulated network.

mod deaths;
mod missing;
mod model;
