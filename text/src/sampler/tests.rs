//! Sampling: tables of small rows with known answers, and statistics of draws with fixed seeds.

use super::*;

fn ids(list: &[Candidate]) -> Vec<u32> {
    let mut ids: Vec<u32> = list.iter().map(|candidate| candidate.id.0).collect();
    ids.sort_unstable();
    ids
}

fn filled(row: &[f32]) -> Vec<Candidate> {
    let mut list = Vec::new();
    chain::fill(&mut list, row);
    list
}

#[track_caller]
fn sample_once(options: SamplerOptions, row: &[f32]) -> u32 {
    let mut sampler = Sampler::new(options, row.len()).expect("options are good");
    sampler.sample(row).expect("row is good").id.0
}

#[test]
fn greedy_takes_the_highest_and_the_lowest_id_among_equals() {
    for (row, expected) in [(&[1.0, 3.0, 2.0][..], 1), (&[0.0, 5.0, 5.0], 1), (&[-7.0], 0), (&[0.0, -0.0], 0)] {
        assert_eq!(sample_once(SamplerOptions::greedy(), row), expected, "{row:?}");
    }
}

/// Softmax of 3, 2, 1, 0 is 0.643914, 0.236883, 0.087144, 0.032059.
const ROW: [f32; 4] = [3.0, 2.0, 1.0, 0.0];

type Filter = fn(&mut Vec<Candidate>);

#[test]
fn filters_keep_what_their_definitions_say() {
    let cases: [(&str, Filter, &[u32]); 12] = [
        ("top_k 0", |list| chain::top_k(list, 0), &[0, 1, 2, 3]),
        ("top_k 2", |list| chain::top_k(list, 2), &[0, 1]),
        ("top_k 9", |list| chain::top_k(list, 9), &[0, 1, 2, 3]),
        ("top_p 1", |list| chain::top_p(list, 1.0), &[0, 1, 2, 3]),
        ("top_p 0.64", |list| chain::top_p(list, 0.64), &[0]),
        ("top_p 0.65", |list| chain::top_p(list, 0.65), &[0, 1]),
        ("top_p 0.89", |list| chain::top_p(list, 0.89), &[0, 1, 2]),
        ("top_p tiny", |list| chain::top_p(list, 1e-6), &[0]),
        ("min_p 0", |list| chain::min_p(list, 0.0), &[0, 1, 2, 3]),
        ("min_p 0.36", |list| chain::min_p(list, 0.36), &[0, 1]),
        ("min_p 0.37", |list| chain::min_p(list, 0.37), &[0]),
        ("min_p 1", |list| chain::min_p(list, 1.0), &[0]),
    ];
    for (name, filter, expected) in cases {
        let mut list = filled(&ROW);
        filter(&mut list);
        assert_eq!(ids(&list), expected, "{name}");
    }
}

#[test]
fn top_p_drops_nothing_needed_from_a_long_flat_row() {
    let mut list = filled(&[0.5; 1000]);
    chain::top_p(&mut list, 0.5);
    assert_eq!(ids(&list), (0..500).collect::<Vec<_>>());
}

#[test]
fn logprobs_are_those_of_the_models_own_logits() {
    let bias = vec![(TokenId(0), f32::NEG_INFINITY)];
    let options = SamplerOptions { logprobs: Some(2), logit_bias: bias, ..SamplerOptions::greedy() };
    let mut sampler = Sampler::new(options, 4).expect("options are good");
    let sampled = sampler.sample(&ROW).expect("row is good");
    assert_eq!(sampled.id, TokenId(1));
    let logprobs = sampled.logprobs.expect("asked for");
    assert!((logprobs.chosen + 1.440_19).abs() < 1e-6, "{logprobs:?}");
    assert_eq!(logprobs.top.iter().map(|top| top.0.0).collect::<Vec<_>>(), [0, 1]);
    assert!((logprobs.top[0].1 + 0.440_19).abs() < 1e-6, "{logprobs:?}");
}

#[test]
fn padding_rows_are_never_chosen() {
    let row = [1.0, 2.0, 99.0, 100.0];
    for temperature in [0.0, 5.0] {
        let options = SamplerOptions { temperature, logprobs: Some(4), ..SamplerOptions::greedy() };
        let mut sampler = Sampler::new(options, 2).expect("options are good");
        for _ in 0..200 {
            let sampled = sampler.sample(&row).expect("row is good");
            assert!(sampled.id.0 < 2);
            assert!(sampled.logprobs.expect("asked for").top.iter().all(|top| top.0.0 < 2));
        }
    }
}

#[test]
fn bad_rows_are_errors() {
    let mut sampler = Sampler::new(SamplerOptions::greedy(), 3).expect("options are good");
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let error = sampler.sample(&[0.0, bad, 0.0]).expect_err("not finite");
        assert!(matches!(error, SampleError::NotFinite { index: 1, .. }), "{error}");
    }
    assert_eq!(sampler.sample(&[0.0; 2]), Err(SampleError::ShortRow { logits: 2, vocab_tokens: 3 }));
}

