//! A client's remote memory and a memory server, put together as their owners do it.
use crate::common;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use common::blocks::{Block, LARGE_BYTES, place};
use common::lab::{LOADED, Lab, SERVER, options};
use fatbtree_memserver::{ClientId, Event, FirstHop, Refusal, SessionKey};
use fatbtree_remote_memory::{
    BreakReason, Event as MemoryEvent, GlobalAddress, RemoteConfig, RemoteMemory, RemoteSide, Trouble,
};
use fatbtree_verbs::plain::PlainDevice;
use fatbtree_verbs::time::Duration;
use fatbtree_verbs::{IndexTarget, Operation, Remote};

/// One client, one server, and a first-hop switch that admits what it was told to.
struct World {
    lab: RefCell<Lab>,
    memory: RemoteMemory<PlainDevice>,
    session: SessionKey,
    /// The connection that is registered.
    admitted: Rc<Cell<Option<FirstHop>>>,
    /// Whether the controller registers connections.
    registers: Cell<bool>,
    broken: RefCell<Vec<BreakReason>>,
}

impl World {
    fn new() -> Self {
        let mut lab = Lab::new(options());
        let mut client = lab.client();
        let session = lab.open(&client).unwrap();
        let admitted: Rc<Cell<Option<FirstHop>>> = Rc::default();
        client.device.set_landing({
            let admitted = Rc::clone(&admitted);
            move |key, _| {
                let to =
                    |hop: FirstHop| Remote { address: hop.root.raw() + key * LARGE_BYTES, rkey: hop.rkey };
                admitted.get().map(to)
            }
        });
        let memory =
            RemoteMemory::new(client.device, [SERVER].into_iter(), RemoteConfig::default(), 1).unwrap();
        let (registers, broken) = (Cell::new(true), RefCell::default());
        Self { lab: RefCell::new(lab), memory, session, admitted, registers, broken }
    }

    /// Connects, as the client's owner does. The owner believes that the connection is registered, whether
    /// that is so or not.
    fn connect(&self) -> Result<(), Refusal> {
        let [id] = self.memory.connections()[..] else { panic!("one connection") };
        let local = self.memory.open(id).unwrap();
        let lab = &mut *self.lab.borrow_mut();
        let endpoint = lab.server.connect(lab.now, self.session, &local, self.memory.replaces(id))?;
        let rkey = lab.server.info().region.rkey;
        self.memory.connected(id, RemoteSide { endpoint, rkey, registered: true }).unwrap();
        self.control(lab);
        Ok(())
    }

    /// Handles events, as the server's owner does.
    fn control(&self, lab: &mut Lab) {
        lab.server.work(lab.now, 10);
        for event in lab.events() {
            match event {
                Event::Opened(hop) if self.registers.get() => self.admitted.set(Some(hop)),
                Event::Closed(hop) if self.admitted.get() == Some(hop) => self.admitted.set(None),
                _ => {}
            }
        }
    }

    /// Reads a block by an index read, as long as the connection is registered and none was refused; otherwise where it lies.
    async fn read(&self, number: u32) -> Result<Vec<u8>, Trouble> {
        let [id] = self.memory.connections()[..] else { panic!("one connection") };
        let (lane, len) = (self.memory.take_lane(), LARGE_BYTES as u32);
        let mut is_refused = false;
        loop {
            let registered = self.memory.until_up(id).await?;
            let (queue_pair, rkey) = self.memory.link(id)?;
            let address = GlobalAddress::new(SERVER, place(number)).raw();
            let operation = match registered && !is_refused {
                true => Operation::IndexRead { key: number.into(), len, target: IndexTarget::Node },
                false => Operation::Read { from: Remote { address, rkey }, len },
            };
            match self.memory.fetch(lane.to(SERVER), queue_pair, [operation]).await {
                Ok([bytes]) => return Ok(bytes.to_vec()),
                Err(Trouble::Broke(_)) => is_refused = true,
                Err(other) => return Err(other),
            }
        }
    }

    /// Reads a block; connections that break are replaced, or given up when the server does not want them.
    fn get(&self, number: u32) -> Result<Vec<u8>, Trouble> {
        let mut read = pin!(self.read(number));
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..1000 {
            if let Poll::Ready(read) = read.as_mut().poll(&mut context) {
                return read;
            }
            let now = self.lab.borrow().now;
            self.memory.turn(now);
            while let Some(MemoryEvent::ConnectionBroken { id, reason }) = self.memory.poll_event() {
                self.broken.borrow_mut().push(reason);
                self.control(&mut self.lab.borrow_mut());
                if self.connect().is_err() {
                    self.memory.abandon(id).unwrap();
                }
            }
        }
        panic!("it never ends")
    }

    /// Whether these are the bytes of a block, as it lies in the server's memory.
    fn is(&self, number: u32, bytes: &[u8]) -> bool {
        let lab = self.lab.borrow();
        let mut expected = [0; LARGE_BYTES as usize];
        lab.server.memory().read(place(number), &mut expected).unwrap();
        Block::is_whole(bytes) && bytes == expected
    }
}

#[test]
fn an_unregistered_index_read_breaks_one_queue_pair_and_the_next_read_goes_on() {
    let world = World::new();
    world.registers.set(false);
    world.connect().unwrap();
    assert!(world.is(7, &world.get(7).unwrap()));
    assert_eq!(world.broken.borrow()[..], [BreakReason::Unregistered]);
    let stats = world.memory.counters();
    assert_eq!((stats.refused_index_reads, stats.broken_connections), (1, 1));
    {
        let lab = world.lab.borrow();
        let counters = ["queue_pairs", "queue_pairs_broken", "queue_pairs_opened"];
        assert_eq!(counters.map(|name| lab.counter(name)), [1, 1, 2], "nothing of the broken one is left");
    }

    // Registered, the next one does not break.
    world.registers.set(true);
    let [id] = world.memory.connections()[..] else { panic!("one connection") };
    world.memory.abandon(id).unwrap();
    world.connect().unwrap();
    for number in [0, 5, LOADED - 1] {
        assert!(world.is(number, &world.get(number).unwrap()), "block {number}");
    }
    assert_eq!(world.broken.borrow().len(), 1);
}

#[test]
fn a_client_that_was_silent_too_long_is_cut_off_until_it_opens_another_session() {
    let mut world = World::new();
    world.connect().unwrap();
    assert!(world.is(7, &world.get(7).unwrap()));
    world.lab.borrow_mut().pass(Duration::from_secs(10));
    world.control(&mut world.lab.borrow_mut());
    assert_eq!(world.admitted.get(), None, "the first-hop entry is gone");
    let error = world.get(7).unwrap_err();
    assert!(matches!(error, Trouble::Abandoned(_)), "{error:?}");
    assert_eq!(world.connect(), Err(Refusal::UnknownSession(world.session)));

    let client = ClientId {
        host: world.session.host,
        roce: {
            let [id] = world.memory.connections()[..] else { panic!("one connection") };
            world.memory.open(id).unwrap().ip
        },
    };
    let now = world.lab.borrow().now;
    world.session = world.lab.borrow_mut().server.open_session(now, client).unwrap().session;
    world.connect().unwrap();
    assert!(world.is(7, &world.get(7).unwrap()));
    assert!(world.admitted.get().is_some());
}
