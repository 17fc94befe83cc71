//! What the tests of the hybrid executor share: plans made by hand (mixtures), a simulated GPU, rounds.
#![allow(dead_code, reason = "each test program uses its part")]

pub mod tables;

use device::clock::Nanos;
use device::gpu::Gpu;
use device::sim::{Faults, LinkPoint, LoadScript, SimConfig, SimGpu, SimProfile};
use device::team::{CallerPinning, Pinning, Team, TeamConfig};
use kernels::cpu::Isa;
use kernels::cuda::GpuLayout;
use kernels::quant::{WeightType, packed_bytes};
use plan_format::arena::{Arena, RoundLimits};
use plan_format::artifact::{self, Options, Origin, Plan, Report};
use plan_format::costs::{CaseCosts, CostModel, ItemCost, Team as CostTeam};
use plan_format::fingerprint::{DeviceFingerprint, GpuFingerprint, of_model};
use plan_format::program::{ItemKind, Program, WeightRole};
use plan_format::schedule::{
    Held, HeldItem, Home, HostMemory, Layout, Phase, Placement, Promotion, RegimeMap, Schedule, Slot, Slots,
};
use plan_format::{ItemId, ScheduleId, SlotId};
use planner::place::divide::{Division, divide};
use runtime::exec::{Choices, Executor, HostPlace, KvType, Limits, Precision, Round, Span, WeightStore};
use runtime::hybrid::cuda::scratch_bytes;
use runtime::hybrid::ops::Sizes;
use runtime::hybrid::sim::SimMaker;
use runtime::hybrid::{GpuSide, HandOver};
use std::sync::Arc;

pub const CONTEXT_TOKENS: usize = 512;
pub const UBATCH_TOKENS: u32 = 64;

/// Where items of a test's plan live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixture {
    /// All on the CPU.
    Host,
    /// All but the embedding on the GPU.
    Resident,
    /// Every other item on the GPU.
    Alternating,
    /// Feed-forward and experts on the GPU.
    FfnResident,
    /// Attention, recurrence and their projections on the GPU, feed-forward on the CPU: the common split.
    MixerResident,
    /// Every other streamable item is streamed through so many slots, all else on the CPU.
    Promoted { slots: u32 },
    /// Mixers resident, every streamable item else streamed through so many slots.
    AllPromoted { slots: u32 },
    /// Experts streamed when they are chosen, for one token, through so many slots; routers on the CPU.
    RoutedByCpu { slots: u32 },
    /// The same with all else on the GPU.
    RoutedByGpu { slots: u32 },
    /// As all promoted, and held between prompts where decode rounds can.
    Holding { slots: u32 },
    /// Any of three, by seed.
    Random { seed: u64 },
    /// Of divided layers the hot experts resident with all else, the others on the CPU.
    Hot,
    /// The same with everything but the hot experts on the CPU.
    HotAlone,
    /// The same with all else on the GPU and the others streamed through so many slots.
    HotAndStreamed { slots: u32 },
}

fn is_streamable(kind: ItemKind) -> bool {
    !matches!(kind, ItemKind::Embedding | ItemKind::Attention | ItemKind::Recurrent)
}

fn is_ffn(kind: ItemKind) -> bool {
    use ItemKind::*;
    matches!(kind, FfnInput | FfnOutput | ExpertsInput | ExpertsOutput | SharedExperts)
}

fn is_routed(kind: ItemKind) -> bool {
    matches!(kind, ItemKind::ExpertsInput | ItemKind::ExpertsOutput)
}

#[derive(Clone, Copy, PartialEq)]
enum Place {
    Host,
    Resident,
    Promoted,
}

