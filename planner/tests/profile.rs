//! Device profiles: the committed files, look-up, and refusals by name.

use planner::profile::machines::MACHINES;
use planner::profile::{Backend, Key, Operator, Point, Profile, ProfileError, synthetic};
use std::path::PathBuf;

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../fixtures/devices").join(format!("{name}.json"))
}

fn laptop() -> Profile {
    synthetic::profile(&MACHINES[0])
}

/// Set UPDATE_FIXTURES=1 to write the files anew.
#[test]
fn the_committed_profiles_are_those_of_the_table() {
    for machine in MACHINES {
        let text = synthetic::profile(machine).to_json();
        let path = file(machine.name);
        if std::env::var_os("UPDATE_FIXTURES").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(committed == text, "{} is stale: run this test with UPDATE_FIXTURES=1", path.display());
        assert_eq!(Profile::from_json(&committed).unwrap(), synthetic::profile(machine));
    }
}

fn key<'a>(tokens: f64, threads: u16) -> Key<'a> {
    let (backend, operator) = (Backend::Cpu, Operator::Matmul);
    Key {
        backend,
        operator,
        weight_type: "Q4_K",
        rows: 4096,
        columns: 4096,
        bytes: 9_437_184.0,
        matrices: 1.0,
        tokens,
        threads,
    }
}

fn point(tokens: u32, time_us: f64) -> Point {
    let (backend, operator, weight_type) = (Backend::Cpu, Operator::Matmul, "Q4_K".to_string());
    Point { backend, operator, weight_type, rows: 4096, columns: 4096, tokens, threads: 8, time_us }
}

#[test]
fn an_exact_point_goes_before_neighbours_and_those_before_curves() {
    let mut profile = laptop();
    let by_curve = profile.time_us(&key(2.0, 8)).unwrap();
    profile.points = vec![point(1, 1000.0), point(4, 4000.0)];
    assert_eq!(profile.time_us(&key(1.0, 8)).unwrap(), 1000.0);
    // Halfway between the points on both logarithmic axes.
    assert!((profile.time_us(&key(2.0, 8)).unwrap() - 2000.0).abs() < 1e-9);
    assert_ne!(by_curve, 2000.0);
}

#[test]
fn beyond_its_points_a_shape_follows_the_curves_from_the_nearest() {
    let mut profile = laptop();
    profile.points = vec![point(1, 1000.0), point(4, 4000.0)];
    let curve_us = |tokens, threads| laptop().time_us(&key(tokens, threads)).unwrap();
    // (tokens, threads) asked for, and the point that answers: the nearest.
    let cases = [((8.0, 8), (4.0, 4000.0)), ((1.0, 4), (1.0, 1000.0)), ((2.5, 2), (4.0, 4000.0))];
    for ((tokens, threads), (near_tokens, near_us)) in cases {
        let expected = curve_us(tokens, threads) * near_us / curve_us(near_tokens, 8);
        let found = profile.time_us(&key(tokens, threads)).unwrap();
        assert!((found - expected).abs() < 1e-9 * expected, "{tokens} tokens, {threads} threads: {found}, {expected}");
    }
    // Another shape of the type is the curves' alone.
    let other = Key { rows: 1024, ..key(1.0, 8) };
    assert_eq!(profile.time_us(&other).unwrap(), laptop().time_us(&other).unwrap());
}

#[test]
fn a_part_of_the_team_has_points_of_its_own_for_the_tokens_near_them() {
    let mut profile = laptop();
    let of_half = Point { threads: 4, ..point(1, 1500.0) };
    profile.points = vec![point(1, 1000.0), point(128, 40_000.0), of_half];
    assert_eq!(profile.time_us(&key(1.0, 4)).unwrap(), 1500.0);
    let curve_us = |tokens, threads| laptop().time_us(&key(tokens, threads)).unwrap();
    // Three threads are nearer to four than to eight, 100 tokens of four threads to 128 of eight than to one.
    for ((tokens, threads), (near_tokens, near_threads, near_us)) in
        [((1.0, 3), (1.0, 4, 1500.0)), ((100.0, 4), (128.0, 8, 40_000.0))]
    {
        let expected = curve_us(tokens, threads) * near_us / curve_us(near_tokens, near_threads);
        let found = profile.time_us(&key(tokens, threads)).unwrap();
        assert!((found - expected).abs() < 1e-9 * expected, "{tokens} tokens, {threads} threads: {found}, {expected}");
    }
}

