//! Bytes of weights and states, as the plan counts them, and what of a tensor a weight holds. Pure arithmetic over the
//! program; what a layout pads is the runtime's to add. Next: `arena.rs` for activations.

use crate::artifact::KvType;
use crate::ids::{StateId, WeightId};
use crate::program::{Item, Part, PartAxis, Program, StateKind, Tensor, Weight, WeightRole};
use std::borrow::Cow;

/// Bytes of a state's element that is always F32 (convolutions and recurrences).
const F32_BYTES: u64 = 4;

/// For how much context a state is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheSpan {
    /// Longest context.
    pub context_tokens: u32,
    /// Most tokens of a round: a window must keep what the first of them sees while the last is written.
    pub ubatch_tokens: u32,
}

impl Program {
    /// A weight's tensor as the weight holds it: of a stack whose experts are divided, with its own experts alone.
    pub fn held(&self, weight: WeightId) -> Cow<'_, Tensor> {
        self.held_by(&self.weights[weight.index()])
    }

    /// The same of a weight of the program.
    pub fn held_by(&self, weight: &Weight) -> Cow<'_, Tensor> {
        let tensor = &self.tensors[weight.tensor.index()];
        let Some(experts) = weight.experts() else { return Cow::Borrowed(tensor) };
        let (axis, held) = (weight.experts_dim(), u64::from(experts_of(experts)));
        let mut dims = tensor.dims;
        let size_bytes = tensor.size_bytes / dims[axis].max(1) * held;
        dims[axis] = held;
        Cow::Owned(Tensor { dims, size_bytes, ..tensor.clone() })
    }

    /// Bytes of the large weights that an item places. A tied head counts at the head, and only there.
    pub fn item_weight_bytes(&self, item: &Item) -> u64 {
        item.weights.iter().map(|&weight| self.held(weight).size_bytes).sum()
    }

    /// Bytes of the small weights, which every device holds.
    pub fn small_weight_bytes(&self) -> u64 {
        let small = self.weights.iter().filter(|w| w.role == WeightRole::Small);
        // They are F32 at run time, whatever the file has.
        small.map(|w| self.held_by(w).dims.iter().product::<u64>() * F32_BYTES).sum()
    }

    /// Bytes of one sequence's state.
    pub fn state_bytes(&self, state: StateId, span: CacheSpan, kv_type: KvType) -> u64 {
        match self.states[state.index()].kind {
            StateKind::Kv { k_cols, v_cols, window_tokens } => {
                let slots = kv_slots(window_tokens, span);
                slots * (u64::from(k_cols) + u64::from(v_cols)) * kv_type.bytes()
            }
            StateKind::Conv { channels, taps } => u64::from(channels) * u64::from(taps - 1) * F32_BYTES,
            StateKind::Recurrent { value_heads, head_cols } => {
                u64::from(value_heads) * u64::from(head_cols) * u64::from(head_cols) * F32_BYTES
            }
        }
    }

    /// Bytes of an item's states.
    pub fn item_state_bytes(&self, item: &Item, span: CacheSpan, kv_type: KvType) -> u64 {
        item.states.iter().map(|&state| self.state_bytes(state, span, kv_type)).sum()
    }
}

impl Tensor {
    /// Elements of a row (`dims[0]`).
    pub fn cols(&self) -> u64 {
        self.dims[0]
    }

    /// Rows of one matrix (`dims[1]`); a stack of expert or head matrices has `dims[2]` of them.
    pub fn rows(&self) -> u64 {
        self.dims[1]
    }
}

impl Weight {
    /// The experts that it holds, if it holds some of its tensor's.
    pub fn experts(&self) -> Option<&[Part]> {
        (self.axis == PartAxis::Experts).then_some(&self.parts[..])
    }

    /// The dimension of its tensor that counts experts, if they are divided.
    pub fn experts_dim(&self) -> usize {
        if self.role == WeightRole::Small { 1 } else { 2 }
    }
}

/// How many experts these ranges hold.
pub fn experts_of(held: &[Part]) -> u32 {
    held.iter().map(|part| part.end.saturating_sub(part.begin)).fold(0, u32::saturating_add)
}

/// Each of them, ascending: the one at place p is the p-th.
pub fn experts_in(held: &[Part]) -> impl Iterator<Item = u32> {
    held.iter().flat_map(|part| part.begin..part.end)
}

/// Tokens that a cache must hold.
pub fn kv_slots(window_tokens: Option<u32>, span: CacheSpan) -> u64 {
    let all = u64::from(span.context_tokens);
    window_tokens.map_or(all, |window| all.min(u64::from(window) + u64::from(span.ubatch_tokens)))
}
