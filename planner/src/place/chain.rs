//! The chain that static placement is solved on: items in execution order, each on the CPU or the GPU, with a cost
//! wherever neighbours differ (paper 4.3.2).
//!
//! Times are integer nanoseconds so that every solver, the brute force and the ILP compare equal, and so that a plan
//! never depends on the order in which floating-point sums were taken. Next: `knapsack.rs`.

/// Bytes of a MiB, the unit of the knapsack's memory axis.
pub const MIB: u64 = 1 << 20;

/// One item of the chain.
#[derive(Clone, Debug, PartialEq)]
pub struct ChainItem {
    /// GPU memory that it takes when resident: weights and states.
    pub bytes: u64,
    /// Time on the CPU, weighed by the workload.
    pub cpu_ns: i64,
    /// Time on the GPU.
    pub gpu_ns: i64,
    /// Cost of entering it on the GPU when its predecessor ran on the CPU.
    pub to_gpu_ns: i64,
    /// Cost of entering it on the CPU when its predecessor ran on the GPU.
    pub to_cpu_ns: i64,
    /// Where it may live.
    pub allowed: Allowed,
}

/// Where an item may live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Allowed {
    /// On either processor.
    Either,
    /// On the CPU only.
    Cpu,
    /// On the GPU only.
    Gpu,
}

impl Allowed {
    /// Whether the item may be resident.
    pub fn gpu(self) -> bool {
        self != Allowed::Cpu
    }

    /// Whether the item may stay on the host.
    pub fn cpu(self) -> bool {
        self != Allowed::Gpu
    }
}

/// Total time of an assignment: items plus switches.
pub fn chain_ns(items: &[ChainItem], resident: &[bool]) -> i64 {
    let mut total_ns = 0;
    for (i, item) in items.iter().enumerate() {
        total_ns += if resident[i] { item.gpu_ns } else { item.cpu_ns };
        if i > 0 && resident[i] != resident[i - 1] {
            total_ns += if resident[i] { item.to_gpu_ns } else { item.to_cpu_ns };
        }
    }
    total_ns
}

/// Bytes of the resident items.
pub fn resident_bytes(items: &[ChainItem], resident: &[bool]) -> u64 {
    let resident = items.iter().zip(resident).filter(|(_, on_gpu)| **on_gpu);
    resident.fold(0, |sum: u64, (item, _)| sum.saturating_add(item.bytes))
}

/// Whether an assignment respects every item's `allowed` and the budget.
pub fn is_feasible(items: &[ChainItem], resident: &[bool], budget_bytes: u64) -> bool {
    let allowed =
        items.iter().zip(resident).all(|(item, gpu)| if *gpu { item.allowed.gpu() } else { item.allowed.cpu() });
    allowed && resident_bytes(items, resident) <= budget_bytes
}

/// The best assignment by trying all of them; the oracle of the solvers. `None` when none fits.
///
/// Time 2ⁿ: for small chains only.
pub fn brute_force(items: &[ChainItem], budget_bytes: u64) -> Option<i64> {
    let assignment = |bits: u64| (0..items.len()).map(|i| bits >> i & 1 == 1).collect::<Vec<bool>>();
    (0..1u64 << items.len())
        .map(assignment)
        .filter(|resident| is_feasible(items, resident, budget_bytes))
        .map(|resident| chain_ns(items, &resident))
        .min()
}
