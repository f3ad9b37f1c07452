//! Trees that were loaded, and then written to by a client: over plain memory, without a network.

use std::future::Future as _;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use fatbtree_blink::{
    Change, Event, GlobalAddress, Owner, Pool, PoolConfig, RemoteSide, SessionId, Start, SuperRoot,
    Superblock, TreeConfig, ValueLayout, Writer,
};
use fatbtree_blink_host::{Cluster, LoadOptions, fixed, load_ranges};
use fatbtree_verbs::plain::PlainNetwork;
use fatbtree_verbs::{Access, Device as _, Memory, Region, Remote};

pub(crate) type Failure = Box<dyn std::error::Error>;

const CHUNK: u64 = 8 << 20;
const LOCKS: u32 = 1 << 17;
/// Session of the only client.
const SESSION: SessionId = SessionId(1);

/// Shape with as many keys in a leaf as the default shape, and no records.
pub(crate) fn shape() -> Result<TreeConfig, Failure> {
    let config = TreeConfig::new(16, 1024, ValueLayout::Inline(12))?;
    assert_eq!(config.leaf_capacity(), TreeConfig::default().leaf_capacity());
    Ok(config)
}

/// Loads ascending keys, and then inserts others in the order in which they are.
pub(crate) fn grow(lows: &[u64], loaded: &[u64], inserted: &[u64]) -> Result<Cluster, Failure> {
    let config = shape()?;
    let spare_bytes = if inserted.is_empty() { 0 } else { 4 * CHUNK + 128 * inserted.len() as u64 };
    let options = LoadOptions { spare_bytes, ..LoadOptions::new(config, 0) };
    let mut cluster = load_ranges(&options, lows, loaded, &mut fixed(12, |_, _| {}))?;
    if !inserted.is_empty() {
        insert(&cluster, config, inserted)?;
        find_roots(&mut cluster)?;
    }
    Ok(cluster)
}

fn insert(cluster: &Cluster, config: TreeConfig, keys: &[u64]) -> Result<(), Failure> {
    let network = PlainNetwork::new();
    let config = PoolConfig { tree: config, ..PoolConfig::default() };
    let pool = Pool::new(network.device(), config, cluster.roots.clone(), 1)?;
    let mut spare: Vec<u64> = Vec::new();
    for (id, tree) in pool.connections().into_iter().zip(&cluster.trees) {
        let mut server = network.device();
        let all = server.register(&tree.region, GlobalAddress::new(id.server, 0).raw(), Access::ALL)?;
        let locks = server.register(&Memory::shared(u64::from(LOCKS) * 2)?, 0, Access::ALL)?;
        let owners = server.register(&Memory::shared(8192)?, 0, Access::READ)?;
        let remote = |region: Region| Remote { address: region.iova, rkey: region.rkey };
        let (locks, owners) = (remote(locks), remote(owners));
        let owner = Owner { session: SESSION, number: 1 };
        pool.set_writer(
            id.server,
            Writer { locks, owners, count: LOCKS, owner, masked_atomics: true, syncs: false },
        )?;
        let local = pool.open(id)?;
        let queue_pair = server.create()?;
        server.connect(queue_pair, &local)?;
        let endpoint = server.endpoint(queue_pair)?;
        pool.connected(id, RemoteSide { endpoint, rkey: all.rkey, registered: false })?;
        spare.push(tree.spare.start.next_multiple_of(64));
    }
    for &key in keys {
        let mut change = pin!(pool.mutate(key, Change::Upsert(&[0; 12]), Start::Root));
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(change) = change.as_mut().poll(&mut context) {
                change.result?;
                break;
            }
            while let Some(event) = pool.poll_event() {
                let Event::MemoryWanted { server, class, .. } = event else {
                    return Err(format!("{event:?}").into());
                };
                let next = &mut spare[usize::from(server)];
                pool.grant(SESSION, GlobalAddress::new(server, *next), CHUNK, class);
                *next += CHUNK;
            }
            pool.turn(pool.reactor().now());
        }
    }
    Ok(())
}

/// Updates the roots to their present places.
fn find_roots(cluster: &mut Cluster) -> Result<(), Failure> {
    for tree in &mut cluster.trees {
        let mut line = [0; 64];
        tree.region.read(0, &mut line)?;
        tree.partition = Superblock::parse(&line)?.partition;
    }
    let partitions = cluster.trees.iter().map(|tree| tree.partition).collect();
    cluster.roots = SuperRoot::new(partitions)?;
    Ok(())
}
