//! Logs that are still open when later transactions have come, because their coordinators have died after the release of their locks.

use std::rc::Rc;

use fatbtree_dtx::{DtxError, Shape, TableShape, Tables, Verdict, Want};
use fatbtree_remote_memory::Contention;
use fatbtree_sim::transactions::lab::begin;
use fatbtree_sim::world::{MachineOptions, Options, SimDevice, random};
use fatbtree_verbs::Mtu;
use fatbtree_verbs::time::Duration;

use crate::scene::{LEASE, SOON, Scene, get, number};

/// Bytes of a value that does not fit a small packet.
const LONG_VALUE: usize = 512;

/// Items whose WRITE takes several of the smallest packets: such a one is torn when its client dies.
fn long_items() -> Shape {
    let table = TableShape { nodes: 6, value_bytes: LONG_VALUE as u16, slots: 3 };
    let mut shape = Shape::new(&[table], 0b111, 1).expect("the shape is possible");
    shape.seats = 2;
    shape
}

/// Adds one to a counter whose number fills the whole item.
async fn add_long(tables: Rc<Tables<SimDevice>>, key: u64) -> Result<(), DtxError> {
    let add = tables.run(async |tx| {
        let [item] = tx.fetch([Want::write(0, key)]).await?;
        let sum = number(tx.value(item)).unwrap_or(0) + 1;
        tx.put(item, &sum.to_le_bytes().repeat(LONG_VALUE / 8))?;
        Ok(Verdict::Commit(()))
    });
    add.await.result
}

/// Time after its begin, in microseconds, at which the third client recovers the first one's transaction.
pub(crate) const IN_RECOVERY: u64 = 36;

/// A client dies in an addition, after so many WRITEs and atomics: perhaps its locks are released, and a log is open. Another one adds, too, and
/// dies while it writes the item. A third one wants a seat, and recovers both; meanwhile the primary may lose its memory.
pub(crate) fn an_older_log_is_open(
    (changes, nanos, seed): (u64, u64, u64),
    lost_after: Option<u64>,
) -> Result<(), String> {
    let scene = Scene::with(long_items(), LEASE, Options::default(), seed);
    let key = scene.key_at(0, 0);
    let (first, tables) = scene.open("first");
    scene.run(&first, add_long(Rc::clone(&tables), key)).map_err(|error| error.to_string())?;
    first.mute_after_changes(changes);
    drop(first.spawn(add_long(tables, key)));
    scene.world.run_for(Duration::from_micros(100));
    first.kill();
    scene.world.run_for(LEASE * 2);
    let second = scene.world.machine(MachineOptions { mtu: Mtu::B256, ..MachineOptions::named("second") });
    let memory = begin(&second, &scene.servers, Contention::SMART, &mut random(seed, 1));
    let tables = scene.run(&second, Tables::open(memory, 0)).map_err(|error| error.to_string())?;
    let tables = Rc::new(tables);
    let of = Rc::clone(&tables);
    let seen = scene.run(&second, async move { get(&of, key).await }).map_err(|error| error.to_string())?;
    let seen = seen.unwrap_or(0);
    drop(second.spawn(add_long(tables, key)));
    scene.world.run_for(Duration::from_nanos(nanos));
    second.kill();
    scene.world.run_for(LEASE * 2);
    let (heir, tables) = scene.open("heir");
    // Another key: it only wants the seat.
    let added = heir.spawn(add_long(tables, scene.key_at(1, 0)));
    if let Some(micros) = lost_after {
        scene.world.run_for(Duration::from_micros(micros));
        heir.freeze();
        scene.restart(0, false);
        scene.world.run_for(Duration::from_micros(10));
        heir.thaw();
    }
    scene.world.run_until(|| added.has_ended(), SOON).map_err(|_| "it does not end")?;
    heir.kill();
    scene.world.run_for(LEASE * 2);
    let ([found], _) = scene.look([key])?;
    // Once more from the other replica.
    scene.restart(0, false);
    let ([again], _) = scene.look([key])?;
    let is_right = found == again && found.is_some_and(|found| (seen..=seen + 1).contains(&found));
    if is_right { Ok(()) } else { Err(format!("{seen}, then {found:?}, and {again:?} from the backup")) }
}

/// All such moments. The second client dies in its first round trips of data.
pub(crate) fn moments_of_an_older_log() -> impl Iterator<Item = (u64, u64, u64)> {
    let moments = (0..60).map(|step| 4_000 + step * 400);
    moments.flat_map(|nanos| (4..14).flat_map(move |changes| (1..3).map(move |seed| (changes, nanos, seed))))
}

#[test]
fn an_older_log_changes_nothing_that_came_later() {
    for lost_after in [None, Some(IN_RECOVERY)] {
        for moment in moments_of_an_older_log() {
            an_older_log_is_open(moment, lost_after)
                .unwrap_or_else(|why| panic!("{moment:?}, {lost_after:?}: {why}"));
        }
    }
}
