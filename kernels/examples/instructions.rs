//! Runs one kernel on fixed operands, for counting its instructions: `cargo xtask instructions` runs it under callgrind
//! and compares with `kernels/instructions.csv`. AVX2, whatever the machine has: the count must not depend on it.
//!
//! `cargo run --release -p kernels --example instructions -- [NAME]`; without a name it prints all names. Only what
//! happens inside [`counted_case`] counts. Not here: speed (`matmul_speed.rs`, `benches`).

use half::f16;
use kernels::cases::MatmulCase;
use kernels::cpu::Isa;
use kernels::cpu::matmul::{Layout, Matrix, Output, Product, act_row_bytes, matmul, prepare_act};
use kernels::cpu::ops::attention::{AttentionInputs, AttentionScratch, AttentionShape, Mask, attention};
use kernels::cpu::ops::elementwise::{Glu, glu};
use kernels::cpu::ops::kv::{KV_BLOCK, KvView};
use kernels::cpu::ops::norm::{RmsNorm, rms_norm};
use kernels::cpu::ops::{View, ViewMut};
use kernels::quant::{WeightType, pack_panels, packed_bytes, panels};

const ISA: Isa = Isa::Avx2;

/// A kernel on small operands: 64 rows, 1024 columns; 256 positions.
#[derive(Clone, Copy)]
enum Case {
    Product(WeightType, usize),
    Pack(WeightType),
    Quantise,
    Norm,
    Glu,
    Attention(usize),
}

/// Names and cases.
fn cases() -> Vec<(String, Case)> {
    use WeightType::{F16, Q4_1, Q4_K, Q6_K, Q8_0};
    let products = [(Q4_1, 1), (Q8_0, 1), (Q4_K, 1), (Q4_K, 64), (Q6_K, 1), (Q6_K, 64), (F16, 1), (F16, 64)];
    let product = |(ty, tokens): (WeightType, usize)| (format!("product-{ty}-{tokens}"), Case::Product(ty, tokens));
    let others = [
        ("pack-Q4_K", Case::Pack(Q4_K)),
        ("quantise", Case::Quantise),
        ("rms-norm", Case::Norm),
        ("silu-glu", Case::Glu),
        ("attention-1", Case::Attention(1)),
        ("attention-16", Case::Attention(16)),
    ];
    products.into_iter().map(product).chain(others.map(|(name, case)| (name.to_owned(), case))).collect()
}

fn main() {
    let Some(wanted) = std::env::args().nth(1) else {
        return cases().iter().for_each(|(name, _)| println!("{name}"));
    };
    let Some((_, case)) = cases().into_iter().find(|(name, _)| *name == wanted) else {
        eprintln!("no case `{wanted}`");
        std::process::exit(2);
    };
    match case {
        Case::Product(ty, tokens) => product(MatmulCase { ty, rows: 64, cols: 1024, tokens }),
        Case::Pack(ty) => pack(MatmulCase { ty, rows: 64, cols: 1024, tokens: 1 }),
        Case::Quantise => quantise(),
        Case::Norm | Case::Glu => rows(case),
        Case::Attention(tokens) => attend(tokens),
    }
}

/// What is counted: a call of `work`. The name is looked for by callgrind.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn counted_case(work: &mut &mut dyn FnMut()) {
    work();
    std::hint::black_box(());
}

fn count(mut work: impl FnMut()) {
    counted_case(&mut (&mut work as &mut dyn FnMut()));
}

fn packed(case: &MatmulCase) -> Vec<u8> {
    let mut packed = vec![0; packed_bytes(case.ty, case.rows, case.cols).expect("a shape")];
    pack_panels(case.ty, &case.weights(), case.rows, case.cols, 0..panels(case.rows), &mut packed).expect("a shape");
    packed
}

fn product(case: MatmulCase) {
    let (packed, row_bytes) = (packed(&case), act_row_bytes(case.ty, case.cols).expect("a shape"));
    let mut acts = vec![0; row_bytes * case.tokens];
    for (x, act) in case.activations().chunks_exact(case.cols).zip(acts.chunks_exact_mut(row_bytes)) {
        prepare_act(ISA, case.ty, x, act).expect("a shape");
    }
    let matrix = Matrix::new(case.ty, Layout::Panel16, case.rows, case.cols, &packed).expect("a matrix");
    let mut out = vec![0.0; case.rows * case.tokens];
    let product = Product::new(matrix, &acts, case.tokens, Output::new(&mut out, case.rows)).expect("a product");
    // SAFETY: one thread; the output is not read.
    count(|| unsafe { matmul(ISA, &product, 0..panels(case.rows)) }.expect("panels of the matrix"));
}

fn pack(case: MatmulCase) {
    let (raw, mut packed) = (case.weights(), packed(&case));
    count(|| pack_panels(case.ty, &raw, case.rows, case.cols, 0..panels(case.rows), &mut packed).expect("a shape"));
}

fn quantise() {
    let x = values(4096);
    let mut out = vec![0; act_row_bytes(WeightType::Q4_K, x.len()).expect("a shape")];
    count(|| prepare_act(ISA, WeightType::Q4_K, &x, &mut out).expect("a shape"));
}

fn rows(case: Case) {
    let (x, weight) = (values(4 * 1024), values(1024));
    let mut out = vec![0.0; 4 * 1024];
    count(|| {
        let (x, out) = (View::new(&x, 4, 1024), ViewMut::new(&mut out, 4, 1024));
        match case {
            Case::Norm => rms_norm(ISA, x, RmsNorm { group: 1024, weight: Some(&weight), eps: 1e-6 }, out),
            _ => glu(ISA, Glu::Silu, x, x, out),
        }
    });
}

/// Tokens at the end of 256 positions, 4 query heads on one kv head of 64 columns.
fn attend(tokens: usize) {
    const POSITIONS: usize = 256;
    let (q_heads, kv_heads, k_head_cols, v_head_cols, scale) = (4, 1, 64, 64, 0.125);
    let mask = Mask::Causal;
    let shape = AttentionShape { q_heads, kv_heads, k_head_cols, v_head_cols, scale, softcap: None, mask };
    let cache: Vec<f16> = values(POSITIONS * 64).into_iter().map(f16::from_f32).collect();
    let kv = KvView::F16(View::new(&cache, POSITIONS, 64));
    let (q, block_table) = (values(tokens * 256), Vec::from_iter(0..(POSITIONS / KV_BLOCK) as u32));
    let positions: Vec<u32> = (POSITIONS - tokens..POSITIONS).map(|position| position as u32).collect();
    let q = View::new(&q, tokens, 256);
    let inputs =
        AttentionInputs { q, positions: &positions, k: kv, v: Some(kv), block_table: &block_table, sinks: None };
    let (mut scratch, mut out) = (AttentionScratch::new(&shape), vec![0.0; tokens * 256]);
    count(|| attention(ISA, &shape, &inputs, 0..1, &mut scratch, ViewMut::new(&mut out, tokens, 256)));
}

fn values(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919) % 2001) as f32 / 1000.0 - 1.0).collect()
}
