//! Launches of the operators that are neither products nor attention nor recurrent. Rows are tokens of the round.
//! Views are taken as they are: the program's verifier has checked that shapes agree. Next: `attention.rs`.

use super::args::{
    AddArgs, AnglesArgs, CopyColsArgs, EmbedArgs, ExpertScaleArgs, ExpertSumArgs, GroupNormArgs, HeadsArgs,
    PositionScaleArgs, ReduceArgs, RopeArgs, SelectRowsArgs, SigmoidGateArgs, SoftcapArgs, StoreKvArgs, View,
};
use super::launch::blocks;
use super::product::module;
use super::{DevicePtr, GpuMatrix, Launch};
use crate::KernelError;
use crate::cpu::ops::elementwise::{ColGroups, Temperature};
use crate::cpu::ops::rope::{RopePairing, RopeTable};
use crate::quant::WeightType;

/// Most addends of [`reduce`].
pub const ADDENDS_MAX: usize = 8;

const THREADS: u32 = 256;
/// Warps of a block in kernels with a warp per head.
const HEAD_WARPS: u32 = 4;

fn grid(cols: u32, rows: u32) -> [u32; 3] {
    [blocks(cols, THREADS, 64), rows, 1]
}

/// out = a + b.
pub fn add(a: View, b: View, out: View, rows: u32) -> Launch {
    Launch::new("elementwise", "add", grid(out.cols.div_ceil(4), rows), THREADS, &AddArgs { a, b, out })
}

/// out = x · sigmoid(gate); the gate has as many columns as x, or one.
pub fn sigmoid_gate(x: View, gate: View, out: View, rows: u32) -> Launch {
    Launch::new("elementwise", "sigmoid_gate", grid(out.cols, rows), THREADS, &SigmoidGateArgs { x, gate, out })
}

/// out = cap · tanh(x / cap).
pub fn softcap(x: View, cap: f32, out: View, rows: u32) -> Launch {
    Launch::new("elementwise", "softcap", grid(out.cols, rows), THREADS, &SoftcapArgs { x, out, cap, reserved: 0 })
}

/// out\[g · out_stride + i\] = x\[g · x_stride + i\].
pub fn copy_cols(x: View, out: View, groups: ColGroups, rows: u32) -> Launch {
    let (width, count) = (groups.width as u32, groups.groups as u32);
    let (x_stride, out_stride) = (groups.x_stride as u32, groups.out_stride as u32);
    let args = CopyColsArgs { x, out, x_stride, out_stride, width, groups: count };
    Launch::new("elementwise", "copy_cols", grid(width * count, rows), THREADS, &args)
}

/// out\[o\] = x\[rows_of\[o\]\] for `outputs` I32 row numbers.
pub fn select_rows(x: View, rows_of: DevicePtr, out: View, outputs: u32) -> Launch {
    let args = SelectRowsArgs { x, out, rows: rows_of };
    Launch::new("elementwise", "select_rows", grid(out.cols, outputs), THREADS, &args)
}

/// out\[:, j\] = weights\[j\] · x.
pub fn expert_scale(x: View, weights: View, out: View, rows: u32) -> Launch {
    Launch::new("elementwise", "expert_scale", grid(out.cols, rows), THREADS, &ExpertScaleArgs { x, weights, out })
}

/// out = Σ_j weights\[j\] · x\[:, j\] (+ residual); without weights (data null) a plain sum.
pub fn expert_sum(x: View, chosen: u32, weights: View, residual: View, out: View, rows: u32) -> Launch {
    held_sum(x, chosen, weights, View::default(), residual, out, rows)
}

/// out = Σ_j weights\[j\] · x\[:, j\] (+ residual) over the j with ids\[j\] ≥ 0; ids (data null): all.
pub fn held_sum(x: View, chosen: u32, weights: View, ids: View, residual: View, out: View, rows: u32) -> Launch {
    let args = ExpertSumArgs { x, weights, out, residual, ids, chosen, reserved: 0 };
    Launch::new("elementwise", "expert_sum", grid(out.cols, rows), THREADS, &args)
}

/// out = Σ partials, up to [`ADDENDS_MAX`]; more are left out, so callers chain launches.
pub fn reduce(partials: &[View], out: View, rows: u32) -> Launch {
    let mut args = ReduceArgs { out, count: partials.len().min(ADDENDS_MAX) as u32, ..ReduceArgs::default() };
    for (index, partial) in partials.iter().take(ADDENDS_MAX).enumerate() {
        (args.partials[index], args.strides[index]) = (partial.data, partial.stride);
    }
    Launch::new("elementwise", "reduce", grid(out.cols, rows), THREADS, &args)
}

