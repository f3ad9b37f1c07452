//! Cost of keeping a tree in a folder: gets and puts by a client in this process, without a network, and the
//! start of a server.
//!
//! ```text
//! cargo run --release -p fatbtree-blink-host --example folder_cost -- 1000000 200000
//! ```
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "it measures")]

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use fatbtree_blink::{
    Change, Event, Integrity, Pool, PoolConfig, RemoteSide, Start, SuperRoot, TreeConfig, ValueLayout,
};
use fatbtree_blink_host::{Load, LoadOptions, TreeFolder, TreeStorage, build_in, seeded, tree_in};
use fatbtree_memserver::{ClientId, FolderOwner, MemoryServer, ServerOptions};
use fatbtree_verbs::plain::PlainNetwork;
use fatbtree_verbs::time;

const VALUE: usize = 100;

fn open(path: &Path) -> TreeStorage {
    let owner = FolderOwner { server: "left".to_owned(), partition: 0, address: Ipv4Addr::LOCALHOST };
    TreeStorage::Folder(TreeFolder::open(path, owner, ServerOptions::default().chunk_bytes).unwrap().into())
}

/// Nanoseconds of a get and of a put.
fn costs(storage: &mut TreeStorage, integrity: Integrity, keys: u64, operations: u64) -> [f64; 2] {
    let config = TreeConfig::with_integrity(16, 1024, ValueLayout::OutOfLine, integrity).unwrap();
    let all: Vec<u64> = (0..keys).collect();
    let options = LoadOptions { spare_bytes: 1 << 30, ..LoadOptions::new(config, 0) };
    let tree =
        build_in(storage, &options, u64::MAX, Load::Numbers(&all, &mut seeded(1, VALUE as u32))).unwrap();
    storage.keep(tree.kept()).unwrap();
    let network = PlainNetwork::new();
    let roots = SuperRoot::new(vec![tree.partition]).unwrap();
    let mut server = MemoryServer::new(network.device(), tree, &ServerOptions::writable(), 1).unwrap();
    let pool_config = PoolConfig { tree: config, ..PoolConfig::default() };
    let pool = Pool::new(network.device(), pool_config, roots, 1).unwrap();
    let (id, now) = (pool.connections()[0], time::Instant::ZERO);
    let local = pool.open(id).unwrap();
    let client = ClientId { host: IpAddr::V4(Ipv4Addr::LOCALHOST), roce: local.ip };
    let lease = server.open_session(now, client).unwrap();
    pool.set_writer(0, server.info().writer(lease.owner, true).unwrap()).unwrap();
    let endpoint = server.connect(now, lease.session, &local, None).unwrap();
    pool.connected(id, RemoteSide { endpoint, rkey: server.info().region.rkey, registered: false }).unwrap();
    let key = |at: u64| at.wrapping_mul(0x9e37_79b9_7f4a_7c15) % keys;

    let began = Instant::now();
    for at in 0..operations {
        let found = pool.reactor().block_on(pool.lookup(key(at), Start::Root)).result.unwrap();
        assert!(found.is_some());
    }
    let get = began.elapsed().as_nanos() as f64 / operations as f64;
    let began = Instant::now();
    for at in 0..operations {
        let value = [at as u8; VALUE];
        let mut put = pin!(pool.mutate(key(at), Change::Upsert(&value), Start::Root));
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(done) = put.as_mut().poll(&mut context) {
                done.result.unwrap();
                break;
            }
            pool.turn(now);
            while let Some(Event::MemoryWanted { server: from, class, bytes }) = pool.poll_event() {
                let grant = server.allocate(now, lease.session, class, bytes).unwrap();
                grant.hand_to(&pool, from, lease.session.id);
            }
        }
    }
    [get, began.elapsed().as_nanos() as f64 / operations as f64]
}

fn main() {
    let mut numbers = std::env::args().skip(1).map(|word| word.parse().unwrap());
    let (keys, operations) = (numbers.next().unwrap_or(1_000_000), numbers.next().unwrap_or(200_000));
    println!("{keys} keys, {operations} gets and puts of {VALUE} bytes, nanoseconds each (three runs)");
    for _ in 0..3 {
        let folder = tempfile::tempdir().unwrap();
        let [get, put] = costs(&mut TreeStorage::Memory, Integrity::LineVersions, keys, operations);
        println!("memory, line versions   get {get:>6.0}  put {put:>6.0}");
        let [get, put] = costs(&mut TreeStorage::Memory, Integrity::Checksums, keys, operations);
        println!("memory, checksums       get {get:>6.0}  put {put:>6.0}");
        let [get, put] = costs(&mut open(folder.path()), Integrity::Checksums, keys, operations);
        println!("folder, checksums, log  get {get:>6.0}  put {put:>6.0}");
        let TreeStorage::Folder(folder) = open(folder.path()) else { unreachable!("it is one") };
        let began = Instant::now();
        let tree = tree_in(&folder).unwrap().unwrap();
        let nodes = tree.counts.leaf_nodes + tree.counts.internal_nodes;
        println!("start: {nodes} nodes checked in {:.3} s", began.elapsed().as_secs_f64());
    }
}
