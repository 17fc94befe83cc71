//! Where a plan is looked for, as pure rules: names, and the choice among cached ones. Looking is up to the runtime.
//!
//! In order: the plan that was named; `<stem>.atsplan` beside the model's first shard; the user's cache; else one is
//! compiled into the cache. A stale plan in the cache is made again, elsewhere it is refused.

use crate::fingerprint::{DeviceFingerprint, ModelFingerprint};
use std::path::{Path, PathBuf};

/// Extension of plan files.
pub const EXTENSION: &str = "atsplan";
/// Folder in the user's cache.
pub const CACHE_FOLDER: &str = "ats";
/// Ceilings of plans that are compiled unasked are multiples of this.
pub const CEILING_STEP_MIB: u64 = 256;
/// GPU memory that plans compiled unasked leave to others.
pub const HEADROOM_MIB: u64 = 256;
/// A cached ceiling is good enough from this share of what is free.
const CEILING_PERCENT_LEAST: u64 = 90;

/// The plan beside a model, given the path of its first shard.
pub fn beside(first_shard: &Path) -> PathBuf {
    first_shard.with_extension(EXTENSION)
}

/// Ceiling of a plan that is compiled unasked where so much GPU memory is free.
pub fn unasked_ceiling_mib(free_mib: u64) -> u64 {
    free_mib.saturating_sub(HEADROOM_MIB) / CEILING_STEP_MIB * CEILING_STEP_MIB
}

/// What a cached plan's name says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheName {
    /// [`ModelFingerprint::id`].
    pub model: String,
    /// [`DeviceFingerprint::slug`].
    pub device: String,
    /// Ceiling of GPU memory in MiB; 0 = none is used.
    pub vram_mib: u64,
    /// Planned context.
    pub context_tokens: u32,
}

impl CacheName {
    /// The name of a plan.
    pub fn new(model: &ModelFingerprint, device: &DeviceFingerprint, vram_mib: u64, context_tokens: u32) -> Self {
        CacheName { model: model.id(), device: device.slug(), vram_mib, context_tokens }
    }

    /// `<16 hex>-<device>-<vram MiB>-<context>.atsplan`.
    pub fn file_name(&self) -> String {
        format!("{}-{}-{}-{}.{EXTENSION}", self.model, self.device, self.vram_mib, self.context_tokens)
    }

    /// Reads a file name; `None` if it is not one of these.
    pub fn parse(file_name: &str) -> Option<Self> {
        let stem = file_name.strip_suffix(EXTENSION)?.strip_suffix('.')?;
        let (model, rest) = stem.split_once('-')?;
        let (rest, context_tokens) = rest.rsplit_once('-')?;
        let (device, vram_mib) = rest.rsplit_once('-')?;
        let name = CacheName {
            model: model.to_owned(),
            device: device.to_owned(),
            vram_mib: vram_mib.parse().ok()?,
            context_tokens: context_tokens.parse().ok()?,
        };
        // Rejects other spellings of the same numbers, so that a name and its fields are one to one.
        (model.len() == 16 && name.file_name() == file_name).then_some(name)
    }
}

/// GPU memory that a plan may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ceiling {
    /// The user named it.
    Exactly(u64),
    /// What is free less headroom, in MiB.
    AtMost(u64),
}

impl Ceiling {
    fn accepts(self, vram_mib: u64) -> bool {
        match self {
            Ceiling::Exactly(mib) => vram_mib == mib,
            Ceiling::AtMost(mib) => vram_mib <= mib && vram_mib * 100 >= mib.saturating_mul(CEILING_PERCENT_LEAST),
        }
    }

    /// The ceiling to compile for if no cached plan is accepted, in MiB.
    pub fn to_compile_mib(self) -> u64 {
        match self {
            Ceiling::Exactly(mib) => mib,
            Ceiling::AtMost(mib) => mib / CEILING_STEP_MIB * CEILING_STEP_MIB,
        }
    }
}

