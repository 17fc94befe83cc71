//! Keys and values of models with routers, from activations of 16 bits in two rows of 8.
//!
//! A choice of experts is not continuous: where two router logits nearly tie, the error of 8-bit activations chooses
//! another expert, and all that follows differs. Keys and values are what that error comes from most for their size:
//! every later token reads them, and with grouped heads their products are a few percent of a layer's work.
//! Not here: the form ([`super::step::ActForm::Pairs`], `kernels::cpu::matmul::prepare_act_pair`). Next: `product.rs`.

use super::product::Operands;
use super::run::Context;
use crate::Error;
use kernels::cpu::matmul::{Layout, Matrix, Output, act_row_bytes};
use kernels::quant::packed_bytes;
use plan_format::program::{OpKind, Program};
use std::ops::Range;

/// Tokens that are multiplied with a piece of a matrix at once.
const PIECE_TOKENS: usize = 128;

/// Results of a piece, for both rows of each token: they stay in a core's own cache.
pub const PIECE_RESULTS: usize = 2 * PIECE_TOKENS * 64;

/// Rows of a panel.
const PANEL_ROWS: usize = 16;

/// The values that dense products are to compute in pairs: of programs with routers, those from which the caches' keys
/// and values come by row-wise operators.
pub fn fine_values(program: &Program) -> Vec<bool> {
    let mut fine = vec![false; program.values.len()];
    if !program.ops.iter().any(|op| matches!(op.kind, OpKind::Router { .. })) {
        return fine;
    }
    for op in program.ops.iter().rev() {
        let is_on_the_way = match op.kind {
            OpKind::StoreKv { .. } => true,
            OpKind::RmsNorm { .. }
            | OpKind::L2Norm { .. }
            | OpKind::Rope { .. }
            | OpKind::PositionScale { .. }
            | OpKind::CopyCols { .. } => op.kind.writes().any(|columns| fine[columns.value.index()]),
            _ => false,
        };
        if is_on_the_way {
            op.kind.reads().for_each(|columns| fine[columns.value.index()] = true);
        }
    }
    fine
}

impl Context<'_> {
    /// Computes some panels of a product in [`super::step::ActForm::Pairs`]. `results` holds [`PIECE_RESULTS`].
    pub fn multiply_pairs(
        &self,
        operands: &Operands<'_>,
        panels: Range<usize>,
        results: &mut [f32],
    ) -> Result<(), Error> {
        let Operands { matrix, bias, acts, tokens, place, .. } = operands;
        let act_bytes = 2 * act_row_bytes(matrix.ty(), matrix.cols())?;
        for first in (0..*tokens).step_by(PIECE_TOKENS) {
            let piece_tokens = first..(*tokens).min(first + PIECE_TOKENS);
            let step = (results.len() / (2 * piece_tokens.len() * PANEL_ROWS)).max(1);
            for start in panels.clone().step_by(step) {
                let piece = start..panels.end.min(start + step);
                let (rows, part) = rows_of(matrix, piece.clone())?;
                let results = &mut results[..2 * piece_tokens.len() * rows.len()];
                let acts = &acts[piece_tokens.start * act_bytes..piece_tokens.end * act_bytes];
                let output = Output::new(results, rows.len());
                self.multiply_into(&part, None, acts, 2 * piece_tokens.len(), 0..piece.len(), output)?;
                let bias = bias.map(|bias| &bias[rows.clone()]);
                // SAFETY: as `multiply`: these columns are of claimed panels.
                let mut out =
                    unsafe { self.memory.values.view_mut::<f32>(place.col_range(rows.clone()), piece_tokens.clone()) };
                for (token, pair) in results.chunks_exact(2 * rows.len()).enumerate() {
                    add_pair(pair, bias, out.row_mut(token));
                }
            }
        }
        Ok(())
    }
}

/// Rows of a matrix as a matrix, by panels.
fn rows_of<'a>(matrix: &Matrix<'a>, panels: Range<usize>) -> Result<(Range<usize>, Matrix<'a>), Error> {
    let (ty, layout, cols) = (matrix.ty(), matrix.layout(), matrix.cols());
    let rows = panels.start * PANEL_ROWS..matrix.rows().min(panels.end * PANEL_ROWS);
    let panel_bytes = match layout {
        Layout::Gguf => ty.row_bytes(cols)? * PANEL_ROWS,
        Layout::Panel16 => packed_bytes(ty, PANEL_ROWS, cols)?,
    };
    let bytes = &matrix.bytes()[panels.start * panel_bytes..];
    let part = Matrix::new(ty, layout, rows.len(), cols, bytes)?;
    Ok((rows, part))
}

/// The sum of a token's two rows of results, and the bias.
fn add_pair(pair: &[f32], bias: Option<&[f32]>, out: &mut [f32]) {
    let (main, rest) = pair.split_at(out.len());
    out.iter_mut().zip(main.iter().zip(rest)).for_each(|(out, (main, rest))| *out = main + rest);
    if let Some(bias) = bias {
        out.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias);
    }
}
