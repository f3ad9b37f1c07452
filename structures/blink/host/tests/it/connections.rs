//! A client's pool and a memory server, put together as their owners do it.
use crate::common;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use common::lab::{Lab, options};
use common::value_of;
use fatbtree_blink::{
    BreakReason, CommonError, Event as PoolEvent, OperationError, Pool, PoolConfig, RemoteSide, Start,
    SuperRoot,
};
use fatbtree_blink_host::TreeEvent;
use fatbtree_memserver::{FirstHop, Refusal, SessionKey};
use fatbtree_verbs::Remote;
use fatbtree_verbs::plain::PlainDevice;
use fatbtree_verbs::time::Duration;

/// One client, one server, and a first-hop switch that admits what it was told to.
struct World {
    lab: RefCell<Lab>,
    pool: Pool<PlainDevice>,
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
            move |_, _| admitted.get().map(|hop| Remote { address: hop.root.raw(), rkey: hop.rkey })
        });
        let info = *lab.server.info();
        let roots = SuperRoot::new(vec![info.partition]).unwrap();
        let config = PoolConfig { tree: info.config, ..PoolConfig::default() };
        let pool = Pool::new(client.device, config, roots, 1).unwrap();
        let (registers, broken) = (Cell::new(true), RefCell::default());
        Self { lab: RefCell::new(lab), pool, session, admitted, registers, broken }
    }

    /// Connects, as the client's owner does. The owner believes that the connection is registered, whether
    /// that is so or not.
    fn connect(&self) -> Result<(), Refusal> {
        let [id] = self.pool.connections()[..] else { panic!("one connection") };
        let local = self.pool.open(id).unwrap();
        let lab = &mut *self.lab.borrow_mut();
        let endpoint = lab.server.connect(lab.now, self.session, &local, self.pool.replaces(id))?;
        let rkey = lab.server.info().region.rkey;
        self.pool.connected(id, RemoteSide { endpoint, rkey, registered: true }).unwrap();
        self.control(lab);
        Ok(())
    }

    /// Handles events, as the server's owner does.
    fn control(&self, lab: &mut Lab) {
        lab.server.work(lab.now, 10);
        for event in lab.events() {
            match event {
                TreeEvent::Opened(hop) if self.registers.get() => self.admitted.set(Some(hop)),
                TreeEvent::Closed(hop) if self.admitted.get() == Some(hop) => self.admitted.set(None),
                _ => {}
            }
        }
    }

    /// Looks up a key; connections that break are replaced, or given up when the server does not want them.
    fn get(&self, key: u64) -> Result<Option<Vec<u8>>, OperationError> {
        let mut lookup = pin!(self.pool.lookup(key, Start::IndexRead));
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..1000 {
            if let Poll::Ready(lookup) = lookup.as_mut().poll(&mut context) {
                return lookup.result.map(|value| value.map(|value| value.to_vec()));
            }
            let now = self.lab.borrow().now;
            self.pool.turn(now);
            while let Some(PoolEvent::ConnectionBroken { id, reason }) = self.pool.poll_event() {
                self.broken.borrow_mut().push(reason);
                self.control(&mut self.lab.borrow_mut());
                if self.connect().is_err() {
                    self.pool.abandon(id).unwrap();
                }
            }
        }
        panic!("it never ends")
    }

    fn expected(&self, key: u64) -> Result<Option<Vec<u8>>, OperationError> {
        let config = self.lab.borrow().server.info().config;
        Ok((key < 1000).then(|| value_of(&config, key)))
    }
}

#[test]
fn an_unregistered_index_read_breaks_one_queue_pair_and_the_lookup_goes_on() {
    let world = World::new();
    world.registers.set(false);
    world.connect().unwrap();
    assert_eq!(world.get(7), world.expected(7));
    assert_eq!(world.broken.borrow()[..], [BreakReason::Unregistered]);
    let stats = world.pool.stats();
    assert_eq!(
        (stats.remote.refused_index_reads, stats.remote.broken_connections, stats.restarts),
        (1, 1, 1)
    );
    {
        let lab = world.lab.borrow();
        let counters = ["queue_pairs", "queue_pairs_broken", "queue_pairs_opened"];
        assert_eq!(counters.map(|name| lab.counter(name)), [1, 1, 2], "nothing of the broken one is left");
    }

    // Registered, the next one does not break.
    world.registers.set(true);
    let [id] = world.pool.connections()[..] else { panic!("one connection") };
    world.pool.abandon(id).unwrap();
    world.connect().unwrap();
    for key in [0, 500, 999, 1000, u64::MAX] {
        assert_eq!(world.get(key), world.expected(key));
    }
    assert_eq!(world.broken.borrow().len(), 1);
}

#[test]
fn a_client_that_was_silent_too_long_is_cut_off_until_it_opens_another_session() {
    let mut world = World::new();
    world.connect().unwrap();
    assert_eq!(world.get(7), world.expected(7));
    world.lab.borrow_mut().pass(Duration::from_secs(10));
    world.control(&mut world.lab.borrow_mut());
    assert_eq!(world.admitted.get(), None, "the first-hop entry is gone");
    let error = world.get(7).unwrap_err();
    assert!(matches!(error, OperationError::Common { error: CommonError::Abandoned(_), .. }), "{error}");
    assert_eq!(world.connect(), Err(Refusal::UnknownSession(world.session)));

    let client = fatbtree_memserver::ClientId {
        host: world.session.host,
        roce: {
            let [id] = world.pool.connections()[..] else { panic!("one connection") };
            world.pool.open(id).unwrap().ip
        },
    };
    let now = world.lab.borrow().now;
    world.session = world.lab.borrow_mut().server.open_session(now, client).unwrap().session;
    world.connect().unwrap();
    assert_eq!(world.get(7), world.expected(7));
    assert!(world.admitted.get().is_some());
}
