//! Why a port cannot be opened.

use std::io;
use std::net::SocketAddr;

use nix::errno::Errno;

/// A port that cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A UDP wire.
    #[error(
        "UDP port {local} to {remote}: {source}; is another process there, and is the address this machine's?"
    )]
    Udp {
        /// Where it should receive.
        local: SocketAddr,
        /// Where it should send.
        remote: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// A UDP socket to many peers.
    #[error(
        "UDP socket at {address}: {source}; is another process there, and is the address this machine's?"
    )]
    Datagrams {
        /// Where it should receive.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// An interface that is not there.
    #[error("no network interface {interface:?} on this machine; `ip link` lists them")]
    NoInterface {
        /// Its name.
        interface: String,
    },
    /// An interface that cannot be opened.
    #[error(
        "network interface {interface}: {source}; raw sockets need CAP_NET_RAW: run as root, or `setcap cap_net_raw+ep` the program"
    )]
    Packet {
        /// Its name.
        interface: String,
        /// The system's error.
        source: Errno,
    },
    /// A DPDK device, in a program that knows nothing of DPDK.
    #[error(
        "dpdk:{device}: this program was built without DPDK; with it: cargo build --release -p fatbtree-cli --features dpdk (needs libdpdk-dev)"
    )]
    NoDpdk {
        /// The device.
        device: String,
    },
    /// A DPDK device that cannot be opened.
    #[cfg(feature = "dpdk")]
    #[error(transparent)]
    Dpdk(#[from] fatbtree_dpdk::DpdkError),
    /// A file descriptor of its own, for an event or another thread.
    #[error("no file descriptor: {0}; raise the limit (`ulimit -n`)")]
    Descriptor(io::Error),
}
