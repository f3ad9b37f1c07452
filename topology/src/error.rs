//! Networks that cannot be built.

use crate::fat_tree::MAX_K;

/// Why a network cannot be built.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TopologyError {
    /// k is odd.
    #[error(
        "k = {k} is odd: a FatTree wires half of every switch's ports up and half down; give an even k from 2 to {MAX_K}"
    )]
    OddK {
        /// What was asked for.
        k: u16,
    },
    /// k is out of range.
    #[error(
        "k = {k} is out of range: the address scheme 10.pod.switch.host has room for an even k from 2 to {MAX_K}"
    )]
    KOutOfRange {
        /// What was asked for.
        k: u16,
    },
    /// The chosen core does not exist.
    #[error("core {core} does not exist: a FatTree with k = {k} has cores 0 to {last}")]
    NoSuchCore {
        /// What was asked for.
        core: u16,
        /// The k.
        k: u16,
        /// The last core's number.
        last: u16,
    },
    /// So many of something the address scheme cannot number.
    #[error("{found} {what}: expected 1 to {most}")]
    OutOfRange {
        /// What there are too many or too few of.
        what: &'static str,
        /// What was asked for.
        found: u16,
        /// The most there may be.
        most: u16,
    },
}
