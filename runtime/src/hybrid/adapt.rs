//! Load-aware choice of schedules (Algorithm 3 of the paper): when a resource's measured times have moved far enough
//! from where they were at the last look, and enough time has passed, the kept schedules of the phase are scored with
//! the plan's evaluator under the measured ratios, a few in each round, and the best is taken at the token boundary.
//!
//! Invariants: all times come from the machine's clock; a schedule is left only for one that is better by more than
//! noise; one that turned out slower than what it replaced is left again, and not taken until the load changes; what
//! was measured under a load counts more than what the plan says. A look allocates nothing. Not here: measuring
//! (`driver.rs`, `marks.rs`), what samples mean (`sense.rs`), what a load means for other teams (`conditions.rs`), what
//! was tried (`tries.rs`). Next: `select.rs`.

pub use super::sense::{Cores, Resource, Sample};

pub use super::conditions::Cause;
pub use super::switch::Switch;

use super::conditions::{Conditions, stretch};
use super::sense::{Senses, Window};
use super::tries::Tries;
use device::clock::Nanos;
use plan_format::artifact::Plan;
use plan_format::costs::{CostModel, Load};
use plan_format::evaluate::{Horizon, Prepared, Scratch, evaluate};
use plan_format::schedule::Phase;

/// How far a ratio must have moved since the last look, relative to what it was.
const MOVED_LEAST: f64 = 0.15;
/// Rounds between two looks at least, in times per output token.
const ROUNDS_BETWEEN: f64 = 5.0;
/// How much better another schedule must be expected to be.
const GAIN_LEAST: f64 = 0.03;
/// Schedules that are scored between two rounds: a few hundred microseconds.
const SCORED_AT_ONCE: usize = 12;
/// Rounds by which a look is put off at most.
const POSTPONED_MOST: u32 = 12;
/// Rounds after which a switch is judged by what it brought, how much slower than before is a failure, and how much
/// slower than it should be is a surprise: what was learnt may speak for another.
const JUDGED_AFTER: u32 = 8;
const WORSE: f64 = 1.08;
const SURPRISE: f64 = 1.1;
/// Rounds after which another schedule than that of no load is looked at once more, as if nothing had been tried: the
/// load may have ended while a switch was judged, when nobody could tell. Each time four times as many.
const DOUBTED_AFTER: u64 = 64;
/// Switches that are remembered for people.
const LOG_MOST: usize = 256;
/// Looks under one load that follow failures and surprises.
const LOOKS_MOST: u32 = 4;

/// By resource: work that takes less than this share of a round, as expected and as measured, says nothing about load.
/// Transfers are timed by themselves, and a probe is a small one.
const LEAST_SHARE: [f64; 3] = [0.05, 0.05, 0.002];

/// Whether a schedule's own contention for the DRAM shows in what is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contention {
    /// It does: a real machine.
    Felt,
    /// It does not: the simulated machine plays none.
    Absent,
}

/// See the module text. One phase's choices do not touch another's.
pub struct Adaptive {
    costs: CostModel,
    contention: Contention,
    schedules: Vec<Kept>,
    /// Threads of the largest team.
    threads_most: f64,
    /// Per phase: what was chosen last.
    chosen: Vec<(Phase, Chosen)>,
    /// The last round.
    running: Option<Running>,
    scratch: Scratch,
    log: Vec<Switch>,
}

/// A schedule of the plan.
struct Kept {
    phase: Phase,
    cpu_threads: u16,
    prepared: Prepared,
}

/// What ran last.
#[derive(Clone, Copy)]
struct Running {
    /// Its phase, by place in the list.
    phase: usize,
    schedule: usize,
    case: usize,
    /// What its own contention makes of expected times.
    stretch: [f64; 3],
    /// Expected times by resource that are too short to say anything.
    least_us: [f64; 3],
}

/// What a phase runs.
struct Chosen {
    schedule: usize,
    /// Its rounds only: how far a plan is off may differ from phase to phase.
    senses: Senses,
    /// Schedule that the regime map names for no load; another one means another context bucket.
    base: usize,
    looked_at: Nanos,
    /// The load at the last look.
    anchor: Conditions,
    look: Option<Look>,
    /// Rounds by which a look has been put off because samples were still changing.
    postponed: u32,
    /// The switch that is still to be judged.
    trial: Option<Trial>,
    /// What ran and was left under this load.
    tries: Tries,
    /// The round in which what was tried is doubted, and how many later again.
    doubt: (u64, u64),
    rounds: u64,
    /// Times of rounds under this schedule.
    round_us: Window,
    began: Option<Nanos>,
}

/// Scoring under way.
#[derive(Clone, Copy)]
struct Look {
    conditions: Conditions,
    cause: Cause,
    next: usize,
    present_us: f64,
    /// Expected over measured time of the schedule that runs, 0 = it was not measured: what was measured of others
    /// counts so much.
    scale: f64,
    best: (usize, f64),
}

