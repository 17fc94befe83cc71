//! Thread pinning. Two calls to the kernel; the policy is `team.rs`'s.

use std::sync::OnceLock;

use rustix::thread::{CpuSet, Pid, sched_getaffinity, sched_setaffinity};

use crate::topology::CpuId;

/// The logical CPUs on which this process may run, ascending: the mask of the first thread that asked, before any
/// pinning.
pub fn process_cpus() -> &'static [CpuId] {
    static CPUS: OnceLock<Vec<CpuId>> = OnceLock::new();
    CPUS.get_or_init(thread_cpus)
}

/// The logical CPUs on which the calling thread may run, ascending.
pub fn thread_cpus() -> Vec<CpuId> {
    // The call fails only on machines with more CPUs than a `CpuSet` counts; then nothing is known to be forbidden.
    let Ok(set) = sched_getaffinity(None) else { return (0..CpuSet::MAX_CPU as u32).map(CpuId).collect() };
    (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).map(|cpu| CpuId(cpu as u32)).collect()
}

/// Restricts a thread of this process (`None`: the calling one) to `cpus`. Returns whether the kernel agreed: a refusal
/// (CPU gone offline, seccomp) costs speed, never correctness.
pub fn restrict_thread(thread: Option<Pid>, cpus: &[CpuId]) -> bool {
    let mut set = CpuSet::new();
    for cpu in cpus.iter().filter(|cpu| (cpu.0 as usize) < CpuSet::MAX_CPU) {
        set.set(cpu.0 as usize);
    }
    set.count() > 0 && sched_setaffinity(thread, &set).is_ok()
}

/// Runs `work` on the calling thread as the process was found, whatever the thread is pinned to: programs and threads
/// that it starts inherit that.
pub fn unpinned<R>(work: impl FnOnce() -> R) -> R {
    let before = thread_cpus();
    restrict_thread(None, process_cpus());
    let result = work();
    restrict_thread(None, &before);
    result
}

/// Restricts a thread if it is still one of this process: a thread's number is given to others after its end.
pub fn restrict_own_thread(thread: Pid, cpus: &[CpuId]) -> bool {
    let folder = format!("/proc/self/task/{}", thread.as_raw_nonzero());
    std::path::Path::new(&folder).exists() && restrict_thread(Some(thread), cpus)
}
