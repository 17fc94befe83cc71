//! Operators of the simulated GPU: the CPU's own kernels on the GPU's memory, one thread, one launch per run.
//!
//! They work through the executor's steps, so a result has the bits that the CPU gives it. Every access is declared to
//! the race detector before it is made; that is what makes the pointers below sound whatever the ordering around them.
//! Not here: time (the launch brings it). Next: `driver.rs`.

use super::cuda;
use super::ops::{Arrival, GpuInputs, GpuState, GpuView, Move, OpEnv, OpMaker, RoundArgs, Sizes, WeightShape};
use crate::Error;
use crate::exec::choices::ChoiceMemory;
use crate::exec::prepare::{Limits, Memory, Prepared, prepare};
use crate::exec::run::Context;
use crate::exec::scratch::WorkerScratch;
use crate::exec::shared::Shared;
use crate::exec::states::States;
use crate::exec::step::Step;
use crate::exec::weights::Elsewhere;
use crate::exec::{Round, Span, WeightStore};
use device::DeviceError;
use device::gpu::{Access, DevicePtr, GpuOp, GpuTarget, LaunchArgs};
use device::sim::{SimGpu, SimTask};
use device::team::{CallerPinning, Pinning, Team, TeamConfig};
use kernels::cpu::Isa;
use kernels::cpu::matmul::Layout as CpuLayout;
use kernels::quant::packed_bytes;
use plan_format::WeightId;
use plan_format::arena::{Arena, RoundLimits};
use plan_format::program::{Program, Rows, View};
use plan_format::schedule::Layout;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Makes operators for a simulated GPU.
pub struct SimMaker {
    gpu: Arc<SimGpu>,
    weights: WeightStore,
    limits: Limits,
    /// Tokens of the largest round.
    ubatch_tokens: usize,
    isa: Isa,
    /// By the rounds that they are for.
    worlds: Mutex<Vec<(RoundLimits, Arc<World>)>>,
}

/// What all operators of rounds up to a size share.
struct World {
    memory: Memory,
    states: States,
    prepared: Arc<Prepared>,
    inputs: GpuInputs,
    limits: Limits,
    isa: Isa,
    worker: Mutex<(Team, Mutex<WorkerScratch>)>,
}

/// A run of operators.
struct SimRun {
    name: String,
    steps: Vec<Step>,
    touches: Vec<Touched>,
    weights: WeightStore,
    world: Arc<World>,
}

/// Bytes that a run accesses.
struct Touched {
    start: DevicePtr,
    bytes: Extent,
    access: Access,
}

enum Extent {
    Fixed(u64),
    PerRow(Rows, u64),
}

/// Copies columns.
struct SimMove(Vec<Move>);

/// Copies bytes.
struct SimCopy {
    name: &'static str,
    from: DevicePtr,
    to: DevicePtr,
    bytes: u64,
}

impl SimMaker {
    /// For a program whose weights are known, and its largest arena. Errors: as preparing it for the CPU.
    pub fn new(
        gpu: Arc<SimGpu>,
        (program, arena): (&Program, &Arena),
        weights: &WeightStore,
        limits: Limits,
        isa: Isa,
    ) -> Result<Self, Error> {
        // What the CPU refuses is refused before anything is made.
        prepare(program, arena, weights, limits)?;
        let ubatch_tokens = arena.limits.ubatch_tokens as usize;
        Ok(Self { gpu, weights: weights.clone(), limits, ubatch_tokens, isa, worlds: Mutex::default() })
    }

    /// GPU memory as operators see it.
    fn memory(&self, start: DevicePtr, bytes: usize) -> Result<Shared, Error> {
        let address = self.gpu.address(start, bytes as u64)?;
        // SAFETY: the memory lives as long as the GPU, is initialised and 64-byte aligned (all places are multiples of
        // 256 bytes in page-aligned regions); operators declare their accesses first.
        Ok(unsafe { Shared::of(address, bytes, Arc::clone(&self.gpu) as Arc<_>) })
    }

