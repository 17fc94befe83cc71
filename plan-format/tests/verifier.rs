//! Each invariant of the verifier, broken once: the error names section and field.

mod common;

use plan_format::arena::{Arena, RoundLimits};
use plan_format::program::*;
use plan_format::schedule::{Home, HostMemory, Layout, Phase};
use plan_format::verify::{verify_plan, verify_program};
use plan_format::{ItemId, RopeId, ScheduleId, SlotId, StateId, TensorId, ValueId, WeightId};
use proptest::prelude::*;

#[track_caller]
fn program(change: impl FnOnce(&mut Program), expected: &[&str]) {
    let mut program = common::program();
    change(&mut program);
    let error = verify_program(&program).expect_err("it was accepted").to_string();
    assert!(expected.iter().all(|part| error.contains(part)), "{error}\nlacks one of {expected:?}");
}

#[track_caller]
fn plan(change: impl FnOnce(&mut plan_format::artifact::Plan), expected: &[&str]) {
    let mut plan = common::plan();
    change(&mut plan);
    let error = verify_plan(&plan).expect_err("it was accepted").to_string();
    assert!(expected.iter().all(|part| error.contains(part)), "{error}\nlacks one of {expected:?}");
}

#[test]
fn the_example_is_valid() {
    verify_program(&common::program()).unwrap();
    verify_plan(&common::plan()).unwrap();
}

#[test]
fn tables() {
    program(|p| p.tensors[2].dims[1] = 0, &["tensors[2]", "dimensions"]);
    program(|p| p.tensors[2].size_bytes += 1, &["tensors[2]", "bytes"]);
    program(|p| p.tensors[2].ggml_type = 9999, &["tensors[2]", "type 9999"]);
    program(|p| p.tensors[2].offset_bytes = u64::MAX, &["tensors[2]", "2^64"]);
    program(|p| p.weights[3].tensor = TensorId(99), &["weights[3]", "tensor 99"]);
    program(|p| p.weights[2].parts[1].begin = 50, &["weights[2]", "begins at 50, expected 48"]);
    program(|p| p.weights[2].parts[0].begin = 1, &["weights[2]", "begins at 1, expected 0"]);
    program(|p| p.weights[2].parts[1].end = 60, &["weights[2]", "end at 60 of 64"]);
    program(|p| p.weights[2].parts[0].end = 0, &["weights[2]", "empty"]);
    program(|p| p.weights[2].parts.clear(), &["weights[2]", "end at 0 of 64"]);
    program(|p| p.weights[1].parts = vec![Part { begin: 0, end: 1 }; 2], &["weights[1]"]);
    program(|p| p.values[1].cols = 0, &["values[1]", "0 columns"]);
    program(|p| p.states[0].kind = StateKind::Conv { channels: 8, taps: 1 }, &["states[0]", "taps is 1"]);
    program(|p| p.ropes[0].n_rot = 15, &["ropes[0]", "n_rot is 15"]);
    program(|p| p.ropes[0].base = f32::NAN, &["ropes[0]", "base is NaN"]);
    program(|p| p.ropes[0].factors = Some(WeightId(0)), &["ropes[0]", "token_embd.weight"]);
    program(|p| p.logits = ValueId(99), &["logits", "value 99"]);
    program(|p| p.logits = ValueId(0), &["logits", "not [O, 96]"]);
    program(|p| p.context_tokens = 0, &["logits", "context"]);
}

