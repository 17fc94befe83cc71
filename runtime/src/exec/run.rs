//! A round: every worker walks the steps, claims its part of each, and meets the others at barriers.
//! Not here: how steps are made (`prepare.rs`), how a worker walks them (`walk.rs`).

use super::ahead::Begun;
use super::choices::{ChoiceMemory, Chosen, Flip, Forced, Recorder, Routers};
use super::failure::{Failure, lock};
use super::prepare::{Limits, Memory, Prepared, prepare, prepare_solo, prepare_solo_beside};
use super::round::Round;
use super::scratch::WorkerScratch;
use super::shared::{Place, Shared};
use super::solo::{Solo, group_once};
use super::states::{Piece, Rewind, StateSnapshot, States};
use super::trace::{Detail, Trace};
use super::watch::{Watched, watched};
use super::weights::{Precision, WeightStore};
use crate::Error;
use crate::hybrid::adapt::{Resource, Sample};
use crate::hybrid::build::Hybrid;
use crate::hybrid::select::Selector;
use crate::hybrid::{GpuSide, Timing};
use device::clock::{Clock, Nanos};
use device::gpu::{Access, Gpu};
use device::team::Team;
use kernels::cpu::Isa;
use kernels::cpu::ops::View;
use kernels::cpu::ops::rope::RopeTable;
use plan_format::arena::{Arena, RoundLimits};
use plan_format::artifact::Plan;
use plan_format::program::Program;
use plan_format::routing::RoutingCounts;
use std::sync::{Arc, Mutex};

/// A program ready to run, with its memory, states and team.
pub struct Executor {
    weights: WeightStore,
    prepared: Prepared,
    /// For rounds of one token.
    solo: Solo,
    memory: Memory,
    states: States,
    scratch: Vec<Mutex<WorkerScratch>>,
    team: Team,
    isa: Isa,
    limits: Limits,
    round_limits: RoundLimits,
    vocab: usize,
    /// Results of each operator, to look for the first that is not finite.
    watched: Vec<Vec<Watched>>,
    /// The GPU's side, if one takes part.
    pub(super) hybrid: Option<Hybrid>,
    /// Without a GPU: which schedule each round takes, if a plan is followed.
    pub(super) selector: Option<Selector>,
    /// Without a GPU: schedule of the last round.
    pub(super) schedule: usize,
    /// Without a GPU: what the last switch took.
    pub(super) switch_took: Nanos,
    trace: Trace,
    /// Choices of experts, where they are recorded.
    recorder: Option<Recorder>,
    /// Choices that take the place of the routers'.
    forced: Option<Forced>,
}

/// What all workers of a round read.
pub struct Context<'a> {
    pub round: &'a Round<'a>,
    pub memory: &'a Memory,
    pub states: &'a States,
    pub weights: &'a WeightStore,
    pub ropes: &'a [RopeTable],
    pub isa: Isa,
    pub precision: Precision,
    /// Where steps are written down, if they are.
    pub trace: Option<&'a Trace>,
    /// The workers' own memory, in rounds of one token.
    pub solo: Option<&'a Solo>,
    /// Choices that take the place of the routers'.
    pub forced: Option<&'a Forced>,
}

impl Executor {
    /// Prepares a verified program. All memory is taken here.
    pub fn new(
        program: &Program,
        arena: &Arena,
        weights: WeightStore,
        limits: Limits,
        (team, isa): (Team, Isa),
    ) -> Result<Self, Error> {
        let mut prepared = prepare(program, arena, &weights, limits)?;
        group_once(&mut prepared.steps);
        let tokens = arena.limits.ubatch_tokens as usize;
        let values = Shared::new(arena.size_bytes as usize);
        let states = States::new(program, limits.of_states(tokens), &mut |_, bytes| Some(Shared::new(bytes)));
        let solo = prepare_solo(program, &weights, limits, (team.threads(), &prepared.ropes))?;
        let choices = ChoiceMemory::for_cpu(program, tokens, limits.choices);
        let host = (prepared, solo, values, states, choices);
        Ok(Self::assemble((program, arena), weights, limits, (team, isa), host))
    }

