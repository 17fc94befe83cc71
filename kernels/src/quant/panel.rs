//! The packed layout for SIMD: panels of 16 rows, interleaved so that one 64-byte load holds 4 bytes of each row.
//!
//! A panel is a sequence of *chunks* of 256 columns (the last may be shorter); it is exactly as large as its 16 rows
//! in the file. Within a chunk, every field of a block is cut in units of 1, 2 or 4 bytes, and for each unit the 16
//! rows' units stand side by side. Fields that hold scales (the head) come first, for all blocks of the chunk; the
//! codes (the body) follow, block by block. Bytes are moved, never changed, with one exception: the fifth bits of
//! Q5_0 and Q5_1 are transposed (bit 4g+j to bit 8j+g), so that a shift by g brings the bits of columns 4g..4g+4 to
//! the bottom of four bytes. Plain numbers are interleaved column by column. Rows beyond the matrix are zero bytes,
//! which every type reads as 0.
//!
//! Sums run along a lane, so every output is summed over the columns in order: see `cpu/matmul`.

use std::ops::Range;

use super::{WeightType, dequantise_row};
use crate::KernelError;

/// Rows of a panel.
pub const PANEL_ROWS: usize = 16;

/// Columns of a whole chunk.
pub const CHUNK_COLS: usize = 256;

/// One field of a block: where it begins, its bytes, and how it is cut.
struct Field(usize, usize, Unit);

/// How a field is cut.
#[derive(Clone, Copy, PartialEq)]
enum Unit {
    One,
    Two,
    Four,
    /// Four bytes whose 32 bits are transposed.
    FourTransposed,
}

/// The fields of a type's block: those of the head, then those of the body.
struct Fields {
    head: &'static [Field],
    body: &'static [Field],
}

/// The table of fields. Plain numbers have none: a chunk is one field, see [`ChunkMap`].
const fn fields(ty: WeightType) -> Fields {
    use Unit::*;
    use WeightType::*;
    match ty {
        F32 | F16 | BF16 => Fields { head: &[], body: &[] },
        Q4_0 | IQ4_NL => Fields { head: &[Field(0, 2, Two)], body: &[Field(2, 16, Four)] },
        Q4_1 => Fields { head: &[Field(0, 2, Two), Field(2, 2, Two)], body: &[Field(4, 16, Four)] },
        Q5_0 => Fields { head: &[Field(0, 2, Two)], body: &[Field(2, 4, FourTransposed), Field(6, 16, Four)] },
        Q5_1 => Fields {
            head: &[Field(0, 2, Two), Field(2, 2, Two)],
            body: &[Field(4, 4, FourTransposed), Field(8, 16, Four)],
        },
        Q8_0 => Fields { head: &[Field(0, 2, Two)], body: &[Field(2, 32, Four)] },
        Q2_K => {
            Fields { head: &[Field(80, 2, Two), Field(82, 2, Two), Field(0, 16, One)], body: &[Field(16, 64, Four)] }
        }
        Q3_K => {
            Fields { head: &[Field(108, 2, Two), Field(96, 12, One)], body: &[Field(0, 32, Four), Field(32, 64, Four)] }
        }
        Q4_K => {
            Fields { head: &[Field(0, 2, Two), Field(2, 2, Two), Field(4, 12, One)], body: &[Field(16, 128, Four)] }
        }
        Q5_K => Fields {
            head: &[Field(0, 2, Two), Field(2, 2, Two), Field(4, 12, One)],
            body: &[Field(16, 32, Four), Field(48, 128, Four)],
        },
        Q6_K => Fields {
            head: &[Field(208, 2, Two), Field(192, 16, One)],
            body: &[Field(0, 128, Four), Field(128, 64, Four)],
        },
        IQ4_XS => {
            Fields { head: &[Field(0, 2, Two), Field(2, 2, One), Field(4, 4, One)], body: &[Field(8, 128, Four)] }
        }
        MXFP4 => Fields { head: &[Field(0, 1, One)], body: &[Field(1, 16, Four)] },
    }
}

/// A field of a block as a panel holds it, for code that takes panels apart elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedField {
    /// Where it begins in a block.
    pub at: usize,
    /// Its bytes.
    pub bytes: usize,
    /// Bytes that stand side by side.
    pub unit_bytes: usize,
    /// Whether its 32 bits are transposed.
    pub transposed: bool,
    /// Whether it stands before the others for all blocks of a chunk.
    pub is_head: bool,
}

