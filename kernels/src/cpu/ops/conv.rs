//! Causal depthwise convolution over tokens, followed by silu, with its state.
//!
//! May be split by channels only: tokens follow one another. A channel's bits are the same for any split of its
//! tokens into calls, since taps are summed oldest first for each token. Not here: the delta net that reads the result.

use super::math;
use super::simd::{Kernel, LANES, Simd, dispatch};
use super::view::{View, ViewMut};
use crate::cpu::Isa;

/// Largest filter length.
pub const TAPS_MAX: usize = 8;

/// Convolves the tokens of one sequence, in order, and leaves the state after the last.
///
/// `x` and `out` are \[tokens, channels\]; `filter` is \[channels, taps\] (tap `taps − 1` is the current token) and
/// `state` \[channels, taps − 1\], the last inputs, oldest first; all four cover the same channels.
///
/// # Panics
/// When shapes differ or taps are not 1..=[`TAPS_MAX`].
pub fn causal_conv_silu(isa: Isa, x: View, filter: View, state: ViewMut, out: ViewMut) {
    let taps = filter.cols();
    assert!((1..=TAPS_MAX).contains(&taps), "{taps} taps");
    assert_eq!((x.rows(), x.cols()), (out.rows(), out.cols()), "operand and result differ in shape");
    assert_eq!((filter.rows(), state.rows()), (x.cols(), x.cols()), "one filter and state per channel");
    assert_eq!(state.cols(), taps - 1, "the state holds taps − 1 inputs");
    dispatch(isa, Conv { x, filter, state, out });
}

struct Conv<'a> {
    x: View<'a>,
    filter: View<'a>,
    state: ViewMut<'a>,
    out: ViewMut<'a>,
}

impl Kernel for Conv<'_> {
    type Output = ();

    #[inline(always)]
    fn run<V: Simd>(mut self) {
        for first in (0..self.x.cols()).step_by(LANES) {
            let count = LANES.min(self.x.cols() - first);
            self.run_channels::<V>(first, count);
        }
    }
}

impl Conv<'_> {
    /// All tokens of up to sixteen channels, the filter and the last inputs in registers.
    #[expect(clippy::needless_range_loop, reason = "taps index several arrays in step")]
    #[inline(always)]
    fn run_channels<V: Simd>(&mut self, first: usize, count: usize) {
        let taps = self.filter.cols();
        let mut filter = [V::zero(); TAPS_MAX];
        let mut inputs = [V::zero(); TAPS_MAX];
        for tap in 0..taps {
            filter[tap] = gather::<V>(count, |c| self.filter.row(first + c)[tap]);
        }
        for tap in 0..taps - 1 {
            inputs[tap] = gather::<V>(count, |c| self.state.row_mut(first + c)[tap]);
        }
        for t in 0..self.x.rows() {
            inputs[taps - 1] = V::load_part(&self.x.row(t)[first..][..count]);
            let mut sum = inputs[0].mul(filter[0]);
            for tap in 1..taps {
                sum = inputs[tap].mul_add(filter[tap], sum);
            }
            math::silu(sum).store_part(&mut self.out.row_mut(t)[first..][..count]);
            for tap in 1..taps {
                inputs[tap - 1] = inputs[tap];
            }
        }
        for tap in 0..taps - 1 {
            let mut lanes = [0.0; LANES];
            inputs[tap].store(&mut lanes);
            (0..count).for_each(|c| self.state.row_mut(first + c)[tap] = lanes[c]);
        }
    }
}

/// One value per channel, which lie apart in memory.
#[inline(always)]
fn gather<V: Simd>(count: usize, mut at: impl FnMut(usize) -> f32) -> V {
    let mut lanes = [0.0; LANES];
    for (c, lane) in lanes.iter_mut().enumerate().take(count) {
        *lane = at(c);
    }
    V::load(&lanes)
}
