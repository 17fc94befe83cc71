//! The same tokens whatever the threads, the rounds, and what a sequence held before: seeds, prefix reuse (R25),
//! prompts that were interrupted. Through the runtime's functions, since no command line sets the threads of a
//! generation.

use runtime::engine::{Engine, Overrides, Sequence};
use runtime::generation::{Flow, Listener, Outcome, Request, Reuse, generate};
use runtime::plans::{Exactness, OtherDevice, PlanRequest};
use std::path::{Path, PathBuf};
use text::{ChannelFormat, EndTokens, Finish, Sampled, Sampler, SamplerOptions, Step, StreamOptions};

/// One of each kind of memory: whole caches, rings, recurrent states with whole caches, and latent caches.
const FAMILIES: [&str; 4] = ["llama", "gemma3", "qwen3next", "deepseek2"];
const UBATCHES: [usize; 4] = [1, 7, 64, 512];
const GENERATED: usize = 16;

/// Plans of one tiny model for several round lengths.
struct Case {
    folder: tempfile::TempDir,
    model: PathBuf,
}

impl Case {
    fn new(family: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        Case { folder, model: fixtures::reference_dir().join(format!("tiny-{family}.gguf")) }
    }

    fn engine(&self, ubatch: usize, threads: usize) -> Engine {
        let plan = self.folder.path().join(format!("{ubatch}.atsplan"));
        if !plan.is_file() {
            let (model, out, ubatch) = (text_of(&self.model), text_of(&plan), ubatch.to_string());
            let arguments = ["compile", model, "--out", out, "--context", "512", "--ubatch", &ubatch];
            tests::run("ats-plan", self.folder.path(), &arguments).good();
        }
        // A team pins the thread that it was made on, so a plan that this thread has made later is for one core.
        let request = PlanRequest {
            plan: Some(plan),
            context_tokens: None,
            exactness: Exactness::Planned,
            other_device: OtherDevice::Accept,
            simulated: None,
        };
        let overrides = Overrides { threads: Some(threads), ..Overrides::default() };
        Engine::open(&self.model, &request, overrides).expect("opens")
    }
}

