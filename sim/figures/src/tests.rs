//! Properties that must hold for figures of any size.

use super::column::{
    CODE_BYTES, HANDED_OVER, IN_REGISTERS, LAYERS_MEAN, LED_TRIPS, MOPS, NAME, OF_THREADS, OFF, P99, PAPER,
    READ_TRIPS, ROOT_TRIPS, SERVER_EACH, THREADS, WRITE_TRIPS, WRITTEN_BYTES,
};
use super::fat_btree::{layers, nodes, skews};
use super::key_kinds::key_kinds;
use super::locks::locks;
use super::reads::reads;
use super::structures::side_by_side;
use super::table::{Row, Table};
use super::writes::writes;
use super::{FIGURES, Mix, Size, Skew};

const SMALL: Size = Size { keys: 30_000, depth: 16, warm_up_us: 200, window_us: 1_500, seed: 1 };

#[test]
fn sherman_beats_fg_where_many_write_the_same() {
    // With shorter windows, the few writes that wait longest decide about the first two rows.
    let size = Size { window_us: 4_000, ..SMALL };
    let rows = writes(&size, Skew::Skewed, Mix::WriteIntensive).unwrap();
    let [fg, combine, on_chip, hierarchical, sherman, _] = &rows[..] else { panic!("six steps: {rows:?}") };
    assert!(sherman[MOPS] > 2.0 * fg[MOPS] && sherman[P99] * 2.0 < fg[P99], "{rows:?}");
    assert!(fg[MOPS] < combine[MOPS] && 2.0 * on_chip[MOPS] < hierarchical[MOPS], "{rows:?}");
    assert!(hierarchical[MOPS] < sherman[MOPS], "{rows:?}");
    // Of 1 KB, or of an entry.
    assert!(hierarchical[WRITTEN_BYTES] > 1_000.0 && sherman[WRITTEN_BYTES] < 200.0, "{rows:?}");
    assert!(fg[HANDED_OVER] == 0.0 && sherman[HANDED_OVER] > 1.0, "{rows:?}");
}

/// Figure 16: the card's memory makes attempts shorter, and hierarchical locks make them few.
#[test]
fn locks_gain_by_the_card_and_by_a_hierarchy() {
    let rows = locks(&Size { window_us: 8_000, ..SMALL }, Skew::Skewed, Mix::WriteOnly).unwrap();
    let gain = |of: usize, over: usize| rows[of][MOPS] / rows[over][MOPS];
    assert!((2.0..4.5).contains(&gain(1, 0)) && gain(2, 1) > 3.0, "{rows:?}");
}

/// Without contention; writes that still wait at the end are not counted.
#[test]
fn techniques_save_round_trips() {
    let size = Size { warm_up_us: 50, window_us: 200, ..SMALL };
    let rows = writes(&size, Skew::Uniform, Mix::WriteIntensive).unwrap();
    let trips = |at: usize| rows[at][WRITE_TRIPS];
    // A lock, a read, a write and a release; the last two of them at once; the first two, too. Some leaves are split.
    assert!(trips(0) > 4.0 && trips(0) < 5.5, "{rows:?}");
    assert!((1..5).all(|at| trips(at) > 3.0 && trips(at) < 4.0), "{rows:?}");
    assert!(trips(5) > 2.0 && trips(5) < 3.0, "{rows:?}");
}

