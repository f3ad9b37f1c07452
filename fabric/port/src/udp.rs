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
        let (fd, local) = open_socket(local, Some(remote)).map_err(failed)?;
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
}

/// Opens a non-blocking socket with long queues; says at which address it receives.
pub(crate) fn open_socket(
    local: SocketAddr,
    remote: Option<SocketAddr>,
) -> std::io::Result<(OwnedFd, SocketAddr)> {
    let socket = UdpSocket::bind(local)?;
    if let Some(remote) = remote {
        socket.connect(remote)?;
    }
    socket.set_nonblocking(true)?;
    let local = socket.local_addr()?;
    let fd = OwnedFd::from(socket);
    ask_for_receive_queue(&fd)?;
    setsockopt(&fd, SndBufForce, &QUEUE).or_else(|_| setsockopt(&fd, SndBuf, &QUEUE))?;
    Ok((fd, local))
}

/// Number of datagrams that the kernel has dropped because the receive queue was full, from its table of all
/// sockets by inode.
pub(crate) fn lost_in_kernel(fd: BorrowedFd<'_>, local: SocketAddr) -> Option<u64> {
    let inode = std::fs::metadata(format!("/proc/self/fd/{}", fd.as_raw_fd())).ok()?;
    let inode = std::os::unix::fs::MetadataExt::ino(&inode).to_string();
    let table = std::fs::read_to_string(match local {
        SocketAddr::V4(_) => "/proc/self/net/udp",
        SocketAddr::V6(_) => "/proc/self/net/udp6",
    });
    let table = table.ok()?;
    let row = table.lines().find(|row| row.split_whitespace().nth(9) == Some(&inode))?;
    row.split_whitespace().last()?.parse().ok()
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
        let queue_full = lost_in_kernel(self.socket.as_fd(), self.local).unwrap_or(0);
        Counters { queue_full, ..self.socket.counters }
    }

    fn last_error(&self) -> Option<Errno> {
        self.socket.last_error
    }
}
