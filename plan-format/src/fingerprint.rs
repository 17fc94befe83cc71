//! Which model and which machine a plan is for.
//!
//! A model's fingerprint is made of its files' sizes, the BLAKE3 of their headers (all keys and the tensor table) and
//! the BLAKE3 of samples of every tensor: its first, middle and last [`SAMPLE_BYTES`], or all of it if that is no more
//! than three samples. It costs one pass over 12 KiB a tensor instead of the whole file.
//!
//! **What it misses**: bytes changed only between the samples, that is a tensor edited in part. Other weights of the
//! same shape (another fine-tune, another quantisation) differ everywhere and are caught; a bit that rotted on disk
//! mostly is not. [`full_hash`] reads everything: `ats-plan compile --full-hash` keeps it in the plan, and
//! `ats-run verify --full-hash` compares it.
//!
//! Pure: headers and samples are bytes of a model that somebody else opened. Next: `find.rs`.

use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::ops::Range;

/// Length of a sample.
pub const SAMPLE_BYTES: u64 = 4096;

/// What identifies a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelFingerprint {
    /// Sizes of its files.
    pub file_sizes_bytes: Vec<u64>,
    /// BLAKE3 of the headers.
    pub headers_hash: [u8; 32],
    /// BLAKE3 of the samples.
    pub samples_hash: [u8; 32],
}

/// A fingerprint under construction: every file's header first to last, then every tensor's samples, in file order.
#[derive(Clone, Debug, Default)]
pub struct Fingerprinter {
    file_sizes_bytes: Vec<u64>,
    headers: blake3::Hasher,
    samples: blake3::Hasher,
}

impl Fingerprinter {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A file of `size_bytes` with its header (everything before the tensor data).
    pub fn file(&mut self, size_bytes: u64, header: &[u8]) {
        self.file_sizes_bytes.push(size_bytes);
        self.headers.update(&(header.len() as u64).to_le_bytes());
        self.headers.update(header);
    }

    /// One sample: the bytes of one of [`sample_ranges`].
    pub fn sample(&mut self, bytes: &[u8]) {
        self.samples.update(&(bytes.len() as u64).to_le_bytes());
        self.samples.update(bytes);
    }

    /// The fingerprint.
    pub fn finish(&self) -> ModelFingerprint {
        ModelFingerprint {
            file_sizes_bytes: self.file_sizes_bytes.clone(),
            headers_hash: *self.headers.finalize().as_bytes(),
            samples_hash: *self.samples.finalize().as_bytes(),
        }
    }
}

/// The fingerprint of an open model. Tensors of unknown types have no known size and are covered by the header alone;
/// no plan can use them.
///
/// # Errors
/// A tensor lies outside its file, which a model that was opened rules out.
pub fn of_model(model: &gguf::Model) -> Result<ModelFingerprint, gguf::GgufError> {
    let mut print = Fingerprinter::new();
    for (index, file) in model.files().iter().enumerate() {
        let bytes = model.file_bytes(index);
        let header = usize::try_from(file.header_bytes).unwrap_or(usize::MAX).min(bytes.len());
        print.file(file.len_bytes, &bytes[..header]);
    }
    for tensor in model.tensors().iter().filter(|tensor| tensor.size_bytes().is_ok()) {
        let bytes = model.bytes(tensor)?;
        for range in sample_ranges(bytes.len() as u64) {
            print.sample(&bytes[range.start as usize..range.end as usize]);
        }
    }
    Ok(print.finish())
}

/// Bytes that [`full_hash`] reads between two reports of how far it is.
const PIECE_BYTES: usize = 64 << 20;

/// BLAKE3 of every byte of the model's files, each preceded by its size: what the fingerprint's samples miss.
/// `progress` is told the bytes read so far and in all.
pub fn full_hash(model: &gguf::Model, mut progress: impl FnMut(u64, u64)) -> [u8; 32] {
    let total: u64 = model.files().iter().map(|file| file.len_bytes).sum();
    let (mut hasher, mut done) = (blake3::Hasher::new(), 0);
    for (index, file) in model.files().iter().enumerate() {
        hasher.update(&file.len_bytes.to_le_bytes());
        for piece in model.file_bytes(index).chunks(PIECE_BYTES) {
            progress(done, total);
            hasher.update(piece);
            done += piece.len() as u64;
        }
    }
    *hasher.finalize().as_bytes()
}

