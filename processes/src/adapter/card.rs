//! An RDMA device of this machine. Nothing is received or sent here: the card does that.

use std::net::Ipv4Addr;
use std::time::Duration;

use fatbtree_ibverbs::{Config, OpenError, RdmaDevice};
use fatbtree_verbs::BufferClass;

use super::{Side, Watch};

/// RDMA device whose events can be waited for.
pub(super) struct Card {
    pub(super) device: RdmaDevice,
}

/// Time to poll for answers before the thread sleeps: a round trip through a network is shorter than waking up.
const SPIN: Duration = Duration::from_micros(20);
/// Longest sleep. A card does not signal one-sided WRITEs to the host, such as that of a new root, so the thread looks for them.
const LOOK: Duration = Duration::from_millis(50);
/// Longest sleep where the driver refuses to tell of completions.
const UNTOLD: Duration = Duration::from_millis(1);

/// Exponent of the time after which a request is sent again: 4.096 µs · 2^15 = 134 ms.
///
/// A queue pair whose requests are not answered lives 0.9 s, about as long as the software NIC's.
const TIMEOUT: u8 = 15;

impl Card {
    /// Opens the device of that name, where `address` is that of its port.
    pub(super) fn open(name: &str, address: Ipv4Addr, side: Side) -> Result<Self, OpenError> {
        let config = Config { address: Some(address), timeout: TIMEOUT, ..Config::default() };
        let config = match side {
            Side::Asks => config,
            // It posts nothing: what a queue pair costs is little.
            Side::Answers => Config {
                queue_pairs: 1 << 14,
                send_queue: 1,
                buffers: vec![BufferClass { count: 1, bytes: 4096 }],
                ..config
            },
        };
        Ok(Self { device: RdmaDevice::open(name, &config)? })
    }

    /// Waits for completions, queue pairs that fail, a wake, or as long as `patience` lasts.
    pub(super) fn wait(&mut self, watch: &mut Watch, patience: Duration) {
        let began = std::time::Instant::now();
        while self.device.under_way() > 0 && began.elapsed() < SPIN {
            if self.device.has_news() {
                return;
            }
            std::hint::spin_loop();
        }
        let longest = match self.device.arm() {
            Ok(true) => LOOK,
            Ok(false) => return,
            Err(_) => UNTOLD,
        };
        watch.waiter.wait_for(self.device.fds().into_iter(), Some(patience.min(longest)), &mut watch.ready);
    }
}
