//! A further thread that forwards packets. It has ports and a pipe of its own, and lends the pipe to the first thread when control software
//! needs it.
//!
//! ```text
//!  first thread    wanted, wake ──▶  worker, between two batches
//!                  ◀─── pipe ──────
//!   control plane
//!                  ──── pipe ──────▶  goes on
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

use fatbtree_port::{Counters, Waker, Wire};
use fatbtree_switch::Pipe;

use super::forwarder::{CpuPort, Forwarder};
use crate::NodeError;

/// Counters of a thread beside its pipe.
#[derive(Debug, Default)]
pub(super) struct Counted {
    pub(super) ports: BTreeMap<u16, Counters>,
    pub(super) without_program: u64,
    pub(super) no_such_port: u64,
    pub(super) port_full: u64,
}

impl Counted {
    pub(super) fn add(&mut self, forwarder: &Forwarder, without_program: u64) {
        for (number, counters) in forwarder.counters() {
            self.ports.entry(number).or_default().add(&counters);
        }
        self.without_program += without_program;
        self.no_such_port += forwarder.no_such_port;
        self.port_full += forwarder.port_full;
    }
}

/// The first thread's side of another thread.
pub(super) struct Worker {
    wanted: Arc<AtomicBool>,
    waker: Waker,
    lent: Receiver<Option<Pipe>>,
    orders: SyncSender<Order>,
    thread: JoinHandle<()>,
}

enum Order {
    /// Go on, with this pipe.
    GoOn(Option<Pipe>),
    /// Add what you have counted, and hand it back.
    Count(Counted, SyncSender<Counted>),
    Stop,
}

/// Panic message for a worker that is gone: only the owner stops a worker, and then asks no more.
const LIVES: &str = "a forwarding thread lives until it is told to stop";

impl Worker {
    /// Starts thread `thread` of `threads`. It has no pipe yet.
    pub(super) fn start(
        wires: &Arc<[(u16, Wire)]>,
        thread: usize,
        threads: usize,
        began: Instant,
        cpu: CpuPort,
    ) -> Result<Self, NodeError> {
        let wanted = Arc::new(AtomicBool::new(false));
        let ((lend, lent), (orders, ordered)) = (sync_channel(1), sync_channel(1));
        let (tell, told) = sync_channel(1);
        let (is_wanted, wires) = (Arc::clone(&wanted), Arc::clone(wires));
        let work = move || match Forwarder::new(&wires, thread, threads, began, Some(cpu)) {
            Ok(forwarder) => {
                let _ = tell.send(Ok(forwarder.waker()));
                work(forwarder, &is_wanted, &lend, &ordered);
            }
            Err(error) => drop(tell.send(Err(error))),
        };
        let started = std::thread::Builder::new().name(format!("forward-{thread}")).spawn(work);
        let thread = started.map_err(NodeError::system("starting a thread that forwards packets"))?;
        let waker = told.recv().expect("it tells before it does anything else")?;
        Ok(Self { wanted, waker, lent, orders, thread })
    }

    /// Asks for the pipe; [`take_back`](Self::take_back) waits for it.
    pub(super) fn want(&self) {
        self.wanted.store(true, Ordering::Release);
        self.waker.wake();
    }

    /// Takes the pipe when the thread's present batch is done. The thread waits until it [goes on](Self::go_on).
    pub(super) fn take_back(&self) -> Option<Pipe> {
        self.lent.recv().expect(LIVES)
    }

    /// Makes a thread whose pipe was taken back add its counters.
    pub(super) fn count(&self, counted: Counted) -> Counted {
        let (reply, answer) = sync_channel(1);
        self.orders.send(Order::Count(counted, reply)).expect(LIVES);
        answer.recv().expect(LIVES)
    }

    /// Gives a pipe to a thread that waits for one.
    pub(super) fn go_on(&self, pipe: Option<Pipe>) {
        self.orders.send(Order::GoOn(pipe)).expect(LIVES);
    }

    /// Ends a thread whose pipe was taken back.
    pub(super) fn stop(self) {
        self.orders.send(Order::Stop).expect(LIVES);
        self.thread.join().expect(LIVES);
    }
}

fn work(
    mut forwarder: Forwarder,
    wanted: &AtomicBool,
    lend: &SyncSender<Option<Pipe>>,
    orders: &Receiver<Order>,
) {
    let (mut pipe, mut without_program): (Option<Pipe>, u64) = (None, 0);
    loop {
        if wanted.swap(false, Ordering::Acquire) {
            if lend.send(pipe.take()).is_err() {
                return;
            }
            loop {
                match orders.recv() {
                    Ok(Order::GoOn(next)) => {
                        pipe = next;
                        break;
                    }
                    Ok(Order::Count(mut counted, reply)) => {
                        counted.add(&forwarder, without_program);
                        drop(reply.send(counted));
                    }
                    Ok(Order::Stop) | Err(_) => return,
                }
            }
        }
        forwarder.turn(None, |now, port, frame, output| match &mut pipe {
            Some(pipe) => pipe.process(now, port, frame, output),
            None => without_program += 1,
        });
    }
}
