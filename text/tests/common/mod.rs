//! Where the integration tests of this crate find reference data and models. Not a test itself.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::path::PathBuf;

use serde_json::Value;
use text::{TokenId, Tokenizer, VocabData};

/// The folder of reference data in the repository.
pub fn reference_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures/reference")
}

/// A file that `cargo xtask fetch` puts into the cache; `None`, with a line saying so, if it is not there. With
/// `ATS_REQUIRE_MODELS` set, as in CI, its absence is a failure.
pub fn cached(name: &str) -> Option<PathBuf> {
    let user_cache = || {
        let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
        let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
        Some(cache.or_else(home)?.join("ats"))
    };
    let folder = std::env::var_os("ATS_CACHE").map(PathBuf::from).or_else(user_cache)?;
    let path = folder.join("models").join(name);
    if !path.exists() {
        assert!(std::env::var_os("ATS_REQUIRE_MODELS").is_none(), "{} is missing", path.display());
        println!("SKIPPED: {} is missing; `cargo xtask fetch` gets it", path.display());
        return None;
    }
    Some(path)
}

/// The tokenizer of a model file.
pub fn tokenizer(path: &std::path::Path) -> Tokenizer {
    let model = gguf::Model::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    Tokenizer::from_gguf(&model).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A JSON file of the reference.
pub fn json(name: &str) -> Value {
    let text = std::fs::read_to_string(reference_dir().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A JSON file of the reference that is kept compressed.
pub fn json_gz(name: &str) -> Value {
    let file = std::fs::File::open(reference_dir().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    serde_json::from_reader(flate2::read::GzDecoder::new(file)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The objects of a JSON lines file of the reference.
pub fn json_lines(name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(reference_dir().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{name}: {error}"))).collect()
}

/// A JSON list as token ids.
pub fn ids(value: &Value) -> Vec<TokenId> {
    let list = value.as_array().unwrap_or_else(|| panic!("no list: {value}"));
    list.iter().map(|id| TokenId(id.as_u64().unwrap_or(u64::MAX) as u32)).collect()
}

/// The bytes that a hexadecimal string names.
pub fn unhex(value: &Value) -> Vec<u8> {
    let text = value.as_str().unwrap_or_else(|| panic!("no string: {value}"));
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).expect("hex")).collect()
}

/// The tiny models of the reference.
pub const TINY_MODELS: [&str; 12] = [
    "deepseek2",
    "gemma3",
    "glm4",
    "gpt-oss",
    "llama",
    "llama-spm",
    "llama4",
    "qwen2",
    "qwen3",
    "qwen35moe",
    "qwen3moe",
    "qwen3next",
];

/// The tiny model `name`.
pub fn tiny(name: &str) -> PathBuf {
    reference_dir().join(format!("tiny-{name}.gguf"))
}

/// The id of a token of a vocabulary by its text.
#[track_caller]
pub fn id_of(data: &VocabData, text: &str) -> TokenId {
    let at = data.tokens.iter().position(|token| token == text.as_bytes());
    TokenId(at.unwrap_or_else(|| panic!("no token {text:?}")) as u32)
}