#[test]
fn items_cover_the_operators() {
    program(|p| p.items[1].first_op = 2, &["items[1] (attn_qkv)", "begins at operator 2, expected 1"]);
    program(|p| p.items[1].op_count = 0, &["items[1]", "no operators"]);
    program(|p| p.items[6].op_count = 3, &["items[6]", "ends at 15 of 14"]);
    program(
        |p| {
            let op = p.ops[13].clone();
            p.ops.push(op);
        },
        &["items", "end at operator 14 of 15"],
    );
    program(|p| p.ops[3].item = ItemId(1), &["items[2]", "names item 1"]);
    program(|p| p.items[1].weights.clear(), &["weights[2]", "placed by 0 items"]);
    program(|p| p.items[0].weights.push(WeightId(0)), &["weights[0]", "placed by 2 items"]);
    program(|p| p.items[4].weights.push(WeightId(2)), &["items[4]", "none of its operators reads"]);
    program(|p| p.items[2].states.clear(), &["states[0]", "held by 0 items"]);
    program(|p| p.items[1].states.push(StateId(0)), &["items[1]", "none of its operators uses"]);
    // Small weights are everybody's.
    program(|p| p.items[1].weights.push(WeightId(1)), &["weights[1]", "placed by 1 items, expected 0"]);
}

#[test]
fn columns_are_written_once_and_before_they_are_read() {
    program(|p| p.ops.swap(3, 5), &["ops[3] (store_kv)", "columns of k before they are written"]);
    program(|p| p.ops.swap(5, 6), &["ops[5] (attention)", "before this round's rows"]);
    program(
        |p| match &mut p.ops[4].kind {
            OpKind::Rope { x, heads, out, .. } => {
                (*x, *heads, *out) = (View { first_col: 0, ..*x }, 1, View { value: ValueId(3), ..*out })
            }
            _ => unreachable!(),
        },
        &["ops[4] (rope)", "second time"],
    );
    program(|p| p.values[5].cols = 16, &["ops[6] (attention)", "columns up to 32"]);
    program(|p| p.values.push(Value { name: "spare".into(), ..p.values[0].clone() }), &["values[14]", "spare"]);
}

/// Changes fields of one operator of the example.
macro_rules! operator {
    ($index:literal, $variant:ident { $($field:ident),+ } => $change:expr, $expected:expr) => {
        program(
            |p| match &mut p.ops[$index].kind {
                OpKind::$variant { $($field),+, .. } => $change,
                other => panic!("{}", other.name()),
            },
            $expected,
        )
    };
}

#[test]
fn operands_fit_their_operators() {
    operator!(0, Embed { out } => out.value = ValueId(99), &["ops[0] (embed)", "value 99 of 14"]);
    operator!(0, Embed { out } => out.cols = 31, &["ops[0]", "dimensions [32, 96, 1, 1]"]);
    operator!(1, RmsNorm { group } => *group = 5, &["ops[1] (rms_norm)", "groups of 5"]);
    operator!(1, RmsNorm { eps } => *eps = f32::NAN, &["ops[1]", "eps is NaN"]);
    operator!(2, MatMul { parts } => parts.clear(), &["ops[2] (mat_mul)", "no products"]);
    operator!(2, MatMul { parts } => parts[0].weight = WeightId(1), &["ops[2]", "parts[0]"]);
    operator!(3, Rope { rope } => *rope = RopeId(1), &["ops[3] (rope)", "rope 1 of 1"]);
    operator!(3, Rope { heads, head_cols } => (*heads, *head_cols) = (4, 8), &["rotates 16 of 8"]);
    operator!(5, StoreKv { v } => *v = None, &["ops[5] (store_kv)", "v has 0 columns, expected 16"]);
    operator!(6, Attention { attention } => attention.kv_heads = 0, &["ops[6] (attention)", "0 kv heads"]);
    operator!(6, Attention { attention } => attention.mask = Mask::Causal, &["ops[6]", "keeps Some(128)"]);
    operator!(6, Attention { attention } => attention.scale = 0.0, &["ops[6]", "scale is 0"]);
    operator!(6, Attention { attention } => attention.sinks = Some(WeightId(1)), &["ops[6]", "attn_norm.weight"]);
    operator!(9, Router { router } => router.chosen = 5, &["ops[9] (router)", "chooses 5 of 4"]);
    operator!(9, Router { ids, weights } => std::mem::swap(ids, weights), &["ops[9]", "is F32, expected I32"]);
    operator!(10, ExpertMatMul { chosen } => *chosen = 3, &["ops[10] (expert_mat_mul)"]);
    operator!(10, ExpertMatMul { input } => *input = ExpertInput::PerExpert, &["ops[10]", "parts[0]"]);
    operator!(11, ExpertSum { chosen } => *chosen = 4, &["ops[11] (expert_sum)", "expected 4 x 32"]);
    program(|p| p.values[0].rows = Rows::Outputs, &["ops[0] (embed)", "O rows"]);
    program(|p| p.values[12].rows = Rows::Tokens, &["ops[12] (select_outputs)", "Outputs"]);
}

