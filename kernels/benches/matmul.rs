//! Products of one token and of a batch, in L2-sized matrices, per type and instruction set: for tracking changes.
//! Against the machine's bounds, over memory: `examples/matmul_speed.rs`. `cargo test --benches` runs them once, small.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kernels::cases::{DECODE_TOKENS, MatmulCase, PREFILL_TOKENS, SPEED_TYPES};
use kernels::cpu::Isa;
use kernels::cpu::matmul::{Layout, Matrix, Output, Product, act_row_bytes, matmul, prepare_act};
use kernels::quant::{WeightType, pack_panels, packed_bytes, panels};

/// Packed weights and prepared activations of a case.
fn operands(case: &MatmulCase, isa: Isa) -> (Vec<u8>, Vec<u8>) {
    let (ty, rows, cols) = (case.ty, case.rows, case.cols);
    let mut packed = vec![0; packed_bytes(ty, rows, cols).expect("a shape")];
    pack_panels(ty, &case.weights(), rows, cols, 0..panels(rows), &mut packed).expect("a shape");
    let row_bytes = act_row_bytes(ty, cols).expect("a shape");
    let mut acts = vec![0; row_bytes * case.tokens];
    for (x, act) in case.activations().chunks_exact(cols).zip(acts.chunks_exact_mut(row_bytes)) {
        prepare_act(isa, ty, x, act).expect("a shape");
    }
    (packed, acts)
}

fn products(criterion: &mut Criterion) {
    let (rows, cols) = (128, 2048);
    let prefill = if std::env::args().any(|argument| argument == "--bench") { PREFILL_TOKENS } else { 16 };
    for tokens in DECODE_TOKENS.into_iter().chain([prefill]) {
        let mut group = criterion.benchmark_group(format!("product, {tokens} tokens"));
        for (isa, ty) in Isa::available().skip(1).flat_map(|isa| SPEED_TYPES.map(|ty| (isa, ty))) {
            let case = MatmulCase { ty, rows, cols, tokens };
            let (packed, acts) = operands(&case, isa);
            let matrix = Matrix::new(ty, Layout::Panel16, rows, cols, &packed).expect("a matrix");
            let mut out = vec![0.0; rows * tokens];
            let product = Product::new(matrix, &acts, tokens, Output::new(&mut out, rows)).expect("a product");
            group.throughput(match tokens {
                1..=8 => Throughput::Bytes(packed.len() as u64),
                _ => Throughput::Elements(2 * (rows * cols * tokens) as u64),
            });
            group.bench_function(BenchmarkId::new(isa.name(), ty), |bencher| {
                // SAFETY: one thread; the output is not read.
                bencher.iter(|| unsafe { matmul(isa, &product, 0..matrix.panels()) })
            });
        }
    }
}

fn activations(criterion: &mut Criterion) {
    let x: Vec<f32> = (0..4096).map(|i| (i % 37) as f32 - 18.0).collect();
    let mut out = vec![0; act_row_bytes(WeightType::Q4_K, x.len()).expect("a shape")];
    let mut group = criterion.benchmark_group("prepare_act");
    group.throughput(Throughput::Elements(x.len() as u64));
    for isa in Isa::available() {
        group.bench_function(isa.name(), |bencher| bencher.iter(|| prepare_act(isa, WeightType::Q4_K, &x, &mut out)));
    }
}

criterion_group!(benches, products, activations);
criterion_main!(benches);
