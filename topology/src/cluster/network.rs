//! The section `[network]`, and which ports of switches are wired.

use std::collections::BTreeMap;

use toml::Spanned;

use super::error::ClusterProblem as Problem;
use super::file::{self, Kind, Ports};
use super::validate::{Check, Checked};
use super::{MAX_DEVICE_PORT, pipe_of};
use crate::error::TopologyError;
use crate::network::{Cores, Network, SwitchId};

/// UDP port of index packets between switches, where the cluster file names none.
pub const IN_FLIGHT_PORT: u16 = 4792;
/// UDP port of RoCEv2.
const ROCE_PORT: u16 = 4791;
/// UDP ports of the query protocol.
const QUERY_PORTS: [u16; 2] = [4793, 4794];

/// Maximum number of ports by which packets pass a switch a second time: those of a pipe.
const MAX_LOOPBACK_PORTS: usize = 16;

impl Kind {
    /// Its name, and the settings that it has.
    fn settings(self) -> (&'static str, &'static str, &'static [&'static str]) {
        match self {
            Self::Single => ("single", "hosts and loopback_ports", &["hosts", "loopback_ports"]),
            Self::Pair => ("pair", "hosts (for each switch)", &["hosts"]),
            Self::LeafSpine => {
                ("leaf-spine", "leaves, spines and hosts (for each leaf)", &["leaves", "spines", "hosts"])
            }
            Self::FatTree => ("fat-tree", "k, cores and core", &["k", "cores", "core"]),
        }
    }
}

