//! Launches that produce activation rows: conversion, RMS norm, gated units. Each writes the F32 row and/or the forms
//! that matrix products read. Columns are a multiple of 4, of 32 for Q8. Next: `ops.rs`.

use super::args::{ConvertArgs, Forms, GluArgs, NormArgs, View};
use super::launch::blocks;
use super::{DevicePtr, Launch};
use crate::cpu::ops::elementwise::Glu;

/// Threads of a block that shares a row with others.
const THREADS: u32 = 256;

/// Blocks per row: one where a row scale needs the whole row.
fn row_grid(cols: u32, rows: u32, forms: &Forms) -> [u32; 3] {
    let most = if forms.f16.is_null() { 64 } else { 1 };
    [blocks(cols, 4 * THREADS, most), rows, 1]
}

/// x in other forms.
pub fn convert(x: View, rows: u32, forms: Forms) -> Launch {
    Launch::new("rows", "convert_rows", row_grid(x.cols, rows, &forms), THREADS, &ConvertArgs { x, forms })
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
    let threads = (x.cols.div_ceil(4).next_multiple_of(32)).clamp(32, 1024);
    Launch::new("rows", "rms_norm", [1, rows, 1], threads, &args)
}

/// activation(gate, up).
pub fn glu(activation: Glu, gate: View, up: View, rows: u32, forms: Forms) -> Launch {
    let (code, alpha, limit) = match activation {
        Glu::Silu => (0, 0.0, 0.0),
        Glu::GeluTanh => (1, 0.0, 0.0),
        Glu::ClampedSwish { alpha, limit } => (2, alpha, limit),
    };
    let args = GluArgs { gate, up: up.data, forms, up_stride: up.stride, activation: code, alpha, limit };
    Launch::new("rows", "glu_rows", row_grid(gate.cols, rows, &forms), THREADS, &args)
}
