//! Known values of model families, and the kinds of fault that public reports name (R13, R15, R16, R17).

use super::attention::{AttentionInputs, AttentionScratch, AttentionShape, Mask, attention};
use super::elementwise::{Glu, Temperature, gather_rows, glu, sum};
use super::embed::{EmbedLayout, EmbedTable, embed};
use super::kv::{KV_BLOCK, KvView, KvViewMut, store_kv};
use super::norm::{RmsNorm, rms_norm};
use super::rope::{RopePairing, RopeParams, RopeScaling, RopeTable, rope, yarn_magnitude};
use super::router::{Router, RouterScore, RouterWeights, router};
use super::{View, ViewMut};
use crate::KernelError;
use crate::cases::{Random, random_weights};
use crate::cpu::Isa;
use crate::quant::{WeightType, dequantise_row, pack_panels, packed_bytes, panels};
use half::f16;

#[track_caller]
fn close(got: f32, want: f32) {
    assert!((got - want).abs() <= 1e-6 * want.abs().max(1.0), "{got} is not {want}");
}

fn params<'a>(n_rot: usize, scaling: RopeScaling, magnitude: f32, factors: Option<&'a [f32]>) -> RopeParams<'a> {
    RopeParams { n_rot, base: 1e4, scaling, magnitude, factors }
}

fn rotated(params: RopeParams, pairing: RopePairing, head_cols: usize, x: &[f32], position: u32) -> Vec<f32> {
    let table = RopeTable::new(params);
    let mut trig = vec![0.0; table.cols()];
    table.fill(&[position], ViewMut::new(&mut trig, 1, table.cols()));
    let mut out = vec![0.0; x.len()];
    let trig = View::new(&trig, 1, table.cols());
    rope(Isa::detect(), View::new(x, 1, x.len()), pairing, head_cols, trig, ViewMut::new(&mut out, 1, x.len()));
    out
}

fn random(count: usize, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    (0..count).map(|_| random.normal()).collect()
}

/// R13.
#[test]
fn yarn_magnitudes_are_those_of_the_reports() {
    for (factor, magnitude) in [(4.0, 1.138_629), (32.0, 1.346_574), (64.0, 1.415_888)] {
        close(yarn_magnitude(factor), magnitude);
    }
}

/// R13 (c): at distance 0 the rotation cancels and the squared magnitude is left, at small positions as at large.
#[test]
fn yarn_raises_every_score_by_its_squared_magnitude() {
    let (q, k) = (random(64, 1), random(64, 2));
    let scaling = RopeScaling::Yarn { factor: 32.0, original_context_tokens: 4096 };
    for position in [0, 1, 5000, 100_000] {
        let score = |magnitude: f32, scaling: RopeScaling| -> f32 {
            let turn = |x: &[f32]| rotated(params(64, scaling, magnitude, None), RopePairing::Neox, 64, x, position);
            turn(&q).iter().zip(turn(&k)).map(|(q, k)| q * k).sum()
        };
        let ratio = score(yarn_magnitude(32.0), scaling) / score(1.0, RopeScaling::None);
        assert!((ratio - 1.813_26).abs() < 2e-5, "{ratio}");
    }
}

/// R13 (b).
#[test]
fn rope_factors_of_one_are_no_factors_and_of_eight_are_linear_scaling() {
    let plain = RopeTable::new(params(64, RopeScaling::None, 1.0, None));
    assert_eq!(RopeTable::new(params(64, RopeScaling::None, 1.0, Some(&[1.0; 32]))), plain);
    let linear = RopeTable::new(params(64, RopeScaling::Linear { factor: 8.0 }, 1.0, None));
    assert_eq!(RopeTable::new(params(64, RopeScaling::None, 1.0, Some(&[8.0; 32]))), linear);
    assert_ne!(linear, plain);
}

/// R17: both pairings, by hand.
#[test]
fn neighbours_and_halves_rotate_as_named() {
    let (sin, cos) = 1f32.sin_cos();
    let x = [1.0, 0.0, 0.0, 0.0, 5.0, 6.0];
    let turned = |pairing| rotated(params(4, RopeScaling::None, 1.0, None), pairing, 6, &x, 1);
    assert_eq!(turned(RopePairing::Norm), [cos, sin, 0.0, 0.0, 5.0, 6.0]);
    assert_eq!(turned(RopePairing::Neox), [cos, 0.0, sin, 0.0, 5.0, 6.0]);
}

