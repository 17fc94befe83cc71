//! Speed of attention and norms at the shapes of real models, one thread.
//!
//! `cargo bench -p kernels --bench ops` measures; run as a test (`cargo test --benches`) it does each case once at a
//! small size, so that it never rots. Throughput is in bytes of cache read (decode, norms) or in multiply-adds
//! (prefill: "elements" are multiply-adds). Not here: products with weights.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use half::f16;
use kernels::cpu::Isa;
use kernels::cpu::ops::attention::{
    AttentionInputs, AttentionScratch, AttentionShape, Mask, attention, attention_combine, attention_partial,
};
use kernels::cpu::ops::elementwise::{Glu, glu};
use kernels::cpu::ops::kv::{KV_BLOCK, KvView};
use kernels::cpu::ops::norm::{RmsNorm, rms_norm};
use kernels::cpu::ops::{View, ViewMut};

/// Heads of (Qwen3-14B, GPT-OSS-20B, DeepSeek-V2-Lite): query, kv, key columns, value columns.
const MODELS: [(&str, usize, usize, usize, usize); 3] =
    [("qwen3-14b", 40, 8, 128, 128), ("gpt-oss", 64, 8, 64, 64), ("deepseek-v2-lite", 16, 1, 576, 512)];

/// Criterion measures when cargo passes `--bench`; otherwise everything runs once and small.
fn measured(full: usize, small: usize) -> usize {
    if std::env::args().any(|a| a == "--bench") { full } else { small }
}

fn values(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 7919) % 2001) as f32 / 1000.0 - 1.0).collect()
}

struct Setup {
    shape: AttentionShape,
    k: Vec<f16>,
    v: Option<Vec<f16>>,
    block_table: Vec<u32>,
}

impl Setup {
    fn new(
        (_, q_heads, kv_heads, k_head_cols, v_head_cols): (&str, usize, usize, usize, usize),
        context: usize,
    ) -> Self {
        let scale = 1.0 / (k_head_cols as f32).sqrt();
        let shape =
            AttentionShape { q_heads, kv_heads, k_head_cols, v_head_cols, scale, softcap: None, mask: Mask::Causal };
        let slots = context.next_multiple_of(KV_BLOCK);
        let half = |cols: usize| values(slots * cols).into_iter().map(f16::from_f32).collect();
        let v = (k_head_cols == v_head_cols).then(|| half(kv_heads * v_head_cols));
        Self { shape, k: half(kv_heads * k_head_cols), v, block_table: (0..(slots / KV_BLOCK) as u32).collect() }
    }

    fn inputs<'a>(&'a self, q: &'a [f32], positions: &'a [u32]) -> AttentionInputs<'a> {
        let slots = self.block_table.len() * KV_BLOCK;
        let view = |x: &'a [f16]| KvView::F16(View::new(x, slots, x.len() / slots));
        let q = View::new(q, positions.len(), self.shape.q_heads * self.shape.k_head_cols);
        let (k, v) = (view(&self.k), self.v.as_deref().map(view));
        AttentionInputs { q, positions, k, v, block_table: &self.block_table, sinks: None }
    }

    fn cache_bytes_per_head(&self, context: usize) -> u64 {
        let values = if self.v.is_some() { self.shape.v_head_cols } else { 0 };
        (context * (self.shape.k_head_cols + values) * 2) as u64
    }
}

/// One token against a long cache, one kv head.
fn decode(c: &mut Criterion) {
    let context = measured(8192, 300);
    let mut group = c.benchmark_group("attention decode, one kv head");
    for model in MODELS {
        let setup = Setup::new(model, context);
        group.throughput(Throughput::Bytes(setup.cache_bytes_per_head(context)));
        let q = values(setup.shape.q_heads * setup.shape.k_head_cols);
        let positions = [context as u32 - 1];
        let segments = setup.shape.segments(&positions).len();
        let (rows, cols) = (setup.shape.group(), setup.shape.partial_cols());
        let mut partials = vec![0.0; segments * rows * cols];
        let mut out = vec![0.0; rows * setup.shape.v_head_cols];
        let mut scratch = AttentionScratch::new(&setup.shape);
        for isa in Isa::available().filter(|isa| *isa != Isa::Scalar) {
            group.bench_function(format!("{} {}", model.0, isa.name()), |b| {
                b.iter(|| {
                    let inputs = setup.inputs(&q, &positions);
                    for s in 0..segments {
                        let part =
                            ViewMut::new(&mut partials, segments * rows, cols).row_range(s * rows..(s + 1) * rows);
                        attention_partial(isa, &setup.shape, &inputs, (0, s), &mut scratch, part);
                    }
                    let partials = View::new(&partials, segments * rows, cols);
                    let result = ViewMut::new(&mut out, 1, rows * setup.shape.v_head_cols);
                    attention_combine(isa, &setup.shape, partials, None, &mut scratch, result);
                });
            });
        }
    }
    group.finish();
}

/// A tile of prompt tokens at depth, one kv head.
fn prefill(c: &mut Criterion) {
    let (context, tokens) = (measured(2048, 200), measured(64, 8));
    let mut group = c.benchmark_group("attention prefill, one kv head");
    for model in MODELS {
        let setup = Setup::new(model, context);
        let (shape, rows) = (&setup.shape, tokens * setup.shape.group());
        group.throughput(Throughput::Elements((rows * context * (shape.k_head_cols + shape.v_head_cols)) as u64));
        let q = values(tokens * shape.q_heads * shape.k_head_cols);
        let positions: Vec<u32> = (context - tokens..context).map(|p| p as u32).collect();
        let mut out = vec![0.0; rows * shape.v_head_cols];
        let mut scratch = AttentionScratch::new(shape);
        for isa in Isa::available().filter(|isa| *isa != Isa::Scalar) {
            group.bench_function(format!("{} {}", model.0, isa.name()), |b| {
                b.iter(|| {
                    let out = ViewMut::new(&mut out, tokens, shape.group() * shape.v_head_cols);
                    attention(isa, shape, &setup.inputs(&q, &positions), 0..1, &mut scratch, out);
                });
            });
        }
    }
    group.finish();
}

/// A norm and a gated unit over some rows.
fn rows(c: &mut Criterion) {
    let (rows, cols) = (measured(16, 2), measured(5120, 100));
    let (x, weight) = (values(rows * cols), values(cols));
    let mut out = vec![0.0; rows * cols];
    let mut group = c.benchmark_group("rows of 5120");
    group.throughput(Throughput::Bytes((rows * cols * 4) as u64));
    for isa in Isa::available() {
        group.bench_function(format!("rms_norm {}", isa.name()), |b| {
            let norm = RmsNorm { group: cols, weight: Some(&weight), eps: 1e-6 };
            b.iter(|| rms_norm(isa, View::new(&x, rows, cols), norm, ViewMut::new(&mut out, rows, cols)));
        });
        group.bench_function(format!("silu glu {}", isa.name()), |b| {
            let x = View::new(&x, rows, cols);
            b.iter(|| glu(isa, Glu::Silu, x, x, ViewMut::new(&mut out, rows, cols)));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(20).without_plots();
    targets = decode, prefill, rows
}
criterion_main!(benches);
