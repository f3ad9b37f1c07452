//! The paper's values, in its own words: it has its figures as pictures only.

use serde::Serialize;

/// A value as the paper's text gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Published {
    /// Figure or table.
    pub figure: &'static str,
    /// Index.
    pub index: &'static str,
    /// The value.
    pub value: &'static str,
}

const fn published(figure: &'static str, index: &'static str, value: &'static str) -> Published {
    Published { figure, index, value }
}

/// What the text says of figures 6 to 9 and table II. Marlin and SMART-ART are not built here.
pub const PUBLISHED: [Published; 21] = [
    published(
        "6",
        "Dolphin",
        "× 1.51 of Sherman at 800 MB and Zipf 0.99; × 1.16 to 3.26 of the others at 200 MB",
    ),
    published("6", "Marlin", "little difference from Sherman, and not shown"),
    published("6", "SMART-ART", "÷ 1.32 of Dolphin at 800 MB and Zipf 0.99; wants 4600 MB or more"),
    published("7a", "Dolphin", "p50 5.5 µs; × 1.25 to 1.45 of the others"),
    published("7a", "Sherman", "p50 1.4 to 2.5 µs more than Dolphin's; 3 round trips or more"),
    published("7a", "Marlin", "p50 1.4 to 2.5 µs more than Dolphin's; 3 round trips or more"),
    published("7a", "SMART-ART", "p50 1.4 to 2.5 µs more than Dolphin's; 3 round trips or more"),
    published("7b", "Sherman", "as Dolphin"),
    published("7b", "Marlin", "p50 2.4 µs more than Sherman's and Dolphin's"),
    published("7b", "SMART-ART", "p99 about 10 µs more than the others'"),
    published("7c", "Sherman", "as Dolphin; 3 round trips"),
    published("7c", "Marlin", "as Dolphin; 3 round trips"),
    published("7c", "SMART-ART", "÷ 1.54; p50 8 µs more"),
    published("8", "Marlin", "÷ 4.38 to 22.4 of Dolphin and Sherman; × 5.11 of SMART-ART; 100 READs or more"),
    published("8", "SMART-ART", "÷ 4.38 to 22.4 of Dolphin and Sherman; 100 READs or more"),
    published("9", "Dolphin", "best in cluster 8 (writes)"),
    published("9", "Sherman", "slightly best in cluster 9 (reads)"),
    published("II", "Sherman", "460 MB a client, 12 GB of all servers"),
    published("II", "Marlin", "460 MB a client, 26 GB of all servers"),
    published("II", "SMART-ART", "5200 MB a client, 156 GB of all servers"),
    published("II", "Dolphin", "320 MB a client, 14 GB of all servers"),
];