/// The fields in the order of a panel. Plain numbers are one field.
pub(crate) fn packed_fields(ty: WeightType) -> Vec<PackedField> {
    if ty.is_plain() {
        let bytes = ty.block().1;
        return vec![PackedField { at: 0, bytes, unit_bytes: bytes, transposed: false, is_head: false }];
    }
    let Fields { head, body } = fields(ty);
    let of = |&Field(at, bytes, unit): &Field, is_head| {
        let unit_bytes = match unit {
            Unit::One => 1,
            Unit::Two => 2,
            Unit::Four | Unit::FourTransposed => 4,
        };
        PackedField { at, bytes, unit_bytes, transposed: unit == Unit::FourTransposed, is_head }
    };
    head.iter().map(|field| of(field, true)).chain(body.iter().map(|field| of(field, false))).collect()
}

/// Bytes of a chunk's head for one row and one block; the SIMD code finds the body by it.
pub(crate) const fn head_bytes(ty: WeightType) -> usize {
    let head = fields(ty).head;
    let (mut i, mut sum) = (0, 0);
    while i < head.len() {
        sum += head[i].1;
        i += 1;
    }
    sum
}

/// Panels of a matrix; the last may have fewer rows.
pub const fn panels(rows: usize) -> usize {
    rows.div_ceil(PANEL_ROWS)
}

/// Bytes of one panel of `cols` columns.
///
/// # Errors
/// As [`WeightType::row_bytes`].
pub fn panel_bytes(ty: WeightType, cols: usize) -> Result<usize, KernelError> {
    ty.row_bytes(cols)?.checked_mul(PANEL_ROWS).ok_or(KernelError::Overflow)
}

/// Bytes of a packed matrix. An expert tensor is packed expert by expert.
///
/// # Errors
/// As [`WeightType::row_bytes`].
pub fn packed_bytes(ty: WeightType, rows: usize, cols: usize) -> Result<usize, KernelError> {
    panel_bytes(ty, cols)?.checked_mul(panels(rows)).ok_or(KernelError::Overflow)
}

/// Packs panels `range` of a matrix of `rows` by `cols` in the file's layout (`src`: all its rows). `dst` holds just
/// these panels, so that threads can pack disjoint ranges.
///
/// # Errors
/// A column count that is no whole number of blocks, panels outside the matrix, or buffers that are too small.
pub fn pack_panels(
    ty: WeightType,
    src: &[u8],
    rows: usize,
    cols: usize,
    range: Range<usize>,
    dst: &mut [u8],
) -> Result<(), KernelError> {
    let (row_bytes, panel_bytes) = (ty.row_bytes(cols)?, panel_bytes(ty, cols)?);
    let src_bytes = rows.checked_mul(row_bytes).ok_or(KernelError::Overflow)?;
    KernelError::check_size("the matrix", "panels", panels(rows), range.end)?;
    KernelError::check_size("the matrix", "bytes", src.len(), src_bytes)?;
    KernelError::check_size("the packed range", "bytes", dst.len(), range.len() * panel_bytes)?;
    if panel_bytes == 0 {
        return Ok(());
    }
    for (panel, dst) in range.zip(dst.chunks_exact_mut(panel_bytes)) {
        let mut pieces = [None; PANEL_ROWS];
        for (lane, piece) in pieces.iter_mut().enumerate() {
            let row = panel * PANEL_ROWS + lane;
            *piece = (row < rows).then(|| &src[row * row_bytes..(row + 1) * row_bytes]);
        }
        let chunk_row_bytes = chunk_row_bytes(ty);
        for (i, chunk) in dst.chunks_mut(chunk_row_bytes * PANEL_ROWS).enumerate() {
            let bytes = chunk.len() / PANEL_ROWS;
            pack_chunk(ty, &pieces.map(|row| row.map(|row| &row[i * chunk_row_bytes..][..bytes])), chunk);
        }
    }
    Ok(())
}

/// Packs 16 pieces of rows of at most [`CHUNK_COLS`] columns, `None` for rows beyond the matrix.
pub(crate) fn pack_chunk(ty: WeightType, pieces: &[Option<&[u8]>; PANEL_ROWS], chunk: &mut [u8]) {
    const ABSENT: [u8; CHUNK_COLS * 4] = [0; CHUNK_COLS * 4];
    let bytes = chunk.len() / PANEL_ROWS;
    let rows = pieces.map(|piece| piece.unwrap_or(&ABSENT[..bytes]));
    ChunkMap::new(ty, bytes).write_rows(&rows, chunk);
}

