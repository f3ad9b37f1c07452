//! Datagrams by sockets or by frames, with one interface for all roles of a protocol over UDP.

use std::net::SocketAddr;
use std::time::Duration;

use crate::{BATCH, DatagramCounts, Datagrams, FrameDatagrams, Waiter};

/// UDP ports of a process, numbered from 0 as its *lanes*. The value belongs to one thread.
#[derive(Debug)]
pub enum Lanes {
    /// One socket for each lane.
    Sockets(Vec<Datagrams>),
    /// One wire for all lanes.
    Frames(Box<FrameDatagrams>),
}

impl Lanes {
    /// Number of lanes.
    pub fn count(&self) -> usize {
        match self {
            Self::Sockets(sockets) => sockets.len(),
            Self::Frames(frames) => frames.ports().len(),
        }
    }

    /// Replaces the received datagrams by new ones, up to a batch of each place. Returns whether there may be more.
    /// Sockets for which `is_ready` returns false, by their numbers in [`wait`](Self::wait), are not read.
    pub fn receive(&mut self, is_ready: impl Fn(usize) -> bool) -> bool {
        match self {
            Self::Sockets(sockets) => {
                let mut more = false;
                for (lane, socket) in sockets.iter_mut().enumerate() {
                    if is_ready(lane) {
                        more |= socket.receive() == BATCH;
                    } else {
                        socket.forget();
                    }
                }
                more
            }
            Self::Frames(frames) => frames.receive(),
        }
    }

    /// Calls `show` for each datagram of [`receive`](Self::receive), with its lane and its sender.
    pub fn each(&self, mut show: impl FnMut(usize, SocketAddr, &[u8])) {
        match self {
            Self::Sockets(sockets) => {
                for (lane, socket) in sockets.iter().enumerate() {
                    socket.iter().for_each(|(from, datagram)| show(lane, from, datagram));
                }
            }
            Self::Frames(frames) => frames.each(show),
        }
    }

    /// Sends a datagram on a lane with the next batch, which leaves when it is full or [flushed](Self::flush).
    pub fn send(&mut self, lane: usize, to: SocketAddr, datagram: Vec<u8>) {
        match self {
            Self::Sockets(sockets) => {
                if let Some(socket) = sockets.get_mut(lane) {
                    socket.send(to, datagram);
                }
            }
            Self::Frames(frames) => frames.send(lane, to, &datagram),
        }
    }

    /// Sends the waiting datagrams. Those that find no room are lost.
    pub fn flush(&mut self) {
        match self {
            Self::Sockets(sockets) => sockets.iter_mut().for_each(Datagrams::flush),
            Self::Frames(frames) => frames.flush(),
        }
    }

    /// Counts of all lanes. System calls are counted for sockets only.
    pub fn counts(&self) -> DatagramCounts {
        match self {
            Self::Sockets(sockets) => {
                let mut all = DatagramCounts::default();
                sockets.iter().for_each(|socket| all.merge(&socket.counts()));
                all
            }
            Self::Frames(frames) => frames.counts(),
        }
    }

    /// Waits until something may have arrived, a thread wakes `waiter`, or `patience` is over, as [`Waiter::wait`]
    /// does. Sets `ready` to whether each of the places has something.
    pub fn wait(&mut self, waiter: &Waiter, patience: Option<Duration>, ready: &mut Vec<bool>) {
        match self {
            Self::Sockets(sockets) => {
                if let Some(socket) = sockets.first_mut() {
                    socket.count_call();
                }
                waiter.wait_for(sockets.iter().map(Datagrams::fd), patience, ready);
            }
            Self::Frames(frames) => waiter.wait(frames.port(), patience, ready),
        }
    }
}
