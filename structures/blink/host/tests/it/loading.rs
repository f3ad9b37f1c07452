//! Servers that are filled while they run, over gRPC.
use crate::common;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use common::lab::options;
use common::service::{Service, soon};
use fatbtree_blink::layers::KeyCode;
use fatbtree_blink::{KeyRange, Keys, LeafKind, TreeConfig, ValueLayout, value};
use fatbtree_blink_host::grpc::{
    LoadTreesError, Loading, TreeCalls, load_empty, load_servers, load_servers_bytes, proto as tree,
};
use fatbtree_blink_host::{
    BytePairs, Layout, LoadError, LoadOptions, TreeEvent, TreeInfo, TreeServerInfo, bulk_load, seeded,
};
use fatbtree_memserver::grpc::proto::load_request::What;
use fatbtree_memserver::grpc::proto::loader_client::LoaderClient;
use fatbtree_memserver::grpc::{LoadData, LoadProgress, LoadServersError, ServiceOptions, proto};
use fatbtree_memserver::{Origin, ServerOptions, grpc};
use fatbtree_remote_memory::SessionId;
use fatbtree_remote_memory::session_keeper::{Call, Granted};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

/// The client's address on the data path.
const ROCE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);

async fn open(client: &mut grpc::Client, known: Option<u64>) -> Result<SessionId, grpc::ClientError> {
    match client.call::<TreeInfo>(ROCE, Call::Open { known }).await? {
        Granted::Opened(opened) => Ok(opened.session),
        other => panic!("a session is opened: {other:?}"),
    }
}

/// The layout that the tree has.
const AS_BEFORE: Layout = Layout { values: None, leaves: None, keys: None, code: None };

const STALL: Duration = Duration::from_millis(300);

struct Data(Vec<u64>);

impl LoadData for Data {
    fn keys(&self) -> &[u64] {
        &self.0
    }

    fn length(&self, at: usize) -> u32 {
        8 + (at % 5000) as u32
    }

    fn append(&self, at: usize, to: &mut Vec<u8>) {
        let from = to.len();
        to.resize(from + self.length(at) as usize, 0);
        value::fill(self.0[at], 1, &mut to[from..]);
    }
}

fn data(keys: u64) -> Arc<dyn LoadData> {
    Arc::new(Data((0..keys).map(|key| key * 3 + 1).collect()))
}

/// A server that begins empty.
async fn server(partition: u16, range: KeyRange) -> Service {
    let config = TreeConfig::new(16, 1024, ValueLayout::OutOfLine).unwrap();
    let load = LoadOptions { range, spare_bytes: 64 << 10, ..LoadOptions::new(config, partition) };
    let tree = bulk_load(&load, &[], &mut seeded(0, 8)).unwrap();
    let loading =
        Loading { spare_bytes: 64 << 10, region_bytes: 32 << 20, stall: STALL, ..Loading::in_memory() };
    let server = ServerOptions { chunk_bytes: 4096, ..options() };
    let service = ServiceOptions { answer: Duration::from_millis(500), ..ServiceOptions::default() }.into();
    Service::start_with(tree, server, service, Some(loading)).await
}

async fn pair() -> [Service; 2] {
    let half = KeyRange { low: 0, high: Some(1 << 63) };
    [server(0, half).await, server(1, KeyRange { low: 1 << 63, high: None }).await]
}

