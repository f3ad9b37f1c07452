//! The demo's page: one self-contained HTML file with the table, the latency CDF, the round-trip histogram and
//! the picture of what is cached where.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use plotters::prelude::*;

use super::result::{DemoResult, ModeResult};

const BASELINE: RGBColor = RGBColor(0xb0, 0x5a, 0x2c);
const IN_NETWORK: RGBColor = RGBColor(0x1f, 0x6f, 0x8b);

/// Writes the page. `picture` is the drawing of the network as SVG.
pub(super) fn write(path: &Path, result: &DemoResult, picture: &str) -> Result<()> {
    let page = page(result, picture)?;
    std::fs::write(path, page).with_context(|| format!("writing the report to {}", path.display()))
}

fn page(result: &DemoResult, picture: &str) -> Result<String> {
    let cdf = latency_cdf(result)?;
    let round_trips = round_trip_histogram(result)?;
    let mut page = String::new();
    let environment = &result.environment;
    write!(
        page,
        r#"<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Fat-B+Tree: switches answering B+Tree lookups</title>
<style>
 body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222; background: #fff; }}
 table {{ border-collapse: collapse; margin: 1rem 0; }}
 th, td {{ padding: .3rem .9rem; border-bottom: 1px solid #ccc; text-align: right; }}
 th:first-child, td:first-child {{ text-align: left; }}
 figure {{ margin: 2rem 0; }} figcaption {{ color: #555; }} svg {{ max-width: 100%; height: auto; }}
 .baseline {{ color: #b05a2c; }} .in-network {{ color: #1f6f8b; }}
</style></head><body>
<h1>Switches answering B+Tree lookups</h1>
<p>{keys} keys with values of {value_size} bytes on {servers} memory servers; {lookups} lookups each way, {depth} under way at once, {distribution},
 every answer checked: <b>{wrong} wrong</b>. The same keys, in turns, in one run.</p>
{table}
<figure>{cdf}<figcaption>Latency of one lookup: the share of lookups (vertical) that took at most so long (horizontal, up to p99).</figcaption></figure>
<figure>{round_trips}<figcaption>Round trips per lookup.</figcaption></figure>
<figure>{picture}<figcaption>What is cached where: the fat root in the core switch, node sets on the way down.</figcaption></figure>
<h2>Plan and times</h2>
<table>
<tr><th>ranges of the fat root</th><td>{ranges}</td></tr>
<tr><th>entries of its four stages</th><td>{stages}</td></tr>
<tr><th>nodes per layer</th><td>{layers}</td></tr>
<tr><th>bulk load</th><td>{load:.2} s ({load_rate:.0} keys/s)</td></tr>
<tr><th>planning</th><td>{plan_seconds:.3} s</td></tr>
<tr><th>P4Runtime push</th><td>{push_entries} entries in {push:.2} s ({push_rate:.0} entries/s)</td></tr>
</table>
<h2>Environment</h2>
<p>{version}, seed {seed}, {cpus} CPUs, {os}. Everything runs in one process: the figures are a software switch's and a
software NIC's; only their ratios say something about the design.</p>
</body></html>
"#,
        keys = result.keys,
        value_size = result.value_size,
        servers = result.servers,
        lookups = result.lookups,
        depth = result.depth,
        distribution = escape(&result.distribution),
        wrong = result.wrong,
        table = table(result),
        ranges = result.plan.ranges,
        stages = join(&result.plan.stage_entries),
        layers = join(&result.plan.layers),
        load = result.load.seconds,
        load_rate = result.load.keys_per_s,
        plan_seconds = result.plan.seconds,
        push_entries = result.push.entries,
        push = result.push.seconds,
        push_rate = result.push.entries_per_s,
        version = escape(&environment.version),
        seed = environment.seed,
        cpus = environment.cpus,
        os = escape(&environment.os),
    )?;
    Ok(page)
}

fn table(result: &DemoResult) -> String {
    let mut rows = String::from(
        "<table><tr><th></th><th class=baseline>baseline</th><th class=in-network>in-network</th><th>ratio</th></tr>",
    );
    for row in result.rows() {
        let _ = write!(
            rows,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            escape(row.name),
            row.baseline,
            row.in_network,
            row.ratio
        );
    }
    rows.push_str("</table>");
    rows
}

fn latency_cdf(result: &DemoResult) -> Result<String> {
    let mut svg = String::new();
    {
        // Beyond p99 lies the operating system's scheduling: its long tail would squeeze the rest.
        let longest = result.baseline.p99_us.max(result.in_network.p99_us) * 1.05;
        let area = SVGBackend::with_string(&mut svg, (900, 420)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(16)
            .x_label_area_size(44)
            .y_label_area_size(56)
            .build_cartesian_2d(0.0..longest, 0.0..1.0)?;
        chart
            .configure_mesh()
            .x_desc("latency, µs")
            .y_desc("share of lookups")
            .light_line_style(WHITE)
            .draw()?;
        for (name, mode, colour) in modes(result) {
            let points = mode.latency_cdf.iter().copied().filter(|(us, _)| *us <= longest);
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(3)))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], colour.stroke_width(3)));
        }
        chart
            .configure_series_labels()
            .background_style(WHITE)
            .border_style(BLACK.mix(0.3))
            .position(SeriesLabelPosition::LowerRight)
            .draw()?;
        area.present()?;
    }
    Ok(svg)
}

fn round_trip_histogram(result: &DemoResult) -> Result<String> {
    let mut svg = String::new();
    {
        let longest = modes(result)
            .iter()
            .flat_map(|(_, mode, _)| mode.round_trip_histogram.iter())
            .filter(|(_, lookups)| *lookups > 0)
            .map(|(trips, _)| *trips)
            .max()
            .unwrap_or(1);
        let area = SVGBackend::with_string(&mut svg, (900, 320)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(16)
            .x_label_area_size(44)
            .y_label_area_size(56)
            .build_cartesian_2d(0.5..f64::from(longest) + 0.5, 0.0..1.0)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(longest as usize + 1)
            .x_label_formatter(&|trips| format!("{trips:.0}"))
            .x_desc("round trips")
            .y_desc("share of lookups")
            .light_line_style(WHITE)
            .draw()?;
        for (position, (name, mode, colour)) in modes(result).into_iter().enumerate() {
            let total = mode.round_trip_histogram.iter().map(|(_, n)| n).sum::<u64>().max(1) as f64;
            let left = if position == 0 { -0.38 } else { 0.02 };
            chart
                .draw_series(mode.round_trip_histogram.iter().map(|(trips, lookups)| {
                    let x = f64::from(*trips) + left;
                    Rectangle::new([(x, 0.0), (x + 0.36, *lookups as f64 / total)], colour.filled())
                }))?
                .label(name)
                .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 24, y + 5)], colour.filled()));
        }
        chart
            .configure_series_labels()
            .background_style(WHITE)
            .border_style(BLACK.mix(0.3))
            .position(SeriesLabelPosition::UpperMiddle)
            .draw()?;
        area.present()?;
    }
    Ok(svg)
}

fn modes(result: &DemoResult) -> [(&'static str, &ModeResult, RGBColor); 2] {
    [
        ("baseline: walk every level", &result.baseline, BASELINE),
        ("in-network", &result.in_network, IN_NETWORK),
    ]
}

fn join<T: ToString>(numbers: &[T]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
