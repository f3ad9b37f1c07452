//! Transactions of threads over tables.

use std::rc::Rc;

use fatbtree_dtx::workloads::tatp;
use fatbtree_dtx::{Addresses, Shape, Tables};
use fatbtree_verbs::time::Duration;
use rand::RngExt as _;

use super::ford::{self, Ford};
use super::image::Image;
use super::{Bench, Protocol, bank};
use crate::meter::{Done, Measured};
use crate::rig::Client;
use crate::smart::clients::{self, Operations, Setup, Slot};
use fatbtree_sim::world::{Machine, SimDevice};

impl Bench {
    /// Time of a thread for an attempt without its requests: FORD+ with 8 threads, which share nothing, makes 1.232 and 2.635 million attempts a
    /// second, 6.49 and 3.04 µs each, less 13.05 and 3.36 requests of 0.215 µs. With 16 threads SMART-DTX takes as long. One thread alone takes
    /// 4.05 and 1.93 µs; see `sim/figures/FIGURES.md`.
    const fn own_work(self) -> Duration {
        Duration::from_nanos(match self {
            Self::SmallBank => 3_690,
            Self::Tatp => 2_310,
        })
    }
}

/// What threads do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    pub(super) protocol: Protocol,
    pub(super) bench: Bench,
    pub(super) count: u64,
}

/// The work, and the tables that it is about.
struct OnTables {
    work: Work,
    addresses: Rc<Addresses>,
    shape: Shape,
}

/// A thread's side of the protocol.
pub(super) enum Side {
    Ours(Tables<SimDevice>),
    Ford(Ford),
}

/// Runs a measurement.
///
/// # Errors
/// A transaction that failed.
pub(super) fn run(setup: &Setup<Work>, image: &Image) -> Result<Measured, String> {
    let operations = OnTables { work: setup.work, addresses: image.addresses(), shape: image.shape() };
    clients::run(setup, |machines| image.serve(machines), operations)
}

impl Operations for OnTables {
    type Side = Side;

    async fn open(&self, machine: &Machine, memory: Client) -> Result<Side, String> {
        match self.work.protocol {
            Protocol::Ours => {
                let tables = Tables::open_knowing(memory, 0, Rc::clone(&self.addresses)).await;
                tables.map(Side::Ours).map_err(|error| error.to_string())
            }
            Protocol::Ford => Ok(Side::Ford(Ford::new(machine.clone(), memory, self.shape))),
        }
    }

    async fn next(&self, side: &Side, slot: &mut Slot) -> Result<Done, String> {
        let Work { bench, count, .. } = self.work;
        let below = &mut |most: u64| slot.draw.random_range(0..most);
        let task = match bench {
            Bench::SmallBank => ford::Task::Bank(bank::operation(&bank::customers(count), below)),
            Bench::Tatp => ford::Task::Tatp(tatp::Operation::draw(count, below), below(24)),
        };
        let commits = match side {
            Side::Ours(tables) => run_ours(slot, tables, bench, task).await?,
            Side::Ford(ford) => run_fords(slot, ford, bench, task).await?,
        };
        Ok(if commits { Done::Write(0) } else { Done::Aborted })
    }
}

/// Runs a transaction, again where it met another one. Says whether it has done what it was for.
async fn run_ours(
    slot: &Slot,
    tables: &Tables<SimDevice>,
    bench: Bench,
    task: ford::Task,
) -> Result<bool, String> {
    let answer = tables.run(async |tx| {
        // An attempt that is made again costs the thread's time again.
        slot.work(bench.own_work()).await;
        match task {
            ford::Task::Bank(bank) => bank.carry_out(tx, slot.begun, |_, _, _| {}).await,
            ford::Task::Tatp(tatp, _) => tatp.carry_out(tx, slot.begun).await,
        }
    });
    answer.await.result.map_err(|error| error.to_string())
}

/// Tries a transaction once. One that is given up is followed by another one, after a pause: SMART's artifact pauses after those that
/// lack money, too.
async fn run_fords(slot: &Slot, ford: &Ford, bench: Bench, task: ford::Task) -> Result<bool, String> {
    let turn = slot.memory.compete().await;
    slot.work(bench.own_work()).await;
    let commits = ford.attempt(task).await?;
    slot.memory.note_attempt(!commits);
    if !commits {
        slot.memory.pause_after_conflict(0, None).await;
    }
    drop(turn);
    Ok(commits)
}
