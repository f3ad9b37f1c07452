//! A memory server that begins with an empty tree, and a controller that takes its time to say whether there was another one before.
#![allow(clippy::unwrap_used, reason = "a test says by failing what is wrong")]

mod common;

use std::net::Ipv4Addr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use common::{cluster, own_address};
use fatbtree_blink::TreeConfig;
use fatbtree_blink_host::TreeInfo;
use fatbtree_controller::grpc::{Input, ServiceOptions, serve};
use fatbtree_memserver::grpc;
use fatbtree_port::PortSpec;
use fatbtree_processes::{
    MemoryServerOptions, MemoryServerProcess, NicSpec, QueryClientOptions, QueryClientProcess, QueryOptions,
    QueryWay, TreeSource, roster_of,
};
use fatbtree_query::{Answer, Ask};
use fatbtree_remote_memory::session_keeper::Call;
use fatbtree_topology::Cluster;
use fatbtree_trust::Trust;
use tokio::sync::{mpsc as channel, watch};

const KEY: u64 = 5;

fn empty_server(cluster: &Cluster, controller: String) -> MemoryServerOptions {
    let described = cluster.servers()[0].clone();
    let [here, there] = [own_address(), own_address()].map(|address| address.parse().unwrap());
    MemoryServerOptions {
        servers: cluster.servers().to_vec(),
        host: cluster.tree().host(described.host).clone(),
        nic: NicSpec::Software(PortSpec::Udp { local: there, remote: here }),
        controllers: vec![controller],
        trust: Trust::default(),
        roster: roster_of(cluster),
        metrics: None,
        structure: TreeSource {
            keys: Vec::new(),
            value_bytes: 16,
            seed: 1,
            config: TreeConfig::default(),
            spare_bytes: 64 << 20,
            region_bytes: 1 << 30,
            queries: Some(QueryOptions {
                address: described.query.clone(),
                workers: 1,
                servers: vec![(0, described.partition)],
                cache_bytes: 0,
                secret: None,
            }),
        },
        data: None,
        sync: None,
        // A test that fails ends, too.
        limit: Some(Duration::from_secs(60)),
        described,
    }
}

fn query_client(cluster: &Cluster) -> QueryClientProcess {
    let options = QueryClientOptions {
        way: QueryWay::of(cluster, cluster.clients()[0].host).unwrap(),
        root_to_leaf: false,
        servers: cluster.servers().to_vec(),
        lanes: 1,
        trust: Trust::default(),
        metrics: None,
        patience: Duration::from_secs(30),
    };
    QueryClientProcess::open(&options).unwrap()
}

/// What comes of a query and of a session when the controller says, after a while, which tree it has known before.
fn after_a_word(former: Option<u64>) -> (Answer, Result<(), grpc::ClientError>) {
    let (cluster, control) = (cluster(), tokio::runtime::Runtime::new().unwrap());
    let listener = control.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let controller = listener.local_addr().unwrap().to_string();
    let (inputs, mut heard) = channel::channel(64);
    let (_standing, is_primary) = watch::channel(Ok(()));
    control.spawn(serve(ServiceOptions::default(), listener, inputs, is_primary, std::future::pending()));
    let grpc = cluster.servers()[0].grpc.clone();
    let open_session = async || {
        let mut server = grpc::Client::connect(format!("http://{grpc}").as_str()).await?;
        server.call::<TreeInfo>(Ipv4Addr::new(10, 0, 0, 9), Call::Open { known: None }).await.map(drop)
    };
    std::thread::scope(|scope| {
        let (ready, is_ready) = mpsc::channel();
        let options = empty_server(&cluster, controller);
        scope.spawn(move || {
            let process = MemoryServerProcess::open(options).unwrap();
            ready.send(process.stopper()).unwrap();
            process.run(|_| ())
        });
        let stopper = is_ready.recv().unwrap();
        let (answer, answered) = mpsc::channel();
        scope.spawn(|| {
            let mut process = query_client(&cluster);
            let client = process.client().clone();
            let put = async { client.ask(Ask::put(KEY, vec![7; 16])).await };
            let answer = answer;
            answer.send(process.run(put).unwrap()).unwrap();
        });
        // It has registered, and waits for the answer.
        let Some(Input::ServerJoined { former: word, .. }) = control.block_on(heard.recv()) else {
            panic!("a memory server registers")
        };
        let refused = control.block_on(open_session()).unwrap_err();
        assert!(!refused.is_final(), "{refused}");
        assert!(refused.to_string().contains("whether there was something before"), "{refused}");
        assert_eq!(answered.recv_timeout(Duration::from_millis(500)), Err(mpsc::RecvTimeoutError::Timeout));
        word.send(former).unwrap();
        let spoken = Instant::now();
        let answer = answered.recv_timeout(Duration::from_secs(30)).unwrap();
        assert!(spoken.elapsed() < Duration::from_secs(3), "it was the word that was waited for");
        let opened = control.block_on(open_session());
        stopper.stop();
        (answer, opened)
    })
}

#[test]
fn a_write_that_comes_before_the_controller_has_spoken_does_not_bury_the_lost_tree() {
    let (answer, opened) = after_a_word(Some(7));
    assert!(!matches!(answer, Answer::Written | Answer::NotFound), "{answer:?}");
    assert!(opened.unwrap_err().has_lost());
}

#[test]
fn a_write_that_comes_before_the_controller_has_spoken_is_done_in_the_first_tree() {
    let (answer, opened) = after_a_word(None);
    assert_eq!(answer, Answer::Written);
    opened.unwrap();
}