#[test]
fn a_run_follows_from_its_seed() {
    let size = Size { keys: 5_000, warm_up_us: 20, window_us: 100, ..SMALL };
    let run = |seed| writes(&Size { seed, ..size }, Skew::Skewed, Mix::WriteOnly).unwrap();
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

#[test]
fn switches_save_reads_where_clients_cache_little() {
    let rows = reads(&Size { window_us: 200, warm_up_us: 50, ..SMALL }, Skew::Skewed, Mix::ReadOnly).unwrap();
    let of = |name: &str| {
        rows.iter().find(|row| row.text(NAME) == name).unwrap_or_else(|| panic!("{name}: {rows:?}"))
    };
    let (plain, switches) = (of("Sherman, 16 branches, no cache"), of("in-network Sherman, no cache"));
    assert!(switches[MOPS] > plain[MOPS] && switches[P99] < plain[P99], "{rows:?}");
    assert!(switches[READ_TRIPS] < 2.0, "{rows:?}");
}

/// Figures of the Fat-B+Tree paper: a plan saves round trips, more layers save more, and more nodes never
/// cost any.
#[test]
fn layers_and_nodes_save_round_trips() {
    // Enough keys that a small plan cannot lead all of them to their leaves.
    let size = Size { keys: 300_000, window_us: 400, warm_up_us: 50, ..SMALL };
    // Plans of several sizes: the rest is from the root.
    let plans = |rows: &[Row]| {
        let of = |is_root: bool| {
            rows.iter().filter(move |row| row.text(NAME).contains("from the root") == is_root)
        };
        let most = of(true).map(|row| row[READ_TRIPS]).fold(0.0, f64::max);
        let trips: Vec<f64> = of(false).map(|row| row[READ_TRIPS]).collect();
        assert!(trips.iter().all(|trips| *trips < most), "{rows:?}");
        trips
    };
    let rows = skews(&size, Skew::Skewed, Mix::ReadOnly).unwrap();
    assert_eq!((rows.len(), plans(&rows).len()), (6, 3), "{rows:?}");
    let rows = [nodes, layers].map(|figure| figure(&size, Skew::Skewed, Mix::ReadOnly).unwrap());
    for (rows, rows_of_it) in rows.iter().zip([8, 5]) {
        assert_eq!(rows.len(), rows_of_it, "{rows:?}");
        // A walk that ends where another node begins costs a trip now and then.
        assert!(plans(rows).windows(2).all(|pair| pair[1] < pair[0] + 0.05), "{rows:?}");
    }
    let [_, layers] = rows;
    assert!(layers[4][READ_TRIPS] < layers[1][READ_TRIPS], "{layers:?}");
}

/// Each structure has a row. Clients read once if switches lead them, or they know all inner nodes or keys.
#[test]
fn structures_stand_beside_each_other() {
    let size = Size { keys: 10_000, warm_up_us: 50, window_us: 300, ..SMALL };
    let rows = side_by_side(&size, Skew::Uniform, Mix::WriteIntensive).unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row.text(NAME)).collect();
    let trees = ["tree, from the root", "tree, inner nodes cached", "tree, led by switches"];
    assert_eq!(names[..3], trees);
    assert_eq!(names[3..6], trees.map(|tree| format!("{tree}, leaves of buckets")));
    assert_eq!(names[6..], ["hash table", "Dolphin index", "transactional table"]);
    let reads: Vec<f64> = rows.iter().map(|row| row[READ_TRIPS]).collect();
    assert!(reads[0] >= 2.0 && reads[3] >= 2.0 && reads[6] < 2.0, "{rows:?}");
    assert!([1, 2, 4, 5, 7, 8].iter().all(|at| (1.0..1.05).contains(&reads[*at])), "{rows:?}");
    let writes: Vec<f64> = rows.iter().map(|row| row[WRITE_TRIPS]).collect();
    // A client that knows the leaf locks it at once; one that is led reads it before.
    for first in [0, 3] {
        let [root, cached, led] = [0, 1, 2].map(|at| writes[first + at]);
        assert!(cached + 0.8 < led && led < root + 0.05, "{rows:?}");
    }
    assert!((2.0..2.1).contains(&writes[7]), "{rows:?}");
}

/// Switches lead by words of eight bytes, which have what tells keys apart.
#[test]
fn keys_of_bytes_are_led_as_numbers_are() {
    let rows = key_kinds(&Size { keys: 20_000, ..SMALL }).unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row.text(NAME)).collect();
    assert_eq!(names, ["numbers of 64 bits", "user", "uuid", "url", "email", "trace", "random"]);
    let numbers = &rows[0];
    assert!(rows.iter().all(|row| (row[LED_TRIPS] - numbers[LED_TRIPS]).abs() < 0.05), "{rows:?}");
    assert!(rows.iter().all(|row| row[LAYERS_MEAN] < 0.05 && row[ROOT_TRIPS] > row[LED_TRIPS]), "{rows:?}");
    // Only keys without a pattern need no code.
    assert!(
        rows.iter().enumerate().all(|(at, row)| (row[CODE_BYTES] == 0.0) == [0, 6].contains(&at)),
        "{rows:?}"
    );
    assert!(rows[3][SERVER_EACH] > rows[6][SERVER_EACH], "{rows:?}");
}

#[test]
fn a_table_has_the_columns_that_say_something() {
    let row = |name| Row::default().saying(NAME, name).with([(THREADS, 8.0), (MOPS, 1.0)]);
    let other = row("other").with([(PAPER, 1.0), (OFF, 0.0), (IN_REGISTERS, 0.0)]);
    let lines = Table::new(&OF_THREADS, vec![row("one"), other]).lines();
    let column = |heading: &str| {
        let at = lines[0].iter().position(|found| found == heading)?;
        Some([&lines[1][at][..], &lines[2][at]])
    };
    assert_eq!(column("threads"), Some(["8", "8"]));
    assert_eq!(column("paper"), Some(["", "1.00"]));
    assert_eq!(column("bytes of memory"), Some(["0", "0"]));
    // A difference of 0 was measured; a time of 0 says nothing.
    assert_eq!(column("off by %"), Some(["", "+0"]));
    assert_eq!(column("in registers %"), None, "{lines:?}");
}

#[test]
fn figures_of_a_paper_have_titles_of_their_own() {
    let mut titles: Vec<_> = FIGURES.iter().map(|figure| (figure.number, figure.title)).collect();
    titles.sort_unstable();
    // Figures 10 and 11 of Sherman have three mixtures each, those of all structures two.
    assert_eq!(titles.len() - titles.iter().collect::<std::collections::BTreeSet<_>>().len(), 6);
}
