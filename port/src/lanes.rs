//! Datagrams by sockets or by frames: the same for all roles of a protocol over UDP.

use std::net::SocketAddr;
use std::time::Duration;

use crate::{BATCH, DatagramCounts, Datagrams, FrameDatagrams, Waiter};

/// One UDP port or several of a process, which are known by numbers from 0, its *lanes*. It belongs to one thread.
#[derive(Debug)]
pub enum Lanes {
    /// A socket for each.
    Sockets(Vec<Datagrams>),
    /// One wire for all.
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

    /// Takes what has come, up to a batch of each place, in the place of what came before. Says whether there may be more. Places that
    /// `is_ready` says no of, by the numbers that they have where is [waited](Self::wait), are left alone.
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

    /// Shows what [`receive`](Self::receive) has taken: the lane, the sender, the datagram.
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

    /// Sends a datagram by a lane with the next batch: when that is full, or [flushed](Self::flush).
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

    /// Sends what waits. What finds no room is lost, as datagrams are.
    pub fn flush(&mut self) {
        match self {
            Self::Sockets(sockets) => sockets.iter_mut().for_each(Datagrams::flush),
            Self::Frames(frames) => frames.flush(),
        }
    }

    /// Counts of all lanes. System calls are those of sockets: a wire's port counts none.
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

    /// Waits until something may have come, a thread wakes `waiter`, or `patience` is over, as [`Waiter::wait`] does. `ready` is filled:
    /// whether each of the places has something.
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