/// A switch that is still to be judged.
#[derive(Clone, Copy)]
struct Trial {
    from: usize,
    /// Measured time of a round before, and what it should be now.
    before_us: f64,
    hoped_us: f64,
    rounds: u32,
    /// The load as it was seen before: what another team sees of the same load differs.
    seen: Conditions,
    cause: Cause,
}

impl Adaptive {
    /// For a plan with costs; `None` where there is nothing to choose.
    pub fn new(plan: &Plan, contention: Contention) -> Option<Self> {
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
            contention,
            threads_most: plan.schedules.iter().map(|schedule| f64::from(schedule.cpu_threads)).fold(1.0, f64::max),
            schedules: kept.collect::<Option<Vec<_>>>()?,
            chosen: Vec::new(),
            running: None,
            scratch: Scratch::default(),
            log: Vec::with_capacity(LOG_MOST),
        })
    }

    /// Takes in what the round that was chosen last measured.
    pub fn observe(&mut self, sample: &Sample) {
        if let Some(Running { phase, stretch, least_us, .. }) = self.running {
            self.chosen[phase].1.senses.observe(sample, stretch, least_us);
        }
    }

    /// What the last round's phase has seen.
    fn senses(&self) -> Option<&Senses> {
        self.running.map(|running| &self.chosen[running.phase].1.senses)
    }

    /// Whether the next rounds should be timed: something may have changed.
    pub fn is_curious(&self) -> bool {
        self.senses().is_some_and(Senses::is_curious)
    }

    /// The schedule of the next round, which is `base` without load. `now` is the machine's time.
    pub fn choose(&mut self, base: usize, context_tokens: u32, now: Nanos) -> usize {
        let phase = self.schedules[base].phase;
        let Some(case) = self.costs.case_index(phase, context_tokens) else { return base };
        let index = self.chosen.iter().position(|(known, _)| *known == phase).unwrap_or_else(|| {
            let anchor = Conditions { ratios: [1.0; 3], free_cores: self.threads_most, crowding: 1.0 };
            self.chosen.push((phase, Chosen::new(base, now, anchor)));
            self.chosen.len() - 1
        });
        self.time(index, now);
        let schedule = self.decide(index, base, (case, context_tokens), now);
        self.run(index, schedule, case);
        schedule
    }

    /// Notes how long the round before took.
    fn time(&mut self, index: usize, now: Nanos) {
        let chosen = &mut self.chosen[index].1;
        if let Some(began) = chosen.began.replace(now) {
            let took_us = now.since(began).as_micros_f64();
            chosen.round_us.add(took_us);
            chosen.rounds += 1;
            if let Some(trial) = &mut chosen.trial {
                trial.rounds += 1;
            }
        }
    }

    fn decide(&mut self, index: usize, base: usize, (case, context_tokens): (usize, u32), now: Nanos) -> usize {
        let conditions = self.conditions(index);
        if self.chosen[index].1.base != base {
            self.another_bucket(index, base, conditions, case);
        }
        self.judge(index, (case, context_tokens), conditions);
        if self.chosen[index].1.look.is_none() {
            self.begin_look(index, case, conditions, now);
        }
        if let Some(look) = self.chosen[index].1.look.take() {
            self.look_on(index, look, (case, context_tokens), now);
        }
        self.chosen[index].1.schedule
    }

    /// The load as it is seen now. More cores than the largest team wants do not matter.
    fn conditions(&self, index: usize) -> Conditions {
        let senses = &self.chosen[index].1.senses;
        let free_cores = senses.free_cores();
        let free_cores = if free_cores.is_finite() { free_cores.min(self.threads_most) } else { free_cores };
        Conditions { ratios: senses.ratios(), free_cores, crowding: senses.crowding() }
    }

    /// Without load the new bucket's own schedule is taken; under load all are scored.
    fn another_bucket(&mut self, index: usize, base: usize, conditions: Conditions, case: usize) {
        let chosen = &mut self.chosen[index].1;
        let before = std::mem::replace(&mut chosen.base, base);
        if chosen.schedule == before {
            chosen.schedule = base;
        } else if chosen.look.is_none() {
            let measured_us = chosen.round_us.median();
            self.look(index, case, (conditions, Cause::Context), measured_us);
        }
    }

    /// A switch that made rounds longer is taken back. Where it did not bring what it should, what was learnt by it is
    /// reason for another look, a few times. A load that has moved meanwhile is another load.
    fn judge(&mut self, index: usize, (case, context_tokens): (usize, u32), conditions: Conditions) {
        let chosen = &mut self.chosen[index].1;
        let Some(trial) = chosen.trial.filter(|trial| trial.rounds >= JUDGED_AFTER) else { return };
        chosen.trial = None;
        let measured_us = chosen.round_us.median();
        let is_same_load = conditions.is_like(&trial.seen);
        if is_same_load {
            chosen.tries.note(chosen.schedule, measured_us, chosen.rounds);
            chosen.tries.is_seen_as(conditions);
        } else {
            chosen.tries.forget(conditions);
        }
        chosen.anchor = conditions;
        chosen.doubt.0 = chosen.rounds + chosen.doubt.1;
        let is_good = measured_us <= SURPRISE * trial.hoped_us && measured_us <= WORSE * trial.before_us;
        if is_same_load && is_good {
            return;
        }
        let is_known = chosen.tries.round_us(trial.from, chosen.rounds).is_some();
        let cause = match is_same_load {
            true => Cause::Surprise(trial.hoped_us, measured_us),
            false => conditions.moved_since(&trial.seen).0,
        };
        let (mut why, mut present_us) = ((conditions, cause), measured_us);
        if is_known && measured_us > WORSE * trial.before_us {
            (why, present_us) = ((trial.seen, trial.cause), trial.before_us);
            let failed = Cause::Failed(trial.before_us, measured_us);
            self.switch(index, trial.from, (failed, conditions), (measured_us, trial.before_us), context_tokens);
            self.chosen[index].1.trial = None;
            self.chosen[index].1.tries.is_seen_as(trial.seen);
        }
        let tries = &mut self.chosen[index].1.tries;
        tries.looks += 1;
        if tries.looks < LOOKS_MOST {
            self.look(index, case, why, present_us);
        }
    }

    /// Begins to score when a resource has moved far enough and enough time has passed since the last look.
    fn begin_look(&mut self, index: usize, case: usize, conditions: Conditions, now: Nanos) {
        let chosen = &mut self.chosen[index].1;
        let (cause, moved) = conditions.moved_since(&chosen.anchor);
        let is_doubted = chosen.schedule != chosen.base && chosen.doubt.0 <= chosen.rounds;
        if chosen.trial.is_some() || (moved < MOVED_LEAST && !is_doubted) {
            return;
        }
        // Resources are not sensed alike fast: what changes together is looked at together.
        if chosen.senses.is_odd() && chosen.postponed < POSTPONED_MOST {
            chosen.postponed += 1;
            return;
        }
        let measured_us = chosen.round_us.median();
        let is_another = chosen.tries.is_another(&conditions)
            || chosen.tries.is_outdated(chosen.schedule, measured_us, chosen.rounds);
        let after = if is_another { Some(DOUBTED_AFTER) } else { None };
        if let Some(after) = after.or(is_doubted.then_some(4 * chosen.doubt.1)) {
            chosen.tries.forget(conditions);
            chosen.doubt = (chosen.rounds + after, after);
        }
        self.look(index, case, (conditions, cause), measured_us);
        let chosen = &mut self.chosen[index].1;
        let present_us = chosen.look.map_or(0.0, |look| look.present_us);
        if now.since(chosen.looked_at).as_micros_f64() >= ROUNDS_BETWEEN * present_us {
            chosen.postponed = 0;
        } else {
            chosen.look = None;
        }
    }

    /// From now on schedules are scored; the present one's rounds take `measured_us`, 0 = it is not known.
    fn look(&mut self, index: usize, case: usize, (conditions, cause): (Conditions, Cause), measured_us: f64) {
        let present_us = self.score(index, case, self.chosen[index].1.schedule, &conditions);
        let chosen = &mut self.chosen[index].1;
        let scale = if measured_us > 0.0 { present_us / measured_us } else { 0.0 };
        let best = (chosen.schedule, present_us);
        chosen.look = Some(Look { conditions, cause, next: 0, present_us, scale, best });
    }

    /// Scores a few more schedules; after the last the best is taken.
    fn look_on(&mut self, index: usize, mut look: Look, (case, context_tokens): (usize, u32), now: Nanos) {
        let phase = self.chosen[index].0;
        let mut scored = 0;
        while look.next < self.schedules.len() && scored < SCORED_AT_ONCE {
            let schedule = look.next;
            look.next += 1;
            let present = self.chosen[index].1.schedule;
            if self.schedules[schedule].phase != phase || schedule == present {
                continue;
            }
            scored += 1;
            let tried_us = self.chosen[index].1.tries.round_us(schedule, self.chosen[index].1.rounds);
            let score_us = match tried_us {
                Some(round_us) if look.scale > 0.0 => round_us * look.scale,
                _ => self.score(index, case, schedule, &look.conditions),
            };
            let needed_us = if look.best.0 == present { look.present_us * (1.0 - GAIN_LEAST) } else { look.best.1 };
            if score_us < needed_us {
                look.best = (schedule, score_us);
            }
        }
        if look.next < self.schedules.len() {
            self.chosen[index].1.look = Some(look);
            return;
        }
        let (to, expected_us) = look.best;
        self.chosen[index].1.looked_at = now;
        self.chosen[index].1.anchor = look.conditions;
        if to != self.chosen[index].1.schedule {
            let (why, times) = ((look.cause, look.conditions), (look.present_us, expected_us));
            self.switch(index, to, why, times, context_tokens);
        }
    }

    /// Takes another schedule, and writes down why.
    fn switch(
        &mut self,
        index: usize,
        to: usize,
        (cause, conditions): (Cause, Conditions),
        expected_us: (f64, f64),
        context_tokens: u32,
    ) {
        let from = self.chosen[index].1.schedule;
        let (before, after) = (self.schedules[from].cpu_threads, self.schedules[to].cpu_threads);
        if before != after {
            self.chosen[index].1.another_team((before, after), &conditions);
        }
        let anchor = self.conditions(index);
        let chosen = &mut self.chosen[index].1;
        let before_us = chosen.round_us.median();
        let hoped_us = before_us * expected_us.1 / expected_us.0;
        chosen.trial =
            (before_us > 0.0).then_some(Trial { from, before_us, hoped_us, rounds: 0, seen: conditions, cause });
        if before_us > 0.0 {
            chosen.tries.note(from, before_us, chosen.rounds);
        }
        (chosen.schedule, chosen.anchor, chosen.look) = (to, anchor, None);
        if self.log.len() < LOG_MOST {
            let evidence = String::new();
            let free_cores = conditions.free_cores;
            self.log.push(Switch { context_tokens, from, to, cause, expected_us, free_cores, evidence });
        }
    }

    /// Expected time of a round under a load.
    fn score(&mut self, index: usize, case: usize, schedule: usize, conditions: &Conditions) -> f64 {
        let chosen = &self.chosen[index].1;
        let (kept, present) = (&self.schedules[schedule], self.schedules[chosen.schedule].cpu_threads);
        let known = chosen.tries.team(kept.cpu_threads, conditions, chosen.rounds);
        let load = conditions.load_of(kept.cpu_threads, present, known);
        let case = &self.costs.cases[case];
        evaluate(&self.costs, case, &kept.prepared, &load, Horizon::Steady, &mut self.scratch)
    }

    /// The next round runs this schedule.
    fn run(&mut self, phase: usize, schedule: usize, case: usize) {
        let is_known = self.running.is_some_and(|running| (running.schedule, running.case) == (schedule, case));
        if !is_known {
            let prepared = &self.schedules[schedule].prepared;
            let stretch = match self.contention {
                Contention::Felt => stretch(&self.costs, &self.costs.cases[case], prepared, &mut self.scratch),
                Contention::Absent => [1.0; 3],
            };
            let case_costs = &self.costs.cases[case];
            let prepared = &self.schedules[schedule].prepared;
            let scratch = &mut self.scratch;
            let round_us = evaluate(&self.costs, case_costs, prepared, &Load::IDLE, Horizon::Steady, scratch);
            let least_us = LEAST_SHARE.map(|share| share * round_us);
            self.running = Some(Running { phase, schedule, case, stretch, least_us });
        }
    }

    /// Measured over expected times of CPU, GPU and link.
    pub fn ratios(&self) -> [f64; 3] {
        self.senses().map_or([1.0; 3], Senses::ratios)
    }

    /// Switches so far, the first few hundred.
    pub fn log(&self) -> &[Switch] {
        &self.log
    }

    /// The last switch, to be completed with evidence.
    pub fn last_switch(&mut self) -> Option<&mut Switch> {
        self.log.last_mut()
    }
}

impl Chosen {
    fn new(base: usize, now: Nanos, anchor: Conditions) -> Self {
        Chosen {
            schedule: base,
            senses: Senses::default(),
            base,
            looked_at: now,
            anchor,
            look: None,
            postponed: 0,
            trial: None,
            tries: Tries::new(anchor),
            doubt: (DOUBTED_AFTER, DOUBTED_AFTER),
            rounds: 0,
            round_us: Window::full_of(0.0),
            began: None,
        }
    }
}

impl Chosen {
    /// The team of `before` threads goes, that of `after` comes.
    fn another_team(&mut self, (before, after): (u16, u16), conditions: &Conditions) {
        let ratio = conditions.ratios[0] / conditions.crowding;
        let crowding = conditions.crowding_of(after);
        let expected = self.tries.team(after, conditions, self.rounds).unwrap_or(ratio);
        self.tries.note_team(before, ratio, *conditions, self.rounds);
        self.senses.another_team(expected * crowding, crowding);
    }
}
