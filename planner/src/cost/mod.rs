//! What every item costs on a device, in every kind of round: the input of placement, transfer and regimes.
//!
//! `work` says what an operator does in a round, `price` turns that into the `CostModel` of the artifact with a device
//! profile, `floors` bounds what any schedule can reach. It decides nothing. Next: `crate::place`.

mod floors;
mod price;
mod space;
mod stored;
mod work;

pub use floors::{Floors, floors, switches_us};
pub use price::{PriceError, VERIFY_TOKENS, few_limits, needs, phases, price};
pub use work::{Round, distinct_experts};

use plan_format::artifact::KvType;
use plan_format::costs::{CaseCosts, CostModel};
use plan_format::program::ItemKind;
use plan_format::schedule::Phase;
use plan_format::workload::prompt_context;

/// What a plan is made for, defaults resolved.
#[derive(Clone, Debug, PartialEq)]
pub struct Demand {
    /// Longest context.
    pub context_tokens: u32,
    /// Element type of the caches.
    pub kv_type: KvType,
    /// Prompt of the workload that placement weighs.
    pub prompt_tokens: u32,
    /// Generated tokens of that workload.
    pub generate_tokens: u32,
    /// Ubatches to choose from, ascending.
    pub ubatch_tokens: Vec<u32>,
    /// Tokens of a round whose logits may be wanted; at least those of verification are planned for.
    pub output_tokens: u32,
}

/// Smallest context bucket.
const FIRST_BUCKET_TOKENS: u32 = 2048;

impl Demand {
    /// Upper ends of the context buckets: doubling from 2048, the planned context last.
    pub fn context_buckets(&self) -> Vec<u32> {
        let doubling = std::iter::successors(Some(FIRST_BUCKET_TOKENS), |bucket| bucket.checked_mul(2));
        let mut buckets: Vec<u32> = doubling.take_while(|&bucket| bucket < self.context_tokens).collect();
        buckets.push(self.context_tokens);
        buckets
    }

    /// Cached tokens that the last token of the workload's rounds of a phase sees on average: in the middle of the
    /// generation, over the rounds of the prompt. `None` for phases that the workload does not have.
    pub fn workload_context(&self, phase: Phase) -> Option<u32> {
        let tokens = match phase {
            Phase::Decode => self.prompt_tokens.saturating_add(self.generate_tokens / 2),
            Phase::Prefill { ubatch_tokens } => prompt_context(self.prompt_tokens, ubatch_tokens),
            Phase::Verify { .. } => return None,
        };
        Some(tokens.clamp(1, self.context_tokens.max(1)))
    }

    /// Contexts at which a phase is priced, ascending: the buckets, and the workload's own.
    pub fn priced_contexts(&self, phase: Phase) -> Vec<u32> {
        let mut contexts = self.context_buckets();
        contexts.extend(self.workload_context(phase));
        contexts.sort_unstable();
        contexts.dedup();
        contexts
    }

    /// Ubatches of a prompt, none of them empty.
    pub fn prompt_rounds(&self, ubatch_tokens: u32) -> u32 {
        self.prompt_tokens.div_ceil(ubatch_tokens).max(1)
    }
}

/// What the planner knows of an item besides its times.
#[derive(Clone, Debug, PartialEq)]
pub struct ItemFacts {
    /// Name in the program.
    pub name: String,
    /// What it is.
    pub kind: ItemKind,
    /// Layer, if it is of one.
    pub layer: Option<u32>,
    /// Large weights, in the larger of the CPU's and the GPU's layout.
    pub weight_bytes: u64,
    /// Items whose outputs it reads are in the cost model; this is how many bytes of its own output others read, per
    /// token.
    pub output_bytes_per_token: u64,
}

/// Figures that depend on the ubatch.
#[derive(Clone, Debug, PartialEq)]
pub struct UbatchFacts {
    /// Tokens.
    pub ubatch_tokens: u32,
    /// Most tokens of a round whose logits are wanted.
    pub output_tokens: u32,
    /// Activation arena, on each device.
    pub arena_bytes: u64,
    /// What the GPU's kernels work in besides.
    pub gpu_work_bytes: u64,
    /// Inputs and angles of a round on the GPU.
    pub gpu_input_bytes: u64,
    /// Activations and kernels' work of decode and verification rounds alone.
    pub few_bytes: u64,
    /// States of each item.
    pub state_bytes: Vec<u64>,
}

impl UbatchFacts {
    /// What rounds work in on the GPU: activations and what kernels take besides.
    pub fn work_bytes(&self) -> u64 {
        self.arena_bytes + self.gpu_work_bytes
    }

    /// All that rounds take on the GPU but slots: the same and their inputs.
    pub fn round_bytes(&self) -> u64 {
        self.work_bytes() + self.gpu_input_bytes
    }
}

/// A model on a device: everything that the algorithms read.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    /// Items in program order.
    pub items: Vec<ItemFacts>,
    /// Times, with one case per phase and context bucket; prefill phases for every ubatch to choose from.
    pub costs: CostModel,
    /// Bytes that a slot needs for an item, by case and item; 0 = it cannot be streamed.
    pub slot_bytes: Vec<Vec<u64>>,
    /// Bytes of its weights that an item reads, by case and item (experts: those touched).
    pub read_bytes: Vec<Vec<u64>>,
    /// Per ubatch, ascending.
    pub ubatches: Vec<UbatchFacts>,
    /// Small weights, which every device holds.
    pub small_weight_bytes: u64,
    /// The demand that it was priced for.
    pub demand: Demand,
}

impl Problem {
    /// Index and costs of the case for a phase near a context.
    pub fn case(&self, phase: Phase, context_tokens: u32) -> Option<(usize, &CaseCosts)> {
        let index = self.costs.case_index(phase, context_tokens)?;
        Some((index, &self.costs.cases[index]))
    }

    /// CPU times of a case for a team.
    pub fn cpu_us(&self, case: usize, team: usize) -> &[f32] {
        let items = self.items.len();
        &self.costs.cases[case].cpu_us[team * items..(team + 1) * items]
    }

    /// Whether there are routed experts.
    pub fn is_moe(&self) -> bool {
        self.items.iter().any(|item| is_expert(item.kind))
    }
}

/// Whether items of a kind hold routed experts.
pub fn is_expert(kind: ItemKind) -> bool {
    matches!(kind, ItemKind::ExpertsInput | ItemKind::ExpertsOutput)
}

#[cfg(test)]
mod tests {
    use super::prompt_context;

    #[test]
    fn a_prompts_rounds_see_what_is_read_before_them() {
        // Tokens of the prompt and of a round: one round, two equal ones, a rest, less than a round, four.
        let cases = [(512, 512, 512), (512, 256, 384), (600, 512, 556), (100, 512, 512), (2048, 512, 1280)];
        for (prompt, ubatch, context) in cases {
            assert_eq!(prompt_context(prompt, ubatch), context, "{prompt} in rounds of {ubatch}");
        }
    }
}
