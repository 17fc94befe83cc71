//! Every operator on every instruction set: against the oracle, bit-equal among themselves, and bit-equal for any
//! split of the work. Known values of models stand in `known.rs`.

use super::attention::{
    AttentionInputs, AttentionScratch, AttentionShape, Mask, attention, attention_combine, attention_partial,
};
use super::cases::{OpBackend, OpCase, Operands, check_ops, op_cases, paged, relative_error};
use super::conv::causal_conv_silu;
use super::delta::{DeltaInputs, delta_net};
use super::elementwise::{add, copy_cols, glu, position_scale, sigmoid_gate, softcap};
use super::experts::{expert_scale, expert_sum};
use super::kv::{KV_BLOCK, KvView};
use super::norm::{L2Norm, RmsNorm, l2_norm, rms_norm};
use super::rope::{RopeTable, rope};
use super::router::router;
use super::softmax::softmax;
use super::{View, ViewMut};
use crate::cpu::Isa;
use half::f16;
use proptest::prelude::*;

/// How a CPU run divides the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Division {
    /// One call.
    Whole,
    /// One call per row (for tokens that follow one another: per token, with the state between).
    Rows,
    /// One call per column, head or segment.
    Columns,
}

struct Cpu {
    isa: Isa,
    division: Division,
}

impl OpBackend for Cpu {
    fn name(&self) -> String {
        format!("{} {:?}", self.isa.name(), self.division)
    }

    fn run(&mut self, case: &OpCase, operands: &Operands) -> Option<Vec<f32>> {
        Some(match *case {
            OpCase::Router { .. } => self.run_router(case, operands),
            OpCase::CausalConv { .. } => self.run_conv(case, operands),
            OpCase::DeltaNet { .. } => self.run_delta(case, operands),
            OpCase::Attention { .. } => self.run_attention(case, operands),
            _ => self.run_rows(case, operands),
        })
    }
}

impl Cpu {
    /// Calls `op` for windows of the result: rows, then (column of the window, its width in `unit`s).
    fn divide(
        &self,
        mut out: ViewMut,
        unit: usize,
        mut op: impl FnMut(std::ops::Range<usize>, std::ops::Range<usize>, ViewMut),
    ) {
        let (rows, cols) = (out.rows(), out.cols());
        match self.division {
            Division::Whole => op(0..rows, 0..cols, out),
            Division::Rows => {
                (0..rows).for_each(|r| op(r..r + 1, 0..cols, out.reborrow().row_range(r..r + 1)));
            }
            Division::Columns => {
                for first in (0..cols).step_by(unit) {
                    let window = first..first + unit;
                    op(0..rows, window.clone(), out.reborrow().col_range(window));
                }
            }
        }
    }

    /// Operators whose rows are independent.
    fn run_rows(&self, case: &OpCase, operands: &Operands) -> Vec<f32> {
        let isa = self.isa;
        let f = |i: usize, rows: usize| View::new(&operands.f32[i], rows, operands.f32[i].len() / rows);
        let optional = |i: usize| operands.f32.get(i).map(Vec::as_slice);
        let (rows, out_cols, unit) = result_shape(case);
        let mut out = vec![0.0; rows * out_cols];
        self.divide(ViewMut::new(&mut out, rows, out_cols), unit, |r, c, out| {
            let x = |i: usize| f(i, rows).row_range(r.clone()).col_range(c.clone());
            match *case {
                OpCase::RmsNorm { group, eps, .. } => {
                    rms_norm(isa, x(0), RmsNorm { group, weight: optional(1), eps }, out);
                }
                OpCase::L2Norm { group, eps, scale, .. } => l2_norm(isa, x(0), L2Norm { group, eps, scale }, out),
                OpCase::Add { .. } => add(isa, x(0), x(1), out),
                OpCase::Glu { activation, .. } => glu(isa, activation, x(0), x(1), out),
                OpCase::SigmoidGate { gate_cols: 1, .. } => {
                    sigmoid_gate(isa, x(0), f(1, rows).row_range(r.clone()), out);
                }
                OpCase::SigmoidGate { .. } => sigmoid_gate(isa, x(0), x(1), out),
                OpCase::Softcap { cap, .. } => softcap(isa, x(0), cap, out),
                OpCase::CopyCols { groups, .. } => copy_cols(f(0, rows).row_range(r.clone()), out, groups),
                OpCase::PositionScale { temperature, .. } => {
                    position_scale(isa, x(0), &operands.u32[0][r.clone()], temperature, out);
                }
                OpCase::Rope { head_cols, pairing, rope: params, .. } => {
                    let table = RopeTable::new(params.params(optional(1)));
                    let mut trig = vec![0.0; r.len() * table.cols()];
                    table.fill(&operands.u32[0][r.clone()], ViewMut::new(&mut trig, r.len(), table.cols()));
                    rope(isa, x(0), pairing, head_cols, View::new(&trig, r.len(), table.cols()), out);
                }
                OpCase::Softmax { .. } => softmax(isa, x(0), out),
                OpCase::ExpertScale { .. } => {
                    expert_scale(isa, f(0, rows).row_range(r.clone()), f(1, rows).row_range(r.clone()), out);
                }
                OpCase::ExpertSum { chosen, weighted, .. } => {
                    let weights = weighted.then(|| f(1, rows).row_range(r.clone()));
                    expert_sum(isa, f(0, rows).row_range(r.clone()), chosen, weights, c, out);
                }
                _ => unreachable!("handled by `run`"),
            }
        });
        out
    }

