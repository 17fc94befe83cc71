//! Splits of every kind worked out by hand from its published expression, and the hand-written scanners against an
//! engine that runs those expressions as they were published, look-ahead included.

use std::sync::LazyLock;

use super::table::KINDS;
use super::*;
use crate::tokenizer::class::Class;
use fancy_regex::Regex as Oracle;
use proptest::prelude::*;

#[track_caller]
fn check(name: &str, text: &str, expected: &[&str]) {
    let pre = PreTokenizer::find(name).expect("in the table");
    let pieces: Vec<&str> = pre.split(text).into_iter().map(|range| &text[range]).collect();
    assert_eq!(pieces, expected, "{name} {text:?}");
}

/// Report R07.
#[test]
fn r07_numbers_contractions_and_white_space() {
    check("llama-bpe", "3333+777", &["333", "3", "+", "777"]);
    check("qwen2", "3333+777", &["3", "3", "3", "3", "+", "7", "7", "7"]);
    check("gpt-2", "3333+777", &["3333", "+", "777"]);
    for name in ["llama-bpe", "qwen2"] {
        check(name, "I'LL  go\n\n  x", &["I", "'LL", " ", " go", "\n\n", " ", " x"]);
    }
    check("gpt-2", "I'LL  go\n\n  x", &["I", "'", "LL", " ", " go", "\n\n ", " x"]);
    check("llama-bpe", "x٣٤٥٦人", &["x", "٣٤٥", "٦", "人"]);
    check("llama-bpe", "👨\u{200D}👩 a", &["👨\u{200D}👩", " a"]);
    check("gpt-2", "人 a½", &["人", " a", "½"]);
}

