//! A structure over all memory servers in this process: servers and a client, and no network between them.

use std::future::Future;
use std::net::Ipv4Addr;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use anyhow::Result;
use fatbtree_memserver::{ClientId, Loaded, MemoryServer, Part, ServerOptions};
use fatbtree_remote_memory::session_keeper::{KeeperOptions, SessionKeeper};
use fatbtree_remote_memory::{RemoteConfig, RemoteMemory, Spread};
use fatbtree_verbs::Access;
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::{Duration, Instant};

/// Servers 0, 1, … with parts of a structure, and a client that has opened it.
pub(crate) struct InProcess<S: Spread<Verbs = PlainDevice>, P: Part> {
    servers: Vec<MemoryServer<PlainDevice, P>>,
    memory: Rc<RemoteMemory<PlainDevice>>,
    keeper: SessionKeeper<P::Description>,
    /// The structure; `None` only while it is opened.
    structure: Option<Rc<S>>,
    now: Instant,
}

impl<S: Spread<Verbs = PlainDevice>, P: Part> InProcess<S, P> {
    /// Serves parts, and opens the structure. The client remembers of it what fits into `remembered` bytes.
    pub(crate) fn serve(parts: Vec<Loaded<P>>, remembered: u64) -> Result<Self> {
        let network = PlainNetwork::new();
        // Sessions in one process do not end before it does.
        let lease = Duration::from_secs(1 << 33);
        let options = ServerOptions { access: Access::ALL, lease, ..ServerOptions::writable() };
        let numbers: Vec<u16> = parts.iter().map(|part| part.server).collect();
        let serve = |part| MemoryServer::new(network.device(), part, &options, 1);
        let servers = parts.into_iter().map(serve).collect::<Result<Vec<_>, _>>()?;
        let memory = RemoteMemory::new(network.device(), numbers.into_iter(), RemoteConfig::default(), 1)?;
        let memory = Rc::new(memory);
        let keeper = SessionKeeper::new(memory.connections(), KeeperOptions::default());
        let mut own = Self { servers, memory, keeper, structure: None, now: Instant::ZERO };
        own.open(remembered)?;
        Ok(own)
    }

    /// Opens the structure anew: the client begins with nothing remembered.
    pub(crate) fn open(&mut self, remembered: u64) -> Result<()> {
        // One may be open on a memory.
        self.structure = None;
        let memory = Rc::clone(&self.memory);
        self.structure = Some(Rc::new(self.drive(S::open(memory, 0, remembered))?));
        Ok(())
    }

    /// The structure.
    pub(crate) fn structure(&self) -> Rc<S> {
        Rc::clone(self.structure.as_ref().expect("it was opened at the start"))
    }

    /// Runs a future of the client's to its end.
    pub(crate) fn drive<T>(&mut self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        loop {
            self.memory.turn(self.now);
            // The network numbers its devices in the order in which they were made.
            let roce = Ipv4Addr::from_bits(self.servers.len() as u32);
            let client = ClientId { host: [127, 0, 0, 1].into(), roce };
            self.keeper.pump(self.now, &*self.memory, |server, call| {
                self.servers[usize::from(server)].carry_out(self.now, client, call)
            });
            if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return done;
            }
            // Nothing here takes time; it lets paused operations go on.
            self.now += Duration::from_micros(1);
        }
    }
}
