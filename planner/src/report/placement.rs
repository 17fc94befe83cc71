//! The placement map: layers across, kinds of tensor down, colour for the home, marks for what is streamed.

use super::palette::{HOMES, KINDS, home};
use super::svg::{Anchor, Rect, Svg};
use super::view::View;
use plan_format::artifact::Plan;
use plan_format::program::{Item, ItemKind};
use plan_format::schedule::Phase;
use plan_format::text::bytes_text;

const LEFT: f64 = 150.0;
const TOP: f64 = 34.0;
const ROW: f64 = 22.0;
const RIGHT: f64 = 110.0;
const WIDTH: f64 = 1120.0;

/// Which items the unloaded schedules of decode and prefill stream.
struct Streamed {
    decode: Vec<bool>,
    prefill: Vec<bool>,
}

/// The map.
pub fn svg(view: &View<'_>) -> String {
    let layers = view.layers().max(1);
    let present: Vec<(ItemKind, &str)> =
        KINDS.iter().filter(|(kind, _)| view.items().iter().any(|item| item.kind == *kind)).copied().collect();
    let column = ((WIDTH - LEFT - RIGHT) / f64::from(layers)).min(36.0);
    let height = TOP + ROW * present.len() as f64 + 10.0;
    let mut svg = Svg::new(WIDTH, height);
    layer_numbers(&mut svg, layers, column);
    let streamed = streamed(view);
    for (row, (kind, name)) in present.iter().enumerate() {
        let y = TOP + ROW * row as f64;
        svg.text(LEFT - 8.0, y + 15.0, Anchor::End, "label", name);
        let of_kind = || view.items().iter().enumerate().filter(|(_, item)| item.kind == *kind);
        for (index, item) in of_kind() {
            let column_index = item.layer.unwrap_or(if *kind == ItemKind::Embedding { 0 } else { layers - 1 });
            let x = LEFT + column * f64::from(column_index);
            cell(&mut svg, view, (index, item), Rect { x, y, width: column - 1.5, height: ROW - 3.0 }, &streamed);
        }
        let resident = of_kind().filter(|(index, _)| is_resident(view.plan, *index)).count();
        let x = LEFT + column * f64::from(layers) + 8.0;
        svg.text(x, y + 15.0, Anchor::Start, "value", format!("{resident} of {} on GPU", of_kind().count()));
    }
    svg.finish("Placement of every item by layer and kind")
}

fn layer_numbers(svg: &mut Svg, layers: u32, column: f64) {
    svg.text(LEFT - 8.0, TOP - 10.0, Anchor::End, "small", "layer");
    let every = ((26.0 / column).ceil() as u32).max(1);
    let every = [1, 2, 4, 5, 8, 10, 20].into_iter().find(|&step| step >= every).unwrap_or(20);
    for layer in (0..layers).step_by(every as usize) {
        let x = LEFT + column * (f64::from(layer) + 0.5);
        svg.text(x, TOP - 10.0, Anchor::Middle, "small", layer);
    }
}

fn streamed(view: &View<'_>) -> Streamed {
    let of = |phase: Option<Phase>| {
        let outcome = phase.and_then(|phase| view.outcome(phase).ok());
        outcome.map_or(vec![false; view.items().len()], |outcome| view.promoted(outcome.schedule))
    };
    Streamed { decode: of(Some(Phase::Decode)), prefill: of(view.prefill()) }
}

fn is_resident(plan: &Plan, item: usize) -> bool {
    plan.placement.homes.get(item) == Some(&plan_format::schedule::Home::Resident)
}

fn cell(svg: &mut Svg, view: &View<'_>, (index, item): (usize, &Item), rect: Rect, streamed: &Streamed) {
    let Some(&at) = view.plan.placement.homes.get(index) else { return };
    let (name, color) = home(at);
    let mut tooltip = format!("{}: {name}, {}", item.name, bytes_text(view.item_bytes(item)));
    for (flags, phase) in [(&streamed.decode, "decode"), (&streamed.prefill, "prefill")] {
        if flags[index] {
            tooltip.push_str(&format!(", streamed in {phase}"));
        }
    }
    let is_held = view.plan.placement.held.items.iter().any(|held| held.item.index() == index);
    if is_held {
        tooltip.push_str(", kept on the GPU between prompts");
    }
    if is_held {
        let attributes = format!("fill=\"{color}\" {HELD}");
        let inner =
            Rect { x: rect.x + 1.0, y: rect.y + 1.0, width: (rect.width - 2.0).max(1.0), height: rect.height - 2.0 };
        svg.rect_with(inner, &attributes, &tooltip);
    } else {
        svg.rect(rect, color, &tooltip);
    }
    let (x, y) = (rect.x + rect.width / 2.0, rect.y + rect.height / 2.0);
    let radius = (rect.width / 2.0 - 1.0).min(6.0);
    if streamed.prefill[index] {
        svg.circle(x, y, radius, RING);
    }
    if streamed.decode[index] {
        svg.circle(x, y, radius * 0.5, DOT);
    }
}

const RING: &str = "fill=\"none\" stroke=\"#333\" stroke-width=\"1.2\"";
const DOT: &str = "fill=\"#111\"";

/// Frame of items that decode rounds hold on the GPU: resident then, on the host in prefill.
const HELD: &str = "stroke=\"#2f6db3\" stroke-width=\"2.2\"";

/// What colours and marks mean, of those that occur.
pub fn legend(view: &View<'_>) -> Vec<(String, String)> {
    let occurs = |wanted| view.plan.placement.homes.contains(&wanted);
    let homes = HOMES.iter().filter(|(home, ..)| occurs(*home));
    let mut legend: Vec<(String, String)> = homes.map(|(_, name, color)| (swatch(color), (*name).to_owned())).collect();
    let streamed = streamed(view);
    if streamed.decode.contains(&true) {
        legend.push((mark(DOT, 3.5), "streamed to the GPU in every decode round".to_owned()));
    }
    if !view.plan.placement.held.items.is_empty() {
        let mut svg = Svg::new(14.0, 14.0);
        svg.rect_with(Rect { x: 2.0, y: 2.0, width: 10.0, height: 10.0 }, &format!("fill=\"#fff\" {HELD}"), "");
        legend.push((svg.finish(""), "kept on the GPU between prompts".to_owned()));
    }
    if streamed.prefill.contains(&true) {
        legend.push((mark(RING, 5.0), "streamed to the GPU in prefill".to_owned()));
    }
    legend
}

fn mark(attributes: &str, radius: f64) -> String {
    let mut svg = Svg::new(14.0, 14.0);
    svg.circle(7.0, 7.0, radius, attributes);
    svg.finish("")
}

/// A coloured square for legends.
pub fn swatch(color: &str) -> String {
    let mut svg = Svg::new(14.0, 14.0);
    let attributes = format!("fill=\"{color}\" stroke=\"#0002\"");
    svg.rect_with(Rect { x: 1.0, y: 1.0, width: 12.0, height: 12.0 }, &attributes, "");
    svg.finish("")
}
