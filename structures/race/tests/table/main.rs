//! The hash table on memory servers of production, in a simulated network.

mod asked;
mod away;
mod damage;
mod export;
mod forged;
mod laid;
mod load;
mod long;
mod memory;
mod model;
mod names;
mod quiet;
mod rivals;
mod room;
mod settle;
mod split;
mod sweep;
mod woken;
