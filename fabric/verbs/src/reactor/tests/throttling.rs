//! Chains that wait for credits.

use std::num::NonZeroU32;

use super::*;

impl Lab {
    fn throttled(limit: u32) -> Self {
        let limit = NonZeroU32::new(limit).unwrap();
        let Lab { reactor, queue_pair, region, memory, server } = Lab::new();
        let verbs = reactor.inner.into_inner().verbs;
        let reactor = Reactor::throttled(verbs, Throttling::Fixed(limit));
        Lab { reactor, queue_pair, region, memory, server }
    }

    /// A chain whose first operation is not signalled.
    fn write_and_read(&self) -> Chain<'_, 'static, PlainDevice, 2> {
        let write = Operation::Write { to: self.at(64), data: b"x" };
        self.reactor.chain(self.queue_pair, [write, Operation::Read { from: self.at(0), len: 8 }])
    }

    fn under_way(&self) -> u32 {
        self.reactor.inner.borrow().throttle.under_way()
    }

    fn turn(&self) {
        self.reactor.turn(Instant::ZERO);
    }
}

#[test]
fn no_more_are_under_way_than_the_limit_and_they_go_in_their_order() {
    let lab = Lab::throttled(4);
    let woken = Arc::new(Woken::default());
    let mut pairs: Vec<_> = (0..5).map(|_| lab.write_and_read()).collect();
    let mut read = lab.read(8);
    assert!(pairs.iter_mut().all(|pair| poll_once(pair, &woken).is_pending()));
    assert!(poll_once(&mut read, &woken).is_pending(), "it would fit, but others were first");
    assert_eq!(lab.under_way(), 4);
    let mut done = 0;
    for _ in 0..3 {
        assert!(lab.under_way() <= 4);
        lab.turn();
        let before = pairs.len();
        pairs.retain_mut(|pair| match poll_once(pair, &woken) {
            Poll::Ready(result) => {
                result.unwrap();
                false
            }
            Poll::Pending => true,
        });
        done += before - pairs.len();
        assert_eq!(pairs.len(), 5 - done);
        let is_done = poll_once(&mut read, &woken).is_ready();
        assert_eq!(is_done, pairs.is_empty(), "with the last pair");
    }
    assert_eq!((done, lab.under_way()), (5, 0), "also the requests that are not signalled have ended");
}

#[test]
fn a_chain_longer_than_the_limit_goes_alone() {
    let lab = Lab::throttled(1);
    let woken = Arc::default();
    let (mut first, mut long, mut last) = (lab.read(8), lab.write_and_read(), lab.read(8));
    assert!(poll_once(&mut first, &woken).is_pending());
    assert!(poll_once(&mut long, &woken).is_pending() && poll_once(&mut last, &woken).is_pending());
    lab.turn();
    assert!(poll_once(&mut first, &woken).is_ready() && poll_once(&mut long, &woken).is_pending());
    assert!(poll_once(&mut last, &woken).is_pending());
    assert_eq!(lab.under_way(), 2);
    lab.turn();
    assert!(poll_once(&mut long, &woken).is_ready() && poll_once(&mut last, &woken).is_pending());
    assert_eq!(lab.under_way(), 1);
    lab.turn();
    assert!(poll_once(&mut last, &woken).is_ready());
}

/// Dropped before its turn, between its turn and its being posted, and afterwards.
#[test]
fn a_chain_that_is_dropped_leaves_its_credits_to_others() {
    for turns in 0..3 {
        let lab = Lab::throttled(1);
        let woken = Arc::new(Woken::default());
        let (mut first, mut dropped, mut last) = (lab.read(8), lab.read(8), lab.read(8));
        assert!(poll_once(&mut first, &woken).is_pending());
        assert!(poll_once(&mut dropped, &woken).is_pending() && poll_once(&mut last, &woken).is_pending());
        if turns > 0 {
            lab.turn();
        }
        if turns > 1 {
            assert!(poll_once(&mut dropped, &woken).is_pending());
        }
        drop(dropped);
        for _ in 0..2 {
            lab.turn();
            let _ = poll_once(&mut last, &woken);
        }
        lab.turn();
        assert_eq!(lab.under_way(), 0, "dropped after {turns} turns");
        assert!(poll_once(&mut first, &woken).is_ready());
    }
}

