//! Operations of many clients under way at once, carried on in an order that a seed decides.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use fatbtree_verbs::time::{Duration, Instant};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::{Client, Lab};

/// Steps without an end of an operation after which nothing moves any more.
const STILL: u32 = 1_000_000;

/// Operations under way, each with what its test knows of it.
pub(crate) struct Interleaved<T, R> {
    running: Vec<Running<T, R>>,
    now: Instant,
    /// Steps since the last end of an operation.
    still: u32,
}

struct Running<T, R> {
    client: Client,
    known: T,
    operation: Pin<Box<dyn Future<Output = R>>>,
}

impl<T, R> Interleaved<T, R> {
    pub(crate) fn new() -> Self {
        Self { running: Vec::new(), now: Instant::ZERO, still: 0 }
    }

    /// Number of operations under way.
    pub(crate) fn len(&self) -> usize {
        self.running.len()
    }

    pub(crate) fn begin(&mut self, client: &Client, known: T, operation: impl Future<Output = R> + 'static) {
        self.running.push(Running { client: Rc::clone(client), known, operation: Box::pin(operation) });
    }

    /// Carries one of the operations on. Returns its result if it ends with that.
    pub(crate) fn step(&mut self, lab: &Lab, random: &mut ChaCha8Rng) -> Option<(T, R)> {
        let at = random.random_range(0..self.running.len());
        let Running { client, operation, .. } = &mut self.running[at];
        if let Poll::Ready(result) = operation.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            self.still = 0;
            return Some((self.running.swap_remove(at).known, result));
        }
        lab.serve(client);
        if random.random_bool(0.5) {
            self.now += Duration::from_nanos(500);
            client.turn(self.now);
        }
        self.still += 1;
        assert!(self.still < STILL, "writers wait for each other");
        None
    }
}
