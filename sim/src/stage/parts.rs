//! Parts of a structure on plain devices, which carry out every request at once: for tests of what a load has laid out.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::Ipv4Addr;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use fatbtree_memserver::{ClientId, Loaded, MemoryServer, Part, ServerOptions};
use fatbtree_remote_memory::session_keeper::{KeeperOptions, SessionKeeper};
use fatbtree_remote_memory::{RemoteConfig, RemoteMemory, Spread};
use fatbtree_verbs::Access;
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::{Duration, Instant};

/// Blocks that a server reads between two turns of its client.
const BUDGET: usize = 64;

/// Serves parts, and runs something with the structure that a client opens, or with the reason for which it cannot.
///
/// # Panics
/// When a part cannot be served.
pub fn with_parts<S: Spread<Verbs = PlainDevice>, P: Part, F: Future>(
    parts: Vec<Loaded<P>>,
    chunk_bytes: u64,
    work: impl FnOnce(Result<S, S::Error>) -> F,
) -> F::Output {
    let network = PlainNetwork::new();
    let options = ServerOptions { access: Access::ALL, chunk_bytes, ..ServerOptions::writable() };
    let serve = |part| MemoryServer::new(network.device(), part, &options, 1).expect("it can be served");
    let mut servers: BTreeMap<u16, _> = parts.into_iter().map(|part| (part.server, serve(part))).collect();
    let memory = RemoteMemory::new(network.device(), servers.keys().copied(), RemoteConfig::default(), 1);
    let memory = Rc::new(memory.expect("there are lanes"));
    let mut keeper = SessionKeeper::new(memory.connections(), KeeperOptions::default());
    let roce = Ipv4Addr::from_bits(servers.len() as u32);
    let client = ClientId { host: [127, 0, 0, 1].into(), roce };
    let home = *servers.keys().next().expect("there is a server");
    let of = Rc::clone(&memory);
    let mut running = pin!(async move { work(S::open(of, home, S::REMEMBERED).await).await });
    let mut now = Instant::ZERO;
    loop {
        memory.turn(now);
        keeper.pump(now, &*memory, |server, call| {
            servers.get_mut(&server).expect("it is one of them").carry_out(now, client, call)
        });
        for server in servers.values_mut() {
            server.work(now, BUDGET);
        }
        if let Poll::Ready(done) = running.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            return done;
        }
        now += Duration::from_micros(1);
    }
}
