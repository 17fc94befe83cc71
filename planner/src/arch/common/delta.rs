//! Linear attention: projections in, convolution and gated delta net with their states, projection out.
//! architectures, sections 8 and 9.

use super::{Bias, Lowering, blk, part_of};
use crate::arch::LowerError;
use plan_format::program::{DeltaNet, GluActivation, HeadMap, ItemKind, OpKind, StateKind, View};

/// Sizes of the delta net, and what varies between families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaSpec {
    /// Columns of a key head and of a value head (S).
    pub head_cols: u32,
    /// Key heads.
    pub key_heads: u32,
    /// Value heads.
    pub value_heads: u32,
    /// Taps of the convolution.
    pub taps: u32,
    /// Columns of all key heads.
    pub keys: u32,
    /// Columns of all value heads.
    pub values: u32,
    /// How beta and alpha are stored.
    pub gates: Gates,
}

/// How the inputs of beta and of the decay are stored, which goes with the order of the value heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gates {
    /// `ssm_ba` {h, 2 value heads}: per key head its betas, then its alphas; value heads grouped by key head.
    GroupedInOne,
    /// `ssm_beta` and `ssm_alpha` {h, value heads}; value heads tiled over key heads.
    TiledApart,
}

/// What the recurrence reads.
#[derive(Clone, Copy, Debug)]
struct Inputs {
    /// Keys, queries and values before the convolution.
    qkv: View,
    /// Gate of the output.
    z: View,
    /// Before the sigmoid: beta.
    b: View,
    /// Before the softplus: decay.
    alpha: View,
}

/// Results of the projections, as they are stored.
#[derive(Clone, Copy, Debug)]
struct Projections {
    mixed: Mixed,
    gates: GateViews,
}

#[derive(Clone, Copy, Debug)]
enum Mixed {
    /// `attn_qkv` and `attn_gate`.
    Apart { qkv: View, z: View },
    /// `ssm_in` of old files: per key head its q, k, values and their z.
    GroupedInOne(View),
}

#[derive(Clone, Copy, Debug)]
enum GateViews {
    Apart { b: View, alpha: View },
    GroupedInOne(View),
}

impl DeltaSpec {
    /// Reads `A.ssm.*`.
    pub fn read(l: &Lowering<'_>, gates: Gates) -> Result<Self, LowerError> {
        let source = &l.source;
        let head_cols = source.u32("ssm.state_size", 1..=4096)?;
        let key_heads = source.u32("ssm.group_count", 1..=4096)?;
        let value_heads = source.u32("ssm.time_step_rank", 1..=4096)?;
        if !value_heads.is_multiple_of(key_heads) {
            let accepted = format!("a multiple of the {key_heads} key heads (ssm.group_count)");
            return Err(source.refuse("ssm.time_step_rank", value_heads, accepted));
        }
        let values = l.cols(value_heads, head_cols, "ssm.state_size")?;
        let inner = source.u32("ssm.inner_size", 1..=u32::MAX)?;
        if inner != values {
            return Err(source.refuse("ssm.inner_size", inner, format!("{values}, state_size times time_step_rank")));
        }
        Ok(DeltaSpec {
            head_cols,
            key_heads,
            value_heads,
            taps: source.u32("ssm.conv_kernel", 2..=64)?,
            keys: l.cols(key_heads, head_cols, "ssm.state_size")?,
            values,
            gates,
        })
    }

    /// Columns that the convolution sees.
    fn channels(&self) -> u32 {
        2 * self.keys + self.values
    }

    /// Value heads of a key head.
    fn ratio(&self) -> u32 {
        self.value_heads / self.key_heads
    }
}

