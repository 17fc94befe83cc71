//! Argument structures of the kernels, field for field as the `.cu` files declare them. Null pointers are allowed only
//! where said there. They hold no padding (`Pod` proves it). Next: `layout.rs`.

use super::DevicePtr;
use bytemuck::{Pod, Zeroable};

/// F32 (for ids: I32) rows `stride` elements apart, of which `cols` count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Pod, Zeroable)]
#[repr(C)]
pub struct View {
    /// First column of the first row.
    pub data: DevicePtr,
    /// Elements from one row to the next.
    pub stride: u32,
    /// Columns.
    pub cols: u32,
}

/// Scale of 32 quantised activations and the sums of their two halves: the layout of one entry of
/// [`Forms::q8_scales`].
#[derive(Clone, Copy, Debug, PartialEq, Default, Pod, Zeroable)]
#[repr(C)]
pub struct BlockScale {
    /// Value of a code of 1.
    pub scale: f32,
    /// Sum of codes 0..16.
    pub first_sum: i16,
    /// Sum of codes 16..32.
    pub second_sum: i16,
}

/// Where a producer of activation rows writes; null pointers are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Pod, Zeroable)]
#[repr(C)]
pub struct Forms {
    /// F32 rows, `f32_stride` apart.
    pub f32: DevicePtr,
    /// I8 \[rows, cols\]; `cols` must be a multiple of 32.
    pub q8: DevicePtr,
    /// [`BlockScale`] \[rows, cols / 32\].
    pub q8_scales: DevicePtr,
    /// F16 \[rows, cols\], divided by `row_scale`; 16-byte aligned.
    pub f16: DevicePtr,
    /// BF16 \[rows, cols\]; 16-byte aligned.
    pub bf16: DevicePtr,
    /// F32 \[rows\], powers of two.
    pub row_scale: DevicePtr,
    /// Elements from one F32 row to the next.
    pub f32_stride: u32,
    /// 0.
    pub reserved: u32,
}

impl Forms {
    /// The same from a row on; rows have `cols` columns.
    pub(super) fn at_row(self, row: u32, cols: u32) -> Forms {
        let (row, cols) = (u64::from(row), u64::from(cols));
        let on = |data: DevicePtr, bytes: u64| if data.is_null() { data } else { data.offset(bytes) };
        Forms {
            f32: on(self.f32, row * u64::from(self.f32_stride) * 4),
            q8: on(self.q8, row * cols),
            q8_scales: on(self.q8_scales, row * cols / 4),
            f16: on(self.f16, row * cols * 2),
            bf16: on(self.bf16, row * cols * 2),
            row_scale: on(self.row_scale, row * 4),
            ..self
        }
    }
}

macro_rules! structures {
    ($($name:ident { $($field:ident: $ty:ty),* $(,)? })*) => {$(
        #[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
        #[repr(C)]
        pub(super) struct $name { $(pub $field: $ty),* }
    )*};
}

