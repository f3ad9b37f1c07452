//! A switch's ports as one thread has them: it receives from some, and sends by all.

use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use fatbtree_port::{BATCH, Batch, Counters, Port, Waiter, Waker, Wire};
use fatbtree_switch::Output;
use fatbtree_switch::service::CPU_PORT;

use crate::NodeError;

/// The way from a thread to the one that speaks with the controller: frames for the CPU port.
pub(super) struct CpuPort {
    pub(super) frames: SyncSender<Vec<u8>>,
    pub(super) waker: Waker,
}

pub(super) struct Forwarder {
    /// All ports; those that this thread receives from come first.
    ports: Vec<Box<dyn Port>>,
    receives: usize,
    /// Port numbers in the order of `ports`.
    numbers: Vec<u16>,
    /// Places in `ports`, by port number.
    places: Vec<Option<usize>>,
    waiter: Waiter,
    /// Start of the clock.
    began: Instant,
    ready: Vec<bool>,
    batch: Batch,
    output: Output,
    /// Way to the thread that speaks with the controller; `None` in that thread.
    cpu: Option<CpuPort>,
    /// Whether frames wait for a port, by its place.
    leaving: Vec<bool>,
    /// Frames for ports that the switch does not have.
    pub(super) no_such_port: u64,
    /// Frames for ports that had no room for them.
    pub(super) port_full: u64,
}

impl Forwarder {
    /// Ports of thread `thread` of `threads`, for which the wires were opened.
    ///
    /// Wires with one queue are dealt out evenly for receiving. The queues of other wires are shared among all threads.
    pub(super) fn new(
        wires: &[(u16, Wire)],
        thread: usize,
        threads: usize,
        began: Instant,
        cpu: Option<CpuPort>,
    ) -> Result<Self, NodeError> {
        let is_mine = |place: &usize| match wires[*place].1.queues() {
            1 => place % threads == thread,
            queues => thread < queues,
        };
        let order = (0..wires.len()).filter(is_mine).chain((0..wires.len()).filter(|place| !is_mine(place)));
        let (mut ports, mut numbers, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for (number, wire) in order.map(|place| &wires[place]) {
            places.resize(places.len().max(usize::from(*number) + 1), None);
            places[usize::from(*number)] = Some(ports.len());
            ports.push(wire.port_for(thread)?);
            numbers.push(*number);
        }
        Ok(Self {
            receives: (0..wires.len()).filter(is_mine).count(),
            leaving: vec![false; ports.len()],
            ports,
            numbers,
            places,
            waiter: Waiter::new()?,
            began,
            ready: Vec::new(),
            batch: Batch::new(),
            output: Output::new(),
            cpu,
            no_such_port: 0,
            port_full: 0,
        })
    }

    /// Waker that ends a wait.
    pub(super) fn waker(&self) -> Waker {
        self.waiter.waker()
    }

    /// Waits for frames, a wake, or until patience is over; then forwards a batch from each port that has one. `process` is given
    /// nanoseconds, the number of a port, and a frame from there.
    pub(super) fn turn(
        &mut self,
        patience: Option<Duration>,
        mut process: impl FnMut(u64, u16, &[u8], &mut Output),
    ) {
        self.waiter.wait(&self.ports[..self.receives], patience, &mut self.ready);
        for place in 0..self.receives {
            if !self.ready[place] || self.ports[place].receive(&mut self.batch) == 0 {
                continue;
            }
            self.output.clear();
            let (now, number) = (self.began.elapsed().as_nanos() as u64, self.numbers[place]);
            for frame in self.batch.iter() {
                process(now, number, frame, &mut self.output);
            }
            self.transmit();
        }
    }

    /// Sends what `make` gives at this time, in nanoseconds.
    pub(super) fn send(&mut self, make: impl FnOnce(u64, &mut Output)) {
        self.output.clear();
        make(self.began.elapsed().as_nanos() as u64, &mut self.output);
        self.transmit();
    }

    /// Sends each port its frames together.
    fn transmit(&mut self) {
        if let Some(cpu) = &self.cpu {
            self.output.take_port(CPU_PORT, |frame| match cpu.frames.try_send(frame.to_vec()) {
                Ok(()) => cpu.waker.wake(),
                Err(_) => self.port_full += 1,
            });
        }
        for (number, _) in &self.output {
            match self.places.get(usize::from(number)).copied().flatten() {
                Some(place) => self.leaving[place] = true,
                None => self.no_such_port += 1,
            }
        }
        for (place, leaving) in self.leaving.iter_mut().enumerate().filter(|(_, leaving)| **leaving) {
            *leaving = false;
            let (port, number) = (&mut self.ports[place], self.numbers[place]);
            let mut frames: [&[u8]; BATCH] = [&[]; BATCH];
            let mut count = 0;
            let mut send = |frames: &[&[u8]]| self.port_full += (frames.len() - port.send(frames)) as u64;
            for (_, frame) in self.output.iter().filter(|(to, _)| *to == number) {
                frames[count] = frame;
                count += 1;
                if count == BATCH {
                    send(&frames);
                    count = 0;
                }
            }
            send(&frames[..count]);
        }
    }

    /// Frames received, sent and lost here, by port number.
    pub(super) fn counters(&self) -> impl Iterator<Item = (u16, Counters)> {
        self.numbers.iter().zip(&self.ports).enumerate().map(|(place, (number, port))| {
            let mut counters = port.counters();
            if place >= self.receives && !port.is_polled() {
                // The wire has one queue: only the thread that receives from it counts its losses.
                counters.queue_full = 0;
            }
            (*number, counters)
        })
    }
}
