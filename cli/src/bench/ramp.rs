//! `fatbtree bench --ramp`: latency against load, up to what it can bear.

use anyhow::Result;
use comfy_table::{Table, presets};
use fatbtree_workload::LoadGenerator;
use plotters::coord::combinators::IntoLogRange as _;
use plotters::prelude::*;
use serde::Serialize;

use super::latencies::Latencies;

/// Loads of a ramp, in hundredths of what a closed loop has reached. From [`FULL`] on it ends with the first that is too much.
pub(super) fn shares() -> impl Iterator<Item = u32> {
    (10..FULL).step_by(10).chain((FULL..=MOST).step_by(20))
}

/// The rate that a closed loop has reached, in hundredths of itself. An open loop may reach more, with more
/// operations under way.
pub(super) const FULL: u32 = 100;
const MOST: u32 = 400;

/// Result of an open loop.
#[derive(Serialize, Clone, Debug)]
pub(super) struct Step {
    /// Hundredths of the rate that a closed loop has reached; `None` if that was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) share: Option<u32>,
    /// Operations that should have begun in a second.
    intended_per_s: f64,
    /// Operations that began in a second.
    begun_per_s: f64,
    /// Operations that ended in a second.
    ended_per_s: f64,
    /// Whether these are the same: within one per cent and five.
    pub(super) kept_up: bool,
    #[serde(flatten)]
    latencies: Latencies,
}

impl Step {
    /// Result of an open loop that has ended; `None` if the loop was closed.
    pub(super) fn of(done: &LoadGenerator, share: Option<u32>) -> Option<Self> {
        let punctuality = done.punctuality()?;
        Some(Self {
            share,
            intended_per_s: punctuality.intended_per_s,
            begun_per_s: punctuality.begun_per_s,
            ended_per_s: punctuality.ended_per_s,
            kept_up: punctuality.kept_up(),
            latencies: Latencies::of(done.recorder().latency()),
        })
    }

    /// Explanation for a run at a given rate.
    pub(super) fn explanation(&self) -> String {
        let Self { intended_per_s, begun_per_s, ended_per_s, kept_up, .. } = self;
        let rates =
            format!("{intended_per_s:.0}/s intended, {begun_per_s:.0}/s begun, {ended_per_s:.0}/s ended");
        match kept_up {
            true => format!("Open loop: {rates}"),
            false => format!(
                "It could not keep up: {rates}. Latencies are those of a queue that grows, and grow with --operations."
            ),
        }
    }
}

/// Conclusion from a ramp, in words: the highest load with which all up to it kept up, and the first that did not.
pub(super) fn conclusion(steps: &[Step]) -> String {
    let late = steps.iter().position(|step| !step.kept_up);
    let (borne, rest) = steps.split_at(late.unwrap_or(steps.len()));
    let up_to = borne.last().map(|step| {
        format!(
            "It kept up with all loads up to {:.0}/s; p99 {:.0} µs there",
            step.intended_per_s, step.latencies.p99_us
        )
    });
    let not = rest.first().map(|step| format!("{:.0}/s", step.intended_per_s));
    let is_mixed = rest.iter().any(|step| step.kept_up);
    let why = if is_mixed {
        ", though with a higher one: something else has kept the machine busy, or --operations are too few"
    } else {
        ""
    };
    match (up_to, not) {
        (Some(up_to), Some(not)) => format!("{up_to}. It did not keep up with {not}{why}"),
        (Some(up_to), None) => up_to,
        (None, Some(not)) if is_mixed => {
            format!("It did not keep up with {not}, the least of these loads{why}")
        }
        (None, _) => {
            "It kept up with none of these loads: more --operations take longer, and tell more".to_owned()
        }
    }
}

pub(super) fn table(steps: &[Step]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_FULL_CONDENSED);
    let heads = ["load", "intended/s", "begun/s", "ended/s"];
    table.set_header(heads.into_iter().chain(Latencies::HEADS).chain([""]));
    for step in steps {
        let share = step.share.map_or(String::new(), |share| format!("{share} %"));
        let rates =
            [step.intended_per_s, step.begun_per_s, step.ended_per_s].map(|rate| format!("{rate:.0}"));
        let late = if step.kept_up { "" } else { "did not keep up" };
        let columns = rates.into_iter().chain(step.latencies.columns());
        table.add_row([share].into_iter().chain(columns).chain([late.to_owned()]));
    }
    table
}

