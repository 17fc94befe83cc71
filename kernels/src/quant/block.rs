//! One block of each quantised type, decoded to small integers and scales. The single place that knows the formats.
//!
//! Every format comes apart into sub-blocks of 32 columns, each `value = scale * quant + min` with one scale and
//! min per 16 columns at the finest. Next: `dequantise.rs`, `panel.rs`.

use half::f16;

use super::{IQ4_VALUES, MXFP4_VALUES};

/// Columns of a sub-block: the unit in which every kernel works.
pub(crate) const SUB_COLS: usize = 32;

/// 32 consecutive columns of one row: `value[i] = scale[i / 16] * quants[i] + min[i / 16]`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SubBlock {
    /// Signed integers, offsets of symmetric types already taken off.
    pub quants: [i8; SUB_COLS],
    /// Scale of each half.
    pub scale: [f32; 2],
    /// What is added to each half; 0 where the format has no such thing.
    pub min: [f32; 2],
}

impl SubBlock {
    fn symmetric(scale: f32, quants: [i8; SUB_COLS]) -> SubBlock {
        SubBlock { quants, scale: [scale; 2], min: [0.0; 2] }
    }

    fn with_min(scale: f32, min: f32, quants: [i8; SUB_COLS]) -> SubBlock {
        SubBlock { quants, scale: [scale; 2], min: [min; 2] }
    }
}

/// How one type lays out a block.
pub(crate) trait BlockFormat {
    /// Bytes of a block.
    const BYTES: usize;
    /// Sub-blocks of a block.
    const SUBS: usize;
    /// Whether the two halves of a sub-block have their own scales.
    const HALVES: bool = false;
    /// Whether values have a min.
    const MINS: bool = false;
    /// Decodes sub-block `sub < SUBS` of a block of `BYTES` bytes.
    fn decode(block: &[u8], sub: usize) -> SubBlock;
}

/// Runs `$body` with `$format` naming the [`BlockFormat`] of a quantised `$ty`; plain types take `$plain`.
macro_rules! with_block_format {
    ($ty:expr, $format:ident => $body:expr, plain => $plain:expr) => {{
        use $crate::quant::block as formats;
        match $ty {
            $crate::quant::WeightType::F32 | $crate::quant::WeightType::F16 | $crate::quant::WeightType::BF16 => $plain,
            $crate::quant::WeightType::Q4_0 => {
                type $format = formats::Q4_0;
                $body
            }
            $crate::quant::WeightType::Q4_1 => {
                type $format = formats::Q4_1;
                $body
            }
            $crate::quant::WeightType::Q5_0 => {
                type $format = formats::Q5_0;
                $body
            }
            $crate::quant::WeightType::Q5_1 => {
                type $format = formats::Q5_1;
                $body
            }
            $crate::quant::WeightType::Q8_0 => {
                type $format = formats::Q8_0;
                $body
            }
            $crate::quant::WeightType::Q2_K => {
                type $format = formats::Q2K;
                $body
            }
            $crate::quant::WeightType::Q3_K => {
                type $format = formats::Q3K;
                $body
            }
            $crate::quant::WeightType::Q4_K => {
                type $format = formats::Q4K;
                $body
            }
            $crate::quant::WeightType::Q5_K => {
                type $format = formats::Q5K;
                $body
            }
            $crate::quant::WeightType::Q6_K => {
                type $format = formats::Q6K;
                $body
            }
            $crate::quant::WeightType::IQ4_NL => {
                type $format = formats::Iq4Nl;
                $body
            }
            $crate::quant::WeightType::IQ4_XS => {
                type $format = formats::Iq4Xs;
                $body
            }
            $crate::quant::WeightType::MXFP4 => {
                type $format = formats::Mxfp4;
                $body
            }
        }
    }};
}
pub(crate) use with_block_format;

fn f16_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// The 32 codes of 16 bytes: low nibbles are columns 0..16, high nibbles 16..32.
fn nibbles(qs: &[u8]) -> [u8; SUB_COLS] {
    std::array::from_fn(|i| if i < 16 { qs[i] & 15 } else { qs[i - 16] >> 4 })
}

/// The codes at bits `shift..shift + 4` of 32 bytes.
fn nibbles_at(qs: &[u8], shift: usize) -> [u8; SUB_COLS] {
    std::array::from_fn(|i| (qs[i] >> shift) & 15)
}

/// The E8M0 scale 2^(e - 127), halved since MXFP4's table is doubled. Exact, subnormals too.
fn half_e8m0(e: u8) -> f32 {
    match e {
        0 => f32::from_bits(0x0020_0000),
        1 => f32::from_bits(0x0040_0000),
        _ => f32::from_bits((u32::from(e) - 1) << 23),
    }
}

