//! Small sizes of the figures. With `KEYS` and `WINDOW` in the environment, as large as wanted, and printed.

use super::*;
use crate::column::{
    CACHE, CACHE_MB, GET_TRIPS, LED, MOPS, NAME, OF_MEMORY, OF_OPERATIONS, OF_SWITCHES, P50, READ_TRIPS,
    ROOM, SERVER_EACH, SRAM_USED, TCAM_ROWS, UPDATE_TRIPS, WORKLOAD, WRITE_TRIPS,
};
use crate::table::{Layout, Table};

type Run = fn(&Size, Skew, Mix) -> Result<Vec<Row>, String>;

fn size() -> Size {
    let number =
        |name: &str, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let window_us = number("WINDOW", 300);
    Size { keys: number("KEYS", 40_000), warm_up_us: window_us / 5, window_us, ..Size::default() }
}

fn run(figure: Run, skew: Skew, mix: Mix) -> Vec<Row> {
    printed(&OF_OPERATIONS, figure(&size(), skew, mix).unwrap())
}

fn printed(layout: &'static Layout, rows: Vec<Row>) -> Vec<Row> {
    Table::new(layout, rows.clone()).lines().iter().for_each(|line| println!("{}", line.join(" | ")));
    rows
}

/// Pairs of Sherman's and Dolphin's rows: the first and the last one of each line.
fn pairs(rows: &[Row]) -> impl Iterator<Item = (&Row, &Row)> {
    rows.chunk_by(|row, _| !row.text(NAME).starts_with("Dolphin"))
        .map(|line| (&line[0], &line[line.len() - 1]))
}

#[test]
fn updates_take_two_round_trips() {
    for (sherman, dolphin) in pairs(&run(ycsb, Skew::Skewed, Mix::WriteIntensive)) {
        assert!((2.0..2.1).contains(&dolphin[WRITE_TRIPS]), "{dolphin:?}");
        assert!((1.0..1.1).contains(&dolphin[READ_TRIPS]), "{dolphin:?}");
        assert!(dolphin[MOPS] > sherman[MOPS], "{dolphin:?} {sherman:?}");
    }
}

#[test]
fn reads_are_alike() {
    for (sherman, dolphin) in pairs(&run(ycsb, Skew::Skewed, Mix::ReadOnly)) {
        assert!((0.9..1.1).contains(&(dolphin[P50] / sherman[P50])), "{dolphin:?} {sherman:?}");
    }
}

#[test]
fn insertions_and_scans() {
    let loaded = run(inserts, Skew::Uniform, Mix::WriteOnly);
    for (sherman, dolphin) in pairs(&loaded) {
        assert!((3.0..6.0).contains(&dolphin[WRITE_TRIPS]), "{dolphin:?}");
        assert!((2.0..2.1).contains(&sherman[WRITE_TRIPS]), "{sherman:?}");
    }
    let published = loaded.iter().filter(|row| row.text(NAME).contains("lock before read"));
    let trips: Vec<f64> = published.map(|row| row[WRITE_TRIPS]).collect();
    assert!(trips.len() == 2 && trips.iter().all(|trips| (3.0..3.1).contains(trips)), "{trips:?}");
    for (_, dolphin) in pairs(&run(scans, Skew::Uniform, Mix::ReadOnly)) {
        assert!(dolphin[READ_TRIPS] < 5.0, "{dolphin:?}");
    }
}

#[test]
fn a_larger_cache_saves_round_trips() {
    for skew in [Skew::Skewed, Skew::Uniform] {
        let rows = run(caches, skew, Mix::WriteIntensive);
        let trips: Vec<f64> = pairs(&rows).map(|(_, dolphin)| dolphin[READ_TRIPS]).collect();
        assert!(trips.first() > trips.last(), "{trips:?}");
    }
}

#[test]
fn traces_are_replayed() {
    let rows = run(traces, Skew::Skewed, Mix::WriteIntensive);
    let lines: Vec<_> = pairs(&rows).collect();
    let [(_, writes), (sherman, reads)] = lines[..] else { panic!("two traces: {rows:?}") };
    assert!(writes[WRITE_TRIPS] > 2.0 && reads[WRITE_TRIPS] == 0.0, "{rows:?}");
    assert!((0.9..1.1).contains(&(reads[P50] / sherman[P50])), "{rows:?}");
}

#[test]
fn switches_lead_to_leaves() {
    let rows = printed(&OF_SWITCHES, switches(&size()).unwrap());
    let room = rows.iter().map(|row| row[ROOM]).fold(0.0, f64::max);
    for row in rows.iter().filter(|row| row[ROOM] > 0.0) {
        assert!(row[SRAM_USED] <= row[ROOM], "{row:?}");
        assert!(row[TCAM_ROWS] == 0.0 || row.text(NAME).ends_with("node sets"), "{row:?}");
        // There is room for all leaves.
        if row[SRAM_USED] < row[ROOM] / 2.0 && row.text(NAME) == "Dolphin, node sets" {
            assert!(row[LED] > 99.9, "{row:?}");
            let trips = (row[GET_TRIPS], row[UPDATE_TRIPS]);
            assert!((1.0..1.01).contains(&trips.0) && (3.0..3.05).contains(&trips.1), "{row:?}");
        }
    }
    for alone in
        rows.iter().filter(|row| row.text(NAME) == "Dolphin, no switches" && row.text(CACHE) == "none")
    {
        let led =
            |row: &&Row| row.text(WORKLOAD) == alone.text(WORKLOAD) && row.text(NAME) == "Dolphin, blocks";
        let led = rows.iter().filter(led).find(|row| row[ROOM] == room).expect("there is such a row");
        assert!(led[GET_TRIPS] < alone[GET_TRIPS], "{led:?} {alone:?}");
    }
}

/// Table II: the cache is within 15 % of the paper's 320 MB for dense keys, or less.
#[test]
fn bytes() {
    let rows = printed(&OF_MEMORY, memory(&size()).unwrap());
    let dense = rows.iter().find(|row| row.text(NAME) == "Dolphin, dense").unwrap();
    assert!(dense[CACHE_MB] < 320.0 * 1.15, "{dense:?}");
    let of_trace = rows.iter().find(|row| row.text(NAME) == "Dolphin, trace").unwrap();
    assert!(of_trace[SERVER_EACH] < 2.0 * dense[SERVER_EACH], "{of_trace:?}");
    // Sparse keys have no leaf each.
    let random = rows.iter().find(|row| row.text(NAME) == "Dolphin, random 64-bit").unwrap();
    assert!(random[SERVER_EACH] < 2.0 * dense[SERVER_EACH], "{random:?}");
}
