//! Bytes that a weight takes where it lives: more than in the file where a layout pads. Next: `price.rs`.

use gguf::GgmlType;
use kernels::cuda::GpuLayout;
use kernels::quant::{WeightType, packed_bytes};
use plan_format::program::Tensor;

/// Alignment of a matrix in memory.
const MATRIX_ALIGN_BYTES: u64 = 256;

/// Bytes of one of a tensor's matrices in the larger of its two layouts, the CPU's panels and the GPU's order: what a
/// home or a slot must hold. Types that no kernel computes with have no layout and count as in the file.
pub(super) fn matrix_bytes(tensor: &Tensor) -> u64 {
    let in_file = tensor.size_bytes / tensor.dims[2].max(1);
    in_file.max(layout_bytes(tensor).unwrap_or(0)).next_multiple_of(MATRIX_ALIGN_BYTES)
}

/// Bytes of all its matrices.
pub(super) fn stored_bytes(tensor: &Tensor) -> u64 {
    matrix_bytes(tensor).saturating_mul(tensor.dims[2].max(1))
}

fn layout_bytes(tensor: &Tensor) -> Option<u64> {
    let ty = WeightType::try_from(GgmlType::from_id(tensor.ggml_type)).ok()?;
    let (rows, cols) = (usize::try_from(tensor.rows()).ok()?, usize::try_from(tensor.cols()).ok()?);
    let panels = packed_bytes(ty, rows, cols).ok()?;
    let tiles = GpuLayout::preferred(ty).row_bytes(ty, cols).ok()?.checked_mul(rows)?;
    Some(panels.max(tiles) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_padding_of_either_layout_counts() {
        let bytes = |ty: GgmlType, cols: u64, rows: u64, stack: u64| {
            let size_bytes = ty.row_bytes(cols).unwrap_or(0) * rows * stack;
            let dims = [cols, rows, stack, 1];
            let tensor = Tensor { name: "t".into(), file: 0, offset_bytes: 0, size_bytes, ggml_type: ty.id(), dims };
            (size_bytes, stored_bytes(&tensor))
        };
        // Whole panels, rows without a tiled form: as in the file.
        assert_eq!(bytes(GgmlType::Q4_K, 256, 32, 1), (4608, 4608));
        // 17 rows fill two panels of 16.
        assert_eq!(bytes(GgmlType::Q4_K, 256, 17, 1), (2448, 4608));
        // A tiled row of Q6_K pads its 2 bytes of scales to 16: 224 for 210.
        assert_eq!(bytes(GgmlType::Q6_K, 256, 16, 2), (6720, 2 * 3584));
    }
}
