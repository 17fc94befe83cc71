//! Attention over a cache in memory, divided among the team as the runtime does: by heads and segments for one token,
//! by heads and blocks of tokens for a ubatch.

use super::buffer::Buffer;
use super::{MeasureError, steady_us};
use device::probe::{Effort, time_rounds};
use device::team::{Team, Worker};
use half::f16;
use kernels::cpu::Isa;
use kernels::cpu::ops::attention::{
    AttentionInputs, AttentionScratch, AttentionShape, Mask, attention, attention_partial,
};
use kernels::cpu::ops::kv::{KV_BLOCK, KvView};
use kernels::cpu::ops::{View, ViewMut};
use std::sync::{Mutex, PoisonError};

/// Heads of common models.
const KV_HEADS: usize = 8;
const HEAD_COLS: usize = 128;
/// Query heads per key head in a ubatch.
const GROUP: usize = 4;
/// Cached tokens of a decode step, and of a ubatch.
const DECODE_CONTEXT: usize = 4096;
const PREFILL_CONTEXT: usize = 1024;
/// Tokens of a block, as the runtime has them.
const BLOCK_TOKENS: usize = 32;
/// Query rows from which a figure is of a ubatch.
const PREFILL_ROWS: u32 = 64;

/// Element of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheElement {
    /// Half precision.
    F16,
    /// Single precision.
    F32,
}

impl CacheElement {
    fn bytes(self) -> usize {
        match self {
            CacheElement::F16 => 2,
            CacheElement::F32 => 4,
        }
    }
}

/// One figure: `rows` query rows per key head.
struct Case<'a> {
    isa: Isa,
    shape: AttentionShape,
    element: CacheElement,
    tokens: usize,
    context: usize,
    buffer: &'a Buffer,
    q: Vec<f32>,
    positions: Vec<u32>,
    block_table: Vec<u32>,
    scratches: Vec<Mutex<(AttentionScratch, Vec<f32>)>>,
}

/// Rate of attention with so many query rows per key head: bytes of keys and values seen over time, in GB/s.
pub fn attention_gb_per_s(
    team: &mut Team,
    buffer: &Buffer,
    (element, rows): (CacheElement, u32),
    effort: Effort,
) -> Result<f64, MeasureError> {
    let case = Case::new(buffer, element, rows, team.active());
    let first = buffer.first_turn(case.side_bytes());
    let timing = time_rounds(team, effort, |worker, round| case.attend(worker, first + 2 * round))?;
    buffer.has_read(case.side_bytes(), 2 * (effort.warm_up_rounds + timing.rounds));
    Ok(case.seen_bytes() / steady_us(&timing).max(1e-3) / 1000.0)
}

impl<'a> Case<'a> {
    fn new(buffer: &'a Buffer, element: CacheElement, rows: u32, workers: usize) -> Case<'a> {
        let (tokens, group, context) = match rows {
            0..PREFILL_ROWS => (1, rows.max(1) as usize, DECODE_CONTEXT),
            _ => (rows as usize / GROUP, GROUP, PREFILL_CONTEXT),
        };
        let shape = AttentionShape {
            q_heads: KV_HEADS * group,
            kv_heads: KV_HEADS,
            k_head_cols: HEAD_COLS,
            v_head_cols: HEAD_COLS,
            scale: 0.09,
            softcap: None,
            mask: Mask::Causal,
        };
        let out = BLOCK_TOKENS.max(tokens.min(BLOCK_TOKENS)) * group * shape.partial_cols();
        Case {
            isa: Isa::detect(),
            shape,
            element,
            tokens,
            context,
            buffer,
            q: vec![0.05; tokens * shape.q_heads * HEAD_COLS],
            positions: ((context - tokens) as u32..context as u32).collect(),
            block_table: (0..(context / KV_BLOCK) as u32).collect(),
            scratches: (0..workers).map(|_| Mutex::new((AttentionScratch::new(&shape), vec![0.0; out]))).collect(),
        }
    }

    /// Keys and values that an average token sees.
    fn seen_bytes(&self) -> f64 {
        let seen = self.context as f64 - (self.tokens - 1) as f64 / 2.0;
        seen * (2 * KV_HEADS * HEAD_COLS * self.element.bytes()) as f64
    }

    /// Bytes of the keys, and of the values.
    fn side_bytes(&self) -> usize {
        self.context * KV_HEADS * HEAD_COLS * self.element.bytes()
    }

    /// A cache at the place whose turn it is.
    fn cache(&self, turn: usize) -> KvView<'a> {
        let cols = KV_HEADS * HEAD_COLS;
        let bytes = self.buffer.piece(self.side_bytes(), turn);
        match self.element {
            CacheElement::F16 => KvView::F16(View::<f16>::new(bytemuck::cast_slice(bytes), self.context, cols)),
            CacheElement::F32 => KvView::F32(View::new(bytemuck::cast_slice(bytes), self.context, cols)),
        }
    }

    fn inputs(&self, turn: usize, tokens: std::ops::Range<usize>) -> AttentionInputs<'_> {
        let q = View::new(&self.q, self.tokens, self.shape.q_heads * HEAD_COLS);
        AttentionInputs {
            q: q.row_range(tokens.clone()),
            positions: &self.positions[tokens],
            k: self.cache(turn),
            v: Some(self.cache(turn + 1)),
            block_table: &self.block_table,
            sinks: None,
        }
    }

    /// A worker's part.
    fn attend(&self, worker: &Worker<'_>, turn: usize) {
        // Each worker has scratch of its own.
        let mut scratch = self.scratches[worker.index()].lock().unwrap_or_else(PoisonError::into_inner);
        let (scratch, out) = &mut *scratch;
        if self.tokens == 1 {
            self.by_segments(worker, turn, scratch, out);
        } else {
            self.by_tokens(worker, turn, scratch, out);
        }
    }

    fn by_segments(&self, worker: &Worker<'_>, turn: usize, scratch: &mut AttentionScratch, out: &mut [f32]) {
        let segments = self.shape.segments(&self.positions);
        let inputs = self.inputs(turn, 0..1);
        let (rows, cols) = (self.shape.group(), self.shape.partial_cols());
        worker.for_blocks((KV_HEADS * segments.len()) as u32, 1, |claimed| {
            for unit in claimed {
                let part = (unit % KV_HEADS, segments.start + unit / KV_HEADS);
                let out = ViewMut::new(&mut out[..rows * cols], rows, cols);
                attention_partial(self.isa, &self.shape, &inputs, part, scratch, out);
            }
        });
    }

    fn by_tokens(&self, worker: &Worker<'_>, turn: usize, scratch: &mut AttentionScratch, out: &mut [f32]) {
        let cols = self.shape.group() * HEAD_COLS;
        let blocks = self.tokens.div_ceil(BLOCK_TOKENS);
        worker.for_blocks((KV_HEADS * blocks) as u32, 1, |claimed| {
            for unit in claimed {
                let (head, block) = (unit % KV_HEADS, unit / KV_HEADS);
                let tokens = block * BLOCK_TOKENS..self.tokens.min((block + 1) * BLOCK_TOKENS);
                let rows = tokens.len();
                let inputs = self.inputs(turn, tokens);
                let out = ViewMut::new(&mut out[..rows * cols], rows, cols);
                attention(self.isa, &self.shape, &inputs, head..head + 1, scratch, out);
            }
        });
    }
}
