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
//! Beside a GPU the same holds within an item. What another item touches may be on the GPU's side, so it lies where the
//! plan says: light steps that write such a value are worker 0's, and where its bytes are those of another value that
//! was touched since the last barrier, there is one more. Between the GPU's signal and the first product nobody waits
//! for worker 0, who has the GPU's queue to fill.
//!
//! The bits are those of the other rounds: the same operators on the same operands. Not here: running (`walk.rs`).

use super::prepare::{ACT_FORMS, Sizes};
use super::shared::{Home, Place, Shared};
use super::step::{Light, Step, Task};
use kernels::cpu::ops::rope::RopeTable;
use plan_format::ItemId;
use plan_format::arena::{Arena, RoundLimits};
use plan_format::program::{OpKind, Program};
use std::ops::Range;

/// Columns from which on a gated unit takes longer than meeting: 11520 take 15 us on one core, a meeting of 16 under 2.
const GLU_COLS_DIVIDED: u32 = 4096;
/// Values of experts from which on their sum does: 8 · 2048, most of them in other cores' caches, take 8 us.
const SUMMED_DIVIDED: u32 = 8192;

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
    /// Values; `None` = the shared ones.
    pub values: Option<Shared>,
    /// Activations by form.
    pub acts: [Shared; ACT_FORMS],
    /// Angles per rotary table.
    pub trig: Vec<(Shared, Place)>,
    /// Groups of experts.
    pub groups: Shared,
}

/// Where worker 0 has its own values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Worker0 {
    /// In the shared ones.
    SharesValues,
    /// In memory of its own, as everybody.
    HasOwn,
}