fn places(program: &Program, mixture: Mixture) -> (Vec<Place>, u32) {
    let mut random = match mixture {
        Mixture::Random { seed } => seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1,
        _ => 1,
    };
    let mut draw = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random >> 33
    };
    let slots = match mixture {
        Mixture::Promoted { slots } | Mixture::AllPromoted { slots } => slots,
        Mixture::HotAndStreamed { slots } | Mixture::Holding { slots } => slots,
        Mixture::RoutedByCpu { slots } | Mixture::RoutedByGpu { slots } => slots,
        Mixture::Random { seed } => 1 + (seed % 3) as u32,
        _ => 0,
    };
    let place = |(index, item): (usize, &plan_format::program::Item)| {
        let streamable = is_streamable(item.kind) && item.states.is_empty() && !item.weights.is_empty();
        let resident = |wanted: bool| if wanted { Place::Resident } else { Place::Host };
        if item.kind == ItemKind::Embedding {
            return Place::Host;
        }
        match mixture {
            Mixture::Host => Place::Host,
            Mixture::Resident => Place::Resident,
            Mixture::Alternating => resident(index % 2 == 0),
            Mixture::FfnResident => resident(is_ffn(item.kind)),
            Mixture::MixerResident => resident(!is_ffn(item.kind)),
            Mixture::Promoted { .. } if streamable && index % 2 == 0 => Place::Promoted,
            Mixture::Promoted { .. } => Place::Host,
            Mixture::AllPromoted { .. } | Mixture::Holding { .. } if streamable => Place::Promoted,
            Mixture::AllPromoted { .. } | Mixture::Holding { .. } => Place::Resident,
            Mixture::RoutedByCpu { .. } | Mixture::RoutedByGpu { .. } if is_routed(item.kind) => Place::Promoted,
            Mixture::RoutedByCpu { .. } => Place::Host,
            Mixture::RoutedByGpu { .. } => Place::Resident,
            Mixture::Hot => resident(!item.name.ends_with(".cold")),
            Mixture::HotAlone => resident(item.name.ends_with(".hot")),
            Mixture::HotAndStreamed { .. } if item.name.ends_with(".cold") => Place::Promoted,
            Mixture::HotAndStreamed { .. } => Place::Resident,
            Mixture::Random { .. } => match draw() % 3 {
                0 => Place::Resident,
                1 if streamable => Place::Promoted,
                _ => Place::Host,
            },
        }
    };
    (program.items.iter().enumerate().map(place).collect(), slots)
}

pub fn model(name: &str) -> gguf::Model {
    gguf::Model::open(&fixtures::reference_dir().join(format!("tiny-{name}.gguf"))).expect("reference model")
}

/// Bytes that an item takes in a slot, of stacks so many matrices at most.
fn slot_bytes(program: &Program, item: &plan_format::program::Item, experts_max: u64) -> u64 {
    let bytes = item.weights.iter().map(|weight| {
        let tensor = program.held(*weight);
        let ty = WeightType::try_from(gguf::GgmlType::from_id(tensor.ggml_type)).expect("a known type");
        let (rows, cols) = (tensor.rows() as usize, tensor.cols() as usize);
        let panels = packed_bytes(ty, rows, cols).expect("whole blocks");
        let matrix = panels.max(GpuLayout::preferred(ty).row_bytes(ty, cols).expect("whole blocks") * rows);
        let stack = (tensor.dims[2] * tensor.dims[3]).min(experts_max);
        (matrix.next_multiple_of(64) as u64 * stack).next_multiple_of(256)
    });
    bytes.sum()
}

/// Experts that a token chooses.
fn chosen(program: &Program) -> u64 {
    let of_op = |op: &plan_format::program::Op| match op.kind {
        plan_format::program::OpKind::ExpertMatMul { chosen, .. } => Some(u64::from(chosen)),
        _ => None,
    };
    program.ops.iter().find_map(of_op).unwrap_or(1)
}

fn schedule(places: &[Place], slots: u32, phase: Phase) -> Schedule {
    let promoted = places.iter().enumerate().filter(|(_, place)| **place == Place::Promoted);
    let promotion = |(number, (item, _)): (usize, (usize, &Place))| Promotion {
        item: ItemId(item as u32),
        slot: SlotId(number as u32 % slots.max(1)),
        after: None,
    };
    let promotions = promoted.enumerate().map(promotion).collect();
    Schedule { phase, cpu_threads: 2, promotions, predicted_us: 1000.0 }
}