async fn clients(services: &[Service]) -> Vec<(u16, grpc::Client)> {
    let mut clients = vec![];
    for (number, service) in (0..).zip(services) {
        clients.push((number, service.client().await));
    }
    clients
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_are_filled_and_their_sessions_end() {
    let mut services = pair().await;
    let mut client = services[0].client().await;
    let session = open(&mut client, None).await.unwrap();
    let before = client.info::<TreeInfo>().await.unwrap();
    assert_eq!((before.counts.keys, before.partition.root_level, before.generation), (0, 0, 1));
    assert_eq!(client.snapshot().await.unwrap().nodes, [], "the root is a leaf");
    let (mut sent, mut built) = (0, 0);
    let infos = load_servers(clients(&services).await, data(5001), AS_BEFORE, |progress| match progress {
        LoadProgress::Sent(keys) => sent += keys,
        LoadProgress::Built(servers) => built = servers,
    });
    let infos: Vec<TreeServerInfo> = infos.await.unwrap();
    assert_eq!((sent, built), (5001, 2));
    assert_eq!([infos[0].counts.keys, infos[1].counts.keys], [2500, 2501]);
    assert!(infos.iter().all(|info| info.generation == 2 && info.partition.root_level > 0));
    let border = infos[1].partition.range.low;
    assert!((2499 * 3 + 2..=2500 * 3 + 1).contains(&border), "{border}");
    assert_eq!(infos[0].partition.range.high, Some(border));
    fatbtree_blink_host::grpc::super_root(&infos).unwrap();

    assert_eq!(client.info::<TreeInfo>().await.unwrap(), infos[0]);
    assert_ne!(before.region.rkey, infos[0].region.rkey);
    assert!(client.call::<TreeInfo>(ROCE, Call::Sync { session }).await.unwrap_err().session_has_ended());
    let top = client.snapshot().await.unwrap();
    assert_eq!(top.nodes.len() as u64, infos[0].counts.internal_nodes);
    // Again, with others.
    let infos = load_servers(clients(&services).await, data(2), AS_BEFORE, |_| {}).await.unwrap();
    assert!(infos.iter().all(|info| (info.counts.keys, info.generation) == (1, 3)));
    let statistics = client.statistics().await.unwrap();
    assert!(statistics.contains(&("reloads".to_owned(), 2)), "{statistics:?}");
    let told = services[0].stop_data_path();
    let mut trees = told.iter().filter(|event| matches!(event, TreeEvent::Reloaded { .. }));
    let last = TreeEvent::Reloaded { structure: infos[0].structure, generation: 3 };
    assert_eq!(trees.next_back(), Some(&last));
}

/// Each load has the layout that it asks for, and otherwise the one that the load before had.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_changes_the_layout_and_the_next_one_keeps_it() {
    let services = pair().await;
    let mut config = TreeConfig::new(16, 1024, ValueLayout::OutOfLine).unwrap();
    let (values, leaves) = (Some(ValueLayout::ByLength(32)), Some(LeafKind::Buckets));
    for layout in [
        Layout { values: Some(ValueLayout::SHORT), leaves: None, keys: None, code: None },
        AS_BEFORE,
        Layout { values, leaves, keys: None, code: None },
        AS_BEFORE,
        Layout { values: None, leaves: Some(LeafKind::Plain), keys: None, code: None },
        Layout { values: Some(ValueLayout::OutOfLine), leaves: None, keys: None, code: None },
    ] {
        config = layout.after(&config).unwrap();
        // Values have 8 bytes and more.
        let loaded = load_servers(clients(&services).await, data(100), layout, |_| {}).await.unwrap();
        for info in loaded {
            assert_eq!((info.config, info.counts.keys), (config, 50));
        }
    }
    let empty = load_empty(
        services[0].client().await,
        KeyRange::of(..9),
        Layout { values, leaves: None, keys: None, code: None },
    );
    assert_eq!(empty.await.unwrap().config.values(), ValueLayout::ByLength(32));
    // No leaf of buckets has room for these: said before anything is sent, and nothing has changed.
    let before = services[1].handle.info().await.unwrap();
    let wide = Layout { values: Some(ValueLayout::ByLength(64)), leaves, keys: None, code: None };
    let refused = load_servers(clients(&services).await, data(100), wide, |_| {}).await.unwrap_err();
    assert!(refused.to_string().contains("choose plain leaves"), "{refused}");
    assert_eq!(services[1].handle.info().await.unwrap(), before);
}

fn word(what: What) -> proto::LoadRequest {
    proto::LoadRequest { what: Some(what) }
}

fn begin_at(server: u32, begin: &tree::LoadBegin) -> proto::LoadRequest {
    word(What::Begin(proto::LoadBegin { server, announced: begin.encode_to_vec() }))
}

fn begin(keys: u64, value_bytes: u64) -> proto::LoadRequest {
    let (low_key, high_key, empty) = (0, None, false);
    begin_at(0, &tree::LoadBegin { low_key, high_key, keys, value_bytes, empty, ..Default::default() })
}

/// An empty tree, with keys.
fn empty(keys: u64) -> proto::LoadRequest {
    let (low_key, high_key, value_bytes, empty) = (0, None, 0, true);
    begin_at(0, &tree::LoadBegin { low_key, high_key, keys, value_bytes, empty, ..Default::default() })
}