impl Own {
    /// Memory of worker `index`.
    pub fn new(index: usize, (worker0, values_bytes): (Worker0, usize), sizes: &Sizes, ropes: &[RopeTable]) -> Self {
        let angles = |table: &RopeTable| (Shared::new(table.cols() * 4), Place::rows_of(table.cols()));
        let has_own = index > 0 || worker0 == Worker0::HasOwn;
        Own {
            values: has_own.then(|| Shared::new(values_bytes)),
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

/// The same beside a GPU: only values that no other item touches, and of an operator all results or none.
pub fn own_values_beside(program: &Program) -> Vec<bool> {
    let mut own = own_values(program);
    let mut items: Vec<Option<ItemId>> = vec![None; program.values.len()];
    for op in &program.ops {
        for columns in op.kind.reads().chain(op.kind.writes()) {
            let value = columns.value.index();
            own[value] &= *items[value].get_or_insert(op.item) == op.item;
        }
        if let OpKind::Attention { out, .. } = &op.kind {
            own[out.value.index()] = false;
        }
    }
    let mixed = |own: &[bool], kind: &OpKind| kind.writes().any(|columns| !own[columns.value.index()]);
    while let Some(op) = program
        .ops
        .iter()
        .find(|op| mixed(&own, &op.kind) && op.kind.writes().any(|columns| own[columns.value.index()]))
    {
        op.kind.writes().for_each(|columns| own[columns.value.index()] = false);
    }
    own
}

/// Whether workers divide an operator's work even with one token.
fn is_divided(kind: &OpKind) -> bool {
    use OpKind::*;
    match kind {
        MatMul { .. } | HeadMatMul { .. } | ExpertMatMul { .. } | CausalConv { .. } | DeltaNet { .. } => true,
        Glu { out, .. } => out.cols >= GLU_COLS_DIVIDED,
        ExpertSum { x, .. } => x.cols >= SUMMED_DIVIDED,
        _ => false,
    }
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
    group_once(&mut steps);
    meet_after_divided(&mut steps);
    steps
}

/// The same beside a GPU, where some of the steps may not be run.
pub fn solo_steps_beside(mut steps: Vec<Step>) -> Vec<Step> {
    meet_after_divided(&mut steps);
    meet_where_bytes_clash(&mut steps);
    steps
}

/// Leaves barriers only after steps that are divided or one worker's.
fn meet_after_divided(steps: &mut Vec<Step>) {
    steps.retain(|step| !matches!(step.task, Task::ScatterExperts { .. }));
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
}

/// Puts barriers where a step writes bytes for all that were touched since the last barrier, by then as another value:
/// a late worker may still be reading it.
fn meet_where_bytes_clash(steps: &mut [Step]) {
    let mut touched: Vec<(Range<usize>, Use)> = Vec::new();
    for index in 0..steps.len() {
        let here = shared_uses(&steps[index].task);
        let clash = |(a, a_use): &(Range<usize>, Use), (b, b_use): &(Range<usize>, Use)| {
            a.start < b.end && b.start < a.end && (*a_use == Use::Written || *b_use == Use::Written)
        };
        if here.iter().any(|there| touched.iter().any(|before| clash(before, there))) {
            steps[index - 1].barrier = true;
            touched.clear();
        }
        touched.extend(here);
        if steps[index].barrier {
            touched.clear();
        }
    }
}

/// What a step does with memory for all workers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Read,
    Written,
}

/// Bytes for all workers that a step of one token reads and writes.
fn shared_uses(task: &Task) -> Vec<(Range<usize>, Use)> {
    let (reads, writes) = match task {
        Task::Light { light, .. } => (light.places(), light.outputs().into_iter().flatten().collect()),
        Task::Product { parts, .. } => (vec![], parts.iter().map(|part| part.out).collect()),
        Task::HeadProduct { part, .. } | Task::ExpertProduct { part, .. } => (vec![], vec![part.out]),
        Task::GroupExperts { ids, .. } => (vec![*ids], vec![]),
        Task::PrepareExperts { x, .. } => (vec![*x], vec![]),
        Task::ScatterExperts { out, .. } => (vec![], vec![*out]),
        Task::Attention(attention) => {
            let stored = attention.store.iter().flat_map(|&(k, v)| [Some(k), v].into_iter().flatten());
            (std::iter::once(attention.q).chain(stored).collect(), vec![])
        }
        Task::AttentionJoin(attention) => (vec![], vec![attention.out]),
        Task::Conv { x, out, .. } => (vec![*x], vec![*out]),
        Task::Delta(delta) => (vec![delta.q, delta.k, delta.v, delta.b, delta.alpha], vec![delta.out]),
    };
    let of = |places: Vec<Place>, how: Use| {
        let shared = places.into_iter().filter(|place| place.home == Home::Shared);
        shared.map(move |place| (place.offset_bytes..place.offset_bytes + place.cols * 4, how))
    };
    of(reads, Use::Read).chain(of(writes, Use::Written)).collect()
}

/// Drops what would group the pairs of one router a second time. Only for steps that are always run together.
pub fn group_once(steps: &mut Vec<Step>) {
    let mut grouped: Option<(Place, usize)> = None;
    steps.retain(|step| match &step.task {
        Task::Light { light: Light::Router { .. } | Light::HeldIds { .. }, .. } => {
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
    fn beside_a_gpu_workers_meet_where_bytes_are_used_anew() {
        let at = |base_bytes| Place { base_bytes, offset_bytes: base_bytes, ..place(Home::Shared) };
        let light = |x, out| Task::Light { rows: Rows::Tokens, light: Light::Softcap { x, cap: 1.0, out } };
        let product = |out| {
            let part = Part { weight: WeightId(0), bias: None, form: ActForm::Blocks, out };
            Task::Product { rows: Rows::Tokens, parts: vec![part] }
        };
        // The first product writes bytes that nobody has read, the second those that a late worker may be reading.
        for (out, barrier) in [(at(64), false), (at(0), true)] {
            let steps = vec![step(light(at(0), place(Home::Own))), step(product(out))];
            let seen: Vec<bool> = solo_steps_beside(steps).iter().map(|step| step.barrier).collect();
            assert_eq!(seen, [barrier, true]);
        }
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
