//! A desk over loopback, with a memory server that is started again and loaded under it.
#![allow(clippy::unwrap_used, reason = "a test says by failing what is wrong")]

use std::net::Ipv4Addr;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use fatbtree_blink::{ChunkKind, ConnectionId, Shortage, TreeConfig, ValueLayout};
use fatbtree_memserver::grpc::{ServiceOptions, serve_with};
use fatbtree_memserver::{
    Handle, LoadOptions, LoadedTree, MemoryServer, ServerOptions, Storage, mailbox, seeded,
};
use fatbtree_port::Waiter;
use fatbtree_topology::Cluster;
use fatbtree_trust::Trust;
use fatbtree_verbs::plain::PlainNetwork;
use fatbtree_verbs::time;
use fatbtree_verbs::{Endpoint, Mtu, QueuePairNumber};
use tokio::net::TcpListener;
use tokio::sync::mpsc as orders;

use super::{Answer, Desk, Order, Out};

const HERE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 9);
const PATIENCE: Duration = Duration::from_secs(20);

fn tree(generation: u64, keys: u64) -> LoadedTree {
    let config = TreeConfig::new(16, 1024, ValueLayout::OutOfLine).unwrap();
    let load = LoadOptions { generation, spare_bytes: 1 << 20, ..LoadOptions::new(config, 0) };
    let keys: Vec<u64> = (0..keys).collect();
    Storage::Memory.build(&load, u64::MAX, &keys, &mut seeded(1, 100)).unwrap()
}

/// What happens to the server's process.
enum Fate {
    StartedAgain(LoadedTree),
    Suspended(Duration),
}

/// A desk, and the memory server at which it has a session.
struct Lab {
    handle: Handle,
    fates: mpsc::Sender<(Fate, mpsc::Sender<()>)>,
    orders: orders::Sender<Order>,
    answers: mpsc::Receiver<Answer>,
    _waiter: Waiter,
}