/// Its client says so, and an operator that this is meant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_has_lost_its_tree_is_loaded_with_an_empty_one() {
    let service = server(0, KeyRange::ALL).await;
    let mut client = service.client().await;
    let before = client.info::<TreeInfo>().await.unwrap();
    assert_eq!(before.origin, Origin::Begun);
    open(&mut client, Some(before.generation)).await.unwrap();
    for known in [Some(4711), None] {
        let lost = open(&mut client, known).await.unwrap_err();
        assert!(lost.has_lost() && lost.is_final(), "{lost}");
        assert!(lost.to_string().contains("has lost what it held"), "{lost}");
    }
    assert_eq!(client.info::<TreeInfo>().await.unwrap().origin, Origin::Lost);
    let range = KeyRange { high: Some(700), ..before.partition.range };
    let info = load_empty(client.clone(), range, AS_BEFORE).await.unwrap();
    let counts = (info.counts.keys, info.origin, info.generation);
    assert_eq!(counts, (0, Origin::Meant, before.generation + 1));
    assert_eq!(info.partition.range, range);
    open(&mut client, Some(4711)).await.unwrap();
}

fn content(pairs: &tree::LoadPairs) -> proto::LoadRequest {
    word(What::Content(pairs.encode_to_vec()))
}

fn pairs(keys: Vec<u64>, bytes: u32) -> proto::LoadRequest {
    let lengths = vec![bytes; keys.len()];
    let values = vec![7; keys.len() * bytes as usize];
    content(&tree::LoadPairs { keys, lengths, values })
}

/// Speaks to the service directly.
struct Raw {
    words: mpsc::Sender<proto::LoadRequest>,
    answers: tonic::Streaming<proto::LoadReply>,
}

impl Raw {
    async fn open(service: &Service) -> Result<Self, tonic::Status> {
        let mut client = LoaderClient::connect(service.url()).await.unwrap();
        let (words, stream) = mpsc::channel(16);
        let answers = client.load(ReceiverStream::new(stream)).await?.into_inner();
        Ok(Self { words, answers })
    }

