//! Small runs whose results must have the right cause.

use std::num::NonZeroU32;

use fatbtree_verbs::Throttling;

use super::threads::{Setup, run};
use super::tree::{Line, tree_threads};
use super::{base, causes, hash, of_words, resources, table_1, transactions};
use crate::card::{Resources, Usage};
use crate::column::{ABORTED, BUS, BUSIEST_BUCKET, DOORBELLS, IN_REGISTERS, MOPS, REQUESTS};
use crate::meter::percent;
use crate::writes::sherman_tree;
use crate::{Mix, Size};
use fatbtree_sim::world::Kind;

const SMALL: Size = Size { keys: 0, depth: 0, warm_up_us: 100, window_us: 150, seed: 1 };

/// Millions of requests a second, and what the card has spent.
fn measured(of: impl FnOnce(&mut Setup)) -> (f64, Usage) {
    let mut setup = base(&SMALL);
    of(&mut setup);
    let measured = run(&setup).unwrap();
    (measured.request_mops(), measured.usage)
}

/// Figure 3, without the policies that its checks do not name.
#[test]
fn threads_that_share_registers_wait_for_them() {
    let points: Vec<_> = resources(&SMALL)
        .into_iter()
        .filter(|point| {
            point.name.starts_with("READ, a ") && [16, 24, 32, 48, 96].contains(&point.setup.threads)
        })
        .collect();
    let rows = of_words(&points).unwrap();
    let checks = causes::resources(&rows);
    assert!(checks.len() == 6 && checks.iter().all(|check| check.holds), "{checks:#?}\n{rows:#?}");
}

/// Figure 4's checks on rows of 96 threads.
#[test]
fn too_many_requests_thrash_the_cache_and_the_bus_is_the_ceiling() {
    let size = Size { window_us: 300, ..SMALL };
    let points: Vec<_> = super::batches(&size)
        .into_iter()
        .filter(|point| point.name == "READ" && point.setup.threads == 96 && point.setup.batch > 4)
        .collect();
    let rows = of_words(&points).unwrap();
    let mut checks = causes::batches(&rows);
    checks.push(causes::halved(&base(&size)).unwrap());
    assert!(checks.len() == 4 && checks.iter().all(|check| check.holds), "{checks:#?}\n{rows:#?}");
}

/// WRITEs have a cliff of their own.
#[test]
fn writes_are_slower_beyond_the_cliff() {
    let writes =
        |batch| measured(|setup| (setup.kind, setup.threads, setup.batch) = (Kind::Write, 96, batch)).0;
    let (below, beyond) = (writes(8), writes(24));
    assert!((85.0..97.0).contains(&below) && (60.0..66.0).contains(&beyond), "{below} {beyond}");
}

/// The production reactor's limit keeps the card's cache large enough.
#[test]
fn throttled_threads_stay_at_the_ceiling() {
    let of =
        |throttling| measured(|setup| (setup.throttling, setup.threads, setup.batch) = (throttling, 96, 32));
    let free = of(Throttling::Off);
    let throttled = of(Throttling::Fixed(NonZeroU32::new(10).unwrap()));
    assert!(free.0 < 70.0 && throttled.0 > 105.0, "{free:?} {throttled:?}");
    assert!(throttled.1.missed < 0.05 * throttled.1.requests as f64, "{throttled:?}");
}

/// Half of the threads' gain is lost in registers that four of them share.
#[test]
fn one_doorbell_register_each_means_no_queue() {
    let of = |resources| measured(|setup| (setup.resources, setup.threads) = (resources, 48));
    let (shared, own) = (of(Resources::QueuePairPerThread), of(Resources::DoorbellPerThread));
    let window = base(&SMALL).window;
    assert!(
        percent(shared.1.in_registers, window) / 48.0 > 20.0 && own.0 > 1.8 * shared.0,
        "{shared:?} {own:?}"
    );
}

#[test]
fn a_run_follows_from_its_seed() {
    let of = |seed| measured(|setup| (setup.threads, setup.seed) = (5, seed)).1;
    assert_eq!(of(1), of(1));
    assert_ne!(of(1), of(2));
}

/// A window too short for two intervals has no row; one of 16 ms has that of 8 ms.
#[test]
fn a_changing_number_of_threads_has_the_rows_that_fit() {
    let (rows, _) = table_1(&Size { window_us: 100, ..SMALL }).unwrap();
    assert!(rows.is_empty(), "{rows:?}");
    assert_eq!(super::changing(&Size { window_us: 800, ..SMALL }).len(), 2);
}

/// Figure 12c, Sherman+: leaves of 1 KB fill the bus (SMART has 11.5 million lookups a second), and no more threads would help.
#[test]
fn places_of_single_entries_take_the_leaves_from_the_bus() {
    let size = Size { keys: 20_000, depth: 8, warm_up_us: 1_000, window_us: 300, seed: 1 };
    let tree = sherman_tree().unwrap();
    let of = |line| tree_threads(&size, 94, Mix::ReadOnly, line, tree).unwrap();
    let (sherman, smart) = (of(Line::Sherman), of(Line::SmartBt));
    assert!((10.3..12.1).contains(&sherman.row[MOPS]) && sherman.row[BUS] > 95.0, "{:?}", sherman.row);
    assert!(smart.row[MOPS] > 1.5 * sherman.row[MOPS], "{:?}", smart.row);
    assert!((50.0..90.0).contains(&smart.speculated_percent), "{}", smart.speculated_percent);
}

/// Figure 5a: with 16 threads a slot's bucket is the limit, with 8 it is not. In so short a time not all operations have gathered there.
#[test]
fn updates_of_a_hash_table_collapse_at_the_hottest_slot() {
    let size = Size { keys: 5_000, window_us: 100, ..SMALL };
    let rows = hash::updates_by(&size, &[(8, 1.57), (16, 0.53)]).unwrap();
    let [few, many] = [&rows[0], &rows[1]];
    assert!((1.3..1.9).contains(&few[MOPS]) && many[MOPS] < 0.65 * few[MOPS], "{rows:#?}");
    assert!(few[BUSIEST_BUCKET] < 60.0 && many[BUSIEST_BUCKET] > 95.0, "{rows:#?}");
}

/// Figure 10, FORD+ as published: with 24 threads the paper's commits, and with 96, which wait for registers, fewer for each. Requests, doorbells and
/// payments that fail are counted in SMART's artifact.
#[test]
fn ford_posts_as_many_requests_as_published() {
    let size = Size { keys: 100_000, window_us: 400, ..SMALL };
    // With fewer customers, more transactions meet.
    let rows = transactions::ford_by(&size, &[(8, 1.04), (24, 2.12), (96, 0.80)]).unwrap();
    let [few, some, many] = [&rows[0], &rows[1], &rows[2]];
    assert!((12.3..13.5).contains(&few[REQUESTS]), "{few:#?}");
    assert!((8.2..9.2).contains(&few[DOORBELLS]), "{few:#?}");
    assert!((13.0..19.0).contains(&few[ABORTED]), "{few:#?}");
    assert!((0.9..1.2).contains(&few[MOPS]) && (1.7..2.5).contains(&some[MOPS]), "{rows:#?}");
    assert!(some[IN_REGISTERS] < 15.0 && many[IN_REGISTERS] > 50.0, "{rows:#?}");
}
