//! The client: arrays on all servers, found or made, and counters read and changed there.

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;

use bytes::Bytes;
use fatbtree_remote_memory::{
    Answer, CacheUse, Change, CommonError, GlobalAddress, HEADER_BYTES, KeyRange, Lane, LockError, LockGuard,
    Members, Op, Order, Pairs, Part, Portion, Remembered, RemoteMemory, Spread, Stop, Structure, Trouble,
    Want, export_in_order, members,
};
use fatbtree_verbs::Verbs;
use fatbtree_verbs::time::Instant;

use super::layout::{ARRAY, MEMBERS, STRUCTURE, Shape, header_of};

const HEADER: u32 = HEADER_BYTES as u32;

/// An array of counters over its servers.
pub(crate) struct Counters<V> {
    memory: Rc<RemoteMemory<V>>,
    shape: Shape,
    /// The array of each server, in their order.
    pub(crate) arrays: Vec<GlobalAddress>,
    /// A server that has begun anew.
    left: Cell<Option<u16>>,
}

/// What becomes of an attempt that a lock or a session ends.
fn stop(error: LockError) -> Stop<CommonError> {
    match error {
        // Tried again, an addition might be made twice.
        LockError::Unknown(reason) => Stop::Failed(CommonError::Unknown(reason)),
        other => stop_of_making(other),
    }
}

impl<V: Verbs> Counters<V> {
    /// Opens the structure that begins on a server, and makes arrays of zeros where there are none yet.
    pub(crate) async fn open(memory: Rc<RemoteMemory<V>>, home: u16) -> Result<Self, CommonError> {
        let mut op = memory.waiting_op(memory.take_lane());
        let opened = memory.attempt(&mut op, async |op| {
            let at = GlobalAddress::new(home, 0);
            let line = memory.read(&op.lane, at, HEADER).await?;
            // A client may be writing it.
            let (_, shape) = header_of(&line).ok_or(Stop::Later)?;
            let is_part =
                |line: &[u8; HEADER_BYTES]| header_of(line).is_some_and(|(_, found)| found == shape);
            match members(&memory, (STRUCTURE, shape.servers), MEMBERS, &op.lane, is_part).await? {
                Members::Whole => {}
                Members::Missing(_) => return Err(Stop::Later),
                Members::Parted => return Err(CommonError::Parted.into()),
            }
            let mut arrays = Vec::new();
            for server in shape.numbers() {
                arrays.push(find_or_make(&memory, op, server, shape).await?);
            }
            Ok((shape, arrays))
        });
        let (shape, arrays) = opened.await?;
        Ok(Self { memory, shape, arrays, left: Cell::default() })
    }

    /// Address of a counter; `None` if there is no such counter.
    fn at(&self, number: u64) -> Option<GlobalAddress> {
        let (server, offset) = self.shape.place(number)?;
        Some(self.arrays[server].behind(offset))
    }

    /// An operation, attempted until it has an answer, fails, or has no patience left.
    async fn answer<T>(
        &self,
        number: u64,
        mut attempt: impl AsyncFnMut(GlobalAddress, &Lane) -> Result<T, Stop<CommonError>>,
    ) -> Answer<Option<T>, CommonError> {
        let Some(at) = self.at(number) else { return Answer { result: Ok(None), round_trips: 0 } };
        let mut op = self.memory.op(self.memory.take_lane(), number, ());
        let answered = self.memory.attempt(&mut op, async |op| match self.left.get() {
            Some(server) => Err(CommonError::Lost(server).into()),
            None => attempt(at, &op.lane).await,
        });
        let result = answered.await.map(Some);
        Answer { result, round_trips: op.lane.round_trips() }
    }

    /// Reads a counter: one READ. `None` if there is no such counter.
    pub(crate) async fn get(&self, number: u64) -> Answer<Option<u64>, CommonError> {
        let read = async |at, lane: &Lane| Ok(word(&self.memory.read(lane, at, 8).await?));
        self.answer(number, read).await
    }

