//! A port whose wire is UDP: one Ethernet frame in a datagram, as QEMU's `-netdev dgram` does. Needs no rights.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{SndBuf, SndBufForce};

use crate::batch::Batch;
use crate::counters::Counters;
use crate::multi::{QUEUE, Socket, ask_for_receive_queue};
use crate::{OpenError, Port};

/// One end of a UDP wire: receives at one address, from one other, and sends there.
pub struct UdpPort {
    socket: Socket<()>,
    local: SocketAddr,
}

impl std::fmt::Debug for UdpPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UdpPort({})", self.local)
    }
}

impl UdpPort {
    /// Opens the end at `local` of the wire to `remote`; the peer need not be there yet.
    ///
    /// # Errors
    /// When the address is not this machine's, or taken.
    pub fn open(local: SocketAddr, remote: SocketAddr) -> Result<Self, OpenError> {
        let failed = |source| OpenError::Udp { local, remote, source };
        let socket = UdpSocket::bind(local).map_err(failed)?;
        socket.connect(remote).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let local = socket.local_addr().map_err(failed)?;
        let fd = OwnedFd::from(socket);
        let asked = ask_for_receive_queue(&fd);
        let asked =
            asked.and(setsockopt(&fd, SndBufForce, &QUEUE).or_else(|_| setsockopt(&fd, SndBuf, &QUEUE)));
        asked.map_err(|error| failed(error.into()))?;
        Ok(Self::on(fd, local))
    }

    /// A port on an open end of a wire.
    pub(crate) fn on(fd: OwnedFd, local: SocketAddr) -> Self {
        Self { socket: Socket::new(fd).with_trains(), local }
    }

    /// The open end of the wire, for other threads: see [`Wire`](crate::Wire).
    pub(crate) fn wire(&self) -> Result<OwnedFd, OpenError> {
        self.socket.as_fd().try_clone_to_owned().map_err(OpenError::Descriptor)
    }

    /// Local address, at which the port receives.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Number of datagrams that the kernel has dropped because the receive queue was full, from its table of all
    /// sockets by inode.
    fn lost_in_kernel(&self) -> Option<u64> {
        let inode = std::fs::metadata(format!("/proc/self/fd/{}", self.socket.as_fd().as_raw_fd())).ok()?;
        let inode = std::os::unix::fs::MetadataExt::ino(&inode).to_string();
        let table = std::fs::read_to_string(match self.local {
            SocketAddr::V4(_) => "/proc/self/net/udp",
            SocketAddr::V6(_) => "/proc/self/net/udp6",
        });
        let table = table.ok()?;
        let row = table.lines().find(|row| row.split_whitespace().nth(9) == Some(&inode))?;
        row.split_whitespace().last()?.parse().ok()
    }
}

impl Port for UdpPort {
    fn receive(&mut self, batch: &mut Batch) -> usize {
        self.socket.receive_trains(batch)
    }

    fn send(&mut self, frames: &[&[u8]]) -> usize {
        self.socket.send(frames)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn counters(&self) -> Counters {
        Counters { queue_full: self.lost_in_kernel().unwrap_or(0), ..self.socket.counters }
    }

    fn last_error(&self) -> Option<Errno> {
        self.socket.last_error
    }
}
