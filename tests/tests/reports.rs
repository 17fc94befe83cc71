//! Faults that people reported of other engines, as small models with known answers: tied heads (R06), inputs of RoPE
//! scaling (R13), layouts of experts (R15), sums beyond half precision (R16), head sizes (R17). The others stand where
//! their parts are tested.

use fixtures::REFERENCE_MODELS;
use gguf::GgmlType;
use runtime::verify::relative_l2;
use std::path::PathBuf;
use tests::scripted::{Script, Token};
use tests::variant::Variant;
use tests::{id_text, ids, reference_json, run};

/// A folder for models and what is made of them.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Place(tempfile::tempdir().expect("a folder"))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str) -> String {
        self.path(name).to_str().expect("UTF-8").to_owned()
    }

    /// Logits of all positions.
    fn logits(&self, model: &Variant, ids: &[u32], flags: &[&str]) -> Vec<f32> {
        model.write(&self.path("model.gguf"));
        std::fs::write(self.path("tokens"), id_text(ids)).expect("writes");
        let (file, tokens, out) = (self.file("model.gguf"), self.file("tokens"), self.file("logits.npy"));
        let arguments = ["logits", &file, "--tokens", &tokens, "--out", &out];
        run("ats-run", self.0.path(), &[&arguments, flags].concat()).good();
        fixtures::npy::read_f32(&self.path("logits.npy")).expect("an array").data
    }
}

fn prompt(name: &str) -> Vec<u32> {
    ids(&reference_json(&format!("{name}.json"))["prompt_ids"])
}

/// R06 (1). That both cost a GPU the same is the planner's test.
#[test]
fn r06_a_tied_head_gives_the_logits_of_an_explicit_copy() {
    for name in REFERENCE_MODELS {
        let mut tied = Variant::tiny(name);
        if tied.has("output.weight") {
            tied = tied.without("output.weight");
        }
        let copied = tied.clone().tensor("output.weight", tied.get("token_embd.weight"));
        let (place, ids) = (Place::new(), prompt(name));
        assert!(place.logits(&tied, &ids, &[]) == place.logits(&copied, &ids, &[]), "{name}");
    }
}

/// R13 (a): the factor is for the layers that see everything.
#[test]
fn r13_gemma_scales_positions_in_its_global_layers_only() {
    let place = Place::new();
    let ids = prompt("gemma3");
    let scaled = |factor: f32, layers: u32| {
        let whole = Variant::tiny("gemma3").key("gemma3.rope.scaling.type", "linear");
        let whole = whole.key("gemma3.rope.scaling.factor", factor).key("gemma3.block_count", layers);
        let model = if layers < 6 { whole.without("blk.5.") } else { whole };
        place.logits(&model, &ids, &[])
    };
    assert!(scaled(1.0, 5) == scaled(8.0, 5), "the first five layers slide");
    assert!(scaled(1.0, 6) != scaled(8.0, 6), "the sixth is global");
}

/// R13 (b).
#[test]
fn r13_factors_of_one_change_nothing_and_factors_of_eight_are_linear_scaling() {
    let place = Place::new();
    let ids = prompt("llama");
    let factors = |value: f32| Variant::tiny("llama").floats("rope_freqs.weight", &[32], &[value; 32]);
    let none = Variant::tiny("llama").without("rope_freqs.weight");
    let plain = place.logits(&none, &ids, &[]);
    assert!(place.logits(&factors(1.0), &ids, &[]) == plain);
    let linear = none.key("llama.rope.scaling.type", "linear").key("llama.rope.scaling.factor", 8_f32);
    let linear = place.logits(&linear, &ids, &[]);
    assert!(place.logits(&factors(8.0), &ids, &[]) == linear);
    assert!(linear != plain);
}

/// The bytes of numbers in a type. Half precision is cut off, which the numbers here do not notice.
fn encoded(ty: GgmlType, values: &[f32]) -> Vec<u8> {
    let half = |x: f32| match x.to_bits() {
        0 => 0,
        bits => ((bits >> 16 & 0x8000) | ((bits >> 23 & 0xFF) - 112) << 10 | (bits >> 13 & 0x3FF)) as u16,
    };
    let block = |values: &[f32]| {
        let most = values.iter().fold(0_f32, |most, x| most.max(x.abs()));
        let codes = values.iter().map(move |x| if most > 0.0 { (x / most * 127.0).round() as i8 as u8 } else { 0 });
        half(most / 127.0).to_le_bytes().into_iter().chain(codes).collect::<Vec<u8>>()
    };
    match ty {
        GgmlType::F16 => values.iter().flat_map(|&x| half(x).to_le_bytes()).collect(),
        GgmlType::BF16 => values.iter().flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes()).collect(),
        GgmlType::Q8_0 => values.chunks(32).flat_map(block).collect(),
        _ => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
    }
}

