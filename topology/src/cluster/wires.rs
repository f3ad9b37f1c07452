//! Places of the ends of the network's cables, when roles are processes.
//!
//! The rule: cable n of [`Network::links`] has its upper end at UDP port `first_port + 2n`, its lower end at `first_port + 2n + 1`. No port
//! is written twice, and all processes that read the same file find each other. The file may put a switch or host on another machine,
//! and an end at another port or on a network interface.
//!
//! A client's host may have a range of UDP ports instead of one. Each client process there takes a free one, its *seat*, and the address that
//! belongs to the seat. The switch knows a client's UDP port by the address to which a frame goes.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;

use toml::Spanned;

use super::Client;
use super::error::ClusterProblem as Problem;
use super::file::{self, File};
use super::validate::{Check, Checked};
use crate::address::Prefix;
use crate::network::{Host, HostId, Link, Network, Peer, SwitchId};

/// An end of a wire, as the process that has it opens it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Wire {
    /// One Ethernet frame in a UDP datagram.
    Udp {
        /// Address at which this end receives.
        local: SocketAddr,
        /// Address at which the other end receives.
        remote: SocketAddr,
    },
    /// The switch's end of a wire that several clients of a host share.
    Shared {
        /// Address at which this end receives.
        local: SocketAddr,
        /// Each client's IP address on the data path, and the address at which it receives frames.
        clients: Vec<(Ipv4Addr, SocketAddr)>,
    },
    /// A network interface of this name, on the process's machine.
    Packet(String),
    /// A DPDK device of this name, with its arguments, on the process's machine.
    Dpdk(String),
}

/// Place of one client process at a host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seat {
    /// The host, with the IP address of this seat.
    pub host: Host,
    /// The client's end of the wire.
    pub wire: Wire,
}

/// Maximum number of seats of a host.
pub const MAX_SEATS: u16 = 4096;

/// Addresses of all seats but the first of each host.
const SEATS: (Ipv4Addr, u8) = (Ipv4Addr::new(172, 16, 0, 0), 12);

/// An end that cannot be opened.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NoWire {
    /// The file has no `[wires]`.
    #[error(
        "the cluster file does not say where wires are: add a section `[wires]` with `first_port = 12000` (see `fatbtree topology example`)"
    )]
    NotDescribed,
    /// One end is a UDP port, the other a network interface or a DPDK device.
    #[error(
        "{end} is a UDP port, but the other end of its wire, {other}, is {found}: name an interface or a DPDK device for both or for none"
    )]
    Mixed {
        /// This end.
        end: String,
        /// The other.
        other: String,
        /// The other end's kind.
        found: String,
    },
    /// A port that the file leaves out, or a host behind one.
    #[error("{end} has no wire: the `ports` of its switch leave it out")]
    NotWired {
        /// The end.
        end: String,
    },
}

/// An end of a wire by its place in the network.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum End {
    Switch(SwitchId, u16),
    Host(HostId),
}

impl From<Peer> for End {
    fn from(peer: Peer) -> Self {
        match peer {
            Peer::Switch { switch, port } => Self::Switch(switch, port),
            Peer::Host(host) => Self::Host(host),
        }
    }
}

impl End {
    fn name(self, tree: &Network) -> String {
        match self {
            Self::Switch(switch, port) => format!("{}'s port {port}", tree.switch(switch).name()),
            Self::Host(host) => format!("{}'s wire", tree.host(host).name()),
        }
    }
}

/// Place of an end.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Place {
    Udp(SocketAddr),
    Packet { machine: IpAddr, interface: String },
    Dpdk { machine: IpAddr, device: String },
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Udp(address) => write!(f, "UDP port {address}"),
            Self::Packet { machine, interface } => write!(f, "interface {interface} of {machine}"),
            Self::Dpdk { machine, device } => write!(f, "DPDK device {device} of {machine}"),
        }
    }
}

/// Every end of every cable; the first seat's of a host with several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Wires(BTreeMap<End, Place>);

fn higher(address: SocketAddr, by: u16) -> SocketAddr {
    SocketAddr::new(address.ip(), address.port() + by)
}

