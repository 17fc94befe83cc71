//! Which tokens begin and end texts, and which change type because of their text.
//!
//! Files rarely say which tokens end a turn, and some mark control tokens as ordinary ones, so known texts decide where
//! the file is silent, by the reference's rules. Where several tokens have texts of one role, the first of the list
//! below gets it (the reference takes any of them). Next file: [`super::special`].

use super::vocab::{TokenAttributes, VocabData};
use super::{FastMap, TokenId};
use crate::error::{Result, TextError};

/// Special ids as `tokenizer.ggml.*_token_id` states them; `None` where the key is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialIds {
    /// Begin of text.
    pub bos: Option<u64>,
    /// End of text.
    pub eos: Option<u64>,
    /// End of turn.
    pub eot: Option<u64>,
    /// End of message (a tool call follows).
    pub eom: Option<u64>,
    /// Text that is no token.
    pub unknown: Option<u64>,
    /// Separator.
    pub separator: Option<u64>,
    /// Padding.
    pub padding: Option<u64>,
    /// Mask.
    pub mask: Option<u64>,
    /// Fill-in-the-middle: prefix, suffix, middle, padding, repository, file separator.
    pub fim: [Option<u64>; 6],
}

/// Key names of [`SpecialIds::fim`], in its order.
pub const FIM_KEYS: [&str; 6] = ["fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep"];

/// What [`assign`] found.
#[derive(Clone, Debug, Default)]
pub struct Roles {
    pub bos: Option<TokenId>,
    pub eos: Option<TokenId>,
    pub eot: Option<TokenId>,
    pub unknown: Option<TokenId>,
    pub padding: Option<TokenId>,
    /// Harmony's markers that were made user-defined tokens.
    pub harmony: Vec<TokenId>,
    /// All tokens that end a generation, ascending.
    pub end_of_generation: Vec<TokenId>,
}

/// Texts that end a turn, tried in this order if the file names no such token.
const EOT_TEXTS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
];

const EOM_TEXTS: &[&str] = &["<|eom_id|>"];

/// Texts of the fill-in-the-middle roles, in the order of [`FIM_KEYS`].
const FIM_TEXTS: [&[&str]; 6] = [
    &[
        "<|fim_prefix|>",
        "<fim-prefix>",
        "<fim_prefix>",
        "<｜fim▁begin｜>",
        "<PRE>",
        "▁<PRE>",
        "<|code_prefix|>",
        "<|prefix|>",
    ],
    &[
        "<|fim_suffix|>",
        "<fim-suffix>",
        "<fim_suffix>",
        "<｜fim▁hole｜>",
        "<SUF>",
        "▁<SUF>",
        "<|code_suffix|>",
        "<|suffix|>",
    ],
    &[
        "<|fim_middle|>",
        "<fim-middle>",
        "<fim_middle>",
        "<｜fim▁end｜>",
        "<MID>",
        "▁<MID>",
        "<|code_middle|>",
        "<|middle|>",
    ],
    &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
    &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
    &["<|file_sep|>"],
];

