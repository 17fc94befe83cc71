//! The operators' case table (`crate::cpu::ops::cases`) on a machine. Next: `rest.rs`.

use super::{Bench, HALF_ATTENTION, Machine};
use crate::cpu::ops::attention::AttentionShape;
use crate::cpu::ops::cases::{OpBackend, OpCase, Operands, check_ops};
use crate::cpu::ops::kv::{KV_BLOCK, slot};
use crate::cpu::ops::rope::RopeTable;
use crate::cuda::attention::{Attend, Method, Partials};
use crate::cuda::experts::{Routing, route};
use crate::cuda::ops::{self, CacheType, GroupNorm, KvCache, RopeShape, RoundInputs};
use crate::cuda::recurrent::{Delta, States, causal_conv, delta_net};
use crate::cuda::rows;
use crate::cuda::{DevicePtr, Forms, View};
use half::f16;

/// Runs the operator table, attention by every method that takes a case.
///
/// # Errors
/// The first case that misses its tolerance.
pub fn check_operators(machine: &mut dyn Machine) -> Result<(), String> {
    for preferred in [Method::Plain, Method::Split, Method::Tiled] {
        let mut backend = Backend { machine, preferred, failure: None };
        let result = check_ops(&mut backend);
        if let Some(failure) = backend.failure {
            return Err(failure);
        }
        result?;
    }
    Ok(())
}

/// The table's view of a machine.
struct Backend<'m> {
    machine: &'m mut dyn Machine,
    preferred: Method,
    failure: Option<String>,
}

impl OpBackend for Backend<'_> {
    fn name(&self) -> String {
        format!("{}, attention by {:?}", self.machine.name(), self.preferred)
    }

    fn run(&mut self, case: &OpCase, operands: &Operands) -> Option<Vec<f32>> {
        let is_attention = matches!(case, OpCase::Attention { .. });
        // The other operators have one method each: once is enough.
        if !is_attention && self.preferred != Method::Plain {
            return None;
        }
        let result = self.machine.clear().and_then(|()| {
            let mut bench = Bench { machine: &mut *self.machine };
            run_case(&mut bench, case, operands, self.preferred)
        });
        result.unwrap_or_else(|error| {
            self.failure.get_or_insert(format!("{case:?}: {error}"));
            None
        })
    }

    fn tolerance(&self, case: &OpCase) -> f64 {
        match case {
            OpCase::Attention { half: true, .. } if self.preferred != Method::Plain => HALF_ATTENTION,
            _ => case.tolerance(),
        }
    }
}

fn run_case(bench: &mut Bench, case: &OpCase, operands: &Operands, method: Method) -> Result<Option<Vec<f32>>, String> {
    match *case {
        OpCase::RmsNorm { .. } | OpCase::L2Norm { .. } => norm(bench, case, operands).map(Some),
        OpCase::Router { .. } => router(bench, case, operands).map(Some),
        OpCase::Rope { .. } => rope(bench, case, operands).map(Some),
        OpCase::CausalConv { .. } => conv(bench, case, operands).map(Some),
        OpCase::DeltaNet { .. } => delta(bench, case, operands).map(Some),
        OpCase::Attention { shape, tokens, half, mla, sinks, .. } => {
            let cache = if half { CacheType::F16 } else { CacheType::F32 };
            if !takes(method, &shape, cache) {
                return Ok(None);
            }
            let kind = AttentionKind { tokens, cache, mla, sinks, method };
            attend(bench, &shape, kind, operands).map(Some)
        }
        OpCase::Softmax { .. } => Ok(None), // part of other kernels here
        _ => elementwise(bench, case, operands).map(Some),
    }
}

