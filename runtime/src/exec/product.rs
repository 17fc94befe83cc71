//! Products with weights, divided by panels of 16 rows that workers claim.
//! Not here: experts (`experts.rs`), the arithmetic (`kernels::cpu::matmul`).

use super::prepare::act_bytes;
use super::run::Context;
use super::scratch::WorkerScratch;
use super::shared::{Home, Place, Shared};
use super::step::{ActForm, Part};
use super::weights::Precision;
use crate::Error;
use device::team::{Step, Worker};
use kernels::cpu::matmul::{Matrix, Product, matmul, matmul_exact};
use std::ops::Range;

/// Rows of a panel.
const PANEL_ROWS: usize = 16;

/// How long a claimed block of panels should take at most, in nanoseconds.
const BLOCK_NS: usize = 50_000;

/// Weight bytes and multiply-adds that one thread is assumed to manage in a nanosecond: only for the size of blocks.
const BYTES_PER_NS: usize = 8;
const MACS_PER_NS: usize = 100;

/// Blocks per worker, so that a late worker costs little.
const BLOCKS_PER_WORKER: usize = 4;

/// One matrix, its activations and where the results go.
pub struct Operands<'a> {
    pub matrix: Matrix<'a>,
    pub bias: Option<&'a [f32]>,
    pub acts: &'a [u8],
    pub tokens: usize,
    pub place: Place,
    /// Rows of `place`.
    pub rows: Range<usize>,
}

/// Panels that kernels for several tokens work on at once.
const TILE_PANELS: usize = 2;

/// How many panels a worker claims at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grain {
    most: u32,
    tile: u32,
}

impl Grain {
    /// So many that a block takes at most [`BLOCK_NS`] and workers end together; with several tokens, whole tiles.
    pub fn new(matrix: &Matrix, tokens: usize, panels: usize, workers: usize) -> Grain {
        let bytes = matrix.bytes().len() / matrix.panels().max(1);
        let panel_ns = (bytes / BYTES_PER_NS).max(PANEL_ROWS * matrix.cols() * tokens / MACS_PER_NS).max(1);
        let fair = panels / (workers * BLOCKS_PER_WORKER);
        let tile = if tokens > 1 { TILE_PANELS } else { 1 };
        let most = (BLOCK_NS / panel_ns).min(fair).next_multiple_of(tile).max(tile);
        Grain { most: most as u32, tile: tile as u32 }
    }

    /// The next block of a step's panels: those of a worker lie one after the other, so that what it prefetches behind
    /// one is what it needs next. Smaller ones towards the end.
    pub fn claim(self, worker: &Worker, step: Step, total: usize) -> Option<Range<usize>> {
        worker.claim_near(step, total as u32, self.most, self.tile)
    }
}

/// Panels of a part's matrix.
pub fn panels_of(context: &Context, part: &Part) -> usize {
    context.weights.dims(part.weight).0.div_ceil(PANEL_ROWS)
}

/// What a block of a fused group's panels has of each part, in the part's own panels.
pub fn shares<'p>(
    context: &Context,
    parts: &'p [Part],
    block: Range<usize>,
) -> impl Iterator<Item = (&'p Part, Range<usize>)> {
    let mut end = 0;
    parts.iter().filter_map(move |part| {
        let start = end;
        end += panels_of(context, part);
        let (first, last) = (block.start.max(start), block.end.min(end));
        (first < last).then(|| (part, first - start..last - start))
    })
}

