//! Durations of requests. All that the simulator knows about time is behind [`Timing`].

use fatbtree_verbs::time::{Duration, Instant};
use rand::RngExt as _;

use super::{MachineId, Random};

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// READ or index read.
    Read,
    /// WRITE.
    Write,
    /// Any atomic.
    Atomic,
}

/// A request, as far as time is concerned.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Machine that sends it.
    pub from: MachineId,
    /// Machine that carries it out.
    pub to: MachineId,
    /// Kind of the request.
    pub kind: Kind,
    /// Bytes read or written.
    pub bytes: u32,
    /// Address in the responder's memory, as the responder finds it; 0 before.
    pub address: u64,
    /// Time at which the responder got it; zero before. Its queue pair may let it begin later.
    pub arrived: Instant,
    /// Whether it is for memory on the network card.
    pub device_memory: bool,
    /// Whether it is the first of its chain: it comes with the doorbell.
    pub doorbell: bool,
    /// Whether earlier requests of its queue pair are not complete when it is sent.
    pub follows: bool,
    /// Whether its completion is reported: the card writes a completion entry.
    pub signalled: bool,
    /// Whether the atomic has changed its word; known when the answer is sent.
    pub changed: bool,
}

/// A chain that the thread of a machine hands to its card.
#[derive(Clone, Copy, Debug)]
pub struct Posting {
    /// Machine that posts.
    pub from: MachineId,
    /// Machine at the other end of the queue pair.
    pub to: MachineId,
    /// Requests of the chain.
    pub requests: u32,
}

/// A request on its way.
#[derive(Clone, Copy, Debug)]
pub struct Sending {
    /// Time at which all of it has left its machine: from then on that machine's death does not stop it.
    pub left: Instant,
    /// Time at which it passes the switches that choose the landing of an index read.
    pub passes: Instant,
    /// Time at which it is at the responder's network card.
    pub arrives: Instant,
}

/// A request being carried out.
#[derive(Clone, Copy, Debug)]
pub struct Serving {
    /// Time from which on the first line may be touched.
    pub begins: Instant,
    /// Time at which all lines are touched; an atomic is carried out at this moment.
    pub ends: Instant,
    /// Time at which the answer is ready to be sent.
    pub answers: Instant,
}

/// Durations of requests. The simulator asks up to six questions about each request, each when it comes up. So the
/// answer may depend on what else waits for the same card, bus or link. Questions of one kind about one machine come in
/// the order of time.
///
/// Queue pairs keep their own order: a request never overtakes its queue pair's earlier ones, whichever times are
/// answered here.
pub trait Timing {
    /// Time at which the thread begins to post a chain: it may be busy with work of its own. It is asked once for each chain, when all chains
    /// before are with the card, and [`post`](Self::post) follows at that time. Without a model of threads, at once.
    fn begin(&mut self, now: Instant, posting: &Posting) -> Instant {
        let _ = posting;
        now
    }

    /// Time at which a chain is with the card. The thread of the machine posts one chain after the other: it is asked
    /// about the next one at that time. Without a model of threads, at once.
    fn post(&mut self, now: Instant, posting: &Posting, random: &mut Random) -> Instant {
        let _ = (posting, random);
        now
    }

    /// Times of a request that a network card takes from its send queue at `now`.
    fn send(&mut self, now: Instant, work: &Work, random: &mut Random) -> Sending;

    /// Times of a request at the responder; its queue pair lets it begin at `earliest`, which is now or later.
    fn serve(&mut self, earliest: Instant, work: &Work, random: &mut Random) -> Serving;

    /// Time at which the answer that is sent at `now` is with the requester's card.
    fn answer(&mut self, now: Instant, work: &Work, random: &mut Random) -> Instant;

    /// Time at which the requester's thread takes the completion of a request whose answer is with its card. A thread
    /// that posts takes nothing before all its chains are with the card. Requests that fail are not asked about.
    /// Without a model of threads, at once.
    fn complete(&mut self, now: Instant, work: &Work) -> Instant {
        let _ = work;
        now
    }

    /// Notes that so many requests of a machine have given back their places in a send queue: polled completions, and what is not signalled
    /// when it is complete or polled with one before it.
    fn freed(&mut self, machine: MachineId, requests: u32) {
        let _ = (machine, requests);
    }
}

/// A table of times without queues: nothing waits for anything but its own queue pair.
///
/// The default adds up to 1.6 µs for a READ of 64 bytes through one switch ("≤ 2 µs", Sherman section 2.2), 1.2 µs for a WRITE,
/// 1.7 µs for a CAS in memory and 1.1 µs for one on the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceTimes {
    /// Time from the doorbell until the card has the request: a PCIe write and the card's own work. Half of
    /// what a READ's 2 µs (Sherman section 2.2) leave when the parts below are taken off.
    pub doorbell: Duration,
    /// A card's work on each request: 110 million a second (Sherman section 4.3; SMART section 6, "the hardware limit").
    pub request: Duration,
    /// Time from port to port of a switch: 300 ns, as data sheets of 100 Gb/s switches say (Mellanox SN2700).
    pub switch: Duration,
    /// Switches on the way: 1 in Sherman's cluster (section 5.1), up to 5 in a FatTree.
    pub switches: u32,
    /// Time in the cables of one way: 2 m at 5 ns each.
    pub cables: Duration,
    /// Time of 64 bytes on the wire: 100 Gb/s (Sherman section 5.1).
    pub line: Duration,
    /// Time in which the card reads memory over PCIe: a DMA read of 64 bytes on a Xeon E5 takes about 0.55 µs
    /// (Neugebauer et al., *Understanding PCIe performance for end host networking*, SIGCOMM 2018, section 6.1).
    pub pcie_read: Duration,
    /// Time in which the card writes memory over PCIe. The write is posted, so it takes one way, about a quarter of a
    /// read. (Same source: a read is two ways and the memory's own latency.)
    pub pcie_write: Duration,
    /// Time in which the card accesses its own memory, without PCIe (Sherman section 4.3): one request's time at 110
    /// million a second.
    pub device_memory: Duration,
    /// Time from the card until the completion can be polled: a PCIe write and the poll.
    pub completion: Duration,
    /// Percentage by which each of these may take longer, as the seed decides.
    pub jitter: u32,
}

