//! The two byte orders of a weight matrix on the GPU.
//!
//! `Gguf` is the file's. `Tiled` puts each field of a row's blocks together: plane after plane, each padded to 16
//! bytes, rows one after the other. Codes then start at multiples of 16 bytes whatever the block's size is. Types whose
//! blocks are aligned as they are have no tiled form. The conversion is a permutation of bytes: [`tile_rows`] here,
//! `repack.cu` on the device, which also takes apart the CPU's panels ([`unpack_panels`]). Next: `product.rs`.

use super::args::{RepackArgs, UnpackArgs};
use super::{DevicePtr, Launch};
use crate::KernelError;
use crate::quant::{CHUNK_COLS, PANEL_ROWS, WeightType, packed_fields};

/// Byte order of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GpuLayout {
    /// As in the file.
    Gguf,
    /// Fields of a row in planes.
    Tiled,
}

/// A field of a block: where it starts and how long it is, in the order of the planes.
type Field = (usize, usize);

/// The planes of a tiled row, codes first; empty for types without a tiled form.
const fn fields(ty: WeightType) -> &'static [Field] {
    use WeightType::*;
    match ty {
        Q4_0 | IQ4_NL => &[(2, 16), (0, 2)],
        Q5_0 => &[(6, 16), (2, 4), (0, 2)],
        Q8_0 => &[(2, 32), (0, 2)],
        MXFP4 => &[(1, 16), (0, 1)],
        Q6_K => &[(0, 128), (128, 64), (192, 16), (208, 2)],
        Q3_K => &[(32, 64), (0, 32), (96, 12), (108, 2)],
        F32 | F16 | BF16 | Q4_1 | Q5_1 | Q2_K | Q4_K | Q5_K | IQ4_XS => &[],
    }
}

/// A matrix (or a stack of equal ones) in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuMatrix {
    /// Type.
    pub ty: WeightType,
    /// Byte order.
    pub layout: GpuLayout,
    /// First byte; 16-byte aligned.
    pub data: DevicePtr,
    /// Outputs (of one matrix of a stack).
    pub rows: u32,
    /// Inputs.
    pub cols: u32,
}

impl GpuMatrix {
    /// Bytes of a row.
    ///
    /// # Errors
    /// Columns that are no whole number of blocks.
    pub fn row_bytes(&self) -> Result<u64, KernelError> {
        self.layout.row_bytes(self.ty, self.cols as usize).map(|bytes| bytes as u64)
    }
}

impl GpuLayout {
    /// The order that is fastest for weights that stay: tiled where the type has it.
    pub fn preferred(ty: WeightType) -> GpuLayout {
        if fields(ty).is_empty() { GpuLayout::Gguf } else { GpuLayout::Tiled }
    }

    /// Whether the type has this order.
    pub fn exists_for(self, ty: WeightType) -> bool {
        self == GpuLayout::Gguf || !fields(ty).is_empty()
    }

    /// Bytes of a row of `cols` weights.
    ///
    /// # Errors
    /// Columns that are no whole number of blocks.
    pub fn row_bytes(self, ty: WeightType, cols: usize) -> Result<usize, KernelError> {
        let plain = ty.row_bytes(cols)?;
        if self == GpuLayout::Gguf || fields(ty).is_empty() {
            return Ok(plain);
        }
        let blocks = cols / ty.block().0;
        Ok(fields(ty).iter().map(|(_, len)| (len * blocks).next_multiple_of(16)).sum())
    }
}

/// Rows from the file's order to the tiled one. A type without a tiled form is copied.
///
/// # Errors
/// Columns that are no whole number of blocks, or slices of the wrong length.
pub fn tile_rows(ty: WeightType, cols: usize, from: &[u8], to: &mut [u8]) -> Result<(), KernelError> {
    let (plain, tiled) = (ty.row_bytes(cols)?, GpuLayout::Tiled.row_bytes(ty, cols)?);
    let rows = from.len() / plain.max(1);
    KernelError::check_size("rows to tile", "bytes", from.len(), rows * plain)?;
    KernelError::check_size("tiled rows", "bytes", to.len(), rows * tiled)?;
    if fields(ty).is_empty() {
        to[..from.len()].copy_from_slice(from);
        return Ok(());
    }
    let block_bytes = ty.block().1;
    for (from, to) in from.chunks_exact(plain).zip(to.chunks_exact_mut(tiled)) {
        to.fill(0);
        let mut plane = 0;
        for &(at, len) in fields(ty) {
            for (block, bytes) in from.chunks_exact(block_bytes).enumerate() {
                to[plane + block * len..][..len].copy_from_slice(&bytes[at..at + len]);
            }
            plane += (len * from.len() / block_bytes).next_multiple_of(16);
        }
    }
    Ok(())
}

