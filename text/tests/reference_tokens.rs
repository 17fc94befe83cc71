//! Token ids, token bytes and special ids against the reference's, for every model and vocabulary there is.

mod common;

use std::path::Path;

use common::{TINY_MODELS, cached, ids, json, json_gz, json_lines, tiny, tokenizer, unhex};
use serde_json::Value;
use text::{AddSpecial, ParseSpecial, RenderSpecial, TokenId, Tokenizer};

#[track_caller]
fn check_ids(model: &Path, lines: &str) {
    let tokenizer = tokenizer(model);
    let modes = [
        ("ids", AddSpecial::No, ParseSpecial::No),
        ("ids_parse", AddSpecial::No, ParseSpecial::Yes),
        ("ids_special", AddSpecial::Yes, ParseSpecial::No),
        ("ids_special_parse", AddSpecial::Yes, ParseSpecial::Yes),
    ];
    let mut wrong = Vec::new();
    for case in json_lines(lines) {
        let text = unhex(&case["utf8_hex"]);
        for (key, add, parse) in modes {
            let found = tokenizer.encode(&text, add, parse);
            if found != ids(&case[key]) {
                wrong.push(format!("{lines} {key} {}: {found:?}, expected {}", case["text"], case[key]));
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn tiny_models_give_the_reference_ids() {
    for name in TINY_MODELS {
        check_ids(&tiny(name), &format!("tokenizer/tiny-{name}.jsonl"));
    }
}

#[test]
fn real_models_give_the_reference_ids() {
    for (file, lines) in [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "tokenizer/smollm2-135m-instruct-q4_1.jsonl"),
        ("gemma-3-270m-q4_k_m.gguf", "tokenizer/gemma-3-270m-q4_k_m.jsonl"),
    ] {
        if let Some(path) = cached(file) {
            check_ids(&path, lines);
        }
    }
}

#[test]
fn real_vocabularies_give_the_reference_ids() {
    for name in ["llama-spm", "llama-bpe", "qwen2", "qwen35", "deepseek-llm", "gpt-2"] {
        if let Some(path) = cached(&format!("ggml-vocab-{name}.gguf")) {
            check_ids(&path, &format!("tokenizer/vocab-{name}.jsonl"));
        }
    }
}

#[track_caller]
fn check_piece(tokenizer: &Tokenizer, model: &str, id: u32, render: RenderSpecial, hex: &Value) {
    let found = tokenizer.token_bytes(TokenId(id), render);
    assert_eq!(found, unhex(hex), "{model}: token {id}, {render:?}");
}

#[test]
fn tiny_models_have_the_reference_pieces_types_and_special_ids() {
    for name in TINY_MODELS {
        let tokenizer = tokenizer(&tiny(name));
        let reference = json(&format!("{name}.json"));
        let pieces = reference["pieces_hex"].as_array().expect("list");
        assert_eq!(tokenizer.vocab_tokens(), pieces.len());
        for (id, hex) in (0u32..).zip(pieces) {
            check_piece(&tokenizer, name, id, RenderSpecial::Yes, hex);
            let plain = reference["pieces_hex_without_special"].get(id.to_string()).unwrap_or(hex);
            check_piece(&tokenizer, name, id, RenderSpecial::No, plain);
            let attributes = reference["token_attributes"][id as usize].as_u64();
            assert_eq!(Some(u64::from(tokenizer.attributes(TokenId(id)).0)), attributes, "{name}: token {id}");
        }
        check_special(&tokenizer, name, &reference["special"]);
    }
}

/// The reference names BOS 11 and EOS 11 for BPE files without these keys: none is right there (R10).
#[track_caller]
fn check_special(tokenizer: &Tokenizer, model: &str, special: &Value) {
    assert_eq!(tokenizer.end_of_generation(), ids(&special["eog"]), "{model}: eog");
    assert_eq!(Some(tokenizer.adds_bos()), special["add_bos"].as_bool(), "{model}: add_bos");
    assert_eq!(Some(tokenizer.adds_eos()), special["add_eos"].as_bool(), "{model}: add_eos");
    for (key, found) in [("bos", tokenizer.bos()), ("eos", tokenizer.eos())] {
        let expected = special[key].as_i64().filter(|&id| id >= 0 && id != 11);
        assert_eq!(found.map(|id| i64::from(id.0)), expected, "{model}: {key}");
    }
}

#[test]
fn real_models_have_the_reference_pieces_and_special_ids() {
    for (file, name) in [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct-q4_1"),
        ("gemma-3-270m-q4_k_m.gguf", "gemma-3-270m-q4_k_m"),
    ] {
        let Some(path) = cached(file) else { continue };
        let tokenizer = tokenizer(&path);
        let reference = json_gz(&format!("tokenizer/{name}.pieces.json.gz"));
        let kept = (0u32..).filter(|id| id % 3 != 2);
        for (id, hex) in kept.zip(reference["pieces_hex"].as_array().expect("list")) {
            check_piece(&tokenizer, name, id, RenderSpecial::Yes, hex);
            let plain = reference["not_rendered_without_special"].get(id.to_string()).unwrap_or(hex);
            check_piece(&tokenizer, name, id, RenderSpecial::No, plain);
            let normal = Value::from(4);
            let attributes = reference["attributes_not_normal"].get(id.to_string()).unwrap_or(&normal);
            let found = Value::from(tokenizer.attributes(TokenId(id)).0);
            assert_eq!(&found, attributes, "{name}: token {id}");
        }
        check_special(&tokenizer, name, &json(&format!("real/{name}.json"))["special"]);
    }
}
