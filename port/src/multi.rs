//! Many datagrams with one system call, for every kind of socket.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::sockopt::{RcvBuf, RcvBufForce};
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrLike, recvmmsg, sendmmsg, setsockopt};

use crate::batch::{BATCH, Batch};
use crate::counters::Counters;

/// Bytes of a queue that are asked for: some thousand frames of a kilobyte. The kernel gives less to those who have no rights
/// (`net.core.rmem_max`).
pub(crate) const QUEUE: usize = 8 << 20;

pub(crate) fn ask_for_receive_queue(fd: &OwnedFd) -> nix::Result<()> {
    setsockopt(fd, RcvBufForce, &QUEUE).or_else(|_| setsockopt(fd, RcvBuf, &QUEUE))
}

/// A socket that does not block, and what its system calls need, made once.
///
/// `A` is what is told of where a frame comes from; `()` where nobody asks.
pub(crate) struct Socket<A> {
    fd: OwnedFd,
    receive: MultiHeaders<A>,
    send: MultiHeaders<()>,
    pub(crate) counters: Counters,
    pub(crate) last_error: Option<Errno>,
}

impl<A: SockaddrLike + Copy> Socket<A> {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self {
            fd,
            receive: MultiHeaders::preallocate(BATCH, None),
            send: MultiHeaders::preallocate(BATCH, None),
            counters: Counters::default(),
            last_error: None,
        }
    }

    /// Receives what is there, up to a batch. `wanted` looks at where a frame comes from.
    pub(crate) fn receive(&mut self, batch: &mut Batch, wanted: impl Fn(Option<&A>) -> bool) -> usize {
        loop {
            let mut places = batch.places();
            let mut slices: [[IoSliceMut<'_>; 1]; BATCH] =
                std::array::from_fn(|_| [IoSliceMut::new(places.next().unwrap_or_default())]);
            drop(places);
            // How long each is that came; the borrow of the places ends with the array of slices.
            let mut lengths = [None; BATCH];
            let (fd, headers) = (self.fd.as_raw_fd(), &mut self.receive);
            let came = match recvmmsg(fd, headers, slices.iter_mut(), MsgFlags::MSG_DONTWAIT, None) {
                Ok(messages) => {
                    let mut came = 0;
                    for message in messages {
                        if message.flags.contains(MsgFlags::MSG_TRUNC) {
                            self.counters.too_long += 1;
                        } else if wanted(message.address.as_ref()) {
                            lengths[came] = Some(message.bytes);
                        }
                        came += 1;
                    }
                    came
                }
                Err(Errno::EAGAIN) => 0,
                // An earlier frame met no peer: that says nothing about what is there to receive.
                Err(error @ (Errno::ECONNREFUSED | Errno::EINTR)) => {
                    self.counters.no_peer += u64::from(error == Errno::ECONNREFUSED);
                    continue;
                }
                // An interface that is down, mostly: it may come back.
                Err(error) => {
                    self.fail(error, 0);
                    0
                }
            };
            batch.keep(lengths[..came].iter().copied());
            self.counters.received += batch.len() as u64;
            return batch.len();
        }
    }

    /// Sends frames; says how many are taken, which may be lost all the same. The others find no room now.
    pub(crate) fn send(&mut self, frames: &[&[u8]]) -> usize {
        let mut done = 0;
        while let Some(rest) = frames.get(done..).filter(|rest| !rest.is_empty()) {
            let rest = &rest[..rest.len().min(BATCH)];
            let slices: [[IoSlice<'_>; 1]; BATCH] =
                std::array::from_fn(|at| [IoSlice::new(rest.get(at).copied().unwrap_or_default())]);
            const NO_ADDRESS: [Option<()>; BATCH] = [None; BATCH];
            let (fd, headers) = (self.fd.as_raw_fd(), &mut self.send);
            let slices = &slices[..rest.len()];
            match sendmmsg(fd, headers, slices, NO_ADDRESS, [], MsgFlags::MSG_DONTWAIT) {
                Ok(taken) => {
                    let taken = taken.count();
                    self.counters.sent += taken as u64;
                    done += taken;
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN | Errno::ENOBUFS) => return done,
                // What an earlier frame has met. This one was not sent yet, and is sent now.
                Err(Errno::ECONNREFUSED) => self.counters.no_peer += 1,
                Err(Errno::EMSGSIZE) => {
                    self.counters.too_long += 1;
                    done += 1;
                }
                Err(error) => {
                    self.fail(error, 1);
                    done += 1;
                }
            }
        }
        done
    }

    #[cold]
    fn fail(&mut self, error: Errno, frames: u64) {
        self.counters.failed += frames;
        self.last_error = Some(error);
    }

    pub(crate) fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
