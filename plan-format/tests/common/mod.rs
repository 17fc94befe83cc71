//! A small plan written by hand, with at least one of everything that a file can hold: it is what the golden file of
//! the format contains, and what the other tests damage.

use plan_format::arena::{Arena, RoundLimits};
use plan_format::artifact::{
    KvType, MachineCode, MemoryUse, Optimality, Options, Origin, Plan, Prediction, Region, Report,
};
use plan_format::costs::{CaseCosts, CostModel, ItemCost, Team};
use plan_format::fingerprint::{DeviceFingerprint, Fingerprinter, GpuFingerprint};
use plan_format::program::*;
use plan_format::schedule::*;
use plan_format::{ItemId, RopeId, ScheduleId, SlotId, StateId, TensorId, ValueId, WeightId};

const HIDDEN: u32 = 32;
const VOCAB: u32 = 96;
const EXPERTS: u32 = 4;
const CHOSEN: u32 = 2;

/// Tables of a program under construction.
struct Tables {
    program: Program,
    next_offset: u64,
}

impl Tables {
    fn weight(&mut self, name: &str, dims: [u64; 4], ty: gguf::GgmlType, role: WeightRole) -> WeightId {
        let size_bytes = ty.tensor_bytes(dims).unwrap();
        let program = &mut self.program;
        let tensor = TensorId(program.tensors.len() as u32);
        program.tensors.push(Tensor {
            name: name.to_owned(),
            file: 0,
            offset_bytes: self.next_offset,
            size_bytes,
            ggml_type: ty.id(),
            dims,
        });
        self.next_offset += size_bytes.next_multiple_of(32);
        let parts = vec![Part { begin: 0, end: dims[1] as u32 }];
        program.weights.push(Weight { tensor, role, axis: PartAxis::Rows, parts });
        WeightId(program.weights.len() as u32 - 1)
    }

    fn small(&mut self, name: &str, dims: [u64; 2]) -> WeightId {
        self.weight(name, [dims[0], dims[1], 1, 1], gguf::GgmlType::F32, WeightRole::Small)
    }

    fn matrix(&mut self, name: &str, out: u32) -> WeightId {
        self.weight(name, [HIDDEN.into(), out.into(), 1, 1], gguf::GgmlType::Q8_0, WeightRole::Matrix)
    }

    fn value(&mut self, name: &str, rows: Rows, cols: u32, elem: Elem) -> View {
        let value = ValueId(self.program.values.len() as u32);
        self.program.values.push(Value { name: name.to_owned(), rows, cols, elem });
        View { value, first_col: 0, cols }
    }

    fn token_value(&mut self, name: &str, cols: u32) -> View {
        self.value(name, Rows::Tokens, cols, Elem::F32)
    }

    fn item(&mut self, name: &str, kind: ItemKind, layer: Option<u32>, ops: Vec<OpKind>) {
        let item = ItemId(self.program.items.len() as u32);
        let first_op = self.program.ops.len() as u32;
        let large = |w: &WeightId| self.program.weights[w.index()].role != WeightRole::Small;
        let mut weights: Vec<WeightId> = ops.iter().flat_map(OpKind::weights).filter(large).collect();
        if kind == ItemKind::Embedding {
            weights.clear();
        }
        let mut states: Vec<StateId> = ops.iter().flat_map(OpKind::states).map(|(state, _)| state).collect();
        states.dedup();
        let op_count = ops.len() as u32;
        self.program.ops.extend(ops.into_iter().map(|kind| Op { item, kind }));
        self.program.items.push(Item { name: name.to_owned(), kind, layer, first_op, op_count, weights, states });
    }
}

