//! Are the paper's speed-ups within the floors of this machine? The arithmetic, for one model at one ceiling.
//!
//! Two floors that no schedule of *any* placement under the ceiling beats: what does not fit the GPU crosses the DRAM
//! every round, and no item is faster than on its faster processor. Pure; `contribution.rs` draws, `page.rs` prints.

use crate::cost::Problem;
use crate::place::ablation::{Reach, Row, ablation, reach};
use crate::place::memory::{fixed_bytes, item_bytes, may_be_resident};
use crate::place::search::{Decision, Query, whole_layers};
use crate::place::weigh::Workload;
use crate::profile::Profile;

/// The paper's best decode speed-up over whole layers, on its laptop.
pub const PAPER_DECODE: f64 = 3.29;
/// Its best prefill speed-up.
pub const PAPER_PREFILL: f64 = 1.94;

/// What no placement and no schedule under a ceiling can beat.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AnyFloor {
    /// Weights and caches that a round reads.
    pub read_bytes: f64,
    /// Those that are read from host memory even when the GPU holds what is read most per byte of memory.
    pub host_bytes: f64,
    /// They, at the full read rate of the DRAM.
    pub memory_us: f64,
    /// The longest chain of items, each on its faster processor.
    pub chain_us: f64,
}

impl AnyFloor {
    /// The larger of both.
    pub fn us(&self) -> f64 {
        self.memory_us.max(self.chain_us)
    }
}

/// One phase: measured against whole layers, and against the floors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Claim {
    /// Simulated round of the whole-layer plan.
    pub base_us: f64,
    /// Tokens of that round.
    pub base_tokens: u32,
    /// Simulated round of this plan.
    pub plan_us: f64,
    /// Tokens of that round.
    pub plan_tokens: u32,
    /// Speed-up per token, and the most that this placement could reach.
    pub reach: Reach,
    /// Floors of a round of the plan's size under any placement.
    pub floor: AnyFloor,
    /// The paper's figure.
    pub paper: f64,
}

impl Claim {
    /// Whole-layer time of a round of the plan's size.
    pub fn base_for_plan_us(&self) -> f64 {
        self.base_us * f64::from(self.plan_tokens) / f64::from(self.base_tokens.max(1))
    }

    /// The most that any placement could reach over the whole-layer plan.
    pub fn most_any(&self) -> f64 {
        self.base_for_plan_us() / self.floor.us()
    }

    /// Round that the paper's figure asks for.
    pub fn asked_us(&self) -> f64 {
        self.base_for_plan_us() / self.paper
    }

    /// Whether the paper's figure is possible here.
    pub fn verdict(&self) -> Verdict {
        if self.reach.speedup >= self.paper {
            Verdict::Reached
        } else if self.most_any() >= self.paper {
            Verdict::WithinFloors
        } else {
            Verdict::BeyondFloors
        }
    }
}

/// Where a claimed speed-up lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The simulated plan is that fast.
    Reached,
    /// No floor forbids it; the simulated plan does not reach it.
    WithinFloors,
    /// A floor forbids it on this machine.
    BeyondFloors,
}

impl Verdict {
    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Reached => "reached",
            Verdict::WithinFloors => "within the floors",
            Verdict::BeyondFloors => "beyond the floors",
        }
    }
}

/// The comparison with whole layers: Figure 15's rows and both claims.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Base, placement, coordination, transfer.
    pub rows: [Row; 4],
    /// Name of the whole-layer split: `last 21 layers`.
    pub base: String,
    /// The workload that was planned for, in whole layers and in this plan.
    pub workload_us: [f64; 2],
    /// Tokens that it writes.
    pub generate_tokens: u32,
    /// Decode.
    pub decode: Claim,
    /// Prefill.
    pub prefill: Claim,
}

