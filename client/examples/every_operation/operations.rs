// Every operation of the library, by several tasks at once, each answer compared with a model.
//
// Each task has keys of its own and keeps what they hold in a map. One key is counted up by all tasks at once.

use std::collections::BTreeMap;

use fatbtree::{Bytes, Client, Error};

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What is carried out, on the keys from `first` on.
#[derive(Clone, Copy)]
pub(crate) struct Work {
    pub(crate) first: u64,
    pub(crate) tasks: u64,
    /// Operations of each task.
    pub(crate) operations: u64,
    /// Whether the protocol has `insert` and `compare_and_swap`.
    pub(crate) has_conditions: bool,
}

/// Keys of each task.
const KEYS: u64 = 16;

/// Times that each task counts the common key up.
const COUNTS: u64 = 5;

impl Work {
    /// Key that all tasks count up; the keys of the tasks are after it.
    fn counter(&self) -> u64 {
        self.first
    }

    /// Carries the work out, leaves none of its keys behind, and returns the number of operations.
    pub(crate) async fn run(self, db: &Client) -> Result<u64, Failure> {
        let range = self.first..=self.first + self.tasks * KEYS;
        is("keys at the beginning", db.scan(range.clone()).next().await.transpose()?, None)?;
        db.put(self.counter(), 0_u64.to_le_bytes()).await?;
        let before = db.stats();
        let tasks: Vec<_> = (0..self.tasks).map(|task| tokio::spawn(self.task(db.clone(), task))).collect();
        let mut expected = BTreeMap::new();
        for task in tasks {
            expected.append(&mut task.await??);
        }
        let counted = if self.has_conditions { self.tasks * COUNTS } else { 0 };
        expected.insert(self.counter(), Bytes::copy_from_slice(&counted.to_le_bytes()));
        let mut found = BTreeMap::new();
        let mut pairs = db.scan(range.clone());
        while let Some((key, value)) = pairs.next().await.transpose()? {
            found.insert(key, value);
        }
        is("all pairs", &found, &expected)?;
        for key in expected.into_keys() {
            is("deleting a key", db.delete(key).await?, true)?;
        }
        is("keys at the end", db.scan(range).next().await.transpose()?, None)?;
        let after = db.stats();
        is("failed operations", after.failed, before.failed)?;
        Ok(after.reads + after.changes + after.scans - before.reads - before.changes - before.scans)
    }

    /// One task. Returns what its keys hold in the end.
    async fn task(self, db: Client, task: u64) -> Result<BTreeMap<u64, Bytes>, Failure> {
        let keys = self.first + 1 + task * KEYS..self.first + 1 + (task + 1) * KEYS;
        let (mut model, mut random) = (BTreeMap::new(), 0x9e37_79b9 + task);
        for number in 0..self.operations {
            // Xorshift: the same operations in each run.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let key = keys.start + random % KEYS;
            // Some values fit a cache line, some take several packets.
            let length = [8, 100, 3000][(random >> 8) as usize % 3];
            let value = Bytes::from(number.to_le_bytes().repeat(length / 8));
            let held: Option<Bytes> = model.get(&key).cloned();
            match (random >> 16) % 8 {
                0 => {
                    db.put(key, &value).await?;
                    model.insert(key, value);
                }
                1 if self.has_conditions => {
                    is("insert", db.insert(key, &value).await?, held.is_none())?;
                    model.entry(key).or_insert(value);
                }
                2 => {
                    is("update", db.update(key, &value).await?, held.is_some())?;
                    model.entry(key).and_modify(|held| *held = value);
                }
                3 if self.has_conditions => {
                    let swapped =
                        db.compare_and_swap(key, held.as_deref().unwrap_or(b"none"), &value).await?;
                    is("compare_and_swap", swapped, held.is_some())?;
                    model.entry(key).and_modify(|held| *held = value.clone());
                    is(
                        "compare_and_swap of another value",
                        db.compare_and_swap(key, "other", "new").await?,
                        false,
                    )?;
                }
                4 => {
                    is("delete", db.delete(key).await?, held.is_some())?;
                    model.remove(&key);
                }
                5 => {
                    let pairs: Vec<_> = keys.clone().step_by(3).map(|key| (key, value.clone())).collect();
                    for put in db.put_many(pairs.clone()).await? {
                        put?;
                    }
                    model.extend(pairs);
                    let held: Vec<_> = keys.clone().map(|key| model.get(&key).cloned()).collect();
                    is("get_many", db.get_many(keys.clone()).await?, held)?;
                }
                6 => {
                    let mut pairs = db.scan(keys.clone());
                    let mut found = Vec::new();
                    while let Some(pair) = pairs.next().await.transpose()? {
                        found.push(pair);
                    }
                    is("scan", found, model.clone().into_iter().collect::<Vec<_>>())?;
                }
                _ => is("get", db.get(key).await?, held)?,
            }
        }
        for _ in 0..if self.has_conditions { COUNTS } else { 0 } {
            self.count(&db).await?;
        }
        Ok(model)
    }

    /// Counts the common key up, beside the other tasks.
    async fn count(self, db: &Client) -> Result<(), Error> {
        loop {
            let Some(held) = db.get(self.counter()).await? else { continue };
            let count = held.iter().rev().fold(0, |count, byte| count << 8 | u64::from(*byte));
            if db.compare_and_swap(self.counter(), &held, (count + 1).to_le_bytes()).await? {
                return Ok(());
            }
        }
    }
}

/// Fails unless an answer is as expected.
fn is<T: PartialEq + std::fmt::Debug>(what: &str, found: T, expected: T) -> Result<(), Failure> {
    if found == expected {
        return Ok(());
    }
    let short = |value: &T| format!("{value:?}").chars().take(200).collect::<String>();
    Err(format!("{what}: expected {}, found {}", short(&expected), short(&found)).into())
}
