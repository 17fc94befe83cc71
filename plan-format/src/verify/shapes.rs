//! Invariants of each operator: its operands have one row count, the element types and the column counts that it needs,
//! its weights have the role and the dimensions that it reads, its figures are finite. Ids and columns are known to be
//! in range here (`program.rs` checks them first).

use super::program::weight_tensor;
use super::{Problem, ensure};
use crate::error::Result;
use crate::ids::WeightId;
use crate::operands::{Columns, Operand};
use crate::program::{
    Attention, DeltaNet, Elem, ExpertInput, GluActivation, Mask, MatMulPart, OpKind, Program, Router, Rows, StateKind,
    View, WeightRole,
};

type Check = Result<(), Problem>;

/// Checks one operator.
pub(super) fn check(program: &Program, op: &OpKind) -> Check {
    rows_and_elems(program, op)?;
    let p = program;
    match op {
        OpKind::Embed { table, scale, out } => embed(p, *table, *scale, *out),
        OpKind::SelectOutputs { x, out } | OpKind::PositionScale { x, out, .. } | OpKind::Softcap { x, out, .. } => {
            equal("out", out.cols, x.cols)?;
            figures(op)
        }
        OpKind::RmsNorm { x, group, weight, eps, out } => {
            grouped(*x, *group, *eps, *out)?;
            weight.map_or(Ok(()), |w| small(p, w, [u64::from(*group), 1]))
        }
        OpKind::L2Norm { x, group, eps, scale, out } => {
            positive("scale", *scale)?;
            grouped(*x, *group, *eps, *out)
        }
        OpKind::MatMul { x, parts } => products(parts, |part| {
            matrix(p, part.weight, WeightRole::Matrix, [x.cols, part.out.cols, 1])?;
            part.bias.map_or(Ok(()), |bias| small(p, bias, [u64::from(part.out.cols), 1]))
        }),
        OpKind::Add { a, b, out } => equal("b", b.cols, a.cols).and(equal("out", out.cols, a.cols)),
        OpKind::Glu { gate, up, activation, out } => {
            glu(*activation)?;
            equal("up", up.cols, gate.cols).and(equal("out", out.cols, gate.cols))
        }
        OpKind::SigmoidGate { x, gate, out } => {
            ensure!(gate.cols == 1 || gate.cols == x.cols, "gate has {} columns, expected 1 or {}", gate.cols, x.cols);
            equal("out", out.cols, x.cols)
        }
        OpKind::CopyCols { x, x_stride, out, out_stride, width, groups } => {
            let reach = |stride: u32| u64::from(stride) * u64::from(groups - 1) + u64::from(*width);
            ensure!(reach(*x_stride) <= u64::from(x.cols), "x has {} columns, the copy reads more", x.cols);
            ensure!(reach(*out_stride) <= u64::from(out.cols), "out has {} columns, the copy writes more", out.cols);
            Ok(())
        }
        OpKind::Rope { x, heads, head_cols, rope, out } => {
            let n_rot = p.ropes[rope.index()].n_rot;
            ensure!(n_rot <= *head_cols, "rotates {n_rot} of {head_cols} columns of a head");
            product("x", x.cols, *heads, *head_cols).and(equal("out", out.cols, x.cols))
        }
        OpKind::StoreKv { .. } | OpKind::Attention { .. } => cache(p, op),
        OpKind::Router { .. }
        | OpKind::ExpertScale { .. }
        | OpKind::ExpertMatMul { .. }
        | OpKind::ExpertSum { .. }
        | OpKind::HeldIds { .. }
        | OpKind::HeldSum { .. } => experts(p, op),
        OpKind::HeadMatMul { x, heads, weight, out } => {
            ensure!(*heads > 0 && x.cols % heads == 0 && out.cols % heads == 0, "{heads} heads do not divide x or out");
            matrix(p, *weight, WeightRole::Heads, [x.cols / heads, out.cols / heads, *heads])
        }
        OpKind::CausalConv { x, filter, state, out } => {
            let StateKind::Conv { channels, taps } = p.states[state.index()].kind else {
                return Err("its state is not of a convolution".to_owned());
            };
            equal("x", x.cols, channels).and(equal("out", out.cols, channels))?;
            small(p, *filter, [u64::from(taps), u64::from(channels)])
        }
        OpKind::DeltaNet { delta, out } => delta_net(p, delta, *out),
        OpKind::Reduce { partials, out } => {
            ensure!(!partials.is_empty(), "sums nothing");
            partials.iter().try_for_each(|part| equal("partials", part.cols, out.cols))
        }
    }
}

