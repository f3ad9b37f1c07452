//! Campaign `trees`: clients that mostly look keys up, while clients change the trees under them and switches give them stale hints.
//!
//! Its scenarios are those of [`writers`](crate::writers) with [other odds](crate::writers::Scenario::reading): few retries, memory
//! that tears more often, superblocks that stay torn, and litter beside the trees.
//!
//! ```text
//!   switches: caches that are old, litter included
//!        │ index reads of 4 clients
//!        ▼
//!   ┌──────────────────────── memory servers ────────────────────────┐
//!   │ superblock │ tree that was loaded │ litter │ chunks of clients │
//!   └────────────────────────────────────────────────────────────────┘
//! ```
//!
//! The seeds find each [`Check`](fatbtree_blink::Check) that is missing: tests say so.
//!
//! ```
//! let outcome = fatbtree_sim::writers::Scenario::reading(7).run().expect("every answer is explained");
//! assert!(outcome.found > 0 && outcome.applied > 0);
//! ```

pub(crate) mod litter;
pub(crate) mod switches;
pub(crate) mod values;

#[cfg(test)]
mod tests;
