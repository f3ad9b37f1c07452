//! The tables as one client uses them.

mod commit;
mod coordinator;
mod export;
mod fetch;
mod fill;
mod places;
mod plan;
mod recover;
mod structure;
mod transaction;
mod verify;
mod whole;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use fatbtree_remote_memory::{CommonError, GlobalAddress, HEADER_BYTES, Lane, Op, RemoteMemory};
use fatbtree_verbs::Verbs;

use crate::checks::Check;
use crate::error::{DtxError, Stop};
use crate::layout::Shape;
use coordinator::{Coordinator, Identity};
pub use places::{AddressStats, Addresses};
use plan::Plan;
use recover::Job;
pub use transaction::{Item, Transaction, Want};
pub use verify::{Fault, Verified};

/// Attempts behind which a client asks whether the transaction in its way is dead.
const ASK: u32 = 4;

/// Addresses that a client remembers by default: 512 KiB of memory.
const ADDRESSES: usize = 1 << 16;

/// Result of a transaction's function.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict<T> {
    /// The transaction is to be committed.
    Commit(T),
    /// The transaction is to be aborted. This is not tried again.
    Abort(T),
}

/// Result of a transaction that was [run](Tables::run), and what it took.
#[derive(Debug)]
pub struct Answer<T> {
    /// The result.
    pub result: Result<T, DtxError>,
    /// Round trips of the transactions of all attempts.
    pub round_trips: u32,
    /// Attempts, the last one included.
    pub attempts: u32,
}

/// Tables in the memory of several servers, as one thread uses them. Any number of its transactions run at once.
///
/// Tables are opened on a [`RemoteMemory`] whose sessions a keeper keeps. Transactions wait for connections that are being made.
///
/// Several `Tables` of one shape on one memory share what the client has of them: seats, and transactions that were not settled. So what is
/// left when one is dropped, another one settles. Whenever something is left the memory raises
/// [`Event::Unfinished`](fatbtree_remote_memory::Event::Unfinished): the owner then runs [`finish`](Self::finish).
pub struct Tables<V: Verbs> {
    memory: Rc<RemoteMemory<V>>,
    shape: Shape,
    addresses: Rc<Addresses>,
    state: Rc<RefCell<State>>,
}

/// What a client has of tables, by their shape.
#[derive(Default)]
struct States(RefCell<Vec<(Shape, Rc<RefCell<State>>)>>);

impl States {
    fn of(&self, shape: &Shape) -> Rc<RefCell<State>> {
        let mut all = self.0.borrow_mut();
        if let Some((_, state)) = all.iter().find(|(of, _)| of == shape) {
            return Rc::clone(state);
        }
        let state = Rc::<RefCell<State>>::default();
        all.push((*shape, Rc::clone(&state)));
        state
    }
}

#[derive(Default)]
struct State {
    identity: Option<Rc<Identity>>,
    /// Seats without a transaction.
    idle: Vec<Coordinator>,
    /// What was not settled.
    left: Vec<Left>,
    /// Seats, by position and number, that this client has claimed, or may have, and not given up for certain. None of them is claimed
    /// once more: its word would be the same, and what is left of the former claim would end the later one.
    seats: BTreeSet<(usize, u16)>,
    /// Number of the last transaction.
    sequence: u64,
    /// Memory of plans, to be used again.
    plans: Vec<Plan>,
}

/// What this client has to bring to its end: an own transaction, the recovery of another one, or seats.
#[derive(Debug, Default)]
struct Left {
    /// Seats that are claimed, or may be, and whether they may be used again.
    coordinator: Option<(Coordinator, bool)>,
    /// Locks that the coordinator has taken, or may have.
    locks: Vec<GlobalAddress>,
    /// Recovery of a transaction whose log may be open.
    job: Option<Box<Job>>,
}

impl<V: Verbs> std::fmt::Debug for Tables<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tables").field("shape", &self.shape).finish_non_exhaustive()
    }
}

impl<V: Verbs> Tables<V> {
    /// Opens the tables that lie on a server and others: reads the region's first lines.
    ///
    /// # Errors
    /// [`DtxError::NoTables`]; and when the connection is given up, or breaks too often.
    pub async fn open(memory: Rc<RemoteMemory<V>>, server: u16) -> Result<Self, DtxError> {
        Self::open_knowing(memory, server, Rc::new(Addresses::new(ADDRESSES))).await
    }

    /// The same for a client that remembers these addresses, each of which saves a round trip.
    ///
    /// # Errors
    /// As of [`open`](Self::open).
    pub async fn open_knowing(
        memory: Rc<RemoteMemory<V>>,
        server: u16,
        addresses: Rc<Addresses>,
    ) -> Result<Self, DtxError> {
        let mut op = memory.waiting_op(memory.take_lane());
        let shape = memory.attempt(&mut op, async |op| shape_on(&memory, server, &op.lane).await).await?;
        let state = memory.shared::<States>().of(&shape);
        Ok(Self { memory, shape, addresses, state })
    }

    /// The shape of the tables.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The addresses that the client remembers.
    pub fn addresses(&self) -> &Rc<Addresses> {
        &self.addresses
    }

    /// The memory that the tables lie in.
    pub fn memory(&self) -> &Rc<RemoteMemory<V>> {
        &self.memory
    }

