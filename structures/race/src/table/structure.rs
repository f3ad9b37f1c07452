//! The table as one of several structures of keys and values.

use std::future::Future;
use std::rc::Rc;

use bytes::Bytes;
use fatbtree_remote_memory::{
    BytesExported, BytesPairs, BytesRange, CacheUse, CommonError, KeyRange, Keys, Order, Pairs, Portion,
    Remembered, RemoteMemory, Spread, Structure, copied,
};
use fatbtree_verbs::Verbs;
use fatbtree_verbs::time::Instant;

use super::speculate::PlaceStats;
use super::{Answer, Change, Cursor, Table, Value};
use crate::error::TableError;
use crate::key::Key;
use crate::layout::TableInfo;
use crate::verify::{Fault, Verified};

/// Name for people.
pub(super) const NAME: &str = "hash table";

/// Error of a scan in order.
const fn lacks(order: Order) -> CommonError {
    CommonError::Lacks { structure: NAME, operation: order.operation() }
}

impl<V: Verbs + 'static> Table<V> {
    /// Exports copies of pairs whose keys are all of one kind.
    async fn export_as<K>(
        &self,
        keys: Keys,
        from: Cursor,
        most: usize,
        as_one: impl Fn(Key) -> Option<K>,
    ) -> Answer<Portion<Bytes, Cursor, K>> {
        if let Err(error) = self.check_kind(keys) {
            return Answer { result: Err(error), round_trips: 0 };
        }
        let copied = |Portion { pairs, rest }: Portion<Value, Cursor, Key>| {
            let pairs = copied(pairs).into_iter().filter_map(|(key, value)| Some((as_one(key)?, value)));
            Portion { pairs: pairs.collect(), rest }
        };
        self.export(from, most).await.map(copied)
    }
}

impl<V: Verbs + 'static> Structure for Table<V> {
    type Value = Value;
    type Error = TableError;
    type Cursor = Cursor;

    const NAME: &'static str = NAME;

    /// It has no order of keys.
    const LACKS: &'static [&'static str] = &["scan", "scan_backward"];

    fn now(&self) -> Instant {
        self.memory().reactor().now()
    }

    async fn sleep_until(&self, at: Instant) {
        self.memory().reactor().sleep(at - self.now()).await;
    }

    fn get(&self, key: u64) -> impl Future<Output = Answer<Option<Value>>> {
        self.search(key)
    }

    fn change(&self, key: u64, change: Change<'_>) -> impl Future<Output = Answer<bool>> {
        self.change(key, change)
    }

    async fn scan(&self, _: KeyRange, order: Order, _: usize) -> Answer<Pairs> {
        Answer { result: Err(lacks(order).into()), round_trips: 0 }
    }

    async fn export(&self, from: Cursor, most: usize) -> Answer<Portion<Bytes, Cursor>> {
        let number = |key| match key {
            Key::Number(number) => Some(number),
            Key::Bytes(..) => None,
        };
        self.export_as(Keys::Numbers, from, most, number).await
    }

    async fn get_bytes(&self, key: &[u8]) -> Option<Answer<Option<Value>>> {
        Some(self.search_bytes(key).await)
    }

    async fn change_bytes(&self, key: &[u8], change: Change<'_>) -> Option<Answer<bool>> {
        Some(self.change_bytes(key, change).await)
    }

    async fn scan_bytes(&self, _: BytesRange, order: Order, _: usize) -> Option<Answer<BytesPairs>> {
        Some(Answer { result: Err(lacks(order).into()), round_trips: 0 })
    }

    async fn export_bytes(&self, from: Cursor, most: usize) -> Option<BytesExported<Cursor, TableError>> {
        let bytes = |key| match key {
            Key::Number(_) => None,
            Key::Bytes(_, bytes) => Some(bytes),
        };
        Some(self.export_as(Keys::Bytes, from, most, bytes).await)
    }

    fn is_unknown(error: &TableError) -> bool {
        matches!(error, TableError::Common(CommonError::Unknown(_)))
    }
}

impl<V: Verbs + 'static> Spread for Table<V> {
    type Verbs = V;
    type Info = TableInfo;
    type Verified = Verified;
    type Fault = Fault;

    const REMEMBERS: Remembered = Remembered::Places;

    /// [Places of keys](Self::remember_places).
    const REMEMBERED: u64 = 0;

    fn servers(info: &TableInfo) -> u32 {
        info.shape.servers
    }

    fn has_byte_keys(info: &TableInfo) -> bool {
        info.shape.keys == Keys::Bytes
    }

    fn home(info: &TableInfo) -> u16 {
        info.directory.server()
    }

    async fn open(memory: Rc<RemoteMemory<V>>, server: u16, remembered: u64) -> Result<Self, TableError> {
        let table = Self::open(memory, server).await?;
        table.remember_places(remembered);
        Ok(table)
    }

    fn cache_use(&self) -> CacheUse {
        let PlaceStats { hits, misses, stale, bytes, places: entries } = self.place_stats();
        CacheUse { hits, misses, stale, bytes, entries }
    }

    fn memory(&self) -> &Rc<RemoteMemory<V>> {
        self.memory()
    }

    fn leave(&self, server: u16) {
        self.leave(server);
    }

    /// Gives back locks under which splits were taken back.
    fn finish(&self) -> impl Future<Output = ()> {
        self.memory().finish()
    }

    fn verify(&self) -> impl Future<Output = Result<Verified, Fault>> {
        self.verify()
    }
}
