//! Errors of a cluster file.

use std::fmt;
use std::net::Ipv4Addr;
use std::ops::Range;

use super::trust::PLAINTEXT;
use crate::address::MacAddress;
use crate::error::TopologyError;

/// A cluster file that was refused: where, and why.
///
/// Prints as `line 12, column 8, network.k: k = 5 is odd: …`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterError {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// Field, such as `memory_server[2].low` (tables of a list count from 0); empty when the file is not TOML at all.
    pub field: String,
    /// The problem.
    pub problem: ClusterProblem,
}

impl fmt::Display for ClusterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)?;
        if !self.field.is_empty() {
            write!(f, ", {}", self.field)?;
        }
        write!(f, ": {}", self.problem)
    }
}

impl std::error::Error for ClusterError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.problem)
    }
}

impl ClusterError {
    pub(super) fn new(
        text: &str,
        span: Range<usize>,
        field: impl Into<String>,
        problem: ClusterProblem,
    ) -> Self {
        let (line, column) = place(text, span.start);
        Self { line, column, field: field.into(), problem }
    }
}

/// Line and column (both from 1) of a byte offset.
pub(super) fn place(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text); // the parser's offsets lie between characters
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// Problems of a field of a cluster file.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterProblem {
    /// Syntax error, unknown or missing key, or value of the wrong type: the parser's own words.
    #[error("{0}")]
    Syntax(String),
    /// A network that cannot be built.
    #[error(transparent)]
    Network(#[from] TopologyError),
    /// A number does not fit.
    #[error("{found} is out of range: expected {expected}")]
    OutOfRange {
        /// The value in the file.
        found: String,
        /// The accepted values.
        expected: &'static str,
    },
    /// A host and a second pass in one pipe of a chip.
    #[error(
        "device port {port} of {switch} is in pipe {pipe} (ports {} to {}) as well: the second pass has pipes of its own, so wire \
         hosts to ports of another one and say so with `ports` in [[switch]]",
        128 * pipe, 128 * pipe + 127
    )]
    HostInSecondPipe {
        /// The switch.
        switch: String,
        /// The port of a host.
        port: u16,
        /// The pipe of a loopback port.
        pipe: u16,
    },
    /// A setting of another kind of network.
    #[error("a network of kind \"{kind}\" has no `{key}`: it has {has}")]
    NotOfKind {
        /// The setting.
        key: &'static str,
        /// Its kind.
        kind: &'static str,
        /// The settings that it has.
        has: &'static str,
    },
    /// A setting that is missing.
    #[error("missing field `{key}`: a network of kind \"{kind}\" needs it (it has {has})")]
    MissingSetting {
        /// The setting.
        key: &'static str,
        /// Its kind.
        kind: &'static str,
        /// The settings that it has.
        has: &'static str,
    },
    /// A host name that the network does not have.
    #[error("no host {name:?}: the hosts of this network are {first} to {last}")]
    UnknownHost {
        /// The value in the file.
        name: String,
        /// The first host's name.
        first: String,
        /// The last host's name.
        last: String,
    },
    /// A host that is not wired.
    #[error(
        "{host} is not there: port {port} of {switch}, where it would be, is not among the switch's `ports`"
    )]
    NotWired {
        /// The host's name.
        host: String,
        /// The name of its switch.
        switch: String,
        /// The port.
        port: u16,
    },
    /// A switch name that the network does not have.
    #[error(
        "no switch {name:?} in this network; its switches are {first} to {last} (in a fat tree, cores = \"one\" leaves out the others)"
    )]
    UnknownSwitch {
        /// The value in the file.
        name: String,
        /// The first switch's name.
        first: String,
        /// The last switch's name.
        last: String,
    },
    /// Two descriptions of the same thing.
    #[error("{what} is already described in line {first_line}; keep one of the two")]
    Twice {
        /// The owner, such as `switch core-0`.
        what: String,
        /// Line of the first one.
        first_line: usize,
    },
    /// A host has two roles.
    #[error(
        "{host} is already a {first_role} (line {first_line}); a host has one role, put the {role} on another host"
    )]
    TwoRoles {
        /// The host's name.
        host: String,
        /// Role it already has.
        first_role: &'static str,
        /// Line of that role.
        first_line: usize,
        /// Role it should have too.
        role: &'static str,
    },
    /// An IPv4 address is used twice.
    #[error("address clash: {ip} already belongs to {owner}; every host needs its own")]
    IpClash {
        /// The address.
        ip: Ipv4Addr,
        /// Its owner.
        owner: String,
    },
    /// A MAC address is used twice.
    #[error("address clash: {mac} already belongs to {owner}; every host needs its own")]
    MacClash {
        /// The address.
        mac: MacAddress,
        /// Its owner.
        owner: String,
    },
    /// Two things listen at one place.
    #[error(
        "address clash: {endpoint} is already {owner}'s; give another address, port or (P4Runtime) device id"
    )]
    EndpointClash {
        /// The endpoint.
        endpoint: String,
        /// Its owner.
        owner: String,
    },
    /// Two ends of wires are at one place.
    #[error("clash of wires: {place} is already {owner}; give one of them another place")]
    WireClash {
        /// The place.
        place: String,
        /// Its owner.
        owner: String,
    },
    /// A range of UDP ports for a host without a client.
    #[error(
        "{host} has no [[client]], and a range of UDP ports is for clients: each process takes one; give a single port, or describe a client"
    )]
    SeatsWithoutClient {
        /// The host.
        host: String,
    },
    /// Places of wires without the section that has the rule for them.
    #[error(
        "this says where wires are, but there is no section [wires]: add it, with `first_port`, the UDP port of the first end"
    )]
    NoWires,
    /// Address of another kind than belongs here.
    #[error("expected {expected}, found {found:?}")]
    BadAddress {
        /// The expected value.
        expected: &'static str,
        /// The value in the file.
        found: String,
    },
    /// Value that is no key.
    #[error(
        "expected a 64-bit key, an integer from 0 or a string such as \"0x8000_0000_0000_0000\", found {found}"
    )]
    BadKey {
        /// The value in the file.
        found: String,
    },
    /// Value that is no border of keys of bytes.
    #[error(
        "expected the first bytes of a key, a string of up to 8 bytes without zeros such as \"m\", or \"0x\" and hexadecimal digits, found {found}"
    )]
    BadBorder {
        /// The value in the file.
        found: String,
    },
    /// The last key of a partition, where keys are bytes.
    #[error("leave it out: where keys are bytes, a partition ends before the first key of the next")]
    HighOfBytes,
    /// Keys of bytes for a structure that has numbers alone.
    #[error(
        "keys = \"bytes\" is for trees and hash tables; structure = {structure:?} has numbers: leave out keys"
    )]
    NumbersAlone {
        /// The structure's word.
        structure: &'static str,
    },
    /// A partition that ends before it begins.
    #[error(
        "partition {partition} ends at key {high:#x}, before its low key {low:#x}; high is the last key, inclusive"
    )]
    EmptyPartition {
        /// The partition.
        partition: u16,
        /// Its low key.
        low: u64,
        /// Its high key.
        high: u64,
    },
    /// Two partitions share keys.
    #[error(
        "overlapping partitions: partition {partition} begins at key {low:#x}, but partition {other} (line {other_line}) holds keys up to {other_high:#x}"
    )]
    Overlap {
        /// The later partition.
        partition: u16,
        /// Its low key.
        low: u64,
        /// The earlier partition.
        other: u16,
        /// Line of its description.
        other_line: usize,
        /// Its last key.
        other_high: u64,
    },
    /// Keys that no partition holds.
    #[error(
        "keys {from:#x} to {to:#x} belong to no partition; partitions must cover the whole key space, from 0 to 2^64 - 1"
    )]
    Gap {
        /// First such key.
        from: u64,
        /// Last such key.
        to: u64,
    },
    /// A memory server without `low`, while others have one.
    #[error(
        "this memory server has no low key but others have one; give all of them one, or none to divide the keys evenly"
    )]
    MissingLow,
    /// Control channels would be open to every host on a network.
    #[error(
        "{address} is not on this machine's loopback, and the file does not say whom to trust: add a section [trust] with \
         folder = \"certificates\" (`fatbtree topology certificates` fills it), or with plaintext = \"{PLAINTEXT}\""
    )]
    Untrusted {
        /// The first such address.
        address: String,
    },
    /// Memory servers would answer queries of every host on a network.
    #[error(
        "any host could read and change the tree by queries at {address}: without certificates they bear no keys. Give the \
         file certificates (folder = \"certificates\"), or say that it is meant: query_open = true"
    )]
    OpenQueries {
        /// The first such address.
        address: String,
    },
    /// A section that says nothing, or two things.
    #[error(
        "expected one of folder = \"certificates\" (a folder beside this file) and plaintext = \"{PLAINTEXT}\" (these words)"
    )]
    NoTrust,
    /// A name that a certificate cannot have.
    #[error(
        "the certificate of {name:?} cannot carry this name: expected lower-case letters, digits and hyphens, and not ca, controller or operator"
    )]
    NoCertificateName {
        /// The name.
        name: String,
    },
    /// There is no memory server.
    #[error("no [[memory_server]]: a cluster needs at least one")]
    NoServers,
}
