//! From the file's values to a [`Cluster`], or to the first thing wrong with them.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::ops::Range;

use toml::Spanned;

use super::error::{ClusterError, ClusterProblem as Problem, place};
use super::file::{self, File, Key};
use super::trust::{Trusts, is_loopback};
use super::{Client, Cluster, KeyKind, MemoryServer, P4RuntimeEndpoint, Structure};
use crate::address::MacAddress;
use crate::network::{HostId, Network, SwitchId};

pub(super) type Checked<T> = Result<T, ClusterError>;

/// Roles of hosts, and their names.
#[derive(Default)]
struct Roles {
    /// The role, and the line that gives it.
    hosts: BTreeMap<HostId, (&'static str, usize)>,
    /// Lines of the names.
    names: BTreeMap<String, usize>,
}

/// Endpoint names already given out: `address` or `address#device` → owner.
pub(super) type Endpoints = BTreeMap<(String, Option<u64>), String>;

pub(super) fn cluster(text: &str) -> Checked<Cluster> {
    let file: File = toml::from_str(text).map_err(|error| {
        let span = error.span().unwrap_or(0..0);
        ClusterError::new(
            text,
            span.clone(),
            key_path(text, span.start),
            Problem::Syntax(error.message().to_owned()),
        )
    })?;
    let keys = *file.keys.get_ref();
    let check = Check { text, trusts: file.trust.is_some(), keys };
    let structure = file.structure;
    if keys == KeyKind::Bytes && !matches!(structure, Structure::Tree | Structure::Hash) {
        return check.refuse(file.keys.span(), "keys", Problem::NumbersAlone { structure: structure.word() });
    }
    let mut tree = check.network(&file.network)?;
    let in_flight_port = check.in_flight_port(file.network.get_ref())?;
    let device_ports = check.device_ports(&mut tree, &file.switch)?;
    check.second_pipes(&file.network, &tree, &device_ports)?;
    check.hosts(&mut tree, &file.host)?;
    let mut roles = Roles::default();
    let mut endpoints = Endpoints::new();
    let p4runtime = check.p4runtime(&tree, &file, &mut endpoints)?;
    let servers = check.servers(&tree, &file.memory_server, &mut roles, &mut endpoints)?;
    let clients = check.clients(&tree, &file.client, &mut roles)?;
    let controllers = check.controller(file.controller.as_ref(), &mut endpoints)?;
    let metrics = check.metrics(file.metrics.as_ref(), (&tree, &servers, &clients), &mut endpoints)?;
    let wires = check.wires(&mut tree, &file, &clients)?;
    let Trusts { certificates, query_open } = check.trust(file.trust.as_ref(), &servers, &clients)?;
    Ok(Cluster {
        structure,
        keys,
        tree,
        servers,
        clients,
        controllers,
        p4runtime,
        device_ports,
        in_flight_port,
        wires,
        certificates,
        query_open,
        metrics,
    })
}

/// Path of the key at a byte offset, by the last `[header]` before it: the parser's errors do not say it.
fn key_path(text: &str, offset: usize) -> String {
    let (line, _) = place(text, offset);
    let mut table = String::new();
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    for row in text.lines().take(line) {
        let row = row.trim();
        if let Some(name) = row.strip_prefix("[[").and_then(|rest| rest.split(']').next()) {
            let n = seen.entry(name).or_default();
            table = format!("{name}[{n}]");
            *n += 1;
        } else if let Some(name) = row.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            name.clone_into(&mut table);
        }
    }
    let row = text.lines().nth(line - 1).unwrap_or("");
    match row.split_once('=') {
        Some((key, _)) if table.is_empty() => key.trim().to_owned(),
        Some((key, _)) => format!("{table}.{}", key.trim()),
        None => table,
    }
}

pub(super) struct Check<'a> {
    text: &'a str,
    /// Whether the file says which peers it trusts.
    trusts: bool,
    /// Kind of the keys of borders.
    keys: KeyKind,
}

