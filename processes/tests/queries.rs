//! A memory server with both kinds of clients on it, over loopback, in threads of this process: what all of them were answered must be
//! explained by one order of what happened.
#![allow(clippy::unwrap_used, reason = "a test says by failing what is wrong")]

mod common;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use common::{cluster, own_address};
use fatbtree_blink::{Change, Start, TreeConfig, value};
use fatbtree_blink_client::{Client, QueryClient};
use fatbtree_port::PortSpec;
use fatbtree_processes::{
    Adapter, ClientOptions, ClientProcess, MemoryServerOptions, MemoryServerProcess, NicSpec,
    QueryClientOptions, QueryClientProcess, QueryOptions, QueryWay, TreeSource, roster_of,
};
use fatbtree_query::{Answer as Said, Ask};
use fatbtree_sim::history::{Answer, Call, History};
use fatbtree_trust::Trust;
use fatbtree_verbs::time::Instant;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

const KEYS: u64 = 600;
const SEED: u64 = 42;
const TASKS: u64 = 12;
const OPERATIONS: u64 = 400;

fn key_of(number: u64) -> u64 {
    number * 0x0004_0000_0000_0003
}

fn first(key: u64) -> u64 {
    let mut bytes = [0; 16];
    value::fill(key, SEED, &mut bytes);
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

/// A value is a word, twice.
fn value_of(word: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&word.to_le_bytes());
    bytes[8..].copy_from_slice(&word.to_le_bytes());
    bytes
}

fn word_of(key: u64, bytes: &[u8]) -> u64 {
    let word = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert!(word == first(key) || bytes == value_of(word), "half of one value, half of another");
    word
}

/// Numbers calls and answers of all threads.
static ORDER: AtomicU64 = AtomicU64::new(0);
static WORDS: AtomicU64 = AtomicU64::new(1);

fn next(of: &AtomicU64) -> u64 {
    of.fetch_add(1, Ordering::SeqCst)
}

struct Entry {
    client: &'static str,
    asked: u64,
    key: u64,
    call: Call,
    answer: Option<(u64, Answer)>,
}

type Log = RefCell<Vec<Entry>>;

fn draw(random: &mut ChaCha8Rng) -> (u64, Call) {
    // Half of all operations are about a few keys.
    let most = if random.random_bool(0.5) { 20 } else { KEYS };
    let word = next(&WORDS);
    let call = match random.random_range(0..8) {
        0..3 => Call::Get,
        3..5 => Call::Upsert(word),
        5 => Call::Update(word),
        _ => Call::Delete,
    };
    (key_of(random.random_range(0..most)), call)
}

fn ask(log: &Log, client: &'static str, key: u64, call: Call) -> usize {
    let mut log = log.borrow_mut();
    log.push(Entry { client, asked: next(&ORDER), key, call, answer: None });
    log.len() - 1
}

fn answer(log: &Log, entry: usize, answer: Answer) {
    log.borrow_mut()[entry].answer = Some((next(&ORDER), answer));
}

async fn by_rdma(client: &Client<Adapter>, log: &Log, seed: u64) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    for _ in 0..OPERATIONS {
        let (key, call) = draw(&mut random);
        let asked = ask(log, "RDMA", key, call);
        let bytes = |word| value_of(word);
        let applied = match call {
            Call::Get => {
                let found = client.lookup(key, Start::Root).await.result.unwrap();
                answer(log, asked, Answer::Found(found.map(|value| word_of(key, &value))));
                continue;
            }
            Call::Update(word) => {
                client.starting(Start::Root).mutate(key, Change::Update(&bytes(word))).await
            }
            Call::Delete => client.starting(Start::Root).mutate(key, Change::Delete).await,
            Call::Upsert(word) | Call::Insert(word) | Call::CompareAndSet { new: word, .. } => {
                client.starting(Start::Root).mutate(key, Change::Upsert(&bytes(word))).await
            }
        };
        answer(log, asked, Answer::of(applied.result.unwrap()));
    }
}

async fn by_query(client: &QueryClient, log: &Log, seed: u64) {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    for _ in 0..OPERATIONS {
        let (key, call) = draw(&mut random);
        let asked = ask(log, "query", key, call);
        let bytes = |word| value_of(word).to_vec();
        let said = client.ask(match call {
            Call::Get => Ask::get(key),
            Call::Update(word) => Ask::update(key, bytes(word)),
            Call::Delete => Ask::delete(key),
            Call::Upsert(word) | Call::Insert(word) | Call::CompareAndSet { new: word, .. } => {
                Ask::put(key, bytes(word))
            }
        });
        match (said.await, call) {
            (Said::Value(value), Call::Get) => answer(log, asked, Answer::Found(Some(word_of(key, &value)))),
            (Said::NotFound, Call::Get) => answer(log, asked, Answer::Found(None)),
            (Said::NotFound, _) => answer(log, asked, Answer::NotApplied),
            (Said::Written, _) => answer(log, asked, Answer::Applied),
            // A machine that is busy with something else.
            (Said::Unknown | Said::Lost, _) => {}
            (other, _) => panic!("{call:?} of {key}: {other:?}"),
        }
    }
}

