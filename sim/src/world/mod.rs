//! The verbs-level simulator: machines whose network cards, memories and clocks are values that follow from a seed.
//!
//! ```text
//!   tasks of a client            tasks of a client          the operator: kills, freezes, cuts, reloads
//!        │ futures                    │                          │
//!   ┌────▼────┐                  ┌────▼────┐                     │          the seed decides
//!   │ Reactor │                  │ Reactor │                     │
//!   └────┬────┘                  └────┬────┘                     │          which ready task runs first
//!   ┌────▼──────┐                ┌────▼──────┐                   │
//!   │ SimDevice │                │ SimDevice │                   │
//!   └────┬──────┘                └────┬──────┘                   ▼
//!   ═════╪════════ one event after the other, in virtual time ═════════     how long everything takes (Timing)
//!        │ requests   ┌──────────┐    │                                     what is lost, late, cut short
//!        └───────────►│ Switches │◄───┘                                     where index reads land
//!                     └────┬─────┘
//!                     ┌────▼──────┐
//!                     │ SimDevice │ READs and WRITEs touch Memory           when each line is touched
//!                     └───────────┘ line by line                            (tearing)
//! ```
//!
//! Nothing here has frames: a request is one message, so millions of operations a minute can be tried. The simulator
//! behaves as the contract of [`Verbs`](fatbtree_verbs::Verbs) allows, at its worst where the options say so. A READ
//! is a mixture of what was written while it went on, and may see WRITEs that were posted after it. A WRITE that is
//! lost half way stays half written until it is sent again, or for good if its client dies. A READ whose answer was
//! lost is read again, and an index read may land elsewhere the second time.
//!
//! * [`World`]: makes machines, runs until something holds. [`Machine`]: runs tasks, dials, dies, boots, freezes.
//! * [`SimDevice`]: its card, a [`Verbs`](fatbtree_verbs::Verbs) that passes the conformance suite.
//! * [`Options`], [`MachineOptions`]: how rough it is. [`Timing`], [`ServiceTimes`]: how long things take, for the thread
//!   of a machine, too.
//! * [`Switches`], [`CachedSwitches`]: where index reads land.
//! * [`World::final_phase`]: after the faults, everything must succeed again.
//! * [`trial`]: a structure under a list of faults, and the list of properties that hold afterwards.
//!
//! **Determinism.** One thread; ordered maps; every number is drawn from [`Random`]s that the seed made; no clock. Two runs of a
//! seed have the same [`fingerprint`](World::fingerprint).
//!
//! # Example
//!
//! Two clients increment a counter in a server's memory; one of them dies on the way.
//!
//! ```
//! use fatbtree_sim::world::{MachineOptions, Options, World};
//! use fatbtree_verbs::time::Duration;
//! use fatbtree_verbs::{Access, Device, Memory, Operation, Remote};
//!
//! let world = World::new(7, Options::default());
//! let server = world.machine(MachineOptions::named("server"));
//! let memory = Memory::shared(4096)?;
//! let region = server.reactor().with(|card| card.register(&memory, 0, Access::ALL))?;
//!
//! let clients = ["one", "two"].map(|name| world.machine(MachineOptions::named(name)));
//! let tasks = clients.each_ref().map(|client| {
//!     let (client, server) = (client.clone(), server.clone());
//!     client.clone().spawn(async move {
//!         let queue_pair = client.dial(&server).await.unwrap();
//!         let at = Remote { address: 64, rkey: region.rkey };
//!         for _ in 0..100 {
//!             client.reactor().chain(queue_pair, [Operation::FetchAdd { at, add: 1 }]).await.unwrap();
//!         }
//!     })
//! });
//! clients[1].kill_after_polls(50);
//! world.run_until(|| tasks.iter().all(|task| task.has_ended()), Duration::from_secs(1))?;
//! let count = memory.update(64, |count| count)?;
//! assert!((101..200).contains(&count), "{count}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod access;
mod device;
mod driven;
mod events;
mod executor;
mod fabric;
mod keeping;
mod liveness;
mod machine;
mod options;
mod pair;
mod pool;
mod processor;
mod run;
mod send;
mod serve;
mod shared;
mod switches;
mod timing;
pub mod trial;

pub use device::SimDevice;
pub use driven::{Driven, MachineReactor};
pub use liveness::{FinalOperation, NotLive};
pub use machine::{DialError, Machine, Task, Unreachable};
pub use options::{Calls, Duplicates, LinkFaults, MachineOptions, Options, Retry, Rkeys, Tearing};
/// Numbers that follow from a seed. The same generator on every platform and in every version.
pub use rand_chacha::ChaCha8Rng as Random;
pub use run::{Counts, Stuck, World};
pub use switches::{CachedSwitches, IndexRead, NoSwitches, Passage, Resolved, Switches};
pub use timing::{Kind, Posting, Sending, ServiceTimes, Serving, Timing, Work};

/// A machine of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct MachineId(pub u32);

/// Random numbers for one purpose. The generators of one seed are independent of each other, so that drawing more for
/// one purpose does not change the others.
#[must_use]
pub fn random(seed: u64, purpose: u64) -> Random {
    use rand::SeedableRng as _;
    let mut random = Random::seed_from_u64(seed);
    random.set_stream(purpose);
    random
}

#[cfg(test)]
mod tests;
