//! Ports for tests: blocks that stay this process's until it ends.
//!
//! A port that was free a moment ago may be another process's by the time a role opens it. So a test process claims a block of ports by
//! listening at the first of them, and tests of other processes, which do the same, take another block. The blocks lie below the ports
//! that the system gives out by itself.

use std::net::{TcpListener, UdpSocket};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Ports of a block, with the one that claims it.
const BLOCK: u16 = 128;
/// Where blocks lie. `client/python/tests/cluster.py` claims from the same ones.
const FIRST: u16 = 10_240;
const BLOCKS: u16 = 170;

/// The claimed blocks, and what is left of them.
struct Claimed {
    guards: Vec<TcpListener>,
    left: Vec<Range<u16>>,
}

static CLAIMED: Mutex<Claimed> = Mutex::new(Claimed { guards: Vec::new(), left: Vec::new() });

/// The first of so many ports in a row on 127.0.0.1, at most 127. No other test is given them, and nothing has them now.
pub(crate) fn take(count: u16) -> u16 {
    assert!(count < BLOCK, "a block has {BLOCK} ports");
    let mut claimed = CLAIMED.lock().unwrap_or_else(PoisonError::into_inner);
    let has_room = |left: &Range<u16>| left.len() >= usize::from(count);
    if !claimed.left.iter().any(has_room) {
        let begin = (std::process::id() % u32::from(BLOCKS)) as u16;
        let firsts = (0..BLOCKS).map(|n| FIRST + (begin + n) % BLOCKS * BLOCK);
        let claim = |first| Some((TcpListener::bind(("127.0.0.1", first)).ok()?, first + 1..first + BLOCK));
        let (guard, ports) =
            firsts.filter_map(claim).find(|(_, ports)| are_free(ports)).expect("a free block");
        claimed.guards.push(guard);
        claimed.left.push(ports);
    }
    let left = claimed.left.iter_mut().find(|left| has_room(left)).expect("a block was just claimed");
    left.start += count;
    left.start - count
}

/// Whether nothing has these ports: a role of a test that was killed may live on.
fn are_free(ports: &Range<u16>) -> bool {
    ports.clone().all(|port| {
        UdpSocket::bind(("127.0.0.1", port)).is_ok() && TcpListener::bind(("127.0.0.1", port)).is_ok()
    })
}
