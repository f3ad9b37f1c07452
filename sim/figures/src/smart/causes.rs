//! Checks of what SMART's figures show, and of the cause.

use super::Check;
use super::threads::{Setup, run};
use crate::column::{
    ABORTED, BATCH, BUS, BUSIEST_BUCKET, IN_REGISTERS, MEMORY_BYTES, MISSED, MOPS, NAME, P50, P99, PAPER,
    REQUESTS, THREADS,
};
use crate::table::{Column, Row};

/// Looks whether a value is within some percent of another one.
fn near(value: f64, of: f64, percent: f64) -> bool {
    (value - of).abs() <= of * percent / 100.0
}

fn within(what: &str, row: &Row, of: f64, percent: f64) -> Check {
    Check {
        claim: format!("{what}: {of} Mop/s ± {percent} %"),
        found: format!("{:.1}", row[MOPS]),
        holds: near(row[MOPS], of, percent),
    }
}

fn find<'r>(rows: &'r [Row], name: &str, threads: f64, batch: f64) -> Option<&'r Row> {
    rows.iter().find(|row| row.text(NAME) == name && row[THREADS] == threads && row[BATCH] == batch)
}

fn named<'r>(rows: &'r [Row], name: &str) -> Vec<&'r Row> {
    rows.iter().filter(|row| row.text(NAME) == name).collect()
}

/// The row with the most of a column, the last of several.
fn most<'r>(rows: &[&'r Row], of: Column) -> Option<&'r Row> {
    rows.iter().copied().max_by(|a, b| a[of].total_cmp(&b[of]))
}

/// Figure 3: registers that threads share are what stops them.
pub(super) fn resources(rows: &[Row]) -> Vec<Check> {
    let mut checks = Vec::new();
    let (pairs, doorbells) = ("READ, a queue pair a thread", "READ, a doorbell a thread");
    if let Some(most) = most(&named(rows, pairs), MOPS) {
        checks.push(Check {
            claim: "a queue pair a thread: most at 24 or 32 threads".to_owned(),
            found: format!("at {}", most[THREADS]),
            holds: [24.0, 32.0].contains(&most[THREADS]),
        });
        checks.push(within("its most", most, 39.0, 15.0));
    }
    if let Some(last) = find(rows, pairs, 96.0, 8.0) {
        checks.push(within("with 96 threads", last, 19.0, 20.0));
        checks.push(Check {
            claim: "cause: of their time, 96 threads wait at least 60 % for registers (the paper: 74 %)"
                .to_owned(),
            found: format!("{:.0} %", last[IN_REGISTERS]),
            holds: last[IN_REGISTERS] >= 60.0,
        });
    }
    if let Some(last) = find(rows, doorbells, 96.0, 8.0) {
        checks.push(within("a doorbell a thread, 96 threads", last, 111.0, 5.0));
        checks.push(Check {
            claim: "cause: with registers of their own they wait for none, and the bus is busy".to_owned(),
            found: format!("{:.0} %, bus {:.0} %", last[IN_REGISTERS], last[BUS]),
            holds: last[IN_REGISTERS] == 0.0 && last[BUS] > 95.0,
        });
    }
    checks
}

/// Figure 4: the card's cache makes READs of many threads slower, and the bus is the ceiling.
pub(super) fn batches(rows: &[Row]) -> Vec<Check> {
    let Some(most) = most(&named(rows, "READ"), MOPS) else { return Vec::new() };
    let posted = most[THREADS] * most[BATCH];
    let mut checks = vec![Check {
        claim: "READs: most with 768 to 1152 posted at once".to_owned(),
        found: format!("{:.1} Mop/s with {} × {} = {posted}", most[MOPS], most[THREADS], most[BATCH]),
        holds: (768.0..=1152.0).contains(&posted),
    }];
    if let Some(last) = find(rows, "READ", 96.0, 32.0) {
        checks.push(Check {
            claim: "96 × 32 do half as many (the paper: 49.5 %)".to_owned(),
            found: format!("{:.1} %", 100.0 * last[MOPS] / most[MOPS]),
            holds: near(last[MOPS] / most[MOPS], 0.5, 10.0),
        });
        checks.push(Check {
            claim: "cause: the cache has lost nearly all of their requests".to_owned(),
            found: format!(
                "{:.0} %, {:.0} bytes of memory a request (the paper: 180)",
                last[MISSED], last[MEMORY_BYTES]
            ),
            holds: last[MISSED] > 90.0,
        });
    }
    checks
}

