//! Real files, written by llama.cpp's tools: what the reader finds in them.
//! Not here: damaged files (`damage.rs`).

use std::path::{Path, PathBuf};

use gguf::{GgmlType, Model};

fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/reference").join(name)
}

#[test]
fn opens_every_tiny_model_and_finds_its_bytes() {
    let cases = [
        ("tiny-llama.gguf", "llama", 31, 1_330_432),
        ("tiny-gemma3.gguf", "gemma3", 80, 1_769_792),
        ("tiny-qwen35moe.gguf", "qwen35moe", 77, 3_926_688),
    ];
    for (file, architecture, n_tensors, len_bytes) in cases {
        let model = Model::open(&reference(file)).expect(file);
        assert_eq!(model.str("general.architecture").expect(file), architecture);
        assert_eq!((model.tensors().len(), model.files()[0].len_bytes), (n_tensors, len_bytes), "{file}");
        let total: u64 = model.tensors().iter().map(|t| t.size_bytes().expect(file)).sum();
        assert!(total < len_bytes && total > len_bytes / 2, "{file}: {total}");
        for tensor in model.tensors() {
            assert_eq!(model.bytes(tensor).expect(file).len() as u64, tensor.size_bytes().expect(file));
        }
    }
}

#[test]
fn typed_getters_find_what_the_file_says() {
    let model = Model::open(&reference("tiny-llama.gguf")).expect("opens");
    assert_eq!(model.u32("llama.embedding_length").expect("there"), 256);
    assert_eq!(model.opt_u32("llama.no_such_key").expect("absent is fine"), None);
    assert_eq!(model.tensor("token_embd.weight").map(|t| t.ty), Some(GgmlType::Q4_K));
    let error = model.u32("general.architecture").expect_err("a string is no integer").to_string();
    assert_eq!(
        error,
        "metadata key `general.architecture` is \"llama\" (of type string); expected an integer from 0 to 2^32-1"
    );
    let error = model.f32("llama.nothing").expect_err("missing").to_string();
    assert_eq!(error, "metadata key `llama.nothing` is missing; expected a number of type f32 or f64");
    let tokens: Vec<&str> =
        model.array("tokenizer.ggml.tokens").and_then(|a| Ok(a.iter_str()?.collect())).expect("strings");
    let types: Vec<i32> =
        model.array("tokenizer.ggml.token_type").and_then(|a| Ok(a.iter_i32()?.collect())).expect("integers");
    assert_eq!(tokens.len(), types.len());
}
