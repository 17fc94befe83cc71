//! Building blocks of all families. This file: the lowering's state and the smallest blocks (norm, product, residual).
//! Bigger ones: `ends.rs` (embedding, head), `attention.rs`, `rope.rs`, `ffn.rs`, `moe.rs`,
//! `delta.rs` (linear attention).

mod attention;
mod delta;
mod ends;
mod ffn;
mod heads;
mod moe;
mod rope;

pub use attention::{AttentionSpec, HeadNorms, PositionScale, Qkv, Sinks};
pub use delta::{DeltaSpec, Gates};
pub use ffn::{FfnSpec, GateUp};
pub use heads::Heads;
pub use moe::{MoeSpec, SharedExperts, SharedGate, WeighedAt};
pub use rope::{Factors, Scaling};

use super::LowerError;
use super::source::{MAX_BLOCKS, Source, Use};
use crate::graph::{Builder, Graph};
use plan_format::WeightId;
use plan_format::program::{MatMulPart, OpKind, View, WeightRole};

/// Most columns of an activation that lowering makes; the verifier's limit.
const MAX_COLS: u32 = plan_format::verify::MAX_COLS;

/// A model under lowering: its keys and tensors, the graph so far, and the figures that every family has.
#[derive(Debug)]
pub struct Lowering<'m> {
    /// Keys and tensors.
    pub source: Source<'m>,
    /// The graph so far.
    pub graph: Builder,
    /// Layers of the main model (draft heads not counted).
    pub layers: u32,
    /// `A.embedding_length`: columns of the residual stream.
    pub hidden: u32,
    /// `A.attention.layer_norm_rms_epsilon`.
    pub eps: f32,
    /// Rows of the embedding table.
    vocab: u32,
}

/// Whether a product must have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bias {
    /// Used where the file has one.
    IfPresent,
    /// The family always has one.
    Required,
}

impl<'m> Lowering<'m> {
    /// Reads what all families have.
    pub fn new(model: &'m gguf::Model, architecture: &'m str) -> Result<Self, LowerError> {
        let source = Source::new(model, architecture);
        let hidden = source.u32("embedding_length", 1..=1 << 20)?;
        let context_tokens = source.u32("context_length", 1..=u32::MAX)?;
        let blocks = source.u32("block_count", 1..=MAX_BLOCKS)?;
        let drafts = source.opt_u32("nextn_predict_layers", 0..=blocks - 1)?.unwrap_or(0);
        let eps = source.positive("attention.layer_norm_rms_epsilon")?;
        let vocab = source.peek("token_embd.weight")?.dims[1];
        let vocab = u32::try_from(vocab).ok().filter(|rows| *rows <= MAX_COLS);
        let vocab = vocab.ok_or_else(|| LowerError::Shape {
            tensor: "token_embd.weight".to_owned(),
            found: source.peek("token_embd.weight").map_or(Vec::new(), |info| info.shape().to_vec()),
            expected: vec![u64::from(hidden), u64::from(MAX_COLS)],
        })?;
        let graph = Builder::new(architecture, vocab, context_tokens);
        Ok(Lowering { source, graph, layers: blocks - drafts, hidden, eps, vocab })
    }

    /// The graph, once every tensor of the file was used.
    pub fn finish(self, logits: View) -> Result<Graph, LowerError> {
        self.source.all_used(self.layers)?;
        Ok(self.graph.finish(logits))
    }

    /// A vector or filter that is on every device, of a shape without trailing ones.
    pub fn small(&mut self, tensor: &str, shape: &[u32]) -> Result<WeightId, LowerError> {
        Ok(self.graph.weight(self.source.tensor(tensor, shape, Use::Small)?, WeightRole::Small))
    }

    /// The same if it is in the file.
    pub fn opt_small(&mut self, tensor: &str, shape: &[u32]) -> Result<Option<WeightId>, LowerError> {
        let found = self.source.opt_tensor(tensor, shape, Use::Small)?;
        Ok(found.map(|tensor| self.graph.weight(tensor, WeightRole::Small)))
    }

