//! Products over the case table: accuracy against the oracle, and equality to the bit between everything that
//! must not matter (ISA, layout, batch, division in ranges).

use super::*;
use crate::cases::{MatmulBackend, MatmulCase, check_matmul, matmul_cases};
use crate::cpu::Isa;
use crate::quant::{WeightType, pack_panels, packed_bytes, panels};

struct Cpu {
    isa: Isa,
    layout: Layout,
    /// Panels of a call.
    panels: usize,
}

impl Cpu {
    fn stored(&self, case: &MatmulCase, weights: &[u8]) -> Vec<u8> {
        let (ty, rows, cols) = (case.ty, case.rows, case.cols);
        if self.layout == Layout::Gguf {
            return weights.to_vec();
        }
        let mut packed = vec![0; packed_bytes(ty, rows, cols).unwrap()];
        pack_panels(ty, weights, rows, cols, 0..panels(rows), &mut packed).unwrap();
        packed
    }
}

impl MatmulBackend for Cpu {
    fn name(&self) -> String {
        format!("{} {:?}, {} panels a call", self.isa.name(), self.layout, self.panels)
    }

    fn matmul(&mut self, case: &MatmulCase, weights: &[u8], x: &[f32]) -> Vec<f32> {
        let stored = self.stored(case, weights);
        let matrix = Matrix::new(case.ty, self.layout, case.rows, case.cols, &stored).unwrap();
        let acts = prepared(self.isa, case.ty, x, case.cols);
        let mut out = vec![f32::NAN; case.tokens * case.rows];
        let product = Product::new(matrix, &acts, case.tokens, Output::new(&mut out, case.rows)).unwrap();
        for first in (0..matrix.panels()).step_by(self.panels) {
            let panels = first..matrix.panels().min(first + self.panels);
            // SAFETY: one thread; `out` is not read before the product is done.
            unsafe { matmul(self.isa, &product, panels) }.unwrap();
        }
        out
    }
}

fn prepared(isa: Isa, ty: WeightType, x: &[f32], cols: usize) -> Vec<u8> {
    let row_bytes = act_row_bytes(ty, cols).unwrap();
    let mut acts = vec![0; row_bytes * (x.len() / cols)];
    for (x, out) in x.chunks_exact(cols).zip(acts.chunks_exact_mut(row_bytes)) {
        prepare_act(isa, ty, x, out).unwrap();
    }
    acts
}

