//! Launches that do the work of several, or share out a row in another way: the same bits. Next: `products.rs`.

use super::rest::{AllForms, Check, normals};
use super::{Bench, relative_norm};
use crate::cases::Random;
use crate::cpu::ops::attention::{AttentionShape, Mask};
use crate::cpu::ops::elementwise::Glu;
use crate::cpu::ops::rope::RopePairing;
use crate::cuda::attention::{Attend, Method, Partials};
use crate::cuda::ops::{self, CacheType, Heads, KvCache, RopeShape, RoundInputs};
use crate::cuda::rows;
use crate::cuda::{DevicePtr, Forms, View};

/// All checks of this file.
pub(super) const CHECKS: [(&str, Check); 3] = [
    ("rows with and without a scale", shared_rows),
    ("attention in forms", attention_in_forms),
    ("rotations and cache write in one launch", heads_in_one_launch),
];

fn same<T: bytemuck::Pod + PartialEq>(what: &str, a: &[T], b: &[T]) -> Result<(), String> {
    match a.iter().zip(b).position(|(a, b)| a != b) {
        None if a.len() == b.len() => Ok(()),
        at => Err(format!("{what}: differs at {at:?}")),
    }
}

/// F32, bytes and BF16 of two producers' outputs, as bits.
fn same_forms(bench: &mut Bench, a: &AllForms, b: &AllForms) -> Result<(), String> {
    let count = a.rows * a.cols;
    let read = |bench: &mut Bench, at: DevicePtr, bytes: usize| bench.get::<u8>(at, bytes);
    for (what, of, bytes) in [
        ("F32", (|forms| forms.f32) as fn(&Forms) -> DevicePtr, 4 * count),
        ("Q8", |forms| forms.q8, count),
        ("scales of Q8", |forms| forms.q8_scales, count / 4),
        ("BF16", |forms| forms.bf16, 2 * count),
    ] {
        let (a, b) = (read(bench, of(&a.forms), bytes)?, read(bench, of(&b.forms), bytes)?);
        same(what, &a, &b)?;
    }
    Ok(())
}

/// One block per row where there is a scale, several where there is none; columns beyond what a block keeps.
fn shared_rows(bench: &mut Bench) -> Result<(), String> {
    for (rows, cols) in [(3, 96), (2, 5120), (1, 21_504)] {
        let mut random = Random::new(21);
        let (x, other) = (normals(&mut random, rows * cols, 2.0), normals(&mut random, rows * cols, 2.0));
        let weight = bench.put(&normals(&mut random, cols, 1.0))?;
        let (x, other) = (bench.put_rows(&x, cols)?, bench.put_rows(&other, cols)?);
        let n = rows as u32;
        let launches = |forms| {
            [
                rows::convert(x, n, forms),
                rows::glu(Glu::Silu, x, other, n, forms),
                rows::rms_norm(x, None, weight, 1e-6, n, forms),
            ]
        };
        for kernel in 0..3 {
            let (scaled, plain) = (AllForms::room(bench, rows, cols)?, AllForms::room(bench, rows, cols)?);
            let without = Forms { f16: DevicePtr::NULL, row_scale: DevicePtr::NULL, ..plain.forms };
            let pair = [launches(scaled.forms)[kernel], launches(without)[kernel]];
            bench.run(pair)?;
            same_forms(bench, &scaled, &plain).map_err(|error| format!("{} {cols}: {error}", pair[0].kernel))?;
        }
    }
    Ok(())
}

/// A cache of one sequence whose slots are filled with random numbers.
fn filled_cache(bench: &mut Bench, slots: usize, cols: usize) -> Result<KvCache, String> {
    let mut random = Random::new(22);
    let mut half = || -> Vec<u16> {
        normals(&mut random, slots * cols, 1.0).iter().map(|&x| half::f16::from_f32(x).to_bits()).collect()
    };
    let (keys, values) = (half(), half());
    let positions: Vec<i32> = (0..slots as i32).collect();
    Ok(KvCache {
        ty: CacheType::F16,
        keys: bench.put(&keys)?,
        values: bench.put(&values)?,
        slot_positions: bench.put(&positions)?,
        slot_sequences: bench.put(&vec![0i32; slots])?,
        k_cols: cols as u32,
        v_cols: cols as u32,
    })
}

