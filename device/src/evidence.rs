//! What the system itself says of why this machine is slower than it was: clocks and throttling of CPU and GPU, limits
//! of the control group, pressure on the cores, memory of the GPU that others hold. It is written beside decisions that
//! measured times led to; it decides nothing, except that free GPU memory is watched by it.
//!
//! A thread looks twice a second ([`Watch`]), since the management library may take milliseconds. A machine without it,
//! or without a GPU, says so in one line. Not here: measuring speed (`probe.rs`), who runs on our cores (`team/`).

use crate::DeviceError;
use crate::sysfile::SysRoot;
use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::Clock;
use nvml_wrapper::enums::device::UsedGpuMemory;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Pieces in which the thread waits, so that it ends soon.
const WAIT: Duration = Duration::from_millis(50);

/// What was seen last.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evidence {
    /// The host.
    pub host: HostEvidence,
    /// The GPU; `None` without one or without the management library.
    pub gpu: Option<GpuEvidence>,
}

/// What the kernel says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostEvidence {
    /// Mean clock of the cores now, and the most that they could have; 0 where the kernel does not say.
    pub clock_mhz: (f64, f64),
    /// Times that cores were slowed down because they were hot, since the watch began.
    pub thermal_events: u64,
    /// CPU time that the control group allows, in CPUs, if it limits any.
    pub limit_cores: Option<f64>,
    /// Part of the time since the last look for which the control group stopped the process.
    pub stopped_share: f64,
    /// Part of the last ten seconds in which some task waited for a core.
    pub pressure_share: f64,
}

/// What the management library says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GpuEvidence {
    /// Clock of the multiprocessors now, and the most that they could have.
    pub clock_mhz: (u32, u32),
    /// Why the clock is lower than it could be, in words.
    pub throttled_by: Vec<&'static str>,
    /// Memory that nobody has.
    pub free_bytes: u64,
    /// Memory of other processes, and how many they are, as far as their sizes are told.
    pub others_bytes: u64,
    /// Other processes.
    pub others: usize,
}

/// A file's number, or the first after `key`.
fn number(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(key))?.split_whitespace().next()?.parse().ok()
}

/// What has been counted up to a look.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    thermal: u64,
    stopped_us: u64,
}

impl Counts {
    fn read(root: &SysRoot) -> Self {
        let cpus = root.list("sys/devices/system/cpu");
        let thermal = cpus.iter().filter_map(|cpu| {
            let path = format!("sys/devices/system/cpu/{cpu}/thermal_throttle/core_throttle_count");
            root.read(path).ok()?.trim().parse::<u64>().ok()
        });
        Counts { thermal: thermal.sum(), stopped_us: crate::cgroup::stopped_us(root).unwrap_or(0) }
    }
}

impl HostEvidence {
    /// A look, `span` after the one before. `before`: the counts then; `first`: when the watch began.
    fn read(root: &SysRoot, now: Counts, before: Counts, first: Counts, span: Duration) -> Self {
        let span_us = span.as_micros().max(1) as f64;
        let stopped_us = now.stopped_us.saturating_sub(before.stopped_us) as f64;
        HostEvidence {
            clock_mhz: clocks_mhz(root),
            thermal_events: now.thermal.saturating_sub(first.thermal),
            limit_cores: crate::cgroup::cpu_quota_milli(root).ok().flatten().map(|milli| milli as f64 / 1000.0),
            stopped_share: (stopped_us / span_us).min(1.0),
            pressure_share: pressure_share(root).unwrap_or(0.0),
        }
    }
}

/// Mean of the cores' clocks, and the highest that any may have.
fn clocks_mhz(root: &SysRoot) -> (f64, f64) {
    let cpus = root.list("sys/devices/system/cpu");
    let khz = |cpu: &String, leaf: &str| {
        root.read(format!("sys/devices/system/cpu/{cpu}/cpufreq/{leaf}")).ok()?.trim().parse::<f64>().ok()
    };
    let mut now: Vec<f64> = cpus.iter().filter_map(|cpu| khz(cpu, "scaling_cur_freq")).map(|khz| khz / 1e3).collect();
    if now.is_empty() {
        let text = root.read("proc/cpuinfo").unwrap_or_default();
        let lines = text.lines().filter(|line| line.starts_with("cpu MHz"));
        now = lines.filter_map(|line| line.split(':').nth(1)?.trim().parse().ok()).collect();
    }
    let most = cpus.iter().filter_map(|cpu| khz(cpu, "cpuinfo_max_freq")).fold(0.0, f64::max) / 1e3;
    let mean = if now.is_empty() { 0.0 } else { now.iter().sum::<f64>() / now.len() as f64 };
    (mean, most)
}

/// `some avg10=12.34 …` as a share.
fn pressure_share(root: &SysRoot) -> Option<f64> {
    let text = root.read("proc/pressure/cpu").ok()?;
    let some = text.lines().find_map(|line| line.strip_prefix("some avg10="))?;
    Some(some.split_whitespace().next()?.parse::<f64>().ok()? / 100.0)
}

