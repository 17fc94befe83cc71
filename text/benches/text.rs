//! How fast texts become tokens and rows of logits become a token. Run as a test (`cargo test --benches`) every case
//! runs once. Aim: 1 MB of text in half a second on one core, for every kind of tokenizer.

use std::path::{Path, PathBuf};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use text::{AddSpecial, ParseSpecial, Sampler, SamplerOptions, Tokenizer};

const TEXT_BYTES: usize = 1_000_000;

fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/reference").join(name)
}

/// Tiny models that stand for the kinds of tokenizers, and real vocabularies where they are in the cache.
fn models() -> Vec<(String, PathBuf)> {
    let tiny = ["llama", "qwen35moe", "gpt-oss", "deepseek2", "llama-spm"];
    let mut models: Vec<_> =
        tiny.iter().map(|name| (format!("tiny-{name}"), reference(&format!("tiny-{name}.gguf")))).collect();
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache/ats"));
    if let Some(folder) = std::env::var_os("ATS_CACHE").map(PathBuf::from).or(home) {
        let vocabularies = ["llama-spm", "llama-bpe", "qwen2", "qwen35", "deepseek-llm", "gpt-2"];
        let vocabularies = vocabularies.map(|name| format!("ggml-vocab-{name}"));
        let models_too = ["gemma-3-270m-q4_k_m", "SmolLM2-135M-Instruct.Q4_1"].map(str::to_owned);
        for name in vocabularies.into_iter().chain(models_too) {
            let path = folder.join("models").join(format!("{name}.gguf"));
            models.extend(path.exists().then_some((name, path)));
        }
    }
    models
}

fn tokenizer(path: &Path) -> Tokenizer {
    let model = gguf::Model::open(path).expect("model");
    Tokenizer::from_gguf(&model).expect("tokenizer")
}

fn encode(criterion: &mut Criterion) {
    let prose = std::fs::read_to_string(reference("real/GPL-3.txt")).expect("text");
    let prose = prose.repeat(TEXT_BYTES / prose.len() + 1);
    let han: String =
        (0..TEXT_BYTES as u32 / 3).filter_map(|i| char::from_u32(0x4E00 + i.wrapping_mul(i) % 20_000)).collect();
    let letters: String =
        (0..TEXT_BYTES as u32).map(|i| char::from(b'a' + (i.wrapping_mul(i) / 7 % 26) as u8)).collect();
    let texts = [
        ("prose", &prose[..TEXT_BYTES]),
        ("one letter", &"a".repeat(TEXT_BYTES)),
        ("han without spaces", &han),
        ("letters without spaces", &letters),
    ];
    let mut group = criterion.benchmark_group("encode");
    group.sample_size(10).throughput(Throughput::Bytes(TEXT_BYTES as u64));
    for (name, path) in models() {
        let tokenizer = tokenizer(&path);
        for (kind, text) in texts {
            group.bench_with_input(BenchmarkId::new(&name, kind), text, |bencher, text| {
                bencher.iter(|| tokenizer.encode(text, AddSpecial::Yes, ParseSpecial::Yes));
            });
        }
    }
    group.finish();
}

fn load(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("load");
    group.sample_size(10);
    for (name, path) in models().into_iter().filter(|(name, _)| !name.starts_with("tiny")) {
        let model = gguf::Model::open(&path).expect("model");
        group.bench_function(name, |bencher| bencher.iter(|| Tokenizer::from_gguf(&model).expect("tokenizer")));
    }
    group.finish();
}

fn sample(criterion: &mut Criterion) {
    let row: Vec<f32> = (0..151_936u32).map(|id| (id.wrapping_mul(2_654_435_761) >> 8) as f32 / 1e6).collect();
    let warm = SamplerOptions { temperature: 0.8, ..SamplerOptions::greedy() };
    let cases = [
        ("greedy", SamplerOptions::greedy()),
        ("all", warm.clone()),
        ("top-k 40, top-p 0.95, min-p 0.05", SamplerOptions { top_k: 40, top_p: 0.95, min_p: 0.05, ..warm.clone() }),
        ("top-p 0.95", SamplerOptions { top_p: 0.95, ..warm }),
    ];
    let mut group = criterion.benchmark_group("sample of 151936");
    for (name, options) in cases {
        let mut sampler = Sampler::new(options, row.len()).expect("good options");
        group.bench_function(name, |bencher| bencher.iter(|| sampler.sample(&row).expect("good row")));
    }
    group.finish();
}

criterion_group!(benches, encode, load, sample);
criterion_main!(benches);
