//! States on the GPU go back as those on the host do: snapshots, rings, cleared sequences; and a round's trace names
//! everything that ran.

mod support;

use device::sim::Faults;
use fixtures::REFERENCE_MODELS;
use runtime::exec::Executor;
use runtime::hybrid::Timing;
use support::{Mixture, all_cpu, feed, hybrid, plan, prompt, sim};

/// Feeds a prompt, marks, goes on, comes back, and goes on differently; all logits.
fn back_and_forth(executor: &mut Executor, ids: &[u32]) -> Vec<f32> {
    let (first, rest) = ids.split_at(ids.len() / 2);
    executor.clear(0).expect("a sound GPU");
    let mut all = feed(executor, first, 0, 5).expect("a good round");
    let mark = executor.save(0, first.len()).expect("a sound GPU");
    all.extend(feed(executor, rest, first.len(), 3).expect("a good round"));
    executor.restore(0, &mark).expect("a sound GPU");
    let reversed: Vec<u32> = rest.iter().rev().copied().collect();
    all.extend(feed(executor, &reversed, first.len(), 64).expect("a good round"));
    executor.clear(0).expect("a sound GPU");
    all.extend(feed(executor, &reversed, 0, 64).expect("a good round"));
    all
}

#[test]
fn snapshots_bring_back_states_wherever_they_live() {
    for name in REFERENCE_MODELS {
        // Long enough for windows and chunks to pass.
        let ids: Vec<u32> = prompt(name).into_iter().cycle().take(180).collect();
        let expected = back_and_forth(&mut all_cpu(name), &ids);
        for mixture in [Mixture::Resident, Mixture::Alternating] {
            let mut executor = hybrid(name, &plan(name, mixture), &sim(Faults::none())).expect("a good plan");
            assert!(back_and_forth(&mut executor, &ids) == expected, "{name} {mixture:?}");
        }
    }
}

#[test]
fn a_trace_shows_parts_transfers_moves_and_waits_of_one_round() {
    let name = "qwen3";
    let plan = plan(name, Mixture::Promoted { slots: 2 });
    let mut executor = hybrid(name, &plan, &sim(Faults::none())).expect("a good plan");
    executor.time_gpu(Timing::On);
    feed(&mut executor, &prompt(name), 0, 1).expect("a good round");
    let json: serde_json::Value = serde_json::from_str(&executor.trace(&plan.program)).expect("JSON");
    let events = json["traceEvents"].as_array().expect("events");
    let named = |track: &str| {
        let tid = events.iter().find(|e| e["ph"] == "M" && e["args"]["name"] == track).map(|e| e["tid"].clone());
        let of_track = move |event: &&serde_json::Value| event["ph"] == "X" && Some(&event["tid"]) == tid.as_ref();
        events.iter().filter(of_track).map(|e| e["name"].as_str().unwrap_or("").to_owned()).collect::<Vec<_>>()
    };
    let promoted = plan.schedules[0].promotions.len();
    let compute = named("GPU compute");
    assert!(compute.iter().filter(|name| !name.starts_with("activations")).count() >= promoted, "{compute:?}");
    assert!(compute.iter().any(|name| name == "activations to the GPU"), "{compute:?}");
    assert!(compute.iter().any(|name| name == "activations to the host"), "{compute:?}");
    let transfers = named("GPU transfer");
    assert!(transfers.len() >= promoted && transfers.iter().all(|name| name.starts_with("transfer ")));
    assert!(named("CPU worker 0").iter().any(|name| name.contains("ffn")));
    let executor_does = ["wait for the GPU", "queue work for the GPU"];
    assert!(named("executor").iter().all(|name| executor_does.contains(&name.as_str())));
    let spans = events.iter().filter(|event| event["ph"] == "X");
    assert!(spans.clone().all(|event| event["dur"].as_f64().is_some_and(|dur| dur >= 0.0)));
}

#[test]
fn a_trace_of_one_token_shows_every_operator_when_asked_for() {
    let program = plan("qwen3", Mixture::Host).program;
    for (timing, sees_norms) in [(Timing::Sampled, false), (Timing::On, true)] {
        let mut executor = all_cpu("qwen3");
        executor.time_gpu(timing);
        feed(&mut executor, &prompt("qwen3")[..1], 0, 1).expect("a good round");
        let trace = executor.trace(&program);
        let shown = |name: &str| trace.matches(&format!("\"{name} ")).count();
        assert_eq!(shown("rms_norm") >= 2 * program.layers(), sees_norms, "{timing:?}");
        assert!(shown("mat_mul") >= 2 * program.layers(), "{timing:?}");
    }
}

#[test]
fn the_cpu_alone_is_traced_by_operator_and_worker() {
    let mut executor = all_cpu("qwen3");
    feed(&mut executor, &prompt("qwen3"), 0, 64).expect("a good round");
    let program = plan("qwen3", Mixture::Host).program;
    let json: serde_json::Value = serde_json::from_str(&executor.trace(&program)).expect("JSON");
    let events = json["traceEvents"].as_array().expect("events");
    let count =
        |name: &str| events.iter().filter(|event| event["name"].as_str().is_some_and(|n| n.contains(name))).count();
    assert!(count("mat_mul") >= 2 * program.layers() && count("attention") >= 1);
    assert_eq!(count("thread_name"), 2);
}

/// Layers of a program.
trait Layers {
    fn layers(&self) -> usize;
}

impl Layers for plan_format::program::Program {
    fn layers(&self) -> usize {
        self.items.iter().filter_map(|item| item.layer).max().map_or(0, |layer| layer as usize + 1)
    }
}