    /// Changes a counter under its lock, and returns its new value: CAS and READ in one round trip, WRITE and release in another. `change`
    /// gives the new value, or nothing where the counter stays. `None`: there is no such counter.
    ///
    /// After [`CommonError::Unknown`] it may have been changed; after every other error it was not.
    pub(crate) async fn update(
        &self,
        number: u64,
        change: impl Fn(u64) -> Option<u64>,
    ) -> Answer<Option<Option<u64>>, CommonError> {
        let _turn = self.memory.compete().await;
        let attempt = async |at, lane: &Lane| {
            let (lock, bytes) = LockGuard::lock_and_read(&self.memory, lane, at, 8).await.map_err(stop)?;
            let new = change(word(&bytes));
            match new {
                Some(new) => lock.write_back(&[Part { at, bytes: &new.to_le_bytes() }], lane).await,
                None => lock.release(lane).await,
            }
            .map_err(stop)?;
            Ok(new)
        };
        self.answer(number, attempt).await
    }
}

/// The array of a server, made if there is none.
async fn find_or_make<V: Verbs>(
    memory: &RemoteMemory<V>,
    op: &Op,
    server: u16,
    shape: Shape,
) -> Result<GlobalAddress, Stop<CommonError>> {
    let (at, lane) = (GlobalAddress::new(server, 0), &op.lane);
    let array_in = |line: &[u8]| {
        let (header, _) = header_of(line).ok_or(Stop::Later)?;
        Ok::<_, Stop<CommonError>>((header, Some(header.root).filter(|root| *root != GlobalAddress::NULL)))
    };
    if let (_, Some(array)) = array_in(&memory.read(lane, at, HEADER).await?)? {
        return Ok(array);
    }
    let want = Want { server, class: ARRAY, bytes: shape.array_bytes(), is_fresh: true };
    let block = memory.take(op, want).await?;
    let (writer, array) = (block.taken.writer, block.address());
    let zeros = vec![0; want.bytes as usize];
    let parts = [Part { at: array, bytes: &zeros }];
    // Whatever becomes of an attempt, its block is not used again: the header may name it.
    let _ = block.keep();
    memory.write_chain(lane.to(server), &writer, &parts, &[]).await?;
    // The header names it: from then on the memory is the array's, whatever becomes of this session.
    let (lock, line) = LockGuard::lock_and_read(memory, lane, at, HEADER).await.map_err(stop_of_making)?;
    let (header, former) = array_in(&line)?;
    if let Some(array) = former {
        lock.release(lane).await.map_err(stop_of_making)?;
        return Ok(array);
    }
    if lock.writer() != writer {
        lock.release(lane).await.map_err(stop_of_making)?;
        return Err(Stop::Later);
    }
    let header = shape.header(array, header.generation, header.region_bytes).to_bytes();
    lock.write_back(&[Part { at, bytes: &header }], lane).await.map_err(stop_of_making)?;
    Ok(array)
}

/// The same while an array is made: whether it was made, the header says.
fn stop_of_making(error: LockError) -> Stop<CommonError> {
    match error {
        // The next session has a writer again.
        LockError::Trouble(Trouble::NotWriter(_)) => Stop::Later,
        other => other.into(),
    }
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(*bytes.first_chunk().expect("eight bytes were asked for"))
}

/// Error of an operation that counters do not have.
fn lacks<T>(operation: &'static str) -> Answer<T, CommonError> {
    Answer { result: Err(CommonError::Lacks { structure: NAME, operation }), round_trips: 0 }
}

const NAME: &str = "counter array";