/// R17: with energy only beyond the rotated dimensions, shifting all positions changes nothing.
#[test]
fn dimensions_beyond_the_rotated_ones_know_no_position() {
    let mut x = random(64, 3);
    let turn =
        |x: &[f32], position| rotated(params(32, RopeScaling::None, 1.0, None), RopePairing::Norm, 64, x, position);
    assert_ne!(turn(&x, 3), turn(&x, 1003));
    x[..32].fill(0.0);
    assert_eq!(turn(&x, 3), x);
    assert_eq!(turn(&x, 1003), x);
}

#[test]
fn angles_are_exact_at_a_million_positions() {
    let table = RopeTable::new(RopeParams { base: 1e6, ..params(128, RopeScaling::None, 1.0, None) });
    let mut trig = vec![0.0; 128];
    table.fill(&[1_048_575], ViewMut::new(&mut trig, 1, 128));
    // cos and sin of 1048575 radians (a position counted in f32 steps of its frequency is off by far more).
    close(trig[0], 0.788_042_24);
    close(trig[64], -0.615_621_15);
}

/// R15: gpt-oss' activation.
#[test]
fn clamped_swish_gives_the_pairs_of_the_reports() {
    let (gate, up) = ([1.0, 10.0, 10.0, 2.0], [0.0, 9.0, -9.0, 3.0]);
    for isa in Isa::available() {
        let mut out = [0.0; 4];
        let activation = Glu::ClampedSwish { alpha: 1.702, limit: 7.0 };
        let [gate, up] = [&gate, &up].map(|x| View::new(x, 1, 4));
        glu(isa, activation, gate, up, ViewMut::new(&mut out, 1, 4));
        for (got, want) in out.into_iter().zip([0.845_796, 55.999_625, -41.999_719, 7.742_634]) {
            close(got, want);
        }
    }
}

fn choose(logits: &[f32], router_params: Router) -> (Vec<i32>, Vec<f32>) {
    let (mut ids, mut weights) = (vec![0; router_params.chosen], vec![0.0; router_params.chosen]);
    let cols = router_params.chosen;
    let (id_view, weight_view) = (ViewMut::new(&mut ids, 1, cols), ViewMut::new(&mut weights, 1, cols));
    let logits = View::new(logits, 1, logits.len());
    router(Isa::detect(), logits, router_params, id_view, weight_view, &mut vec![0.0; 2 * logits.cols()]);
    (ids, weights)
}

const TWO: Router<'static> = Router {
    chosen: 2,
    score: RouterScore::Softmax,
    select_bias: None,
    weights: RouterWeights::ScoreNormalised,
    scale: 1.0,
};

/// R15: Qwen3-MoE always normalises; gpt-oss' softmax over the chosen is the same numbers here.
#[test]
fn weights_of_two_experts_are_those_of_the_reports() {
    let logits = [3.0, 2.0, 1.0, 0.0];
    let over_chosen = Router { score: RouterScore::Logit, weights: RouterWeights::SoftmaxOfChosen, ..TWO };
    for params in [TWO, over_chosen] {
        let (ids, weights) = choose(&logits, params);
        assert_eq!(ids, [0, 1]);
        close(weights[0], 0.731_059);
        close(weights[1], 0.268_941);
    }
    let (_, weights) = choose(&logits, Router { weights: RouterWeights::Score, ..TWO });
    close(weights[0], 0.643_914);
    close(weights[1], 0.236_883);
}

#[test]
fn a_selection_bias_chooses_but_does_not_weigh() {
    let bias = [0.0, 0.0, 0.0, 1.0];
    let (ids, weights) = choose(
        &[2.0, 1.0, 0.0, -1.0],
        Router { select_bias: Some(&bias), score: RouterScore::Sigmoid, weights: RouterWeights::Score, ..TWO },
    );
    assert_eq!(ids, [3, 0]);
    close(weights[0], 0.268_941_4);
    close(weights[1], 0.880_797);
}