/// A norm per group of columns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GroupNorm {
    /// Columns of a group.
    pub group: u32,
    /// Added under the root.
    pub eps: f32,
    /// What the sum of squares is multiplied by: 1 / group for RMS, 1 for L2.
    pub inverse_count: f32,
    /// Multiplies the result.
    pub scale: f32,
}

impl GroupNorm {
    /// x / sqrt(mean(x²) + eps).
    pub fn rms(group: u32, eps: f32) -> GroupNorm {
        GroupNorm { group, eps, inverse_count: 1.0 / group as f32, scale: 1.0 }
    }

    /// scale · x / sqrt(sum(x²) + eps).
    pub fn l2(group: u32, eps: f32, scale: f32) -> GroupNorm {
        GroupNorm { group, eps, inverse_count: 1.0, scale }
    }
}

/// Norm of each group; `weight` {group} or null. `out` may be `x`.
pub fn group_norm(norm: GroupNorm, x: View, weight: DevicePtr, out: View, rows: u32) -> Launch {
    let GroupNorm { group, eps, inverse_count, scale } = norm;
    let args = GroupNormArgs { x, out, weight, group, eps, inverse_count, scale };
    let groups = x.cols / group.max(1);
    Launch::new("heads", "group_norm", [groups.div_ceil(HEAD_WARPS), rows, 1], 32 * HEAD_WARPS, &args)
}

/// F64 turns per position of each pair, for [`rope_angles`].
pub fn rope_turns(table: &RopeTable) -> Vec<f64> {
    table.frequencies().iter().map(|radians| radians / (2.0 * std::f64::consts::PI)).collect()
}

/// Cosines and sines \[rows, 2 · pairs\] of I32 positions, magnitude included; once per round and table.
pub fn rope_angles(
    turns: DevicePtr,
    pairs: u32,
    magnitude: f32,
    positions: DevicePtr,
    trig: DevicePtr,
    rows: u32,
) -> Launch {
    let args = AnglesArgs { turns, positions, trig, pairs, magnitude };
    Launch::new("heads", "rope_angles", [pairs.div_ceil(64), rows, 1], 64, &args)
}

/// Heads, pairing and an optional RMS norm of each head before the rotation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeShape {
    /// Heads.
    pub heads: u32,
    /// Columns of a head.
    pub head_cols: u32,
    /// Rotated columns of a head.
    pub n_rot: u32,
    /// Which columns rotate together.
    pub pairing: RopePairing,
    /// eps of the norm; `None`: no norm.
    pub norm_eps: Option<f32>,
}

/// Rotates each head by the angles `trig`; `norm_weight` {head_cols} or null. `out` may be `x`.
pub fn rope(shape: &RopeShape, x: View, trig: DevicePtr, norm_weight: DevicePtr, out: View, rows: u32) -> Launch {
    let args = RopeArgs {
        x,
        out,
        trig,
        norm_weight,
        heads: shape.heads,
        head_cols: shape.head_cols,
        n_rot: shape.n_rot,
        neox: u32::from(shape.pairing == RopePairing::Neox),
        norm: u32::from(shape.norm_eps.is_some()),
        eps: shape.norm_eps.unwrap_or(0.0),
    };
    Launch::new("heads", "rope", [shape.heads.div_ceil(HEAD_WARPS), rows, 1], 32 * HEAD_WARPS, &args)
}

/// out = x · (1 + factor · ln(floor((position + 1) / period) + 1)).
pub fn position_scale(temperature: Temperature, x: View, positions: DevicePtr, out: View, rows: u32) -> Launch {
    let args =
        PositionScaleArgs { x, out, positions, period: temperature.period_tokens as f32, factor: temperature.factor };
    Launch::new("heads", "position_scale", grid(x.cols, rows), THREADS, &args)
}

/// Element type of a key/value cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheType {
    /// Two bytes.
    F16,
    /// Four bytes.
    F32,
}

/// A key/value cache in device memory, zeroed once, with what each slot holds (positions start at −1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvCache {
    /// Element type.
    pub ty: CacheType,
    /// \[slots, k_cols\].
    pub keys: DevicePtr,
    /// \[slots, v_cols\]; null where values are the first columns of the keys.
    pub values: DevicePtr,
    /// I32 \[slots\].
    pub slot_positions: DevicePtr,
    /// I32 \[slots\].
    pub slot_sequences: DevicePtr,
    /// Columns of a slot's keys.
    pub k_cols: u32,
    /// Columns of a slot's values.
    pub v_cols: u32,
}

