//! A structure that no part of the program names, the smallest one, is drawn by the figure of all structures: its line of the registry is
//! all that joins it.

use fatbtree_figures::{Mix, Size, Skew, measured};
use kind::{COUNTERS, Toy};

#[path = "../../../remote-memory/tests/counters/kind.rs"]
mod kind;

#[test]
fn a_structure_of_ones_own_is_drawn() {
    let size = Size { depth: 4, warm_up_us: 50, window_us: 500, ..Size::default() };
    let keys: Vec<u64> = (0..COUNTERS.into()).collect();
    let table = measured::<Toy>(&size, Skew::Uniform, Mix::WriteIntensive, &keys).unwrap();
    let rows = serde_json::to_value(&table).unwrap();
    let row = &rows[0];
    assert_eq!(row["name"], "counter array");
    let number = |column: &str| row[column].as_f64().unwrap();
    // A counter is read at once, and changed under its lock.
    assert_eq!(number("read_round_trips"), 1.0, "{row}");
    assert!((2.0..2.5).contains(&number("write_round_trips")), "{row}");
    assert!(number("operations") > 500.0 && number("p50_us") > 0.0, "{row}");
    assert_eq!(table.lines()[1][0], "counter array");
}

/// A key that the structure does not take ends the measurement with words.
#[test]
fn a_key_that_is_not_taken_is_told() {
    let size = Size { depth: 1, warm_up_us: 0, window_us: 100, ..Size::default() };
    let refused = measured::<Toy>(&size, Skew::Uniform, Mix::ReadOnly, &[0, COUNTERS.into()]).unwrap_err();
    assert_eq!(refused, "counter array: key 200 is not taken");
}
