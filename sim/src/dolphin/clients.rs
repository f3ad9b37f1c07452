//! Clients at work, and the record of what they were answered.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use fatbtree_dolphin::{Change, Index, IndexError, NodeCache, Value};
use fatbtree_remote_memory::{CommonError, KeyRange};
use rand::RngExt as _;

use super::lab::Client;
use super::{Aim, pick};
use crate::history::{Answer, Call, History};
use crate::world::{Machine, Random, SimDevice};

/// Everything that tasks of a seed share.
pub(super) struct Setting {
    pub(super) history: History,
    pub(super) words: Cell<u64>,
    pub(super) wrong: RefCell<Option<String>>,
    pub(super) refused: Cell<u64>,
    pub(super) scans: Cell<u64>,
    pub(super) swaps: Cell<u64>,
    pub(super) keys: Vec<u64>,
    pub(super) longest: usize,
    pub(super) cache: u64,
    /// Low bits that index reads leave out; `None`: switches lead no client.
    pub(super) led: Option<u8>,
    pub(super) aim: Aim,
}

impl Setting {
    fn wrong(&self, what: String) {
        self.wrong.borrow_mut().get_or_insert(what);
    }

    /// A value of its own: its word, and as many bytes more as the word says.
    fn draw_value(&self) -> (u64, Vec<u8>) {
        let word = self.words.get() + 1;
        self.words.set(word);
        let length = match self.aim {
            _ if self.longest == 8 => 8,
            Aim::Lines => self.longest,
            // The longest one, and the last that fits a size of records' places, and the next.
            _ if word.is_multiple_of(4) => *[self.longest, self.longest - 1, 40, 41, 104, 105]
                .get((word / 4) as usize % 6)
                .filter(|length| **length <= self.longest)
                .unwrap_or(&self.longest),
            _ => 8 + (word * 7_919) as usize % (self.longest - 8),
        };
        (word, word.to_le_bytes().iter().copied().cycle().take(length).collect())
    }

    /// The word of a value that was read.
    fn open(&self, key: u64, value: &[u8]) -> Option<u64> {
        let word = value.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))?;
        let is_whole = value.chunks(8).all(|chunk| *chunk == word.to_le_bytes()[..chunk.len()]);
        if !is_whole || word > self.words.get() {
            self.wrong(format!("key {key:#x}: a value of {} bytes that no client wrote", value.len()));
        }
        Some(word)
    }
}

/// A client in one life.
#[derive(Clone)]
pub(super) struct Living {
    pub(super) machine: Machine,
    pub(super) memory: Client,
    pub(super) setting: Rc<Setting>,
    pub(super) home: u16,
    pub(super) cache: Rc<NodeCache>,
    /// The index, of which a client has one.
    pub(super) index: Rc<RefCell<Option<Rc<Index<SimDevice>>>>>,
}

/// What a task does next.
#[derive(Clone, Copy)]
enum Act {
    Get,
    Insert,
    Update,
    Upsert,
    Delete,
    Scan,
    /// Reads, and swaps what it has read.
    Swap,
}

impl Living {
    pub(super) async fn open(&self) -> Result<Rc<Index<SimDevice>>, IndexError> {
        let opened = Index::open(Rc::clone(&self.memory), self.home, Rc::clone(&self.cache)).await?;
        opened.set_led(self.setting.led);
        Ok(Rc::clone(self.index.borrow_mut().get_or_insert_with(|| Rc::new(opened))))
    }

    /// Works until the machine dies. All tasks of a client use one index.
    pub(super) async fn work(self, index: Rc<Index<SimDevice>>, mut random: Random) {
        use Act::{Delete, Get, Insert, Scan, Swap, Update, Upsert};
        let mut ebbs = random.random_bool(0.5);
        for step in 1_u32.. {
            if step % 60 == 0 {
                ebbs = !ebbs;
            }
            let act = match self.setting.aim {
                Aim::Insertions => *pick(&mut random, &[Get, Insert, Insert, Insert, Insert, Delete, Delete]),
                Aim::Splits | Aim::Full => {
                    *pick(&mut random, &[Get, Get, Insert, Insert, Insert, Upsert, Update, Scan])
                }
                Aim::Merges | Aim::Bursts | Aim::Moves if ebbs => {
                    *pick(&mut random, &[Get, Delete, Delete, Delete, Delete, Scan])
                }
                Aim::Merges | Aim::Bursts | Aim::Moves => {
                    *pick(&mut random, &[Get, Insert, Insert, Insert, Update, Delete])
                }
                Aim::Updates | Aim::Records | Aim::Lines => {
                    *pick(&mut random, &[Get, Get, Insert, Update, Update, Upsert, Delete, Delete])
                }
                Aim::Swaps => *pick(&mut random, &[Get, Insert, Update, Delete, Swap, Swap, Swap, Swap]),
                Aim::All => *pick(&mut random, &[Get, Insert, Update, Upsert, Delete, Scan]),
            };
            let key = *pick(&mut random, &self.setting.keys);
            drop(match act {
                Scan => self.scan(&index, key, random.random_range(1..40)).await,
                act => self.operate(&index, key, act).await,
            });
        }
    }