/// All operands have the same rows (but for `select_outputs`), and all are F32 but expert ids.
fn rows_and_elems(program: &Program, op: &OpKind) -> Check {
    let ids = match op {
        OpKind::Router { ids, .. } | OpKind::ExpertMatMul { ids, .. } | OpKind::HeldSum { ids, .. } => {
            [Some(ids.value), None]
        }
        OpKind::HeldIds { ids, out, .. } => [Some(ids.value), Some(out.value)],
        _ => [None, None],
    };
    let selects = matches!(op, OpKind::SelectOutputs { .. });
    let mut first_rows = None;
    for operand in op.operands() {
        let (Operand::Read(c) | Operand::Write(c)) = operand else { continue };
        let Columns { value, .. } = c;
        let v = &program.values[value.index()];
        let elem = if ids.contains(&Some(value)) { Elem::I32 } else { Elem::F32 };
        ensure!(v.elem == elem, "{} is {:?}, expected {elem:?}", v.name, v.elem);
        let rows = match (selects, operand) {
            (false, _) => *first_rows.get_or_insert(v.rows),
            (true, Operand::Read(_)) => Rows::Tokens,
            (true, _) => Rows::Outputs,
        };
        ensure!(v.rows == rows, "{} has {:?} rows, expected {rows:?}", v.name, v.rows);
    }
    let per_token = matches!(op, OpKind::Embed { .. } | OpKind::Rope { .. } | OpKind::PositionScale { .. })
        || op.states().next().is_some();
    ensure!(!per_token || first_rows != Some(Rows::Outputs), "works on tokens and has O rows");
    Ok(())
}

fn equal(what: &str, found: u32, expected: u32) -> Check {
    ensure!(found == expected, "{what} has {found} columns, expected {expected}");
    Ok(())
}

fn product(what: &str, found: u32, a: u32, b: u32) -> Check {
    ensure!(u64::from(found) == u64::from(a) * u64::from(b), "{what} has {found} columns, expected {a} x {b}");
    Ok(())
}

fn positive(what: &str, figure: f32) -> Check {
    ensure!(figure.is_finite() && figure > 0.0, "{what} is {figure}, a positive number is accepted");
    Ok(())
}

fn figures(op: &OpKind) -> Check {
    match op {
        OpKind::PositionScale { period_tokens, factor, .. } => {
            ensure!(*period_tokens > 0, "period_tokens is 0");
            positive("factor", *factor)
        }
        OpKind::Softcap { cap, .. } => positive("cap", *cap),
        _ => Ok(()),
    }
}

fn glu(activation: GluActivation) -> Check {
    match activation {
        GluActivation::Silu | GluActivation::GeluTanh => Ok(()),
        GluActivation::ClampedSwish { alpha, limit } => positive("alpha", alpha).and(positive("limit", limit)),
    }
}

fn grouped(x: View, group: u32, eps: f32, out: View) -> Check {
    ensure!(group > 0 && x.cols.is_multiple_of(group), "groups of {group} do not divide {} columns", x.cols);
    ensure!(eps.is_finite() && eps >= 0.0, "eps is {eps}");
    equal("out", out.cols, x.cols)
}

fn dims(program: &Program, id: WeightId, expected: [u64; 4]) -> Result<WeightRole, Problem> {
    let (weight, _) = weight_tensor(program, id)?;
    let tensor = program.held_by(weight);
    ensure!(tensor.dims == expected, "{} has dimensions {:?}, expected {expected:?}", tensor.name, tensor.dims);
    Ok(weight.role)
}

/// A vector (`[n, 1]`) or filter that is on every device.
pub(super) fn small(program: &Program, id: WeightId, expected: [u64; 2]) -> Check {
    let role = dims(program, id, [expected[0], expected[1], 1, 1])?;
    ensure!(role == WeightRole::Small, "weight {} has the role {role:?}, expected Small", id.0);
    Ok(())
}

fn matrix(program: &Program, id: WeightId, role: WeightRole, expected: [u32; 3]) -> Check {
    let found = dims(program, id, [expected[0].into(), expected[1].into(), expected[2].into(), 1])?;
    let tied = role == WeightRole::Matrix && found == WeightRole::TiedHead;
    ensure!(found == role || tied, "weight {} has the role {found:?}, expected {role:?}", id.0);
    Ok(())
}

fn products(parts: &[MatMulPart], check: impl Fn(&MatMulPart) -> Check) -> Check {
    ensure!(!parts.is_empty(), "has no products");
    parts.iter().enumerate().try_for_each(|(i, part)| check(part).map_err(|problem| format!("parts[{i}]: {problem}")))
}

fn embed(program: &Program, table: WeightId, scale: f32, out: View) -> Check {
    positive("scale", scale)?;
    let role = dims(program, table, [out.cols.into(), program.vocab.into(), 1, 1])?;
    let right = matches!(role, WeightRole::EmbeddingRows | WeightRole::TiedHead);
    ensure!(right, "weight {} has the role {role:?}, expected EmbeddingRows or TiedHead", table.0);
    Ok(())
}

