//! Which cores this process may use: `/sys/devices/system/{cpu,node}` cut down by the affinity mask and the cgroup
//! quota.
//!
//! Reads files once, under a root that tests replace by a folder of fixtures; decides nothing about thread counts
//! beyond naming one CPU per physical core, fastest first. Next: `cgroup.rs`, `team.rs`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::DeviceError;
use crate::sysfile::SysRoot;

/// A logical CPU as Linux numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuId(pub u32);

/// One physical core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Core {
    /// Its logical CPUs that this process may use, ascending; never empty.
    pub cpus: Vec<CpuId>,
    /// Physical package (socket).
    pub package: u32,
    /// NUMA node.
    pub node: u32,
    /// Speed relative to the fastest core of the machine, in thousandths (1000 = fastest).
    pub capacity_permille: u32,
}

/// One cache as seen from a core.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cache {
    /// 1, 2, 3 …
    pub level: u32,
    /// `Data`, `Instruction` or `Unified`.
    pub kind: String,
    /// Size of one instance.
    pub size_bytes: u64,
    /// Logical CPUs that share one instance.
    pub shared_by: usize,
    /// Instances in the usable part of the machine.
    pub instances: usize,
}

/// The usable part of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    /// Physical cores, fastest class first, then by lowest CPU number.
    pub cores: Vec<Core>,
    /// Distinct caches, by level.
    pub caches: Vec<Cache>,
    /// CPU time that the cgroup allows, in thousandths of a CPU; `None` without a quota.
    pub quota_milli_cpus: Option<u64>,
}

impl Topology {
    /// The topology of the calling process on this machine.
    pub fn of_this_process() -> Result<Self, DeviceError> {
        let allowed = crate::affinity::process_cpus();
        Self::read(&SysRoot::new("/"), |cpu| allowed.contains(&cpu))
    }

    /// The topology below `root` of the CPUs that `allows` accepts.
    pub fn read(root: &SysRoot, allows: impl Fn(CpuId) -> bool) -> Result<Self, DeviceError> {
        let online = root.read("sys/devices/system/cpu/online")?;
        let cpus: Vec<CpuId> = parse_cpu_list(&online)
            .ok_or_else(|| root.odd("sys/devices/system/cpu/online", &online, "a CPU list such as 0-7,16"))?
            .into_iter()
            .filter(|&cpu| allows(cpu))
            .collect();
        let nodes = read_nodes(root)?;
        let mut cores: BTreeMap<Vec<CpuId>, Core> = BTreeMap::new();
        for &cpu in &cpus {
            let siblings = read_siblings(root, cpu)?;
            let core = cores.entry(siblings).or_insert_with(|| Core {
                cpus: Vec::new(),
                package: read_cpu_number(root, cpu, "topology/physical_package_id").unwrap_or(0) as u32,
                node: nodes.get(&cpu).copied().unwrap_or(0),
                capacity_permille: read_speed(root, cpu),
            });
            core.cpus.push(cpu);
        }
        let mut cores: Vec<Core> = cores.into_values().collect();
        scale_capacities(&mut cores);
        cores.sort_by_key(|core| (std::cmp::Reverse(core.capacity_permille), core.cpus[0]));
        Ok(Self { cores, caches: read_caches(root, &cpus)?, quota_milli_cpus: crate::cgroup::cpu_quota_milli(root)? })
    }

    /// One logical CPU of each physical core, fastest first: where a team's threads belong.
    pub fn team_cpus(&self) -> Vec<CpuId> {
        self.cores.iter().map(|core| core.cpus[0]).collect()
    }

    /// Threads that have a core of their own and fit the cgroup's quota; at least 1.
    pub fn threads_at_most(&self) -> usize {
        let quota = self.quota_milli_cpus.map_or(usize::MAX, |milli| (milli / 1000) as usize);
        self.cores.len().min(quota).max(1)
    }

    /// Number of cores within 20 % of the fastest (the performance cores of a hybrid CPU); at least 1.
    pub fn fast_cores(&self) -> usize {
        self.cores.iter().filter(|core| core.capacity_permille >= 800).count().max(1)
    }
}

/// Parses `0-3,8,10-11`; an empty text is an empty list.
pub fn parse_cpu_list(text: &str) -> Option<Vec<CpuId>> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if last < first || last - first > 65_535 {
            return None;
        }
        cpus.extend((first..=last).map(CpuId));
    }
    Some(cpus)
}

