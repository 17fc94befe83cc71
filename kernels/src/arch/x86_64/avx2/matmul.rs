//! The vector operations of products with AVX2: 8 rows a vector, two vectors a panel. The products are in
//! `arch/x86_64/matmul`. Processors that have AVX-VNNI too get its dot products; the results have the same bits.
//!
//! What its ports allow, for a sub-block of a panel (16 rows by 32 columns) and T tokens, on Zen 5 at 4.15 GHz: two
//! ports multiply (`vpdpbusd`, products, fused multiply-adds), the other two shift and convert, all four do the rest,
//! two loads a cycle (timed: loops of one instruction). Multiplications: 16 T `vpdpbusd` and 4 T for scaling, 2 T more
//! for mins or scales of halves, so 10 T or 11 T cycles. Once, whatever T: unpacking, 16 operations (Q8_0) to 96 (Q5_K,
//! Q6_K), and scales, 2 to 21. GB/s of one core, by these counts, and measured with weights in the second cache; then
//! the share of a plain read that two cores reach from memory:
//!
//! | type | bytes | 1 token | 2 tokens | 4 tokens |
//! | --- | --- | --- | --- | --- |
//! | Q4_0 | 288 | 98, 66, 0.96 | 59, 39, 0.90 | 30, 24, 0.64 |
//! | Q4_1 | 320 | 102, 67, 0.98 | 59, 42, 0.98 | 30, 24, 0.64 |
//! | Q8_0 | 544 | 146, 109, 0.97 | 108, 84, 0.95 | 56, 45, 0.74 |
//! | Q4_K | 288 | 77, 48, 0.97 | 49, 35, 0.84 | 26, 20, 0.57 |
//! | Q5_K | 352 | 41, 30, 0.65 | 35, 24, 0.61 | 27, 16, 0.45 |
//! | Q6_K | 420 | 51, 41, 0.88 | 42, 30, 0.76 | 31, 20, 0.53 |
//! | MXFP4 | 272 | 59, 39, 0.96 | 46, 30, 0.74 | 27, 20, 0.55 |
//! | IQ4_XS | 272 | 56, 42, 0.97 | 44, 31, 0.80 | 27, 21, 0.53 |
//!
//! A plain read gives a core 37 GB/s here, of which 0.80 are 30: with four tokens the multiplying ports alone allow
//! that to Q8_0 and barely to the rest. What is missing to the ports is registers: 16 hold neither sums and dot
//! products of four tokens in two vectors nor the codes beside them. AVX-512 has twice the width and twice the
//! registers. Without AVX-VNNI (`vpmaddubsw`, `vpaddw`, `vpmaddwd`) one token reaches 26 to 79 GB/s a core, four 14 to
//! 19, with codes of a table 7.
//!
//! F16 and BF16: with converted weights 3 tokens have 12 sums in two chains, 2 weights and 1 activation, 15 of the 16
//! registers; 4 tokens spill (512 tokens on Granite Rapids 0.47 of the multiply-add peak by tiles of 4, 0.72 by 3).
//! 8 tokens are read and converted three times, from the second cache but the first time (0.32 to 0.41).

use std::arch::x86_64::*;
use std::ops::Range;

use crate::arch::x86_64::matmul::engine::{self, engine};
use crate::arch::x86_64::matmul::packed::Codes;
use crate::arch::x86_64::matmul::simd::{PartCodes, Simd, Span, start_value};
use crate::cpu::matmul::Product;

engine!(
    Words, WordVectors, "avx2,fma,f16c", parts: 2, unpacked: Narrow,
    alone: 2 [1], direct: 2 to 4 [4 3 2 1], tile: [4 2 1], plain_direct: 2 [3 2 1], plain_tile: [3 2 1]
);

engine!(
    Vnni, VnniVectors, "avx2,fma,f16c,avxvnni", parts: 2, unpacked: Raised,
    alone: 2 [1], direct: 2 to 4 [4 3 2 1], tile: [4 2 1], plain_direct: 2 [3 2 1], plain_tile: [3 2 1]
);