/// A future that is not polled when it is called, as one that a stream has begun ahead of those before it.
#[test]
fn a_chain_that_does_not_come_when_it_is_called_lets_others_pass() {
    let lab = Lab::throttled(2);
    let woken = Arc::new(Woken::default());
    let mut first = lab.write_and_read();
    assert!(poll_once(&mut first, &woken).is_pending());
    let mut idle: Vec<_> = (0..3).map(|_| lab.write_and_read()).collect();
    assert!(idle.iter_mut().all(|chain| poll_once(chain, &woken).is_pending()));
    let called = Arc::new(Woken::default());
    let mut last = lab.read(8);
    assert!(poll_once(&mut last, &called).is_pending());
    lab.turn();
    assert_eq!(called.0.load(Ordering::Relaxed), 1, "nothing else is under way that could call it later");
    assert!(poll_once(&mut last, &called).is_pending());
    assert_eq!(
        (lab.under_way(), called.0.load(Ordering::Relaxed)),
        (0, 2),
        "it wakes itself: they may come first"
    );
    assert!(poll_once(&mut last, &called).is_pending());
    assert_eq!(lab.under_way(), 1);
    // One of them comes after all, and waits for the room that it needs.
    assert!(poll_once(&mut idle[1], &woken).is_pending());
    assert!(poll_once(&mut lab.read(8), &called).is_pending(), "a newcomer waits after it");
    assert_eq!(lab.under_way(), 1);
    lab.turn();
    assert!(poll_once(&mut last, &called).is_ready());
    // After another idle one.
    assert!((0..2).all(|_| poll_once(&mut idle[1], &woken).is_pending()));
    assert_eq!(lab.under_way(), 2);
}

/// A task that posts again as soon as it can does not keep a long chain from its turn.
#[test]
fn a_long_chain_has_its_turn_before_a_newcomer() {
    let lab = Lab::throttled(1);
    let woken = Arc::new(Woken::default());
    let (mut first, mut long) = (lab.read(8), lab.write_and_read());
    assert!(poll_once(&mut first, &woken).is_pending() && poll_once(&mut long, &woken).is_pending());
    lab.turn();
    assert!(poll_once(&mut first, &woken).is_ready());
    let mut again = lab.read(8);
    assert!(poll_once(&mut again, &woken).is_pending());
    assert_eq!(lab.under_way(), 0, "the long chain was called before");
    assert!(poll_once(&mut long, &woken).is_pending());
    assert_eq!(lab.under_way(), 2);
    assert!(poll_once(&mut again, &woken).is_pending());
    lab.turn();
    assert!(poll_once(&mut long, &woken).is_ready() && poll_once(&mut again, &woken).is_pending());
    assert_eq!(lab.under_way(), 1);
}

#[test]
fn a_chain_that_is_refused_keeps_no_credits() {
    let lab = Lab::throttled(2);
    let nowhere = Remote { address: 0, rkey: 99 };
    let refused = lab.reactor.chain(lab.queue_pair, [Operation::Read { from: nowhere, len: 8 }; 2]);
    assert!(lab.reactor.run(refused, |_| Instant::ZERO).is_err());
    assert_eq!(lab.under_way(), 0, "flushed requests have ended");
    let error = lab.reactor.run(lab.read(8), |_| Instant::ZERO).unwrap_err();
    assert!(matches!(error, Error::Post(PostError::NotConnected { .. })), "{error}");
    assert_eq!(lab.under_way(), 0);
}
