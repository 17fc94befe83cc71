//! The kernel case table: products of every weight type in telling shapes, run over any backend against the oracle.
//!
//! A backend (scalar, AVX2, AVX-512 here; CUDA and the simulated GPU in `device`) implements [`MatmulBackend`] and
//! calls [`check_matmul`]. The oracle has exact weights and F32 activations. Tolerances are named constants.
//! Next: `cpu/matmul/tests.rs`.

use half::f16;

use crate::cpu::matmul::{Layout, Matrix, Output, matmul_exact};
use crate::quant::{WeightType, dequantise_row};

/// Largest normalised mean squared error of a product with 8-bit activations against the oracle.
pub const MATMUL_NMSE_MAX: f64 = 5e-4;

/// Largest normalised mean squared error of a product with F32 activations against the oracle.
pub const PLAIN_MATMUL_NMSE_MAX: f64 = 1e-10;

/// One product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatmulCase {
    /// Type of the weights.
    pub ty: WeightType,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Tokens of the batch.
    pub tokens: usize,
}

impl MatmulCase {
    /// Error that a backend may make.
    pub fn nmse_max(&self) -> f64 {
        if self.ty.is_plain() { PLAIN_MATMUL_NMSE_MAX } else { MATMUL_NMSE_MAX }
    }

    /// The case's weights in the file's layout: random, of values around one hundredth.
    pub fn weights(&self) -> Vec<u8> {
        random_weights(self.ty, self.rows, self.cols, 17)
    }

    /// The case's activations, `[tokens, cols]`; those of a token are the same in every batch.
    pub fn activations(&self) -> Vec<f32> {
        let mut random = Random::new(99);
        (0..self.tokens * self.cols).map(|_| random.normal() * 2.0).collect()
    }

    /// What is right, `[tokens, rows]`.
    pub fn expected(&self) -> Vec<f32> {
        let (weights, x) = (self.weights(), self.activations());
        let mut out = vec![0.0; self.tokens * self.rows];
        let matrix = Matrix::new(self.ty, Layout::Gguf, self.rows, self.cols, &weights).expect("a case is consistent");
        // SAFETY: `out` belongs to this call alone.
        unsafe { matmul_exact(&matrix, &x, self.tokens, None, 0..self.rows, Output::new(&mut out, self.rows)) }
            .expect("a case is consistent");
        out
    }

    /// Normalised mean squared error of a result. The norm is the results' own power, or the power that random
    /// operands of these lengths have on average where that is larger: a case of one output may be near 0 by chance.
    /// NaN if the length is wrong or any value is NaN.
    pub fn nmse(&self, got: &[f32]) -> f64 {
        let expected = self.expected();
        let mut row = vec![0.0; self.cols];
        let weights = self.weights();
        let row_powers = weights.chunks_exact(weights.len() / self.rows).map(|bytes| {
            dequantise_row(self.ty, bytes, &mut row).expect("a case is consistent");
            power(&row)
        });
        let typical = row_powers.sum::<f64>() * power(&self.activations()) / self.cols as f64;
        error_power(got, &expected) / power(&expected).max(typical)
    }
}

fn power(values: &[f32]) -> f64 {
    values.iter().map(|&v| f64::from(v) * f64::from(v)).sum()
}

fn error_power(got: &[f32], want: &[f32]) -> f64 {
    if got.len() != want.len() {
        return f64::NAN;
    }
    got.iter().zip(want).map(|(&g, &w)| (f64::from(g) - f64::from(w)).powi(2)).sum()
}

/// The table: every type, one row to many, whole and partial chunks and panels, one token to more than two tiles.
pub fn matmul_cases() -> Vec<MatmulCase> {
    const TOKENS: [usize; 8] = [1, 2, 3, 4, 7, 8, 16, 33];
    let mut cases = Vec::new();
    for ty in WeightType::ALL {
        let cols: [usize; 3] = match ty.block().0 {
            1 => [33, 256, 1290],
            32 => [32, 288, 1120],
            _ => [256, 768, 2560],
        };
        for (rows, cols) in [(1, cols[0]), (16, cols[1]), (33, cols[1]), (47, cols[2]), (64, cols[0])] {
            cases.extend(TOKENS.map(|tokens| MatmulCase { ty, rows, cols, tokens }));
        }
    }
    cases
}

