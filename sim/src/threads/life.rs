//! A client in one life: its session and connections, and what moves it on.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Waker};

use fatbtree_client::{Client, ComputeServer};
use fatbtree_index::{ChunkKind, ConnectionId, Event, RemoteSide, ReturnedPlaces};
use fatbtree_memserver::{ClientId, Handle, Lease, PLACES_AT_ONCE, Refusal, ServerInfo, SessionKey, Supply};
use fatbtree_nic::{Nic, NicConfig};
use fatbtree_verbs::time::Duration;

use super::log::Order;
use super::wires::Port;
use super::{Clock, Options};

/// How often a client looks whether something is to be done.
const LOOK: Duration = Duration::from_micros(20);

/// What a thread knows of all others.
pub(super) struct Place<'p> {
    /// The thread's own.
    pub(super) number: u8,
    pub(super) options: &'p Options,
    pub(super) clients: &'p ComputeServer,
    pub(super) info: &'p ServerInfo,
    pub(super) handle: &'p Handle,
    pub(super) order: &'p Order,
    /// The last word that was written: each write has one of its own.
    pub(super) words: &'p AtomicU64,
    pub(super) clock: Clock,
}

/// A client in one life.
pub(super) struct Life<'p> {
    pub(super) place: &'p Place<'p>,
    pub(super) client: Client<Nic>,
    pub(super) name: String,
    lease: Cell<Option<Lease>>,
    down: RefCell<BTreeSet<ConnectionId>>,
    /// Memory that operations wait for: for what, and of how many bytes.
    wanted: RefCell<BTreeSet<(ChunkKind, u32)>>,
    unfinished: Cell<bool>,
    /// Operations answered.
    pub(super) answers: Cell<u64>,
    pub(super) wrong: RefCell<Option<String>>,
    /// The next one to be sent.
    frame: RefCell<Vec<u8>>,
}

/// Something that a client does.
pub(super) type Task<'l> = Pin<Box<dyn Future<Output = ()> + 'l>>;

impl<'p> Life<'p> {
    pub(super) fn begin(place: &'p Place<'p>, number: u32) -> Result<Rc<Self>, String> {
        let seed = place.options.seed ^ u64::from(place.number) << 48 ^ u64::from(number) << 32;
        let address = ([2, 0, 0, 0, 0, place.number], [10, 0, 0, place.number].into());
        let nic = Nic::new(NicConfig::new(address.0, address.1), seed).map_err(|error| error.to_string())?;
        let client = place.clients.client(nic, seed).map_err(|error| error.to_string())?;
        let down = client.pool().connections().into_iter().collect();
        Ok(Rc::new(Self {
            place,
            client,
            name: format!("thread {} in life {number}", place.number),
            lease: Cell::default(),
            down: RefCell::new(down),
            wanted: RefCell::default(),
            unfinished: Cell::new(false),
            answers: Cell::new(0),
            wrong: RefCell::default(),
            frame: RefCell::default(),
        }))
    }

    pub(super) fn fail(&self, why: String) {
        self.wrong.borrow_mut().get_or_insert(why);
    }

    pub(super) fn has_session(&self) -> bool {
        self.lease.get().is_some()
    }

    async fn sleep(&self, span: Duration) {
        self.client.pool().reactor().sleep(span).await;
    }

    /// What every client does beside its operations.
    pub(super) fn chores<'l>(self: &Rc<Self>) -> Vec<Task<'l>>
    where
        'p: 'l,
    {
        let chores = Rc::clone(self);
        let (session, connections, locks) = (Rc::clone(self), Rc::clone(self), chores);
        vec![
            Box::pin(async move { session.keep_session().await }),
            Box::pin(async move { connections.attend().await }),
            Box::pin(async move { locks.finish().await }),
        ]
    }

    /// Has a session, always.
    async fn keep_session(&self) {
        let (handle, options) = (self.place.handle, self.place.options);
        let roce = [10, 0, 0, self.place.number].into();
        let id = ClientId { host: IpAddr::from([127, 0, 0, 1]), roce };
        loop {
            match self.lease.get() {
                None => match handle.open_session(id, None).await {
                    Ok(Ok(lease)) => {
                        let writer = self.place.info.writer(lease.owner, true).expect("there are locks");
                        let told = self.client.pool().set_writer(0, writer);
                        told.expect("there is one server, and nodes have more than two children");
                        self.lease.set(Some(lease));
                    }
                    Ok(Err(refusal)) => return self.fail(refusal.to_string()),
                    Err(gone) => return self.fail(gone.to_string()),
                },
                Some(lease) => {
                    if let Ok(Err(_)) = handle.renew_session(lease.session).await {
                        self.lapsed(lease);
                        continue;
                    }
                }
            }
            self.sleep(Duration::from_nanos(options.lease.as_nanos() / 4)).await;
        }
    }

    /// The server has taken a session back.
    fn lapsed(&self, lease: Lease) {
        if self.lease.get().is_some_and(|now| now.session == lease.session) {
            self.lease.set(None);
        }
    }

