//! What no case table covers: row look-up, forms of activations, cache writes, several sequences, movements, flags.
//! Next: `depth.rs`.

use super::{Bench, Machine, depth, fused, judge, relative_norm};
use crate::cases::{Random, random_weights};
use crate::cpu::ops::attention::{AttentionShape, Mask};
use crate::cpu::ops::elementwise::Glu;
use crate::cpu::ops::oracle;
use crate::cpu::ops::rope::{RopePairing, RopeParams, RopeScaling, RopeTable};
use crate::cuda::attention::{Attend, Method, Partials};
use crate::cuda::experts::{Sorted, held_ids, sort};
use crate::cuda::ops::{self, CacheType, KvCache, RopeShape, RoundInputs};
use crate::cuda::recurrent::{States, causal_conv};
use crate::cuda::rows::{self, Residual};
use crate::cuda::transfer::{self, Publish};
use crate::cuda::{BlockScale, DevicePtr, Forms, GpuLayout, GpuMatrix, View, tile_rows, unpack_panels};
use crate::quant::{WeightType, dequantise_row, pack_panels, packed_bytes};
use half::{bf16, f16};

/// One check on a cleared machine.
pub(super) type Check = fn(&mut Bench) -> Result<(), String>;

/// Runs all checks of this file and of `fused.rs`.
///
/// # Errors
/// The first that fails.
pub fn check_rest(machine: &mut dyn Machine) -> Result<(), String> {
    let checks: [(&str, Check); 13] = [
        ("embedding rows", embedding),
        ("panels taken apart", panels),
        ("entries sorted by expert", sorting),
        ("experts in two places", held_experts),
        ("forms of activations", forms),
        ("norm with residual", norm_with_residual),
        ("gated unit in forms", glu_forms),
        ("norm and rotation of heads", norm_and_rope),
        ("cache and sequences", sequences),
        ("attention deep in a context", depth::deep_contexts),
        ("states of sequences", conv_sequences),
        ("movements and flags", movements),
        ("sums and selections", sums),
    ];
    for (what, check) in checks.into_iter().chain(fused::CHECKS) {
        machine.clear()?;
        let name = machine.name();
        check(&mut Bench { machine: &mut *machine }).map_err(|error| format!("{name}: {what}: {error}"))?;
    }
    Ok(())
}

pub(super) fn normals(random: &mut Random, count: usize, deviation: f32) -> Vec<f32> {
    (0..count).map(|_| random.normal() * deviation).collect()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&v| f64::from(v)).collect()
}

/// Every type and layout; ids in any order, one outside the table.
fn embedding(bench: &mut Bench) -> Result<(), String> {
    for ty in WeightType::ALL {
        for layout in [GpuLayout::Gguf, GpuLayout::Tiled].into_iter().filter(|layout| layout.exists_for(ty)) {
            let (rows, cols) = (6, 512);
            let plain = random_weights(ty, rows, cols, 3);
            let mut table = plain.clone();
            if layout == GpuLayout::Tiled {
                table = vec![0; rows * layout.row_bytes(ty, cols).map_err(|error| error.to_string())?];
                tile_rows(ty, cols, &plain, &mut table).map_err(|error| error.to_string())?;
            }
            let data = bench.put(&table)?;
            let matrix = GpuMatrix { ty, layout, data, rows: rows as u32, cols: cols as u32 };
            let ids = bench.put(&[5i32, 0, 6, 3])?;
            let out = bench.room_rows(4, cols)?;
            bench.run([ops::embed(&matrix, ids, 1.5, out, 4).map_err(|error| error.to_string())?])?;
            let got: Vec<f32> = bench.get(out.data, 4 * cols)?;
            let row_bytes = plain.len() / rows;
            let mut want = Vec::new();
            for id in [5usize, 0, 6, 3] {
                let mut row = vec![0f32; cols];
                if id < rows {
                    dequantise_row(ty, &plain[id * row_bytes..][..row_bytes], &mut row).map_err(|e| e.to_string())?;
                }
                want.extend(row.iter().map(|&w| 1.5 * f64::from(w)));
            }
            judge(&format!("{ty} {layout:?}"), relative_norm(&got, &want), 1e-6)?;
        }
    }
    Ok(())
}

