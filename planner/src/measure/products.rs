//! Products with packed weights, as the runtime divides them among its team: panels of 16 rows in claimed blocks.

use super::buffer::Buffer;
use super::{MeasureError, steady_us};
use device::probe::{Effort, time_rounds};
use device::team::{Team, Worker};
use kernels::cpu::Isa;
use kernels::cpu::matmul::{Layout, Matrix, act_row_bytes, matmul_alone, prepare_act};
use kernels::quant::{WeightType, packed_bytes};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// Weight bytes of a round at least, so that starting it does not count.
const ROUND_BYTES: usize = 32 << 20;
/// Multiply-adds of a round at most, unless one matrix has more.
const ROUND_MACS: usize = 1 << 31;
/// Blocks per worker, as the runtime has them, ...
const BLOCKS_PER_WORKER: u32 = 4;
/// ... and panels of a tile of several tokens.
const TILE_PANELS: u32 = 2;

/// One figure: matrices of this shape, one after the other, times the same tokens.
#[derive(Clone, Copy, Debug)]
pub struct ProductCase {
    /// Type.
    pub ty: WeightType,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Tokens.
    pub tokens: usize,
}

/// A type by its name in profiles.
pub fn weight_type(name: &str) -> Result<WeightType, MeasureError> {
    let found = WeightType::ALL.into_iter().find(|ty| ty.name() == name);
    found.ok_or_else(|| MeasureError::UnknownType(name.to_owned()))
}

impl ProductCase {
    /// A dense product that is large enough to be typical and small enough to be quick.
    pub fn dense(ty: WeightType, tokens: u32) -> ProductCase {
        // Many tokens are bound by arithmetic: fewer rows say the same.
        let rows = if tokens > 64 { 512 } else { 4096 };
        ProductCase { ty, rows, cols: 4096, tokens: tokens as usize }
    }

    /// A matrix of one token so large that memory is asked without a pause, as by a layer's own.
    pub fn large(ty: WeightType) -> ProductCase {
        ProductCase { ty, rows: 4 * 4096, cols: 4096, tokens: 1 }
    }

    /// One expert's matrix.
    pub fn expert(ty: WeightType, tokens: u32) -> ProductCase {
        ProductCase { ty, rows: 768, cols: 2048, tokens: tokens as usize }
    }

    /// Bytes of the matrix.
    pub fn bytes(&self) -> Result<usize, MeasureError> {
        Ok(packed_bytes(self.ty, self.rows, self.cols)?)
    }

    /// Matrices of a round.
    fn matrices(&self) -> Result<usize, MeasureError> {
        let macs = self.rows * self.cols * self.tokens;
        Ok((ROUND_BYTES / self.bytes()?.max(1)).min(ROUND_MACS / macs.max(1)).max(1))
    }

    /// Time of one product in microseconds.
    pub fn time_us(&self, team: &mut Team, buffer: &Buffer, effort: Effort) -> Result<f64, MeasureError> {
        let work = Work::new(self, buffer, team.active())?;
        let (bytes, matrices) = (self.bytes()?, self.matrices()?);
        let first = buffer.first_turn(bytes);
        let timing = time_rounds(team, effort, |worker, round| {
            for index in 0..matrices {
                work.multiply(worker, first + round * matrices + index);
            }
        })?;
        buffer.has_read(bytes, (effort.warm_up_rounds + timing.rounds) * matrices);
        Ok(steady_us(&timing) / matrices as f64)
    }
}

/// Rounds of a product for as long as something else goes on: the load that decoding is to memory.
pub struct Rounds<'a> {
    work: Work<'a>,
    matrices: usize,
    turn: usize,
}

impl<'a> Rounds<'a> {
    /// Of this case, for a team of at most so many workers.
    pub fn new(case: &ProductCase, buffer: &'a Buffer, workers: usize) -> Result<Rounds<'a>, MeasureError> {
        Ok(Rounds { work: Work::new(case, buffer, workers)?, matrices: case.matrices()?, turn: 0 })
    }

    /// Rate in GB/s at which the team reads weights while `goes_on` says so; a round at least.
    pub fn gb_per_s_while(
        &mut self,
        team: &mut Team,
        goes_on: impl Fn(Instant) -> Result<bool, MeasureError>,
    ) -> Result<f64, MeasureError> {
        let (start, first) = (Instant::now(), self.turn);
        while self.turn == first || goes_on(start)? {
            let (work, matrices, turn) = (&self.work, self.matrices, self.turn);
            team.run(|worker| (turn..turn + matrices).for_each(|turn| work.multiply(worker, turn)))?;
            self.turn += matrices;
        }
        Ok((self.work.bytes * (self.turn - first)) as f64 / start.elapsed().as_secs_f64() / 1e9)
    }
}

/// Operands of a case.
struct Work<'a> {
    case: ProductCase,
    isa: Isa,
    buffer: &'a Buffer,
    bytes: usize,
    acts: Vec<u8>,
    outs: Vec<Mutex<Vec<f32>>>,
}

impl Work<'_> {
    fn new<'a>(case: &ProductCase, buffer: &'a Buffer, workers: usize) -> Result<Work<'a>, MeasureError> {
        let (isa, row_bytes) = (Isa::detect(), act_row_bytes(case.ty, case.cols)?);
        let mut acts = vec![0; row_bytes * case.tokens];
        for (token, act) in acts.chunks_exact_mut(row_bytes).enumerate() {
            let x: Vec<f32> = (0..case.cols).map(|col| ((col * 7 + token * 13) % 31) as f32 - 15.0).collect();
            prepare_act(isa, case.ty, &x, act)?;
        }
        let outs = (0..workers).map(|_| Mutex::new(vec![0.0; case.rows * case.tokens])).collect();
        let work = Work { case: *case, isa, buffer, bytes: case.bytes()?, acts, outs };
        // What the workers do below cannot fail once one product went well.
        let mut out = vec![0.0; case.rows * case.tokens];
        matmul_alone(isa, work.matrix(0)?, &work.acts, case.tokens, 0..1, &mut out)?;
        Ok(work)
    }

    fn matrix(&self, turn: usize) -> Result<Matrix<'_>, MeasureError> {
        let ProductCase { ty, rows, cols, .. } = self.case;
        Ok(Matrix::new(ty, Layout::Panel16, rows, cols, self.buffer.piece(self.bytes, turn))?)
    }

    /// A worker's part of one product.
    fn multiply(&self, worker: &Worker<'_>, turn: usize) {
        let Ok(matrix) = self.matrix(turn) else { return };
        let panels = matrix.panels();
        let tile = if self.case.tokens > 1 { TILE_PANELS } else { 1 };
        let most = (panels as u32 / (worker.count() as u32 * BLOCKS_PER_WORKER)).next_multiple_of(tile).max(tile);
        // Each worker has an output of its own.
        let mut out = self.outs[worker.index()].lock().unwrap_or_else(PoisonError::into_inner);
        let step = worker.begin_step();
        while let Some(claimed) = worker.claim_near(step, panels as u32, most, tile) {
            // It went well in `new`.
            let _ = matmul_alone(self.isa, matrix, &self.acts, self.case.tokens, claimed, &mut out);
        }
    }
}
