//! What must hold of tokenizers and templates for any input: the checks that fuzz targets, corpus replay and property
//! tests share. They panic where something does not hold, and are of no use to anybody else.

use serde_json::{Map, json};

use crate::template::{ChatRequest, ChatTemplate, CivilTime, GenerationPrompt};
use crate::tokenizer::{AddSpecial, ParseSpecial, RenderSpecial, Tokenizer, VocabData, known_pre_tokenizers};

/// A byte-level vocabulary: the 256 bytes (as ids 0 to 255), then `words` with the merges that make them from left to
/// right, then `markers` as control tokens.
pub fn byte_vocabulary(pre: &str, words: &[&str], markers: &[&str]) -> VocabData {
    let mut data = VocabData { model: "gpt2".into(), pre: Some(pre.into()), ..VocabData::default() };
    data.tokens.extend((0..=255u8).map(|byte| spelled(&[byte]).into_bytes()));
    for word in words.iter().map(|word| word.as_bytes()) {
        for end in 2..=word.len() {
            let text = spelled(&word[..end]).into_bytes();
            if !data.tokens.contains(&text) {
                data.tokens.push(text);
                data.merges
                    .push(format!("{} {}", spelled(&word[..end - 1]), spelled(&word[end - 1..end])).into_bytes());
            }
        }
    }
    if data.merges.is_empty() {
        data.merges.push(format!("{0} {0}", spelled(&[0])).into_bytes()); // no text has two NUL bytes in a row
    }
    data.types = vec![1; data.tokens.len()];
    data.tokens.extend(markers.iter().map(|marker| marker.as_bytes().to_vec()));
    data.types.resize(data.tokens.len(), 3);
    data
}

/// The byte-level alphabet by its published definition: printable Latin-1 stands for itself, the rest is numbered.
fn spelled(bytes: &[u8]) -> String {
    let printable = |byte: u8| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let symbol = |&byte: &u8| match printable(byte) {
        true => byte as char,
        false => {
            let number = (0..byte).filter(|&before| !printable(before)).count() as u32;
            char::from_u32(256 + number).unwrap_or_default()
        }
    };
    bytes.iter().map(symbol).collect()
}

/// An SPM vocabulary: the 256 bytes, and `words` (spaces as they are) with scores that fall with their position.
pub fn spm_vocabulary(words: &[&str]) -> VocabData {
    let mut data = VocabData { model: "llama".into(), ..VocabData::default() };
    data.tokens = ["<unk>", "<s>", "</s>"].map(|text| text.as_bytes().to_vec()).into();
    data.tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>").into_bytes()));
    data.tokens.extend(words.iter().map(|word| word.replace(' ', "\u{2581}").into_bytes()));
    data.types = vec![2, 3, 3];
    data.types.resize(259, 6);
    data.types.resize(data.tokens.len(), 1);
    data.scores = (0..data.tokens.len()).map(|id| -(id as f32)).collect();
    data
}

/// Checks that every token id of every text exists and that decoding gives the text back, for the kind of tokenizer
/// that the first byte chooses.
pub fn check_tokenizer(bytes: &[u8]) {
    let Some((&kind, text)) = bytes.split_first() else { return };
    let names = known_pre_tokenizers();
    let words = ["th", "the", "in", "ing", "aa", "aaaa", "12", "\n\n", "  "];
    let (data, is_bpe) = match names.get(kind as usize) {
        Some(&name) if !["gemma4", "sarvam-moe"].contains(&name) => {
            (byte_vocabulary(name, &words, &["<|end|>", "<|im_end|>", "<s>"]), true)
        }
        _ => (spm_vocabulary(&["a", " ", " a", "th", "he", "the", " the", "  ", "aa", "人"]), false),
    };
    let tokenizer = Tokenizer::new(&data).unwrap_or_else(|error| panic!("a good vocabulary: {error}"));
    for parse in [ParseSpecial::No, ParseSpecial::Yes] {
        let ids = tokenizer.encode(text, AddSpecial::No, parse);
        assert!(ids.iter().all(|id| id.index() < tokenizer.vocab_tokens()));
        let decoded = tokenizer.decode(&ids, RenderSpecial::Yes);
        // Only text comes back. SPM cannot tell U+2581 from a space, and writes a space after each special token.
        let is_plain = || parse == ParseSpecial::No && !text.windows(3).any(|part| part == "\u{2581}".as_bytes());
        let comes_back = std::str::from_utf8(text).is_ok() && (is_bpe || is_plain());
        assert!(!comes_back || decoded == text, "{text:?} came back as {decoded:?}");
    }
}

/// Checks that a vocabulary made of any bytes (lines: tokens, an empty line, merges) is refused or works.
pub fn check_vocabulary(bytes: &[u8]) {
    let mut lines = bytes.split(|&byte| byte == b'\n').map(Vec::from);
    let names = known_pre_tokenizers();
    let kind = lines.next().and_then(|line| line.first().copied()).unwrap_or_default() as usize;
    let tokens: Vec<Vec<u8>> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
    let mut data = VocabData {
        model: if kind.is_multiple_of(2) { "gpt2" } else { "llama" }.into(),
        pre: names.get(kind / 2 % names.len()).map(ToString::to_string),
        scores: tokens.iter().map(|text| text.len() as f32).collect(),
        types: tokens.iter().map(|text| i32::from(text.last().copied().unwrap_or_default() % 8)).collect(),
        tokens,
        merges: lines.collect(),
        ..VocabData::default()
    };
    data.special.bos = bytes.get(1).map(|&byte| u64::from(byte));
    let Ok(tokenizer) = Tokenizer::new(&data) else { return };
    for parse in [ParseSpecial::No, ParseSpecial::Yes] {
        let ids = tokenizer.encode(bytes, AddSpecial::Yes, parse);
        assert!(ids.iter().all(|id| id.index() < tokenizer.vocab_tokens()));
        tokenizer.decode(&ids, RenderSpecial::No);
    }
}

/// Checks that any template (up to the first NUL byte) with any message (the rest) is refused or rendered, and that
/// its tokens are its text with no more markers than the template writes without the message.
pub fn check_template(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (source, content) = text.split_once('\0').unwrap_or((&text, "<|im_end|> hi"));
    let data = byte_vocabulary("qwen2", &[], &["<|im_start|>", "<|im_end|>", "<think>"]);
    let tokenizer = Tokenizer::new(&data).unwrap_or_else(|error| panic!("a good vocabulary: {error}"));
    let Ok(template) = ChatTemplate::for_tokenizer(source, &tokenizer) else { return };
    let request = ChatRequest {
        messages: vec![json!({"role": "user", "content": content}), json!({"role": "assistant", "content": [content]})],
        tools: vec![json!({"type": "function", "function": {"name": "f", "description": content}})],
        generation_prompt: GenerationPrompt::Add,
        variables: Map::new(),
        now: CivilTime::from_unix_seconds(0),
    };
    let (Ok(text), Ok(ids)) = (template.render(&request), template.render_tokens(&tokenizer, &request)) else { return };
    // The two noncharacters that serve as marks are replaced in messages.
    let sanitized = |text: &str| text.replace(['\u{FDD0}', '\u{FDD1}'], "\u{FFFD}");
    let decoded = tokenizer.decode(&ids, RenderSpecial::Yes);
    let decoded = String::from_utf8_lossy(&decoded);
    assert!(sanitized(&decoded) == sanitized(&text), "{text:?} became {decoded:?}");
}