/// Every type from the CPU's panels to both layouts, with a ragged last panel and a ragged last chunk.
fn panels(bench: &mut Bench) -> Result<(), String> {
    for ty in WeightType::ALL {
        for layout in [GpuLayout::Gguf, GpuLayout::Tiled].into_iter().filter(|layout| layout.exists_for(ty)) {
            let fail = |error: crate::KernelError| error.to_string();
            let (rows, cols) = (21, if ty.block().0 == 256 { 768 } else { 608 });
            let plain = random_weights(ty, rows, cols, 11);
            let mut packed = vec![0; packed_bytes(ty, rows, cols).map_err(fail)?];
            pack_panels(ty, &plain, rows, cols, 0..2, &mut packed).map_err(fail)?;
            let mut want = plain.clone();
            if layout == GpuLayout::Tiled {
                want = vec![0; rows * layout.row_bytes(ty, cols).map_err(fail)?];
                tile_rows(ty, cols, &plain, &mut want).map_err(fail)?;
            }
            let (from, to) = (bench.put(&packed)?, bench.put(&vec![0u8; want.len()])?);
            bench.run([unpack_panels(ty, layout, cols as u32, rows as u32, from, to).map_err(fail)?])?;
            if bench.get::<u8>(to, want.len())? != want {
                return Err(format!("{ty} {layout:?}: bytes differ from the file's"));
            }
        }
    }
    Ok(())
}

/// Stable order and tiles, for few and many entries, an expert with most of them, ids of no expert.
fn sorting(bench: &mut Bench) -> Result<(), String> {
    for (tokens, chosen, experts, skew) in [(1, 4, 32, 1), (40, 3, 5, 2), (700, 8, 128, 1), (300, 10, 512, 7)] {
        let mut random = Random::new(9);
        let mut below = |bound: u64| (random.next() >> 33) % bound;
        let mut pick = || if below(skew) > 0 { 3 } else { below(experts + 1) as i32 };
        let ids: Vec<i32> = (0..tokens * chosen).map(|_| pick()).collect();
        let entries = ids.len() as u32;
        let tile = Sorted::tile_for(entries, experts as u32);
        let tiles_max = Sorted::tiles_max(tile, entries, experts as u32) as usize;
        let view = View { data: bench.put(&ids)?, stride: chosen as u32, cols: chosen as u32 };
        let (order, tiles) = (bench.room(4 * ids.len())?, bench.room(16 * tiles_max)?);
        let sorted = Sorted { order, tiles, n_tiles: bench.room(4)?, tile };
        bench.run([sort(view, tokens as u32, chosen as u32, experts as u32, &sorted)])?;
        let mut want: Vec<i32> = (0..ids.len() as i32).filter(|&e| ids[e as usize] < experts as i32).collect();
        want.sort_by_key(|&entry| ids[entry as usize]);
        let mut want_tiles = Vec::new();
        for expert in 0..experts as i32 {
            let first = want.partition_point(|&entry| ids[entry as usize] < expert);
            let end = want.partition_point(|&entry| ids[entry as usize] <= expert);
            let step = tile.tokens() as usize;
            want_tiles.extend((first..end).step_by(step).map(|at| [expert, at as i32, step.min(end - at) as i32, 0]));
        }
        let count = bench.get::<u32>(sorted.n_tiles, 1)?[0] as usize;
        let got_tiles: Vec<[i32; 4]> = bench.get(tiles, count.min(tiles_max))?;
        if bench.get::<i32>(order, want.len())? != want || got_tiles != want_tiles {
            return Err(format!("{tokens} tokens, {chosen} of {experts}: another order than a stable sort's"));
        }
    }
    Ok(())
}

