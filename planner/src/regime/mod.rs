//! The table of transfer plans: for every phase, context and load regime a schedule that was compiled in advance.
//!
//! The grid generates candidates: each cell is solved on its own, in parallel. Of the distinct schedules those are
//! kept without which some cell would lose more than 1 %, and the map names the best kept one for every cell. The
//! runtime may also score the kept ones under ratios that are no cell (`plan_format::evaluate`).
//! `cover` chooses what to keep, `assemble` makes the artifact's sections. Placement is fixed here: only transfers and
//! CPU threads change with the load.

mod assemble;
mod cover;

pub use assemble::{Parts, SolveError, Solved, assemble, solve_plan};
pub use cover::{Cover, cover};

use crate::cost::Problem;
use crate::transfer::{Answer, Effort, Task, Temporary, solve};
use plan_format::ScheduleId;
use plan_format::costs::Load;
use plan_format::evaluate::Scratch;
use plan_format::schedule::{Home, Phase, RegimeMap, Schedule};
use rayon::prelude::*;

/// Slowdowns of the grid.
#[derive(Clone, Debug, PartialEq)]
pub struct Grid {
    /// CPU: what a full team loses because others use its cores.
    pub cpu: Vec<f32>,
    /// GPU.
    pub gpu: Vec<f32>,
    /// Link.
    pub link: Vec<f32>,
}

impl Grid {
    /// The grid of a compiled plan.
    pub fn full() -> Grid {
        Grid { cpu: vec![1.0, 1.25, 1.6, 2.0, 3.0, 5.0], gpu: vec![1.0, 1.5, 2.5, 5.0], link: vec![1.0, 1.5, 2.5, 5.0] }
    }

    /// A coarse grid for checks of many plans.
    pub fn reduced() -> Grid {
        Grid { cpu: vec![1.0, 2.0, 5.0], gpu: vec![1.0, 2.5], link: vec![1.0, 2.5] }
    }

    /// The grid of a machine without GPU: neither its speed nor a link matters.
    pub fn cpu_only() -> Grid {
        Grid { cpu: vec![1.0, 1.25, 1.6, 2.0, 3.0, 5.0], gpu: vec![1.0], link: vec![1.0] }
    }

    /// Loads of all cells, in the order of the regime map.
    pub fn loads(&self, full_team: u16) -> Vec<Load> {
        let mut loads = Vec::new();
        for &cpu in &self.cpu {
            for &gpu in &self.gpu {
                for &link in &self.link {
                    loads.push(Load::cell(f64::from(cpu), f64::from(gpu), f64::from(link), full_team));
                }
            }
        }
        loads
    }

    /// Loads that are no cells, but for which schedules are kept too: a CPU that is slower for teams of every size. Its
    /// clock may be down, others may have the memory, and a full team that shares its cores may still do better than a
    /// small one that does not: the runtime finds out, and needs both kinds.
    pub fn slower_cpu(&self) -> Vec<Load> {
        let links = &self.link[..self.link.len().min(2)];
        let slower = self.cpu.iter().skip(1);
        let load = |(&cpu, &link): (&f32, &f32)| Load { cpu: f64::from(cpu), link: f64::from(link), ..Load::IDLE };
        slower.flat_map(|cpu| links.iter().map(move |link| load((cpu, link)))).collect()
    }
}

/// What the table is made for.
#[derive(Clone, Copy, Debug)]
pub struct TableQuery<'a> {
    /// Model on device, with the costs that the homes imply.
    pub problem: &'a Problem,
    /// Placement.
    pub homes: &'a [Home],
    /// The same as decode and verification rounds find it, which hold more.
    pub few_homes: &'a [Home],
    /// Temporary memory.
    pub temporary: Temporary,
    /// Largest ubatch; smaller ones get schedules too, for the rest of a prompt.
    pub ubatch_tokens: u32,
}

impl<'a> TableQuery<'a> {
    /// A case under a load.
    fn task(&self, case: usize, load: Load) -> Task<'a> {
        let phase = self.problem.costs.cases[case].phase;
        let homes = if phase.is_prefill() { self.homes } else { self.few_homes };
        Task { problem: self.problem, case, homes, slots: self.temporary.of(phase), load }
    }
}