/// A plan for a model with this mixture in all phases.
pub fn plan(name: &str, mixture: Mixture) -> Plan {
    plan_of(name, program(name, mixture), mixture)
}

/// A model's program; divided where the mixture speaks of hot experts.
fn program(name: &str, mixture: Mixture) -> Program {
    match mixture {
        Mixture::Hot | Mixture::HotAlone | Mixture::HotAndStreamed { .. } => divided(name, is_hot),
        _ => planner::lower_model(&model(name)).expect("known family"),
    }
}

/// Others in every layer, so that tokens have hot experts only, others only, and both.
pub fn is_hot(layer: u32, expert: u32) -> bool {
    (expert * 7 + layer * 3) % 5 < 2
}

/// A model's program with the experts of all its layers divided: each is hot in the layers that `is_hot` says.
pub fn divided(name: &str, is_hot: impl Fn(u32, u32) -> bool) -> Program {
    let program = planner::lower_model(&model(name)).expect("known family");
    let division = |op: &plan_format::program::Op| match &op.kind {
        plan_format::program::OpKind::Router { router, .. } => {
            let layer = program.items[op.item.index()].layer?;
            Some(Division { layer, hot: (0..router.experts).filter(|&expert| is_hot(layer, expert)).collect() })
        }
        _ => None,
    };
    let divisions: Vec<Division> = program.ops.iter().filter_map(division).collect();
    divide(&program, &divisions).expect("experts that can be divided")
}

/// A plan for a program of a model with this mixture in all phases.
pub fn plan_of(name: &str, program: Program, mixture: Mixture) -> Plan {
    let model = model(name);
    let limits = RoundLimits { ubatch_tokens: UBATCH_TOKENS, output_tokens: UBATCH_TOKENS };
    let arena = Arena::new(&program, limits);
    let (places, slot_count) = places(&program, mixture);
    let home = |place: &Place| match place {
        Place::Resident => Home::Resident,
        Place::Promoted => Home::Host(HostMemory::Pinned),
        Place::Host => Home::Host(HostMemory::Pageable),
    };
    let promoted = program.items.iter().zip(&places).filter(|(_, place)| **place == Place::Promoted);
    let routed = matches!(mixture, Mixture::RoutedByCpu { .. } | Mixture::RoutedByGpu { .. });
    let experts_max = if routed { chosen(&program) } else { u64::MAX };
    let size_bytes = promoted.map(|(item, _)| slot_bytes(&program, item, experts_max)).max().unwrap_or(256);
    let slot = |index: u32| Slot { offset_bytes: u64::from(index) * size_bytes, size_bytes };
    let phases = [Phase::Decode, Phase::Prefill { ubatch_tokens: UBATCH_TOKENS }];
    let mut schedules: Vec<_> = phases.iter().map(|phase| schedule(&places, slot_count, *phase)).collect();
    if routed {
        // Many tokens choose more experts than a slot for one token holds.
        schedules[1].promotions.clear();
    }
    let layouts = program.weights.iter().map(|weight| vec![Layout::Gguf; weight.parts.len()]).collect();
    let plan = Plan {
        origin: origin(&model, limits),
        costs: costs(&program, &phases),
        few_arena: None,
        placement: Placement::new(places.iter().map(home).collect()),
        layouts,
        slots: Slots { slots: (0..slot_count).map(slot).collect() },
        schedules,
        regimes: RegimeMap {
            phases: phases.to_vec(),
            context_tokens: vec![CONTEXT_TOKENS as u32],
            cpu_slowdown: vec![1.0],
            gpu_slowdown: vec![1.0],
            link_slowdown: vec![1.0],
            cells: vec![ScheduleId(0), ScheduleId(1)],
        },
        report: Report::default(),
        code: Vec::new(),
        full_hash: None,
        program,
        arena,
    };
    if matches!(mixture, Mixture::Holding { .. }) { hold(plan) } else { plan }
}

