//! Commits of loads into a folder that are late, refused, or cannot be undone: what is served is never removed.
use crate::common;

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use common::lab::options;
use common::service::{Service, soon};
use fatbtree_blink::{TreeConfig, ValueLayout};
use fatbtree_blink_host::grpc::{Loading, proto as tree};
use fatbtree_blink_host::{
    LoadOptions, LoadedTree, TreeFolder, TreeStorage, build_in, bulk_load, seeded, tree_in,
};
use fatbtree_memserver::grpc::proto::load_reply::What as Answer;
use fatbtree_memserver::grpc::proto::load_request::What;
use fatbtree_memserver::grpc::proto::loader_client::LoaderClient;
use fatbtree_memserver::grpc::{ServiceOptions, proto};
use fatbtree_memserver::{FolderOwner, ServerGone, ServerOptions, mailbox};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status};

const CHUNK: u64 = 4096;
/// Another size of chunks than the server's, so that it refuses trees of this folder.
const OTHER_CHUNK: u64 = 8192;
const KEYS: u64 = 100;

fn open(path: &Path, chunk_bytes: u64) -> TreeFolder {
    let owner = FolderOwner { server: "left".to_owned(), partition: 0, address: Ipv4Addr::new(10, 0, 0, 2) };
    TreeFolder::open(path, owner, chunk_bytes).unwrap()
}

/// A server of generation 1 in a folder with chunks of that size.
async fn server(path: &Path, chunk_bytes: u64) -> Service {
    let config = TreeConfig::new(16, 1024, ValueLayout::OutOfLine).unwrap();
    let load = LoadOptions { spare_bytes: 64 << 10, ..LoadOptions::new(config, 0) };
    let keys: Vec<u64> = (0..KEYS).collect();
    let mut storage = TreeStorage::Folder(open(path, chunk_bytes).into());
    let tree =
        build_in(&mut storage, &load, u64::MAX, fatbtree_blink_host::Load::Numbers(&keys, &mut seeded(1, 8)))
            .unwrap();
    storage.keep(tree.kept()).unwrap();
    let loading = Loading { storage, spare_bytes: 64 << 10, region_bytes: 32 << 20, ..Loading::in_memory() };
    let server = ServerOptions { chunk_bytes: CHUNK, ..options() };
    let service = ServiceOptions { answer: Duration::from_millis(300), ..ServiceOptions::default() }.into();
    Service::start_with(LoadedTree { chunk_classes: None, ..tree }, server, service, Some(loading)).await
}

/// A load of one key.
struct Load {
    words: mpsc::Sender<proto::LoadRequest>,
    answers: tonic::Streaming<proto::LoadReply>,
}

impl Load {
    /// Says everything up to the commit, as soon as the load before has ended.
    async fn begin(service: &Service) -> Self {
        let client = LoaderClient::connect(service.url()).await.unwrap();
        let begun = soon(async || {
            let (words, stream) = mpsc::channel(16);
            let answers = client.clone().load(ReceiverStream::new(stream)).await.ok()?.into_inner();
            Some(Self { words, answers })
        });
        let load = begun.await;
        let (low_key, high_key, empty) = (0, None, false);
        let begin =
            tree::LoadBegin { low_key, high_key, keys: 1, value_bytes: 8, empty, ..Default::default() };
        load.say(What::Begin(proto::LoadBegin { server: 0, announced: begin.encode_to_vec() })).await;
        let pairs = tree::LoadPairs { keys: vec![5], lengths: vec![8], values: vec![7; 8] };
        load.say(What::Content(pairs.encode_to_vec())).await;
        load
    }

    /// The same, up to the tree that is built.
    async fn ready(service: &Service) -> Self {
        let mut load = Self::begin(service).await;
        while !matches!(load.answer().await.unwrap(), Answer::Ready(_)) {}
        load
    }

    async fn say(&self, what: What) {
        self.words.send(proto::LoadRequest { what: Some(what) }).await.unwrap();
    }

    async fn answer(&mut self) -> Result<Answer, Status> {
        Ok(self.answers.message().await?.unwrap().what.unwrap())
    }

    async fn commit(&self) {
        self.say(What::Commit(proto::LoadCommit {})).await;
    }

    async fn refusal(&mut self) -> Status {
        loop {
            match self.answer().await {
                Ok(Answer::Building(_)) => {}
                Ok(other) => panic!("{other:?}"),
                Err(status) => return status,
            }
        }
    }
}

/// The generation that a restart would serve.
fn written_down(path: &Path) -> u64 {
    let text = std::fs::read_to_string(path.join("state.json")).unwrap();
    let at = text.find("\"generation\": ").unwrap() + 14;
    text[at..].split(|digit: char| !digit.is_ascii_digit()).next().unwrap().parse().unwrap()
}

fn is_there(path: &Path, generation: u64) -> bool {
    ["tree", "chunks", "journal"].iter().all(|kind| path.join(format!("{kind}-{generation}")).exists())
}

