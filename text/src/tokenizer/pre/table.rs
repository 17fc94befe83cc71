//! The table of pre-tokenizers: names, steps, and the rules that go with them.
//!
//! The expressions are the published ones, with `(?i:'s|…)` written for ASCII letters only, as the reference reads it,
//! and without the final `\s+(?!\S)|\s+`, which is a [`Tail`]. Adding a kind means adding a row here and its splits to
//! the table in `tests.rs`.

use super::WholePieces;
use super::scan::{Bounded, WordRule, leave_last};
use crate::tokenizer::class::Class;
use crate::tokenizer::vocab::Spelling;

/// One way to cut a text.
#[derive(Debug)]
pub enum Step {
    /// GPT-2's expression.
    Gpt2,
    /// The expression of llama 3 and its relatives.
    Words(WordRule),
    /// Numbers in groups of three from the right.
    DigitGroups(Bounded),
    /// Line ends apart from everything else.
    LineRuns,
    /// A published expression up to its white space rule.
    Expression(&'static str, Tail),
}

/// What an expression does with white space that its other alternatives leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tail {
    /// Nothing: it stays with the text that does not match.
    Gap,
    /// `\s+(?!\S)|\s+`: a run leaves its last character to what follows it.
    LeaveLast,
    /// `\s{512}(?!\S)|\s{256}(?!\S)|…|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}` (Jais 2).
    Halving,
}

impl Tail {
    /// How much of the white space of `len` bytes at the start of `text` is the next piece.
    pub fn piece_of(self, text: &str, len: usize) -> usize {
        let whole = leave_last(text, len);
        if self != Tail::Halving {
            return whole;
        }
        let chars = text[..whole].chars().count();
        let sizes = [512, 256, 128, 64, 32, 16, 8, 4, 2, 1];
        let size = sizes.into_iter().find(|&size| size <= chars).unwrap_or(1);
        text.chars().take(size).map(char::len_utf8).sum()
    }
}

/// One row: a kind with all its names.
#[derive(Debug)]
pub struct Kind {
    /// The values of `tokenizer.ggml.pre` that mean it.
    pub names: &'static [&'static str],
    /// How texts are cut.
    pub steps: &'static [Step],
    /// Whether whole pieces are looked up.
    pub whole_pieces: WholePieces,
    /// Whether texts begin with BOS where `tokenizer.ggml.add_bos_token` is absent.
    pub adds_bos: bool,
    /// How the vocabulary is written.
    pub spelling: Spelling,
}

/// A kind whose rules are the usual ones.
const fn plain(names: &'static [&'static str], steps: &'static [Step]) -> Kind {
    Kind { names, steps, whole_pieces: WholePieces::Merged, adds_bos: false, spelling: Spelling::ByteLevel }
}

/// As [`plain`], with whole pieces looked up first.
const fn looked_up(names: &'static [&'static str], steps: &'static [Step]) -> Kind {
    Kind { whole_pieces: WholePieces::LookedUp, ..plain(names, steps) }
}

const LETTERS: Class = Class::LETTER;
const LLAMA3: Step = Step::Words(WordRule { digits_max: 3, word: LETTERS });
const QWEN2: Step = Step::Words(WordRule { digits_max: 1, word: LETTERS });
const QWEN35: Step = Step::Words(WordRule { digits_max: 1, word: Class::LETTER.or(Class::MARK) });
const EACH_DIGIT: Step = Step::Expression(r"\p{N}", Tail::Gap);
const THREE_DIGITS: Step = Step::Expression(r"\p{N}{1,3}", Tail::Gap);
const CJK: Step = Step::Expression(r"[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+", Tail::Gap);
const LINE_ENDS: Step = Step::Expression(r"[\r\n]", Tail::Gap);
const HAN_HANGUL: Step = Step::Expression(r"[\u{4E00}-\u{9FA5}\u{800}-\u{4E00}\u{AC00}-\u{D7FF}]+", Tail::Gap);

/// The main expression of DeepSeek V3.
const DEEPSEEK3: Step = Step::Expression(
    concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
        r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+"
    ),
    Tail::LeaveLast,
);