/// Writes the bytes that `row` of a packed matrix has in the file's layout.
///
/// # Errors
/// A column count that is no whole number of blocks, a row outside the matrix, or buffers that are too small.
pub fn unpack_row(
    ty: WeightType,
    packed: &[u8],
    rows: usize,
    cols: usize,
    row: usize,
    out: &mut [u8],
) -> Result<(), KernelError> {
    let (row_bytes, panel_bytes) = (ty.row_bytes(cols)?, panel_bytes(ty, cols)?);
    KernelError::check_size("the matrix", "rows", rows, row.saturating_add(1))?;
    KernelError::check_size("the packed matrix", "bytes", packed.len(), packed_bytes(ty, rows, cols)?)?;
    KernelError::check_size("the row", "bytes", out.len(), row_bytes)?;
    let panel = &packed[row / PANEL_ROWS * panel_bytes..][..panel_bytes];
    for (chunk, out) in panel.chunks(chunk_row_bytes(ty) * PANEL_ROWS).zip(out.chunks_mut(chunk_row_bytes(ty))) {
        let bytes = chunk.len() / PANEL_ROWS;
        ChunkMap::new(ty, bytes).read_row(chunk, row % PANEL_ROWS, &mut out[..bytes]);
    }
    Ok(())
}

/// Exact values of a row of a packed matrix, so that a tied embedding table need not exist twice.
///
/// # Errors
/// As [`unpack_row`].
pub fn dequantise_row_from_panel(
    ty: WeightType,
    packed: &[u8],
    rows: usize,
    cols: usize,
    row: usize,
    out: &mut [f32],
) -> Result<(), KernelError> {
    let (row_bytes, panel_bytes) = (ty.row_bytes(cols)?, panel_bytes(ty, cols)?);
    KernelError::check_size("the matrix", "rows", rows, row.saturating_add(1))?;
    KernelError::check_size("the packed matrix", "bytes", packed.len(), packed_bytes(ty, rows, cols)?)?;
    KernelError::check_size("the values", "columns", out.len(), cols)?;
    let panel = &packed[row / PANEL_ROWS * panel_bytes..][..panel_bytes];
    debug_assert_eq!(panel.len(), row_bytes * PANEL_ROWS);
    let mut piece = [0; CHUNK_COLS * 4];
    for (chunk, out) in panel.chunks(chunk_row_bytes(ty) * PANEL_ROWS).zip(out[..cols].chunks_mut(CHUNK_COLS)) {
        let piece = &mut piece[..chunk.len() / PANEL_ROWS];
        ChunkMap::new(ty, piece.len()).read_row(chunk, row % PANEL_ROWS, piece);
        dequantise_row(ty, piece, out)?;
    }
    Ok(())
}

/// Bytes of one row of a whole chunk.
const fn chunk_row_bytes(ty: WeightType) -> usize {
    let (block_cols, block_bytes) = ty.block();
    CHUNK_COLS / block_cols * block_bytes
}

/// Where the bytes of one row's piece of a chunk lie in the chunk.
struct ChunkMap {
    ty: WeightType,
    blocks: usize,
    block_bytes: usize,
}

impl ChunkMap {
    fn new(ty: WeightType, row_bytes: usize) -> ChunkMap {
        let block_bytes = ty.block().1;
        ChunkMap { ty, blocks: row_bytes / block_bytes, block_bytes }
    }

    /// Calls `visit` with each field's unit, its place in the row, in the chunk, and its length in bytes.
    #[inline(always)]
    fn for_each_field(&self, mut visit: impl FnMut(Unit, usize, usize, usize)) {
        let fields = fields(self.ty);
        if self.ty.is_plain() {
            let unit = if self.block_bytes == 2 { Unit::Two } else { Unit::Four };
            return visit(unit, 0, 0, self.blocks * self.block_bytes);
        }
        let mut at = 0;
        for Field(begin, bytes, unit) in fields.head {
            for block in 0..self.blocks {
                visit(*unit, block * self.block_bytes + begin, at, *bytes);
                at += bytes * PANEL_ROWS;
            }
        }
        for block in 0..self.blocks {
            for Field(begin, bytes, unit) in fields.body {
                visit(*unit, block * self.block_bytes + begin, at, *bytes);
                at += bytes * PANEL_ROWS;
            }
        }
    }

    fn write_rows(&self, rows: &[&[u8]; PANEL_ROWS], chunk: &mut [u8]) {
        self.for_each_field(|unit, from, to, bytes| {
            let (rows, to) = (rows.map(|row| &row[from..from + bytes]), &mut chunk[to..to + bytes * PANEL_ROWS]);
            match unit {
                Unit::One => interleave::<1>(&rows, to, |b| b),
                Unit::Two => interleave::<2>(&rows, to, |b| b),
                Unit::Four => interleave::<4>(&rows, to, |b| b),
                Unit::FourTransposed => interleave::<4>(&rows, to, transpose_bits::<4, 8>),
            }
        });
    }

    fn read_row(&self, chunk: &[u8], lane: usize, row: &mut [u8]) {
        self.for_each_field(|unit, to, from, bytes| {
            let (from, to) = (&chunk[from..from + bytes * PANEL_ROWS], &mut row[to..to + bytes]);
            match unit {
                Unit::One => gather::<1>(from, lane, to, |b| b),
                Unit::Two => gather::<2>(from, lane, to, |b| b),
                Unit::Four => gather::<4>(from, lane, to, |b| b),
                Unit::FourTransposed => gather::<4>(from, lane, to, transpose_bits::<8, 4>),
            }
        });
    }
}