impl Lab {
    async fn start(first: LoadedTree) -> Self {
        let (handle, mut mailbox) = mailbox(16);
        let (fates, fate) = mpsc::channel::<(Fate, mpsc::Sender<()>)>();
        std::thread::spawn(move || {
            let options = ServerOptions { chunk_bytes: 4096, ..ServerOptions::writable() };
            let mut seed = 0;
            let mut start = |tree| {
                seed += 1;
                MemoryServer::new(PlainNetwork::new().device(), tree, &options, seed).unwrap()
            };
            let (mut server, clock) = (start(first), Instant::now());
            let now = || time::Instant::from_nanos(clock.elapsed().as_nanos() as u64);
            loop {
                match fate.try_recv() {
                    Ok((Fate::StartedAgain(tree), done)) => {
                        server = start(tree);
                        done.send(()).unwrap();
                    }
                    Ok((Fate::Suspended(time), done)) => {
                        done.send(()).unwrap();
                        std::thread::sleep(time);
                    }
                    Err(mpsc::TryRecvError::Empty) => {}
                    Err(mpsc::TryRecvError::Disconnected) => return,
                }
                mailbox.answer(now(), &mut server);
                while server.poll_event().is_some() {}
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let grpc = listener.local_addr().unwrap();
        let service = ServiceOptions { answer: Duration::from_millis(200), ..ServiceOptions::default() };
        tokio::spawn(serve_with(service, None, listener, handle.clone(), std::future::pending()));
        let text = format!(
            "[network]\nkind = \"single\"\nhosts = 4\n[[memory_server]]\nhost = \"host-0-0\"\ngrpc = \"{grpc}\"\n[[client]]\nhost = \
             \"host-0-1\"\n"
        );
        let cluster = Cluster::from_toml(&text).unwrap();
        let waiter = Waiter::new().unwrap();
        let (answer, answers) = mpsc::channel();
        let out = Out { answers: answer, waker: waiter.waker() };
        let desk = Desk::open(&cluster.servers()[0], &Trust::default(), HERE, PATIENCE, out).await.unwrap();
        let (orders, wanted) = orders::channel(16);
        tokio::spawn(desk.serve(wanted));
        Self { handle, fates, orders, answers, _waiter: waiter }
    }

    fn suffer(&self, fate: Fate) {
        let (done, is_done) = mpsc::channel();
        self.fates.send((fate, done)).unwrap();
        is_done.recv().unwrap();
    }

    async fn connect(&self, lane: u8) {
        let local = Endpoint {
            mac: [2, 0, 0, 0, 0, 9],
            ip: HERE,
            queue_pair: QueuePairNumber(0x100 + u32::from(lane)),
            psn: 1,
            mtu: Mtu::B4096,
            responder_reads: 16,
            initiator_reads: 16,
        };
        let order = Order::Connect { id: ConnectionId { server: 0, lane }, local, replaces: None };
        self.orders.send(order).await.unwrap();
    }

    async fn memory(&self) {
        self.orders.send(Order::Memory { kind: ChunkKind::Leaves, bytes: 1024 }).await.unwrap();
    }

    /// The next answer. It blocks a thread of the runtime, which has others.
    fn answer(&self) -> Answer {
        self.answers.recv_timeout(PATIENCE).unwrap()
    }

    fn is_lost(&self) -> bool {
        matches!(self.answer(), Answer::Lost { error, .. } if error.tree_is_lost())
    }
}

/// Lanes find out one after the other. Those that were given up are connected again because of what the desk tells of the new session.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_new_session_is_told_of_whichever_order_has_opened_it() {
    let lab = Lab::start(tree(1, 100)).await;
    lab.connect(0).await;
    assert!(matches!(lab.answer(), Answer::Connected { id: ConnectionId { lane: 0, .. }, .. }));
    lab.suffer(Fate::StartedAgain(tree(2, 0)));
    lab.connect(0).await;
    assert!(lab.is_lost());
    // The operator loads, and another lane is the first to find that out.
    let installing = lab.handle.install_place().await.unwrap().install(tree(3, 100));
    installing.end().await.unwrap().unwrap();
    lab.connect(1).await;
    let Answer::Info { info, session: told, .. } = lab.answer() else { panic!("the new session is told of") };
    let Answer::Connected { id, session, .. } = lab.answer() else { panic!("the other lane is connected") };
    assert_eq!((info.generation, id.lane, told.id), (3, 1, session.id));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn memory_is_asked_for_again_in_a_new_session() {
    let lab = Lab::start(tree(1, 100)).await;
    lab.memory().await;
    let Answer::Memory { session: former, grant: Ok(_), .. } = lab.answer() else { panic!("there is some") };
    // As from its folder.
    lab.suffer(Fate::StartedAgain(tree(1, 100)));
    lab.memory().await;
    let Answer::Info { session: told, .. } = lab.answer() else { panic!("the new session is told of") };
    let Answer::Memory { session, grant, .. } = lab.answer() else { panic!("then there is memory") };
    grant.unwrap();
    assert!(session == told.id && session != former);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn memory_is_asked_for_again_while_the_server_is_busy() {
    let lab = Lab::start(tree(1, 100)).await;
    lab.suffer(Fate::Suspended(Duration::from_millis(600)));
    lab.memory().await;
    assert!(matches!(lab.answer(), Answer::Memory { grant: Ok(_), .. }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_server_that_has_lost_its_tree_has_no_memory_for_that_reason() {
    let lab = Lab::start(tree(1, 100)).await;
    lab.suffer(Fate::StartedAgain(tree(2, 0)));
    lab.memory().await;
    let Answer::Memory { grant: Err(error), .. } = lab.answer() else { panic!("there is none") };
    assert!(error.tree_is_lost() && error.shortage() == Shortage::TreeLost, "{error}");
}

/// The desk still believes in its session when it looks at the successor, which is not the tree that it has known.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_an_empty_successor_says_of_itself_is_not_what_was_known() {
    let lab = Lab::start(tree(1, 100)).await;
    lab.orders.send(Order::Look).await.unwrap();
    let Answer::Info { info, .. } = lab.answer() else { panic!("it is asked") };
    assert_eq!(info.generation, 1);
    lab.suffer(Fate::StartedAgain(tree(2, 0)));
    lab.orders.send(Order::Look).await.unwrap();
    lab.connect(0).await;
    assert!(lab.is_lost(), "nothing of the successor is told or believed");
}
