//! Measuring this machine: what comes out is a profile that can be true, kept, read back, and planned with.

mod common;

use plan_format::artifact::KvType;
use planner::cost::{Demand, needs, price};
use planner::measure::{Pace, Shape, add_curves, add_points, all_needs, machine, shapes, unmeasured};
use planner::profile::{Backend, Operator, Point, Profile};
use std::time::Duration;

/// A glance: figures are poor, but all of them are there.
const GLANCE: Pace = Pace {
    all: Duration::from_millis(200),
    figure_most: Duration::from_millis(1),
    sweeps: 2,
    rotation_bytes: 16 << 20,
    product_tokens: &[1, 8],
    expert_tokens: &[1, 8],
    attention_rows: &[1, 64],
    delta_tokens: &[1, 8],
    point_tokens: &[1, 2, 16],
    expert_point_tokens: &[1, 8],
};

fn demand() -> Demand {
    Demand {
        context_tokens: 128,
        kv_type: KvType::F16,
        prompt_tokens: 64,
        generate_tokens: 16,
        ubatch_tokens: vec![64],
        output_tokens: 8,
    }
}

#[test]
fn this_machine_has_a_profile_that_prices_every_model() {
    let mut heard = Vec::new();
    let profile = machine(&all_needs(), GLANCE, &mut |what, done| heard.push((what.to_owned(), done))).unwrap();
    assert!(heard.iter().all(|(what, done)| !what.is_empty() && (0.0..=1.0).contains(done)));
    // Reading checks every figure.
    assert_eq!(Profile::from_json(&profile.to_json()).unwrap(), profile);
    for model in ["llama", "qwen3", "gpt-oss", "qwen3next", "deepseek2", "gemma3"] {
        let problem = price(&common::lowered(model), &profile, &demand()).unwrap_or_else(|e| panic!("{model}: {e}"));
        let teams = problem.costs.teams.len();
        assert!(teams >= 1 && (0..teams).all(|team| problem.cpu_us(0, team).iter().sum::<f32>() > 0.0), "{model}");
    }
}

#[test]
fn what_a_model_lacks_in_a_profile_is_added_and_what_is_there_stays() {
    let program = common::lowered("qwen3");
    let few = vec![(Operator::Elementwise, "F32")];
    let mut profile = machine(&few, GLANCE, &mut |_, _| {}).unwrap();
    let before = profile.curves.clone();
    assert!(price(&program, &profile, &demand()).is_err());
    let needed = needs(&program, KvType::F16);
    add_curves(&mut profile, &needed, GLANCE, &mut |_, _| {}).unwrap();
    assert_eq!(profile.curves[..before.len()], before);
    assert!(price(&program, &profile, &demand()).is_ok());
    let complete = profile.clone();
    add_curves(&mut profile, &needed, GLANCE, &mut |_, _| {}).unwrap();
    assert_eq!(profile, complete);
}

#[test]
fn the_shapes_of_a_model_become_points() {
    let program = common::lowered("qwen3moe");
    let shapes = shapes(&program);
    assert!(shapes.len() > 1 && shapes.is_sorted(), "{shapes:?}");
    let mut profile = machine(&needs(&program, KvType::F16), GLANCE, &mut |_, _| {}).unwrap();
    add_points(&mut profile, &shapes, GLANCE, &mut |_, _| {}).unwrap();
    for shape in &shapes {
        let of_shape = profile.points.iter().filter(|p| {
            (p.operator, p.rows, p.columns) == (shape.operator, shape.rows, shape.columns)
                && p.weight_type == shape.weight_type
        });
        let most = profile.team_sizes().into_iter().max();
        let of_team = of_shape.clone().filter(|p| Some(p.threads) == most);
        let tokens: Vec<u32> = of_team.map(|p| p.tokens).collect();
        // Other teams are timed for decode alone.
        assert!(of_shape.filter(|p| Some(p.threads) != most).all(|p| p.tokens == 1), "{shape}");
        let expected = if shape.operator == Operator::ExpertMatmul { vec![1, 8] } else { vec![1, 2, 16] };
        assert_eq!(tokens, expected, "{shape}");
    }
    let experts = shapes.iter().filter(|shape| shape.operator == Operator::ExpertMatmul);
    // Gate and up, and down.
    assert!(experts.clone().count() >= 2, "{shapes:?}");
    assert!(profile.points.iter().all(|p| p.backend == Backend::Cpu && p.time_us > 0.0));
    assert_eq!(Profile::from_json(&profile.to_json()).unwrap(), profile);
    assert_eq!(unmeasured(&profile, Backend::Cpu, &shapes), []);
    assert_eq!(unmeasured(&profile, Backend::Gpu, &shapes), shapes);
    // What is there stays, what is missing comes.
    let complete = profile.clone();
    add_points(&mut profile, &shapes, GLANCE, &mut |_, _| {}).unwrap();
    assert_eq!(profile, complete);
    let gone = &shapes[1];
    profile.points.retain(|p| (p.rows, p.columns) != (gone.rows, gone.columns));
    let kept = profile.points.clone();
    add_points(&mut profile, &shapes, GLANCE, &mut |_, _| {}).unwrap();
    assert_eq!(profile.points[..kept.len()], kept);
    assert_eq!((profile.points.len(), unmeasured(&profile, Backend::Cpu, &shapes)), (complete.points.len(), vec![]));
}

#[test]
fn a_matrix_larger_than_what_is_rotated_through_is_timed_by_a_slice() {
    let (operator, weight_type) = (Operator::Matmul, "Q8_0");
    // The small one has 4 MiB, the large one ten times that; 16 MiB are rotated through.
    let shape = |rows| Shape { operator, weight_type, rows, columns: 4096 };
    let mut profile = machine(&vec![(operator, weight_type)], GLANCE, &mut |_, _| {}).unwrap();
    add_points(&mut profile, &[shape(1024), shape(10_240)], GLANCE, &mut |_, _| {}).unwrap();
    let most = profile.team_sizes().into_iter().max();
    let timed = |p: &&Point| p.time_us > 0.0 && Some(p.threads) == most;
    let tokens = |rows| profile.points.iter().filter(timed).filter(|p| p.rows == rows).map(|p| p.tokens).collect();
    for rows in [1024, 10_240] {
        let found: Vec<u32> = tokens(rows);
        assert_eq!(found, GLANCE.point_tokens, "{rows} rows");
    }
}
