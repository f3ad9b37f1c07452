//! The demo's page: one self-contained HTML file with the tables, the round-trip histogram, the emulator's times and the picture of
//! what is cached where.

use std::fmt::Write as _;

use anyhow::Result;
use plotters::prelude::*;

use super::result::{DemoResult, GrowthResult, WayResult};

/// Colours of the ways, used again and again.
const COLOURS: [RGBColor; 11] = [
    RGBColor(0xb0, 0x5a, 0x2c),
    RGBColor(0x8f, 0xb8, 0xc7),
    RGBColor(0x1f, 0x6f, 0x8b),
    RGBColor(0xd9, 0xb4, 0x5b),
    RGBColor(0x7a, 0x6a, 0x2f),
    RGBColor(0xc9, 0x9f, 0xc2),
    RGBColor(0x7b, 0x3f, 0x72),
    RGBColor(0x4c, 0x8c, 0x4a),
    RGBColor(0x55, 0x55, 0x55),
    RGBColor(0xc2, 0x3b, 0x3b),
    RGBColor(0x2e, 0x4a, 0x9e),
];

/// The page as HTML. `picture` is the drawing of the network as SVG.
pub(super) fn page(result: &DemoResult, picture: &str) -> Result<String> {
    let mut page = String::new();
    let environment = &result.environment;
    write!(
        page,
        r#"<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Fat-B+Tree: switches walking B+Trees</title>
<style>
 body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222; background: #fff; }}
 table {{ border-collapse: collapse; margin: 1rem 0; }}
 th, td {{ padding: .3rem .9rem; border-bottom: 1px solid #ccc; text-align: right; }}
 th:first-child, td:first-child {{ text-align: left; }}
 figure {{ margin: 2rem 0; }} figcaption {{ color: #555; }} svg {{ max-width: 100%; height: auto; }}
</style></head><body>
<h1>Switches walking B+Trees</h1>
<p>{explanation} {lookups} operations each way, every answer checked: <b>{wrong} wrong</b>. The same operations, in turns, in one run.</p>
{ways}
<figure>{round_trips}<figcaption>Round trips per operation, counted.</figcaption></figure>
<h2>A client's cache, and the switches</h2>
{mixtures}
<h2>YCSB</h2>
<p>Round trips per operation, {ycsb_operations} of them each way, while the switches hold the plan above.</p>
{ycsb}
{growth}
<h2>What is cached where</h2>
<figure>{picture}<figcaption>The fat root in the core switch, node sets on the way down.</figcaption></figure>
<table>
<tr><th>ranges of the fat root</th><td>{ranges}</td></tr>
<tr><th>entries of its four stages</th><td>{stages}</td></tr>
<tr><th>TCAM rows of its four stages</th><td>{rows}</td></tr>
<tr><th>nodes per layer</th><td>{layers}</td></tr>
<tr><th>bulk load</th><td>{load:.2} s ({load_rate:.0} keys/s)</td></tr>
<tr><th>planning</th><td>{plan_seconds:.3} s</td></tr>
<tr><th>P4Runtime push</th><td>{push_entries} updates in {push:.2} s ({push_rate:.0} updates/s)</td></tr>
</table>
<h2>The emulator's times</h2>
<figure>{times}<figcaption>What one operation takes in this process, {depth} under way: the share of operations (vertical) that took at most so
long (horizontal, up to p99). Software switches and NICs; distance costs nothing here.</figcaption></figure>
<p>{version}, seed {seed}, {cpus} CPUs, {os}.</p>
</body></html>
"#,
        explanation = escape(&result.explanation()),
        lookups = result.lookups,
        wrong = result.wrong,
        ways = table(&result.ways_table()),
        round_trips = round_trip_histogram(&result.ways)?,
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
        plan_seconds = result.plan.seconds,
        push_entries = result.push.entries,
        push = result.push.seconds,
        push_rate = result.push.entries_per_s,
        times = emulator_times(&result.ways)?,
        depth = result.depth,
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
    let mut text = String::from("<table>");
    for (at, row) in rows.iter().enumerate() {
        let tag = if at == 0 { "th" } else { "td" };
        let cells: String = row.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
        text += &format!("<tr>{cells}</tr>");
    }
    text + "</table>"
}

fn coloured(ways: &[WayResult]) -> impl Iterator<Item = (&WayResult, RGBColor)> {
    ways.iter().zip(COLOURS.into_iter().cycle())
}

fn emulator_times(ways: &[WayResult]) -> Result<String> {
    let mut svg = String::new();
    {
        // Beyond p99 lies the operating system's scheduling: its long tail would squeeze the rest.
        let longest = ways.iter().map(|way| way.p99_us).fold(1.0, f64::max) * 1.05;
        let area = SVGBackend::with_string(&mut svg, (900, 420)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(16)
            .x_label_area_size(44)
            .y_label_area_size(56)
            .build_cartesian_2d(0.0..longest, 0.0..1.0)?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc("µs").y_desc("share of operations").light_line_style(WHITE).draw()?;
        for (way, colour) in coloured(ways) {
            let points = way.latency_cdf.iter().copied().filter(|(us, _)| *us <= longest);
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(3)))?
                .label(&way.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], colour.stroke_width(3)));
        }
        let mut labels = chart.configure_series_labels();
        labels.background_style(WHITE).border_style(BLACK.mix(0.3));
        labels.position(SeriesLabelPosition::LowerRight).draw()?;
        area.present()?;
    }
    Ok(svg)
}

fn round_trip_histogram(ways: &[WayResult]) -> Result<String> {
    let mut svg = String::new();
    {
        let longest = ways.iter().flat_map(|way| &way.round_trip_histogram).map(|(trips, _)| *trips).max();
        let longest = longest.unwrap_or(1);
        let area = SVGBackend::with_string(&mut svg, (900, 380)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(16)
            .x_label_area_size(44)
            .y_label_area_size(56)
            .build_cartesian_2d(0.5..f64::from(longest) + 0.5, 0.0..1.0)?;
        let mut mesh = chart.configure_mesh();
        mesh.disable_x_mesh()
            .x_labels(longest as usize + 1)
            .x_label_formatter(&|trips| format!("{trips:.0}"))
            .x_desc("round trips")
            .y_desc("share of operations")
            .light_line_style(WHITE)
            .draw()?;
        let width = 0.76 / ways.len().max(1) as f64;
        for (position, (way, colour)) in coloured(ways).enumerate() {
            let left = position as f64 * width - 0.38;
            let bars = way.round_trip_histogram.iter().map(|(trips, _)| {
                let x = f64::from(*trips) + left;
                let share = way.share_of(|other| other == *trips) / 100.0;
                Rectangle::new([(x, 0.0), (x + 0.9 * width, share)], colour.filled())
            });
            chart
                .draw_series(bars)?
                .label(&way.name)
                .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 24, y + 5)], colour.filled()));
        }
        let mut labels = chart.configure_series_labels();
        labels.background_style(WHITE).border_style(BLACK.mix(0.3));
        labels.position(SeriesLabelPosition::UpperMiddle).draw()?;
        area.present()?;
    }
    Ok(svg)
}

fn join<T: ToString>(numbers: &[T]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
