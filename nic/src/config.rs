//! What a NIC is told once, when it is made.

use crate::time::Duration;
use std::fmt;
use std::net::Ipv4Addr;

/// Path MTU: payload bytes of the largest packet (IBTA volume 1, table 23).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mtu {
    /// 256 bytes.
    B256,
    /// 512 bytes.
    B512,
    /// 1024 bytes: what fits in 1500-byte Ethernet frames.
    B1024,
    /// 2048 bytes.
    B2048,
    /// 4096 bytes.
    B4096,
}

impl Mtu {
    /// Payload bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Mtu::B256 => 256,
            Mtu::B512 => 512,
            Mtu::B1024 => 1024,
            Mtu::B2048 => 2048,
            Mtu::B4096 => 4096,
        }
    }

    /// The MTU of exactly `bytes`, if there is one.
    pub const fn from_bytes(bytes: usize) -> Option<Mtu> {
        match bytes {
            256 => Some(Mtu::B256),
            512 => Some(Mtu::B512),
            1024 => Some(Mtu::B1024),
            2048 => Some(Mtu::B2048),
            4096 => Some(Mtu::B4096),
            _ => None,
        }
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

/// How a NIC behaves. Start from [`NicConfig::new`] and change what you need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicConfig {
    /// Its MAC address; frames to another are dropped.
    pub mac: [u8; 6],
    /// Its address; frames to another are dropped.
    pub ip: Ipv4Addr,
    /// Path MTU it offers; a connection uses the smaller of both sides'.
    pub mtu: Mtu,
    /// How long a request may go without progress before it is sent again.
    pub ack_timeout: Duration,
    /// How often in a row it is sent again before the queue pair fails.
    pub retry_count: u8,
    /// READs and atomics a queue pair may have outstanding, as requester and as responder.
    pub max_outstanding_reads: usize,
    /// Requests a queue pair holds, sent or not, until they complete.
    pub max_send_queue: usize,
    /// IPv4 type of service of the frames it sends.
    pub tos: u8,
    /// IPv4 time to live of the frames it sends.
    pub ttl: u8,
}

impl NicConfig {
    /// The defaults: path MTU 1024, 16 ms acknowledgement timeout, 7 retries, 16 outstanding READs, 256 requests.
    pub fn new(mac: [u8; 6], ip: Ipv4Addr) -> NicConfig {
        NicConfig {
            mac,
            ip,
            mtu: Mtu::B1024,
            ack_timeout: Duration::from_millis(16),
            retry_count: 7,
            max_outstanding_reads: 16,
            max_send_queue: 256,
            tos: 0,
            ttl: 64,
        }
    }
}
