//! The regime map of a phase: which schedule serves which load, and the schedules in words.

use super::palette::{blues, phase_name};
use super::svg::{Anchor, Rect, Svg, number};
use super::view::{MIB, View};
use crate::simulate::round::Round;
use plan_format::ScheduleId;
use plan_format::costs::Load;
use plan_format::schedule::{Phase, RegimeMap, Schedule};
use plan_format::workload;

const WIDTH: f64 = 1120.0;
const LEFT: f64 = 96.0;
const TOP: f64 = 46.0;
const ROW: f64 = 36.0;
/// Between blocks of equal GPU slowdown.
const GAP: f64 = 6.0;

/// A cell of the map.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// CPU, GPU and link slowdown.
    pub slowdowns: [f32; 3],
    /// Its schedule.
    pub schedule: ScheduleId,
    /// Latency of a round.
    pub round_us: f64,
}

/// The map's context that serves a phase's rounds in the view: the least that holds theirs, else the longest.
pub fn bucket(view: &View<'_>, phase: Phase) -> Option<(usize, u32)> {
    let (contexts, wanted) = (&view.plan.regimes.context_tokens, view.round(phase).context_tokens);
    let holds = contexts.iter().position(|&tokens| tokens >= wanted);
    let index = holds.or_else(|| contexts.len().checked_sub(1))?;
    Some((index, contexts[index]))
}

/// Cells of a phase at the map's context for it, in the map's order.
pub fn cells(view: &View<'_>, phase: Phase) -> Vec<Cell> {
    let map = &view.plan.regimes;
    let (Some(p), Some((c, context_tokens))) =
        (map.phases.iter().position(|&known| known == phase), bucket(view, phase))
    else {
        return Vec::new();
    };
    let round = Round { context_tokens, ..view.round(phase) };
    let per_context = map.cpu_slowdown.len() * map.gpu_slowdown.len() * map.link_slowdown.len();
    let first = (p * map.context_tokens.len() + c) * per_context;
    let full_team = view.plan.costs.teams.last().map_or(1, |team| team.threads);
    let mut cells = Vec::new();
    for (index, slowdowns) in grid(map).into_iter().enumerate() {
        let Some(&schedule) = map.cells.get(first + index) else { break };
        let [cpu, gpu, link] = slowdowns.map(f64::from);
        let round = Round { load: Load::cell(cpu, gpu, link, full_team), ..round };
        cells.push(Cell { slowdowns, schedule, round_us: round_us(&round, schedule).unwrap_or(f64::NAN) });
    }
    cells
}

fn grid(map: &RegimeMap) -> Vec<[f32; 3]> {
    let mut grid = Vec::new();
    for &cpu in &map.cpu_slowdown {
        for &gpu in &map.gpu_slowdown {
            grid.extend(map.link_slowdown.iter().map(|&link| [cpu, gpu, link]));
        }
    }
    grid
}

fn round_us(round: &Round<'_>, schedule: ScheduleId) -> Option<f64> {
    let plan = round.plan;
    let case = &plan.costs.cases[plan.costs.case_index(round.phase, round.context_tokens)?];
    workload::round_us(plan, case, plan.schedules.get(schedule.index())?, &round.load)
}

/// What a round of a schedule streams over the link.
pub fn streamed_mib(view: &View<'_>, schedule: &Schedule) -> f64 {
    let Some(case) = view.case(schedule.phase) else { return 0.0 };
    let rate = link_mib_per_us(view);
    let mib = |item: plan_format::ItemId| match (case.items.get(item.index()), view.items().get(item.index())) {
        // Chosen experts only: their bytes are told by their time.
        (Some(cost), _) if cost.stream_after.is_some() => f64::from(cost.stream_us) * rate,
        (_, Some(item)) => view.plan.program.item_weight_bytes(item) as f64 / MIB,
        _ => 0.0,
    };
    schedule.promotions.iter().map(|promotion| mib(promotion.item)).sum()
}

/// The link's rate as the plan expects it: of the item that moves fastest in any round, as a whole.
fn link_mib_per_us(view: &View<'_>) -> f64 {
    let items = view.items();
    let mut best = 0.0f64;
    for case in &view.plan.costs.cases {
        for (item, cost) in items.iter().zip(&case.items) {
            if cost.stream_us > 0.0 && cost.stream_after.is_none() {
                let mib = view.plan.program.item_weight_bytes(item) as f64 / MIB;
                best = best.max(mib / f64::from(cost.stream_us));
            }
        }
    }
    best
}

