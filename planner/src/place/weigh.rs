//! From a priced problem to the chain and the graph that the placement solvers read: times of the stated workload.
//!
//! A round of decode counts once per generated token, a round of prefill once per ubatch of the prompt.

use super::chain::{Allowed, ChainItem};
use super::ilp::GraphItem;
use super::memory::{item_bytes, may_be_resident};
use crate::cost::Problem;
use plan_format::program::ItemKind;
use plan_format::schedule::Phase;

/// What a host item costs in prefill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostPrefill {
    /// Its CPU time, as the paper has it.
    Executed,
    /// Its transfer or GPU time, whichever is longer, if that beats the CPU: streaming will do it.
    Streamed,
}

/// Where caches may live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CachePolicy {
    /// Wherever the solver puts the attention item.
    Free,
    /// On the GPU.
    Gpu,
}

/// The cases that the workload is made of, with how often each round runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    /// Decode case in the middle of the generation, and its rounds.
    pub decode: (usize, f64),
    /// Prefill case of the prompt's mean context, and its rounds.
    pub prefill: (usize, f64),
}

impl Workload {
    /// The workload of a problem's demand with one of its ubatches. `None` if the problem has no such case.
    pub fn new(problem: &Problem, ubatch_tokens: u32) -> Option<Workload> {
        let demand = &problem.demand;
        let case = |phase| Some(problem.case(phase, demand.workload_context(phase)?)?.0);
        let (decode, prefill) = (case(Phase::Decode)?, case(Phase::Prefill { ubatch_tokens })?);
        Some(Workload {
            decode: (decode, f64::from(demand.generate_tokens)),
            prefill: (prefill, f64::from(demand.prompt_rounds(ubatch_tokens))),
        })
    }

    /// Both (case, rounds).
    pub fn parts(&self) -> [(usize, f64); 2] {
        [self.decode, self.prefill]
    }
}

/// Team whose CPU times static placement uses: the fastest for the whole model's decode.
pub fn reference_team(problem: &Problem, workload: &Workload) -> usize {
    let total_us = |team: usize| problem.cpu_us(workload.decode.0, team).iter().map(|&us| f64::from(us)).sum::<f64>();
    let teams = 0..problem.costs.teams.len();
    teams.min_by(|&a, &b| total_us(a).total_cmp(&total_us(b)).then(a.cmp(&b))).unwrap_or(0)
}

/// Weighted times of the items in nanoseconds.
struct Weighed {
    cpu_ns: Vec<i64>,
    gpu_ns: Vec<i64>,
    output_to_gpu_ns: Vec<i64>,
    output_to_cpu_ns: Vec<i64>,
}

fn weighed(problem: &Problem, workload: &Workload, host: HostPrefill) -> Weighed {
    let team = reference_team(problem, workload);
    let count = problem.items.len();
    let sum = |of: &dyn Fn(usize, usize) -> f32| -> Vec<i64> {
        let total =
            |item| workload.parts().iter().map(|&(case, n)| n * f64::from(of(case, item)) * 1000.0).sum::<f64>();
        (0..count).map(|item| total(item).round() as i64).collect()
    };
    let cpu = |case: usize, item: usize| {
        let executed = problem.cpu_us(case, team)[item];
        let cost = &problem.costs.cases[case].items[item];
        let streams = host == HostPrefill::Streamed && case == workload.prefill.0 && cost.stream_us > 0.0;
        if streams { executed.min(cost.stream_us.max(cost.gpu_us)) } else { executed }
    };
    let costs = |case: usize, item: usize| &problem.costs.cases[case].items[item];
    Weighed {
        cpu_ns: sum(&cpu),
        gpu_ns: sum(&|case, item| costs(case, item).gpu_us),
        output_to_gpu_ns: sum(&|case, item| costs(case, item).to_gpu_us),
        output_to_cpu_ns: sum(&|case, item| costs(case, item).to_cpu_us),
    }
}

fn allowed(kind: ItemKind, caches: CachePolicy) -> Allowed {
    match kind {
        kind if !may_be_resident(kind) => Allowed::Cpu,
        ItemKind::Attention | ItemKind::Recurrent if caches == CachePolicy::Gpu => Allowed::Gpu,
        _ => Allowed::Either,
    }
}

/// The chain. Entering an item costs what its largest input costs to move.
pub fn chain(
    problem: &Problem,
    ubatch: usize,
    workload: &Workload,
    host: HostPrefill,
    caches: CachePolicy,
) -> Vec<ChainItem> {
    let times = weighed(problem, workload, host);
    let entering = |item: usize, costs: &[i64]| {
        problem.costs.inputs_of(item).iter().map(|producer| costs[producer.index()]).max().unwrap_or(0)
    };
    let item = |i: usize| ChainItem {
        bytes: item_bytes(problem, &problem.ubatches[ubatch], i),
        cpu_ns: times.cpu_ns[i],
        gpu_ns: times.gpu_ns[i],
        to_gpu_ns: entering(i, &times.output_to_gpu_ns),
        to_cpu_ns: entering(i, &times.output_to_cpu_ns),
        allowed: allowed(problem.items[i].kind, caches),
    };
    (0..problem.items.len()).map(item).collect()
}

/// The graph with CPU times as the paper has them.
pub fn graph(problem: &Problem, ubatch: usize, workload: &Workload) -> Vec<GraphItem> {
    let times = weighed(problem, workload, HostPrefill::Executed);
    let item = |i: usize| GraphItem {
        bytes: item_bytes(problem, &problem.ubatches[ubatch], i),
        cpu_ns: times.cpu_ns[i],
        gpu_ns: times.gpu_ns[i],
        output_to_gpu_ns: times.output_to_gpu_ns[i],
        output_to_cpu_ns: times.output_to_cpu_ns[i],
        allowed: allowed(problem.items[i].kind, CachePolicy::Free),
        inputs: problem.costs.inputs_of(i).iter().map(|producer| producer.index()).collect(),
    };
    (0..problem.items.len()).map(item).collect()
}
