//! The first table as one of several structures of keys and values: each operation is a transaction of one key.

use std::borrow::Cow;
use std::fmt;
use std::future::Future;
use std::rc::Rc;

use bytes::Bytes;
use fatbtree_remote_memory::{
    Answer, CacheUse, Change, CommonError, GlobalAddress, KeyRange, Order, Pairs, Portion, Remembered,
    RemoteMemory, Spread, Step, Stepped, Structure, Wanted,
};
use fatbtree_verbs::Verbs;
use fatbtree_verbs::time::Instant;

use super::{ASK, AddressStats, Addresses, Fault, Tables, Transaction, Verdict, Verified, Want};
use crate::error::DtxError;
use crate::layout::{PAIRS, Shape};
use crate::value::{pack, unpack};

/// Name for people.
const NAME: &str = "transactional table";

/// Bytes of an address.
const ADDRESS_BYTES: u64 = 8;

impl<V: Verbs> Tables<V> {
    /// Changes a key of the first table in a transaction of its own.
    async fn change_pair(&self, key: u64, change: Change<'_>) -> Answer<bool, DtxError> {
        let value_bytes = self.shape.value_bytes(PAIRS);
        let packed = change.value().map(|value| pack(value, value_bytes)).transpose();
        let expected = change.expected().map(|value| pack(value, value_bytes));
        let (packed, expected) = match (packed, expected) {
            (Err(error), _) => return Answer { result: Err(error), round_trips: 0 },
            (Ok(packed), None) => (packed, None),
            (Ok(packed), Some(Ok(expected))) => (packed, Some(expected)),
            // No value is so long.
            (Ok(packed), Some(Err(_))) => (packed, Some(Vec::new())),
        };
        let ran = self.run(async |tx: &mut Transaction<'_, V>| {
            let [item] = tx.fetch([Want::write(PAIRS, key)]).await?;
            let found = tx.value(item);
            let is_expected = expected.as_deref().is_none_or(|expected| found == Some(expected));
            if !change.applies(found.is_some()) || !is_expected {
                return Ok(Verdict::Abort(false));
            }
            match &packed {
                Some(value) => tx.put(item, value)?,
                None => drop(tx.remove(item)?),
            }
            Ok(Verdict::Commit(true))
        });
        let super::Answer { result, round_trips, .. } = ran.await;
        Answer { result, round_trips }
    }
}

impl<V: Verbs> Transaction<'_, V> {
    /// Carries out a step that does not end the transaction. Values are [packed](pack).
    async fn step(&mut self, step: Step) -> Result<Stepped, DtxError> {
        let item = match &step {
            Step::Commit | Step::Abort => return Ok(Stepped::Done),
            Step::Get(wanted) => return self.values(wanted).await.map(Stepped::Values),
            Step::Put(item, _) | Step::Insert(item, _) | Step::Delete(item) => *item,
        };
        let table = self.tables.shape().tables().get(usize::from(item.table));
        let value_bytes = table.ok_or(DtxError::NoTable(item.table))?.value_bytes;
        let packed = match &step {
            // One that is too long is refused before anything is locked.
            Step::Put(_, value) | Step::Insert(_, value) => pack(value, value_bytes.into())?,
            _ => Vec::new(),
        };
        let [found] = self.fetch([Want::write(item.table, item.key)]).await?;
        match step {
            Step::Insert(..) => {
                let is_new = self.value(found).is_none();
                if is_new {
                    self.put(found, &packed)?;
                }
                Ok(Stepped::Applied(is_new))
            }
            Step::Delete(_) => self.remove(found).map(Stepped::Applied),
            _ => self.put(found, &packed).map(|()| Stepped::Done),
        }
    }

    async fn values(&mut self, wanted: &[Wanted]) -> Result<Vec<Option<Bytes>>, DtxError> {
        let want = |Wanted { item, for_update }: &Wanted| Want {
            table: item.table,
            key: item.key,
            writes: *for_update,
        };
        let wants: Vec<_> = wanted.iter().map(want).collect();
        let found = self.fetch_all(&wants).await?;
        let value = |item| self.value(item).map(|value| Bytes::copy_from_slice(unpack(value)));
        Ok(found.into_iter().map(value).collect())
    }
}

impl<V: Verbs> Tables<V> {
    /// Looks after a lock that has been in the way of several attempts, as [`run`](Self::run) does.
    async fn ask_again(&self, attempt: u32, at: GlobalAddress, lock: u64) {
        if attempt.wrapping_add(1).is_multiple_of(ASK) {
            // What fails here is asked again after further attempts.
            let _asked = self.ask_after(at, lock).await;
        }
    }
}

