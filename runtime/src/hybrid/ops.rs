//! Where the executor and a kind of GPU meet: what operators are made of ([`OpEnv`]), and who makes them ([`OpMaker`]).
//!
//! The executor decides what runs where and when; a maker turns runs of the program's operators into [`GpuOp`]s, once,
//! at load. There is one maker per kind of GPU: `sim.rs` and `cuda.rs`. All addresses are fixed when an operator is
//! made; what changes from round to round comes in [`RoundArgs`] and in the round's inputs in GPU memory.
//!
//! Rules for operators: they run on the compute stream in the order in which they were made (unpackers on their own
//! stream), so a later one may rely on an earlier one's writes; they touch the values that their run reads and writes,
//! their weights and states, and the maker's scratch, nothing else; a value that is read outside their run
//! ([`OpEnv::is_read_outside`]) is in memory when the run ends. They never wait, allocate or synchronise. Next:
//! `script.rs`.

use super::memory::{GpuMap, Room};
use crate::Error;
use crate::exec::choices::ChoiceMemory;
use device::gpu::{DevicePtr, DeviceRegion, GpuOp, LaunchArgs};
use kernels::quant::WeightType;
use plan_format::arena::RoundLimits;
use plan_format::program::{Op, OpKind, Program, Rows, View};
use plan_format::schedule::Layout;
use plan_format::{RopeId, StateId, ValueId, WeightId};
use std::ops::Range;
use std::sync::Arc;

/// Makes operators for one kind of GPU. Called at load only.
pub trait OpMaker: Send + Sync {
    /// GPU memory that the maker wants for itself (quantised activations, partial results, constants); asked before any
    /// memory is taken, for all rounds and where these have a room of their own for rounds of few tokens, and counted
    /// against the ceiling. Constants come first, and lie at the same offsets for all sizes.
    /// Errors: sizes that no kernel takes.
    fn scratch_bytes(&self, program: &Program, sizes: &Sizes) -> Result<u64, Error>;

    /// Order of the bytes of a weight that stays on the GPU. `planned` is what the plan says.
    fn resident_layout(&self, weight: &WeightShape, planned: Layout) -> Layout;

    /// Order of the bytes of a streamed weight in its slot.
    fn slot_layout(&self, weight: &WeightShape) -> Layout;

    /// Whether a streamed weight arrives through the staging area and [`OpMaker::unpack`] writes its slot. Else the
    /// copy engine writes it, in the host's order ([`Layout::CpuPanel16`]).
    fn unpacks(&self, weight: &WeightShape) -> bool {
        self.slot_layout(weight) != Layout::CpuPanel16
    }

    /// Unpacks a piece of a streamed weight from the staging area into its slot; runs on a stream of its own. Asked
    /// only where [`OpMaker::unpacks`].
    /// Errors: a type or layout without such a kernel.
    fn unpack(&self, piece: &Arrival) -> Result<Arc<dyn GpuOp>, Error>;

    /// Operators at the start of each round that uses the GPU, after its inputs have arrived: angles of the rotary
    /// tables. Constants in the scratch may be uploaded here.
    /// Errors: an upload that fails.
    fn prologue(&self, env: &OpEnv<'_>) -> Result<Vec<Arc<dyn GpuOp>>, Error>;

    /// Operators for `ops` of the program, which follow each other on the GPU without anything between; they may be
    /// fused. A slot's weights are read only between the first and the last of them.
    /// Errors: an operator, type or shape without kernel; a weight or state that is not on the GPU.
    fn run(&self, ops: Range<usize>, env: &OpEnv<'_>) -> Result<Vec<Arc<dyn GpuOp>>, Error>;

    /// One operator that copies columns between mapped host memory and GPU memory (zero copy, on the multiprocessors).
    /// Errors: a shape without kernel.
    fn mover(&self, moves: &[Move]) -> Result<Arc<dyn GpuOp>, Error>;

    /// One operator that copies bytes (a multiple of 16) from mapped host memory to GPU memory.
    /// Errors: none on a sound GPU.
    fn copier(&self, from: DevicePtr, to: DevicePtr, bytes: u64) -> Result<Arc<dyn GpuOp>, Error>;
}

/// What bounds an operator's sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Largest round.
    pub limits: RoundLimits,
    /// Longest sequence in tokens.
    pub context_tokens: u32,
    /// Number of sequences.
    pub sequences: u32,
    /// Bytes of an element of the key/value caches: 2 (F16) or 4 (F32).
    pub kv_bytes: u32,
}

/// The numbers of a round, as they travel in a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundArgs {
    /// Tokens.
    pub tokens: u32,
    /// Tokens whose logits are wanted.
    pub outputs: u32,
    /// One more than the highest position of the round: what attention may have to read.
    pub context_tokens: u32,
}