/// How 8-bit products are summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DotProducts {
    /// `vpmaddubsw`, sums in 16 bits as long as they fit, then `vpmaddwd`.
    Words,
    /// `vpdpbusd`.
    Vnni,
}

impl DotProducts {
    /// The best of this machine.
    pub(crate) fn detect() -> DotProducts {
        if is_x86_feature_detected!("avxvnni") { DotProducts::Vnni } else { DotProducts::Words }
    }
}

/// See [`crate::cpu::matmul::matmul`].
///
/// # Safety
/// The machine has the features of [`Isa::Avx2`](crate::cpu::Isa) and those of `dots`, `panels` are panels of the
/// matrix, and nothing else accesses their rows in the output meanwhile.
pub(crate) unsafe fn matmul(dots: DotProducts, product: &Product, panels: Range<usize>) {
    // SAFETY: the caller's contract.
    unsafe {
        match dots {
            DotProducts::Words => engine::matmul::<Words>(product, panels),
            DotProducts::Vnni => engine::matmul::<Vnni>(product, panels),
        }
    }
}

/// All bits of the lanes of the first `rows` rows.
#[inline(always)]
unsafe fn mask(rows: usize) -> __m256i {
    // SAFETY: the caller has AVX2.
    unsafe { _mm256_cmpgt_epi32(_mm256_set1_epi32(rows as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)) }
}

/// What the dot products of `T` tokens start from.
#[inline(always)]
unsafe fn start_values<S: Simd<Int = __m256i>, C: Codes, const T: usize>(
    span: Span,
    acts: &[*const u8; T],
) -> [__m256i; T] {
    // SAFETY: the caller has AVX2; `acts` point to blocks of activations.
    unsafe {
        let mut starts = [_mm256_setzero_si256(); T];
        for (start, act) in starts.iter_mut().zip(acts) {
            *start = start_value::<S, C>(span, *act);
        }
        starts
    }
}