impl Check<'_> {
    pub(super) fn refuse<T>(
        &self,
        span: Range<usize>,
        field: impl Into<String>,
        problem: Problem,
    ) -> Checked<T> {
        Err(ClusterError::new(self.text, span, field, problem))
    }

    fn line(&self, span: Range<usize>) -> usize {
        place(self.text, span.start).0
    }

    /// A number of a narrower type.
    pub(super) fn number<T: TryFrom<i64>>(
        &self,
        value: &Spanned<i64>,
        field: &str,
        expected: &'static str,
    ) -> Checked<T> {
        let found = *value.get_ref();
        T::try_from(found).or_else(|_| {
            self.refuse(value.span(), field, Problem::OutOfRange { found: found.to_string(), expected })
        })
    }

    fn host(&self, tree: &Network, name: &Spanned<String>, field: &str) -> Checked<HostId> {
        match tree.host_by_name(name.get_ref()) {
            Some(host) => Ok(host.id),
            None => {
                let name_of = |host: Option<&crate::Host>| host.expect("a network has hosts").name();
                let (first, last) = (name_of(tree.hosts().first()), name_of(tree.hosts().last()));
                let problem = Problem::UnknownHost { name: name.get_ref().clone(), first, last };
                self.refuse(name.span(), field, problem)
            }
        }
    }

    /// Applies address overrides. Clashes are looked for when all are applied, since two hosts may swap their addresses.
    fn hosts(&self, tree: &mut Network, hosts: &[file::Host]) -> Checked<()> {
        let mut described: BTreeMap<HostId, usize> = BTreeMap::new();
        for (n, host) in hosts.iter().enumerate() {
            let id = self.host(tree, &host.name, &format!("host[{n}].name"))?;
            let line = self.line(host.name.span());
            if let Some(first_line) = described.insert(id, line) {
                let problem = Problem::Twice { what: host.name.get_ref().clone(), first_line };
                return self.refuse(host.name.span(), format!("host[{n}].name"), problem);
            }
            let (mut ip, mut mac) = (tree.host(id).ip, tree.host(id).mac);
            if let Some(value) = &host.ip {
                ip = self.ip(value, &format!("host[{n}].ip"))?;
            }
            if let Some(value) = &host.mac {
                mac = self.mac(value, &format!("host[{n}].mac"))?;
            }
            tree.set_host_address(id, ip, mac);
        }
        if hosts.is_empty() {
            return Ok(()); // the scheme itself has no clashes
        }
        let mut ips: BTreeMap<Ipv4Addr, Vec<HostId>> = BTreeMap::new();
        let mut macs: BTreeMap<MacAddress, Vec<HostId>> = BTreeMap::new();
        for host in tree.hosts() {
            ips.entry(host.ip).or_default().push(host.id);
            macs.entry(host.mac).or_default().push(host.id);
        }
        let owner = |owners: &[HostId], this: &str| {
            owners.iter().map(|id| tree.host(*id).name()).find(|name| name != this)
        };
        for (n, host) in hosts.iter().enumerate() {
            let name = host.name.get_ref();
            let (ip, mac) = tree.host_by_name(name).map(|h| (h.ip, h.mac)).expect("looked up above");
            if let Some(owner) = owner(&ips[&ip], name) {
                let span = host.ip.as_ref().map_or(host.name.span(), Spanned::span);
                return self.refuse(span, format!("host[{n}].ip"), Problem::IpClash { ip, owner });
            }
            if let Some(owner) = owner(&macs[&mac], name) {
                let span = host.mac.as_ref().map_or(host.name.span(), Spanned::span);
                return self.refuse(span, format!("host[{n}].mac"), Problem::MacClash { mac, owner });
            }
        }
        Ok(())
    }

    fn ip(&self, value: &Spanned<String>, field: &str) -> Checked<Ipv4Addr> {
        let usable = |ip: &Ipv4Addr| {
            !(ip.is_unspecified()
                || ip.is_multicast()
                || ip.is_broadcast()
                || ip.is_loopback()
                || ip.octets()[0] == 0)
        };
        value.get_ref().parse().ok().filter(usable).map_or_else(
            || {
                let expected = "a unicast IPv4 address such as 10.0.0.2";
                self.refuse(
                    value.span(),
                    field,
                    Problem::BadAddress { expected, found: value.get_ref().clone() },
                )
            },
            Ok,
        )
    }

    fn mac(&self, value: &Spanned<String>, field: &str) -> Checked<MacAddress> {
        let usable = |mac: &MacAddress| !mac.is_group() && mac.0 != [0; 6];
        value.get_ref().parse().ok().filter(usable).map_or_else(
            || {
                let expected = "a unicast MAC address such as 02:00:0a:00:00:02";
                self.refuse(
                    value.span(),
                    field,
                    Problem::BadAddress { expected, found: value.get_ref().clone() },
                )
            },
            Ok,
        )
    }

    /// `name-or-address:port`, or `[v6]:port`.
    pub(super) fn endpoint(&self, value: &Spanned<String>, field: &str) -> Checked<String> {
        let text = value.get_ref();
        let good = text.rsplit_once(':').is_some_and(|(host, port)| {
            let name = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
            let host_ok = match name {
                Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
                None => !host.is_empty() && !host.contains([':', '/', ' ', '[', ']']),
            };
            host_ok && port.parse::<u16>().is_ok_and(|port| port != 0)
        });
        if good {
            return Ok(text.clone());
        }
        let expected = "host:port with a port from 1 to 65535, such as 127.0.0.1:9559 (no scheme)";
        self.refuse(value.span(), field, Problem::BadAddress { expected, found: text.clone() })
    }

    pub(super) fn claim(
        &self,
        endpoints: &mut Endpoints,
        endpoint: (&str, Option<u64>),
        owner: String,
        span: Range<usize>,
        field: &str,
    ) -> Checked<()> {
        let (address, device) = endpoint;
        if !self.trusts && !is_loopback(address) {
            return self.refuse(span, field, Problem::Untrusted { address: address.to_owned() });
        }
        // A gRPC server that is not P4Runtime wants the whole address; a P4Runtime one shares it among device ids.
        let taken = endpoints
            .range((address.to_owned(), None)..=(address.to_owned(), Some(u64::MAX)))
            .find(|((_, other), _)| other.is_none() || device.is_none() || *other == device);
        if let Some((_, first)) = taken {
            let endpoint = match device {
                Some(id) => format!("{address} (device id {id})"),
                None => address.to_owned(),
            };
            return self.refuse(span, field, Problem::EndpointClash { endpoint, owner: first.clone() });
        }
        endpoints.insert((address.to_owned(), device), owner);
        Ok(())
    }

    fn p4runtime(
        &self,
        tree: &Network,
        file: &File,
        endpoints: &mut Endpoints,
    ) -> Checked<Vec<P4RuntimeEndpoint>> {
        let mut special: BTreeMap<SwitchId, (usize, &Spanned<file::Switch>)> = BTreeMap::new();
        for (n, switch) in file.switch.iter().enumerate() {
            let name = &switch.get_ref().name;
            let Some(found) = tree.switch_by_name(name.get_ref()) else {
                let name_of = |s: Option<&crate::Switch>| s.expect("a network has switches").name();
                let problem = Problem::UnknownSwitch {
                    name: name.get_ref().clone(),
                    first: name_of(tree.switches().first()),
                    last: name_of(tree.switches().last()),
                };
                return self.refuse(name.span(), format!("switch[{n}].name"), problem);
            };
            if let Some((_, first)) = special.insert(found.id, (n, switch)) {
                let first_line = self.line(first.get_ref().name.span());
                let problem = Problem::Twice { what: name.get_ref().clone(), first_line };
                return self.refuse(name.span(), format!("switch[{n}].name"), problem);
            }
        }
        let common = file.p4runtime.as_ref();
        let (mut host, mut first_port, mut first_device, mut span) =
            ("127.0.0.1".to_owned(), 9559u16, 1u64, 0..0);
        if let Some(common) = common {
            span = common.span();
            let values = common.get_ref();
            if let Some(value) = &values.host {
                self.endpoint(
                    &Spanned::new(value.span(), format!("{}:1", value.get_ref())),
                    "p4runtime.host",
                )?;
                host.clone_from(value.get_ref());
            }
            if let Some(value) = &values.first_port {
                span = value.span();
                first_port = self.number(value, "p4runtime.first_port", "a port from 1 to 65535")?;
                if first_port == 0 {
                    let problem =
                        Problem::OutOfRange { found: "0".into(), expected: "a port from 1 to 65535" };
                    return self.refuse(span, "p4runtime.first_port", problem);
                }
            }
            if let Some(value) = &values.first_device_id {
                first_device = self.number(value, "p4runtime.first_device_id", "a device id from 0")?;
            }
        }
        let mut result = Vec::with_capacity(tree.switches().len());
        for switch in tree.switches() {
            let own = special.get(&switch.id);
            let device_id = match own.and_then(|(n, s)| Some((n, s.get_ref().device_id.as_ref()?))) {
                Some((n, id)) => self.number(id, &format!("switch[{n}].device_id"), "a device id from 0")?,
                None => first_device.saturating_add(u64::from(switch.id.0)),
            };
            let (address, span, field) =
                match own.and_then(|(n, s)| Some((n, s.get_ref().p4runtime.as_ref()?))) {
                    Some((n, value)) => {
                        let field = format!("switch[{n}].p4runtime");
                        (self.endpoint(value, &field)?, value.span(), field)
                    }
                    None => {
                        let port = u32::from(first_port) + switch.id.0;
                        if port > u32::from(u16::MAX) {
                            let found = format!("port {port} for {}", switch.name());
                            let expected = "first_port low enough that every switch's port is at most 65535";
                            let problem = Problem::OutOfRange { found, expected };
                            return self.refuse(span, "p4runtime.first_port", problem);
                        }
                        (format!("{host}:{port}"), span.clone(), "p4runtime.first_port".to_owned())
                    }
                };
            self.claim(endpoints, (&address, Some(device_id)), switch.name(), span, &field)?;
            result.push(P4RuntimeEndpoint { address, device_id });
        }
        Ok(result)
    }

    fn controller(
        &self,
        controller: Option<&file::Controller>,
        endpoints: &mut Endpoints,
    ) -> Checked<Vec<String>> {
        let Some(file::Controller { grpc, standby }) = controller else { return Ok(Vec::new()) };
        let standbys = standby.iter().map(|value| (value, "controller.standby", "a standby controller"));
        let all = [(grpc, "controller.grpc", "the controller")].into_iter().chain(standbys);
        let mut addresses = Vec::new();
        for (value, field, owner) in all {
            let address = self.endpoint(value, field)?;
            self.claim(endpoints, (&address, None), owner.to_owned(), value.span(), field)?;
            addresses.push(address);
        }
        Ok(addresses)
    }

    fn take_role(
        &self,
        tree: &Network,
        roles: &mut Roles,
        role: &'static str,
        host: &Spanned<String>,
        field: &str,
    ) -> Checked<HostId> {
        let id = self.host(tree, host, field)?;
        if !tree.is_plugged_in(id) {
            let (switch, port) = (tree.edge_of(id).name(), tree.host(id).index);
            let problem = Problem::NotWired { host: host.get_ref().clone(), switch, port };
            return self.refuse(host.span(), field, problem);
        }
        if let Some((first_role, first_line)) = roles.hosts.insert(id, (role, self.line(host.span()))) {
            let problem = Problem::TwoRoles { host: host.get_ref().clone(), first_role, first_line, role };
            return self.refuse(host.span(), field, problem);
        }
        Ok(id)
    }

    /// The name of the role on a host: no two roles have the same name.
    fn name(
        &self,
        tree: &Network,
        roles: &mut Roles,
        (name, host): (Option<&Spanned<String>>, &Spanned<String>),
        field: &str,
    ) -> Checked<String> {
        let at = name.unwrap_or(host);
        let found = at.get_ref();
        if let Some(first_line) = roles.names.insert(found.clone(), self.line(at.span())) {
            let problem = Problem::Twice { what: format!("{found:?}"), first_line };
            return self.refuse(at.span(), field, problem);
        }
        let of_another = tree.switch_by_name(found).is_some()
            || (found != host.get_ref() && tree.host_by_name(found).is_some());
        if found.is_empty() || of_another {
            let expected = "a name that no switch and no other host has";
            return self.refuse(at.span(), field, Problem::BadAddress { expected, found: found.clone() });
        }
        Ok(found.clone())
    }

    fn servers(
        &self,
        tree: &Network,
        servers: &[Spanned<file::MemoryServer>],
        roles: &mut Roles,
        endpoints: &mut Endpoints,
    ) -> Checked<Vec<MemoryServer>> {
        if servers.is_empty() {
            return self.refuse(self.text.len()..self.text.len(), "memory_server", Problem::NoServers);
        }
        let any_low = servers.iter().any(|s| s.get_ref().low.is_some());
        let mut numbers: BTreeMap<u16, usize> = BTreeMap::new();
        let mut found = Vec::new();
        for (n, spanned) in servers.iter().enumerate() {
            let server = spanned.get_ref();
            let field = |name: &str| format!("memory_server[{n}].{name}");
            let host = self.take_role(tree, roles, "memory server", &server.host, &field("host"))?;
            let (partition, span): (u16, _) = match &server.partition {
                Some(id) => {
                    (self.number(id, &field("partition"), "a partition id from 0 to 65534")?, id.span())
                }
                None => {
                    let position = Spanned::new(server.host.span(), i64::try_from(n).unwrap_or(i64::MAX));
                    (
                        self.number(&position, &field("partition"), "at most 65535 partitions")?,
                        server.host.span(),
                    )
                }
            };
            // Queries that no switch has led anywhere yet have it (`p4/include/query.p4`).
            if partition == u16::MAX {
                let expected = "a partition id from 0 to 65534";
                let problem = Problem::OutOfRange { found: partition.to_string(), expected };
                return self.refuse(span, field("partition"), problem);
            }
            if let Some(first_line) = numbers.insert(partition, self.line(span.clone())) {
                let problem = Problem::Twice { what: format!("partition {partition}"), first_line };
                return self.refuse(span, field("partition"), problem);
            }
            let name = self.name(tree, roles, (server.name.as_ref(), &server.host), &field("name"))?;
            let grpc = self.endpoint(&server.grpc, &field("grpc"))?;
            let owner = format!("partition {partition}'s memory server");
            self.claim(endpoints, (&grpc, None), owner, server.grpc.span(), &field("grpc"))?;
            let query = match &server.query {
                None => None,
                Some(value) => {
                    let query = self.endpoint(value, &field("query"))?;
                    let owner = format!("the queries of partition {partition}'s memory server");
                    self.claim(endpoints, (&query, None), owner, value.span(), &field("query"))?;
                    Some(query)
                }
            };
            let low = match &server.low {
                Some(low) => self.key(low, &field("low"))?,
                None if any_low => return self.refuse(server.host.span(), field("low"), Problem::MissingLow),
                // Even division: floor(n · 2^64 / count).
                None => u64::try_from(((n as u128) << 64) / servers.len() as u128).expect("n < count"),
            };
            if let Some(high) = server.high.as_ref().filter(|_| self.keys == KeyKind::Bytes) {
                return self.refuse(high.span(), field("high"), Problem::HighOfBytes);
            }
            let high = server.high.as_ref().map(|high| self.key(high, &field("high"))).transpose()?;
            if let (Some(high), Some(at)) = (high.filter(|high| *high < low), &server.high) {
                return self.refuse(
                    at.span(),
                    field("high"),
                    Problem::EmptyPartition { partition, low, high },
                );
            }
            found.push((
                MemoryServer { host, name, partition, low, high: high.unwrap_or(u64::MAX), grpc, query },
                n,
                high,
            ));
        }
        found.sort_by_key(|(server, n, _)| (server.low, *n));
        self.tile(&mut found, servers)?;
        Ok(found.into_iter().map(|(server, ..)| server).collect())
    }

    /// Fills in the missing ends and refuses overlaps and gaps. `found` is ordered by low key.
    fn tile(
        &self,
        found: &mut [(MemoryServer, usize, Option<u64>)],
        servers: &[Spanned<file::MemoryServer>],
    ) -> Checked<()> {
        let span_of = |n: usize, high: bool| {
            let server = servers[n].get_ref();
            let key = if high { server.high.as_ref() } else { server.low.as_ref() };
            key.map_or(server.host.span(), Spanned::span)
        };
        let (first, n, _) = &found[0];
        if first.low > 0 {
            let gap = Problem::Gap { from: 0, to: first.low - 1 };
            return self.refuse(span_of(*n, false), format!("memory_server[{n}].low"), gap);
        }
        for at in 1..found.len() {
            let (earlier, later) = found.split_at_mut(at);
            let (previous, m, previous_high) = &mut earlier[at - 1];
            let (this, n, _) = &later[0];
            if previous.low == this.low || previous_high.is_some_and(|high| high >= this.low) {
                let problem = Problem::Overlap {
                    partition: this.partition,
                    low: this.low,
                    other: previous.partition,
                    other_line: self.line(span_of(*m, false)),
                    other_high: previous_high.unwrap_or(u64::MAX),
                };
                return self.refuse(span_of(*n, false), format!("memory_server[{n}].low"), problem);
            }
            if let Some(high) = previous_high.filter(|high| *high < this.low - 1) {
                let gap = Problem::Gap { from: high + 1, to: this.low - 1 };
                return self.refuse(span_of(*m, true), format!("memory_server[{m}].high"), gap);
            }
            previous.high = this.low - 1;
        }
        let (last, n, _) = &found[found.len() - 1];
        if last.high != u64::MAX {
            let gap = Problem::Gap { from: last.high + 1, to: u64::MAX };
            return self.refuse(span_of(*n, true), format!("memory_server[{n}].high"), gap);
        }
        Ok(())
    }

    fn key(&self, key: &Spanned<Key>, field: &str) -> Checked<u64> {
        let Key(number, text) = key.get_ref();
        let known = match (self.keys, text) {
            (KeyKind::Numbers, _) => number.as_ref().ok().copied(),
            (KeyKind::Bytes, Some(text)) => border(text),
            // The beginning of all keys.
            (KeyKind::Bytes, None) => number.as_ref().ok().copied().filter(|number| *number == 0),
        };
        if let Some(known) = known {
            return Ok(known);
        }
        let found = match (text, number) {
            (Some(text), _) => format!("{text:?}"),
            (None, Ok(number)) => number.to_string(),
            (None, Err(found)) => found.clone(),
        };
        let problem = match self.keys {
            KeyKind::Numbers => Problem::BadKey { found },
            KeyKind::Bytes => Problem::BadBorder { found },
        };
        self.refuse(key.span(), field, problem)
    }

    fn clients(&self, tree: &Network, clients: &[file::Client], roles: &mut Roles) -> Checked<Vec<Client>> {
        let mut result = Vec::new();
        for (n, client) in clients.iter().enumerate() {
            let host = self.take_role(tree, roles, "client", &client.host, &format!("client[{n}].host"))?;
            let name =
                self.name(tree, roles, (client.name.as_ref(), &client.host), &format!("client[{n}].name"))?;
            result.push(Client { host, name });
        }
        Ok(result)
    }
}

/// The word of a border between keys of bytes: they are text, or `0x` and hexadecimal digits.
fn border(text: &str) -> Option<u64> {
    let bytes = match text.strip_prefix("0x") {
        None => text.as_bytes().to_vec(),
        Some(digits) => {
            let (pairs, []) = digits.as_bytes().as_chunks() else { return None };
            let digit = |byte: u8| char::from(byte).to_digit(16);
            let byte = |[high, low]: &[u8; 2]| Some((digit(*high)? << 4 | digit(*low)?) as u8);
            pairs.iter().map(byte).collect::<Option<_>>()?
        }
    };
    let mut word = [0; 8];
    word.get_mut(..bytes.len())?.copy_from_slice(&bytes);
    (!bytes.contains(&0)).then_some(u64::from_be_bytes(word))
}