impl Default for ServiceTimes {
    fn default() -> Self {
        Self {
            doorbell: Duration::from_nanos(200),
            request: Duration::from_nanos(9),
            switch: Duration::from_nanos(300),
            switches: 1,
            cables: Duration::from_nanos(10),
            line: Duration::from_nanos(5),
            pcie_read: Duration::from_nanos(550),
            pcie_write: Duration::from_nanos(140),
            device_memory: Duration::from_nanos(9),
            completion: Duration::from_nanos(200),
            jitter: 10,
        }
    }
}

impl ServiceTimes {
    /// Times for finding bugs, not for measuring: each of them short or long, so that anything can overtake anything.
    #[must_use]
    pub fn rough(random: &mut Random) -> Self {
        let mut up_to = |longest: &[u64]| {
            let longest = longest[random.random_range(0..longest.len())];
            Duration::from_nanos(random.random_range(1..=longest))
        };
        // Lines are many, and all of a request must be done before it is sent again.
        let line = up_to(&[5, 20, 100]);
        let mut any = || up_to(&[10, 100, 1_000, 5_000]);
        Self {
            doorbell: any(),
            request: any(),
            switch: any(),
            cables: any(),
            line,
            pcie_read: any(),
            pcie_write: any(),
            device_memory: any(),
            completion: any(),
            switches: 1,
            jitter: 100,
        }
    }

    fn lines(&self, bytes: u32) -> Duration {
        self.line * u64::from(bytes.div_ceil(64))
    }

    fn way(&self) -> Duration {
        self.switch * u64::from(self.switches) + self.cables
    }

    fn vary(&self, span: Duration, random: &mut Random) -> Duration {
        let most = span.as_nanos() * u64::from(self.jitter) / 100;
        if most == 0 { span } else { span + Duration::from_nanos(random.random_range(0..=most)) }
    }
}

impl Timing for ServiceTimes {
    fn send(&mut self, now: Instant, work: &Work, random: &mut Random) -> Sending {
        let doorbell = if work.doorbell { self.doorbell } else { Duration::ZERO };
        let payload = if work.kind == Kind::Write { self.lines(work.bytes) } else { Duration::ZERO };
        let left = now + self.vary(doorbell + self.request, random) + payload;
        let way = self.vary(self.way(), random);
        Sending { left, passes: left + way / 2, arrives: left + way }
    }

    fn serve(&mut self, earliest: Instant, work: &Work, random: &mut Random) -> Serving {
        let begins = earliest + self.vary(self.request, random);
        let (before, after) = match (work.device_memory, work.kind) {
            (true, _) => (self.device_memory, Duration::ZERO),
            // The request goes to the memory, and what was there comes back.
            (false, Kind::Read) => (self.pcie_read / 2, self.pcie_read / 2),
            (false, Kind::Write) => (self.pcie_write, Duration::ZERO),
            (false, Kind::Atomic) => (self.pcie_read, self.pcie_write),
        };
        let begins = begins + self.vary(before, random);
        let ends = begins + self.vary(self.lines(work.bytes), random);
        Serving { begins, ends, answers: ends + after }
    }

    fn answer(&mut self, now: Instant, work: &Work, random: &mut Random) -> Instant {
        let payload = if work.kind == Kind::Read { self.lines(work.bytes) } else { Duration::ZERO };
        now + payload + self.vary(self.request + self.way() + self.completion, random)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng as _;

    /// Sums as the page of [`ServiceTimes`] states them.
    #[test]
    fn the_sums_are_those_of_the_papers() {
        let mut times = ServiceTimes { jitter: 0, ..ServiceTimes::default() };
        let mut random = Random::seed_from_u64(0);
        let mut sum = |kind, bytes, device_memory| {
            let ends = MachineId(0);
            let work = Work {
                from: ends,
                to: ends,
                kind,
                bytes,
                address: 0,
                arrived: Instant::ZERO,
                device_memory,
                doorbell: true,
                follows: false,
                signalled: true,
                changed: false,
            };
            let sending = times.send(Instant::ZERO, &work, &mut random);
            let serving = times.serve(sending.arrives, &work, &mut random);
            assert!(sending.left < sending.passes && sending.passes < sending.arrives);
            assert!(serving.begins <= serving.ends && serving.ends <= serving.answers);
            times.answer(serving.answers, &work, &mut random).as_nanos().div_euclid(10)
        };
        assert_eq!(sum(Kind::Read, 64, false), 160);
        assert_eq!(sum(Kind::Read, 1024, false), 175);
        assert_eq!(sum(Kind::Write, 64, false), 119);
        assert_eq!(sum(Kind::Atomic, 8, false), 174);
        assert_eq!(sum(Kind::Atomic, 8, true), 106);
    }
}
