//! Operators with a state that runs along the tokens: causal convolutions and delta nets, divided by columns.
//! Not here: the arithmetic (`kernels::cpu::ops`), the states' memory (`states.rs`).

use super::run::Context;
use super::shared::Place;
use super::step::Delta;
use device::team::Worker;
use kernels::cpu::ops::View;
use kernels::cpu::ops::conv::causal_conv_silu;
use kernels::cpu::ops::delta::{DeltaInputs, DeltaShape, delta_net};

/// Channels of a convolution that a worker claims at once.
const CONV_CHANNELS: usize = 256;

impl Context<'_> {
    /// A convolution, divided by channels.
    pub fn conv(
        &self,
        worker: &Worker,
        (x, out): (Place, Place),
        (filter, state): (plan_format::WeightId, plan_format::StateId),
        taps: usize,
    ) {
        let filter = self.weights.small(filter);
        let blocks = x.cols.div_ceil(CONV_CHANNELS);
        worker.for_blocks(blocks as u32, 1, |claimed| {
            let channels = claimed.start * CONV_CHANNELS..x.cols.min(claimed.end * CONV_CHANNELS);
            for span in self.round.spans {
                let tokens = span.tokens.clone();
                let filter = View::new(&filter[channels.start * taps..channels.end * taps], channels.len(), taps);
                // SAFETY: each block has channels of its own, in values and states; readers come after a barrier.
                unsafe {
                    let values = self.values(worker.index(), x.home);
                    let x = values.view(x.col_range(channels.clone()), tokens.clone());
                    let out = self.memory.values.view_mut(out.col_range(channels.clone()), tokens);
                    let state = self.states.rows_mut(state, span.sequence, channels.clone(), taps - 1);
                    causal_conv_silu(self.isa, x, filter, state, out);
                }
            }
        });
    }

    /// A delta net, divided by value heads.
    pub fn delta(&self, worker: &Worker, delta: &Delta) {
        let Delta { key_heads, value_heads, head_cols, heads, .. } = *delta;
        let (a, dt) = (self.weights.small(delta.a), self.weights.small(delta.dt));
        let shape = DeltaShape { key_heads, value_heads, head_cols, heads, a, dt };
        worker.for_blocks(value_heads as u32, 1, |range| {
            for span in self.round.spans {
                let tokens = span.tokens.clone();
                // SAFETY: inputs were written before a barrier; each head has columns and states of its own.
                unsafe {
                    let view = |place: Place| self.values(worker.index(), place.home).view(place, tokens.clone());
                    let [q, k, v, b, alpha] = [delta.q, delta.k, delta.v, delta.b, delta.alpha].map(view);
                    let cols = range.start * head_cols..range.end * head_cols;
                    let state = self.states.rows_mut(delta.state, span.sequence, cols.clone(), head_cols);
                    let out = self.memory.values.view_mut(delta.out.col_range(cols), tokens.clone());
                    delta_net(self.isa, shape, DeltaInputs { q, k, v, b, alpha }, range.clone(), state, out);
                }
            }
        });
    }
}
