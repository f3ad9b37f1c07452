//! TATP: a registry of mobile subscribers, and seven transactions on it, most of which read.
//!
//! | transaction | of 100 | items |
//! |---|---|---|
//! | subscriber data | 35 | 1 read |
//! | access data | 35 | 1 read |
//! | new destination | 10 | 2 read; one of them is absent as often as not |
//! | update subscriber | 2 | 2 changed |
//! | update location | 14 | 1 read, 1 changed |
//! | insert call forwarding | 2 | 2 read, 1 new |
//! | delete call forwarding | 2 | 1 read, 1 taken away |
//!
//! Source: TATP benchmark description 1.0 (IBM, 2009); FORD, FAST 2022, section 6. Subscribers are drawn with equal chances, as in SMART's
//! evaluation.

use fatbtree_verbs::Verbs;

use super::Writes;
use crate::{BadShape, DtxError, Shape, TableShape, Transaction, Verdict, Want};

/// Subscribers by number: location and data.
pub const SUBSCRIBER: u8 = 0;
/// Number of a subscriber by its number string.
pub const SECONDARY: u8 = 1;
/// Access information of a subscriber and one of four kinds.
pub const ACCESS: u8 = 2;
/// Special facilities of a subscriber, of four kinds.
pub const FACILITY: u8 = 3;
/// Call forwarding of a facility, beginning at one of three times.
pub const FORWARDING: u8 = 4;

/// Bytes of each table's values. The largest items have 96 bytes, as in SMART's evaluation.
pub const VALUE_BYTES: [u16; 5] = [40, 8, 16, 8, 16];

/// Subscribers in SMART's evaluation.
pub const PAPER: u64 = 100_000;

/// Tables for so many subscribers.
///
/// # Errors
/// When the servers do not suffice for the backups.
pub fn shape(subscribers: u32, servers: u32, backups: u8) -> Result<Shape, BadShape> {
    let items = [1, 1, 4, 4, 6].map(|each| subscribers.saturating_mul(each));
    let tables: Vec<_> = items
        .into_iter()
        .zip(VALUE_BYTES)
        .map(|(items, bytes)| TableShape::for_items(items, bytes))
        .collect();
    Shape::new(&tables, servers, backups)
}

/// Key of an access or facility record: one of four kinds of a subscriber.
#[must_use]
pub const fn kind_key(subscriber: u64, kind: u64) -> u64 {
    subscriber * 4 + kind % 4
}

/// Key of a call forwarding: a facility, and one of three times.
#[must_use]
pub const fn forwarding_key(subscriber: u64, kind: u64, time: u64) -> u64 {
    kind_key(subscriber, kind) * 4 + time % 3
}

/// Whether a facility or access record is there at the beginning: of the four kinds, 2.5 on average.
#[must_use]
pub const fn is_there(subscriber: u64, kind: u64) -> bool {
    kind % 4 <= fatbtree_remote_memory::mix(subscriber + 1) % 4
}

/// Whether a call forwarding is there at the beginning: of the three of a facility, half.
#[must_use]
pub const fn is_forwarded(subscriber: u64, kind: u64, time: u64) -> bool {
    is_there(subscriber, kind)
        && fatbtree_remote_memory::mix(forwarding_key(subscriber, kind, time) + 77).is_multiple_of(2)
}

/// A value of a table, filled with a number.
#[must_use]
pub fn value(table: u8, number: u64) -> Vec<u8> {
    let bytes = VALUE_BYTES[usize::from(table) % VALUE_BYTES.len()];
    number.to_le_bytes().iter().copied().cycle().take(bytes.into()).collect()
}

/// Whether bytes are a value of a table, whole.
#[must_use]
pub fn is_value(table: u8, bytes: &[u8]) -> bool {
    let number = bytes.first_chunk().map(|first| u64::from_le_bytes(*first));
    number.is_some_and(|number| value(table, number) == bytes)
}

/// All records at the beginning of one subscriber: table, key and value.
pub fn records(subscriber: u64) -> impl Iterator<Item = (u8, u64, Vec<u8>)> {
    let one = |table, key| (table, key, value(table, key));
    let kinds = (0..4).filter(move |&kind| is_there(subscriber, kind));
    let pairs = kinds.flat_map(move |kind| {
        let key = kind_key(subscriber, kind);
        [one(ACCESS, key), one(FACILITY, key)]
    });
    let forwarded = (0..12)
        .map(|number| (number / 3, number % 3))
        .filter(move |&(kind, time)| is_forwarded(subscriber, kind, time))
        .map(move |(kind, time)| one(FORWARDING, forwarding_key(subscriber, kind, time)));
    [(SUBSCRIBER, subscriber), (SECONDARY, subscriber)]
        .into_iter()
        .map(move |(table, key)| one(table, key))
        .chain(pairs)
        .chain(forwarded)
}