fn cpu_path(cpu: CpuId, leaf: &str) -> PathBuf {
    Path::new("sys/devices/system/cpu").join(format!("cpu{}", cpu.0)).join(leaf)
}

fn read_cpu_number(root: &SysRoot, cpu: CpuId, leaf: &str) -> Option<u64> {
    root.read(cpu_path(cpu, leaf)).ok()?.trim().parse().ok()
}

/// All logical CPUs of the core (usable or not): its identity. Alone when the kernel does not say.
fn read_siblings(root: &SysRoot, cpu: CpuId) -> Result<Vec<CpuId>, DeviceError> {
    for leaf in ["topology/core_cpus_list", "topology/thread_siblings_list"] {
        let path = cpu_path(cpu, leaf);
        if let Ok(text) = root.read(&path) {
            return parse_cpu_list(&text).ok_or_else(|| root.odd(&path, &text, "a CPU list such as 0,8"));
        }
    }
    Ok(vec![cpu])
}

/// Some figure that grows with the core's speed: capacity, else maximal clock, else the same for all.
fn read_speed(root: &SysRoot, cpu: CpuId) -> u32 {
    let leaves = ["cpu_capacity", "cpufreq/cpuinfo_max_freq"];
    leaves.iter().find_map(|leaf| read_cpu_number(root, cpu, leaf)).and_then(|n| n.try_into().ok()).unwrap_or(1)
}

fn scale_capacities(cores: &mut [Core]) {
    let fastest = cores.iter().map(|core| core.capacity_permille).max().unwrap_or(1).max(1);
    for core in cores {
        core.capacity_permille = (u64::from(core.capacity_permille) * 1000 / u64::from(fastest)) as u32;
    }
}

fn read_nodes(root: &SysRoot) -> Result<BTreeMap<CpuId, u32>, DeviceError> {
    let mut nodes = BTreeMap::new();
    for name in root.list("sys/devices/system/node") {
        let Some(node) = name.strip_prefix("node").and_then(|digits| digits.parse::<u32>().ok()) else { continue };
        let path = format!("sys/devices/system/node/{name}/cpulist");
        let text = root.read(&path)?;
        let cpus = parse_cpu_list(&text).ok_or_else(|| root.odd(&path, &text, "a CPU list such as 0-7"))?;
        nodes.extend(cpus.into_iter().map(|cpu| (cpu, node)));
    }
    Ok(nodes)
}

/// Counts cache instances by the set of CPUs that share each.
fn read_caches(root: &SysRoot, cpus: &[CpuId]) -> Result<Vec<Cache>, DeviceError> {
    let mut found: BTreeMap<(u32, String, u64, Vec<CpuId>), ()> = BTreeMap::new();
    for &cpu in cpus {
        for name in root.list(cpu_path(cpu, "cache")) {
            if let Some(cache) = read_cache(root, cpu, &name) {
                found.insert(cache, ());
            }
        }
    }
    let mut caches: Vec<Cache> = Vec::new();
    for (level, kind, size_bytes, shared) in found.into_keys() {
        let known = caches.iter_mut().find(|c| (c.level, &c.kind, c.size_bytes) == (level, &kind, size_bytes));
        match known {
            Some(cache) => cache.instances += 1,
            None => caches.push(Cache { level, kind, size_bytes, shared_by: shared.len(), instances: 1 }),
        }
    }
    Ok(caches)
}

fn read_cache(root: &SysRoot, cpu: CpuId, index: &str) -> Option<(u32, String, u64, Vec<CpuId>)> {
    let leaf = |name: &str| root.read(cpu_path(cpu, &format!("cache/{index}/{name}"))).ok();
    let size_bytes = parse_cache_size(leaf("size")?.trim())?;
    let shared = parse_cpu_list(&leaf("shared_cpu_list")?)?;
    Some((leaf("level")?.trim().parse().ok()?, leaf("type")?.trim().to_owned(), size_bytes, shared))
}

fn parse_cache_size(text: &str) -> Option<u64> {
    let (digits, shift) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        _ => (text, 0),
    };
    digits.parse::<u64>().ok()?.checked_shl(shift)
}