structures! {
    // rows.cu
    ConvertArgs { x: View, forms: Forms }
    NormArgs {
        x: View, residual: DevicePtr, sum: DevicePtr, weight: DevicePtr, forms: Forms,
        residual_stride: u32, sum_stride: u32, eps: f32, reserved: u32,
    }
    GluArgs {
        gate: View, up: DevicePtr, forms: Forms, up_stride: u32, activation: u32, alpha: f32, limit: f32,
    }
    // heads.cu
    GroupNormArgs {
        x: View, out: View, weight: DevicePtr, group: u32, eps: f32, inverse_count: f32, scale: f32,
    }
    AnglesArgs { turns: DevicePtr, positions: DevicePtr, trig: DevicePtr, pairs: u32, magnitude: f32 }
    RopeArgs {
        x: View, out: View, trig: DevicePtr, norm_weight: DevicePtr,
        heads: u32, head_cols: u32, n_rot: u32, neox: u32, norm: u32, eps: f32,
    }
    PositionScaleArgs { x: View, out: View, positions: DevicePtr, period: f32, factor: f32 }
    StoreKvArgs {
        k: View, v: View, k_cache: DevicePtr, v_cache: DevicePtr,
        slots: DevicePtr, positions: DevicePtr, sequences: DevicePtr,
        slot_positions: DevicePtr, slot_sequences: DevicePtr, f32_cache: u32, reserved: u32,
    }
    HeadsArgs {
        q: View, q_out: View, k: View, v: View, q_weight: DevicePtr, k_weight: DevicePtr, trig: DevicePtr,
        k_cache: DevicePtr, v_cache: DevicePtr, slots: DevicePtr, positions: DevicePtr, sequences: DevicePtr,
        slot_positions: DevicePtr, slot_sequences: DevicePtr,
        head_cols: u32, n_rot: u32, neox: u32, norm: u32, f32_cache: u32, q_eps: f32, k_eps: f32, reserved: u32,
    }
    // elementwise.cu
    AddArgs { a: View, b: View, out: View }
    SigmoidGateArgs { x: View, gate: View, out: View }
    SoftcapArgs { x: View, out: View, cap: f32, reserved: u32 }
    CopyColsArgs { x: View, out: View, x_stride: u32, out_stride: u32, width: u32, groups: u32 }
    SelectRowsArgs { x: View, out: View, rows: DevicePtr }
    ExpertScaleArgs { x: View, weights: View, out: View }
    ExpertSumArgs { x: View, weights: View, out: View, residual: View, ids: View, chosen: u32, reserved: u32 }
    ReduceArgs { partials: [DevicePtr; 8], strides: [u32; 8], out: View, count: u32, reserved: u32 }
    // embed.cu
    EmbedArgs {
        table: DevicePtr, ids: DevicePtr, out: DevicePtr, row_bytes: u64,
        cols: u32, out_stride: u32, scale: f32, rows_in_table: u32,
    }
    // gemv.cu, gemv_float.cu, skinny.cu, matmul.cuh
    ProductPart {
        weight: DevicePtr, bias: DevicePtr, residual: DevicePtr, out: DevicePtr,
        rows: u32, out_stride: u32, residual_stride: u32, reserved: u32,
    }
    GemvArgs {
        parts: [ProductPart; 3], x: DevicePtr, x_scales: DevicePtr, ids: DevicePtr, places: DevicePtr,
        row_bytes: u64, matrix_bytes: u64,
        cols: u32, tokens: u32, n_parts: u32, split: u32, x_stride: u32, x_slot_stride: u32,
        slots: u32, ids_stride: u32, matrices: u32, reserved: u32,
    }
    FloatGemvArgs {
        parts: [ProductPart; 3], x: DevicePtr, ids: DevicePtr, places: DevicePtr, row_bytes: u64, matrix_bytes: u64,
        cols: u32, tokens: u32, n_parts: u32, split: u32, x_stride: u32, x_slot_stride: u32,
        slots: u32, ids_stride: u32, matrices: u32, reserved: u32,
    }
    SkinnyArgs {
        parts: [ProductPart; 3], x: DevicePtr, row_scale: DevicePtr, row_bytes: u64,
        cols: u32, tokens: u32, n_parts: u32, x_stride: u32,
    }
    // matmul.cuh
    MatmulArgs {
        parts: [ProductPart; 3], x: DevicePtr, row_scale: DevicePtr,
        order: DevicePtr, tiles: DevicePtr, n_tiles: DevicePtr, places: DevicePtr, row_bytes: u64, matrix_bytes: u64,
        cols: u32, tokens: u32, n_parts: u32, chosen: u32, x_per_entry: u32, reserved: u32,
    }
    // router.cu
    RouterArgs {
        logits: View, bias: DevicePtr, ids: View, weights: View,
        experts: u32, chosen: u32, score: u32, weighting: u32, scale: f32, reserved: u32,
    }
    HeldArgs { ids: View, out: View, held: [u32; 16], count: u32, reserved: u32 }
    SortArgs {
        ids: View, order: DevicePtr, tiles: DevicePtr, n_tiles: DevicePtr,
        rows: u32, chosen: u32, experts: u32, tile: u32, max_tiles: u32, reserved: u32,
    }
    // recurrent.cu
    ConvArgs {
        x: View, out: View, filter: DevicePtr, state: DevicePtr, sequences: DevicePtr, state_stride: u64,
        rows: u32, taps: u32,
    }
    DeltaArgs {
        q: View, k: View, v: View, b: View, alpha: View, out: View,
        a: DevicePtr, dt: DevicePtr, state: DevicePtr, sequences: DevicePtr, state_stride: u64,
        rows: u32, key_heads: u32, value_heads: u32, head_cols: u32, tiled: u32, reserved: u32,
    }
    // attention.cuh
    AttentionArgs {
        q: DevicePtr, k_cache: DevicePtr, v_cache: DevicePtr, slot_positions: DevicePtr, slot_sequences: DevicePtr,
        positions: DevicePtr, sequences: DevicePtr, n_slots: DevicePtr, sinks: DevicePtr, out: DevicePtr,
        partial: DevicePtr, partial_scale: DevicePtr,
        tokens: u32, q_heads: u32, kv_heads: u32, k_head_cols: u32, v_head_cols: u32,
        q_stride: u32, out_stride: u32, k_slot_cols: u32, v_slot_cols: u32, mask: u32, mask_tokens: u32,
        splits: u32, f32_cache: u32, scale: f32, softcap: f32, slots: u32,
    }
    JoinArgs { attention: AttentionArgs, forms: Forms }
    // move.cu
    MoveArgs {
        from: View, to: View, flag: DevicePtr, round: DevicePtr, arrived: DevicePtr, rows: u32, reserved: u32,
    }
    FlagArgs { flag: DevicePtr, round: DevicePtr }
    CounterArgs { counter: DevicePtr, step: u32, reserved: u32 }
    CopyArgs { from: DevicePtr, to: DevicePtr, vectors: u64 }
    FillArgs { to: DevicePtr, words: u64, seed: u32, mask: u32 }
    // repack.cu
    RepackArgs {
        from: DevicePtr, to: DevicePtr, rows: u64, from_row_bytes: u64, to_row_bytes: u64,
        block_bytes: u32, blocks: u32, fields: u32, reserved: u32,
        at: [u32; 4], len: [u32; 4], plane: [u32; 4],
    }
    UnpackArgs {
        from: DevicePtr, to: DevicePtr, to_row_bytes: u64,
        rows: u32, blocks: u32, chunk_blocks: u32, block_bytes: u32, fields: u32, heads: u32, head_bytes: u32,
        reserved: u32,
        len: [u32; 6], unit: [u32; 6], transposed: [u32; 6], base: [u32; 6], step: [u32; 6],
    }
}

// The sources' structures are laid out by the CUDA compiler; these sizes are what it gives them.
const _: () = {
    assert!(size_of::<Forms>() == 56);
    assert!(size_of::<ProductPart>() == 48);
    assert!(size_of::<GemvArgs>() == 232);
    assert!(size_of::<MatmulArgs>() == 232);
    assert!(size_of::<AttentionArgs>() == 160);
};
