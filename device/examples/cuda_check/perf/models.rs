//! Measurements beside the dense products: routed experts, attention, small kernels. The parent file has the lab.

use device::DeviceError;
use kernels::cpu::ops::attention::{AttentionShape, Mask};
use kernels::cpu::ops::elementwise::Glu;
use kernels::cuda::attention::{Attend, Method, Partials};
use kernels::cuda::experts::{InputRows, Slots, Sorted, grouped, slots, sort};
use kernels::cuda::ops::{self, CacheType, KvCache, RoundInputs};
use kernels::cuda::product::{self, Form, Part, TokenTile};
use kernels::cuda::rows::{convert, glu, rms_norm};
use kernels::cuda::{DevicePtr, Forms, GpuLayout, GpuMatrix, View};
use kernels::quant::WeightType;

use super::{GIB, Lab, activations, fill_random, fill_rows, matrix, matrix_bytes};

/// Experts of Qwen3-30B-A3B and GPT-OSS-20B.
pub fn experts(lab: &mut Lab, wanted: &dyn Fn(WeightType) -> bool) -> Result<(), DeviceError> {
    println!("\nexperts: decode by slot, prefill sorted");
    let models = [
        ("Qwen3-30B-A3B gate+up", WeightType::Q4_K, 128u32, 8u32, 768u32, 2048u32, InputRows::PerToken),
        ("Qwen3-30B-A3B down", WeightType::Q6_K, 128, 8, 2048, 768, InputRows::PerEntry),
        ("GPT-OSS-20B gate+up", WeightType::MXFP4, 32, 4, 2880, 2880, InputRows::PerToken),
        ("GPT-OSS-20B down", WeightType::MXFP4, 32, 4, 2880, 2880, InputRows::PerEntry),
    ];
    for (name, ty, count, chosen, rows, cols, input) in models.into_iter().filter(|model| wanted(model.1)) {
        for tokens in [1u32, 4, 512, 2048] {
            lab.used_bytes = 0;
            let entries = tokens * chosen;
            let own = input == InputRows::PerEntry;
            let x_rows = if own { entries } else { tokens };
            let x = lab.rows(u64::from(x_rows), cols);
            fill_rows(lab, x, x_rows)?;
            let layout = GpuLayout::preferred(ty);
            let parts: Vec<Part> = (0..if own { 1 } else { 2 })
                .map(|_| {
                    let stack = matrix(lab, ty, layout, rows * count, cols);
                    let out = lab.rows(u64::from(tokens), chosen * rows);
                    let weight = GpuMatrix { rows, ..stack };
                    Part { weight, bias: DevicePtr::NULL, residual: View::default(), out }
                })
                .collect();
            for part in &parts {
                lab.enqueue(&[fill_random(part.weight.data, matrix_bytes(&part.weight) * u64::from(count), 5)])?;
            }
            let ids: Vec<i32> = (0..entries).map(|e| ((e / chosen * 37 + e % chosen * 11) % count) as i32).collect();
            let ids = View { data: lab.put_i32(&ids)?, stride: chosen, cols: chosen };
            let slot = Slots {
                ids,
                slots: chosen,
                matrices: count,
                input_stride: if own { cols } else { 0 },
                places: DevicePtr::NULL,
                matrix_bytes: matrix_bytes(&parts[0].weight),
            };
            let case = Experts { name, ty, count, chosen, cols, input, tokens };
            if tokens <= 4 {
                by_slot(lab, &case, &parts, x, &slot)?;
            } else {
                sorted(lab, &case, &parts, x, &slot)?;
            }
        }
    }
    Ok(())
}

/// One layer's experts with so many tokens.
struct Experts {
    name: &'static str,
    ty: WeightType,
    count: u32,
    chosen: u32,
    cols: u32,
    input: InputRows,
    tokens: u32,
}

impl Experts {
    fn x_rows(&self) -> u32 {
        if self.input == InputRows::PerEntry { self.tokens * self.chosen } else { self.tokens }
    }
}

