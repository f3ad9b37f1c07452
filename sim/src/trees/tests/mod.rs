//! What the campaign promises.

mod missing;
mod misuse;
mod seeds;