/// The map as a table of cells: CPU slowdown down, GPU and link across.
pub fn svg(view: &View<'_>, phase: Phase, cells: &[Cell]) -> String {
    let map = &view.plan.regimes;
    let links = map.link_slowdown.len();
    let columns = map.gpu_slowdown.len() * links;
    let gaps = GAP * map.gpu_slowdown.len() as f64;
    let width = ((WIDTH - LEFT - gaps) / columns.max(1) as f64).min(120.0);
    let mut svg = Svg::new(WIDTH, TOP + ROW * map.cpu_slowdown.len() as f64 + 8.0);
    header(&mut svg, map, width);
    let streamed: Vec<f64> = view.plan.schedules.iter().map(|s| streamed_mib(view, s)).collect();
    let most = cells.iter().map(|cell| streamed[cell.schedule.index()]).fold(1e-9, f64::max);
    for (index, cell) in cells.iter().enumerate() {
        let (row, column) = (index / columns, index % columns);
        let gap = GAP * (column / links) as f64;
        let (x, y) = (LEFT + width * column as f64 + gap, TOP + ROW * row as f64);
        let share = streamed[cell.schedule.index()] / most;
        let [cpu, gpu, link] = cell.slowdowns;
        let tooltip = format!(
            "CPU {cpu}×, GPU {gpu}×, link {link}× slower: {} with schedule S{}, {} MiB streamed",
            ms(cell.round_us),
            cell.schedule.0,
            number(streamed[cell.schedule.index()])
        );
        svg.rect(Rect { x, y, width: width - 2.0, height: ROW - 2.0 }, &blues(share), &tooltip);
        svg.text(x + width / 2.0 - 1.0, y + 15.0, Anchor::Middle, "value", format!("S{}", cell.schedule.0));
        svg.text(x + width / 2.0 - 1.0, y + 28.0, Anchor::Middle, "cell", ms(cell.round_us));
    }
    for (row, cpu) in map.cpu_slowdown.iter().enumerate() {
        let y = TOP + ROW * row as f64 + 21.0;
        svg.text(LEFT - 8.0, y, Anchor::End, "label", format!("CPU {cpu}×"));
    }
    svg.finish(&format!("Schedule and latency of every regime of {}", phase_name(phase)))
}

fn header(svg: &mut Svg, map: &RegimeMap, width: f64) {
    let links = map.link_slowdown.len();
    for (g, gpu) in map.gpu_slowdown.iter().enumerate() {
        let first = LEFT + (width * links as f64 + GAP) * g as f64;
        svg.text(first + width * links as f64 / 2.0, 14.0, Anchor::Middle, "label", format!("GPU {gpu}×"));
        for (l, link) in map.link_slowdown.iter().enumerate() {
            let x = first + width * (l as f64 + 0.5);
            svg.text(x, 36.0, Anchor::Middle, "small", format!("link {link}×"));
        }
    }
}

/// Milliseconds, or seconds, for people.
pub fn ms(us: f64) -> String {
    if us < 9_999_500.0 { format!("{} ms", number(us / 1000.0)) } else { format!("{} s", number(us / 1e6)) }
}

/// Rows of the table of schedules that cells use: name, threads, streamed items, MiB a round, unloaded time, cells.
pub fn schedule_rows(view: &View<'_>, cells: &[Cell]) -> Vec<[String; 6]> {
    let mut used: Vec<ScheduleId> = cells.iter().map(|cell| cell.schedule).collect();
    used.sort_unstable();
    used.dedup();
    let row = |id: ScheduleId| {
        let schedule = &view.plan.schedules[id.index()];
        let idle = round_us(&Round { load: Load::IDLE, ..view.round(schedule.phase) }, id);
        [
            format!("S{}", id.0),
            schedule.cpu_threads.to_string(),
            schedule.promotions.len().to_string(),
            number(streamed_mib(view, schedule)),
            idle.map_or("–".to_owned(), ms),
            cells.iter().filter(|cell| cell.schedule == id).count().to_string(),
        ]
    };
    used.into_iter().map(row).collect()
}
