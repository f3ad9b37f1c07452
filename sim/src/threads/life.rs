//! A client in one life: its session and connections, and what moves it on.

use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Waker};

use fatbtree_blink_client::{Client, ComputeServer};
use fatbtree_blink_host::{TreeHandle, TreeInfo};
use fatbtree_memserver::ClientId;
use fatbtree_remote_memory::session_keeper::{Denied, KeeperOptions, Meaning, Notice, SessionKeeper};
use fatbtree_soft_nic::{Nic, NicConfig};
use fatbtree_verbs::time::Duration;

use super::log::Order;
use super::wires::Port;
use super::{Clock, Options};

/// Interval in which a client looks for something to be done; its first pause after a refusal.
const LOOK: Duration = Duration::from_micros(20);

/// Number and clock of a thread, and the state that it shares with the others.
pub(super) struct Place<'p> {
    /// The thread's own.
    pub(super) number: u8,
    pub(super) options: &'p Options,
    pub(super) clients: &'p ComputeServer,
    pub(super) handle: &'p TreeHandle,
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
    keeper: RefCell<SessionKeeper<TreeInfo>>,
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
        let options = KeeperOptions {
            first_pause: LOOK,
            longest_pause: LOOK * 50,
            surplus: LOOK * 50,
            ..KeeperOptions::default()
        };
        let keeper = SessionKeeper::new(client.pool().connections(), options);
        Ok(Rc::new(Self {
            place,
            client,
            name: format!("thread {} in life {number}", place.number),
            keeper: RefCell::new(keeper),
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
        self.keeper.borrow().session(0).is_some()
    }

    async fn sleep(&self, span: Duration) {
        self.client.pool().reactor().sleep(span).await;
    }

    /// Tasks of every client beside its operations.
    pub(super) fn chores<'l>(self: &Rc<Self>) -> Vec<Task<'l>>
    where
        'p: 'l,
    {
        let (session, locks) = (Rc::clone(self), Rc::clone(self));
        vec![
            Box::pin(async move { session.keep_session().await }),
            Box::pin(async move { locks.finish().await }),
        ]
    }

    /// Carries the keeper's calls to the server, which has one at a time.
    async fn keep_session(&self) {
        let (pool, clock) = (self.client.pool(), self.place.clock);
        let roce = [10, 0, 0, self.place.number].into();
        let id = ClientId { host: IpAddr::from([127, 0, 0, 1]), roce };
        // The chores that were dropped before may have left a call.
        self.keeper.borrow_mut().abandon_calls(clock.now(), pool);
        loop {
            let call = self.keeper.borrow_mut().poll_call(clock.now(), pool);
            let Some((asked, call)) = call else {
                while let Some(notice) = self.keeper.borrow_mut().poll_notice() {
                    match notice {
                        Notice::Unfinished { .. } => self.unfinished.set(true),
                        Notice::Denied { denied, .. } if denied.meaning == Meaning::No => {
                            return self.fail(denied.to_string());
                        }
                        _ => {}
                    }
                }
                self.sleep(LOOK).await;
                continue;
            };
            let answer = async { Ok::<_, Denied>(self.place.handle.call(id, call).await??) }.await;
            self.keeper.borrow_mut().handle_answer(clock.now(), pool, asked, answer);
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

    /// Finishes the client's work, and closes its sessions.
    pub(super) async fn end(&self) {
        self.client.pool().finish().await;
        self.keeper.borrow_mut().close(self.client.pool());
        while !self.keeper.borrow().is_closed() {
            self.sleep(LOOK).await;
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
        // Tasks are few, and polling a pending one is cheap.
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