fn elementwise(bench: &mut Bench, case: &OpCase, operands: &Operands) -> Result<Vec<f32>, String> {
    let (rows, x_cols, out_cols) = match *case {
        OpCase::Add { rows, cols } | OpCase::Glu { rows, cols, .. } | OpCase::SigmoidGate { rows, cols, .. } => {
            (rows, cols, cols)
        }
        OpCase::Softcap { rows, cols, .. } | OpCase::PositionScale { rows, cols, .. } => (rows, cols, cols),
        OpCase::CopyCols { rows, cols, out_cols, .. } => (rows, cols, out_cols),
        OpCase::ExpertScale { rows, cols, chosen } => (rows, cols, chosen * cols),
        OpCase::ExpertSum { rows, cols, chosen, .. } => (rows, chosen * cols, cols),
        _ => return Err("not elementwise".to_string()),
    };
    let n = rows as u32;
    let x = bench.put_rows(&operands.f32[0], x_cols)?;
    let out = bench.put_rows(&vec![0.0; rows * out_cols], out_cols)?;
    let second = match operands.f32.get(1) {
        Some(values) => bench.put_rows(values, values.len() / rows)?,
        None => View::default(),
    };
    let launch = match *case {
        OpCase::Add { .. } => ops::add(x, second, out, n),
        OpCase::Glu { activation, .. } => {
            let forms = Forms { f32: out.data, f32_stride: out.stride, ..Forms::default() };
            rows::glu(activation, x, second, n, forms)
        }
        OpCase::SigmoidGate { .. } => ops::sigmoid_gate(x, second, out, n),
        OpCase::Softcap { cap, .. } => ops::softcap(x, cap, out, n),
        OpCase::CopyCols { groups, .. } => ops::copy_cols(x, out, groups, n),
        OpCase::PositionScale { temperature, .. } => {
            let positions = bench.put(&operands.u32[0])?;
            ops::position_scale(temperature, x, positions, out, n)
        }
        OpCase::ExpertScale { .. } => ops::expert_scale(x, second, out, n),
        OpCase::ExpertSum { chosen, .. } => ops::expert_sum(x, chosen as u32, second, View::default(), out, n),
        _ => return Err("not elementwise".to_string()),
    };
    bench.run([launch])?;
    bench.get(out.data, rows * out_cols)
}

fn norm(bench: &mut Bench, case: &OpCase, operands: &Operands) -> Result<Vec<f32>, String> {
    let (rows, cols, group, norm) = match *case {
        OpCase::RmsNorm { rows, cols, group, eps, .. } => (rows, cols, group, GroupNorm::rms(group as u32, eps)),
        OpCase::L2Norm { rows, cols, group, eps, scale } => {
            (rows, cols, group, GroupNorm::l2(group as u32, eps, scale))
        }
        _ => return Err("no norm".to_string()),
    };
    let x = bench.put_rows(&operands.f32[0], cols)?;
    let out = bench.room_rows(rows, cols)?;
    let weight = match operands.f32.get(1) {
        Some(weight) => bench.put(weight)?,
        None => DevicePtr::NULL,
    };
    let whole_row = matches!(case, OpCase::RmsNorm { .. }) && group == cols;
    let forms = Forms { f32: out.data, f32_stride: out.stride, ..Forms::default() };
    let launch = if whole_row {
        rows::rms_norm(x, None, weight, norm.eps, rows as u32, forms)
    } else {
        ops::group_norm(norm, x, weight, out, rows as u32)
    };
    bench.run([launch])?;
    bench.get(out.data, rows * cols)
}