#[test]
fn placement_layouts_and_slots() {
    plan(|p| p.placement.homes.truncate(6), &["section places", "placement.homes", "6 for 7 items"]);
    plan(|p| p.origin.options.vram_bytes = 0, &["placement.homes[2]", "resident", "no GPU"]);
    plan(|p| p.origin.device.gpu = None, &["placement.homes[2]", "no GPU"]);
    plan(|p| drop(p.layouts.pop()), &["section places, layouts"]);
    plan(|p| p.layouts[2].truncate(1), &["layouts[2]", "1 for 2 parts"]);
    plan(|p| p.layouts[1][0] = Layout::CpuPanel16, &["layouts[1]", "as it is in the file"]);
    plan(|p| p.placement.homes[6] = Home::Host(HostMemory::Mapped), &["layouts[0]", "as it is in the file"]);
    plan(|p| p.slots.slots[1].offset_bytes = 100, &["slots[1]", "multiple of 256"]);
    plan(|p| p.slots.slots[1].offset_bytes = u64::MAX - 255, &["slots[1]", "2^63"]);
    plan(|p| p.slots.slots[0].size_bytes = 0, &["slots[0]", "no bytes"]);
}

#[test]
fn schedules() {
    plan(|p| p.schedules.clear(), &["section schedule, schedules", "none"]);
    plan(|p| p.schedules[0].cpu_threads = 0, &["schedules[0]", "0 threads"]);
    plan(|p| p.schedules[0].cpu_threads = 5, &["schedules[0]", "5 threads, without costs"]);
    plan(|p| p.schedules[0].predicted_us = f64::INFINITY, &["schedules[0]", "inf"]);
    plan(|p| p.schedules[1].promotions[0].item = ItemId(2), &["schedules[1]", "promotion 0", "resident"]);
    plan(|p| p.schedules[1].promotions[0].item = ItemId(99), &["schedules[1]", "not in item order"]);
    plan(|p| p.schedules[1].promotions[1].item = ItemId(99), &["schedules[1]", "item 99 does not exist"]);
    plan(|p| p.schedules[1].promotions[1].slot = SlotId(2), &["schedules[1]", "slot 2 does not exist"]);
    plan(|p| p.schedules[1].promotions[1].after = Some(ItemId(5)), &["schedules[1]", "not before it"]);
    plan(|p| p.schedules[1].promotions[0].item = ItemId(0), &["schedules[1]", "no weights to stream"]);
    plan(|p| p.slots.slots[0].size_bytes = 256, &["schedules[1]", "promotion 0", "needs 2176 bytes"]);
    // Of the experts, one token's choice must fit: 2 of 4.
    plan(|p| p.slots.slots[1].size_bytes = 1087, &["schedules[1]", "promotion 1", "needs 1088 bytes"]);
    plan(|p| p.schedules[3].phase = Phase::Prefill { ubatch_tokens: 65 }, &["schedules[3]", "does not fit"]);
    plan(|p| p.schedules[2].phase = Phase::Verify { tokens: 8 }, &["schedules[2]", "does not fit"]);
}

