//! Forced tokens through the whole stream: reports R10 (ends), R11 (characters), R12 (stop strings), X31 (channels).

mod common;

use common::id_of;
use text::oracle::byte_vocabulary;
use text::{
    AddSpecial, ChannelFormat, Delta, EndTokens, Finish, ParseSpecial, StreamOptions, TextStream, TokenId, Tokenizer,
    VocabData,
};

const MARKERS: [&str; 10] = [
    "<|start|>",
    "<|channel|>",
    "<|constrain|>",
    "<|message|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|im_end|>",
    "<think>",
    "</think>",
];

fn vocabulary() -> VocabData {
    let words = ["DEF", "G", "HI", "J", "X", "analysis", "final", "commentary", "assistant", "four", "hm", ">>>", " A"];
    byte_vocabulary("gpt-2", &words, &MARKERS)
}

fn options() -> StreamOptions {
    StreamOptions {
        stops: Vec::new(),
        max_tokens: None,
        context_tokens: 1000,
        end_tokens: EndTokens::Stop,
        channels: ChannelFormat::Plain,
    }
}

/// A token by its marker text, or its word, or its bytes one by one.
fn forced(data: &VocabData, texts: &[&str]) -> Vec<TokenId> {
    let tokenizer = Tokenizer::new(data).expect("good vocabulary");
    let ids = texts.iter().map(|text| match MARKERS.contains(text) {
        true => vec![id_of(data, text)],
        false => tokenizer.encode(text, AddSpecial::No, ParseSpecial::No),
    });
    ids.flatten().collect()
}

#[derive(Debug, Default, PartialEq)]
struct Outcome {
    answer: String,
    reasoning: String,
    calls: Vec<(String, String)>,
    finish: Option<Finish>,
    steps: Vec<String>,
}

fn run(data: &VocabData, prompt: &[TokenId], ids: &[TokenId], options: &StreamOptions) -> Outcome {
    let tokenizer = Tokenizer::new(data).expect("good vocabulary");
    let mut stream = TextStream::new(&tokenizer, prompt, options);
    let mut outcome = Outcome { finish: stream.finished(), ..Outcome::default() };
    for &id in ids {
        if outcome.finish.is_some() {
            break;
        }
        let step = stream.push(id);
        outcome.steps.push(step.deltas.iter().map(|delta| format!("{delta:?}")).collect());
        for delta in step.deltas {
            match delta {
                Delta::Answer(text) => outcome.answer += &text,
                Delta::Reasoning(text) => outcome.reasoning += &text,
                Delta::ToolCall(name) => outcome.calls.push((name, String::new())),
                Delta::ToolArguments(text) => outcome.calls.last_mut().expect("a call").1 += &text,
            }
        }
        outcome.finish = step.finish;
    }
    outcome
}

#[track_caller]
fn check_answer(ids: &[TokenId], options: &StreamOptions, answer: &str, finish: Option<Finish>) {
    let outcome = run(&vocabulary(), &[], ids, options);
    assert_eq!((outcome.answer.as_str(), outcome.finish), (answer, finish), "{outcome:?}");
}

fn bytes(list: &[u8]) -> Vec<TokenId> {
    list.iter().map(|&byte| TokenId(u32::from(byte))).collect()
}

#[test]
fn r10_a_control_token_that_ends_turns_ends_the_answer_without_a_trace() {
    let data = vocabulary();
    let ids = forced(&data, &["X", "<|im_end|>", "G"]);
    let end = Finish::EndToken(id_of(&data, "<|im_end|>"));
    check_answer(&ids, &options(), "X", Some(end));
    assert_eq!(end.reason(), "stop");
    check_answer(&ids, &StreamOptions { end_tokens: EndTokens::Ignore, ..options() }, "XG", None);
}

#[test]
fn r10_bos_is_there_as_often_as_the_file_says() {
    let count = |add_bos: Option<bool>, bos: Option<&str>, text: &str| {
        let mut data = byte_vocabulary("gpt-2", &[], &["<s>"]);
        data.add_bos = add_bos;
        data.special.bos = bos.map(|bos| u64::from(id_of(&data, bos).0));
        let tokenizer = Tokenizer::new(&data).expect("good vocabulary");
        let prompt = tokenizer.encode_prompt(text, ParseSpecial::Yes);
        let plain = tokenizer.encode(text, AddSpecial::Yes, ParseSpecial::Yes);
        let bos = id_of(&data, "<s>");
        (prompt.iter().filter(|&&id| id == bos).count(), plain.iter().filter(|&&id| id == bos).count())
    };
    assert_eq!(count(Some(true), Some("<s>"), "<s>hi"), (1, 2)); // the template wrote one
    assert_eq!(count(Some(true), Some("<s>"), "hi"), (1, 1));
    assert_eq!(count(None, None, "hi"), (0, 0)); // neither key: none, not token 11
    assert_eq!(count(Some(true), None, "hi"), (0, 0)); // no id, none
    assert_eq!(count(Some(false), Some("<s>"), "hi"), (0, 0));
}

