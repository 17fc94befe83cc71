//! What can keep a model from being lowered, each with the key or tensor and what would be accepted.

use crate::graph::GraphError;

/// Why a model cannot be lowered.
#[derive(Debug, thiserror::Error)]
pub enum LowerError {
    /// A key or tensor is missing or of the wrong kind.
    #[error(transparent)]
    Gguf(#[from] gguf::GgufError),
    /// No lowering for this family.
    #[error("the model's family (`general.architecture`) is `{found}`; known families are {known}")]
    UnknownFamily {
        /// What the file says.
        found: String,
        /// What is known.
        known: String,
    },
    /// A key has a value that this family's mathematics here cannot use.
    #[error("metadata key `{key}` is {found}; expected {accepted}")]
    Key {
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What would be accepted.
        accepted: String,
    },
    /// None of several alternative tensors is there.
    #[error("tensor `{tensor}` is missing from the model; it is {purpose}")]
    MissingTensor {
        /// The tensor, or its alternatives.
        tensor: String,
        /// What it is needed for.
        purpose: String,
    },
    /// Experts that are tensors of their own, as converters wrote them until 2024.
    #[error(
        "tensor `{tensor}` holds a single expert, an old layout that is not read here; all experts of a layer are \
         expected in one tensor, `{expected}`: convert the model again"
    )]
    OldExperts {
        /// The first one.
        tensor: String,
        /// What is read.
        expected: String,
    },
    /// A tensor's shape contradicts the metadata.
    #[error("tensor `{tensor}` has the shape {found:?}; the metadata make it {expected:?}")]
    Shape {
        /// The tensor.
        tensor: String,
        /// Its dimensions.
        found: Vec<u64>,
        /// What the keys say.
        expected: Vec<u64>,
    },
    /// A tensor of a type that no kernel reads.
    #[error("tensor `{tensor}` has the type {found}; accepted here are {accepted}")]
    Type {
        /// The tensor.
        tensor: String,
        /// Its type.
        found: String,
        /// What would be accepted.
        accepted: String,
    },
    /// Tensors that the family does not use: the model computes something else than would be computed here.
    #[error("tensor `{tensor}`{others} is in the file but not known for the family `{family}`; a variant of it?")]
    UnusedTensor {
        /// The first one.
        tensor: String,
        /// How many more there are.
        others: String,
        /// The family.
        family: String,
    },
    /// The graph breaks an invariant.
    #[error("lowering made a wrong graph, please report this: {0}")]
    Graph(#[from] GraphError),
    /// The program breaks an invariant.
    #[error("lowering made a wrong program, please report this: {0}")]
    Program(#[from] plan_format::Error),
}
