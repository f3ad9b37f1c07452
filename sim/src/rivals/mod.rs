//! Several controllers over the same switches: they are started, killed, frozen and cut off from switches at any time.
//!
//! ```text
//!   Process { Election or Controller } ── sessions, late writes ──► compiled switches, which elect a primary each
//!        ▲      ▲      ▲
//!        └──────┴──────┴── memory servers, which register with the controller that leads; an operator that reloads
//! ```
//!
//! The election, the reconciler and the switches with their arbitration are the real ones. In the end faults stop.
//! Then one controller leads, stays primary, has all registrations and carries out a reload, and all switches hold
//! exactly what it wants.

mod process;
mod run;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

counters! {
    /// Results of scenarios.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
    pub struct Outcome {
        /// Scenarios.
        pub runs: u64,
        /// Terms that controllers began.
        pub terms: u64,
        /// Terms that ended because a switch had a higher bid.
        pub put_out: u64,
        /// Candidacies that were given up because another controller led.
        pub gave_up: u64,
        /// Writes that a switch refused because another controller was primary.
        pub refused: u64,
        /// Reloads that were carried out.
        pub reloads: u64,
        /// Plans that a controller had kept, and found active.
        pub resumed: u64,
    }
}

/// Runs the scenario of a seed.
///
/// # Errors
/// Two leaders at the end, or none. A leader that changes without cause, or begins beside one that all switches name.
/// A registration or a reload that is not carried out. A switch that holds something else. A plan that is taken for
/// another one of the same epoch.
pub fn run(seed: u64) -> Result<Outcome, String> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let controllers = random.random_range(2..=3);
    run::World::new(random, controllers)?.finish()
}
