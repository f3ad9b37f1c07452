//! UDP over IPv4 over Ethernet on any port, parsed and built here.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::ops::Range;

use fatbtree_wire::{Ethernet, PREFIX_LEN, ParseError, UdpFrame};

use crate::batch::{BATCH, Batch};
use crate::{DatagramCounts, LONGEST_FRAME, Port};

/// A host's MAC address.
pub type MacAddress = [u8; 6];

/// Maximum number of hosts whose MAC addresses are learned from received frames. Beyond that all are forgotten, and
/// the next request of a host makes it known again.
const NEIGHBOURS: usize = 4096;

/// Datagrams to and from some UDP ports of one host, as Ethernet frames. The value belongs to one thread.
///
/// A received frame is accepted if it is addressed to this host and one of the ports, and is undamaged. Checked are
/// its lengths, IPv4's checksum, and UDP's unless its sender has computed none. Sent frames have checksums, without
/// which switches lead no queries. Nothing is allocated for a frame.
///
/// There is no ARP: a datagram goes to the known MAC address of its host, or to the source of the host's last frame.
/// Switches of this system would find the host with any MAC address.
pub struct FrameDatagrams {
    port: Box<dyn Port>,
    mac: MacAddress,
    ip: Ipv4Addr,
    ports: Range<u16>,
    known: BTreeMap<Ipv4Addr, MacAddress>,
    learned: HashMap<Ipv4Addr, MacAddress>,
    batch: Batch,
    /// Datagram of each frame of the batch, if the frame was accepted.
    came: Vec<Option<Came>>,
    /// Buffers for frames to be sent, of which the first `waiting` are in use.
    leaving: Vec<Vec<u8>>,
    waiting: usize,
    counts: DatagramCounts,
}

/// A datagram in a frame.
struct Came {
    /// Index of its destination port among the ports of this host.
    lane: usize,
    from: SocketAddrV4,
    /// End of its payload, which begins after the headers.
    end: usize,
}

impl fmt::Debug for FrameDatagrams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameDatagrams")
            .field("ip", &self.ip)
            .field("ports", &self.ports)
            .field("counts", &self.counts)
            .finish_non_exhaustive()
    }
}

impl FrameDatagrams {
    /// Takes over the port of the host with these addresses.
    pub fn new(port: Box<dyn Port>, mac: MacAddress, ip: Ipv4Addr, ports: Range<u16>) -> Self {
        Self {
            port,
            mac,
            ip,
            ports,
            known: BTreeMap::new(),
            learned: HashMap::new(),
            batch: Batch::new(),
            came: Vec::with_capacity(4 * BATCH),
            leaving: vec![Vec::new(); BATCH],
            waiting: 0,
            counts: DatagramCounts::default(),
        }
    }

    /// Adds known MAC addresses of hosts.
    #[must_use]
    pub fn with_hosts(mut self, hosts: impl IntoIterator<Item = (Ipv4Addr, MacAddress)>) -> Self {
        self.known.extend(hosts);
        self
    }

    /// Replaces the received datagrams by new ones, up to a batch. Returns whether there may be more.
    pub fn receive(&mut self) -> bool {
        self.came.clear();
        if self.port.receive(&mut self.batch) == 0 {
            return false;
        }
        let Self { batch, came, mac, ip, ports, known, learned, counts, .. } = self;
        for frame in batch.iter() {
            came.push(match UdpFrame::parse(frame) {
                Ok(found) if found.destination.ip() == ip && ports.contains(&found.destination.port()) => {
                    let from = *found.source.ip();
                    if found.ethernet.source != *mac && !known.contains_key(&from) {
                        learn(learned, from, found.ethernet.source);
                    }
                    counts.received += 1;
                    Some(Came {
                        lane: usize::from(found.destination.port() - ports.start),
                        from: found.source,
                        end: PREFIX_LEN + found.payload.len(),
                    })
                }
                Ok(_) | Err(ParseError::Foreign { .. }) => {
                    counts.foreign += 1;
                    None
                }
                Err(_) => {
                    counts.damaged += 1;
                    None
                }
            });
        }
        batch.is_full()
    }

    /// Calls `show` for each datagram of [`receive`](Self::receive), with the index of its UDP port and its sender.
    pub fn each(&self, mut show: impl FnMut(usize, SocketAddr, &[u8])) {
        for (frame, came) in self.batch.iter().zip(&self.came) {
            if let Some(Came { lane, from, end }) = came {
                show(*lane, SocketAddr::V4(*from), &frame[PREFIX_LEN..*end]);
            }
        }
    }

    /// Sends a datagram from one of the ports with the next batch, which leaves when it is full or
    /// [flushed](Self::flush).
    pub fn send(&mut self, lane: usize, to: SocketAddr, datagram: &[u8]) {
        let mac = match to {
            SocketAddr::V4(to) => self.known.get(to.ip()).or_else(|| self.learned.get(to.ip())),
            SocketAddr::V6(_) => None,
        };
        let lane = u16::try_from(lane).ok().and_then(|lane| self.ports.start.checked_add(lane));
        let (Some(mac), Some(source), SocketAddr::V4(to)) = (mac, lane, to) else {
            self.counts.dropped += 1;
            return;
        };
        if datagram.len() > LONGEST_FRAME - PREFIX_LEN {
            self.counts.dropped += 1;
            return;
        }
        let frame = UdpFrame {
            ethernet: Ethernet { destination: *mac, source: self.mac },
            source: SocketAddrV4::new(self.ip, source),
            destination: to,
            payload: datagram,
        };
        frame.emit(&mut self.leaving[self.waiting]);
        self.waiting += 1;
        if self.waiting == BATCH {
            self.flush();
        }
    }

