//! Execution: reads items, and locks those that are to be changed.
//!
//! ```text
//!   address known     [READ item], or [CAS lock, READ item]
//!   unknown           [READ node], then the same with the address, or nothing more if it is only read
//!   absent, written   [CAS lock of the node's head, READ node], [CAS lock of a free slot, READ item]
//! ```
//!
//! All items of one call take these steps together.

use fatbtree_verbs::Verbs;

use super::transaction::{Change, Entry, Item, Lock, LockState, Transaction, Want};
use crate::checks::Check;
use crate::error::DtxError;
use crate::item::{Head, ITEM_HEAD, Presence};
use crate::layout::{NODE_HEAD, Place};

/// Next step towards an item.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    /// The item in a slot.
    Slot(u8),
    /// The node, to find the slot.
    Node,
    /// The node with the lock of its head, because the key is absent.
    Head,
    /// A free slot for the key, with its version, and the version of the node's head.
    Claim { slot: u8, version: u64, head: u64 },
    /// Nothing more: the item has this number.
    Done(usize),
}

/// An item on its way.
struct Search {
    want: Want,
    node: u32,
    next: Next,
    /// Steps of the plan: the compare-and-swap by its lock, and the READ.
    swap: Option<(usize, usize)>,
    read: usize,
}

impl Search {
    /// Whether it is about to take this slot.
    fn claims(&self, place: Place) -> bool {
        matches!(self.next, Next::Claim { slot, .. } if self.place(Some(slot)) == place)
    }

    const fn place(&self, slot: Option<u8>) -> Place {
        Place { table: self.want.table, node: self.node, slot }
    }
}