/// Forms of attention's results against its F32 results converted; room for fewer tokens; more splits than are seen.
fn attention_in_forms(bench: &mut Bench) -> Result<(), String> {
    let (heads, kv_heads, cols, tokens, slots) = (10, 2, 64, 3, 320usize);
    let mask = Mask::Causal;
    let shape = AttentionShape {
        q_heads: heads,
        kv_heads,
        k_head_cols: cols,
        v_head_cols: cols,
        scale: 0.125,
        softcap: None,
        mask,
    };
    let cache = filled_cache(bench, slots, kv_heads * cols)?;
    let q = bench.put_rows(&normals(&mut Random::new(23), tokens * heads * cols, 1.0), heads * cols)?;
    let (sums, scales) = Partials::bytes_per_token(&shape, slots as u32);
    let room = |bench: &mut Bench, slots: usize| -> Result<Partials, String> {
        let (sums, scales) = (bench.room(sums as usize * tokens)?, bench.room(scales as usize * tokens)?);
        Ok(Partials { sums, scales, slots: slots as u32 })
    };
    let inputs = RoundInputs {
        positions: bench.put(&[117i32, 118, 119])?,
        sequences: bench.put(&[0i32; 3])?,
        slots: DevicePtr::NULL,
        n_slots: bench.put(&[120u32])?,
    };
    let mut results = Vec::new();
    for (slots, room_tokens) in [(slots, 3), (128, 3), (slots, 2)] {
        let all = AllForms::room(bench, tokens, heads * cols)?;
        let out = View { data: all.forms.f32, stride: (heads * cols) as u32, cols: (heads * cols) as u32 };
        let (partials, sinks) = (room(bench, slots)?, DevicePtr::NULL);
        let attend = Attend { shape: &shape, q, out, cache: &cache, inputs: &inputs, sinks, partials };
        let forms = Forms { f16: DevicePtr::NULL, row_scale: DevicePtr::NULL, ..all.forms };
        bench.run(attend.launches_in_groups(tokens as u32, room_tokens, forms))?;
        results.push((all, out));
    }
    let converted = AllForms::room(bench, tokens, heads * cols)?;
    bench.run([rows::convert(results[0].1, tokens as u32, converted.forms)])?;
    for (all, _) in &results {
        same_forms(bench, &converted, all)?;
    }
    let plain = bench.room_rows(tokens, heads * cols)?;
    let (partials, sinks) = (Partials::default(), DevicePtr::NULL);
    let attend = Attend { shape: &shape, q, out: plain, cache: &cache, inputs: &inputs, sinks, partials };
    bench.run(attend.launches(Method::Plain, tokens as u32))?;
    let got: Vec<f32> = bench.get(converted.forms.f32, tokens * heads * cols)?;
    let want: Vec<f32> = bench.get(plain.data, tokens * heads * cols)?;
    let want: Vec<f64> = want.iter().map(|&x| f64::from(x)).collect();
    super::judge("against the plain kernel", relative_norm(&got, &want), super::HALF_ATTENTION)
}

/// A cache that holds nothing, filled with what shows.
fn empty_cache(bench: &mut Bench, ty: CacheType, slots: usize, cols: (usize, usize)) -> Result<KvCache, String> {
    Ok(KvCache {
        ty,
        keys: bench.room(slots * cols.0 * 4)?,
        values: bench.room(slots * cols.1 * 4)?,
        slot_positions: bench.put(&vec![-1i32; slots])?,
        slot_sequences: bench.put(&vec![-1i32; slots])?,
        k_cols: cols.0 as u32,
        v_cols: cols.1 as u32,
    })
}

