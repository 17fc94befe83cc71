//! What placement, coordination and transfer contribute: bars as in the paper's Figure 15, simulated.

use super::claims::Comparison;
use super::svg::{Anchor, Rect, Svg, number, ticks};
use crate::place::ablation::Row;

const WIDTH: f64 = 550.0;
const LEFT: f64 = 40.0;
const HEIGHT: f64 = 250.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 205.0;

/// Colours of the four configurations, base first.
pub const COLORS: [&str; 4] = ["#b8b8b8", "#9ec5e8", "#4e8fd0", "#1f5a9e"];
/// Their names.
pub const NAMES: [&str; 4] =
    ["base: whole layers", "+ tensor placement", "+ asynchronous coordination", "+ dynamic transfer (this plan)"];

/// Prefill and decode, side by side.
pub fn svgs(comparison: &Comparison) -> [String; 2] {
    [
        panel("prefill, tokens/s", &comparison.rows, Row::prefill_tokens_per_s),
        panel("decode, tokens/s", &comparison.rows, Row::decode_tokens_per_s),
    ]
}

fn panel(title: &str, rows: &[Row; 4], speed: impl Fn(&Row) -> f64) -> String {
    let speeds = rows.each_ref().map(speed);
    let most = speeds.iter().copied().fold(0.0, f64::max);
    let ticks = ticks(most, 5);
    let end = ticks.last().copied().unwrap_or(1.0).max(1e-9);
    let y_of = |value: f64| BOTTOM - (BOTTOM - TOP) * value / end;
    let mut svg = Svg::new(WIDTH, HEIGHT);
    svg.text(LEFT, 16.0, Anchor::Start, "label", title);
    for &tick in &ticks {
        svg.line((LEFT, y_of(tick)), (WIDTH - 10.0, y_of(tick)), "grid");
        svg.text(LEFT - 6.0, y_of(tick) + 4.0, Anchor::End, "small", number(tick));
    }
    let step = (WIDTH - LEFT - 10.0) / 4.0;
    for (index, value) in speeds.into_iter().enumerate() {
        let x = LEFT + step * (index as f64 + 0.2);
        let (y, width) = (y_of(value), step * 0.6);
        let tooltip = format!("{}: {} tokens/s", NAMES[index], number(value));
        svg.rect(Rect { x, y, width, height: BOTTOM - y }, COLORS[index], &tooltip);
        svg.text(x + width / 2.0, y - 5.0, Anchor::Middle, "value", number(value));
        let gain = format!("{}×", number(value / speeds[0].max(1e-9)));
        svg.text(x + width / 2.0, BOTTOM + 16.0, Anchor::Middle, "value", gain);
    }
    svg.text(LEFT + (WIDTH - LEFT) / 2.0, BOTTOM + 36.0, Anchor::Middle, "small", "speed-up over the base");
    svg.line((LEFT, BOTTOM), (WIDTH - 10.0, BOTTOM), "axis");
    svg.finish(title)
}