impl RoundArgs {
    /// Rows of a value in this round.
    pub fn rows(&self, rows: Rows) -> u32 {
        match rows {
            Rows::Tokens => self.tokens,
            Rows::Outputs => self.outputs,
        }
    }
}

impl From<LaunchArgs> for RoundArgs {
    fn from(args: LaunchArgs) -> Self {
        RoundArgs { tokens: args.tokens, outputs: args.extra[0], context_tokens: args.extra[1] }
    }
}

impl From<RoundArgs> for LaunchArgs {
    fn from(args: RoundArgs) -> Self {
        LaunchArgs { tokens: args.tokens, extra: [args.outputs, args.context_tokens, 0] }
    }
}

/// Type and dimensions of a weight's matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightShape {
    /// Type of its numbers.
    pub ty: WeightType,
    /// Rows (outputs) of each matrix.
    pub rows: usize,
    /// Columns (inputs).
    pub cols: usize,
    /// Matrices of a stack (experts, heads); 1 for a plain matrix.
    pub stack: usize,
}

/// A large weight in GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuWeight {
    /// Its matrices.
    pub shape: WeightShape,
    /// Order of the bytes.
    pub layout: Layout,
    /// First byte of the first matrix, 256-byte aligned.
    pub start: DevicePtr,
    /// Bytes from one matrix to the next.
    pub stride_bytes: u64,
    /// Where the matrices of a stack lie: `None` = matrix e at place e. Else I32 \[stack\], in mapped host memory: the
    /// place of each matrix, −1 for one that this round does not use.
    pub places: Option<DevicePtr>,
    /// Matrices that there is room for: all of the stack, or as many as a round may use.
    pub room: usize,
}

impl GpuWeight {
    /// Bytes of its memory.
    pub fn size_bytes(&self) -> u64 {
        self.stride_bytes * self.room as u64
    }
}

/// A small weight: F32 {elements} (biases of experts {out, experts}), 256-byte aligned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuSmall {
    /// First element.
    pub start: DevicePtr,
    /// Number of elements.
    pub len: usize,
}

/// A view of an activation in GPU memory: elements of 4 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuView {
    /// First column of the first row.
    pub start: DevicePtr,
    /// Elements from one row to the next.
    pub stride: u32,
    /// Columns.
    pub cols: u32,
    /// How many rows it has in a round.
    pub rows: Rows,
}

/// A state in GPU memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GpuState {
    /// Keys and values.
    Kv(GpuKv),
    /// F32 of a convolution or a delta net; all sequences, zeroed when a sequence begins.
    Floats {
        /// State of sequence 0.
        start: DevicePtr,
        /// Elements of one sequence.
        per_sequence: u64,
    },
}

/// A key/value cache in GPU memory, zeroed once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuKv {
    /// \[slots, k_cols\].
    pub keys: DevicePtr,
    /// \[slots, v_cols\]; `None` where values are the first columns of the keys.
    pub values: Option<DevicePtr>,
    /// Columns of a slot's keys.
    pub k_cols: u32,
    /// Columns of a slot's values.
    pub v_cols: u32,
    /// Slots of all sequences.
    pub slots: u32,
    /// I32 \[slots\]: the position that each slot holds, −1 = none; `StoreKv` writes them.
    pub slot_positions: DevicePtr,
    /// I32 \[slots\]: the sequence that each slot holds; `StoreKv` writes them.
    pub slot_sequences: DevicePtr,
    /// I32 \[tokens\]: the slot of each token of the round.
    pub token_slots: DevicePtr,
    /// U32: slots 0 .. this may hold something, this round's included.
    pub n_slots: DevicePtr,
    /// Physical block of each logical block of [`kernels::cpu::ops::kv::KV_BLOCK`] positions, by sequence.
    pub tables: Arc<Vec<Vec<u32>>>,
}

/// The round's inputs in GPU memory, written at the start of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuInputs {
    /// U32 \[tokens\]: token ids.
    pub tokens: DevicePtr,
    /// I32 \[tokens\]: positions.
    pub positions: DevicePtr,
    /// I32 \[tokens\]: sequences; the tokens of one stand together, in order.
    pub sequences: DevicePtr,
    /// I32 \[outputs\]: indices of the tokens whose logits are wanted.
    pub outputs: DevicePtr,
}

