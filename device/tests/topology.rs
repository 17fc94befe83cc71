//! Topologies of machines that are not here: /sys and /proc as folders of small files.
#![cfg(not(loom))]

use device::topology::{CpuId, Topology, parse_cpu_list};
use device::{DeviceError, SysRoot};

struct Tree(tempfile::TempDir);

impl Tree {
    fn new(files: &[(&str, &str)]) -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        files.iter().for_each(|(path, content)| tree.add(path, content));
        tree
    }
    fn add(&self, path: &str, content: &str) {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    fn cpu(&self, cpu: u32, leaf: &str, content: &str) {
        self.add(&format!("sys/devices/system/cpu/cpu{cpu}/{leaf}"), content);
    }
    fn read(&self, allowed: impl Fn(u32) -> bool) -> Result<Topology, DeviceError> {
        Topology::read(&SysRoot::new(self.0.path()), |cpu| allowed(cpu.0))
    }
}

/// A laptop: 2 fast cores with two threads each (0-3), 4 slow ones with one (4-7), numbered as Linux does.
fn hybrid_laptop() -> Tree {
    let tree = Tree::new(&[("sys/devices/system/cpu/online", "0-7\n")]);
    for cpu in 0..8 {
        let siblings = if cpu < 4 { format!("{}-{}\n", cpu & !1, cpu | 1) } else { format!("{cpu}\n") };
        tree.cpu(cpu, "topology/thread_siblings_list", &siblings);
        tree.cpu(cpu, "topology/physical_package_id", "0\n");
        tree.cpu(cpu, "cpufreq/cpuinfo_max_freq", if cpu < 4 { "4600000\n" } else { "3300000\n" });
        tree.cpu(cpu, "cache/index0/level", "1\n");
        tree.cpu(cpu, "cache/index0/type", "Data\n");
        tree.cpu(cpu, "cache/index0/size", if cpu < 4 { "48K\n" } else { "32K\n" });
        tree.cpu(cpu, "cache/index0/shared_cpu_list", &siblings);
        tree.cpu(cpu, "cache/index3/level", "3\n");
        tree.cpu(cpu, "cache/index3/type", "Unified\n");
        tree.cpu(cpu, "cache/index3/size", "24M\n");
        tree.cpu(cpu, "cache/index3/shared_cpu_list", "0-7\n");
    }
    tree
}

#[track_caller]
fn check(topology: &Topology, team_cpus: &[u32], threads_at_most: usize, fast_cores: usize) {
    assert_eq!(topology.team_cpus(), team_cpus.iter().map(|&cpu| CpuId(cpu)).collect::<Vec<_>>());
    assert_eq!((topology.threads_at_most(), topology.fast_cores()), (threads_at_most, fast_cores));
}

#[test]
fn a_hybrid_laptop_gives_one_cpu_per_core_fast_ones_first() {
    let topology = hybrid_laptop().read(|_| true).unwrap();
    check(&topology, &[0, 2, 4, 5, 6, 7], 6, 2);
    assert_eq!(topology.cores[0].cpus, [CpuId(0), CpuId(1)]);
    assert_eq!((topology.cores[0].capacity_permille, topology.cores[2].capacity_permille), (1000, 717));
    let caches: Vec<_> =
        topology.caches.iter().map(|c| (c.level, c.size_bytes >> 10, c.shared_by, c.instances)).collect();
    assert_eq!(caches, [(1, 32, 1, 4), (1, 48, 2, 2), (3, 24 << 10, 8, 1)]);
}

#[test]
fn an_affinity_mask_removes_cores_and_siblings() {
    check(&hybrid_laptop().read(|cpu| cpu >= 3).unwrap(), &[3, 4, 5, 6, 7], 5, 1);
    check(&hybrid_laptop().read(|cpu| cpu >= 4).unwrap(), &[4, 5, 6, 7], 4, 4);
}

