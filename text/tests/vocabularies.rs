//! Tokenizers on vocabularies that are odd, wrong or real: errors, round trips, long texts, and the golden cases that
//! llama.cpp keeps beside its vocabularies.

mod common;

use common::{TINY_MODELS, cached, id_of, tiny, tokenizer};
use proptest::prelude::*;
use text::oracle::{byte_vocabulary, spm_vocabulary};
use text::{AddSpecial, ParseSpecial, RenderSpecial, TokenId, Tokenizer, VocabData};

#[track_caller]
fn check_refused(name: &str, data: &VocabData, expected: &str) {
    let error = Tokenizer::new(data).expect_err(name).to_string();
    assert!(error.contains(expected), "{name}: {error}");
}

#[test]
fn bad_vocabularies_are_refused_by_key() {
    let good = || byte_vocabulary("gpt-2", &["ab"], &["<s>"]);
    let spm = || spm_vocabulary(&["a"]);
    let changed = |mut data: VocabData, change: &dyn Fn(&mut VocabData)| {
        change(&mut data);
        data
    };
    type Change = &'static dyn Fn(&mut VocabData);
    let cases: [(VocabData, Change, &str); 12] = [
        (good(), &|data| data.model = "rwkv".into(), "`rwkv` in `tokenizer.ggml.model`; known are: llama, gpt2"),
        (good(), &|data| data.pre = None, "`tokenizer.ggml.pre`"),
        (good(), &|data| data.pre = Some("nonsense".into()), "`nonsense` in `tokenizer.ggml.pre`"),
        (good(), &|data| data.merges.clear(), "`tokenizer.ggml.merges`"),
        (good(), &|data| data.tokens.clear(), "`tokenizer.ggml.tokens`: 0 tokens"),
        (good(), &|data| data.tokens[7] = data.tokens[9].clone(), "tokens 7 and 9"),
        (good(), &|data| data.types.truncate(3), "`tokenizer.ggml.token_type`: 3 entries"),
        (good(), &|data| data.special.eos = Some(u64::from(u32::MAX)), "`tokenizer.ggml.eos_token_id` is 4294967295"),
        (good(), &|data| data.special.fim[3] = Some(9999), "`tokenizer.ggml.fim_pad_token_id` is 9999"),
        (spm(), &|data| data.scores.truncate(3), "`tokenizer.ggml.scores`: 3 entries"),
        (spm(), &|data| data.scores[5] = f32::NAN, "token 5 has the score NaN"),
        (spm(), &|data| data.special.unknown = Some(1 << 40), "unknown_token_id"),
    ];
    for (data, change, expected) in cases {
        check_refused(expected, &changed(data, change), expected);
    }
    Tokenizer::new(&good()).expect("a good vocabulary");
    Tokenizer::new(&spm()).expect("a good vocabulary");
}

#[test]
fn special_tokens_are_taken_out_by_length_not_from_the_left() {
    let mut data = byte_vocabulary("gpt-2", &[], &["<a>", "a>b<c>", "<c>"]);
    let longest = id_of(&data, "a>b<c>");
    let last = data.types.len() - 1;
    data.types[last] = 4;
    let tokenizer = Tokenizer::new(&data).expect("a good vocabulary");
    let found = tokenizer.encode("<a>b<c>", AddSpecial::No, ParseSpecial::Yes);
    assert_eq!(found, [TokenId(u32::from(b'<')), longest]);
    // Without parsing, only the user-defined token is read.
    let found = tokenizer.encode("<a><c>", AddSpecial::No, ParseSpecial::No);
    assert_eq!(found.last(), Some(&id_of(&data, "<c>")));
    assert_eq!(found.len(), 4);
}

#[test]
fn phi3_takes_white_space_after_its_markers() {
    let mut data = spm_vocabulary(&["x"]);
    data.tokens.push(b"<|user|>".to_vec());
    data.types.push(3);
    data.scores.push(0.0);
    let count = |data: &VocabData| {
        let tokenizer = Tokenizer::new(data).expect("a good vocabulary");
        tokenizer.encode("<|user|> \n x", AddSpecial::No, ParseSpecial::Yes).len()
    };
    data.add_space_prefix = Some(false);
    let kept = count(&data);
    data.model_name = Some("Phi-3 mini".into());
    assert_eq!(count(&data), 2);
    assert!(kept > 2);
}

