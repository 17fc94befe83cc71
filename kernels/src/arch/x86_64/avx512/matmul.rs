//! The vector operations of products with AVX-512 VNNI: 16 rows a vector, two panels a tile. The
//! products are in `arch/x86_64/matmul`.

use std::arch::x86_64::*;
use std::ops::Range;

use crate::arch::x86_64::matmul::engine::{self, engine};
use crate::arch::x86_64::matmul::packed::{Codes, GROUPS};
use crate::arch::x86_64::matmul::simd::{PartCodes, Simd, Span, start_value};
use crate::cpu::matmul::Product;

engine!(
    Avx512, Vectors, "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi,gfni", parts: 2, unpacked: Raised,
    alone: 1 [8 4 3 2 1], direct: 2 to 16 [8 4 3 2 1], tile: [6 4 3 2 1],
    plain_direct: 1 [4 3 2 1], plain_tile: [6 4 3 2 1]
);

/// See [`crate::cpu::matmul::matmul`].
///
/// # Safety
/// The machine has the features of [`Isa::Avx512`](crate::cpu::Isa), `panels` are panels of the matrix, and nothing
/// else accesses their rows in the output meanwhile.
pub(crate) unsafe fn matmul(product: &Product, panels: Range<usize>) {
    // SAFETY: the caller's contract.
    unsafe { engine::matmul::<Avx512>(product, panels) }
}

/// 512-bit vectors.
#[derive(Clone, Copy)]
struct Vectors;

/// The lanes of the first `rows` rows.
#[inline(always)]
fn mask(rows: usize) -> __mmask16 {
    ((1_u32 << rows) - 1) as __mmask16
}

/// The matrix by which `vgf2p8affineqb` moves bit 0 of each byte to bit `to` and its neighbours after it, as far as
/// `mask` goes. Byte `7 - i` says which bits of the input make bit `i`.
const fn mover(to: usize, mask: u8) -> u64 {
    let (mut matrix, mut bit) = (0, to);
    while bit < 8 {
        matrix |= ((mask >> bit & 1) as u64) << (8 * (7 - bit) + bit - to);
        bit += 1;
    }
    matrix
}

/// [`mover`] of bits 0 and 1 to 4 and 5, and bit 1 to 6 and 7 too.
const TOP_BITS: u64 = mover(4, 0x30) | 2 << 8 | 2;

impl Simd for Vectors {
    type Int = __m512i;
    type Float = __m512;
    const LANES: usize = 16;
    const REGISTERS: usize = 32;
    const ANY_BYTES: bool = true;
    const RAISES: bool = true;