/// Compares a decision with the best whole-layer split of any ubatch. `None` without a GPU budget.
pub fn compare(query: &Query<'_>, decision: &Decision) -> Option<Comparison> {
    let gpu = query.profile.gpu.as_ref().filter(|_| query.budget.vram_bytes > 0)?;
    let problem = query.problem;
    let mut best: Option<(f64, String, [Row; 4])> = None;
    for ubatch in 0..problem.ubatches.len() {
        let Some(whole) = whole_layers(query, ubatch) else { continue };
        let Some(rows) = ablation(query, decision, &whole) else { continue };
        let total_us = workload_us(problem, &rows[0]);
        if best.as_ref().is_none_or(|(known_us, ..)| total_us < *known_us) {
            best = Some((total_us, whole.candidate.origin, rows));
        }
    }
    let (_, base, rows) = best?;
    let [decode_reach, prefill_reach] = reach(query, decision, &rows)?;
    let ubatch = &problem.ubatches[decision.best.candidate.ubatch];
    let workload = Workload::new(problem, ubatch.ubatch_tokens)?;
    // Smaller rounds leave more room: any placement may have the most.
    let smallest = problem.ubatches.iter().min_by_key(|ubatch| fixed_bytes(problem, gpu, ubatch))?;
    let room_bytes = query.budget.vram_bytes.saturating_sub(fixed_bytes(problem, gpu, smallest));
    let bytes: Vec<u64> = (0..problem.items.len()).map(|item| item_bytes(problem, smallest, item)).collect();
    // Decode rounds may use what prefill needs for its activations.
    let spare_bytes = smallest.work_bytes().saturating_sub(smallest.few_bytes);
    let decode_room_bytes = room_bytes + spare_bytes;
    let floor = |case, room_bytes| any_floor(problem, query.profile, case, &bytes, room_bytes);
    let decode_floor = floor(workload.decode.0, decode_room_bytes);
    let claim = |first: f64, last: f64, tokens: [u32; 2], reach: Reach, floor, paper| {
        let [base_tokens, plan_tokens] = tokens;
        let claim = Claim { base_us: first, base_tokens, plan_us: last, plan_tokens, reach, floor, paper };
        // What holds for any placement holds for this one.
        Claim { reach: Reach { most: reach.most.min(claim.most_any()), ..reach }, ..claim }
    };
    let ([first, ..], [.., last]) = (&rows, &rows);
    let tokens = [first.ubatch_tokens, last.ubatch_tokens];
    Some(Comparison {
        decode: claim(first.decode_us, last.decode_us, [1, 1], decode_reach, decode_floor, PAPER_DECODE),
        prefill: claim(
            first.prefill_us,
            last.prefill_us,
            tokens,
            prefill_reach,
            floor(workload.prefill.0, room_bytes),
            PAPER_PREFILL,
        ),
        workload_us: [workload_us(problem, first), workload_us(problem, last) + decision.best.choice.held.load_us],
        generate_tokens: problem.demand.generate_tokens,
        base,
        rows,
    })
}

fn workload_us(problem: &Problem, row: &Row) -> f64 {
    let rounds = f64::from(problem.demand.prompt_rounds(row.ubatch_tokens));
    f64::from(problem.demand.generate_tokens) * row.decode_us + rounds * row.prefill_us
}

/// The floors of a case when `room_bytes` of GPU memory hold items of `bytes`.
fn any_floor(problem: &Problem, profile: &Profile, case: usize, bytes: &[u64], room_bytes: u64) -> AnyFloor {
    let read = &problem.read_bytes[case];
    let read_bytes: f64 = read.iter().map(|&bytes| bytes as f64).sum();
    // Fractional knapsack: by what residency saves per byte. Items are taken as divisible, so this is a bound.
    let mut order: Vec<usize> =
        (0..read.len()).filter(|&i| may_be_resident(problem.items[i].kind) && read[i] > 0 && bytes[i] > 0).collect();
    let density = |item: usize| read[item] as f64 / bytes[item] as f64;
    order.sort_by(|&a, &b| density(b).total_cmp(&density(a)).then(a.cmp(&b)));
    let (mut room, mut host_bytes) = (room_bytes as f64, read_bytes);
    for item in order {
        let share = (room / bytes[item] as f64).min(1.0);
        room -= share * bytes[item] as f64;
        host_bytes -= share * read[item] as f64;
    }
    // A read without memory of its own (rows that are looked up) is not held against the machine.
    let looked_up: f64 = (0..read.len()).filter(|&i| bytes[i] == 0).map(|i| read[i] as f64).sum();
    let host_bytes = (host_bytes - looked_up).max(0.0);
    AnyFloor {
        read_bytes,
        host_bytes,
        memory_us: host_bytes / profile.memory.read_gb_per_s / 1000.0,
        chain_us: chain_us(problem, case),
    }
}