/// GPT-4o's expression as the reference runs it: marks are no part of words, and letters past ASCII are both cases.
const GPT4O: Step = Step::Expression(
    concat!(
        r"[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]*[\p{L}&&[^A-Z]]+(?:'[sStTmMdD]|'[rR][eE]|'[vV][eE]|'[lL][lL])?",
        r"|[^\r\n\p{L}\p{N}]?[\p{L}&&[^a-z]]+[\p{L}&&[^A-Z]]*(?:'[sStTmMdD]|'[rR][eE]|'[vV][eE]|'[lL][lL])?",
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
    ),
    Tail::LeaveLast,
);

/// GPT-4o's expression as published.
const CASED_WORDS: Step = Step::Expression(
    concat!(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
        r"(?:'[sStTmMdD]|'[rR][eE]|'[vV][eE]|'[lL][lL])?",
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
        r"(?:'[sStTmMdD]|'[rR][eE]|'[vV][eE]|'[lL][lL])?",
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
    ),
    Tail::LeaveLast,
);

/// Mistral's: GPT-4o's without contractions, digits one by one.
const TEKKEN: Step = Step::Expression(
    concat!(
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
        r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
    ),
    Tail::LeaveLast,
);

/// Kimi K2: runs of Han, then GPT-4o's words without Han.
const KIMI: Step = Step::Expression(
    concat!(
        r"\p{Han}+",
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+",
        r"(?:'[sStTmMdD]|'[rR][eE]|'[vV][eE]|'[lL][lL])?",
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*",
        r"(?:'[sStTmMdD]|'[rR][eE]|'[vV][eE]|'[lL][lL])?",
        r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    ),
    Tail::LeaveLast,
);

/// The letters of DeepSeek LLM's expression: Latin, Greek, Cyrillic, Armenian, Georgian and their like.
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[A-Za-z\u{B5}\u{C0}-\u{D6}\u{D8}-\u{F6}\u{F8}-\u{1BA}\u{1BC}-\u{1BF}\u{1C4}-\u{293}\u{295}-\u{2AF}",
    r"\u{370}-\u{373}\u{376}\u{377}\u{37B}-\u{37D}\u{37F}\u{386}\u{388}-\u{38A}\u{38C}\u{38E}-\u{3A1}",
    r"\u{3A3}-\u{3F5}\u{3F7}-\u{481}\u{48A}-\u{52F}\u{531}-\u{556}\u{10A0}-\u{10C5}\u{13A0}-\u{13F5}",
    r"\u{13F8}-\u{13FD}\u{1C90}-\u{1CBA}\u{1CBD}-\u{1CBF}\u{1D00}-\u{1D2B}\u{1D6B}-\u{1D77}\u{1D79}-\u{1D9A}",
    r"\u{1E00}-\u{1F15}\u{1F18}-\u{1F1D}\u{1F20}-\u{1F45}\u{1F48}-\u{1F4D}\u{1F50}-\u{1F57}\u{1F59}\u{1F5B}",
    r"\u{1F5D}\u{1F5F}-\u{1F7D}\u{1F80}-\u{1FB4}\u{1FB6}-\u{1FBC}\u{1FBE}\u{1FC2}-\u{1FC4}\u{1FC6}-\u{1FCC}",
    r"\u{1FD0}-\u{1FD3}\u{1FD6}-\u{1FDB}\u{1FE0}-\u{1FEC}\u{1FF2}-\u{1FF4}\u{1FF6}-\u{1FFC}\u{2102}\u{2107}",
    r"\u{210A}-\u{2113}\u{2115}\u{2119}-\u{211D}\u{2124}\u{2126}\u{2128}\u{212A}-\u{212D}\u{212F}-\u{2134}",
    r"\u{2139}\u{213C}-\u{213F}\u{2145}-\u{2149}\u{214E}\u{2183}\u{2184}\u{2C00}-\u{2C7B}\u{2C7E}-\u{2CE4}",
    r"\u{2CEB}-\u{2CEE}\u{2CF2}\u{2CF3}\u{A640}-\u{A66D}\u{A680}-\u{A69B}\u{A722}-\u{A76F}\u{A771}-\u{A787}",
    r"\u{A78B}-\u{A78E}\u{AB70}-\u{ABBF}\u{FB00}-\u{FB06}\u{FB13}-\u{FB17}\u{FF21}-\u{FF3A}\u{FF41}-\u{FF5A}",
    r"\u{10400}-\u{1044F}\u{104B0}-\u{104D3}\u{104D8}-\u{104FB}\u{10C80}-\u{10CB2}\u{10CC0}-\u{10CF2}",
    r"\u{118A0}-\u{118DF}\u{1E900}-\u{1E943}]+"
);