/// I32 arrays of the round, one element per token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundInputs {
    /// Position in its sequence.
    pub positions: DevicePtr,
    /// Sequence.
    pub sequences: DevicePtr,
    /// Cache slot; negative: not stored.
    pub slots: DevicePtr,
    /// U32: slots 0 .. this may hold something, this round's included.
    pub n_slots: DevicePtr,
}

/// Writes keys and values into their slots, and what the slots now hold. `v.data` null: keys only.
pub fn store_kv(k: View, v: View, cache: &KvCache, inputs: &RoundInputs, rows: u32) -> Launch {
    let args = StoreKvArgs {
        k,
        v,
        k_cache: cache.keys,
        v_cache: cache.values,
        slots: inputs.slots,
        positions: inputs.positions,
        sequences: inputs.sequences,
        slot_positions: cache.slot_positions,
        slot_sequences: cache.slot_sequences,
        f32_cache: u32::from(cache.ty == CacheType::F32),
        reserved: 0,
    };
    let cols = k.cols + if v.data.is_null() { 0 } else { v.cols };
    Launch::new("heads", "store_kv", grid(cols, rows), THREADS, &args)
}

/// Queries and keys before their rotation, and values: what one launch makes ready for attention.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Heads {
    /// Columns of a head of the queries and of the keys.
    pub head_cols: u32,
    /// Rotated columns of a head.
    pub n_rot: u32,
    /// Which columns rotate together.
    pub pairing: RopePairing,
    /// Weights {head_cols} and eps of the RMS norms of queries and keys before the rotation; `None`: no norms.
    pub norms: Option<[(DevicePtr, f32); 2]>,
    /// \[rows, heads · head_cols\].
    pub q: View,
    /// Where the rotated queries go; may be `q`.
    pub q_out: View,
    /// \[rows, key heads · head_cols\].
    pub k: View,
    /// \[rows, any columns\].
    pub v: View,
    /// Angles of [`rope_angles`].
    pub trig: DevicePtr,
}

/// What two [`rope`] and [`store_kv`] do, to the bit: queries are rotated, keys are rotated into the cache, values are
/// copied there. The rotated keys stand nowhere else.
pub fn rope_and_store(heads: &Heads, cache: &KvCache, inputs: &RoundInputs, rows: u32) -> Launch {
    let Heads { head_cols, n_rot, pairing, norms, q, q_out, k, v, trig } = *heads;
    let [(q_weight, q_eps), (k_weight, k_eps)] = norms.unwrap_or_default();
    let args = HeadsArgs {
        q,
        q_out,
        k,
        v,
        q_weight,
        k_weight,
        trig,
        k_cache: cache.keys,
        v_cache: cache.values,
        slots: inputs.slots,
        positions: inputs.positions,
        sequences: inputs.sequences,
        slot_positions: cache.slot_positions,
        slot_sequences: cache.slot_sequences,
        head_cols,
        n_rot,
        neox: u32::from(pairing == RopePairing::Neox),
        norm: u32::from(norms.is_some()),
        f32_cache: u32::from(cache.ty == CacheType::F32),
        q_eps,
        k_eps,
        reserved: 0,
    };
    let groups = (q.cols + k.cols) / head_cols.max(1) + v.cols.div_ceil(head_cols.max(1));
    Launch::new("heads", "rope_and_store", [groups.div_ceil(HEAD_WARPS), rows, 1], 32 * HEAD_WARPS, &args)
}

/// Rows `ids` (I32) of a table, times `scale`, exactly dequantised; null ids: row r to row r. Ids outside the table
/// give zeros.
///
/// # Errors
/// Columns that are no whole number of blocks.
pub fn embed(table: &GpuMatrix, ids: DevicePtr, scale: f32, out: View, rows: u32) -> Result<Launch, KernelError> {
    let args = EmbedArgs {
        table: table.data,
        ids,
        out: out.data,
        row_bytes: table.row_bytes()?,
        cols: table.cols,
        out_stride: out.stride,
        scale,
        rows_in_table: table.rows,
    };
    let units = if table.ty == WeightType::F32 { table.cols } else { table.cols / 32 };
    Ok(Launch::new(module("embed", table.ty, table.layout), "embed", [blocks(units, 128, 16), rows, 1], 128, &args))
}
