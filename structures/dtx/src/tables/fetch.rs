//! Execution: reads items, and locks those that are to be changed.
//!
//! ```text
//!   address known     [READ item], or [CAS lock, READ item]
//!   unknown           [READ node], then the same with the address, or nothing more if it is only read
//!   absent, written   [CAS lock of the node's head, READ node], [CAS lock of a free slot, READ item]
//! ```
//!
//! All items of one call take these steps together.
//!
//! **One entry a key.** A transaction has one entry for each key, and reads its item once. A key that was read and is to be changed takes the
//! same steps with the lock; its version, or that of its node if it is absent, must be the one that was read, or the commit fails. So
//! whatever is written follows from what is locked. A key that is wanted twice in one call takes the steps once.
//!
//! **What is to be changed shows this transaction's word in its lock**, in a READ after the compare-and-swap on the same connection. So
//! nothing depends on an answer that may be lost: the compare-and-swap only tells which locks are to be released.

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
    /// A free slot for the key, with the version of the node's head.
    Claim { slot: u8, head: u64 },
    /// Nothing more: the item has this number.
    Done(usize),
}

/// An item on its way.
struct Search {
    want: Want,
    /// Number of the entry, if the key was read before.
    known: Option<usize>,
    node: u32,
    next: Next,
    /// Steps of the plan: the compare-and-swap by its lock, and the READ.
    swap: Option<(usize, usize)>,
    read: usize,
}

impl Search {
    const fn is_for(&self, want: Want) -> bool {
        self.want.table == want.table && self.want.key == want.key
    }

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
    /// [`DtxError::Conflict`] if another transaction has one of them; the transaction is to be aborted then. Also when a connection breaks, or
    /// there is no room for a key that is absent.
    pub async fn fetch<const N: usize>(&mut self, wants: [Want; N]) -> Result<[Item; N], DtxError> {
        let items = self.fetch_all(&wants).await?;
        Ok(std::array::from_fn(|number| items[number]))
    }

    /// The same of any number of items.
    ///
    /// # Errors
    /// As of [`fetch`](Self::fetch).
    pub async fn fetch_all(&mut self, wants: &[Want]) -> Result<Vec<Item>, DtxError> {
        if let Some(doom) = &self.doom {
            return Err(doom.clone());
        }
        // Also if this is dropped: then it is not known which locks were taken.
        self.doom = Some(DtxError::Broke);
        let fetched = self.search(wants).await;
        self.doom = match &fetched {
            // Nothing was posted, or all that was posted is known.
            Ok(_) | Err(DtxError::NoTable(_) | DtxError::Full { .. }) => None,
            Err(error) => Some(error.clone()),
        };
        let (searches, numbers) = fetched?;
        let item = |number: usize| match searches[number].next {
            Next::Done(number) => Item(number),
            _ => unreachable!("all searches are done"),
        };
        Ok(numbers.into_iter().map(item).collect())
    }

    /// Reads a node's pairs, if nothing in it is locked or torn.
    ///
    /// # Errors
    /// [`DtxError::Conflict`], and when a connection breaks.
    pub(super) async fn read_node(
        &mut self,
        table: u8,
        node: u32,
    ) -> Result<impl IntoIterator<Item = (u64, bytes::Bytes)> + use<V>, DtxError> {
        let shape = *self.tables.shape();
        let (place, bytes) =
            (Place { table, node, slot: None }, shape.tables()[usize::from(table)].node_bytes());
        self.plan.clear();
        let read = self.plan.read(shape.address(place, 0), bytes);
        let Some(coordinator) = &self.coordinator else { return Err(DtxError::Broke) };
        let identity = coordinator.identity.clone();
        self.tables.carry_out(&identity, &self.lane, &mut self.plan).await?;
        self.tables.pairs_of(table, node, self.plan.bytes(read))
    }

