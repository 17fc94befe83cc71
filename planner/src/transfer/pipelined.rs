//! The pipelined search: promotions under the simulator's own rules, where the copy engine is one queue, slots are
//! few, transfers run ahead into the next round, and CPU and link share the DRAM.
//!
//! A sweep builds candidates: walk the round and let the link earn *credit* while processors work; a unit is promoted
//! when the credit pays for its transfer. The exchange rate of credit spans the candidates from timid to everything.
//! Then a local search toggles units while that helps; few units are tried in all combinations instead. All in a fixed
//! order: same task, same answer.

use super::paper::{Indicator, Side, TransferItem, schedule};
use super::task::{Answer, Method, Task};
use plan_format::evaluate::Scratch;
use plan_format::program::ItemKind;
use plan_format::schedule::Home;

/// How hard to search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Teams to try, the fastest first.
    pub teams: usize,
    /// Steps of the credit sweep, 1 to [`RATES`]`.len()`.
    pub rates: usize,
    /// Most evaluations of the local search.
    pub local_evaluations: usize,
    /// Where the local search starts: 1 = the best so far, 2 = also nothing, 3 = also everything promoted.
    pub starts: usize,
}

impl Effort {
    /// For the plan's own prediction.
    pub const FULL: Effort = Effort { teams: 3, rates: RATES.len(), local_evaluations: 600, starts: 3 };
    /// For the placements that did well.
    pub const NEAR: Effort = Effort { teams: 3, rates: RATES.len(), local_evaluations: 150, starts: 3 };
    /// For each of many regime cells.
    pub const CELL: Effort = Effort { teams: 2, rates: 7, local_evaluations: 24, starts: 1 };
    /// For comparing placements.
    pub const QUICK: Effort = Effort { teams: 1, rates: 5, local_evaluations: 0, starts: 1 };
}

/// Promotable items up to which a full search tries all sets: as much work as its local search, since the rounds are
/// short.
const EXHAUSTIVE_ITEMS: usize = 10;

/// Exchange rates of credit, the most useful first; infinity promotes everything.
const RATES: [f64; 13] = [1.0, f64::INFINITY, 0.8, 1.25, 0.6, 1.6, 2.5, 0.9, 1.1, 0.7, 2.0, 4.0, 0.45];

/// The best answer of {nothing promoted, Algorithm 2, pipelined search}, also tried: the `hints`.
pub fn solve(task: &Task<'_>, effort: Effort, hints: &[(usize, Vec<u32>)]) -> Answer {
    let mut search = Search { task, scratch: Scratch::default(), best: None };
    let teams = task.teams_by_speed();
    for &team in teams.iter().take(effort.teams.max(1)) {
        search.consider(team, Vec::new(), Method::Static);
    }
    let promotable = task.promotable();
    if !promotable.is_empty() {
        for &team in teams.iter().take(effort.teams.max(1)) {
            search.consider(team, paper(task, team), Method::PaperDp);
            search.sweep(team, &promotable, effort);
        }
        for (team, promoted) in hints {
            let legal: Vec<u32> = promoted.iter().copied().filter(|&i| task.is_promotable(i as usize)).collect();
            search.consider(*team, legal, Method::Pipelined);
        }
        match effort.local_evaluations >= Effort::FULL.local_evaluations && promotable.len() <= EXHAUSTIVE_ITEMS {
            true => search.try_all(&teams, &promotable),
            false => search.improve(&promotable, effort),
        }
    }
    // There is a team, and nothing promoted was considered.
    search.best.unwrap_or(Answer { team: 0, promoted: Vec::new(), round_us: f64::INFINITY, method: Method::Static })
}

