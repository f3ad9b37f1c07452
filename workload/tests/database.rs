//! What a database asks of a client, against a memory server over plain memory.
#![allow(clippy::unwrap_used, reason = "a test says by failing what is wrong")]

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use fatbtree_blink::{Event, PoolConfig, RemoteSide, Scan, Start, TreeConfig, ValueLayout, value as values};
use fatbtree_blink_client::Client;
use fatbtree_blink_host::{LoadOptions, TreeServer, load_cluster, varying};
use fatbtree_memserver::{ClientId, Grant, ServerOptions, SessionKey};
use fatbtree_verbs::plain::{PlainDevice, PlainNetwork};
use fatbtree_verbs::time::{Duration, Instant};
use fatbtree_workload::measure::Summary;
use fatbtree_workload::ycsb::{KeyMap, Workload, WorkloadSpec, builtin};
use fatbtree_workload::{LoadGenerator, LoopOptions, Values};

const NOW: Instant = Instant::ZERO;
const SERVERS: u16 = 3;

struct Database {
    client: Client<PlainDevice>,
    servers: Vec<(TreeServer<PlainDevice>, SessionKey)>,
    /// Goes on with every turn: what waits for a lock waits for a time.
    now: Instant,
}

impl Database {
    /// With the keys 0, 10, ... 9,990; each has its digits as its value.
    fn new(values: ValueLayout) -> Self {
        let keys: Vec<u64> = (0..1_000).map(|key| key * 10).collect();
        Self::filled(values, &keys, 8, |key, room| room.copy_from_slice(&value(key)))
    }

    /// With these keys, and values of so many bytes that `fill` makes.
    fn filled(values: ValueLayout, keys: &[u64], bytes: u32, mut fill: impl FnMut(u64, &mut [u8])) -> Self {
        let tree = TreeConfig::new(4, 512, values).unwrap();
        let options = LoadOptions { spare_bytes: 64 << 20, ..LoadOptions::new(tree, 0) };
        let mut made = varying(|_| bytes, |key, room: &mut [u8]| fill(key, room));
        let loaded = load_cluster(&options, SERVERS, keys, &mut made).unwrap();
        let network = PlainNetwork::new();
        let config = PoolConfig { tree, ..PoolConfig::default() };
        let client = Client::new(network.device(), config, loaded.roots.clone(), 1).unwrap();
        let pool = client.pool();
        let servers = loaded.serve(&ServerOptions::writable(), 1, |_| network.device()).unwrap();
        let connect = |(connection, mut server): (_, TreeServer<PlainDevice>)| {
            let local = pool.open(connection).unwrap();
            let id = ClientId { host: [127, 0, 0, 1].into(), roce: local.ip };
            let lease = server.open_session(NOW, id).unwrap();
            let endpoint = server.connect(NOW, lease.session, &local, None).unwrap();
            let rkey = server.info().region.rkey;
            pool.set_writer(connection.server, server.info().writer(lease.owner, true).unwrap()).unwrap();
            pool.connected(connection, RemoteSide { endpoint, rkey, registered: false }).unwrap();
            (server, lease.session)
        };
        let servers = pool.connections().into_iter().zip(servers).map(connect).collect();
        Self { client, servers, now: NOW }
    }

    fn run<T>(&mut self, work: impl Future<Output = T>) -> T {
        let client = self.client.clone();
        let mut work = pin!(work);
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(done) = work.as_mut().poll(&mut context) {
                return done;
            }
            while let Some(event) = client.poll_event() {
                let (server, class, bytes) = match event {
                    Event::MemoryWanted { server, class, bytes } => (server, class, bytes),
                    // A run has ended in the middle of an operation: the next one takes its locks back.
                    Event::Unfinished { .. } => continue,
                    event => panic!("{event:?}"),
                };
                let (memory, session) = &mut self.servers[usize::from(server)];
                let Grant::Chunk(chunk) = memory.allocate(NOW, *session, class, bytes).unwrap() else {
                    panic!("no places were given back")
                };
                client.pool().grant(session.id, chunk.address, chunk.bytes, class);
            }
            self.now += Duration::from_micros(1);
            client.turn(self.now);
        }
    }
}

fn value(key: u64) -> [u8; 8] {
    format!("{key:08}").into_bytes().try_into().unwrap()
}

async fn pairs(mut scan: Scan<'_, PlainDevice>) -> Vec<(u64, Vec<u8>)> {
    let mut pairs = Vec::new();
    while let Some(pair) = scan.next().await {
        let (key, value) = pair.unwrap();
        pairs.push((key, value.to_vec()));
    }
    pairs
}

