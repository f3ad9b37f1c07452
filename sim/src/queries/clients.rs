//! Work of clients of both kinds, and its answers.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use fatbtree_blink::{Change, KeyRange, ScanOptions, Start, ValueLayout};
use fatbtree_blink_client::{Client, QueryClient};
use fatbtree_query::{Answer as Said, Ask};
use fatbtree_soft_nic::Nic;
use fatbtree_verbs::time::Instant;
use fatbtree_wire::query::records;
use rand::RngExt as _;

use super::{Outcome, Scenario};
use crate::history::{Answer, Call, History};
use crate::world::Random;

/// State that all clients share.
pub(super) struct Shared {
    pub(super) scenario: Scenario,
    pub(super) now: Cell<Instant>,
    pub(super) history: History,
    pub(super) outcome: RefCell<Outcome>,
    words: Cell<u64>,
}

/// The key of a number.
pub(super) fn key_of(number: u64) -> u64 {
    number * 0x0040_0000_0000_0003
}

/// Value of a key at first.
pub(super) fn first_word(key: u64) -> u64 {
    key | 1 << 63
}

impl Shared {
    /// The value that a word names. Where values lie by their length, half of those that are written are too long for an entry.
    fn value(&self, word: u64) -> Vec<u8> {
        let written = self.scenario.config.values() == ValueLayout::SHORT && word >> 63 == 0;
        let more = if written { word % 8 } else { 0 };
        word.to_le_bytes().into_iter().chain((0..more).map(|_| word as u8)).collect()
    }

    /// The word that names a value.
    fn word_of(&self, value: &[u8]) -> Result<u64, String> {
        let word = value.first_chunk().map(|word| u64::from_le_bytes(*word));
        let word = word.filter(|word| self.value(*word) == value);
        word.ok_or_else(|| format!("a value that no client wrote: {value:?}"))
    }
}

/// A client of either kind.
#[derive(Clone)]
pub(super) enum Either {
    Rdma(Client<Nic>),
    Query(QueryClient),
}

/// Kind of operation on a key.
#[derive(Clone, Copy)]
enum What {
    Get,
    Put,
    Update,
    Delete,
}

impl Shared {
    pub(super) fn new(scenario: &Scenario) -> Rc<Self> {
        let history = History::default();
        let initial = (0..scenario.keys).step_by(2).map(key_of);
        history.begin_with(initial.map(|key| (key, first_word(key))));
        Rc::new(Self {
            scenario: scenario.clone(),
            now: Cell::new(Instant::ZERO),
            history,
            outcome: RefCell::default(),
            words: Cell::new(0),
        })
    }

    pub(super) fn count(&self, work: impl FnOnce(&mut Outcome)) {
        work(&mut self.outcome.borrow_mut());
    }
}

/// Does a client's operations one after the other. An impossible answer is an error.
pub(super) async fn work(
    shared: Rc<Shared>,
    name: String,
    client: Either,
    mut random: Random,
) -> Result<(), String> {
    let scenario = shared.scenario.clone();
    for number in 0..scenario.operations {
        if random.random_range(0..100) < scenario.scans {
            let (one, other) = (random.random_range(0..scenario.keys), random.random_range(0..scenario.keys));
            let (low, high) = (key_of(one.min(other)), key_of(one.max(other)));
            match &client {
                Either::Rdma(client) => scan_rdma(&shared, &name, client, low, high).await?,
                Either::Query(client) => {
                    scan_query(&shared, &name, client, (low, high), random.random_range(1..=10)).await?;
                }
            }
            continue;
        }
        // Half of all operations are about a few keys.
        let most = if random.random_bool(0.5) { scenario.keys.min(6) } else { scenario.keys };
        let key = key_of(random.random_range(0..most));
        let rises = (number / scenario.tide).is_multiple_of(2);
        let what = match random.random_range(0..8) {
            0..3 => What::Get,
            3 => What::Update,
            4..7 if rises => What::Put,
            4 => What::Put,
            _ => What::Delete,
        };
        match &client {
            Either::Rdma(client) => operate_rdma(&shared, &name, client, key, what).await?,
            Either::Query(client) => operate_query(&shared, &name, client, key, what).await?,
        }
    }
    Ok(())
}

fn call(shared: &Shared, what: What) -> (Call, u64) {
    shared.words.set(shared.words.get() + 1);
    let word = shared.words.get();
    let call = match what {
        What::Get => Call::Get,
        What::Put => Call::Upsert(word),
        What::Update => Call::Update(word),
        What::Delete => Call::Delete,
    };
    (call, word)
}