/// Calls of one panel, and of more than a tile has: two of them and one left over.
fn backends() -> impl Iterator<Item = Cpu> {
    let calls = [(Layout::Gguf, 1), (Layout::Panel16, 1), (Layout::Gguf, 3), (Layout::Panel16, 3)];
    Isa::available().flat_map(move |isa| calls.map(|(layout, panels)| Cpu { isa, layout, panels }))
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn every_backend_is_as_exact_as_its_activations_allow() {
    for mut backend in backends() {
        check_matmul(&mut backend).unwrap();
    }
}

#[test]
fn isa_layout_and_ranges_change_no_bit() {
    for case in matmul_cases() {
        let (weights, x) = (case.weights(), case.activations());
        let want = Cpu { isa: Isa::Scalar, layout: Layout::Gguf, panels: 1 }.matmul(&case, &weights, &x);
        for mut backend in backends() {
            let got = backend.matmul(&case, &weights, &x);
            assert_eq!(bits(&got), bits(&want), "{} {case:?}", backend.name());
        }
    }
}

#[test]
fn a_tokens_bits_do_not_depend_on_its_batch() {
    let most = matmul_cases().into_iter().filter(|case| case.tokens == 33);
    for case in most {
        let (weights, x) = (case.weights(), case.activations());
        for mut backend in backends() {
            let together = backend.matmul(&case, &weights, &x);
            for tokens in [1, 2, 3, 4, 7, 8, 15, 17] {
                let few = MatmulCase { tokens, ..case };
                let first = 33 - tokens;
                let got = backend.matmul(&few, &weights, &x[first * case.cols..]);
                assert_eq!(bits(&got), bits(&together[first * case.rows..]), "{} {few:?}", backend.name());
            }
        }
    }
}

#[test]
fn the_bias_is_added_once() {
    for ty in [WeightType::Q4_K, WeightType::F16] {
        for (mut backend, tokens) in backends().flat_map(|b| [1, 5, 20].map(|t| (Cpu { ..b }, t))) {
            let case = MatmulCase { ty, rows: 18, cols: 1536, tokens };
            let plain = backend.matmul(&case, &case.weights(), &case.activations());
            let bias: Vec<f32> = (0..case.rows).map(|r| r as f32 * 0.5).collect();
            let stored = backend.stored(&case, &case.weights());
            let matrix = Matrix::new(ty, backend.layout, case.rows, case.cols, &stored).unwrap();
            let acts = prepared(backend.isa, ty, &case.activations(), case.cols);
            let mut out = vec![0.0; tokens * case.rows];
            let product = Product::new(matrix, &acts, tokens, Output::new(&mut out, case.rows)).unwrap();
            // SAFETY: one thread; `out` is not read before the product is done.
            unsafe { matmul(backend.isa, &product.with_bias(&bias).unwrap(), 0..2) }.unwrap();
            for (i, (got, plain)) in out.iter().zip(&plain).enumerate() {
                assert_eq!(*got, plain + bias[i % case.rows], "{} {case:?} {i}", backend.name());
            }
        }
    }
}

#[test]
fn nothing_is_written_beside_the_rows_asked_for() {
    let case = MatmulCase { ty: WeightType::Q4_0, rows: 40, cols: 64, tokens: 9 };
    let (weights, stride) = (case.weights(), 61);
    let acts = prepared(Isa::Scalar, case.ty, &case.activations(), case.cols);
    for backend in backends() {
        let stored = backend.stored(&case, &weights);
        let matrix = Matrix::new(case.ty, backend.layout, case.rows, case.cols, &stored).unwrap();
        let mut out = vec![f32::NAN; stride * 8 + 40];
        let product = Product::new(matrix, &acts, case.tokens, Output::new(&mut out, stride)).unwrap();
        // SAFETY: one thread; `out` is not read before the product is done.
        unsafe { matmul(backend.isa, &product, 1..3) }.unwrap();
        for (i, value) in out.iter().enumerate() {
            assert_eq!(value.is_nan(), !(16..40).contains(&(i % stride)), "{} {i}", backend.name());
        }
    }
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let bytes = [0; 18 * 2];
    assert!(Matrix::new(WeightType::Q4_0, Layout::Gguf, 2, 32, &bytes).is_ok());
    assert!(Matrix::new(WeightType::Q4_0, Layout::Panel16, 2, 32, &bytes).is_err());
    assert!(Matrix::new(WeightType::Q4_0, Layout::Gguf, 2, 48, &bytes).is_err());
    assert!(Matrix::new(WeightType::F32, Layout::Gguf, usize::MAX, 9, &bytes).is_err());
    let matrix = Matrix::new(WeightType::Q4_0, Layout::Gguf, 2, 32, &bytes).unwrap();
    let acts = [0; 48 * 2];
    let mut out = [0.0; 4];
    assert!(Product::new(matrix, &acts, 3, Output::new(&mut out, 2)).is_err());
    assert!(Product::new(matrix, &acts, 2, Output::new(&mut out, 3)).is_err());
    assert!(Product::new(matrix, &acts, 2, Output::new(&mut out, 1)).is_err());
    let product = Product::new(matrix, &acts, 2, Output::new(&mut out, 2)).unwrap();
    assert!(product.with_bias(&[0.0]).is_err());
    // SAFETY: refused before anything is written.
    assert!(unsafe { matmul(Isa::Scalar, &product, 0..2) }.is_err());
}

#[cfg(target_arch = "x86_64")]
#[test]
fn both_dot_products_of_avx2_give_the_same_bits() {
    use crate::arch::x86_64::avx2::matmul::{DotProducts, matmul};
    if Isa::detect() < Isa::Avx2 || DotProducts::detect() == DotProducts::Words {
        return;
    }
    for case in matmul_cases() {
        let weights = case.weights();
        let matrix = Matrix::new(case.ty, Layout::Gguf, case.rows, case.cols, &weights).unwrap();
        let acts = prepared(Isa::Avx2, case.ty, &case.activations(), case.cols);
        let [words, vnni] = [DotProducts::Words, DotProducts::Vnni].map(|dots| {
            let mut out = vec![0.0; case.tokens * case.rows];
            let product = Product::new(matrix, &acts, case.tokens, Output::new(&mut out, case.rows)).unwrap();
            // SAFETY: one thread; `out` is not read before the product is done; the machine has both.
            unsafe { matmul(dots, &product, 0..matrix.panels()) };
            out
        });
        assert_eq!(bits(&words), bits(&vnni), "{case:?}");
    }
}