/// A scripted model of two layers; in the first, one channel of the residual stream passes 70,000, which half precision
/// cannot hold, and the next norm brings it back.
fn overflowing(script: &Script, ty: GgmlType, place: &Place) -> Variant {
    script.write(&place.path("script.gguf"));
    let mut model = Variant::of(&place.path("script.gguf")).repeat_block(0, 1).key("llama.block_count", 2_u32);
    // Of the unit vector of any token the norm makes 18, gate and up their product: 320.
    let (hidden, ff) = (320, 32);
    let mut first = vec![0.0; hidden * ff];
    first[..hidden].fill(1.0);
    let mut down = vec![0.0; hidden * ff];
    down[(hidden - 1) * ff] = 224.0;
    let (wide, tall) = ([hidden as u64, ff as u64], [ff as u64, hidden as u64]);
    model = model.floats("blk.0.ffn_gate.weight", &wide, &first).floats("blk.0.ffn_up.weight", &wide, &first);
    model = model.floats("blk.0.ffn_down.weight", &tall, &down);
    for name in model.names() {
        let (_, shape, bytes) = model.get(&name);
        if let &[_, _] = shape {
            let values: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            let (shape, bytes) = (shape.to_vec(), encoded(ty, &values));
            model = model.tensor(&name, (ty, &shape, &bytes));
        }
    }
    model
}

/// The model with each layer's gate and up experts in one tensor: of each expert the gate's rows, then those of up.
fn with_fused_experts(model: Variant, layers: u32) -> Variant {
    (0..layers).fold(model, |model, layer| {
        let [gate, up] = ["gate", "up"].map(|part| format!("blk.{layer}.ffn_{part}_exps.weight"));
        let (ty, shape, gates) = model.get(&gate);
        let (up_ty, up_shape, ups) = model.get(&up);
        assert_eq!((ty, shape), (up_ty, up_shape), "one type for both");
        let expert_bytes = gates.len() / shape[2] as usize;
        let pairs = gates.chunks(expert_bytes).zip(ups.chunks(expert_bytes));
        let both: Vec<u8> = pairs.flat_map(|(gate, up)| [gate, up].concat()).collect();
        let shape = [shape[0], 2 * shape[1], shape[2]];
        let fused = format!("blk.{layer}.ffn_gate_up_exps.weight");
        model.clone().without(&gate).without(&up).tensor(&fused, (ty, &shape, &both))
    })
}

/// R15: one tensor for gate and up gives the same logits, and experts get the same places in a plan. Experts one by one
/// are refused by name (the planner's test).
#[test]
fn r15_fused_and_separate_experts_are_the_same_model() {
    let (place, ids) = (Place::new(), prompt("qwen3moe"));
    let separate = Variant::tiny("qwen3moe");
    let fused = with_fused_experts(separate.clone(), 2);
    for flags in [&[][..], &["--exact"]] {
        assert!(place.logits(&separate, &ids, flags) == place.logits(&fused, &ids, flags), "{flags:?}");
    }
    let homes = |model: &Variant| -> Vec<String> {
        model.write(&place.path("model.gguf"));
        let (file, plan) = (place.file("model.gguf"), place.file("m.atsplan"));
        let compile = ["compile", &file, "--device", "sim:rtx3060-laptop", "--vram", "4M", "--out", &plan];
        run("ats-plan", place.0.path(), &compile).good();
        let text = run("ats-plan", place.0.path(), &["inspect", &plan]).good();
        let items = text.lines().skip_while(|line| !line.starts_with("items (")).skip(1);
        let items = items.take_while(|line| !line.is_empty());
        items.map(|line| line.split_whitespace().take(3).collect::<Vec<_>>().join(" ")).collect()
    };
    let of_separate = homes(&separate);
    assert_eq!(homes(&fused), of_separate);
    assert!(of_separate.iter().any(|item| item.starts_with("blk.0.experts_gate_up ExpertsInput")), "{of_separate:?}");
}

/// The shape of a bias, and as many numbers, all alike.
fn biases(of: &Variant, name: &str, value: f32) -> (Vec<u64>, Vec<f32>) {
    let (_, shape, bytes) = of.get(name);
    (shape.to_vec(), vec![value; bytes.len() / 4])
}

