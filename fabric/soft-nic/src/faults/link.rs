//! Link that applies the verdicts of a judge of faults.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::fmt;

use super::{FaultRates, Faults, Verdict};
use fatbtree_verbs::time::{Duration, Instant};

/// Carries frames between ends under virtual time, and loses, doubles, delays and damages some of them as a seed decides.
///
/// It is sans-IO, for tests, simulators and drivers that inject faults: its driver hands in the frames that an end sends,
/// with the end they go to (`E` is whatever tells ends apart), and takes those that have arrived. Frames that are due at the
/// same time arrive in the order of sending. It holds a bounded number of frames, and loses what comes when it is full: ask
/// [`has_room`](Self::has_room) before taking a frame from a NIC.
pub struct LossyLink<E> {
    delay: Duration,
    faults: Faults,
    flying: BinaryHeap<Reverse<Flying<E>>>,
    sent: u64,
    room: usize,
    overflowed: u64,
    spare: Vec<Vec<u8>>,
}

/// A frame on its way; ordered by arrival, then by sending.
struct Flying<E> {
    at: Instant,
    number: u64,
    to: E,
    frame: Vec<u8>,
}

impl<E> Flying<E> {
    fn key(&self) -> (Instant, u64) {
        (self.at, self.number)
    }
}

impl<E> PartialEq for Flying<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Flying<E> {}

impl<E> PartialOrd for Flying<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Flying<E> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl<E> fmt::Debug for LossyLink<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LossyLink")
            .field("delay", &self.delay)
            .field("faults", &self.faults)
            .field("under_way", &self.flying.len())
            .finish_non_exhaustive()
    }
}

/// Default number of frames that a link holds.
const ROOM: usize = 4096;

impl<E> LossyLink<E> {
    /// A link that takes `delay` to deliver a frame, with room for 4096 of them; `seed` decides every fault.
    pub fn new(delay: Duration, rates: FaultRates, seed: u64) -> Self {
        Self {
            delay,
            faults: Faults::new(rates, seed),
            flying: BinaryHeap::new(),
            sent: 0,
            room: ROOM,
            overflowed: 0,
            spare: Vec::new(),
        }
    }

    /// Link with room for `frames` frames under way.
    #[must_use]
    pub fn with_room(mut self, frames: usize) -> Self {
        self.room = frames;
        self
    }

    /// Whether a frame that is sent now finds room.
    pub fn has_room(&self) -> bool {
        self.flying.len() < self.room
    }

    /// Takes a frame for the end `to`. If there is no room, the frame is lost and counted as
    /// [`overflowed`](Self::overflowed), as at a full port.
    pub fn send(&mut self, now: Instant, to: E, frame: &[u8])
    where
        E: Copy,
    {
        let arrival = now + self.delay;
        match self.faults.judge() {
            Verdict::Pass => self.carry(arrival, to, frame),
            Verdict::Drop => {}
            Verdict::Delay(extra) => self.carry(arrival + extra, to, frame),
            Verdict::Duplicate(extra) => {
                self.carry(arrival, to, frame);
                self.carry(arrival + extra, to, frame);
            }
            Verdict::Corrupt => {
                let mut damaged = self.spare.pop().unwrap_or_default();
                damaged.extend_from_slice(frame);
                self.faults.damage(&mut damaged);
                self.carry(arrival, to, &damaged);
                damaged.clear();
                self.spare.push(damaged);
            }
        }
    }

    fn carry(&mut self, at: Instant, to: E, bytes: &[u8]) {
        if !self.has_room() {
            self.overflowed += 1;
            return;
        }
        let mut frame = self.spare.pop().unwrap_or_default();
        frame.extend_from_slice(bytes);
        self.sent += 1;
        self.flying.push(Reverse(Flying { at, number: self.sent, to, frame }));
    }