    fn run_router(&self, case: &OpCase, operands: &Operands) -> Vec<f32> {
        let OpCase::Router { rows, experts, chosen, .. } = *case else { unreachable!() };
        let (mut ids, mut weights) = (vec![0; rows * chosen], vec![0.0; rows * chosen]);
        let mut scratch = vec![0.0; 2 * experts];
        let step = if self.division == Division::Whole { rows } else { 1 };
        for r in (0..rows).step_by(step) {
            let logits = View::new(&operands.f32[0], rows, experts).row_range(r..r + step);
            let ids = ViewMut::new(&mut ids, rows, chosen).row_range(r..r + step);
            let weights = ViewMut::new(&mut weights, rows, chosen).row_range(r..r + step);
            router(self.isa, logits, case.router(operands), ids, weights, &mut scratch);
        }
        ids.into_iter().map(|id| id as f32).chain(weights).collect()
    }

    fn run_conv(&self, case: &OpCase, operands: &Operands) -> Vec<f32> {
        let OpCase::CausalConv { tokens, channels, taps } = *case else { unreachable!() };
        let mut state = operands.f32[2].clone();
        let mut out = vec![0.0; tokens * channels];
        self.divide(ViewMut::new(&mut out, tokens, channels), 1, |r, c, out| {
            let x = View::new(&operands.f32[0], tokens, channels).row_range(r).col_range(c.clone());
            let filter = View::new(&operands.f32[1], channels, taps).row_range(c.clone());
            let state = ViewMut::new(&mut state, channels, taps - 1).row_range(c);
            causal_conv_silu(self.isa, x, filter, state, out);
        });
        out.extend(state);
        out
    }

    fn run_delta(&self, case: &OpCase, operands: &Operands) -> Vec<f32> {
        let OpCase::DeltaNet { tokens, value_heads, head_cols, .. } = *case else { unreachable!() };
        let mut state = operands.f32[7].clone();
        let cols = value_heads * head_cols;
        let mut out = vec![0.0; tokens * cols];
        self.divide(ViewMut::new(&mut out, tokens, cols), head_cols, |r, c, out| {
            let x = |i: usize| {
                let x: &Vec<f32> = &operands.f32[i];
                View::new(x, tokens, x.len() / tokens).row_range(r.clone())
            };
            let inputs = DeltaInputs { q: x(0), k: x(1), v: x(2), b: x(3), alpha: x(4) };
            let heads = c.start / head_cols..c.end / head_cols;
            let state = ViewMut::new(&mut state, cols, head_cols).row_range(c);
            delta_net(self.isa, case.delta(operands), inputs, heads, state, out);
        });
        out.extend(state);
        out
    }

    fn run_attention(&self, case: &OpCase, operands: &Operands) -> Vec<f32> {
        let OpCase::Attention { half, mla, .. } = *case else { unreachable!() };
        let cache = |i: usize, cols: usize| {
            let table = &operands.u32[1];
            paged(&operands.f32[i], cols, table, table.len())
        };
        let OpCase::Attention { shape, .. } = *case else { unreachable!() };
        let k = cache(1, shape.kv_heads * shape.k_head_cols);
        let v = if mla { Vec::new() } else { cache(2, shape.kv_heads * shape.v_head_cols) };
        let slots = operands.u32[1].len() * KV_BLOCK;
        if half {
            let [k, v] = [k, v].map(|x| x.into_iter().map(f16::from_f32).collect::<Vec<_>>());
            let view = |x| KvView::F16(View::new(x, slots, <[f16]>::len(x) / slots));
            self.attend(case, operands, view(&k), (!mla).then(|| view(&v)))
        } else {
            let view = |x| KvView::F32(View::new(x, slots, <[f32]>::len(x) / slots));
            self.attend(case, operands, view(&k), (!mla).then(|| view(&v)))
        }
    }

    fn attend(&self, case: &OpCase, operands: &Operands, k: KvView, v: Option<KvView>) -> Vec<f32> {
        let OpCase::Attention { shape, tokens, sinks, .. } = *case else { unreachable!() };
        let sinks = sinks.then(|| operands.f32.last().unwrap().as_slice());
        let q = View::new(&operands.f32[0], tokens, shape.q_heads * shape.k_head_cols);
        let (positions, block_table) = (operands.u32[0].as_slice(), operands.u32[1].as_slice());
        let inputs = |r: std::ops::Range<usize>| AttentionInputs {
            q: q.row_range(r.clone()),
            positions: &positions[r],
            k,
            v,
            block_table,
            sinks,
        };
        let cols = shape.q_heads * shape.v_head_cols;
        let mut out = vec![0.0; tokens * cols];
        let head_cols = shape.group() * shape.v_head_cols;
        let mut scratch = AttentionScratch::new(&shape);
        self.divide(ViewMut::new(&mut out, tokens, cols), head_cols, |r, c, out| {
            let heads = c.start / head_cols..c.end / head_cols;
            if self.division == Division::Columns {
                self.attend_split(&shape, &inputs(r), heads.start, out);
            } else {
                attention(self.isa, &shape, &inputs(r), heads, &mut scratch, out);
            }
        });
        out
    }