#[test]
fn forbidding_everything_is_an_error() {
    let logit_bias: Vec<_> = (0..3).map(|id| (TokenId(id), f32::NEG_INFINITY)).collect();
    for temperature in [0.0, 1.0] {
        let options = SamplerOptions { logit_bias: logit_bias.clone(), temperature, ..SamplerOptions::greedy() };
        let mut sampler = Sampler::new(options, 3).expect("options are good");
        assert_eq!(sampler.sample(&[0.0; 3]), Err(SampleError::NothingLeft));
    }
}

#[test]
fn bad_options_are_errors_that_name_them() {
    let good = SamplerOptions::greedy;
    let cases = [
        ("temperature", SamplerOptions { temperature: -1.0, ..good() }),
        ("temperature", SamplerOptions { temperature: f32::NAN, ..good() }),
        ("top_p", SamplerOptions { top_p: 0.0, ..good() }),
        ("top_p", SamplerOptions { top_p: 1.5, ..good() }),
        ("min_p", SamplerOptions { min_p: -0.1, ..good() }),
        ("repeat_penalty", SamplerOptions { repeat_penalty: 0.0, ..good() }),
        ("presence_penalty", SamplerOptions { presence_penalty: f32::INFINITY, ..good() }),
        ("frequency_penalty", SamplerOptions { frequency_penalty: f32::NAN, ..good() }),
        ("logit_bias", SamplerOptions { logit_bias: vec![(TokenId(9), 0.0)], ..good() }),
        ("logit_bias", SamplerOptions { logit_bias: vec![(TokenId(0), f32::NAN)], ..good() }),
    ];
    for (name, options) in cases {
        let error = Sampler::new(options, 9).expect_err(name).to_string();
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn penalties_change_the_logits_as_documented() {
    let cases = [
        ("none", SamplerOptions::greedy(), vec![0], [3.0, 2.0, -1.0, 0.0], 0),
        ("repetition divides", SamplerOptions { repeat_penalty: 2.0, ..SamplerOptions::greedy() }, vec![0], ROW, 1),
        (
            "repetition multiplies the negative",
            SamplerOptions { repeat_penalty: 3.0, ..SamplerOptions::greedy() },
            vec![0],
            [-1.0, -2.0, -9.0, -9.0],
            1,
        ),
        (
            "repetition forgets",
            SamplerOptions { repeat_penalty: 2.0, repeat_window_tokens: 2, ..SamplerOptions::greedy() },
            vec![0, 3, 3],
            ROW,
            0,
        ),
        (
            "presence ignores the prompt",
            SamplerOptions { presence_penalty: 9.0, ..SamplerOptions::greedy() },
            vec![0],
            ROW,
            0,
        ),
    ];
    for (name, options, prompt, row, expected) in cases {
        let mut sampler = Sampler::new(options, 4).expect("options are good");
        sampler.observe_prompt(&prompt.into_iter().map(TokenId).collect::<Vec<_>>());
        assert_eq!(sampler.sample(&row).expect("row is good").id.0, expected, "{name}");
    }
}

#[test]
fn presence_counts_once_and_frequency_each_time() {
    let run = |options: SamplerOptions| {
        let mut sampler = Sampler::new(options, 2).expect("options are good");
        (0..5).map(|_| sampler.sample(&[3.0, 0.0]).expect("row is good").id.0).collect::<Vec<_>>()
    };
    // 3 against 0: one presence of 2 never turns it; 0.8 a time turns it after four times (3 - 3.2 < 0).
    assert_eq!(run(SamplerOptions { presence_penalty: 2.0, ..SamplerOptions::greedy() }), [0, 0, 0, 0, 0]);
    assert_eq!(run(SamplerOptions { frequency_penalty: 0.8, ..SamplerOptions::greedy() }), [0, 0, 0, 0, 1]);
}

#[test]
fn draws_follow_the_probabilities_at_the_temperature() {
    for (temperature, shares) in [(1.0, [0.643914, 0.236883, 0.087144, 0.032059]), (2.0, [0.455, 0.276, 0.167, 0.102])]
    {
        let options = SamplerOptions { temperature, seed: 1, ..SamplerOptions::greedy() };
        let mut sampler = Sampler::new(options, 4).expect("options are good");
        let mut counts = [0.0f64; 4];
        for _ in 0..40_000 {
            counts[sampler.sample(&ROW).expect("row is good").id.index()] += 1.0 / 40_000.0;
        }
        for (count, share) in counts.iter().zip(shares) {
            assert!((count - share).abs() < 0.01, "{temperature}: {counts:?}");
        }
    }
}

#[test]
fn one_seed_gives_one_sequence_and_another_seed_another() {
    let run = |seed| {
        let options = SamplerOptions { temperature: 1.0, top_p: 0.95, min_p: 0.01, seed, ..SamplerOptions::greedy() };
        let mut sampler = Sampler::new(options, 64).expect("options are good");
        let row: Vec<f32> = (0..64).map(|id| (id as f32 * 0.7).sin()).collect();
        (0..50).map(|_| sampler.sample(&row).expect("row is good").id.0).collect::<Vec<_>>()
    };
    assert_eq!(run(42), run(42));
    assert_ne!(run(42), run(43));
}
