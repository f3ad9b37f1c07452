//! The table as one of several structures of keys and values.

use std::future::{Future, Ready};
use std::rc::Rc;

use fatbtree_remote_memory::{CommonError, KeyRange, KeyValue, Pairs, Portion, RemoteMemory};
use fatbtree_verbs::Verbs;

use super::{Answer, Change, Cursor, Table, Value};
use crate::error::TableError;
use crate::verify::{Fault, Verified};

impl<V: Verbs + 'static> KeyValue for Table<V> {
    type Verbs = V;
    type Value = Value;
    type Error = TableError;
    type Verified = Verified;
    type Fault = Fault;
    type Cursor = Cursor;

    /// [Places of keys](Self::remember_places).
    const REMEMBERED: u64 = 0;

    async fn open(memory: Rc<RemoteMemory<V>>, server: u16, remembered: u64) -> Result<Self, TableError> {
        let table = Self::open(memory, server).await?;
        table.remember_places(remembered);
        Ok(table)
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

    fn get(&self, key: u64) -> impl Future<Output = Answer<Option<Value>>> {
        self.search(key)
    }

    fn change(&self, key: u64, change: Change<'_>) -> impl Future<Output = Answer<bool>> {
        self.change(key, change)
    }

    fn scan(&self, _: KeyRange, _: usize) -> Option<impl Future<Output = Pairs<Value, TableError>>> {
        None::<Ready<_>>
    }

    fn export(&self, from: Cursor, most: usize) -> impl Future<Output = Answer<Portion<Value, Cursor>>> {
        self.export(from, most)
    }

    fn verify(&self) -> impl Future<Output = Result<Verified, Fault>> {
        self.verify()
    }

    fn is_unknown(error: &TableError) -> bool {
        matches!(error, TableError::Common(CommonError::Unknown(_)))
    }
}
