//! Frames that come by a NIC's wire and are not the NIC's: datagrams for some UDP ports, which other threads take.
//!
//! ```text
//!   the system tells when frames come          they are looked for, a queue a thread (DPDK)
//!
//!   wire ─► NIC's thread ─► pair ─► thread     wire ─► thread ─► pair ─► NIC's thread
//!      ◄────────────────────────────┘             ◄──────┘
//! ```

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

/// Selects the frames that are for other threads, and hands them on: all frames from one address and port to the same thread.
pub(super) struct Diversion {
    ports: Range<u16>,
    to: Vec<PairPort>,
    /// Receiving thread of each frame of a batch.
    whose: Vec<Option<usize>>,
    lost: Arc<AtomicU64>,
}

/// A thread's share of the datagrams that come, and the wire that it sends by.
pub(crate) struct Share {
    come: Come,
    wire: Arc<Wire>,
    mac: MacAddress,
    ip: Ipv4Addr,
    ports: Range<u16>,
}

/// Source of a thread's datagrams.
enum Come {
    /// The NIC's thread hands them on.
    Handed(PairPort),
    /// They come by the thread's queues of the wire, with other frames, which the thread hands on to the NIC's thread.
    Queue { thread: usize, rest: PairPort, lost: Arc<AtomicU64> },
}

/// All threads' shares.
pub(crate) struct Shares {
    pub(crate) all: Vec<Share>,
    /// Frames that have found no room with the thread that they are for.
    pub(crate) lost: Arc<AtomicU64>,
}

/// Gives each thread its queues of a wire. Returns the ports at which the NIC receives the frames handed on to it, and the shares.
pub(super) fn queues(
    wire: &Arc<Wire>,
    (mac, ip): (MacAddress, Ipv4Addr),
    ports: &Range<u16>,
    threads: usize,
) -> Result<(Vec<Box<dyn Port>>, Shares), OpenError> {
    let lost = Arc::new(AtomicU64::new(0));
    let (mut receives, mut all): (Vec<Box<dyn Port>>, _) = (Vec::new(), Vec::new());
    for thread in 0..threads.max(1) {
        let (rest, here) = pair(QUEUE)?;
        receives.push(Box::new(here));
        let come = Come::Queue { thread, rest, lost: Arc::clone(&lost) };
        all.push(Share { come, wire: Arc::clone(wire), mac, ip, ports: ports.clone() });
    }
    Ok((receives, Shares { all, lost }))
}

impl Diversion {
    /// Diversion to `threads` threads, at least one, and their shares.
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
            let come = Come::Handed(came);
            all.push(Share { come, wire: Arc::clone(wire), mac, ip, ports: ports.clone() });
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
            let his = came.iter().zip(&*whose).filter(|(_, whose)| **whose == Some(number));
            hand_on(thread, his.map(|(frame, _)| frame), lost);
        }
    }
}

/// Hands frames to another thread, in large batches because each batch wakes it. Frames without room are counted as lost.
fn hand_on<'f>(thread: &mut PairPort, mut frames: impl Iterator<Item = &'f [u8]>, lost: &AtomicU64) {
    loop {
        let (mut some, mut count): ([&[u8]; BATCH], _) = ([&[]; BATCH], 0);
        for (place, frame) in some.iter_mut().zip(frames.by_ref()) {
            (*place, count) = (frame, count + 1);
        }
        if count == 0 {
            return;
        }
        let taken = thread.send(&some[..count]);
        lost.fetch_add((count - taken) as u64, Ordering::Relaxed);
    }
}

/// Number of the peer that has sent a datagram to these ports; `None` if the frame is something else.
///
/// A client's ports are consecutive, and so are their numbers: its lanes are spread evenly over threads.
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
    /// Opens the share, for the calling thread.
    pub(crate) fn open(self) -> Result<FrameDatagrams, OpenError> {
        let Self { come, wire, mac, ip, ports } = self;
        let port: Box<dyn Port> = match come {
            Come::Handed(came) => Box::new(Split { came, wire: wire.port()? }),
            Come::Queue { thread, rest, lost } => {
                Box::new(Sieve { wire: wire.port_for(thread)?, ports: ports.clone(), rest, lost })
            }
        };
        Ok(FrameDatagrams::new(port, mac, ip, ports))
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

/// Receives what comes by queues of a wire, and hands on frames that are no datagrams for these ports. The owner sees those frames, too.
struct Sieve {
    wire: Box<dyn Port>,
    ports: Range<u16>,
    rest: PairPort,
    lost: Arc<AtomicU64>,
}

impl Port for Sieve {
    fn receive(&mut self, batch: &mut Batch) -> usize {
        let came = self.wire.receive(batch);
        let rest = batch.iter().filter(|frame| peer_of(frame, &self.ports).is_none());
        hand_on(&mut self.rest, rest, &self.lost);
        came
    }

    fn send(&mut self, frames: &[&[u8]]) -> usize {
        self.wire.send(frames)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.wire.fd()
    }

    fn is_polled(&self) -> bool {
        self.wire.is_polled()
    }

    fn counters(&self) -> Counters {
        self.wire.counters()
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
    fn who_has_the_queue_hands_on_what_is_the_nics() {
        let free = || std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let [local, remote] = [free(), free()];
        let wire = Arc::new(PortSpec::Udp { local, remote }.open_wire().unwrap());
        let mut peer = PortSpec::Udp { local: remote, remote: local }.open().unwrap();
        let here = ([2; 6], Ipv4Addr::new(10, 0, 0, 1));
        let (mut nic, mut shares) = queues(&wire, here, &(4793..4795), 1).unwrap();
        let mut thread = shares.all.remove(0).open().unwrap();
        let [query, rdma] = [frame(2, 50_000, 4793), frame(2, 50_000, 4791)];
        let (mut came, mut rest, mut batch) = (0, 0, Batch::new());
        for round in 1..=2 * QUEUE {
            peer.send(&[&rdma, &query]);
            while came < round {
                thread.receive();
                thread.each(|_, _, bytes| {
                    assert_eq!(bytes, b"payload");
                    came += 1;
                });
            }
            // At first the NIC's thread is quick, then it does nothing more.
            if round <= QUEUE / 2 {
                rest += nic[0].receive(&mut batch);
                assert!(batch.iter().all(|frame| frame == rdma));
            }
        }
        assert_eq!((rest, thread.counts().received), (QUEUE / 2, 2 * QUEUE as u64));
        assert_eq!(shares.lost.load(Ordering::Relaxed) as usize, QUEUE / 2, "beyond a full queue");
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
        // The threads take no datagrams: those beyond the queues are lost and counted.
        for _ in 0..2 * QUEUE {
            diversion.divert(&batch, |_| ());
        }
        let lost = shares.lost.load(Ordering::Relaxed) as usize;
        assert_eq!(lost, 2 * QUEUE * 40 - 4 * QUEUE);
    }
}
