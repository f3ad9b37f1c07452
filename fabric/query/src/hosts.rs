//! Shares of a server's resources by host, and their bounds.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// Shares of one host.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct HostShare {
    /// Number of known clients.
    pub(crate) clients: usize,
    /// Bytes of partially received values.
    pub(crate) waiting: u64,
    /// Places taken by requests in progress.
    pub(crate) places: usize,
}

/// Shares of all hosts that hold something. The key `None` stands for all peers that have not proved their addresses.
/// They share what one host may have, however many addresses they claim.
#[derive(Debug, Default)]
pub(crate) struct Hosts {
    hosts: BTreeMap<Option<IpAddr>, HostShare>,
    all: HostShare,
}

impl Hosts {
    /// Resources of a host.
    pub(crate) fn of(&self, host: Option<IpAddr>) -> HostShare {
        self.hosts.get(&host).copied().unwrap_or_default()
    }

    /// Resources of all hosts together.
    pub(crate) fn all(&self) -> HostShare {
        self.all
    }

    /// Takes places for a request, out of `most` in all; returns false if the host has too many. A host may have as
    /// many as are left for others. One host alone has half of them, and each further host up to half of the rest.
    pub(crate) fn take_places(&mut self, host: Option<IpAddr>, places: usize, most: usize) -> bool {
        let free = most.saturating_sub(self.all.places);
        if self.of(host).places + places > free {
            return false;
        }
        self.change(host, |held| held.places += places);
        true
    }

    /// Changes what a host holds.
    pub(crate) fn change(&mut self, host: Option<IpAddr>, change: impl Fn(&mut HostShare)) {
        let held = self.hosts.entry(host).or_default();
        let before = *held;
        change(held);
        let HostShare { clients, waiting, places } = *held;
        self.all.clients = self.all.clients - before.clients + clients;
        self.all.waiting = self.all.waiting - before.waiting + waiting;
        self.all.places = self.all.places - before.places + places;
        if *held == HostShare::default() {
            self.hosts.remove(&host);
        }
    }

    /// The host with the largest share, and that share.
    pub(crate) fn fullest<T: Ord>(&self, share: impl Fn(&HostShare) -> T) -> Option<(IpAddr, T)> {
        let hosts = self.hosts.iter().filter_map(|(host, held)| Some((share(held), (*host)?)));
        hosts.max().map(|(share, host)| (host, share))
    }
}
