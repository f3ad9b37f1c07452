//! What structures of keys and values in pooled memory have in common, so that processes can work on any of them.

use std::error::Error;
use std::fmt::{Debug, Display};
use std::future::Future;
use std::ops::Deref;
use std::rc::Rc;

use fatbtree_verbs::Verbs;

use crate::keys::KeyRange;
use crate::memory::RemoteMemory;

/// Result of an operation, and what it took.
#[derive(Debug)]
pub struct Answer<T, E> {
    /// The result.
    pub result: Result<T, E>,
    /// Round trips, one after the other.
    pub round_trips: u32,
}

/// Result of a scan: keys with their values.
pub type Pairs<V, E> = Answer<Vec<(u64, V)>, E>;

/// Some of all pairs of a structure.
#[derive(Debug)]
pub struct Portion<V, C> {
    /// Keys with their values.
    pub pairs: Vec<(u64, V)>,
    /// Where the others follow. `None` if there are no others.
    pub rest: Option<C>,
}

impl<V> Portion<V, u64> {
    /// The first `most` pairs of some keys, in ascending order: fewer are the last ones. The rest begins at the next key.
    pub fn in_order(pairs: Vec<(u64, V)>, most: usize) -> Self {
        let last = pairs.last().filter(|_| pairs.len() >= most);
        Self { rest: last.and_then(|(key, _)| key.checked_add(1)), pairs }
    }
}

/// A change of one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change<'v> {
    /// Puts a value where none is.
    Insert(&'v [u8]),
    /// Replaces the value where one is.
    Update(&'v [u8]),
    /// Puts a value, whether one is there or not.
    Upsert(&'v [u8]),
    /// Takes the value away where one is.
    Delete,
}

impl<'v> Change<'v> {
    /// The value that it puts, if it puts one.
    #[must_use]
    pub const fn value(self) -> Option<&'v [u8]> {
        match self {
            Self::Insert(value) | Self::Update(value) | Self::Upsert(value) => Some(value),
            Self::Delete => None,
        }
    }
}

/// One structure of keys and values over all memory servers, as one thread uses it. Any number of its operations run at once.
pub trait KeyValue: Sized + 'static {
    /// Device by which it is reached.
    type Verbs: Verbs;
    /// A value that was read.
    type Value: Deref<Target = [u8]> + AsRef<[u8]>;
    /// Errors of its operations.
    type Error: Error + Send + Sync + 'static;
    /// What a walk over the whole structure finds, in words.
    type Verified: Display;
    /// A fault that such a walk finds.
    type Fault: Error + Send + Sync + 'static;
    /// Where an export goes on. The default is its beginning.
    type Cursor: Default + Debug + Send + 'static;

    /// Bytes of the client's memory for what it remembers of the structure, if nothing else is asked for.
    const REMEMBERED: u64;

    /// Opens the structure that begins on a server. The client remembers of it what fits into `remembered` bytes.
    fn open(
        memory: Rc<RemoteMemory<Self::Verbs>>,
        server: u16,
        remembered: u64,
    ) -> impl Future<Output = Result<Self, Self::Error>>;

    /// The memory that the structure lies in.
    fn memory(&self) -> &Rc<RemoteMemory<Self::Verbs>>;

    /// Ends the use of the structure: a server has begun anew with an empty part of it. All operations fail from now on.
    fn leave(&self, server: u16);

    /// Takes back what dropped operations have left: see [`Event::Unfinished`](crate::Event::Unfinished).
    fn finish(&self) -> impl Future<Output = ()>;

    /// Finds the value of a key.
    fn get(&self, key: u64) -> impl Future<Output = Answer<Option<Self::Value>, Self::Error>>;

    /// Changes a key. Says whether the change applied.
    fn change(&self, key: u64, change: Change<'_>) -> impl Future<Output = Answer<bool, Self::Error>>;

    /// Finds up to `most` keys of a range with their values, in ascending order. `None` if the structure has no order of keys.
    fn scan(
        &self,
        range: KeyRange,
        most: usize,
    ) -> Option<impl Future<Output = Pairs<Self::Value, Self::Error>>>;

    /// Finds the next pairs of the whole structure, about `most` of them, in an order of its own. A key that is there during the whole export
    /// is found exactly once, and no key is found twice.
    fn export(
        &self,
        from: Self::Cursor,
        most: usize,
    ) -> impl Future<Output = Answer<Portion<Self::Value, Self::Cursor>, Self::Error>>;

    /// Walks over the whole structure and checks it, while nothing changes it.
    fn verify(&self) -> impl Future<Output = Result<Self::Verified, Self::Fault>>;

    /// Whether a change that ends with this error may have been made.
    fn is_unknown(error: &Self::Error) -> bool;
}