impl<V: Verbs> Transaction<'_, V> {
    /// Reads items, and locks those that are to be changed. If all addresses are known this takes one round trip.
    ///
    /// # Errors
    /// [`DtxError::Conflict`] if another transaction has one of them; the transaction is to be aborted then. Also when a connection breaks,
    /// or there is no room for a key that is absent.
    pub async fn fetch<const N: usize>(&mut self, wants: [Want; N]) -> Result<[Item; N], DtxError> {
        let mut searches = Vec::with_capacity(N);
        for want in wants {
            let shape = self.tables.shape();
            if usize::from(want.table) >= shape.tables().len() {
                return Err(DtxError::NoTable(want.table));
            }
            let is_known = |entry: &Entry| {
                (entry.want.table, entry.want.key) == (want.table, want.key)
                    && (entry.want.writes || !want.writes)
            };
            let known = self.entries.iter().position(is_known);
            let slot = self.tables.addresses.get(want.table, want.key);
            let next = known.map(Next::Done).or(slot.map(Next::Slot)).unwrap_or(Next::Node);
            let node = shape.node_of(want.table, want.key);
            searches.push(Search { want, node, next, swap: None, read: 0 });
        }
        while searches.iter().any(|search| !matches!(search.next, Next::Done(_))) {
            self.post_steps(&mut searches).await?;
            for at in 0..searches.len() {
                let (before, behind) = searches.split_at_mut(at);
                let [search, behind @ ..] = behind else { break };
                if !matches!(search.next, Next::Done(_)) {
                    let others = before.iter().chain(behind.iter());
                    search.next = self.take_step(search, others)?;
                }
            }
        }
        let mut items = searches.into_iter().map(|search| match search.next {
            Next::Done(number) => Item(number),
            _ => unreachable!("the loop ends when all are done"),
        });
        Ok(std::array::from_fn(|_| items.next().expect("there are as many items as keys")))
    }

    /// Posts the next step of each search, and notes which locks were taken.
    async fn post_steps(&mut self, searches: &mut [Search]) -> Result<(), DtxError> {
        let shape = *self.tables.shape();
        self.plan.clear();
        for search in searches.iter_mut() {
            // Also of one that is done: its step was in another plan.
            search.swap = None;
            let table = &shape.tables()[usize::from(search.want.table)];
            let (slot, locks, bytes) = match search.next {
                Next::Done(_) => continue,
                Next::Slot(slot) => (Some(slot), search.want.writes, table.item_bytes()),
                Next::Node => (None, false, table.node_bytes()),
                Next::Head => (None, Check::Absence.on(), table.node_bytes()),
                Next::Claim { slot, .. } => (Some(slot), true, table.item_bytes()),
            };
            let place = search.place(slot);
            let at = shape.address(place, 0);
            let is_asked = |lock: &Lock| lock.place == place && lock.state != LockState::Refused;
            if locks && !self.locks.iter().any(is_asked) {
                let word = self.word_on(at.server());
                let swap = self.plan.swap(at, 0, word);
                search.swap = Some((self.locks.len(), swap));
                self.locks.push(Lock { place, at, state: LockState::Asked });
            }
            search.read = self.plan.read(at, bytes);
        }
        let Some(coordinator) = &self.coordinator else { return Err(DtxError::Broke) };
        let (identity, lane) = (coordinator.identity.clone(), coordinator.lane);
        let done = self.tables.carry_out(&identity, lane, &mut self.plan, &mut self.trips).await;
        let mut conflict = Ok(());
        for (lock, swap) in searches.iter().filter_map(|search| search.swap) {
            let lock = &mut self.locks[lock];
            match self.plan.found(swap) {
                Some(0) => lock.state = LockState::Held,
                Some(found) => {
                    lock.state = LockState::Refused;
                    conflict = Err(DtxError::Conflict { at: lock.at, lock: found });
                }
                None => {}
            }
        }
        done?;
        conflict
    }

    /// Word of this transaction's locks on a server.
    pub(super) fn word_on(&self, server: u16) -> u64 {
        let position = self.tables.shape().position(server).unwrap_or(0);
        self.coordinator.as_ref().map_or(0, |coordinator| coordinator.word(position).raw())
    }

    /// Takes what the step of a search has brought.
    fn take_step<'s>(
        &mut self,
        search: &Search,
        others: impl Iterator<Item = &'s Search> + Clone,
    ) -> Result<Next, DtxError> {
        let shape = *self.tables.shape();
        let Want { table, key, writes } = search.want;
        let value_bytes = shape.value_bytes(table);
        match search.next {
            Next::Done(number) => Ok(Next::Done(number)),
            Next::Slot(slot) => {
                let bytes = self.plan.bytes(search.read).to_vec();
                let head = Head::parse(&bytes, value_bytes);
                self.check(search.place(Some(slot)), head, writes)?;
                if (head.key != key || head.presence == Presence::Free) && Check::Address.on() {
                    self.tables.addresses.forget(table, key);
                    return Ok(Next::Node);
                }
                Ok(self.done(search, search.place(Some(slot)), head, &bytes, None))
            }
            Next::Node | Next::Head => {
                let bytes = self.plan.bytes(search.read).to_vec();
                let items = bytes.get(NODE_HEAD as usize..).unwrap_or_default();
                let item_bytes = shape.tables()[usize::from(table)].item_bytes() as usize;
                let slots = shape.tables()[usize::from(table)].slots;
                let items = (0..slots).zip(items.chunks_exact(item_bytes));
                let items = items.map(|(slot, item)| (slot, item, Head::parse(item, value_bytes)));
                let is_its =
                    |(_, _, head): &(u8, &[u8], Head)| head.presence != Presence::Free && head.key == key;
                if let Some((slot, item, head)) = items.clone().find(is_its) {
                    self.tables.addresses.note(table, key, slot);
                    if writes {
                        return Ok(Next::Slot(slot));
                    }
                    let place = search.place(Some(slot));
                    self.check(place, head, false)?;
                    return Ok(self.done(search, place, head, item, None));
                }
                let head = Head::parse(&bytes, 0);
                if Check::Absence.on() {
                    self.check(search.place(None), head, search.next == Next::Head)?;
                }
                if !writes {
                    // A slot that is being filled is locked before the head is written, so a READ whose lines were read in any order
                    // shows one of the two.
                    let is_filled = |head: &Head, slot| {
                        let at = shape.address(search.place(Some(slot)), 0);
                        let is_others = head.lock != 0 && head.lock != self.word_on(at.server());
                        is_others && head.presence != Presence::Present
                    };
                    let filled = items.clone().find(|(slot, _, head)| is_filled(head, *slot));
                    if let Some((slot, _, head)) = filled.filter(|_| Check::Absence.on()) {
                        let at = shape.address(search.place(Some(slot)), 0);
                        return Err(DtxError::Conflict { at, lock: head.lock });
                    }
                    let absent = Head { presence: Presence::Free, ..head };
                    return Ok(self.done(search, search.place(None), absent, &[], None));
                }
                if search.next == Next::Node {
                    return Ok(Next::Head);
                }
                let is_open = |slot: u8, head: &Head| {
                    let place = search.place(Some(slot));
                    let is_claimed = others.clone().any(|other| other.claims(place));
                    head.presence != Presence::Present && !self.is_held(place) && !is_claimed
                };
                let free = items.filter(|(slot, _, head)| is_open(*slot, head));
                let (slot, _, free) = free
                    .min_by_key(|(_, _, head)| head.presence == Presence::Deleted)
                    .ok_or(DtxError::Full { table, key })?;
                Ok(Next::Claim { slot, version: free.version, head: head.version })
            }
            Next::Claim { slot, version, head: node } => {
                let bytes = self.plan.bytes(search.read).to_vec();
                let (place, head) = (search.place(Some(slot)), Head::parse(&bytes, value_bytes));
                self.check(place, head, true)?;
                if head.presence == Presence::Present || head.version != version {
                    // Another transaction has used the slot since.
                    return Err(DtxError::Conflict { at: shape.address(place, 0), lock: 0 });
                }
                self.tables.addresses.note(table, key, slot);
                Ok(self.done(search, place, head, &bytes, Some(node)))
            }
        }
    }

    /// Whether an item can be used as it was read: it is whole, and locked by this transaction or by none.
    fn check(&self, place: Place, head: Head, is_locked: bool) -> Result<(), DtxError> {
        let at = self.tables.shape().address(place, 0);
        let is_own = is_locked || head.lock == self.word_on(at.server());
        if head.lock != 0 && !is_own && Check::LockedReads.on() {
            return Err(DtxError::Conflict { at, lock: head.lock });
        }
        if !head.is_whole && Check::Checksum.on() {
            return Err(DtxError::Conflict { at, lock: 0 });
        }
        Ok(())
    }

    /// Notes an item that was fetched.
    fn done(&mut self, search: &Search, place: Place, head: Head, item: &[u8], node: Option<u64>) -> Next {
        let value_bytes = self.tables.shape().value_bytes(search.want.table);
        let from = self.values.len();
        self.values.extend_from_slice(item.get(ITEM_HEAD..ITEM_HEAD + value_bytes).unwrap_or_default());
        let is_its = node.is_none() && head.presence == Presence::Present;
        self.entries.push(Entry {
            want: search.want,
            place,
            version: head.version,
            presence: if is_its { Presence::Present } else { head.presence },
            key: head.key,
            value: from..self.values.len(),
            head: node.filter(|_| Check::Absence.on()),
            change: Change::None,
        });
        Next::Done(self.entries.len() - 1)
    }
}