impl Check<'_> {
    pub(super) fn network(&self, section: &Spanned<file::Network>) -> Checked<Network> {
        let file = section.get_ref();
        let (kind, has, settings) = file.kind.settings();
        let numbers = [
            ("hosts", file.hosts.as_ref()),
            ("leaves", file.leaves.as_ref()),
            ("spines", file.spines.as_ref()),
            ("k", file.k.as_ref()),
            ("core", file.core.as_ref()),
        ];
        let spans = numbers.iter().filter_map(|(key, value)| Some((*key, (*value)?.span())));
        let cores = file.cores.iter().map(|cores| ("cores", cores.span()));
        let loopback = file.loopback_ports.iter().map(|ports| ("loopback_ports", ports.span()));
        if let Some((key, span)) = spans.chain(cores).chain(loopback).find(|(key, _)| !settings.contains(key))
        {
            return self.refuse(span, format!("network.{key}"), Problem::NotOfKind { key, kind, has });
        }
        let needed = |key: &'static str, value: &Option<Spanned<i64>>, expected| match value {
            Some(value) => self.number::<u16>(value, &format!("network.{key}"), expected),
            None => {
                let problem = Problem::MissingSetting { key, kind, has };
                self.refuse(section.span(), format!("network.{key}"), problem)
            }
        };
        let hosts = || needed("hosts", &file.hosts, "a number of hosts from 1 to 253");
        let built = match file.kind {
            Kind::Single => match &file.loopback_ports {
                None => Network::single(hosts()?),
                Some(ports) => Network::folded(hosts()?, self.loopback_ports(ports)?),
            },
            Kind::Pair => Network::pair(hosts()?),
            Kind::LeafSpine => {
                let leaves = needed("leaves", &file.leaves, "a number of leaves from 1 to 255")?;
                let spines = needed("spines", &file.spines, "a number of spines from 1 to 255")?;
                Network::leaf_spine(leaves, spines, hosts()?)
            }
            Kind::FatTree => {
                let k = needed("k", &file.k, "an even k from 2 to 254")?;
                const CORE: &str = "the number of a core switch, 0 to (k/2)^2 - 1";
                let core = file.core.as_ref().map(|core| self.number::<u16>(core, "network.core", CORE));
                let core = core.transpose()?;
                let all = file.cores.as_ref().map(|cores| *cores.get_ref()).unwrap_or_default();
                let cores = match (all, core) {
                    (file::Cores::One, core) => Cores::One(core.unwrap_or(0)),
                    (file::Cores::All, Some(core)) => Cores::Chosen(core),
                    (file::Cores::All, None) => Cores::All,
                };
                Network::fat_tree(k, cores)
            }
        };
        built.or_else(|error| {
            let key = match &error {
                TopologyError::NoSuchCore { .. } => "core",
                TopologyError::OutOfRange { what, .. } => what,
                TopologyError::OddK { .. } | TopologyError::KOutOfRange { .. } => "k",
            };
            let at = numbers.iter().find(|(name, _)| *name == key).and_then(|(_, value)| *value);
            let span = at.map_or(section.span(), Spanned::span);
            self.refuse(span, format!("network.{key}"), error.into())
        })
    }

    fn loopback_ports(&self, ports: &Spanned<Vec<Spanned<i64>>>) -> Checked<Vec<u16>> {
        const EXPECTED: &str = "a device port from 0 to 509 that is not there twice";
        const FIELD: &str = "network.loopback_ports";
        let given = ports.get_ref();
        if !(1..=MAX_LOOPBACK_PORTS).contains(&given.len()) {
            let expected = "1 to 16 device ports; leave them out where a packet passes the switch once";
            let problem = Problem::OutOfRange { found: format!("{} ports", given.len()), expected };
            return self.refuse(ports.span(), FIELD, problem);
        }
        let mut numbers = Vec::new();
        for (n, port) in given.iter().enumerate() {
            let number: u16 = self.number(port, &format!("{FIELD}[{n}]"), EXPECTED)?;
            if number > MAX_DEVICE_PORT || numbers.contains(&number) {
                let problem = Problem::OutOfRange { found: number.to_string(), expected: EXPECTED };
                return self.refuse(port.span(), format!("{FIELD}[{n}]"), problem);
            }
            numbers.push(number);
        }
        Ok(numbers)
    }

    /// Checks that the second pass has pipes of its own: no host may be on a port of one of them.
    pub(super) fn second_pipes(
        &self,
        section: &Spanned<file::Network>,
        tree: &Network,
        device_ports: &BTreeMap<SwitchId, BTreeMap<u16, u16>>,
    ) -> Checked<()> {
        let Some(file) = &section.get_ref().loopback_ports else { return Ok(()) };
        let pipes: Vec<u16> = tree.loopback_ports().iter().map(|port| pipe_of(*port)).collect();
        for switch in tree.switches() {
            let numbers = device_ports.get(&switch.id);
            for (port, _) in tree.ports(switch.id) {
                let device = numbers.and_then(|numbers| numbers.get(&port)).copied().unwrap_or(port);
                if let Some(n) = pipes.iter().position(|pipe| *pipe == pipe_of(device)) {
                    let (switch, pipe) = (switch.name(), pipes[n]);
                    let problem = Problem::HostInSecondPipe { switch, port: device, pipe };
                    return self.refuse(
                        file.get_ref()[n].span(),
                        format!("network.loopback_ports[{n}]"),
                        problem,
                    );
                }
            }
        }
        Ok(())
    }

    pub(super) fn in_flight_port(&self, network: &file::Network) -> Checked<u16> {
        const EXPECTED: &str = "a UDP port from 1 to 65535 that is neither 4791, RoCEv2's own, nor 4793 or 4794, those of queries";
        const FIELD: &str = "network.in_flight_port";
        let Some(value) = &network.in_flight_port else { return Ok(IN_FLIGHT_PORT) };
        let port: u16 = self.number(value, FIELD, EXPECTED)?;
        if port == 0 || port == ROCE_PORT || QUERY_PORTS.contains(&port) {
            let problem = Problem::OutOfRange { found: port.to_string(), expected: EXPECTED };
            return self.refuse(value.span(), FIELD, problem);
        }
        Ok(port)
    }

    /// Reads the port numbers of devices. Ports that a switch's table leaves out are unplugged.
    pub(super) fn device_ports(
        &self,
        tree: &mut Network,
        switches: &[Spanned<file::Switch>],
    ) -> Checked<BTreeMap<SwitchId, BTreeMap<u16, u16>>> {
        let mut result = BTreeMap::new();
        for (n, switch) in switches.iter().enumerate() {
            let switch = switch.get_ref();
            // Names that are no switch's are refused elsewhere.
            let (Some(ports), Some(found)) = (&switch.ports, tree.switch_by_name(switch.name.get_ref()))
            else {
                continue;
            };
            let (id, field) = (found.id, format!("switch[{n}].ports"));
            let numbers = self.numbers(ports, tree.port_count(id), &field)?;
            if matches!(ports.get_ref(), Ports::Wired(_)) {
                let all: Vec<u16> = tree.ports(id).map(|(port, _)| port).collect();
                all.into_iter()
                    .filter(|port| !numbers.contains_key(port))
                    .for_each(|port| tree.unplug(id, port));
            }
            result.insert(id, numbers);
        }
        Ok(result)
    }

    /// The device ports of a switch with `count` ports.
    fn numbers(&self, ports: &Spanned<Ports>, count: u16, field: &str) -> Checked<BTreeMap<u16, u16>> {
        const EXPECTED: &str = "a device port from 0 to 509 that is not there twice";
        let given: Vec<(u16, String, &Spanned<i64>)> = match ports.get_ref() {
            Ports::All(list) if list.len() != usize::from(count) => {
                let found = format!("{} numbers", list.len());
                let expected = "a device port for each of the switch's ports, in their order; or, where not all are wired, a table \
                                of those that are, such as { 0 = 132, 2 = 148 }";
                return self.refuse(ports.span(), field, Problem::OutOfRange { found, expected });
            }
            Ports::All(list) => {
                (0..).zip(list).map(|(port, device)| (port, format!("{field}[{port}]"), device)).collect()
            }
            Ports::Wired(table) => {
                let mut given = Vec::new();
                for (name, device) in table {
                    let text = name.get_ref();
                    let port =
                        text.parse::<u16>().ok().filter(|port| port.to_string() == *text && *port < count);
                    let Some(port) = port else {
                        let expected =
                            "the number of one of the switch's ports, as `fatbtree topology show` has them";
                        let problem = Problem::OutOfRange { found: text.clone(), expected };
                        return self.refuse(name.span(), format!("{field}.{text}"), problem);
                    };
                    given.push((port, format!("{field}.{port}"), device));
                }
                given
            }
        };
        let mut numbers: BTreeMap<u16, u16> = BTreeMap::new();
        for (port, field, device) in given {
            let number: u16 = self.number(device, &field, EXPECTED)?;
            if number > MAX_DEVICE_PORT || numbers.values().any(|other| *other == number) {
                let problem = Problem::OutOfRange { found: number.to_string(), expected: EXPECTED };
                return self.refuse(device.span(), field, problem);
            }
            numbers.insert(port, number);
        }
        Ok(numbers)
    }
}