/// A kind of transaction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// Reads a subscriber.
    SubscriberData,
    /// Reads access information.
    AccessData,
    /// Reads a facility and where its calls go.
    NewDestination,
    /// Changes a subscriber and a facility.
    UpdateSubscriber,
    /// Changes the location of the subscriber with a number string.
    UpdateLocation,
    /// Adds a call forwarding.
    InsertForwarding,
    /// Takes a call forwarding away.
    DeleteForwarding,
}

/// A transaction to be run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// Its kind.
    pub kind: Kind,
    /// The subscriber.
    pub subscriber: u64,
    /// One of four kinds of records.
    pub record: u64,
    /// One of three times.
    pub time: u64,
}

impl Operation {
    /// Draws a transaction of the mix.
    pub fn draw(subscribers: u64, draw: &mut impl FnMut(u64) -> u64) -> Self {
        let kind = match draw(100) {
            0..35 => Kind::SubscriberData,
            35..70 => Kind::AccessData,
            70..80 => Kind::NewDestination,
            80..82 => Kind::UpdateSubscriber,
            82..96 => Kind::UpdateLocation,
            96..98 => Kind::InsertForwarding,
            _ => Kind::DeleteForwarding,
        };
        Self { kind, subscriber: draw(subscribers), record: draw(4), time: draw(3) }
    }

    /// Records that it reads, and whether it may change each.
    #[must_use]
    pub fn wants(&self) -> Vec<Want> {
        let Self { kind, subscriber, record, time } = *self;
        let (key, forwarding) = (kind_key(subscriber, record), forwarding_key(subscriber, record, time));
        match kind {
            Kind::SubscriberData => vec![Want::read(SUBSCRIBER, subscriber)],
            Kind::AccessData => vec![Want::read(ACCESS, key)],
            Kind::NewDestination => vec![Want::read(FACILITY, key), Want::read(FORWARDING, forwarding)],
            Kind::UpdateSubscriber => vec![Want::write(SUBSCRIBER, subscriber), Want::write(FACILITY, key)],
            Kind::UpdateLocation => {
                vec![Want::read(SECONDARY, subscriber), Want::write(SUBSCRIBER, subscriber)]
            }
            Kind::InsertForwarding => vec![
                Want::read(SECONDARY, subscriber),
                Want::read(FACILITY, key),
                Want::write(FORWARDING, forwarding),
            ],
            Kind::DeleteForwarding => {
                vec![Want::read(SECONDARY, subscriber), Want::write(FORWARDING, forwarding)]
            }
        }
    }

    /// What it writes, with `number` in it, given which of its wants are there; and whether it has found what it was for.
    #[must_use]
    pub fn decide(&self, is_there: &[bool], number: u64) -> (bool, Writes) {
        let is_there = |want: usize| is_there.get(want) == Some(&true);
        let put = |want, table| (want, Some(value(table, number)));
        match self.kind {
            Kind::SubscriberData | Kind::AccessData => (is_there(0), Vec::new()),
            Kind::NewDestination => (is_there(0) && is_there(1), Vec::new()),
            Kind::UpdateSubscriber if is_there(1) => (true, vec![put(0, SUBSCRIBER), put(1, FACILITY)]),
            Kind::UpdateSubscriber => (false, Vec::new()),
            Kind::UpdateLocation => (true, vec![put(1, SUBSCRIBER)]),
            Kind::InsertForwarding if is_there(1) && !is_there(2) => (true, vec![put(2, FORWARDING)]),
            Kind::InsertForwarding => (false, Vec::new()),
            Kind::DeleteForwarding if is_there(1) => (true, vec![(1, None)]),
            Kind::DeleteForwarding => (false, Vec::new()),
        }
    }

    /// Runs it in a transaction with `number` in what it writes. Says whether it found what it was for.
    ///
    /// # Errors
    /// As of [`Transaction::fetch`].
    pub async fn carry_out<V: Verbs>(
        &self,
        tx: &mut Transaction<'_, V>,
        number: u64,
    ) -> Result<Verdict<bool>, DtxError> {
        let items = tx.fetch_all(&self.wants()).await?;
        let is_there: Vec<_> = items.iter().map(|item| tx.value(*item).is_some()).collect();
        let (found, writes) = self.decide(&is_there, number);
        for (want, value) in writes {
            match value {
                Some(value) => tx.put(items[want], &value)?,
                None => drop(tx.remove(items[want])?),
            }
        }
        Ok(Verdict::Commit(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_fit_their_tables() {
        let shape = shape(100, 0b11, 1).unwrap();
        let mut counts = [0; 5];
        for (table, _, value) in (0..100).flat_map(records) {
            counts[usize::from(table)] += 1;
            assert_eq!(value.len(), usize::from(shape.tables()[usize::from(table)].value_bytes));
        }
        assert_eq!(counts[..2], [100, 100]);
        assert!((200..300).contains(&counts[2]) && counts[2] == counts[3], "{counts:?}");
        assert!((300..450).contains(&counts[4]), "{counts:?}");
    }
}
