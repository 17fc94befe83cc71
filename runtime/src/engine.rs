//! A model with its plan, ready to run: opens both, loads weights, and feeds sequences through the executor in rounds.
//!
//! Not here: text (`text`), which token comes next (`generation.rs`), how sequences go back (`sequence.rs`).
//! Next: `exec/mod.rs`.

use crate::exec::{Choices, Chosen, Executor, HostPlace, KvType, Limits, Precision, Rewind, Round, Span, WeightStore};
use crate::hybrid::cuda::{self, CudaMaker};
use crate::hybrid::sim::SimMaker;
use crate::hybrid::{GpuSide, HandOver, Timing};
use crate::machine::SimulatedMachine;
use crate::plans::{Exactness, PlanRequest, plan_for};
use crate::{Error, machine};

pub use crate::sequence::Sequence;
use device::clock::Clock;
use device::evidence::Watch;
use device::gpu::Gpu;
use device::sim::{Faults, LoadScript, SimConfig, SimGpu, SimProfile};
use gguf::Model;
use kernels::cpu::Isa;
use plan_format::artifact::{self, Region};
use plan_format::program::OpKind;
use plan_format::routing::RoutingCounts;
use plan_format::schedule::Home;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use text::Tokenizer;

/// A running model.
pub struct Engine {
    executor: Executor,
    tokenizer: Arc<Tokenizer>,
    plan: artifact::Plan,
    simulated_gpu: Option<Arc<SimGpu>>,
}

/// Changes to what the plan says, for measurements, and what is written down besides.
#[derive(Clone, Copy, Debug, Default)]
pub struct Overrides {
    /// CPU threads.
    pub threads: Option<usize>,
    /// Instruction set.
    pub isa: Option<Isa>,
    /// Schedule that is always taken for rounds of its kind.
    pub pinned_schedule: Option<usize>,
    /// Whether choices of experts are recorded.
    pub choices: Choices,
}

/// Which logits of fed tokens are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Those of the last token.
    Last,
    /// Those of the last so many tokens.
    LastTokens(usize),
    /// None: only the caches matter.
    Nothing,
}

impl Engine {
    /// Opens a model with the plan that the request leads to.
    pub fn open(path: &Path, request: &PlanRequest, overrides: Overrides) -> Result<Self, Error> {
        let model = Model::open(path)?;
        let tokenizer = Arc::new(Tokenizer::from_gguf(&model)?);
        let plan = plan_for(&model, request)?;
        let precision = match request.exactness {
            Exactness::Planned => Precision::Fast,
            Exactness::Exact => Precision::Exact,
        };
        let isa = Isa::choose(overrides.isa.or(isa_from_environment()?)).ok_or(Error::IsaAbsent)?;
        let kv_type = match plan.origin.options.kv_type {
            artifact::KvType::F16 => KvType::F16,
            artifact::KvType::F32 => KvType::F32,
        };
        let context_tokens = plan.origin.options.context_tokens as usize;
        let choices = overrides.choices;
        let limits = Limits { context_tokens, sequences: 1, kv_type, precision, choices };
        let weights = WeightStore::load_placed(model, &plan.program, &HostPlace::of_plan(&plan, precision))?;
        // The exact kernels run on the CPU alone, and nothing is calculated of their times.
        let simulated = request.simulated.as_ref().filter(|_| precision == Precision::Fast);
        let (side, simulated_gpu) = gpu_side(&plan, &weights, limits, isa, (simulated, overrides.pinned_schedule))?;
        let threads = overrides.threads.unwrap_or_else(|| planned_threads(&plan));
        let team = match request.simulated {
            // The simulated machine may have more cores than this one: its times do not depend on ours.
            Some(_) => machine::team(threads.min(machine::threads_at_most()?))?,
            None => machine::team(threads)?,
        };
        let ordinal = side.as_ref().map(|_| 0);
        let mut executor = match side {
            Some(side) => Executor::with_gpu(&plan, weights, limits, (team, isa), side)?,
            None => {
                let mut executor = Executor::new(&plan.program, &plan.arena, weights, limits, (team, isa))?;
                if overrides.threads.is_none() {
                    executor.follow(&plan, overrides.pinned_schedule);
                }
                executor
            }
        };
        if request.simulated.is_none() {
            let watch = Watch::start(ordinal)?;
            executor.add_notes(watch.absence());
            executor.watch(watch);
        }
        Ok(Self { executor, tokenizer, plan, simulated_gpu })
    }

    /// What a person should know of how the plan runs here.
    pub fn notes(&self) -> &[String] {
        self.executor.notes()
    }

    /// From now on the GPU's work is timed for [`Engine::trace`], too; that costs a little.
    pub fn time_gpu(&mut self) {
        self.executor.time_gpu(Timing::On);
    }

    /// Whether the model chooses experts.
    pub fn has_experts(&self) -> bool {
        self.plan.program.ops.iter().any(|op| matches!(op.kind, OpKind::Router { .. }))
    }