impl Wires {
    pub(super) fn of_switch(&self, tree: &Network, switch: SwitchId, port: u16) -> Result<Wire, NoWire> {
        let peer = tree.peer(switch, port).expect("asked for ports that are wired");
        let wire = self.between(tree, End::Switch(switch, port), peer.into())?;
        Ok(match (wire, peer) {
            (Wire::Udp { local, remote }, Peer::Host(host)) if tree.address_count(host) > 1 => {
                let client = |n| (tree.address(host, n), higher(remote, n));
                Wire::Shared { local, clients: (0..tree.address_count(host)).map(client).collect() }
            }
            (wire, _) => wire,
        })
    }

    pub(super) fn of_seat(&self, tree: &Network, host: HostId, n: u16) -> Result<Seat, NoWire> {
        let port = tree.host(host).index;
        let wire = self.between(tree, End::Host(host), End::Switch(tree.edge_of(host).id, port))?;
        let wire = match wire {
            Wire::Udp { local, remote } => Wire::Udp { local: higher(local, n), remote },
            other => other,
        };
        Ok(Seat { host: Host { ip: tree.address(host, n), ..tree.host(host).clone() }, wire })
    }

    fn between(&self, tree: &Network, end: End, other: End) -> Result<Wire, NoWire> {
        let place = |end: &End| self.0.get(end).ok_or_else(|| NoWire::NotWired { end: end.name(tree) });
        let mixed = |found| NoWire::Mixed { end: end.name(tree), other: other.name(tree), found };
        match (place(&end)?, place(&other)?) {
            (Place::Packet { interface, .. }, _) => Ok(Wire::Packet(interface.clone())),
            (Place::Dpdk { device, .. }, _) => Ok(Wire::Dpdk(device.clone())),
            (Place::Udp(local), Place::Udp(remote)) => Ok(Wire::Udp { local: *local, remote: *remote }),
            (Place::Udp(_), Place::Packet { interface, .. }) => {
                Err(mixed(format!("the network interface {interface}")))
            }
            (Place::Udp(_), Place::Dpdk { device, .. }) => Err(mixed(format!("the DPDK device {device}"))),
        }
    }
}

/// The file's text for one end, and its field.
type Said<'a> = (&'a Spanned<String>, String);

/// Exceptions to the rule.
#[derive(Default)]
struct Exceptions<'a> {
    switch_machines: BTreeMap<SwitchId, Said<'a>>,
    host_machines: BTreeMap<HostId, Said<'a>>,
    ends: BTreeMap<End, Said<'a>>,
    /// Seats of hosts, where the file gives a range.
    seats: BTreeMap<HostId, u16>,
}