    /// Runs a transaction, again and again until it is committed or aborted by `work`, or patience ends. Between attempts it pauses as
    /// [`Contention`](fatbtree_remote_memory::Contention) says, and recovers transactions of dead coordinators that are in its way.
    ///
    /// `work` may be called several times: what it does besides must bear that. What an aborted transaction has read is validated like what a
    /// committed one has: so both kinds of [`Verdict`] rest on items as they were at one moment.
    pub async fn run<T>(
        &self,
        mut work: impl AsyncFnMut(&mut Transaction<'_, V>) -> Result<Verdict<T>, DtxError>,
    ) -> Answer<T> {
        let _turn = self.memory.compete().await;
        // Each transaction has the lane of its coordinator.
        let mut op = self.memory.op(Lane::new(0), 0, ());
        let attempt = async |op: &mut Op| {
            let (result, round_trips) = self.attempt(&mut work).await;
            op.lane.add(round_trips);
            let error = match result {
                Err(error) if error.is_temporary() => error,
                result => {
                    self.memory.note_attempt(false);
                    // Others would wait for it until this client's next transaction.
                    let _left_again = self.finish().await;
                    return result.map_err(Stop::Failed);
                }
            };
            self.memory.note_attempt(true);
            if let DtxError::Conflict { at, lock } = error
                && (op.attempts + 1).is_multiple_of(ASK)
                && let Err(error) = self.ask_after(at, lock).await
                && !error.is_temporary()
                && !matches!(error, DtxError::Common(CommonError::GaveUp { .. }))
            {
                return Err(Stop::Failed(error));
            }
            Err(error.into())
        };
        let result = self.memory.attempt(&mut op, attempt).await;
        Answer { result, round_trips: op.lane.round_trips(), attempts: op.attempts + 1 }
    }

    async fn attempt<T>(
        &self,
        work: &mut impl AsyncFnMut(&mut Transaction<'_, V>) -> Result<Verdict<T>, DtxError>,
    ) -> (Result<T, DtxError>, u32) {
        let mut transaction = match self.begin().await {
            Ok(transaction) => transaction,
            Err(error) => return (Err(error), 0),
        };
        let result = match work(&mut transaction).await {
            Ok(Verdict::Commit(value)) => transaction.finish().await.map(|()| value),
            Ok(Verdict::Abort(value)) => transaction.end_unchanged().await.map(|()| value),
            Err(error) => {
                transaction.give_up().await;
                Err(error)
            }
        };
        (result, transaction.round_trips())
    }

    /// Begins a transaction. In a steady state this takes no round trip. A client that has just begun, or whose session has ended, claims
    /// seats first, settles what it has left, and fills servers that have lost their memory.
    ///
    /// # Errors
    /// When connections are given up, or no seat is left.
    pub async fn begin(&self) -> Result<Transaction<'_, V>, DtxError> {
        let identity = self.ready().await?;
        let coordinator = self.coordinator(&identity).await?;
        Ok(Transaction::new(self, coordinator, self.take_plan()))
    }

    /// The client's identity, when nothing is left of former transactions and all servers have their items.
    async fn ready(&self) -> Result<Rc<Identity>, DtxError> {
        loop {
            let identity = self.identity().await?;
            if !self.state.borrow().left.is_empty() {
                self.finish().await?;
                continue;
            }
            if self.are_whole(&identity).await? {
                return Ok(identity);
            }
        }
    }

    /// Settles the transactions of this client that were dropped, or whose connection broke, and gives up seats of former sessions. The
    /// next transaction does so, too; until then other clients wait for their locks. The owner runs it when
    /// [`Event::Unfinished`](fatbtree_remote_memory::Event::Unfinished) comes.
    ///
    /// # Errors
    /// When one of them cannot be settled now.
    pub async fn finish(&self) -> Result<(), DtxError> {
        loop {
            let Some(left) = self.state.borrow_mut().left.pop() else { return Ok(()) };
            self.settle(left).await?;
        }
    }

    /// Leaves something to this client's next transaction, and tells the owner.
    fn leave(&self, left: Left) {
        self.state.borrow_mut().left.push(left);
        if Check::Told.on() {
            self.memory.tell_unfinished(self.shape.server(0));
        }
    }

    /// Takes seats back that have no transaction any more.
    fn put_back(&self, coordinator: Coordinator) {
        let mut state = self.state.borrow_mut();
        let is_present =
            state.identity.as_ref().is_some_and(|identity| Rc::ptr_eq(identity, &coordinator.identity));
        if is_present && !coordinator.is_spare {
            state.idle.push(coordinator);
        } else {
            drop(state);
            self.leave(Left { coordinator: Some((coordinator, false)), ..Left::default() });
        }
    }

    /// A number for a transaction.
    fn next_sequence(&self) -> u64 {
        let mut state = self.state.borrow_mut();
        state.sequence += 1;
        state.sequence
    }

    fn take_plan(&self) -> Plan {
        self.state.borrow_mut().plans.pop().unwrap_or_default()
    }

    fn keep_plan(&self, mut plan: Plan) {
        plan.clear();
        self.state.borrow_mut().plans.push(plan);
    }
}

/// Something that is left again if it is not settled.
struct Keep<'t, V: Verbs> {
    tables: &'t Tables<V>,
    left: Option<Left>,
}

impl<V: Verbs> Drop for Keep<'_, V> {
    fn drop(&mut self) {
        if let Some(left) = self.left.take() {
            self.tables.leave(left);
        }
    }
}

/// Shape of the tables that lie on a server.
async fn shape_on<V: Verbs>(memory: &RemoteMemory<V>, server: u16, lane: &Lane) -> Result<Shape, Stop> {
    let head = memory.read(lane, GlobalAddress::new(server, 0), 2 * HEADER_BYTES as u32).await?;
    Ok(Shape::of_head(&head).ok_or(DtxError::NoTables { server })?)
}
