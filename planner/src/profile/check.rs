//! Reading a profile and refusing what cannot be true, by the name of the field.

use super::{Backend, CoreClass, Curve, Gpu, Point, Profile, SCHEMA_VERSION, SizeRate};

/// Why a profile is refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ProfileError {
    /// Not the JSON of a profile.
    #[error("the device profile is not readable: {0}; make a fresh one with `ats-plan profile`")]
    Syntax(String),
    /// A field that is missing, unknown, or has a value of another kind.
    #[error("the device profile is not readable at {field}: {why}; make a fresh one with `ats-plan profile`")]
    Field {
        /// Path of the field, or of what should hold it.
        field: String,
        /// What is wrong with it.
        why: String,
    },
    /// A schema of another time.
    #[error(
        "the device profile has schema version {found}, this program reads {SCHEMA_VERSION}; \
         make a fresh one with `ats-plan profile`"
    )]
    Version {
        /// What the file says.
        found: String,
    },
    /// A figure that cannot be true.
    #[error("the device profile says {field} = {value}: {reason}")]
    Absurd {
        /// Path of the field.
        field: String,
        /// What it says.
        value: String,
        /// Why that cannot be.
        reason: &'static str,
    },
}

/// Parses and checks.
pub(super) fn parse(text: &str) -> Result<Profile, ProfileError> {
    let syntax = |error: serde_json::Error| ProfileError::Syntax(error.to_string());
    // The version goes first: another version's fields must not read as errors of this one's.
    let value: serde_json::Value = serde_json::from_str(text).map_err(syntax)?;
    let version = value.get("schema_version");
    if version.and_then(serde_json::Value::as_u64) != Some(u64::from(SCHEMA_VERSION)) {
        let found = version.map_or("none".to_string(), ToString::to_string);
        return Err(ProfileError::Version { found });
    }
    plain_strings(&value, String::new())?;
    let profile: Profile =
        serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_str(text)).map_err(|error| match error
            .path()
            .to_string()
        {
            path if path == "." => ProfileError::Syntax(error.inner().to_string()),
            field => ProfileError::Field { field, why: error.inner().to_string() },
        })?;
    check(&profile)?;
    Ok(profile)
}

/// Names end up on terminals: none may hold what acts on one.
fn plain_strings(value: &serde_json::Value, path: String) -> Result<(), ProfileError> {
    match value {
        serde_json::Value::String(text) if text.contains(char::is_control) => {
            Err(absurd(path, text.escape_debug(), "control characters are in no name"))
        }
        serde_json::Value::Array(values) => {
            let each = |(index, value)| plain_strings(value, format!("{path}[{index}]"));
            values.iter().enumerate().try_for_each(each)
        }
        serde_json::Value::Object(fields) => {
            let at = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
            fields.iter().try_for_each(|(key, value)| plain_strings(value, at(key)))
        }
        _ => Ok(()),
    }
}

fn absurd(field: impl Into<String>, value: impl ToString, reason: &'static str) -> ProfileError {
    ProfileError::Absurd { field: field.into(), value: value.to_string(), reason }
}

/// Most that any link, memory or kernel of this decade moves.
const MAX_GB_PER_S: f64 = 100_000.0;
/// Least that any does: attention over a long context counts 0.0002 for the bytes of its cache. Slower figures would
/// give times beyond what sums hold.
const MIN_GB_PER_S: f64 = 1e-6;

/// Longest fixed cost that is still one.
const MAX_LATENCY_US: f64 = 1_000_000.0;
/// Longest time of one operator.
const MAX_TIME_US: f64 = 1e9;
/// Most memory of a machine, and of a GPU.
const MAX_MEMORY_MIB: u64 = 1 << 26;
const MAX_GPU_MIB: u64 = 1 << 24;
/// Largest piece that a link is timed with.
const MAX_PIECE_KIB: u64 = 1 << 30;
/// Hardware threads of a core.
const MAX_THREADS_PER_CORE: u16 = 8;
/// Rows or columns of a matrix.
const MAX_DIMENSION: u64 = 1 << 32;

fn rate(field: impl Into<String>, gb_per_s: f64) -> Result<(), ProfileError> {
    if (MIN_GB_PER_S..MAX_GB_PER_S).contains(&gb_per_s) {
        return Ok(());
    }
    Err(absurd(field, gb_per_s, "a rate is from 0.000001 to 100000 GB/s"))
}

