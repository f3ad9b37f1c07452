//! The demo's page: one self-contained HTML file with the tables, the round-trip histogram, the emulator's times and the picture of
//! what is cached where.

mod charts;

use std::fmt::Write as _;

use anyhow::Result;

use super::result::{DemoResult, GrowthResult, WayResult};

/// Style of the page: in light and dark, from a telephone's width on. Tables and charts that are too wide scroll by themselves. A chart
/// keeps a width at which its labels can be read.
const STYLE: &str = "
 :root { color-scheme: light dark; --ink: #222; --dim: #555; --line: #ccc; --page: #fff; }
 @media (prefers-color-scheme: dark) { :root { --ink: #ddd; --dim: #aaa; --line: #444; --page: #181818; } }
 body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: var(--ink); background: var(--page); }
 .wide { overflow-x: auto; }
 table { border-collapse: collapse; margin: 1rem 0; }
 th, td { padding: .3rem .9rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
 th:first-child, td:first-child { text-align: left; }
 td:first-child { white-space: normal; min-width: 9rem; }
 @media (max-width: 40rem) { th, td { padding: .3rem .4rem; font-size: .85rem; } td:first-child { min-width: 7rem; } }
 figure { margin: 2rem 0; } figcaption { color: var(--dim); }
 svg { width: 100%; min-width: 38rem; height: auto; }
 .chart [fill='#000000'] { fill: var(--ink); } .chart [stroke='#000000'] { stroke: var(--ink); }
 .network { background: #fff; border-radius: .5rem; }
 .legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; }
 .legend i { display: inline-block; width: .9rem; height: .9rem; margin-right: .4rem; border-radius: .2rem; vertical-align: -.1rem; }
";

/// The page as HTML. `picture` is the drawing of the network as SVG.
pub(super) fn page(result: &DemoResult, picture: &str) -> Result<String> {
    let mut page = String::new();
    let environment = &result.environment;
    write!(
        page,
        r#"<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Fat-B+Tree: switches walking B+Trees</title>
<style>{STYLE}</style></head><body>
<h1>Switches walking B+Trees</h1>
<p>{explanation} {lookups} operations each way, every answer checked: <b>{wrong} wrong</b>. The same operations, in turns, in one run.</p>
{ways}
{round_trips}
<h2>A client's cache, and the switches</h2>
{mixtures}
<h2>YCSB</h2>
<p>Round trips per operation, {ycsb_operations} of them each way, while the switches hold the plan above.</p>
{ycsb}
{growth}
<h2>What is cached where</h2>
<figure><div class="wide network">{picture}</div><figcaption>The fat root in the core switch, node sets on the way down.</figcaption></figure>
<div class="wide"><table>
<tr><th>ranges of the fat root</th><td>{ranges}</td></tr>
<tr><th>entries of its four stages</th><td>{stages}</td></tr>
<tr><th>TCAM rows of its four stages</th><td>{rows}</td></tr>
<tr><th>nodes per layer</th><td>{layers}</td></tr>
<tr><th>bulk load</th><td>{load:.2} s ({load_rate:.0} keys/s)</td></tr>
<tr><th>bulk load of the Dolphin index</th><td>{dolphin_load:.2} s ({dolphin_rate:.0} keys/s)</td></tr>
<tr><th>planning</th><td>{plan_seconds:.3} s</td></tr>
<tr><th>P4Runtime push</th><td>{push_entries} updates in {push:.2} s ({push_rate:.0} updates/s)</td></tr>
</table></div>
<h2>The emulator's times</h2>
{times}
<p>{version}, seed {seed}, {cpus} CPUs, {os}.</p>
</body></html>
"#,
        explanation = escape(&result.explanation()),
        lookups = result.lookups,
        wrong = result.wrong,
        ways = table(&result.ways_table()),
        round_trips = chart(
            &charts::round_trips(&result.ways)?,
            &result.ways,
            "Counted: a network would show the same."
        ),
        mixtures = table(&result.mixtures_table()),
        ycsb_operations = result.ycsb_operations,
        ycsb = table(&result.ycsb_table()),
        growth = result.growth.as_ref().map_or(String::new(), growth),
        ranges = result.plan.ranges,
        stages = join(&result.plan.stage_entries),
        rows = join(&result.plan.stage_rows),
        layers = join(&result.plan.layers),
        load = result.load.seconds,
        load_rate = result.load.keys_per_s,
        dolphin_load = result.dolphin.load.seconds,
        dolphin_rate = result.dolphin.load.keys_per_s,
        plan_seconds = result.plan.seconds,
        push_entries = result.push.entries,
        push = result.push.seconds,
        push_rate = result.push.entries_per_s,
        times = chart(
            &charts::times(&result.ways)?,
            &result.ways,
            &format!(
                "Time of an operation in this process, {} under way. Software switches and NICs; distance costs nothing here.",
                result.depth
            )
        ),
        version = escape(&environment.version),
        seed = environment.seed,
        cpus = environment.cpus,
        os = escape(&environment.os),
    )?;
    Ok(page)
}

fn growth(growth: &GrowthResult) -> String {
    let (table, explanation) = (table(&growth.table()), escape(&growth.explanation()));
    format!("<h2>A tree that grows</h2>\n{table}\n<p>{explanation}</p>")
}

/// A table as HTML; the first row is the head.
fn table(rows: &[Vec<String>]) -> String {
    let mut text = String::from("<div class=\"wide\"><table>");
    for (at, row) in rows.iter().enumerate() {
        let tag = if at == 0 { "th" } else { "td" };
        let cells: String = row.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
        text += &format!("<tr>{cells}</tr>");
    }
    text + "</table></div>"
}

/// A chart with the legend of the ways below it, and a caption.
fn chart(svg: &str, ways: &[WayResult], caption: &str) -> String {
    let legend: String = charts::legend(ways)
        .map(|(colour, name)| format!("<li><i style=\"background:{colour}\"></i>{}</li>", escape(name)))
        .collect();
    format!(
        "<figure><div class=\"wide chart\">{svg}</div><ul class=\"legend\">{legend}</ul><figcaption>{caption}</figcaption></figure>"
    )
}

fn join<T: ToString>(numbers: &[T]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn escape(text: &str) -> String {
    // A number and its unit stay in one line.
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace(" %", "&nbsp;%")
}