/// Most tokens of a verification round of plans that hold items.
const FEW_TOKENS: u32 = 4;

/// Bytes that rounds work in.
fn work_bytes(plan: &Plan, arena: &Arena) -> u64 {
    let sizes = Sizes { limits: arena.limits, context_tokens: CONTEXT_TOKENS as u32, sequences: 1, kv_bytes: 2 };
    let scratch = scratch_bytes(&plan.program, &sizes).expect("known types").next_multiple_of(256);
    (scratch + arena.size_bytes).next_multiple_of(256)
}

/// A plan whose decode and verification rounds hold every other item that its prefill rounds stream, and stream the
/// others through the last of the slots alone; what is held lies on activations and on all other slots.
pub fn hold(mut plan: Plan) -> Plan {
    let limits = RoundLimits { ubatch_tokens: FEW_TOKENS, output_tokens: FEW_TOKENS };
    let few_arena = Arena::new(&plan.program, limits);
    let (begin, work) = (work_bytes(&plan, &few_arena), work_bytes(&plan, &plan.arena));
    let last = plan.slots.slots.len() - 1;
    let (last_at, size_bytes) = (plan.slots.slots[last].offset_bytes, plan.slots.slots[last].size_bytes);
    let promoted: Vec<_> = plan.schedules[0].promotions.iter().map(|promotion| promotion.item).collect();
    let mut held = Held { items: Vec::new(), slots_at_bytes: work, load_us: 100.0 };
    for &item in promoted.iter().step_by(2) {
        let offset_bytes = begin + held.items.len() as u64 * size_bytes.next_multiple_of(256);
        held.items.push(HeldItem { item, offset_bytes, size_bytes });
    }
    // Everything below the last slot is held, no more.
    let end = held.items.last().map_or(begin, |held| held.offset_bytes + held.size_bytes);
    held.slots_at_bytes = work.max(end.saturating_sub(last_at)).next_multiple_of(256);
    assert!(begin < work, "held items lie on activations");
    let decode = &mut plan.schedules[0];
    decode.promotions.retain(|promotion| held.items.iter().all(|held| held.item != promotion.item));
    decode.promotions.iter_mut().for_each(|promotion| promotion.slot = SlotId(last as u32));
    let verify = Schedule { phase: Phase::Verify { tokens: FEW_TOKENS }, ..decode.clone() };
    let decode_case = plan.costs.cases[0].clone();
    plan.costs.cases.insert(1, CaseCosts { phase: verify.phase, ..decode_case });
    plan.schedules.insert(1, verify);
    plan.regimes.phases = plan.schedules.iter().map(|schedule| schedule.phase).collect();
    plan.regimes.cells = (0..3).map(ScheduleId).collect();
    (plan.placement.held, plan.few_arena) = (held, Some(few_arena));
    plan_format::verify::verify_plan(&plan).expect("a plan without faults");
    plan
}

fn origin(model: &gguf::Model, limits: RoundLimits) -> Origin {
    let gpu = GpuFingerprint {
        model: "sim:test".to_owned(),
        memory_bytes: 1 << 30,
        link: "simulated".to_owned(),
        driver: "simulated".to_owned(),
    };
    Origin {
        tool_version: "test".to_owned(),
        options: Options {
            vram_bytes: 1 << 30,
            ram_bytes: None,
            context_tokens: CONTEXT_TOKENS as u32,
            limits,
            prompt_tokens: 1,
            generate_tokens: 1,
            kv_type: artifact::KvType::F16,
        },
        model: of_model(model).expect("a fingerprint"),
        device: DeviceFingerprint { cpu_model: "test".to_owned(), cpu_cores: 2, gpu: Some(gpu) },
    }
}

