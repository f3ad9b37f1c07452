//! Servers that lose their memory while logs are late.

use std::rc::Rc;

use fatbtree_sim::world::{LinkFaults, Options, Retry};
use fatbtree_verbs::time::Duration;

use crate::model::small;
use crate::scene::{SOON, Scene, add, add_once, told};

/// A client adds to a counter. Its log reaches one server, which loses its memory; what goes to the other server at this moment is late.
/// Another client fills the server and adds, too. In the end replicas are equal, and each addition has counted once or not at all.
pub(crate) fn a_log_comes_late(moment: u64, loses_primary: bool, seed: u64) -> Result<(), String> {
    let options = Options {
        // What is late is not sent again meanwhile.
        retry: Retry { timeout: Duration::from_millis(2), limit: 7 },
        ..Options::default()
    };
    let scene = Scene::with(small(0b111, 1), Duration::from_millis(50), options, seed);
    let key = scene.key_at(0, 0);
    // The primary is on server 0, and the backup on server 1.
    let (lost, late) = if loses_primary { (0, 1) } else { (1, 0) };
    let (slow, tables) = scene.open("slow");
    scene.run(&slow, add(Rc::clone(&tables), key)).map_err(|error| error.to_string())?;
    let added = slow.spawn(add_once(tables, key));
    scene.world.run_for(Duration::from_nanos(moment));
    let always = LinkFaults { lost: 0, late: 1_000_000, latest: Duration::from_micros(900) };
    scene.servers[late].machine.set_link_faults(always);
    scene.world.run_for(Duration::from_micros(3));
    scene.servers[late].machine.set_link_faults(LinkFaults::default());
    scene.world.run_for(Duration::from_nanos(1_000 + moment % 7 * 500));
    scene.restart(lost, false);
    let (other, tables) = scene.open("other");
    let others = other.spawn(add(tables, key));
    scene.world.run_until(|| added.has_ended() && others.has_ended(), SOON).map_err(|_| "it does not end")?;
    let results = [Some(Ok(())), added.take(), others.take()];
    // Once more from the other replica.
    let ([found], _) = scene.look([key])?;
    scene.restart(1 - lost, false);
    let ([again], _) = scene.look([key])?;
    if found == again && found.is_some_and(|found| told(&results).contains(&found)) {
        Ok(())
    } else {
        Err(format!("{found:?}, and {again:?} after another loss: {results:?}"))
    }
}

/// All moments at which logs are late.
pub(crate) fn moments_to_be_late() -> impl Iterator<Item = (u64, bool, u64)> {
    let moments = (0..12_000).step_by(600);
    moments.flat_map(|moment| {
        [true, false].into_iter().flat_map(move |primary| (1..7).map(move |seed| (moment, primary, seed)))
    })
}

#[test]
fn a_log_that_comes_behind_a_fill_changes_nothing() {
    for (moment, primary, seed) in moments_to_be_late() {
        a_log_comes_late(moment, primary, seed)
            .unwrap_or_else(|why| panic!("{moment} ns, {primary}, {seed}: {why}"));
    }
}
