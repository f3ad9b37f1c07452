//! What structures of keys and values have in common, so that the library, load generators and processes work on any of them.

use std::error::Error;
use std::fmt::{Debug, Display};
use std::future::Future;
use std::rc::Rc;

use bytes::Bytes;
use fatbtree_verbs::Verbs;
use fatbtree_verbs::time::Instant;

use crate::client::{CacheUse, Remembered};
use crate::keys::{BytesRange, KeyRange};
use crate::memory::RemoteMemory;

/// Result of an operation, and what it took.
#[derive(Debug)]
pub struct Answer<T, E> {
    /// The result.
    pub result: Result<T, E>,
    /// Round trips, one after the other.
    pub round_trips: u32,
}

impl<T, E> Answer<T, E> {
    /// The same cost with another result.
    pub fn map<U>(self, map: impl FnOnce(T) -> U) -> Answer<U, E> {
        Answer { result: self.result.map(map), round_trips: self.round_trips }
    }
}

/// Keys with their values.
pub type Pairs = Vec<(u64, Bytes)>;

/// Keys of bytes with their values.
pub type BytesPairs = Vec<(Bytes, Bytes)>;

/// Keys with copies of their values.
pub fn copied<K, V: AsRef<[u8]>>(pairs: Vec<(K, V)>) -> Vec<(K, Bytes)> {
    pairs.into_iter().map(|(key, value)| (key, Bytes::copy_from_slice(value.as_ref()))).collect()
}

/// Some of all pairs of a structure.
#[derive(Debug)]
pub struct Portion<V, C, K = u64> {
    /// Keys with their values.
    pub pairs: Vec<(K, V)>,
    /// Where the others follow. `None` if there are no others.
    pub rest: Option<C>,
}

impl<V> Portion<V, KeyRange> {
    /// The first `most` pairs of some keys in an order: fewer are the last ones. The rest are the keys beyond.
    pub fn of(pairs: Vec<(u64, V)>, most: usize, keys: KeyRange, order: Order) -> Self {
        let last = pairs.last().filter(|_| pairs.len() >= most).map(|(key, _)| *key);
        let rest = last.and_then(|last| match order {
            Order::Forward => Some(KeyRange { low: last.checked_add(1)?, ..keys }),
            Order::Backward => Some(KeyRange { high: Some(last), ..keys }),
        });
        Self { rest: rest.filter(|rest| !rest.is_empty()), pairs }
    }
}

impl<V> Portion<V, BytesRange, Bytes> {
    /// The same of keys of bytes.
    pub fn of_bytes(pairs: Vec<(Bytes, V)>, most: usize, keys: BytesRange, order: Order) -> Self {
        let last = pairs.last().filter(|_| pairs.len() >= most);
        let rest = last.map(|(last, _)| keys.after(last, order));
        Self { rest, pairs }
    }
}

/// Some of all pairs of a structure whose keys are bytes.
pub type BytesExported<C, E> = Answer<Portion<Bytes, C, Bytes>, E>;

/// Order of the keys in a scan.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// Ascending.
    #[default]
    Forward,
    /// Descending.
    Backward,
}

impl Order {
    /// The operation's name in the library.
    #[must_use]
    pub const fn operation(self) -> &'static str {
        match self {
            Self::Forward => "scan",
            Self::Backward => "scan_backward",
        }
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
    /// Replaces the value where it is the expected one, byte by byte.
    CompareAndSwap {
        /// The value that must be there.
        expected: &'v [u8],
        /// The value after the change.
        value: &'v [u8],
    },
    /// Takes the value away where one is.
    Delete,
}

impl<'v> Change<'v> {
    /// The value that it puts, if it puts one.
    #[must_use]
    pub const fn value(self) -> Option<&'v [u8]> {
        match self {
            Self::Insert(value)
            | Self::Update(value)
            | Self::Upsert(value)
            | Self::CompareAndSwap { value, .. } => Some(value),
            Self::Delete => None,
        }
    }

    /// The value that must be there.
    #[must_use]
    pub const fn expected(self) -> Option<&'v [u8]> {
        match self {
            Self::CompareAndSwap { expected, .. } => Some(expected),
            _ => None,
        }
    }

    /// Whether there is anything to be done, given whether the key is there.
    #[must_use]
    pub const fn applies(self, is_there: bool) -> bool {
        match self {
            Self::Upsert(_) => true,
            Self::Insert(_) => !is_there,
            Self::Update(_) | Self::CompareAndSwap { .. } | Self::Delete => is_there,
        }
    }
}

