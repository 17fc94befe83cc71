//! The splits that people make by hand, as candidates: whole layers from either end, feed-forward blocks of some
//! layers on the CPU, experts of some layers on the CPU. Each takes as much of the budget as it can.

use crate::cost::{Problem, is_expert};
use plan_format::program::ItemKind;

/// A hand-made split.
#[derive(Clone, Debug, PartialEq)]
pub struct Seed {
    /// For people: `last 23 layers and head`.
    pub name: String,
    /// Whether each item is resident.
    pub resident: Vec<bool>,
}

/// Which end of the model goes to the GPU first.
#[derive(Clone, Copy, PartialEq)]
enum End {
    First,
    Last,
}

/// All seeds that fit. `bytes[item]` is the GPU memory of an item; embeddings stay on the CPU.
pub fn seeds(problem: &Problem, bytes: &[u64], budget_bytes: u64) -> Vec<Seed> {
    let layers = problem.items.iter().filter_map(|item| item.layer).max().map_or(0, |last| last + 1);
    let fitting = Fitting { problem, bytes, budget_bytes, layers };
    let mut seeds = Vec::new();
    for end in [End::Last, End::First] {
        seeds.extend(fitting.most(end, "layers", |_| true));
        seeds.extend(fitting.most(end, "layers' feed-forward, all else on the GPU", |kind| {
            is_expert(kind) || matches!(kind, ItemKind::FfnInput | ItemKind::FfnOutput)
        }));
        if problem.is_moe() {
            seeds.extend(fitting.most(end, "layers' experts, all else on the GPU", is_expert));
        }
    }
    let mut distinct: Vec<Seed> = Vec::new();
    for seed in seeds {
        if !distinct.iter().any(|known| known.resident == seed.resident) {
            distinct.push(seed);
        }
    }
    distinct
}

/// As many of the last layers as fit, the head with them: what `-ngl N` does.
pub fn last_layers(problem: &Problem, bytes: &[u64], budget_bytes: u64) -> Option<Seed> {
    let layers = problem.items.iter().filter_map(|item| item.layer).max().map_or(0, |last| last + 1);
    Fitting { problem, bytes, budget_bytes, layers }.most(End::Last, "layers", |_| true)
}

struct Fitting<'a> {
    problem: &'a Problem,
    bytes: &'a [u64],
    budget_bytes: u64,
    layers: u32,
}

impl Fitting<'_> {
    /// The largest number of layers at one end whose items of the moving kinds fit. When only some kinds move, all
    /// other items are resident; when all move, the head goes with the last layers.
    fn most(&self, end: End, what: &str, moves: impl Fn(ItemKind) -> bool) -> Option<Seed> {
        let resident = |count: u32| -> Vec<bool> {
            let chosen = |layer: u32| match end {
                End::First => layer < count,
                End::Last => layer + count >= self.layers,
            };
            let all_move = moves(ItemKind::Attention);
            let on_gpu = |item: &crate::cost::ItemFacts| match (item.layer, item.kind) {
                (_, ItemKind::Embedding) => false,
                (Some(layer), kind) if moves(kind) => chosen(layer),
                (None, _) if all_move => end == End::Last && count > 0 || count == self.layers,
                _ => !all_move,
            };
            self.problem.items.iter().map(on_gpu).collect()
        };
        let fits = |resident: &[bool]| {
            let taken: u64 = self.bytes.iter().zip(resident).filter(|(_, on_gpu)| **on_gpu).map(|(b, _)| b).sum();
            taken <= self.budget_bytes
        };
        let count = (0..=self.layers).rev().find(|&count| fits(&resident(count)))?;
        let end = if end == End::First { "first" } else { "last" };
        Some(Seed { name: format!("{end} {count} {what}"), resident: resident(count) })
    }
}
