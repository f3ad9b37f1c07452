//! Small sizes of the figures. With `KEYS` and `WINDOW` in the environment, as large as wanted, and printed.

use super::*;

fn size() -> Size {
    let number =
        |name: &str, default| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let window_us = number("WINDOW", 300);
    Size { keys: number("KEYS", 40_000), warm_up_us: window_us / 5, window_us, ..Size::default() }
}

fn run(figure: DolphinFigure) -> Vec<Row> {
    let rows = dolphin(&size(), figure).unwrap();
    println!("{}", figure.title());
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

/// Pairs of Sherman's and Dolphin's rows.
fn pairs(rows: &[Row]) -> impl Iterator<Item = (&Row, &Row)> {
    rows.chunks_exact(2).map(|pair| (&pair[0], &pair[1]))
}

#[test]
fn updates_take_two_round_trips() {
    for (sherman, dolphin) in pairs(&run(DolphinFigure::Updates)) {
        assert!((2.0..2.1).contains(&dolphin.write_round_trips), "{dolphin:?}");
        assert!((1.0..1.1).contains(&dolphin.read_round_trips), "{dolphin:?}");
        assert!(dolphin.mops > sherman.mops, "{dolphin:?} {sherman:?}");
    }
}

#[test]
fn reads_are_alike() {
    for (sherman, dolphin) in pairs(&run(DolphinFigure::Reads)) {
        assert!((0.9..1.1).contains(&(dolphin.p50_us / sherman.p50_us)), "{dolphin:?} {sherman:?}");
    }
}

#[test]
fn insertions_and_scans() {
    for (_, dolphin) in pairs(&run(DolphinFigure::Inserts)) {
        assert!((3.0..6.0).contains(&dolphin.write_round_trips), "{dolphin:?}");
    }
    for (_, dolphin) in pairs(&run(DolphinFigure::Scans)) {
        assert!(dolphin.read_round_trips < 5.0, "{dolphin:?}");
    }
}

#[test]
fn a_larger_cache_saves_round_trips() {
    for figure in [DolphinFigure::CacheSkewed, DolphinFigure::CacheUniform] {
        let rows = run(figure);
        let trips: Vec<f64> = pairs(&rows).map(|(_, dolphin)| dolphin.read_round_trips).collect();
        assert!(trips.first() > trips.last(), "{trips:?}");
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
    // Sparse keys have no leaf each.
    let random = rows.iter().find(|row| row.name == "Dolphin, random 64-bit").unwrap();
    assert!(random.server_bytes < 2.0 * dense.server_bytes, "{random:?}");
}