impl Check<'_> {
    /// Places for all ends, and addresses for all seats. Names of switches and hosts have been checked.
    pub(super) fn wires(
        &self,
        tree: &mut Network,
        file: &File,
        clients: &[Client],
    ) -> Checked<Option<Wires>> {
        let exceptions = self.exceptions(tree, file)?;
        self.seats(tree, &exceptions, clients)?;
        let tree = &*tree;
        let Some(rule) = &file.wires else {
            let all = exceptions.switch_machines.values().chain(exceptions.host_machines.values());
            return match all.chain(exceptions.ends.values()).next() {
                None => Ok(None),
                Some((at, field)) => self.refuse(at.span(), field.clone(), Problem::NoWires),
            };
        };
        const PORT: &str = "a first UDP port from 1 low enough that every end of a wire has one up to 65535";
        let span = rule.first_port.span();
        let first: u16 = self.number(&rule.first_port, "wires.first_port", PORT)?;
        let links = tree.links();
        let last = u64::from(first) + 2 * links.len() as u64 - 1;
        if first == 0 || last > u64::from(u16::MAX) {
            let found = format!("{first}, with {} wires", links.len());
            return self.refuse(span, "wires.first_port", Problem::OutOfRange { found, expected: PORT });
        }
        let machine = match &rule.host {
            Some(host) => self.machine(host, "wires.host")?,
            None => IpAddr::from([127, 0, 0, 1]),
        };
        let mut places = BTreeMap::new();
        let mut owners: BTreeMap<Place, End> = BTreeMap::new();
        for (n, Link { upper, port, lower }) in links.into_iter().enumerate() {
            for (side, end) in [End::Switch(upper, port), lower.into()].into_iter().enumerate() {
                let number = first + u16::try_from(2 * n + side).expect("the last one fits");
                let (place, said) = self.place(end, (machine, number), &exceptions)?;
                let seats = match end {
                    End::Host(host) => tree.address_count(host),
                    End::Switch(..) => 1,
                };
                let all = (0..seats).map(|n| match &place {
                    Place::Udp(first) => Place::Udp(higher(*first, n)),
                    other => other.clone(),
                });
                let taken = |place: Place| Some((owners.insert(place.clone(), end)?, place));
                if let Some((owner, place)) = all.filter_map(taken).next() {
                    // An exception is at fault: the rule has no clashes.
                    let (said, other) = match said {
                        Some(said) => (Some(said), owner),
                        None => (exceptions.ends.get(&owner), end),
                    };
                    let (at, field) = said.map_or((span.clone(), "wires.first_port".to_owned()), place_of);
                    let owner = other.name(tree);
                    return self.refuse(at, field, Problem::WireClash { place: place.to_string(), owner });
                }
                places.insert(end, place);
            }
        }
        Ok(Some(Wires(places)))
    }

    /// Place of an end, and its own entry in the file.
    fn place<'e, 'f>(
        &self,
        end: End,
        (machine, port): (IpAddr, u16),
        exceptions: &'e Exceptions<'f>,
    ) -> Checked<(Place, Option<&'e Said<'f>>)> {
        let own = match end {
            End::Switch(switch, _) => exceptions.switch_machines.get(&switch),
            End::Host(host) => exceptions.host_machines.get(&host),
        };
        let machine = own.map_or(Ok(machine), |(machine, field)| self.machine(machine, field))?;
        let by_rule = Place::Udp(SocketAddr::new(machine, port));
        let Some(said) = exceptions.ends.get(&end) else { return Ok((by_rule, None)) };
        let (value, field) = said;
        let text = value.get_ref().as_str();
        let place = match text.split_once(':') {
            None => (text == "udp").then_some(by_rule),
            Some(("udp", address)) => {
                let range = matches!(end, End::Host(_)).then(|| range_of(address)).flatten();
                let address = range.map(|(first, _)| first).or_else(|| address.parse().ok());
                address.filter(|address: &SocketAddr| address.port() > 0).map(Place::Udp)
            }
            Some(("packet", interface)) if !interface.is_empty() => {
                Some(Place::Packet { machine, interface: interface.to_owned() })
            }
            Some(("dpdk", device)) if !device.is_empty() => {
                Some(Place::Dpdk { machine, device: device.to_owned() })
            }
            Some(_) => None,
        };
        match place {
            Some(place) => Ok((place, Some(said))),
            None => {
                let expected = match end {
                    End::Switch(..) => {
                        "\"udp\", \"udp:ADDRESS:PORT\", \"packet:INTERFACE\" or \"dpdk:DEVICE\""
                    }
                    End::Host(_) => {
                        "\"udp\", \"udp:ADDRESS:PORT\", \"udp:ADDRESS:FIRST-LAST\" (up to 4096 ports), \"packet:INTERFACE\" or \
                         \"dpdk:DEVICE\""
                    }
                };
                let problem = Problem::BadAddress { expected, found: text.to_owned() };
                self.refuse(value.span(), field.clone(), problem)
            }
        }
    }

    fn machine(&self, value: &Spanned<String>, field: &str) -> Checked<IpAddr> {
        match value.get_ref().parse::<IpAddr>() {
            Ok(address) if !address.is_unspecified() && !address.is_multicast() => Ok(address),
            _ => {
                let expected = "an IP address of one machine, such as 127.0.0.1";
                let found = value.get_ref().clone();
                self.refuse(value.span(), field, Problem::BadAddress { expected, found })
            }
        }
    }

    fn exceptions<'f>(&self, tree: &Network, file: &'f File) -> Checked<Exceptions<'f>> {
        let mut found = Exceptions::default();
        for (n, switch) in file.switch.iter().enumerate() {
            let file::Switch { name, machine, wires, .. } = switch.get_ref();
            let Some(id) = tree.switch_by_name(name.get_ref()).map(|switch| switch.id) else { continue };
            if let Some(machine) = machine {
                found.switch_machines.insert(id, (machine, format!("switch[{n}].machine")));
            }
            let Some(wires) = wires else { continue };
            if wires.get_ref().len() != usize::from(tree.port_count(id)) {
                let found = format!("{} wires", wires.get_ref().len());
                let expected = "one for each of the switch's ports, in their order";
                let problem = Problem::OutOfRange { found, expected };
                return self.refuse(wires.span(), format!("switch[{n}].wires"), problem);
            }
            for (port, wire) in (0..).zip(wires.get_ref()) {
                found.ends.insert(End::Switch(id, port), (wire, format!("switch[{n}].wires[{port}]")));
            }
        }
        for (n, host) in file.host.iter().enumerate() {
            let file::Host { name, machine, wire, .. } = host;
            let Some(id) = tree.host_by_name(name.get_ref()).map(|host| host.id) else { continue };
            if let Some(machine) = machine {
                found.host_machines.insert(id, (machine, format!("host[{n}].machine")));
            }
            if let Some(wire) = wire {
                let range = wire.get_ref().strip_prefix("udp:").and_then(range_of);
                if let Some((_, seats)) = range {
                    found.seats.insert(id, seats);
                }
                found.ends.insert(End::Host(id), (wire, format!("host[{n}].wire")));
            }
        }
        Ok(found)
    }

    /// Gives addresses to hosts with several seats: to each an aligned block of [`SEATS`], in the hosts' order.
    fn seats(&self, tree: &mut Network, exceptions: &Exceptions<'_>, clients: &[Client]) -> Checked<()> {
        let mut next = u64::from(u32::from(SEATS.0));
        let end = next + (1 << (32 - SEATS.1));
        for (host, seats) in &exceptions.seats {
            let said = &exceptions.ends[&End::Host(*host)];
            let (at, field) = place_of(said);
            if *seats == 1 {
                continue;
            }
            if !clients.iter().any(|client| client.host == *host) {
                let host = tree.host(*host).name();
                return self.refuse(at, field, Problem::SeatsWithoutClient { host });
            }
            let bits = u64::from(*seats).next_power_of_two();
            next = next.next_multiple_of(bits);
            if next + bits > end {
                let expected = "ranges for about a million clients of all hosts together; give some hosts shorter ranges";
                let found = said.0.get_ref().clone();
                return self.refuse(at, field, Problem::OutOfRange { found, expected });
            }
            let first = Ipv4Addr::from(u32::try_from(next).expect("below the end of the block"));
            let block = Prefix::new(first, 32 - u8::try_from(bits.trailing_zeros()).expect("12 at most"));
            if let Some(owner) = tree.hosts().iter().find(|other| block.contains(other.ip)) {
                let (ip, owner) =
                    (owner.ip, format!("{}, and the range of this wire needs {block}", owner.name()));
                return self.refuse(at, field, Problem::IpClash { ip, owner });
            }
            tree.share(*host, block, *seats);
            next += bits;
        }
        Ok(())
    }
}

fn place_of((value, field): &Said<'_>) -> (Range<usize>, String) {
    (value.span(), field.clone())
}

/// `ADDRESS:FIRST-LAST` → the first address, and the number of ports.
fn range_of(text: &str) -> Option<(SocketAddr, u16)> {
    let (first, last) = text.rsplit_once('-')?;
    let (first, last) = (first.parse::<SocketAddr>().ok()?, last.parse::<u16>().ok()?);
    let seats = last.checked_sub(first.port())?.checked_add(1)?;
    (first.port() > 0 && seats <= MAX_SEATS).then_some((first, seats))
}
