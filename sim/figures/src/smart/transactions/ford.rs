//! FORD's transactions as published (FAST 2022), in the form that SMART's artifact runs.
//!
//! ```text
//!   lock and read    [CAS lock, READ item] or [READ item]      of each item
//!   log, validation  [WRITE log] to each server; [READ version] of each item that is only read
//!   data             [WRITE lock, WRITE item] on each replica of each item; a READ of one byte after the last
//!   release          [WRITE lock 0] on each replica of each item; not waited for
//! ```
//!
//! Each chain has a doorbell of its own, also where several go to one server. A transaction that meets a lock is given up and another one is
//! drawn. SmallBank takes 13.1 requests an attempt, as the artifact's result files count them. Locks have no owner, and the log holds nothing:
//! this is a load to compare with, not a transaction system.
//!
//! Places are those of `fatbtree_dtx`'s layout, with items of FORD's size; keys lie in the order of their numbers. All primaries of a table are
//! on one server. Addresses of items that are present are known.

use std::rc::Rc;

use fatbtree_dtx::workloads::{smallbank, tatp};
use fatbtree_dtx::{BadShape, Place, Shape, TableShape, Want};
use fatbtree_remote_memory::{GlobalAddress, Lane, Share, mix, word_at};
use fatbtree_verbs::{Operation, Output, Remote};

use super::Bench;
use crate::rig::Client;
use crate::smart::clients::SERVERS;
use fatbtree_sim::world::Machine;

/// Items of a hash node.
const SLOTS: u8 = 22;
/// Bytes of an item before its value in the layout, and its value: 64 bytes in SmallBank, 96 in TATP.
const VALUE_BYTES: [u16; 2] = [32, 64];
/// Bytes of a log entry in SMART's artifact: numbers of transaction and thread.
const LOG_BYTES: usize = 12;
/// Offset of a server's log: a word of the layout's seats, which nothing else uses.
const LOG: u64 = 256;

const LOCKED: u64 = 1;
/// Flag of an item whose new value is not on all replicas.
const INVISIBLE: u64 = 1 << 63;
/// Offsets in an item.
const VERSION: u64 = 8;
pub(super) const MONEY: usize = 32;

/// Shape of the tables for so many customers or subscribers.
pub(super) fn shape(bench: Bench, count: u32) -> Result<Shape, BadShape> {
    let (items, value_bytes): (&[u32], u16) = match bench {
        Bench::SmallBank => (&[1, 1], VALUE_BYTES[0]),
        Bench::Tatp => (&[1, 1, 4, 4, 16], VALUE_BYTES[1]),
    };
    let table = |&items: &u32| TableShape {
        nodes: (count * items).div_ceil(SLOTS.into()),
        value_bytes,
        slots: SLOTS,
    };
    Shape::new(&items.iter().map(table).collect::<Vec<_>>(), 0b11, 1)
}

/// Address of a key's primary or backup.
pub(super) fn address(shape: &Shape, table: u8, key: u64, backup: bool) -> GlobalAddress {
    let slots = u64::from(SLOTS);
    let (node, slot) = ((key / slots) as u32, (key % slots) as u8);
    // The layout has primaries of odd nodes on the other server.
    shape.address(Place { table, node, slot: Some(slot) }, usize::from(backup) ^ (node as usize & 1))
}

/// What a transaction is to do.
#[derive(Clone, Copy, Debug)]
pub(super) enum Task {
    Bank(smallbank::Operation),
    /// And the hour until which a destination is looked for.
    Tatp(tatp::Operation, u64),
}

/// A client's side of FORD.
pub(super) struct Ford {
    machine: Machine,
    memory: Client,
    shape: Shape,
}

/// An operation of a chain.
enum Act {
    Read(u32),
    Lock,
    Write(Vec<u8>),
}

/// Operations with one doorbell, all on one server.
type Chain = Vec<(GlobalAddress, Act)>;

