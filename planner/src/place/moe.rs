//! Placement of mixtures of experts (paper, Algorithm 1): everything that is not an expert first, then experts.
//! Thin policy over `knapsack.rs`: it only narrows where items may live.

use super::chain::{Allowed, ChainItem};
use super::knapsack::{Assignment, Knapsack};

/// Algorithm 1. `is_expert[i]` marks the routed expert tensors. With non-experts that fit, they are all resident and
/// the rest of the budget goes to experts; otherwise experts stay on the host. `None` when nothing fits.
pub fn non_experts_first(items: &[ChainItem], is_expert: &[bool], budget_bytes: u64) -> Option<Assignment> {
    let narrowed = narrow(items, is_expert, budget_bytes);
    Knapsack::solve(&narrowed, budget_bytes).best_within(budget_bytes)
}

/// The chain with `allowed` as Algorithm 1 has it.
pub fn narrow(items: &[ChainItem], is_expert: &[bool], budget_bytes: u64) -> Vec<ChainItem> {
    let movable = |(item, expert): &(&ChainItem, &bool)| !**expert && item.allowed.gpu();
    let non_expert_bytes: u64 = items.iter().zip(is_expert).filter(movable).map(|(item, _)| item.bytes).sum();
    let all_fit = non_expert_bytes <= budget_bytes;
    let narrowed = |(item, &expert): (&ChainItem, &bool)| {
        let allowed = match (expert, all_fit) {
            (false, true) if item.allowed.gpu() => Allowed::Gpu,
            (true, false) if item.allowed.cpu() => Allowed::Cpu,
            _ => item.allowed,
        };
        ChainItem { allowed, ..item.clone() }
    };
    items.iter().zip(is_expert).map(narrowed).collect()
}