/// Place of a value that transactions see: a table's number, and a key in it. A structure's own pairs are table 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Item {
    /// Number of the table.
    pub table: u8,
    /// The key.
    pub key: u64,
}

impl From<u64> for Item {
    /// A key of table 0.
    fn from(key: u64) -> Self {
        Self { table: 0, key }
    }
}

impl From<(u8, u64)> for Item {
    fn from((table, key): (u8, u64)) -> Self {
        Self { table, key }
    }
}

/// An item that a transaction reads.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Wanted {
    /// The item.
    pub item: Item,
    /// Whether it is to be changed: then it is locked.
    pub for_update: bool,
}

/// A step of a transaction.
#[derive(Clone, Debug)]
pub enum Step {
    /// Reads values, all at once.
    Get(Vec<Wanted>),
    /// Puts a value, whether one is there or not.
    Put(Item, Bytes),
    /// Puts a value where none is.
    Insert(Item, Bytes),
    /// Takes the value away where one is.
    Delete(Item),
    /// Ends the transaction: all changes take effect, or none.
    Commit,
    /// Ends the transaction without a change.
    Abort,
}

/// Result of a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Stepped {
    /// The transaction has begun, a value was put, or the transaction has ended.
    Done,
    /// The values that were read, in the order of their items. `None` where none is.
    Values(Vec<Option<Bytes>>),
    /// Whether the change applied.
    Applied(bool),
}

/// A structure of keys and values, as one thread uses it. Any number of its operations run at once.
pub trait Structure {
    /// A value that was read.
    type Value: AsRef<[u8]>;
    /// Errors of its operations.
    type Error: Error + Send + Sync + 'static;
    /// Where an export goes on. The default is its beginning.
    type Cursor: Default + Debug + Send + 'static;

    /// Name for people: `hash table`.
    const NAME: &'static str;

    /// Operations that it does not have, by their names in the library: `insert`, `compare_and_swap`, `scan`, `scan_backward`.
    const LACKS: &'static [&'static str] = &[];

    /// Current time of its clock.
    fn now(&self) -> Instant;

    /// Waits until a point in time.
    fn sleep_until(&self, at: Instant) -> impl Future<Output = ()>;

    /// Finds the value of a key.
    fn get(&self, key: u64) -> impl Future<Output = Answer<Option<Self::Value>, Self::Error>>;

    /// Changes a key. Says whether the change applied.
    fn change(&self, key: u64, change: Change<'_>) -> impl Future<Output = Answer<bool, Self::Error>>;

    /// Finds up to `most` keys of a range with their values, from the end of the range at which the order begins.
    fn scan(
        &self,
        range: KeyRange,
        order: Order,
        most: usize,
    ) -> impl Future<Output = Answer<Pairs, Self::Error>>;

    /// Finds the next pairs of the whole structure, about `most` of them, in an order of its own. A key that is there during the whole export
    /// is found exactly once, and no key is found twice.
    fn export(
        &self,
        from: Self::Cursor,
        most: usize,
    ) -> impl Future<Output = Answer<Portion<Bytes, Self::Cursor>, Self::Error>>;

    /// Finds the value of a key of bytes. A structure whose keys are always numbers answers none of these four.
    fn get_bytes(
        &self,
        _key: &[u8],
    ) -> impl Future<Output = Option<Answer<Option<Self::Value>, Self::Error>>> {
        std::future::ready(None)
    }

    /// Changes a key of bytes. Says whether the change applied.
    fn change_bytes(
        &self,
        _key: &[u8],
        _change: Change<'_>,
    ) -> impl Future<Output = Option<Answer<bool, Self::Error>>> {
        std::future::ready(None)
    }

    /// Finds up to `most` keys of bytes of a range with their values, from the end of the range at which the order begins.
    fn scan_bytes(
        &self,
        _range: BytesRange,
        _order: Order,
        _most: usize,
    ) -> impl Future<Output = Option<Answer<BytesPairs, Self::Error>>> {
        std::future::ready(None)
    }

    /// Finds the next pairs of the whole structure, as [`export`](Self::export) does, where its keys are bytes in no order. A structure that has
    /// them in order does not answer: all of its pairs are those of a [scan](Self::scan_bytes).
    fn export_bytes(
        &self,
        _from: Self::Cursor,
        _most: usize,
    ) -> impl Future<Output = Option<BytesExported<Self::Cursor, Self::Error>>> {
        std::future::ready(None)
    }

    /// Whether a change that ends with this error may have been made.
    fn is_unknown(error: &Self::Error) -> bool;

    /// Whether it has [transactions](Self::transact).
    const TRANSACTS: bool = false;

    /// Carries out a transaction, step by step. `next` is given the result of each step, the begin first, and gives the next step. Where it
    /// gives none, the transaction is aborted. After an error the only useful step is to abort. `attempt` is the number of times that the
    /// same transaction has ended with a [conflict](Self::is_conflict): after some, the client asks whether what is in the way is dead. With
    /// `u32::MAX` it asks at once.
    ///
    /// Returns the round trips that it took. A structure without transactions ends at once, and calls nothing.
    fn transact(
        &self,
        _attempt: u32,
        _next: impl AsyncFnMut(Result<Stepped, Self::Error>) -> Option<Step>,
    ) -> impl Future<Output = u32> {
        std::future::ready(0)
    }

    /// Whether a transaction that ends with this error has changed nothing, and may succeed when it is begun anew.
    fn is_conflict(_error: &Self::Error) -> bool {
        false
    }
}

