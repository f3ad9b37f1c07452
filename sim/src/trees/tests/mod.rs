//! Promises of the campaign.

mod missing;
mod misuse;
mod seeds;