/// Figure 4 with half the bus: the ceiling moves, the place of the drop does not.
pub(super) fn halved(base: &Setup) -> Result<Check, String> {
    let threads = 96;
    let line = |setup: &Setup| -> Result<Vec<f64>, String> {
        let run = |batch| Ok(run(&Setup { threads, batch, ..*setup })?.request_mops());
        [4, 8, 16, 32].into_iter().map(run).collect()
    };
    let whole = line(base)?;
    let half = line(&Setup { calibration: base.calibration.with_half_the_bus(), ..*base })?;
    let ceiling = |line: &[f64]| line.iter().copied().fold(0.0, f64::max);
    // The first batch that does 3 % less than a smaller one.
    let drop = |line: &[f64]| (1..line.len()).find(|&at| line[at] < 0.97 * ceiling(&line[..at]));
    let found =
        format!("ceiling {:.1} → {:.1} Mop/s; {whole:.1?} → {half:.1?}", ceiling(&whole), ceiling(&half));
    Ok(Check {
        claim: "cause: half the bus halves the ceiling, and the drop stays at the same batch (96 threads: 4, 8, 16, 32)".to_owned(),
        found,
        holds: near(ceiling(&half), ceiling(&whole) / 2.0, 5.0) && drop(&half) == drop(&whole),
    })
}

/// Figure 12: leaves fill the bus, and places of single entries do not. `with_short` and `speculating` are Sherman+ and + speculative
/// lookup with leaves of 128 bytes.
pub(super) fn speculative(rows: &[Row], with_short: f64, speculating: f64) -> Vec<Check> {
    let find = |name: &str| {
        rows.iter().find(|row| row.text(NAME).starts_with(name) && row.text(NAME).contains("ReadOnly"))
    };
    let (Some(sherman), Some(smart)) = (find("Sherman+"), find("SMART-BT")) else { return Vec::new() };
    vec![
        within("Sherman+, lookups only", sherman, 11.5, 10.0),
        Check {
            claim: "SMART-BT: × 2.0 ± 10 % of it".to_owned(),
            found: format!("× {:.2}", smart[MOPS] / sherman[MOPS]),
            holds: near(smart[MOPS] / sherman[MOPS], 2.0, 10.0),
        },
        Check {
            claim: "cause: leaves keep the bus of Sherman+ busy for more than 95 %".to_owned(),
            found: format!("{:.0} %", sherman[BUS]),
            holds: sherman[BUS] > 95.0,
        },
        Check {
            claim: "cause: with leaves of 128 bytes, speculation gains less than 10 %".to_owned(),
            found: format!("{with_short:.1} → {speculating:.1} Mop/s"),
            holds: speculating < 1.1 * with_short,
        },
    ]
}

/// Lookups that switches lead: a card sends leaves as fast as its bus brings them, and buckets as fast as it handles requests.
pub(super) fn led(rows: &[Row]) -> Vec<Check> {
    let find = |name: &str| rows.iter().find(|row| row.text(NAME).starts_with(name));
    let (Some(plain), Some(buckets)) = (find("led, plain"), find("led, leaves")) else { return Vec::new() };
    let gain = buckets[MOPS] / plain[MOPS];
    vec![
        Check {
            claim: "leaves of buckets: at least × 4 the lookups of plain ones".to_owned(),
            found: format!("× {gain:.2}"),
            holds: gain >= 4.0,
        },
        Check {
            claim: "cause: plain leaves keep the bus busy for more than 95 %".to_owned(),
            found: format!("{:.0} %", plain[BUS]),
            holds: plain[BUS] > 95.0,
        },
    ]
}

/// Throughput that has its most at 8 threads and then collapses by this divisor at least, because all wait for one slot. The rows are of ever
/// more threads.
fn collapse(what: &str, rows: &[&Row], least: f64, paper: &str) -> Vec<Check> {
    let (Some(most), Some(last)) = (most(rows, MOPS), rows.last()) else { return Vec::new() };
    vec![
        Check {
            claim: format!("{what}: most at 8 threads"),
            found: format!("{:.2} Mop/s at {}", most[MOPS], most[THREADS]),
            holds: most[THREADS] == 8.0,
        },
        divided(&format!("{} threads: at most {paper}", last[THREADS]), most, last, least),
        Check {
            claim: "cause: the bucket of the hottest slot is busy for more than 95 %".to_owned(),
            found: format!("{:.0} %", last[BUSIEST_BUCKET]),
            holds: last[BUSIEST_BUCKET] > 95.0,
        },
    ]
}