#[test]
fn no_product_is_priced_faster_than_plain_reads_of_its_team() {
    let mut profile = laptop();
    // A curve of the full team that was disturbed at one token: other teams, corrected by its point, would read faster
    // than memory.
    for curve in &mut profile.curves {
        if (curve.backend, curve.operator, curve.threads) == (Backend::Cpu, Operator::Matmul, 8) {
            curve.gb_per_s[0] /= 3.0;
        }
    }
    profile.points = vec![point(1, 260.0)];
    for entry in profile.contention.clone() {
        let least_us = 9_437_184.0 / entry.cpu_alone_gb_per_s / 1000.0;
        let found = profile.time_us(&key(1.0, entry.threads)).unwrap();
        assert!(found >= least_us, "{} threads: {found} us, reads take {least_us}", entry.threads);
    }
}

#[test]
fn a_point_of_an_expert_counts_for_each_expert_that_is_touched() {
    let mut profile = laptop();
    let expert = |tokens, time_us| Point { operator: Operator::ExpertMatmul, ..point(tokens, time_us) };
    profile.points = vec![point(1, 700.0), expert(1, 1000.0), expert(4, 2000.0)];
    let time_us = |matrices: f64, tokens| {
        let bytes = matrices * 9_437_184.0;
        profile.time_us(&Key { operator: Operator::ExpertMatmul, bytes, matrices, ..key(tokens, 8) }).unwrap()
    };
    assert_eq!((time_us(1.0, 1.0), time_us(8.0, 1.0), time_us(2.5, 4.0)), (1000.0, 8000.0, 5000.0));
    assert!((time_us(3.0, 2.0) - 3000.0 * 2.0_f64.sqrt()).abs() < 1e-9);
}

#[test]
fn times_rise_with_tokens_and_fall_with_threads() {
    let profile = laptop();
    let tokens = [1.0, 1.5, 2.0, 3.0, 7.0, 100.0, 512.0, 4096.0];
    let by_tokens: Vec<f64> = tokens.map(|tokens| profile.time_us(&key(tokens, 8)).unwrap()).to_vec();
    assert!(by_tokens.windows(2).all(|pair| pair[0] <= pair[1] * 1.001), "{by_tokens:?}");
    let by_threads: Vec<f64> = (1..=8).map(|threads| profile.time_us(&key(1.0, threads)).unwrap()).collect();
    assert!(by_threads.windows(2).all(|pair| pair[0] >= pair[1]), "{by_threads:?}");
}

#[test]
fn what_was_not_measured_is_refused_by_name() {
    let profile = laptop();
    let unknown_type = Key { weight_type: "TQ2_0", ..key(1.0, 8) };
    let cases = [
        (unknown_type, "Matmul TQ2_0 on the Cpu with 1 tokens and 8 threads"),
        (key(9999.0, 8), "Matmul Q4_K on the Cpu with 9999 tokens and 8 threads"),
        (key(1.0, 64), "Matmul Q4_K on the Cpu with 1 tokens and 64 threads"),
    ];
    for (key, expected) in cases {
        let message = profile.time_us(&key).unwrap_err().to_string();
        assert!(message.contains(expected) && message.contains("`rtx3060-laptop`"), "{message}");
    }
}