async fn operate_rdma(
    shared: &Shared,
    name: &str,
    client: &Client<Nic>,
    key: u64,
    what: What,
) -> Result<(), String> {
    let (history, now) = (&shared.history, &shared.now);
    let (call, word) = call(shared, what);
    let asked = history.ask(name, now.get(), key, call);
    if call == Call::Get {
        if let Ok(found) = client.lookup(key, Start::Root).await.result {
            let found = found.map(|value| shared.word_of(&value)).transpose()?;
            history.answer(asked, now.get(), Answer::Found(found));
        }
        return Ok(());
    }
    let bytes = shared.value(word);
    let mutation = match what {
        What::Put | What::Get => Change::Upsert(&bytes),
        What::Update => Change::Update(&bytes),
        What::Delete => Change::Delete,
    };
    // An error says why, and is no answer.
    if let Ok(applied) = client.starting(Start::Root).mutate(key, mutation).await.result {
        history.answer(asked, now.get(), Answer::of(applied));
        shared.count(|outcome| outcome.rdma_writes += u64::from(applied));
    }
    Ok(())
}

async fn operate_query(
    shared: &Shared,
    name: &str,
    client: &QueryClient,
    key: u64,
    what: What,
) -> Result<(), String> {
    let (history, now) = (&shared.history, &shared.now);
    let (call, word) = call(shared, what);
    let value = shared.value(word);
    let ask = match what {
        What::Get => Ask::get(key),
        What::Put => Ask::put(key, value),
        What::Update => Ask::update(key, value),
        What::Delete => Ask::delete(key),
    };
    let asked = history.ask(name, now.get(), key, call);
    let answer = match (client.ask(ask).await, what) {
        (Said::Value(value), What::Get) => Answer::Found(Some(shared.word_of(&value)?)),
        (Said::NotFound, What::Get) => Answer::Found(None),
        (Said::Written, What::Put | What::Update | What::Delete) => Answer::Applied,
        (Said::NotFound, What::Update | What::Delete) => Answer::NotApplied,
        // A read without an answer; a write with an unknown result.
        (Said::Lost, What::Get) | (Said::Unknown, What::Put | What::Update | What::Delete) => return Ok(()),
        (other, _) => {
            return Err(format!("{name} has asked for {call:?} of {key} and was answered {other:?}"));
        }
    };
    history.answer(asked, now.get(), answer);
    shared.count(|outcome| {
        outcome.query_writes += u64::from(answer == Answer::Applied);
        outcome.through_switches += u64::from(shared.scenario.reloads.is_some());
    });
    Ok(())
}

async fn scan_rdma(
    shared: &Shared,
    name: &str,
    client: &Client<Nic>,
    low: u64,
    high: u64,
) -> Result<(), String> {
    let asked = shared.history.ask_scan(name, shared.now.get(), low..=high);
    let mut scan = client.scan_with(KeyRange::of(low..=high), ScanOptions::default());
    let mut found = Vec::new();
    while let Some(pair) = scan.next().await {
        match pair {
            Ok((key, value)) => found.push((key, shared.word_of(&value)?)),
            Err(_) => return Ok(()),
        }
    }
    shared.history.answer_scan(asked, shared.now.get(), low..=high, found);
    Ok(())
}

/// Part by part: each is a scan by itself, of as far as it went.
async fn scan_query(
    shared: &Shared,
    name: &str,
    client: &QueryClient,
    (low, high): (u64, u64),
    limit: u32,
) -> Result<(), String> {
    let mut from = Some(low);
    while let Some(low) = from {
        let asked = shared.history.ask_scan(name, shared.now.get(), low..=high);
        match client.ask(Ask::scan(low, high, limit)).await {
            Said::Records { payload, next } => {
                let mut found = Vec::new();
                for record in records::read(&payload) {
                    let (key, value) = record.map_err(|error| error.to_string())?;
                    found.push((key, shared.word_of(value)?));
                }
                if next.is_some_and(|next| next <= low || next > high) {
                    return Err(format!(
                        "{name} has scanned {low} to {high} and is told to go on at {next:?}"
                    ));
                }
                let last = next.map_or(high, |next| next - 1);
                shared.history.answer_scan(asked, shared.now.get(), low..=last, found);
                from = next;
            }
            Said::Lost => return Ok(()),
            other => return Err(format!("{name} has scanned and was answered {other:?}")),
        }
    }
    Ok(())
}