/// The promotions that Algorithm 2 chooses with a team.
pub fn paper(task: &Task<'_>, team: usize) -> Vec<u32> {
    let ns = |us: f64| (us * 1000.0).round() as i64;
    let costs = task.costs();
    let item = |i: usize| {
        let crossing = |to_gpu: bool| {
            let cost = |p: usize| if to_gpu { costs.items[p].to_gpu_us } else { costs.items[p].to_cpu_us };
            let largest = task.problem.costs.inputs_of(i).iter().map(|p| cost(p.index())).fold(0.0, f32::max);
            ns(f64::from(largest) * task.load.link)
        };
        TransferItem {
            cpu_ns: ns(task.cpu_us(team, i)),
            gpu_ns: ns(task.gpu_us(i)),
            to_gpu_ns: crossing(true),
            to_cpu_ns: crossing(false),
            stream_ns: task.is_promotable(i).then(|| ns(task.stream_us(i))),
            home: if task.homes[i] == Home::Resident { Side::Gpu } else { Side::Cpu },
        }
    };
    let items: Vec<TransferItem> = (0..task.homes.len()).map(item).collect();
    let found = schedule(&items, Indicator::Corrected);
    (0..items.len()).filter(|&i| found.promoted[i]).map(|i| i as u32).collect()
}

/// Items that are promoted together or not at all.
type Unit = Vec<u32>;

struct Search<'t, 'a> {
    task: &'t Task<'a>,
    scratch: Scratch,
    best: Option<Answer>,
}

impl Search<'_, '_> {
    /// Scores an answer and keeps it if it is the best so far; the first of equals stays.
    fn consider(&mut self, team: usize, promoted: Vec<u32>, method: Method) -> f64 {
        if method != Method::Static && promoted.is_empty() {
            return f64::INFINITY;
        }
        let round_us = self.task.round_us(team, &promoted, &mut self.scratch);
        // A promotion must earn more than rounding: one part in a million.
        let better = self.best.as_ref().is_none_or(|best| round_us < best.round_us * (1.0 - 1e-6));
        if better {
            self.best = Some(Answer { team, promoted, round_us, method });
        }
        round_us
    }

    fn sweep(&mut self, team: usize, promotable: &[u32], effort: Effort) {
        let singles: Vec<Unit> = promotable.iter().map(|&item| vec![item]).collect();
        let runs = runs(self.task, promotable);
        let rates = &RATES[..effort.rates.clamp(1, RATES.len())];
        for units in [&runs, &singles] {
            for &rate in rates {
                self.consider(team, credit_walk(self.task, team, units, rate), Method::Pipelined);
            }
            if runs.len() == singles.len() {
                break;
            }
        }
        for kind in kinds(self.task, promotable) {
            let of_kind = |unit: &&Unit| self.task.problem.items[unit[0] as usize].kind == kind;
            let units: Vec<Unit> = singles.iter().filter(of_kind).cloned().collect();
            for &rate in rates.iter().take(rates.len() / 2) {
                self.consider(team, credit_walk(self.task, team, &units, rate), Method::Pipelined);
            }
        }
    }

    /// All sets of promotions with all teams.
    fn try_all(&mut self, teams: &[usize], promotable: &[u32]) {
        for bits in 1..1u32 << promotable.len() {
            let chosen = (0..promotable.len()).filter(|index| bits >> index & 1 == 1);
            let promoted: Vec<u32> = chosen.map(|index| promotable[index]).collect();
            for &team in teams {
                self.consider(team, promoted.clone(), Method::Pipelined);
            }
        }
    }

    /// Hill climbing from the best answer, then (a full search) from nothing and from everything promoted.
    fn improve(&mut self, promotable: &[u32], effort: Effort) {
        let Some(best) = self.best.clone() else { return };
        let mut moves: Vec<Unit> = runs(self.task, promotable);
        let runs = moves.len();
        moves.extend(promotable.iter().filter(|_| runs < promotable.len()).map(|&item| vec![item]));
        let starts = [best.promoted, Vec::new(), promotable.to_vec()];
        let count = effort.starts.clamp(1, starts.len());
        for start in starts.into_iter().take(count) {
            self.climb(best.team, start, &moves, effort.local_evaluations / count);
        }
    }

