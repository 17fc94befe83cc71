//! Static placement as an integer linear program on the true graph: a crossing edge is paid once per producer and
//! destination. A cross-check of the dynamic program and the source of the bound that `compile` prints; what it finds
//! is never a plan by itself unless it beats the others under the simulator.
//!
//! minimise Σ t_i + Σ_p (to_gpu_p · e_p + to_cpu_p · f_p), with b_i = 1 for the GPU, e_p ≥ b_j − b_p and
//! f_p ≥ b_p − b_j for each reader j of p, and Σ bytes_i · b_i ≤ budget.
//! The relaxation is deterministic; the integer solution within a time limit is not, so it is printed, not stored.

use super::chain::{Allowed, MIB};
use good_lp::solvers::{ObjectiveDirection, SolutionStatus};
use good_lp::{Expression, ProblemVariables, Solution, SolverModel, Variable, WithInitialSolution, WithTimeLimit};
use good_lp::{constraint, microlp, variable};

/// One item of the graph.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphItem {
    /// GPU memory when resident.
    pub bytes: u64,
    /// Time on the CPU.
    pub cpu_ns: i64,
    /// Time on the GPU.
    pub gpu_ns: i64,
    /// Cost of bringing its output from the CPU to the GPU, once.
    pub output_to_gpu_ns: i64,
    /// Cost of bringing its output from the GPU to the CPU, once.
    pub output_to_cpu_ns: i64,
    /// Where it may live.
    pub allowed: Allowed,
    /// Items whose outputs it reads, all earlier.
    pub inputs: Vec<usize>,
}

/// Total time of an assignment on the graph, without overlap.
pub fn graph_ns(items: &[GraphItem], resident: &[bool]) -> i64 {
    let mut crossed = vec![false; items.len()];
    let mut total_ns = 0;
    for (i, item) in items.iter().enumerate() {
        total_ns += if resident[i] { item.gpu_ns } else { item.cpu_ns };
        for &p in &item.inputs {
            if resident[p] != resident[i] && !crossed[p] {
                crossed[p] = true;
                total_ns += if resident[i] { items[p].output_to_gpu_ns } else { items[p].output_to_cpu_ns };
            }
        }
    }
    total_ns
}

/// The best assignment by trying all; the oracle for small graphs. `None` when none fits.
pub fn brute_force(items: &[GraphItem], budget_bytes: u64) -> Option<i64> {
    let fits = |resident: &Vec<bool>| {
        let allowed = items.iter().zip(resident).all(|(i, g)| if *g { i.allowed.gpu() } else { i.allowed.cpu() });
        let bytes: u64 = items.iter().zip(resident).filter(|(_, g)| **g).map(|(i, _)| i.bytes).sum();
        allowed && bytes <= budget_bytes
    };
    let assignment = |bits: u64| (0..items.len()).map(|i| bits >> i & 1 == 1).collect::<Vec<bool>>();
    (0..1u64 << items.len()).map(assignment).filter(fits).map(|resident| graph_ns(items, &resident)).min()
}

/// What the solver found.
#[derive(Clone, Debug, PartialEq)]
pub struct Integer {
    /// Whether each item is resident.
    pub resident: Vec<bool>,
    /// Its total, recomputed from the assignment.
    pub total_ns: i64,
    /// Whether the solver proved that nothing is better.
    pub proof: Proof,
}

/// How far the search got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Optimal.
    Optimal,
    /// Stopped by the time limit.
    LimitReached,
}

/// Why there is no result.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum IlpError {
    /// Nothing fits the budget, or the time limit came before any solution.
    #[error("the placement ILP has no solution: {0}")]
    NoSolution(String),
}

struct Model {
    variables: ProblemVariables,
    resident: Vec<Variable>,
    /// Crossing variables of producers that have readers: to the GPU, to the CPU.
    crossings: Vec<Option<(Variable, Variable)>>,
    objective: Expression,
}

#[derive(Clone, Copy, PartialEq)]
enum Domain {
    Binary,
    Relaxed,
}

/// Nanoseconds as the solver's unit, microseconds: keeps coefficients near 1.
fn us(ns: i64) -> f64 {
    ns as f64 / 1000.0
}

