//! Qwen3.5 mixture of experts: Qwen3-Next with the delta net's beta and alpha apart and value heads tiled over key
//! heads. architectures, section 9.

use super::LowerError;
use super::common::{Gates, Lowering};
use super::qwen3next::lower_with;
use plan_format::program::View;

/// Lowers the whole model.
pub fn lower(l: &mut Lowering<'_>) -> Result<View, LowerError> {
    // Sections of the rotation for images; for text all positions are equal, and it is the plain NEOX rotation.
    l.source.numbers("rope.dimension_sections", 4)?;
    lower_with(l, Gates::TiledApart)
}