#[test]
fn regimes() {
    plan(|p| p.regimes.cells[1] = ScheduleId(3), &["section regimes, cells", "cell 1", "Prefill"]);
    plan(|p| p.regimes.cells[1] = ScheduleId(4), &["cells", "schedule 4"]);
    plan(|p| p.regimes.cells.truncate(11), &["cells", "11 cells"]);
    plan(|p| p.regimes.cpu_slowdown = vec![2.0, 1.0], &["cpu_slowdown", "ascending"]);
    plan(|p| p.regimes.gpu_slowdown = vec![], &["gpu_slowdown", "empty"]);
    plan(|p| p.regimes.link_slowdown = vec![0.5], &["link_slowdown", "from 1"]);
    plan(|p| p.regimes.link_slowdown = vec![f32::NAN], &["link_slowdown"]);
    plan(|p| p.regimes.context_tokens = vec![512, 1024], &["context_tokens", "ends at 1024"]);
    plan(|p| p.regimes.phases[0] = Phase::Verify { tokens: 1 }, &["phases", "no decode"]);
}

#[test]
fn costs_options_and_report() {
    plan(|p| p.costs = Default::default(), &["section costs, cases", "several schedules"]);
    plan(|p| p.costs.input_start[3] = 9, &["costs", "input_start"]);
    plan(|p| p.costs.inputs[0] = ItemId(6), &["costs", "inputs", "not before it"]);
    plan(|p| p.costs.teams.swap(0, 1), &["costs", "teams"]);
    plan(|p| p.costs.teams[0].cpu_slowdown_while_link = 0.5, &["costs", "teams", "under 1"]);
    plan(|p| p.costs.cases[1].cpu_us[0] = -1.0, &["costs", "cases[1]", "CPU time"]);
    plan(|p| p.costs.cases[1].items[2].dram_share = 1.5, &["cases[1]", "item 2"]);
    plan(|p| p.costs.cases[1].items[5].stream_after = Some(ItemId(5)), &["cases[1]", "item 5"]);
    plan(|p| drop(p.costs.cases.remove(2)), &["schedules[3]", "without costs"]);
    plan(|p| p.origin.options.context_tokens = 5000, &["section origin, options", "5000"]);
    plan(|p| p.origin.options.limits.output_tokens = 5, &["section origin, options", "limits"]);
    plan(|p| p.report.predictions[0].floor_us = f64::NAN, &["section report, predictions[0]"]);
    plan(|p| p.report.optimality.as_mut().unwrap().dp_us = f64::NAN, &["section report, optimality"]);
}

#[test]
fn arenas() {
    plan(|p| p.arena.offsets_bytes.truncate(13), &["section arena, offsets_bytes", "13 entries for 14"]);
    plan(|p| p.arena.offsets_bytes[0] = 32, &["offsets_bytes[0]", "multiple of 64"]);
    plan(|p| p.arena.offsets_bytes[0] = p.arena.size_bytes, &["offsets_bytes[0]", "beyond the arena"]);
    plan(|p| p.arena.offsets_bytes[0] = u64::MAX - 63, &["offsets_bytes[0]", "beyond the arena"]);
    plan(|p| p.arena.offsets_bytes[1] = p.arena.offsets_bytes[0], &["offsets_bytes[1]", "normed overlaps x"]);
}

#[track_caller]
fn holding(change: impl FnOnce(&mut plan_format::artifact::Plan), expected: &[&str]) {
    let mut plan = common::holding_plan();
    verify_plan(&plan).unwrap();
    change(&mut plan);
    let error = verify_plan(&plan).expect_err("it was accepted").to_string();
    assert!(expected.iter().all(|part| error.contains(part)), "{error}\nlacks one of {expected:?}");
}