fn model(items: &[GraphItem], domain: Domain) -> Model {
    let mut variables = ProblemVariables::new();
    let mut resident = Vec::with_capacity(items.len());
    let mut crossings = vec![None; items.len()];
    let mut objective = Expression::from(0.0);
    for item in items {
        let (low, high) = match item.allowed {
            Allowed::Either => (0.0, 1.0),
            Allowed::Cpu => (0.0, 0.0),
            Allowed::Gpu => (1.0, 1.0),
        };
        let range = variable().min(low).max(high);
        let b = variables.add(if domain == Domain::Binary { range.integer() } else { range });
        objective += us(item.cpu_ns) + us(item.gpu_ns - item.cpu_ns) * b;
        resident.push(b);
    }
    let read: Vec<usize> = items.iter().flat_map(|item| item.inputs.iter().copied()).collect();
    for producer in read {
        if crossings[producer].is_none() {
            let to_gpu = variables.add(variable().min(0.0).max(1.0));
            let to_cpu = variables.add(variable().min(0.0).max(1.0));
            objective += us(items[producer].output_to_gpu_ns) * to_gpu + us(items[producer].output_to_cpu_ns) * to_cpu;
            crossings[producer] = Some((to_gpu, to_cpu));
        }
    }
    Model { variables, resident, crossings, objective }
}

/// Adds the constraints to a fresh solver problem.
fn constrained(items: &[GraphItem], model: &Model, budget_bytes: u64) -> good_lp::solvers::microlp::MicroLpProblem {
    let variables = model.variables.clone();
    let mut problem = variables.optimise(ObjectiveDirection::Minimisation, model.objective.clone()).using(microlp);
    let mut memory = Expression::from(0.0);
    for (item, &b) in items.iter().zip(&model.resident) {
        memory += item.bytes as f64 / MIB as f64 * b;
        for &producer in &item.inputs {
            if let Some((to_gpu, to_cpu)) = model.crossings[producer] {
                let from = model.resident[producer];
                problem.add_constraint(constraint!(to_gpu >= b - from));
                problem.add_constraint(constraint!(to_cpu >= from - b));
            }
        }
    }
    problem.add_constraint(memory.leq(budget_bytes as f64 / MIB as f64));
    problem
}

/// Least total of the relaxation in nanoseconds, rounded down: no assignment is faster.
///
/// # Errors
/// When the items that must be resident do not fit.
pub fn lower_bound_ns(items: &[GraphItem], budget_bytes: u64) -> Result<i64, IlpError> {
    let model = model(items, Domain::Relaxed);
    let solution = constrained(items, &model, budget_bytes).solve().map_err(|e| IlpError::NoSolution(e.to_string()))?;
    // A part in a million is left to the solver's own tolerance.
    let objective_us = solution.eval(&model.objective);
    Ok((objective_us * 1000.0 * (1.0 - 1e-6)).floor() as i64)
}

/// The integer solution within `limit_s` seconds, started from `start` when given.
///
/// # Errors
/// When nothing fits, or nothing was found in time.
pub fn solve(
    items: &[GraphItem],
    budget_bytes: u64,
    limit_s: f64,
    start: Option<&[bool]>,
) -> Result<Integer, IlpError> {
    let model = model(items, Domain::Binary);
    let mut problem = constrained(items, &model, budget_bytes).with_time_limit(limit_s);
    if let Some(start) = start {
        let values = model.resident.iter().zip(start).map(|(&b, &gpu)| (b, f64::from(u8::from(gpu))));
        problem = problem.with_initial_solution(values);
    }
    let solution = problem.solve().map_err(|e| IlpError::NoSolution(e.to_string()))?;
    let resident: Vec<bool> = model.resident.iter().map(|&b| solution.value(b) > 0.5).collect();
    let proof = match solution.status() {
        SolutionStatus::Optimal => Proof::Optimal,
        SolutionStatus::GapLimit | SolutionStatus::TimeLimit => Proof::LimitReached,
    };
    Ok(Integer { total_ns: graph_ns(items, &resident), resident, proof })
}