#[test]
fn absurd_profiles_are_refused_by_the_name_of_the_field() {
    type Change = fn(&mut Profile);
    fn gpu(profile: &mut Profile) -> &mut planner::profile::Gpu {
        profile.gpu.as_mut().unwrap()
    }
    let cases: [(Change, &str); 34] = [
        (|p| p.contention[4].threads = 5000, "contention[4].threads = 5000"),
        (|p| p.contention[4].threads = 17, "contention[4].threads = 17"),
        (|p| p.curves[0].threads = 5000, "curves[0].threads = 5000"),
        (|p| p.curves[0].threads = 0, "curves[0].threads = 0"),
        (|p| p.curves.last_mut().unwrap().threads = 1, "].threads = 1: figures of the GPU"),
        (|p| p.points = vec![Point { threads: 5000, ..point(1, 5.0) }], "points[0].threads = 5000"),
        (|p| p.points = vec![Point { rows: 1 << 60, ..point(1, 5.0) }], "points[0].rows, columns"),
        (|p| p.points = vec![point(1, 1e300)], "points[0].time_us"),
        (|p| p.cpu.core_classes[0].threads_per_core = 0, "cpu.core_classes[0].threads_per_core = 0"),
        (|p| p.cpu.core_classes[0].cores = 60_000, "cpu.core_classes = 60000"),
        (|p| p.memory.read_gb_per_s = 1e300, "memory.read_gb_per_s"),
        (|p| p.memory.total_mib = u64::MAX, "memory.total_mib = 18446744073709551615"),
        (|p| gpu(p).memory_mib = u64::MAX, "gpu.memory_mib = 18446744073709551615"),
        (|p| gpu(p).context_mib = u64::MAX, "gpu.context_mib = 18446744073709551615"),
        (|p| gpu(p).memory_gb_per_s = 1e300, "gpu.memory_gb_per_s"),
        (|p| gpu(p).host_to_device[5].size_kib = u64::MAX, "gpu.host_to_device[5].size_kib = 18446744073709551615"),
        (|p| gpu(p).zero_copy_gb_per_s = 1e-30, "gpu.zero_copy_gb_per_s"),
        (|p| p.memory.storage_gb_per_s = 1e-30, "memory.storage_gb_per_s"),
        (|p| p.curves[0].gb_per_s[0] = 1e-300, "curves[0].gb_per_s"),
        (|p| p.latency.gpu_op_us = -1.0, "latency.gpu_op_us = -1"),
        (|p| p.memory.total_mib = 0, "memory.total_mib = 0"),
        (|p| p.memory.available_mib = 99_999_999, "memory.available_mib = 99999999"),
        (|p| p.memory.read_gb_per_s = -1.0, "memory.read_gb_per_s = -1"),
        (|p| p.cpu.core_classes.clear(), "cpu.core_classes = 0"),
        (|p| p.latency.to_gpu_us = 1e9, "latency.to_gpu_us = 1000000000"),
        (|p| p.contention.clear(), "contention = []"),
        (|p| p.contention[1].threads = 1, "contention[1].threads = 1"),
        (|p| p.contention[0].cpu_while_link_gb_per_s *= 9.0, "contention[0].cpu_while_link_gb_per_s"),
        (|p| p.gpu.as_mut().unwrap().free_mib = 70_000, "gpu.free_mib = 70000"),
        (|p| p.gpu.as_mut().unwrap().host_to_device.clear(), "gpu.host_to_device = []"),
        (|p| p.curves[3].tokens.swap(0, 1), "curves[3].tokens"),
        (|p| p.curves[0].gb_per_s[0] = 0.0, "curves[0].gb_per_s = 0"),
        (|p| p.points = vec![point(1, 5.0), point(0, 5.0)], "points[1].tokens, rows, columns = 0, 4096 and 4096"),
        (|p| p.points = vec![point(1, 0.0)], "points[0].time_us = 0"),
    ];
    for (change, expected) in cases {
        let mut profile = laptop();
        change(&mut profile);
        let message = Profile::from_json(&profile.to_json()).unwrap_err().to_string();
        assert!(message.contains(expected), "{message} should name {expected}");
    }
    // What JSON has no number for: the place is named.
    let text = laptop().to_json();
    let line = text.lines().position(|line| line.contains("\"read_gb_per_s\"")).unwrap() + 1;
    for nonsense in ["NaN", "1e999", "null", "\"41\""] {
        let changed = text.replacen("\"read_gb_per_s\": 41.0", &format!("\"read_gb_per_s\": {nonsense}"), 1);
        let message = Profile::from_json(&changed).unwrap_err().to_string();
        let named = message.contains(&format!("line {line}")) || message.contains("read_gb_per_s");
        assert!(named && message.contains("not readable"), "{nonsense}: {message}");
    }
    let missing = text.replacen("\"read_gb_per_s\": 41.0,", "", 1);
    assert!(Profile::from_json(&missing).unwrap_err().to_string().contains("missing field `read_gb_per_s`"));
}

