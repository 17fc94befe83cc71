//! Rounds of one token: every worker computes all light steps for itself, in memory of its own.
//!
//! A row of a light step is less work than meeting the other workers is, so it pays to compute it on each of them:
//! barriers are left only where work was divided (products, attention, states). What light steps write is then each
//! worker's own ([`Home::Own`]); what divided steps write is shared.
//!
//! Between two barriers (an *epoch*: light steps, then a divided one) workers are not ordered: one may still read what
//! the last divided step wrote while another is at the next one. So values that are touched in one epoch lie apart;
//! items, by which other rounds' values are laid out, are too short for that ([`solo_arena`]). New keys and values are
//! stored by whoever computes the attention of their head and segment, before reading them. Worker 0's own memory is
//! the shared one: what follows a round finds every value there.
//!
//! The bits are those of the other rounds: the same operators on the same operands. Not here: running (`run.rs`).

use super::prepare::{ACT_FORMS, Sizes};
use super::shared::{Home, Place, Shared};
use super::step::{Light, Step, Task};
use kernels::cpu::ops::rope::RopeTable;
use plan_format::ItemId;
use plan_format::arena::{Arena, RoundLimits};
use plan_format::program::{OpKind, Program};

/// The steps of rounds of one token, and their memory.
#[derive(Debug)]
pub struct Solo {
    /// The steps.
    pub steps: Vec<Step>,
    /// Where the logits are.
    pub logits: Place,
    /// Memory of each worker.
    pub own: Vec<Own>,
}

/// A worker's own memory.
#[derive(Debug)]
pub struct Own {
    /// Values; none for worker 0, who has the shared ones.
    pub values: Option<Shared>,
    /// Activations by form.
    pub acts: [Shared; ACT_FORMS],
    /// Angles per rotary table.
    pub trig: Vec<(Shared, Place)>,
    /// Groups of experts.
    pub groups: Shared,
}

impl Own {
    /// Memory of worker `index`.
    pub fn new(index: usize, values_bytes: usize, sizes: &Sizes, ropes: &[RopeTable]) -> Self {
        let angles = |table: &RopeTable| (Shared::new(table.cols() * 4), Place::rows_of(table.cols()));
        Own {
            values: (index > 0).then(|| Shared::new(values_bytes)),
            acts: sizes.acts.map(Shared::new),
            trig: ropes.iter().map(angles).collect(),
            groups: Shared::new(sizes.groups),
        }
    }
}

/// Which values every worker computes for itself: those that only light steps and attention write, but the logits.
pub fn own_values(program: &Program) -> Vec<bool> {
    let mut own = vec![true; program.values.len()];
    own[program.logits.index()] = false;
    for op in program.ops.iter().filter(|op| is_divided(&op.kind)) {
        for columns in op.kind.writes() {
            own[columns.value.index()] = false;
        }
    }
    own
}

/// Whether workers divide an operator's work even with one token.
fn is_divided(kind: &OpKind) -> bool {
    use OpKind::*;
    matches!(kind, MatMul { .. } | HeadMatMul { .. } | ExpertMatMul { .. } | CausalConv { .. } | DeltaNet { .. })
}

/// Where values lie: those of one epoch apart.
pub fn solo_arena(program: &Program) -> Arena {
    let (mut by_epoch, mut epoch) = (program.clone(), 0);
    for op in &mut by_epoch.ops {
        op.item = ItemId(epoch);
        epoch += u32::from(is_divided(&op.kind) || matches!(op.kind, OpKind::Attention { .. }));
    }
    // The arena asks for the number of items only.
    if let Some(item) = program.items.first() {
        by_epoch.items = vec![item.clone(); epoch as usize + 1];
    }
    Arena::new(&by_epoch, RoundLimits { ubatch_tokens: 1, output_tokens: 1 })
}

/// Turns steps whose places have their homes into those of rounds of one token.
pub fn solo_steps(steps: Vec<Step>) -> Vec<Step> {
    let mut steps = fuse_stores(steps);
    steps.retain(|step| !matches!(step.task, Task::ScatterExperts { .. }));
    group_once(&mut steps);
    for index in 0..steps.len() {
        let next = steps.get(index + 1).map(|step| &step.task);
        steps[index].barrier = match &steps[index].task {
            Task::Light { light, .. } => light.is_for_all(),
            Task::GroupExperts { .. } | Task::PrepareExperts { .. } => false,
            Task::AttentionJoin(join) => join.out.home == Home::Shared,
            // Products of one operator read the same activations.
            Task::ExpertProduct { .. } => !matches!(next, Some(Task::ExpertProduct { .. })),
            _ => true,
        };
    }
    steps
}