#[test]
fn every_operation_does_what_it_says() {
    for values in [ValueLayout::Inline(8), ValueLayout::OutOfLine] {
        let mut database = Database::new(values);
        let client = database.client.clone();
        let mut model: BTreeMap<u64, Vec<u8>> =
            (0..1_000).map(|key| (key * 10, value(key * 10).to_vec())).collect();
        database.run(async {
            assert_eq!(client.get(20).await.unwrap().as_deref(), Some(&value(20)[..]));
            assert_eq!(client.get(21).await.unwrap().as_deref(), None);

            assert!(
                !client.insert(20, &value(1)).await.unwrap() && client.insert(21, &value(1)).await.unwrap()
            );
            assert!(
                !client.update(22, &value(2)).await.unwrap() && client.update(21, &value(2)).await.unwrap()
            );
            client.upsert(22, &value(3)).await.unwrap();
            client.upsert(22, &value(4)).await.unwrap();
            assert!(!client.compare_and_set(22, &value(3), &value(5)).await.unwrap());
            assert!(client.compare_and_set(22, &value(4), &value(5)).await.unwrap());
            assert!(!client.compare_and_set(23, &value(4), &value(5)).await.unwrap());
            assert!(client.delete(30).await.unwrap() && !client.delete(30).await.unwrap());
        });
        model.remove(&30);
        model.extend([(21, value(2).to_vec()), (22, value(5).to_vec())]);
        // So many that nodes are split in all partitions, and then merged in one.
        database.run(async {
            for key in (0..10_000).filter(|key| key % 10 == 7) {
                client.upsert(key, &value(key)).await.unwrap();
            }
            for key in (50..2_000).filter(|key| key % 10 == 0 || key % 10 == 7) {
                assert!(client.delete(key).await.unwrap());
            }
        });
        model.retain(|key, _| *key < 50 || *key >= 2_000);
        let inserted = (0..10_000).filter(|key| key % 10 == 7 && (*key < 50 || *key >= 2_000));
        model.extend(inserted.map(|key| (key, value(key).to_vec())));

        let (all, some, back, last, batch, len, verified) = database.run(async {
            (
                pairs(client.scan(..)).await,
                pairs(client.scan(15..=40)).await,
                pairs(client.scan_backward(15..40)).await,
                pairs(client.scan(9_990..)).await,
                client.get_batch(&[9_990, 5, 21]).await.unwrap(),
                client.len().await.unwrap(),
                client.verify().await.unwrap(),
            )
        });
        assert!(all == Vec::from_iter(model.clone()));
        let of = |range: std::ops::Range<u64>| model.range(range).map(|(&key, found)| (key, found.clone()));
        assert_eq!(some, of(15..41).collect::<Vec<_>>());
        assert_eq!(back, of(15..40).rev().collect::<Vec<_>>());
        assert_eq!(last, of(9_990..u64::MAX).collect::<Vec<_>>());
        assert_eq!(batch, [Some(value(9_990).to_vec()), None, Some(value(2).to_vec())]);
        assert_eq!((len, verified.keys), (model.len() as u64, model.len() as u64));
        assert_eq!((verified.partitions, verified.untold, verified.unsettled), (SERVERS.into(), 0, 0));
        let stats = client.pool().stats();
        assert!(stats.splits > 30 && stats.merges > 3, "{stats:?}");
    }
}

const RECORDS: u64 = 300;
const BYTES: usize = 24;

impl Database {
    /// A run of a workload among others; `run` is its number.
    fn bench(&mut self, workload: &str, run: u64) -> Summary {
        let mut properties = builtin(workload).unwrap();
        properties.set("recordcount", &RECORDS.to_string());
        let spec = WorkloadSpec::from_properties(&properties).unwrap();
        let workload = Workload::new(&spec, KeyMap::Hashed, 1).unwrap();
        let mut workload = workload.inserting_from(run << 31);
        let options = LoopOptions { start: Start::Root, depth: 8 };
        let (mut done, client) = (LoadGenerator::new(), self.client.clone());
        let values = Values::new(5, BYTES).with_keys(loaded_keys().into()).among_others(run << 40);
        self.run(done.run(&client, &mut workload, 2_000, options, &values)).unwrap();
        done.summary(&client)
    }
}

fn loaded_keys() -> Vec<u64> {
    let mut keys: Vec<u64> = (0..RECORDS).filter_map(|record| KeyMap::Hashed.key(record)).collect();
    keys.sort_unstable();
    keys
}

/// What one run has written the next does not know; it finds out by the values.
#[test]
fn runs_follow_one_another_and_damage_is_found_all_the_same() {
    for layout in [ValueLayout::Inline(BYTES as u8), ValueLayout::OutOfLine] {
        let keys = loaded_keys();
        let mut database =
            Database::filled(layout, &keys, BYTES as u32, |key, room| values::fill(key, 5, room));
        // Updates, inserts of the same workload again and again, scans over all of them.
        for (run, workload) in (1..).zip(["a", "b", "a", "d", "d", "e", "e", "f", "c"]) {
            let summary = database.bench(workload, run);
            let sums = (summary.operations, summary.wrong_answers, summary.not_found, summary.failed);
            assert_eq!(sums, (2_000, 0, 0, 0), "run {run} of {workload}");
        }
        // What no run has written.
        let (client, hot) = (database.client.clone(), KeyMap::Hashed.key(0).unwrap());
        let mut stamped = [0; BYTES];
        values::stamp(hot, 4711, &mut stamped);
        let mut other_keys = [0; BYTES];
        values::stamp(keys[7], 4711, &mut other_keys);
        let mut damaged = stamped;
        damaged[BYTES - 1] ^= 0x80;
        for (bad, what) in [(other_keys, "another key's"), (damaged, "damaged"), ([0; BYTES], "zeros")] {
            assert!(database.run(client.update(hot, &bad)).unwrap());
            assert!(database.bench("c", 20).wrong_answers > 0, "{what}");
            assert!(database.bench("e", 21).wrong_answers > 0, "{what}");
        }
        assert!(database.run(client.update(hot, &stamped)).unwrap());
        assert_eq!(database.bench("c", 22).wrong_answers, 0);
        assert!(database.run(client.delete(hot)).unwrap());
        assert!(database.bench("c", 23).not_found > 0);
    }
}
