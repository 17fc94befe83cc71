//! Load-aware choice of schedules (Algorithm 3 of the paper): measured over expected times per resource, smoothed; when
//! one has moved far enough since the last look and enough time has passed, the kept schedules of the phase are scored
//! with the plan's evaluator under the measured ratios, and the best is taken at the token boundary.
//!
//! Invariants: all times come from the machine's clock; a resource that a round did not use drifts back to 1; a
//! schedule is left only for one that is better by more than noise. Not here: measuring (`driver.rs`, `marks.rs`).
//! Next: `choose.rs`.

use device::clock::Nanos;
use plan_format::artifact::Plan;
use plan_format::costs::{CostModel, Load};
use plan_format::evaluate::{Horizon, Prepared, Scratch, evaluate};
use plan_format::schedule::Phase;
use std::fmt;

/// How far a ratio must have moved since the last look, relative to what it was.
const MOVED_LEAST: f64 = 0.15;
/// Rounds between two looks at least, in times per output token.
const ROUNDS_BETWEEN: f64 = 5.0;
/// Weight of a new sample in the smoothed ratio.
const NEW_WEIGHT: f64 = 0.3;
/// What a round leaves of the deviation of a resource that it did not use.
const DRIFT: f64 = 0.97;
/// How much better another schedule must be expected to be.
const GAIN_LEAST: f64 = 0.02;
/// Switches that are remembered for people.
const LOG_MOST: usize = 256;

/// A resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// The host's cores.
    Cpu,
    /// The GPU's multiprocessors.
    Gpu,
    /// Transfers of weights.
    Link,
}

impl Resource {
    const ALL: [Resource; 3] = [Resource::Cpu, Resource::Gpu, Resource::Link];

    fn name(self) -> &'static str {
        match self {
            Resource::Cpu => "CPU",
            Resource::Gpu => "GPU",
            Resource::Link => "link",
        }
    }
}

/// Times that a round took of a resource, and what the plan expects of the same work.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// By [`Resource`]: measured and expected microseconds; both 0 for a resource that was not used or not timed.
    pub spent_us: [(f64, f64); 3],
    /// Part of the team's CPU time that others took, 0 to 1.
    pub taken_share: f64,
}

impl Sample {
    /// Adds work.
    pub fn add(&mut self, resource: Resource, measured_us: f64, expected_us: f64) {
        let (measured, expected) = &mut self.spent_us[resource as usize];
        *measured += measured_us;
        *expected += expected_us;
    }
}

/// A switch and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Switch {
    /// Tokens of context when it happened.
    pub context_tokens: u32,
    /// Schedule before.
    pub from: usize,
    /// Schedule after.
    pub to: usize,
    /// What had moved most.
    pub cause: Resource,
    /// Its measured times over the expected ones.
    pub ratio: f64,
    /// Expected times of a round under the measured ratios, before and after.
    pub expected_us: (f64, f64),
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Switch { context_tokens, from, to, cause, ratio, expected_us: (before, after) } = self;
        let cause = cause.name();
        write!(
            f,
            "at {context_tokens} tokens: schedule {from} -> {to}, since the {cause} takes {ratio:.2} times as long as \
             planned; a round should take {after:.0} us instead of {before:.0}"
        )
    }
}

/// See the module text. One phase's choices do not touch another's.
pub struct Adaptive {
    costs: CostModel,
    schedules: Vec<Kept>,
    ratios: [f64; 3],
    /// Part of the team's CPU time that others take, smoothed.
    taken_share: f64,
    /// Threads of the team that ran last.
    team_threads: f64,
    /// Per phase: what was chosen last, when, and the ratios then.
    chosen: Vec<(Phase, Chosen)>,
    scratch: Scratch,
    log: Vec<Switch>,
}

/// A schedule of the plan.
struct Kept {
    phase: Phase,
    cpu_threads: u16,
    prepared: Prepared,
}

/// What a phase runs.
#[derive(Clone, Copy)]
struct Chosen {
    schedule: usize,
    looked_at: Nanos,
    ratios: [f64; 3],
    /// Schedule that the regime map names for no load; another one means another context bucket.
    base: usize,
}