fn throttled_by(reasons: ThrottleReasons) -> Vec<&'static str> {
    let known = [
        (ThrottleReasons::SW_POWER_CAP, "its power cap"),
        (ThrottleReasons::HW_SLOWDOWN, "heat or power"),
        (ThrottleReasons::SW_THERMAL_SLOWDOWN, "heat"),
        (ThrottleReasons::HW_THERMAL_SLOWDOWN, "heat"),
        (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "the power supply"),
        (ThrottleReasons::APPLICATIONS_CLOCKS_SETTING, "a setting"),
        (ThrottleReasons::SYNC_BOOST, "another GPU"),
    ];
    let mut words: Vec<&'static str> = Vec::new();
    for (_, word) in known.into_iter().filter(|(reason, _)| reasons.contains(*reason)) {
        if !words.contains(&word) {
            words.push(word);
        }
    }
    words
}

impl GpuEvidence {
    fn read(nvml: &Nvml, ordinal: u32) -> Option<Self> {
        let device = nvml.device_by_index(ordinal).ok()?;
        let memory = device.memory_info().ok()?;
        let processes = device.running_compute_processes().unwrap_or_default();
        let others = processes.iter().filter(|process| process.pid != std::process::id());
        let used = others.clone().map(|process| match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => bytes,
            UsedGpuMemory::Unavailable => 0,
        });
        let clock = device.clock_info(Clock::SM).unwrap_or(0);
        let reasons = device.current_throttle_reasons().unwrap_or(ThrottleReasons::empty());
        Some(GpuEvidence {
            clock_mhz: (clock, device.max_clock_info(Clock::SM).unwrap_or(0)),
            throttled_by: throttled_by(reasons),
            free_bytes: memory.free,
            others_bytes: used.sum(),
            others: others.count(),
        })
    }
}

impl fmt::Display for Evidence {
    /// What deviates, in words; nothing for a calm machine.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
        let (mut parts, host) = (Vec::new(), &self.host);
        let (now, most) = host.clock_mhz;
        if now > 0.0 && now < 0.9 * most {
            parts.push(format!("cores at {:.1} of {:.1} GHz", now / 1e3, most / 1e3));
        }
        if host.thermal_events > 0 {
            parts.push(format!("cores slowed down {} times by heat", host.thermal_events));
        }
        if host.stopped_share > 0.0 {
            let limit = host.limit_cores.map_or(String::new(), |cores| format!(" of {cores:.1} cores"));
            let percent = 100.0 * host.stopped_share;
            parts.push(format!("the control group's limit{limit} stops the process {percent:.0} % of the time"));
        }
        if host.pressure_share >= 0.1 {
            parts.push(format!("tasks wait for cores {:.0} % of the time", 100.0 * host.pressure_share));
        }
        if let Some(gpu) = &self.gpu {
            if !gpu.throttled_by.is_empty() {
                let (now, most) = gpu.clock_mhz;
                parts.push(format!("GPU at {now} of {most} MHz, held by {}", gpu.throttled_by.join(" and ")));
            }
            if gpu.others > 0 {
                let (others, free) = (gib(gpu.others_bytes), gib(gpu.free_bytes));
                parts.push(format!(
                    "{} other processes on the GPU with {others:.1} GiB, {free:.1} GiB free",
                    gpu.others
                ));
            }
        }
        f.write_str(&parts.join("; "))
    }
}

/// Looks at the system twice a second until it is dropped.
pub struct Watch {
    latest: Arc<Mutex<Evidence>>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    absence: Option<String>,
}

impl Watch {
    /// Begins to look; at the GPU of this number, too, if one is given. Errors: no thread.
    pub fn start(ordinal: Option<u32>) -> Result<Self, DeviceError> {
        let nvml = ordinal.map(|ordinal| Nvml::init().map(|nvml| (nvml, ordinal)));
        let (nvml, absence) = match nvml {
            Some(Ok(nvml)) => (Some(nvml), None),
            Some(Err(error)) => {
                let why = error.to_string();
                let why = why.lines().next().unwrap_or_default();
                (None, Some(format!("the GPU's clocks and other users are not watched: {why}")))
            }
            None => (None, None),
        };
        let (latest, ends) = (Arc::<Mutex<Evidence>>::default(), Arc::<AtomicBool>::default());
        let (shared, told) = (Arc::clone(&latest), Arc::clone(&ends));
        let start =
            || std::thread::Builder::new().name("evidence".to_owned()).spawn(move || look(nvml, &shared, &told));
        // A thread of a team is pinned, and those that it starts would be.
        let thread = crate::unpinned(start).map_err(|source| DeviceError::ThreadStart { index: 0, source })?;
        Ok(Watch { latest, ends, thread: Some(thread), absence })
    }