/// One row does so many times less than another one.
fn divided(claim: &str, many: &Row, few: &Row, least: f64) -> Check {
    Check {
        claim: claim.to_owned(),
        found: format!("{:.2} Mop/s, ÷ {:.1}", few[MOPS], many[MOPS] / few[MOPS]),
        holds: many[MOPS] >= least * few[MOPS],
    }
}

/// Figure 5: updates of more than 8 threads wait for one slot.
pub(super) fn updates(rows: &[Row]) -> Vec<Check> {
    let rows: Vec<_> = rows.iter().collect();
    collapse("updates", &rows, 2.0, "half of it (the paper: a third)")
}

/// Figure 8: failed attempts at hot slots are what stops RACE, and avoiding conflicts cures it.
pub(super) fn hash_table(rows: &[Row]) -> Vec<Check> {
    let of = |name: &str| named(rows, &format!("{name}, WriteIntensive"));
    let mut checks = collapse("half updates, RACE", &of("RACE"), 8.0, "an eighth of it (the paper: a 14th)");
    let mut many = of("+ conflict avoidance");
    many.retain(|row| row[THREADS] >= 24.0);
    checks.push(Check {
        claim: "with conflict avoidance, 24 threads and more do 5 to 6 Mop/s".to_owned(),
        found: many.iter().map(|row| format!("{:.2}", row[MOPS])).collect::<Vec<_>>().join(", "),
        holds: !many.is_empty() && many.iter().all(|row| (5.0..=6.0).contains(&row[MOPS])),
    });
    checks
}

/// Figure 7: with many threads SMART-HT does several times what RACE does.
pub(super) fn hash_throughput(rows: &[Row]) -> Vec<Check> {
    let last = |name: &str| most(&named(rows, name), THREADS);
    let mut checks = Vec::new();
    for (mix, least, paper) in
        [("WriteIntensive", 8.0, 26.2), ("ReadIntensive", 2.0, 4.1), ("ReadOnly", 1.85, 3.7)]
    {
        let [race, smart] = ["RACE", "SMART-HT"].map(|line| last(&format!("{line}, {mix}")));
        if let (Some(race), Some(smart)) = (race, smart) {
            checks.push(Check {
                claim: format!(
                    "{mix}, {} threads: SMART-HT × {least} at least (the paper: {paper})",
                    race[THREADS]
                ),
                found: format!(
                    "{:.2} → {:.2} Mop/s, × {:.1}",
                    race[MOPS],
                    smart[MOPS],
                    smart[MOPS] / race[MOPS]
                ),
                holds: smart[MOPS] >= least * race[MOPS],
            });
        }
    }
    if let Some(race) = last("RACE, ReadOnly") {
        checks.push(Check {
            claim:
                "cause: threads of RACE that only read wait for registers for more than half of their time"
                    .to_owned(),
            found: format!("{:.0} %", race[IN_REGISTERS]),
            holds: race[IN_REGISTERS] > 50.0,
        });
    }
    checks
}

/// Figure 9: registers of their own make searches faster.
pub(super) fn hash_latencies(rows: &[Row]) -> Vec<Check> {
    let of =
        |line: &str| -> Vec<&Row> { rows.iter().filter(|row| row.text(NAME).starts_with(line)).collect() };
    let (race, smart) = (of("RACE"), of("SMART-HT"));
    let Some(most) = most(&race, MOPS) else { return Vec::new() };
    // The slowest run of SMART-HT that does as much.
    let same = smart.iter().filter(|row| row[MOPS] >= most[MOPS]).min_by(|a, b| a[MOPS].total_cmp(&b[MOPS]));
    let Some(same) = same else { return Vec::new() };
    let less = |many: f64, few: f64| 100.0 * (1.0 - few / many);
    let mut checks = Vec::new();
    for (what, of, paper) in
        [("median", less(most[P50], same[P50]), 69.6), ("99th percentile", less(most[P99], same[P99]), 80.6)]
    {
        checks.push(Check {
            claim: format!(
                "where RACE does most, SMART-HT does as much, and its {what} is at least 50 % shorter (the paper: up to {paper} %)"
            ),
            found: format!("{of:.0} %, {:.1} and {:.1} Mop/s", most[MOPS], same[MOPS]),
            holds: of >= 50.0,
        });
    }
    checks
}