impl Adaptive {
    /// For a plan with costs; `None` where there is nothing to choose.
    pub fn new(plan: &Plan) -> Option<Self> {
        let several = plan
            .schedules
            .iter()
            .enumerate()
            .any(|(index, schedule)| plan.schedules[..index].iter().any(|earlier| earlier.phase == schedule.phase));
        if !several || plan.costs.cases.is_empty() {
            return None;
        }
        let kept = plan.schedules.iter().map(|schedule| {
            let case = plan.costs.case_index(schedule.phase, 1)?;
            let case = &plan.costs.cases[case];
            let prepared = Prepared::new(&plan.costs, case, &plan.placement, &plan.slots, schedule).ok()?;
            Some(Kept { phase: schedule.phase, cpu_threads: schedule.cpu_threads, prepared })
        });
        Some(Adaptive {
            costs: plan.costs.clone(),
            schedules: kept.collect::<Option<Vec<_>>>()?,
            ratios: [1.0; 3],
            taken_share: 0.0,
            team_threads: f64::INFINITY,
            chosen: Vec::new(),
            scratch: Scratch::default(),
            log: Vec::new(),
        })
    }

    /// Takes in what a round measured.
    pub fn observe(&mut self, sample: &Sample) {
        self.taken_share += NEW_WEIGHT * (sample.taken_share.clamp(0.0, 0.95) - self.taken_share);
        for (ratio, (measured, expected)) in self.ratios.iter_mut().zip(sample.spent_us) {
            *ratio = match measured > 0.0 && expected > 0.0 {
                true => *ratio + NEW_WEIGHT * (measured / expected - *ratio),
                false => 1.0 + DRIFT * (*ratio - 1.0),
            };
        }
    }

    /// The schedule of the next round, which is `base` without load. `now` is the machine's time.
    pub fn choose(&mut self, base: usize, context_tokens: u32, now: Nanos) -> usize {
        let schedule = self.decide(base, context_tokens, now);
        self.team_threads = f64::from(self.schedules[schedule].cpu_threads);
        schedule
    }

    fn decide(&mut self, base: usize, context_tokens: u32, now: Nanos) -> usize {
        let phase = self.schedules[base].phase;
        let index = self.chosen.iter().position(|(known, _)| *known == phase);
        let Some(index) = index else {
            self.chosen.push((phase, Chosen { schedule: base, looked_at: now, ratios: [1.0; 3], base }));
            return base;
        };
        let chosen = self.chosen[index].1;
        let ratios = self.ratios;
        let moved = |resource: &Resource| {
            let (is, was) = (ratios[*resource as usize], chosen.ratios[*resource as usize]);
            (is / was).max(was / is) - 1.0
        };
        let most = Resource::ALL.into_iter().max_by(|a, b| moved(a).total_cmp(&moved(b))).unwrap_or(Resource::Cpu);
        let another_bucket = chosen.base != base;
        if moved(&most) < MOVED_LEAST && !another_bucket {
            return chosen.schedule;
        }
        let Some(case) = self.costs.case_index(phase, context_tokens) else { return chosen.schedule };
        let expected_us = self.score(case, chosen.schedule);
        let waited_us = now.since(chosen.looked_at).as_micros_f64();
        if waited_us < ROUNDS_BETWEEN * expected_us && !another_bucket {
            return chosen.schedule;
        }
        let mut best = (chosen.schedule, expected_us);
        for schedule in 0..self.schedules.len() {
            if self.schedules[schedule].phase == phase && schedule != chosen.schedule {
                let score = self.score(case, schedule);
                let needed = if best.0 == chosen.schedule { expected_us * (1.0 - GAIN_LEAST) } else { best.1 };
                if score < needed {
                    best = (schedule, score);
                }
            }
        }
        self.chosen[index].1 = Chosen { schedule: best.0, looked_at: now, ratios: self.ratios, base };
        if best.0 != chosen.schedule && self.log.len() < LOG_MOST {
            let (from, to, ratio) = (chosen.schedule, best.0, self.ratios[most as usize]);
            self.log.push(Switch { context_tokens, from, to, cause: most, ratio, expected_us: (expected_us, best.1) });
        }
        best.0
    }

    /// Expected time of a round under the measured ratios.
    fn score(&mut self, case: usize, schedule: usize) -> f64 {
        let kept = &self.schedules[schedule];
        let case = &self.costs.cases[case];
        let [cpu, gpu, link] = self.ratios;
        // What others take of the team that runs is in the measured ratio; a team of another size meets it anew.
        let kept_share = 1.0 - self.taken_share;
        let free_threads = self.team_threads * kept_share;
        let load = Load { cpu: (cpu * kept_share).max(1.0), gpu, link, free_threads };
        evaluate(&self.costs, case, &kept.prepared, &load, Horizon::Steady, &mut self.scratch)
    }

    /// Measured over expected times of CPU, GPU and link.
    pub fn ratios(&self) -> [f64; 3] {
        self.ratios
    }

    /// Switches so far, the first few hundred.
    pub fn log(&self) -> &[Switch] {
        &self.log
    }
}