    /// What was seen last.
    pub fn latest(&self) -> Evidence {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Why the GPU is not watched although there is one, in one line.
    pub fn absence(&self) -> Option<&str> {
        self.absence.as_deref()
    }
}

fn look(nvml: Option<(Nvml, u32)>, latest: &Mutex<Evidence>, ends: &AtomicBool) {
    let root = SysRoot::new("/");
    let first = Counts::read(&root);
    let (mut before, mut looked_at) = (first, Instant::now());
    while !ends.load(Ordering::Relaxed) {
        let (now, span) = (Counts::read(&root), looked_at.elapsed());
        looked_at = Instant::now();
        let host = HostEvidence::read(&root, now, before, first, span);
        before = now;
        let gpu = nvml.as_ref().and_then(|(nvml, ordinal)| GpuEvidence::read(nvml, *ordinal));
        *latest.lock().unwrap_or_else(PoisonError::into_inner) = Evidence { host, gpu };
        while looked_at.elapsed() < LOOK_EVERY && !ends.load(Ordering::Relaxed) {
            std::thread::sleep(WAIT);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It does not panic; there is nothing to report.
            let _ = thread.join();
        }
    }
}

/// Microseconds for which a control group stopped its processes, in the text of `cpu.stat`.
pub(crate) fn parse_stopped_us(text: &str) -> Option<u64> {
    number(text, "throttled_usec ").or_else(|| Some(number(text, "throttled_time ")? / 1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, SysRoot) {
        let folder = tempfile::tempdir().expect("a folder");
        for (path, text) in files {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }
        let root = SysRoot::new(folder.path());
        (folder, root)
    }

    #[test]
    fn a_slow_host_says_why() {
        let cpu = "sys/devices/system/cpu/cpu0";
        let (clock, most) = (format!("{cpu}/cpufreq/scaling_cur_freq"), format!("{cpu}/cpufreq/cpuinfo_max_freq"));
        let heat = format!("{cpu}/thermal_throttle/core_throttle_count");
        let (_folder, root) = machine(&[
            (&clock, "1400000\n"),
            (&most, "3400000\n"),
            (&heat, "9\n"),
            ("proc/self/cgroup", "0::/box\n"),
            ("sys/fs/cgroup/box/cpu.max", "150000 100000\n"),
            ("sys/fs/cgroup/box/cpu.stat", "usage_usec 5\nnr_throttled 3\nthrottled_usec 300000\n"),
            ("proc/pressure/cpu", "some avg10=40.00 avg60=1.00 avg300=0.00 total=5\n"),
        ]);
        let now = Counts::read(&root);
        assert_eq!(now, Counts { thermal: 9, stopped_us: 300_000 });
        let first = Counts { thermal: 7, stopped_us: 0 };
        let host = HostEvidence::read(&root, now, first, first, Duration::from_secs(1));
        let text = Evidence { host, gpu: None }.to_string();
        for word in ["1.4 of 3.4 GHz", "2 times by heat", "1.5 cores stops the process 30 %", "wait for cores 40 %"] {
            assert!(text.contains(word), "`{word}` is not in {text}");
        }
    }

    #[test]
    fn a_calm_or_silent_machine_says_nothing() {
        let (_folder, root) = machine(&[]);
        let counts = Counts::read(&root);
        let host = HostEvidence::read(&root, counts, counts, counts, Duration::from_secs(1));
        assert_eq!(Evidence { host, gpu: Some(GpuEvidence::default()) }.to_string(), "");
    }

    #[test]
    fn others_on_the_gpu_and_its_limits_are_named() {
        let gpu = GpuEvidence {
            clock_mhz: (1200, 1980),
            throttled_by: throttled_by(ThrottleReasons::SW_POWER_CAP | ThrottleReasons::HW_THERMAL_SLOWDOWN),
            free_bytes: 1 << 30,
            others_bytes: 3 << 30,
            others: 2,
        };
        let text = Evidence { gpu: Some(gpu), ..Evidence::default() }.to_string();
        assert_eq!(
            text,
            "GPU at 1200 of 1980 MHz, held by its power cap and heat; 2 other processes on the GPU with 3.0 GiB, \
             1.0 GiB free"
        );
    }

    #[test]
    fn a_machine_without_the_library_says_so_in_one_line() {
        let watch = Watch::start(Some(0)).expect("a thread");
        match watch.absence() {
            Some(line) => assert_eq!(line.lines().count(), 1),
            None => assert!(watch.latest() == watch.latest()),
        }
        assert_eq!(Watch::start(None).expect("a thread").absence(), None);
    }

    #[test]
    fn both_versions_of_control_groups_are_read() {
        assert_eq!(parse_stopped_us("nr_periods 1\nthrottled_usec 7\n"), Some(7));
        assert_eq!(parse_stopped_us("nr_throttled 1\nthrottled_time 9000\n"), Some(9));
        assert_eq!(parse_stopped_us(""), None);
    }
}