/// Exports a structure whose cursor is the next key: the pairs from a key on.
pub async fn export_in_order<S: Structure<Cursor = u64>>(
    structure: &S,
    from: u64,
    most: usize,
) -> Answer<Portion<Bytes, u64>, S::Error> {
    let most = most.max(1);
    let keys = KeyRange::of(from..);
    structure.scan(keys, Order::Forward, most).await.map(|pairs| {
        let Portion { pairs, rest } = Portion::of(pairs, most, keys, Order::Forward);
        Portion { pairs, rest: rest.map(|rest| rest.low) }
    })
}

/// A structure that lies over all memory servers and begins on one of them. It is opened on a memory whose sessions are kept, and
/// anew after a server has begun anew.
pub trait Spread: Structure + Sized + 'static {
    /// Device by which it is reached.
    type Verbs: Verbs;
    /// A server's description of its part.
    type Info: Copy + Eq + Send + 'static;
    /// What a walk over the whole structure finds, in words.
    type Verified: Display;
    /// A fault that such a walk finds.
    type Fault: Error + Send + Sync + 'static;

    /// What a client remembers of the structure.
    const REMEMBERS: Remembered;

    /// Bytes of the client's memory for that, if nothing else is asked for.
    const REMEMBERED: u64;

    /// Servers of the structure, a bit for each number.
    fn servers(info: &Self::Info) -> u32;

    /// Whether its keys are bytes. By default they are numbers.
    fn has_byte_keys(_info: &Self::Info) -> bool {
        false
    }

    /// Server on which the structure begins.
    fn home(info: &Self::Info) -> u16;

    /// Opens the structure that begins on a server. The client remembers of it what fits into `remembered` bytes.
    fn open(
        memory: Rc<RemoteMemory<Self::Verbs>>,
        server: u16,
        remembered: u64,
    ) -> impl Future<Output = Result<Self, Self::Error>>;

    /// Use of what the client remembers.
    fn cache_use(&self) -> CacheUse;

    /// The memory that the structure lies in.
    fn memory(&self) -> &Rc<RemoteMemory<Self::Verbs>>;

    /// Ends the use of the structure: a server has begun anew with an empty part of it. All operations fail from now on.
    fn leave(&self, server: u16);

    /// Takes back what dropped operations have left: see [`Event::Unfinished`](crate::Event::Unfinished).
    fn finish(&self) -> impl Future<Output = ()>;

    /// Walks over the whole structure and checks it, while nothing changes it.
    fn verify(&self) -> impl Future<Output = Result<Self::Verified, Self::Fault>>;
}