    fn world(&self, env: &OpEnv<'_>) -> Result<Arc<World>, Error> {
        let mut worlds = self.worlds.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, world)) = worlds.iter().find(|(limits, _)| *limits == env.sizes.limits) {
            return Ok(Arc::clone(world));
        }
        let world = Arc::new(self.new_world(env)?);
        worlds.push((env.sizes.limits, Arc::clone(&world)));
        Ok(world)
    }

    fn new_world(&self, env: &OpEnv<'_>) -> Result<World, Error> {
        let arena = &env.room.arena;
        let prepared = Arc::new(prepare(env.program, arena, &self.weights, self.limits)?);
        let sizes = &prepared.sizes;
        let places = env.program.values.iter().zip(&arena.offsets_bytes);
        let end = places.map(|(value, offset)| offset + arena.limits.value_bytes(value)).max();
        let values = self.memory(env.room.start(), end.unwrap_or(0) as usize)?;
        // Order of `Memory::new`: activations, angles, the rest.
        let trig_bytes = env.map.trig.iter().zip(&sizes.trig).map(|(&start, &bytes)| (start, bytes));
        let trig = trig_bytes.map(|(start, bytes)| self.memory(start, bytes)).collect::<Result<Vec<_>, _>>()?;
        let rest = [sizes.partials, sizes.groups, sizes.grouped].map(Shared::new);
        let mut regions = sizes.acts.map(Shared::new).into_iter().chain(trig).chain(rest);
        let mut take = |bytes| regions.next().unwrap_or_else(|| Shared::new(bytes));
        let memory = Memory::new(values, sizes, &prepared.ropes, &mut take);
        let choices = env.choices.map(|choices| self.choices(choices)).transpose()?;
        let memory = Memory { choices, ..memory };
        let tokens = env.sizes.limits.ubatch_tokens as usize;
        let team = TeamConfig { threads: 1, pinning: Pinning::Free, caller: CallerPinning::Leave, spin_us: 0 };
        let scratch = WorkerScratch::new(&prepared.shapes, sizes.experts, tokens);
        Ok(World {
            memory,
            states: self.states(env)?,
            prepared,
            inputs: env.inputs,
            limits: self.limits,
            isa: self.isa,
            worker: Mutex::new((Team::new(team)?, Mutex::new(scratch))),
        })
    }

    /// Where routers on the GPU write down their choices.
    fn choices(&self, host: &ChoiceMemory) -> Result<ChoiceMemory, Error> {
        let start = host.device.ok_or(Error::Program { what: "choices are recorded where no GPU reaches" })?;
        let region = self.memory(start, host.routers.size_bytes())?;
        Ok(ChoiceMemory { region, device: Some(start), routers: Arc::clone(&host.routers) })
    }

    /// The states that live on the GPU.
    fn states(&self, env: &OpEnv<'_>) -> Result<States, Error> {
        let limits = self.limits.of_states(self.ubatch_tokens);
        let mut failure = None;
        let mut seen = vec![0; env.program.states.len()];
        let mut take = |state: plan_format::StateId, bytes| {
            let region = seen[state.index()];
            seen[state.index()] += 1;
            let start = env.map.state_bytes(state, region, &(0..bytes))?;
            self.memory(start, bytes).map_err(|error| failure = Some(error)).ok()
        };
        let states = States::new(env.program, limits, &mut take);
        failure.map_or(Ok(states), Err)
    }

    /// The program's weights as a run finds them in GPU memory.
    fn run_weights(&self, env: &OpEnv<'_>, ops: &Range<usize>) -> Result<WeightStore, Error> {
        let mut regions = Vec::new();
        let (mut large, mut small) = (Vec::new(), Vec::new());
        for weight in env.program.ops[ops.clone()].iter().flat_map(|op| op.kind.weights()) {
            if let Ok(place) = env.small(weight) {
                small.push((weight, regions.len()));
                regions.push(Arc::new(self.memory(place.start, place.len * 4)?));
            } else {
                let place = env.weight(weight)?;
                let (region, stride_bytes) = (regions.len(), place.stride_bytes as usize);
                regions.push(Arc::new(self.memory(place.start, place.size_bytes() as usize)?));
                let table = place.places.map(|table| self.memory(table, place.shape.stack * 4)).transpose()?;
                let table = table.map(|table| {
                    regions.push(Arc::new(table));
                    regions.len() - 1
                });
                large.push((weight, Elsewhere { region, layout: CpuLayout::Panel16, stride_bytes, table }));
            }
        }
        let find_large = |wanted: WeightId| large.iter().find(|(weight, _)| *weight == wanted).map(|(_, place)| *place);
        let find_small = |wanted: WeightId| small.iter().find(|(weight, _)| *weight == wanted).map(|(_, place)| *place);
        Ok(self.weights.elsewhere(&regions, find_large, find_small))
    }

    fn make(&self, name: String, steps: Vec<Step>, ops: &Range<usize>, env: &OpEnv<'_>) -> Result<SimRun, Error> {
        let touches = touches(ops, env)?;
        let (weights, world) = (self.run_weights(env, ops)?, self.world(env)?);
        Ok(SimRun { name, steps, touches, weights, world })
    }
}