/// The best of the cached plans: of this model and device, within the ceiling, with at least this context; the largest
/// ceiling first, then the shortest context.
pub fn best_cached<'a>(
    file_names: impl IntoIterator<Item = &'a str>,
    model: &ModelFingerprint,
    device: &DeviceFingerprint,
    ceiling: Ceiling,
    context_tokens: u32,
) -> Option<&'a str> {
    let (model, device) = (model.id(), device.slug());
    let named = file_names.into_iter().filter_map(|name| Some((name, CacheName::parse(name)?)));
    let fitting = named.filter(|(_, name)| {
        name.model == model
            && name.device == device
            && ceiling.accepts(name.vram_mib)
            && name.context_tokens >= context_tokens
    });
    fitting.max_by_key(|(_, name)| (name.vram_mib, std::cmp::Reverse(name.context_tokens))).map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> ModelFingerprint {
        ModelFingerprint { file_sizes_bytes: vec![7], headers_hash: [1; 32], samples_hash: [2; 32] }
    }

    fn device() -> DeviceFingerprint {
        DeviceFingerprint { cpu_model: "Some-CPU 9".to_owned(), cpu_cores: 4, gpu: None }
    }

    #[test]
    fn names_are_read_back() {
        let name = CacheName::new(&model(), &device(), 6144, 8192);
        assert_eq!(CacheName::parse(&name.file_name()), Some(name.clone()));
        for other in ["x.gguf", "a-b-1-2.atsplan", "", ".atsplan", "0123456789abcdef-d-06-1.atsplan"] {
            assert_eq!(CacheName::parse(other), None, "{other}");
        }
    }

    #[test]
    fn unasked_ceilings_leave_headroom_and_are_whole_steps() {
        for (free, ceiling) in [(0, 0), (256, 0), (511, 0), (512, 256), (6143, 5632), (6144, 5888)] {
            assert_eq!(unasked_ceiling_mib(free), ceiling, "{free}");
        }
    }

    #[track_caller]
    fn check(ceiling: Ceiling, context_tokens: u32, expected: Option<(u64, u32)>) {
        let name = |vram, context| CacheName::new(&model(), &device(), vram, context).file_name();
        let mut names: Vec<String> =
            [(4096, 8192), (5888, 8192), (5888, 2048), (6144, 4096), (0, 8192)].map(|(v, c)| name(v, c)).into();
        names.push("stray file".to_owned());
        let found = best_cached(names.iter().map(String::as_str), &model(), &device(), ceiling, context_tokens);
        assert_eq!(found.map(str::to_owned), expected.map(|(v, c)| name(v, c)));
    }

    #[test]
    fn the_largest_ceiling_that_fits_is_taken_from_90_percent_on() {
        check(Ceiling::AtMost(6200), 2048, Some((6144, 4096)));
        check(Ceiling::AtMost(6200), 8192, Some((5888, 8192)));
        check(Ceiling::AtMost(6000), 2048, Some((5888, 2048)));
        check(Ceiling::AtMost(5000), 2048, None);
        check(Ceiling::AtMost(4551), 2048, Some((4096, 8192)));
        check(Ceiling::AtMost(0), 2048, Some((0, 8192)));
        check(Ceiling::Exactly(4096), 8192, Some((4096, 8192)));
        check(Ceiling::Exactly(4096), 9000, None);
        assert_eq!(Ceiling::AtMost(5000).to_compile_mib(), 4864);
    }

    #[test]
    fn plans_of_other_models_and_devices_are_not_taken() {
        let name = CacheName::new(&model(), &device(), 0, 8192).file_name();
        let other_model = ModelFingerprint { samples_hash: [3; 32], ..model() };
        let other_device = DeviceFingerprint { cpu_cores: 8, ..device() };
        let names = || [name.as_str()];
        assert!(best_cached(names(), &model(), &device(), Ceiling::Exactly(0), 1).is_some());
        assert_eq!(best_cached(names(), &other_model, &device(), Ceiling::Exactly(0), 1), None);
        assert_eq!(best_cached(names(), &model(), &other_device, Ceiling::Exactly(0), 1), None);
    }
}