/// Figure 10: FORD+ waits for registers and hot items, and SMART-DTX for neither.
pub(super) fn transactions(rows: &[Row]) -> Vec<Check> {
    let of = |line: &str| named(rows, &format!("{line}, SmallBank"));
    let (ford, smart, resources) = (of("FORD+"), of("+ conflict avoidance"), of("+ resources"));
    let (Some(most), Some(last), Some(best)) = (most(&ford, MOPS), ford.last(), smart.last()) else {
        return Vec::new();
    };
    let mut checks = Vec::new();
    if let Some(one) = ford.first() {
        checks.push(Check {
            claim: "FORD+, one thread: an attempt takes 13.1 requests ± 3 %, and 14.1 % ± 15 % do not commit (the paper's result files)"
                .to_owned(),
            found: format!("{:.1}, {:.1} %", one[REQUESTS], one[ABORTED]),
            holds: near(one[REQUESTS], 13.1, 3.0) && near(one[ABORTED], 14.1, 15.0),
        });
    }
    checks.extend([
        Check {
            claim: "FORD+, SmallBank: most at 24 threads".to_owned(),
            found: format!("{:.2} M/s at {}", most[MOPS], most[THREADS]),
            holds: most[THREADS] == 24.0,
        },
        within("its most", most, 2.12, 20.0),
        Check {
            claim: "SMART-DTX, 96 threads: at least 4.4 M/s".to_owned(),
            found: format!("{:.2}", best[MOPS]),
            holds: best[THREADS] == 96.0 && best[MOPS] >= 4.4,
        },
        Check {
            claim: "cause: 96 threads of FORD+ wait for registers for more than half of their time"
                .to_owned(),
            found: format!("{:.0} %", last[IN_REGISTERS]),
            holds: last[IN_REGISTERS] > 50.0,
        },
    ]);
    if let Some(own) = resources.last() {
        checks.push(Check {
            claim: "cause: with registers of their own they do at least twice as much".to_owned(),
            found: format!("{:.2} → {:.2} M/s", last[MOPS], own[MOPS]),
            holds: own[THREADS] == last[THREADS] && own[MOPS] >= 2.0 * last[MOPS],
        });
    }
    checks
}

/// Figure 11: medians of FORD+ and SMART-DTX, in µs, and 99th percentiles.
pub(super) fn latencies(bench: &str, rows: &[Row], papers: [(f64, f64); 2]) -> Vec<Check> {
    let [ford, smart] = rows else { return Vec::new() };
    let gain = |ford: f64, smart: f64| 100.0 * (1.0 - smart / ford);
    let paper = gain(papers[0].0, papers[1].0);
    let found = gain(ford[P50], smart[P50]);
    vec![Check {
        claim: format!(
            "{bench}: the median falls by at least {paper:.0} % (the paper: {} → {} µs; p99 {} → {} µs)",
            papers[0].0, papers[1].0, papers[0].1, papers[1].1
        ),
        found: format!(
            "{found:.0} %: {:.0} → {:.0} µs; p99 {:.0} → {:.0} µs",
            ford[P50], smart[P50], ford[P99], smart[P99]
        ),
        holds: found >= paper - 10.0,
    }]
}

/// Figure 14: without back-off, updates of many threads are mostly failed attempts.
pub(super) fn conflicts(rows: &[Row]) -> Vec<Check> {
    let at = |name: &str| find(rows, name, 96.0, 8.0);
    let (Some(without), Some(all)) = (at("without"), at("+ tasks bounded")) else { return Vec::new() };
    vec![
        within("96 threads, all of conflict avoidance", all, 2.66, 15.0),
        divided("96 threads, without it: at most an eighth of that", all, without, 8.0),
    ]
}

/// Figure 13: throttled threads stay at the ceiling.
pub(super) fn throttling(rows: &[Row]) -> Vec<Check> {
    let mut checks = Vec::new();
    for batch in [8.0, 16.0, 32.0] {
        if let Some(row) = find(rows, "throttled", 96.0, batch) {
            checks.push(within(&format!("throttled, 96 threads, batches of {batch}"), row, 110.0, 3.0));
        }
    }
    if let (Some(free), Some(row)) =
        (find(rows, "a doorbell a thread", 96.0, 32.0), find(rows, "throttled", 96.0, 32.0))
    {
        checks.push(Check {
            claim: "cause: the cache of the card loses requests without throttling, and with it hardly any"
                .to_owned(),
            found: format!("{:.0} % → {:.0} %", free[MISSED], row[MISSED]),
            holds: free[MISSED] > 90.0 && row[MISSED] < 10.0,
        });
    }
    checks
}

/// Table 1: as the paper's.
pub(super) fn changing(rows: &[Row]) -> Vec<Check> {
    let each = |row: &Row| within(row.text(NAME), row, row[PAPER], 10.0);
    rows.iter().map(each).collect()
}
