//! Many datagrams with one system call, for every kind of socket.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::sockopt::{RcvBuf, RcvBufForce, UdpGroSegment, UdpGsoSegment};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, MultiHeaders, SockaddrLike, recvmmsg, recvmsg, sendmmsg,
    setsockopt,
};

use crate::batch::{BATCH, Batch};
use crate::counters::Counters;

/// Requested size of a socket's queue in bytes: some thousand frames of a kilobyte. The kernel gives less to
/// processes without rights (`net.core.rmem_max`).
pub(crate) const QUEUE: usize = 8 << 20;

pub(crate) fn ask_for_receive_queue(fd: &OwnedFd) -> nix::Result<()> {
    setsockopt(fd, RcvBufForce, &QUEUE).or_else(|_| setsockopt(fd, RcvBuf, &QUEUE))
}

/// A non-blocking socket, with the memory that its system calls need.
///
/// `A` is the type of a received frame's source address, `()` if that is not wanted; `S` that of a sent frame's destination, `()` if the
/// socket has one peer.
pub(crate) struct Socket<A, S = ()> {
    fd: OwnedFd,
    receive: MultiHeaders<A>,
    sender: Sender<S>,
    /// Memory for the control data of a message.
    control: Vec<u8>,
    pub(crate) counters: Counters,
    pub(crate) last_error: Option<Errno>,
}

/// Sends many frames with one system call. `S` is an address of the system; `()` where a socket has one peer.
pub(crate) struct Sender<S> {
    single: MultiHeaders<S>,
    /// Messages with control data that gives the frame length of a train.
    cut: MultiHeaders<S>,
    /// Whether frames of one length to one peer go through the kernel as one message, a train, which is cut at its
    /// end. Otherwise each frame is a message of its own.
    trains: bool,
}

/// Maximum size of a train in bytes, slightly less than a UDP datagram can hold.
const TRAIN: usize = 65_000;

/// Number of frames in the first train: frames of `length` bytes to the first one's peer, of which the last may be
/// shorter.
fn run<P: PartialEq>(frames: &[&[u8]], to: &[P], length: usize) -> usize {
    let most = frames.len().min(TRAIN / length.max(1)).max(1);
    let most = to[..most].iter().take_while(|peer| **peer == to[0]).count();
    let same = frames[..most].iter().take_while(|frame| frame.len() == length).count();
    let last = frames[..most].get(same).is_some_and(|frame| !frame.is_empty() && frame.len() < length);
    same + usize::from(last && same > 0 && length > 0)
}

impl<S: SockaddrLike + Copy> Sender<S> {
    pub(crate) fn new() -> Self {
        Self {
            single: MultiHeaders::preallocate(BATCH, None),
            cut: MultiHeaders::preallocate(BATCH, Some(cmsg_space!(u16))),
            trains: false,
        }
    }

    /// Creates a sender for a UDP socket, with trains if the kernel supports them.
    pub(crate) fn with_trains(fd: &OwnedFd) -> Self {
        Self { trains: setsockopt(fd, UdpGsoSegment, &0).is_ok(), ..Self::new() }
    }