/// Places among held experts, and the sum of those alone: what others compute is not read.
fn held_experts(bench: &mut Bench) -> Result<(), String> {
    let (tokens, chosen, cols, experts) = (67, 6, 40, 512);
    let held: Vec<u32> = (0..experts).filter(|e| e % 3 == 0 || (64..100).contains(e)).collect();
    let mut random = Random::new(4);
    let mut ids: Vec<i32> = (0..tokens * chosen).map(|_| ((random.next() >> 33) % u64::from(experts)) as i32).collect();
    ids[..2].copy_from_slice(&[0, 511]);
    let want: Vec<i32> =
        ids.iter().map(|&id| held.binary_search(&(id as u32)).map_or(-1, |place| place as i32)).collect();
    let ids = View { data: bench.put(&ids)?, stride: chosen as u32, cols: chosen as u32 };
    let places = bench.room_rows(tokens, chosen)?;
    let mut x = normals(&mut random, tokens * chosen * cols, 1.0);
    let weights = normals(&mut random, tokens * chosen, 1.0);
    let mut sums = vec![0.0; tokens * cols];
    for (entry, place) in want.iter().enumerate() {
        let term = &mut x[entry * cols..][..cols];
        match place {
            -1 => term.fill(f32::NAN),
            _ => term.iter().zip(&mut sums[entry / chosen * cols..][..cols]).for_each(|(x, sum)| {
                *sum += f64::from(*x) * f64::from(weights[entry]);
            }),
        }
    }
    let (x, weights) = (bench.put_rows(&x, chosen * cols)?, bench.put_rows(&weights, chosen)?);
    let out = bench.room_rows(tokens, cols)?;
    let sum = ops::held_sum(x, chosen as u32, weights, places, View::default(), out, tokens as u32);
    bench.run([held_ids(ids, held.into_iter(), places, tokens as u32), sum])?;
    if bench.get::<i32>(places.data, want.len())? != want {
        return Err("places differ".to_owned());
    }
    judge("sum of held experts", relative_norm(&bench.get::<f32>(out.data, sums.len())?, &sums), 1e-6)
}

/// All forms of some rows in device memory.
pub(super) struct AllForms {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) forms: Forms,
}

impl AllForms {
    pub(super) fn room(bench: &mut Bench, rows: usize, cols: usize) -> Result<AllForms, String> {
        let forms = Forms {
            f32: bench.room(rows * cols * 4)?,
            q8: bench.room(rows * cols)?,
            q8_scales: bench.room(rows * cols / 4)?,
            f16: bench.room(rows * cols * 2)?,
            bf16: bench.room(rows * cols * 2)?,
            row_scale: bench.room(rows * 4)?,
            f32_stride: cols as u32,
            reserved: 0,
        };
        Ok(AllForms { rows, cols, forms })
    }

    /// Each form against what it should hold, per row, and the sums of the bytes against the bytes.
    fn check(&self, bench: &mut Bench, want: &[f64]) -> Result<(), String> {
        let (rows, cols) = (self.rows, self.cols);
        let plain: Vec<f32> = bench.get(self.forms.f32, rows * cols)?;
        let bytes: Vec<i8> = bench.get(self.forms.q8, rows * cols)?;
        let scales: Vec<[u32; 2]> = bench.get(self.forms.q8_scales, rows * cols / 32)?;
        let half: Vec<u16> = bench.get(self.forms.f16, rows * cols)?;
        let brain: Vec<u16> = bench.get(self.forms.bf16, rows * cols)?;
        let row_scales: Vec<f32> = bench.get(self.forms.row_scale, rows)?;
        let scales: Vec<BlockScale> = scales.into_iter().map(bytemuck_cast).collect();
        let from_bytes = |i: usize| f32::from(bytes[i]) * scales[i / 32].scale;
        let from_half = |i: usize| f16::from_bits(half[i]).to_f32() * row_scales[i / cols];
        let from_brain = |i: usize| bf16::from_bits(brain[i]).to_f32();
        for row in 0..rows {
            let range = row * cols..(row + 1) * cols;
            let want = &want[range.clone()];
            let all = |value: &dyn Fn(usize) -> f32| range.clone().map(value).collect::<Vec<f32>>();
            judge("F32", relative_norm(&plain[range.clone()], want), 1e-6)?;
            judge("Q8", relative_norm(&all(&from_bytes), want), 1e-2)?;
            judge("F16", relative_norm(&all(&from_half), want), 5e-4)?;
            judge("BF16", relative_norm(&all(&from_brain), want), 4e-3)?;
        }
        for (block, scale) in bytes.chunks(32).zip(&scales) {
            let sum = |half: &[i8]| half.iter().map(|&b| i16::from(b)).sum::<i16>();
            if (sum(&block[..16]), sum(&block[16..])) != (scale.first_sum, scale.second_sum) {
                return Err(format!("sums of a block of bytes: {scale:?}, bytes {block:?}"));
            }
        }
        Ok(())
    }
}

