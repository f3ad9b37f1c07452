//! An RDMA device of this machine. Nothing is received or sent here: the card does that.

use std::net::Ipv4Addr;
use std::time::Duration;

use fatbtree_rdma::{Config, OpenError, RdmaDevice};
use fatbtree_verbs::BufferClass;

use super::{Side, Watch};

/// A device that says when it has something.
pub(super) struct Card {
    pub(super) device: RdmaDevice,
}

/// Time for which answers are looked for before the thread sleeps: the way through a network, where a sleeper would wake later than they come.
const SPIN: Duration = Duration::from_micros(20);
/// The longest sleep. A card says nothing of what others write, such as another root: whoever has memory looks for it.
const LOOK: Duration = Duration::from_millis(50);
/// Longest sleep where the driver refuses to tell of completions.
const UNTOLD: Duration = Duration::from_millis(1);

/// How often a request is sent again at intervals of 134 ms, 4.096 us * 2^15: a queue pair whose requests are not answered lives 0.9 s, as
/// long as the software NIC's.
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
