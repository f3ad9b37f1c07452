//! A UDP socket to many peers, with one system call for many datagrams.

use std::cmp::Reverse;
use std::fmt;
use std::io::IoSliceMut;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::sockopt::{ReusePort, SndBuf, SndBufForce};
use nix::sys::socket::{
    AddressFamily, MsgFlags, MultiHeaders, SockFlag, SockType, SockaddrLike as _, SockaddrStorage, bind,
    recvmmsg, setsockopt, socket,
};

use crate::batch::BATCH;
use crate::multi::{QUEUE, Sender, ask_for_receive_queue};
use crate::{LONGEST_FRAME, OpenError};

/// Opens sockets at one address. The kernel distributes datagrams among them: all datagrams of one peer go to the
/// same socket (`SO_REUSEPORT`). Port 0 selects a free port, the same for all.
///
/// # Errors
/// When the address is not this machine's, or another process has it.
pub fn share_address(address: SocketAddr, count: usize) -> Result<Vec<UdpSocket>, OpenError> {
    let failed = |source| OpenError::Datagrams { address, source };
    // Another owner of the address would share it with us: then this fails.
    let free = UdpSocket::bind(address).map_err(failed)?;
    let address = free.local_addr().map_err(failed)?;
    drop(free);
    let open = || {
        let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
        let fd = socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&fd, ReusePort, &true)?;
        bind(fd.as_raw_fd(), &SockaddrStorage::from(address))?;
        Ok::<_, Errno>(UdpSocket::from(fd))
    };
    (0..count).map(|_| open().map_err(|error| failed(error.into()))).collect()
}

/// Counts of datagrams and system calls.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DatagramCounts {
    /// Datagrams received.
    pub received: u64,
    /// Datagrams sent.
    pub sent: u64,
    /// Datagrams that the system did not take, because of a full queue or an unreachable peer.
    pub dropped: u64,
    /// Received datagrams that were too long.
    pub too_long: u64,
    /// Received frames with wrong lengths or checksums. For sockets, the system checks these.
    pub damaged: u64,
    /// Received frames that contain no such datagram, or are for another host.
    pub foreign: u64,
    /// System calls.
    pub calls: u64,
}

impl DatagramCounts {
    /// Adds the counts of another socket.
    pub fn merge(&mut self, other: &Self) {
        self.received += other.received;
        self.sent += other.sent;
        self.dropped += other.dropped;
        self.too_long += other.too_long;
        self.damaged += other.damaged;
        self.foreign += other.foreign;
        self.calls += other.calls;
    }
}

/// A non-blocking UDP socket. It belongs to one thread.
pub struct Datagrams {
    fd: OwnedFd,
    receive: MultiHeaders<SockaddrStorage>,
    sender: Sender<SockaddrStorage>,
    /// Memory for the datagrams of one receive call.
    bytes: Box<[u8]>,
    /// Sender, place and length of each received datagram.
    came: Vec<(SocketAddr, usize, usize)>,
    /// Datagrams that wait to be sent.
    leaving: Vec<(SocketAddr, Vec<u8>)>,
    counts: DatagramCounts,
}