    /// Prepares a plan that uses a GPU. All memory is taken here, on both sides.
    /// Errors: too little of it, operators without kernels, schedules that do not fit.
    pub fn with_gpu(
        plan: &Plan,
        weights: WeightStore,
        limits: Limits,
        (team, isa): (Team, Isa),
        side: GpuSide,
    ) -> Result<Self, Error> {
        let (program, arena) = (&plan.program, &plan.arena);
        let prepared = prepare(program, arena, &weights, limits)?;
        let of_team = (team.threads(), &prepared.ropes[..]);
        let solo = prepare_solo_beside(program, arena, &weights, limits, of_team)?;
        let (hybrid, host) = Hybrid::new(plan, &weights, limits, (&prepared, &solo), side)?;
        let host = (prepared, solo, host.values, host.states, host.choices);
        let executor = Self::assemble((program, arena), weights, limits, (team, isa), host);
        let trace = Trace::new(hybrid.gpu.clock(), executor.team.threads());
        Ok(Self { hybrid: Some(hybrid), trace, ..executor })
    }

    fn assemble(
        (program, arena): (&Program, &Arena),
        weights: WeightStore,
        limits: Limits,
        (team, isa): (Team, Isa),
        (prepared, solo, values, states, choices): (Prepared, Solo, Shared, States, Option<ChoiceMemory>),
    ) -> Self {
        let tokens = arena.limits.ubatch_tokens as usize;
        let scratch = || Mutex::new(WorkerScratch::new(&prepared.shapes, prepared.sizes.experts, tokens));
        let scratch = (0..team.threads()).map(|_| scratch()).collect();
        let vocab = program.vocab as usize;
        let watched = program.ops.iter().map(|op| watched(program, arena, op)).collect();
        let recorder = choices.as_ref().map(|choices| Recorder::new(&choices.routers));
        let memory = Memory::new(values, &prepared.sizes, &prepared.ropes, &mut Shared::new);
        let memory = Memory { choices, ..memory };
        let (round_limits, hybrid, selector, schedule) = (arena.limits, None, None, 0);
        let trace = Trace::new(Clock::wall(), team.threads());
        Self {
            weights,
            prepared,
            solo,
            memory,
            states,
            scratch,
            team,
            isa,
            limits,
            round_limits,
            vocab,
            watched,
            hybrid,
            selector,
            schedule,
            switch_took: Nanos(0),
            trace,
            recorder,
            forced: None,
        }
    }

