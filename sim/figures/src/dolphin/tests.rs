//! Small sizes of the figures. With `KEYS` and `WINDOW` in the environment, as large as wanted, and printed.

use super::*;

fn size() -> Size {
    let number =
        |name: &str, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let window_us = number("WINDOW", 300);
    Size { keys: number("KEYS", 40_000), warm_up_us: window_us / 5, window_us, ..Size::default() }
}

fn run(figure: impl Fn(&Size) -> Result<Rows, String>) -> Vec<Row> {
    let Rows::Operations { rows, .. } = figure(&size()).unwrap() else { panic!("operations are measured") };
    for row in &rows {
        println!(
            "{:40} {:6.2} Mop/s, p50 {:5.1}, p99 {:6.1}, write {:.2}, read {:.2} trips, cache {}",
            row.name,
            row.mops,
            row.p50_us,
            row.p99_us,
            row.write_round_trips,
            row.read_round_trips,
            row.cache_bytes
        );
    }
    rows
}

/// Pairs of Sherman's and Dolphin's rows: the first and the last one of each line.
fn pairs(rows: &[Row]) -> impl Iterator<Item = (&Row, &Row)> {
    rows.chunk_by(|row, _| !row.name.starts_with("Dolphin")).map(|line| (&line[0], &line[line.len() - 1]))
}

#[test]
fn updates_take_two_round_trips() {
    for (sherman, dolphin) in pairs(&run(|size| ycsb(size, Mix::WriteIntensive))) {
        assert!((2.0..2.1).contains(&dolphin.write_round_trips), "{dolphin:?}");
        assert!((1.0..1.1).contains(&dolphin.read_round_trips), "{dolphin:?}");
        assert!(dolphin.mops > sherman.mops, "{dolphin:?} {sherman:?}");
    }
}

#[test]
fn reads_are_alike() {
    for (sherman, dolphin) in pairs(&run(|size| ycsb(size, Mix::ReadOnly))) {
        assert!((0.9..1.1).contains(&(dolphin.p50_us / sherman.p50_us)), "{dolphin:?} {sherman:?}");
    }
}

#[test]
fn insertions_and_scans() {
    let loaded = run(inserts);
    for (sherman, dolphin) in pairs(&loaded) {
        assert!((3.0..6.0).contains(&dolphin.write_round_trips), "{dolphin:?}");
        assert!((2.0..2.1).contains(&sherman.write_round_trips), "{sherman:?}");
    }
    let published = loaded.iter().filter(|row| row.name.contains("lock before read"));
    let trips: Vec<f64> = published.map(|row| row.write_round_trips).collect();
    assert!(trips.len() == 2 && trips.iter().all(|trips| (3.0..3.1).contains(trips)), "{trips:?}");
    for (_, dolphin) in pairs(&run(scans)) {
        assert!(dolphin.read_round_trips < 5.0, "{dolphin:?}");
    }
}

#[test]
fn a_larger_cache_saves_round_trips() {
    for skew in [Skew::Skewed, Skew::Uniform] {
        let rows = run(|size| caches(size, skew));
        let trips: Vec<f64> = pairs(&rows).map(|(_, dolphin)| dolphin.read_round_trips).collect();
        assert!(trips.first() > trips.last(), "{trips:?}");
    }
}

#[test]
fn traces_are_replayed() {
    let rows = run(traces);
    let lines: Vec<_> = pairs(&rows).collect();
    let [(_, writes), (sherman, reads)] = lines[..] else { panic!("two traces: {rows:?}") };
    assert!(writes.write_round_trips > 2.0 && reads.write_round_trips == 0.0, "{rows:?}");
    assert!((0.9..1.1).contains(&(reads.p50_us / sherman.p50_us)), "{rows:?}");
}

#[test]
fn switches_lead_to_leaves() {
    let rows = switches(&size()).unwrap();
    for row in &rows {
        println!(
            "{:22} {:28} {:5} {:7} {:7} bytes, {:6} entries, {:5} rows, {:5.1} %: {:.2} {:.2} trips, {:.2} Mop/s, p50 {:.1}",
            row.keys,
            row.name,
            row.cache,
            row.room_bytes,
            row.sram_bytes,
            row.entries,
            row.tcam_rows,
            row.led_percent,
            row.get_round_trips,
            row.update_round_trips,
            row.mops,
            row.p50_us
        );
    }
    let room = rows.iter().map(|row| row.room_bytes).max();
    for row in rows.iter().filter(|row| row.room_bytes > 0) {
        assert!(row.sram_bytes <= row.room_bytes, "{row:?}");
        assert!(row.tcam_rows == 0 || row.name.ends_with("node sets"), "{row:?}");
        // There is room for all leaves.
        if row.sram_bytes < row.room_bytes / 2 && row.name == "Dolphin, node sets" {
            assert!(row.led_percent > 99.9, "{row:?}");
            let trips = (row.get_round_trips, row.update_round_trips);
            assert!((1.0..1.01).contains(&trips.0) && (3.0..3.05).contains(&trips.1), "{row:?}");
        }
    }
    for alone in rows.iter().filter(|row| row.name == "Dolphin, no switches" && row.cache == "none") {
        let led = |row: &&SwitchRow| row.keys == alone.keys && row.name == "Dolphin, blocks";
        let led =
            rows.iter().filter(led).find(|row| Some(row.room_bytes) == room).expect("there is such a row");
        assert!(led.get_round_trips < alone.get_round_trips, "{led:?} {alone:?}");
    }
}

/// Table II: the cache is within 15 % of the paper's 320 MB for dense keys, or less.
#[test]
fn bytes() {
    let rows = memory(&size()).unwrap();
    for row in &rows {
        println!(
            "{:24} {} keys: cache {:.2} bytes a key → {:.0} MB (paper {:.0}); servers {:.1} → {:.1} GB (paper {:.0}); {:.1} keys a leaf",
            row.name,
            row.keys,
            row.cache_bytes,
            row.cache_mb,
            row.paper_cache_mb,
            row.server_bytes,
            row.server_gb,
            row.paper_server_gb,
            row.keys_a_leaf
        );
    }
    let dense = rows.iter().find(|row| row.name == "Dolphin, dense").unwrap();
    assert!(dense.cache_mb < 320.0 * 1.15, "{dense:?}");
    let of_trace = rows.iter().find(|row| row.name == "Dolphin, trace").unwrap();
    assert!(of_trace.server_bytes < 2.0 * dense.server_bytes, "{of_trace:?}");
    // Sparse keys have no leaf each.
    let random = rows.iter().find(|row| row.name == "Dolphin, random 64-bit").unwrap();
    assert!(random.server_bytes < 2.0 * dense.server_bytes, "{random:?}");
}
