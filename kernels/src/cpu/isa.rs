//! Which instruction set the vector code may use, asked of the processor *and* of the operating system.
//!
//! A processor advertises registers that the system may not save; `is_x86_feature_detected!` checks both
//! (CPUID and XGETBV). AMX is left out on purpose: some machines advertise it and fault on its use.

/// A family of vector instructions that kernels are written for, from the most portable up.
///
/// The order is meaningful: a machine that has one has all below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust; runs everywhere, defines what is right.
    Scalar,
    /// AVX2, FMA and F16C (Haswell, Zen and later).
    Avx2,
    /// AVX-512 F, BW, VL, DQ, VNNI, VBMI and GFNI (Ice Lake, Zen 4 and later), with everything of [`Isa::Avx2`].
    Avx512,
}

impl Isa {
    /// All families, in rising order.
    pub const ALL: [Isa; 3] = [Isa::Scalar, Isa::Avx2, Isa::Avx512];

    /// The best family that this processor has and this operating system saves.
    #[cfg(target_arch = "x86_64")]
    pub fn detect() -> Isa {
        if !has_avx2() {
            Isa::Scalar
        } else if !has_avx512() {
            Isa::Avx2
        } else {
            Isa::Avx512
        }
    }

    /// The best family that this processor has and this operating system saves.
    #[cfg(not(target_arch = "x86_64"))]
    pub fn detect() -> Isa {
        Isa::Scalar
    }

    /// The family that was asked for, or the best; `None` when the machine lacks what was asked for.
    pub fn choose(wanted: Option<Isa>) -> Option<Isa> {
        let best = Isa::detect();
        match wanted {
            None => Some(best),
            Some(isa) if isa <= best => Some(isa),
            Some(_) => None,
        }
    }

    /// The families that this machine can run, in rising order.
    pub fn available() -> impl Iterator<Item = Isa> {
        let best = Isa::detect();
        Isa::ALL.into_iter().filter(move |isa| *isa <= best)
    }

    /// The name that options and reports use.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }

    /// The family with this [`Isa::name`].
    pub fn from_name(name: &str) -> Option<Isa> {
        Isa::ALL.into_iter().find(|isa| isa.name() == name)
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vnni")
        && is_x86_feature_detected!("avx512vbmi")
        && is_x86_feature_detected!("gfni")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for isa in Isa::ALL {
            assert_eq!(Isa::from_name(isa.name()), Some(isa));
        }
        assert_eq!(Isa::from_name("amx"), None);
    }

    #[test]
    fn the_best_family_is_chosen_unless_another_is_wanted() {
        assert_eq!(Isa::choose(None), Some(Isa::detect()));
        assert_eq!(Isa::choose(Some(Isa::Scalar)), Some(Isa::Scalar));
        assert_eq!(Isa::available().last(), Some(Isa::detect()));
    }
}
