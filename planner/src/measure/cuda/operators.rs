//! Curves of the GPU's operators. Shapes are those of common models; rates are per byte of weights, cache or state.

use super::super::MeasureError;
use super::super::cpu::rounded;
use super::super::figures::{Shape, last_point};
use super::super::products::weight_type;
use super::lab::Lab;
use crate::profile::{Backend, Curve, Operator, Point};
use kernels::cpu::ops::attention::{AttentionShape, Mask};
use kernels::cpu::ops::delta::HeadMap;
use kernels::cuda::attention::{Attend, Method, Partials};
use kernels::cuda::experts::{InputRows, Slots, Sorted, grouped, has_grouped, slots, sort};
use kernels::cuda::ops::{CacheType, KvCache, RoundInputs, add};
use kernels::cuda::product::{self, Part, TokenTile};
use kernels::cuda::recurrent::{Delta, States, delta_net};
use kernels::cuda::{DevicePtr, Launch, View};
use kernels::quant::WeightType;

/// Tokens of dense products.
const PRODUCT_TOKENS: [u32; 9] = [1, 2, 4, 8, 16, 64, 256, 1024, 4096];
/// Tokens per expert.
const EXPERT_TOKENS: [u32; 5] = [1, 2, 16, 64, 256];
/// Query rows per key head.
const ATTENTION_ROWS: [u32; 5] = [1, 4, 8, 2048, 8192];
/// Tokens of the delta net.
const DELTA_TOKENS: [u32; 3] = [1, 64, 512];

/// Shape of a dense product and of one expert.
const DENSE: (u32, u32) = (4096, 4096);
const EXPERT: (u32, u32) = (768, 2048);
/// Experts of a layer, and of a token.
const EXPERTS: u32 = 32;
const CHOSEN: u32 = 8;
/// Tokens up to which each pair of token and expert is a product of its own.
const SLOT_TOKENS: u32 = 8;
/// Weights of a figure together, so that the cache does not answer, and matrices at most.
const WEIGHT_BYTES: u64 = 192 << 20;
const MATRICES_MOST: u64 = 24;
/// Multiply-adds of a figure at most, unless one matrix has more.
const MACS_MOST: u64 = 1 << 37;
/// Rows that a kernel's block computes at most.
const ROW_BLOCK: u64 = 128;

/// The curve of a kind of operator and type.
pub fn curve(lab: &mut Lab<'_>, (operator, name): (Operator, &str)) -> Result<Curve, MeasureError> {
    let points: &[u32] = match operator {
        Operator::Matmul => &PRODUCT_TOKENS,
        Operator::ExpertMatmul => &EXPERT_TOKENS,
        Operator::Attention => &ATTENTION_ROWS,
        Operator::DeltaNet => &DELTA_TOKENS,
        Operator::Elementwise => &[1],
    };
    let mut tokens = points.to_vec();
    let mut gb_per_s = Vec::with_capacity(points.len() + 1);
    for &tokens in points {
        lab.clear();
        gb_per_s.push(rounded(rate(lab, operator, name, tokens)?));
    }
    let (last, end) = (points[points.len() - 1], last_point(operator));
    if last < end {
        let rate = gb_per_s[gb_per_s.len() - 1];
        let per_token = operator != Operator::Elementwise;
        gb_per_s.push(if per_token { rounded(rate * f64::from(last) / f64::from(end)) } else { rate });
        tokens.push(end);
    }
    Ok(Curve { backend: Backend::Gpu, operator, weight_type: name.to_owned(), threads: 0, tokens, gb_per_s })
}

fn rate(lab: &mut Lab<'_>, operator: Operator, name: &str, tokens: u32) -> Result<f64, MeasureError> {
    match operator {
        Operator::Matmul => dense(lab, name, tokens),
        Operator::ExpertMatmul => expert(lab, name, tokens),
        Operator::Attention => attention(lab, if name == "F32" { CacheType::F32 } else { CacheType::F16 }, tokens),
        Operator::DeltaNet => delta(lab, tokens),
        Operator::Elementwise => elementwise(lab),
    }
}