/// An item of a transaction.
struct Item {
    table: u8,
    key: u64,
    version: u64,
    money: i64,
    writes: bool,
    /// Whether its lock is taken by the validation: an item that is inserted.
    late: bool,
}

/// A transaction under way.
struct Attempt<'f> {
    ford: &'f Ford,
    items: Vec<Item>,
}

impl Ford {
    pub(super) fn new(machine: Machine, memory: Client, shape: Shape) -> Self {
        Self { machine, memory, shape }
    }

    /// Tries a transaction. Says whether it has committed.
    ///
    /// # Errors
    /// A request that failed.
    pub(super) async fn attempt(&self, task: Task) -> Result<bool, String> {
        let mut tx = Attempt { ford: self, items: Vec::new() };
        match task {
            Task::Bank(operation) => tx.bank(operation).await,
            Task::Tatp(operation, hour) => tx.tatp(operation, hour).await,
        }
    }

    /// Posts chains, and waits for all of them.
    async fn post(memory: &Client, chains: &[Chain]) -> Result<Vec<Vec<Output>>, String> {
        let why = |trouble| format!("{trouble:?}");
        let mut shares = Vec::with_capacity(chains.len());
        for chain in chains {
            let server = chain[0].0.server();
            let writer = memory.writer(server).map_err(why)?;
            let operations = move |rkey| chain.iter().map(move |(at, act)| act.operation(*at, rkey));
            shares.push(Share { server, writer, operations });
        }
        let done = memory.scatter(&Lane::new(0), shares).await.map_err(why)?;
        done.into_iter().map(|done| done.map(|outputs| outputs.into_iter().collect()).map_err(why)).collect()
    }

    /// Posts chains that are not waited for.
    fn leave(&self, chains: Vec<Chain>) {
        let memory = Rc::clone(&self.memory);
        drop(self.machine.spawn(async move {
            // A run whose requests fail has failed transactions, too.
            let _done = Self::post(&memory, &chains).await;
        }));
    }

    fn at(&self, item: &Item, backup: bool) -> GlobalAddress {
        address(&self.shape, item.table, item.key, backup)
    }
}

impl Act {
    fn operation(&self, at: GlobalAddress, rkey: u32) -> Operation<'_> {
        let at = Remote { address: at.raw(), rkey };
        match self {
            Self::Read(len) => Operation::Read { from: at, len: *len },
            Self::Lock => Operation::CompareSwap { at, compare: 0, swap: LOCKED },
            Self::Write(data) => Operation::Write { to: at, data },
        }
    }
}

fn chain<const N: usize>(acts: [(GlobalAddress, Act); N]) -> Chain {
    acts.into_iter().collect()
}

