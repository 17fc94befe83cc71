//! Long texts take time in proportion to their length, whatever they consist of: bounds so wide that only an algorithm
//! of another order breaks them, even without optimisation on a busy machine. Figures: `benches/text.rs`.

mod common;

use common::{cached, reference_dir, tiny, tokenizer};
use std::time::{Duration, Instant};
use text::oracle::byte_vocabulary;
use text::tokenizer::known_pre_tokenizers;
use text::{AddSpecial, ParseSpecial, RenderSpecial, Tokenizer};

/// Twenty times what an optimised build may take for a megabyte.
const MEGABYTE_AT_MOST: Duration = Duration::from_secs(10);

/// `bytes` of a text that repeats `part`.
fn repeated(part: &str, bytes: usize) -> String {
    part.repeat(bytes / part.len())
}

#[track_caller]
fn check(name: &str, tokenizer: &Tokenizer, text: &str) {
    let start = Instant::now();
    let ids = tokenizer.encode(text, AddSpecial::No, ParseSpecial::Yes);
    let most = MEGABYTE_AT_MOST.mul_f64((text.len() as f64 / 1e6).max(0.05));
    let beginning: String = text.chars().take(12).collect();
    assert!(start.elapsed() < most, "{name}: {} bytes of {beginning:?} took {:?}", text.len(), start.elapsed());
    assert!(tokenizer.decode(&ids, RenderSpecial::Yes) == text.as_bytes(), "{name}: {beginning:?} does not come back");
}

/// The six real vocabularies, the two real models, and one tiny model of each algorithm.
#[test]
fn a_megabyte_of_any_text_is_read_at_once() {
    let real = ["llama-spm", "llama-bpe", "qwen2", "qwen35", "deepseek-llm", "gpt-2"];
    let mut models: Vec<_> = real.iter().filter_map(|name| cached(&format!("ggml-vocab-{name}.gguf"))).collect();
    models
        .extend(["gemma-3-270m-q4_k_m.gguf", "SmolLM2-135M-Instruct.Q4_1.gguf"].iter().filter_map(|name| cached(name)));
    models.extend(["llama", "llama-spm"].map(tiny));
    let prose = std::fs::read_to_string(reference_dir().join("real/GPL-3.txt")).expect("text");
    let han: String = (0..70_000_u32).filter_map(|i| char::from_u32(0x4E00 + i.wrapping_mul(i) % 20_000)).collect();
    let letters: String = (0..200_000_u32).map(|i| char::from(b'a' + (i.wrapping_mul(i) / 7 % 26) as u8)).collect();
    let texts = [repeated(&prose, 1_000_000), repeated("a", 1_000_000), han, letters];
    for path in models {
        let tokenizer = tokenizer(&path);
        for text in &texts {
            check(&path.display().to_string(), &tokenizer, text);
        }
    }
}

/// Runs that make an expression look far ahead, at each of its positions, for what never comes.
#[test]
fn no_pre_tokenizer_crawls_over_monotonous_text() {
    let parts =
        ["a", "A", "aA", "7", "7a", " ", "\t ", "\n", " \n", "人", "か", "'", "'s", "!", "!a", "\u{301}", "-", "/"];
    for name in known_pre_tokenizers().into_iter().filter(|name| !["gemma4", "sarvam-moe"].contains(name)) {
        let tokenizer = Tokenizer::new(&byte_vocabulary(name, &["aa", "  "], &[])).expect("a good vocabulary");
        for part in parts {
            check(name, &tokenizer, &repeated(part, 50_000));
        }
    }
}