/// Rate of products of a typical dense shape.
fn dense(lab: &mut Lab<'_>, name: &str, tokens: u32) -> Result<f64, MeasureError> {
    let ty = weight_type(name)?;
    let bytes = ty.row_bytes(DENSE.1 as usize)? as f64 * f64::from(DENSE.0);
    Ok(bytes / dense_us(lab, ty, DENSE, tokens)? / 1000.0)
}

/// Rate of products of typical experts.
fn expert(lab: &mut Lab<'_>, name: &str, per_expert: u32) -> Result<f64, MeasureError> {
    let ty = weight_type(name)?;
    let (us, expert_bytes) = expert_us(lab, ty, EXPERT, per_expert)?;
    Ok(expert_bytes / us / 1000.0)
}

/// A point of a model's own shape; where a matrix and its results fill the memory, of a slice of its rows.
pub fn point(lab: &mut Lab<'_>, shape: &Shape, tokens: u32) -> Result<Point, MeasureError> {
    let ty = weight_type(shape.weight_type)?;
    let size = |value: u64| {
        u32::try_from(value).map_err(|_| MeasureError::Interrupted(format!("a matrix of {shape} is no matrix")))
    };
    let (rows, cols) = (size(shape.rows)?, size(shape.columns)?);
    lab.clear();
    let time_us = match shape.operator {
        Operator::ExpertMatmul => expert_us(lab, ty, (rows, cols), tokens)?.0,
        _ => {
            let row_bytes = ty.row_bytes(shape.columns as usize)? as u64 + 4 * u64::from(tokens);
            let timed = timed_rows(rows, row_bytes, lab.left_bytes());
            dense_us(lab, ty, (timed, cols), tokens)? * f64::from(rows) / f64::from(timed)
        }
    };
    Ok(Point {
        backend: Backend::Gpu,
        operator: shape.operator,
        weight_type: shape.weight_type.to_owned(),
        rows: shape.rows,
        columns: shape.columns,
        tokens,
        threads: 0,
        time_us: rounded(time_us),
    })
}

/// Rows of which weights and results take at most a third of the memory, in whole blocks of the kernels.
fn timed_rows(rows: u32, row_bytes: u64, left_bytes: u64) -> u32 {
    let fitting = left_bytes / 3 / row_bytes.max(1) / ROW_BLOCK * ROW_BLOCK;
    u64::from(rows).min(fitting.max(ROW_BLOCK)) as u32
}

/// Matrices of a figure: more than a cache holds, no more than the memory does, and few where each takes long.
fn matrices(matrix_bytes: u64, macs: u64, left_bytes: u64) -> u64 {
    let uncached = (WEIGHT_BYTES / matrix_bytes.max(1)).clamp(1, MATRICES_MOST);
    uncached.min(left_bytes / (matrix_bytes * 2).max(1)).min(MACS_MOST / macs.max(1)).max(1)
}

/// Time of one of several products with the same activations, one after the other, conversion included.
fn dense_us(lab: &mut Lab<'_>, ty: WeightType, shape: (u32, u32), tokens: u32) -> Result<f64, MeasureError> {
    let (rows, cols) = shape;
    let x = lab.rows(tokens, cols)?;
    let (active, conversion) = lab.activations(product::form(ty, cols, tokens), x, tokens)?;
    let out = lab.rows(tokens, rows)?;
    let matrix_bytes = ty.row_bytes(cols as usize)? as u64 * u64::from(rows);
    let macs = u64::from(rows) * u64::from(cols) * u64::from(tokens);
    let matrices = matrices(matrix_bytes, macs, lab.left_bytes());
    let mut launches: Vec<Launch> = conversion.into_iter().collect();
    for _ in 0..matrices {
        let weight = lab.matrix(ty, shape, 1)?;
        let part = Part { weight, bias: DevicePtr::NULL, residual: View::default(), out };
        launches.extend(product::product(lab.chip(), &[part], &active, tokens)?);
    }
    Ok(lab.time_us(&launches)? / matrices as f64)
}

