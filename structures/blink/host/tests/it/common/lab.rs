//! A memory server of a tree on a plain device.

use fatbtree_blink::{TreeConfig, ValueLayout};
use fatbtree_blink_host::{LoadOptions, LoadedTree, TreeEvent, TreeServer, WalkLimits};
use fatbtree_memserver::{ClientId, MemoryServer, Refusal, ServerOptions, SessionKey};
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::{Duration, Instant};

pub const SERVER: u16 = 3;

pub struct Lab {
    pub server: TreeServer<PlainDevice>,
    pub now: Instant,
}

pub fn config() -> TreeConfig {
    TreeConfig::new(16, 1024, ValueLayout::Inline(8)).expect("valid")
}

pub fn options() -> ServerOptions {
    ServerOptions { chunk_bytes: 4096, lease: Duration::from_secs(10), ..ServerOptions::default() }
}

impl Lab {
    /// A server with 1000 keys and ten chunks.
    pub fn new(options: ServerOptions) -> Self {
        Self::with(options, WalkLimits::default())
    }

    /// A lab in which walks on behalf of clients have these bounds.
    pub fn bounded(walks: WalkLimits) -> Self {
        Self::with(options(), walks)
    }

    fn with(options: ServerOptions, walks: WalkLimits) -> Self {
        let load = LoadOptions { spare_bytes: 10 * 4096 + 64, ..LoadOptions::new(config(), SERVER) };
        let tree = super::load(&load, &(0..1000).collect::<Vec<_>>());
        let tree = LoadedTree { walks, ..tree };
        let device = PlainNetwork::new().device();
        let server = MemoryServer::new(device, tree, &options, 1).expect("it can be served");
        Self { server, now: Instant::ZERO }
    }

    pub fn events(&mut self) -> Vec<TreeEvent> {
        std::iter::from_fn(|| self.server.poll_event()).collect()
    }

    /// Opens a session of some client.
    pub fn open(&mut self) -> Result<SessionKey, Refusal> {
        let client = ClientId { host: [127, 0, 0, 1].into(), roce: [10, 0, 0, 1].into() };
        self.server.open_session(self.now, client).map(|lease| lease.session)
    }

    pub fn counter(&self, name: &str) -> u64 {
        let counters = self.server.statistics();
        counters.iter().find(|(found, _)| found == name).expect("there is such a counter").1
    }
}
