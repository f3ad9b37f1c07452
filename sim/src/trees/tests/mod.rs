//! What the scenarios promise.

mod missing;
mod seeds;
