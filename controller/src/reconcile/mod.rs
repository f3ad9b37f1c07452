//! Making switches hold what they should, whatever they hold.
//!
//! ```text
//!   base, connections, plans ──► Desired ──wanted(switch)──► Wanted ─┐
//!                                                                    ├─next_changes()──► written to the switch ──► Observed::apply
//!   read back from the switch ─────────────────────────────► Observed ─┘         ▲                                     │
//!                                                                             └───────── until there are none ──────┘
//! ```
//!
//! One mechanism does it all. A reload changes what is desired, three times. A switch that came back empty holds nothing, so everything is
//! added. A controller that was killed half-way through a reload reads back what there is, and the rest follows: what belongs to the
//! epoch active stays, what was written of the next one goes, and so does what was to be deleted.
//!
//! A [`Keeper`] does so with one switch: it is the protocol, and its driver the I/O.

mod controller;
mod desired;
mod keeper;
mod observed;
mod pace;
mod roots;
#[cfg(test)]
mod several;
#[cfg(test)]
mod tests;
mod wanted;

pub use controller::{
    Controller, Generation, Generations, Notice, Refused, Registration, Stage, SwitchState,
};
pub use desired::{Active, Desired, Loaded};
pub use keeper::{Keeper, KeeperAnswer, KeeperNotice, KeeperRequest};
pub use observed::Observed;
pub use pace::Pace;
pub use wanted::{Serving, Wanted};
