//! The run: the same keys both ways, in turns, every answer checked.

use anyhow::{Result, bail};
use fatbtree_client::measure::{Outcome, Recorder};
use fatbtree_client::roce::{Answer, Event, Mode};
use fatbtree_client::workload::Workload;
use fatbtree_sim::Clock;

use super::data_path::DataPath;

/// Look-ups one way before it is the other's turn: short enough that both meet the same state of the machine.
pub(super) const TURN: u64 = 10_000;

/// What both ways did so far.
pub(super) struct Measured {
    pub(super) baseline: Way,
    pub(super) in_network: Way,
}

/// What one way of looking up did.
pub(super) struct Way {
    pub(super) recorder: Recorder,
    pub(super) elapsed_ns: u64,
}

impl Way {
    fn new() -> Self {
        Self { recorder: Recorder::new(), elapsed_ns: 0 }
    }

    fn look_up(&mut self, path: &mut DataPath, keys: &[u64], mode: Mode) -> Result<()> {
        let started = path.clock.now();
        let mut keys = keys.iter();
        let mut under_way = 0;
        loop {
            let clock = path.clock;
            let done = path.cluster.with_client(0, &clock, |client, now| -> Result<bool> {
                while let Some(event) = client.poll_event() {
                    match event {
                        Event::Done(done) => {
                            under_way -= 1;
                            let outcome = match done.answer {
                                Answer::Found => Outcome::Found,
                                Answer::Wrong => Outcome::WrongAnswer,
                                Answer::NotFound => Outcome::NotFound,
                                Answer::Failed(_) => Outcome::Failed,
                            };
                            self.recorder.record(outcome, done.latency.as_nanos(), done.trips.round_trips);
                        }
                        Event::ConnectionBroken { id, reason, .. } => {
                            bail!("the connection to memory server {} broke: {reason}", id.partition)
                        }
                    }
                }
                while client.room() > 0 {
                    let Some(key) = keys.next() else { break };
                    client.submit(now, *key, mode)?;
                    under_way += 1;
                }
                Ok(under_way == 0)
            })?;
            if done {
                break;
            }
            while !path.cluster.clients()[0].has_event() {
                path.advance();
            }
        }
        self.elapsed_ns += path.clock.now().saturating_since(started).as_nanos();
        Ok(())
    }
}

impl Measured {
    pub(super) fn new() -> Self {
        Self { baseline: Way::new(), in_network: Way::new() }
    }

    /// Draws keys for one turn and looks them up both ways; which goes first alternates.
    pub(super) fn turn(
        &mut self,
        path: &mut DataPath,
        workload: &mut Workload,
        lookups: u64,
        turn: u64,
    ) -> Result<()> {
        let keys = (0..lookups).map(|_| Ok(workload.next_operation()?.key)).collect::<Result<Vec<u64>>>()?;
        if turn.is_multiple_of(2) {
            self.baseline.look_up(path, &keys, Mode::Ordinary)?;
            self.in_network.look_up(path, &keys, Mode::Index)
        } else {
            self.in_network.look_up(path, &keys, Mode::Index)?;
            self.baseline.look_up(path, &keys, Mode::Ordinary)
        }
    }
}
