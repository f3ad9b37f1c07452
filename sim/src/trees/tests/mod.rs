//! What the scenarios promise.

mod missing;
mod model;
mod seeds;
