//! Published figures in virtual time: those of Sherman, of the Fat-B+Tree paper, of SMART and of Dolphin; and all structures side by side.
//!
//! Sherman's figures 10 and 11 show the effect of each technique on writes; another figure shows the effect of
//! switches on reads. Figures 7 to 9 of the Fat-B+Tree paper show the effect of skew, nodes and layers on lookups. SMART's
//! figures 3, 4 and 13 and its table 1 show how threads of one client share a card, and figure 12 what speculative lookups save.
//!
//! ```text
//!   8 clients × 16 operations at once ── cards, links, buckets of atomics ── 8 memory servers, trees bulk loaded
//!        │ Pool with Techniques, IndexCache        (card)                      lock tables in memory or on the card
//!        └─ the code that runs in production                                   no faults
//! ```
//!
//! The code is that of the index. Time is a model of cards, buses, links and threads in a named calibration of published
//! clusters: requests wait for each other where they do there. Every answer is checked. A run follows from its seed. Results: `sim/figures/FIGURES.md`.

mod bench;
mod card;
mod column;
mod dolphin;
mod fat_btree;
mod figures;
mod key_kinds;
mod locks;
mod meter;
mod reads;
mod replay;
mod rig;
mod smart;
mod structures;
mod table;
mod writes;

use fatbtree_workload::ycsb::DEFAULT_THETA;
use serde::Serialize;

pub use dolphin::published;
pub use figures::{FIGURES, Figure, Made, Paper};
pub use smart::Check;
pub use structures::measured;
pub use table::Table;

/// Size of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Keys that operations are about. Of three, two are in the tree at first: that is about the share of insertions that find
    /// their key in Sherman's workloads (section 5.1.3).
    pub keys: u64,
    /// Operations that each of the 8 clients has in flight.
    pub depth: u32,
    /// Virtual time before anything is measured, in µs.
    pub warm_up_us: u64,
    /// Virtual time that is measured, in µs.
    pub window_us: u64,
    /// Decides everything else.
    pub seed: u64,
}

impl Default for Size {
    fn default() -> Self {
        Self { keys: 1_500_000, depth: 16, warm_up_us: 1_000, window_us: 5_000, seed: 1 }
    }
}

/// Distribution of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Skew {
    /// Zipf with YCSB's 0.99 (figure 10).
    Skewed,
    /// Zipf with 0.95.
    Zipf95,
    /// Zipf with 0.9.
    Zipf90,
    /// All alike (figure 11).
    Uniform,
}

impl Skew {
    /// Name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Skewed => "Zipf 0.99",
            Self::Zipf95 => "Zipf 0.95",
            Self::Zipf90 => "Zipf 0.9",
            Self::Uniform => "uniform",
        }
    }

    /// Zipf's exponent; none where all keys are alike.
    fn theta(self) -> Option<f64> {
        match self {
            Self::Skewed => Some(DEFAULT_THETA),
            Self::Zipf95 => Some(0.95),
            Self::Zipf90 => Some(0.9),
            Self::Uniform => None,
        }
    }
}

/// Mix of operations (Sherman table 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mix {
    /// Insertions only, which overwrite what is there.
    WriteOnly,
    /// Half insertions, half lookups.
    WriteIntensive,
    /// 5 % insertions.
    ReadIntensive,
    /// Lookups only.
    ReadOnly,
}

impl Mix {
    fn writes_percent(self) -> u32 {
        match self {
            Self::WriteOnly => 100,
            Self::WriteIntensive => 50,
            Self::ReadIntensive => 5,
            Self::ReadOnly => 0,
        }
    }
}

#[cfg(test)]
mod tests;
