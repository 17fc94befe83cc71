//! Empirical performance density of representative tensors in decode, as the paper's Figure 9: time per MiB of memory
//! on each processor, sorted by the difference.

use super::palette::{CPU, GPU, kind_name};
use super::svg::{Anchor, Rect, Svg, number, ticks};
use super::view::{MIB, View};
use plan_format::program::ItemKind;
use plan_format::schedule::{Home, Phase};

/// Items of one kind and weight type, and the one in the middle of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Density {
    /// `FFN down, Q6_K`.
    pub name: String,
    /// An example: `blk.3.ffn_down`.
    pub item: String,
    /// Memory of the example: weights (all experts) and states.
    pub mib: f64,
    /// Time per MiB on the CPU with the unloaded schedule's team, microseconds.
    pub cpu_us_per_mib: f64,
    /// Time per MiB on the GPU.
    pub gpu_us_per_mib: f64,
    /// How many of the group are resident.
    pub resident: usize,
    /// How many there are.
    pub count: usize,
}

impl Density {
    /// What a MiB of GPU memory saves.
    pub fn gain(&self) -> f64 {
        self.cpu_us_per_mib - self.gpu_us_per_mib
    }
}

/// Groups by gain, the greatest first. Empty without decode rounds or without a GPU.
pub fn densities(view: &View<'_>) -> Vec<Density> {
    let (Some(case), Ok(outcome)) = (view.case(Phase::Decode), view.outcome(Phase::Decode)) else { return Vec::new() };
    let threads = view.plan.schedules[outcome.schedule.index()].cpu_threads;
    let team = view.plan.costs.team_index(threads).unwrap_or(0);
    let items = view.items();
    let mut groups: Vec<((ItemKind, &str), Vec<usize>)> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        if view.item_bytes(item) == 0 || case.items[index].gpu_us <= 0.0 {
            continue;
        }
        let key = (item.kind, view.weight_type(item));
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, members)) => members.push(index),
            None => groups.push((key, vec![index])),
        }
    }
    let density = |((kind, weight_type), mut members): ((ItemKind, &str), Vec<usize>)| {
        let mib = |index: usize| view.item_bytes(&items[index]) as f64 / MIB;
        let cpu = |index: usize| f64::from(case.cpu_us[team * items.len() + index]) / mib(index);
        let gpu = |index: usize| f64::from(case.items[index].gpu_us) / mib(index);
        members.sort_by(|&a, &b| (cpu(a) - gpu(a)).total_cmp(&(cpu(b) - gpu(b))));
        let middle = members[members.len() / 2];
        let name = if weight_type.is_empty() {
            kind_name(kind).to_owned()
        } else {
            format!("{}, {weight_type}", kind_name(kind))
        };
        Density {
            name,
            item: items[middle].name.clone(),
            mib: mib(middle),
            cpu_us_per_mib: cpu(middle),
            gpu_us_per_mib: gpu(middle),
            resident: members.iter().filter(|&&i| view.plan.placement.homes[i] == Home::Resident).count(),
            count: members.len(),
        }
    };
    let mut found: Vec<Density> = groups.into_iter().map(density).collect();
    found.sort_by(|a, b| b.gain().total_cmp(&a.gain()));
    found
}

const LEFT: f64 = 200.0;
const RIGHT: f64 = 190.0;
const TOP: f64 = 26.0;
const ROW: f64 = 34.0;
const WIDTH: f64 = 1120.0;

/// The chart.
pub fn svg(densities: &[Density]) -> String {
    let height = TOP + ROW * densities.len() as f64 + 44.0;
    let most = densities.iter().map(|d| d.cpu_us_per_mib.max(d.gpu_us_per_mib)).fold(0.0, f64::max);
    let ticks = ticks(most, 8);
    let end = ticks.last().copied().unwrap_or(1.0).max(1e-9);
    let x_of = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * value / end;
    let mut svg = Svg::new(WIDTH, height);
    let bottom = TOP + ROW * densities.len() as f64;
    for &tick in &ticks {
        svg.line((x_of(tick), TOP - 4.0), (x_of(tick), bottom), "grid");
        svg.text(x_of(tick), bottom + 16.0, Anchor::Middle, "small", number(tick));
    }
    svg.text(x_of(end / 2.0), bottom + 34.0, Anchor::Middle, "label", "time per MiB of memory in a decode round, µs");
    svg.text(WIDTH - RIGHT + 12.0, TOP - 10.0, Anchor::Start, "small", "resident, memory of one");
    for (row, density) in densities.iter().enumerate() {
        let y = TOP + ROW * row as f64;
        svg.text(LEFT - 8.0, y + 19.0, Anchor::End, "label", &density.name);
        let bars = [(density.cpu_us_per_mib, CPU, "CPU"), (density.gpu_us_per_mib, GPU, "GPU")];
        for (bar, (value, color, processor)) in bars.into_iter().enumerate() {
            let y = y + 3.0 + 13.0 * bar as f64;
            let tooltip = format!("{} on the {processor}: {} µs per MiB", density.item, number(value));
            svg.rect(Rect { x: LEFT, y, width: x_of(value) - LEFT, height: 11.0 }, color, &tooltip);
            svg.text(x_of(value) + 4.0, y + 9.5, Anchor::Start, "small", number(value));
        }
        let placed = format!("{} of {} · {} MiB", density.resident, density.count, number(density.mib));
        svg.text(WIDTH - RIGHT + 12.0, y + 19.0, Anchor::Start, "value", placed);
    }
    svg.line((LEFT, TOP - 4.0), (LEFT, bottom), "axis");
    svg.finish("Empirical performance density by kind of tensor")
}
