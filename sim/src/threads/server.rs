//! The memory server's thread.

use std::sync::atomic::{AtomicBool, Ordering};

use fatbtree_blink_host::{TreeMailbox, TreeServer};
use fatbtree_soft_nic::Nic;

use super::Clock;
use super::wires::Port;

/// The port to a client, by the last byte of its MAC address.
pub(super) fn port_of(frame: &[u8]) -> Option<usize> {
    frame.get(5).map(|last| usize::from(*last))
}

/// Serves until it is over. `ports` are in the order of the clients' addresses.
pub(super) fn serve(
    server: &mut TreeServer<Nic>,
    mut mailbox: TreeMailbox,
    mut ports: Vec<Port>,
    clock: Clock,
    is_over: &AtomicBool,
) {
    /// Nodes read at a time, to find out what ended sessions have left of their chunks.
    const NODES: usize = 256;
    let mut frame = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let now = clock.now();
        let mut any = false;
        for port in &mut ports {
            any |= port.receive(server.device_mut(), now);
        }
        while server.device_mut().poll_transmit(now, &mut frame) {
            if let Some(port) = port_of(&frame).and_then(|number| ports.get_mut(number)) {
                port.send(&mut frame);
            }
            any = true;
        }
        mailbox.answer(now, server);
        if server.poll_timeout().is_some_and(|at| at <= now) {
            server.handle_timeout(now);
        }
        if server.device().poll_timeout().is_some_and(|at| at <= now) {
            server.device_mut().handle_timeout(now);
        }
        any |= server.work(now, NODES);
        while server.poll_event().is_some() {}
        if !any {
            std::thread::yield_now();
        }
    }
}