/// The table.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Kept schedules of all phases.
    pub schedules: Vec<Schedule>,
    /// Which of them to use when.
    pub map: RegimeMap,
    /// Predicted latency of every cell under its schedule, in the map's order.
    pub cell_us: Vec<f64>,
    /// Distinct schedules that were found before thinning out.
    pub found: usize,
    /// The unloaded rounds of the workload, whose contexts need not be among the map's.
    pub workload: Vec<WorkloadRound>,
}

/// A kind of round that the workload has.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkloadRound {
    /// The phase.
    pub phase: Phase,
    /// Its mean context.
    pub context_tokens: u32,
    /// Index of the best kept schedule.
    pub schedule: usize,
    /// Predicted latency under it.
    pub round_us: f64,
}

/// Solves the grid and keeps what matters. Deterministic for any number of threads.
pub fn table(query: &TableQuery<'_>, grid: &Grid) -> Table {
    let problem = query.problem;
    let wanted = |phase: &Phase| match phase {
        Phase::Prefill { ubatch_tokens } => *ubatch_tokens <= query.ubatch_tokens,
        _ => true,
    };
    let phases: Vec<Phase> = crate::cost::phases(&problem.demand).into_iter().filter(wanted).collect();
    let contexts = problem.demand.context_buckets();
    let solved: Vec<PhaseTable> =
        phases.par_iter().map(|&phase| PhaseTable::solve(query, grid, phase, &contexts)).collect();
    let mut table = Table {
        schedules: Vec::new(),
        map: RegimeMap {
            phases,
            context_tokens: contexts,
            cpu_slowdown: grid.cpu.clone(),
            gpu_slowdown: grid.gpu.clone(),
            link_slowdown: grid.link.clone(),
            cells: Vec::new(),
        },
        cell_us: Vec::new(),
        found: 0,
        workload: Vec::new(),
    };
    for phase in solved {
        let first = table.schedules.len() as u32;
        table
            .workload
            .extend(phase.workload.map(|round| WorkloadRound { schedule: first as usize + round.schedule, ..round }));
        table.schedules.extend(phase.schedules);
        table.map.cells.extend(phase.cells.iter().map(|&index| ScheduleId(first + index)));
        table.cell_us.extend(phase.cell_us);
        table.found += phase.found;
    }
    table
}

/// A schedule as the search sees it.
type Plan = (usize, Vec<u32>);

/// The part of the table for one phase.
struct PhaseTable {
    schedules: Vec<Schedule>,
    cells: Vec<u32>,
    cell_us: Vec<f64>,
    found: usize,
    workload: Option<WorkloadRound>,
}

impl PhaseTable {
    fn solve(query: &TableQuery<'_>, grid: &Grid, phase: Phase, contexts: &[u32]) -> PhaseTable {
        let full_team = query.problem.costs.teams.last().map_or(1, |team| team.threads);
        let cells = grid.loads(full_team).len();
        let loads = [grid.loads(full_team), grid.slower_cpu()].concat();
        let mut pool: Vec<Plan> = Vec::new();
        let own = workload_task(query, phase);
        let mut kept: Vec<Plan> = own.iter().map(|(_, task)| plan(&solve(task, Effort::FULL, &[]))).collect();
        for (index, &context) in contexts.iter().enumerate() {
            let Some((case, _)) = query.problem.case(phase, context) else { continue };
            let task = |load| query.task(case, load);
            let idle = solve(&task(loads[0]), Effort::FULL, &kept);
            let hints = [plan(&idle)];
            // One context is solved in every cell; the others differ by attention only, and their corners suffice.
            let solved: Vec<usize> = if index == 0 { (1..loads.len()).collect() } else { corners(grid) };
            let answers: Vec<Answer> =
                solved.par_iter().map(|&cell| solve(&task(loads[cell]), Effort::CELL, &hints)).collect();
            let mut candidates = kept.clone();
            candidates.extend(hints);
            candidates.extend(answers.iter().map(plan));
            candidates = distinct(candidates);
            pool.extend(candidates.iter().cloned());
            let scores = scores(&task, &loads, &candidates);
            let cover = cover(&scores, &[best_of(&scores, 0)]);
            kept.extend(cover.kept.iter().map(|&c| candidates[c].clone()));
            kept = distinct(kept);
        }
        let pool = distinct(pool).len();
        PhaseTable::assign(query, phase, contexts, (&loads, cells), kept, pool)
    }