#[test]
fn what_is_held_between_prompts() {
    holding(|p| p.few_arena = None, &["section held, few_arena", "missing for 2"]);
    holding(|p| p.placement.held.items.clear(), &["few_arena", "no item is held"]);
    holding(|p| p.few_arena.as_mut().unwrap().limits.output_tokens = 1, &["few_arena", "Verify"]);
    holding(|p| p.few_arena.as_mut().unwrap().offsets_bytes[0] = 32, &["offsets_bytes[0]"]);
    holding(|p| p.placement.held.items[0].item = ItemId(99), &["items[0]", "does not exist"]);
    holding(|p| p.placement.held.items[0].item = ItemId(0), &["items[0]", "does not live in host memory"]);
    holding(|p| p.placement.held.items[0].item = ItemId(2), &["items[0]", "does not live in host memory"]);
    holding(|p| p.placement.held.items.swap(0, 1), &["items", "order"]);
    holding(|p| p.placement.held.items[1].size_bytes = 16, &["items[1]", "needs"]);
    holding(|p| p.placement.held.items[1].offset_bytes += 64, &["items[1]", "multiple of 256"]);
    holding(|p| p.placement.held.items[1].offset_bytes = u64::MAX - 255, &["items[1]", "2^63"]);
    holding(|p| p.placement.held.items[1].offset_bytes -= 256, &["overlaps"]);
    holding(|p| p.placement.held.items[0].offset_bytes = 0, &["overlaps the activations"]);
    holding(|p| p.placement.held.items[1].offset_bytes = 1 << 20, &["overlaps a slot"]);
    holding(|p| p.placement.held.items[1].offset_bytes = (1 << 20) + 12288, &["overlaps the staging area"]);
    holding(|p| p.placement.held.items[1].offset_bytes = 1 << 30, &["the region"]);
    holding(|p| p.placement.held.slots_at_bytes = u64::MAX, &["2^64"]);
    holding(|p| p.placement.held.load_us = f64::NAN, &["load_us"]);
    let promote = |p: &mut plan_format::artifact::Plan, schedule: usize| {
        let promotion = &mut p.schedules[schedule].promotions[1];
        (promotion.item, promotion.after) = (ItemId(4), None);
    };
    holding(|p| promote(p, 1), &["item 4 is promoted", "Decode"]);
    // Prefill may stream what decode rounds hold, over where they hold it.
    let mut plan = common::holding_plan();
    promote(&mut plan, 3);
    verify_plan(&plan).unwrap();
}

/// Whether two values touched by one item share bytes, by comparing all pairs.
fn overlaps(program: &Program, arena: &Arena) -> bool {
    let touches = |value: usize, item: usize| {
        let ops = program.ops.iter().filter(|op| op.item.index() == item);
        ops.flat_map(|op| op.kind.reads().chain(op.kind.writes()).collect::<Vec<_>>()).any(|c| c.value.index() == value)
    };
    let life = |value: usize| {
        let items: Vec<usize> = (0..program.items.len()).filter(|&item| touches(value, item)).collect();
        let last = if program.logits.index() == value { program.items.len() - 1 } else { *items.last().unwrap() };
        (items[0], last)
    };
    let range = |value: usize| {
        let begin = arena.offsets_bytes[value];
        (begin, begin + arena.limits.value_bytes(&program.values[value]))
    };
    let meets = |(a, b): (usize, usize), (c, d): (usize, usize)| a <= d && c <= b;
    let values = program.values.len();
    (0..values).any(|a| {
        (0..a).any(|b| {
            let ((a0, a1), (b0, b1)) = (range(a), range(b));
            meets(life(a), life(b)) && a0 < b1 && b0 < a1
        })
    })
}

proptest! {
    #[test]
    fn the_arena_checker_agrees_with_comparing_all_pairs(
        moves in prop::collection::vec((0usize..14, 0u64..400), 0..4), ubatch in 1u32..9, outputs in 1u32..3,
    ) {
        let program = common::program();
        let mut arena = Arena::new(&program, RoundLimits { ubatch_tokens: ubatch, output_tokens: outputs });
        prop_assert!(!overlaps(&program, &arena));
        arena.size_bytes = 1 << 20;
        for (value, at) in moves {
            arena.offsets_bytes[value] = at * 64;
        }
        prop_assert_eq!(arena.verify(&program).is_err(), overlaps(&program, &arena));
    }
}
