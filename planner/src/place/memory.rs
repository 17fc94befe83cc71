//! Memory accounting: what a plan takes on the GPU, and which class of host memory each host item gets.
//!
//! Everything counts against the ceiling: context, kernels, small weights, activations, resident weights and states,
//! slots. A tied head is one tensor and counts once, at the head.

use super::candidates::Candidate;
use crate::cost::{Problem, UbatchFacts};
use crate::profile::{Gpu, Profile, transfer_us};
use crate::transfer::SlotShape;
use plan_format::artifact::{MemoryUse, Region};
use plan_format::program::ItemKind;
use plan_format::schedule::{Home, HostMemory};

/// Ceilings of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Everything on the GPU; 0 = no GPU is used.
    pub vram_bytes: u64,
    /// Host weights that may be held in memory, pinned and pageable together.
    pub ram_bytes: u64,
    /// Most of it that may be pinned.
    pub pinned_bytes: u64,
}

/// GPU memory that no placement can avoid.
pub fn fixed_bytes(problem: &Problem, gpu: &Gpu, ubatch: &UbatchFacts) -> u64 {
    ((gpu.context_mib + gpu.kernels_mib) << 20) + problem.small_weight_bytes + ubatch.round_bytes()
}

/// GPU memory of an item when resident.
pub fn item_bytes(problem: &Problem, ubatch: &UbatchFacts, item: usize) -> u64 {
    problem.items[item].weight_bytes + ubatch.state_bytes[item]
}

/// GPU memory of a candidate in all.
pub fn candidate_bytes(problem: &Problem, gpu: &Gpu, candidate: &Candidate) -> u64 {
    let ubatch = &problem.ubatches[candidate.ubatch];
    let resident = (0..candidate.resident.len()).filter(|&item| candidate.resident[item]);
    let items: u64 = resident.map(|item| item_bytes(problem, ubatch, item)).sum();
    fixed_bytes(problem, gpu, ubatch) + candidate.slots.total_bytes() + items
}

/// Whether an item can be resident. Embedding rows are looked up on the CPU.
pub fn may_be_resident(kind: ItemKind) -> bool {
    kind != ItemKind::Embedding
}

/// Homes for a set of resident items: host weights are pinned while the limits last, then pageable, then mapped.
pub fn homes(problem: &Problem, resident: &[bool], budget: &Budget) -> Vec<Home> {
    let (mut held_bytes, mut pinned_bytes) = (0, 0);
    let home = |(item, &on_gpu): (usize, &bool)| {
        if on_gpu {
            return Home::Resident;
        }
        let bytes = problem.items[item].weight_bytes;
        if bytes == 0 && problem.items[item].kind != ItemKind::Embedding {
            // Nothing but states, which are nobody's to stream.
            return Home::Host(HostMemory::Pageable);
        }
        if bytes == 0 || held_bytes + bytes > budget.ram_bytes {
            return Home::Host(HostMemory::Mapped);
        }
        held_bytes += bytes;
        if budget.vram_bytes == 0 || pinned_bytes + bytes > budget.pinned_bytes {
            return Home::Host(HostMemory::Pageable);
        }
        pinned_bytes += bytes;
        Home::Host(HostMemory::Pinned)
    };
    resident.iter().enumerate().map(home).collect()
}

/// The problem with the costs that the homes imply: pageable weights stream at the pageable rate, mapped ones that
/// memory cannot hold come from storage and are not streamed. `None` when all host weights are pinned: nothing changes.
pub fn priced_for(problem: &Problem, profile: &Profile, homes: &[Home]) -> Option<Problem> {
    let unpinned = |item: usize| match homes[item] {
        Home::Host(class) if class != HostMemory::Pinned && problem.items[item].weight_bytes > 0 => Some(class),
        _ => None,
    };
    let affected: Vec<(usize, HostMemory)> =
        (0..homes.len()).filter_map(|item| Some((item, unpinned(item)?))).collect();
    if affected.is_empty() {
        return None;
    }
    let mut changed = problem.clone();
    let items = homes.len();
    for (case, costs) in changed.costs.cases.iter_mut().enumerate() {
        for &(item, class) in &affected {
            let cost = &mut costs.items[item];
            match class {
                HostMemory::Pageable => cost.stream_us *= pageable_factor(profile),
                _ => {
                    cost.stream_us = 0.0;
                    changed.slot_bytes[case][item] = 0;
                    let read_us = problem.read_bytes[case][item] as f64 / profile.memory.storage_gb_per_s / 1000.0;
                    for team in 0..costs.cpu_us.len() / items {
                        let cpu_us = &mut costs.cpu_us[team * items + item];
                        *cpu_us = cpu_us.max(read_us as f32);
                    }
                }
            }
        }
    }
    Some(changed)
}

/// Pageable over pinned transfer time of a large piece.
fn pageable_factor(profile: &Profile) -> f32 {
    const PIECE_BYTES: u64 = 64 << 20;
    let Some(gpu) = &profile.gpu else { return 1.0 };
    let pinned_us = transfer_us(&gpu.host_to_device, PIECE_BYTES);
    let pageable_us = PIECE_BYTES as f64 / gpu.pageable_gb_per_s / 1000.0;
    (pageable_us / pinned_us).max(1.0) as f32
}

/// Bytes by region, as the artifact reports them. Regions that take nothing are left out.
pub fn regions(
    problem: &Problem,
    gpu: Option<&Gpu>,
    ubatch: &UbatchFacts,
    homes: &[Home],
    slots: SlotShape,
) -> Vec<MemoryUse> {
    let weights = |wanted: Home| {
        let of_home = (0..homes.len()).filter(|&item| homes[item] == wanted);
        of_home.map(|item| problem.items[item].weight_bytes).sum::<u64>()
    };
    let states = |resident: bool| {
        let of_side = (0..homes.len()).filter(|&item| (homes[item] == Home::Resident) == resident);
        of_side.map(|item| ubatch.state_bytes[item]).sum::<u64>()
    };
    let on_gpu = |bytes: u64| if gpu.is_some() { bytes } else { 0 };
    let mib = |of: fn(&Gpu) -> u64| gpu.map_or(0, |gpu| of(gpu) << 20);
    let small = problem.small_weight_bytes;
    let all = [
        (Region::GpuContext, mib(|gpu| gpu.context_mib)),
        (Region::GpuKernels, mib(|gpu| gpu.kernels_mib)),
        (Region::GpuWeights, weights(Home::Resident) + on_gpu(small)),
        (Region::GpuStates, states(true)),
        (Region::GpuArena, on_gpu(ubatch.round_bytes())),
        (Region::GpuSlots, slots.total_bytes()),
        (Region::HostPinned, weights(Home::Host(HostMemory::Pinned))),
        (Region::HostPageable, weights(Home::Host(HostMemory::Pageable)) + small),
        (Region::HostMapped, weights(Home::Host(HostMemory::Mapped))),
        (Region::HostStates, states(false)),
        (Region::HostArena, ubatch.arena_bytes),
    ];
    all.into_iter().filter(|(_, bytes)| *bytes > 0).map(|(region, bytes)| MemoryUse { region, bytes }).collect()
}