/// Time of one of a layer's experts, each with so many tokens, and the bytes of its matrix.
fn expert_us(
    lab: &mut Lab<'_>,
    ty: WeightType,
    shape: (u32, u32),
    per_expert: u32,
) -> Result<(f64, f64), MeasureError> {
    let (rows, cols) = shape;
    let experts = experts(ty.row_bytes(cols as usize)? as u64 * u64::from(rows), lab.left_bytes());
    let tokens = per_expert * experts / CHOSEN;
    let x = lab.rows(tokens, cols)?;
    let stack = lab.matrix(ty, shape, experts)?;
    let out = lab.rows(tokens, CHOSEN * rows)?;
    let part = Part { weight: stack, bias: DevicePtr::NULL, residual: View::default(), out };
    // Every expert is chosen equally often.
    let ids: Vec<i32> = (0..tokens * CHOSEN).map(|entry| (entry % experts) as i32).collect();
    let ids = View { data: lab.put_i32(&ids)?, stride: CHOSEN, cols: CHOSEN };
    let matrix_bytes = stack.row_bytes()? * u64::from(rows);
    let slot = Slots { ids, slots: CHOSEN, matrices: experts, input_stride: 0, places: DevicePtr::NULL, matrix_bytes };
    let sorted = tokens > SLOT_TOKENS && has_grouped(&part);
    let form = product::form(ty, cols, if sorted { u32::MAX } else { 1 });
    let (active, conversion) = lab.activations(form, x, tokens)?;
    let mut launches: Vec<Launch> = conversion.into_iter().collect();
    if sorted {
        let tile = Sorted::tile_for(tokens * CHOSEN, experts);
        let tiles = lab.room(16 * u64::from(Sorted::tiles_max(TokenTile::T64, tokens * CHOSEN, experts)))?;
        let order = lab.room(4 * u64::from(tokens * CHOSEN))?;
        let to = Sorted { order, tiles, n_tiles: lab.room(4)?, tile };
        launches.push(sort(ids, tokens, CHOSEN, experts, &to));
        launches.push(grouped(lab.chip(), &[part], &active, tokens, &slot, InputRows::PerToken, &to)?);
    } else {
        launches.push(slots(&[part], &active, tokens, &slot)?);
    }
    Ok((lab.time_us(&launches)? / f64::from(experts), matrix_bytes as f64))
}

/// Experts of a figure: a layer's usual number, or as many as half of the memory holds.
fn experts(matrix_bytes: u64, left_bytes: u64) -> u32 {
    let fitting = left_bytes / 2 / matrix_bytes.max(1);
    (fitting.min(u64::from(EXPERTS)) as u32 / CHOSEN * CHOSEN).max(CHOSEN)
}

const KV_HEADS: usize = 8;
const HEAD_COLS: usize = 128;
/// Query heads per key head in a ubatch.
const GROUP: u32 = 4;
/// Query rows from which a figure is of a ubatch.
const UBATCH_ROWS: u32 = 64;

/// One token over a long cache, or a ubatch over its own.
fn attention(lab: &mut Lab<'_>, cache: CacheType, rows: u32) -> Result<f64, MeasureError> {
    let (tokens, group, context) = if rows < UBATCH_ROWS { (1, rows, 4096) } else { (rows / GROUP, GROUP, rows / 2) };
    let context = context.max(tokens);
    let shape = AttentionShape {
        q_heads: KV_HEADS * group as usize,
        kv_heads: KV_HEADS,
        k_head_cols: HEAD_COLS,
        v_head_cols: HEAD_COLS,
        scale: 0.09,
        softcap: None,
        mask: Mask::Causal,
    };
    let element_bytes = if cache == CacheType::F16 { 2 } else { 4 };
    let launches = attention_launches(lab, &shape, cache, (tokens, context))?;
    let seen = f64::from(context) - f64::from(tokens - 1) / 2.0;
    Ok(seen * (2 * KV_HEADS * HEAD_COLS * element_bytes) as f64 / lab.time_us(&launches)? / 1000.0)
}