fn rope(bench: &mut Bench, case: &OpCase, operands: &Operands) -> Result<Vec<f32>, String> {
    let OpCase::Rope { rows, heads, head_cols, pairing, rope, .. } = *case else { return Err("no rope".to_string()) };
    let table = RopeTable::new(rope.params(operands.f32.get(1).map(Vec::as_slice)));
    let x = bench.put_rows(&operands.f32[0], heads * head_cols)?;
    let turns = bench.put(&ops::rope_turns(&table))?;
    let positions = bench.put(&operands.u32[0])?;
    let trig = bench.room(rows * rope.n_rot * 4)?;
    let (pairs, n_rot) = ((rope.n_rot / 2) as u32, rope.n_rot as u32);
    let angles = ops::rope_angles(turns, pairs, table.magnitude() as f32, positions, trig, rows as u32);
    let (heads, head_cols) = (heads as u32, head_cols as u32);
    let shape = RopeShape { heads, head_cols, n_rot, pairing, norm_eps: None };
    bench.run([angles, ops::rope(&shape, x, trig, DevicePtr::NULL, x, rows as u32)])?;
    bench.get(x.data, operands.f32[0].len())
}

fn router(bench: &mut Bench, case: &OpCase, operands: &Operands) -> Result<Vec<f32>, String> {
    let OpCase::Router { rows, experts, chosen, .. } = *case else { return Err("no router".to_string()) };
    let params = case.router(operands);
    let logits = bench.put_rows(&operands.f32[0], experts)?;
    let bias = match operands.f32.get(1) {
        Some(bias) => bench.put(bias)?,
        None => DevicePtr::NULL,
    };
    let (ids, weights) = (bench.room_rows(rows, chosen)?, bench.room_rows(rows, chosen)?);
    let routing = Routing {
        experts: experts as u32,
        chosen: chosen as u32,
        score: params.score,
        weights: params.weights,
        scale: params.scale,
    };
    bench.run([route(&routing, logits, bias, ids, weights, rows as u32)])?;
    let ids: Vec<i32> = bench.get(ids.data, rows * chosen)?;
    let weights: Vec<f32> = bench.get(weights.data, rows * chosen)?;
    Ok(ids.into_iter().map(|id| id as f32).chain(weights).collect())
}

fn conv(bench: &mut Bench, case: &OpCase, operands: &Operands) -> Result<Vec<f32>, String> {
    let OpCase::CausalConv { tokens, channels, taps } = *case else { return Err("no convolution".to_string()) };
    let x = bench.put_rows(&operands.f32[0], channels)?;
    let out = bench.room_rows(tokens, channels)?;
    let filter = bench.put(&operands.f32[1])?;
    let state = bench.put(&operands.f32[2])?;
    let states = States { data: state, sequence_stride: 0, sequences: bench.put(&vec![0i32; tokens])? };
    bench.run([causal_conv(x, filter, taps as u32, &states, out, tokens as u32)])?;
    let mut result: Vec<f32> = bench.get(out.data, tokens * channels)?;
    result.extend(bench.get::<f32>(state, channels * (taps - 1))?);
    Ok(result)
}

fn delta(bench: &mut Bench, case: &OpCase, operands: &Operands) -> Result<Vec<f32>, String> {
    let OpCase::DeltaNet { tokens, key_heads, value_heads, head_cols, heads } = *case else {
        return Err("no delta net".to_string());
    };
    let keys = key_heads * head_cols;
    let values = value_heads * head_cols;
    let delta = Delta {
        q: bench.put_rows(&operands.f32[0], keys)?,
        k: bench.put_rows(&operands.f32[1], keys)?,
        v: bench.put_rows(&operands.f32[2], values)?,
        b: bench.put_rows(&operands.f32[3], value_heads)?,
        alpha: bench.put_rows(&operands.f32[4], value_heads)?,
        a: bench.put(&operands.f32[5])?,
        dt: bench.put(&operands.f32[6])?,
        key_heads: key_heads as u32,
        value_heads: value_heads as u32,
        head_cols: head_cols as u32,
        heads,
    };
    let state = bench.put(&operands.f32[7])?;
    let states = States { data: state, sequence_stride: 0, sequences: bench.put(&vec![0i32; tokens])? };
    let out = bench.room_rows(tokens, values)?;
    bench.run([delta_net(&delta, &states, out, tokens as u32)])?;
    let mut result: Vec<f32> = bench.get(out.data, tokens * values)?;
    result.extend(bench.get::<f32>(state, operands.f32[7].len())?);
    Ok(result)
}

