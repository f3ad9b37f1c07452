//! Tells the controller of connections, by a task of the control plane, so that a controller that is gone delays nothing else.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fatbtree_controller::grpc::{Client, ClientError, Controllers, ServerHello, ServerNews};
use fatbtree_controller::operator::RoomStatus;
use fatbtree_controller::{Generation, Registration};
use fatbtree_memserver::grpc::Describe as _;
use fatbtree_memserver::{Event, FirstHop, Handle, RegionBytes, ServerInfo, Tenant};
use tokio::sync::mpsc;

use super::structure::{Hosted, Registered};
use super::{DescriptionOf, EventOf};

/// Pause between two tries to reach a controller.
const PAUSE: Duration = Duration::from_millis(200);
/// Pause between two tries until the first controller has answered: an empty server opens no session before
/// (`ServerOptions::undecided_for`).
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(2);
/// Interval in which the controller is told how the region is used.
const ROOM: Duration = Duration::from_secs(1);
/// News on their way to the controller.
const ON_THE_WAY: usize = 64;

/// State of a memory server that a controller must know, kept up to date.
pub(super) struct Registrar<S: Hosted> {
    hello: ServerHello,
    connections: BTreeMap<(Ipv4Addr, u32), Registration>,
    controllers: Controllers,
    handle: Handle<S::Tenant>,
    /// Whether the switches lead index reads on its connections.
    is_led: bool,
}

fn registration(hop: &FirstHop) -> Registration {
    let FirstHop { client, queue_pair, rkey, root, mtu, .. } = *hop;
    Registration { client, queue_pair: queue_pair.0, rkey, root: root.raw(), mtu }
}

/// Tells the server which structure of it the controller has known before. The server decides whether that was another one than the
/// present one.
async fn hear<T: Tenant>(handle: Handle<T>, former: Option<u64>) {
    if let Ok(true) = handle.heard(former).await {
        tracing::warn!(
            "a controller has known another structure of this memory server, which has begun with an empty one since; unless clients have written \
             to that one already, it is not served until it is loaded"
        );
    }
}

/// Use of the server's region.
async fn room_of<T: Tenant>(handle: &Handle<T>) -> Option<RoomStatus> {
    let RegionBytes { free, held, lost, live } = handle.region_bytes().await.ok()?;
    Some(RoomStatus { live, held, free, lost })
}

impl<S: Hosted> Registrar<S> {
    /// Registrar of a server without connections.
    pub(super) fn new(
        controllers: Controllers,
        info: &ServerInfo<DescriptionOf<S>>,
        handle: Handle<S::Tenant>,
    ) -> Self {
        let Registered { low, first_key, root, is_led } = S::registered(&info.structure);
        let hello = ServerHello {
            partition: info.server,
            structure: DescriptionOf::<S>::STRUCTURE.to_owned(),
            generation: Generation { number: info.generation, low },
            root,
            first_key,
            lost: false,
            connections: Vec::new(),
        };
        Self { hello, connections: BTreeMap::new(), controllers, handle, is_led }
    }

    /// Takes the server's events and passes them on, until there are no more. There are never more of them on the way than the server has
    /// queue pairs, twice.
    pub(super) async fn serve(mut self, mut events: mpsc::UnboundedReceiver<EventOf<S>>) {
        let is_heard = AtomicBool::new(false);
        // One that is not primary refuses: then the next one is tried.
        for controller in self.controllers.in_turn() {
            let (news, mut passed) = mpsc::channel(ON_THE_WAY);
            let (hello, handle, is_heard) = (self.hello(), self.handle.clone(), &is_heard);
            let (mut told, mut due) = (None, tokio::time::interval(ROOM));
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
                        let Some(event) = self.note(event) else { continue };
                        // When they are not taken, the controller is told anew of everything.
                        if news.try_send(event).is_err() {
                            break Ok(());
                        }
                    }
                    _ = due.tick() => {
                        let room = room_of(&self.handle).await;
                        // One that is not taken is told the next time.
                        if let Some(room) = room.filter(|room| told != Some(*room))
                            && news.try_send(ServerNews::Room(room)).is_ok()
                        {
                            told = Some(room);
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

    /// The news for the controller; `None` if it needs not know.
    fn note(&mut self, event: EventOf<S>) -> Option<ServerNews> {
        Some(match event {
            Event::Opened(_) | Event::Closed(_) if !self.is_led => return None,
            Event::Ask(_) => return None,
            Event::Opened(hop) => {
                let opened = registration(&hop);
                self.connections.insert((opened.client, opened.queue_pair), opened);
                ServerNews::Opened(opened)
            }
            Event::Closed(hop) => {
                let Registration { client, queue_pair, .. } = registration(&hop);
                self.connections.remove(&(client, queue_pair));
                ServerNews::Closed { client, queue_pair }
            }
            Event::NewRoot(structure) => {
                self.hello.root = S::registered(&structure).root;
                ServerNews::Root(self.hello.root)
            }
            Event::Lost { .. } => {
                self.hello.lost = true;
                ServerNews::Lost
            }
            Event::Reloaded { structure, generation } => {
                let Registered { low, first_key, root, .. } = S::registered(&structure);
                let generation = Generation { number: generation, low };
                let hello = &mut self.hello;
                (hello.generation, hello.root, hello.lost) = (generation, root, false);
                hello.first_key.clone_from(&first_key);
                ServerNews::Refilled { generation, root, first_key }
            }
        })
    }
}