impl Lowering<'_> {
    /// The whole linear mixer of a layer: `x + ssm_out(…norm(x)…)`.
    pub fn delta_layer(&mut self, layer: u32, x: View, norm: &str, spec: &DeltaSpec) -> Result<View, LowerError> {
        self.graph.item(ItemKind::MixerInput, blk(layer, "ssm_in"), Some(layer));
        let normed = self.norm(&blk(layer, norm), x, self.hidden)?;
        let projections = self.delta_projections(layer, normed, spec)?;
        self.graph.item(ItemKind::Recurrent, blk(layer, "ssm"), Some(layer));
        let inputs = self.delta_inputs(layer, projections, spec);
        let mixed = self.delta_net(layer, inputs, spec)?;
        self.mixer_output(layer, "ssm_out", x, mixed, Bias::IfPresent, None)
    }

    fn delta_projections(&mut self, layer: u32, normed: View, spec: &DeltaSpec) -> Result<Projections, LowerError> {
        let old = self.source.has(&blk(layer, "ssm_in.weight"));
        let mut parts = Vec::new();
        let mut product = |name: &str, cols: u32| -> Result<View, LowerError> {
            parts.push(self.product(&blk(layer, name), normed.cols, cols, Bias::IfPresent)?);
            Ok(parts[parts.len() - 1].out)
        };
        let mixed = match old {
            true => Mixed::GroupedInOne(product("ssm_in", spec.channels() + spec.values)?),
            false => Mixed::Apart { qkv: product("attn_qkv", spec.channels())?, z: product("attn_gate", spec.values)? },
        };
        let gates = match spec.gates {
            Gates::GroupedInOne => GateViews::GroupedInOne(product("ssm_ba", 2 * spec.value_heads)?),
            Gates::TiledApart => GateViews::Apart {
                b: product("ssm_beta", spec.value_heads)?,
                alpha: product("ssm_alpha", spec.value_heads)?,
            },
        };
        self.graph.op(OpKind::MatMul { x: normed, parts });
        Ok(Projections { mixed, gates })
    }

    /// Takes apart what is stored grouped by key head.
    fn delta_inputs(&mut self, layer: u32, projections: Projections, spec: &DeltaSpec) -> Inputs {
        let (qkv, z) = match projections.mixed {
            Mixed::Apart { qkv, z } => (qkv, z),
            Mixed::GroupedInOne(all) => self.ungroup_mixed(layer, all, spec),
        };
        let (heads, ratio) = (spec.key_heads, spec.ratio());
        let (b, alpha) = match projections.gates {
            GateViews::Apart { b, alpha } => (b, alpha),
            GateViews::GroupedInOne(ba) => {
                let b = self.gather(blk(layer, "ssm_b"), ba, 2 * ratio, ratio, heads);
                let alphas = part_of(ba, ratio, ba.cols - ratio);
                (b, self.gather(blk(layer, "ssm_alpha"), alphas, 2 * ratio, ratio, heads))
            }
        };
        Inputs { qkv, z, b, alpha }
    }

    /// From q, k, values, z of each key head in turn to all q, all k, all values; and all z.
    fn ungroup_mixed(&mut self, layer: u32, all: View, spec: &DeltaSpec) -> (View, View) {
        let (head, heads, values) = (spec.head_cols, spec.key_heads, spec.head_cols * spec.ratio());
        let stride = 2 * head + 2 * values;
        let qkv = self.graph.value(blk(layer, "ssm_qkv"), spec.channels());
        for (first, to, width) in [(0, 0, head), (head, spec.keys, head), (2 * head, 2 * spec.keys, values)] {
            let (x, out) = (part_of(all, first, all.cols - first), part_of(qkv, to, width * heads));
            self.graph.op(OpKind::CopyCols { x, x_stride: stride, out, out_stride: width, width, groups: heads });
        }
        let first_z = 2 * head + values;
        let z = self.gather(blk(layer, "ssm_z"), part_of(all, first_z, all.cols - first_z), stride, values, heads);
        (qkv, z)
    }

    /// Convolution, norms of q and k, recurrence, norm and gate of the result.
    fn delta_net(&mut self, layer: u32, inputs: Inputs, spec: &DeltaSpec) -> Result<View, LowerError> {
        let DeltaSpec { head_cols, key_heads, value_heads, taps, keys, values, .. } = *spec;
        let channels = spec.channels();
        let filter = self.small(&blk(layer, "ssm_conv1d.weight"), &[taps, channels])?;
        let state = self.graph.state(blk(layer, "conv"), StateKind::Conv { channels, taps });
        let conv = self.graph.value(blk(layer, "ssm_conv"), channels);
        self.graph.op(OpKind::CausalConv { x: inputs.qkv, filter, state, out: conv });
        let q_scale = 1.0 / (head_cols as f32).sqrt();
        let q = self.l2_norm(blk(layer, "ssm_q"), part_of(conv, 0, keys), head_cols, q_scale);
        let k = self.l2_norm(blk(layer, "ssm_k"), part_of(conv, keys, keys), head_cols, 1.0);
        let delta = DeltaNet {
            q,
            k,
            v: part_of(conv, 2 * keys, values),
            b: inputs.b,
            alpha: inputs.alpha,
            a: self.small(&blk(layer, "ssm_a"), &[value_heads])?,
            dt: self.small(&blk(layer, "ssm_dt.bias"), &[value_heads])?,
            key_heads,
            value_heads,
            head_cols,
            heads: match spec.gates {
                Gates::GroupedInOne => HeadMap::Grouped,
                Gates::TiledApart => HeadMap::Tiled,
            },
            state: self.graph.state(blk(layer, "delta"), StateKind::Recurrent { value_heads, head_cols }),
        };
        let out = self.graph.value(blk(layer, "ssm_out_heads"), values);
        self.graph.op(OpKind::DeltaNet { delta, out });
        let normed = self.norm(&blk(layer, "ssm_norm"), out, head_cols)?;
        Ok(self.glu(blk(layer, "ssm_gated"), inputs.z, normed, GluActivation::Silu))
    }

    fn l2_norm(&mut self, name: String, x: View, group: u32, scale: f32) -> View {
        let out = self.graph.value(name, x.cols);
        self.graph.op(OpKind::L2Norm { x, group, eps: self.eps, scale, out });
        out
    }
}