#[test]
fn spm_merges_by_score_and_leftmost_among_equals() {
    let mut data = spm_vocabulary(&["a", "b", "aa", "ab"]);
    data.add_space_prefix = Some(false);
    let encode = |data: &VocabData, text: &str| {
        let tokenizer = Tokenizer::new(data).expect("a good vocabulary");
        let ids = tokenizer.encode(text, AddSpecial::No, ParseSpecial::No);
        ids.iter().map(|id| String::from_utf8_lossy(&data.tokens[id.index()]).into_owned()).collect::<Vec<_>>()
    };
    assert_eq!(encode(&data, "aaab"), ["aa", "ab"]);
    assert_eq!(encode(&data, "aaa"), ["aa", "a"]);
    let (aa, ab) = (id_of(&data, "aa").index(), id_of(&data, "ab").index());
    (data.scores[aa], data.scores[ab]) = (-9.0, -1.0);
    assert_eq!(encode(&data, "aab"), ["a", "ab"]);
    assert_eq!(encode(&data, "é"), ["<0xC3>", "<0xA9>"]);
}

/// 100 KB of one letter, of one digit, of spaces, of line ends, of characters of three bytes.
#[test]
fn long_monotonous_texts_neither_overflow_nor_crawl() {
    let texts = ["a", "7", " ", "\n", "人", "a ", "<", "'", "\u{301}"].map(|part| part.repeat(100_000 / part.len()));
    for name in TINY_MODELS {
        let tokenizer = tokenizer(&tiny(name));
        for text in &texts {
            let ids = tokenizer.encode(text, AddSpecial::No, ParseSpecial::Yes);
            assert_eq!(tokenizer.decode(&ids, RenderSpecial::Yes), text.as_bytes(), "{name}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn decoding_gives_every_text_back(text: String) {
        prop_assume!(!text.contains('\u{2581}'));
        for name in ["llama", "qwen2", "glm4", "gpt-oss", "deepseek2", "qwen35moe", "gemma3", "llama-spm"] {
            let tokenizer = cached_tokenizer(name);
            let ids = tokenizer.encode(&text, AddSpecial::No, ParseSpecial::No);
            let back = String::from_utf8(tokenizer.decode(&ids, RenderSpecial::Yes)).expect("text comes back as UTF-8");
            // What a vocabulary lists as its user's own is shown as listed, in llama.cpp too: here runs of spaces.
            let back = if name == "gemma3" { back.replace('\u{2581}', " ") } else { back };
            prop_assert_eq!(back, text.as_str(), "{}", name);
        }
    }

    #[test]
    fn any_bytes_are_tokenised(bytes: Vec<u8>, kind: u8) {
        text::oracle::check_tokenizer(&[&[kind], bytes.as_slice()].concat());
        text::oracle::check_vocabulary(&[&[kind, b'\n'], bytes.as_slice()].concat());
    }
}

/// Tiny models' tokenizers, made once.
fn cached_tokenizer(name: &'static str) -> &'static Tokenizer {
    use std::collections::HashMap;
    use std::sync::{LazyLock, Mutex};
    static MADE: LazyLock<Mutex<HashMap<&str, &Tokenizer>>> = LazyLock::new(Mutex::default);
    let mut made = MADE.lock().expect("no test panics while it holds this");
    made.entry(name).or_insert_with(|| Box::leak(Box::new(tokenizer(&tiny(name)))))
}

#[test]
fn golden_cases_beside_llama_cpp_vocabularies() {
    let names = [
        "command-r",
        "deepseek-coder",
        "deepseek-llm",
        "falcon",
        "gemma-4",
        "gpt-2",
        "llama-bpe",
        "llama-spm",
        "mpt",
        "phi-3",
        "qwen2",
        "qwen35",
        "refact",
        "starcoder",
    ];
    for name in names {
        let file = |ending: &str| cached(&format!("ggml-vocab-{name}.gguf{ending}"));
        let (Some(model), Some(texts), Some(ids)) = (file(""), file(".inp"), file(".out")) else { continue };
        let tokenizer = tokenizer(&model);
        let texts = std::fs::read_to_string(texts).expect("text");
        let ids = std::fs::read_to_string(ids).expect("text");
        let texts: Vec<&str> = texts.split("\n__ggml_vocab_test__\n").collect();
        assert!(texts.len() > 40 && ids.lines().count() >= texts.len() - 1, "{name}");
        for (text, line) in texts.iter().zip(ids.lines()) {
            let expected: Vec<TokenId> = line.split_whitespace().map(|id| TokenId(id.parse().expect("id"))).collect();
            assert_eq!(tokenizer.encode(text, AddSpecial::No, ParseSpecial::No), expected, "{name} {text:?}");
        }
    }
}