    /// The end of a load of these words.
    async fn refused(service: &Service, all: Vec<proto::LoadRequest>) -> tonic::Status {
        let mut raw = Self::open(service).await.unwrap();
        for one in all {
            // It may have had enough.
            let _ = raw.words.send(one).await;
        }
        loop {
            match raw.answers.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("it was not refused"),
                Err(status) => return status,
            }
        }
    }

    async fn ready(&mut self) {
        while !matches!(
            self.answers.message().await.unwrap().unwrap().what.unwrap(),
            proto::load_reply::What::Ready(_)
        ) {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_is_refused_and_nothing_has_changed() {
    let service = server(0, KeyRange::ALL).await;
    let before = service.handle.info().await.unwrap();
    let refused = |all| Raw::refused(&service, all);
    for (all, code, reason) in [
        (vec![pairs(vec![1], 8)], Code::InvalidArgument, "`begin` first"),
        (vec![begin(0, 0)], Code::InvalidArgument, "no keys"),
        (vec![empty(1)], Code::InvalidArgument, "an empty tree with 1"),
        (vec![begin(1 << 60, 0)], Code::ResourceExhausted, "takes up to 33554432"),
        (vec![begin(1, u64::MAX)], Code::ResourceExhausted, "takes up to 33554432"),
        (vec![begin(2, 16), pairs(vec![1, 2, 3], 8)], Code::InvalidArgument, "3 keys with 24 bytes"),
        (vec![begin(2, 15), pairs(vec![1, 2], 8)], Code::InvalidArgument, "2 with 15 were announced"),
        (
            vec![begin(2, 17), pairs(vec![1, 2], 8)],
            Code::InvalidArgument,
            "17 bytes of values were announced, 16",
        ),
        (vec![begin(2, 16), pairs(vec![2, 1], 8)], Code::InvalidArgument, "not above"),
        (vec![begin(2, 16), pairs(vec![2], 8), pairs(vec![2], 8)], Code::InvalidArgument, "not above"),
        // The region would be larger than what was announced says at first sight.
        (vec![begin(2, (31 << 20) + 700_000)], Code::DeadlineExceeded, "nothing has come"),
    ] {
        let status = refused(all).await;
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(reason), "{status}");
    }
    let lies = tree::LoadPairs { keys: vec![1, 2], lengths: vec![8], values: vec![0; 16] };
    assert_eq!(refused(vec![begin(2, 16), content(&lies)]).await.code(), Code::InvalidArgument);
    let lies = tree::LoadPairs { keys: vec![1], lengths: vec![u32::MAX], values: vec![0; 16] };
    assert_eq!(refused(vec![begin(1, 16), content(&lies)]).await.code(), Code::InvalidArgument);
    let other = tree::LoadBegin { low_key: 0, high_key: None, keys: 1, value_bytes: 8, ..Default::default() };
    assert_eq!(refused(vec![begin_at(1, &other)]).await.code(), Code::FailedPrecondition);
    let other = tree::LoadBegin { inline_value_bytes: Some(90), ..other };
    assert_eq!(refused(vec![begin_at(0, &other)]).await.code(), Code::InvalidArgument);
    let noise = word(What::Begin(proto::LoadBegin { server: 0, announced: vec![0xff; 9] }));
    assert_eq!(refused(vec![noise]).await.code(), Code::InvalidArgument);
    let empty =
        tree::LoadBegin { low_key: 9, high_key: Some(9), keys: 1, value_bytes: 8, ..Default::default() };
    assert_eq!(refused(vec![begin_at(0, &empty), pairs(vec![9], 8)]).await.code(), Code::InvalidArgument);
    // It is built, and never committed.
    let status = refused(vec![begin(1, 8), pairs(vec![1], 8)]).await;
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert_eq!(service.handle.info().await.unwrap(), before);
}

/// Keys with their values, each pair as its record has it.
fn byte_pairs(pairs: &[(&str, &str)]) -> BytePairs {
    let mut all = BytePairs::default();
    pairs.iter().for_each(|(key, value)| all.push(key.as_bytes(), value.as_bytes()).unwrap());
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_are_filled_with_keys_of_bytes() {
    let services = pair().await;
    let names: Vec<String> = (0..5000).map(|number| format!("user:{number:04}")).collect();
    let names: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "a value")).collect();
    let load = |pairs| load_servers_bytes(pairs, Arc::new(byte_pairs(&names)), AS_BEFORE, |_| {});
    let infos = load(clients(&services).await).await.unwrap();
    assert_eq!([infos[0].counts.keys, infos[1].counts.keys], [2500, 2500]);
    for info in &infos {
        assert_eq!(info.config.keys(), Keys::Bytes);
        assert_ne!(info.config.code(), KeyCode::NONE);
        assert_eq!(info.counts.below.layers, 0, "their code tells them apart");
    }
    let none = load_servers_bytes(clients(&services).await, Arc::default(), AS_BEFORE, |_| {}).await;
    assert!(matches!(none, Err(LoadTreesError::Keys(LoadError::TooFewKeys { keys: 0, servers: 2 }))));
    // An empty tree beside the other one, as it is.
    let layout = Layout::of(&infos[1].config);
    let empty = load_empty(services[0].client().await, infos[0].partition.range, layout).await.unwrap();
    assert_eq!((empty.config, empty.counts.keys), (infos[1].config, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_bytes_that_cannot_be_are_refused_and_nothing_has_changed() {
    let service = server(0, KeyRange::ALL).await;
    let before = service.handle.info().await.unwrap();
    let begin = |keys, value_bytes, code: &[u8]| {
        let (byte_keys, key_code) = (Some(true), Some(code.to_vec()));
        begin_at(0, &tree::LoadBegin { keys, value_bytes, byte_keys, key_code, ..Default::default() })
    };
    let records = |pairs: &[(&str, &str)], keys: Vec<u64>, more: u32| {
        let pairs = byte_pairs(pairs);
        let lengths = (0..pairs.len()).map(|at| pairs.record(at).len() as u32 + more).collect();
        let values = (0..pairs.len()).flat_map(|at| pairs.record(at).to_vec()).collect();
        content(&tree::LoadPairs { keys, lengths, values })
    };
    let ab: &[(&str, &str)] = &[("a", "1"), ("b", "2")];
    let no_pair = tree::LoadPairs { keys: vec![], lengths: vec![2], values: vec![1, 0] };
    for (all, reason) in [
        (vec![begin(2, 8, b""), records(ab, vec![1, 2], 0)], "with 2 numbers"),
        (vec![begin(2, 8, b""), records(ab, vec![], 1)], "2 pairs of 10 bytes came in 8"),
        (vec![begin(2, 8, b""), records(&[], vec![], 0)], "0 pairs of 0 bytes"),
        (vec![begin(1, 8, b""), records(ab, vec![], 0)], "1 of 8 were announced"),
        (vec![begin(2, 7, b""), records(ab, vec![], 0)], "2 of 7 were announced"),
        (vec![begin(2, 9, b""), records(ab, vec![], 0)], "9 bytes of values were announced, 8"),
        (vec![begin(1, 2, b""), content(&no_pair)], "no key with a value"),
        (vec![begin(2, 8, b""), records(&[("b", "1"), ("a", "2")], vec![], 0)], "not above the one before"),
        (vec![begin(2, 8, b""), records(&[("a", "1"), ("a", "2")], vec![], 0)], "not above the one before"),
        (vec![begin(2, 8, &[0; 4089])], "in at most 4088 bytes, found 4089"),
        (vec![begin(2, 8, &[0, 0, b'a', 1, 0, 0])], "the row at byte 4 of a code of keys is damaged"),
    ] {
        let status = Raw::refused(&service, all).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(status.message().contains(reason), "{status}");
    }
    assert_eq!(service.handle.info().await.unwrap(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_load_at_once_is_refused_and_one_whose_loader_dies_leaves_the_old_tree() {
    let service = server(0, KeyRange::ALL).await;
    let before = service.handle.info().await.unwrap();
    let mut first = Raw::open(&service).await.unwrap();
    first.words.send(begin(2, 16)).await.unwrap();
    first.words.send(pairs(vec![1, 2], 8)).await.unwrap();
    first.ready().await;
    let second = Raw::open(&service).await.map(|_| ()).unwrap_err();
    assert_eq!(second.code(), Code::Aborted);
    assert!(second.message().contains("another load is under way"), "{second}");
    drop(first);
    assert_eq!(service.handle.info().await.unwrap(), before);
    // Its turn has ended with it, and another one's comes.
    let mut third = soon(async || Raw::open(&service).await.ok()).await;
    third.words.send(begin(1, 8)).await.unwrap();
    third.words.send(pairs(vec![5], 8)).await.unwrap();
    third.ready().await;
    third.words.send(word(What::Commit(proto::LoadCommit {}))).await.unwrap();
    let loaded = third.answers.message().await.unwrap().unwrap().what.unwrap();
    let proto::load_reply::What::Loaded(loaded) = loaded else { panic!("it is not loaded: {loaded:?}") };
    let loaded = TreeServerInfo::try_from(loaded).unwrap();
    assert_eq!((loaded.counts.keys, loaded.generation), (1, 2));
}

/// One server of two is not there, or takes no load: the other serves what it served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_servers_are_loaded_or_none() {
    let mut services = pair().await;
    // The server takes the connection, and never begins to build.
    services[1].freeze(true);
    let failed =
        load_servers(clients(&services).await, data(1000), AS_BEFORE, |_| {}).await.unwrap_err().to_string();
    assert!(failed.contains("data path has not answered"), "{failed}");
    services[1].freeze(false);
    let info = services[0].handle.info().await.unwrap();
    assert_eq!((info.generation, info.counts.keys), (1, 0), "it was built long ago, and waited");
    let both = clients(&services).await;
    services[1].stop().await;
    let failed = load_servers(both, data(1000), AS_BEFORE, |_| {}).await.unwrap_err();
    assert!(matches!(failed, LoadTreesError::Servers(LoadServersError::Nothing { .. })), "{failed}");
    assert!(failed.to_string().contains("all servers serve what they served before"), "{failed}");
    let info = services[0].handle.info().await.unwrap();
    assert_eq!((info.generation, info.counts.keys), (1, 0));
    let few = load_servers(clients(&services[..1]).await, data(0), AS_BEFORE, |_| {}).await.unwrap_err();
    assert!(matches!(few, LoadTreesError::Keys(_)), "{few}");
    // More than it takes: it is said before anything is sent.
    let many = soon(async || {
        let many =
            load_servers(clients(&services[..1]).await, data(20_000), AS_BEFORE, |_| {}).await.unwrap_err();
        // The load before has perhaps not ended there.
        (!many.to_string().contains("another load")).then_some(many)
    });
    let many = many.await.to_string();
    assert!(many.contains("this server takes up to 33554432"), "{many}");
}

/// A server that works is waited for, though nothing has come of it within any deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_work_has_no_deadline_while_there_are_signs_of_life() {
    let service = server(0, KeyRange::ALL).await;
    service.slowness.store(4_000, std::sync::atomic::Ordering::Relaxed);
    let deadlines = grpc::Deadlines { call: Duration::from_millis(2_500), ..grpc::Deadlines::default() };
    let client = grpc::Client::connect_with(&service.url(), deadlines).await.unwrap();
    let began = std::time::Instant::now();
    let infos = load_servers(vec![(0, client)], data(100), AS_BEFORE, |_| {}).await.unwrap();
    assert!(began.elapsed() >= Duration::from_secs(4));
    assert_eq!((infos[0].generation, infos[0].counts.keys), (2, 100));
}