    /// Runs a round and returns its logits \[outputs, vocab\].
    /// Errors: a round beyond the limits, a worker's fault, a GPU that fails.
    pub fn run(&mut self, round: &Round) -> Result<View<'_>, Error> {
        self.check(round)?;
        self.trace.begin_round();
        let logits = match self.hybrid {
            Some(_) => self.run_parts(round, None)?,
            None => self.run_steps(round)?,
        };
        self.take_in_choices(round)?;
        // SAFETY: the round is over, and the next needs `&mut self`.
        Ok(unsafe { self.memory.values.view(logits, 0..round.outputs.len()) })
    }

    /// A round on the CPU alone. Returns where its logits are.
    fn run_steps(&mut self, round: &Round) -> Result<Place, Error> {
        let Self {
            prepared, solo, memory, states, weights, isa, limits, scratch, team, trace, selector, forced, ..
        } = self;
        let forced = forced.as_ref();
        let (isa, precision, ropes) = (*isa, limits.precision, &prepared.ropes);
        let start = trace.now();
        let schedule = selector.as_ref().map(|selector| selector.choose(round, start));
        if let (Some(selector), Some(schedule)) = (selector.as_ref(), schedule) {
            team.set_active(selector.threads(schedule));
            if schedule != self.schedule {
                self.switch_took = trace.now().since(start);
            }
        }
        let (solo, trace) = (Some(&*solo).filter(|_| round.tokens.len() == 1), Some(&*trace));
        let context = Context { round, memory, states, weights, ropes, isa, precision, trace, solo, forced };
        let (steps, logits) = solo.map_or((&prepared.steps, prepared.logits), |solo| (&solo.steps, solo.logits));
        let failure: Mutex<Option<Error>> = Mutex::new(None);
        team.run(|worker| {
            let mut scratch = lock(&scratch[worker.index()]);
            for step in steps {
                if let Err(error) = context.step(worker, &mut scratch, step, 0) {
                    lock(&failure).get_or_insert(error);
                }
            }
        })?;
        if let (Some(selector), Some(schedule)) = (selector.as_ref(), schedule) {
            let (mut sample, expected_us) = (Sample::default(), selector.expected(schedule, round).1);
            let took_us = self.trace.now().since(start).as_micros_f64();
            sample.add(Resource::Cpu, took_us, expected_us.iter().map(|us| f64::from(*us)).sum());
            selector.observe(sample, team.pressure());
            self.schedule = schedule;
        }
        lock(&failure).take().map_or(Ok(logits), Err)
    }

    /// A round on CPU and GPU: worker 0 drives the GPU between its own work. Returns where its logits are.
    /// With `diagnosis`, the first value there that is not finite is looked for after each part on the CPU.
    fn run_parts(&mut self, round: &Round, diagnosis: Option<&Mutex<Option<String>>>) -> Result<Place, Error> {
        let Self {
            prepared, solo, memory, states, weights, isa, limits, scratch, team, hybrid, trace, watched, ..
        } = self;
        let Some(hybrid) = hybrid else { return Ok(prepared.logits) };
        let (isa, precision, ropes) = (*isa, limits.precision, &prepared.ropes);
        let steps_traced = trace.sees_steps().then_some(&*trace);
        // What every worker computes for itself is not where a diagnosis looks.
        let solo = Some(&*solo).filter(|_| round.tokens.len() == 1 && diagnosis.is_none());
        let forced = None;
        let context =
            Context { round, memory, states, weights, ropes, isa, precision, trace: steps_traced, solo, forced };
        let steps = solo.map_or(&prepared.steps, |solo| &solo.steps);
        let turn = hybrid.turn(round, trace);
        team.set_active(hybrid.selector.threads(turn.schedule));
        let (failure, begun) = (Failure::default(), Begun::default());
        failure.note(lock(&hybrid.driver).begin(&turn, round));
        let ended = team.run(|worker| {
            let mut scratch = lock(&scratch[worker.index()]);
            let drives = worker.index() == 0;
            scratch.ahead.clear();
            for (index, parts) in hybrid.parts(turn.schedule).iter().enumerate() {
                let part = if solo.is_some() { &parts.of_one_token } else { &parts.of_many };
                if drives && !failure.is_noted() {
                    failure.note(lock(&hybrid.driver).before_part(&turn, index));
                    begun.begin(index);
                } else if !drives {
                    let own = &steps[part.own.clone()];
                    context.claim_ahead(worker, &mut scratch.ahead, own, (&begun, index));
                }
                worker.barrier();
                if failure.is_noted() {
                    return;
                }
                if drives {
                    failure.note_later(lock(&hybrid.driver).beside_part(&turn, index));
                }
                failure.note_later(context.part(worker, &mut scratch, steps, (index, part)));
                if let Some(found) = diagnosis.filter(|_| drives) {
                    let ops = steps[part.own.clone()].iter().map(|step| step.op.index());
                    let bad = ops.filter_map(|op| context.non_finite(&watched[op])).next();
                    let mut found = lock(found);
                    *found = found.take().or(bad);
                }
                if drives {
                    failure.note(lock(&hybrid.driver).after_part(&turn, index));
                }
            }
            if drives && !failure.is_noted() {
                failure.note(lock(&hybrid.driver).finish(&turn));
            }
        });
        let outcome = ended.map_err(Error::from).and_then(|()| failure.into_result());
        hybrid.observe(team.pressure());
        if outcome.is_err() {
            // What failed first is reported; a GPU that is lost is lost for the next round, too.
            let _ = lock(&hybrid.driver).abandon();
        }
        outcome.map(|()| prepared.logits)
    }

    /// The first value of a round that is not finite, by name: a diagnosis after [`Self::run`] gave such logits. The
    /// round is run again, one operator at a time; with a GPU one part at a time, and only values that the CPU touches
    /// are looked at.
    pub fn first_non_finite(&mut self, round: &Round) -> Result<Option<String>, Error> {
        let found: Mutex<Option<String>> = Mutex::new(None);
        let Self { prepared, memory, states, weights, isa, limits, scratch, team, watched, hybrid, .. } = self;
        if hybrid.is_some() {
            self.run_parts(round, Some(&found))?;
            return Ok(lock(&found).take());
        }
        let (isa, precision, ropes) = (*isa, limits.precision, &prepared.ropes);
        let (trace, solo, forced) = (None, None, None);
        let context = Context { round, memory, states, weights, ropes, isa, precision, trace, solo, forced };
        team.run(|worker| {
            let mut scratch = lock(&scratch[worker.index()]);
            for (index, step) in prepared.steps.iter().enumerate() {
                // A fault of an operator shows as a missing diagnosis; the round itself has reported it.
                let _ = context.task(worker, &mut scratch, &step.task);
                worker.barrier();
                let last = prepared.steps.get(index + 1).is_none_or(|next| next.op != step.op);
                if worker.index() == 0 && last && lock(&found).is_none() {
                    *lock(&found) = context.non_finite(&watched[step.op.index()]);
                }
                worker.barrier();
            }
        })?;
        Ok(lock(&found).take())
    }

    fn check(&self, round: &Round) -> Result<(), Error> {
        let (tokens, limits) = (round.tokens.len(), self.round_limits);
        let fits = tokens <= limits.ubatch_tokens as usize && round.outputs.len() <= limits.output_tokens as usize;
        let positions = round.positions.iter().all(|&position| (position as usize) < self.limits.context_tokens);
        let covered = round.spans.iter().try_fold(0, |end, span| (span.tokens.start == end).then_some(span.tokens.end));
        let sequences = round.spans.iter().all(|span| (span.sequence as usize) < self.limits.sequences);
        let outputs = round.outputs.iter().all(|&output| (output as usize) < tokens);
        if !fits || !positions || covered != Some(tokens) || !sequences || !outputs || round.positions.len() != tokens {
            return Err(Error::Program { what: "a round beyond the limits that memory was planned for" });
        }
        match round.tokens.iter().find(|&&token| token as usize >= self.vocab) {
            Some(&token) => Err(Error::TokenOutOfRange { token, vocab: self.vocab }),
            None => Ok(()),
        }
    }

    /// Sizes that memory was planned for.
    pub fn limits(&self) -> (Limits, RoundLimits) {
        (self.limits, self.round_limits)
    }

    /// How a sequence goes back to an earlier length.
    pub fn rewind(&self) -> Rewind {
        self.states.rewind()
    }

    /// Saves what moving the position does not bring back of a sequence that has `len_tokens`.
    /// Errors: a state on a GPU that is lost.
    pub fn save(&mut self, sequence: u32, len_tokens: usize) -> Result<StateSnapshot, Error> {
        let pieces = self.states.pieces(sequence, len_tokens);
        let mut bytes = vec![0; pieces.iter().map(|piece| piece.bytes.len()).sum()];
        let mut rest = bytes.as_mut_slice();
        for piece in &pieces {
            let (own, tail) = rest.split_at_mut(piece.bytes.len());
            match (self.states.bytes_mut(piece), &self.hybrid) {
                (Some(from), _) => own.copy_from_slice(from),
                (None, Some(hybrid)) => hybrid.read_state(piece, own)?,
                (None, None) => {}
            }
            rest = tail;
        }
        Ok(StateSnapshot::new(len_tokens, bytes))
    }

    /// Puts them back. Errors: a state on a GPU that is lost.
    pub fn restore(&mut self, sequence: u32, snapshot: &StateSnapshot) -> Result<(), Error> {
        let mut rest = snapshot.bytes();
        for piece in self.states.pieces(sequence, snapshot.len_tokens()) {
            let (own, tail) = rest.split_at(piece.bytes.len());
            self.write_state(&piece, own)?;
            rest = tail;
        }
        Ok(())
    }

    /// Forgets a sequence. Errors: a state on a GPU that is lost.
    pub fn clear(&mut self, sequence: u32) -> Result<(), Error> {
        let pieces: Vec<Piece> = self.states.floats(sequence).collect();
        pieces.iter().try_for_each(|piece| self.write_state(piece, &vec![0; piece.bytes.len()]))
    }

    fn write_state(&mut self, piece: &Piece, bytes: &[u8]) -> Result<(), Error> {
        match (self.states.bytes_mut(piece), &self.hybrid) {
            (Some(to), _) => to.copy_from_slice(bytes),
            (None, Some(hybrid)) => hybrid.write_state(piece, bytes)?,
            (None, None) => {}
        }
        Ok(())
    }

    /// Takes in the choices of a round that is over. Errors: a simulated GPU that finds a race.
    fn take_in_choices(&mut self, round: &Round) -> Result<(), Error> {
        let (Some(recorder), Some(choices)) = (&mut self.recorder, &self.memory.choices) else { return Ok(()) };
        if let (Some(hybrid), Some(start)) = (&self.hybrid, choices.device) {
            hybrid.gpu.host_touches(start, choices.routers.size_bytes() as u64, Access::Read)?;
        }
        recorder.take_in(choices, round.tokens.len());
        Ok(())
    }

    /// How often experts were chosen since the start; nothing where that is not recorded.
    pub fn routing(&self) -> RoutingCounts {
        let recorded = self.recorder.as_ref().zip(self.memory.choices.as_ref());
        recorded.map_or_else(RoutingCounts::default, |(recorder, choices)| recorder.of_layers(&choices.routers))
    }

    /// From now on choices are kept, where they are recorded.
    pub fn keep_choices(&mut self) {
        self.recorder.iter_mut().for_each(Recorder::keep);
    }

    /// The choices since, of each router in the program's order; none without routers.
    pub fn take_choices(&mut self) -> Chosen {
        let recorded = self.recorder.as_mut().zip(self.memory.choices.as_ref());
        recorded.map_or_else(Vec::new, |(recorder, choices)| recorder.take(&choices.routers))
    }

    /// From now on tokens take these choices instead of their routers', by position. Only without a GPU.
    /// Errors: choices that are not those of this program's routers.
    pub fn force_choices(&mut self, program: &Program, chosen: Chosen) -> Result<(), Error> {
        let forced = Forced::new(chosen, &Routers::of(program, 1)).filter(|_| self.hybrid.is_none());
        let what = "choices are forced that another model's routers made, or on a GPU";
        self.forced = Some(forced.ok_or(Error::Program { what })?);
        Ok(())
    }

    /// Where routers would not have chosen what they were forced to, since this was asked last.
    pub fn take_flips(&self) -> Vec<Flip> {
        self.forced.as_ref().map_or_else(Vec::new, Forced::take_flips)
    }

    /// Whether the GPU's work is timed in the trace, and all steps of worker 0.
    pub fn time_gpu(&mut self, timing: Timing) {
        self.trace.set_detail(if timing == Timing::On { Detail::AllSteps } else { Detail::Meetings });
        if let Some(hybrid) = &self.hybrid {
            lock(&hybrid.driver).time(timing);
        }
    }

    /// The last round as a Chrome trace of the program.
    pub fn trace(&self, program: &Program) -> String {
        self.trace.chrome(program)
    }

    /// What a person should know of how the GPU takes part.
    pub fn notes(&self) -> &[String] {
        self.hybrid.as_ref().map_or(&[], |hybrid| &hybrid.notes)
    }

    /// The GPU that takes part.
    pub fn gpu(&self) -> Option<&Arc<dyn Gpu>> {
        self.hybrid.as_ref().map(|hybrid| &hybrid.gpu)
    }

    /// The CPU team.
    pub fn team(&mut self) -> &mut Team {
        &mut self.team
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The model's weights.
    pub fn weights(&self) -> &WeightStore {
        &self.weights
    }

    /// Bytes of caches and states.
    pub fn state_bytes(&self) -> usize {
        self.states.size_bytes()
    }
}