    /// Time at which the next frame arrives; `None` when none is under way.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.flying.peek().map(|Reverse(next)| next.at)
    }

    /// Puts the next frame that has arrived by `now` into `frame` (cleared first), and returns its end.
    pub fn receive(&mut self, now: Instant, frame: &mut Vec<u8>) -> Option<E> {
        frame.clear();
        if self.next_arrival()? > now {
            return None;
        }
        let Reverse(mut next) = self.flying.pop()?;
        std::mem::swap(frame, &mut next.frame);
        self.spare.push(next.frame);
        Some(next.to)
    }

    /// Number of frames under way.
    pub fn under_way(&self) -> usize {
        self.flying.len()
    }

    /// Frames lost because too many were under way.
    pub fn overflowed(&self) -> u64 {
        self.overflowed
    }

    /// Faults of frames so far.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Sets the rates of faults from now on; what is under way arrives as it is.
    pub fn set_rates(&mut self, rates: FaultRates) {
        self.faults.set_rates(rates);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time, end and bytes of an arrival.
    type Arrival = (u64, u8, Vec<u8>);

    const LATENCY: Duration = Duration::from_micros(2);

    fn arrivals(link: &mut LossyLink<u8>) -> Vec<Arrival> {
        let (mut found, mut frame) = (Vec::new(), Vec::new());
        while let Some(now) = link.next_arrival() {
            assert_eq!(link.receive(Instant::ZERO, &mut frame), None, "before its time");
            let to = link.receive(now, &mut frame).unwrap();
            found.push((now.as_nanos(), to, frame.clone()));
        }
        found
    }

    fn run(rates: FaultRates, seed: u64) -> (Vec<Arrival>, [u64; 4]) {
        let mut link = LossyLink::new(LATENCY, rates, seed);
        for number in 0..200 {
            link.send(Instant::from_nanos(u64::from(number)), number % 3, &[number; 20]);
        }
        (arrivals(&mut link), link.faults().counts)
    }

    #[test]
    fn without_faults_everything_arrives_in_order() {
        let (found, counts) = run(FaultRates::NONE, 1);
        let expected = (0..200u8).map(|number| (2_000 + u64::from(number), number % 3, vec![number; 20]));
        assert!(found.into_iter().eq(expected));
        assert_eq!(counts, [0; 4]);
    }

    #[test]
    fn each_fault_does_what_it_says_and_a_seed_repeats() {
        let none = FaultRates { longest_delay: Duration::from_micros(9), ..FaultRates::NONE };
        let whole = |(_, to, frame): &Arrival| frame.len() == 20 && frame[0] % 3 == *to;

        let (found, counts) = run(FaultRates { drop: 3_000, ..none }, 2);
        assert!(counts[0] > 20 && found.len() as u64 == 200 - counts[0] && found.iter().all(whole));

        let (found, counts) = run(FaultRates { duplicate: 3_000, ..none }, 3);
        assert!(counts[1] > 20 && found.len() as u64 == 200 + counts[1] && found.iter().all(whole));

        let (found, counts) = run(FaultRates { delay: 3_000, ..none }, 4);
        assert!(counts[2] > 20 && found.len() == 200 && found.iter().all(whole));
        assert!(!found.is_sorted_by_key(|(_, _, frame)| frame[0]), "nothing was overtaken");

        let rates = FaultRates { corrupt: 3_000, ..none };
        let (found, counts) = run(rates, 5);
        let damaged =
            found.iter().filter(|(_, _, frame)| *frame != [frame.first().copied().unwrap_or(0); 20]);
        // A bit that is flipped twice is as it was.
        assert!(counts[3] > 20 && found.len() == 200 && damaged.count() as u64 > counts[3] * 9 / 10);
        assert_eq!(run(rates, 5), (found, counts));
    }

    #[test]
    fn a_full_link_loses_what_comes_and_says_so() {
        let mut link = LossyLink::new(LATENCY, FaultRates::NONE, 1).with_room(3);
        for number in 0..5u8 {
            assert_eq!(link.has_room(), number < 3);
            link.send(Instant::ZERO, 0u8, &[number]);
        }
        assert_eq!((link.under_way(), link.overflowed()), (3, 2));
        let found: Vec<_> = arrivals(&mut link).into_iter().map(|(_, _, frame)| frame[0]).collect();
        assert_eq!(found, [0, 1, 2]);
        assert!(link.has_room());
    }
}