    /// A matrix or a stack of them.
    pub fn large(&mut self, tensor: &str, shape: &[u32], role: WeightRole) -> Result<WeightId, LowerError> {
        Ok(self.graph.weight(self.source.tensor(tensor, shape, Use::Matrix)?, role))
    }

    /// RMS norm of each `group` columns with the weight `name.weight` {group}; the result has the name of the weight.
    pub fn norm(&mut self, name: &str, x: View, group: u32) -> Result<View, LowerError> {
        let weight = self.small(&format!("{name}.weight"), &[group])?;
        let out = self.graph.value(name.to_owned(), x.cols);
        self.graph.op(OpKind::RmsNorm { x, group, weight: Some(weight), eps: self.eps, out });
        Ok(out)
    }

    /// RMS norm of each `group` columns without weights.
    pub fn norm_unweighted(&mut self, name: String, x: View, group: u32) -> View {
        let out = self.graph.value(name, x.cols);
        self.graph.op(OpKind::RmsNorm { x, group, weight: None, eps: self.eps, out });
        out
    }

    /// One product `name` of `in_cols` to `out_cols` for a fused group: `name.weight` and perhaps `name.bias`.
    pub fn product(&mut self, name: &str, in_cols: u32, out_cols: u32, bias: Bias) -> Result<MatMulPart, LowerError> {
        let weight = self.large(&format!("{name}.weight"), &[in_cols, out_cols], WeightRole::Matrix)?;
        let bias_name = format!("{name}.bias");
        let bias = match bias {
            Bias::IfPresent => self.opt_small(&bias_name, &[out_cols])?,
            Bias::Required => Some(self.small(&bias_name, &[out_cols])?),
        };
        Ok(MatMulPart { weight, bias, out: self.graph.value(name.to_owned(), out_cols) })
    }

    /// A single product.
    pub fn mat_mul(&mut self, name: &str, x: View, out_cols: u32, bias: Bias) -> Result<View, LowerError> {
        let part = self.product(name, x.cols, out_cols, bias)?;
        self.graph.op(OpKind::MatMul { x, parts: vec![part] });
        Ok(part.out)
    }

    /// `residual + branch`, with the branch normalised first where the family has such a norm.
    pub fn add_to_residual(
        &mut self,
        name: String,
        residual: View,
        branch: View,
        post_norm: Option<String>,
    ) -> Result<View, LowerError> {
        let branch = match post_norm {
            Some(norm) => self.norm(&norm, branch, branch.cols)?,
            None => branch,
        };
        let out = self.graph.value(name, residual.cols);
        self.graph.op(OpKind::Add { a: residual, b: branch, out });
        Ok(out)
    }

    /// `groups` runs of `width` columns, packed from strided ones of `x`.
    pub fn gather(&mut self, name: String, x: View, x_stride: u32, width: u32, groups: u32) -> View {
        let out = self.graph.value(name, width * groups);
        self.graph.op(OpKind::CopyCols { x, x_stride, out, out_stride: width, width, groups });
        out
    }

    /// The product of two counts as a number of columns, or an error that names the key of the second.
    pub fn cols(&self, count: u32, each: u32, key: &str) -> Result<u32, LowerError> {
        let cols = count.checked_mul(each).filter(|cols| (1..=MAX_COLS).contains(cols));
        let refuse = || self.source.refuse(key, each, format!("at most {MAX_COLS} columns in {count} groups"));
        cols.ok_or_else(refuse)
    }
}

/// Name of something of a layer: `blk.3.attn_q`.
pub fn blk(layer: u32, name: &str) -> String {
    format!("blk.{layer}.{name}")
}

/// Columns `first .. first + cols` of a view.
pub fn part_of(view: View, first: u32, cols: u32) -> View {
    View { value: view.value, first_col: view.first_col + first, cols }
}