/// A layer of attention and experts between a tied embedding and head.
pub fn program() -> Program {
    let mut t = Tables {
        program: Program {
            architecture: "example".to_owned(),
            vocab: VOCAB,
            context_tokens: 4096,
            tensors: Vec::new(),
            weights: Vec::new(),
            values: Vec::new(),
            states: Vec::new(),
            ropes: Vec::new(),
            ops: Vec::new(),
            items: Vec::new(),
            logits: ValueId(0),
        },
        next_offset: 4096,
    };
    let dims = [HIDDEN.into(), VOCAB.into(), 1, 1];
    let table = t.weight("token_embd.weight", dims, gguf::GgmlType::F16, WeightRole::TiedHead);
    let x = t.token_value("x", HIDDEN);
    t.item("token_embd", ItemKind::Embedding, None, vec![OpKind::Embed { table, scale: 2.0, out: x }]);
    let attended = attention(&mut t, x);
    let mixed = experts(&mut t, attended);
    let selected = t.value("selected", Rows::Outputs, HIDDEN, Elem::F32);
    let logits = t.value("logits", Rows::Outputs, VOCAB, Elem::F32);
    let parts = vec![MatMulPart { weight: table, bias: None, out: logits }];
    let select = OpKind::SelectOutputs { x: mixed, out: selected };
    t.item("output", ItemKind::Head, None, vec![select, OpKind::MatMul { x: selected, parts }]);
    t.program.logits = logits.value;
    t.program
}

fn attention(t: &mut Tables, x: View) -> View {
    let norm = t.small("attn_norm.weight", [HIDDEN.into(), 1]);
    let fused = t.matrix("attn_qkv.weight", 64);
    // Divided among processors one day: the format allows it already.
    t.program.weights[fused.index()].parts = vec![Part { begin: 0, end: 48 }, Part { begin: 48, end: 64 }];
    let factors = t.small("rope_freqs.weight", [8, 1]);
    let sinks = t.small("attn_sinks.weight", [2, 1]);
    let (normed, qkv) = (t.token_value("normed", HIDDEN), t.token_value("qkv", 64));
    let norm_op = OpKind::RmsNorm { x, group: HIDDEN, weight: Some(norm), eps: 1e-5, out: normed };
    let parts = vec![MatMulPart { weight: fused, bias: None, out: qkv }];
    t.item("attn_qkv", ItemKind::MixerInput, Some(0), vec![norm_op, OpKind::MatMul { x: normed, parts }]);
    t.program.ropes.push(Rope {
        pairing: RopePairing::Neox,
        n_rot: 16,
        base: 10000.0,
        scaling: RopeScaling::Yarn { factor: 4.0, original_context_tokens: 1024 },
        magnitude: 1.125,
        factors: Some(factors),
    });
    let kind = StateKind::Kv { k_cols: 16, v_cols: 16, window_tokens: Some(128) };
    t.program.states.push(State { name: "kv".to_owned(), kind });
    let (cache, rope) = (StateId(0), RopeId(0));
    let part = |first_col, cols| View { value: qkv.value, first_col, cols };
    let (q, k) = (t.token_value("q", 32), t.token_value("k", 16));
    let out = t.token_value("attended", 32);
    let mask = Mask::Window { tokens: 128 };
    let sinks = Some(sinks);
    let attention = Attention { q_heads: 2, kv_heads: 1, k_head_cols: 16, v_head_cols: 16, scale: 0.25, mask, sinks };
    let ops = vec![
        OpKind::Rope { x: part(0, 32), heads: 2, head_cols: 16, rope, out: q },
        OpKind::Rope { x: part(32, 16), heads: 1, head_cols: 16, rope, out: k },
        OpKind::StoreKv { k, v: Some(part(48, 16)), cache },
        OpKind::Attention { q, cache, attention, out },
    ];
    t.item("attn", ItemKind::Attention, Some(0), ops);
    let residual = t.token_value("residual", HIDDEN);
    t.item("add", ItemKind::MixerOutput, Some(0), vec![OpKind::Add { a: x, b: out, out: residual }]);
    residual
}

