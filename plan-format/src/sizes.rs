//! Bytes of weights and states, as the plan counts them. Pure arithmetic over the program; what a layout pads is the
//! runtime's to add. Next: `arena.rs` for activations.

use crate::artifact::KvType;
use crate::ids::StateId;
use crate::program::{Item, Program, StateKind, WeightRole};

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
    /// Bytes of the large weights that an item places. A tied head counts at the head, and only there.
    pub fn item_weight_bytes(&self, item: &Item) -> u64 {
        let tensors = item.weights.iter().map(|w| &self.tensors[self.weights[w.index()].tensor.index()]);
        tensors.map(|tensor| tensor.size_bytes).sum()
    }

    /// Bytes of the small weights, which every device holds.
    pub fn small_weight_bytes(&self) -> u64 {
        let small = self.weights.iter().filter(|w| w.role == WeightRole::Small);
        // They are F32 at run time, whatever the file has.
        small.map(|w| self.tensors[w.tensor.index()].dims.iter().product::<u64>() * F32_BYTES).sum()
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

/// Tokens that a cache must hold.
pub fn kv_slots(window_tokens: Option<u32>, span: CacheSpan) -> u64 {
    let all = u64::from(span.context_tokens);
    window_tokens.map_or(all, |window| all.min(u64::from(window) + u64::from(span.ubatch_tokens)))
}