/// A hash as people write it.
pub fn hex(hash: &[u8]) -> String {
    hash.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Which bytes of a tensor of `size_bytes` are sampled.
pub fn sample_ranges(size_bytes: u64) -> Vec<Range<u64>> {
    if size_bytes <= 3 * SAMPLE_BYTES {
        // One range that is everything; nothing for an empty tensor.
        return (size_bytes > 0).then_some(0..size_bytes).into_iter().collect();
    }
    let middle = (size_bytes - SAMPLE_BYTES) / 2;
    let last = size_bytes - SAMPLE_BYTES;
    [0, middle, last].into_iter().map(|begin| begin..begin + SAMPLE_BYTES).collect()
}

impl ModelFingerprint {
    /// Short name: 16 hexadecimal digits of the whole, for file names.
    pub fn id(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for size in &self.file_sizes_bytes {
            hasher.update(&size.to_le_bytes());
        }
        hasher.update(&self.headers_hash).update(&self.samples_hash);
        hex(&hasher.finalize().as_bytes()[..8])
    }

    /// What of the model found differs from the one planned for; `None` if nothing does.
    pub fn difference(&self, found: &ModelFingerprint) -> Option<ModelDifference> {
        if self.file_sizes_bytes != found.file_sizes_bytes {
            return Some(ModelDifference::Size);
        }
        if self.headers_hash != found.headers_hash {
            return Some(ModelDifference::Headers);
        }
        (self.samples_hash != found.samples_hash).then_some(ModelDifference::Weights)
    }
}

/// In what a model differs from the one that a plan was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelDifference {
    /// Number or sizes of files.
    #[error("the number or sizes of its files differ")]
    Size,
    /// Keys or tensor table.
    #[error("its metadata or tensor table (names, types, shapes) differ")]
    Headers,
    /// Weights.
    #[error("its weights differ (samples of the tensors' bytes)")]
    Weights,
}

/// What identifies a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFingerprint {
    /// CPU model, as it names itself.
    pub cpu_model: String,
    /// Physical cores.
    pub cpu_cores: u32,
    /// The GPU; `None` if the plan uses none.
    pub gpu: Option<GpuFingerprint>,
}

/// What identifies a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuFingerprint {
    /// Its name.
    pub model: String,
    /// Its memory.
    pub memory_bytes: u64,
    /// Its link at best: `PCIe 4.0 x16`.
    pub link: String,
    /// Driver version.
    pub driver: String,
}

/// One field in which a machine differs from the one that a plan was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceDifference {
    /// The field.
    pub field: &'static str,
    /// What the plan says.
    pub planned: String,
    /// What was found.
    pub found: String,
    /// What follows.
    pub weight: DifferenceWeight,
}

/// What follows from a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DifferenceWeight {
    /// The plan's expectations are worthless here.
    Refuse,
    /// They may be a little off.
    Warn,
}

/// Why a plan does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Misfit {
    /// It is stale, or another model's.
    #[error("the plan was made for another model: {0}")]
    Model(#[from] ModelDifference),
    /// It is another machine's.
    #[error("the plan was made for another machine: {}", list(.0))]
    Device(Vec<DeviceDifference>),
}

