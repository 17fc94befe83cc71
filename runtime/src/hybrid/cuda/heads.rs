//! Queries and keys on their way into attention: norms, rotations and the cache write that follow each other in an item
//! become one launch. Other orders and operators in between are lowered one by one (`lower.rs`). Next: `mixers.rs`.

use super::at;
use super::lower::Lower;
use crate::Error;
use kernels::cpu::ops::rope::RopePairing;
use kernels::cuda::DevicePtr;
use kernels::cuda::ops::{self, Heads};
use plan_format::program::{self, OpKind, View};
use plan_format::{RopeId, StateId, WeightId};

/// One side, queries or keys: what is normalised and rotated.
struct Side {
    x: View,
    norm: Option<(Option<WeightId>, f32)>,
    head_cols: u32,
    rope: RopeId,
    rotated: View,
}

/// What one launch computes.
struct Found {
    q: Side,
    k: Side,
    v: View,
    cache: StateId,
    /// Operators that it stands for.
    count: usize,
}

impl Lower<'_> {
    /// Lowers the operators from `first` on as one launch, if they are such; whether they were.
    pub(super) fn heads_and_store(&mut self, first: usize) -> Result<bool, Error> {
        let Some(Found { q, k, v, cache, count }) = self.find_heads(first) else { return Ok(false) };
        let (cache, inputs, _) = self.kv(cache)?;
        let norm = |side: &Side| -> Result<Option<(DevicePtr, f32)>, Error> {
            side.norm.map(|(weight, eps)| Ok((self.small(weight)?, eps))).transpose()
        };
        let norms = norm(&q)?.zip(norm(&k)?).map(|(q, k)| [q, k]);
        let table = &self.program().ropes[q.rope.index()];
        let pairing = match table.pairing {
            program::RopePairing::Norm => RopePairing::Norm,
            program::RopePairing::Neox => RopePairing::Neox,
        };
        let heads = Heads {
            head_cols: q.head_cols,
            n_rot: table.n_rot,
            pairing,
            norms,
            q: self.view(q.x),
            q_out: self.view(q.rotated),
            k: self.view(k.x),
            v: self.view(v),
            trig: at(self.env.trig(q.rope)),
        };
        self.done.extend(first..first + count);
        self.emit(move |args, out| out.push(ops::rope_and_store(&heads, &cache, &inputs, args.tokens)));
        Ok(true)
    }

    /// Norm of queries, norm of keys (both or neither), rotation of queries, rotation of keys, cache write.
    fn find_heads(&self, first: usize) -> Option<Found> {
        let norms = if matches!(self.kind_in(first, first)?, OpKind::RmsNorm { .. }) { 2 } else { 0 };
        let (q_at, k_at, store_at) = (first + norms, first + norms + 1, first + norms + 2);
        let side = |norm_at, rope_at| self.find_side(first, (norms > 0).then_some(norm_at), rope_at);
        let (q, k) = (side(first, q_at)?, side(first + 1, k_at)?);
        let OpKind::StoreKv { k: stored, v: Some(v), cache } = *self.kind_in(first, store_at)? else { return None };
        let is_alike = q.head_cols == k.head_cols && q.rope == k.rope;
        let is_stored = stored == k.rotated && self.is_read_only_by(k.rotated.value, store_at);
        (is_alike && is_stored).then_some(Found { q, k, v, cache, count: norms + 3 })
    }

    fn find_side(&self, first: usize, norm_at: Option<usize>, rope_at: usize) -> Option<Side> {
        let OpKind::Rope { x, heads, head_cols, rope, out } = *self.kind_in(first, rope_at)? else { return None };
        let side = Side { x, norm: None, head_cols, rope, rotated: out };
        if heads.checked_mul(head_cols) != Some(x.cols) {
            return None;
        }
        let Some(norm_at) = norm_at else { return Some(side) };
        let OpKind::RmsNorm { x: before, group, weight, eps, out: normed } = *self.kind_in(first, norm_at)? else {
            return None;
        };
        let is_of_heads = normed == x && group == head_cols && self.is_read_only_by(normed.value, rope_at);
        is_of_heads.then_some(Side { x: before, norm: Some((weight, eps)), ..side })
    }

    /// The operator, if it is in the run and of the same item as `first`.
    fn kind_in(&self, first: usize, index: usize) -> Option<&OpKind> {
        let ops = &self.program().ops;
        (self.ops.contains(&index) && ops[index].item == ops[first].item).then(|| &ops[index].kind)
    }
}
