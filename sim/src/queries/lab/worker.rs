//! A query worker: a thread that sleeps, and whose steps come between those of others.

use std::collections::VecDeque;
use std::net::SocketAddr;

use fatbtree_blink_host::TreeServer;
use fatbtree_blink_host::query::{QueryWorker, WorkerOptions};
use fatbtree_memserver::ClientId;
use fatbtree_remote_memory::session_keeper::Denied;
use fatbtree_soft_nic::Nic;
use fatbtree_verbs::time::Instant;
use rand::RngExt as _;

use super::check;
use crate::queries::Outcome;
use crate::world::Random;

/// Datagrams that wait for a worker that sleeps.
const QUEUE: usize = 64;

pub(super) struct Worker {
    pub(super) worker: QueryWorker,
    id: ClientId,
    /// Time until which the worker sleeps.
    pub(super) wakes: Instant,
    waiting: VecDeque<(SocketAddr, Vec<u8>)>,
}

impl Worker {
    pub(super) fn new(
        number: usize,
        server: &TreeServer<Nic>,
        options: WorkerOptions,
        seed: u64,
    ) -> Result<Self, String> {
        let host = server.local().ok_or("the server has local clients")?;
        let worker = QueryWorker::new(host, server.info(), options, seed);
        let worker = worker.map_err(|error| error.to_string())?;
        let id = ClientId::local(number as u32);
        Ok(Self { worker, id, wakes: Instant::ZERO, waiting: VecDeque::new() })
    }

    /// Queues a datagram that has come to the socket, or drops it if the queue is full.
    pub(super) fn arrived(&mut self, from: SocketAddr, datagram: Vec<u8>) {
        if self.waiting.len() < QUEUE {
            self.waiting.push_back((from, datagram));
        }
    }

    /// Makes some steps. Returns whether there is more to do.
    pub(super) fn turn(
        &mut self,
        now: Instant,
        server: &mut TreeServer<Nic>,
        random: &mut Random,
    ) -> Result<bool, String> {
        if now < self.wakes {
            return Ok(false);
        }
        let Self { worker, waiting, .. } = self;
        waiting.drain(..).for_each(|(from, datagram)| worker.handle(now, from, &datagram));
        let mut busy = true;
        // Others come between.
        for _ in 0..random.random_range(1..=4) {
            busy = worker.step(now);
            if !busy {
                break;
            }
        }
        while let Some((id, call)) = worker.poll_call(now) {
            busy = true;
            let answer = server.carry_out(now, self.id, call).map_err(Denied::from);
            answer.as_ref().map_or_else(check, |_| Ok(()))?;
            worker.handle_answer(now, id, answer).map_err(|error| error.to_string())?;
        }
        Ok(busy)
    }

    /// Time of the next turn.
    pub(super) fn due(&self, now: Instant) -> Instant {
        if self.wakes > now { self.wakes } else { self.worker.poll_timeout() }
    }

    pub(super) fn count(&self, outcome: &mut Outcome) {
        let stats = self.worker.stats();
        outcome.not_again += stats.responder.again;
        outcome.stale_hints += stats.stale_hints;
        outcome.refused += stats.damaged;
        outcome.worker_splits += stats.pool.splits;
        outcome.merges += stats.pool.merges;
        outcome.lock_retries += stats.pool.remote.lock_retries;
        outcome.inherited_locks += stats.pool.remote.inherited_locks;
    }
}