fn costs(program: &Program, phases: &[Phase]) -> CostModel {
    let items = program.items.len();
    let item = ItemCost { gpu_us: 5.0, stream_us: 20.0, to_gpu_us: 6.0, to_cpu_us: 8.0, ..ItemCost::default() };
    let case = |phase: &Phase| CaseCosts {
        phase: *phase,
        context_tokens: CONTEXT_TOKENS as u32,
        gap_us: 10.0,
        cpu_us: vec![30.0; items],
        items: vec![item; items],
    };
    CostModel {
        teams: vec![CostTeam { threads: 2, cpu_slowdown_while_link: 1.0, link_slowdown_while_cpu: 1.0 }],
        input_start: vec![0; items + 1],
        inputs: Vec::new(),
        cases: phases.iter().map(case).collect(),
    }
}

pub fn profile() -> SimProfile {
    SimProfile {
        name: "test".into(),
        memory_bytes: 1 << 30,
        context_bytes: 4096,
        pinned_limit_bytes: 1 << 30,
        link: vec![LinkPoint { bytes: 1, rate_gbps: 1.0 }],
        pageable_factor: 0.25,
        submit: Nanos(100),
        copy_start: Nanos(500),
        to_gpu: Nanos(1000),
        to_cpu: Nanos(700),
    }
}

pub fn sim(faults: Faults) -> Arc<SimGpu> {
    sim_with(faults, LoadScript::default(), None)
}

pub fn sim_with(faults: Faults, load: LoadScript, ceiling_bytes: Option<u64>) -> Arc<SimGpu> {
    Arc::new(SimGpu::new(SimConfig { profile: profile(), load, faults, ceiling_bytes }))
}

pub fn team(threads: usize) -> Team {
    let config = TeamConfig { threads, pinning: Pinning::Free, caller: CallerPinning::Leave, spin_us: 20 };
    Team::new(config).expect("threads")
}

pub fn limits() -> Limits {
    let (kv_type, precision) = (KvType::F16, Precision::Fast);
    Limits { context_tokens: CONTEXT_TOKENS, sequences: 1, kv_type, precision, choices: Choices::Unseen }
}

/// An executor of the plan on this GPU.
pub fn hybrid(name: &str, plan: &Plan, gpu: &Arc<SimGpu>) -> Result<Executor, runtime::Error> {
    hybrid_pinned(name, plan, gpu, None)
}

pub fn hybrid_pinned(
    name: &str,
    plan: &Plan,
    gpu: &Arc<SimGpu>,
    pinned_schedule: Option<usize>,
) -> Result<Executor, runtime::Error> {
    hybrid_with(name, plan, gpu, (pinned_schedule, Choices::Unseen))
}

pub fn hybrid_with(
    name: &str,
    plan: &Plan,
    gpu: &Arc<SimGpu>,
    (pinned_schedule, choices): (Option<usize>, Choices),
) -> Result<Executor, runtime::Error> {
    let limits = Limits { choices, ..limits() };
    let weights = WeightStore::load_placed(model(name), &plan.program, &HostPlace::of_plan(plan, Precision::Fast))?;
    let isa = Isa::detect();
    let maker = SimMaker::new(Arc::clone(gpu), (&plan.program, &plan.arena), &weights, limits, isa)?;
    let hand_over = HandOver { to_gpu_us: 1.0, to_cpu_us: 0.7 };
    let gpu: Arc<dyn Gpu> = Arc::clone(gpu) as Arc<dyn Gpu>;
    let side = GpuSide { gpu, maker: Box::new(maker), hand_over, pinned_schedule };
    Executor::with_gpu(plan, weights, limits, (team(2), isa), side)
}

/// The same model on the CPU alone.
pub fn all_cpu(name: &str) -> Executor {
    all_cpu_of(name, &planner::lower_model(&model(name)).expect("known family"), 2)
}

/// A program of a model on the CPU alone, with so many threads.
pub fn all_cpu_of(name: &str, program: &Program, threads: usize) -> Executor {
    cpu_with(name, program, threads, limits())
}

