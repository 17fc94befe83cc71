//! Launches of operators with a state per sequence. Next: `transfer.rs`.

use super::args::{ConvArgs, DeltaArgs, View};
use super::{DevicePtr, Launch};
use crate::cpu::ops::delta::HeadMap;

/// States of all sequences: F32, `sequence_stride` elements from one sequence's to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct States {
    /// State of sequence 0.
    pub data: DevicePtr,
    /// Elements of a sequence's state.
    pub sequence_stride: u64,
    /// I32: sequence of each row. Rows of a sequence stand together, in order.
    pub sequences: DevicePtr,
}

/// out = silu(filter * x), causal and depthwise over tokens. `filter` \[channels, taps\]; states \[channels, taps − 1\]
/// per sequence.
pub fn causal_conv(x: View, filter: DevicePtr, taps: u32, states: &States, out: View, rows: u32) -> Launch {
    let args = ConvArgs {
        x,
        out,
        filter,
        state: states.data,
        sequences: states.sequences,
        state_stride: states.sequence_stride,
        rows,
        taps,
    };
    Launch::new("recurrent", "causal_conv", [x.cols.div_ceil(128), 1, 1], 128, &args)
}

/// Operands and sizes of a gated delta net.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta {
    /// \[rows, key_heads · head_cols\].
    pub q: View,
    /// \[rows, key_heads · head_cols\].
    pub k: View,
    /// \[rows, value_heads · head_cols\].
    pub v: View,
    /// \[rows, value_heads\].
    pub b: View,
    /// \[rows, value_heads\].
    pub alpha: View,
    /// {value_heads}, negative.
    pub a: DevicePtr,
    /// {value_heads}.
    pub dt: DevicePtr,
    /// Key heads.
    pub key_heads: u32,
    /// Value heads.
    pub value_heads: u32,
    /// Columns of a head, at most 256.
    pub head_cols: u32,
    /// Which key head a value head uses.
    pub heads: HeadMap,
}

/// The gated delta net; states \[value_heads, head_cols (value), head_cols (key)\].
pub fn delta_net(delta: &Delta, states: &States, out: View, rows: u32) -> Launch {
    let args = DeltaArgs {
        q: delta.q,
        k: delta.k,
        v: delta.v,
        b: delta.b,
        alpha: delta.alpha,
        out,
        a: delta.a,
        dt: delta.dt,
        state: states.data,
        sequences: states.sequences,
        state_stride: states.sequence_stride,
        rows,
        key_heads: delta.key_heads,
        value_heads: delta.value_heads,
        head_cols: delta.head_cols,
        tiled: u32::from(delta.heads == HeadMap::Tiled),
        reserved: 0,
    };
    let grid = [delta.head_cols.div_ceil(4), delta.value_heads, 1];
    Launch::new("recurrent", "delta_net", grid, 128, &args)
}
