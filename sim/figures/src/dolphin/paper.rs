//! The paper's values, in its own words: it has its figures as pictures only.

use crate::column::{FIGURE, INDEX, OF_PAPERS, PUBLISHED};
use crate::table::{Row, Table};

/// Figure, index, and what the text says of figures 6 to 9 and table II. Marlin and SMART-ART are not built here.
const VALUES: [(&str, &str, &str); 21] = [
    ("6", "Dolphin", "× 1.51 of Sherman at 800 MB and Zipf 0.99; × 1.16 to 3.26 of the others at 200 MB"),
    ("6", "Marlin", "little difference from Sherman, and not shown"),
    ("6", "SMART-ART", "÷ 1.32 of Dolphin at 800 MB and Zipf 0.99; wants 4600 MB or more"),
    ("7a", "Dolphin", "p50 5.5 µs; × 1.25 to 1.45 of the others"),
    ("7a", "Sherman", "p50 1.4 to 2.5 µs more than Dolphin's; 3 round trips or more"),
    ("7a", "Marlin", "p50 1.4 to 2.5 µs more than Dolphin's; 3 round trips or more"),
    ("7a", "SMART-ART", "p50 1.4 to 2.5 µs more than Dolphin's; 3 round trips or more"),
    ("7b", "Sherman", "as Dolphin"),
    ("7b", "Marlin", "p50 2.4 µs more than Sherman's and Dolphin's"),
    ("7b", "SMART-ART", "p99 about 10 µs more than the others'"),
    ("7c", "Sherman", "as Dolphin; 3 round trips"),
    ("7c", "Marlin", "as Dolphin; 3 round trips"),
    ("7c", "SMART-ART", "÷ 1.54; p50 8 µs more"),
    ("8", "Marlin", "÷ 4.38 to 22.4 of Dolphin and Sherman; × 5.11 of SMART-ART; 100 READs or more"),
    ("8", "SMART-ART", "÷ 4.38 to 22.4 of Dolphin and Sherman; 100 READs or more"),
    ("9", "Dolphin", "best in cluster 8 (writes)"),
    ("9", "Sherman", "slightly best in cluster 9 (reads)"),
    ("II", "Sherman", "460 MB a client, 12 GB of all servers"),
    ("II", "Marlin", "460 MB a client, 26 GB of all servers"),
    ("II", "SMART-ART", "5200 MB a client, 156 GB of all servers"),
    ("II", "Dolphin", "320 MB a client, 14 GB of all servers"),
];

/// Values that the paper's text gives for figures of these [numbers](crate::Figure::number).
pub fn published(numbers: &[&str]) -> Table {
    let is_of = |figure: &str| match figure {
        "II" => numbers.contains(&"table-2"),
        figure => numbers.contains(&figure.trim_end_matches(['a', 'b', 'c'])),
    };
    let row = |(figure, index, value)| {
        Row::default().saying(FIGURE, figure).saying(INDEX, index).saying(PUBLISHED, value)
    };
    Table::new(&OF_PAPERS, VALUES.into_iter().filter(|(figure, ..)| is_of(figure)).map(row).collect())
}
