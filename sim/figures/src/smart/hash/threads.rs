//! Lookups and updates of a hash table.

use fatbtree_race::Table;
use fatbtree_verbs::time::Duration;
use fatbtree_workload::ycsb::Zipfian;
use rand::RngExt as _;

use super::image::Image;
use crate::Mix;
use crate::bench::{key_of, value_of};
use crate::meter::{Done, Measured};
use crate::rig::Client;
use crate::smart::clients::{self, Operations, Setup, Slot};
use fatbtree_sim::world::{Machine, SimDevice};

/// Time of a thread for a lookup and for an update, without its requests: figures 8 and 5 with one thread, 1.75 and 4.2 µs, less three and
/// five requests of 0.215 µs.
const LOOKUP: Duration = Duration::from_nanos(1_105);
const UPDATE: Duration = Duration::from_nanos(3_125);

/// What threads do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) mix: Mix,
    /// Time for which each of a thread's operations rests before the next one.
    pub(super) rest: Duration,
}

/// The work, and the keys that it is about.
struct OnTable {
    work: Work,
    ranks: Zipfian,
    /// Keys of the table.
    keys: u64,
}

/// Runs a measurement. Every value that is read is checked.
///
/// # Errors
/// A wrong answer, or an operation that failed.
pub(super) fn run(setup: &Setup<Work>, table: &Image, ranks: &Zipfian) -> Result<Measured, String> {
    let operations = OnTable { work: setup.work, ranks: ranks.clone(), keys: table.keys() };
    clients::run(setup, |machines| table.serve(machines), operations)
}

impl Operations for OnTable {
    type Side = Table<SimDevice>;

    async fn open(&self, _: &Machine, memory: Client) -> Result<Table<SimDevice>, String> {
        Table::open(memory, 0).await.map_err(|error| error.to_string())
    }

    async fn next(&self, table: &Table<SimDevice>, slot: &mut Slot) -> Result<Done, String> {
        let rest = self.work.rest.as_nanos();
        if rest > 0 {
            // Not all at once.
            let rest = slot.draw.random_range(rest / 2..=rest * 3 / 2);
            slot.rest(Duration::from_nanos(rest)).await;
        }
        // The hot keys' shares are the paper's; keys that are not loaded count as others that are as cold.
        let key = key_of(self.ranks.draw(&mut slot.draw) % self.keys);
        let writes = slot.draw.random_range(0..100) < self.work.mix.writes_percent();
        slot.work(if writes { UPDATE } else { LOOKUP }).await;
        match writes {
            true => update(table, key).await.map(|()| Done::Write(0)),
            false => search(table, key).await.map(|()| Done::Read(0)),
        }
    }
}

async fn update(table: &Table<SimDevice>, key: u64) -> Result<(), String> {
    match table.update(key, &value_of(key)).await.result {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!("key {key} is gone")),
        Err(error) => Err(error.to_string()),
    }
}

async fn search(table: &Table<SimDevice>, key: u64) -> Result<(), String> {
    match table.search(key).await.result {
        Ok(Some(found)) if found[..] == value_of(key) => Ok(()),
        Ok(found) => Err(format!("key {key} has {found:?}")),
        Err(error) => Err(error.to_string()),
    }
}