impl Attempt<'_> {
    async fn bank(&mut self, operation: smallbank::Operation) -> Result<bool, String> {
        let wants: Vec<Want> = operation.wants().into_iter().flatten().collect();
        if !self.fetch(&wants).await? {
            return Ok(false);
        }
        let mut before = [0; 3];
        self.items.iter().zip(&mut before).for_each(|(item, money)| *money = item.money);
        let Some(after) = operation.apply(before) else { return Ok(self.give_up(true)) };
        self.items.iter_mut().zip(after).for_each(|(item, money)| item.money = money);
        self.commit().await
    }

    async fn tatp(&mut self, operation: tatp::Operation, hour: u64) -> Result<bool, String> {
        let tatp::Operation { kind, subscriber, record, time } = operation;
        let key = tatp::kind_key(subscriber, record);
        let forwarding = |time| tatp::forwarding_key(subscriber, record, time);
        let is_there = tatp::is_there(subscriber, record);
        let secondary = Want::read(tatp::SECONDARY, subscriber);
        let facility = Want::read(tatp::FACILITY, key);
        let is_fetched = match kind {
            tatp::Kind::SubscriberData => self.fetch(&[Want::read(tatp::SUBSCRIBER, subscriber)]).await?,
            tatp::Kind::AccessData => self.fetch_if(is_there, Want::read(tatp::ACCESS, key)).await?,
            tatp::Kind::NewDestination => {
                // 85 of 100 facilities are active.
                let is_active = mix(key + 3) % 100 < 85;
                if !self.fetch_if(is_there, facility).await? || !is_active {
                    return Ok(false);
                }
                let mut goes = false;
                for time in 0..=time {
                    let is_forwarded = tatp::is_forwarded(subscriber, record, time);
                    if !self.fetch_if(is_forwarded, Want::read(tatp::FORWARDING, forwarding(time))).await? {
                        return Ok(false);
                    }
                    goes |= hour < 1 + mix(forwarding(time) + 5) % 24;
                }
                goes
            }
            tatp::Kind::UpdateSubscriber => {
                let subscriber = Want::write(tatp::SUBSCRIBER, subscriber);
                self.fetch(&[subscriber]).await?
                    && self.fetch_if(is_there, Want { writes: true, ..facility }).await?
            }
            tatp::Kind::UpdateLocation => {
                self.fetch(&[secondary]).await?
                    && self.fetch(&[Want::write(tatp::SUBSCRIBER, subscriber)]).await?
            }
            tatp::Kind::InsertForwarding => {
                let is_read = self.fetch(&[secondary]).await? && self.fetch_if(is_there, facility).await?;
                is_read && self.read_for_insert(tatp::FORWARDING, forwarding(time)).await?
            }
            tatp::Kind::DeleteForwarding => {
                let is_forwarded = tatp::is_forwarded(subscriber, record, time);
                let want = Want::write(tatp::FORWARDING, forwarding(time));
                self.fetch(&[secondary]).await? && self.fetch_if(is_forwarded, want).await?
            }
        };
        if is_fetched { self.commit().await } else { Ok(self.give_up(false)) }
    }

    /// Reads items, and locks those that are to be changed. `false`: it has met a lock, and is given up.
    async fn fetch(&mut self, wants: &[Want]) -> Result<bool, String> {
        let shape = &self.ford.shape;
        let step = |want: &Want| {
            let at = address(shape, want.table, want.key, false);
            let read = Act::Read(shape.tables()[usize::from(want.table)].item_bytes() as u32);
            if want.writes { chain([(at, Act::Lock), (at, read)]) } else { chain([(at, read)]) }
        };
        let chains: Vec<Chain> = wants.iter().map(step).collect();
        let done = Ford::post(&self.ford.memory, &chains).await?;
        let mut is_free = true;
        for (want, outputs) in wants.iter().zip(done) {
            let Some(Output::Read(bytes)) = outputs.last() else { return Err("no item".to_owned()) };
            let has_lock = !want.writes || matches!(outputs.first(), Some(Output::Atomic(0)));
            is_free &= has_lock;
            let item = Item {
                table: want.table,
                key: want.key,
                version: word_at(bytes, VERSION as usize),
                money: word_at(bytes, MONEY) as i64,
                writes: want.writes,
                late: false,
            };
            if !want.writes && word_at(bytes, 0) & INVISIBLE != 0 {
                self.until_visible(self.ford.at(&item, false)).await?;
            }
            if has_lock {
                self.items.push(item);
            }
        }
        if !is_free {
            self.give_up(false);
        }
        Ok(is_free)
    }

    /// The same with one item; where it is absent, its node is read.
    async fn fetch_if(&mut self, is_there: bool, want: Want) -> Result<bool, String> {
        if is_there {
            return self.fetch(&[want]).await;
        }
        self.read_node(want.table, want.key).await?;
        Ok(self.give_up(false))
    }

    async fn read_node(&self, table: u8, key: u64) -> Result<(), String> {
        let shape = &self.ford.shape;
        let slots = u64::from(SLOTS);
        let first = address(shape, table, key - key % slots, false);
        let bytes = shape.tables()[usize::from(table)].item_bytes() * slots;
        Ford::post(&self.ford.memory, &[chain([(first, Act::Read(bytes as u32))])]).await.map(drop)
    }

    async fn read_for_insert(&mut self, table: u8, key: u64) -> Result<bool, String> {
        self.read_node(table, key).await?;
        self.items.push(Item { table, key, version: 0, money: 0, writes: true, late: true });
        Ok(true)
    }

    /// Waits until an item is written on all replicas.
    async fn until_visible(&self, at: GlobalAddress) -> Result<(), String> {
        loop {
            let done = Ford::post(&self.ford.memory, &[chain([(at, Act::Read(8))])]).await?;
            match done.first().and_then(|outputs| outputs.first()) {
                Some(Output::Read(bytes)) if word_at(bytes, 0) & INVISIBLE != 0 => {}
                _ => return Ok(()),
            }
        }
    }

    fn log(&self) -> impl Iterator<Item = Chain> {
        (0..SERVERS).map(|server| chain([(GlobalAddress::new(server, LOG), Act::Write(vec![0; LOG_BYTES]))]))
    }

    /// Commits. Says whether it did.
    async fn commit(&mut self) -> Result<bool, String> {
        let ford = self.ford;
        let changes = self.items.iter().any(|item| item.writes);
        if !changes && self.items.len() < 2 {
            return Ok(true);
        }
        let mut chains: Vec<Chain> = if changes { self.log().collect() } else { Vec::new() };
        let logs = chains.len();
        for item in self.items.iter().filter(|item| item.late || !item.writes) {
            let at = ford.at(item, false);
            let read = (at.behind(VERSION), Act::Read(8));
            chains.push(if item.late { chain([(at, Act::Lock), read]) } else { chain([read]) });
        }
        let done = Ford::post(&ford.memory, &chains).await?;
        let mut is_valid = true;
        let checked = self.items.iter_mut().filter(|item| item.late || !item.writes);
        for (item, outputs) in checked.zip(&done[logs..]) {
            let Some(Output::Read(bytes)) = outputs.last() else { return Err("no version".to_owned()) };
            if item.late {
                item.version = word_at(bytes, 0);
                // One that is not locked is not released.
                item.writes = matches!(outputs.first(), Some(Output::Atomic(0)));
                is_valid &= item.writes;
            } else {
                is_valid &= item.version == word_at(bytes, 0);
            }
        }
        if !is_valid {
            return Ok(self.give_up(false));
        }
        if !changes {
            return Ok(true);
        }
        let mut data: Vec<Chain> = Vec::new();
        for item in self.items.iter().filter(|item| item.writes) {
            for backup in [false, true] {
                let (at, lock) = (ford.at(item, backup), LOCKED | INVISIBLE);
                let bytes = ford.shape.tables()[usize::from(item.table)].item_bytes() as usize;
                let mut content = vec![0; bytes];
                for (offset, word) in
                    [(0, lock), (8, item.version + 1), (16, item.key), (MONEY, item.money as u64)]
                {
                    content[offset..offset + 8].copy_from_slice(&word.to_le_bytes());
                }
                data.push(chain([(at, Act::Write(lock.to_le_bytes().to_vec())), (at, Act::Write(content))]));
            }
        }
        if let Some(last) = data.last_mut() {
            let (at, _) = last[0];
            last.push((at, Act::Read(1)));
        }
        Ford::post(&ford.memory, &data).await?;
        self.release(&[false, true], Vec::new());
        Ok(true)
    }

    fn release(&self, replicas: &[bool], mut chains: Vec<Chain>) {
        for item in self.items.iter().filter(|item| item.writes) {
            let at = replicas.iter().map(|&backup| self.ford.at(item, backup));
            chains.extend(at.map(|at| chain([(at, Act::Write(vec![0; 8]))])));
        }
        if !chains.is_empty() {
            self.ford.leave(chains);
        }
    }

    /// Releases the locks of the primaries. FORD has written its log where a transaction decides by itself, and no log where it met a lock.
    fn give_up(&self, logged: bool) -> bool {
        self.release(&[false], if logged { self.log().collect() } else { Vec::new() });
        false
    }
}