/// Drops what would group the pairs of one router a second time. Only for steps that are always run together.
pub fn group_once(steps: &mut Vec<Step>) {
    let mut grouped: Option<(Place, usize)> = None;
    steps.retain(|step| match &step.task {
        Task::Light { light: Light::Router { .. }, .. } => {
            grouped = None;
            true
        }
        Task::GroupExperts { ids, experts, .. } => {
            let known = grouped == Some((*ids, *experts));
            grouped = Some((*ids, *experts));
            !known
        }
        _ => true,
    });
}

/// Moves each store of keys and values into the attention that reads them, if only light steps lie between.
fn fuse_stores(steps: Vec<Step>) -> Vec<Step> {
    let mut fused: Vec<Step> = Vec::with_capacity(steps.len());
    for mut step in steps {
        if let Task::Attention(attention) = &mut step.task {
            let passes = |task: &Task| matches!(task, Task::Light { light, .. } if !light.stores(attention.cache));
            if let Some(at) = fused.iter().rposition(|before| !passes(&before.task))
                && let Task::Light { light: Light::StoreKv { k, v, .. }, .. } = fused[at].task
            {
                attention.store = Some((k, v));
                fused.remove(at);
            }
        }
        fused.push(step);
    }
    fused
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::step::{ActForm, Attention, Part};
    use kernels::cpu::ops::attention::{AttentionShape, Mask};
    use plan_format::program::Rows;
    use plan_format::{OpId, StateId, WeightId};

    fn place(home: Home) -> Place {
        Place { home, ..Place::rows_of(16) }
    }

    fn step(task: Task) -> Step {
        Step { op: OpId(0), task, barrier: true }
    }

    fn add(out: Home) -> Step {
        let light = Light::Add { a: place(Home::Own), b: place(Home::Own), out: place(out) };
        step(Task::Light { rows: Rows::Tokens, light })
    }

    fn store(cache: u32) -> Step {
        let light = Light::StoreKv { k: place(Home::Own), v: None, cache: StateId(cache) };
        step(Task::Light { rows: Rows::Tokens, light })
    }

    fn product() -> Step {
        let part = Part { weight: WeightId(0), bias: None, form: ActForm::Blocks, out: place(Home::Shared) };
        step(Task::Product { rows: Rows::Tokens, parts: vec![part] })
    }

    fn attention() -> Step {
        let (q_heads, kv_heads, k_head_cols, v_head_cols, scale) = (1, 1, 16, 16, 1.0);
        let mask = Mask::Causal;
        let shape = AttentionShape { q_heads, kv_heads, k_head_cols, v_head_cols, scale, softcap: None, mask };
        let [q, out] = [place(Home::Own); 2];
        step(Task::Attention(Attention { q, cache: StateId(0), shape, scratch: 0, sinks: None, out, store: None }))
    }

    /// Whether each step ends with a barrier, and whether it stores keys on the way.
    #[track_caller]
    fn check(steps: Vec<Step>, expected: &[(bool, bool)]) {
        let stores = |step: &Step| matches!(&step.task, Task::Attention(attention) if attention.store.is_some());
        let seen: Vec<_> = solo_steps(steps).iter().map(|step| (step.barrier, stores(step))).collect();
        assert_eq!(seen, expected);
    }

    #[test]
    fn only_divided_steps_end_with_a_barrier() {
        check(vec![product(), add(Home::Own), product()], &[(true, false), (false, false), (true, false)]);
    }

    #[test]
    fn what_one_worker_writes_for_all_needs_a_barrier() {
        check(vec![add(Home::Shared)], &[(true, false)]);
        check(vec![store(0)], &[(true, false)]);
    }

    #[test]
    fn stores_move_into_their_attention() {
        check(vec![store(0), add(Home::Own), attention()], &[(false, false), (true, true)]);
    }

    #[test]
    fn stores_of_other_caches_and_those_before_other_work_stay() {
        check(vec![store(1), attention()], &[(true, false), (true, false)]);
        check(vec![store(0), product(), attention()], &[(true, false), (true, false), (true, false)]);
    }
}