/// Columns that a mover copies, row by row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// First column of the first row at the source.
    pub from: DevicePtr,
    /// The same at the target.
    pub to: DevicePtr,
    /// Rows in a round.
    pub rows: Rows,
    /// Elements (4 bytes each) from one row to the next, on both sides.
    pub stride: u32,
    /// Runs of columns in each row.
    pub groups: u32,
    /// Elements from one run's start to the next one's.
    pub group_stride: u32,
    /// Elements of a run.
    pub width: u32,
}

/// A piece of a streamed weight in the staging area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The weight's matrices.
    pub shape: WeightShape,
    /// Rows of one matrix that the piece holds; it begins with a whole panel of 16.
    pub rows: (u32, u32),
    /// The panels in GPU memory, as the host has them ([`Layout::CpuPanel16`]).
    pub from: DevicePtr,
    /// First byte of the matrix in its slot, in [`OpMaker::slot_layout`].
    pub to: DevicePtr,
}

/// What operators are made of. Valid while they are made; addresses stay as they are for good.
#[derive(Clone, Copy)]
pub struct OpEnv<'a> {
    /// The program.
    pub program: &'a Program,
    /// What bounds the rounds that operators are made for.
    pub sizes: Sizes,
    /// The round's inputs.
    pub inputs: GpuInputs,
    /// The maker's memory, content undefined.
    pub scratch: DeviceRegion,
    pub(super) map: &'a GpuMap,
    /// What these rounds work in.
    pub(super) room: &'a Room,
    /// Weights that these rounds hold.
    pub(super) held: &'a [(WeightId, GpuWeight)],
    /// Weights of the run that lie in a slot.
    pub(super) streamed: &'a [(WeightId, GpuWeight)],
    /// Where choices of experts are recorded, if they are.
    pub(super) choices: Option<&'a ChoiceMemory>,
}

impl OpEnv<'_> {
    /// Where a view of an activation lies.
    pub fn view(&self, view: View) -> GpuView {
        let value = &self.program.values[view.value.index()];
        let start = self.room.value(view.value);
        let start = start.offset(u64::from(view.first_col) * 4);
        GpuView { start, stride: value.cols, cols: view.cols, rows: value.rows }
    }

    /// Where a large weight lies. Errors: it is not on the GPU.
    pub fn weight(&self, weight: WeightId) -> Result<GpuWeight, Error> {
        let passing = self.streamed.iter().chain(self.held).find(|(id, _)| *id == weight).map(|(_, place)| *place);
        let found = passing.or_else(|| self.map.weights[weight.index()]);
        found.ok_or(Error::Program { what: "a GPU operator reads a weight that is not on the GPU" })
    }

    /// Where a small weight lies. Errors: the program uses it on no GPU.
    pub fn small(&self, weight: WeightId) -> Result<GpuSmall, Error> {
        let found = self.map.smalls[weight.index()];
        found.ok_or(Error::Program { what: "a GPU operator reads a small weight that is not on the GPU" })
    }

    /// Where a state lies. Errors: it is not on the GPU.
    pub fn state(&self, state: StateId) -> Result<&GpuState, Error> {
        let found = self.map.states[state.index()].as_ref();
        found.ok_or(Error::Program { what: "a GPU operator uses a state that is not on the GPU" })
    }

    /// Where the router at `index` of the program writes down its choices, in mapped host memory; `None` for other
    /// operators, and where nothing is recorded.
    pub fn choices_of(&self, index: usize) -> Option<GpuView> {
        let is_router = |op: &Op| matches!(op.kind, OpKind::Router { .. });
        let choices = self.choices.filter(|_| is_router(&self.program.ops[index]))?;
        let number = self.program.ops[..index].iter().filter(|op| is_router(op)).count();
        let (offset_bytes, chosen) = choices.routers.offset_bytes(number)?;
        let (start, chosen) = (choices.device?.offset(offset_bytes as u64), chosen as u32);
        Some(GpuView { start, stride: chosen, cols: chosen, rows: Rows::Tokens })
    }

    /// Whether any operator outside `ops` reads a value that `ops` write; the logits are always read.
    pub fn is_read_outside(&self, value: ValueId, ops: &Range<usize>) -> bool {
        let reads = |index: usize| self.program.ops[index].kind.reads().any(|columns| columns.value == value);
        value == self.program.logits || (0..ops.start).chain(ops.end..self.program.ops.len()).any(reads)
    }

    /// Room for the angles of a rotary table: F32 \[tokens, n_rot\]. The prologue writes it, in whatever order the same
    /// maker's operators read.
    pub fn trig(&self, rope: RopeId) -> DevicePtr {
        self.map.trig[rope.index()]
    }
}