/// Against `rope` twice and `store_kv`: norms or none, both pairings, heads that rotate in part, values of other
/// columns, a token that is not stored.
fn heads_in_one_launch(bench: &mut Bench) -> Result<(), String> {
    let cases = [
        (CacheType::F16, RopePairing::Neox, true, 128, 128, 256),
        (CacheType::F32, RopePairing::Norm, false, 64, 64, 128),
        (CacheType::F16, RopePairing::Neox, true, 96, 32, 80),
        (CacheType::F16, RopePairing::Norm, true, 512, 512, 512),
    ];
    for (ty, pairing, has_norms, head_cols, n_rot, v_cols) in cases {
        let (rows, q_heads, k_heads, slots) = (3u32, 5usize, 2usize, 6usize);
        let mut random = Random::new(24);
        let mut put = |bench: &mut Bench, cols: usize| {
            let values = normals(&mut random, rows as usize * cols, 1.5);
            bench.put_rows(&values, cols)
        };
        let (q, k, v) = (put(bench, q_heads * head_cols)?, put(bench, k_heads * head_cols)?, put(bench, v_cols)?);
        let trig = put(bench, n_rot)?.data;
        let (q_weight, k_weight) = (put(bench, head_cols)?.data, put(bench, head_cols)?.data);
        let inputs = RoundInputs {
            positions: bench.put(&[40i32, 41, 42])?,
            sequences: bench.put(&[1i32, 1, 1])?,
            slots: bench.put(&[4i32, -1, 2])?,
            n_slots: DevicePtr::NULL,
        };
        let (k_cols, v_cols) = (k_heads * head_cols, v_cols);
        let [apart, together] = [(); 2].map(|()| empty_cache(bench, ty, slots, (k_cols, v_cols)));
        let (apart, together) = (apart?, together?);
        let norms = has_norms.then_some([(q_weight, 1e-6), (k_weight, 1e-5)]);
        let shape = |heads: usize, norm: Option<(DevicePtr, f32)>| RopeShape {
            heads: heads as u32,
            head_cols: head_cols as u32,
            n_rot: n_rot as u32,
            pairing,
            norm_eps: norm.map(|(_, eps)| eps),
        };
        let rope = |side: usize, heads: usize, x: View, out: View| {
            let norm = norms.map(|norms| norms[side]);
            ops::rope(&shape(heads, norm), x, trig, norm.map_or(DevicePtr::NULL, |(weight, _)| weight), out, rows)
        };
        let q_apart = bench.room_rows(rows as usize, q_heads * head_cols)?;
        let q_together = bench.room_rows(rows as usize, q_heads * head_cols)?;
        let k_apart = bench.room_rows(rows as usize, k_cols)?;
        let (head_cols, n_rot) = (head_cols as u32, n_rot as u32);
        let heads = Heads { head_cols, n_rot, pairing, norms, q, q_out: q_together, k, v, trig };
        bench.run([
            rope(0, q_heads, q, q_apart),
            rope(1, k_heads, k, k_apart),
            ops::store_kv(k_apart, v, &apart, &inputs, rows),
            ops::rope_and_store(&heads, &together, &inputs, rows),
        ])?;
        let q_bytes = rows as usize * q_heads * head_cols as usize * 4;
        for (what, a, b, bytes) in [
            ("queries", q_apart.data, q_together.data, q_bytes),
            ("keys", apart.keys, together.keys, slots * k_cols * 4),
            ("values", apart.values, together.values, slots * v_cols * 4),
            ("positions", apart.slot_positions, together.slot_positions, slots * 4),
            ("sequences", apart.slot_sequences, together.slot_sequences, slots * 4),
        ] {
            let (a, b): (Vec<u8>, Vec<u8>) = (bench.get(a, bytes)?, bench.get(b, bytes)?);
            same(what, &a, &b).map_err(|error| format!("{pairing:?} {head_cols}: {error}"))?;
        }
    }
    Ok(())
}