#[test]
fn r11_characters_come_whole_and_a_rest_becomes_one_replacement() {
    let mut outcome = run(&vocabulary(), &[], &bytes(b"\xF0\x9F\x98\xB8"), &options());
    assert_eq!(outcome.steps.split_off(3), [r#"Answer("😸")"#]);
    assert!(outcome.steps.iter().all(String::is_empty));
    let length = StreamOptions { max_tokens: Some(1), ..options() };
    check_answer(&bytes(b"\xF0\x9F"), &length, "\u{FFFD}", Some(Finish::Length));
    check_answer(&bytes(b"a\xFFb"), &options(), "a\u{FFFD}b", None);
    check_answer(&bytes("x日y".as_bytes()), &StreamOptions { stops: vec!["日".into()], ..options() }, "x", Some(STOP0));
}

const STOP0: Finish = Finish::StopString(0);

#[test]
fn r11_byte_fallback_tokens_of_spm_join_to_characters() {
    let mut data = VocabData { model: "llama".into(), ..VocabData::default() };
    data.tokens = ["<unk>", "<s>", "</s>"].iter().map(|text| text.as_bytes().to_vec()).collect();
    data.types = vec![2, 3, 3];
    data.tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>").into_bytes()));
    data.types.resize(data.tokens.len(), 6);
    data.scores = vec![0.0; data.tokens.len()];
    let ids = ["<0xE6>", "<0x97>", "<0xA5>"].map(|text| id_of(&data, text));
    let outcome = run(&data, &[], &ids, &options());
    assert_eq!((outcome.answer.as_str(), outcome.steps.len()), ("日", 3));
    let tokenizer = Tokenizer::new(&data).expect("good vocabulary");
    assert_eq!(tokenizer.encode("日", AddSpecial::No, ParseSpecial::No)[3..], ids);
}

#[test]
fn r12_stop_strings_over_token_borders() {
    let data = vocabulary();
    let with = |stops: &[&str]| StreamOptions { stops: stops.iter().map(ToString::to_string).collect(), ..options() };
    let stop = with(&["DEFGHIJ"]);
    check_answer(&forced(&data, &["DEF", "G", "HI", "J"]), &stop, "", Some(STOP0));
    let end = Finish::EndToken(id_of(&data, "<|im_end|>"));
    check_answer(&forced(&data, &["DEF", "G", "X", "<|im_end|>"]), &stop, "DEFGX", Some(end));
    let length = StreamOptions { max_tokens: Some(1), ..stop };
    check_answer(&forced(&data, &["DEF"]), &length, "DEF", Some(Finish::Length));
    check_answer(&forced(&data, &[">>>", " A", "\n"]), &with(&[">>> A", ">>> A\n"]), "", Some(STOP0));
    check_answer(&bytes(b"aab"), &with(&["ab"]), "a", Some(STOP0));
}

#[test]
fn limits_end_with_their_own_reasons() {
    let ids = bytes(b"abcdef");
    check_answer(&ids, &StreamOptions { max_tokens: Some(0), ..options() }, "", Some(Finish::Length));
    check_answer(&ids, &StreamOptions { max_tokens: Some(2), ..options() }, "ab", Some(Finish::Length));
    check_answer(&ids, &StreamOptions { context_tokens: 3, ..options() }, "abc", Some(Finish::Context));
    let both = StreamOptions { context_tokens: 3, max_tokens: Some(3), ..options() };
    check_answer(&ids, &both, "abc", Some(Finish::Length));
    for (prompt_tokens, answer) in [(2, "a"), (3, ""), (4, "")] {
        let prompt = vec![TokenId(0); prompt_tokens];
        let options = StreamOptions { context_tokens: 3, max_tokens: Some(9), ..options() };
        let outcome = run(&vocabulary(), &prompt, &ids, &options);
        assert_eq!((outcome.answer.as_str(), outcome.finish), (answer, Some(Finish::Context)));
    }
    assert_eq!(Finish::Context.reason(), "length");
}

#[test]
fn cancelling_gives_out_what_is_held() {
    let data = vocabulary();
    let tokenizer = Tokenizer::new(&data).expect("good vocabulary");
    let options = StreamOptions { stops: vec!["DEFG".into()], ..options() };
    let mut stream = TextStream::new(&tokenizer, &[], &options);
    assert!(stream.push(forced(&data, &["DEF"])[0]).deltas.is_empty());
    let step = stream.cancel();
    assert_eq!(step.deltas, [Delta::Answer("DEF".into())]);
    assert_eq!(step.finish, Some(Finish::Cancelled));
    assert_eq!(stream.push(TokenId(65)).deltas, []);
    assert_eq!(stream.generated_tokens(), 1);
}

fn harmony() -> StreamOptions {
    StreamOptions { channels: ChannelFormat::Harmony, ..options() }
}

#[track_caller]
fn check_channels(
    prompt: &[&str],
    generated: &[&str],
    options: &StreamOptions,
    reasoning: &str,
    answer: &str,
) -> Outcome {
    let data = vocabulary();
    let outcome = run(&data, &forced(&data, prompt), &forced(&data, generated), options);
    assert_eq!((outcome.reasoning.as_str(), outcome.answer.as_str()), (reasoning, answer), "{outcome:?}");
    outcome
}

const ASSISTANT: [&str; 2] = ["<|start|>", "assistant"];

#[test]
fn x31_harmony_channels_are_kept_apart() {
    let analysis = ["<|channel|>", "analysis", "<|message|>", "hm", "<|end|>"];
    let last = ["<|start|>", "assistant", "<|channel|>", "final", "<|message|>", "four", "<|return|>"];
    let whole = [&analysis[..], &last[..]].concat();
    let outcome = check_channels(&ASSISTANT, &whole, &harmony(), "hm", "four");
    assert_eq!(outcome.finish.map(Finish::reason), Some("stop"));

    let cut = StreamOptions { max_tokens: Some(forced(&vocabulary(), &analysis[..4]).len()), ..harmony() };
    let outcome = check_channels(&ASSISTANT, &whole, &cut, "hm", "");
    assert_eq!(outcome.finish.map(Finish::reason), Some("length"));

    let opened = ["<|start|>", "assistant", "<|channel|>", "analysis", "<|message|>"];
    check_channels(&opened, &[&["hm", "<|end|>"], &last[..]].concat(), &harmony(), "hm", "four");
    // The same letters from other tokens are text.
    let spelled = ["<|channel|>", "final", "<|message|>", "a<|", "end|>b"];
    check_channels(&ASSISTANT, &spelled, &harmony(), "", "a<|end|>b");
    check_channels(&ASSISTANT, &["<|channel|>", "final"], &harmony(), "", "");
}

#[test]
fn x31_commentary_to_a_function_is_a_tool_call() {
    let end = ["<|message|>", "{\"x\": 1}", "<|call|>"];
    let in_channel = ["<|channel|>", "commentary to=functions.get ", "<|constrain|>", "json"];
    let in_role = [" to=functions.get", "<|channel|>", "commentary"];
    for header in [&in_channel[..], &in_role[..]] {
        let outcome = check_channels(&ASSISTANT, &[header, &end].concat(), &harmony(), "", "");
        assert_eq!(outcome.calls, [("get".to_string(), "{\"x\": 1}".to_string())]);
        assert_eq!(outcome.finish.map(Finish::reason), Some("stop"));
    }
    check_channels(&ASSISTANT, &["<|channel|>", "commentary", "<|message|>", "plan"], &harmony(), "", "plan");
}

#[test]
fn x31_stop_strings_are_looked_for_in_the_answer_only() {
    let options = StreamOptions { stops: vec!["hm".into()], ..harmony() };
    let analysis = ["<|channel|>", "analysis", "<|message|>", "hm", "<|end|>"];
    let last = ["<|start|>", "assistant", "<|channel|>", "final", "<|message|>", "so h", "m", "X"];
    let outcome = check_channels(&ASSISTANT, &[&analysis[..], &last[..]].concat(), &options, "hm", "so ");
    assert_eq!(outcome.finish, Some(STOP0));
}

#[test]
fn x31_think_tags_are_kept_apart_whether_tokens_or_text() {
    let think = StreamOptions { channels: ChannelFormat::ThinkTags, ..options() };
    let generated = ["<think>", "\nhm\n", "</think>", "\n\nfour", "<|im_end|>"];
    check_channels(&["hi"], &generated, &think, "hm", "four");
    check_channels(&["hi"], &["<thi", "nk>\nhm", "\n</th", "ink>\n\nfour"], &think, "hm", "four");
    check_channels(&["hi", "<think>", "\n"], &["hm", "</think>", "four"], &think, "hm", "four");
    let cut = StreamOptions { max_tokens: Some(3), ..think };
    check_channels(&["hi"], &["<think>", "hm", "</think>"], &cut, "hm", "");
}

#[test]
fn formats_are_recognised_by_vocabulary_and_template() {
    let plain = Tokenizer::new(&byte_vocabulary("gpt-2", &[], &[])).expect("good vocabulary");
    assert_eq!(ChannelFormat::detect(&plain, None), ChannelFormat::Plain);
    assert_eq!(ChannelFormat::detect(&plain, Some("{{ m.split('</think>') }}")), ChannelFormat::ThinkTags);
    let marked = Tokenizer::new(&vocabulary()).expect("good vocabulary");
    assert_eq!(ChannelFormat::detect(&marked, None), ChannelFormat::Harmony);
}
