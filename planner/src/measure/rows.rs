//! Row-wise operators and the delta net: what a round does beside products and attention.

use super::{MeasureError, steady_us};
use device::probe::{Effort, time_rounds};
use device::team::Team;
use kernels::cpu::Isa;
use kernels::cpu::ops::delta::{DeltaInputs, DeltaShape, HeadMap, delta_net};
use kernels::cpu::ops::elementwise::add;
use kernels::cpu::ops::{View, ViewMut};
use std::sync::{Mutex, PoisonError};

/// Activations of a round: rows by columns, as large as a ubatch's.
const ROWS: usize = 256;
const COLS: usize = 4096;

/// Rate of a sum of two values, bytes read and written, in GB/s.
pub fn elementwise_gb_per_s(team: &mut Team, effort: Effort) -> Result<f64, MeasureError> {
    let isa = Isa::detect();
    let (a, b) = (vec![0.5_f32; ROWS * COLS], vec![0.25_f32; ROWS * COLS]);
    let outs: Vec<_> = (0..ROWS).map(|_| Mutex::new(vec![0.0_f32; COLS])).collect();
    let timing = time_rounds(team, effort, |worker, _| {
        worker.for_blocks(ROWS as u32, 4, |claimed| {
            for row in claimed {
                let view = |x| View::new(x, ROWS, COLS).row_range(row..row + 1);
                let mut out = outs[row].lock().unwrap_or_else(PoisonError::into_inner);
                add(isa, view(&a), view(&b), ViewMut::new(&mut out, 1, COLS));
            }
        });
    })?;
    Ok((3 * 4 * ROWS * COLS) as f64 / steady_us(&timing).max(1e-3) / 1000.0)
}

/// Heads of Qwen3-Next.
const KEY_HEADS: usize = 16;
const VALUE_HEADS: usize = 32;
const HEAD_COLS: usize = 128;

/// State bytes of the timed delta net.
pub const DELTA_BYTES: f64 = (VALUE_HEADS * HEAD_COLS * HEAD_COLS * 4) as f64;

/// Time of a delta net over so many tokens, in microseconds.
pub fn delta_us(team: &mut Team, tokens: usize, effort: Effort) -> Result<f64, MeasureError> {
    let isa = Isa::detect();
    let values = |cols: usize| vec![0.01_f32; tokens * cols];
    let (q, v, heads) = (values(KEY_HEADS * HEAD_COLS), values(VALUE_HEADS * HEAD_COLS), values(VALUE_HEADS));
    let constants = vec![-0.1_f32; VALUE_HEADS];
    let shape = DeltaShape {
        key_heads: KEY_HEADS,
        value_heads: VALUE_HEADS,
        head_cols: HEAD_COLS,
        heads: HeadMap::Grouped,
        a: &constants,
        dt: &constants,
    };
    let head = || Mutex::new((vec![0.0_f32; HEAD_COLS * HEAD_COLS], vec![0.0_f32; tokens * HEAD_COLS]));
    let states: Vec<_> = (0..VALUE_HEADS).map(|_| head()).collect();
    let timing = time_rounds(team, effort, |worker, _| {
        worker.for_blocks(VALUE_HEADS as u32, 1, |claimed| {
            for index in claimed {
                let view = |x, cols| View::new(x, tokens, cols);
                let inputs = DeltaInputs {
                    q: view(&q, KEY_HEADS * HEAD_COLS),
                    k: view(&q, KEY_HEADS * HEAD_COLS),
                    v: view(&v, VALUE_HEADS * HEAD_COLS),
                    b: view(&heads, VALUE_HEADS),
                    alpha: view(&heads, VALUE_HEADS),
                };
                let mut head = states[index].lock().unwrap_or_else(PoisonError::into_inner);
                let (state, out) = &mut *head;
                let (state, out) = (ViewMut::new(state, HEAD_COLS, HEAD_COLS), ViewMut::new(out, tokens, HEAD_COLS));
                delta_net(isa, shape, inputs, index..index + 1, state, out);
            }
        });
    })?;
    Ok(steady_us(&timing))
}
