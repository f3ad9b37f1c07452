//! A switch's end of a UDP wire that several clients share: each has a UDP port of its own, and an IP address of its own behind it.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::socket::SockaddrStorage;

use crate::batch::{BATCH, Batch};
use crate::counters::Counters;
use crate::datagrams::address_of;
use crate::multi::Socket;
use crate::udp::{lost_in_kernel, open_socket};
use crate::{OpenError, Port};

/// Clients of a shared wire: IP address on the data path, and the UDP address at which each receives frames.
pub type Clients = Arc<[(Ipv4Addr, SocketAddr)]>;

/// One end of a UDP wire with several other ends.
///
/// A frame leaves for the client that has its destination: the IPv4 header's, or the address that an ARP answer is for. A frame without such a
/// client is counted as one without a peer. Frames that come from other UDP addresses than the clients' are ignored.
pub struct SharedUdpPort {
    socket: Socket<SockaddrStorage, SockaddrStorage>,
    local: SocketAddr,
    /// Ordered by IP address.
    by_ip: Clients,
    /// UDP addresses, in order.
    peers: Arc<[SocketAddr]>,
}

impl std::fmt::Debug for SharedUdpPort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedUdpPort({}, {} clients)", self.local, self.by_ip.len())
    }
}

/// The IPv4 address that a frame is for: that of its header, or of an ARP packet's target.
fn destination(frame: &[u8]) -> Option<Ipv4Addr> {
    let (mut at, ether_type) = (12, |at: usize| frame.get(at..at + 2));
    if ether_type(at)? == [0x81, 0x00] {
        at += 4;
    }
    let at = match ether_type(at)? {
        [0x08, 0x00] => at + 2 + 16,
        [0x08, 0x06] => at + 2 + 24,
        _ => return None,
    };
    let octets: [u8; 4] = frame.get(at..at + 4)?.try_into().ok()?;
    Some(octets.into())
}

impl SharedUdpPort {
    /// Opens the end at `local` of the wire to these clients; they need not be there yet.
    ///
    /// # Errors
    /// When the address is not this machine's, or taken.
    pub fn open(local: SocketAddr, clients: &Clients) -> Result<Self, OpenError> {
        let remote = clients.first().map_or(local, |(_, first)| *first);
        let (fd, local) =
            open_socket(local, None).map_err(|source| OpenError::Udp { local, remote, source })?;
        Ok(Self::on(fd, local, clients))
    }

    /// A port on an open end of a wire.
    pub(crate) fn on(fd: OwnedFd, local: SocketAddr, clients: &Clients) -> Self {
        let mut by_ip = clients.to_vec();
        by_ip.sort_unstable();
        let mut peers: Vec<SocketAddr> = by_ip.iter().map(|(_, peer)| *peer).collect();
        peers.sort_unstable();
        Self { socket: Socket::new(fd).with_trains(), local, by_ip: by_ip.into(), peers: peers.into() }
    }

    /// The open end of the wire, for other threads: see [`Wire`](crate::Wire).
    pub(crate) fn wire(&self) -> Result<OwnedFd, OpenError> {
        self.socket.as_fd().try_clone_to_owned().map_err(OpenError::Descriptor)
    }

    /// Local address, at which the port receives.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    fn peer_of(&self, frame: &[u8]) -> Option<SocketAddr> {
        let ip = destination(frame)?;
        let at = self.by_ip.binary_search_by_key(&ip, |(ip, _)| *ip).ok()?;
        Some(self.by_ip[at].1)
    }
}

impl Port for SharedUdpPort {
    fn receive(&mut self, batch: &mut Batch) -> usize {
        let Self { socket, peers, .. } = self;
        let is_client = |from: SocketAddr| peers.binary_search(&from).is_ok();
        socket.receive_trains_from(batch, |from: Option<&SockaddrStorage>| {
            from.and_then(address_of).is_some_and(is_client)
        })
    }

    fn send(&mut self, frames: &[&[u8]]) -> usize {
        let mut done = 0;
        while done < frames.len() {
            let (mut pieces, mut to): ([&[u8]; BATCH], _) = ([&[]; BATCH], [self.local; BATCH]);
            // Taken are the frames up to each kept one, those without a peer among them.
            let (mut kept, mut ends, mut end) = (0, [0; BATCH], done);
            for frame in frames[done..].iter().take(BATCH) {
                end += 1;
                match self.peer_of(frame) {
                    Some(peer) => {
                        (pieces[kept], to[kept], ends[kept]) = (frame, peer, end);
                        kept += 1;
                    }
                    None => self.socket.counters.no_peer += 1,
                }
            }
            let sent = self.socket.send_to(&pieces[..kept], &to[..kept]);
            if sent < kept {
                return sent.checked_sub(1).map_or(done, |last| ends[last]);
            }
            done = end;
        }
        done
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_for_the_address_in_their_header() {
        let mut frame = [0; 60];
        frame[12..14].copy_from_slice(&[0x08, 0x00]);
        frame[30..34].copy_from_slice(&[10, 1, 0, 2]);
        assert_eq!(destination(&frame), Some([10, 1, 0, 2].into()));
        assert_eq!(destination(&frame[..33]), None);
        frame[12..18].copy_from_slice(&[0x81, 0x00, 0, 7, 0x08, 0x06]);
        frame[42..46].copy_from_slice(&[172, 16, 0, 9]);
        assert_eq!(destination(&frame), Some([172, 16, 0, 9].into()));
        frame[16] = 0x86;
        assert_eq!(destination(&frame), None);
        assert_eq!(destination(&[]), None);
    }
}