#[test]
fn splits_worked_out_by_hand() {
    let cases: &[(&str, &str, &[&str])] = &[
        ("smollm", "ab12 3 it's", &["ab", "1", "2", " ", "3", " it", "'s"]),
        ("command-r", "x 12", &["x", " ", "1", "2"]),
        ("glm4", "a!\n\nb 1234", &["a", "!\n\n", "b", " ", "123", "4"]),
        ("dbrx", "1234", &["123", "4"]),
        ("qwen2", "भाषा x", &["भ", "ाष", "ा", " x"]),
        ("qwen35", "भाषा x!12", &["भाषा", " x", "!", "1", "2"]),
        ("gpt-4o", "HelloWorld's 1234 x/\n", &["Hello", "World's", " ", "123", "4", " x", "/\n"]),
        ("gpt-4o", "ABC ABCdef", &["ABC", " ABCdef"]),
        ("llama4", "  x\n y", &[" ", " x", "\n", " y"]),
        ("tekken", "HelloWorld's 12 भाषा", &["Hello", "World", "'s", " ", "1", "2", " भाषा"]),
        ("deepseek-llm", "Hello, world 123\n\nx  ", &["Hello", ",", " world", " ", "123", "\n", "\n", "x", "  "]),
        ("deepseek-llm", "ab你好é", &["ab", "你好", "é"]),
        ("deepseek-coder", "if x:\n  y12", &["if", " x", ":", "\n", " ", " y", "1", "2"]),
        ("deepseek-v3", "Hi 你好, it's 12345\n", &["Hi", " ", "你好", ",", " it", "'s", " ", "123", "45", "\n"]),
        ("falcon", "Price: $12345 it's", &["Price", ":", " ", "$", "123", "45", " it", "'", "s"]),
        ("default", "a: 12345", &["a", ":", " ", "123", "45"]),
        ("bloom", "Hello, world (x)", &["Hello", ",", " world", " (", "x", ")"]),
        ("viking", "ab12. c", &["ab", "1", "2", ".", " c"]),
        ("bailingmoe", "I'LL go\n\nx12", &["I", "'LL", " go", "\n\n", "x", "1", "2"]),
        ("seed-coder", "a!\nb12", &["a", "!", "\n", "b", "1", "2"]),
        ("minicpm5", "1234 I'm", &["123", "4", " I", "'m"]),
        ("exaone-moe", "ab cd  ef", &["ab cd", " ", " ef"]),
        ("youtu", "abc가나123", &["abc", "가나", "1", "2", "3"]),
        ("kimi-k2", "你好World's123a你", &["你好", "World's", "123", "a", "你"]),
        ("tiny_aya", "1234567 x12ab 1234", &["1", "234", "567", " x", "12", "ab", " ", "1", "234"]),
        ("afmoe", "12345 ab1", &["12", "345", " ab", "1"]),
        ("laguna", "a!\nb", &["a", "!", "\n", "b"]),
        ("jais-2", "       x", &["    ", "  ", " x"]),
        ("chameleon", "ab  c1!", &["ab", "  ", "c", "1", "!"]),
        ("gemma4", "a b\n\nc", &["a b", "\n\n", "c"]),
    ];
    for (name, text, expected) in cases {
        check(name, text, expected);
    }
    let untested = KINDS.iter().filter(|kind| {
        let is_in_cases = |name: &&str| cases.iter().any(|case| case.0 == *name);
        !kind.names.iter().any(|name| is_in_cases(name) || ["gpt-2", "llama-bpe", "qwen2", "sarvam-moe"].contains(name))
    });
    assert_eq!(untested.map(|kind| kind.names[0]).collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn names_are_known_once_and_others_are_refused() {
    let names = known_names();
    let mut unique = names.clone();
    unique.dedup();
    assert_eq!(names, unique);
    for name in &names {
        PreTokenizer::find(name).expect("compiles");
    }
    let error = PreTokenizer::find("llama-9").expect_err("unknown").to_string();
    assert!(error.contains("`llama-9`") && error.contains("llama-bpe, llama-v3"), "{error}");
}

/// The pieces by the definition: matches, and what lies between them.
fn oracle_pieces(oracle: &Oracle, text: &str) -> Vec<usize> {
    let mut lengths = Vec::new();
    let mut start = 0;
    for found in oracle.find_iter(text) {
        let found = found.expect("short texts do not exhaust the engine");
        lengths.extend((found.start() > start).then(|| found.start() - start));
        lengths.push(found.end() - found.start());
        start = found.end();
    }
    lengths.extend((start < text.len()).then(|| text.len() - start));
    lengths
}

fn words_expression(word: &str, digits_max: usize) -> Oracle {
    let expression = format!(
        "'[sStTmMdD]|'[rR][eE]|'[vV][eE]|'[lL][lL]|[^\\r\\n\\p{{L}}\\p{{N}}]?[{word}]+|\\p{{N}}{{1,{digits_max}}}\
         | ?[^\\s{word}\\p{{N}}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
    );
    Oracle::new(&expression).expect("compiles")
}

/// Texts of characters at which the expressions decide.
const TEXTS: &str = "[ \t\r\n'sStTlLrReEvVmMdDaZ09½é人ी\u{301}!/$_(\u{A0}\u{85}\u{3000}😀]{0,40}";

/// The hand-written scanners with the expressions that they stand for.
fn scanners() -> Vec<(Ready, Oracle)> {
    let gpt2 = Oracle::new(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+");
    let letters_and_marks = Class::LETTER.or(Class::MARK);
    vec![
        (Ready::Gpt2, gpt2.expect("compiles")),
        (Ready::Words(WordRule { digits_max: 3, word: Class::LETTER }), words_expression(r"\p{L}", 3)),
        (Ready::Words(WordRule { digits_max: 1, word: Class::LETTER }), words_expression(r"\p{L}", 1)),
        (Ready::Words(WordRule { digits_max: 1, word: letters_and_marks }), words_expression(r"\p{L}\p{M}", 1)),
    ]
}

/// All expressions of the table, compiled, with the same written out with their look-ahead. Of Jais 2's ever longer
/// alternatives those for up to 31 characters of white space.
fn expressions() -> Vec<(Ready, Oracle, Tail)> {
    let steps = KINDS.iter().flat_map(|kind| kind.steps);
    let expressions = steps.filter_map(|step| match step {
        Step::Expression(expression, tail) => Some((step, expression, *tail)),
        _ => None,
    });
    let with_oracle = expressions.map(|(step, expression, tail)| {
        let whole = match tail {
            Tail::Gap => expression.to_string(),
            Tail::LeaveLast => format!(r"{expression}|\s+(?!\S)|\s+"),
            Tail::Halving => format!(r"{expression}|\s{{16}}(?!\S)|\s{{8}}(?!\S)|\s{{4}}(?!\S)|\s{{1,2}}(?!\S)|\s"),
        };
        (ready("", step).expect("compiles"), Oracle::new(&whole).expect("compiles"), tail)
    });
    with_oracle.collect()
}

proptest! {
    #[test]
    fn scanners_split_as_the_published_expressions(text in TEXTS) {
        static SCANNERS: LazyLock<Vec<(Ready, Oracle)>> = LazyLock::new(scanners);
        for (step, oracle) in SCANNERS.iter() {
            let mut lengths = Vec::new();
            cut(step, &text, &mut lengths);
            prop_assert_eq!(lengths, oracle_pieces(oracle, &text), "{:?}", step);
        }
    }

    #[test]
    fn expressions_split_as_with_their_look_ahead(text in TEXTS) {
        static EXPRESSIONS: LazyLock<Vec<(Ready, Oracle, Tail)>> = LazyLock::new(expressions);
        let is_short = text.chars().count() < 32;
        for (step, oracle, tail) in EXPRESSIONS.iter().filter(|case| case.2 != Tail::Halving || is_short) {
            let mut lengths = Vec::new();
            cut(step, &text, &mut lengths);
            prop_assert_eq!(lengths, oracle_pieces(oracle, &text), "{:?} {:?}", step, tail);
        }
    }

    #[test]
    fn pieces_together_are_the_text(text: String) {
        static ALL: LazyLock<Vec<PreTokenizer>> =
            LazyLock::new(|| KINDS.iter().map(|kind| PreTokenizer::find(kind.names[0]).expect("known")).collect());
        for pre in ALL.iter() {
            let pieces = pre.split(&text);
            let joined: String = pieces.iter().map(|range| &text[range.clone()]).collect();
            prop_assert_eq!(&joined, &text);
            prop_assert!(pieces.iter().all(|range| !range.is_empty()));
        }
    }
}
