//! Dividing layers' experts: every program that comes out is one that the verifier accepts, holds each expert once, and
//! is priced as the counts say; every layer that cannot be divided is refused.

use fixtures::REFERENCE_MODELS;
use gguf::Model;
use plan_format::program::{ItemKind, OpKind, Program};
use plan_format::routing::LayerHits;
use plan_format::sizes::experts_in;
use planner::place::divide::{DivideError, Division, divide};
use proptest::prelude::*;

fn program(name: &str) -> Program {
    let path = fixtures::reference_dir().join(format!("tiny-{name}.gguf"));
    planner::lower_model(&Model::open(&path).unwrap()).unwrap()
}

/// Layers with routers, and how many experts each has.
fn routers(program: &Program) -> Vec<(u32, u32)> {
    let experts = program.ops.iter().filter_map(|op| match &op.kind {
        OpKind::Router { router, .. } => Some((program.items[op.item.index()].layer?, router.experts)),
        _ => None,
    });
    experts.collect()
}

fn mixtures() -> Vec<(&'static str, Program)> {
    let all = REFERENCE_MODELS.into_iter().map(|name| (name, program(name)));
    all.filter(|(_, program)| !routers(program).is_empty()).collect()
}

#[test]
fn parts_take_the_places_of_whole_experts() {
    for (name, whole) in mixtures() {
        let divisions: Vec<Division> =
            routers(&whole).into_iter().map(|(layer, _)| Division { layer, hot: vec![1, 2] }).collect();
        let program = divide(&whole, &divisions).unwrap();
        let count = |kind: ItemKind| program.items.iter().filter(|item| item.kind == kind).count();
        assert_eq!(count(ItemKind::ExpertsInput), 2 * divisions.len(), "{name}");
        assert_eq!(count(ItemKind::ExpertsJoin), divisions.len(), "{name}");
        assert_eq!(program.items.len(), whole.items.len() + 3 * divisions.len(), "{name}");
        let bytes = |p: &Program| p.items.iter().map(|item| p.item_weight_bytes(item)).sum::<u64>();
        assert_eq!((bytes(&program), program.small_weight_bytes()), (bytes(&whole), whole.small_weight_bytes()));
        for item in program.items.iter().filter(|item| item.name.ends_with(".hot")) {
            for &weight in &item.weights {
                let held = program.weights[weight.index()].experts().unwrap();
                assert!(experts_in(held).eq([1, 2]), "{name} {}", item.name);
            }
        }
    }
}

#[test]
fn what_has_no_experts_to_divide_is_refused() {
    let (dense, whole) = (program("llama"), program("qwen3moe"));
    let refused = |program: &Program, layer, hot: &[u32]| {
        divide(program, &[Division { layer, hot: hot.to_vec() }]).expect_err("it was divided")
    };
    assert_eq!(refused(&dense, 0, &[0]), DivideError::Layer(0));
    assert_eq!(refused(&whole, 99, &[0]), DivideError::Layer(99));
    let all: Vec<u32> = (0..8).collect();
    for hot in [&[][..], &all, &[8]] {
        assert_eq!(refused(&whole, 0, hot), DivideError::Hot { layer: 0, experts: 8, hot: hot.len() });
    }
    // Nothing to divide: the program itself.
    assert_eq!(divide(&whole, &[]).unwrap(), whole);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_set_of_experts_of_any_layers_can_be_hot(
        masks in proptest::collection::vec(any::<u16>(), 4),
        which in 0..6_usize,
    ) {
        let mixtures = mixtures();
        let (_, whole) = &mixtures[which % mixtures.len()];
        let mut divisions = Vec::new();
        for ((layer, experts), mask) in routers(whole).into_iter().zip(masks.iter().cycle()) {
            let hot: Vec<u32> = (0..experts).filter(|expert| mask >> (expert % 16) & 1 == 1).collect();
            if !hot.is_empty() && hot.len() < experts as usize {
                divisions.push(Division { layer, hot });
            }
        }
        let program = divide(whole, &divisions).unwrap();
        for Division { layer, hot } in &divisions {
            let (_, experts) = *routers(whole).iter().find(|(own, _)| own == layer).unwrap();
            let mut holders = vec![Vec::new(); experts as usize];
            let of_layer = program.items.iter().filter(|item| item.layer == Some(*layer));
            for item in of_layer.filter(|item| item.kind == ItemKind::ExpertsInput) {
                let held = program.weights[item.weights[0].index()].experts().unwrap();
                experts_in(held).for_each(|expert| holders[expert as usize].push(item.name.ends_with(".hot")));
            }
            for (expert, holders) in holders.iter().enumerate() {
                prop_assert_eq!(holders, &vec![hot.contains(&(expert as u32))]);
            }
        }
    }

    /// What parts read in a round adds up to what the whole reads.
    #[test]
    fn parts_are_counted_like_the_whole(
        hits in proptest::collection::vec(1..1000_u64, 4..40),
        split in 1..39_usize,
        tokens in 1..300_u32,
    ) {
        let chosen = 2;
        let all: u64 = hits.iter().sum::<u64>() / chosen * chosen;
        let mut hits = hits;
        hits[0] -= hits.iter().sum::<u64>() - all;
        prop_assume!(hits.iter().all(|&hits| hits <= all / chosen));
        let layer = LayerHits { layer: 0, chosen: chosen as u32, hits };
        let count = layer.hits.len() as u32;
        let split = (split as u32).min(count - 1);
        let (hot, cold) = (layer.of(0..split, tokens), layer.of(split..count, tokens));
        prop_assert!((hot.0 + cold.0 - layer.distinct(tokens)).abs() < 1e-9);
        prop_assert!((hot.1 + cold.1 - f64::from(tokens) * chosen as f64).abs() < 1e-6);
    }
}