    /// Scores the kept schedules under every load (of which the first are `cells`) in every context, drops those that
    /// no load needs, and fills the map.
    fn assign(
        query: &TableQuery<'_>,
        phase: Phase,
        contexts: &[u32],
        (loads, cells): (&[Load], usize),
        kept: Vec<Plan>,
        found: usize,
    ) -> PhaseTable {
        let mut rows: Vec<Vec<f64>> = vec![Vec::new(); kept.len()];
        let mut idle_cells = Vec::new();
        for &context in contexts {
            let Some((case, _)) = query.problem.case(phase, context) else { continue };
            let task = |load| query.task(case, load);
            idle_cells.push(rows.first().map_or(0, Vec::len));
            let scores = scores(&task, loads, &kept);
            rows.iter_mut().zip(scores).for_each(|(row, more)| row.extend(more));
        }
        let mut always: Vec<usize> = idle_cells.iter().map(|&cell| best_of(&rows, cell)).collect();
        let own = workload_task(query, phase).map(|(context_tokens, task)| {
            let times = scores(&|load| Task { load, ..task }, &loads[..1], &kept);
            let best = best_of(&times, 0);
            (context_tokens, best, times.get(best).map_or(0.0, |row| row[0]))
        });
        always.extend(own.map(|(_, best, _)| best));
        let cover = cover(&rows, &always);
        let workload = own.map(|(context_tokens, best, round_us)| WorkloadRound {
            phase,
            context_tokens,
            schedule: cover.kept.iter().position(|&row| row == best).unwrap_or(0),
            round_us,
        });
        let schedule = |&index: &usize| {
            let (team, promoted) = &kept[index];
            let case = query.problem.case(phase, contexts[0]).map_or(0, |(case, _)| case);
            let router_of = |item: u32| query.problem.costs.cases[case].items[item as usize].stream_after;
            let threads = query.problem.costs.teams[*team].threads;
            query.temporary.schedule((phase, threads), promoted, router_of, rows[index][0])
        };
        let is_cell = |column: &usize| column % loads.len() < cells;
        let columns = || (0..cover.cells.len()).filter(is_cell);
        PhaseTable {
            schedules: cover.kept.iter().map(schedule).collect(),
            cells: columns().map(|c| cover.cells[c]).collect(),
            cell_us: columns().map(|c| rows[cover.kept[cover.cells[c] as usize]][c]).collect(),
            found,
            workload,
        }
    }
}

/// The unloaded rounds of the workload, if it has rounds of the phase, with their context.
fn workload_task<'a>(query: &TableQuery<'a>, phase: Phase) -> Option<(u32, Task<'a>)> {
    let is_largest = !matches!(phase, Phase::Prefill { ubatch_tokens } if ubatch_tokens != query.ubatch_tokens);
    let context_tokens = query.problem.demand.workload_context(phase).filter(|_| is_largest)?;
    let (case, _) = query.problem.case(phase, context_tokens)?;
    Some((context_tokens, query.task(case, Load::IDLE)))
}

fn plan(answer: &Answer) -> Plan {
    (answer.team, answer.promoted.clone())
}

/// Without repetitions, first occurrences in order.
fn distinct(plans: Vec<Plan>) -> Vec<Plan> {
    let mut seen = std::collections::HashSet::new();
    plans.into_iter().filter(|plan| seen.insert(plan.clone())).collect()
}

/// Index of the row with the least value in a column.
fn best_of(rows: &[Vec<f64>], column: usize) -> usize {
    (0..rows.len()).min_by(|&a, &b| rows[a][column].total_cmp(&rows[b][column]).then(a.cmp(&b))).unwrap_or(0)
}

/// Latency of every plan (row) under every load (column).
fn scores<'a>(task: &(impl Fn(Load) -> Task<'a> + Sync), loads: &[Load], plans: &[Plan]) -> Vec<Vec<f64>> {
    let row = |(team, promoted): &Plan| {
        let mut scratch = Scratch::default();
        loads.iter().map(|&load| task(load).round_us(*team, promoted, &mut scratch)).collect()
    };
    plans.par_iter().map(row).collect()
}

/// Cells where some axes are at their ends, except the idle cell.
fn corners(grid: &Grid) -> Vec<usize> {
    let (gpus, links) = (grid.gpu.len(), grid.link.len());
    let mut cells = Vec::new();
    for cpu in [0, grid.cpu.len() / 2, grid.cpu.len() - 1] {
        for gpu in [0, gpus - 1] {
            for link in [0, links - 1] {
                let cell = (cpu * gpus + gpu) * links + link;
                if cell > 0 && !cells.contains(&cell) {
                    cells.push(cell);
                }
            }
        }
    }
    cells
}
