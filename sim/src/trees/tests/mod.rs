//! What the scenarios promise.

mod seeds;