fn by_slot(lab: &mut Lab, case: &Experts, parts: &[Part], x: View, slot: &Slots) -> Result<(), DeviceError> {
    let Experts { name, count, chosen, cols, tokens, .. } = *case;
    let (mut active, conversion) = activations(lab, Form::Q8, x, case.x_rows());
    active.stride = if case.input == InputRows::PerEntry { chosen * cols } else { cols };
    lab.enqueue(&conversion.into_iter().collect::<Vec<_>>())?;
    let Ok(launch) = slots(parts, &active, tokens, slot) else { return Ok(()) };
    // The same experts again and again may stay in the cache: the figure is an upper bound for one token.
    let us = lab.time(&[launch; 8])? / 8.0;
    let touched = u64::from((tokens * chosen).min(count));
    let bytes = parts.len() as u64 * matrix_bytes(&parts[0].weight) * touched;
    println!("{name:24} {tokens:5} tokens: {us:7.1} us, {:6.0} GB/s", bytes as f64 / us / 1e3);
    Ok(())
}

fn sorted(lab: &mut Lab, case: &Experts, parts: &[Part], x: View, slot: &Slots) -> Result<(), DeviceError> {
    let Experts { name, ty, count, chosen, cols, input, tokens } = *case;
    let entries = tokens * chosen;
    let rows: u32 = parts.iter().map(|part| part.weight.rows).sum();
    let flop = 2.0 * f64::from(rows) * f64::from(cols) * f64::from(entries);
    let (active, conversion) = activations(lab, product::form(ty, cols, 64), x, case.x_rows());
    lab.enqueue(&conversion.into_iter().collect::<Vec<_>>())?;
    let tiles = lab.chips().flat_map(|chip| TokenTile::ALL.map(|tile| (chip, tile)));
    for (chip, tile) in tiles.filter(|(chip, tile)| tile.exists_on(*chip)) {
        let tiles = lab.room(16 * u64::from(Sorted::tiles_max(tile, entries, count)));
        let order = lab.room(4 * u64::from(entries));
        let sorted = Sorted { order, tiles, n_tiles: lab.room(4), tile };
        let sorting = sort(slot.ids, tokens, chosen, count, &sorted);
        let Ok(product) = grouped(chip, parts, &active, tokens, slot, input, &sorted) else { continue };
        let sort_us = lab.time(&[sorting])?;
        lab.enqueue(&[sorting])?;
        let us = lab.time(&[product])?;
        println!(
            "{name:24} {tokens:5} tokens {chip:?} {tile:?}: {us:7.1} us, {:6.1} TFLOP/s; sorting {sort_us:.1} us",
            flop / us / 1e6
        );
    }
    Ok(())
}

/// Decode and prefill attention of several models' shapes.
pub fn attentions(lab: &mut Lab) -> Result<(), DeviceError> {
    println!("\nattention over an F16 cache");
    let cases = [
        ("Qwen3-14B 40/8 x 128", 40usize, 8usize, 128usize, 128usize),
        ("Qwen3-30B 32/4 x 128", 32, 4, 128, 128),
        ("GPT-OSS 64/8 x 64", 64, 8, 64, 64),
        ("Gemma-like 8/4 x 256", 8, 4, 256, 256),
        ("DeepSeek MLA 16/1 x 576", 16, 1, 576, 512),
    ];
    for (name, q_heads, kv_heads, k, v) in cases {
        for (tokens, context) in
            [(1u32, 2048u32), (1, 8192), (1, 32768), (4, 8192), (512, 512), (512, 2560), (2048, 2048)]
        {
            let mask = Mask::Causal;
            let shape =
                AttentionShape { q_heads, kv_heads, k_head_cols: k, v_head_cols: v, scale: 0.1, softcap: None, mask };
            let method = Method::for_shape(&shape, CacheType::F16, tokens);
            if method != Method::Tiled && tokens > 16 {
                continue;
            }
            let us = attention_us(lab, &shape, method, tokens, context)?;
            let per_token = (kv_heads * (k + if k == v { v } else { 0 }) * 2) as f64;
            let seen = f64::from(context) - f64::from(tokens) / 2.0;
            let flop = 2.0 * seen * f64::from(tokens) * (q_heads * (k + v)) as f64;
            println!(
                "{name:24} {tokens:5} tokens at {context:6}: {us:8.1} us, {:6.0} GB/s, {:6.1} TFLOP/s ({method:?})",
                per_token * f64::from(context) / us / 1e3,
                flop / us / 1e6
            );
        }
    }
    Ok(())
}