    /// How often experts were chosen so far; nothing where choices are not recorded.
    pub fn routing(&self) -> RoutingCounts {
        self.executor.routing()
    }

    /// From now on tokens take these choices of experts instead of their routers'. Only for plans without a GPU.
    /// Errors: another model's choices.
    pub fn force_choices(&mut self, chosen: Chosen) -> Result<(), Error> {
        self.executor.force_choices(&self.plan.program, chosen)
    }

    /// The last round as a Chrome trace.
    pub fn trace(&self) -> String {
        self.executor.trace(&self.plan.program)
    }

    /// The clock of the simulated machine, if it runs on one.
    pub fn simulated_clock(&self) -> Option<Clock> {
        let clock = self.executor.gpu()?.clock();
        matches!(clock, Clock::Virtual(_)).then_some(clock)
    }

    /// The simulated machine, if it runs on one.
    pub fn simulated_gpu(&self) -> Option<&SimGpu> {
        self.simulated_gpu.as_deref()
    }

    /// The plan.
    pub fn plan(&self) -> &artifact::Plan {
        &self.plan
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The executor.
    pub fn executor(&mut self) -> &mut Executor {
        &mut self.executor
    }

    /// Planned context in tokens.
    pub fn context_tokens(&self) -> usize {
        self.plan.origin.options.context_tokens as usize
    }

    /// Most tokens of a round: a feed of more takes several, and can only be stopped between them.
    pub fn round_tokens(&self) -> usize {
        self.executor.limits().1.ubatch_tokens as usize
    }

    /// Length of a row of logits.
    pub fn vocab(&self) -> usize {
        self.plan.program.vocab as usize
    }

    /// Appends tokens to a sequence and hands out the wanted logits, row by row with the token's index among `tokens`.
    /// Errors: a context that is full; logits that are not finite, with the first operator whose result was not. After
    /// an error in a round the sequence is empty, since its states may be half written.
    pub fn feed(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        wanted: Wanted,
        on_logits: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), Error> {
        let planned = self.context_tokens();
        let needed = sequence.tokens.len() + tokens.len();
        if needed > planned {
            return Err(Error::ContextFull { needed, planned });
        }
        if sequence.tokens.is_empty() {
            self.executor.clear(0)?;
        }
        for piece in pieces(tokens.len(), self.executor.limits().1, wanted) {
            let fed = self.round(sequence, &tokens[piece.tokens.clone()], piece, on_logits);
            if fed.is_err() {
                sequence.clear();
                return fed;
            }
        }
        Ok(())
    }

    /// Whether going back needs marks: without them it is free.
    pub fn needs_marks(&self) -> bool {
        self.executor.rewind() != Rewind::Anywhere
    }

    /// Remembers the present length as one to come back to, where that takes a snapshot.
    pub fn mark(&mut self, sequence: &mut Sequence) {
        let len_tokens = sequence.tokens.len();
        if self.needs_marks() && len_tokens > 0 && !sequence.is_marked() {
            // Without a mark more is computed again; a GPU that is lost is reported by the next round.
            if let Ok(mark) = self.executor.save(0, len_tokens) {
                sequence.add_mark(mark);
            }
        }
    }

    /// Takes a sequence back to `len_tokens`, or as near below as its states allow; the length that it has then. What
    /// is fed next is computed as if the tokens beyond had never been.
    pub fn rewind(&mut self, sequence: &mut Sequence, len_tokens: usize) -> usize {
        let mark = sequence.go_back(len_tokens, self.executor.rewind());
        if mark.is_some_and(|mark| self.executor.restore(0, mark).is_err()) {
            sequence.clear();
        }
        sequence.tokens.len()
    }

    fn round(
        &mut self,
        sequence: &mut Sequence,
        tokens: &[u32],
        piece: Piece,
        on_logits: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), Error> {
        let first = sequence.tokens.len() as u32;
        let positions: Vec<u32> = (first..first + tokens.len() as u32).collect();
        let outputs: Vec<u32> = ((tokens.len() - piece.outputs) as u32..tokens.len() as u32).collect();
        let spans = [Span { sequence: 0, tokens: 0..tokens.len() }];
        let round = Round { tokens, positions: &positions, spans: &spans, outputs: &outputs };
        let logits = self.executor.run(&round)?;
        let bad = (0..logits.rows()).find(|&row| !logits.row(row).iter().all(|logit| logit.is_finite()));
        if let Some(row) = bad {
            let position = positions[outputs[row] as usize];
            let operator = self.executor.first_non_finite(&round)?;
            return Err(Error::NotFinite { position, operator: operator.unwrap_or_else(|| "the logits".into()) });
        }
        for (row, &output) in outputs.iter().enumerate() {
            on_logits(piece.tokens.start + output as usize, logits.row(row));
        }
        sequence.extend(tokens, self.executor.rewind());
        Ok(())
    }
}

/// Tokens of one round and how many of its last ones have their logits wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Piece {
    tokens: Range<usize>,
    outputs: usize,
}