/// A line of a picture: what it is called, its number of a step, its colour.
type Line = (&'static str, fn(&Step) -> f64, RGBColor);

const LINES: [Line; 3] = [
    ("p50", |step| step.latencies.p50_us, RGBColor(0x1f, 0x6f, 0x8b)),
    ("p99", |step| step.latencies.p99_us, RGBColor(0xd9, 0xb4, 0x5b)),
    ("p99.9", |step| step.latencies.p99_9_us, RGBColor(0xb0, 0x5a, 0x2c)),
];

/// Latency against load as SVG, of the steps that kept up.
pub(super) fn picture(steps: &[Step]) -> Result<String> {
    let steps: Vec<&Step> = steps.iter().filter(|step| step.kept_up).collect();
    let most = steps.iter().map(|step| step.intended_per_s).fold(1.0, f64::max) * 1.05;
    let all = || steps.iter().flat_map(|step| LINES.map(|(_, number, _)| number(step)));
    let (lowest, highest) = (all().fold(f64::MAX, f64::min).clamp(0.1, 1e9), all().fold(1.0, f64::max));
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (900, 460)).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(16)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(0.0..most, (lowest * 0.8..highest * 1.3).log_scale())?;
        let mut mesh = chart.configure_mesh();
        let mesh = mesh.x_desc("operations a second").y_desc("µs").light_line_style(WHITE);
        mesh.x_label_formatter(&|rate| format!("{rate:.0}"))
            .y_label_formatter(&|us| format!("{us:.0}"))
            .draw()?;
        for (name, number, colour) in LINES {
            let points = steps.iter().map(|step| (step.intended_per_s, number(step)));
            chart
                .draw_series(LineSeries::new(points, colour.stroke_width(3)).point_size(4))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], colour.stroke_width(3)));
        }
        let mut labels = chart.configure_series_labels();
        labels.background_style(WHITE).border_style(BLACK.mix(0.3));
        labels.position(SeriesLabelPosition::UpperLeft).draw()?;
        area.present()?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(share: u32, kept_up: bool) -> Step {
        let us = f64::from(share) * 3.0;
        Step {
            share: Some(share),
            intended_per_s: f64::from(share) * 100.0,
            begun_per_s: f64::from(share) * 100.0,
            ended_per_s: f64::from(share) * if kept_up { 100.0 } else { 90.0 },
            kept_up,
            latencies: Latencies {
                mean_us: us,
                p50_us: us,
                p90_us: us * 2.0,
                p99_us: us * 3.0,
                p99_9_us: us * 4.0,
                max_us: us * 5.0,
            },
        }
    }

    #[test]
    fn a_picture_has_the_steps_that_kept_up() {
        let steps: Vec<Step> = shares().map(|share| step(share, share <= FULL)).collect();
        let svg = picture(&steps).expect("it can be drawn");
        assert_eq!(svg.matches("<circle").count(), LINES.len() * 10);
        assert!(svg.contains("operations a second"));
        // Where nothing kept up there is nothing to draw, which is no error.
        assert!(picture(&[step(10, false)]).is_ok());
    }

    #[test]
    fn a_ramp_says_either_that_it_kept_up_or_that_it_did_not() {
        let told = |kept_up: &[bool]| {
            let steps: Vec<Step> = (1..).zip(kept_up).map(|(n, kept_up)| step(n * 10, *kept_up)).collect();
            conclusion(&steps)
        };
        assert_eq!(told(&[true, true]), "It kept up with all loads up to 2000/s; p99 180 µs there");
        let not = told(&[true, true, false]);
        assert_eq!(
            not,
            "It kept up with all loads up to 2000/s; p99 180 µs there. It did not keep up with 3000/s"
        );
        let mixed = told(&[true, false, true]);
        assert!(
            mixed.contains("up to 1000/s") && mixed.contains("with 2000/s, though with a higher one"),
            "{mixed}"
        );
        let first = told(&[false, true]);
        assert!(
            first.starts_with("It did not keep up with 1000/s, the least") && !first.contains("kept up"),
            "{first}"
        );
        assert!(told(&[false, false]).contains("none of these loads"));
    }

    #[test]
    fn who_did_not_keep_up_is_told_so() {
        assert!(
            step(120, false)
                .explanation()
                .starts_with("It could not keep up: 12000/s intended, 12000/s begun, 10800/s")
        );
        let table = table(&[step(10, true), step(120, false)]).to_string();
        assert_eq!(table.matches("did not keep up").count(), 1);
    }
}