/// Whether a method can compute a shape.
fn takes(method: Method, shape: &AttentionShape, cache: CacheType) -> bool {
    match method {
        Method::Plain => true,
        Method::Split => Method::for_shape(shape, cache, 1) == Method::Split,
        Method::Tiled => Method::for_shape(shape, cache, u32::MAX) == Method::Tiled,
    }
}

/// How an attention case is run.
#[derive(Clone, Copy)]
struct AttentionKind {
    tokens: usize,
    cache: CacheType,
    mla: bool,
    sinks: bool,
    method: Method,
}

fn attend(
    bench: &mut Bench,
    shape: &AttentionShape,
    kind: AttentionKind,
    operands: &Operands,
) -> Result<Vec<f32>, String> {
    let (positions, table) = (&operands.u32[0], &operands.u32[1]);
    let (q_cols, out_cols) = (shape.q_heads * shape.k_head_cols, shape.q_heads * shape.v_head_cols);
    let (k_cols, v_cols) = (shape.kv_heads * shape.k_head_cols, shape.kv_heads * shape.v_head_cols);
    let n_slots = table.len() * KV_BLOCK;
    let mut slot_positions = vec![-1i32; n_slots];
    for position in 0..operands.f32[1].len() / k_cols {
        slot_positions[slot(table, position as u32) as usize] = position as i32;
    }
    let values =
        if kind.mla { DevicePtr::NULL } else { put_cache(bench, &operands.f32[2], v_cols, table, kind.cache)? };
    let cache = KvCache {
        ty: kind.cache,
        keys: put_cache(bench, &operands.f32[1], k_cols, table, kind.cache)?,
        values,
        slot_positions: bench.put(&slot_positions)?,
        slot_sequences: bench.put(&vec![0i32; n_slots])?,
        k_cols: k_cols as u32,
        v_cols: v_cols as u32,
    };
    let inputs = RoundInputs {
        positions: bench.put(positions)?,
        sequences: bench.put(&vec![0i32; kind.tokens])?,
        slots: DevicePtr::NULL,
        n_slots: bench.put(&[n_slots as u32])?,
    };
    let sinks = match operands.f32.last() {
        Some(sinks) if kind.sinks => bench.put(sinks)?,
        _ => DevicePtr::NULL,
    };
    let q = bench.put_rows(&operands.f32[0], q_cols)?;
    let out = bench.room_rows(kind.tokens, out_cols)?;
    let (sums, scales) = Partials::bytes_per_token(shape, n_slots as u32);
    let partials = Partials {
        sums: bench.room(sums as usize * kind.tokens)?,
        scales: bench.room(scales as usize * kind.tokens)?,
        slots: n_slots as u32,
    };
    let tokens = kind.tokens as u32;
    let attend = Attend { shape, q, out, cache: &cache, inputs: &inputs, sinks, partials };
    bench.run(attend.launches(kind.method, tokens))?;
    bench.get(out.data, kind.tokens * out_cols)
}

/// Keys or values by position into slots; slots of no position hold zeros, as a fresh cache does.
fn put_cache(
    bench: &mut Bench,
    by_position: &[f32],
    cols: usize,
    table: &[u32],
    ty: CacheType,
) -> Result<DevicePtr, String> {
    let mut cache = vec![0f32; table.len() * KV_BLOCK * cols];
    for (position, row) in by_position.chunks(cols).enumerate() {
        cache[slot(table, position as u32) as usize * cols..][..cols].copy_from_slice(row);
    }
    match ty {
        CacheType::F32 => bench.put(&cache),
        CacheType::F16 => {
            let half: Vec<u16> = cache.iter().map(|&x| f16::from_f32(x).to_bits()).collect();
            bench.put(&half)
        }
    }
}