fn check(profile: &Profile) -> Result<(), ProfileError> {
    check_cpu(profile)?;
    check_memory(profile)?;
    check_latency(profile)?;
    check_contention(profile)?;
    if let Some(gpu) = &profile.gpu {
        check_gpu(gpu)?;
    }
    let threads = hardware_threads(profile);
    profile.curves.iter().enumerate().try_for_each(|(index, curve)| check_curve((index, curve), threads))?;
    profile.points.iter().enumerate().try_for_each(|(index, point)| check_point((index, point), threads))
}

fn check_cpu(profile: &Profile) -> Result<(), ProfileError> {
    let cores = profile.cpu.core_classes.iter().map(|class| u32::from(class.cores)).sum::<u32>();
    if cores == 0 || cores > 1024 {
        return Err(absurd("cpu.core_classes", cores, "a machine has 1 to 1024 cores"));
    }
    for (index, class) in profile.cpu.core_classes.iter().enumerate() {
        if !(1..=MAX_THREADS_PER_CORE).contains(&class.threads_per_core) {
            let field = format!("cpu.core_classes[{index}].threads_per_core");
            return Err(absurd(field, class.threads_per_core, "a core has 1 to 8 hardware threads"));
        }
    }
    Ok(())
}

/// Threads that run at the same time.
fn hardware_threads(profile: &Profile) -> u32 {
    let of_class = |class: &CoreClass| u32::from(class.cores) * u32::from(class.threads_per_core);
    profile.cpu.core_classes.iter().map(of_class).sum()
}

/// A team that the machine can run; 0 threads are the GPU.
fn check_team(field: String, backend: Backend, threads: u16, most: u32) -> Result<(), ProfileError> {
    match backend {
        Backend::Gpu if threads != 0 => Err(absurd(field, threads, "figures of the GPU are of 0 CPU threads")),
        Backend::Cpu if threads == 0 => Err(absurd(field, threads, "a team has a thread")),
        Backend::Cpu if u32::from(threads) > most => Err(absurd(field, threads, MORE_THREADS)),
        _ => Ok(()),
    }
}

/// Why a team cannot be.
const MORE_THREADS: &str = "a team has more threads than cpu.core_classes run at the same time";

fn check_point((index, point): (usize, &Point), threads: u32) -> Result<(), ProfileError> {
    let field = |name: &str| format!("points[{index}].{name}");
    if point.tokens == 0 || point.rows == 0 || point.columns == 0 {
        let value = format!("{}, {} and {}", point.tokens, point.rows, point.columns);
        return Err(absurd(field("tokens, rows, columns"), value, "all three are above 0"));
    }
    if point.rows.max(point.columns) > MAX_DIMENSION {
        let value = format!("{} and {}", point.rows, point.columns);
        return Err(absurd(field("rows, columns"), value, "no matrix has more than 2^32 of them"));
    }
    check_team(field("threads"), point.backend, point.threads, threads)?;
    if !(point.time_us.is_finite() && point.time_us > 0.0 && point.time_us < MAX_TIME_US) {
        return Err(absurd(field("time_us"), point.time_us, "a time is above 0 and below 1000 s"));
    }
    Ok(())
}

fn check_memory(profile: &Profile) -> Result<(), ProfileError> {
    let memory = &profile.memory;
    if !(256..=MAX_MEMORY_MIB).contains(&memory.total_mib) {
        return Err(absurd("memory.total_mib", memory.total_mib, "a machine has 256 MiB to 64 TiB"));
    }
    for (field, mib) in [("available_mib", memory.available_mib), ("pinned_limit_mib", memory.pinned_limit_mib)] {
        if mib > memory.total_mib {
            return Err(absurd(format!("memory.{field}"), mib, "it is more than memory.total_mib"));
        }
    }
    rate("memory.read_gb_per_s", memory.read_gb_per_s)?;
    rate("memory.storage_gb_per_s", memory.storage_gb_per_s)
}

fn check_latency(profile: &Profile) -> Result<(), ProfileError> {
    let latency = &profile.latency;
    let fields = [
        ("cpu_op_us", latency.cpu_op_us),
        ("gpu_op_us", latency.gpu_op_us),
        ("to_gpu_us", latency.to_gpu_us),
        ("to_cpu_us", latency.to_cpu_us),
        ("blocking_switch_us", latency.blocking_switch_us),
        ("round_gap_us", latency.round_gap_us),
    ];
    for (field, us) in fields {
        if !(us.is_finite() && (0.0..MAX_LATENCY_US).contains(&us)) {
            return Err(absurd(format!("latency.{field}"), us, "a latency is between 0 and 1 s"));
        }
    }
    Ok(())
}