fn experts(t: &mut Tables, x: View) -> View {
    let gate = t.matrix("ffn_gate_inp.weight", EXPERTS);
    let bias = t.small("ffn_gate_inp.bias", [EXPERTS.into(), 1]);
    let dims = [HIDDEN.into(), HIDDEN.into(), EXPERTS.into(), 1];
    let stack = t.weight("ffn_exps.weight", dims, gguf::GgmlType::MXFP4, WeightRole::Experts);
    let logits = t.token_value("router_logits", EXPERTS);
    let ids = t.value("ids", Rows::Tokens, CHOSEN, Elem::I32);
    let weights = t.token_value("weights", CHOSEN);
    let router = Router {
        experts: EXPERTS,
        chosen: CHOSEN,
        score: RouterScore::Softmax,
        weights: RouterWeights::ScoreNormalised,
        scale: 1.5,
    };
    let parts = vec![MatMulPart { weight: gate, bias: Some(bias), out: logits }];
    let route = OpKind::Router { logits, select_bias: None, router, ids, weights };
    t.item("router", ItemKind::Router, Some(0), vec![OpKind::MatMul { x, parts }, route]);
    let outs = t.token_value("expert_outs", CHOSEN * HIDDEN);
    let mixed = t.token_value("mixed", HIDDEN);
    let parts = vec![MatMulPart { weight: stack, bias: None, out: outs }];
    let ops = vec![
        OpKind::ExpertMatMul { x, input: ExpertInput::Shared, chosen: CHOSEN, ids, parts },
        OpKind::ExpertSum { x: outs, chosen: CHOSEN, weights: Some(weights), out: mixed },
    ];
    t.item("experts", ItemKind::ExpertsOutput, Some(0), ops);
    mixed
}

/// The plan: attention resident, projections and experts streamed, the rest on the host.
pub fn plan() -> Plan {
    let program = program();
    let limits = RoundLimits { ubatch_tokens: 64, output_tokens: 4 };
    let arena = Arena::new(&program, limits);
    let homes = vec![
        Home::Host(HostMemory::Mapped),
        Home::Host(HostMemory::Pinned),
        Home::Resident,
        Home::Resident,
        Home::Host(HostMemory::Pageable),
        Home::Host(HostMemory::Pinned),
        Home::Host(HostMemory::Pageable),
    ];
    let layouts = program.weights.iter().map(|w| vec![layout(w.role); w.parts.len()]).collect();
    let (schedules, regimes) = schedules();
    let costs = costs(program.items.len());
    Plan {
        origin: origin(limits),
        program,
        arena,
        few_arena: None,
        placement: Placement::new(homes),
        layouts,
        slots: Slots {
            slots: vec![Slot { offset_bytes: 0, size_bytes: 4096 }, Slot { offset_bytes: 4096, size_bytes: 8192 }],
        },
        schedules,
        regimes,
        costs,
        report: report(),
        code: vec![
            MachineCode { module: "gemv_q8_0".to_owned(), ptx_hash: [7; 32], bytes: vec![1, 2, 3, 4, 5] },
            MachineCode { module: "attention".to_owned(), ptx_hash: [8; 32], bytes: vec![6; 70] },
        ],
        full_hash: None,
    }
}

/// The plan with router and head held by rounds of one and two tokens.
pub fn holding_plan() -> Plan {
    let mut plan = plan();
    let few_arena = Arena::new(&plan.program, RoundLimits { ubatch_tokens: 2, output_tokens: 2 });
    let mut held = Held { items: Vec::new(), slots_at_bytes: 1 << 20, load_us: 75.5 };
    let mut offset_bytes = few_arena.size_bytes.next_multiple_of(256);
    for item in [4, 6] {
        let size_bytes = plan.program.item_weight_bytes(&plan.program.items[item as usize]).next_multiple_of(256);
        held.items.push(HeldItem { item: ItemId(item), offset_bytes, size_bytes });
        offset_bytes += size_bytes;
    }
    (plan.placement.held, plan.few_arena) = (held, Some(few_arena));
    plan
}

fn layout(role: WeightRole) -> Layout {
    match role {
        WeightRole::TiedHead => Layout::CpuPanel16,
        WeightRole::Matrix | WeightRole::Experts => Layout::GpuTiled,
        _ => Layout::Gguf,
    }
}