    /// Sends the waiting datagrams. Those that find no room are lost.
    pub fn flush(&mut self) {
        if self.waiting == 0 {
            return;
        }
        let mut frames: [&[u8]; BATCH] = [&[]; BATCH];
        for (place, frame) in frames.iter_mut().zip(&self.leaving[..self.waiting]) {
            *place = frame;
        }
        let taken = self.port.send(&frames[..self.waiting]);
        self.counts.sent += taken as u64;
        self.counts.dropped += (self.waiting - taken) as u64;
        self.waiting = 0;
    }

    /// Counts since the start.
    pub fn counts(&self) -> DatagramCounts {
        self.counts
    }

    /// UDP ports of this host.
    pub(crate) fn ports(&self) -> Range<u16> {
        self.ports.clone()
    }

    /// Port of the wire, as a slice for waiters.
    pub(crate) fn port(&self) -> &[Box<dyn Port>] {
        std::slice::from_ref(&self.port)
    }
}

fn learn(learned: &mut HashMap<Ipv4Addr, MacAddress>, host: Ipv4Addr, mac: MacAddress) {
    if learned.get(&host) == Some(&mac) {
        return;
    }
    if learned.len() >= NEIGHBOURS && !learned.contains_key(&host) {
        learned.clear();
    }
    learned.insert(host, mac);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pair;

    const SERVER: ([u8; 6], Ipv4Addr) = ([2, 0, 0, 0, 0, 1], Ipv4Addr::new(10, 0, 0, 1));
    const CLIENT: ([u8; 6], Ipv4Addr) = ([2, 0, 0, 0, 0, 2], Ipv4Addr::new(10, 0, 0, 2));

    fn came(end: &FrameDatagrams) -> Vec<(usize, SocketAddr, Vec<u8>)> {
        let mut all = Vec::new();
        end.each(|lane, from, bytes| all.push((lane, from, bytes.to_vec())));
        all
    }

    #[test]
    fn datagrams_go_and_answers_find_back() {
        let (one, other) = pair(256).unwrap();
        let mut server = FrameDatagrams::new(Box::new(one), SERVER.0, SERVER.1, 4793..4795);
        let mut client = FrameDatagrams::new(Box::new(other), CLIENT.0, CLIENT.1, 50_000..50_003)
            .with_hosts([(SERVER.1, SERVER.0)]);
        let to = SocketAddr::from((SERVER.1, 4794));
        // The server has not been told where the client is.
        server.send(0, (CLIENT.1, 50_001).into(), b"too early");
        assert_eq!(server.counts().dropped, 1);
        for n in 0..100u8 {
            client.send(usize::from(n % 3), to, &vec![n; usize::from(n)]);
        }
        client.flush();
        let mut number = 0;
        while number < 100 {
            let more = server.receive();
            for (lane, from, bytes) in came(&server) {
                assert_eq!((lane, from), (1, (CLIENT.1, 50_000 + u16::from(number % 3)).into()));
                assert_eq!(bytes, vec![number; usize::from(number)]);
                server.send(0, from, &[number]);
                number += 1;
            }
            assert_eq!(more, number < 100 && number > 0);
        }
        server.flush();
        let mut answers = 0;
        while client.receive() || answers < 100 {
            for (lane, from, bytes) in came(&client) {
                assert_eq!((lane, from), (usize::from(bytes[0] % 3), (SERVER.1, 4793).into()));
                answers += 1;
            }
            if answers == 100 {
                break;
            }
        }
        assert_eq!((server.counts().received, client.counts().received), (100, 100));
    }

    #[test]
    fn what_is_damaged_or_not_for_here_is_dropped_and_counted() {
        let (one, mut wire) = pair(256).unwrap();
        let mut server = FrameDatagrams::new(Box::new(one), SERVER.0, SERVER.1, 4793..4794);
        let frame = |to: Ipv4Addr, port: u16| {
            let mut frame = Vec::new();
            let ethernet = Ethernet { destination: SERVER.0, source: CLIENT.0 };
            let (source, destination) = (SocketAddrV4::new(CLIENT.1, 7), SocketAddrV4::new(to, port));
            UdpFrame { ethernet, source, destination, payload: b"payload" }.emit(&mut frame);
            frame
        };
        let good = frame(SERVER.1, 4793);
        let mut damaged = [good.clone(), good.clone(), good[..45].to_vec()];
        damaged[0][48] ^= 1;
        damaged[1][40] ^= 1;
        let foreign = [frame(CLIENT.1, 4793), frame(SERVER.1, 4794), vec![0xff; 60]];
        for frame in damaged.iter().chain(&foreign).chain([&good]) {
            wire.send(&[frame]);
        }
        server.receive();
        assert_eq!(came(&server), [(0, (CLIENT.1, 7).into(), b"payload".to_vec())]);
        let DatagramCounts { received, damaged, foreign, .. } = server.counts();
        assert_eq!((received, damaged, foreign), (1, 3, 3));
    }

    #[test]
    fn hosts_that_are_learned_are_bounded() {
        let mut learned = HashMap::new();
        for n in 0..3 * NEIGHBOURS as u32 {
            learn(&mut learned, n.into(), [7; 6]);
            assert!(learned.len() <= NEIGHBOURS && learned.contains_key(&Ipv4Addr::from(n)));
        }
    }
}