/// Everything that operators access, as the race detector must know it.
fn touches(ops: &Range<usize>, env: &OpEnv<'_>) -> Result<Vec<Touched>, Error> {
    use plan_format::operands::{Operand, StateAccess};
    let mut list: Vec<Touched> = ops.clone().filter_map(|index| env.choices_of(index)).map(recorded).collect();
    for operand in env.program.ops[ops.clone()].iter().flat_map(|op| op.kind.operands()) {
        match operand {
            Operand::Read(columns) | Operand::Write(columns) => {
                let whole = View { value: columns.value, first_col: 0, cols: 0 };
                let view = env.view(whole);
                let access = if matches!(operand, Operand::Read(_)) { Access::Read } else { Access::Write };
                let bytes = Extent::PerRow(view.rows, u64::from(view.stride) * 4);
                list.push(Touched { start: view.start, bytes, access });
            }
            Operand::Weight(weight) => {
                let (start, bytes) = match env.small(weight) {
                    Ok(small) => (small.start, small.len as u64 * 4),
                    Err(_) => {
                        let place = env.weight(weight)?;
                        let table = place.places.map(|start| {
                            let bytes = Extent::Fixed(place.shape.stack as u64 * 4);
                            Touched { start, bytes, access: Access::Read }
                        });
                        list.extend(table);
                        (place.start, place.size_bytes())
                    }
                };
                list.push(Touched { start, bytes: Extent::Fixed(bytes), access: Access::Read });
            }
            Operand::State(state, access) => {
                let start = match env.state(state)? {
                    GpuState::Kv(kv) => kv.keys,
                    GpuState::Floats { start, .. } => *start,
                };
                let access = if access == StateAccess::Read { Access::Read } else { Access::Write };
                list.push(Touched { start, bytes: Extent::Fixed(64), access });
            }
            Operand::Rope(_) => {}
        }
    }
    Ok(list)
}

/// Choices that a router writes down.
fn recorded(choices: GpuView) -> Touched {
    let bytes = Extent::PerRow(choices.rows, u64::from(choices.stride) * 4);
    Touched { start: choices.start, bytes, access: Access::Write }
}

impl OpMaker for SimMaker {
    /// What CUDA kernels would work in: the simulated GPU stands for one that runs those. The CPU's kernels work in
    /// host memory.
    fn scratch_bytes(&self, program: &Program, sizes: &Sizes) -> Result<u64, Error> {
        cuda::scratch_bytes(program, sizes)
    }

    fn resident_layout(&self, _: &WeightShape, _: Layout) -> Layout {
        Layout::CpuPanel16
    }

    fn slot_layout(&self, _: &WeightShape) -> Layout {
        Layout::CpuPanel16
    }

    /// Blocks go through the staging area as they do on a real GPU, though their order is the host's.
    fn unpacks(&self, weight: &WeightShape) -> bool {
        !weight.ty.is_plain()
    }

    fn unpack(&self, piece: &Arrival) -> Result<Arc<dyn GpuOp>, Error> {
        let panel_bytes = packed_bytes(piece.shape.ty, 1, piece.shape.cols)? as u64;
        let (first, last) = (u64::from(piece.rows.0 / 16), u64::from(piece.rows.1.div_ceil(16)));
        let (from, to, bytes) = (piece.from, piece.to.offset(first * panel_bytes), (last - first) * panel_bytes);
        Ok(Arc::new(SimCopy { name: "unpack", from, to, bytes }))
    }

    fn prologue(&self, env: &OpEnv<'_>) -> Result<Vec<Arc<dyn GpuOp>>, Error> {
        let steps = self.world(env)?.prepared.steps[..env.program.ropes.len()].to_vec();
        Ok(vec![Arc::new(self.make("angles".to_owned(), steps, &(0..0), env)?)])
    }

    fn run(&self, ops: Range<usize>, env: &OpEnv<'_>) -> Result<Vec<Arc<dyn GpuOp>>, Error> {
        let world = self.world(env)?;
        let own = world.prepared.steps[env.program.ropes.len()..].iter().filter(|step| ops.contains(&step.op.index()));
        let item = env.program.ops[ops.start].item;
        let name = env.program.items[item.index()].name.clone();
        Ok(vec![Arc::new(self.make(name, own.cloned().collect(), &ops, env)?)])
    }

    fn mover(&self, moves: &[Move]) -> Result<Arc<dyn GpuOp>, Error> {
        Ok(Arc::new(SimMove(moves.to_vec())))
    }

    fn copier(&self, from: DevicePtr, to: DevicePtr, bytes: u64) -> Result<Arc<dyn GpuOp>, Error> {
        Ok(Arc::new(SimCopy { name: "copy", from, to, bytes }))
    }
}

