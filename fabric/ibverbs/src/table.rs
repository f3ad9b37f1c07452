//! Queue pairs by name.

use fatbtree_verbs::QueuePair;

/// Bits of a name that give its place in the table; the bits above them count the names given out.
const PLACE_BITS: u32 = 20;
/// Bits of a name that a request's id carries.
const ID_BITS: u32 = 48;

/// Table of values by queue pair. A name is never given out again, and lookups need no search.
#[derive(Debug)]
pub(crate) struct Table<T> {
    places: Vec<Option<(QueuePair, T)>>,
    free: Vec<u32>,
    given_out: u64,
}

impl<T> Table<T> {
    pub(crate) fn new() -> Self {
        Self { places: Vec::new(), free: Vec::new(), given_out: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Name of the next entry.
    pub(crate) fn next_name(&self) -> QueuePair {
        let place = self.free.last().copied().unwrap_or(self.places.len() as u32);
        QueuePair((self.given_out + 1) << PLACE_BITS | u64::from(place))
    }

    /// Adds an entry; the caller has checked that there are fewer than 2^20, see [`Config`](crate::Config).
    pub(crate) fn insert(&mut self, value: T) -> QueuePair {
        let name = self.next_name();
        self.given_out += 1;
        match self.free.pop() {
            Some(place) => self.places[place as usize] = Some((name, value)),
            None => self.places.push(Some((name, value))),
        }
        name
    }

    pub(crate) fn get(&self, name: QueuePair) -> Option<&T> {
        let (found, value) = self.places.get(place_of(name))?.as_ref()?;
        (*found == name).then_some(value)
    }

    pub(crate) fn get_mut(&mut self, name: QueuePair) -> Option<&mut T> {
        let (found, value) = self.places.get_mut(place_of(name))?.as_mut()?;
        (*found == name).then_some(value)
    }

    pub(crate) fn remove(&mut self, name: QueuePair) -> Option<T> {
        self.get(name)?;
        let place = place_of(name);
        self.free.push(place as u32);
        self.places[place].take().map(|(_, value)| value)
    }

    /// Entry that the id of a request refers to, with its name.
    pub(crate) fn by_id(&mut self, id: u64) -> Option<(QueuePair, &mut T)> {
        let name = id >> (64 - ID_BITS);
        let place = self.places.get_mut(place_of(QueuePair(name)))?;
        let (found, value) = place.as_mut()?;
        (found.0 & ((1 << ID_BITS) - 1) == name).then_some((*found, value))
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = QueuePair> {
        self.places.iter().flatten().map(|(name, _)| *name)
    }
}

fn place_of(name: QueuePair) -> usize {
    (name.0 & ((1 << PLACE_BITS) - 1)) as usize
}

/// The id of a request: its queue pair, and its place in the queue. Of the queue pair's name the upper 16 bits are left out:
/// a late answer could be taken for another's only after 2^28 queue pairs have come and gone in between.
pub(crate) fn id_of(queue_pair: QueuePair, place: u16) -> u64 {
    queue_pair.0 << (64 - ID_BITS) | u64::from(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_never_given_out_again() {
        let mut table = Table::new();
        let mut seen = std::collections::BTreeSet::new();
        for round in 0..50 {
            assert_eq!(table.next_name(), table.insert(round), "the name that was announced");
            let names: Vec<QueuePair> = table.names().collect();
            let name = *names.last().unwrap();
            names.iter().for_each(|name| _ = seen.insert(*name));
            assert_eq!(table.by_id(id_of(name, 7)).map(|(found, _)| found), Some(name));
            if round % 3 == 0 {
                assert!(table.remove(name).is_some() && table.remove(name).is_none());
                assert!(table.get(name).is_none() && table.get_mut(name).is_none());
                assert!(table.by_id(id_of(name, 7)).is_none(), "a late answer");
            }
        }
        assert_eq!(seen.len(), 50);
        assert_eq!(table.len(), 33);
    }

    #[test]
    fn a_late_answer_is_not_taken_for_the_successors() {
        let mut table = Table::new();
        let first = table.insert("first");
        table.remove(first);
        let second = table.insert("second");
        assert_eq!(place_of(first), place_of(second));
        assert!(table.by_id(id_of(first, 0)).is_none() && table.get(first).is_none());
        assert_eq!(table.by_id(id_of(second, 0)), Some((second, &mut "second")));
    }

    #[test]
    fn an_id_carries_the_place_and_strange_ones_name_nobody() {
        let mut table = Table::new();
        let name = table.insert(());
        assert_eq!(id_of(name, 0xabcd) as u16, 0xabcd);
        assert!(table.by_id(u64::MAX).is_none() && table.by_id(0).is_none());
    }
}
