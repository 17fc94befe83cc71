//! What a plan does in a round under a load: the schedule that the runtime would choose, its latency, how busy each
//! resource is, and the timeline. It reads the plan alone: no profile, no model. Next: `events.rs`, `what_if.rs`.

use super::{AfterLast, Run, Timeline, simulate};
use plan_format::ScheduleId;
use plan_format::artifact::{Plan, Prediction};
use plan_format::costs::{CaseCosts, Load};
use plan_format::evaluate::{Horizon, Prepared};
use plan_format::schedule::{Phase, Schedule};
use plan_format::workload;
use std::borrow::Cow;

/// Which round.
#[derive(Clone, Copy, Debug)]
pub struct Round<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// The kind of round; one of the plan's.
    pub phase: Phase,
    /// Cached tokens.
    pub context_tokens: u32,
    /// How busy the machine is.
    pub load: Load,
}

/// What happens in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The fastest kept schedule under the load.
    pub schedule: ScheduleId,
    /// Latency of a round, gap to the next included.
    pub round_us: f64,
    /// What the schedule that is best without load would take under this load.
    pub unadapted_us: f64,
    /// Work of each resource under the schedule and load.
    pub busy: Busy,
    /// Memory floors of the unloaded round, if the plan states them.
    pub floors: Option<Prediction>,
    /// The context that was played.
    pub context_tokens: u32,
}

/// Work of a round in microseconds, contention left out: no overlap makes a round shorter than the largest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Busy {
    /// CPU team.
    pub cpu_us: f64,
    /// GPU.
    pub gpu_us: f64,
    /// Copy engine.
    pub link_us: f64,
}

impl Busy {
    /// The busiest resource's.
    pub fn most_us(&self) -> f64 {
        self.cpu_us.max(self.gpu_us).max(self.link_us)
    }
}

/// Why a round cannot be played.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RoundError {
    /// A plan without expectations.
    #[error("the plan holds no expected times: it was made without a device profile, so there is nothing to simulate")]
    NoTimes,
    /// The plan has no such rounds.
    #[error("the plan has no rounds of this kind; it has {known}")]
    NoPhase {
        /// Kinds that it has.
        known: String,
    },
}

impl<'a> Round<'a> {
    /// Plays the round.
    ///
    /// # Errors
    /// A plan without expected times or without such rounds.
    pub fn outcome(&self) -> Result<Outcome, RoundError> {
        let case = self.case()?;
        let found =
            workload::fastest(self.plan, &case, &self.load).zip(workload::fastest(self.plan, &case, &Load::IDLE));
        let ((id, round_us), (idle, _)) = found.ok_or_else(|| self.no_phase())?;
        let (schedule, idle) = (&self.plan.schedules[id.index()], &self.plan.schedules[idle.index()]);
        Ok(Outcome {
            schedule: id,
            round_us,
            unadapted_us: workload::round_us(self.plan, &case, idle, &self.load).unwrap_or(round_us),
            busy: self.prepare(&case, schedule).map_or(Busy { cpu_us: 0.0, gpu_us: 0.0, link_us: 0.0 }, |prepared| {
                self.busy(&case, schedule, &prepared)
            }),
            floors: self.floors(&case),
            context_tokens: case.context_tokens,
        })
    }

    /// The timeline of a schedule, and which of its rounds to look at: the last, when slots are no longer empty.
    pub fn timeline(&self, schedule: ScheduleId) -> Option<(Timeline, usize)> {
        let (rounds, after_last) = match self.horizon() {
            Horizon::Steady => (STEADY_ROUNDS, AfterLast::Continue),
            Horizon::Cold { rounds } => (rounds, AfterLast::Stop),
        };
        let case = self.case().ok()?;
        let run = Run {
            model: &self.plan.costs,
            case: &case,
            placement: &self.plan.placement,
            slots: &self.plan.slots,
            schedule: self.plan.schedules.get(schedule.index())?,
            load: self.load,
            rounds,
            after_last,
        };
        Some((simulate(&run)?, rounds as usize - 1))
    }

    /// Tokens of the round.
    pub fn tokens(&self) -> u32 {
        match self.phase {
            Phase::Decode => 1,
            Phase::Verify { tokens } => tokens,
            Phase::Prefill { ubatch_tokens } => ubatch_tokens,
        }
    }

    /// How many rounds count.
    pub fn horizon(&self) -> Horizon {
        workload::horizon(self.phase, self.plan.origin.options.prompt_tokens)
    }

    fn case(&self) -> Result<Cow<'a, CaseCosts>, RoundError> {
        let costs = &self.plan.costs;
        if costs.cases.is_empty() {
            return Err(RoundError::NoTimes);
        }
        costs.case_at(self.phase, self.context_tokens).ok_or_else(|| self.no_phase())
    }

    fn no_phase(&self) -> RoundError {
        let names: Vec<String> =
            self.plan.regimes.phases.iter().map(|&phase| crate::report::phase_name(phase)).collect();
        RoundError::NoPhase { known: names.join(", ") }
    }

    fn prepare(&self, case: &CaseCosts, schedule: &Schedule) -> Option<Prepared> {
        Prepared::new(&self.plan.costs, case, &self.plan.placement, &self.plan.slots, schedule).ok()
    }

    fn busy(&self, case: &CaseCosts, schedule: &Schedule, prepared: &Prepared) -> Busy {
        let (items, load) = (self.plan.costs.item_count(), &self.load);
        let cpu_us = &case.cpu_us[prepared.team * items..(prepared.team + 1) * items];
        let sum = |gpu: bool, time: &dyn Fn(usize) -> f32| -> f64 {
            (0..items).filter(|&item| prepared.on_gpu[item] == gpu).map(|item| f64::from(time(item))).sum()
        };
        let streams = prepared.streams.iter().map(|stream| f64::from(case.items[stream.item as usize].stream_us));
        Busy {
            cpu_us: sum(false, &|item| cpu_us[item]) * load.cpu_factor(schedule.cpu_threads),
            gpu_us: sum(true, &|item| case.items[item].gpu_us) * load.gpu,
            link_us: streams.sum::<f64>() * load.link,
        }
    }

    fn floors(&self, case: &CaseCosts) -> Option<Prediction> {
        let here = |p: &&Prediction| (p.phase, p.context_tokens) == (self.phase, case.context_tokens);
        self.plan.report.predictions.iter().find(here).copied()
    }
}

/// Rounds after which a decode loop repeats itself.
const STEADY_ROUNDS: u32 = 8;