/// Implements [`Simd`] for 256-bit vectors, but for the dot products.
macro_rules! vectors {
    ($(#[$doc:meta])* $name:ident any_bytes: $any_bytes:literal, $dots:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        struct $name;

        impl Simd for $name {
    type Int = __m256i;
    type Float = __m256;
    const LANES: usize = 8;
    const REGISTERS: usize = 16;
    const ANY_BYTES: bool = $any_bytes;
    const RAISES: bool = false;

    #[inline(always)]
    unsafe fn xor(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_xor_si256(a, b) }
    }

    #[inline(always)]
    unsafe fn add8(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_add_epi8(a, b) }
    }

    #[inline(always)]
    unsafe fn shr_signed(v: __m256i, count: usize) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_srav_epi32(v, _mm256_set1_epi32(count as i32)) }
    }


    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_loadu_si256(at.cast()) }
    }

    #[inline(always)]
    unsafe fn splat8(value: i8) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_set1_epi8(value) }
    }

    #[inline(always)]
    unsafe fn splat32(value: i32) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_set1_epi32(value) }
    }

    #[inline(always)]
    unsafe fn table(values: &[i8; 16]) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(values.as_ptr().cast())) }
    }

    #[inline(always)]
    unsafe fn and(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_and_si256(a, b) }
    }

    #[inline(always)]
    unsafe fn or(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_or_si256(a, b) }
    }

    #[inline(always)]
    unsafe fn add32(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_add_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn sub32(a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_sub_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn shr(v: __m256i, count: usize) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_srlv_epi32(v, _mm256_set1_epi32(count as i32)) }
    }

    #[inline(always)]
    unsafe fn shl(v: __m256i, count: usize) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_sllv_epi32(v, _mm256_set1_epi32(count as i32)) }
    }

    #[inline(always)]
    unsafe fn field(v: __m256i, from: usize, to: usize, mask: u8) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe {
            // Down, then up: the other way round it would depend on `from` which way to shift.
            let field = Self::and(Self::shr(v, from), Self::splat8((mask >> to) as i8));
            if to == 0 { field } else { Self::shl(field, to) }
        }
    }

    #[inline(always)]
    unsafe fn top_bits(v: __m256i, from: usize) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { Self::field(v, from, 4, 0x30) }
    }

    #[inline(always)]
    unsafe fn look_up(table: __m256i, bytes: __m256i) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_shuffle_epi8(table, Self::and(bytes, Self::splat8(15))) }
    }

    #[inline(always)]
    unsafe fn select_less(v: __m256i, bound: i32, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_blendv_epi8(b, a, _mm256_cmpgt_epi32(_mm256_set1_epi32(bound), v)) }
    }

    #[inline(always)]
    unsafe fn broadcast32(at: *const u8) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_set1_epi32(at.cast::<i32>().read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn load_u8(at: *const u8) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_cvtepu8_epi32(_mm_loadl_epi64(at.cast())) }
    }

    #[inline(always)]
    unsafe fn load_i8(at: *const u8) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast())) }
    }

    #[inline(always)]
    unsafe fn load_high_u16(at: *const u8) -> __m256i {
        // SAFETY: the trait's contract.
        unsafe { _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(at.cast()))) }
    }

    #[inline(always)]
    unsafe fn to_float(v: __m256i) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_cvtepi32_ps(v) }
    }

    #[inline(always)]
    unsafe fn float_bits(v: __m256i) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_castsi256_ps(v) }
    }

    #[inline(always)]
    unsafe fn zero() -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn load_f16(at: *const u8) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
    }

    #[inline(always)]
    unsafe fn load_f32(at: *const f32) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_loadu_ps(at) }
    }

    #[inline(always)]
    unsafe fn store_f32(at: *mut f32, v: __m256) {
        // SAFETY: the trait's contract.
        unsafe { _mm256_storeu_ps(at, v) }
    }

    #[inline(always)]
    unsafe fn load_rows(at: *const f32, rows: usize) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_maskload_ps(at, mask(rows)) }
    }

    #[inline(always)]
    unsafe fn store_rows(at: *mut f32, v: __m256, rows: usize) {
        // SAFETY: the trait's contract.
        unsafe { _mm256_maskstore_ps(at, mask(rows), v) }
    }

    #[inline(always)]
    unsafe fn broadcast_f32(at: *const u8) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_set1_ps(at.cast::<f32>().read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn splat_f32(value: f32) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: the trait's contract.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: the trait's contract.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) }
    }

    #[inline(always)]
    unsafe fn prefetch_far(at: *const u8) {
        // SAFETY: the trait's contract.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(at.cast()) }
    }

    #[inline(always)]
    unsafe fn dots<C: Codes, const T: usize, const P: usize>(
        codes: &impl PartCodes<Self>,
        acts: &[*const u8; T],
    ) -> [[__m256i; T]; P] {
        // SAFETY: the trait's contract.
        unsafe { $dots::<C, T, P>(Span::Whole, codes, acts) }
    }

    #[inline(always)]
    unsafe fn half_dots<C: Codes, const T: usize, const P: usize>(
        codes: &impl PartCodes<Self>,
        acts: &[*const u8; T],
    ) -> [[[__m256i; T]; P]; 2] {
        // SAFETY: the trait's contract.
        unsafe { [$dots::<C, T, P>(Span::Low, codes, acts), $dots::<C, T, P>(Span::High, codes, acts)] }
    }
        }
    };
}

vectors! {
    /// Dot products by way of 16-bit sums.
    WordVectors any_bytes: false, word_dots
}

vectors! {
    /// Dot products by `vpdpbusd`.
    VnniVectors any_bytes: true, vnni_dots
}

