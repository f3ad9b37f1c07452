//! Reactor that a machine's tasks use: one of its own, or that of a client that has its own.

use std::fmt;
use std::ops::Deref;
use std::rc::Rc;

use fatbtree_blink::{Pool, RemoteMemory};
use fatbtree_blink_client::Client;
use fatbtree_remote_memory::{Kept as _, Spread, SpreadClient};
use fatbtree_verbs::Reactor;
use fatbtree_verbs::time::Instant;

use super::device::SimDevice;

/// Receiver of a notice when something has come for a machine. A card has one reactor, which polls it: a
/// client that brings its own is given to its machine by [`Machine::set_driven`](super::Machine::set_driven).
pub trait Driven {
    /// The reactor, over the card of the machine's present life.
    fn reactor(&self) -> &Reactor<SimDevice>;

    /// Takes what has come by `now`.
    fn turn(&self, now: Instant);
}

impl Driven for Reactor<SimDevice> {
    fn reactor(&self) -> &Reactor<SimDevice> {
        self
    }

    fn turn(&self, now: Instant) {
        Reactor::turn(self, now);
    }
}

impl Driven for RemoteMemory<SimDevice> {
    fn reactor(&self) -> &Reactor<SimDevice> {
        RemoteMemory::reactor(self)
    }

    fn turn(&self, now: Instant) {
        RemoteMemory::turn(self, now);
    }
}

impl Driven for Pool<SimDevice> {
    fn reactor(&self) -> &Reactor<SimDevice> {
        RemoteMemory::reactor(self)
    }

    fn turn(&self, now: Instant) {
        RemoteMemory::turn(self, now);
    }
}

impl<S: Spread<Verbs = SimDevice>> Driven for SpreadClient<S> {
    fn reactor(&self) -> &Reactor<SimDevice> {
        RemoteMemory::reactor(self.remote())
    }

    fn turn(&self, now: Instant) {
        RemoteMemory::turn(self.remote(), now);
    }
}

impl Driven for Client<SimDevice> {
    fn reactor(&self) -> &Reactor<SimDevice> {
        self.pool().reactor()
    }

    fn turn(&self, now: Instant) {
        Client::turn(self, now);
    }
}

/// The reactor of one life of a machine.
#[derive(Clone)]
pub struct MachineReactor(pub(super) Rc<dyn Driven>);

impl Deref for MachineReactor {
    type Target = Reactor<SimDevice>;

    fn deref(&self) -> &Reactor<SimDevice> {
        self.0.reactor()
    }
}

impl fmt::Debug for MachineReactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.reactor().fmt(f)
    }
}
