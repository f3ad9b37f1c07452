//! The tables on memory servers of production, in a simulated network.

mod begun;
mod deaths;
mod fills;
mod forged;
mod laid;
mod missing;
mod model;
mod older;
mod once;
mod recoveries;
mod scene;
mod seats;