    /// Connects what is not connected, brings memory, and gives back what is too much.
    async fn attend(&self) {
        loop {
            while let Some(event) = self.client.poll_event() {
                match event {
                    Event::ConnectionBroken { id, .. } => {
                        self.down.borrow_mut().insert(id);
                    }
                    Event::MemoryWanted { kind, bytes, .. } => {
                        self.wanted.borrow_mut().insert((kind, bytes));
                    }
                    Event::Unfinished { .. } => self.unfinished.set(true),
                }
            }
            if let Some(lease) = self.lease.get() {
                let down: Vec<ConnectionId> = self.down.borrow().iter().copied().collect();
                for id in down {
                    self.connect(id, lease).await;
                }
                let wanted: Vec<(ChunkKind, u32)> = self.wanted.borrow().iter().copied().collect();
                for (kind, bytes) in wanted {
                    self.supply(kind, bytes, lease).await;
                }
                self.give_back(self.client.pool().surplus(), lease).await;
            }
            self.sleep(LOOK).await;
        }
    }

    async fn connect(&self, id: ConnectionId, lease: Lease) {
        let pool = self.client.pool();
        let local = match pool.open(id) {
            Ok(local) => local,
            Err(error) => return self.fail(error.to_string()),
        };
        match self.place.handle.connect(lease.session, local, pool.replaces(id)).await {
            // Only in the session that it was asked for.
            Ok(Ok(endpoint)) if self.lease.get().is_some_and(|now| now.session == lease.session) => {
                let rkey = self.place.info.tree.rkey;
                match pool.connected(id, RemoteSide { endpoint, rkey, registered: false }) {
                    Ok(_) => {
                        self.down.borrow_mut().remove(&id);
                    }
                    Err(error) => self.fail(error.to_string()),
                }
            }
            Ok(Ok(_)) => {}
            Ok(Err(_)) => self.lapsed(lease),
            Err(gone) => self.fail(gone.to_string()),
        }
    }

    async fn supply(&self, kind: ChunkKind, bytes: u32, lease: Lease) {
        let (handle, session) = (self.place.handle, lease.session);
        let is_now = || self.lease.get().is_some_and(|now| now.session == session);
        match handle.allocate(session, kind, bytes).await {
            Ok(Ok(supply)) => {
                let is_ours = match &supply {
                    Supply::Chunk(chunk) => {
                        matches!(handle.publish(session, chunk.address).await, Ok(Ok(())))
                    }
                    Supply::Places(_) => true,
                };
                if is_ours && is_now() {
                    self.wanted.borrow_mut().remove(&(kind, bytes));
                    supply.hand_to(self.client.pool(), 0, session.id);
                }
            }
            Ok(Err(Refusal::UnknownSession(_))) => self.lapsed(lease),
            Ok(Err(refusal)) => self.fail(refusal.to_string()),
            Err(gone) => self.fail(gone.to_string()),
        }
    }

    /// What does not arrive is lost.
    async fn give_back(&self, all: Vec<ReturnedPlaces>, lease: Lease) {
        for places in all {
            let session = SessionKey { id: places.session, ..lease.session };
            for some in places.addresses.chunks(PLACES_AT_ONCE) {
                let (handle, kind, bytes) = (self.place.handle, places.kind, places.bytes);
                let _ = handle.give_back(session, kind, bytes, some.to_vec()).await;
            }
        }
    }

    /// Gives back the locks of operations that gave up.
    async fn finish(&self) {
        loop {
            if self.unfinished.take() {
                self.client.pool().finish().await;
            }
            self.sleep(LOOK).await;
        }
    }

    /// Says goodbye.
    pub(super) async fn end(&self) {
        let (pool, handle) = (self.client.pool(), self.place.handle);
        pool.finish().await;
        if let Some(lease) = self.lease.take() {
            self.give_back(pool.take_returned(), lease).await;
            let _ = handle.close_session(lease.session).await;
        }
    }

    /// Moves everything on once: frames, time, chores, operations. Says whether the last operation has ended.
    pub(super) fn turn(&self, port: &mut Port, chores: &mut [Task<'_>], work: &mut Vec<Task<'_>>) -> bool {
        let now = self.place.clock.now();
        let any = self.client.pool().reactor().with(|nic| {
            let mut any = port.receive(nic, now);
            if nic.poll_timeout().is_some_and(|at| at <= now) {
                nic.handle_timeout(now);
            }
            let mut frame = self.frame.borrow_mut();
            while nic.poll_transmit(now, &mut frame) {
                port.send(&mut frame);
                any = true;
            }
            any
        });
        let any = self.client.turn(now) | any;
        // Tasks are few, and polling one in vain is cheap.
        let mut context = Context::from_waker(Waker::noop());
        for chore in chores {
            let _ = chore.as_mut().poll(&mut context);
        }
        work.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
        if !any {
            std::thread::yield_now();
        }
        work.is_empty()
    }
}
