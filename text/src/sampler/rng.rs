//! The random numbers of sampling: xoshiro256++ (Blackman and Vigna, 2018), seeded by SplitMix64.
//!
//! Own code of thirty lines, so that a seed gives the same text for ever, whatever version a crate has.

/// A generator; its whole state follows from the seed.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The generator of `seed`.
    pub fn new(seed: u64) -> Rng {
        let mut counter = seed;
        let mut next = || {
            counter = counter.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mixed = (counter ^ counter >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
            mixed ^ mixed >> 31
        };
        Rng { state: [next(), next(), next(), next()] }
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ b << 17, d.rotate_left(45)];
        result
    }

    /// The next number from 0 (included) to 1 (excluded), of 53 random bits.
    pub fn next_unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published algorithm, written as its authors write it.
    fn published(state: &mut [u64; 4]) -> u64 {
        let result = state[0].wrapping_add(state[3]).rotate_left(23).wrapping_add(state[0]);
        let shifted = state[1] << 17;
        state[2] ^= state[0];
        state[3] ^= state[1];
        state[1] ^= state[2];
        state[0] ^= state[3];
        state[2] ^= shifted;
        state[3] = state[3].rotate_left(45);
        result
    }

    #[test]
    fn numbers_are_those_of_the_published_algorithm() {
        let mut rng = Rng::new(0);
        // The first outputs of SplitMix64 for the seed 0, as published.
        assert_eq!(rng.state[..2], [0xE220_A839_7B1D_CDAF, 0x6E78_9E6A_A1B9_65F4]);
        let mut state = rng.state;
        for _ in 0..1000 {
            assert_eq!(rng.next_u64(), published(&mut state));
        }
    }

    #[test]
    fn units_fill_their_interval_evenly() {
        let mut rng = Rng::new(7);
        let mut counts = [0; 10];
        for _ in 0..100_000 {
            counts[(rng.next_unit() * 10.0) as usize] += 1;
        }
        assert!(counts.iter().all(|&count| (9_600..10_400).contains(&count)), "{counts:?}");
    }
}
