//! A client over plain memory: what tests and examples use instead of a network.

use std::cell::RefCell;
use std::rc::Rc;

use fatbtree_remote_memory::{GlobalAddress, RemoteSide};
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::{Access, Device, IndexTarget, Remote};

use crate::config::TreeConfig;
use crate::limits::Limits;
use crate::lookup::Lookup;
use crate::operation::Start;
use crate::pool::{Pool, PoolConfig};
use crate::super_root::SuperRoot;
use crate::walk::Regions;

/// Plays the switches: given a key, the node on which its index read lands; null means that they let it pass as it is, which
/// the server refuses.
type Landing = Box<dyn FnMut(u64, IndexTarget) -> GlobalAddress>;

/// A client that is connected to all regions, with switches played by a function.
pub struct PlainClient {
    pool: Pool<PlainDevice>,
    landing: Rc<RefCell<Landing>>,
    /// Its queue pairs go when it goes.
    _server: PlainDevice,
}

impl std::fmt::Debug for PlainClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.pool.fmt(f)
    }
}

impl PlainClient {
    /// A client of the trees in `memory`. One device serves all regions, so that a switch can lead an index read to any of
    /// them.
    ///
    /// # Panics
    /// When nodes are larger than 4096 bytes or the machine has no memory for buffers: this is for tests.
    #[must_use]
    pub fn new(memory: &Regions, config: &TreeConfig, roots: &SuperRoot) -> Self {
        Self::with_limits(memory, config, roots, Limits::default())
    }

    /// The same with other limits.
    ///
    /// # Panics
    /// As [`new`](Self::new).
    #[must_use]
    pub fn with_limits(memory: &Regions, config: &TreeConfig, roots: &SuperRoot, limits: Limits) -> Self {
        let network = PlainNetwork::new();
        let (mut server, mut device) = (network.device(), network.device());
        let mut rkeys = Vec::new();
        for (number, region) in memory.iter() {
            let iova = GlobalAddress::new(number, 0).raw();
            let region = server.register(region, iova, Access::ALL).expect("offsets have 48 bits");
            rkeys.push((number, region.rkey));
        }
        let landing: Rc<RefCell<Landing>> = Rc::new(RefCell::new(Box::new(|_, _| GlobalAddress::NULL)));
        device.set_landing({
            let (landing, rkeys) = (Rc::clone(&landing), rkeys.clone());
            move |key, target| {
                let address = landing.borrow_mut()(key, target);
                let rkey = rkeys.iter().find(|(server, _)| *server == address.server())?.1;
                (!address.is_null()).then_some(Remote { address: address.raw(), rkey })
            }
        });
        let config = PoolConfig { tree: *config, limits, ..PoolConfig::default() };
        let pool = Pool::new(device, config, roots.clone(), 1).expect("one lane is enough");
        for id in pool.connections() {
            let local = pool.open(id).expect("plain devices have queue pairs without end");
            let queue_pair = server.create().expect("plain devices have queue pairs without end");
            server.connect(queue_pair, &local).expect("a good endpoint");
            let endpoint = server.endpoint(queue_pair).expect("just made");
            let rkey = rkeys.iter().find(|(server, _)| *server == id.server).map_or(0, |(_, rkey)| *rkey);
            let side = RemoteSide { endpoint, rkey, registered: true };
            pool.connected(id, side).expect("nodes fit into 4096 bytes");
        }
        Self { pool, landing, _server: server }
    }

    /// Plays the switches from now on.
    pub fn set_landing(&mut self, landing: impl FnMut(u64, IndexTarget) -> GlobalAddress + 'static) {
        *self.landing.borrow_mut() = Box::new(landing);
    }

    /// Looks up one key; pauses take no time.
    pub fn lookup(&self, key: u64, start: Start) -> Lookup {
        self.pool.reactor().block_on(self.pool.lookup(key, start))
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &Pool<PlainDevice> {
        &self.pool
    }
}