/// The longest path through the graph when every item runs on its faster processor, with its best team.
fn chain_us(problem: &Problem, case: usize) -> f64 {
    let teams = problem.costs.teams.len();
    let mut end_us = vec![0.0f64; problem.items.len()];
    for item in 0..problem.items.len() {
        let cpu = (0..teams).map(|team| problem.cpu_us(case, team)[item]).fold(f32::INFINITY, f32::min);
        let gpu_us = problem.costs.cases[case].items[item].gpu_us;
        let fastest = if may_be_resident(problem.items[item].kind) && gpu_us > 0.0 { cpu.min(gpu_us) } else { cpu };
        let ready = problem.costs.inputs_of(item).iter().map(|p| end_us[p.index()]).fold(0.0, f64::max);
        end_us[item] = ready + f64::from(fastest);
    }
    end_us.into_iter().fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{Demand, ItemFacts};
    use crate::profile::{machines::MACHINES, synthetic};
    use plan_format::artifact::KvType;
    use plan_format::costs::{CaseCosts, CostModel, ItemCost, Team};
    use plan_format::program::ItemKind;
    use plan_format::schedule::Phase;

    /// A chain of embedding, a dense item, experts of which a tenth is read, and a head.
    fn chain_of_four() -> Problem {
        let kinds = [ItemKind::Embedding, ItemKind::FfnInput, ItemKind::ExpertsInput, ItemKind::Head];
        let item = |(index, kind): (usize, ItemKind)| ItemFacts {
            name: format!("item {index}"),
            kind,
            layer: None,
            weight_bytes: [0, 100, 1000, 200][index] * 1_000_000,
            output_bytes_per_token: 4,
        };
        let cost = |gpu_us| ItemCost { gpu_us, ..ItemCost::default() };
        let case = CaseCosts {
            phase: Phase::Decode,
            context_tokens: 1,
            gap_us: 0.0,
            cpu_us: vec![1.0, 50.0, 40.0, 90.0, 2.0, 30.0, 45.0, 80.0],
            items: vec![cost(0.5), cost(10.0), cost(60.0), cost(20.0)],
        };
        let team = |threads| Team { threads, cpu_slowdown_while_link: 1.0, link_slowdown_while_cpu: 1.0 };
        Problem {
            items: kinds.into_iter().enumerate().map(item).collect(),
            costs: CostModel {
                teams: vec![team(1), team(2)],
                input_start: vec![0, 0, 1, 2, 3],
                inputs: (0..3).map(plan_format::ItemId).collect(),
                cases: vec![case],
            },
            slot_bytes: vec![vec![0; 4]],
            read_bytes: vec![vec![0, 100_000_000, 100_000_000, 200_000_000]],
            ubatches: Vec::new(),
            small_weight_bytes: 0,
            demand: Demand {
                context_tokens: 1,
                kv_type: KvType::F16,
                prompt_tokens: 1,
                generate_tokens: 1,
                output_tokens: 1,
                ubatch_tokens: Vec::new(),
            },
        }
    }

    #[test]
    fn floors_of_any_placement_are_those_of_a_fractional_knapsack_and_the_fastest_chain() {
        let mut profile = synthetic::profile(&MACHINES[0]);
        profile.memory.read_gb_per_s = 40.0;
        let problem = chain_of_four();
        let bytes = [0, 100_000_000, 1_000_000_000, 200_000_000];
        // Room, and what is left on the host: what is read as a whole goes first, then experts a tenth at a time.
        for (room, host) in [(0, 400), (100, 300), (300, 100), (800, 50), (1300, 0), (9000, 0)] {
            let floor = any_floor(&problem, &profile, 0, &bytes, room * 1_000_000);
            assert!((floor.host_bytes - f64::from(host) * 1e6).abs() < 1.0, "{room} MB: {floor:?}");
            assert!((floor.memory_us - f64::from(host) * 25.0).abs() < 1e-3, "{room} MB: {floor:?}");
            assert_eq!(floor.read_bytes, 4e8);
            // Embedding on the CPU with the better team, dense and head on the GPU, experts on the CPU.
            assert_eq!(floor.chain_us, 1.0 + 10.0 + 40.0 + 20.0);
        }
    }

    #[test]
    fn verdicts_compare_rounds_of_equal_size() {
        let floor = AnyFloor { read_bytes: 1.0, host_bytes: 1.0, memory_us: 300.0, chain_us: 100.0 };
        let reach = |speedup| Reach { speedup, most: 9.0 };
        let claim = |plan_us: f64, paper| Claim {
            base_us: 500.0,
            base_tokens: 256,
            plan_us,
            plan_tokens: 512,
            reach: reach(1000.0 / plan_us),
            floor,
            paper,
        };
        let case = claim(400.0, 2.0);
        assert_eq!((case.base_for_plan_us(), case.asked_us(), case.floor.us()), (1000.0, 500.0, 300.0));
        assert!((case.most_any() - 10.0 / 3.0).abs() < 1e-12);
        assert_eq!(case.verdict(), Verdict::Reached);
        assert_eq!(claim(400.0, 3.0).verdict(), Verdict::WithinFloors);
        assert_eq!(claim(400.0, 3.4).verdict(), Verdict::BeyondFloors);
    }
}