fn check_contention(profile: &Profile) -> Result<(), ProfileError> {
    if profile.contention.is_empty() {
        return Err(absurd("contention", "[]", "at least one team size is needed"));
    }
    let mut last = 0;
    for (index, entry) in profile.contention.iter().enumerate() {
        let field = |name: &str| format!("contention[{index}].{name}");
        if entry.threads <= last {
            return Err(absurd(field("threads"), entry.threads, "team sizes are above 0 and ascend"));
        }
        last = entry.threads;
        if u32::from(last) > hardware_threads(profile) {
            return Err(absurd(field("threads"), last, MORE_THREADS));
        }
        rate(field("cpu_alone_gb_per_s"), entry.cpu_alone_gb_per_s)?;
        rate(field("cpu_while_link_gb_per_s"), entry.cpu_while_link_gb_per_s)?;
        rate(field("link_alone_gb_per_s"), entry.link_alone_gb_per_s)?;
        rate(field("link_while_cpu_gb_per_s"), entry.link_while_cpu_gb_per_s)?;
        // Noise may turn it round a little; more than that is a mix-up of fields.
        if entry.cpu_while_link_gb_per_s > 1.1 * entry.cpu_alone_gb_per_s {
            let value = entry.cpu_while_link_gb_per_s;
            return Err(absurd(field("cpu_while_link_gb_per_s"), value, "the CPU reads faster while the link streams"));
        }
        if entry.link_while_cpu_gb_per_s > 1.1 * entry.link_alone_gb_per_s {
            let value = entry.link_while_cpu_gb_per_s;
            return Err(absurd(field("link_while_cpu_gb_per_s"), value, "the link is faster while the CPU reads"));
        }
    }
    Ok(())
}

fn check_gpu(gpu: &Gpu) -> Result<(), ProfileError> {
    if !(1..=MAX_GPU_MIB).contains(&gpu.memory_mib) {
        return Err(absurd("gpu.memory_mib", gpu.memory_mib, "a GPU has 1 MiB to 16 TiB"));
    }
    if gpu.free_mib > gpu.memory_mib {
        return Err(absurd("gpu.free_mib", gpu.free_mib, "it is more than gpu.memory_mib"));
    }
    if gpu.context_mib.saturating_add(gpu.kernels_mib) > gpu.memory_mib {
        return Err(absurd("gpu.context_mib", gpu.context_mib, "with kernels_mib it is more than gpu.memory_mib"));
    }
    rate("gpu.memory_gb_per_s", gpu.memory_gb_per_s)?;
    rate("gpu.pageable_gb_per_s", gpu.pageable_gb_per_s)?;
    rate("gpu.zero_copy_gb_per_s", gpu.zero_copy_gb_per_s)?;
    check_sizes("gpu.host_to_device", &gpu.host_to_device)?;
    check_sizes("gpu.device_to_host", &gpu.device_to_host)
}

fn check_sizes(field: &str, sizes: &[SizeRate]) -> Result<(), ProfileError> {
    if sizes.is_empty() {
        return Err(absurd(field, "[]", "at least one size is needed"));
    }
    if !sizes.windows(2).all(|pair| pair[0].size_kib < pair[1].size_kib) || sizes[0].size_kib == 0 {
        return Err(absurd(format!("{field}[].size_kib"), "unordered", "sizes are above 0 and ascend"));
    }
    if sizes[sizes.len() - 1].size_kib > MAX_PIECE_KIB {
        let value = sizes[sizes.len() - 1].size_kib;
        return Err(absurd(format!("{field}[{}].size_kib", sizes.len() - 1), value, "a piece has at most 1 TiB"));
    }
    sizes.iter().enumerate().try_for_each(|(i, size)| rate(format!("{field}[{i}].gb_per_s"), size.gb_per_s))
}

fn check_curve((index, curve): (usize, &Curve), threads: u32) -> Result<(), ProfileError> {
    let field = |name: &str| format!("curves[{index}].{name}");
    check_team(field("threads"), curve.backend, curve.threads, threads)?;
    if curve.tokens.is_empty() || curve.tokens.len() != curve.gb_per_s.len() {
        let lengths = format!("{} and {}", curve.tokens.len(), curve.gb_per_s.len());
        return Err(absurd(field("tokens, gb_per_s"), lengths, "both have one entry per measurement"));
    }
    if curve.tokens[0] == 0 || !curve.tokens.windows(2).all(|pair| pair[0] < pair[1]) {
        return Err(absurd(field("tokens"), format!("{:?}", curve.tokens), "tokens are above 0 and ascend"));
    }
    curve.gb_per_s.iter().try_for_each(|&value| rate(field("gb_per_s"), value))
}