impl<'a> Context<'a> {
    /// A worker's memory of values that live there.
    pub fn values(&self, worker: usize, home: Home) -> &'a Shared {
        let own = self.solo.filter(|_| home == Home::Own).and_then(|solo| solo.own[worker].values.as_ref());
        own.unwrap_or(&self.memory.values)
    }

    /// A worker's region of prepared activations.
    pub fn acts_region(&self, worker: usize, form: ActForm) -> &'a Shared {
        let acts = self.solo.map_or(&self.memory.acts, |solo| &solo.own[worker].acts);
        &acts[form as usize]
    }

    /// The angles of a rotary table.
    pub fn trig(&self, worker: usize, table: usize) -> &'a (Shared, Place) {
        let trig = self.solo.map_or(&self.memory.trig, |solo| &solo.own[worker].trig);
        &trig[table]
    }

    /// Computes some panels of a product.
    pub fn multiply(&self, operands: &Operands<'_>, panels: Range<usize>) -> Result<(), Error> {
        let Operands { matrix, bias, acts, tokens, place, .. } = operands;
        // SAFETY: workers claim disjoint panels, so they write disjoint columns; readers come after a barrier.
        let output = |memory: &'a Shared| unsafe { memory.output(*place, operands.rows.clone()) };
        let output = output(&self.memory.values);
        self.multiply_into(matrix, *bias, acts, *tokens, panels, output)
    }

    /// The same into any output.
    pub fn multiply_into(
        &self,
        matrix: &Matrix,
        bias: Option<&[f32]>,
        acts: &[u8],
        tokens: usize,
        panels: Range<usize>,
        output: kernels::cpu::matmul::Output<'_>,
    ) -> Result<(), Error> {
        match self.precision {
            Precision::Fast => {
                let mut product = Product::new(*matrix, acts, tokens, output)?;
                if let Some(bias) = bias {
                    product = product.with_bias(bias)?;
                }
                // SAFETY: as `multiply`.
                unsafe { matmul(self.isa, &product, panels)? };
            }
            Precision::Exact => {
                let rows = panels.start * PANEL_ROWS..matrix.rows().min(panels.end * PANEL_ROWS);
                let x = bytemuck::cast_slice(acts);
                // SAFETY: as `multiply`.
                unsafe { matmul_exact(matrix, x, tokens, bias, rows, output)? };
            }
        }
        Ok(())
    }

    /// Prepared activations from row `first` on.
    pub fn acts(&self, worker: &Worker, form: ActForm, rows: Range<usize>, cols: usize) -> Result<&'a [u8], Error> {
        let bytes = act_bytes(form, cols)?;
        let region = self.acts_region(worker.index(), form);
        // SAFETY: written before the last barrier or by this worker, not again before the next barrier.
        Ok(unsafe { region.slice(rows.start * bytes, rows.len() * bytes) })
    }

    /// A fused group of products with one input.
    pub fn product(
        &self,
        worker: &Worker,
        scratch: &mut WorkerScratch,
        parts: &[Part],
        tokens: usize,
    ) -> Result<(), Error> {
        if tokens == 0 {
            return Ok(());
        }
        let total: usize = parts.iter().map(|part| panels_of(self, part)).sum();
        let Some(first) = parts.first() else { return Ok(()) };
        let grain = Grain::new(&self.weights.matrix(first.weight, 0)?, tokens, total, worker.count());
        let step = worker.begin_step();
        for claimed in scratch.ahead.take(step) {
            self.block(worker, scratch, parts, tokens, claimed)?;
        }
        while let Some(claimed) = grain.claim(worker, step, total) {
            self.block(worker, scratch, parts, tokens, claimed)?;
        }
        Ok(())
    }

    /// Claimed panels of a fused group.
    fn block(
        &self,
        worker: &Worker,
        scratch: &mut WorkerScratch,
        parts: &[Part],
        tokens: usize,
        claimed: Range<usize>,
    ) -> Result<(), Error> {
        for (part, panels) in shares(self, parts, claimed) {
            let operands = self.operands(worker, part, tokens)?;
            match part.form {
                ActForm::Pairs => self.multiply_pairs(&operands, panels, &mut scratch.pairs)?,
                _ => self.multiply(&operands, panels)?,
            }
        }
        Ok(())
    }

    fn operands(&self, worker: &Worker, part: &Part, tokens: usize) -> Result<Operands<'a>, Error> {
        let matrix = self.weights.matrix(part.weight, 0)?;
        Ok(Operands {
            matrix,
            bias: part.bias.map(|bias| self.weights.small(bias)),
            acts: self.acts(worker, part.form, 0..tokens, matrix.cols())?,
            tokens,
            place: part.out,
            rows: 0..tokens,
        })
    }

    /// One product per head, on activations prepared head by head.
    pub fn head_product(&self, worker: &Worker, heads: usize, part: &Part, tokens: usize) -> Result<(), Error> {
        let (rows, cols) = self.weights.dims(part.weight);
        let panels = rows.div_ceil(PANEL_ROWS);
        let grain = Grain::new(&self.weights.matrix(part.weight, 0)?, tokens, panels * heads, worker.count());
        let step = worker.begin_step();
        while let Some(claimed) = grain.claim(worker, step, panels * heads) {
            for unit in claimed {
                let (head, panel) = (unit / panels, unit % panels);
                let operands = Operands {
                    matrix: self.weights.matrix(part.weight, head)?,
                    bias: None,
                    acts: self.acts(worker, part.form, head * tokens..(head + 1) * tokens, cols)?,
                    tokens,
                    place: part.out.col_range(head * rows..(head + 1) * rows),
                    rows: 0..tokens,
                };
                self.multiply(&operands, panel..panel + 1)?;
            }
        }
        Ok(())
    }
}
