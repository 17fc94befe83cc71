//! Reads a vocabulary out of a GGUF file's metadata. Checks types only; [`super::vocab`] checks what they mean.

use gguf::{ArrayView, Metadata, ValueType};

use super::roles::{FIM_KEYS, SpecialIds};
use super::vocab::VocabData;
use crate::error::{Result, TextError};

/// Names of the fill-in-the-middle keys in old files, in the order of [`FIM_KEYS`].
const FIM_KEYS_OLD: [&str; 3] = ["prefix", "suffix", "middle"];

impl VocabData {
    /// The vocabulary that `metadata` describes.
    ///
    /// # Errors
    /// `tokenizer.ggml.model` or `.tokens` is missing, or a key has another type than its meaning allows.
    pub fn from_metadata(metadata: Metadata<'_>) -> Result<VocabData> {
        let model = metadata.opt_str("tokenizer.ggml.model")?.ok_or_else(|| TextError::MissingKey {
            key: "tokenizer.ggml.model".into(),
            why: "it names the tokenizer's algorithm",
        })?;
        let tokens = metadata.opt_array("tokenizer.ggml.tokens")?.ok_or_else(|| TextError::MissingKey {
            key: "tokenizer.ggml.tokens".into(),
            why: "it is the vocabulary",
        })?;
        let strings = |view: ArrayView<'_>| -> Result<Vec<Vec<u8>>> { Ok(view.iter_bytes()?.map(Vec::from).collect()) };
        let merges = metadata.opt_array("tokenizer.ggml.merges")?.map(strings).transpose()?;
        let types = metadata.opt_array("tokenizer.ggml.token_type")?;
        let types = types.map(|view| -> Result<Vec<i32>> { Ok(view.iter_i32()?.collect()) }).transpose()?;
        Ok(VocabData {
            model: model.into(),
            pre: metadata.opt_str("tokenizer.ggml.pre")?.map(String::from),
            tokens: strings(tokens)?,
            types: types.unwrap_or_default(),
            scores: metadata.opt_array("tokenizer.ggml.scores")?.map(scores).transpose()?.unwrap_or_default(),
            merges: merges.unwrap_or_default(),
            special: special_ids(metadata)?,
            add_bos: metadata.opt_bool("tokenizer.ggml.add_bos_token")?,
            add_eos: metadata.opt_bool("tokenizer.ggml.add_eos_token")?,
            add_space_prefix: metadata.opt_bool("tokenizer.ggml.add_space_prefix")?,
            model_name: metadata.opt_str("general.name")?.map(String::from),
        })
    }
}

/// Some converters write scores as integers.
fn scores(view: ArrayView<'_>) -> Result<Vec<f32>> {
    if matches!(view.element(), ValueType::F32 | ValueType::F64) {
        return Ok(view.iter_f32()?.collect());
    }
    Ok(view.iter_i32()?.map(|score| score as f32).collect())
}

fn special_ids(metadata: Metadata<'_>) -> Result<SpecialIds> {
    let id = |name: &str| metadata.opt_u64(&format!("tokenizer.ggml.{name}_token_id"));
    let mut fim = [None; 6];
    for (slot, name) in fim.iter_mut().zip(FIM_KEYS) {
        *slot = id(name)?;
    }
    for (slot, name) in fim.iter_mut().zip(FIM_KEYS_OLD) {
        *slot = slot.or(id(name)?);
    }
    Ok(SpecialIds {
        bos: id("bos")?,
        eos: id("eos")?,
        eot: id("eot")?,
        eom: id("eom")?,
        unknown: id("unknown")?,
        separator: id("seperator")?, // spelt so in GGUF
        padding: id("padding")?,
        mask: id("mask")?,
        fim,
    })
}