fn bytemuck_cast(words: [u32; 2]) -> BlockScale {
    bytemuck::cast(words)
}

/// Rows of ordinary, huge and tiny numbers, and of zeros.
fn forms(bench: &mut Bench) -> Result<(), String> {
    for (rows, cols) in [(4, 2080), (4, 20_544)] {
        let mut x = normals(&mut Random::new(1), rows * cols, 1.0);
        x[cols..2 * cols].iter_mut().for_each(|x| *x *= 1e9);
        x[2 * cols..3 * cols].iter_mut().for_each(|x| *x *= 1e-9);
        x[3 * cols..].fill(0.0);
        let view = bench.put_rows(&x, cols)?;
        let all = AllForms::room(bench, rows, cols)?;
        bench.run([rows::convert(view, rows as u32, all.forms)])?;
        all.check(bench, &wide(&x))?;
    }
    Ok(())
}

fn norm_with_residual(bench: &mut Bench) -> Result<(), String> {
    let (rows, cols) = (3, 5120);
    let mut random = Random::new(2);
    let (x, addend) = (normals(&mut random, rows * cols, 3.0), normals(&mut random, rows * cols, 2.0));
    let weight = normals(&mut random, cols, 1.0);
    let sum: Vec<f32> = x.iter().zip(&addend).map(|(a, b)| a + b).collect();
    let (view, addend) = (bench.put_rows(&x, cols)?, bench.put_rows(&addend, cols)?);
    let residual = Residual { addend, sum: addend };
    let all = AllForms::room(bench, rows, cols)?;
    let device_weight = bench.put(&weight)?;
    bench.run([rows::rms_norm(view, Some(residual), device_weight, 1e-6, rows as u32, all.forms)])?;
    let got: Vec<f32> = bench.get(addend.data, rows * cols)?;
    judge("sum", relative_norm(&got, &wide(&sum)), 0.0)?;
    all.check(bench, &oracle::rms_norm(&sum, cols, Some(&weight), 1e-6))
}

fn glu_forms(bench: &mut Bench) -> Result<(), String> {
    let (rows, cols) = (2, 1120);
    let mut random = Random::new(3);
    let (gate, up) = (normals(&mut random, rows * cols, 4.0), normals(&mut random, rows * cols, 4.0));
    let (gate_view, up_view) = (bench.put_rows(&gate, cols)?, bench.put_rows(&up, cols)?);
    let all = AllForms::room(bench, rows, cols)?;
    bench.run([rows::glu(Glu::GeluTanh, gate_view, up_view, rows as u32, all.forms)])?;
    all.check(bench, &oracle::glu(Glu::GeluTanh, &gate, &up))
}

fn norm_and_rope(bench: &mut Bench) -> Result<(), String> {
    let (rows, heads, head_cols) = (3, 5, 128);
    let mut random = Random::new(4);
    let (x, weight) = (normals(&mut random, rows * heads * head_cols, 1.0), normals(&mut random, head_cols, 1.0));
    let positions = [7u32, 4095, 8];
    let params = RopeParams { n_rot: 64, base: 1e6, scaling: RopeScaling::None, magnitude: 1.0, factors: None };
    let normalised = oracle::rms_norm(&x, head_cols, Some(&weight), 1e-6);
    let normalised: Vec<f32> = normalised.iter().map(|&x| x as f32).collect();
    let cols = heads * head_cols;
    let want = oracle::rope(&normalised, cols, head_cols, &positions, RopePairing::Neox, &params);
    let view = bench.put_rows(&x, cols)?;
    let table = RopeTable::new(params);
    let (turns, device_positions) = (bench.put(&ops::rope_turns(&table))?, bench.put(&positions)?);
    let (trig, device_weight) = (bench.room(rows * 64 * 4)?, bench.put(&weight)?);
    let pairing = RopePairing::Neox;
    let shape = RopeShape { heads: 5, head_cols: 128, n_rot: 64, pairing, norm_eps: Some(1e-6) };
    bench.run([
        ops::rope_angles(turns, 32, 1.0, device_positions, trig, 3),
        ops::rope(&shape, view, trig, device_weight, view, 3),
    ])?;
    let got: Vec<f32> = bench.get(view.data, x.len())?;
    judge("rotated", relative_norm(&got, &want), 1e-6)
}