    #[inline(always)]
    unsafe fn xor(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_xor_si512(a, b) }
    }

    #[inline(always)]
    unsafe fn add8(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_add_epi8(a, b) }
    }

    #[inline(always)]
    unsafe fn shr_signed(v: __m512i, count: usize) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_srav_epi32(v, _mm512_set1_epi32(count as i32)) }
    }

    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_loadu_si512(at.cast()) }
    }

    #[inline(always)]
    unsafe fn splat8(value: i8) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_set1_epi8(value) }
    }

    #[inline(always)]
    unsafe fn splat32(value: i32) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_set1_epi32(value) }
    }

    #[inline(always)]
    unsafe fn table(values: &[i8; 16]) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(values.as_ptr().cast())) }
    }

    #[inline(always)]
    unsafe fn and(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_and_si512(a, b) }
    }

    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    unsafe fn add32(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn sub32(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_sub_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn shr(v: __m512i, count: usize) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_srlv_epi32(v, _mm512_set1_epi32(count as i32)) }
    }

    #[inline(always)]
    unsafe fn shl(v: __m512i, count: usize) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_sllv_epi32(v, _mm512_set1_epi32(count as i32)) }
    }

    #[inline(always)]
    unsafe fn field(v: __m512i, from: usize, to: usize, mask: u8) -> __m512i {
        // One operation on a port that does not multiply. Shifts of all lanes by a number in a register, and all
        // rotations, take one that does (Zen 5).
        // SAFETY: the trait's contract.
        unsafe { _mm512_gf2p8affine_epi64_epi8::<0>(v, _mm512_set1_epi64((mover(to, mask) << from) as i64)) }
    }

    #[inline(always)]
    unsafe fn top_bits(v: __m512i, from: usize) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_gf2p8affine_epi64_epi8::<0x60>(v, _mm512_set1_epi64((TOP_BITS << from) as i64)) }
    }

    #[inline(always)]
    unsafe fn look_up(table: __m512i, bytes: __m512i) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_permutexvar_epi8(bytes, table) }
    }

    #[inline(always)]
    unsafe fn select_less(v: __m512i, bound: i32, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_mask_blend_epi32(_mm512_cmplt_epi32_mask(v, _mm512_set1_epi32(bound)), b, a) }
    }

    #[inline(always)]
    unsafe fn broadcast32(at: *const u8) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_set1_epi32(at.cast::<i32>().read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn load_u8(at: *const u8) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(at.cast())) }
    }

    #[inline(always)]
    unsafe fn load_i8(at: *const u8) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(at.cast())) }
    }

    #[inline(always)]
    unsafe fn load_high_u16(at: *const u8) -> __m512i {
        // SAFETY: the trait's contract.
        unsafe { _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(at.cast()))) }
    }

    #[inline(always)]
    unsafe fn to_float(v: __m512i) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_cvtepi32_ps(v) }
    }

    #[inline(always)]
    unsafe fn float_bits(v: __m512i) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_castsi512_ps(v) }
    }

    #[inline(always)]
    unsafe fn zero() -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn load_f16(at: *const u8) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(at.cast())) }
    }

    #[inline(always)]
    unsafe fn load_f32(at: *const f32) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_loadu_ps(at) }
    }

    #[inline(always)]
    unsafe fn store_f32(at: *mut f32, v: __m512) {
        // SAFETY: the trait's contract.
        unsafe { _mm512_storeu_ps(at, v) }
    }

    #[inline(always)]
    unsafe fn load_rows(at: *const f32, rows: usize) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_maskz_loadu_ps(mask(rows), at) }
    }

    #[inline(always)]
    unsafe fn store_rows(at: *mut f32, v: __m512, rows: usize) {
        // SAFETY: the trait's contract.
        unsafe { _mm512_mask_storeu_ps(at, mask(rows), v) }
    }

    #[inline(always)]
    unsafe fn broadcast_f32(at: *const u8) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_set1_ps(at.cast::<f32>().read_unaligned()) }
    }

    #[inline(always)]
    unsafe fn splat_f32(value: f32) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: the trait's contract.
        unsafe { _mm512_fmadd_ps(a, b, c) }
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
    ) -> [[__m512i; T]; P] {
        // SAFETY: the trait's contract.
        unsafe {
            let mut dots = starts::<C, T, P>(Span::Whole, acts);
            for g in 0..GROUPS {
                add_group(&mut dots, codes, g, acts);
            }
            dots
        }
    }

    #[inline(always)]
    unsafe fn half_dots<C: Codes, const T: usize, const P: usize>(
        codes: &impl PartCodes<Self>,
        acts: &[*const u8; T],
    ) -> [[[__m512i; T]; P]; 2] {
        // SAFETY: the trait's contract.
        unsafe {
            let [mut low, mut high] = [starts::<C, T, P>(Span::Low, acts), starts::<C, T, P>(Span::High, acts)];
            for g in 0..GROUPS / 2 {
                add_group(&mut low, codes, g, acts);
            }
            for g in GROUPS / 2..GROUPS {
                add_group(&mut high, codes, g, acts);
            }
            [low, high]
        }
    }
}

/// What the dot products start from.
#[inline(always)]
unsafe fn starts<C: Codes, const T: usize, const P: usize>(span: Span, acts: &[*const u8; T]) -> [[__m512i; T]; P] {
    // SAFETY: the caller has AVX-512; `acts` point to blocks of activations.
    unsafe {
        let mut starts = [[_mm512_setzero_si512(); T]; P];
        for (t, act) in acts.iter().enumerate() {
            let start = start_value::<Vectors, C>(span, *act);
            for starts in &mut starts {
                starts[t] = start;
            }
        }
        starts
    }
}

/// Adds the products of vector `g` of codes.
#[inline(always)]
unsafe fn add_group<const T: usize, const P: usize>(
    dots: &mut [[__m512i; T]; P],
    codes: &impl PartCodes<Vectors>,
    g: usize,
    acts: &[*const u8; T],
) {
    // SAFETY: the caller has AVX-512; `acts` point to blocks of activations.
    unsafe {
        let mut quants = [_mm512_setzero_si512(); P];
        for (part, quants) in quants.iter_mut().enumerate() {
            *quants = codes.vector(part, g);
        }
        for (t, act) in acts.iter().enumerate() {
            // One broadcast serves all vectors: loads would bound the loop otherwise.
            let act = Vectors::broadcast32(act.add(4 * g));
            for (dots, quants) in dots.iter_mut().zip(quants) {
                dots[t] = _mm512_dpbusd_epi32(dots[t], quants, act);
            }
        }
    }
}