/// Cuts a feed in rounds: as long as a round may be, and no more wanted logits than a round may have.
fn pieces(tokens: usize, limits: plan_format::arena::RoundLimits, wanted: Wanted) -> Vec<Piece> {
    let (ubatch, outputs) = (limits.ubatch_tokens as usize, limits.output_tokens as usize);
    let wanted = match wanted {
        Wanted::Nothing => 0,
        Wanted::Last => 1,
        Wanted::LastTokens(count) => count.min(tokens),
    };
    let mut pieces = Vec::new();
    let mut start = 0;
    while start < tokens {
        let silent = (tokens - wanted).saturating_sub(start);
        let end = tokens.min(start + ubatch).min(start + silent + outputs);
        pieces.push(Piece { tokens: start..end, outputs: end - start - silent.min(end - start) });
        start = end;
    }
    pieces
}

/// The largest team that any schedule wants.
fn planned_threads(plan: &artifact::Plan) -> usize {
    plan.schedules.iter().map(|schedule| usize::from(schedule.cpu_threads)).max().unwrap_or(1)
}

/// The GPU that takes part: the simulated machine's, or the CUDA device that the plan needs.
fn gpu_side(
    plan: &artifact::Plan,
    weights: &WeightStore,
    limits: Limits,
    isa: Isa,
    (simulated, pinned_schedule): (Option<&SimulatedMachine>, Option<usize>),
) -> Result<(Option<GpuSide>, Option<Arc<SimGpu>>), Error> {
    let ceiling_bytes = plan.origin.options.vram_bytes;
    let resident = plan.placement.homes.contains(&Home::Resident);
    let uses_gpu = resident || plan.schedules.iter().any(|schedule| !schedule.promotions.is_empty());
    if let Some(machine) = simulated {
        // What the plan counts for context and kernels is gone before anything else: nothing for models that are only
        // there to try the simulation.
        let context_bytes = plan.report.bytes(Region::GpuContext) + plan.report.bytes(Region::GpuKernels);
        let profile = SimProfile { context_bytes, ..machine.profile.clone() };
        let (load, faults) = (LoadScript::default(), Faults::none());
        let config = SimConfig { profile, load, faults, ceiling_bytes: Some(ceiling_bytes) };
        let gpu = Arc::new(SimGpu::new(config));
        let maker = SimMaker::new(Arc::clone(&gpu), (&plan.program, &plan.arena), weights, limits, isa)?;
        let hand_over = machine.hand_over;
        let simulated_gpu = Some(Arc::clone(&gpu));
        return Ok((Some(GpuSide { gpu, maker: Box::new(maker), hand_over, pinned_schedule }), simulated_gpu));
    }
    if !uses_gpu {
        return Ok((None, None));
    }
    let gpu = Arc::new(cuda::open(0, Some(ceiling_bytes))?);
    cuda::load(&gpu, &plan.program, &plan.code, planned_threads(plan))?;
    let maker = CudaMaker::new(Arc::clone(&gpu) as Arc<dyn Gpu>);
    let hand_over = HandOver::default();
    Ok((Some(GpuSide { gpu, maker: Box::new(maker), hand_over, pinned_schedule }), None))
}

/// `ATS_ISA=scalar|avx2|avx512`: for tests and for tools that do not know newer instructions.
pub fn isa_from_environment() -> Result<Option<Isa>, Error> {
    let Some(name) = std::env::var_os("ATS_ISA") else { return Ok(None) };
    let name = name.to_string_lossy();
    Isa::from_name(&name).map(Some).ok_or_else(|| Error::IsaName { name: name.into_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan_format::arena::RoundLimits;

    #[track_caller]
    fn check(tokens: usize, wanted: Wanted, expected: &[(Range<usize>, usize)]) {
        let limits = RoundLimits { ubatch_tokens: 10, output_tokens: 4 };
        let got: Vec<_> =
            pieces(tokens, limits, wanted).into_iter().map(|piece| (piece.tokens, piece.outputs)).collect();
        assert_eq!(got, expected);
    }

    #[test]
    fn feeds_are_cut_by_both_limits() {
        check(0, Wanted::Last, &[]);
        check(1, Wanted::Last, &[(0..1, 1)]);
        check(10, Wanted::Last, &[(0..10, 1)]);
        check(11, Wanted::Last, &[(0..10, 0), (10..11, 1)]);
        check(23, Wanted::Nothing, &[(0..10, 0), (10..20, 0), (20..23, 0)]);
        check(6, Wanted::LastTokens(6), &[(0..4, 4), (4..6, 2)]);
        check(14, Wanted::LastTokens(6), &[(0..10, 2), (10..14, 4)]);
        check(3, Wanted::LastTokens(9), &[(0..3, 3)]);
    }
}