    /// One kv head, segment by segment, last first.
    fn attend_split(&self, shape: &AttentionShape, inputs: &AttentionInputs, head: usize, out: ViewMut) {
        let mut scratch = AttentionScratch::new(shape);
        let segments = shape.segments(inputs.positions);
        let (rows, cols) = (inputs.q.rows() * shape.group(), shape.partial_cols());
        let mut partials = vec![0.0; segments.len() * rows * cols];
        for (i, segment) in segments.clone().enumerate().rev() {
            let part = ViewMut::new(&mut partials, segments.len() * rows, cols).row_range(i * rows..(i + 1) * rows);
            attention_partial(self.isa, shape, inputs, (head, segment), &mut scratch, part);
        }
        let sinks = inputs.sinks.map(|s| &s[head * shape.group()..][..shape.group()]);
        let partials = View::new(&partials, segments.len() * rows, cols);
        attention_combine(self.isa, shape, partials, sinks, &mut scratch, out);
    }
}

/// Rows and columns of the result, and the columns of its smallest part.
fn result_shape(case: &OpCase) -> (usize, usize, usize) {
    match *case {
        OpCase::RmsNorm { rows, cols, group, .. } | OpCase::L2Norm { rows, cols, group, .. } => (rows, cols, group),
        OpCase::Add { rows, cols } | OpCase::Glu { rows, cols, .. } => (rows, cols, 1),
        OpCase::SigmoidGate { rows, cols, .. } | OpCase::Softcap { rows, cols, .. } => (rows, cols, 1),
        OpCase::PositionScale { rows, cols, .. } => (rows, cols, 1),
        OpCase::CopyCols { rows, out_cols, .. } => (rows, out_cols, out_cols),
        OpCase::Rope { rows, heads, head_cols, .. } => (rows, heads * head_cols, head_cols),
        OpCase::Softmax { rows, cols } => (rows, cols, cols),
        OpCase::ExpertScale { rows, cols, chosen } => (rows, cols * chosen, cols * chosen),
        OpCase::ExpertSum { rows, cols, .. } => (rows, cols, 1),
        _ => unreachable!("not an operator of independent rows"),
    }
}

#[test]
fn every_instruction_set_agrees_with_the_oracle() {
    for isa in Isa::available() {
        check_ops(&mut Cpu { isa, division: Division::Whole }).unwrap();
    }
}

#[test]
fn no_instruction_set_and_no_division_of_the_work_changes_a_bit() {
    for case in op_cases() {
        let operands = case.operands();
        let bits = |isa, division| -> Vec<u32> {
            let out = Cpu { isa, division }.run(&case, &operands).unwrap();
            out.into_iter().map(f32::to_bits).collect()
        };
        let want = bits(Isa::detect(), Division::Whole);
        for isa in Isa::available() {
            for division in [Division::Whole, Division::Rows, Division::Columns] {
                assert!(bits(isa, division) == want, "{} {division:?}: {case:?}", isa.name());
            }
        }
    }
}

fn any_attention() -> impl Strategy<Value = OpCase> {
    let mask = prop_oneof![
        Just(Mask::Causal),
        (1u32..400).prop_map(|tokens| Mask::Window { tokens }),
        (1u32..400).prop_map(|tokens| Mask::Chunk { tokens }),
    ];
    let heads = (1usize..4, 1usize..8, 1usize..70, 1usize..70, mask);
    (heads, 1usize..20, 0u32..600, any::<(bool, bool, bool)>()).prop_map(|(heads, tokens, first, kind)| {
        let (kv_heads, group, k_head_cols, v_head_cols, mask) = heads;
        let (half, sinks, mla) = kind;
        let v_head_cols = if mla { v_head_cols.min(k_head_cols) } else { v_head_cols };
        let (scale, q_heads) = (1.0 / (k_head_cols as f32).sqrt(), kv_heads * group);
        let shape = AttentionShape { q_heads, kv_heads, k_head_cols, v_head_cols, scale, softcap: None, mask };
        OpCase::Attention { shape, tokens, first, half, mla, sinks }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn attention_of_any_shape_agrees_with_the_oracle_in_any_division(case in any_attention()) {
        let operands = case.operands();
        let isa = Isa::detect();
        let want = Cpu { isa, division: Division::Whole }.run(&case, &operands).unwrap();
        prop_assert!(relative_error(&want, &case.expected(&operands)) <= case.tolerance());
        for division in [Division::Rows, Division::Columns] {
            prop_assert!(Cpu { isa, division }.run(&case, &operands).unwrap() == want, "{division:?}");
        }
    }
}
