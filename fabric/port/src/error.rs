//! Errors from opening a port.

use std::io;
use std::net::SocketAddr;

use nix::errno::Errno;

/// Error from opening a port.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A UDP wire cannot be opened.
    #[error(
        "UDP port {local} to {remote}: {source}; is another process there, and is the address this machine's?"
    )]
    Udp {
        /// Local address, to receive at.
        local: SocketAddr,
        /// Remote address, to send to.
        remote: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// A UDP socket to many peers cannot be opened.
    #[error(
        "UDP socket at {address}: {source}; is another process there, and is the address this machine's?"
    )]
    Datagrams {
        /// Local address, to receive at.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The network interface does not exist.
    #[error("no network interface {interface:?} on this machine; `ip link` lists them")]
    NoInterface {
        /// Name of the interface.
        interface: String,
    },
    /// The network interface cannot be opened.
    #[error(
        "network interface {interface}: {source}; raw sockets need CAP_NET_RAW: run as root, or `setcap cap_net_raw+ep` the program"
    )]
    Packet {
        /// Name of the interface.
        interface: String,
        /// The system's error.
        source: Errno,
    },
    /// A DPDK device was given to a program that was built without DPDK.
    #[error(
        "dpdk:{device}: this program was built without DPDK; with it: cargo build --release -p fatbtree-cli --features dpdk (needs libdpdk-dev)"
    )]
    NoDpdk {
        /// The device.
        device: String,
    },
    /// The DPDK device cannot be opened.
    #[cfg(feature = "dpdk")]
    #[error(transparent)]
    Dpdk(#[from] fatbtree_dpdk::DpdkError),
    /// A file descriptor cannot be created or prepared, for an event, a socket or another thread.
    #[error("no file descriptor: {0}; raise the limit (`ulimit -n`)")]
    Descriptor(io::Error),
}
