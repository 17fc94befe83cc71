//! The timeline of one round: CPU, GPU, copy engine and switches over time, as a whole and magnified.

use super::palette::{GROUPS, kind_color, kind_name};
use super::svg::{Anchor, Rect, Svg, number, ticks};
use super::view::{View, item_label};
use crate::simulate::{Lane, Span, Timeline};
use plan_format::program::Item;

const WIDTH: f64 = 1120.0;
const LEFT: f64 = 120.0;
const LANE: f64 = 36.0;
const TOP: f64 = 10.0;
/// Width of a letter, generously.
const LETTER: f64 = 6.2;

/// A stretch of a timeline to draw.
#[derive(Clone, Copy, Debug)]
pub struct Window<'a> {
    /// All spans.
    pub timeline: &'a Timeline,
    /// The program's items.
    pub items: &'a [Item],
    /// The round whose work is in full colour.
    pub round: usize,
    /// Begin.
    pub from_us: f64,
    /// End.
    pub to_us: f64,
}

impl<'a> Window<'a> {
    /// A whole round.
    pub fn whole(view: &View<'a>, timeline: &'a Timeline, round: usize) -> Window<'a> {
        let starts = &timeline.round_starts_us;
        Window { timeline, items: view.items(), round, from_us: starts[round], to_us: starts[round + 1] }
    }

    /// A part of it that holds about `spans` spans of the processors, from the middle of the round on.
    pub fn magnified(&self, spans: usize) -> Window<'a> {
        let middle_us = (self.from_us + self.to_us) / 2.0;
        let executed = self.spans().filter(|span| matches!(span.lane, Lane::Cpu | Lane::Gpu));
        let later: Vec<&Span> = executed.filter(|span| span.start_us >= middle_us).collect();
        match (later.first(), later.get(spans).or(later.last())) {
            (Some(first), Some(last)) if last.end_us > first.start_us => {
                Window { from_us: first.start_us, to_us: last.end_us, ..*self }
            }
            _ => *self,
        }
    }

    fn spans(&self) -> impl Iterator<Item = &'a Span> {
        let (from_us, to_us) = (self.from_us, self.to_us);
        self.timeline.spans.iter().filter(move |span| span.end_us > from_us && span.start_us < to_us)
    }

    fn x(&self, at_us: f64) -> f64 {
        let share = (at_us - self.from_us) / (self.to_us - self.from_us).max(1e-9);
        LEFT + (WIDTH - LEFT - 20.0) * share.clamp(0.0, 1.0)
    }

    /// The drawing.
    pub fn svg(&self) -> String {
        let lanes: Vec<Lane> =
            Lane::ALL.into_iter().filter(|lane| self.spans().any(|span| span.lane == *lane)).collect();
        let bottom = TOP + LANE * lanes.len() as f64;
        let mut svg = Svg::new(WIDTH, bottom + 42.0);
        self.axis(&mut svg, bottom);
        for (row, &lane) in lanes.iter().enumerate() {
            let y = TOP + LANE * row as f64;
            svg.text(LEFT - 8.0, y + 21.0, Anchor::End, "label", lane_name(lane));
            for span in self.spans().filter(|span| span.lane == lane) {
                self.span(&mut svg, span, y);
            }
        }
        svg.finish("Timeline of a round")
    }

    fn axis(&self, svg: &mut Svg, bottom: f64) {
        let length_ms = (self.to_us - self.from_us) / 1000.0;
        for tick in ticks(length_ms, 10).into_iter().filter(|&tick| tick <= length_ms * 1.0001) {
            let x = self.x(self.from_us + tick * 1000.0);
            svg.line((x, TOP - 4.0), (x, bottom + 2.0), "grid");
            svg.text(x, bottom + 16.0, Anchor::Middle, "small", number(tick));
        }
        svg.text(LEFT + (WIDTH - LEFT) / 2.0, bottom + 34.0, Anchor::Middle, "label", "time, ms");
    }

    fn span(&self, svg: &mut Svg, span: &Span, y: f64) {
        let Some(item) = self.items.get(span.item as usize) else { return };
        let (x, end) = (self.x(span.start_us), self.x(span.end_us));
        let width = (end - x - 0.3).max(0.5);
        let ahead = span.round as usize != self.round;
        let opacity = if ahead { "0.4" } else { "1" };
        let color = kind_color(item.kind);
        let what = match span.lane {
            Lane::Link if ahead => " copied for another round",
            Lane::Link => " copied",
            Lane::Switch => " output moves",
            Lane::Cpu | Lane::Gpu => "",
        };
        let us = number(span.end_us - span.start_us);
        let tooltip = format!("{}{what}: {us} µs from {}", item.name, number((span.start_us - self.from_us) / 1000.0));
        let rect = Rect { x, y: y + 3.0, width, height: LANE - 8.0 };
        svg.rect_with(rect, &format!("fill=\"{color}\" fill-opacity=\"{opacity}\""), &format!("{tooltip} ms"));
        let labels = [item_label(item), kind_name(item.kind).to_owned()];
        let fits = |label: &&String| width > LETTER * label.chars().count() as f64;
        if let Some(label) = labels.iter().find(fits).filter(|_| span.lane != Lane::Switch) {
            let class = if ahead { "small" } else { "inverse small" };
            svg.text(x + width / 2.0, y + 21.0, Anchor::Middle, class, label);
        }
    }
}

fn lane_name(lane: Lane) -> &'static str {
    match lane {
        Lane::Cpu => "CPU",
        Lane::Gpu => "GPU",
        Lane::Link => "link: weights",
        Lane::Switch => "link: activations",
    }
}

/// Colours of the groups that occur: swatch colour and name.
pub fn legend(view: &View<'_>) -> Vec<(&'static str, &'static str)> {
    let occurs = |kinds: &[_]| view.items().iter().any(|item| kinds.contains(&item.kind));
    GROUPS.iter().filter(|(_, _, kinds)| occurs(kinds)).map(|&(name, color, _)| (color, name)).collect()
}
