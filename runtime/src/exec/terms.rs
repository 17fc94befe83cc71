//! The plan's words in the kernels' terms. Next: `prepare.rs`.

use super::step::RouterRule;
use super::weights::WeightStore;
use kernels::cpu::ops::attention::{AttentionShape, Mask};
use kernels::cpu::ops::elementwise::Glu;
use kernels::cpu::ops::rope::{RopePairing, RopeParams, RopeScaling, RopeTable};
use kernels::cpu::ops::router::{RouterScore, RouterWeights};
use plan_format::program;

/// A rotary table.
pub fn rope_table(rope: &program::Rope, weights: &WeightStore) -> RopeTable {
    let scaling = match rope.scaling {
        program::RopeScaling::None => RopeScaling::None,
        program::RopeScaling::Linear { factor } => RopeScaling::Linear { factor },
        program::RopeScaling::Yarn { factor, original_context_tokens } => {
            RopeScaling::Yarn { factor, original_context_tokens }
        }
    };
    RopeTable::new(RopeParams {
        n_rot: rope.n_rot as usize,
        base: rope.base,
        scaling,
        magnitude: rope.magnitude,
        factors: rope.factors.map(|factors| weights.small(factors)),
    })
}

/// Which columns are turned together.
pub fn pairing(pairing: program::RopePairing) -> RopePairing {
    match pairing {
        program::RopePairing::Norm => RopePairing::Norm,
        program::RopePairing::Neox => RopePairing::Neox,
    }
}

/// A gated unit.
pub fn glu(activation: program::GluActivation) -> Glu {
    match activation {
        program::GluActivation::Silu => Glu::Silu,
        program::GluActivation::GeluTanh => Glu::GeluTanh,
        program::GluActivation::ClampedSwish { alpha, limit } => Glu::ClampedSwish { alpha, limit },
    }
}

/// How a router chooses.
pub fn router_rule(router: &program::Router) -> RouterRule {
    let score = match router.score {
        program::RouterScore::Softmax => RouterScore::Softmax,
        program::RouterScore::Sigmoid => RouterScore::Sigmoid,
        program::RouterScore::Logit => RouterScore::Logit,
    };
    let weights = match router.weights {
        program::RouterWeights::Score => RouterWeights::Score,
        program::RouterWeights::ScoreNormalised => RouterWeights::ScoreNormalised,
        program::RouterWeights::SoftmaxOfChosen => RouterWeights::SoftmaxOfChosen,
    };
    RouterRule { chosen: router.chosen as usize, score, weights, scale: router.scale }
}

/// An attention in the words of the kernels.
pub fn attention_shape(attention: &program::Attention) -> AttentionShape {
    let mask = match attention.mask {
        program::Mask::Causal => Mask::Causal,
        program::Mask::Window { tokens } => Mask::Window { tokens },
        program::Mask::Chunk { tokens } => Mask::Chunk { tokens },
    };
    AttentionShape {
        q_heads: attention.q_heads as usize,
        kv_heads: attention.kv_heads as usize,
        k_head_cols: attention.k_head_cols as usize,
        v_head_cols: attention.v_head_cols as usize,
        scale: attention.scale,
        softcap: None,
        mask,
    }
}
