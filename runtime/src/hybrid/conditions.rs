//! A load as it was seen, how far it has moved, and what it means for teams that do not run; and what a schedule's own
//! contention looks like. Pure. Next: `adapt.rs`.

use super::sense::{Resource, apart};
use plan_format::costs::{CaseCosts, CostModel, Load, crowding};
use plan_format::evaluate::{Prepared, Scratch, busy};

/// How far the load must have moved until a schedule that failed is taken again.
pub const FORGOTTEN: f64 = 0.3;
/// Rounds for which it is remembered how slow a team was.
const KNOWN_ROUNDS: u64 = 500;
/// Cores that a team has at least: with none it would never end.
const CORES_LEAST: f64 = 0.25;
/// Part of a core by which a team may be larger than what is free.
const ABOUT_FREE: f64 = 0.5;

/// Why a schedule was left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cause {
    /// Times of a resource moved to this ratio of the planned ones.
    Moved(Resource, f64),
    /// So many cores are left to the team.
    Cores(f64),
    /// The schedule turned out slower than the one before: measured microseconds of a round, before and with it.
    Failed(f64, f64),
    /// A switch did not bring what it should: microseconds of a round as they should be, and measured.
    Surprise(f64, f64),
    /// Another range of context lengths began.
    Context,
}

/// A load as it was seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conditions {
    /// Measured over expected times, by resource.
    pub ratios: [f64; 3],
    /// Cores that a team of any size would have.
    pub free_cores: f64,
    /// What the running team's ratio owes to shared cores.
    pub crowding: f64,
}

/// How slow a team was when it ran.
#[derive(Clone, Copy, Debug)]
pub struct KnownTeam {
    /// Its size.
    pub threads: u16,
    /// Measured over expected times, without what shared cores explain.
    pub ratio: f64,
    /// The load then.
    pub load: Conditions,
    /// The round then.
    pub round: u64,
}

impl KnownTeam {
    /// Whether it tells of a team of `threads` in this round under this load.
    pub fn says(&self, threads: u16, round: u64, conditions: &Conditions) -> bool {
        self.threads == threads && round - self.round < KNOWN_ROUNDS && conditions.is_like(&self.load)
    }
}

impl Conditions {
    /// What has moved most since `earlier`, and how far.
    pub fn moved_since(&self, earlier: &Conditions) -> (Cause, f64) {
        let of_resource = |resource: Resource| {
            let (is, was) = (self.ratios[resource as usize], earlier.ratios[resource as usize]);
            (Cause::Moved(resource, is), apart(is, was))
        };
        let are_known = self.free_cores.is_finite() && earlier.free_cores.is_finite();
        let cores = if are_known { apart(self.free_cores.max(0.5), earlier.free_cores.max(0.5)) } else { 0.0 };
        let all = Resource::ALL.map(of_resource).into_iter().chain([(Cause::Cores(self.free_cores), cores)]);
        all.max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((Cause::Context, 0.0))
    }

    /// Whether this is the same load, as far as it does not show in the times of the running team.
    pub fn is_like(&self, earlier: &Conditions) -> bool {
        let own = Conditions { ratios: [earlier.ratios[0], self.ratios[1], self.ratios[2]], ..*self };
        own.moved_since(earlier).1 < FORGOTTEN
    }

    /// What a team of `threads` is slowed down by, where one of `present` threads runs: by the measured ratio if it is
    /// that one, or if it ran under this load; else by what is common to all teams and by the cores that it would not
    /// have. How much of the ratio is common nobody knows: the plan may be wrong of the present team alone, and where
    /// others take the memory's rate more threads get more of it. So of a larger team that would have its cores half
    /// of it is believed (in the logarithm); whether that was right is measured.
    pub fn load_of(&self, threads: u16, present: u16, known: Option<f64>) -> Load {
        let [cpu, gpu, link] = self.ratios;
        if threads == present {
            return Load { cpu, gpu, link, free_threads: f64::INFINITY };
        }
        let common = cpu / self.crowding;
        let has_cores = f64::from(threads) <= self.free_cores + ABOUT_FREE;
        let assumed = if threads > present && has_cores && common > 1.0 { common.sqrt() } else { common };
        Load { cpu: known.unwrap_or(assumed), gpu, link, free_threads: self.cores_left() }
    }

    fn cores_left(&self) -> f64 {
        self.free_cores.max(CORES_LEAST)
    }

    /// What shared cores slow a team of `threads` down by.
    pub fn crowding_of(&self, threads: u16) -> f64 {
        crowding(f64::from(threads), self.cores_left())
    }
}

/// How many times longer CPU work and transfers of a schedule take than alone, because both read the DRAM.
pub fn stretch(costs: &CostModel, case: &CaseCosts, prepared: &Prepared, scratch: &mut Scratch) -> [f64; 3] {
    let busy = busy(costs, case, prepared, &Load::IDLE, scratch);
    let items = costs.item_count();
    let cpu_us = &case.cpu_us[prepared.team * items..(prepared.team + 1) * items];
    let on_cpu = cpu_us.iter().zip(&prepared.on_gpu).filter(|(_, on_gpu)| !**on_gpu);
    let alone_us: f64 = on_cpu.map(|(us, _)| f64::from(*us)).sum();
    let streamed_us: f64 = prepared.streams.iter().map(|s| f64::from(case.items[s.item as usize].stream_us)).sum();
    let of = |together_us: f64, alone_us: f64| if alone_us > 0.0 { (together_us / alone_us).max(1.0) } else { 1.0 };
    [of(busy.cpu_us, alone_us), 1.0, of(busy.link_us, streamed_us)]
}
