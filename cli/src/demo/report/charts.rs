//! The page's charts as SVG. They have no background, and what is black takes the page's colour of text: see the page's style.

use anyhow::Result;
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::demo::result::WayResult;

/// Colours of the ways, used again and again: neither lost on white nor on black.
const COLOURS: [RGBColor; 15] = [
    RGBColor(0xb0, 0x5a, 0x2c),
    RGBColor(0x8f, 0xb8, 0xc7),
    RGBColor(0x1f, 0x7f, 0xab),
    RGBColor(0xd9, 0xb4, 0x5b),
    RGBColor(0x8a, 0x7a, 0x2f),
    RGBColor(0xc9, 0x9f, 0xc2),
    RGBColor(0x9b, 0x4f, 0x92),
    RGBColor(0x4c, 0x8c, 0x4a),
    RGBColor(0x85, 0x85, 0x85),
    RGBColor(0xc2, 0x4b, 0x4b),
    RGBColor(0x3c, 0xa0, 0x96),
    RGBColor(0x6d, 0x6f, 0xd0),
    RGBColor(0x5b, 0x86, 0x1f),
    RGBColor(0xd0, 0x6a, 0xa8),
    RGBColor(0x7a, 0x9a, 0xd9),
];

const WIDTH: u32 = 900;
const TITLE: (&str, u32) = ("sans-serif", 20);
const LABEL: (&str, u32) = ("sans-serif", 15);

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The ways' colours in CSS, for the legend, which stands below the charts and so covers nothing.
pub(super) fn legend(ways: &[WayResult]) -> impl Iterator<Item = (String, &str)> {
    coloured(ways).map(|(way, RGBColor(r, g, b))| (format!("#{r:02x}{g:02x}{b:02x}"), way.name.as_str()))
}

fn coloured(ways: &[WayResult]) -> impl Iterator<Item = (&WayResult, RGBColor)> {
    ways.iter().zip(COLOURS.into_iter().cycle())
}

fn svg(height: u32, draw: impl FnOnce(&Area<'_>) -> Result<()>) -> Result<String> {
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
    draw(&area)?;
    area.present()?;
    drop(area);
    Ok(text)
}

fn percent(share: &f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// Share of operations that took at most so long, in the emulator.
pub(super) fn times(ways: &[WayResult]) -> Result<String> {
    svg(420, |area| {
        // Beyond p99 lies the operating system's scheduling: its long tail would squeeze the rest.
        let times = || coloured(ways).filter_map(|(way, colour)| Some((way.times.as_ref()?, colour)));
        let longest = times().map(|(times, _)| times.p99_us).fold(1.0, f64::max) * 1.05;
        let mut chart = ChartBuilder::on(area)
            .caption("Time of an operation in the emulator", TITLE)
            .margin(16)
            .x_label_area_size(48)
            .y_label_area_size(72)
            .build_cartesian_2d(0.0..longest, 0.0..1.0)?;
        let mut mesh = chart.configure_mesh();
        mesh.x_desc("time in µs, up to p99").y_desc("share of operations that took at most so long");
        mesh.x_label_formatter(&|us| format!("{us:.0}")).y_label_formatter(&percent);
        mesh.label_style(LABEL).axis_desc_style(LABEL).light_line_style(TRANSPARENT).draw()?;
        for (times, colour) in times() {
            let points = times.latency_cdf.iter().copied().filter(|(us, _)| *us <= longest);
            chart.draw_series(LineSeries::new(points, colour.stroke_width(3)))?;
        }
        Ok(())
    })
}

/// Share of operations by their round trips.
pub(super) fn round_trips(ways: &[WayResult]) -> Result<String> {
    svg(380, |area| {
        let longest = ways.iter().flat_map(|way| &way.round_trip_histogram).map(|(trips, _)| *trips).max();
        let longest = longest.unwrap_or(1);
        let mut chart = ChartBuilder::on(area)
            .caption("Round trips of an operation", TITLE)
            .margin(16)
            .x_label_area_size(48)
            .y_label_area_size(72)
            .build_cartesian_2d(0.5..f64::from(longest) + 0.5, 0.0..1.0)?;
        let mut mesh = chart.configure_mesh();
        mesh.disable_x_mesh().x_labels(longest as usize + 1).x_desc("round trips, counted");
        mesh.x_label_formatter(&|trips| format!("{trips:.0}")).y_label_formatter(&percent);
        mesh.y_desc("share of operations").label_style(LABEL).axis_desc_style(LABEL);
        mesh.light_line_style(TRANSPARENT).draw()?;
        let width = 0.76 / ways.len().max(1) as f64;
        for (position, (way, colour)) in coloured(ways).enumerate() {
            let left = position as f64 * width - 0.38;
            let bars = way.round_trip_histogram.iter().map(|(trips, _)| {
                let x = f64::from(*trips) + left;
                let share = way.share_of(|other| other == *trips) / 100.0;
                Rectangle::new([(x, 0.0), (x + 0.9 * width, share)], colour.filled())
            });
            chart.draw_series(bars)?;
        }
        Ok(())
    })
}