#[test]
fn equal_scores_go_to_the_lower_expert_and_what_is_no_number_ranks_last() {
    let logit = Router { score: RouterScore::Logit, weights: RouterWeights::Score, ..TWO };
    assert_eq!(choose(&[1.0, 5.0, 5.0, 5.0], logit).0, [1, 2]);
    assert_eq!(choose(&[f32::NAN, 5.0, f32::NAN, 6.0], logit).0, [3, 1]);
    assert_eq!(choose(&[f32::NAN; 3], logit).0, [0, 1]);
}

#[test]
fn a_vanishing_sum_of_scores_is_clamped() {
    let logits = [-40.0, -41.0, -42.0];
    let (_, weights) = choose(&logits, Router { score: RouterScore::Sigmoid, ..TWO });
    close(weights[0] * 1e12, (-40f64).exp() as f32 * 16384.0 * 1e12);
}

/// R16: sums of squares do not overflow where half precision would.
#[test]
fn a_norm_brings_back_what_half_precision_cannot_hold() {
    for isa in Isa::available() {
        for value in [7e4, 1e12] {
            let mut x = vec![0.0f32; 256];
            x[7] = value;
            let mut out = vec![0.0; 256];
            let norm = RmsNorm { group: 256, weight: None, eps: 1e-6 };
            rms_norm(isa, View::new(&x, 1, 256), norm, ViewMut::new(&mut out, 1, 256));
            close(out[7], 16.0);
        }
    }
}

/// R16: what is no number is not hidden.
#[test]
fn not_a_number_passes_through_every_activation() {
    let x = [f32::NAN; 20];
    for isa in Isa::available() {
        for activation in [Glu::Silu, Glu::GeluTanh, Glu::ClampedSwish { alpha: 1.702, limit: 7.0 }] {
            let mut out = [0.0; 20];
            glu(isa, activation, View::new(&x, 1, 20), View::new(&[1.0; 20], 1, 20), ViewMut::new(&mut out, 1, 20));
            assert!(out.iter().all(|x| x.is_nan()));
            glu(isa, activation, View::new(&[1.0; 20], 1, 20), View::new(&x, 1, 20), ViewMut::new(&mut out, 1, 20));
            assert!(out.iter().all(|x| x.is_nan()));
        }
    }
}

/// A key that is no number spoils the tokens that see it, and only these.
#[test]
fn attention_shows_a_bad_key_to_those_who_see_it() {
    let shape = AttentionShape {
        q_heads: 1,
        kv_heads: 1,
        k_head_cols: 16,
        v_head_cols: 16,
        scale: 0.25,
        softcap: None,
        mask: Mask::Window { tokens: 4 },
    };
    let mut k = random(KV_BLOCK * 16, 5);
    k[10 * 16] = f32::NAN;
    let q = random(20 * 16, 6);
    let positions: Vec<u32> = (0..20).collect();
    for isa in Isa::available() {
        let inputs = AttentionInputs {
            q: View::new(&q, 20, 16),
            positions: &positions,
            k: KvView::F32(View::new(&k, KV_BLOCK, 16)),
            v: None,
            block_table: &[0],
            sinks: None,
        };
        let mut out = vec![0.0; 20 * 16];
        attention(isa, &shape, &inputs, 0..1, &mut AttentionScratch::new(&shape), ViewMut::new(&mut out, 20, 16));
        for (t, row) in out.chunks(16).enumerate() {
            assert_eq!(row.iter().any(|x| x.is_nan()), (10..14).contains(&t), "token {t}");
        }
    }
}

