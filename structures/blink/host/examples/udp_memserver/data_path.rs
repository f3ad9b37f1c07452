//! The driver of the data path: frames between a UDP socket and the NIC, and the server's work in between.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use fatbtree_blink_host::{TreeEvent, TreeMailbox, TreeServer};
use fatbtree_soft_nic::Nic;
use fatbtree_verbs::time::Instant;
use tokio::net::UdpSocket;
use tokio::sync::Notify;

/// Frames taken in one go, before anything else gets its turn.
const BURST: usize = 64;
/// Nodes read for a snapshot between two bursts.
const NODES: usize = 64;
/// Bytes of the longest datagram.
const DATAGRAM: usize = 1 << 16;

/// Wakes the data path, from any thread.
#[derive(Clone, Default)]
pub(crate) struct Waker(Arc<Notify>);

impl Waker {
    pub(crate) fn wake(&self) {
        self.0.notify_one();
    }
}

/// One port and one mailbox. What waits for the port waits in the NIC, which makes a frame only when it is asked for one; what
/// comes faster than it is taken is lost in the socket's buffer.
pub(crate) struct DataPath {
    socket: UdpSocket,
    mailbox: TreeMailbox,
    waker: Waker,
    began: std::time::Instant,
    received: Vec<u8>,
    /// The frame to send next.
    sending: Vec<u8>,
    /// It was taken from the NIC, and the port had no room for it.
    held: bool,
}

impl DataPath {
    /// A port that receives at `local`, and sends to and hears `remote` only.
    pub(crate) fn open(
        local: SocketAddr,
        remote: SocketAddr,
        mailbox: TreeMailbox,
        waker: Waker,
    ) -> io::Result<Self> {
        let socket = std::net::UdpSocket::bind(local)?;
        socket.connect(remote)?;
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket: UdpSocket::from_std(socket)?,
            mailbox,
            waker,
            began: std::time::Instant::now(),
            received: vec![0; DATAGRAM],
            sending: Vec::new(),
            held: false,
        })
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.began.elapsed().into()
    }

    /// Drives `server` until it is dropped; `tell` is given its events.
    pub(crate) async fn serve(
        &mut self,
        server: &mut TreeServer<Nic>,
        mut tell: impl FnMut(TreeEvent),
    ) -> io::Result<()> {
        loop {
            let more_frames = self.receive(server.device_mut());
            let now = self.now();
            self.mailbox.answer(now, server);
            if server.poll_timeout().is_some_and(|at| at <= now) {
                server.handle_timeout(now);
            }
            if server.device().poll_timeout().is_some_and(|at| at <= now) {
                server.device_mut().handle_timeout(now);
            }
            let more_nodes = server.work(now, NODES);
            self.send(server.device_mut());
            while let Some(event) = server.poll_event() {
                tell(event);
            }
            if more_frames || more_nodes {
                // Signals and the end of the time are looked for as well.
                tokio::task::yield_now().await;
                continue;
            }
            let due = server.poll_timeout().into_iter().chain(server.device().poll_timeout()).min();
            tokio::select! {
                ready = self.socket.readable() => ready?,
                ready = self.socket.writable(), if self.held => ready?,
                () = self.waker.0.notified() => {}
                () = sleep(due, now) => {}
            }
        }
    }

    /// Hands frames in, and sends the answers of each before the next. Says whether there may be more of them.
    fn receive(&mut self, nic: &mut Nic) -> bool {
        for _ in 0..BURST {
            match self.socket.try_recv(&mut self.received) {
                Ok(bytes) => nic.handle_frame(self.now(), &self.received[..bytes]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                // No process listens at the other end, yet or any more: what was sent there is lost.
                Err(_) => {}
            }
            self.send(nic);
        }
        true
    }

    /// Sends what there is, as far as there is room.
    fn send(&mut self, nic: &mut Nic) {
        let now = self.now();
        loop {
            self.held = self.held || nic.poll_transmit(now, &mut self.sending);
            if !self.held {
                return;
            }
            match self.socket.try_send(&self.sending) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // A frame that cannot be sent for another reason is lost.
                Ok(_) | Err(_) => self.held = false,
            }
        }
    }
}

/// Until a point in time of the data path; for ever where there is none.
async fn sleep(due: Option<Instant>, now: Instant) {
    match due {
        Some(due) => tokio::time::sleep((due - now).into()).await,
        None => std::future::pending().await,
    }
}