impl<V: Verbs + 'static> Structure for Tables<V> {
    type Value = Bytes;
    type Error = DtxError;
    /// The next node.
    type Cursor = u32;

    const NAME: &'static str = NAME;

    /// It has no order of keys.
    const LACKS: &'static [&'static str] = &["scan", "scan_backward"];

    fn now(&self) -> Instant {
        self.memory.reactor().now()
    }

    async fn sleep_until(&self, at: Instant) {
        self.memory.reactor().sleep(at - self.now()).await;
    }

    async fn get(&self, key: u64) -> Answer<Option<Bytes>, DtxError> {
        let read = async |tx: &mut Transaction<'_, V>| {
            let found = tx.read(PAIRS, key).await?;
            Ok(Verdict::Commit(found.map(|value| Bytes::copy_from_slice(unpack(value)))))
        };
        let super::Answer { result, round_trips, .. } = self.run(read).await;
        Answer { result, round_trips }
    }

    fn change(&self, key: u64, change: Change<'_>) -> impl Future<Output = Answer<bool, DtxError>> {
        self.change_pair(key, change)
    }

    async fn scan(&self, _: KeyRange, order: Order, _: usize) -> Answer<Pairs, DtxError> {
        let lacks = CommonError::Lacks { structure: NAME, operation: order.operation() };
        Answer { result: Err(lacks.into()), round_trips: 0 }
    }

    async fn export(&self, from: u32, most: usize) -> Answer<Portion<Bytes, u32>, DtxError> {
        self.export(PAIRS, from, most).await.map(|Portion { pairs, rest }| {
            let unpacked = |(key, value): (u64, Bytes)| {
                let part = unpack(&value);
                (key, value.slice_ref(part))
            };
            Portion { pairs: pairs.into_iter().map(unpacked).collect(), rest }
        })
    }

    fn is_unknown(error: &DtxError) -> bool {
        matches!(error, DtxError::Unknown | DtxError::Common(CommonError::Unknown(_)))
    }

    const TRANSACTS: bool = true;

    async fn transact(
        &self,
        attempt: u32,
        mut next: impl AsyncFnMut(Result<Stepped, DtxError>) -> Option<Step>,
    ) -> u32 {
        let mut tx = match self.begin().await {
            Ok(tx) => tx,
            Err(error) => {
                let _no_step = next(Err(error)).await;
                return 0;
            }
        };
        let mut result = Ok(Stepped::Done);
        let ended = loop {
            let conflict = match &result {
                Err(DtxError::Conflict { at, lock }) => Some((*at, *lock)),
                _ => None,
            };
            match next(result).await {
                Some(Step::Commit) => break tx.finish().await,
                Some(Step::Abort) | None => {
                    tx.give_up().await;
                    // The transaction in the way may be a dead client's.
                    if let Some((at, lock)) = conflict {
                        self.ask_again(attempt, at, lock).await;
                    }
                    break Ok(());
                }
                Some(step) => result = tx.step(step).await,
            }
        };
        if let Err(DtxError::Conflict { at, lock }) = ended {
            self.ask_again(attempt, at, lock).await;
        }
        // What was left under it is settled before its client goes on: others would wait for it.
        let _left_again = Self::finish(self).await;
        next(ended.map(|()| Stepped::Done)).await;
        tx.round_trips()
    }

    fn is_conflict(error: &DtxError) -> bool {
        error.is_temporary()
    }
}

impl<V: Verbs + 'static> Spread for Tables<V> {
    type Verbs = V;
    type Info = Shape;
    type Verified = Verified;
    type Fault = Fault;

    const REMEMBERS: Remembered = Remembered::Places;

    /// 65536 addresses.
    const REMEMBERED: u64 = 512 << 10;

    fn servers(shape: &Shape) -> u32 {
        shape.servers
    }

    fn home(shape: &Shape) -> u16 {
        shape.server(0)
    }

    async fn open(memory: Rc<RemoteMemory<V>>, server: u16, remembered: u64) -> Result<Self, DtxError> {
        let addresses = Addresses::new((remembered / ADDRESS_BYTES) as usize);
        Self::open_knowing(memory, server, Rc::new(addresses)).await
    }

    fn cache_use(&self) -> CacheUse {
        let AddressStats { hits, misses, stale, bytes, known: entries } = self.addresses().stats();
        CacheUse { hits, misses, stale, bytes, entries }
    }

    fn memory(&self) -> &Rc<RemoteMemory<V>> {
        self.memory()
    }

    /// A server that has begun anew is filled from the others: no operation fails for that alone.
    fn leave(&self, _: u16) {}

    /// Settles transactions that were dropped, and gives back locks of fills.
    async fn finish(&self) {
        // What cannot be settled now is left once more, and the owner is told of it.
        let _left_again = Self::finish(self).await;
        self.memory.finish().await;
    }

    async fn verify(&self) -> Result<Verified, Fault> {
        self.ready().await?;
        Self::verify(self, |_, _, _| {}).await
    }
}

/// Words for people: `whole: 5000 keys, 3 slots of deleted ones, 0 locks, 0 open logs`.
impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { keys, deleted, locks, logs, .. } = self;
        let rest = match (locks, logs) {
            (0, 0) => Cow::Borrowed(""),
            _ => format!(", and what dead clients have left: {locks} locks, {logs} logs").into(),
        };
        write!(f, "whole: {keys} keys on all of their replicas, {deleted} slots of deleted ones{rest}")
    }
}
