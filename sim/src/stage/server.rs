//! A memory server in all its lives.

use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::sync::Arc;

use fatbtree_memserver::{
    Answer, Ask, Bounds, ClientId, Event, FolderError, Limits, Loaded, MemoryServer, Part, PartOptions,
    Request, ServerOptions, Tenant, Unanswered, found_again, make,
};
use fatbtree_remote_memory::session_keeper::{Call, Denied, Granted, NoAnswer};
use fatbtree_remote_memory::{Origin, ServerSet};
use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{Access, Memory};
use tokio::sync::oneshot::{self, error::TryRecvError};

use super::LOOK;
use crate::world::{Machine, MachineOptions, SimDevice, World};

/// Blocks and sessions that a server looks at in a turn.
const BUDGET: usize = 64;

const ROOM: &str = "there is memory for a table of chunk classes";

/// Options of a server whose clients die often: it never refuses one for its predecessors.
#[must_use]
pub fn options(chunk_bytes: u64, lease: Duration) -> ServerOptions {
    let bounds = Bounds { sessions: 1 << 20, queue_pairs: 1 << 20, chunks: 1 << 20, attempts: u32::MAX };
    let limits = Limits { client: bounds, host: bounds, server: bounds, ..Limits::default() };
    ServerOptions {
        access: Access::ALL,
        lock_table_bytes: 64,
        chunk_bytes,
        lease,
        limits,
        ..ServerOptions::writable()
    }
}

/// Starts servers with these numbers, a bit each. `make` makes the part of each.
pub fn serve<P: Part + Clone>(
    world: &World,
    servers: u32,
    options: &ServerOptions,
    make: impl Fn(u16) -> Loaded<P>,
) -> Vec<Rc<Server<P>>> {
    let all: Vec<_> = ServerSet(servers)
        .numbers()
        .map(|number| Server::start(world, make(number), options.clone()))
        .collect();
    for server in &all {
        server.fellows.replace(all.iter().map(Rc::downgrade).collect());
    }
    all
}

/// A memory server of production with its part of a structure, in all its lives. Its process is asked directly, as if the network for calls
/// were perfect; verbs go through the simulated one.
pub struct Server<P: Part> {
    /// Its machine.
    pub machine: Machine,
    /// Its number.
    pub number: u16,
    options: ServerOptions,
    content: RefCell<Loaded<P>>,
    process: RefCell<Option<MemoryServer<SimDevice, P>>>,
    syncs: Cell<bool>,
    damage: RefCell<Option<String>>,
    /// All servers of the structure.
    fellows: RefCell<Vec<Weak<Self>>>,
    /// Questions of the process to other servers that are on their way.
    asked: RefCell<Vec<(Ask, Answering)>>,
}

/// The way on which an answer to a question comes.
type Answering = oneshot::Receiver<Result<Answer, Unanswered>>;

impl<P: Part> std::fmt::Debug for Server<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("number", &self.number).finish_non_exhaustive()
    }
}

impl<P: Part + Clone> Server<P> {
    /// Starts a server with its part of a structure. A task of the operator works for its process.
    #[must_use]
    pub fn start(world: &World, content: Loaded<P>, options: ServerOptions) -> Rc<Self> {
        let number = content.server;
        let server = Rc::new(Self {
            machine: world.machine(MachineOptions::named(format!("server {number}"))),
            number,
            content: RefCell::new(content.with_chunk_classes(options.chunk_bytes).expect(ROOM)),
            options,
            process: RefCell::default(),
            syncs: Cell::default(),
            damage: RefCell::default(),
            fellows: RefCell::default(),
            asked: RefCell::default(),
        });
        server.begin(u64::from(number) + 1);
        let (worked, operator) = (Rc::clone(&server), world.operator().clone());
        drop(world.operator().spawn(async move {
            loop {
                worked.work();
                operator.sleep(LOOK).await;
            }
        }));
        server
    }

    /// Starts the process, with the memory that there is.
    fn begin(&self, seed: u64) {
        let content = self.content.borrow().clone();
        let process = MemoryServer::new(self.machine.device(), content, &self.options, seed);
        *self.process.borrow_mut() = Some(process.expect("the part fits the card"));
    }

    fn work(&self) {
        let mut asks = Vec::new();
        if let Some(process) = &mut *self.process.borrow_mut() {
            process.work(self.machine.now(), BUDGET);
            while let Some(event) = process.poll_event() {
                asks.extend(match event {
                    Event::Ask(ask) => Some(ask),
                    _ => None,
                });
            }
        }
        asks.into_iter().for_each(|ask| self.carry(ask));
        self.take_answers();
    }