/// The same in exact or planned arithmetic, with recorded choices or without.
pub fn cpu_with(name: &str, program: &Program, threads: usize, limits: Limits) -> Executor {
    let model = model(name);
    let arena = Arena::new(program, RoundLimits { ubatch_tokens: UBATCH_TOKENS, output_tokens: UBATCH_TOKENS });
    let weights = WeightStore::load(model, program, limits.precision).expect("weights");
    Executor::new(program, &arena, weights, limits, (team(threads), Isa::detect())).expect("prepared")
}

/// Feeds `ids` from position `first` in rounds of `ubatch`; all logits.
pub fn feed(executor: &mut Executor, ids: &[u32], first: usize, ubatch: usize) -> Result<Vec<f32>, runtime::Error> {
    let mut all = Vec::new();
    for (index, tokens) in ids.chunks(ubatch).enumerate() {
        let first = (first + index * ubatch) as u32;
        let positions: Vec<u32> = (0..tokens.len() as u32).map(|i| first + i).collect();
        let outputs: Vec<u32> = (0..tokens.len() as u32).collect();
        let spans = [Span { sequence: 0, tokens: 0..tokens.len() }];
        let round = Round { tokens, positions: &positions, spans: &spans, outputs: &outputs };
        let view = executor.run(&round)?;
        (0..view.rows()).for_each(|row| all.extend_from_slice(view.row(row)));
    }
    Ok(all)
}

fn reference_json(name: &str) -> serde_json::Value {
    let text = std::fs::read(fixtures::reference_dir().join(format!("{name}.json"))).expect("reference");
    serde_json::from_slice(&text).expect("JSON")
}

/// Router logits nearer to each other than this may choose another expert with 8-bit activations.
const NEAR_TIE: f64 = 0.1;

/// Logits of the reference prompt in two ways, without the positions at which they tell that another expert was chosen:
/// a router nearly tied there, and the cosine lies between 0.75 and 0.99. The rule of `check_reference.py`.
pub fn without_flips(name: &str, a: &[f32], b: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let json = reference_json(name);
    let margins = json["router_margin_min_per_position"].as_array().cloned().unwrap_or_default();
    let cols = a.len() / prompt(name).len();
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let is_kept = |(position, (a, b)): &(usize, (&[f32], &[f32]))| {
        let cosine = dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
        let margin = margins.get(*position).and_then(serde_json::Value::as_f64).unwrap_or(f64::INFINITY);
        !(margin < NEAR_TIE && cosine > 0.75 && cosine < 0.99)
    };
    let kept = a.chunks(cols).zip(b.chunks(cols)).enumerate().filter(is_kept);
    let (a, b): (Vec<&[f32]>, Vec<&[f32]>) = kept.map(|(_, rows)| rows).unzip();
    (a.concat(), b.concat())
}

/// A plan on the simulated GPU gives the bits of `expected` for the reference prompt, in rounds of any size.
#[track_caller]
pub fn same_bits(name: &str, plan: &Plan, expected: &[f32], what: impl std::fmt::Debug) {
    let ids = prompt(name);
    let mut executor = hybrid(name, plan, &sim(Faults::none())).unwrap_or_else(|e| panic!("{name}: {e}"));
    for ubatch in [64, 1, 5] {
        executor.clear(0).expect("a sound GPU");
        let got = feed(&mut executor, &ids, 0, ubatch).unwrap_or_else(|e| panic!("{name} {what:?}: {e}"));
        assert!(got == expected, "{name} {what:?}, ubatch {ubatch}: other bits than the CPU's");
    }
}

/// The reference prompt of a model.
pub fn prompt(name: &str) -> Vec<u32> {
    let json = reference_json(name);
    let ids = json["prompt_ids"].as_array().expect("prompt ids");
    ids.iter().map(|id| id.as_u64().expect("an id") as u32).collect()
}

/// Whether a weight belongs to the embedding only.
pub fn is_embedding(role: WeightRole) -> bool {
    role == WeightRole::EmbeddingRows
}
