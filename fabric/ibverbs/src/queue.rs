//! Requests of one queue pair that the card has not answered, with their tags and buffers.

use std::collections::VecDeque;

use fatbtree_verbs::{Buffer, Failure, Output};

/// A request that was posted.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) tag: u64,
    /// Whether the caller wants a completion on success. The card may be told to signal it anyway: see
    /// [`SendQueue::push`].
    pub(crate) signalled: bool,
    /// Whether the request must not be reported, not even as failed: the card refused it, perhaps after it had begun.
    pub(crate) refused: bool,
    pub(crate) kind: Kind,
    /// Buffer of the result or of the data to be written, held until the card is done with it.
    pub(crate) buffer: Option<Buffer>,
}

/// Kind of a request's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Write,
    Atomic,
}

impl Entry {
    fn output(self) -> Result<Output, Failure> {
        match (self.kind, self.buffer) {
            (Kind::Write, _) => Ok(Output::Written),
            (Kind::Read, Some(buffer)) => Ok(Output::Read(buffer)),
            // The card writes what it found in the order of this machine.
            (Kind::Atomic, Some(buffer)) => {
                let found = buffer.first_chunk().ok_or(Failure::Other)?;
                Ok(Output::Atomic(u64::from_ne_bytes(*found)))
            }
            (Kind::Read | Kind::Atomic, None) => Err(Failure::Other),
        }
    }
}

/// Report on a request: its tag and its result.
pub(crate) type Said = (u64, Result<Output, Failure>);

/// Requests under way, oldest first. A request is identified by its place in the order of posting, modulo 2^16.
///
/// A card answers in the order of posting, and answers only failures and requests that are signalled. An answer
/// therefore implies that all earlier requests are done.
#[derive(Debug)]
pub(crate) struct SendQueue {
    entries: VecDeque<Entry>,
    /// Place of the oldest entry.
    first: u16,
}