impl fmt::Debug for Datagrams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datagrams").field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl Datagrams {
    /// Takes over a bound socket.
    ///
    /// # Errors
    /// If the system refuses to set an option of the socket.
    pub fn new(socket: UdpSocket) -> Result<Self, OpenError> {
        socket.set_nonblocking(true).map_err(OpenError::Descriptor)?;
        let fd = OwnedFd::from(socket);
        let asked = ask_for_receive_queue(&fd);
        let asked =
            asked.and(setsockopt(&fd, SndBufForce, &QUEUE).or_else(|_| setsockopt(&fd, SndBuf, &QUEUE)));
        asked.map_err(|error| OpenError::Descriptor(error.into()))?;
        Ok(Self {
            receive: MultiHeaders::preallocate(BATCH, None),
            sender: Sender::with_trains(&fd),
            fd,
            bytes: vec![0; BATCH * LONGEST_FRAME].into(),
            came: Vec::with_capacity(BATCH),
            leaving: Vec::with_capacity(BATCH),
            counts: DatagramCounts::default(),
        })
    }

    /// Replaces the received datagrams by new ones, up to a batch, and returns their number. If that is [`BATCH`],
    /// there may be more.
    pub fn receive(&mut self) -> usize {
        self.came.clear();
        // (an earlier datagram met no peer: that says nothing about what is there to receive)
        while let Err(Errno::ECONNREFUSED | Errno::EINTR) = self.try_receive() {}
        self.counts.received += self.came.len() as u64;
        self.came.len()
    }

    fn try_receive(&mut self) -> Result<(), Errno> {
        let mut places = self.bytes.chunks_exact_mut(LONGEST_FRAME);
        let mut slices: [[IoSliceMut<'_>; 1]; BATCH] =
            std::array::from_fn(|_| [IoSliceMut::new(places.next().unwrap_or_default())]);
        self.counts.calls += 1;
        let fd = self.fd.as_raw_fd();
        let messages = recvmmsg(fd, &mut self.receive, slices.iter_mut(), MsgFlags::MSG_DONTWAIT, None)?;
        for (place, message) in messages.enumerate() {
            if message.flags.contains(MsgFlags::MSG_TRUNC) {
                self.counts.too_long += 1;
            } else if let Some(from) = message.address.as_ref().and_then(address_of) {
                self.came.push((from, place, message.bytes));
            }
        }
        Ok(())
    }

    /// Discards the received datagrams.
    pub fn forget(&mut self) {
        self.came.clear();
    }

    /// Datagrams that [`receive`](Self::receive) has taken, with their senders.
    pub fn iter(&self) -> impl Iterator<Item = (SocketAddr, &[u8])> {
        self.came.iter().map(|&(from, place, len)| (from, &self.bytes[place * LONGEST_FRAME..][..len]))
    }

    /// Sends a datagram with the next batch, which leaves when it is full or [flushed](Self::flush).
    pub fn send(&mut self, to: SocketAddr, datagram: Vec<u8>) {
        self.leaving.push((to, datagram));
        if self.leaving.len() >= BATCH {
            self.flush();
        }
    }

    /// Sends the waiting datagrams. Those that the system does not take are lost.
    ///
    /// Datagrams of one length to one peer are sorted together, and go as a train if the kernel supports trains. They
    /// arrive together, and a receiver that wakes for the first finds all. UDP guarantees no order of datagrams.
    pub fn flush(&mut self) {
        let Self { fd, sender, leaving, counts, .. } = self;
        leaving.sort_unstable_by_key(|(to, bytes)| (*to, Reverse(bytes.len())));
        let mut first = 0;
        while let Some(rest) = leaving.get(first..).filter(|rest| !rest.is_empty()) {
            let (mut pieces, mut to): ([&[u8]; BATCH], _) = ([&[]; BATCH], [rest[0].0; BATCH]);
            for (at, (peer, bytes)) in rest.iter().enumerate().take(BATCH) {
                (pieces[at], to[at]) = (bytes, *peer);
            }
            counts.calls += 1;
            match sender.send(fd, &pieces[..rest.len().min(BATCH)], &to) {
                Ok(taken) => {
                    counts.sent += taken as u64;
                    first += taken.max(1);
                }
                // What an earlier datagram has met: this one was not sent yet.
                Err(Errno::EINTR | Errno::ECONNREFUSED) => {}
                Err(Errno::EAGAIN | Errno::ENOBUFS) => {
                    counts.dropped += rest.len() as u64;
                    break;
                }
                Err(_) => {
                    counts.dropped += 1;
                    first += 1;
                }
            }
        }
        leaving.clear();
    }

    /// Counts since the start.
    pub fn counts(&self) -> DatagramCounts {
        self.counts
    }

    /// Counts a system call that is made elsewhere, such as a wait.
    pub fn count_call(&mut self) {
        self.counts.calls += 1;
    }

    /// File descriptor that is readable when a datagram has arrived.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

pub(crate) fn address_of(address: &SockaddrStorage) -> Option<SocketAddr> {
    match address.family()? {
        AddressFamily::Inet => Some(SocketAddr::V4((*address.as_sockaddr_in()?).into())),
        AddressFamily::Inet6 => Some(SocketAddr::V6((*address.as_sockaddr_in6()?).into())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::time::{Duration, Instant};

    fn here() -> SocketAddr {
        (Ipv4Addr::LOCALHOST, 0).into()
    }

    #[test]
    fn many_datagrams_of_many_peers_take_few_calls() {
        let server = share_address(here(), 1).unwrap().remove(0);
        let address = server.local_addr().unwrap();
        let mut server = Datagrams::new(server).unwrap();
        let mut peers: Vec<Datagrams> =
            (0..3).map(|_| Datagrams::new(UdpSocket::bind(here()).unwrap()).unwrap()).collect();
        for (peer, n) in peers.iter_mut().zip(0..) {
            (0..20).for_each(|m| peer.send(address, vec![n, m]));
            peer.flush();
            assert_eq!((peer.counts().sent, peer.counts().calls), (20, 1));
        }
        let mut found = Vec::new();
        let began = Instant::now();
        while found.len() < 60 && began.elapsed() < Duration::from_secs(5) {
            server.receive();
            found.extend(server.iter().map(|(from, bytes)| (bytes[0], bytes[1], from)));
        }
        assert_eq!(found.len(), 60);
        found.iter().for_each(|&(n, m, from)| server.send(from, vec![n, m, 7]));
        server.flush();
        assert_eq!(server.counts().received, 60);
        for (peer, n) in peers.iter_mut().zip(0..) {
            let mut came = 0;
            while came < 20 && began.elapsed() < Duration::from_secs(5) {
                came += peer.receive();
                assert!(peer.iter().all(|(from, bytes)| from == address && bytes[0] == n && bytes[2] == 7));
            }
            assert_eq!(came, 20);
        }
    }

    #[test]
    fn datagrams_that_leave_together_keep_their_peers_and_lengths() {
        let mut server = Datagrams::new(share_address(here(), 1).unwrap().remove(0)).unwrap();
        let mut peers: Vec<(SocketAddr, Datagrams)> = (0..3)
            .map(|_| UdpSocket::bind(here()).unwrap())
            .map(|socket| (socket.local_addr().unwrap(), Datagrams::new(socket).unwrap()))
            .collect();
        // In no order, some empty, some of a length that many have.
        let bytes = |n: usize| vec![n as u8; if n.is_multiple_of(5) { n } else { 128 }];
        for n in 0..BATCH {
            server.send(peers[n % 3].0, bytes(n));
        }
        let DatagramCounts { sent, calls, dropped, .. } = server.counts();
        assert_eq!((sent, dropped), (BATCH as u64, 0));
        assert!(calls <= 3, "{calls} system calls");
        let began = Instant::now();
        for (number, (_, peer)) in peers.iter_mut().enumerate() {
            let mut wanted: Vec<Vec<u8>> = (number..BATCH).step_by(3).map(bytes).collect();
            let mut found: Vec<Vec<u8>> = Vec::new();
            while found.len() < wanted.len() && began.elapsed() < Duration::from_secs(5) {
                peer.receive();
                found.extend(peer.iter().map(|(_, bytes)| bytes.to_vec()));
            }
            wanted.sort();
            found.sort();
            assert_eq!(found, wanted, "peer {number}");
        }
    }

    #[test]
    fn an_address_that_somebody_has_is_not_shared_with_him() {
        let sockets = share_address(here(), 4).unwrap();
        let address = sockets[0].local_addr().unwrap();
        assert!(sockets.iter().all(|socket| socket.local_addr().unwrap() == address));
        let refused = share_address(address, 2).unwrap_err().to_string();
        assert!(refused.contains(&address.to_string()), "{refused}");
    }
}