/// Texts that end a generation wherever they are in a vocabulary.
const END_TEXTS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Harmony's structure, which is always read and shown.
const HARMONY_TEXTS: &[&str] = &["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

type Index = FastMap<Box<[u8]>, u32>;

/// Finds all roles and corrects `attributes` by text.
pub fn assign(
    data: &VocabData,
    by_text: &Index,
    texts: &[Vec<u8>],
    attributes: &mut [TokenAttributes],
) -> Result<Roles> {
    let stated = Stated::check(data, texts.len())?;
    let mut finder = Finder { by_text, attributes };
    let eot = stated.eot.or_else(|| finder.first_of(EOT_TEXTS));
    let eom = stated.eom.or_else(|| finder.first_of(EOM_TEXTS));
    let mut fim = stated.fim;
    for (role, candidates) in fim.iter_mut().zip(FIM_TEXTS) {
        *role = role.or_else(|| finder.first_of(candidates));
    }
    finder.mark_unused(texts);
    let mut ends: Vec<u32> = fim[3..].iter().copied().flatten().collect();
    ends.extend(END_TEXTS.iter().filter_map(|text| finder.control(text)));
    let mut harmony: Vec<u32> = HARMONY_TEXTS.iter().filter_map(|text| finder.find(text)).collect();
    for &id in &harmony {
        finder.attributes[id as usize] = TokenAttributes::USER_DEFINED;
    }
    let (bos, eos, unknown) = finder.text_ends(data, &stated);
    ends.extend([eos, eot, eom].into_iter().flatten());
    harmony.extend(finder.take_back_ends(&mut ends));
    ends.sort_unstable();
    ends.dedup();
    Ok(Roles {
        bos: bos.map(TokenId),
        eos: eos.map(TokenId),
        eot: eot.map(TokenId),
        unknown: unknown.map(TokenId),
        padding: stated.padding.map(TokenId),
        harmony: harmony.into_iter().map(TokenId).collect(),
        end_of_generation: ends.into_iter().map(TokenId).collect(),
    })
}

/// Phi-3 files: white space after a marker is part of it, but not after the tokens of plain text.
pub fn strip_white_space(data: &VocabData, by_text: &Index, attributes: &mut [TokenAttributes]) {
    let name = data.model_name.as_deref().unwrap_or_default().to_lowercase();
    if !name.contains("phi-3") && !name.contains("phi3") {
        return;
    }
    let markers = TokenAttributes::CONTROL.or(TokenAttributes::USER_DEFINED).or(TokenAttributes::UNKNOWN);
    for set in attributes.iter_mut().filter(|set| set.meets(markers)) {
        *set = set.or(TokenAttributes::STRIPS_RIGHT);
    }
    for text in ["<unk>", "<s>", "<|endoftext|>"] {
        if let Some(&id) = by_text.get(text.as_bytes()) {
            attributes[id as usize] = attributes[id as usize].without(TokenAttributes::STRIPS_RIGHT);
        }
    }
}

/// [`SpecialIds`] after the range check.
struct Stated {
    bos: Option<u32>,
    eos: Option<u32>,
    eot: Option<u32>,
    eom: Option<u32>,
    unknown: Option<u32>,
    padding: Option<u32>,
    fim: [Option<u32>; 6],
}

impl Stated {
    fn check(data: &VocabData, vocab_tokens: usize) -> Result<Stated> {
        let checked = |name: &str, id: Option<u64>| match id {
            Some(id) if id >= vocab_tokens as u64 => {
                let key = format!("tokenizer.ggml.{name}_token_id");
                Err(TextError::SpecialOutOfRange { key, id, vocab_tokens })
            }
            id => Ok(id.map(|id| id as u32)),
        };
        let ids = &data.special;
        checked("seperator", ids.separator)?;
        checked("mask", ids.mask)?;
        let mut fim = [None; 6];
        for ((slot, id), name) in fim.iter_mut().zip(ids.fim).zip(FIM_KEYS) {
            *slot = checked(name, id)?;
        }
        Ok(Stated {
            bos: checked("bos", ids.bos)?,
            eos: checked("eos", ids.eos)?,
            eot: checked("eot", ids.eot)?,
            eom: checked("eom", ids.eom)?,
            unknown: checked("unknown", ids.unknown)?,
            padding: checked("padding", ids.padding)?,
            fim,
        })
    }
}

struct Finder<'a> {
    by_text: &'a Index,
    attributes: &'a mut [TokenAttributes],
}

impl Finder<'_> {
    fn find(&self, text: &str) -> Option<u32> {
        self.by_text.get(text.as_bytes()).copied()
    }

    /// The token of this text, made a control token.
    fn control(&mut self, text: &str) -> Option<u32> {
        let id = self.find(text)?;
        let set = &mut self.attributes[id as usize];
        *set = set.or(TokenAttributes::CONTROL);
        Some(id)
    }

    fn first_of(&mut self, texts: &[&str]) -> Option<u32> {
        texts.iter().find_map(|text| self.control(text))
    }

    /// Control tokens with the word "unused" in their text are place holders.
    fn mark_unused(&mut self, texts: &[Vec<u8>]) {
        let is_unused = |text: &[u8]| text.windows(6).any(|part| part == b"unused");
        for (set, text) in self.attributes.iter_mut().zip(texts) {
            if set.meets(TokenAttributes::CONTROL) && is_unused(text) {
                *set = set.or(TokenAttributes::UNUSED);
            }
        }
    }

    /// Begin, end and unknown token. SPM files that name none mean SentencePiece's own, if they are there; for BPE an
    /// absent key means that there is none.
    fn text_ends(&self, data: &VocabData, stated: &Stated) -> (Option<u32>, Option<u32>, Option<u32>) {
        let by_convention = |text: &str| if data.model == "llama" { self.find(text) } else { None };
        (
            stated.bos.or_else(|| by_convention("<s>")),
            stated.eos.or_else(|| by_convention("</s>")),
            stated.unknown.or_else(|| by_convention("<unk>")),
        )
    }

    /// Harmony and Solar end a message, not the turn, with `<|end|>`, which is returned if so; Gemma 4 and PLaMo have
    /// `</s>` as a plain word.
    fn take_back_ends(&mut self, ends: &mut Vec<u32>) -> Option<u32> {
        let has = |ends: &[u32], text: &str| self.find(text).is_some_and(|id| ends.contains(&id));
        let calls = has(ends, "<|call|>") || has(ends, "<|calls|>");
        let in_harmony = calls && (has(ends, "<|return|>") || has(ends, "<|flush|>"));
        let s_is_plain = has(ends, "<|tool_response>") || has(ends, "<|plamo:eos|>");
        let end_of_message = self.find("<|end|>").filter(|id| in_harmony && ends.contains(id));
        let plain_word = self.find("</s>").filter(|id| s_is_plain && ends.contains(id));
        for (id, becomes) in [(end_of_message, TokenAttributes::USER_DEFINED), (plain_word, TokenAttributes::NORMAL)] {
            if let Some(id) = id {
                ends.retain(|&end| end != id);
                self.attributes[id as usize] = becomes;
            }
        }
        end_of_message
    }
}
