//! The value tables of the types whose 4-bit codes are not numbers themselves (facts of the formats).

/// IQ4_NL and IQ4_XS: value of a code, in units of the block's scale.
pub(crate) const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// MXFP4 (E2M1): twice the value of a code, so that all are integers; the scale is halved in turn.
pub(crate) const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];
