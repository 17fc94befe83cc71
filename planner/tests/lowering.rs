//! Lowering of the small reference models: each gives a verified program; texts of a plain and of an odd one are
//! snapshots. What the programs compute is compared with reference logits by the runtime's tests.

mod common;

use common::{lowered, open};
use fixtures::REFERENCE_MODELS;
use plan_format::arena::{Arena, RoundLimits};
use plan_format::program::{ItemKind, Program};
use plan_format::text::program_text;
use planner::arch;
use planner::graph::graph_text;

#[test]
fn every_reference_model_lowers_to_a_verified_program() {
    for name in REFERENCE_MODELS {
        let program = lowered(name);
        let kind = |kind| program.items.iter().filter(|item| item.kind == kind).count();
        let states = kind(ItemKind::Attention) + 2 * kind(ItemKind::Recurrent);
        assert_eq!(states, program.states.len(), "{name}");
        assert_eq!(program, lowered(name), "{name}: lowering again gives something else");
    }
}

#[test]
fn llama_program_is_as_recorded() {
    insta::assert_snapshot!(program_text(&lowered("llama-spm")));
}

#[test]
fn gemma3_graph_is_as_recorded() {
    insta::assert_snapshot!(graph_text(&arch::lower(&open("gemma3")).unwrap()));
}

#[test]
fn arenas_are_valid_and_near_their_floor() {
    for name in REFERENCE_MODELS {
        let program = lowered(name);
        for (ubatch_tokens, output_tokens) in [(1, 1), (7, 3), (512, 1), (512, 512)] {
            let limits = RoundLimits { ubatch_tokens, output_tokens };
            let arena = Arena::new(&program, limits);
            arena.verify(&program).unwrap();
            let floor = Arena::floor_bytes(&program, limits);
            assert!(arena.size_bytes >= floor, "{name}");
            assert!(arena.size_bytes * 10 <= floor * 11, "{name} {limits:?}: {} over {floor}", arena.size_bytes);
        }
    }
}

#[test]
fn layers_of_mixed_families_are_as_recorded() {
    for (name, layers) in
        [("qwen3next", 3..4), ("qwen35moe", 1..2), ("llama4", 3..4), ("deepseek2", 1..2), ("gpt-oss", 0..1)]
    {
        insta::assert_snapshot!(format!("layer_of_{name}"), layer_text(&lowered(name), layers));
    }
}

/// The lines of some layers.
fn layer_text(program: &Program, layers: std::ops::Range<u32>) -> String {
    let text = program_text(program);
    let mut lines = text.lines().skip_while(|line| !line.ends_with(&format!("layer={}", layers.start)));
    let end = format!("layer={}", layers.end);
    let wanted: Vec<&str> = lines.by_ref().take_while(|line| !line.ends_with(&end) && *line != "output Head").collect();
    wanted.join("\n")
}