/// Two sequences in one cache and one batch, written by the cache kernel, by every method.
fn sequences(bench: &mut Bench) -> Result<(), String> {
    let mask = Mask::Window { tokens: 150 };
    let (heads, kv_heads, cols) = (4, 2, 64);
    let shape = AttentionShape {
        q_heads: heads,
        kv_heads,
        k_head_cols: cols,
        v_head_cols: cols,
        scale: 0.125,
        softcap: None,
        mask,
    };
    let lengths = [200usize, 70];
    let tokens: usize = lengths.iter().sum();
    let n_slots = 512;
    let mut random = Random::new(6);
    let kv_cols = kv_heads * cols;
    let round = |values: Vec<f32>| values.iter().map(|&x| f16::from_f32(x).to_f32()).collect::<Vec<f32>>();
    let (k, v) =
        (round(normals(&mut random, tokens * kv_cols, 1.0)), round(normals(&mut random, tokens * kv_cols, 1.0)));
    let q = normals(&mut random, tokens * heads * cols, 1.0);
    let mut want = Vec::new();
    let (mut positions, mut sequence_ids) = (Vec::new(), Vec::new());
    let mut first = 0;
    for (sequence, &length) in lengths.iter().enumerate() {
        let part = |x: &[f32], cols: usize| x[first * cols..(first + length) * cols].to_vec();
        let of_sequence: Vec<u32> = (0..length as u32).collect();
        let (k, v) = (part(&k, kv_cols), part(&v, kv_cols));
        want.extend(oracle::attention(&shape, &part(&q, heads * cols), &of_sequence, &k, Some(&v), None));
        positions.extend(of_sequence);
        sequence_ids.extend(vec![sequence as i32; length]);
        first += length;
    }
    // Slots are taken in a scattered order: 7 and 512 have no common divisor.
    let slots: Vec<i32> = (0..tokens).map(|i| (i * 7 % n_slots) as i32).collect();
    let inputs = RoundInputs {
        positions: bench.put(&positions)?,
        sequences: bench.put(&sequence_ids)?,
        slots: bench.put(&slots)?,
        n_slots: bench.put(&[n_slots as u32])?,
    };
    let cache = KvCache {
        ty: CacheType::F16,
        keys: bench.put(&vec![0u16; n_slots * kv_cols])?,
        values: bench.put(&vec![0u16; n_slots * kv_cols])?,
        slot_positions: bench.put(&vec![-1i32; n_slots])?,
        slot_sequences: bench.put(&vec![-1i32; n_slots])?,
        k_cols: kv_cols as u32,
        v_cols: kv_cols as u32,
    };
    let (k, v) = (bench.put_rows(&k, kv_cols)?, bench.put_rows(&v, kv_cols)?);
    bench.run([ops::store_kv(k, v, &cache, &inputs, tokens as u32)])?;
    let q = bench.put_rows(&q, heads * cols)?;
    for method in [Method::Plain, Method::Split, Method::Tiled] {
        let out = bench.room_rows(tokens, heads * cols)?;
        let (sums, scales) = Partials::bytes_per_token(&shape, n_slots as u32);
        let partials = Partials {
            sums: bench.room(sums as usize * tokens)?,
            scales: bench.room(scales as usize * tokens)?,
            slots: n_slots as u32,
        };
        let (cache, inputs, sinks) = (&cache, &inputs, DevicePtr::NULL);
        let attend = Attend { shape: &shape, q, out, cache, inputs, sinks, partials };
        bench.run(attend.launches(method, tokens as u32))?;
        let got: Vec<f32> = bench.get(out.data, want.len())?;
        judge(&format!("{method:?}"), relative_norm(&got, &want), 2e-3)?;
    }
    Ok(())
}