    /// Carries a question of this process to another one. A server that is away does not answer.
    fn carry(&self, ask: Ask) {
        let (reply, answer) = oneshot::channel();
        let fellows = self.fellows.borrow();
        if let Some(of) = fellows.iter().filter_map(Weak::upgrade).find(|of| of.number == ask.of)
            && let Some(process) = &mut *of.process.borrow_mut()
        {
            process.handle(self.machine.now(), Request::Ask { ask, reply });
        }
        self.asked.borrow_mut().push((ask, answer));
    }

    /// Brings answers to the process.
    fn take_answers(&self) {
        let mut process = self.process.borrow_mut();
        self.asked.borrow_mut().retain_mut(|(ask, answer)| {
            let answer = match answer.try_recv() {
                Err(TryRecvError::Empty) => return true,
                answer => answer.ok().and_then(Result::ok),
            };
            if let Some(process) = &mut *process {
                process.handle(self.machine.now(), Request::Answered { ask: *ask, answer });
            }
            false
        });
    }

    /// Says to the clients of sessions that begin from now on that a sync of the server's disk has to be asked for.
    pub fn keep_on_disk(&self) {
        self.syncs.set(true);
    }

    /// The process dies with its machine. The memory is kept, torn as it is.
    pub fn die(&self) {
        self.process.borrow_mut().take();
        self.machine.kill();
    }

    /// The process dies with its machine, and the memory is lost: the next life begins with an empty part.
    pub fn lose(&self, origin: Origin) {
        self.die();
        let lost = &mut *self.content.borrow_mut();
        let options = PartOptions {
            spare_bytes: lost.spare.end - lost.spare.start,
            generation: lost.generation + 1,
            origin,
            chunk_bytes: self.options.chunk_bytes,
            ..PartOptions::new(self.number, lost.tenant.shape())
        };
        let empty = make(&options).expect("such a part was made before");
        *lost = empty.with_chunk_classes(self.options.chunk_bytes).expect(ROOM);
    }

    /// Starts the machine and the process anew. The part is checked as one that is found in a folder.
    pub fn revive(&self, seed: u64) {
        match self.found() {
            Ok(content) => *self.content.borrow_mut() = content,
            // It would not start, and operations on it would wait.
            Err(damage) => return drop(self.damage.borrow_mut().replace(damage.to_string())),
        }
        self.machine.boot();
        self.begin(seed);
    }

    fn found(&self) -> Result<Loaded<P>, FolderError> {
        let part = self.content.borrow();
        let table = part.chunk_classes.clone().expect("each part was given one");
        found_again(&part, table, self.options.chunk_bytes)
    }

    /// Damage for which a start was refused: dead clients never leave any.
    #[must_use]
    pub fn damage(&self) -> Option<String> {
        self.damage.borrow().as_ref().map(|damage| format!("server {}: {damage}", self.number))
    }

    /// Its part of the structure, as its process has found it.
    #[must_use]
    pub fn content(&self) -> Loaded<P> {
        self.content.borrow().clone()
    }

    /// Its region, also when it has died.
    #[must_use]
    pub fn region(&self) -> Arc<Memory> {
        Arc::clone(&self.content.borrow().region)
    }

    /// Key of its memory, while the process lives.
    pub(crate) fn rkey(&self) -> Option<u32> {
        self.process.borrow().as_ref().map(|process| process.info().region.rkey)
    }

    /// A counter of the process.
    #[must_use]
    pub fn count(&self, name: &str) -> u64 {
        let process = self.process.borrow();
        let all = process.as_ref().map(MemoryServer::statistics).unwrap_or_default();
        all.into_iter().find(|(found, _)| found == name).map_or(0, |(_, count)| count)
    }

    /// Carries out a call of a client.
    pub(super) fn carry_out(
        &self,
        client: &Machine,
        call: Call,
    ) -> Result<Granted<<P as Tenant>::Description>, Denied> {
        let roce = client.reactor().with(|card| card.address());
        match &mut *self.process.borrow_mut() {
            Some(process) => {
                let id = ClientId { host: roce.into(), roce };
                let mut granted = process.carry_out(client.now(), id, call)?;
                if let Granted::Opened(opened) = &mut granted {
                    opened.info.syncs |= self.syncs.get();
                }
                Ok(granted)
            }
            None => Err(NoAnswer.into()),
        }
    }
}