    /// A search for each key, done, and the number of each want's.
    async fn search(&mut self, wants: &[Want]) -> Result<(Vec<Search>, Vec<usize>), DtxError> {
        let mut searches: Vec<Search> = Vec::with_capacity(wants.len());
        let mut numbers = Vec::with_capacity(wants.len());
        for &want in wants {
            let shape = self.tables.shape();
            if usize::from(want.table) >= shape.tables().len() {
                return Err(DtxError::NoTable(want.table));
            }
            let is_twice = |search: &Search| search.is_for(want) && Check::OnceEach.on();
            if let Some(number) = searches.iter().position(is_twice) {
                searches[number].want.writes |= want.writes;
                numbers.push(number);
                continue;
            }
            numbers.push(searches.len());
            let node = shape.node_of(want.table, want.key);
            searches.push(Search { want, known: None, node, next: Next::Node, swap: None, read: 0 });
        }
        for search in &mut searches {
            let want = search.want;
            let is_its = |entry: &Entry| (entry.want.table, entry.want.key) == (want.table, want.key);
            search.known = self.entries.iter().position(is_its);
            search.next = match search.known.map(|number| (number, &self.entries[number])) {
                Some((number, entry)) if entry.want.writes || !want.writes => Next::Done(number),
                Some((_, entry)) => entry.place.slot.map_or(Next::Head, Next::Slot),
                None => self.tables.addresses.look_up(want.table, want.key).map_or(Next::Node, Next::Slot),
            };
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
        Ok((searches, numbers))
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
        let identity = coordinator.identity.clone();
        let done = self.tables.carry_out(&identity, &self.lane, &mut self.plan).await;
        for (lock, swap) in searches.iter().filter_map(|search| search.swap) {
            let lock = &mut self.locks[lock];
            match self.plan.found(swap) {
                Some(0) => lock.state = LockState::Held,
                Some(_) => lock.state = LockState::Refused,
                None => {}
            }
        }
        Ok(done?)
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
                    self.tables.addresses.was_stale(table, key);
                    return Ok(Next::Node);
                }
                self.done(search, search.place(Some(slot)), head, &bytes, None)
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
                    return self.done(search, place, head, item, None);
                }
                let head = Head::parse(&bytes, 0);
                if Check::Absence.on() {
                    self.check(search.place(None), head, search.next == Next::Head)?;
                }
                if !writes {
                    // A READ brings the lines of a node in any order. If it has brought the key's slot before an insertion was done, and
                    // the head after it, the head tells nothing: the slot does, which the insertion has locked.
                    let is_filled = |head: &Head, slot| {
                        let at = shape.address(search.place(Some(slot)), 0);
                        let is_others = head.lock != 0 && head.lock != self.word_on(at.server());
                        is_others && head.presence != Presence::Present
                    };
                    let filled = items.clone().find(|(slot, _, head)| is_filled(head, *slot));
                    if let Some((slot, _, head)) = filled.filter(|_| Check::Filling.on()) {
                        let at = shape.address(search.place(Some(slot)), 0);
                        return Err(DtxError::Conflict { at, lock: head.lock });
                    }
                    let absent = Head { presence: Presence::Free, ..head };
                    return self.done(search, search.place(None), absent, &[], None);
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
                let (slot, ..) = free
                    .min_by_key(|(_, _, head)| head.presence == Presence::Deleted)
                    .ok_or(DtxError::Full { table, key })?;
                Ok(Next::Claim { slot, head: head.version })
            }
            Next::Claim { slot, head: node } => {
                let bytes = self.plan.bytes(search.read).to_vec();
                let (place, head) = (search.place(Some(slot)), Head::parse(&bytes, value_bytes));
                self.check(place, head, true)?;
                if head.presence == Presence::Present && Check::StillFree.on() {
                    // Another transaction has put the slot's deleted key again since: that needs no lock of the node's head.
                    return Err(DtxError::Conflict { at: shape.address(place, 0), lock: 0 });
                }
                self.tables.addresses.note(table, key, slot);
                self.done(search, place, head, &bytes, Some(node))
            }
        }
    }

    /// Whether an item can be used as it was read: it is whole; and locked by this transaction, or if it is only read, by none.
    fn check(&self, place: Place, head: Head, is_locked: bool) -> Result<(), DtxError> {
        let at = self.tables.shape().address(place, 0);
        let is_own = head.lock == self.word_on(at.server());
        let is_usable = if is_locked {
            is_own || !Check::TakenLocks.on()
        } else {
            is_own || head.lock == 0 || !Check::LockedReads.on()
        };
        if !is_usable {
            return Err(DtxError::Conflict { at, lock: head.lock });
        }
        if !head.is_whole && Check::Checksum.on() {
            return Err(DtxError::Conflict { at, lock: 0 });
        }
        Ok(())
    }

    /// Notes an item that was fetched.
    fn done(
        &mut self,
        search: &Search,
        place: Place,
        head: Head,
        item: &[u8],
        node: Option<u64>,
    ) -> Result<Next, DtxError> {
        let Search { want, known, .. } = *search;
        let value_bytes = self.tables.shape().value_bytes(want.table);
        let from = self.values.len();
        self.values.extend_from_slice(item.get(ITEM_HEAD..ITEM_HEAD + value_bytes).unwrap_or_default());
        let entry = Entry {
            want,
            place,
            version: head.version,
            presence: head.presence,
            key: head.key,
            value: from..self.values.len(),
            head: node.filter(|_| Check::Absence.on()),
            change: Change::None,
        };
        let Some(number) = known else {
            self.entries.push(entry);
            return Ok(Next::Done(self.entries.len() - 1));
        };
        // It was read before, and is locked now. As with all that was read, the commit refuses what has changed since.
        let known = &mut self.entries[number];
        if known.read() != entry.read() && Check::ReadsLocked.on() {
            let at = self.tables.shape().address(place, 0);
            self.stale.get_or_insert(DtxError::Conflict { at, lock: 0 });
            known.want.writes = true;
        } else {
            *known = Entry { value: known.value.clone(), ..entry };
        }
        Ok(Next::Done(number))
    }
}
