//! Lowering: a GGUF model to the computation graph, one file per family.
//!
//! A family's file says in which order the shared building blocks (`common`) stand and with which figures; the maths
//! of a block is an operator of `plan_format::program`. Nothing is guessed: a key or tensor that is missing, odd or
//! left over is an error with its name. Next: `source.rs` (keys and tensors), `common/mod.rs`, then any family.

mod common;
mod deepseek2;
mod error;
mod gemma3;
mod glm4;
mod gpt_oss;
mod llama;
mod llama4;
mod qwen2;
mod qwen3;
mod qwen35moe;
mod qwen3moe;
mod qwen3next;
mod source;

pub use error::LowerError;

use crate::graph::{Graph, flatten};
use common::Lowering;
use plan_format::program::{Program, View};
use plan_format::verify::verify_program;

/// Lowers one family: embedding, layers, head; gives the logits.
type Family = fn(&mut Lowering<'_>) -> Result<View, LowerError>;

/// Every family by its `general.architecture`.
const FAMILIES: &[(&str, Family)] = &[
    ("deepseek2", deepseek2::lower),
    ("gemma3", gemma3::lower),
    ("glm4", glm4::lower),
    ("gpt-oss", gpt_oss::lower),
    ("llama", llama::lower),
    ("llama4", llama4::lower),
    ("qwen2", qwen2::lower),
    ("qwen3", qwen3::lower),
    ("qwen35moe", qwen35moe::lower),
    ("qwen3moe", qwen3moe::lower),
    ("qwen3next", qwen3next::lower),
];

/// Names of the families that can be lowered, sorted.
pub fn families() -> impl Iterator<Item = &'static str> {
    FAMILIES.iter().map(|(name, _)| *name)
}

/// The computation graph of a model.
///
/// # Errors
/// An unknown family, or a key or tensor that is missing, odd or left over.
pub fn lower(model: &gguf::Model) -> Result<Graph, LowerError> {
    let architecture = model.str("general.architecture")?;
    let family = FAMILIES.iter().find(|(name, _)| *name == architecture);
    let Some((_, lower)) = family else {
        return Err(LowerError::UnknownFamily {
            found: architecture.to_owned(),
            known: families().collect::<Vec<_>>().join(", "),
        });
    };
    let mut lowering = Lowering::new(model, architecture)?;
    let logits = lower(&mut lowering)?;
    lowering.finish(logits)
}

/// The verified program of a model.
///
/// # Errors
/// As [`lower`]; or the graph or program breaks an invariant, which is a fault of this program.
pub fn lower_model(model: &gguf::Model) -> Result<Program, LowerError> {
    let program = flatten(&lower(model)?)?;
    verify_program(&program)?;
    Ok(program)
}