/// All kinds.
pub const KINDS: &[Kind] = &[
    plain(
        &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
            "gigachat",
            "a.x-4.0",
            "mellum",
        ],
        &[Step::Gpt2],
    ),
    plain(
        &["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[EACH_DIGIT, Step::Gpt2],
    ),
    Kind {
        adds_bos: true,
        ..looked_up(
            &["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"],
            &[LLAMA3],
        )
    },
    plain(&["dbrx", "smaug-bpe", "chatglm-bpe"], &[LLAMA3]),
    looked_up(&["glm4", "glm5"], &[LLAMA3]),
    plain(&["qwen2", "deepseek-r1-qwen", "kormo", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"], &[QWEN2]),
    plain(&["qwen35"], &[QWEN35]),
    plain(&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], &[GPT4O]),
    Kind { adds_bos: true, ..looked_up(&["tekken"], &[TEKKEN]) },
    plain(
        &["deepseek-llm"],
        &[
            LINE_ENDS,
            Step::Expression(DEEPSEEK_LETTERS, Tail::Gap),
            Step::Expression(
                r"\s?[!-/:-~\u{FF01}-\u{FF0F}\u{FF1A}-\u{FF5E}\u{2018}-\u{201F}\u{3000}-\u{3002}]+",
                Tail::Gap,
            ),
            Step::Expression(r"\s+$", Tail::Gap),
            HAN_HANGUL,
            Step::Expression(r"\p{N}+", Tail::Gap),
        ],
    ),
    plain(
        &["deepseek-coder"],
        &[
            LINE_ENDS,
            Step::Expression(r"\s?\p{L}+", Tail::Gap),
            Step::Expression(r"\s?\p{P}+", Tail::Gap),
            HAN_HANGUL,
            EACH_DIGIT,
        ],
    ),
    plain(&["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], &[THREE_DIGITS, CJK, DEEPSEEK3]),
    plain(
        &["falcon"],
        &[
            Step::Expression(r"[\p{P}\$\+<=>\^~\|`]+", Tail::Gap),
            Step::Gpt2,
            Step::Expression("[0-9][0-9][0-9]", Tail::Gap),
        ],
    ),
    plain(
        &["default"],
        &[
            Step::Expression(r"[\p{P}\$\+<=>\^~\|]+", Tail::Gap),
            Step::Gpt2,
            Step::Expression(r"\p{N}+", Tail::Gap),
            Step::Expression("[0-9][0-9][0-9]", Tail::Gap),
        ],
    ),
    plain(
        &["bloom", "poro-chat", "gpt3-finnish"],
        &[Step::Expression(r" ?[^(\s|.,!?\u{2026}\u{3002}\u{FF0C}\u{3001}\u{964}\u{6D4}\u{60C})]+", Tail::Gap)],
    ),
    plain(
        &["viking"],
        &[
            Step::Expression(r" ?[^(\s|.,!?\u{2026}\u{3002}\u{FF0C}\u{3001}\u{964}\u{6D4}\u{60C})]+", Tail::Gap),
            EACH_DIGIT,
        ],
    ),
    plain(
        &["bailingmoe", "bailingmoe2", "llada-moe"],
        &[Step::Expression(
            concat!(
                r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
                r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]"
            ),
            Tail::LeaveLast,
        )],
    ),
    plain(
        &["seed-coder"],
        &[Step::Expression(
            concat!(
                r"'[sStTmMdD]|'[rR][eE]|'[vV][eE]|'[lL][lL]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
                r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+"
            ),
            Tail::LeaveLast,
        )],
    ),
    looked_up(
        &["minicpm5"],
        &[
            THREE_DIGITS,
            Step::Expression(
                concat!(
                    r"'[sStTmMdD]|'[rR][eE]|'[vV][eE]|'[lL][lL]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+",
                    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
                ),
                Tail::LeaveLast,
            ),
        ],
    ),
    plain(
        &["exaone-moe"],
        &[Step::Expression(
            concat!(
                r"'[sStTmMdD]|'[rR][eE]|'[vV][eE]|'[lL][lL]|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+",
                r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]"
            ),
            Tail::LeaveLast,
        )],
    ),
    looked_up(
        &["youtu"],
        &[
            Step::Expression(
                concat!(
                    r"[\u{AC00}-\u{D7A3}\u{3131}-\u{318E}]+|[\u{FF01}\u{2026}\u{201C}\u{201D}\u{2018}\u{2019}\u{2014}",
                    r"\u{FF1A}\u{FF1B}\u{FF0C}\u{3001}-\u{303F}\u{FE30}-\u{FE4F}]+|[\u{3105}-\u{312F}]+",
                    r"|[\u{4E00}-\u{9FA5}\u{3040}-\u{309F}\u{30A0}-\u{30FF}]+"
                ),
                Tail::Gap,
            ),
            Step::Expression(
                concat!(
                    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
                    r"(?:'[sStTmMdD]|'[rR][eE]|'[vV][eE]|'[lL][lL])?",
                    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
                    r"(?:'[sStTmMdD]|'[rR][eE]|'[vV][eE]|'[lL][lL])?",
                    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
                ),
                Tail::LeaveLast,
            ),
        ],
    ),
    plain(&["kimi-k2"], &[KIMI]),
    plain(&["tiny_aya", "cohere2moe"], &[Step::DigitGroups(Bounded::Yes), CASED_WORDS]),
    plain(
        &["afmoe"],
        &[
            Step::DigitGroups(Bounded::No),
            Step::Expression(
                concat!(
                    r"[\u{4E00}-\u{9FFF}\u{3400}-\u{4DBF}\u{F900}-\u{FAFF}\u{3040}-\u{309F}\u{30A0}-\u{30FF}",
                    r"\u{FF65}-\u{FF9F}\u{2F00}-\u{2FDF}\u{E40}-\u{E7F}\u{E80}-\u{EFF}\u{1780}-\u{17FF}",
                    r"\u{1000}-\u{109F}\u{AA60}-\u{AA7F}\u{A9E0}-\u{A9FF}\u{AC00}-\u{D7AF}\u{1100}-\u{11FF}]+"
                ),
                Tail::Gap,
            ),
            DEEPSEEK3,
        ],
    ),
    plain(&["laguna"], &[Step::LineRuns, QWEN2]),
    plain(
        &["jais-2"],
        &[Step::Expression(
            concat!(
                r"'[sStTmMdD]|'[rR][eE]|'[vV][eE]|'[lL][lL]|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
                r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
            ),
            Tail::Halving,
        )],
    ),
    Kind {
        adds_bos: true,
        ..plain(
            &["chameleon"],
            &[
                Step::Expression("<sentinel:[0-9]+>", Tail::Gap),
                Step::Expression("IMGIMG[A-I]{1,4}Z", Tail::Gap),
                Step::Expression(r"[\t\n]|    |  ", Tail::Gap),
                EACH_DIGIT,
                Step::Expression(r"[\p{P}!-/:-@\[-`{-~]", Tail::Gap),
                Step::Gpt2,
            ],
        )
    },
    Kind {
        whole_pieces: WholePieces::LookedUpIfLineEnds,
        adds_bos: true,
        spelling: Spelling::Escaped,
        ..plain(&["gemma4"], &[Step::LineRuns])
    },
    Kind { spelling: Spelling::Escaped, ..plain(&["sarvam-moe"], &[Step::LineRuns]) },
];
