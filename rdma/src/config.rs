//! What an owner may choose.

use std::net::Ipv4Addr;

use fatbtree_verbs::{BufferClass, Mtu};

/// What is asked of a device when it is opened. [`Config::default`] fits most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Port of the device, from 1.
    pub port: u8,
    /// Address of this side, where the port has several; `None`: the first one.
    pub address: Option<Ipv4Addr>,
    /// Largest path MTU to offer; the port may allow less.
    pub mtu: Mtu,
    /// Most queue pairs at a time.
    pub queue_pairs: u32,
    /// Work requests that a queue pair holds, at most 32,768.
    pub send_queue: u16,
    /// Bytes of a WRITE that travel inside of the work request; the device may allow less.
    pub inline_bytes: u32,
    /// READs and atomics that are answered, and outstanding, at most; the device may allow less. Rounded down to a power of
    /// two, because devices round it: soft RoCE rounds *up*, and would then ask more of the other side than was agreed.
    pub reads: u8,
    /// How long an answer may take before a request is sent again: 4.096 µs · 2^`timeout` (IBTA volume 1, section 9.9.2.1.1),
    /// 1 to 31.
    pub timeout: u8,
    /// How often a request is sent again, at most 6. The field on the card knows 7, but soft RoCE takes that for "without
    /// end": a peer that is gone would never be noticed.
    pub retries: u8,
    /// Traffic class of packets; its upper six bits are the DSCP, by which switches tell lossless traffic.
    pub traffic_class: u8,
    /// Routers that a packet may pass.
    pub hop_limit: u8,
    /// Whether the device reads and writes each line of 64 bytes whole, if its owner knows; `None`: see
    /// [`Capabilities::line_atomicity`](fatbtree_verbs::Capabilities::line_atomicity) and the crate's page.
    pub line_atomicity: Option<bool>,
    /// Registered buffers: what READs bring comes into these, and data to be written waits in them. The largest one is the
    /// longest READ and WRITE.
    pub buffers: Vec<BufferClass>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            port: 1,
            address: None,
            mtu: Mtu::B4096,
            queue_pairs: 256,
            send_queue: 128,
            inline_bytes: 64,
            reads: 16,
            // 67 ms, and half a second until a peer is given up.
            timeout: 14,
            retries: 6,
            traffic_class: 0,
            hop_limit: 64,
            line_atomicity: None,
            buffers: vec![
                BufferClass { count: 1024, bytes: 64 },
                BufferClass { count: 512, bytes: 4096 },
                BufferClass { count: 2, bytes: 1 << 20 },
            ],
        }
    }
}

impl Config {
    /// Names what no device could do, and what there should be.
    pub(crate) fn check(&self) -> Result<(), (&'static str, &'static str, u64)> {
        let fields: [(&str, u64, std::ops::RangeInclusive<u64>, &str); 6] = [
            ("port", self.port.into(), 1..=255, "1 or more"),
            ("queue_pairs", self.queue_pairs.into(), 1..=1 << 20, "1 to 2^20"),
            ("send_queue", self.send_queue.into(), 1..=1 << 15, "1 to 2^15"),
            ("reads", self.reads.into(), 1..=255, "1 or more"),
            ("timeout", self.timeout.into(), 1..=31, "1 to 31"),
            ("retries", self.retries.into(), 0..=6, "0 to 6"),
        ];
        for (field, found, allowed, expected) in fields {
            if !allowed.contains(&found) {
                return Err((field, expected, found));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_device_could_do_is_named() {
        assert_eq!(Config::default().check(), Ok(()));
        let endless = Config { retries: 7, ..Config::default() };
        assert_eq!(endless.check(), Err(("retries", "0 to 6", 7)));
        let long = Config { send_queue: u16::MAX, ..Config::default() };
        assert_eq!(long.check(), Err(("send_queue", "1 to 2^15", 65_535)));
    }
}