fn origin(limits: RoundLimits) -> Origin {
    let mut model = Fingerprinter::new();
    model.file(123_456, b"a header");
    model.sample(b"a sample");
    Origin {
        tool_version: "0.0.0".to_owned(),
        options: Options {
            vram_bytes: 6 << 30,
            ram_bytes: Some(16 << 30),
            context_tokens: 2048,
            limits,
            prompt_tokens: 512,
            generate_tokens: 256,
            kv_type: KvType::F16,
        },
        model: model.finish(),
        device: DeviceFingerprint {
            cpu_model: "Example CPU".to_owned(),
            cpu_cores: 8,
            gpu: Some(GpuFingerprint {
                model: "Example GPU".to_owned(),
                memory_bytes: 6 << 30,
                link: "PCIe 4.0 x8".to_owned(),
                driver: "580.1".to_owned(),
            }),
        },
    }
}

fn schedules() -> (Vec<Schedule>, RegimeMap) {
    let schedule =
        |phase, cpu_threads, promotions, predicted_us| Schedule { phase, cpu_threads, promotions, predicted_us };
    let promotion =
        |item, slot, after: Option<u32>| Promotion { item: ItemId(item), slot: SlotId(slot), after: after.map(ItemId) };
    let streamed = vec![promotion(1, 0, None), promotion(5, 1, Some(4))];
    let schedules = vec![
        schedule(Phase::Decode, 8, Vec::new(), 1500.0),
        schedule(Phase::Decode, 4, streamed.clone(), 1250.5),
        schedule(Phase::Verify { tokens: 2 }, 8, Vec::new(), 2000.0),
        schedule(Phase::Prefill { ubatch_tokens: 64 }, 8, streamed, 9000.0),
    ];
    let regimes = RegimeMap {
        phases: vec![Phase::Decode, Phase::Verify { tokens: 2 }, Phase::Prefill { ubatch_tokens: 64 }],
        context_tokens: vec![1024, 2048],
        cpu_slowdown: vec![1.0, 2.0],
        gpu_slowdown: vec![1.0],
        link_slowdown: vec![1.0],
        cells: [0, 1, 0, 1, 2, 2, 2, 2, 3, 3, 3, 3].map(ScheduleId).to_vec(),
    };
    (schedules, regimes)
}

fn costs(items: usize) -> CostModel {
    let team = |threads| Team { threads, cpu_slowdown_while_link: 1.25, link_slowdown_while_cpu: 1.5 };
    let item = |i: usize| ItemCost {
        gpu_us: 10.0 + i as f32,
        stream_us: 50.0,
        to_gpu_us: 4.0,
        to_cpu_us: 7.0,
        dram_share: 0.5,
        stream_after: (i == 5).then_some(ItemId(4)),
    };
    let case = |phase| CaseCosts {
        phase,
        context_tokens: 2048,
        gap_us: 5.0,
        cpu_us: (0..2 * items).map(|i| 100.0 + i as f32).collect(),
        items: (0..items).map(item).collect(),
    };
    CostModel {
        teams: vec![team(4), team(8)],
        input_start: (0..=items as u32).map(|i| i.saturating_sub(1)).collect(),
        inputs: (0..items as u32 - 1).map(ItemId).collect(),
        cases: vec![case(Phase::Decode), case(Phase::Verify { tokens: 2 }), case(Phase::Prefill { ubatch_tokens: 64 })],
    }
}

fn report() -> Report {
    let used = |region, bytes| MemoryUse { region, bytes };
    Report {
        memory: vec![used(Region::GpuContext, 300 << 20), used(Region::HostPinned, 4096)],
        predictions: vec![Prediction {
            phase: Phase::Decode,
            context_tokens: 2048,
            round_us: 1250.5,
            floor_us: 1000.0,
            serial_floor_us: 1200.0,
        }],
        optimality: Some(Optimality {
            chosen_us: 1300.0,
            dp_us: 1310.0,
            lp_bound_us: 1290.0,
            best_seed: "first 0 layers".to_owned(),
            best_seed_us: 1500.0,
        }),
    }
}
