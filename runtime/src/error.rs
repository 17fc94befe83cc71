//! Everything that can go wrong while a model runs: what, why, and what to do. Not here: exit codes (`cli`).

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
    /// A fault of this program: the plan's verifier should have refused it.
    #[error("internal fault: {what}")]
    Program {
        /// What.
        what: &'static str,
    },
}
