//! Dead parts of a network.

use std::collections::BTreeSet;

use crate::network::{Network, Peer, SwitchId};

/// Dead switches and cables. A host's failure is that of its cable.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outages {
    /// Switches that forward nothing.
    pub switches: BTreeSet<SwitchId>,
    /// Cables that carry nothing, each by the switch and port at one of its ends; either end will do.
    pub links: BTreeSet<(SwitchId, u16)>,
}

impl Outages {
    /// No outage.
    pub fn none() -> Self {
        Self::default()
    }

    /// Whether nothing is down.
    pub fn is_empty(&self) -> bool {
        self.switches.is_empty() && self.links.is_empty()
    }

    /// Whether packets that leave `switch` by `port` arrive: it is wired, the cable and both ends of it are up.
    pub fn carries(&self, network: &Network, switch: SwitchId, port: u16) -> bool {
        let is_up = |switch: SwitchId, port: u16| {
            !self.switches.contains(&switch) && !self.links.contains(&(switch, port))
        };
        is_up(switch, port)
            && match network.peer(switch, port) {
                None => false,
                Some(Peer::Host(_)) => true,
                Some(Peer::Switch { switch, port }) => is_up(switch, port),
            }
    }
}
