//! The index as one of several structures of keys and values.

use std::future::Future;
use std::rc::Rc;

use fatbtree_remote_memory::{CommonError, KeyRange, KeyValue, Pairs, Portion, RemoteMemory};
use fatbtree_verbs::Verbs;

use super::{Answer, Change, Index, Value};
use crate::cache::NodeCache;
use crate::error::IndexError;
use crate::verify::{Fault, Verified};

impl<V: Verbs + 'static> KeyValue for Index<V> {
    type Verbs = V;
    type Value = Value;
    type Error = IndexError;
    type Verified = Verified;
    type Fault = Fault;
    /// The next key.
    type Cursor = u64;

    /// Inner nodes of 100 million dense keys.
    const REMEMBERED: u64 = 64 << 20;

    async fn open(memory: Rc<RemoteMemory<V>>, server: u16, remembered: u64) -> Result<Self, IndexError> {
        Self::open(memory, server, Rc::new(NodeCache::new(remembered))).await
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

    fn get(&self, key: u64) -> impl Future<Output = Answer<Option<Value>>> {
        self.get(key)
    }

    fn change(&self, key: u64, change: Change<'_>) -> impl Future<Output = Answer<bool>> {
        self.change(key, change)
    }

    fn scan(&self, range: KeyRange, most: usize) -> Option<impl Future<Output = Pairs<Value, IndexError>>> {
        Some(self.scan(range, most))
    }

    async fn export(&self, from: u64, most: usize) -> Answer<Portion<Value, u64>> {
        let most = most.max(1);
        let Answer { result, round_trips } = self.scan(KeyRange::of(from..=u64::MAX), most).await;
        Answer { result: result.map(|pairs| Portion::in_order(pairs, most)), round_trips }
    }

    fn verify(&self) -> impl Future<Output = Result<Verified, Fault>> {
        self.verify()
    }

    fn is_unknown(error: &IndexError) -> bool {
        matches!(error, IndexError::Common(CommonError::Unknown(_)))
    }
}