    async fn operate(&self, index: &Index<SimDevice>, key: u64, act: Act) -> Result<(), IndexError> {
        let history = &self.setting.history;
        let (name, now) = (self.machine.name(), || self.machine.now());
        let mut read = None;
        if let Act::Get | Act::Scan | Act::Swap = act {
            let asked = history.ask(&name, now(), key, Call::Get);
            let found = index.get(key).await.result?;
            read = found.and_then(|value| Some((self.setting.open(key, &value)?, value.to_vec())));
            history.answer(asked, now(), Answer::Found(read.as_ref().map(|(word, _)| *word)));
            if !matches!(act, Act::Swap) || read.is_none() {
                return Ok(());
            }
        }
        let (word, value) = self.setting.draw_value();
        let (call, change) = match act {
            Act::Insert => (Call::Insert(word), Change::Insert(&value)),
            Act::Update => (Call::Update(word), Change::Update(&value)),
            Act::Upsert => (Call::Upsert(word), Change::Upsert(&value)),
            Act::Swap if let Some((seen, expected)) = &read => (
                Call::CompareAndSet { expected: *seen, new: word },
                Change::CompareAndSwap { expected, value: &value },
            ),
            Act::Get | Act::Scan | Act::Swap | Act::Delete => (Call::Delete, Change::Delete),
        };
        let asked = history.ask(&name, now(), key, call);
        match index.change(key, change).await.result {
            Ok(applied) => {
                let is_swap = applied && matches!(act, Act::Swap);
                self.setting.swaps.set(self.setting.swaps.get() + u64::from(is_swap));
                history.answer(asked, now(), Answer::of(applied));
            }
            Err(error @ IndexError::Common(CommonError::Unknown(_))) => return Err(error),
            Err(error) => {
                history.withdraw(asked);
                self.setting.refused.set(self.setting.refused.get() + 1);
                let is_full = self.setting.aim == Aim::Full
                    && matches!(error, IndexError::Common(CommonError::NoMemory { .. }));
                if !is_full && !matches!(error, IndexError::Common(CommonError::GaveUp { .. })) {
                    self.setting.wrong(format!("key {key:#x}: {error}"));
                }
                return Err(error);
            }
        }
        Ok(())
    }

    async fn scan(&self, index: &Index<SimDevice>, from: u64, most: usize) -> Result<(), IndexError> {
        let Setting { history, keys, .. } = &*self.setting;
        let last = *keys.last().unwrap_or(&from);
        let asked = history.ask_scan(&self.machine.name(), self.machine.now(), from..=last);
        let found = index.scan(KeyRange::of(from..=last), most).await.result?;
        let is_all = found.len() < most;
        let pairs: Vec<_> = found
            .iter()
            .filter_map(|(key, value)| self.setting.open(*key, value).map(|word| (*key, word)))
            .collect();
        if !pairs.is_sorted_by(|one, other| one.0 < other.0) {
            self.setting.wrong(format!("a scan from {from:#x} is out of order: {pairs:x?}"));
        }
        let end = pairs.last().filter(|_| !is_all).map_or(last, |(key, _)| *key);
        history.answer_scan(asked, self.machine.now(), from..=end, pairs);
        self.setting.scans.set(self.setting.scans.get() + 1);
        Ok(())
    }

    /// Scans the whole key space; returns the number of keys.
    pub(super) async fn scan_all(&self, index: &Index<SimDevice>) -> Result<u64, IndexError> {
        let history = &self.setting.history;
        let asked = history.ask_scan(&self.machine.name(), self.machine.now(), 0..=u64::MAX);
        let found = index.scan(KeyRange::ALL, usize::MAX).await.result?;
        let count = found.len() as u64;
        let open = |(key, value): &(u64, Value)| self.setting.open(*key, value).map(|word| (*key, word));
        history.answer_scan(asked, self.machine.now(), 0..=u64::MAX, found.iter().filter_map(open).collect());
        Ok(count)
    }

    /// Last operations: each must succeed. A connection may break once more, because a session has just
    /// ended.
    pub(super) async fn end(self, index: Rc<Index<SimDevice>>, keys: Vec<u64>) -> Result<(), String> {
        // Without memory keys can be taken away.
        let last = if self.setting.aim == Aim::Full { Act::Delete } else { Act::Upsert };
        for key in keys {
            for act in [Act::Get, last, Act::Get] {
                let first = self.operate(&index, key, act).await;
                if let Err(IndexError::Common(CommonError::Unknown(_))) = first {
                    self.operate(&index, key, act).await.map_err(|error| error.to_string())?;
                } else {
                    first.map_err(|error| format!("key {key:#x}: {error}"))?;
                }
            }
        }
        Ok(())
    }
}
