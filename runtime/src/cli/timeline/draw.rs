//! The run under load as a drawing: time of a token over time, phases shaded, both policies. Pure; self-contained.
//! Not here: figures (`summary.rs`).

use super::{Pass, Policy, Timeline, summary};
use std::fmt::Write;

const WIDTH: f64 = 1120.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 368.0;
/// Points of a line at most: each is the mean of the tokens that it stands for.
const POINTS_MOST: f64 = 600.0;

fn color(policy: Policy) -> &'static str {
    match policy {
        Policy::Fixed => "#b04a5a",
        Policy::LoadAware => "#1f5a9e",
    }
}

/// Text as XML has it.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Mean time of a token over spans of equal length, where there are tokens: seconds and milliseconds.
fn line(pass: &Pass, end_s: f64) -> Vec<(f64, f64)> {
    let mut spans = vec![(0.0, 0_u32); POINTS_MOST as usize];
    for point in &pass.points {
        let index = (point.at_s / end_s * POINTS_MOST).clamp(0.0, POINTS_MOST - 1.0) as usize;
        spans[index].0 += point.took_us / 1e3;
        spans[index].1 += 1;
    }
    let at = |index: usize| (index as f64 + 0.5) / POINTS_MOST * end_s;
    let filled = spans.iter().enumerate().filter(|(_, (_, count))| *count > 0);
    filled.map(|(index, (sum, count))| (at(index), sum / f64::from(*count))).collect()
}

/// A round step that makes at most ten of `most`.
fn tick(most: f64) -> f64 {
    let power = 10_f64.powf((most / 10.0).max(1e-9).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    steps.iter().map(|step| step * power).find(|step| most / step <= 10.0).unwrap_or(10.0 * power)
}

/// The drawing.
pub fn svg(timeline: &Timeline) -> String {
    let end_s = timeline.phase_s * timeline.phases.len() as f64;
    let lines: Vec<_> = timeline.passes.iter().map(|pass| (pass.policy, line(pass, end_s))).collect();
    let mut all: Vec<f64> = lines.iter().flat_map(|(_, line)| line.iter().map(|(_, ms)| *ms)).collect();
    all.sort_by(f64::total_cmp);
    // A single late token must not flatten everything else.
    let most = all.get(all.len().saturating_sub(1) * 99 / 100).copied().unwrap_or(1.0) * 1.15;
    let x_of = |s: f64| LEFT + (WIDTH - LEFT - RIGHT) * s / end_s;
    let y_of = |ms: f64| BOTTOM - (BOTTOM - TOP) * (ms / most).min(1.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"12\" role=\"img\" aria-label=\"Time of a token under \
         load\"><rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>\n"
    );
    shade(&mut svg, timeline, &x_of);
    grid(&mut svg, (most, end_s), &x_of, &y_of);
    for (index, (policy, line)) in lines.iter().enumerate() {
        let points: Vec<String> = line.iter().map(|&(s, ms)| format!("{:.1},{:.1}", x_of(s), y_of(ms))).collect();
        let (points, color, x) = (points.join(" "), color(*policy), LEFT + 160.0 * index as f64);
        let _ = writeln!(svg, "<polyline fill=\"none\" stroke=\"{color}\" stroke-width=\"1.6\" points=\"{points}\"/>");
        let _ = writeln!(svg, "<rect x=\"{x}\" y=\"{}\" width=\"18\" height=\"3\" fill=\"{color}\"/>", HEIGHT - 11.0);
        let (x, y) = (x + 24.0, HEIGHT - 6.0);
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" fill=\"#222\">{} plan</text>", policy.name());
    }
    svg.push_str("</svg>\n");
    svg
}

fn shade(svg: &mut String, timeline: &Timeline, x_of: &dyn Fn(f64) -> f64) {
    for (index, phase) in timeline.phases.iter().enumerate() {
        let (start, end) = (timeline.phase_s * index as f64, timeline.phase_s * (index + 1) as f64);
        let (x, width) = (x_of(start), x_of(end) - x_of(start));
        if !phase.load.is_none() {
            let height = BOTTOM - TOP;
            let _ = writeln!(
                svg,
                "<rect x=\"{x:.1}\" y=\"{TOP}\" width=\"{width:.1}\" height=\"{height}\" fill=\"#eef1f5\"/>"
            );
        }
        let (middle, y, name) = (x + width / 2.0, TOP - 8.0, escaped(&phase.name));
        let _ = writeln!(svg, "<text x=\"{middle:.1}\" y=\"{y}\" text-anchor=\"middle\" fill=\"#444\">{name}</text>");
    }
}

fn grid(svg: &mut String, (most, end_s): (f64, f64), x_of: &dyn Fn(f64) -> f64, y_of: &dyn Fn(f64) -> f64) {
    let step = tick(most);
    for index in 0..=(most / step) as usize {
        let (ms, right) = (step * index as f64, WIDTH - RIGHT);
        let y = y_of(ms);
        let _ = writeln!(svg, "<path d=\"M{LEFT} {y:.1}H{right}\" stroke=\"#d8dbe0\"/>");
        let (x, y) = (LEFT - 6.0, y + 4.0);
        let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y:.1}\" text-anchor=\"end\" fill=\"#444\">{ms}</text>");
    }
    let step = tick(end_s);
    for index in 0..=(end_s / step) as usize {
        let (s, y) = (step * index as f64, BOTTOM + 16.0);
        let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{y}\" text-anchor=\"middle\" fill=\"#444\">{s} s</text>", x_of(s));
    }
    let _ = writeln!(svg, "<text x=\"{LEFT}\" y=\"14\" fill=\"#444\">ms a token</text>");
}

/// A page with the drawing and the figures.
pub fn page(timeline: &Timeline) -> String {
    let (title, drawing) = (escaped(&timeline.title), svg(timeline));
    let text = escaped(&summary::text(timeline));
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n<style>body \
         {{ font-family: system-ui, sans-serif; max-width: 1160px; margin: 2em auto; color: #222 }} pre {{ overflow-x: \
         auto }}</style></head>\n<body><h1>Decoding under load</h1><p>{title}</p>\n{drawing}<pre>{text}</pre></body>\
         </html>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drawing_is_whole_and_needs_nothing_else() {
        let mut timeline = summary::tests::timeline();
        timeline.title = "a <b> & c".to_owned();
        let page = page(&timeline);
        assert!(page.contains("a &lt;b&gt; &amp; c") && !page.contains("<b>"));
        assert_eq!(page.matches("<polyline").count(), 2);
        assert!(!page.contains("href") && !page.contains("src="));
        assert_eq!(page.matches("fill=\"#eef1f5\"").count(), 1, "one phase has load");
    }

    #[test]
    fn lines_are_means_of_few_points_and_ticks_are_round() {
        let timeline = summary::tests::timeline();
        let line = line(&timeline.passes[0], 30.0);
        assert_eq!(line.len(), 30);
        assert!(line.iter().all(|(_, ms)| *ms == 10.0 || *ms == 30.0));
        for (most, step) in [(10.0, 1.0), (31.0, 5.0), (0.7, 0.1), (250.0, 50.0)] {
            assert!((tick(most) - step).abs() < 1e-9, "{most}: {}", tick(most));
        }
    }

    #[test]
    fn a_run_without_tokens_is_drawn_too() {
        let mut timeline = summary::tests::timeline();
        timeline.passes.iter_mut().for_each(|pass| pass.points.clear());
        assert!(svg(&timeline).ends_with("</svg>\n") && !svg(&timeline).contains("NaN"));
    }
}
