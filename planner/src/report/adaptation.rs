//! Decode under changing load, as the paper's Figures 4 and 13: the schedule that is best without load, kept
//! throughout, against the kept schedule that is best for each load.

use super::regimes::ms;
use super::svg::{Anchor, Rect, Svg, number, ticks};
use super::view::View;
use plan_format::costs::Load;
use plan_format::schedule::Phase;

/// What the paper loads its machine with, as slowdowns of CPU, GPU and link: 60 % of a resource taken leaves it 2.5
/// times slower.
const LOADS: [(&str, [f64; 3]); 5] = [
    ("no load", [1.0, 1.0, 1.0]),
    ("60 % of the CPU taken", [2.5, 1.0, 1.0]),
    ("no load", [1.0, 1.0, 1.0]),
    ("60 % of GPU and link taken", [1.0, 2.5, 2.5]),
    ("no load", [1.0, 1.0, 1.0]),
];

/// By how much the paper cut the rise under either load, in percent.
const PAPER_CUT: [f64; 2] = [13.0, 38.0];

/// Decode under one load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stretch {
    /// The load in words.
    pub load: &'static str,
    /// With the schedule of no load.
    pub fixed_us: f64,
    /// With the best kept schedule.
    pub adapted_us: f64,
}

/// Decode under each load. Empty without decode rounds.
pub fn stretches(view: &View<'_>) -> Vec<Stretch> {
    let full_team = view.plan.costs.teams.last().map_or(1, |team| team.threads);
    let stretch = |&(load, [cpu, gpu, link]): &(&'static str, [f64; 3])| {
        let loaded = View { load: Load::cell(cpu, gpu, link, full_team), ..*view };
        let outcome = loaded.outcome(Phase::Decode).ok()?;
        Some(Stretch { load, fixed_us: outcome.unadapted_us, adapted_us: outcome.round_us })
    };
    // Without a GPU there is nothing that others could take of it.
    let loads = if view.plan.origin.options.vram_bytes > 0 { &LOADS[..] } else { &LOADS[..3] };
    loads.iter().filter_map(stretch).collect()
}

/// What the loads do, in words.
pub fn sentences(stretches: &[Stretch]) -> Vec<String> {
    let Some(idle) = stretches.first() else { return Vec::new() };
    let loaded = stretches.iter().filter(|stretch| stretch.load != idle.load);
    let sentence = |(stretch, paper): (&Stretch, f64)| {
        let rise_us = stretch.fixed_us - idle.adapted_us;
        let cut = if rise_us > 0.0 { 100.0 * (stretch.fixed_us - stretch.adapted_us) / rise_us } else { 0.0 };
        format!(
            "{}: a token takes {} with the schedule of no load, {} with the one compiled for it; the rise from {} is \
             cut by {cut:.0} % (the paper: {paper} %).",
            stretch.load,
            ms(stretch.fixed_us),
            ms(stretch.adapted_us),
            ms(idle.adapted_us)
        )
    };
    loaded.zip(PAPER_CUT).map(sentence).collect()
}

/// Colours of the fixed and of the adapted line.
pub const COLORS: [(&str, &str); 2] =
    [("#b04a5a", "schedule of no load, kept"), ("#1f5a9e", "schedule compiled for the load")];

const WIDTH: f64 = 1120.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 190.0;

/// Time of a token over time, the loads one after the other.
pub fn svg(stretches: &[Stretch]) -> String {
    let most = stretches.iter().map(|s| s.fixed_us.max(s.adapted_us) / 1000.0).fold(0.0, f64::max);
    let ticks = ticks(most, 5);
    let end = ticks.last().copied().unwrap_or(1.0).max(1e-9);
    let y_of = |us: f64| BOTTOM - (BOTTOM - TOP) * us / 1000.0 / end;
    let mut svg = Svg::new(WIDTH, BOTTOM + 40.0);
    let step = (WIDTH - LEFT - 10.0) / stretches.len().max(1) as f64;
    for (index, stretch) in stretches.iter().enumerate() {
        let x = LEFT + step * index as f64;
        if index % 2 == 1 {
            svg.rect(Rect { x, y: TOP, width: step, height: BOTTOM - TOP }, "#f3f4f6", "");
        }
        svg.text(x + step / 2.0, BOTTOM + 18.0, Anchor::Middle, "label", stretch.load);
    }
    for &tick in &ticks {
        svg.line((LEFT, y_of(tick * 1000.0)), (WIDTH - 10.0, y_of(tick * 1000.0)), "grid");
        svg.text(LEFT - 6.0, y_of(tick * 1000.0) + 4.0, Anchor::End, "small", number(tick));
    }
    svg.text(LEFT, TOP - 5.0, Anchor::Start, "small", "ms a token");
    let lines: [fn(&Stretch) -> f64; 2] = [|s| s.fixed_us, |s| s.adapted_us];
    for ((color, _), value) in COLORS.into_iter().zip(lines) {
        for (index, stretch) in stretches.iter().enumerate() {
            let (x, y) = (LEFT + step * index as f64, y_of(value(stretch)));
            svg.rect(Rect { x, y: y - 1.5, width: step, height: 3.0 }, color, &ms(value(stretch)));
            if let Some(next) = stretches.get(index + 1) {
                let other = y_of(value(next));
                let rect =
                    Rect { x: x + step - 1.5, y: y.min(other) - 1.5, width: 3.0, height: (y - other).abs() + 3.0 };
                svg.rect(rect, color, "");
            }
        }
    }
    labels(&mut svg, stretches, step, &y_of);
    svg.finish("Time of a token under changing load")
}

fn labels(svg: &mut Svg, stretches: &[Stretch], step: f64, y_of: &dyn Fn(f64) -> f64) {
    for (index, stretch) in stretches.iter().enumerate() {
        let middle = LEFT + step * (index as f64 + 0.5);
        svg.text(middle, y_of(stretch.adapted_us) + 16.0, Anchor::Middle, "value", ms(stretch.adapted_us));
        if stretch.fixed_us > stretch.adapted_us * 1.005 {
            svg.text(middle, y_of(stretch.fixed_us) - 6.0, Anchor::Middle, "value", ms(stretch.fixed_us));
        }
    }
}