fn cache(program: &Program, op: &OpKind) -> Check {
    let (OpKind::StoreKv { cache, .. } | OpKind::Attention { cache, .. }) = op else { return Ok(()) };
    let StateKind::Kv { k_cols, v_cols, window_tokens } = program.states[cache.index()].kind else {
        return Err("its state is not a cache of keys and values".to_owned());
    };
    match op {
        OpKind::StoreKv { k, v, .. } => {
            equal("k", k.cols, k_cols)?;
            equal("v", v.map_or(0, |v| v.cols), v_cols)
        }
        OpKind::Attention { q, attention, out, .. } => {
            attention_shapes(program, attention, *q, *out)?;
            product("the cache's key", k_cols, attention.kv_heads, attention.k_head_cols)?;
            match v_cols {
                0 => ensure!(attention.v_head_cols <= attention.k_head_cols, "values are wider than the keys"),
                _ => product("the cache's value", v_cols, attention.kv_heads, attention.v_head_cols)?,
            }
            let span = match attention.mask {
                Mask::Causal => None,
                Mask::Window { tokens } | Mask::Chunk { tokens } => Some(tokens),
            };
            ensure!(span == window_tokens, "the cache keeps {window_tokens:?} positions, the mask sees {span:?}");
            Ok(())
        }
        _ => Ok(()),
    }
}

fn attention_shapes(program: &Program, a: &Attention, q: View, out: View) -> Check {
    let (q_heads, kv_heads) = (a.q_heads, a.kv_heads);
    ensure!(kv_heads > 0 && q_heads.is_multiple_of(kv_heads), "{kv_heads} kv heads do not divide {q_heads} heads");
    ensure!(a.scale.is_finite() && a.scale > 0.0, "scale is {}", a.scale);
    product("q", q.cols, q_heads, a.k_head_cols)?;
    product("out", out.cols, q_heads, a.v_head_cols)?;
    a.sinks.map_or(Ok(()), |sinks| small(program, sinks, [q_heads.into(), 1]))
}

fn experts(program: &Program, op: &OpKind) -> Check {
    match op {
        OpKind::Router { logits, select_bias, router, ids, weights } => {
            let Router { experts, chosen, scale, .. } = *router;
            ensure!(chosen > 0 && chosen <= experts, "chooses {chosen} of {experts} experts");
            positive("scale", scale)?;
            equal("logits", logits.cols, experts)?;
            equal("ids", ids.cols, chosen).and(equal("weights", weights.cols, chosen))?;
            select_bias.map_or(Ok(()), |bias| small(program, bias, [experts.into(), 1]))
        }
        OpKind::ExpertScale { x, weights, out } => product("out", out.cols, x.cols, weights.cols),
        OpKind::ExpertSum { x, chosen, weights, out } => {
            product("x", x.cols, *chosen, out.cols)?;
            weights.map_or(Ok(()), |w| equal("weights", w.cols, *chosen))
        }
        OpKind::HeldIds { ids, out, .. } => equal("out", out.cols, ids.cols),
        OpKind::HeldSum { x, chosen, weights, ids, out } => {
            product("x", x.cols, *chosen, out.cols)?;
            equal("ids", ids.cols, *chosen)?;
            weights.map_or(Ok(()), |w| equal("weights", w.cols, *chosen))
        }
        OpKind::ExpertMatMul { x, input, chosen, ids, parts } => {
            equal("ids", ids.cols, *chosen)?;
            ensure!(*chosen > 0, "chooses no expert");
            let groups = if *input == ExpertInput::PerExpert { *chosen } else { 1 };
            ensure!(x.cols.is_multiple_of(groups), "x has {} columns, no multiple of {groups}", x.cols);
            products(parts, |part| expert_product(program, x.cols / groups, *chosen, part))
        }
        _ => Ok(()),
    }
}

fn expert_product(program: &Program, in_cols: u32, chosen: u32, part: &MatMulPart) -> Check {
    let cols = part.out.cols;
    ensure!(cols.is_multiple_of(chosen), "out has {cols} columns, no multiple of {chosen}");
    let (weight, tensor) = weight_tensor(program, part.weight)?;
    ensure!(u64::from(chosen) <= tensor.dims[2], "chooses {chosen} of {} experts", tensor.dims[2]);
    let experts = u32::try_from(program.held_by(weight).dims[2]).unwrap_or(u32::MAX);
    matrix(program, part.weight, WeightRole::Experts, [in_cols, cols / chosen, experts])?;
    part.bias.map_or(Ok(()), |bias| small(program, bias, [u64::from(cols / chosen), experts.into()]))
}

fn delta_net(program: &Program, d: &DeltaNet, out: View) -> Check {
    let (keys, values) = (d.key_heads, d.value_heads);
    ensure!(keys > 0 && values.is_multiple_of(keys), "{keys} key heads do not divide {values} value heads");
    product("q", d.q.cols, keys, d.head_cols)?;
    product("k", d.k.cols, keys, d.head_cols)?;
    product("v", d.v.cols, values, d.head_cols)?;
    product("out", out.cols, values, d.head_cols)?;
    equal("b", d.b.cols, values).and(equal("alpha", d.alpha.cols, values))?;
    let expected = StateKind::Recurrent { value_heads: values, head_cols: d.head_cols };
    let found = program.states[d.state.index()].kind;
    ensure!(found == expected, "its state is {found:?}, expected {expected:?}");
    small(program, d.a, [values.into(), 1]).and(small(program, d.dt, [values.into(), 1]))
}