#[test]
fn other_versions_and_other_texts_are_refused() {
    let text = laptop().to_json();
    let newer = text.replace("\"schema_version\": 1", "\"schema_version\": 2, \"unheard_of\": 3");
    assert_eq!(Profile::from_json(&newer), Err(ProfileError::Version { found: "2".into() }));
    assert_eq!(Profile::from_json("{}"), Err(ProfileError::Version { found: "none".into() }));
    assert!(matches!(Profile::from_json("{"), Err(ProfileError::Syntax(_))));
    let missing = text.replacen("\"round_gap_us\"", "\"round_gap\"", 1);
    let message = Profile::from_json(&missing).unwrap_err().to_string();
    assert!(message.contains("round_gap"), "{message}");
}

/// Every number of a profile as a string, every string as a number, every list and object as neither.
#[test]
fn a_value_of_another_kind_is_named_by_its_path() {
    let text = laptop().to_json();
    let profile: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut paths = Vec::new();
    collect(&profile, String::new(), &mut paths);
    assert!(paths.len() > 60, "{}", paths.len());
    for path in &paths {
        let mut changed = profile.clone();
        let value = changed.pointer_mut(path).unwrap();
        let other = if value.is_string() { serde_json::json!(7) } else { serde_json::json!("seven") };
        *value = other;
        let said = Profile::from_json(&changed.to_string()).unwrap_err().to_string();
        let keys = path.split('/').skip(1).map(|key| key.parse::<usize>().map_or(key.to_owned(), |i| format!("[{i}]")));
        let field = keys.collect::<Vec<_>>().join(".").replace(".[", "[");
        assert!(said.contains(&field), "{path}: {said}");
    }
}

/// Pointers to all values of the first list entries, the schema's version aside, which goes first.
fn collect(value: &serde_json::Value, path: String, paths: &mut Vec<String>) {
    if !path.is_empty() && path != "/schema_version" {
        paths.push(path.clone());
    }
    match value {
        serde_json::Value::Array(values) => {
            values.iter().take(1).for_each(|value| collect(value, format!("{path}/0"), paths));
        }
        serde_json::Value::Object(fields) => {
            fields.iter().for_each(|(key, value)| collect(value, format!("{path}/{key}"), paths));
        }
        _ => {}
    }
}

#[test]
fn missing_and_unknown_fields_are_named_with_what_should_hold_them() {
    let profile: serde_json::Value = serde_json::from_str(&laptop().to_json()).unwrap();
    let mut changed = profile.clone();
    changed["gpu"].as_object_mut().unwrap().remove("free_mib");
    let said = Profile::from_json(&changed.to_string()).unwrap_err().to_string();
    assert!(said.contains("gpu") && said.contains("free_mib"), "{said}");
    let mut changed = profile;
    changed["curves"][0]["speed"] = serde_json::json!(1);
    let said = Profile::from_json(&changed.to_string()).unwrap_err().to_string();
    assert!(said.contains("curves[0]") && said.contains("speed"), "{said}");
}

#[test]
fn names_with_control_characters_are_refused_and_shown_harmless() {
    for path in ["/name", "/cpu/model", "/gpu/model", "/provenance/sources/0"] {
        let mut profile: serde_json::Value = serde_json::from_str(&laptop().to_json()).unwrap();
        *profile.pointer_mut(path).unwrap() = serde_json::json!("a\u{1b}[31mb");
        let said = Profile::from_json(&profile.to_string()).unwrap_err().to_string();
        let key = path.split('/').nth(1).unwrap();
        assert!(said.contains(key) && said.contains("\\u{1b}") && !said.contains('\u{1b}'), "{path}: {said}");
    }
}