fn list(differences: &[DeviceDifference]) -> String {
    let one = |d: &DeviceDifference| format!("{} is `{}`, planned for `{}`", d.field, d.found, d.planned);
    differences.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// Whether a plan made for `planned` fits the model and machine `found`. What only warns is returned.
///
/// # Errors
/// The first reason to refuse; the model comes first, since no `--force-device` helps there.
pub fn check_fit(
    planned: (&ModelFingerprint, &DeviceFingerprint),
    found: (&ModelFingerprint, &DeviceFingerprint),
) -> Result<Vec<DeviceDifference>, Misfit> {
    planned.0.difference(found.0).map_or(Ok(()), Err)?;
    let (refused, warned): (Vec<_>, Vec<_>) =
        planned.1.differences(found.1).into_iter().partition(|d| d.weight == DifferenceWeight::Refuse);
    if refused.is_empty() { Ok(warned) } else { Err(Misfit::Device(refused)) }
}

/// What the names of simulated machines begin with, as people type them: `sim:rtx3060-laptop`.
pub const SIMULATED: &str = "sim:";

impl DeviceFingerprint {
    /// The fingerprint of the simulated machine of a device profile, by the profile's name. A plan of a profile that
    /// nobody measured is for that one: no real machine has such names. `gpu_memory_bytes` is `None` without a GPU.
    pub fn simulated(profile: &str, cpu_model: &str, cpu_cores: u32, gpu_memory_bytes: Option<u64>) -> Self {
        let simulated = |memory_bytes| GpuFingerprint {
            model: format!("{SIMULATED}{profile}"),
            memory_bytes,
            link: "simulated".to_owned(),
            driver: "simulated".to_owned(),
        };
        let cpu_model = format!("{SIMULATED}{profile} {cpu_model}");
        DeviceFingerprint { cpu_model, cpu_cores, gpu: gpu_memory_bytes.map(simulated) }
    }

    /// Name of the profile whose simulated machine this is; `None` for a real machine.
    pub fn simulated_profile(&self) -> Option<&str> {
        self.cpu_model.strip_prefix(SIMULATED)?.split(' ').next()
    }

    /// Every field in which the machine found differs. A plan that uses no GPU does not care which one there is.
    pub fn differences(&self, found: &DeviceFingerprint) -> Vec<DeviceDifference> {
        let mut list = Vec::new();
        let mut compare = |field, planned: String, found: String, weight| {
            if planned != found {
                list.push(DeviceDifference { field, planned, found, weight });
            }
        };
        compare("CPU model", self.cpu_model.clone(), found.cpu_model.clone(), DifferenceWeight::Refuse);
        compare("CPU cores", self.cpu_cores.to_string(), found.cpu_cores.to_string(), DifferenceWeight::Refuse);
        let Some(planned) = &self.gpu else { return list };
        let Some(gpu) = &found.gpu else {
            compare("GPU", planned.model.clone(), "none".to_owned(), DifferenceWeight::Refuse);
            return list;
        };
        compare("GPU model", planned.model.clone(), gpu.model.clone(), DifferenceWeight::Refuse);
        if planned.memory_bytes.abs_diff(gpu.memory_bytes) > planned.memory_bytes / MEMORY_TOLERANCE {
            let [planned, found] = [planned, gpu].map(|g| format!("{} MiB", g.memory_bytes >> 20));
            compare("GPU memory", planned, found, DifferenceWeight::Refuse);
        }
        compare("GPU link", planned.link.clone(), gpu.link.clone(), DifferenceWeight::Refuse);
        compare("GPU driver", planned.driver.clone(), gpu.driver.clone(), DifferenceWeight::Warn);
        list
    }

    /// Short name for file names: of the GPU, else of the CPU; lower case, digits and hyphens, and 6 digits of a hash
    /// of all fields that refuse.
    pub fn slug(&self) -> String {
        let name = self.gpu.as_ref().map_or(&self.cpu_model, |gpu| &gpu.model);
        let mut slug = String::new();
        for c in name.chars().filter(|c| *c != '(' && *c != ')') {
            match c.is_ascii_alphanumeric() {
                true => slug.push(c.to_ascii_lowercase()),
                false if !slug.ends_with('-') => slug.push('-'),
                false => {}
            }
        }
        slug.truncate(SLUG_CHARS);
        format!("{}-{}", slug.trim_matches('-'), self.short_hash())
    }

    fn short_hash(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        let gpu = self.gpu.as_ref();
        let fields =
            [&self.cpu_model, gpu.map_or(&self.cpu_model, |g| &g.model), gpu.map_or(&self.cpu_model, |g| &g.link)];
        for field in fields {
            hasher.update(&(field.len() as u64).to_le_bytes()).update(field.as_bytes());
        }
        hasher.update(&self.cpu_cores.to_le_bytes());
        hasher.finalize().to_hex()[..6].to_owned()
    }
}

/// GPU memory may differ by a 64th: drivers keep more or less of it for themselves.
const MEMORY_TOLERANCE: u64 = 64;
/// Longest name of a device in a file name.
const SLUG_CHARS: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    fn laptop() -> DeviceFingerprint {
        DeviceFingerprint {
            cpu_model: "11th Gen Intel(R) Core(TM) i7-11800H @ 2.30GHz".to_owned(),
            cpu_cores: 8,
            gpu: Some(GpuFingerprint {
                model: "NVIDIA GeForce RTX 3060 Laptop GPU".to_owned(),
                memory_bytes: 6144 << 20,
                link: "PCIe 4.0 x16".to_owned(),
                driver: "580.95".to_owned(),
            }),
        }
    }

    fn with_gpu(change: impl FnOnce(&mut GpuFingerprint)) -> DeviceFingerprint {
        let mut device = laptop();
        change(device.gpu.as_mut().unwrap());
        device
    }

    #[test]
    fn samples_are_inside_and_meet_both_ends() {
        for size in [0, 1, 4096, 12288, 12289, 20000, 1 << 40] {
            let ranges = sample_ranges(size);
            assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "{size}");
            assert_eq!(ranges.first().map_or(0, |r| r.start), 0);
            assert_eq!(ranges.last().map_or(0, |r| r.end), size);
        }
    }

    #[test]
    fn samples_of_different_lengths_do_not_run_together() {
        let print = |pieces: &[&[u8]]| {
            let mut f = Fingerprinter::new();
            pieces.iter().for_each(|piece| f.sample(piece));
            f.finish()
        };
        assert_ne!(print(&[b"ab", b"c"]), print(&[b"a", b"bc"]));
        assert_eq!(print(&[b"ab"]).difference(&print(&[b"ax"])), Some(ModelDifference::Weights));
    }

    #[test]
    fn differences_of_machines_refuse_but_for_the_driver() {
        let cases: &[(&str, DeviceFingerprint, DifferenceWeight)] = &[
            ("CPU cores", DeviceFingerprint { cpu_cores: 4, ..laptop() }, DifferenceWeight::Refuse),
            ("GPU", DeviceFingerprint { gpu: None, ..laptop() }, DifferenceWeight::Refuse),
            ("GPU model", with_gpu(|g| g.model = "RTX 4060".to_owned()), DifferenceWeight::Refuse),
            ("GPU memory", with_gpu(|g| g.memory_bytes = 8192 << 20), DifferenceWeight::Refuse),
            ("GPU link", with_gpu(|g| g.link = "PCIe 4.0 x8".to_owned()), DifferenceWeight::Refuse),
            ("GPU driver", with_gpu(|g| g.driver = "570.1".to_owned()), DifferenceWeight::Warn),
        ];
        for (field, found, weight) in cases {
            let differences = laptop().differences(found);
            assert_eq!(differences.len(), 1, "{field}");
            assert_eq!((differences[0].field, differences[0].weight), (*field, *weight));
        }
        assert_eq!(laptop().differences(&with_gpu(|g| g.memory_bytes -= 16 << 20)), []);
        let cpu_only = DeviceFingerprint { gpu: None, ..laptop() };
        assert_eq!(cpu_only.differences(&laptop()), [], "a plan without GPU runs beside any");
    }

    #[test]
    fn a_misfit_names_the_fields() {
        let model =
            |seed| ModelFingerprint { file_sizes_bytes: vec![1], headers_hash: [0; 32], samples_hash: [seed; 32] };
        let other_gpu = with_gpu(|g| g.model = "RTX 4060".to_owned());
        let driver = with_gpu(|g| g.driver = "1".to_owned());
        let check = |m: u8, device: &DeviceFingerprint| check_fit((&model(0), &laptop()), (&model(m), device));
        assert_eq!(check(0, &laptop()), Ok(Vec::new()));
        assert_eq!(check(0, &driver).unwrap()[0].field, "GPU driver");
        assert_eq!(check(1, &other_gpu), Err(Misfit::Model(ModelDifference::Weights)));
        let text = check(0, &other_gpu).unwrap_err().to_string();
        assert!(text.contains("GPU model is `RTX 4060`, planned for `NVIDIA GeForce RTX 3060 Laptop GPU`"), "{text}");
    }

    #[test]
    fn simulated_machines_are_told_from_real_ones_and_from_each_other() {
        let machine = |name, memory| DeviceFingerprint::simulated(name, "Intel i7", 8, memory);
        let (laptop_sim, cpu_only) = (machine("rtx3060-laptop", Some(6 << 30)), machine("cpu-laptop", None));
        assert_eq!(laptop_sim.simulated_profile(), Some("rtx3060-laptop"));
        assert_eq!(laptop_sim.gpu.as_ref().map(|gpu| gpu.model.as_str()), Some("sim:rtx3060-laptop"));
        assert_eq!(cpu_only.simulated_profile(), Some("cpu-laptop"));
        assert_eq!(laptop().simulated_profile(), None);
        let real = DeviceFingerprint { cpu_model: "Intel i7".to_owned(), ..cpu_only.clone() };
        for other in [real, laptop_sim] {
            assert!(cpu_only.differences(&other).iter().any(|d| d.weight == DifferenceWeight::Refuse));
        }
    }

    #[test]
    fn slugs_are_plain_and_tell_machines_apart() {
        let slug = laptop().slug();
        assert!(slug.starts_with("nvidia-geforce-rtx-3060-laptop-gpu-"), "{slug}");
        assert_ne!(slug, with_gpu(|g| g.link = "PCIe 3.0 x16".to_owned()).slug());
        assert_eq!(slug, with_gpu(|g| g.driver = "1".to_owned()).slug());
        let odd = DeviceFingerprint { cpu_model: "模型/../x".to_owned(), cpu_cores: 1, gpu: None };
        assert!(odd.slug().chars().all(|c| c.is_ascii_alphanumeric() || c == '-'), "{}", odd.slug());
    }
}