/// R15: gpt-oss adds the experts' biases before the clamp and the down bias after the product, before the routing
/// weights, whose sum is 1. Experts whose matrices are nothing but a 1 in a corner of the last give what the biases
/// say: gate 10 and up -9 make -41.999719, and so do these as down biases of experts without any matrix.
#[test]
fn r15_expert_biases_come_before_the_clamp_and_the_down_bias_before_the_weights() {
    let (place, ids) = (Place::new(), prompt("gpt-oss"));
    let tiny = Variant::tiny("gpt-oss");
    let model = |[gate, up]: [f32; 2], corner: f32, first_of_down: f32| {
        (0..3).fold(tiny.clone(), |model, layer| {
            let name = |part: &str| format!("blk.{layer}.ffn_{part}_exps");
            let mut model = model;
            for part in ["gate", "up", "down"] {
                let shape = tiny.get(&format!("{}.weight", name(part))).1.to_vec();
                let expert = (shape[0] * shape[1]) as usize;
                let mut values = vec![0.0; expert * shape[2] as usize];
                if part == "down" {
                    values.iter_mut().step_by(expert).for_each(|value| *value = corner);
                }
                model = model.floats(&format!("{}.weight", name(part)), &shape, &values);
            }
            for (part, value) in [("gate", gate), ("up", up), ("down", 0.25)] {
                let bias = format!("{}.bias", name(part));
                let (shape, mut values) = biases(&tiny, &bias, value);
                if part == "down" {
                    values.iter_mut().step_by(shape[0] as usize).for_each(|value| *value += first_of_down);
                }
                model = model.floats(&bias, &shape, &values);
            }
            model
        })
    };
    let logits = |model: &Variant| place.logits(model, &ids, &["--exact"]);
    for ([gate, up], value) in
        [([1.0, 0.0], 0.845_796), ([10.0, 9.0], 55.999_625), ([10.0, -9.0], -41.999_719), ([2.0, 3.0], 7.742_634)]
    {
        let by_experts = logits(&model([gate, up], 1.0, 0.0));
        let by_bias = logits(&model([0.0, 0.0], 0.0, value));
        let error = relative_l2(&by_bias, &by_experts);
        assert!(error < 1e-5, "gate {gate}, up {up}: {error}");
        let without = relative_l2(&logits(&model([0.0, 0.0], 0.0, 0.0)), &by_experts);
        assert!(without > 1e-2, "gate {gate}, up {up}: the experts do not matter ({without})");
    }
}

/// R16: the number of tokens in a round decides nothing.
#[test]
fn r16_what_half_precision_cannot_hold_is_no_obstacle_at_any_length() {
    let chain = [Token::Word("go"), Token::Word("one"), Token::Word("two"), Token::Word("three")];
    let script = Script::new().says(&chain);
    let [go, one, two, three] = chain.map(|token| script.id(token));
    for ty in [GgmlType::F32, GgmlType::F16, GgmlType::BF16, GgmlType::Q8_0] {
        let place = Place::new();
        overflowing(&script, ty, &place).write(&place.path("model.gguf"));
        let model = place.file("model.gguf");
        run("ats-plan", place.0.path(), &["compile", &model, "--context", "1024"]).good();
        for length in [1, 2, 31, 32, 33, 63, 64, 65, 512] {
            std::fs::write(place.path("tokens"), id_text(&vec![go; length])).expect("writes");
            let tokens = place.file("tokens");
            let flags = ["--tokens", &tokens, "--max-tokens", "3", "--greedy", "--ids", "--ignore-eos"];
            let printed = run("ats-run", place.0.path(), &[&["generate", &model], &flags[..]].concat()).good();
            let printed: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
            assert_eq!(ids(&printed["ids"]), [one, two, three], "{ty:?}, {length} tokens");
        }
    }
}

/// A model of one layer with attention alone, and what it computes where no energy is in the rotated dimensions.
struct Attention {
    key_length: usize,
    value_length: usize,
    /// Rows of each head that queries and keys have.
    energy: std::ops::Range<usize>,
}

const HIDDEN: usize = 96;
const HEADS: usize = 2;
const VOCAB: usize = 512;
const ROTARY: usize = 32;
const EPSILON: f64 = 1e-5;

impl Attention {
    /// A matrix of `rows` × `cols` with numbers that look random.
    fn matrix(&self, name: &str, rows: usize, cols: usize) -> Vec<f32> {
        let mut random = fixtures::random::Random::new(17, name, 0);
        let mut values: Vec<f32> = (0..rows * cols).map(|_| random.normal() * 0.2).collect();
        if matches!(name, "attn_q" | "attn_k") {
            let cold = |row: &usize| !self.energy.contains(&(row % self.key_length));
            (0..rows).filter(cold).for_each(|row| values[row * cols..][..cols].fill(0.0));
        }
        values
    }

