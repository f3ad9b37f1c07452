//! Frames on their way: of RDMA clients, and of query clients by switches.

use fatbtree_query::ToServer;
use fatbtree_topology::HostId;
use fatbtree_verbs::time::Instant;
use rand::RngExt as _;

use super::{CLIENTS, FAULTS, LANES, Lab, WORKERS};
use crate::queries::way::Arrived;

/// A part of a frame's way.
#[derive(Clone, Copy, Debug)]
pub(super) enum Leg {
    /// A frame from a host to its switch.
    ToSwitches(HostId),
    /// A frame to a host.
    ToHost(HostId),
}

impl Lab {
    /// Takes everything that has come.
    pub(super) fn receive(&mut self, now: Instant) {
        let mut buffer = std::mem::take(&mut self.buffer);
        while let Some(end) = self.frames.receive(now, &mut buffer) {
            match end.checked_sub(1) {
                None => self.server.device_mut().handle_frame(now, &buffer),
                Some(client) => {
                    self.rdma[client].client.pool().reactor().with(|nic| nic.handle_frame(now, &buffer));
                }
            }
        }
        while let Some(leg) = self.datagrams.receive(now, &mut buffer) {
            match leg {
                Leg::ToSwitches(from) => {
                    if let Some((host, frame)) = self.way.pass(from, &buffer) {
                        self.datagrams.send(now, Leg::ToHost(host), &frame);
                    }
                }
                Leg::ToHost(at) => self.arrived(at, &buffer),
            }
        }
        self.buffer = buffer;
    }

    /// Handles a frame that has come to its host.
    fn arrived(&mut self, at: HostId, frame: &[u8]) {
        match self.way.arrived(at, frame) {
            Arrived::Query(from, datagram) => {
                let Some((client, lane)) = self.way.lane_of(from) else { return };
                self.workers[(client + lane) % WORKERS].arrived(from, datagram);
            }
            Arrived::Answer { client, datagram } => self.queries[client].handle(&datagram),
            Arrived::Damaged => self.shared.count(|outcome| outcome.damaged += 1),
            Arrived::Elsewhere => self.shared.count(|outcome| outcome.elsewhere += 1),
        }
    }

    /// Puts a frame on its way; sometimes a bit of it is another by then.
    fn send(&mut self, from: HostId, mut frame: Vec<u8>) {
        let now = self.now();
        let scenario = &self.shared.scenario;
        if now < Instant::ZERO + FAULTS && self.random.random_range(0..10_000) < scenario.flips {
            let bit = self.random.random_range(0..frame.len() * 8);
            frame[bit / 8] ^= 1 << (bit % 8);
        }
        let leg = match scenario.reloads {
            Some(_) => Leg::ToSwitches(from),
            None => Leg::ToHost(self.way.end_of_cable(from, &frame)),
        };
        self.datagrams.send(now, leg, &frame);
    }

    /// Sends everything that server, clients and workers have ready.
    pub(super) fn transmit(&mut self) {
        let now = self.now();
        let Self { server, rdma, frames, buffer, .. } = self;
        while server.device_mut().poll_transmit(now, buffer) {
            // The last byte of a client's MAC is its number.
            frames.send(now, usize::from(buffer[5]), buffer);
        }
        for rdma in rdma {
            rdma.client.pool().reactor().with(|nic| {
                while nic.poll_transmit(now, buffer) {
                    frames.send(now, 0, buffer);
                }
            });
        }
        for client in 0..CLIENTS {
            for lane in 0..LANES {
                while let Some(datagram) = self.queries[client].poll_transmit(lane) {
                    let ToServer { direct, bytes, .. } = datagram;
                    let frame = self.way.query(client, lane, direct, &bytes, &mut self.random);
                    self.send(self.way.client(client), frame);
                }
            }
        }
        for number in 0..WORKERS {
            if self.workers[number].wakes > now {
                continue;
            }
            while let Some(datagram) = self.workers[number].worker.poll_transmit() {
                if let Some(frame) = self.way.answer(datagram.to, &datagram.bytes) {
                    self.send(self.way.server(), frame);
                }
            }
        }
    }
}
