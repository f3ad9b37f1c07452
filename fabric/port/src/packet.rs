//! A port on a network interface of this machine: AF_PACKET, which sees every frame. Needs CAP_NET_RAW.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::{AddressFamily, LinkAddr, SockFlag, SockProtocol, SockType, bind, socket};

use crate::batch::Batch;
use crate::counters::Counters;
use crate::multi::{Socket, ask_for_receive_queue};
use crate::{OpenError, Port};

/// `PACKET_OUTGOING` of `linux/if_packet.h`: a frame that this machine sends itself.
const OUTGOING: u8 = 4;

/// All frames of a network interface.
///
/// Frames must not be longer than the wire's: switch receive and send offloads off where the other end is on the same machine
/// (`ethtool -K IFACE gro off tso off tx off`), or checksums are missing and frames are merged.
///
/// The kernel does not tell how many frames its receive queue had no room for.
pub struct PacketPort {
    socket: Socket<LinkAddr>,
    interface: String,
}

impl std::fmt::Debug for PacketPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PacketPort({})", self.interface)
    }
}

impl PacketPort {
    /// Opens an interface.
    ///
    /// # Errors
    /// When there is no such interface, or the process may not.
    pub fn open(interface: &str) -> Result<Self, OpenError> {
        let failed = |source: Errno| OpenError::Packet { interface: interface.to_owned(), source };
        let address = getifaddrs().map_err(failed)?.find_map(|found| {
            let address = found.address.filter(|_| found.interface_name == interface)?;
            address.as_link_addr().copied()
        });
        let address = address.ok_or_else(|| OpenError::NoInterface { interface: interface.to_owned() })?;
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Packet, SockType::Raw, flags, SockProtocol::EthAll).map_err(failed)?;
        // Its protocol is 0, which leaves the socket's.
        bind(fd.as_raw_fd(), &address).map_err(failed)?;
        ask_for_receive_queue(&fd).map_err(failed)?;
        let mut socket = Socket::new(fd);
        // What came on other interfaces before the socket was bound to this one.
        let mut strangers = Batch::new();
        while socket.receive(&mut strangers, |_| true) > 0 {}
        socket.counters = Counters::default();
        Ok(Self { socket, interface: interface.to_owned() })
    }

    /// A port on an interface that is open.
    pub(crate) fn on(fd: OwnedFd, interface: String) -> Self {
        Self { socket: Socket::new(fd), interface }
    }

    /// The open interface, for other threads: see [`Wire`](crate::Wire).
    pub(crate) fn wire(&self) -> Result<OwnedFd, OpenError> {
        self.socket.as_fd().try_clone_to_owned().map_err(OpenError::Descriptor)
    }
}

impl Port for PacketPort {
    fn receive(&mut self, batch: &mut Batch) -> usize {
        self.socket.receive(batch, |from| from.is_none_or(|from| from.pkttype() != OUTGOING))
    }

    fn send(&mut self, frames: &[&[u8]]) -> usize {
        self.socket.send(frames)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn counters(&self) -> Counters {
        self.socket.counters
    }

    fn last_error(&self) -> Option<Errno> {
        self.socket.last_error
    }
}
