//! Frames that come by a NIC's wire and are not the NIC's: datagrams for some UDP ports, which other threads take.

use std::net::Ipv4Addr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fatbtree_port::{
    BATCH, Batch, Counters, Errno, FrameDatagrams, MacAddress, OpenError, PairPort, Port, Wire, pair,
};

/// Frames that wait for a thread.
const QUEUE: usize = 1024;

/// Says which frames are for others, and hands them on: all of one peer's address and port to the same thread.
pub(super) struct Diversion {
    ports: Range<u16>,
    to: Vec<PairPort>,
    /// Of each frame of a batch, whose it is.
    whose: Vec<Option<usize>>,
    lost: Arc<AtomicU64>,
}

/// A thread's share of the datagrams that come, and the wire that it sends by.
pub(crate) struct Share {
    came: PairPort,
    wire: Arc<Wire>,
    mac: MacAddress,
    ip: Ipv4Addr,
    ports: Range<u16>,
}

/// All threads' shares.
pub(crate) struct Shares {
    pub(crate) all: Vec<Share>,
    /// Frames that have found no room with their thread.
    pub(crate) lost: Arc<AtomicU64>,
}

impl Diversion {
    /// For so many threads, at least one.
    pub(super) fn new(
        wire: &Arc<Wire>,
        (mac, ip): (MacAddress, Ipv4Addr),
        ports: &Range<u16>,
        threads: usize,
    ) -> Result<(Self, Shares), OpenError> {
        let lost = Arc::new(AtomicU64::new(0));
        let (mut to, mut all) = (Vec::new(), Vec::new());
        for _ in 0..threads.max(1) {
            let (here, came) = pair(QUEUE)?;
            to.push(here);
            all.push(Share { came, wire: Arc::clone(wire), mac, ip, ports: ports.clone() });
        }
        let diversion = Self { ports: ports.clone(), to, whose: Vec::new(), lost: Arc::clone(&lost) };
        Ok((diversion, Shares { all, lost }))
    }

    /// Hands on the frames that are for others, and shows the rest.
    pub(super) fn divert(&mut self, came: &Batch, mut rest: impl FnMut(&[u8])) {
        let Self { ports, to, whose, lost } = self;
        whose.clear();
        for frame in came.iter() {
            let peer = peer_of(frame, ports);
            if peer.is_none() {
                rest(frame);
            }
            whose.push(peer.map(|peer| peer as usize % to.len()));
        }
        for (number, thread) in to.iter_mut().enumerate() {
            let mut his = came.iter().zip(&*whose).filter(|(_, whose)| **whose == Some(number));
            loop {
                let (mut frames, mut count): ([&[u8]; BATCH], _) = ([&[]; BATCH], 0);
                for (place, (frame, _)) in frames.iter_mut().zip(his.by_ref()) {
                    (*place, count) = (frame, count + 1);
                }
                if count == 0 {
                    break;
                }
                let taken = thread.send(&frames[..count]);
                lost.fetch_add((count - taken) as u64, Ordering::Relaxed);
            }
        }
    }
}

/// A number for who has sent a datagram to these ports; none where the frame is something else. A client's ports lie side by side, and so do
/// their numbers: its lanes are shared out evenly.
fn peer_of(frame: &[u8], ports: &Range<u16>) -> Option<u32> {
    let headers: &[u8; 42] = frame.first_chunk()?;
    let [.., s0, s1, d0, d1, _, _, _, _] = *headers;
    // IPv4 without options, no part of a longer packet, UDP.
    let is_datagram = headers[12..15] == [8, 0, 0x45]
        && headers[20] & 0x3f == 0
        && headers[21] == 0
        && headers[23] == 17
        && ports.contains(&u16::from_be_bytes([d0, d1]));
    let source = u32::from_be_bytes(*headers[26..30].first_chunk()?);
    // Of hosts' addresses mostly one byte differs; whichever it is, it reaches the bits that count.
    let host = source.wrapping_mul(0x9e37_79b9) >> 16;
    is_datagram.then(|| host + u32::from(u16::from_be_bytes([s0, s1])))
}

impl Share {
    /// For the thread that calls it.
    pub(crate) fn open(self) -> Result<FrameDatagrams, OpenError> {
        let Self { came, wire, mac, ip, ports } = self;
        Ok(FrameDatagrams::new(Box::new(Split { came, wire: wire.port()? }), mac, ip, ports))
    }
}

/// Receives what another thread hands on, sends by itself.
struct Split {
    came: PairPort,
    wire: Box<dyn Port>,
}

impl Port for Split {
    fn receive(&mut self, batch: &mut Batch) -> usize {
        self.came.receive(batch)
    }

    fn send(&mut self, frames: &[&[u8]]) -> usize {
        self.wire.send(frames)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.came.fd()
    }

    fn counters(&self) -> Counters {
        self.came.counters()
    }

    fn last_error(&self) -> Option<Errno> {
        self.wire.last_error()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::collections::BTreeMap;
    use std::net::SocketAddrV4;

    use fatbtree_port::PortSpec;
    use fatbtree_wire::{Ethernet, UdpFrame};

    use super::*;

    fn frame(host: u8, source: u16, port: u16) -> Vec<u8> {
        let mut frame = Vec::new();
        let ethernet = Ethernet { destination: [2; 6], source: [4; 6] };
        let source = SocketAddrV4::new([10, 0, 0, host].into(), source);
        let destination = SocketAddrV4::new([10, 0, 0, 1].into(), port);
        UdpFrame { ethernet, source, destination, payload: b"payload" }.emit(&mut frame);
        frame
    }

    #[test]
    fn each_peer_has_one_thread_lanes_are_spread_and_the_rest_stays() {
        let free = || std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let spec = PortSpec::Udp { local: free(), remote: free() };
        let wire = Arc::new(spec.open_wire().unwrap());
        let here = ([2; 6], Ipv4Addr::new(10, 0, 0, 1));
        let (mut diversion, shares) = Diversion::new(&wire, here, &(4793..4795), 4).unwrap();
        let mut threads: Vec<FrameDatagrams> =
            shares.all.into_iter().map(|share| share.open().unwrap()).collect();
        let mut batch = Batch::new();
        for n in 0..40u16 {
            assert!(batch.push(&frame(2 + (n / 20) as u8, 50_000 + n % 20, 4793 + n % 2)));
        }
        let mut others = [frame(2, 1, 4791), frame(2, 1, 4795), frame(2, 4793, 1), vec![0; 13]];
        others[1][20] = 0x20; // a fragment
        others.iter().for_each(|frame| assert!(batch.push(frame)));
        for _ in 0..2 {
            let mut rest = Vec::new();
            diversion.divert(&batch, |frame| rest.push(frame.to_vec()));
            assert_eq!(rest, others);
        }
        let mut whose: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (number, thread) in threads.iter_mut().enumerate() {
            let mut count = 0;
            while thread.receive() || count == 0 {
                thread.each(|_, from, bytes| {
                    assert_eq!(bytes, b"payload");
                    whose.entry(from).or_default().push(number);
                    count += 1;
                });
            }
            assert_eq!(count, 20, "a quarter of all");
        }
        assert_eq!(whose.len(), 40);
        assert!(whose.values().all(|numbers| numbers.len() == 2 && numbers[0] == numbers[1]));
        // Nobody takes what comes: the rest is lost, and counted.
        for _ in 0..2 * QUEUE {
            diversion.divert(&batch, |_| ());
        }
        let lost = shares.lost.load(Ordering::Relaxed) as usize;
        assert_eq!(lost, 2 * QUEUE * 40 - 4 * QUEUE);
    }
}