fn simulated<'a>(target: &GpuTarget<'a>, name: &str) -> Result<&'a SimTask<'a>, DeviceError> {
    match target {
        GpuTarget::Simulated(task) => Ok(task),
        _ => Err(failed(name, "an operator of the simulated GPU on another one".to_owned())),
    }
}

fn failed(name: &str, reason: String) -> DeviceError {
    DeviceError::GpuKernel { module: "sim".to_owned(), kernel: name.to_owned(), reason }
}

impl GpuOp for SimRun {
    fn name(&self) -> &str {
        &self.name
    }

    fn run(&self, target: GpuTarget<'_>, args: LaunchArgs) -> Result<(), DeviceError> {
        let (task, args) = (simulated(&target, &self.name)?, RoundArgs::from(args));
        for Touched { start, bytes, access } in &self.touches {
            let bytes = match bytes {
                Extent::Fixed(bytes) => *bytes,
                Extent::PerRow(rows, bytes) => u64::from(args.rows(*rows)) * bytes,
            };
            task.touch(*start, bytes, *access)?;
        }
        let inputs = self.world.inputs;
        let array = |start, count: u32| Ok::<_, DeviceError>(words(task.read(start, u64::from(count) * 4)?));
        let (tokens, positions) = (array(inputs.tokens, args.tokens)?, array(inputs.positions, args.tokens)?);
        let (sequences, outputs) = (array(inputs.sequences, args.tokens)?, array(inputs.outputs, args.outputs)?);
        let spans = spans(sequences);
        let round = Round { tokens, positions, spans: &spans, outputs };
        self.compute(&round).map_err(|error| failed(&self.name, error.to_string()))
    }
}

impl SimRun {
    fn compute(&self, round: &Round) -> Result<(), Error> {
        let World { memory, states, prepared, limits, isa, worker, .. } = &*self.world;
        let (isa, precision, weights) = (*isa, limits.precision, &self.weights);
        let (ropes, trace, solo, forced) = (&prepared.ropes[..], None, None, None);
        let context = Context { round, memory, states, weights, ropes, isa, precision, trace, solo, forced };
        let mut worker = worker.lock().unwrap_or_else(PoisonError::into_inner);
        let (team, scratch) = &mut *worker;
        let scratch = &*scratch;
        let failure = Mutex::new(None);
        team.run(|worker| {
            let mut scratch = scratch.lock().unwrap_or_else(PoisonError::into_inner);
            let outcome = self.steps.iter().try_for_each(|step| context.step(worker, &mut scratch, step, 0));
            *failure.lock().unwrap_or_else(PoisonError::into_inner) = outcome.err();
        })?;
        failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }
}

fn words(bytes: &[u8]) -> &[u32] {
    // Arrays of inputs are multiples of 4 bytes, 256-byte aligned.
    bytemuck::try_cast_slice(bytes).unwrap_or_default()
}

/// Runs of one sequence.
fn spans(sequences: &[u32]) -> Vec<Span> {
    let mut start = 0;
    let span = |run: &[u32]| {
        let tokens = start..start + run.len();
        start = tokens.end;
        Span { sequence: run[0], tokens }
    };
    sequences.chunk_by(|a, b| a == b).map(span).collect()
}

impl GpuOp for SimMove {
    fn name(&self) -> &str {
        "move"
    }

    fn run(&self, target: GpuTarget<'_>, args: LaunchArgs) -> Result<(), DeviceError> {
        let (task, args) = (simulated(&target, "move")?, RoundArgs::from(args));
        for movement in &self.0 {
            let rows = u64::from(args.rows(movement.rows));
            let whole = movement.groups == 1 && movement.width == movement.stride;
            let (rows, groups, width) = match whole {
                true => (rows.min(1), 1, u64::from(movement.width) * rows),
                false => (rows, u64::from(movement.groups), u64::from(movement.width)),
            };
            for row in 0..rows {
                for group in 0..groups {
                    let at = (row * u64::from(movement.stride) + group * u64::from(movement.group_stride)) * 4;
                    let from = task.read(movement.from.offset(at), width * 4)?;
                    task.write(movement.to.offset(at), width * 4)?.copy_from_slice(from);
                }
            }
        }
        Ok(())
    }
}

impl GpuOp for SimCopy {
    fn name(&self) -> &str {
        self.name
    }

    fn run(&self, target: GpuTarget<'_>, _: LaunchArgs) -> Result<(), DeviceError> {
        let task = simulated(&target, self.name)?;
        let from = task.read(self.from, self.bytes)?;
        task.write(self.to, self.bytes)?.copy_from_slice(from);
        Ok(())
    }
}
