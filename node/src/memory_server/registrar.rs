//! Tells the controller of connections, by a task of the control plane, so that a controller that is gone delays nothing else.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fatbtree_blink::Partition;
use fatbtree_blink_host::{TreeEvent, TreeHandle, TreeInfo, TreeServerInfo};
use fatbtree_controller::grpc::{Client, ClientError, Controllers, ServerHello, ServerNews};
use fatbtree_controller::{Generation, Registration};
use fatbtree_memserver::FirstHop;
use tokio::sync::mpsc;

/// Pause between two tries to reach a controller.
const PAUSE: Duration = Duration::from_millis(200);
/// Pause between two tries until the first controller has answered: an empty server opens no session before
/// (`ServerOptions::undecided_for`).
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(2);
/// News on their way to the controller.
const ON_THE_WAY: usize = 64;

/// Generation of a server's tree: the number of its filling, and the first key of the partition.
fn generation_of(generation: u64, partition: &Partition) -> Generation {
    Generation { number: generation, low: partition.range.low }
}

/// State of a memory server that a controller must know, kept up to date.
#[derive(Debug)]
pub(super) struct Registrar {
    hello: ServerHello,
    connections: BTreeMap<(Ipv4Addr, u32), Registration>,
    controllers: Controllers,
    handle: TreeHandle,
}

fn registration(hop: &FirstHop) -> Registration {
    let FirstHop { client, queue_pair, rkey, root, mtu, .. } = *hop;
    Registration { client, queue_pair: queue_pair.0, rkey, root: root.raw(), mtu }
}

/// Tells the server which tree of it the controller has known before. The server decides whether that was another tree than the present
/// one.
async fn hear(handle: TreeHandle, former: Option<u64>) {
    if let Ok(true) = handle.heard(former).await {
        tracing::warn!(
            "a controller has known another tree of this memory server, which has begun with an empty one since; unless clients have written \
             to that one already, it is not served until it is loaded"
        );
    }
}

impl Registrar {
    /// Registrar of a server without connections.
    pub(super) fn new(controllers: Controllers, info: &TreeServerInfo, handle: TreeHandle) -> Self {
        let generation = generation_of(info.generation, &info.partition);
        let (partition, root) = (info.partition.id, info.partition.root.raw());
        let hello = ServerHello { partition, generation, root, lost: false, connections: Vec::new() };
        Self { hello, connections: BTreeMap::new(), controllers, handle }
    }

    /// Takes the server's events and passes them on, until there are no more. There are never more of them on the way than the server has
    /// queue pairs, twice.
    pub(super) async fn serve(mut self, mut events: mpsc::UnboundedReceiver<TreeEvent>) {
        let is_heard = AtomicBool::new(false);
        // One that is not primary refuses: then the next one is tried.
        for controller in self.controllers.in_turn() {
            let (news, mut passed) = mpsc::channel(ON_THE_WAY);
            let (hello, handle, is_heard) = (self.hello(), self.handle.clone(), &is_heard);
            let mut telling = std::pin::pin!(async move {
                let mut client = Client::connect(controller, PATIENCE).await?;
                let known = move |former| {
                    is_heard.store(true, Ordering::Relaxed);
                    tokio::spawn(hear(handle, former));
                };
                client.register(hello, &mut passed, known).await
            });
            let ended: Result<(), ClientError> = loop {
                tokio::select! {
                    ended = &mut telling => break ended,
                    event = events.recv() => {
                        let Some(event) = event else { return };
                        let event = self.note(event);
                        // When they are not taken, the controller is told anew of everything.
                        if news.try_send(event).is_err() {
                            break Ok(());
                        }
                    }
                }
            };
            if let Err(error) = ended {
                tracing::info!(%error, "not registered");
            }
            let pause = if is_heard.load(Ordering::Relaxed) { PAUSE } else { FIRST_PAUSE };
            tokio::time::sleep(pause).await;
        }
    }

    fn hello(&self) -> ServerHello {
        ServerHello { connections: self.connections.values().copied().collect(), ..self.hello.clone() }
    }

    fn note(&mut self, event: TreeEvent) -> ServerNews {
        match event {
            TreeEvent::Opened(hop) => {
                let opened = registration(&hop);
                self.connections.insert((opened.client, opened.queue_pair), opened);
                ServerNews::Opened(opened)
            }
            TreeEvent::Closed(hop) => {
                let Registration { client, queue_pair, .. } = registration(&hop);
                self.connections.remove(&(client, queue_pair));
                ServerNews::Closed { client, queue_pair }
            }
            TreeEvent::NewRoot(tree) => {
                self.hello.root = tree.partition.root.raw();
                ServerNews::Root(self.hello.root)
            }
            TreeEvent::Lost { .. } => {
                self.hello.lost = true;
                ServerNews::Lost
            }
            TreeEvent::Reloaded { structure: TreeInfo { partition, .. }, generation } => {
                self.hello.generation = generation_of(generation, &partition);
                self.hello.root = partition.root.raw();
                self.hello.lost = false;
                ServerNews::Refilled(self.hello.generation, self.hello.root)
            }
        }
    }
}
