//! Scenarios with trees in the [world](crate::world): clients look up keys while writers change the trees under them, machines die
//! and come back, and switches lead index reads astray.
//!
//! ```text
//!   clients: Client<SimDevice>, many lookups at a time        one writer a tree: upserts, splits, merges, recycling
//!        │ index reads, READs                                      │ WRITEs, torn, lost, cut short
//!   switches: caches that are old, litter included                 │
//!        ▼                                                         ▼
//!   ┌───────────────────────── memory servers ─────────────────────────┐      fate: deaths, freezes, cut links, reloads
//!   │ superblock │ records │ litter │ nodes, used again at any level   │
//!   └──────────────────────────────────────────────────────────────────┘
//!        │ each get and each write
//!     History ──► linearizable?       at the end: all is healed, and each lookup must succeed
//! ```
//!
//! * [`Scenario`], [`Outcome`]: one seed.
//! * [`Rule`]: what writers promise. A scenario whose writers [break](Scenario::breaking) one is found out by some seed, and so is
//!   each [`Check`](fatbtree_blink::Check) that is not made: tests say so.
//!
//! # Example
//!
//! ```
//! let outcome = fatbtree_sim::trees::Scenario::from_seed(7).run().expect("every answer is explained");
//! assert!(outcome.found > 0 && outcome.changes > 0);
//! ```

mod bytes;
mod clients;
mod fate;
mod litter;
mod misuse;
mod model;
mod rules;
mod run;
mod scenario;
mod setting;
mod space;
pub(crate) mod switches;
pub(crate) mod values;
mod writer;

pub use rules::Rule;
pub use scenario::{Outcome, Scenario, ScenarioError};

#[cfg(test)]
mod tests;
