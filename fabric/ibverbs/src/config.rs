//! Options of a device.

use std::net::Ipv4Addr;

use fatbtree_verbs::{BufferClass, LARGEST_BUFFER, Mtu};

/// Doorbell registers of threads that share a [context](crate::RdmaContext) (SMART, section 3.1).
///
/// A queue pair belongs to one thread in either case. A memory server that ends a thread's session destroys its queue pairs, so that nothing
/// of it is written any more when others take its locks; a queue pair of several threads would end the sessions of all. It is also slower
/// than any other way (figure 3). The modelled card has it (`fatbtree figures --of smart --figure 3`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Doorbells {
    /// A register for each thread, by thread domains. Where the driver has none, this is the driver's choice.
    #[default]
    PerThread,
    /// The driver's choice: threads share a few registers without knowing it, each with a lock. For comparison.
    Driver,
}

/// Options for opening a device. [`Config::default`] suits most uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Port of the device, from 1.
    pub port: u8,
    /// Address of this side, if the port has several; `None` selects the first one.
    pub address: Option<Ipv4Addr>,
    /// Largest path MTU to offer; the port may allow less.
    pub mtu: Mtu,
    /// Maximum number of queue pairs at a time.
    pub queue_pairs: u32,
    /// Maximum number of work requests that a queue pair holds; at most 32,768.
    pub send_queue: u16,
    /// Maximum number of bytes of a WRITE that travel inside of the work request; the device may allow less.
    pub inline_bytes: u32,
    /// Maximum number of READs and atomics that are answered, and that are outstanding; the device may allow less.
    /// Rounded down to a power of two: soft RoCE rounds *up*, and would then request more of the other side than was
    /// agreed.
    pub reads: u8,
    /// Exponent, 1 to 31, of the time without an answer before a request is sent again: 4.096 µs · 2^`timeout` (IBTA
    /// volume 1, section 9.9.2.1.1).
    pub timeout: u8,
    /// Number of times that a request is sent again, at most 6. The field on the card allows 7, but soft RoCE takes
    /// that as unlimited, and would never notice that a peer is gone.
    pub retries: u8,
    /// Traffic class of packets; its upper six bits are the DSCP, by which switches tell lossless traffic.
    pub traffic_class: u8,
    /// Maximum number of routers that a packet may pass.
    pub hop_limit: u8,
    /// Whether the device reads and writes each line of 64 bytes whole, if its owner knows. If `None`, see
    /// [`Capabilities::line_atomicity`](fatbtree_verbs::Capabilities::line_atomicity) and the crate's page.
    pub line_atomicity: Option<bool>,
    /// Doorbell registers of threads.
    pub doorbells: Doorbells,
    /// Registered buffers for the results of READs and for data that waits to be written. The largest one limits the
    /// length of READs and WRITEs.
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
            doorbells: Doorbells::default(),
            buffers: vec![
                BufferClass { count: 1024, bytes: 64 },
                BufferClass { count: 512, bytes: 4096 },
                // The pieces of a long value, and two values of the largest size with what describes them.
                BufferClass { count: 16, bytes: 64 << 10 },
                BufferClass { count: 2, bytes: LARGEST_BUFFER },
            ],
        }
    }
}

impl Config {
    /// Rejects values that no device supports; the error gives the field, its allowed values and the value found.
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
