//! The index on memory servers of production, in a simulated network.

mod away;
mod campaign;
mod damage;
mod died;
mod dropped;
mod forged;
mod lengths;
mod load;
mod missing;
mod model;
mod room;
mod servers;
mod stale;
mod sweep;
