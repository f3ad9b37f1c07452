//! A switch on a thread of its own, served over gRPC, and clients for it.

use std::sync::mpsc;
use std::thread::JoinHandle;

use fatbtree_p4runtime::client::ClientOptions;
use fatbtree_p4runtime::tonic::{Code, Status};
use fatbtree_p4runtime::v1::ForwardingPipelineConfig;
use fatbtree_p4runtime::{ClientError, P4InfoIndex, P4RuntimeClient, UpdateError};
use fatbtree_switch::service::{Mailbox, Switch, mailbox_with_waker, serve};

pub(crate) const DEVICE: u64 = 3;
pub(crate) const JSON: &str = include_str!("../../testdata/service.json");
pub(crate) const P4INFO: &str = include_str!("../../testdata/service.p4info.txtpb");

pub(crate) fn info() -> P4InfoIndex {
    P4InfoIndex::from_text(P4INFO).expect("the test program is sound")
}

pub(crate) fn config() -> ForwardingPipelineConfig {
    ForwardingPipelineConfig {
        p4info: Some(info().p4info().clone()),
        p4_device_config: JSON.as_bytes().to_vec(),
        cookie: None,
    }
}

type Task = Box<dyn FnOnce(&mut Switch) + Send>;

pub(crate) struct Harness {
    pub(crate) address: String,
    tasks: mpsc::Sender<Task>,
    owner: JoinHandle<()>,
}

impl Harness {
    /// A switch without a program.
    pub(crate) async fn empty() -> Self {
        let (tasks, todo) = mpsc::channel::<Task>();
        let (mailboxes, mailbox) = mpsc::channel::<Mailbox>();
        let owner = std::thread::spawn(move || {
            let me = std::thread::current();
            let (mailbox, mut inbox) = mailbox_with_waker(move || me.unpark());
            mailboxes.send(mailbox).expect("the test waits for it");
            let mut switch = Switch::new(DEVICE);
            loop {
                inbox.try_drain(&mut switch);
                match todo.try_recv() {
                    Ok(task) => task(&mut switch),
                    Err(mpsc::TryRecvError::Empty) => std::thread::park(),
                    Err(mpsc::TryRecvError::Disconnected) => return,
                }
            }
        });
        let mailbox = mailbox.recv().expect("the owner sends it first");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        tokio::spawn(serve(listener, mailbox, std::future::pending()));
        Self { address, tasks, owner }
    }

    /// A switch that runs the test program, and its primary controller.
    pub(crate) async fn loaded() -> (Self, P4RuntimeClient) {
        let harness = Self::empty().await;
        let client = harness.primary(1).await;
        client
            .set_pipeline(info().p4info().clone(), JSON.as_bytes().to_vec())
            .await
            .expect("a sound program");
        (harness, client)
    }

    pub(crate) async fn client(&self) -> P4RuntimeClient {
        P4RuntimeClient::connect(&self.address, DEVICE).await.expect("the server runs")
    }

    pub(crate) async fn client_with_batches(&self, batch: usize) -> P4RuntimeClient {
        let mut options = ClientOptions::default();
        options.batch = batch;
        P4RuntimeClient::connect_with(&self.address, DEVICE, options).await.expect("the server runs")
    }

    pub(crate) async fn primary(&self, election_id: u128) -> P4RuntimeClient {
        let mut client = self.client().await;
        client.become_primary(election_id).await.expect("the highest bid");
        client
    }

    /// Runs something on the thread that owns the switch.
    pub(crate) fn on_switch<T: Send + 'static>(
        &self,
        task: impl FnOnce(&mut Switch) -> T + Send + 'static,
    ) -> T {
        let (done, result) = mpsc::channel();
        let task: Task = Box::new(move |switch| done.send(task(switch)).expect("the test waits for it"));
        self.tasks.send(task).expect("the owner runs");
        self.owner.thread().unpark();
        result.recv().expect("the owner answers")
    }
}

/// The status of a request that was refused as a whole.
#[track_caller]
pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T, ClientError>) -> Status {
    match result {
        Err(ClientError::Rpc { status, .. }) => *status,
        other => panic!("expected a refused request, found {other:?}"),
    }
}

/// The updates of a batch that were refused.
#[track_caller]
pub(crate) fn failed(result: Result<(), ClientError>) -> Vec<UpdateError> {
    match result {
        Err(ClientError::Write(error)) => error.failed,
        other => panic!("expected refused updates, found {other:?}"),
    }
}

/// Asserts that a batch of one update was refused with this code, and a message with all these words.
#[track_caller]
pub(crate) fn one_error(result: Result<(), ClientError>, code: Code, words: &[&str]) {
    let errors = failed(result);
    let [error] = &errors[..] else { panic!("expected one error, found {errors:?}") };
    assert_eq!(error.code, code, "{error}");
    for word in words {
        assert!(error.message.contains(word), "`{word}` is not in: {}", error.message);
    }
}

/// An Ethernet frame of 64 bytes.
pub(crate) fn frame(dst: u64, src: u64, kind: u16) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[..6].copy_from_slice(&dst.to_be_bytes()[2..]);
    bytes[6..12].copy_from_slice(&src.to_be_bytes()[2..]);
    bytes[12..14].copy_from_slice(&kind.to_be_bytes());
    bytes
}