fn attention_launches(
    lab: &mut Lab<'_>,
    shape: &AttentionShape,
    ty: CacheType,
    (tokens, context): (u32, u32),
) -> Result<Vec<Launch>, MeasureError> {
    let (q_cols, kv_cols) = ((shape.q_heads * HEAD_COLS) as u32, (KV_HEADS * HEAD_COLS) as u32);
    let (q, out) = (lab.rows(tokens, q_cols)?, lab.rows(tokens, q_cols)?);
    let positions: Vec<i32> = (0..context as i32).collect();
    let zeros = vec![0; context as usize];
    let method = Method::for_shape(shape, ty, tokens);
    let (sums, scales) = Partials::bytes_per_token(shape, context);
    let split = u64::from(method == Method::Split) * u64::from(tokens);
    let partials = Partials { sums: lab.room(sums * split)?, scales: lab.room(scales * split)?, slots: context };
    let inputs = RoundInputs {
        positions: lab.put_i32(&positions[(context - tokens) as usize..])?,
        sequences: lab.put_i32(&zeros)?,
        slots: DevicePtr::NULL,
        n_slots: lab.put_i32(&[context as i32])?,
    };
    let (slot_positions, slot_sequences) = (lab.put_i32(&positions)?, lab.put_i32(&zeros)?);
    let side = u64::from(context) * u64::from(kv_cols) * if ty == CacheType::F16 { 2 } else { 4 };
    let (keys, values) = (lab.room(side)?, lab.room(side)?);
    let cache = KvCache { ty, keys, values, slot_positions, slot_sequences, k_cols: kv_cols, v_cols: kv_cols };
    let attend = Attend { shape, q, out, cache: &cache, inputs: &inputs, sinks: DevicePtr::NULL, partials };
    Ok(attend.launches(method, tokens))
}

/// Heads of Qwen3-Next.
const KEY_HEADS: u32 = 16;
const VALUE_HEADS: u32 = 32;

fn delta(lab: &mut Lab<'_>, tokens: u32) -> Result<f64, MeasureError> {
    let cols = HEAD_COLS as u32;
    let state = VALUE_HEADS * cols * cols;
    let delta = Delta {
        q: lab.rows(tokens, KEY_HEADS * cols)?,
        k: lab.rows(tokens, KEY_HEADS * cols)?,
        v: lab.rows(tokens, VALUE_HEADS * cols)?,
        b: lab.rows(tokens, VALUE_HEADS)?,
        alpha: lab.rows(tokens, VALUE_HEADS)?,
        a: lab.room(u64::from(VALUE_HEADS) * 4)?,
        dt: lab.room(u64::from(VALUE_HEADS) * 4)?,
        key_heads: KEY_HEADS,
        value_heads: VALUE_HEADS,
        head_cols: cols,
        heads: HeadMap::Grouped,
    };
    let sequences = lab.put_i32(&vec![0; tokens as usize])?;
    let states = States { data: lab.room(u64::from(state) * 4)?, sequence_stride: u64::from(state), sequences };
    let out = lab.rows(tokens, VALUE_HEADS * cols)?;
    let us = lab.time_us(&[delta_net(&delta, &states, out, tokens)])?;
    Ok(f64::from(state) * 4.0 / us / 1000.0)
}

/// A sum of two values, bytes read and written.
fn elementwise(lab: &mut Lab<'_>) -> Result<f64, MeasureError> {
    let (rows, cols) = (2048, 4096);
    let (a, b, out) = (lab.rows(rows, cols)?, lab.rows(rows, cols)?, lab.rows(rows, cols)?);
    let us = lab.time_us(&[add(a, b, out, rows)])?;
    Ok(f64::from(3 * 4 * rows) * f64::from(cols) / us / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_fit_the_memory_and_the_time() {
        let gib = 1 << 30;
        // Rows, bytes of a row and of its results, memory: a matrix that fits, a head with many results, no room.
        for (rows, row_bytes, left, timed) in
            [(17_408, 2880, gib, 17_408), (151_936, 20_584, gib, 17_280), (9, 1, 0, 9)]
        {
            assert_eq!(timed_rows(rows, row_bytes, left), timed, "{rows} rows");
        }
        // Bytes of a matrix, its multiply-adds, memory: small, large, slow, no room.
        let cases = [(1 << 20, 1, gib, 24), (100 << 20, 1, gib, 1), (1 << 23, 1 << 36, gib, 2), (gib, 1, gib, 1)];
        for (bytes, macs, left, expected) in cases {
            assert_eq!(matrices(bytes, macs, left), expected, "{bytes} bytes");
        }
        for (bytes, left, expected) in [(1 << 20, gib, 32), (24 << 20, gib, 16), (1 << 30, gib, 8)] {
            assert_eq!(experts(bytes, left), expected, "{bytes} bytes");
        }
    }
}