/// The 6-bit (scale, min) of sub-block `sub` in the 12 bytes that Q4_K and Q5_K share.
fn scale_min_k4(scales: &[u8], sub: usize) -> (u8, u8) {
    if sub < 4 {
        return (scales[sub] & 63, scales[sub + 4] & 63);
    }
    let low = scales[sub + 4];
    ((low & 15) | (scales[sub - 4] >> 6 << 4), (low >> 4) | (scales[sub] >> 6 << 4))
}

/// f16 scale, 16 bytes of nibbles; quant = code - 8.
pub(crate) struct Q4_0;

impl BlockFormat for Q4_0 {
    const BYTES: usize = 18;
    const SUBS: usize = 1;
    fn decode(block: &[u8], _sub: usize) -> SubBlock {
        SubBlock::symmetric(f16_at(block, 0), nibbles(&block[2..18]).map(|q| q as i8 - 8))
    }
}

/// f16 scale, f16 min, 16 bytes of nibbles.
pub(crate) struct Q4_1;

impl BlockFormat for Q4_1 {
    const BYTES: usize = 20;
    const SUBS: usize = 1;
    const MINS: bool = true;
    fn decode(block: &[u8], _sub: usize) -> SubBlock {
        SubBlock::with_min(f16_at(block, 0), f16_at(block, 2), nibbles(&block[4..20]).map(|q| q as i8))
    }
}

/// The fifth bits of a Q5_0 or Q5_1 block are bit i of a word for column i.
fn five_bits(high: u32, qs: &[u8]) -> [u8; SUB_COLS] {
    let low = nibbles(qs);
    std::array::from_fn(|i| low[i] | (((high >> i) as u8 & 1) << 4))
}

/// f16 scale, 32 fifth bits, 16 bytes of nibbles; quant = code - 16.
pub(crate) struct Q5_0;

impl BlockFormat for Q5_0 {
    const BYTES: usize = 22;
    const SUBS: usize = 1;
    fn decode(block: &[u8], _sub: usize) -> SubBlock {
        let codes = five_bits(u32_at(block, 2), &block[6..22]);
        SubBlock::symmetric(f16_at(block, 0), codes.map(|q| q as i8 - 16))
    }
}

/// f16 scale, f16 min, 32 fifth bits, 16 bytes of nibbles.
pub(crate) struct Q5_1;

impl BlockFormat for Q5_1 {
    const BYTES: usize = 24;
    const SUBS: usize = 1;
    const MINS: bool = true;
    fn decode(block: &[u8], _sub: usize) -> SubBlock {
        let codes = five_bits(u32_at(block, 4), &block[8..24]);
        SubBlock::with_min(f16_at(block, 0), f16_at(block, 2), codes.map(|q| q as i8))
    }
}

/// f16 scale, 32 signed bytes.
pub(crate) struct Q8_0;

impl BlockFormat for Q8_0 {
    const BYTES: usize = 34;
    const SUBS: usize = 1;
    fn decode(block: &[u8], _sub: usize) -> SubBlock {
        SubBlock::symmetric(f16_at(block, 0), std::array::from_fn(|i| block[2 + i] as i8))
    }
}

/// 16 bytes of 4-bit (scale, min), 64 bytes of 2-bit codes, f16 scale, f16 min.
pub(crate) struct Q2K;

impl BlockFormat for Q2K {
    const BYTES: usize = 84;
    const SUBS: usize = 8;
    const HALVES: bool = true;
    const MINS: bool = true;
    fn decode(block: &[u8], sub: usize) -> SubBlock {
        let (d, dmin) = (f16_at(block, 80), f16_at(block, 82));
        let (at, shift) = (16 + 32 * (sub / 4), 2 * (sub % 4));
        let scale = |half: usize| block[2 * sub + half];
        SubBlock {
            quants: std::array::from_fn(|i| ((block[at + i] >> shift) & 3) as i8),
            scale: [0, 1].map(|half| d * f32::from(scale(half) & 15)),
            min: [0, 1].map(|half| -(dmin * f32::from(scale(half) >> 4))),
        }
    }
}

/// 32 bytes of third bits, 64 bytes of 2-bit codes, 12 bytes of 6-bit scales, f16 scale; quant = code - 4.
pub(crate) struct Q3K;

impl Q3K {
    /// Scale of 16 columns: low 4 bits in 8 bytes of nibbles, high 2 bits in 4 bytes.
    fn scale(scales: &[u8], index: usize) -> i8 {
        let low = if index < 8 { scales[index] & 15 } else { scales[index - 8] >> 4 };
        let high = (scales[8 + index % 4] >> (2 * (index / 4))) & 3;
        (low | (high << 4)) as i8 - 32
    }
}

