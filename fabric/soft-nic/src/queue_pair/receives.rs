//! Places for messages, in the order in which they are taken.

use std::collections::VecDeque;

use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{Buffer, Failure, PostError, QueuePair, Received, ReceivedMessage};

use super::Sink;

/// A place for one message.
struct Place {
    tag: u64,
    buffer: Buffer,
    /// Bytes of the longest message that it takes.
    len: u32,
}

#[derive(Default)]
pub(crate) struct Receives {
    places: VecDeque<Place>,
}

impl Receives {
    /// Adds a place.
    pub(crate) fn post(
        &mut self,
        queue_pair: QueuePair,
        tag: u64,
        len: u32,
        limit: usize,
        buffer: impl FnOnce() -> Result<Buffer, PostError>,
    ) -> Result<(), PostError> {
        let found = self.places.len() + 1;
        if found > limit {
            return Err(PostError::Full { queue_pair, what: "receives", found, limit });
        }
        self.places.push_back(Place { tag, buffer: buffer()?, len });
        Ok(())
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Appends bytes to the message that arrives in the first place. `Err`: it is too long.
    #[inline]
    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), ()> {
        let Some(place) = self.places.front_mut() else { return Err(()) };
        if place.buffer.len() + bytes.len() > place.len as usize {
            return Err(());
        }
        place.buffer.extend(bytes);
        Ok(())
    }

    /// The message in the first place is whole. `written`: bytes of a WRITE, if it is one.
    #[inline]
    pub(super) fn complete(
        &mut self,
        queue_pair: QueuePair,
        written: Option<u32>,
        immediate: Option<u32>,
        sink: &mut Sink,
    ) {
        if let Some(Place { tag, buffer, .. }) = self.places.pop_front() {
            let len = written.unwrap_or(buffer.len() as u32);
            let result = Ok(ReceivedMessage { data: buffer, len, immediate });
            sink.received.push_back(Received { queue_pair, tag, result });
        }
    }

    /// Ends all places: the first one with this failure.
    pub(crate) fn flush(&mut self, queue_pair: QueuePair, first: Failure, sink: &mut Sink) {
        let mut failure = first;
        for Place { tag, .. } in self.places.drain(..) {
            sink.received.push_back(Received { queue_pair, tag, result: Err(failure) });
            failure = Failure::Flushed;
        }
    }
}

/// Times for which a receiver that is not ready can ask, in units of 10 µs (IBTA volume 1, table 45). Code 0 is the longest.
const RNR_TIMERS: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12_288, 16_384, 24_576, 32_768, 49_152,
];

/// The time that a code stands for.
pub(crate) fn rnr_time(code: u8) -> Duration {
    Duration::from_micros(u64::from(RNR_TIMERS[usize::from(code & 31)]) * 10)
}

/// The code of the shortest time that is not shorter.
pub(crate) fn rnr_code(time: Duration) -> u8 {
    (1..32).find(|code| rnr_time(*code) >= time).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_specification() {
        for (code, micros) in [(0, 655_360), (1, 10), (12, 640), (14, 1280), (31, 491_520)] {
            assert_eq!(rnr_time(code), Duration::from_micros(micros));
            assert_eq!(rnr_code(Duration::from_micros(micros)), code);
        }
        assert_eq!(rnr_code(Duration::from_micros(641)), 13);
        assert_eq!(rnr_code(Duration::from_secs(9)), 0);
    }
}