impl SendQueue {
    /// A queue for `limit` requests; at most 2^15, so that old and new places can be distinguished.
    pub(crate) fn new(limit: u16) -> Self {
        Self { entries: VecDeque::with_capacity(limit.into()), first: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no answer of the card is outstanding.
    pub(crate) fn awaits_nothing(&self) -> bool {
        self.entries.iter().all(|entry| entry.refused)
    }

    /// Adds a request and returns its place. The caller has checked that there is room.
    ///
    /// The last request of a chain must be signalled by the card even if the caller wants no completion. Otherwise
    /// the places of unsignalled requests would never become free.
    pub(crate) fn push(&mut self, entry: Entry) -> u16 {
        let place = self.first.wrapping_add(self.entries.len() as u16);
        self.entries.push_back(entry);
        place
    }

    /// Marks the last `count` requests as refused: the card refused all or some of them. They are not reported. Their
    /// buffers are kept, because the card may have begun.
    pub(crate) fn refuse(&mut self, count: usize) {
        for entry in self.entries.iter_mut().rev().take(count) {
            entry.refused = true;
        }
    }

    /// Processes the card's answer for the request at `place`. Calls `say` for each result that its poster wants. An
    /// answer that belongs to no request is ignored.
    pub(crate) fn complete(&mut self, place: u16, result: Result<(), Failure>, mut say: impl FnMut(Said)) {
        let before = usize::from(place.wrapping_sub(self.first));
        if before >= self.entries.len() {
            return;
        }
        for _ in 0..before {
            let Some(entry) = self.pop() else { return };
            // Done without a word; a card that keeps the order has spoken of those that are signalled.
            if entry.signalled && !entry.refused {
                say((entry.tag, Err(Failure::Other)));
            }
        }
        let Some(entry) = self.pop() else { return };
        match result {
            _ if entry.refused => {}
            Err(failure) => say((entry.tag, Err(failure))),
            Ok(()) if entry.signalled => say((entry.tag, entry.output())),
            Ok(()) => {}
        }
    }

    /// Reports signalled requests as flushed, because the card has failed. Their buffers are kept, because the card
    /// may still write into them.
    pub(crate) fn abandon(&mut self, mut say: impl FnMut(Said)) {
        for entry in &mut self.entries {
            if entry.signalled && !entry.refused {
                say((entry.tag, Err(Failure::Flushed)));
            }
            entry.refused = true;
        }
    }

    /// Empties the queue of a destroyed queue pair, and reports signalled requests as flushed. Returns the requests'
    /// buffers, for a card that may still write into them.
    pub(crate) fn flush(&mut self, mut say: impl FnMut(Said)) -> Vec<Buffer> {
        let mut held = Vec::new();
        while let Some(entry) = self.pop() {
            if entry.signalled && !entry.refused {
                say((entry.tag, Err(Failure::Flushed)));
            }
            held.extend(entry.buffer);
        }
        held
    }

    fn pop(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front()?;
        self.first = self.first.wrapping_add(1);
        Some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fatbtree_verbs::{BufferClass, BufferPool};
    use proptest::prelude::*;

    fn write(tag: u64, signalled: bool) -> Entry {
        Entry { tag, signalled, refused: false, kind: Kind::Write, buffer: None }
    }

    fn said(queue: &mut SendQueue, place: u16, result: Result<(), Failure>) -> Vec<(u64, Option<Failure>)> {
        let mut said = Vec::new();
        queue.complete(place, result, |(tag, result)| said.push((tag, result.err())));
        said
    }

    #[test]
    fn an_answer_frees_what_was_posted_before_it() {
        let mut queue = SendQueue::new(8);
        let places: Vec<u16> = [false, false, true, false]
            .into_iter()
            .zip(0..)
            .map(|(s, tag)| queue.push(write(tag, s)))
            .collect();
        assert_eq!(places, [0, 1, 2, 3]);
        assert_eq!(said(&mut queue, 2, Ok(())), [(2, None)]);
        assert_eq!((queue.len(), queue.awaits_nothing()), (1, false));
        assert_eq!(said(&mut queue, 2, Ok(())), [], "answered twice");
        assert_eq!(said(&mut queue, 3, Ok(())), [], "it is not signalled");
        assert_eq!((queue.len(), queue.awaits_nothing()), (0, true));
        queue.push(write(4, true));
        queue.refuse(1);
        assert!(queue.awaits_nothing(), "nothing will be said of what was refused");
    }

    #[test]
    fn a_failure_is_reported_signalled_or_not() {
        let mut queue = SendQueue::new(8);
        (0..3).for_each(|tag| _ = queue.push(write(tag, false)));
        assert_eq!(said(&mut queue, 1, Err(Failure::RemoteAccess)), [(1, Some(Failure::RemoteAccess))]);
        assert_eq!(said(&mut queue, 2, Err(Failure::Flushed)), [(2, Some(Failure::Flushed))]);
    }

    #[test]
    fn nothing_is_said_of_what_was_refused_but_its_buffers_are_kept() {
        let pool = BufferPool::new(&[BufferClass { count: 2, bytes: 64 }]).unwrap();
        let mut queue = SendQueue::new(8);
        queue.push(write(1, true));
        (2..4).for_each(|tag| _ = queue.push(Entry { buffer: pool.take(8), ..write(tag, true) }));
        queue.refuse(2);
        assert_eq!(said(&mut queue, 0, Err(Failure::Flushed)), [(1, Some(Failure::Flushed))]);
        assert_eq!(said(&mut queue, 1, Err(Failure::Flushed)), [], "the card had begun all the same");
        assert_eq!(pool.free(), 1, "the card may still write into the second buffer");
        let held = queue.flush(|said| panic!("{said:?}"));
        assert_eq!((held.len(), pool.free()), (1, 1));
    }

    #[test]
    fn what_is_abandoned_is_reported_once() {
        let mut queue = SendQueue::new(8);
        (0..3).for_each(|tag| _ = queue.push(write(tag, tag != 1)));
        let mut tags = Vec::new();
        queue.abandon(|(tag, result)| tags.push((tag, result.err())));
        assert_eq!(tags, [(0, Some(Failure::Flushed)), (2, Some(Failure::Flushed))]);
        queue.abandon(|said| panic!("{said:?}"));
        assert_eq!(said(&mut queue, 2, Err(Failure::Flushed)), [], "an answer after all");
    }

    #[test]
    fn results_and_the_buffers_they_come_in() {
        let pool = BufferPool::new(&[BufferClass { count: 2, bytes: 64 }]).unwrap();
        let mut queue = SendQueue::new(8);
        for (tag, kind) in [(1, Kind::Read), (2, Kind::Atomic)] {
            let mut buffer = pool.take(8).unwrap();
            buffer.extend(&0x0102_0304_0506_0708_u64.to_ne_bytes());
            queue.push(Entry { tag, signalled: true, refused: false, kind, buffer: Some(buffer) });
        }
        let mut outputs = Vec::new();
        (0..2).for_each(|place| queue.complete(place, Ok(()), |said| outputs.push(said)));
        assert!(
            matches!(&outputs[..], [(1, Ok(Output::Read(bytes))), (2, Ok(Output::Atomic(0x0102_0304_0506_0708)))] if bytes.len() == 8)
        );
        assert_eq!(pool.free(), 1, "the atomic's went back");
    }

    proptest! {
        /// A card that answers what it should, against a list of what was posted.
        #[test]
        fn every_signalled_request_is_reported_once_and_in_order(
            chains in prop::collection::vec(prop::collection::vec(any::<bool>(), 1..5), 1..200),
            answers in prop::collection::vec(0usize..3, 200),
            fails_at in prop::option::of(0usize..400),
        ) {
            const START: u16 = u16::MAX - 20;
            let mut queue = SendQueue::new(64);
            queue.first = START;
            let (mut posted, mut card, mut reported) = (Vec::new(), VecDeque::new(), Vec::new());
            for (chain, answers) in chains.iter().zip(answers) {
                for (at, &signalled) in chain.iter().enumerate() {
                    let tag = posted.len() as u64;
                    let place = queue.push(write(tag, signalled));
                    prop_assert_eq!(place, START.wrapping_add(tag as u16));
                    card.push_back((place, signalled || at + 1 == chain.len()));
                    posted.push(signalled);
                }
                for _ in 0..answers {
                    let Some((place, speaks)) = card.pop_front() else { break };
                    let number = usize::from(place.wrapping_sub(START));
                    let result = match fails_at {
                        Some(at) if number == at => Err(Failure::RemoteAccess),
                        Some(at) if number > at => Err(Failure::Flushed),
                        _ => Ok(()),
                    };
                    if speaks || result.is_err() {
                        queue.complete(place, result, |(tag, result)| reported.push((tag, result.err())));
                    }
                }
            }
            queue.flush(|(tag, result)| reported.push((tag, result.err())));
            let tags: Vec<u64> = reported.iter().map(|(tag, _)| *tag).collect();
            prop_assert!(tags.is_sorted_by(|a, b| a < b), "{tags:?}");
            for (tag, signalled) in posted.iter().enumerate() {
                if *signalled {
                    prop_assert!(tags.contains(&(tag as u64)), "{tag} is missing in {tags:?}");
                }
            }
            for (tag, failure) in reported {
                prop_assert!(posted[tag as usize] || failure.is_some(), "{tag} was not signalled");
                prop_assert_ne!(failure, Some(Failure::Other));
            }
        }
    }
}