/// R13 and gpt-oss: a window of n sees n positions, its own included, and a sink joins the denominator alone. Position
/// p has the weight w_p before the softmax and the value p + 1.
#[test]
fn windows_and_sinks_weigh_by_the_formula() {
    let weights = [8_f32, 1.0, 2.0, 4.0];
    let mut k = vec![0.0; KV_BLOCK * 16];
    for (position, weight) in weights.iter().enumerate() {
        k[position * 16] = weight.ln();
        k[position * 16 + 1] = position as f32 + 1.0;
    }
    let q: Vec<f32> = (0..4 * 16).map(|i| if i % 16 == 0 { 4.0 } else { 0.0 }).collect();
    let cases = [
        (Mask::Window { tokens: 3 }, None, [1.0, 10.0 / 9.0, 16.0 / 11.0, 24.0 / 7.0]),
        (Mask::Window { tokens: 3 }, Some(0.0), [8.0 / 9.0, 1.0, 16.0 / 12.0, 3.0]),
        (Mask::Window { tokens: 1 }, Some(4_f32.ln()), [8.0 / 12.0, 2.0 / 5.0, 6.0 / 6.0, 16.0 / 8.0]),
        (Mask::Causal, Some(0.0), [8.0 / 9.0, 1.0, 16.0 / 12.0, 32.0 / 16.0]),
        (Mask::Chunk { tokens: 2 }, None, [1.0, 10.0 / 9.0, 3.0, 22.0 / 6.0]),
    ];
    for (mask, sink, want) in cases {
        let (k_head_cols, v_head_cols) = (16, 16);
        let shape =
            AttentionShape { q_heads: 1, kv_heads: 1, k_head_cols, v_head_cols, scale: 0.25, softcap: None, mask };
        for isa in Isa::available() {
            let inputs = AttentionInputs {
                q: View::new(&q, 4, 16),
                positions: &[0, 1, 2, 3],
                k: KvView::F32(View::new(&k, KV_BLOCK, 16)),
                v: None,
                block_table: &[0],
                sinks: sink.as_ref().map(std::slice::from_ref),
            };
            let mut out = vec![0.0; 4 * 16];
            attention(isa, &shape, &inputs, 0..1, &mut AttentionScratch::new(&shape), ViewMut::new(&mut out, 4, 16));
            for (token, want) in want.into_iter().enumerate() {
                let got: f32 = out[token * 16 + 1];
                assert!((got - want).abs() < 1e-5, "{mask:?}, sink {sink:?}, token {token}: {got} is not {want}");
            }
        }
    }
}

/// A ring: physical blocks recur in the table; the window never looks at what was overwritten.
#[test]
fn a_ring_of_blocks_serves_a_window() {
    let shape = AttentionShape {
        q_heads: 2,
        kv_heads: 1,
        k_head_cols: 16,
        v_head_cols: 16,
        scale: 0.25,
        softcap: None,
        mask: Mask::Window { tokens: 64 },
    };
    let isa = Isa::detect();
    let (k, q) = (random(300 * 16, 8), random(300 * 32, 9));
    let run = |ring: u32| {
        let table: Vec<u32> = (0..300u32.div_ceil(64)).map(|block| block % ring).collect();
        let mut cache = vec![f16::NAN; ring as usize * KV_BLOCK * 16];
        let slots = ring as usize * KV_BLOCK;
        let mut out = vec![0.0; 300 * 32];
        for p in 0..300 {
            let slot = super::kv::slot(&table, p as u32);
            let row = View::new(&k, 300, 16).row_range(p..p + 1);
            store_kv(isa, row, &[slot], KvViewMut::F16(ViewMut::new(&mut cache, slots, 16)));
            let inputs = AttentionInputs {
                q: View::new(&q, 300, 32).row_range(p..p + 1),
                positions: &[p as u32],
                k: KvView::F16(View::new(&cache, slots, 16)),
                v: None,
                block_table: &table,
                sinks: None,
            };
            let out = ViewMut::new(&mut out, 300, 32).row_range(p..p + 1);
            attention(isa, &shape, &inputs, 0..1, &mut AttentionScratch::new(&shape), out);
        }
        out
    };
    assert_eq!(run(2), run(5));
}

#[test]
fn half_precision_keys_are_rounded_to_nearest_even_and_overflow_to_infinity() {
    let x = [1.0, 2049.0, 2051.0, 65519.0, 65520.0, -1e9, 6e-8, 1e-9, f32::NAN, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8];
    for isa in Isa::available() {
        let mut cache = vec![f16::ZERO; 2 * x.len()];
        store_kv(isa, View::new(&x, 1, 17), &[1], KvViewMut::F16(ViewMut::new(&mut cache, 2, 17)));
        for (got, want) in cache[17..].iter().zip(x) {
            assert!(got.to_bits() == f16::from_f32(want).to_bits() || want.is_nan() && got.is_nan(), "{want}");
        }
        assert!(cache[..17].iter().all(|x| x.to_bits() == 0));
    }
}

