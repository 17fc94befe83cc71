//! A plan with what every drawing needs to know of it: sizes of items, layers, the rounds that a person asks about.
//! Next: `page.rs` and the drawings.

use super::palette::kind_name;
use crate::simulate::round::{Outcome, Round, RoundError};
use plan_format::artifact::Plan;
use plan_format::costs::{CaseCosts, Load};
use plan_format::program::{Item, ItemKind};
use plan_format::schedule::Phase;
use plan_format::sizes::CacheSpan;
use plan_format::workload;

/// Bytes of a MiB.
pub const MIB: f64 = 1_048_576.0;

/// A plan that has expected times.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// How busy the machine is.
    pub load: Load,
    /// Cached tokens of the decode rounds.
    pub context_tokens: u32,
}

impl<'a> View<'a> {
    /// A view without load, in the middle of the workload's generation.
    ///
    /// # Errors
    /// A plan without expected times.
    pub fn new(plan: &'a Plan) -> Result<View<'a>, RoundError> {
        if plan.costs.cases.is_empty() {
            return Err(RoundError::NoTimes);
        }
        let context_tokens = workload::context(&plan.origin.options, Phase::Decode);
        Ok(View { plan, load: Load::IDLE, context_tokens })
    }

    /// Items of the program.
    pub fn items(&self) -> &'a [Item] {
        &self.plan.program.items
    }

    /// Number of layers.
    pub fn layers(&self) -> u32 {
        self.items().iter().filter_map(|item| item.layer).max().map_or(0, |last| last + 1)
    }

    /// The largest prefill phase.
    pub fn prefill(&self) -> Option<Phase> {
        let prefill = |phase: &&Phase| matches!(phase, Phase::Prefill { .. });
        self.plan.regimes.phases.iter().filter(prefill).max().copied()
    }

    /// Decode and the largest prefill, as far as the plan has them.
    pub fn phases(&self) -> Vec<Phase> {
        let decode = self.plan.regimes.phases.contains(&Phase::Decode).then_some(Phase::Decode);
        decode.into_iter().chain(self.prefill()).collect()
    }

    /// A round of a phase: decode at the view's context, prefill at the mean context of the workload's prompt, but no
    /// longer than a view that is shorter than the workload.
    pub fn round(&self, phase: Phase) -> Round<'a> {
        let options = &self.plan.origin.options;
        let own = workload::context(options, phase);
        let is_shorter = self.context_tokens < workload::context(options, Phase::Decode);
        let context_tokens = match phase {
            Phase::Prefill { .. } if is_shorter => own.min(self.context_tokens.max(1)),
            Phase::Prefill { .. } => own,
            _ => self.context_tokens,
        };
        Round { plan: self.plan, phase, context_tokens, load: self.load }
    }

    /// What happens in a round of a phase.
    ///
    /// # Errors
    /// No such rounds.
    pub fn outcome(&self, phase: Phase) -> Result<Outcome, RoundError> {
        self.round(phase).outcome()
    }

    /// Costs of a round of a phase.
    pub fn case(&self, phase: Phase) -> Option<&'a CaseCosts> {
        let index = self.plan.costs.case_index(phase, self.round(phase).context_tokens)?;
        self.plan.costs.cases.get(index)
    }

    /// Weights and states of an item.
    pub fn item_bytes(&self, item: &Item) -> u64 {
        let options = &self.plan.origin.options;
        let span = CacheSpan { context_tokens: options.context_tokens, ubatch_tokens: options.limits.ubatch_tokens };
        // Embedding rows are read from the file: no memory is planned for them.
        let weights = if item.kind == ItemKind::Embedding { 0 } else { self.plan.program.item_weight_bytes(item) };
        weights + self.plan.program.item_state_bytes(item, span, options.kv_type)
    }

    /// Type of an item's largest weight; empty without weights.
    pub fn weight_type(&self, item: &Item) -> &'static str {
        let tensors = item.weights.iter().map(|w| &self.plan.program.weights[w.index()].tensor);
        let tensors = tensors.map(|tensor| &self.plan.program.tensors[tensor.index()]);
        tensors.max_by_key(|t| t.size_bytes).map_or("", |t| gguf::GgmlType::from_id(t.ggml_type).name())
    }

    /// Items that a schedule promotes, by item.
    pub fn promoted(&self, schedule: plan_format::ScheduleId) -> Vec<bool> {
        let mut promoted = vec![false; self.items().len()];
        for promotion in self.plan.schedules.get(schedule.index()).iter().flat_map(|s| &s.promotions) {
            if let Some(flag) = promoted.get_mut(promotion.item.index()) {
                *flag = true;
            }
        }
        promoted
    }

    /// Model and machine in words.
    pub fn title(&self) -> String {
        let device = &self.plan.origin.device;
        let machine = device.gpu.as_ref().map_or(&device.cpu_model, |gpu| &gpu.model);
        let bytes: u64 = self.plan.origin.model.file_sizes_bytes.iter().sum();
        format!("{}, {} on {machine}", self.plan.program.architecture, plan_format::text::bytes_text(bytes))
    }
}

/// `12: FFN down`.
pub fn item_label(item: &Item) -> String {
    match item.layer {
        Some(layer) => format!("{layer}: {}", kind_name(item.kind)),
        None => kind_name(item.kind).to_owned(),
    }
}

/// Tokens per second of a round.
pub fn tokens_per_s(round: &Round<'_>, round_us: f64) -> f64 {
    f64::from(round.tokens()) * 1e6 / round_us
}
