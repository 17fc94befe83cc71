//! Everything that can go wrong while a model runs: what, why, and what to do. Not here: exit codes (`cli`).

use plan_format::fingerprint::{Misfit, ModelDifference};
use std::path::PathBuf;

/// Errors of the runtime.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model file.
    #[error(transparent)]
    Gguf(#[from] gguf::GgufError),
    /// An operator.
    #[error(transparent)]
    Kernel(#[from] kernels::KernelError),
    /// The machine.
    #[error(transparent)]
    Device(#[from] device::DeviceError),
    /// The plan.
    #[error(transparent)]
    Plan(#[from] plan_format::Error),
    /// A tensor of a type without kernels.
    #[error(
        "tensor `{tensor}` has ggml type {ggml_type}, which no kernel computes with; use a file in another quantisation"
    )]
    TensorType {
        /// Its name.
        tensor: String,
        /// Its type id.
        ggml_type: u32,
    },
    /// A token id that the model does not have.
    #[error("token id {token} is not below the vocabulary's {vocab}")]
    TokenOutOfRange {
        /// The id.
        token: u32,
        /// The vocabulary.
        vocab: usize,
    },
    /// The tokenizer.
    #[error(transparent)]
    Text(#[from] text::TextError),
    /// Sampling.
    #[error(transparent)]
    Sample(#[from] text::SampleError),
    /// A file that cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A file that cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A plan that is damaged or of another version.
    #[error("{} is no plan that can be used: {source}", path.display())]
    PlanFile {
        /// The plan.
        path: PathBuf,
        /// What is wrong with it.
        source: plan_format::Error,
    },
    /// A plan for another model.
    #[error("the plan {} is stale: the model has changed since it was made ({difference})", path.display())]
    StalePlan {
        /// The plan.
        path: PathBuf,
        /// In what.
        difference: ModelDifference,
    },
    /// A plan for another machine.
    #[error("the plan {} does not fit: {misfit}", path.display())]
    ForeignPlan {
        /// The plan.
        path: PathBuf,
        /// In what the machines differ.
        misfit: Misfit,
    },
    /// A plan with too short a context.
    #[error("the plan {} has a context of {planned} tokens, {needed} are needed", path.display())]
    PlanTooShort {
        /// The plan.
        path: PathBuf,
        /// Its context.
        planned: u32,
        /// Positions needed.
        needed: u32,
    },
    /// No place for compiled plans.
    #[error("no cache folder is known: set XDG_CACHE_HOME or HOME to an absolute path, or name a plan with --plan")]
    NoCache,
    /// `ats-plan` cannot be started.
    #[error("cannot start {} to make a plan: {source}", program.display())]
    StartPlanner {
        /// The program.
        program: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// `ats-plan` failed; it has said why.
    #[error("{} compile {arguments} failed, as it says above", program.display())]
    Planner {
        /// The program.
        program: PathBuf,
        /// Its flags.
        arguments: String,
    },
    /// More tokens than the planned context.
    #[error("{needed} tokens are needed, the plan has a context of {planned}")]
    ContextFull {
        /// Tokens.
        needed: usize,
        /// The plan's context.
        planned: usize,
    },
    /// Nothing to continue.
    #[error("the prompt is empty, and the model adds no beginning to it: there is nothing to continue")]
    EmptyPrompt,
    /// Logits that are not finite.
    #[error("the logits at position {position} are not finite; the first result that is not is {operator}")]
    NotFinite {
        /// Position of the token.
        position: u32,
        /// Name of the first value that is not finite.
        operator: String,
    },
    /// An instruction set that this machine does not have.
    #[error("this machine does not have the instruction set that ATS_ISA asks for")]
    IsaAbsent,
    /// An instruction set of no known name.
    #[error("ATS_ISA is `{name}`: known are scalar, avx2 and avx512")]
    IsaName {
        /// What was given.
        name: String,
    },
    /// A simulated machine of no known name.
    #[error("there is no simulated machine `{name}`; known are {known}")]
    NoSimulatedMachine {
        /// What was asked for.
        name: String,
        /// The names.
        known: String,
    },
    /// A plan that needs more GPU memory than there is.
    #[error(
        "the plan needs {} MiB of GPU memory ({parts}), {} MiB are left under the ceiling",
        needed_bytes.div_ceil(1 << 20), free_bytes >> 20
    )]
    GpuBudget {
        /// All of it.
        needed_bytes: u64,
        /// What is left.
        free_bytes: u64,
        /// What for.
        parts: String,
    },
    /// A streamed item that its slot does not hold.
    #[error("item `{item}` needs {needed_bytes} bytes of its temporary slot, which has {slot_bytes}")]
    SlotTooSmall {
        /// The item.
        item: String,
        /// Bytes of its weights in the order of the slot.
        needed_bytes: u64,
        /// The slot's size.
        slot_bytes: u64,
    },
    /// A streamed item with a state.
    #[error("item `{item}` keeps a state between rounds, so it cannot be streamed to the GPU now and then")]
    PromotedState {
        /// The item.
        item: String,
    },
    /// A schedule that the plan does not have.
    #[error("there is no schedule {number}: the plan has {schedules}, counted from 0")]
    NoSchedule {
        /// What was asked for.
        number: usize,
        /// How many there are.
        schedules: usize,
    },
    /// A fault of this program: the plan's verifier should have refused it.
    #[error("internal fault: {what}")]
    Program {
        /// What.
        what: &'static str,
    },
}