fn attention_us(
    lab: &mut Lab,
    shape: &AttentionShape,
    method: Method,
    tokens: u32,
    context: u32,
) -> Result<f64, DeviceError> {
    lab.used_bytes = 0;
    let (q_cols, out_cols) = ((shape.q_heads * shape.k_head_cols) as u32, (shape.q_heads * shape.v_head_cols) as u32);
    let k_cols = (shape.kv_heads * shape.k_head_cols) as u32;
    let v_cols = (shape.kv_heads * shape.v_head_cols) as u32;
    let (q, out) = (lab.rows(u64::from(tokens), q_cols), lab.rows(u64::from(tokens), out_cols));
    fill_rows(lab, q, tokens)?;
    let positions: Vec<i32> = (0..context as i32).collect();
    let last: Vec<i32> = positions[(context - tokens) as usize..].to_vec();
    let zeros = vec![0i32; context as usize];
    let (sums, scales) = Partials::bytes_per_token(shape, context);
    let partials = Partials {
        sums: lab.room(if method == Method::Split { sums * u64::from(tokens) } else { 16 }),
        scales: lab.room(if method == Method::Split { scales * u64::from(tokens) } else { 16 }),
        slots: context,
    };
    let inputs = RoundInputs {
        positions: lab.put_i32(&last)?,
        sequences: lab.put_i32(&zeros)?,
        slots: DevicePtr::NULL,
        n_slots: lab.put_i32(&[context as i32])?,
    };
    let (slot_positions, slot_sequences) = (lab.put_i32(&positions)?, lab.put_i32(&zeros)?);
    // Several caches in turn, so that one does not stay in the second-level cache.
    let cache_bytes = u64::from(context) * u64::from(k_cols + v_cols) * 2;
    let copies = (GIB / cache_bytes).clamp(1, 16);
    let mut launches = Vec::new();
    for _ in 0..copies {
        let shared = shape.k_head_cols != shape.v_head_cols;
        let keys = lab.room(u64::from(context) * u64::from(k_cols) * 2);
        let values = if shared { DevicePtr::NULL } else { lab.room(u64::from(context) * u64::from(v_cols) * 2) };
        // F16 of about 1e-3 everywhere: 0x1111 repeated.
        let cache = KvCache { ty: CacheType::F16, keys, values, slot_positions, slot_sequences, k_cols, v_cols };
        let (cache, inputs, sinks) = (&cache, &inputs, DevicePtr::NULL);
        launches.extend(Attend { shape, q, out, cache, inputs, sinks, partials }.launches(method, tokens));
    }
    Ok(lab.time(&launches)? / copies as f64)
}

/// Kernels between the products, one token and 512.
pub fn small(lab: &mut Lab) -> Result<(), DeviceError> {
    println!("\nsmall kernels, us each in a graph of 50");
    for tokens in [1u32, 512] {
        lab.used_bytes = 0;
        let x = lab.rows(u64::from(tokens), 5120);
        let wide = lab.rows(u64::from(tokens), 17408);
        fill_rows(lab, x, tokens)?;
        fill_rows(lab, wide, tokens)?;
        let weight = lab.room(5120 * 4);
        let f16 = tokens > 4;
        let forms = |lab: &mut Lab, cols: u64| {
            let elements = u64::from(tokens) * cols;
            let (a, b) = (lab.room(elements * 2), lab.room(elements / 4));
            if f16 {
                Forms { f16: a, row_scale: b, ..Forms::default() }
            } else {
                Forms { q8: a, q8_scales: b, ..Forms::default() }
            }
        };
        let (narrow_forms, wide_forms) = (forms(lab, 5120), forms(lab, 17408));
        let kinds = [
            ("norm to products", rms_norm(x, None, weight, 1e-6, tokens, narrow_forms)),
            ("gated unit to products", glu(Glu::Silu, wide, wide, tokens, wide_forms)),
            ("conversion", convert(x, tokens, narrow_forms)),
            ("add", ops::add(x, x, x, tokens)),
        ];
        for (name, launch) in kinds {
            println!("{name:24} {tokens:4} tokens {:6.2} us", lab.time(&vec![launch; 50])? / 50.0);
        }
    }
    Ok(())
}
