//! The index as one of several structures of keys and values.

use std::future::Future;
use std::rc::Rc;

use bytes::Bytes;
use fatbtree_remote_memory::{
    CacheUse, CommonError, KeyRange, Order, Pairs, Portion, Remembered, RemoteMemory, Spread, Structure,
    copied, export_in_order,
};
use fatbtree_verbs::Verbs;
use fatbtree_verbs::time::Instant;

use super::{Answer, Change, Index, Value};
use crate::cache::{CacheStats, NodeCache};
use crate::error::IndexError;
use crate::layout::Shape;
use crate::verify::{Fault, Verified};

/// Name for people.
pub(super) const NAME: &str = "Dolphin index";

impl<V: Verbs + 'static> Structure for Index<V> {
    type Value = Value;
    type Error = IndexError;
    /// The next key.
    type Cursor = u64;

    const NAME: &'static str = NAME;
    const LACKS: &'static [&'static str] = &[];

    fn now(&self) -> Instant {
        self.memory().reactor().now()
    }

    async fn sleep_until(&self, at: Instant) {
        self.memory().reactor().sleep(at - self.now()).await;
    }

    fn get(&self, key: u64) -> impl Future<Output = Answer<Option<Value>>> {
        self.get(key)
    }

    fn change(&self, key: u64, change: Change<'_>) -> impl Future<Output = Answer<bool>> {
        self.change(key, change)
    }

    async fn scan(&self, range: KeyRange, order: Order, most: usize) -> Answer<Pairs> {
        match order {
            Order::Forward => self.scan(range, most).await.map(copied),
            Order::Backward => self.scan_backward(range, most).await.map(copied),
        }
    }

    fn export(&self, from: u64, most: usize) -> impl Future<Output = Answer<Portion<Bytes, u64>>> {
        export_in_order(self, from, most)
    }

    fn is_unknown(error: &IndexError) -> bool {
        matches!(error, IndexError::Common(CommonError::Unknown(_)))
    }
}

impl<V: Verbs + 'static> Spread for Index<V> {
    type Verbs = V;
    type Info = Shape;
    type Verified = Verified;
    type Fault = Fault;

    const REMEMBERS: Remembered = Remembered::Nodes;

    /// Inner nodes of 100 million dense keys.
    const REMEMBERED: u64 = 64 << 20;

    fn servers(shape: &Shape) -> u32 {
        shape.servers
    }

    fn home(shape: &Shape) -> u16 {
        shape.home()
    }

    async fn open(memory: Rc<RemoteMemory<V>>, server: u16, remembered: u64) -> Result<Self, IndexError> {
        Self::open(memory, server, Rc::new(NodeCache::new(remembered))).await
    }

    fn cache_use(&self) -> CacheUse {
        let CacheStats { hits, misses, stale, nodes: entries, bytes, .. } = self.cache().stats();
        CacheUse { hits, misses, stale, bytes, entries }
    }

    fn memory(&self) -> &Rc<RemoteMemory<V>> {
        self.memory()
    }

    fn leave(&self, server: u16) {
        self.leave(server);
    }

    fn finish(&self) -> impl Future<Output = ()> {
        self.finish()
    }

    fn verify(&self) -> impl Future<Output = Result<Verified, Fault>> {
        self.verify()
    }
}
