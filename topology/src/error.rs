//! Networks that cannot be built.

use crate::fat_tree::MAX_K;

/// Reasons for which a network cannot be built.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TopologyError {
    /// k is odd.
    #[error(
        "k = {k} is odd: a FatTree wires half of every switch's ports up and half down; give an even k from 2 to {MAX_K}"
    )]
    OddK {
        /// The requested value.
        k: u16,
    },
    /// k is out of range.
    #[error(
        "k = {k} is out of range: the address scheme 10.pod.switch.host has room for an even k from 2 to {MAX_K}"
    )]
    KOutOfRange {
        /// The requested value.
        k: u16,
    },
    /// The chosen core does not exist.
    #[error("core {core} does not exist: a FatTree with k = {k} has cores 0 to {last}")]
    NoSuchCore {
        /// The requested value.
        core: u16,
        /// Ports per switch.
        k: u16,
        /// The last core's number.
        last: u16,
    },
    /// A number that exceeds the address scheme.
    #[error("{found} {what}: expected 1 to {most}")]
    OutOfRange {
        /// The counted thing.
        what: &'static str,
        /// The requested value.
        found: u16,
        /// The maximum.
        most: u16,
    },
}