impl BlockFormat for Q3K {
    const BYTES: usize = 110;
    const SUBS: usize = 8;
    const HALVES: bool = true;
    fn decode(block: &[u8], sub: usize) -> SubBlock {
        let d = f16_at(block, 108);
        let (at, shift) = (32 + 32 * (sub / 4), 2 * (sub % 4));
        let code = |i: usize| ((block[at + i] >> shift) & 3) | (((block[i] >> sub) & 1) << 2);
        SubBlock {
            quants: std::array::from_fn(|i| code(i) as i8 - 4),
            scale: [0, 1].map(|half| d * f32::from(Q3K::scale(&block[96..108], 2 * sub + half))),
            min: [0.0; 2],
        }
    }
}

/// f16 scale, f16 min, 12 bytes of 6-bit (scale, min), 128 bytes of nibbles.
pub(crate) struct Q4K;

impl BlockFormat for Q4K {
    const BYTES: usize = 144;
    const SUBS: usize = 8;
    const MINS: bool = true;
    fn decode(block: &[u8], sub: usize) -> SubBlock {
        let (scale, min) = scale_min_k4(&block[4..16], sub);
        let codes = nibbles_at(&block[16 + 32 * (sub / 2)..], 4 * (sub % 2));
        let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
        SubBlock::with_min(d * f32::from(scale), -(dmin * f32::from(min)), codes.map(|q| q as i8))
    }
}

/// As Q4_K with 32 bytes of fifth bits before the nibbles.
pub(crate) struct Q5K;

impl BlockFormat for Q5K {
    const BYTES: usize = 176;
    const SUBS: usize = 8;
    const MINS: bool = true;
    fn decode(block: &[u8], sub: usize) -> SubBlock {
        let (scale, min) = scale_min_k4(&block[4..16], sub);
        let low = nibbles_at(&block[48 + 32 * (sub / 2)..], 4 * (sub % 2));
        let quants = std::array::from_fn(|i| (low[i] | (((block[16 + i] >> sub) & 1) << 4)) as i8);
        let (d, dmin) = (f16_at(block, 0), f16_at(block, 2));
        SubBlock::with_min(d * f32::from(scale), -(dmin * f32::from(min)), quants)
    }
}

/// 128 bytes of nibbles, 64 bytes of 2 more bits, 16 signed byte scales, f16 scale; quant = code - 32.
pub(crate) struct Q6K;

impl BlockFormat for Q6K {
    const BYTES: usize = 210;
    const SUBS: usize = 8;
    const HALVES: bool = true;
    fn decode(block: &[u8], sub: usize) -> SubBlock {
        let d = f16_at(block, 208);
        let (half, quarter) = (sub / 4, sub % 4);
        let low = nibbles_at(&block[64 * half + 32 * (quarter % 2)..], 4 * (quarter / 2));
        let high = &block[128 + 32 * half..];
        let code = |i: usize| low[i] | (((high[i] >> (2 * quarter)) & 3) << 4);
        SubBlock {
            quants: std::array::from_fn(|i| code(i) as i8 - 32),
            scale: [0, 1].map(|h| d * f32::from(block[192 + 2 * sub + h] as i8)),
            min: [0.0; 2],
        }
    }
}

/// As Q4_0 with codes of a table.
pub(crate) struct Iq4Nl;

impl BlockFormat for Iq4Nl {
    const BYTES: usize = 18;
    const SUBS: usize = 1;
    fn decode(block: &[u8], _sub: usize) -> SubBlock {
        SubBlock::symmetric(f16_at(block, 0), nibbles(&block[2..18]).map(|q| IQ4_VALUES[usize::from(q)]))
    }
}

/// f16 scale, 2 bytes of high scale bits, 4 of low ones, 128 bytes of nibbles that are codes of a table.
pub(crate) struct Iq4Xs;

impl BlockFormat for Iq4Xs {
    const BYTES: usize = 136;
    const SUBS: usize = 8;
    fn decode(block: &[u8], sub: usize) -> SubBlock {
        let high = (u16::from_le_bytes([block[2], block[3]]) >> (2 * sub)) & 3;
        let low = (block[4 + sub / 2] >> (4 * (sub % 2))) & 15;
        let scale = f32::from((low | ((high as u8) << 4)) as i8 - 32);
        let codes = nibbles(&block[8 + 16 * sub..24 + 16 * sub]);
        SubBlock::symmetric(f16_at(block, 0) * scale, codes.map(|q| IQ4_VALUES[usize::from(q)]))
    }
}

/// One exponent byte, 16 bytes of nibbles that are E2M1 numbers.
pub(crate) struct Mxfp4;

impl BlockFormat for Mxfp4 {
    const BYTES: usize = 17;
    const SUBS: usize = 1;
    fn decode(block: &[u8], _sub: usize) -> SubBlock {
        SubBlock::symmetric(half_e8m0(block[0]), nibbles(&block[1..17]).map(|q| MXFP4_VALUES[usize::from(q)]))
    }
}