/// Counters as keys with values of eight bytes. Each is there from the beginning, and for ever.
impl<V: Verbs + 'static> Counters<V> {
    fn keys_of(&self, range: KeyRange) -> std::ops::Range<u64> {
        range.low..range.high.unwrap_or(u64::MAX).min(self.shape.counters.into())
    }

    async fn pairs(&self, keys: impl Iterator<Item = u64>) -> Answer<Pairs, CommonError> {
        let (mut pairs, mut all) = (Vec::new(), 0);
        for key in keys {
            let Answer { result, round_trips } = self.get(key).await;
            all += round_trips;
            match result {
                Ok(value) => {
                    pairs.extend(value.map(|value| (key, Bytes::copy_from_slice(&value.to_le_bytes()))))
                }
                Err(error) => return Answer { result: Err(error), round_trips: all },
            }
        }
        Answer { result: Ok(pairs), round_trips: all }
    }
}

impl<V: Verbs + 'static> Structure for Counters<V> {
    type Value = [u8; 8];
    type Error = CommonError;
    type Cursor = u64;

    const NAME: &'static str = NAME;
    const LACKS: &'static [&'static str] = &["insert", "delete"];

    fn now(&self) -> Instant {
        self.memory.reactor().now()
    }

    async fn sleep_until(&self, at: Instant) {
        self.memory.reactor().sleep(at - self.now()).await;
    }

    async fn get(&self, key: u64) -> Answer<Option<[u8; 8]>, CommonError> {
        self.get(key).await.map(|value| value.map(u64::to_le_bytes))
    }

    async fn change(&self, key: u64, change: Change<'_>) -> Answer<bool, CommonError> {
        let Some(value) = change.value() else { return lacks("delete") };
        let (new, expected) = match (change, value.first_chunk()) {
            (Change::Insert(_), _) => return lacks("insert"),
            (_, Some(bytes)) if value.len() == 8 => (u64::from_le_bytes(*bytes), change.expected()),
            _ => {
                let error = CommonError::TooLong { found: value.len(), most: 8 };
                return Answer { result: Err(error), round_trips: 0 };
            }
        };
        let is_expected = |old: u64| expected.is_none_or(|expected| expected == old.to_le_bytes().as_slice());
        let changed = self.update(key, |old| is_expected(old).then_some(new)).await;
        changed.map(|changed| changed.flatten().is_some())
    }

    async fn scan(&self, range: KeyRange, order: Order, most: usize) -> Answer<Pairs, CommonError> {
        let keys = self.keys_of(range);
        match order {
            Order::Forward => self.pairs(keys.take(most)).await,
            Order::Backward => self.pairs(keys.rev().take(most)).await,
        }
    }

    fn export(
        &self,
        from: u64,
        most: usize,
    ) -> impl Future<Output = Answer<Portion<Bytes, u64>, CommonError>> {
        export_in_order(self, from, most)
    }

    fn is_unknown(error: &CommonError) -> bool {
        matches!(error, CommonError::Unknown(_))
    }
}

impl<V: Verbs + 'static> Spread for Counters<V> {
    type Verbs = V;
    type Info = Shape;
    /// The sum of all counters, in words.
    type Verified = String;
    type Fault = CommonError;

    const REMEMBERS: Remembered = Remembered::Places;
    const REMEMBERED: u64 = 0;

    fn servers(shape: &Shape) -> u32 {
        shape.servers
    }

    fn home(shape: &Shape) -> u16 {
        shape.home()
    }

    async fn open(memory: Rc<RemoteMemory<V>>, server: u16, _: u64) -> Result<Self, CommonError> {
        Self::open(memory, server).await
    }

    fn cache_use(&self) -> CacheUse {
        CacheUse::default()
    }

    fn memory(&self) -> &Rc<RemoteMemory<V>> {
        &self.memory
    }

    fn leave(&self, server: u16) {
        self.left.set(Some(server));
    }

    fn finish(&self) -> impl Future<Output = ()> {
        self.memory.finish()
    }

    async fn verify(&self) -> Result<String, CommonError> {
        let mut sum = 0_u64;
        for number in 0..self.shape.counters.into() {
            sum = sum.wrapping_add(self.get(number).await.result?.unwrap_or(0));
        }
        Ok(format!("whole: {}, which add up to {sum}", self.shape))
    }
}