/// All threads' calls and answers, in their order.
fn check(entries: Vec<Entry>) -> usize {
    let history = History::default();
    history.begin_with((0..KEYS).step_by(2).map(key_of).map(|key| (key, first(key))));
    let mut events = BTreeMap::new();
    for (place, entry) in entries.iter().enumerate() {
        events.insert(entry.asked, (place, None));
        if let Some((order, answer)) = entry.answer {
            events.insert(order, (place, Some(answer)));
        }
    }
    let mut ids = BTreeMap::new();
    for (order, (place, answer)) in events {
        let (entry, at) = (&entries[place], Instant::from_nanos(order));
        match answer {
            None => _ = ids.insert(place, history.ask(entry.client, at, entry.key, entry.call)),
            Some(answer) => history.answer(ids[&place], at, answer),
        }
    }
    history.check().unwrap_or_else(|violation| panic!("{violation}")).answered
}

#[test]
fn rdma_and_queries_on_one_tree_are_explained_by_one_order() {
    let cluster = cluster();
    let (described, client) = (cluster.servers()[0].clone(), cluster.clients()[0].clone());
    let [here, there] = [own_address(), own_address()].map(|address| address.parse().unwrap());
    let patience = Duration::from_secs(30);
    let options = MemoryServerOptions {
        servers: cluster.servers().to_vec(),
        host: cluster.tree().host(described.host).clone(),
        nic: NicSpec::Software(PortSpec::Udp { local: there, remote: here }),
        controllers: Vec::new(),
        trust: Trust::default(),
        roster: roster_of(&cluster),
        metrics: None,
        structure: TreeSource {
            keys: (0..KEYS).step_by(2).map(key_of).collect(),
            value_bytes: 16,
            seed: SEED,
            config: TreeConfig::default(),
            spare_bytes: 256 << 20,
            region_bytes: 1 << 30,
            queries: Some(QueryOptions {
                address: described.query.clone(),
                workers: 2,
                servers: vec![(0, described.partition)],
                cache_bytes: 1 << 20,
                secret: None,
            }),
        },
        data: None,
        sync: None,
        limit: None,
        described: described.clone(),
    };
    let (entries, verified, report, calls) = std::thread::scope(|scope| {
        let (ready, is_ready) = mpsc::channel();
        let server = scope.spawn(move || {
            let process = MemoryServerProcess::open(options).unwrap();
            ready.send(process.stopper()).unwrap();
            process.run(|_| ())
        });
        let stopper = is_ready.recv().unwrap();
        let queries = scope.spawn(|| {
            let options = QueryClientOptions {
                way: QueryWay::of(&cluster, cluster.clients()[0].host).unwrap(),
                root_to_leaf: false,
                servers: vec![described.clone()],
                lanes: 2,
                trust: Trust::default(),
                metrics: None,
                patience,
            };
            let mut process = QueryClientProcess::open(&options).unwrap();
            let (client, log) = (process.client().clone(), Log::default());
            let tasks = (0..TASKS).map(|seed| by_query(&client, &log, 100 + seed));
            process.run(all(tasks)).unwrap();
            let calls = process.datagrams().calls;
            drop((process, client));
            (log.into_inner(), calls)
        });
        let (host, nic) =
            (cluster.tree().host(client.host).clone(), PortSpec::Udp { local: here, remote: there });
        let servers = std::slice::from_ref(&described);
        let options = ClientOptions { patience, ..ClientOptions::new(host, NicSpec::Software(nic), servers) };
        let mut process = ClientProcess::open(&options).unwrap();
        let (client, log) = (process.client().clone(), Log::default());
        let tasks = (0..TASKS).map(|seed| by_rdma(&client, &log, seed));
        process.run(all(tasks)).unwrap();
        let (asked, calls) = queries.join().unwrap();
        let verified = process.run(async { client.verify().await }).unwrap().unwrap();
        process.close();
        stopper.stop();
        let report = server.join().unwrap();
        let mut entries = log.into_inner();
        entries.extend(asked);
        (entries, verified, report.unwrap().queries.unwrap(), calls)
    });
    let answered = check(entries);
    assert!(answered as u64 > 2 * TASKS * OPERATIONS * 9 / 10, "{answered} answers");
    assert!(verified.keys > 0 && report.requests > TASKS * OPERATIONS * 9 / 10, "{report}");
    assert_eq!((report.damaged, report.redirected), (0, 0), "{report}");
    println!("{answered} answers; {report}; {calls} system calls of the client");
}

/// All of them, at the same time.
async fn all<F: Future<Output = ()>>(tasks: impl Iterator<Item = F>) {
    let mut tasks: Vec<_> = tasks.map(Box::pin).collect();
    std::future::poll_fn(|context| {
        tasks.retain_mut(|task| task.as_mut().poll(context).is_pending());
        if tasks.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}
