//! One question of dynamic transfer: a kind of round, a placement, slots and a load; and what an answer costs.

use super::slots::SlotShape;
use crate::cost::Problem;
use plan_format::costs::{CaseCosts, Load};
use plan_format::evaluate::{Horizon, Prepared, Scratch, evaluate};
use plan_format::schedule::{Home, HostMemory};
use plan_format::workload::horizon;

/// The question.
#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    /// Model on device.
    pub problem: &'a Problem,
    /// Index of the case in the cost model.
    pub case: usize,
    /// Where items live.
    pub homes: &'a [Home],
    /// Temporary memory.
    pub slots: SlotShape,
    /// How busy the machine is.
    pub load: Load,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Index of the CPU team.
    pub team: usize,
    /// Promoted items, ascending.
    pub promoted: Vec<u32>,
    /// Latency of a round under the task's load.
    pub round_us: f64,
    /// Which method found it.
    pub method: Method,
}

/// Ways to find promotions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Method {
    /// Nothing is promoted.
    Static,
    /// Algorithm 2.
    PaperDp,
    /// Search under the simulator's rules.
    Pipelined,
}

impl<'a> Task<'a> {
    /// Costs of the case.
    pub fn costs(&self) -> &'a CaseCosts {
        &self.problem.costs.cases[self.case]
    }

    /// How many rounds count.
    pub fn horizon(&self) -> Horizon {
        horizon(self.costs().phase, self.problem.demand.prompt_tokens)
    }

    /// Whether an item may be promoted: on the host, in memory that the copy engine reads, and not above a slot.
    pub fn is_promotable(&self, item: usize) -> bool {
        let bytes = self.problem.slot_bytes[self.case][item];
        let readable = matches!(self.homes[item], Home::Host(HostMemory::Pinned | HostMemory::Pageable));
        self.slots.count > 0 && readable && bytes > 0 && bytes <= self.slots.size_bytes
    }

    /// All items that may be promoted, ascending.
    pub fn promotable(&self) -> Vec<u32> {
        (0..self.homes.len()).filter(|&item| self.is_promotable(item)).map(|item| item as u32).collect()
    }

    /// The evaluator's form of an answer.
    pub fn prepare(&self, team: usize, promoted: &[u32]) -> Prepared {
        let mut on_gpu: Vec<bool> = self.homes.iter().map(|&home| home == Home::Resident).collect();
        promoted.iter().for_each(|&item| on_gpu[item as usize] = true);
        Prepared { team, on_gpu, streams: self.slots.streams(promoted) }
    }

    /// Latency of a round with these promotions.
    pub fn round_us(&self, team: usize, promoted: &[u32], scratch: &mut Scratch) -> f64 {
        let prepared = self.prepare(team, promoted);
        evaluate(&self.problem.costs, self.costs(), &prepared, &self.load, self.horizon(), scratch)
    }

    /// CPU time of an item with a team under the load.
    pub fn cpu_us(&self, team: usize, item: usize) -> f64 {
        let threads = self.problem.costs.teams[team].threads;
        f64::from(self.problem.cpu_us(self.case, team)[item]) * self.load.cpu_factor(threads)
    }

    /// GPU time of an item under the load.
    pub fn gpu_us(&self, item: usize) -> f64 {
        f64::from(self.costs().items[item].gpu_us) * self.load.gpu
    }

    /// Transfer time of an item under the load.
    pub fn stream_us(&self, item: usize) -> f64 {
        f64::from(self.costs().items[item].stream_us) * self.load.link
    }

    /// Teams by the time that they need for the host items, the best first. Equal times go to fewer threads.
    pub fn teams_by_speed(&self) -> Vec<usize> {
        let host = |item: &usize| self.homes[*item] != Home::Resident;
        let total_us = |team: usize| (0..self.homes.len()).filter(host).map(|i| self.cpu_us(team, i)).sum::<f64>();
        let mut teams: Vec<(f64, usize)> = (0..self.problem.costs.teams.len()).map(|t| (total_us(t), t)).collect();
        teams.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        teams.into_iter().map(|(_, team)| team).collect()
    }
}
