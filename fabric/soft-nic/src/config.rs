//! Configuration of a NIC.

use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{BufferClass, LARGEST_BUFFER, Mtu, QueuePairNumber};
use std::net::Ipv4Addr;

/// Options of a NIC. Start from [`NicConfig::new`] and change what you need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicConfig {
    /// MAC address of the NIC; frames to another are dropped.
    pub mac: [u8; 6],
    /// IPv4 address of the NIC; frames to another are dropped.
    pub ip: Ipv4Addr,
    /// Path MTU that the NIC offers; a connection uses the smaller of both sides'.
    pub mtu: Mtu,
    /// Time for which a request may go without progress before it is sent again.
    pub ack_timeout: Duration,
    /// Number of times in a row that a request is sent again before the queue pair fails.
    pub retry_count: u8,
    /// Time after which a peer is to send a message again for which there is no place; rounded up to one that can be said, 655 ms at most.
    pub rnr_timer: Duration,
    /// Number of times in a row that a message is sent again to a peer that has no place for it; 7 for without end.
    pub rnr_retry_count: u8,
    /// Number of places for messages that a queue pair can hold.
    pub receive_queue: usize,
    /// Time after which a message of the Communication Manager is sent again.
    pub cm_timeout: Duration,
    /// Number of times that it is sent again before the connection has timed out.
    pub cm_retries: u8,
    /// Number of READs and atomics that a queue pair can answer at once; 0 counts as 1.
    pub responder_reads: u8,
    /// Maximum number of READs and atomics that a queue pair has outstanding; 0 counts as 1.
    pub initiator_reads: u8,
    /// Number of requests that a queue pair can hold, sent or not, until they complete.
    pub send_queue: usize,
    /// Maximum number of requests of all queue pairs together whose completions have not been taken.
    pub completion_queue: usize,
    /// Maximum number of queue pairs at a time; at most [`NicConfig::MOST_QUEUE_PAIRS`].
    pub queue_pairs: usize,
    /// Bytes of memory on the device that can be registered.
    pub device_memory: u64,
    /// Buffers for the results of READs and for long WRITEs on their way. Nothing longer than the largest can be read
    /// or written. Their memory is mapped when the NIC is made, and costs nothing until it is used.
    pub buffers: Vec<BufferClass>,
    /// IPv4 type of service of sent frames.
    pub tos: u8,
    /// IPv4 time to live of sent frames.
    pub ttl: u8,
}

impl NicConfig {
    /// Number of queue pairs that numbers can tell apart. A queue pair is found by the lower 16 bits of its number,
    /// of which 0 and 1 belong to management.
    pub const MOST_QUEUE_PAIRS: usize = (1 << 16) - 2;

    /// The defaults: path MTU 1024; 16 ms acknowledgement timeout, 7 retries; a message without a place again after 640 µs, without end, and 256 places a queue pair; messages of the Communication Manager again after 250 ms, up to 15
    /// times; 16 outstanding READs and atomics either way and
    /// 256 requests a queue pair; 65,536 requests in all; as many queue pairs as there are numbers; 256 KiB of device memory,
    /// as a ConnectX-5 has; 1024 buffers of 4 KiB, 64 of 64 KiB and 4 of 1 MiB and 4 KiB: a megabyte and what
    /// describes it.
    pub fn new(mac: [u8; 6], ip: Ipv4Addr) -> NicConfig {
        NicConfig {
            mac,
            ip,
            mtu: Mtu::B1024,
            ack_timeout: Duration::from_millis(16),
            retry_count: 7,
            rnr_timer: Duration::from_micros(640),
            rnr_retry_count: 7,
            receive_queue: 256,
            cm_timeout: Duration::from_millis(250),
            cm_retries: 15,
            responder_reads: 16,
            initiator_reads: 16,
            send_queue: 256,
            completion_queue: 1 << 16,
            queue_pairs: NicConfig::MOST_QUEUE_PAIRS,
            device_memory: 256 << 10,
            buffers: vec![
                BufferClass { count: 1024, bytes: 4 << 10 },
                BufferClass { count: 64, bytes: 64 << 10 },
                BufferClass { count: 4, bytes: LARGEST_BUFFER },
            ],
            tos: 0,
            ttl: 64,
        }
    }
}

/// Numbers of a queue pair that are random unless a test or a replay needs them fixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct QueuePairOptions {
    /// Number of the queue pair, 2 to 2^24 - 1. No two queue pairs may have the lower 16 bits in common.
    pub number: Option<QueuePairNumber>,
    /// First PSN that the queue pair sends; the lower 24 bits count.
    pub psn: Option<u32>,
    /// UDP source port.
    pub source_port: Option<u16>,
    /// IPv4 identification of the first frame that the queue pair sends; it counts up.
    pub identification: Option<u16>,
}