/// Types whose speed is tracked.
pub const SPEED_TYPES: [WeightType; 10] = [
    WeightType::Q4_0,
    WeightType::Q4_1,
    WeightType::Q8_0,
    WeightType::Q4_K,
    WeightType::Q5_K,
    WeightType::Q6_K,
    WeightType::MXFP4,
    WeightType::IQ4_XS,
    WeightType::F16,
    WeightType::BF16,
];

/// Tokens of decode rounds whose speed is tracked: one, and batches that verify guesses.
pub const DECODE_TOKENS: [usize; 5] = [1, 2, 3, 4, 8];

/// Tokens of a prefill batch whose speed is tracked.
pub const PREFILL_TOKENS: usize = 512;

/// What computes products.
pub trait MatmulBackend {
    /// Name for failures.
    fn name(&self) -> String;
    /// `[tokens, rows]` of a product with weights in the file's layout and F32 activations `[tokens, cols]`.
    fn matmul(&mut self, case: &MatmulCase, weights: &[u8], x: &[f32]) -> Vec<f32>;
}

/// Runs every case; the error names the first that misses its tolerance.
///
/// # Errors
/// Text that names backend, case and error.
pub fn check_matmul(backend: &mut dyn MatmulBackend) -> Result<(), String> {
    for case in matmul_cases() {
        let got = backend.matmul(&case, &case.weights(), &case.activations());
        let error = case.nmse(&got);
        if error.is_nan() || error > case.nmse_max() {
            return Err(format!("{}: {case:?}: NMSE {error:e}, allowed {:e}", backend.name(), case.nmse_max()));
        }
    }
    Ok(())
}

/// Random weights of a type in the file's layout: random codes, scales that make values of about one hundredth.
///
/// # Panics
/// If `cols` is no whole number of blocks.
pub fn random_weights(ty: WeightType, rows: usize, cols: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    let bytes = rows * ty.row_bytes(cols).expect("whole blocks");
    let mut weights: Vec<u8> = Vec::with_capacity(bytes + 8);
    while weights.len() < bytes {
        weights.extend_from_slice(&random.next().to_le_bytes());
    }
    weights.truncate(bytes);
    for block in weights.chunks_exact_mut(ty.block().1) {
        set_scales(ty, block, &mut random);
    }
    weights
}

/// Overwrites a block's scales (for plain numbers: the value) with sensible ones.
fn set_scales(ty: WeightType, block: &mut [u8], random: &mut Random) {
    use WeightType::*;
    let unit = 0.01 * (1.0 + 0.5 * random.normal().clamp(-1.0, 1.0));
    let mut put = |at: usize, value: f32| block[at..at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes());
    match ty {
        F32 => block.copy_from_slice(&(0.01 * random.normal()).to_le_bytes()),
        F16 => put(0, 0.01 * random.normal()),
        BF16 => block.copy_from_slice(&half::bf16::from_f32(0.01 * random.normal()).to_le_bytes()),
        Q4_0 => put(0, unit / 4.0),
        Q5_0 => put(0, unit / 8.0),
        Q8_0 => put(0, unit / 64.0),
        IQ4_NL => put(0, unit / 64.0),
        Q4_1 => [(0, unit / 4.0), (2, unit * -1.9)].map(|(at, v)| put(at, v)).into_iter().collect(),
        Q5_1 => [(0, unit / 8.0), (2, unit * -1.9)].map(|(at, v)| put(at, v)).into_iter().collect(),
        Q2_K => [(80, unit / 12.0), (82, unit / 8.0)].map(|(at, v)| put(at, v)).into_iter().collect(),
        Q3_K => put(108, unit / 32.0),
        Q4_K => [(0, unit / 128.0), (2, unit / 18.0)].map(|(at, v)| put(at, v)).into_iter().collect(),
        Q5_K => [(0, unit / 256.0), (2, unit / 18.0)].map(|(at, v)| put(at, v)).into_iter().collect(),
        Q6_K => put(208, unit / 1024.0),
        IQ4_XS => put(0, unit / 1024.0),
        MXFP4 => block[0] = 117 + (random.next() % 4) as u8,
    }
}

/// A small deterministic generator (splitmix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator whose sequence follows from `seed`.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// 64 random bits.
    #[expect(clippy::should_implement_trait, reason = "an endless sequence needs no Option")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Roughly normal, mean 0, deviation 1: the sum of four uniform 16-bit numbers.
    pub fn normal(&mut self) -> f32 {
        let bits = self.next();
        let sum: f32 = (0..4).map(|i| ((bits >> (16 * i)) as u16) as f32 / 65536.0 - 0.5).sum();
        sum * 3f32.sqrt()
    }
}