fn text_of(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Keeps the ids, and stops the prompt before a round.
#[derive(Default)]
struct Ids {
    ids: Vec<u32>,
    stop_before_round: Option<usize>,
    rounds: usize,
}

impl Listener for Ids {
    fn prefill(&mut self, _: usize, _: usize) -> Flow {
        self.rounds += 1;
        if self.stop_before_round == Some(self.rounds) { Flow::Stop } else { Flow::Continue }
    }

    fn token(&mut self, token: &Sampled, _: &Step) -> Flow {
        self.ids.push(token.id.0);
        Flow::Continue
    }

    fn stopped(&mut self, _: &Step) {}
}

/// A sequence with its engine, and how it generates.
struct Run {
    engine: Engine,
    sequence: Sequence,
    options: SamplerOptions,
}

impl Run {
    fn new(engine: Engine, options: SamplerOptions) -> Self {
        Run { engine, sequence: Sequence::default(), options }
    }

    fn go(&mut self, prompt: &[u32], reuse: Reuse, ids: &mut Ids) -> Outcome {
        let stream = StreamOptions {
            stops: Vec::new(),
            max_tokens: Some(GENERATED),
            context_tokens: self.engine.context_tokens(),
            end_tokens: EndTokens::Ignore,
            channels: ChannelFormat::Plain,
        };
        let vocab_tokens = self.engine.tokenizer().vocab_tokens();
        let mut sampler = Sampler::new(self.options.clone(), vocab_tokens).expect("good options");
        let request = Request { prompt, border: Some(prompt.len() - 20), reuse, options: &stream };
        generate(&mut self.engine, &mut self.sequence, &request, &mut sampler, ids).expect("generates")
    }

    fn ids(&mut self, prompt: &[u32], reuse: Reuse) -> (Vec<u32>, usize) {
        let mut ids = Ids::default();
        let outcome = self.go(prompt, reuse, &mut ids);
        assert_eq!((outcome.finish, ids.ids.len()), (Finish::Length, GENERATED));
        (ids.ids, outcome.timing.reused_tokens)
    }
}

/// Any ids will do: 300 of them, from a place on different from those of another `kind`.
fn prompt(shared: usize, kind: u32) -> Vec<u32> {
    let id = |i: u32, kind: u32| (i * 7919 + kind * 131 + 13) % 500;
    (0..300).map(|i| if (i as usize) < shared { id(i, 0) } else { id(i, kind) }).collect()
}

fn chance(seed: u64) -> SamplerOptions {
    SamplerOptions { temperature: 1.0, seed, ..SamplerOptions::greedy() }
}

#[test]
fn a_seed_gives_the_same_text_on_any_threads_and_in_any_rounds() {
    for family in FAMILIES {
        let case = Case::new(family);
        let run = |ubatch, threads, seed| {
            Run::new(case.engine(ubatch, threads), chance(seed)).ids(&prompt(300, 0), Reuse::Nothing).0
        };
        let expected = run(512, 1, 42);
        for (ubatch, threads) in [(512, 2), (512, 5), (64, 3), (7, 2), (1, 1)] {
            assert_eq!(run(ubatch, threads, 42), expected, "{family}: rounds of {ubatch} on {threads} threads");
        }
        assert_ne!(run(512, 1, 43), expected, "{family}: another seed");
    }
}

#[test]
fn r25_reuse_and_rounds_change_no_token() {
    let prompts = [(0, 0), (0, 0), (0, 0), (299, 1), (128, 2), (1, 3), (250, 4), (290, 5)]
        .map(|(shared, kind)| prompt(if kind == 0 { 300 } else { shared }, kind));
    for family in FAMILIES {
        let case = Case::new(family);
        let mut alone = Run::new(case.engine(512, 2), SamplerOptions::greedy());
        let expected: Vec<Vec<u32>> = prompts.iter().map(|prompt| alone.ids(prompt, Reuse::Nothing).0).collect();
        for ubatch in UBATCHES {
            let mut run = Run::new(case.engine(ubatch, 2), SamplerOptions::greedy());
            let mut reused = Vec::new();
            for (index, prompt) in prompts.iter().enumerate() {
                let (ids, count) = run.ids(prompt, Reuse::Prefix);
                assert_eq!(
                    ids, expected[index],
                    "{family}: prompt {index} in rounds of {ubatch}, {count} tokens reused"
                );
                reused.push(count);
            }
            assert_eq!(reused[0], 0);
            assert!(reused[1] >= 280 && reused[2] >= 280, "{family}: the same prompt again: {reused:?}");
            assert!(reused[3] >= 280, "{family}: but one token the same: {reused:?}");
        }
    }
}

#[test]
fn whole_caches_are_reused_to_the_last_token() {
    let case = Case::new("llama");
    let mut run = Run::new(case.engine(64, 2), SamplerOptions::greedy());
    let reused = [(300, 0), (300, 0), (299, 1), (128, 2), (1, 3)]
        .map(|(shared, kind)| run.ids(&prompt(shared, kind), Reuse::Prefix).1);
    assert_eq!(reused, [0, 299, 299, 128, 1]);
}

#[test]
fn a_prompt_that_was_stopped_goes_on_where_it_was() {
    for family in FAMILIES {
        let case = Case::new(family);
        let mut run = Run::new(case.engine(64, 2), SamplerOptions::greedy());
        let (expected, _) = run.ids(&prompt(300, 0), Reuse::Nothing);
        let mut stopped = Ids { stop_before_round: Some(4), ..Ids::default() };
        let outcome = run.go(&prompt(0, 1), Reuse::Nothing, &mut stopped);
        assert_eq!((outcome.finish, outcome.generated_tokens), (Finish::Cancelled, 0), "{family}");
        assert_eq!(
            (outcome.timing.prompt_tokens, run.sequence.tokens.len()),
            (192, 192),
            "{family}: three rounds of 64"
        );
        let mut rest = Ids::default();
        let outcome = run.go(&prompt(0, 1), Reuse::Prefix, &mut rest);
        assert_eq!(outcome.timing.reused_tokens, 192, "{family}");
        let mut alone = Run::new(case.engine(512, 1), SamplerOptions::greedy());
        assert_eq!(alone.ids(&prompt(0, 1), Reuse::Nothing).0, rest.ids, "{family}");
        assert_eq!(run.ids(&prompt(300, 0), Reuse::Prefix).0, expected, "{family}: another prompt after that");
    }
}

#[test]
fn tokens_beyond_the_vocabulary_and_full_contexts_leave_the_sequence_as_it_was() {
    let case = Case::new("qwen3next");
    let mut run = Run::new(case.engine(64, 2), SamplerOptions::greedy());
    let (expected, _) = run.ids(&prompt(300, 0), Reuse::Nothing);
    let stream = StreamOptions {
        stops: Vec::new(),
        max_tokens: None,
        context_tokens: 512,
        end_tokens: EndTokens::Stop,
        channels: ChannelFormat::Plain,
    };
    for bad in [vec![u32::MAX], vec![1; 513], Vec::new()] {
        let mut sampler = Sampler::new(SamplerOptions::greedy(), 500).expect("good options");
        let request = Request { prompt: &bad, border: None, reuse: Reuse::Prefix, options: &stream };
        let failed = generate(&mut run.engine, &mut run.sequence, &request, &mut sampler, &mut Ids::default());
        assert!(failed.is_err());
    }
    let (ids, reused) = run.ids(&prompt(300, 0), Reuse::Prefix);
    assert_eq!((ids, reused), (expected, 280));
}