    /// Toggles units, then pairs of neighbouring ones, and keeps what helps until a pass changes nothing or the budget
    /// is spent.
    fn climb(&mut self, team: usize, start: Vec<u32>, moves: &[Unit], budget: usize) {
        // Neighbouring layers are alike: visiting units far apart first finds the useful kinds of move sooner.
        let stride = coprime_stride(moves.len());
        let mut current = start;
        let mut current_us = self.task.round_us(team, &current, &mut self.scratch);
        let mut spent = 0;
        let mut improved = true;
        while improved {
            improved = false;
            for step in 0..moves.len() * (1 + PAIR_REACH) {
                if spent >= budget {
                    return;
                }
                let (reach, first) = (step / moves.len(), step % moves.len() * stride % moves.len());
                let mut next = toggle(&current, &moves[first]);
                if reach > 0 {
                    next = toggle(&next, &moves[(first + reach) % moves.len()]);
                }
                spent += 1;
                let next_us = self.consider(team, next.clone(), Method::Pipelined);
                if next_us < current_us * (1.0 - 1e-6) {
                    (current, current_us, improved) = (next, next_us, true);
                }
            }
        }
    }
}

/// How far apart the two units of a pair move may lie.
const PAIR_REACH: usize = 3;

/// A step near the golden section of `len` that visits every index.
fn coprime_stride(len: usize) -> usize {
    let gcd = |mut a: usize, mut b: usize| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let wanted = len * 618 / 1000;
    (wanted.max(1)..).find(|&stride| gcd(stride, len.max(1)) == 1).unwrap_or(1)
}

/// Maximal runs of promotable items that follow each other in one layer: promoted together they save switches.
fn runs(task: &Task<'_>, promotable: &[u32]) -> Vec<Unit> {
    let mut runs: Vec<Unit> = Vec::new();
    for &item in promotable {
        let layer = task.problem.items[item as usize].layer;
        match runs.last_mut() {
            Some(run) if run.last() == Some(&(item - 1)) && task.problem.items[run[0] as usize].layer == layer => {
                run.push(item);
            }
            _ => runs.push(vec![item]),
        }
    }
    runs
}

/// Kinds among items, in order of first appearance.
fn kinds(task: &Task<'_>, promotable: &[u32]) -> Vec<ItemKind> {
    let mut kinds = Vec::new();
    for &item in promotable {
        let kind = task.problem.items[item as usize].kind;
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    if kinds.len() > 1 { kinds } else { Vec::new() }
}

/// Union without the unit's items if all are present, else with them.
fn toggle(promoted: &[u32], unit: &Unit) -> Vec<u32> {
    let present = unit.iter().all(|item| promoted.binary_search(item).is_ok());
    let mut result: Vec<u32> = promoted.iter().copied().filter(|item| !unit.contains(item)).collect();
    if !present {
        result.extend(unit);
        result.sort_unstable();
    }
    result
}

/// Walks a round twice, so that it starts as it ends, and promotes the units that credit pays for.
fn credit_walk(task: &Task<'_>, team: usize, units: &[Unit], rate: f64) -> Vec<u32> {
    let stream_us = |unit: &Unit| unit.iter().map(|&item| task.stream_us(item as usize)).sum::<f64>();
    // Slots bound how far transfers can run ahead of their readers.
    let longest_us = units.iter().flatten().map(|&item| task.stream_us(item as usize)).fold(0.0, f64::max);
    let cap_us = longest_us * f64::from(task.slots.count);
    let mut credit_us = 0.0;
    let mut promoted = Vec::new();
    for _ in 0..2 {
        promoted.clear();
        let mut next = 0;
        let mut item = 0;
        while item < task.homes.len() {
            let unit = units.get(next).filter(|unit| unit[0] as usize == item);
            let Some(unit) = unit else {
                let resident = task.homes[item] == Home::Resident;
                let spent_us = if resident { task.gpu_us(item) } else { task.cpu_us(team, item) };
                credit_us = (credit_us + spent_us * rate).min(cap_us.max(spent_us * rate));
                item += 1;
                continue;
            };
            next += 1;
            item += unit.len();
            let price_us = stream_us(unit);
            if rate == f64::INFINITY || credit_us >= price_us {
                promoted.extend(unit);
                credit_us = if rate == f64::INFINITY { 0.0 } else { credit_us - price_us };
            } else {
                let spent_us: f64 = unit.iter().map(|&i| task.cpu_us(team, i as usize)).sum();
                credit_us = (credit_us + spent_us * rate).min(cap_us.max(price_us));
            }
        }
    }
    promoted
}