#[inline(always)]
fn interleave<const N: usize>(rows: &[&[u8]; PANEL_ROWS], field: &mut [u8], change: impl Fn([u8; N]) -> [u8; N]) {
    let rows = rows.map(|row| row.as_chunks::<N>().0);
    let groups = field.as_chunks_mut::<N>().0.as_chunks_mut::<PANEL_ROWS>().0;
    for (i, group) in groups.iter_mut().enumerate() {
        for (unit, row) in group.iter_mut().zip(&rows) {
            *unit = change(row[i]);
        }
    }
}

#[inline(always)]
fn gather<const N: usize>(field: &[u8], lane: usize, row: &mut [u8], change: impl Fn([u8; N]) -> [u8; N]) {
    let groups = field.as_chunks::<N>().0.chunks_exact(PANEL_ROWS);
    for (unit, group) in row.as_chunks_mut::<N>().0.iter_mut().zip(groups) {
        *unit = change(group[lane]);
    }
}

/// Moves bit `FROM*g + j` of a word to bit `TO*j + g`, with j < FROM and g < TO.
fn transpose_bits<const FROM: usize, const TO: usize>(bytes: [u8; 4]) -> [u8; 4] {
    let word = u32::from_le_bytes(bytes);
    let moved = (0..32).map(|bit| ((word >> bit) & 1) << (TO * (bit % FROM) + bit / FROM));
    moved.fold(0, |sum: u32, bit| sum | bit).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect()
    }

    #[test]
    fn packing_loses_nothing() {
        for ty in WeightType::ALL {
            let block = ty.block().0;
            for (rows, cols) in [(1, block), (16, 256), (17, 256 + block.max(32) * 3), (40, 512)] {
                let cols = cols.next_multiple_of(block);
                let src = sample(ty.row_bytes(cols).unwrap() * rows);
                let mut packed = vec![0xAA; packed_bytes(ty, rows, cols).unwrap()];
                pack_panels(ty, &src, rows, cols, 0..panels(rows), &mut packed).unwrap();
                let mut row_bytes = vec![0; ty.row_bytes(cols).unwrap()];
                for (row, want) in src.chunks_exact(row_bytes.len()).enumerate() {
                    unpack_row(ty, &packed, rows, cols, row, &mut row_bytes).unwrap();
                    assert_eq!(row_bytes, want, "{ty} {rows}x{cols} row {row}");
                }
            }
        }
    }

    #[test]
    fn fields_cover_every_block_once() {
        for ty in WeightType::ALL.into_iter().filter(|ty| !ty.is_plain()) {
            let fields = fields(ty);
            let mut seen = vec![0; ty.block().1];
            for Field(at, bytes, _) in fields.head.iter().chain(fields.body) {
                seen[*at..at + bytes].iter_mut().for_each(|n| *n += 1);
            }
            assert!(seen.iter().all(|&n| n == 1), "{ty}: {seen:?}");
        }
    }

    #[test]
    fn rows_of_packed_matrices_have_the_values_of_the_file() {
        for ty in WeightType::ALL {
            let (rows, cols) = (19, 512);
            let src = sample(ty.row_bytes(cols).unwrap() * rows);
            let mut packed = vec![0; packed_bytes(ty, rows, cols).unwrap()];
            pack_panels(ty, &src, rows, cols, 0..2, &mut packed).unwrap();
            let (mut want, mut got) = (vec![0.0; cols], vec![0.0; cols]);
            for (row, bytes) in src.chunks_exact(src.len() / rows).enumerate() {
                dequantise_row(ty, bytes, &mut want).unwrap();
                dequantise_row_from_panel(ty, &packed, rows, cols, row, &mut got).unwrap();
                let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&got), bits(&want), "{ty} row {row}");
            }
        }
    }

    #[test]
    fn wrong_sizes_are_refused() {
        let mut dst = [0; 18 * 16];
        assert!(pack_panels(WeightType::Q4_0, &[0; 18], 1, 32, 0..2, &mut dst).is_err());
        assert!(pack_panels(WeightType::Q4_0, &[0; 17], 1, 32, 0..1, &mut dst).is_err());
        assert!(pack_panels(WeightType::Q4_0, &[0; 18], 1, 32, 0..1, &mut dst[1..]).is_err());
        assert!(unpack_row(WeightType::Q4_0, &dst, 1, 32, 1, &mut [0; 18]).is_err());
        assert!(packed_bytes(WeightType::F32, usize::MAX, usize::MAX).is_err());
    }
}