/// A batch of two sequences gives what each gives alone, states included.
fn conv_sequences(bench: &mut Bench) -> Result<(), String> {
    let (channels, taps) = (40, 4);
    let mut random = Random::new(9);
    let x = normals(&mut random, 7 * channels, 1.0);
    let filter = normals(&mut random, channels * taps, 1.0);
    let states = normals(&mut random, 2 * channels * (taps - 1), 1.0);
    let mut want = Vec::new();
    let mut after = Vec::new();
    for (rows, state) in [(0..2, 1usize), (2..7, 0)] {
        let state = &states[state * channels * (taps - 1)..][..channels * (taps - 1)];
        let (out, state) =
            oracle::causal_conv_silu(&x[rows.start * channels..rows.end * channels], channels, &filter, state);
        want.extend(out);
        after.push(state);
    }
    let view = bench.put_rows(&x, channels)?;
    let out = bench.room_rows(7, channels)?;
    let memory = bench.put(&states)?;
    let sequences = bench.put(&[1i32, 1, 0, 0, 0, 0, 0])?;
    let device = States { data: memory, sequence_stride: (channels * (taps - 1)) as u64, sequences };
    let device_filter = bench.put(&filter)?;
    bench.run([causal_conv(view, device_filter, taps as u32, &device, out, 7)])?;
    let got: Vec<f32> = bench.get(out.data, want.len())?;
    judge("results", relative_norm(&got, &want), 2e-6)?;
    let got: Vec<f32> = bench.get(memory, states.len())?;
    let wanted: Vec<f64> = wide(&after[1]).into_iter().chain(wide(&after[0])).collect();
    judge("states", relative_norm(&got, &wanted), 0.0)
}

/// Two rounds of a movement that publishes, and a wait that passes.
fn movements(bench: &mut Bench) -> Result<(), String> {
    for cols in [5120usize, 333] {
        let x = normals(&mut Random::new(10), 3 * cols, 1.0);
        let (from, to) = (bench.put_rows(&x, cols)?, bench.room_rows(3, cols)?);
        let (flag, round, arrived) = (bench.put(&[0u32])?, bench.put(&[u32::MAX - 1])?, bench.put(&[0u32])?);
        let publish = Publish { flag, round, arrived };
        for wanted in [u32::MAX, 0] {
            bench.run([
                transfer::advance(round, 1),
                transfer::move_rows(from, to, 3, Some(publish)),
                transfer::wait_flag(flag, round),
            ])?;
            let got: Vec<u32> = bench.get(flag, 1)?;
            if got != [wanted] {
                return Err(format!("the flag is {got:?}, not {wanted}"));
            }
        }
        let got: Vec<f32> = bench.get(to.data, x.len())?;
        judge("rows", relative_norm(&got, &wide(&x)), 0.0)?;
        bench.run([transfer::advance(round, 5), transfer::write_flag(flag, round)])?;
        if bench.get::<u32>(flag, 1)? != [5] {
            return Err("write_flag".to_string());
        }
    }
    let bytes = bench.put(&(0..4096u32).collect::<Vec<u32>>())?;
    let copy = bench.room(16384)?;
    bench.run([transfer::copy_bytes(bytes, copy, 16384, 2), transfer::read_bytes(copy, bytes, 16384, 2)])?;
    let got: Vec<u32> = bench.get(copy, 4096)?;
    if got.iter().enumerate().any(|(i, &word)| word != i as u32) { Err("copy_bytes".to_string()) } else { Ok(()) }
}

fn sums(bench: &mut Bench) -> Result<(), String> {
    let (rows, cols) = (3, 300);
    let mut random = Random::new(11);
    let matrices: Vec<Vec<f32>> = (0..3).map(|_| normals(&mut random, rows * cols, 1.0)).collect();
    let mut views: Vec<View> = Vec::new();
    for matrix in &matrices {
        views.push(bench.put_rows(matrix, cols)?);
    }
    let (sum, selected) = (bench.room_rows(rows, cols)?, bench.room_rows(2, cols)?);
    let which = bench.put(&[2i32, 0])?;
    bench.run([ops::reduce(&views, sum, rows as u32), ops::select_rows(views[0], which, selected, 2)])?;
    let want: Vec<f64> = (0..rows * cols).map(|i| matrices.iter().map(|m| f64::from(m[i])).sum()).collect();
    let got: Vec<f32> = bench.get(sum.data, rows * cols)?;
    judge("reduce", relative_norm(&got, &want), 1e-6)?;
    let got: Vec<f32> = bench.get(selected.data, 2 * cols)?;
    let want: Vec<f64> = [2, 0].into_iter().flat_map(|r: usize| wide(&matrices[0][r * cols..][..cols])).collect();
    judge("select", relative_norm(&got, &want), 0.0)
}
