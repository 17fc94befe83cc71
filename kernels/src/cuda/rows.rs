//! Launches that produce activation rows: conversion, RMS norm, gated units. Each writes the F32 row and/or the forms
//! that matrix products read. Columns are a multiple of 4, of 32 for Q8. Next: `ops.rs`.

use super::args::{ConvertArgs, Forms, GluArgs, NormArgs, View};
use super::launch::blocks;
use super::{DevicePtr, Launch};
use crate::cpu::ops::elementwise::Glu;
use bytemuck::NoUninit;

/// Threads of a block that shares a row with others.
const THREADS: u32 = 256;
/// Columns that a block of a scaled row keeps and groups of four columns that a thread loads at once: as in `rows.cu`.
const KEPT_COLS: u32 = 20480;
const AT_ONCE: u32 = 4;
/// Rows up to which a norm shares out a row's columns to several blocks.
const SHARED_ROWS_MAX: u32 = 8;

/// The launch that writes rows: one block per row where a row scale needs the whole row.
fn over_rows<A: NoUninit>(kernel: &'static str, cols: u32, rows: u32, forms: &Forms, args: &A) -> Launch {
    if forms.f16.is_null() {
        return Launch::new("rows", kernel, [blocks(cols, 4 * THREADS, 64), rows, 1], THREADS, args);
    }
    let threads = cols.div_ceil(4 * AT_ONCE).next_multiple_of(32).clamp(128, 512);
    let shared_bytes = cols.next_multiple_of(4).min(KEPT_COLS) * 4;
    Launch::new("rows", kernel, [1, rows, 1], threads, args).with_shared(shared_bytes)
}

/// x in other forms.
pub fn convert(x: View, rows: u32, forms: Forms) -> Launch {
    over_rows("convert_rows", x.cols, rows, &forms, &ConvertArgs { x, forms })
}

/// A sum that goes into the residual stream on the way to a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residual {
    /// What is added to x.
    pub addend: View,
    /// Where the sum goes; may be either operand.
    pub sum: View,
}

/// Whole-row RMS norm of x (plus a residual): x / sqrt(mean(x²) + eps) · weight; a null weight is 1.
pub fn rms_norm(x: View, residual: Option<Residual>, weight: DevicePtr, eps: f32, rows: u32, forms: Forms) -> Launch {
    let args = NormArgs {
        x,
        residual: residual.map_or(DevicePtr::NULL, |r| r.addend.data),
        sum: residual.map_or(DevicePtr::NULL, |r| r.sum.data),
        weight,
        forms,
        residual_stride: residual.map_or(0, |r| r.addend.stride),
        sum_stride: residual.map_or(0, |r| r.sum.stride),
        eps,
        reserved: 0,
    };
    let threads = x.cols.div_ceil(4 * AT_ONCE).next_multiple_of(32).clamp(32, 512);
    // A sum may lie where other blocks still read.
    let shares = forms.f16.is_null() && residual.is_none() && rows <= SHARED_ROWS_MAX;
    let parts = if shares { blocks(x.cols, 4 * threads, AT_ONCE) } else { 1 };
    Launch::new("rows", "rms_norm", [parts, rows, 1], threads, &args)
}

/// activation(gate, up).
pub fn glu(activation: Glu, gate: View, up: View, rows: u32, forms: Forms) -> Launch {
    let (code, alpha, limit) = match activation {
        Glu::Silu => (0, 0.0, 0.0),
        Glu::GeluTanh => (1, 0.0, 0.0),
        Glu::ClampedSwish { alpha, limit } => (2, alpha, limit),
    };
    let args = GluArgs { gate, up: up.data, forms, up_stride: up.stride, activation: code, alpha, limit };
    over_rows("glu_rows", gate.cols, rows, &forms, &args)
}
