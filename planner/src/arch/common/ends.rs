//! The first and the last item, embedding and head; and the whole of models with nothing special between them.

use super::{AttentionSpec, FfnSpec, Lowering, MAX_COLS};
use crate::arch::LowerError;
use crate::arch::source::Use;
use plan_format::program::{Elem, ItemKind, MatMulPart, OpKind, Rows, Value, View, WeightRole};

impl Lowering<'_> {
    /// Token rows times `scale`: the start of the residual stream.
    pub fn embedding(&mut self, scale: f32) -> Result<View, LowerError> {
        self.graph.item(ItemKind::Embedding, "token_embd".to_owned(), None);
        let table = self.source.tensor("token_embd.weight", &[self.hidden, self.vocab], Use::Matrix)?;
        // The one rule for all families: no `output.weight` means that the head is the embedding table.
        let role = match self.source.has("output.weight") {
            true => WeightRole::EmbeddingRows,
            false => WeightRole::TiedHead,
        };
        let table = self.graph.weight(table, role);
        let out = self.graph.value("token_embd".to_owned(), self.hidden);
        self.graph.op(OpKind::Embed { table, scale, out });
        Ok(out)
    }

    /// A whole model whose layers are all alike: embedding, attention and feed-forward network in turns, head.
    pub fn dense_stack(&mut self, attention: &AttentionSpec, ffn: &FfnSpec) -> Result<View, LowerError> {
        let mut x = self.embedding(1.0)?;
        for layer in 0..self.layers {
            x = self.attention_layer(layer, x, attention)?;
            x = self.ffn_layer(layer, x, ffn)?;
        }
        self.head(x)
    }

    /// Rows that are wanted, final norm, and the product with `output.weight` or the embedding table.
    pub fn head(&mut self, x: View) -> Result<View, LowerError> {
        self.graph.item(ItemKind::Head, "output".to_owned(), None);
        let selected = self.output_value("output_rows", x.cols);
        self.graph.op(OpKind::SelectOutputs { x, out: selected });
        let weight = self.small("output_norm.weight", &[self.hidden])?;
        let normed = self.output_value("output_norm", x.cols);
        self.graph.op(OpKind::RmsNorm {
            x: selected,
            group: self.hidden,
            weight: Some(weight),
            eps: self.eps,
            out: normed,
        });
        let tensor = if self.source.has("output.weight") { "output.weight" } else { "token_embd.weight" };
        let weight = self.large(tensor, &[self.hidden, self.vocab], WeightRole::Matrix)?;
        let bias = self.opt_small("output.bias", &[self.vocab])?;
        let out = self.output_value("logits", self.vocab.min(MAX_COLS));
        self.graph.op(OpKind::MatMul { x: normed, parts: vec![MatMulPart { weight, bias, out }] });
        Ok(out)
    }

    /// `cap · tanh(logits / cap)`.
    pub fn softcap(&mut self, x: View, cap: f32) -> View {
        let out = self.output_value("logits_capped", x.cols);
        self.graph.op(OpKind::Softcap { x, cap, out });
        out
    }

    fn output_value(&mut self, name: &str, cols: u32) -> View {
        self.graph.value_of(Value { name: name.to_owned(), rows: Rows::Outputs, cols, elem: Elem::F32 })
    }
}