    fn parts(&self) -> [(&'static str, usize, usize); 6] {
        [
            ("token_embd", VOCAB, HIDDEN),
            ("output", VOCAB, HIDDEN),
            ("attn_q", HEADS * self.key_length, HIDDEN),
            ("attn_k", self.key_length, HIDDEN),
            ("attn_v", self.value_length, HIDDEN),
            ("attn_output", HIDDEN, HEADS * self.value_length),
        ]
    }

    fn model(&self) -> Variant {
        let mut model =
            Variant::tiny("qwen2").without("").key("qwen2.attention.layer_norm_rms_epsilon", EPSILON as f32);
        for (key, value) in [
            ("embedding_length", HIDDEN),
            ("block_count", 1),
            ("feed_forward_length", 32),
            ("attention.head_count", HEADS),
            ("attention.head_count_kv", 1),
            ("attention.key_length", self.key_length),
            ("attention.value_length", self.value_length),
            ("rope.dimension_count", ROTARY),
        ] {
            model = model.key(&format!("qwen2.{key}"), value as u32);
        }
        for (name, rows, cols) in self.parts() {
            let full = if name.starts_with("attn") { format!("blk.0.{name}.weight") } else { format!("{name}.weight") };
            model = model.floats(&full, &[cols as u64, rows as u64], &self.matrix(name, rows, cols));
        }
        for name in ["blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"] {
            model = model.floats(&format!("{name}.weight"), &[HIDDEN as u64], &[1.0; HIDDEN]);
        }
        for (name, rows) in
            [("attn_q", HEADS * self.key_length), ("attn_k", self.key_length), ("attn_v", self.value_length)]
        {
            model = model.floats(&format!("blk.0.{name}.bias"), &[rows as u64], &vec![0.0; rows]);
        }
        for (name, rows, cols) in [("ffn_gate", 32, HIDDEN), ("ffn_up", 32, HIDDEN), ("ffn_down", HIDDEN, 32)] {
            let zeros = vec![0.0; rows * cols];
            model = model.floats(&format!("blk.0.{name}.weight"), &[cols as u64, rows as u64], &zeros);
        }
        model
    }

    /// The last token's logits without any rotation.
    fn expected(&self, ids: &[u32]) -> Vec<f64> {
        let [table, head, q, k, v, o] = self.parts().map(|(name, rows, cols)| self.matrix(name, rows, cols));
        let row = |id: u32| table[id as usize * HIDDEN..][..HIDDEN].iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
        let normed: Vec<Vec<f64>> = ids.iter().map(|&id| norm(&row(id))).collect();
        let last = normed.last().expect("a token");
        let query = product(&q, last);
        let [keys, values] = [&k, &v].map(|matrix| normed.iter().map(|x| product(matrix, x)).collect::<Vec<_>>());
        let mut mixed = Vec::new();
        for query in query.chunks(self.key_length) {
            let scores = keys.iter().map(|key| dot(query, key) / (self.key_length as f64).sqrt());
            let weights: Vec<f64> = scores.map(f64::exp).collect();
            let sum: f64 = weights.iter().sum();
            mixed.extend((0..self.value_length).map(|column| {
                weights.iter().zip(&values).map(|(weight, value)| weight / sum * value[column]).sum::<f64>()
            }));
        }
        let stream: Vec<f64> =
            row(ids[ids.len() - 1]).iter().zip(product(&o, &mixed)).map(|(x, added)| x + added).collect();
        product(&head, &norm(&stream))
    }

    /// Relative L2 error of the last token's logits.
    fn error(&self, place: &Place, flags: &[&str]) -> f64 {
        let ids: Vec<u32> = (0..40).map(|i| (i * 131 + 7) % VOCAB as u32).collect();
        let got = place.logits(&self.model(), &ids, flags);
        let got = &got[got.len() - VOCAB..];
        let expected = self.expected(&ids);
        let square = |sum: f64, x: f64| sum + x * x;
        let difference = got.iter().zip(&expected).map(|(&got, expected)| f64::from(got) - expected).fold(0.0, square);
        (difference / expected.iter().copied().fold(0.0, square)).sqrt()
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn product(matrix: &[f32], x: &[f64]) -> Vec<f64> {
    matrix.chunks(x.len()).map(|row| row.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum()).collect()
}

fn norm(x: &[f64]) -> Vec<f64> {
    let scale = 1.0 / (dot(x, x) / x.len() as f64 + EPSILON).sqrt();
    x.iter().map(|x| x * scale).collect()
}

/// R17: head sizes stand in the file, keys' and values' may differ, and dimensions beyond the rotated ones know no
/// position.
#[test]
fn r17_head_sizes_and_partial_rotation_are_those_of_the_file() {
    let place = Place::new();
    for (key_length, value_length) in [(64, 64), (48, 32), (80, 96)] {
        let beyond = Attention { key_length, value_length, energy: ROTARY..key_length };
        let error = beyond.error(&place, &["--exact"]);
        assert!(error < 1e-5, "{key_length} and {value_length}: {error}");
        let error = beyond.error(&place, &[]);
        assert!(error < 0.01, "{key_length} and {value_length}, fast: {error}");
        let within = Attention { energy: 0..ROTARY, ..beyond };
        let error = within.error(&place, &["--exact"]);
        assert!(error > 1e-3, "{key_length} and {value_length}: the first dimensions are rotated: {error}");
    }
}