fn keys_of_restart(path: &Path, chunk_bytes: u64) -> u64 {
    tree_in(&open(path, chunk_bytes)).unwrap().unwrap().counts.keys
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tree_that_the_device_refuses_is_undone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let service = server(path, OTHER_CHUNK).await;
    let mut load = Load::ready(&service).await;
    load.commit().await;
    let status = load.refusal().await;
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(status.message().contains("was never written"), "{status}");
    assert_eq!((written_down(path), service.handle.info().await.unwrap().generation), (1, 1));
    soon(async || (!path.join("tree-2").exists()).then_some(())).await;
    assert!(is_there(path, 1) && !path.join("state.json.former").exists());
    drop((load, service));
    soon(async || std::fs::File::open(path.join("lock")).unwrap().try_lock().ok()).await;
    assert_eq!(keys_of_restart(path, OTHER_CHUNK), KEYS);
}

/// The disk takes nothing any more when the device refuses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn where_a_commit_cannot_be_undone_both_reasons_are_told_and_both_trees_stay() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let service = server(path, OTHER_CHUNK).await;
    let mut load = Load::ready(&service).await;
    service.slowness.store(1000, std::sync::atomic::Ordering::Relaxed);
    load.commit().await;
    soon(async || (written_down(path) == 2).then_some(())).await;
    // The copy is gone, and none can be made.
    std::fs::remove_file(path.join("state.json.former")).unwrap();
    std::fs::create_dir(path.join("state.json.new")).unwrap();
    let status = load.refusal().await;
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    for reason in ["was never written", "state.json.new", "a restart would serve the new load"] {
        assert!(status.message().contains(reason), "{reason}: {status}");
    }
    service.slowness.store(0, std::sync::atomic::Ordering::Relaxed);
    // The next load has generation 2 again. It does not begin to overwrite what a restart would serve.
    let refused = Load::begin(&service).await.refusal().await;
    assert!(refused.message().contains("state.json.new"), "{refused}");
    assert!(is_there(path, 1) && is_there(path, 2), "what is served, and what a restart would serve");
    assert_eq!((written_down(path), service.handle.info().await.unwrap().generation), (2, 1));
    // When there is room again, the next load goes back first.
    std::fs::remove_dir(path.join("state.json.new")).unwrap();
    let mut load = Load::ready(&service).await;
    assert_eq!(written_down(path), 1);
    load.commit().await;
    assert!(load.refusal().await.message().contains("was never written"));
    assert_eq!((written_down(path), service.handle.info().await.unwrap().generation), (1, 1));
    assert!(is_there(path, 1));
}

/// The mailbox is full: nothing is written down that does not reach the data path.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_finds_no_place_in_the_mailbox_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let service = server(path, CHUNK).await;
    let mut load = Load::ready(&service).await;
    service.freeze(true);
    let waiting: Vec<_> = (0..20)
        .map(|_| {
            let handle = service.handle.clone();
            tokio::spawn(async move { handle.info().await.unwrap() })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    load.commit().await;
    let status = load.refusal().await;
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert!(status.message().contains("nothing has changed"), "{status}");
    assert_eq!(written_down(path), 1);
    service.freeze(false);
    for info in waiting {
        assert_eq!(info.await.unwrap().generation, 1);
    }
    assert_eq!(service.handle.info().await.unwrap().generation, 1);
    soon(async || (!path.join("tree-2").exists()).then_some(())).await;
    assert!(is_there(path, 1));
}

/// The loader is told that the server is late, and is told the truth.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_is_late_is_carried_out_when_the_data_path_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    for (chunk_bytes, then) in [(CHUNK, 2), (OTHER_CHUNK, 1)] {
        let path = path.join(chunk_bytes.to_string());
        let service = server(&path, chunk_bytes).await;
        let mut load = Load::ready(&service).await;
        service.freeze(true);
        load.commit().await;
        let status = load.refusal().await;
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
        assert!(status.message().contains("it serves the new load when it goes on"), "{status}");
        assert!(is_there(&path, 1) && is_there(&path, 2));
        assert_eq!(written_down(&path), 2, "the commit is neither settled nor undone");
        service.freeze(false);
        let gone = path.join(format!("tree-{}", 3 - then));
        soon(async || (!gone.exists()).then_some(())).await;
        assert_eq!((written_down(&path), service.handle.info().await.unwrap().generation), (then, then));
        assert!(is_there(&path, then));
    }
}

/// The data path ends before it has taken the tree.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_the_data_path_does_not_live_to_see_is_undone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mut service = server(path, CHUNK).await;
    let mut load = Load::ready(&service).await;
    service.freeze(true);
    load.commit().await;
    soon(async || (written_down(path) == 2).then_some(())).await;
    service.stop_data_path();
    let status = load.refusal().await;
    assert!(matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded), "{status}");
    soon(async || (written_down(path) == 1).then_some(())).await;
    assert!(is_there(path, 1));
}

/// The data path ends between the place in its mailbox and the tree that is put there.
#[tokio::test]
async fn a_tree_that_is_put_into_a_mailbox_that_has_ended_is_not_waited_for() {
    let config = TreeConfig::new(16, 1024, ValueLayout::OutOfLine).unwrap();
    let tree = bulk_load(&LoadOptions::new(config, 0), &[], &mut seeded(1, 8)).unwrap();
    let (handle, mailbox) = mailbox(1);
    let place = handle.install_place().await.unwrap();
    drop(mailbox);
    let mut installing = place.install(tree);
    let soon = Duration::from_secs(10);
    assert_eq!(tokio::time::timeout(soon, installing.begun()).await, Ok(Err(ServerGone)));
    assert_eq!(tokio::time::timeout(soon, installing.end()).await.unwrap().unwrap_err(), ServerGone);
    assert!(handle.install_place().await.is_err());
}
