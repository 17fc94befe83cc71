//! Rotary tables from `A.rope.*`. architectures: RoPE, YaRN.

use super::Lowering;
use crate::arch::LowerError;
use plan_format::RopeId;
use plan_format::program::{Rope, RopePairing, RopeScaling};

/// Base where `A.rope.freq_base` is absent; the format defines it.
const DEFAULT_BASE: f32 = 10000.0;

/// Whether the scaling in the metadata is for this table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scaling {
    /// As `A.rope.scaling.*` says, YaRN with its usual magnitude `1 + 0.1 ln factor`.
    Metadata,
    /// As `A.rope.scaling.*` says, YaRN with magnitude 1.
    MetadataUnitMagnitude,
    /// None (local layers of gemma3).
    Off,
}

/// Whether frequencies are divided by `rope_freqs.weight`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Factors {
    /// If the tensor is there.
    IfPresent,
    /// Not in this family: such a tensor would be left over, which is an error.
    Never,
}

impl Lowering<'_> {
    /// `A.rope.dimension_count`, or all `head_cols` of a head.
    pub fn rotated_cols(&self, head_cols: u32) -> Result<u32, LowerError> {
        let key = "rope.dimension_count";
        let n_rot = self.source.opt_u32(key, 2..=head_cols.max(2))?.unwrap_or(head_cols);
        match n_rot.is_multiple_of(2) {
            true => Ok(n_rot),
            false => Err(self.source.refuse(key, n_rot, format!("an even number up to {head_cols}"))),
        }
    }

    /// A rotary table with the base `A.rope.freq_base`.
    pub fn rope(
        &mut self,
        pairing: RopePairing,
        n_rot: u32,
        scaling: Scaling,
        factors: Factors,
    ) -> Result<RopeId, LowerError> {
        let base = self.rope_base("rope.freq_base")?;
        self.rope_with_base(pairing, n_rot, base, scaling, factors)
    }

    /// The value of a key that holds a base.
    pub fn rope_base(&self, key: &str) -> Result<f32, LowerError> {
        let base = self.source.opt_positive(key)?.unwrap_or(DEFAULT_BASE);
        if base > 1.0 { Ok(base) } else { Err(self.source.refuse(key, base, "a number over 1")) }
    }

    /// A rotary table.
    pub fn rope_with_base(
        &mut self,
        pairing: RopePairing,
        n_rot: u32,
        base: f32,
        scaling: Scaling,
        factors: Factors,
    ) -> Result<RopeId, LowerError> {
        let factors = match factors {
            Factors::IfPresent => self.opt_small("rope_freqs.weight", &[n_rot / 2])?,
            Factors::Never => None,
        };
        let of_model = match scaling {
            Scaling::Off => RopeScaling::None,
            Scaling::Metadata | Scaling::MetadataUnitMagnitude => self.rope_scaling()?,
        };
        let magnitude = match (scaling, of_model) {
            (Scaling::Metadata, RopeScaling::Yarn { factor, .. }) => 1.0 + 0.1 * factor.ln(),
            _ => 1.0,
        };
        Ok(self.graph.rope(Rope { pairing, n_rot, base, scaling: of_model, magnitude, factors }))
    }

    /// `A.rope.scaling.{type, factor, original_context_length}`. A factor without a type is linear, as the format says.
    pub fn rope_scaling(&self) -> Result<RopeScaling, LowerError> {
        let source = &self.source;
        if let Some(factor) = source.opt_f32("rope.scaling.attn_factor")?.filter(|&factor| factor != 1.0) {
            return Err(source.refuse("rope.scaling.attn_factor", factor, "1, or no such key"));
        }
        // 0 and 1 both mean "as trained".
        let factor = match source.opt_f32("rope.scaling.factor")? {
            None | Some(0.0 | 1.0) => None,
            Some(_) => source.opt_positive("rope.scaling.factor")?,
        };
        match (source.opt_str("rope.scaling.type")?, factor) {
            (Some("none"), _) | (None | Some("linear"), None) => Ok(RopeScaling::None),
            (None | Some("linear"), Some(factor)) => Ok(RopeScaling::Linear { factor }),
            (Some("yarn"), _) => Ok(RopeScaling::Yarn {
                factor: source.positive("rope.scaling.factor")?,
                original_context_tokens: source.u32("rope.scaling.original_context_length", 1..=u32::MAX)?,
            }),
            (Some(other), _) => Err(source.refuse("rope.scaling.type", other, "none, linear or yarn")),
        }
    }
}
