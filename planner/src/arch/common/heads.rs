//! How many attention heads of which size a model has. architectures: head dimension.

use super::Lowering;
use crate::arch::LowerError;

/// Attention heads, the same in all layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub q: u32,
    /// Key/value heads.
    pub kv: u32,
    /// Columns of a query or key head.
    pub k_cols: u32,
    /// Columns of a value head.
    pub v_cols: u32,
    /// Columns of all query heads.
    pub q_all: u32,
    /// Columns of all key heads.
    pub k_all: u32,
    /// Columns of all value heads.
    pub v_all: u32,
    /// Columns of the attention's result.
    pub out_all: u32,
}

impl Heads {
    /// Reads `A.attention.{head_count, head_count_kv, key_length, value_length}`; a head without explicit length has
    /// `embedding_length / head_count` columns.
    pub fn read(lowering: &Lowering<'_>) -> Result<Self, LowerError> {
        let source = &lowering.source;
        let q = source.u32_of_all("attention.head_count", 1..=65536)?;
        let kv = match source.has_key("attention.head_count_kv") {
            true => source.u32_of_all("attention.head_count_kv", 1..=q)?,
            false => q,
        };
        if !q.is_multiple_of(kv) {
            return Err(source.refuse("attention.head_count_kv", kv, format!("a divisor of the {q} query heads")));
        }
        let k_cols = head_cols(lowering, "attention.key_length", q)?;
        let v_cols = head_cols(lowering, "attention.value_length", q)?;
        Ok(Heads {
            q,
            kv,
            k_cols,
            v_cols,
            q_all: lowering.cols(q, k_cols, "attention.key_length")?,
            k_all: lowering.cols(kv, k_cols, "attention.key_length")?,
            v_all: lowering.cols(kv, v_cols, "attention.value_length")?,
            out_all: lowering.cols(q, v_cols, "attention.value_length")?,
        })
    }
}

fn head_cols(lowering: &Lowering<'_>, key: &str, heads: u32) -> Result<u32, LowerError> {
    if let Some(explicit) = lowering.source.opt_u32(key, 1..=65536)? {
        return Ok(explicit);
    }
    let hidden = lowering.hidden;
    if hidden.is_multiple_of(heads) {
        return Ok(hidden / heads);
    }
    let accepted = format!("a divisor of embedding_length {hidden}, or an explicit {}", lowering.source.key(key));
    Err(lowering.source.refuse("attention.head_count", heads, accepted))
}
