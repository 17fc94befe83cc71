//! What lowering refuses, with the key or tensor and what would be accepted; and variants that it takes.

mod common;

use common::{Edit, lowered, open};
use gguf::GgmlType::{F32, IQ1_S, Q4_K, Q6_K, Q8_0};
use plan_format::program::{ItemKind, Mask, OpKind, Program, RopeScaling, RouterScore, RouterWeights, WeightRole};
use planner::lower_model;

#[track_caller]
fn refused(edit: Edit, parts: &[&str]) {
    let error = lower_model(&edit.open()).expect_err("it was accepted").to_string();
    assert!(parts.iter().all(|part| error.contains(part)), "{error}\nlacks one of {parts:?}");
}

#[track_caller]
fn accepted(edit: Edit) -> Program {
    lower_model(&edit.open()).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn an_unknown_family_is_named_with_the_known_ones() {
    let error = lower_model(&Edit::of("llama").set("general.architecture", "mamba").open()).unwrap_err();
    insta::assert_snapshot!(error);
}

#[test]
fn missing_keys_are_named() {
    for key in ["context_length", "embedding_length", "block_count", "attention.head_count", "feed_forward_length"] {
        let key = format!("llama.{key}");
        refused(Edit::of("llama").unset(&key), &[&key, "missing"]);
    }
    for (model, key) in [
        ("gemma3", "gemma3.attention.sliding_window"),
        ("gpt-oss", "gpt-oss.rope.scaling.original_context_length"),
        ("glm4", "glm4.rope.dimension_count"),
        ("qwen3moe", "qwen3moe.expert_used_count"),
        ("qwen3next", "qwen3next.ssm.conv_kernel"),
        ("qwen35moe", "qwen35moe.rope.dimension_sections"),
        ("llama4", "llama4.interleave_moe_layer_step"),
        ("deepseek2", "deepseek2.attention.kv_lora_rank"),
    ] {
        refused(Edit::of(model).unset(key), &[key, "missing"]);
    }
}

#[test]
fn odd_keys_are_named_with_what_would_be_accepted() {
    let llama = || Edit::of("llama");
    refused(llama().set("llama.block_count", 0_u32), &["llama.block_count", "is 0", "from 1 to"]);
    refused(llama().set("llama.attention.head_count_kv", 3_u32), &["head_count_kv", "is 3", "a divisor of the 4"]);
    refused(llama().set("llama.attention.head_count", 3_u32), &["head_count", "3"]);
    refused(llama().set("llama.rope.dimension_count", 32_u32), &["rope.dimension_count", "is 32", "64"]);
    refused(
        llama().set("llama.rope.scaling.type", "longrope"),
        &["rope.scaling.type", "longrope", "none, linear or yarn"],
    );
    refused(llama().set("llama.rope.scaling.attn_factor", 1.5_f32), &["attn_factor", "1.5"]);
    refused(llama().set("llama.rope.freq_base", 0.5_f32), &["rope.freq_base", "0.5", "over 1"]);
    refused(llama().set("llama.attention.layer_norm_rms_epsilon", -1e-5_f32), &["epsilon", "positive"]);
    refused(llama().set("llama.attention.layer_norm_rms_epsilon", f32::NAN), &["epsilon", "positive"]);
    refused(llama().set("llama.expert_count", 8_u32), &["llama.expert_count", "is 8"]);
    refused(llama().set("llama.feed_forward_length", vec![512_u32, 512, 256]), &["feed_forward_length", "all layers"]);
    refused(llama().set("llama.embedding_length", "big"), &["llama.embedding_length", "big"]);
    refused(Edit::of("deepseek2").set("deepseek2.expert_group_count", 4_u32), &["expert_group_count", "is 4"]);
    refused(Edit::of("qwen3moe").set("qwen3moe.expert_used_count", 9_u32), &["expert_used_count", "is 9", "to 8"]);
    refused(Edit::of("qwen3next").set("qwen3next.ssm.inner_size", 128_u32), &["ssm.inner_size", "is 128", "256"]);
    let short = vec![true];
    refused(
        Edit::of("qwen35moe").set("qwen35moe.attention.recurrent_layers", short),
        &["recurrent_layers", "1 values"],
    );
}

#[test]
fn tensors_that_are_missing_odd_or_left_over_are_named() {
    let llama = || Edit::of("llama");
    refused(llama().drop_tensor("blk.1.ffn_up.weight"), &["blk.1.ffn_up.weight", "missing"]);
    refused(llama().drop_tensor("token_embd.weight"), &["token_embd.weight", "missing"]);
    refused(llama().tensor("blk.0.attn_q.weight", &[256, 128], Q4_K), &["attn_q.weight", "[256, 128]", "[256, 256]"]);
    refused(llama().tensor("blk.0.attn_q.weight", &[256, 256], IQ1_S), &["attn_q.weight", "IQ1_S", "MXFP4"]);
    refused(llama().tensor("blk.0.attn_norm.weight", &[256], Q8_0), &["attn_norm.weight", "Q8_0", "F32 F16 BF16"]);
    refused(llama().tensor("output.weight", &[256, 500], Q4_K), &["output.weight", "[256, 500]"]);
    refused(llama().tensor("blk.0.attn_q_norm.weight", &[64], F32), &["blk.0.attn_q_norm.weight", "llama"]);
    refused(Edit::of("qwen2").drop_tensor("blk.2.attn_k.bias"), &["blk.2.attn_k.bias", "missing"]);
    refused(Edit::of("qwen3").tensor("rope_freqs.weight", &[64], F32), &["rope_freqs.weight", "qwen3"]);
    refused(Edit::of("gpt-oss").drop_tensor("blk.0.attn_sinks.weight"), &["attn_sinks", "missing"]);
}

/// R15: the third way of storing experts; the other two are read.
#[test]
fn experts_one_by_one_are_refused_with_the_layout_that_is_read() {
    let parts = ["gate", "up", "down"];
    let stacked = parts
        .iter()
        .fold(Edit::of("qwen3moe"), |edit, part| edit.drop_tensor(&format!("blk.0.ffn_{part}_exps.weight")));
    let single =
        (0..8).fold(stacked, |edit, expert| edit.tensor(&format!("blk.0.ffn_gate.{expert}.weight"), &[256, 256], Q4_K));
    refused(single, &["blk.0.ffn_gate.0.weight", "old layout", "blk.0.ffn_gate_exps.weight", "convert"]);
}

#[test]
fn a_missing_output_ties_the_head_in_every_family_and_is_counted_once() {
    for name in ["llama", "qwen2", "glm4", "qwen3moe", "gpt-oss", "qwen3next", "qwen35moe", "llama4", "deepseek2"] {
        let tied = accepted(Edit::of(name).drop_tensor("output.weight"));
        let head = tied.items.last().unwrap();
        assert_eq!(head.kind, ItemKind::Head);
        let table = &tied.weights[head.weights[0].index()];
        assert_eq!(
            (table.role, tied.tensors[table.tensor.index()].name.as_str()),
            (WeightRole::TiedHead, "token_embd.weight")
        );
        let placed: u64 = tied.items.iter().map(|item| tied.item_weight_bytes(item)).sum();
        let large = tied.weights.iter().filter(|w| w.role != WeightRole::Small);
        assert_eq!(placed, large.map(|w| tied.tensors[w.tensor.index()].size_bytes).sum::<u64>(), "{name}");
        assert_eq!(tied.item_weight_bytes(&tied.items[0]), 0, "{name}: the embedding places nothing of its own");
    }
}

#[test]
fn an_explicit_copy_of_the_embedding_costs_the_gpu_nothing_more_than_a_tied_head() {
    // qwen3 is tied; the copy has the same shape and type.
    let copied = accepted(Edit::of("qwen3").tensor("output.weight", &[256, 512], Q6_K));
    let tied = lowered("qwen3");
    let on_gpu = |program: &Program| -> u64 {
        let items = program.items.iter().filter(|item| item.kind != ItemKind::Embedding);
        items.map(|item| program.item_weight_bytes(item)).sum()
    };
    assert_eq!(on_gpu(&copied), on_gpu(&tied));
    assert_eq!(copied.weights[copied.items[0].weights[0].index()].role, WeightRole::EmbeddingRows);
}

#[test]
fn fused_projections_stand_for_separate_ones() {
    let fused = Edit::of("llama").tensor("blk.0.attn_qkv.weight", &[256, 512], Q4_K);
    let fused = ["q", "k", "v"].iter().fold(fused, |edit, part| edit.drop_tensor(&format!("blk.0.attn_{part}.weight")));
    let program = accepted(fused);
    let OpKind::StoreKv { v: Some(v), .. } = op(&program, |kind| matches!(kind, OpKind::StoreKv { .. })) else {
        panic!()
    };
    assert_eq!((v.first_col, v.cols), (384, 128));

    let fused = Edit::of("qwen3next").tensor("blk.0.ffn_gate_up_exps.weight", &[256, 512, 4], Q4_K);
    let fused =
        ["gate", "up"].iter().fold(fused, |edit, part| edit.drop_tensor(&format!("blk.0.ffn_{part}_exps.weight")));
    accepted(fused);
}

fn op(program: &Program, wanted: impl Fn(&OpKind) -> bool) -> OpKind {
    program.ops.iter().map(|op| op.kind.clone()).find(|kind| wanted(kind)).unwrap()
}

#[test]
fn old_layouts_of_deepseek2_and_qwen3next_are_read() {
    let mut old = Edit::of("deepseek2")
        .unset("deepseek2.attention.key_length_mla")
        .unset("deepseek2.attention.value_length_mla")
        .set("deepseek2.attention.head_count_kv", 4_u32)
        .set("deepseek2.attention.key_length", 96_u32)
        .set("deepseek2.attention.value_length", 64_u32);
    for layer in 0..3 {
        old = old
            .drop_tensor(&format!("blk.{layer}.attn_k_b.weight"))
            .drop_tensor(&format!("blk.{layer}.attn_v_b.weight"));
        old = old.tensor(&format!("blk.{layer}.attn_kv_b.weight"), &[256, 4 * (64 + 64)], Q4_K);
    }
    let program = accepted(old);
    let OpKind::Attention { attention, .. } = op(&program, |kind| matches!(kind, OpKind::Attention { .. })) else {
        panic!()
    };
    assert_eq!((attention.kv_heads, attention.k_head_cols, attention.v_head_cols), (4, 96, 64));
    let OpKind::Attention { attention: new, .. } =
        op(&lowered("deepseek2"), |kind| matches!(kind, OpKind::Attention { .. }))
    else {
        panic!()
    };
    assert_eq!(attention.scale, new.scale);

    let grouped = Edit::of("qwen3next").drop_tensor("blk.0.attn_qkv.weight").drop_tensor("blk.0.attn_gate.weight");
    accepted(grouped.tensor("blk.0.ssm_in.weight", &[256, 512 + 256], Q4_K));
}

#[test]
fn a_compressed_query_is_two_products() {
    let mut edit = Edit::of("deepseek2").set("deepseek2.attention.q_lora_rank", 256_u32);
    for layer in 0..3 {
        edit = edit.drop_tensor(&format!("blk.{layer}.attn_q.weight"));
        edit = edit.tensor(&format!("blk.{layer}.attn_q_a.weight"), &[256, 256], Q4_K);
        edit = edit.tensor(&format!("blk.{layer}.attn_q_a_norm.weight"), &[256], F32);
        edit = edit.tensor(&format!("blk.{layer}.attn_q_b.weight"), &[256, 384], Q4_K);
    }
    let inputs = |program: &Program| program.items.iter().filter(|item| item.kind == ItemKind::MixerInput).count();
    assert_eq!(inputs(&accepted(edit)), 2 * inputs(&lowered("deepseek2")));
}

#[test]
fn rope_scaling_goes_to_the_layers_and_figures_that_it_is_for() {
    let scaled =
        Edit::of("gemma3").set("gemma3.rope.scaling.type", "linear").set("gemma3.rope.scaling.factor", 8.0_f32);
    let program = accepted(scaled);
    let ropes: Vec<(f32, RopeScaling)> = program.ropes.iter().map(|rope| (rope.base, rope.scaling)).collect();
    assert_eq!(ropes, [(1e6, RopeScaling::Linear { factor: 8.0 }), (1e4, RopeScaling::None)]);

    let factor = Edit::of("llama").set("llama.rope.scaling.factor", 4.0_f32);
    assert_eq!(
        accepted(factor).ropes[0].scaling,
        RopeScaling::Linear { factor: 4.0 },
        "a factor without a type is linear"
    );

    let yarn = lowered("gpt-oss").ropes[0].clone();
    assert_eq!(yarn.scaling, RopeScaling::Yarn { factor: 16.0, original_context_tokens: 128 });
    assert!((yarn.magnitude - 1.277_258_9).abs() < 1e-6);
    assert_eq!(lowered("deepseek2").ropes[0].magnitude, 1.0);
}

/// R15: what a file without keys means is the family's, not "no".
#[test]
fn experts_are_weighed_as_the_family_does_where_the_file_says_nothing() {
    let router = |program: &Program| match op(program, |kind| matches!(kind, OpKind::Router { .. })) {
        OpKind::Router { router, .. } => (router.score, router.weights, router.scale),
        _ => panic!(),
    };
    for (name, score, weights) in [
        ("qwen3moe", RouterScore::Softmax, RouterWeights::ScoreNormalised),
        ("qwen3next", RouterScore::Softmax, RouterWeights::ScoreNormalised),
        ("qwen35moe", RouterScore::Softmax, RouterWeights::ScoreNormalised),
        ("gpt-oss", RouterScore::Logit, RouterWeights::SoftmaxOfChosen),
        ("llama4", RouterScore::Sigmoid, RouterWeights::Score),
        ("deepseek2", RouterScore::Softmax, RouterWeights::Score),
    ] {
        let keys = ["expert_weights_norm", "expert_gating_func", "expert_weights_scale"];
        let model = open(name);
        let there = |key: &String| model.metadata().iter().any(|(known, _)| known == key);
        let there = keys.iter().map(|key| format!("{name}.{key}")).filter(there);
        let bare = there.fold(Edit::of(name), |edit, key| edit.unset(&key));
        assert_eq!(router(&accepted(bare)), (score, weights, 1.0), "{name}");
    }
    let normed = Edit::of("deepseek2").set("deepseek2.expert_weights_norm", true);
    let scaled = normed.set("deepseek2.expert_weights_scale", 2.5_f32);
    assert_eq!(router(&accepted(scaled)), (RouterScore::Softmax, RouterWeights::ScoreNormalised, 2.5));
}

#[test]
fn windows_follow_the_pattern_of_the_file_or_of_the_family() {
    let masks = |program: &Program| -> Vec<Mask> {
        let attentions = program.ops.iter().filter_map(|op| match &op.kind {
            OpKind::Attention { attention, .. } => Some(attention.mask),
            _ => None,
        });
        attentions.collect()
    };
    let (window, all) = (Mask::Window { tokens: 8 }, Mask::Causal);
    assert_eq!(masks(&lowered("gemma3")), [window, window, window, window, window, all]);
    assert_eq!(masks(&lowered("gpt-oss")), [window, all, window]);
    let key = "gemma3.attention.sliding_window_pattern";
    let every_second = masks(&accepted(Edit::of("gemma3").set(key, 2_u32)));
    assert_eq!(every_second, [window, all, window, all, window, all]);
    let listed = masks(&accepted(Edit::of("gemma3").set(key, vec![false, true, false, false, false, true])));
    assert_eq!(listed, [all, window, all, all, all, window]);
    let chunk = Mask::Chunk { tokens: 8192 };
    assert_eq!(masks(&lowered("llama4")), [chunk, chunk, chunk, all]);
    let unchunked = Edit::of("llama4").set("llama4.attention.sliding_window", 0_u32);
    assert_eq!(masks(&accepted(unchunked)), [all, all, all, all]);
}

#[test]
fn draft_blocks_are_skipped() {
    let model = open("qwen35moe");
    assert!(model.tensors().iter().any(|tensor| tensor.name.starts_with("blk.3.")));
    let program = lower_model(&model).unwrap();
    assert_eq!(program.items.iter().filter_map(|item| item.layer).max(), Some(2));
    assert!(program.tensors.iter().all(|tensor| !tensor.name.starts_with("blk.3.")));
}

#[test]
fn explicit_head_sizes_and_partial_rotation_are_taken_from_the_keys() {
    let heads = |name| {
        let program = lowered(name);
        let OpKind::Rope { x, heads, head_cols, rope, .. } = op(&program, |kind| matches!(kind, OpKind::Rope { .. }))
        else {
            panic!()
        };
        (x.cols, heads, head_cols, program.ropes[rope.index()].n_rot)
    };
    // 4 heads of 128 in a hidden size of 256; half of a head of 64; a quarter.
    assert_eq!(heads("qwen3"), (512, 4, 128, 128));
    assert_eq!(heads("glm4"), (256, 4, 64, 32));
    assert_eq!(heads("qwen3next"), (256, 4, 64, 16));
}