#[test]
fn numa_nodes_and_sockets_are_told_apart() {
    let tree = Tree::new(&[
        ("sys/devices/system/cpu/online", "0-1,4-5\n"),
        ("sys/devices/system/node/node0/cpulist", "0-1\n"),
        ("sys/devices/system/node/node1/cpulist", "4-5\n"),
        ("sys/devices/system/node/has_cpu", "0-1\n"),
    ]);
    for (cpu, package) in [(0, "0"), (1, "0"), (4, "1"), (5, "1")] {
        tree.cpu(cpu, "topology/core_cpus_list", &format!("{cpu}\n"));
        tree.cpu(cpu, "topology/physical_package_id", package);
        tree.cpu(cpu, "cpu_capacity", "1024\n");
    }
    let topology = tree.read(|_| true).unwrap();
    let places: Vec<_> = topology.cores.iter().map(|core| (core.cpus[0].0, core.package, core.node)).collect();
    assert_eq!(places, [(0, 0, 0), (1, 0, 0), (4, 1, 1), (5, 1, 1)]);
}

#[test]
fn a_machine_that_says_nothing_has_one_core_per_cpu() {
    let topology = Tree::new(&[("sys/devices/system/cpu/online", "0-3\n")]).read(|_| true).unwrap();
    check(&topology, &[0, 1, 2, 3], 4, 4);
    assert!(topology.caches.is_empty());
}

#[test]
fn a_quota_limits_the_threads() {
    let quota = |files: &[(&str, &str)]| {
        let tree = hybrid_laptop();
        files.iter().for_each(|(path, content)| tree.add(path, content));
        tree.read(|_| true).map(|topology| (topology.quota_milli_cpus, topology.threads_at_most()))
    };
    let v2 = ("proc/self/cgroup", "0::/user/job\n");
    type Files<'a> = &'a [(&'a str, &'a str)];
    let cases: [(Files<'_>, Option<u64>, usize); 8] = [
        (&[v2, ("sys/fs/cgroup/user/job/cpu.max", "max 100000\n")], None, 6),
        (&[v2, ("sys/fs/cgroup/user/job/cpu.max", "250000 100000\n")], Some(2500), 2),
        (&[v2, ("sys/fs/cgroup/user/job/cpu.max", "50000 100000\n")], Some(500), 1),
        // An ancestor's limit holds; the least counts.
        (
            &[v2, ("sys/fs/cgroup/user/cpu.max", "300000 100000\n"), ("sys/fs/cgroup/cpu.max", "400000 100000\n")],
            Some(3000),
            3,
        ),
        // A container that sees its own group as the root.
        (&[v2, ("sys/fs/cgroup/cpu.max", "200000 100000\n")], Some(2000), 2),
        (
            &[
                ("proc/self/cgroup", "3:cpu,cpuacct:/a\n"),
                ("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "150000\n"),
                ("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "50000\n"),
            ],
            Some(3000),
            3,
        ),
        (
            &[
                ("proc/self/cgroup", "3:cpu:/a\n"),
                ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"),
                ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "50000\n"),
            ],
            None,
            6,
        ),
        (&[("proc/self/cgroup", "nonsense\n1:\n")], None, 6),
    ];
    for (files, milli, threads) in cases {
        assert_eq!(quota(files).unwrap(), (milli, threads), "{files:?}");
    }
    let odd = quota(&[v2, ("sys/fs/cgroup/cpu.max", "many 0\n")]);
    assert!(matches!(odd, Err(DeviceError::SystemFileContent { .. })), "{odd:?}");
}

#[test]
fn cpu_lists_are_parsed_or_refused() {
    let cases: [(&str, Option<&[u32]>); 9] = [
        ("", Some(&[])),
        ("3\n", Some(&[3])),
        ("0-2,8,10-11\n", Some(&[0, 1, 2, 8, 10, 11])),
        ("5-5", Some(&[5])),
        ("2-1", None),
        ("a", None),
        ("1-", None),
        ("0-4294967295", None),
        ("-1", None),
    ];
    for (text, expected) in cases {
        let expected = expected.map(|cpus| cpus.iter().map(|&cpu| CpuId(cpu)).collect::<Vec<_>>());
        assert_eq!(parse_cpu_list(text), expected, "{text}");
    }
    let odd = Tree::new(&[("sys/devices/system/cpu/online", "x\n")]).read(|_| true);
    assert!(odd.unwrap_err().to_string().contains("expected a CPU list"));
    assert!(matches!(Tree::new(&[]).read(|_| true), Err(DeviceError::SystemFile { .. })));
}