/// llama4: nothing below position 8191, then steps of 8192.
#[test]
fn temperature_steps_at_whole_periods() {
    let temperature = Temperature { period_tokens: 8192, factor: 0.1 };
    let want = [(0, 1.0), (8190, 1.0), (8191, 1.069_314_7), (16_382, 1.069_314_7), (16_383, 1.109_861_2)];
    for (position, scale) in want {
        close(temperature.at(position), scale);
    }
}

#[test]
fn masks_show_what_they_say() {
    assert_eq!(Mask::Causal.visible(5), 0..6);
    assert_eq!(Mask::Window { tokens: 4 }.visible(5), 2..6);
    assert_eq!(Mask::Window { tokens: 4 }.visible(2), 0..3);
    assert_eq!(Mask::Chunk { tokens: 8192 }.visible(8191), 0..8192);
    assert_eq!(Mask::Chunk { tokens: 8192 }.visible(8192), 8192..8193);
}

/// Embedding rows are the table's exact values times the scale (gemma: √h), in both layouts of the table.
#[test]
fn embedding_rows_are_exact_in_both_layouts() {
    let (rows, cols) = (40, 256);
    for ty in WeightType::ALL {
        let file = random_weights(ty, rows, cols, 3);
        let row_bytes = ty.row_bytes(cols).unwrap();
        let mut packed = vec![0; packed_bytes(ty, rows, cols).unwrap()];
        pack_panels(ty, &file, rows, cols, 0..panels(rows), &mut packed).unwrap();
        let tables = [(EmbedLayout::File, &file), (EmbedLayout::Panels, &packed)];
        for (layout, data) in tables {
            let table = EmbedTable { ty, rows, data, layout };
            for token in [0, 7, 39] {
                let (mut want, mut got) = (vec![0.0; cols], vec![0.0; cols]);
                dequantise_row(ty, &file[token * row_bytes..][..row_bytes], &mut want).unwrap();
                want.iter_mut().for_each(|w| *w *= 16.0);
                embed(Isa::detect(), table, &[token as u32], 16.0, ViewMut::new(&mut got, 1, cols)).unwrap();
                assert_eq!(got, want, "{ty} {layout:?} row {token}");
            }
        }
    }
}

#[test]
fn a_token_beyond_the_table_is_an_error() {
    let table = EmbedTable { ty: WeightType::F32, rows: 2, data: &[0; 32], layout: EmbedLayout::File };
    let mut out = [0.0; 4];
    let look_up = |table, token, out: &mut [f32; 4]| embed(Isa::Scalar, table, &[token], 1.0, ViewMut::new(out, 1, 4));
    assert!(look_up(table, 1, &mut out).is_ok());
    assert!(matches!(look_up(table, 2, &mut out), Err(KernelError::Size { .. })));
    assert!(matches!(look_up(table, u32::MAX, &mut out), Err(KernelError::Size { .. })));
    let short = EmbedTable { data: &[0; 31], ..table };
    assert!(matches!(look_up(short, 1, &mut out), Err(KernelError::Size { .. })));
}

#[test]
fn rows_are_gathered_and_partial_results_summed_in_order() {
    let x: Vec<f32> = (0..12).map(|i| i as f32).collect();
    let mut out = vec![0.0; 6];
    gather_rows(View::new(&x, 4, 3), &[3, 1], ViewMut::new(&mut out, 2, 3));
    assert_eq!(out, [9.0, 10.0, 11.0, 3.0, 4.0, 5.0]);
    let parts = [1e8f32, 1.0, -1e8].map(|value| vec![value; 20]);
    let views = parts.each_ref().map(|part| View::new(part, 2, 10));
    let mut out = vec![0.0; 20];
    sum(Isa::detect(), &views, ViewMut::new(&mut out, 2, 10));
    assert!(out.iter().all(|&x| x == 0.0), "1e8 + 1 rounds to 1e8 before the last term");
}
