//! The machine in words: CPU model, instruction sets, cores, caches, memory. For `devices`, fingerprints and profiles.
//!
//! Facts only, read once; what they mean for speed is measured (`probe.rs`). Next: `topology.rs`, `memory.rs`.

use crate::DeviceError;
use crate::memory::HostMemoryInfo;
use crate::sysfile::SysRoot;
use crate::topology::{Cache, Topology};

/// The host as this process sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MachineDescription {
    /// `11th Gen Intel(R) Core(TM) i7-11800H @ 2.30GHz`; `unknown` where the kernel does not say.
    pub cpu_model: String,
    /// Instruction sets that matter to kernels and that both CPU and operating system allow.
    pub isa: Vec<&'static str>,
    /// Physical cores usable by this process.
    pub cores: usize,
    /// Of them, those within 20 % of the fastest.
    pub fast_cores: usize,
    /// Logical CPUs usable by this process.
    pub cpus: usize,
    /// Threads that the team should not exceed: cores, cut by the control group's quota.
    pub threads_at_most: usize,
    /// NUMA nodes of the usable cores.
    pub nodes: usize,
    /// Distinct caches.
    pub caches: Vec<Cache>,
    /// Memory of the machine, and what is left of it for this process.
    pub memory: HostMemoryInfo,
    /// `/sys/kernel/mm/transparent_hugepage/enabled`: `always`, `madvise` or `never`; `unknown` where it is missing.
    pub huge_pages: String,
}

impl MachineDescription {
    /// This machine. Errors: /proc or /sys are not readable.
    pub fn of_this_process() -> Result<Self, DeviceError> {
        Self::read(&SysRoot::new("/"), Topology::of_this_process()?)
    }

    /// From the files below `root` and a topology.
    pub fn read(root: &SysRoot, topology: Topology) -> Result<Self, DeviceError> {
        let mut nodes: Vec<u32> = topology.cores.iter().map(|core| core.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        Ok(Self {
            cpu_model: cpu_model(&root.read("proc/cpuinfo")?),
            isa: usable_isa(),
            cores: topology.cores.len(),
            fast_cores: topology.fast_cores(),
            cpus: topology.cores.iter().map(|core| core.cpus.len()).sum(),
            threads_at_most: topology.threads_at_most(),
            nodes: nodes.len(),
            memory: HostMemoryInfo::read(root)?,
            huge_pages: huge_pages(root),
            caches: topology.caches,
        })
    }
}

fn cpu_model(cpuinfo: &str) -> String {
    let value = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    value.map_or_else(|| "unknown".to_owned(), |(_, model)| model.trim().to_owned())
}

/// The word in brackets.
fn huge_pages(root: &SysRoot) -> String {
    let text = root.read("sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let chosen = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    chosen.map_or_else(|| "unknown".to_owned(), |(word, _)| word.to_owned())
}

#[cfg(target_arch = "x86_64")]
fn usable_isa() -> Vec<&'static str> {
    macro_rules! detected {
        ($($name:tt),*) => { [$(($name, std::arch::is_x86_feature_detected!($name))),*] };
    }
    let table = detected!(
        "sse4.2",
        "avx",
        "f16c",
        "fma",
        "bmi2",
        "avx2",
        "avxvnni",
        "avx512f",
        "avx512bw",
        "avx512vl",
        "avx512vbmi",
        "avx512vnni",
        "avx512bf16",
        "avx512fp16"
    );
    table.into_iter().filter(|(_, usable)| *usable).map(|(name, _)| name).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn usable_isa() -> Vec<&'static str> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_can_be_described() {
        let machine = MachineDescription::of_this_process().unwrap();
        assert!(machine.cores >= 1 && machine.cpus >= machine.cores && machine.threads_at_most <= machine.cores);
        assert!(machine.nodes >= 1 && machine.memory.total_bytes > 0);
    }

    #[test]
    fn models_are_found_or_unknown() {
        let cases = [
            ("processor\t: 0\nmodel name\t: A B: C\nmodel name\t: D\n", "A B: C"),
            ("model\t: 5\n", "unknown"),
            ("", "unknown"),
        ];
        for (text, model) in cases {
            assert_eq!(cpu_model(text), model);
        }
    }
}