/// The same on the device, for `rows` rows; `None` for a type without a tiled form.
///
/// # Errors
/// Columns that are no whole number of blocks.
pub fn repack(
    ty: WeightType,
    cols: u32,
    rows: u64,
    from: DevicePtr,
    to: DevicePtr,
) -> Result<Option<Launch>, KernelError> {
    let (plain, tiled) = (ty.row_bytes(cols as usize)?, GpuLayout::Tiled.row_bytes(ty, cols as usize)?);
    let (block_cols, block_bytes) = ty.block();
    let mut args = RepackArgs {
        from,
        to,
        rows,
        from_row_bytes: plain as u64,
        to_row_bytes: tiled as u64,
        block_bytes: block_bytes as u32,
        blocks: cols / block_cols as u32,
        fields: fields(ty).len() as u32,
        ..RepackArgs::default()
    };
    let mut plane = 0;
    for (index, &(at, len)) in fields(ty).iter().enumerate() {
        (args.at[index], args.len[index], args.plane[index]) = (at as u32, len as u32, plane);
        plane += (len as u32 * args.blocks).next_multiple_of(16);
    }
    let launch = Launch::new("repack", "repack", [rows.min(65_535) as u32, 1, 1], 128, &args);
    Ok((!fields(ty).is_empty()).then_some(launch))
}

/// Panels of 16 rows, as the CPU keeps them, to rows in a layout on the device: `rows` rows from the start of a panel.
///
/// # Errors
/// Columns that are no whole number of blocks.
pub fn unpack_panels(
    ty: WeightType,
    layout: GpuLayout,
    cols: u32,
    rows: u32,
    from: DevicePtr,
    to: DevicePtr,
) -> Result<Launch, KernelError> {
    let (block_cols, block_bytes) = ty.block();
    let to_row_bytes = layout.row_bytes(ty, cols as usize)? as u64;
    let packed = packed_fields(ty);
    let head = packed.iter().filter(|field| field.is_head);
    let mut args = UnpackArgs {
        from,
        to,
        to_row_bytes,
        rows,
        blocks: cols / block_cols as u32,
        chunk_blocks: (CHUNK_COLS / block_cols) as u32,
        block_bytes: block_bytes as u32,
        fields: packed.len() as u32,
        heads: head.clone().count() as u32,
        head_bytes: head.map(|field| field.bytes as u32).sum(),
        ..UnpackArgs::default()
    };
    for (index, field) in packed.iter().enumerate() {
        let (base, step) = target(ty, layout, field.at, args.blocks);
        (args.len[index], args.unit[index]) = (field.bytes as u32, field.unit_bytes as u32);
        (args.transposed[index], args.base[index], args.step[index]) = (u32::from(field.transposed), base, step);
    }
    let grid = [rows.div_ceil(PANEL_ROWS as u32), args.blocks.div_ceil(args.chunk_blocks).min(65_535), 1];
    Ok(Launch::new("repack", "unpack_panels", grid, 128, &args))
}

/// Where byte `at` of block 0 goes in a row of so many blocks, and how far on that of the next block.
fn target(ty: WeightType, layout: GpuLayout, at: usize, blocks: u32) -> (u32, u32) {
    let mut plane = 0;
    for &(begin, len) in fields(ty).iter().filter(|_| layout == GpuLayout::Tiled) {
        if (begin..begin + len).contains(&at) {
            return (plane + (at - begin) as u32, len as u32);
        }
        plane += (len as u32 * blocks).next_multiple_of(16);
    }
    (at as u32, ty.block().1 as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_cover_each_block_once() {
        for ty in WeightType::ALL.into_iter().filter(|&ty| !fields(ty).is_empty()) {
            let mut covered = vec![0; ty.block().1];
            for &(at, len) in fields(ty) {
                covered[at..at + len].iter_mut().for_each(|count| *count += 1);
            }
            assert!(covered.iter().all(|&count| count == 1), "{ty}: {covered:?}");
        }
    }

    #[test]
    fn tiling_moves_every_byte_to_its_plane_and_pads_with_zeros() {
        let from: Vec<u8> = (0..2 * 3 * 17).map(|i| i as u8 + 1).collect();
        let mut to = vec![0xff; 2 * 64];
        assert_eq!(GpuLayout::Tiled.row_bytes(WeightType::MXFP4, 96).ok(), Some(64));
        assert!(tile_rows(WeightType::MXFP4, 96, &from, &mut to).is_ok());
        assert_eq!(to[..16], from[1..17]);
        assert_eq!(to[32..48], from[35..51]);
        assert_eq!(to[48..52], [from[0], from[17], from[34], 0]);
        assert_eq!(to[64..80], from[52..68]);
    }
}
