//! A memory server on a watched device, and clients of it.

use std::cell::{Ref, RefCell, RefMut};
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;

use fatbtree_memserver::{
    Chunk, ClientId, Event, Grant, MemoryServer, PartOptions, Refusal, ServerOptions, SessionKey, SizeClass,
};
use fatbtree_remote_memory::GlobalAddress;
use fatbtree_remote_memory::record::{RECORD_HEAD, UNPUBLISHED, place_bytes, write_record};
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_verbs::{
    Device, Endpoint, Failure, Operation, Output, QueuePair, QueuePairNumber, Remote, Verbs, WorkRequest,
};

use super::blocks::{self, Block, Blocks, Info, RECORDS, Shape, bytes_of};
use super::device::{Watch, WatchedDevice};

pub const SERVER: u16 = 3;

/// Blocks that are loaded.
pub const LOADED: u32 = 20;

pub struct Lab {
    pub network: PlainNetwork,
    pub server: MemoryServer<WatchedDevice, Blocks>,
    pub watch: Rc<RefCell<Watch>>,
    pub now: Instant,
}

pub fn options() -> ServerOptions {
    ServerOptions { chunk_bytes: 4096, lease: Duration::from_secs(10), ..ServerOptions::default() }
}

impl Lab {
    /// A server with ten chunks.
    pub fn new(options: ServerOptions) -> Self {
        Self::poor(options, u64::MAX)
    }

    /// The same; its device has less memory of its own.
    pub fn poor(options: ServerOptions, device_memory: u64) -> Self {
        Self::with_spare(options, device_memory, 10 * 4096 + 64)
    }

    /// The same, with this much spare memory for chunks.
    pub fn with_spare(options: ServerOptions, device_memory: u64, spare_bytes: u64) -> Self {
        let network = PlainNetwork::new();
        let device = WatchedDevice::new(network.device());
        device.watch.borrow_mut().device_memory = device_memory.min(device.capabilities().device_memory);
        let watch = Rc::clone(&device.watch);
        let part = PartOptions { spare_bytes, ..PartOptions::new(SERVER, Shape { loaded: LOADED }) };
        let server = MemoryServer::new(device, blocks::part(&part), &options, 1).expect("it can be served");
        Self { network, server, watch, now: Instant::ZERO }
    }

    pub fn watch(&self) -> Ref<'_, Watch> {
        self.watch.borrow()
    }

    pub fn watch_mut(&self) -> RefMut<'_, Watch> {
        self.watch.borrow_mut()
    }

    /// The clock goes on, and the server does what is due, as its owner would have it.
    pub fn pass(&mut self, span: Duration) {
        let end = self.now + span;
        let mut timeouts = 0;
        while let Some(at) = self.server.poll_timeout().filter(|at| *at <= end) {
            self.server.handle_timeout(at);
            timeouts += 1;
            assert!(timeouts < 10_000, "the same timeout comes again and again");
        }
        self.now = end;
        self.server.work(end, 100);
    }

    pub fn events(&mut self) -> Vec<Event<Info>> {
        std::iter::from_fn(|| self.server.poll_event()).collect()
    }

    pub fn client(&self) -> Client {
        let mut device = self.network.device();
        let queue_pair = device.create().expect("plain devices have queue pairs without end");
        let roce = device.endpoint(queue_pair).expect("just made").ip;
        device.destroy(queue_pair);
        Client { device, host: 0, roce }
    }

    pub fn open(&mut self, client: &Client) -> Result<SessionKey, Refusal> {
        self.server.open_session(self.now, client.id()).map(|lease| lease.session)
    }

    /// A chunk, where there are no places.
    pub fn allocate(&mut self, session: SessionKey, class: SizeClass) -> Result<Chunk, Refusal> {
        match self.server.allocate(self.now, session, class, 0)? {
            Grant::Chunk(chunk) => Ok(chunk),
            Grant::Blocks(places) => panic!("a chunk was expected: {places:?}"),
        }
    }

    /// A new queue pair of the client's, connected.
    pub fn connect(&mut self, client: &mut Client, session: SessionKey) -> Result<Pair, Refusal> {
        self.reconnect(client, session, None)
    }

    /// The same in the place of another.
    pub fn reconnect(
        &mut self,
        client: &mut Client,
        session: SessionKey,
        replaces: Option<QueuePairNumber>,
    ) -> Result<Pair, Refusal> {
        let here = client.device.create().expect("plain devices have queue pairs without end");
        let local = client.device.endpoint(here).expect("just made");
        let there = match self.server.connect(self.now, session, &local, replaces) {
            Ok(there) => there,
            Err(refusal) => {
                client.device.destroy(here);
                return Err(refusal);
            }
        };
        client.device.connect(here, &there).expect("a good endpoint");
        Ok(Pair { here, local, there: there.queue_pair })
    }

    /// Puts a block of one size into the region, alive or freed, as a client's WRITE would.
    pub fn put(&self, address: GlobalAddress, class: SizeClass, is_free: bool) {
        let block = Block { address, class, version: 1, is_free };
        self.server.memory().write(address.offset(), &block.zeros()).expect("inside of the region");
    }

    /// Uses all of a chunk of 4096 bytes.
    pub fn fill(&self, chunk: GlobalAddress, class: SizeClass) {
        if class == RECORDS {
            let mut record = vec![0; RECORD_HEAD + 4096 - 32];
            write_record(&mut record, 1, 1, UNPUBLISHED, |_| {});
            assert_eq!(place_bytes(4096 - 32), 4096);
            self.server.memory().write(chunk.offset(), &record).expect("inside of the region");
            return;
        }
        let bytes = bytes_of(class);
        (0..4096 / bytes).for_each(|at| self.put(GlobalAddress(chunk.raw() + at * bytes), class, false));
    }

    pub fn counter(&self, name: &str) -> u64 {
        let counters = self.server.statistics();
        counters.iter().find(|(found, _)| found == name).expect("there is such a counter").1
    }
}

/// A client's device, on a host of its own.
pub struct Client {
    pub device: PlainDevice,
    /// Told apart by the last bytes of the host's address.
    pub host: u16,
    pub roce: Ipv4Addr,
}

/// A queue pair and the server's number of its other end.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    pub here: QueuePair,
    pub local: Endpoint,
    pub there: QueuePairNumber,
}

impl Client {
    pub fn on_host(self, host: u16) -> Self {
        Self { host, ..self }
    }

    pub fn id(&self) -> ClientId {
        let [a, b] = self.host.to_be_bytes();
        ClientId { host: IpAddr::V4(Ipv4Addr::new(192, 168, a, b)), roce: self.roce }
    }

    /// Carries out one operation.
    pub fn post(&mut self, pair: Pair, operation: Operation<'_>) -> Result<Output, Failure> {
        let request = WorkRequest { tag: 0, signalled: true, operation };
        self.device.post(pair.here, &[request]).map_err(|_| Failure::Other)?;
        self.device.poll().expect("plain devices complete at once").result
    }

    /// Asks for what the server must refuse: both ends break.
    pub fn break_pair(&mut self, pair: Pair) {
        let nowhere = Remote { address: 0, rkey: 0xdead };
        let refused = self.post(pair, Operation::Read { from: nowhere, len: 8 });
        assert!(refused.is_err());
    }
}