    /// Sends the first of these frames, each to the peer at its place, with one system call. There must be at least
    /// one. Returns the number of frames taken.
    pub(crate) fn send<P>(&mut self, fd: &OwnedFd, frames: &[&[u8]], to: &[P]) -> nix::Result<usize>
    where
        P: PartialEq + Copy,
        S: From<P>,
    {
        loop {
            let most = frames.len().min(BATCH);
            let pieces: [IoSlice<'_>; BATCH] =
                std::array::from_fn(|at| IoSlice::new(frames.get(at).copied().unwrap_or_default()));
            let (mut messages, mut ends): ([&[IoSlice<'_>]; BATCH], _) = ([&[]; BATCH], [0; BATCH]);
            let mut peers = [None; BATCH];
            let (mut count, mut end) = (0, 0);
            let segment = self.segment_for(&frames[..most], to);
            while end < most {
                let taken = match segment {
                    Some(length) if frames[end].len() == usize::from(length) => {
                        run(&frames[end..most], &to[end..], usize::from(length))
                    }
                    Some(length) if frames[end].len() > usize::from(length) => break, // it would be cut; it is next
                    _ => 1,
                };
                messages[count] = &pieces[end..end + taken];
                peers[count] = Some(S::from(to[end]));
                end += taken;
                ends[count] = end;
                count += 1;
            }
            const FLAGS: MsgFlags = MsgFlags::MSG_DONTWAIT;
            let (fd, messages, peers) = (fd.as_raw_fd(), &messages[..count], &peers[..count]);
            // With every message, not once for the socket: several threads may send by it.
            let sent = match &segment {
                Some(length) => {
                    let cut = [ControlMessage::UdpGsoSegments(length)];
                    sendmmsg(fd, &mut self.cut, messages, peers, cut, FLAGS)
                }
                None => sendmmsg(fd, &mut self.single, messages, peers, [], FLAGS),
            };
            match sent {
                Ok(taken) => return Ok(taken.count().checked_sub(1).map_or(0, |last| ends[last])),
                Err(error @ (Errno::EINTR | Errno::EAGAIN | Errno::ENOBUFS | Errno::ECONNREFUSED)) => {
                    return Err(error);
                }
                // The way there takes no trains, or none of such long frames.
                Err(_) if ends[0] > 1 => self.trains = false,
                Err(error) => return Err(error),
            }
        }
    }

    /// Length at which the kernel must cut the next messages; `None` if every frame is a message of its own.
    fn segment_for<P: PartialEq>(&self, frames: &[&[u8]], to: &[P]) -> Option<u16> {
        let length = frames[0].len();
        (self.trains && run(frames, to, length) > 1).then(|| u16::try_from(length).ok()).flatten()
    }
}

impl<A: SockaddrLike + Copy> Socket<A> {
    /// Sends frames to the only peer; see [`send_to`](Self::send_to).
    pub(crate) fn send(&mut self, frames: &[&[u8]]) -> usize {
        const PEER: [(); BATCH] = [(); BATCH];
        let mut done = 0;
        for some in frames.chunks(BATCH) {
            let sent = self.send_to(some, &PEER[..some.len()]);
            done += sent;
            if sent < some.len() {
                break;
            }
        }
        done
    }
}

impl<A: SockaddrLike + Copy, S: SockaddrLike + Copy> Socket<A, S> {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self {
            fd,
            receive: MultiHeaders::preallocate(BATCH, None),
            sender: Sender::new(),
            control: cmsg_space!(i32),
            counters: Counters::default(),
            last_error: None,
        }
    }

    /// Sends frames of one length as one message that is cut where it arrives (`UDP_SEGMENT`). The path through the
    /// kernel is most of a frame's cost, and a train takes it once. The receiver sees datagrams as before.
    ///
    /// Received trains are taken whole, and cut into frames here.
    pub(crate) fn with_trains(mut self) -> Self {
        // An old kernel cuts them, which takes it longer.
        let _ = setsockopt(&self.fd, UdpGroSegment, &true);
        self.sender = Sender::with_trains(&self.fd);
        self
    }

    /// Receives waiting frames, up to a batch. `wanted` decides by a frame's source address.
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

    /// Receives waiting frames, up to a batch, from a socket with [trains](Self::with_trains).
    pub(crate) fn receive_trains(&mut self, batch: &mut Batch) -> usize {
        self.receive_trains_from(batch, |_| true)
    }

    /// The same. `wanted` decides by a train's source address.
    pub(crate) fn receive_trains_from(
        &mut self,
        batch: &mut Batch,
        wanted: impl Fn(Option<&A>) -> bool,
    ) -> usize {
        batch.clear();
        while let Some(room) = batch.room() {
            let (fd, control) = (self.fd.as_raw_fd(), Some(&mut self.control[..]));
            match recvmsg::<A>(fd, &mut [IoSliceMut::new(room)], control, MsgFlags::MSG_DONTWAIT) {
                Ok(message) if message.flags.contains(MsgFlags::MSG_TRUNC) => self.counters.too_long += 1,
                Ok(message) if !wanted(message.address.as_ref()) => {}
                Ok(message) => {
                    let length = message.bytes;
                    let frame = message.cmsgs().ok().and_then(|mut all| {
                        all.find_map(|control| match control {
                            ControlMessageOwned::UdpGroSegments(frame) => usize::try_from(frame).ok(),
                            _ => None,
                        })
                    });
                    // Without that it is not a train, but one frame.
                    let frame = frame.filter(|frame| *frame > 0).unwrap_or(length);
                    self.counters.too_long += batch.keep_train(length, frame) as u64;
                }
                Err(Errno::EAGAIN) => break,
                // An earlier frame met no peer: that says nothing about what is there to receive.
                Err(error @ (Errno::ECONNREFUSED | Errno::EINTR)) => {
                    self.counters.no_peer += u64::from(error == Errno::ECONNREFUSED);
                }
                Err(error) => {
                    self.fail(error, 0);
                    break;
                }
            }
        }
        self.counters.received += batch.len() as u64;
        batch.len()
    }

    /// Sends frames, each to the peer at its place, and returns the number taken. Taken frames may still be lost; the others find no room now.
    pub(crate) fn send_to<P>(&mut self, frames: &[&[u8]], to: &[P]) -> usize
    where
        P: PartialEq + Copy,
        S: From<P>,
    {
        let mut done = 0;
        while let Some(rest) = frames.get(done..).filter(|rest| !rest.is_empty()) {
            let most = rest.len().min(BATCH);
            match self.sender.send(&self.fd, &rest[..most], &to[done..done + most]) {
                Ok(taken) => {
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
