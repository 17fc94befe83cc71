//! Attention of a round that stands deep in its context: many tiles of slots, a cache that has gone round.
//! Next: `fused.rs`.

use super::rest::normals;
use super::{Bench, judge, relative_norm};
use crate::cases::Random;
use crate::cpu::ops::attention::{AttentionShape, Mask};
use crate::cpu::ops::oracle;
use crate::cuda::DevicePtr;
use crate::cuda::attention::{Attend, Method, Partials};
use crate::cuda::ops::{CacheType, KvCache, RoundInputs};
use half::f16;

/// Tokens of the round.
const TOKENS: usize = 40;

/// Rounds at the end of contexts beyond 2048 tokens, by every method.
pub(super) fn deep_contexts(bench: &mut Bench) -> Result<(), String> {
    deep(bench, Mask::Causal, 2304, 2304)?;
    deep(bench, Mask::Window { tokens: 128 }, 5000, 2176)
}

/// A round that ends at position `length` - 1, in a cache of so many slots: position p lies at p % slots.
fn deep(bench: &mut Bench, mask: Mask, length: usize, slots: usize) -> Result<(), String> {
    let (heads, kv_heads, cols) = (4, 1, 64);
    let (k_head_cols, v_head_cols, scale, softcap) = (cols, cols, 0.125, None);
    let shape = AttentionShape { q_heads: heads, kv_heads, k_head_cols, v_head_cols, scale, softcap, mask };
    let mut random = Random::new(length as u64);
    let half = |values: Vec<f32>| values.into_iter().map(f16::from_f32).collect::<Vec<f16>>();
    let (k, v) = (half(normals(&mut random, slots * cols, 1.0)), half(normals(&mut random, slots * cols, 1.0)));
    let q = normals(&mut random, TOKENS * heads * cols, 1.0);
    let first = length - slots;
    let slot_of = |position: usize| position % slots;
    let in_order = |cache: &[f16]| -> Vec<f32> {
        let rows = (first..length).flat_map(|position| &cache[slot_of(position) * cols..][..cols]);
        rows.map(|value| value.to_f32()).collect()
    };
    // The oracle counts from the first position that is kept.
    let asked: Vec<u32> = (length - TOKENS..length).map(|position| (position - first) as u32).collect();
    let want = oracle::attention(&shape, &q, &asked, &in_order(&k), Some(&in_order(&v)), None);
    let mut slot_positions = vec![0; slots];
    (first..length).for_each(|position| slot_positions[slot_of(position)] = position as i32);
    let positions: Vec<i32> = (length - TOKENS..length).map(|position| position as i32).collect();
    let inputs = RoundInputs {
        positions: bench.put(&positions)?,
        sequences: bench.put(&[0i32; TOKENS])?,
        slots: bench.put(&[0i32; TOKENS])?,
        n_slots: bench.put(&[slots as u32])?,
    };
    let cache = KvCache {
        ty: CacheType::F16,
        keys: bench.put(&k)?,
        values: bench.put(&v)?,
        slot_positions: bench.put(&slot_positions)?,
        slot_sequences: bench.put(&vec![0i32; slots])?,
        k_cols: cols as u32,
        v_cols: cols as u32,
    };
    let q = bench.put_rows(&q, heads * cols)?;
    for method in [Method::Split, Method::Tiled] {
        let out = bench.room_rows(TOKENS, heads * cols)?;
        let (sums, scales) = Partials::bytes_per_token(&shape, slots as u32);
        let (sums, scales) = (bench.room(sums as usize * TOKENS)?, bench.room(scales as usize * TOKENS)?);
        let partials = Partials { sums, scales, slots: slots as u32 };
        let (cache, inputs, sinks) = (&cache, &inputs, DevicePtr::NULL);
        let attend = Attend { shape: &shape, q, out, cache, inputs, sinks, partials };
        bench.run(attend.launches(method, TOKENS as u32))?;
        let got: Vec<f32> = bench.get(out.data, want.len())?;
        judge(&format!("{method:?}, {mask:?}, {length} tokens"), relative_norm(&got, &want), 2e-3)?;
    }
    Ok(())
}
