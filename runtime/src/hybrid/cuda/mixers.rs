//! Attention with its cache, convolutions and delta nets. Next: `experts.rs`.

use super::at;
use super::lower::{Attending, Lower, with_value};
use crate::Error;
use crate::exec::terms::attention_shape;
use crate::hybrid::ops::{GpuKv, GpuState};
use kernels::cpu::ops::delta::HeadMap;
use kernels::cpu::ops::kv::KV_BLOCK;
use kernels::cuda::attention::{Attend, Method, Partials};
use kernels::cuda::ops::{self, CacheType, KvCache, RoundInputs};
use kernels::cuda::{DevicePtr, View, recurrent};
use plan_format::program::{self, OpKind};
use plan_format::{StateId, WeightId};
use std::sync::Arc;

impl Lower<'_> {
    pub(super) fn kv(&self, state: StateId) -> Result<(KvCache, RoundInputs, &GpuKv), Error> {
        let GpuState::Kv(kv) = self.env.state(state)? else {
            return Err(Error::Program { what: "attention on a state that is no cache" });
        };
        let cache = KvCache {
            ty: self.cache_type(),
            keys: at(kv.keys),
            values: kv.values.map_or(DevicePtr::NULL, at),
            slot_positions: at(kv.slot_positions),
            slot_sequences: at(kv.slot_sequences),
            k_cols: kv.k_cols,
            v_cols: kv.v_cols,
        };
        let inputs = RoundInputs {
            positions: at(self.env.inputs.positions),
            sequences: at(self.env.inputs.sequences),
            slots: at(kv.token_slots),
            n_slots: at(kv.n_slots),
        };
        Ok((cache, inputs, kv))
    }

    fn cache_type(&self) -> CacheType {
        if self.env.sizes.kv_bytes == 2 { CacheType::F16 } else { CacheType::F32 }
    }

    /// The attention at an operator, if it is one.
    pub(super) fn attending(&self, index: usize) -> Option<Attending> {
        let OpKind::Attention { attention, .. } = &self.program().ops[index].kind else { return None };
        Some(Attending { shape: attention_shape(attention), cache: self.cache_type() })
    }

    pub(super) fn store_kv(&mut self, k: program::View, v: Option<program::View>, state: StateId) -> Result<(), Error> {
        let (cache, inputs, _) = self.kv(state)?;
        let (k, v) = (self.view(k), v.map_or(View::default(), |v| self.view(v)));
        self.emit(move |args, out| out.push(ops::store_kv(k, v, &cache, &inputs, args.tokens)));
        Ok(())
    }

    pub(super) fn attention(
        &mut self,
        index: usize,
        q: program::View,
        state: StateId,
        attention: &program::Attention,
        out: program::View,
    ) -> Result<(), Error> {
        let (cache, inputs, kv) = self.kv(state)?;
        let (slots, tables) = (kv.slots, Arc::clone(&kv.tables));
        let attending = Attending { shape: attention_shape(attention), cache: cache.ty };
        let (acts, others) = self.outputs(index, out);
        let sinks = self.small(attention.sinks)?;
        let (q, out_view) = (self.view(q), self.view(out));
        let start = self.env.scratch.start;
        let (sums, scales) =
            (at(start.offset(self.scratch.partial_sums)), at(start.offset(self.scratch.partial_scales)));
        let room_bytes = self.scratch.partial_sum_bytes;
        self.emit(move |args, out| {
            let slots = slots_seen(&tables, args.context_tokens, slots);
            let partials = Partials { sums, scales, slots };
            let shape = &attending.shape;
            let method = Method::for_shape(shape, cache.ty, args.tokens);
            let (cache, inputs) = (&cache, &inputs);
            let attend = Attend { shape, q, out: out_view, cache, inputs, sinks, partials };
            match method {
                Method::Split => {
                    let room = room_bytes / Partials::bytes_per_token(shape, slots).0.max(1);
                    let room = room.min(u64::from(u32::MAX)) as u32;
                    let forms = with_value(acts.as_deref(), args, others, out_view);
                    let forms = if attending.writes(&forms, args.tokens) { forms } else { attend.value() };
                    out.extend(attend.launches_in_groups(args.tokens, room, forms));
                }
                _ => out.extend(attend.launches(method, args.tokens)),
            }
        });
        Ok(())
    }

    fn states(&self, state: StateId) -> Result<recurrent::States, Error> {
        let GpuState::Floats { start, per_sequence } = *self.env.state(state)? else {
            return Err(Error::Program { what: "a recurrent operator on a cache" });
        };
        let sequences = at(self.env.inputs.sequences);
        Ok(recurrent::States { data: at(start), sequence_stride: per_sequence, sequences })
    }

    pub(super) fn conv(
        &mut self,
        x: program::View,
        filter: WeightId,
        state: StateId,
        out: program::View,
    ) -> Result<(), Error> {
        let program::StateKind::Conv { taps, .. } = self.program().states[state.index()].kind else {
            return Err(Error::Program { what: "a convolution without a convolution state" });
        };
        let (states, filter) = (self.states(state)?, self.small(Some(filter))?);
        let (x, out_view) = (self.view(x), self.view(out));
        self.emit(move |args, out| out.push(recurrent::causal_conv(x, filter, taps, &states, out_view, args.tokens)));
        Ok(())
    }

    pub(super) fn delta(&mut self, net: &program::DeltaNet, out: program::View) -> Result<(), Error> {
        let states = self.states(net.state)?;
        let delta = recurrent::Delta {
            q: self.view(net.q),
            k: self.view(net.k),
            v: self.view(net.v),
            b: self.view(net.b),
            alpha: self.view(net.alpha),
            a: self.small(Some(net.a))?,
            dt: self.small(Some(net.dt))?,
            key_heads: net.key_heads,
            value_heads: net.value_heads,
            head_cols: net.head_cols,
            heads: match net.heads {
                program::HeadMap::Grouped => HeadMap::Grouped,
                program::HeadMap::Tiled => HeadMap::Tiled,
            },
        };
        let out_view = self.view(out);
        self.emit(move |args, out| out.push(recurrent::delta_net(&delta, &states, out_view, args.tokens)));
        Ok(())
    }
}

/// Slots 0 .. this hold all positions below `context_tokens`.
fn slots_seen(tables: &[Vec<u32>], context_tokens: u32, slots: u32) -> u32 {
    let blocks = (context_tokens as usize).div_ceil(KV_BLOCK);
    let last = tables.iter().filter_map(|table| table.iter().take(blocks).max()).max();
    last.map_or(slots, |&block| (block + 1).saturating_mul(KV_BLOCK as u32).min(slots))
}