/// Dot products of a span of columns by way of 16-bit sums.
#[inline(always)]
unsafe fn word_dots<C: Codes, const T: usize, const P: usize>(
    span: Span,
    codes: &impl PartCodes<WordVectors>,
    acts: &[*const u8; T],
) -> [[__m256i; T]; P] {
    // SAFETY: as the caller's.
    unsafe {
        let mut dots = [start_values::<WordVectors, C, T>(span, acts); P];
        // Written out, since the compiler keeps what a loop indexes in memory. A panel has two vectors.
        add_word_products::<C, T>(&mut dots[0], span, (codes, 0), acts);
        if P > 1 {
            add_word_products::<C, T>(&mut dots[P - 1], span, (codes, P - 1), acts);
        }
        dots
    }
}

/// Adds the products of a span of columns of one vector of rows.
#[inline(always)]
unsafe fn add_word_products<C: Codes, const T: usize>(
    dots: &mut [__m256i; T],
    span: Span,
    codes: (&impl PartCodes<WordVectors>, usize),
    acts: &[*const u8; T],
) {
    for first in span.groups().step_by(C::WORD_GROUPS) {
        let groups = first..span.groups().end.min(first + C::WORD_GROUPS);
        // SAFETY: as the caller's.
        unsafe { add_words::<C, T>(dots, groups, codes, acts) };
    }
}

/// Adds the products of some vectors, few enough that their sums fit 16 bits.
#[inline(always)]
unsafe fn add_words<C: Codes, const T: usize>(
    dots: &mut [__m256i; T],
    groups: Range<usize>,
    (codes, part): (&impl PartCodes<WordVectors>, usize),
    acts: &[*const u8; T],
) {
    // SAFETY: the caller has AVX2; `acts` point to blocks of activations.
    unsafe {
        let mut words = [_mm256_setzero_si256(); T];
        for g in groups {
            let code = codes.vector(part, g);
            for (words, act) in words.iter_mut().zip(acts) {
                let act = WordVectors::broadcast32(act.add(4 * g));
                let product = if C::SIGNED {
                    _mm256_maddubs_epi16(_mm256_abs_epi8(code), _mm256_sign_epi8(act, code))
                } else {
                    _mm256_maddubs_epi16(code, act)
                };
                *words = _mm256_add_epi16(*words, product);
            }
        }
        for (dot, words) in dots.iter_mut().zip(words) {
            *dot = _mm256_add_epi32(*dot, _mm256_madd_epi16(words, _mm256_set1_epi16(1)));
        }
    }
}

/// Dot products of a span of columns by `vpdpbusd`.
#[inline(always)]
unsafe fn vnni_dots<C: Codes, const T: usize, const P: usize>(
    span: Span,
    codes: &impl PartCodes<VnniVectors>,
    acts: &[*const u8; T],
) -> [[__m256i; T]; P] {
    // SAFETY: as the caller's.
    unsafe {
        let mut dots = [start_values::<VnniVectors, C, T>(span, acts); P];
        // Written out, since the compiler keeps what a loop indexes in memory. A panel has two vectors.
        add_products(&mut dots[0], span, (codes, 0), acts);
        if P > 1 {
            add_products(&mut dots[P - 1], span, (codes, P - 1), acts);
        }
        dots
    }
}

/// Adds the products of a span of columns of one vector of rows.
#[inline(always)]
unsafe fn add_products<const T: usize>(
    dots: &mut [__m256i; T],
    span: Span,
    (codes, part): (&impl PartCodes<VnniVectors>, usize),
    acts: &[*const u8; T],
) {
    // SAFETY: as the caller's.
    unsafe {
        for g in span.groups() {
            let code = codes.vector(part, g);
            for (dot, act) in dots.iter_mut().zip(acts) {
                *dot = _mm256_dpbusd_avx_epi32(*dot, code, VnniVectors::broadcast32(act.add(4 * g)));
            }
        }
    }
}
