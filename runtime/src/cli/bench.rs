//! `ats-run bench`: prefill and decode speed on fixed synthetic tokens, medians over repetitions.
//! Not here: kernels alone (criterion benches of crate `kernels`).

use super::Failure;
use super::common::{ModelArgs, TraceArgs, exactness};
use crate::engine::{Engine, Overrides, Sequence, Wanted};
use clap::{Args, ValueEnum};
use std::io::Write;
use std::time::Instant;

/// What to measure.
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Prompt tokens of the prefill test.
    #[arg(long, short, value_name = "TOKENS", default_value_t = 512)]
    prompt: usize,
    /// Generated tokens of the decode test.
    #[arg(long, short = 'n', value_name = "TOKENS", default_value_t = 128)]
    generate: usize,
    /// Tokens in the context before each test.
    #[arg(long, short, value_name = "TOKENS", default_value_t = 0)]
    depth: usize,
    /// Repetitions after a warm-up; the median counts.
    #[arg(long, short, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// CPU threads [default: the plan's].
    #[arg(long, short, value_name = "N")]
    threads: Option<usize>,
    /// Form of the result.
    #[arg(long, value_enum, default_value = "md")]
    format: Format,
    #[command(flatten)]
    trace: TraceArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Format {
    Md,
    Json,
    Csv,
}

/// One test's result.
struct Row {
    test: String,
    median_tokens_per_s: f64,
    least_tokens_per_s: f64,
    most_tokens_per_s: f64,
}

/// Measures and prints.
pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    let overrides = Overrides { threads: args.threads, ..Overrides::default() };
    let needed = args.depth + args.prompt.max(args.generate);
    let mut engine = args.model.open_with(Some(needed), exactness(false), overrides)?;
    args.trace.begin(&mut engine);
    let mut rows = Vec::new();
    if args.prompt > 0 {
        let rates = measure(args, &mut engine, Test::Prefill)?;
        rows.push(Row::new(format!("pp{} @ d{}", args.prompt, args.depth), rates));
    }
    if args.generate > 0 {
        let rates = measure(args, &mut engine, Test::Decode)?;
        rows.push(Row::new(format!("tg{} @ d{}", args.generate, args.depth), rates));
    }
    args.trace.end(&engine)?;
    let threads = engine.executor().team().threads();
    let isa = engine.executor().isa().name();
    print(args, &rows, &format!("{threads} threads, {isa}"))
}

#[derive(Clone, Copy, PartialEq)]
enum Test {
    Prefill,
    Decode,
}

/// Tokens per second of each repetition after a warm-up.
fn measure(args: &BenchArgs, engine: &mut Engine, test: Test) -> Result<Vec<f64>, Failure> {
    let mut rates = Vec::new();
    for repetition in 0..=args.repetitions {
        let mut sequence = Sequence::default();
        engine.feed(&mut sequence, &synthetic(engine.vocab(), 0, args.depth), Wanted::Nothing, &mut |_, _| ())?;
        let count = if test == Test::Prefill { args.prompt } else { args.generate };
        let tokens = synthetic(engine.vocab(), args.depth, count);
        let start = Instant::now();
        match test {
            Test::Prefill => engine.feed(&mut sequence, &tokens, Wanted::Last, &mut |_, _| ())?,
            Test::Decode => {
                for token in &tokens {
                    engine.feed(&mut sequence, &[*token], Wanted::Last, &mut |_, _| ())?;
                }
            }
        }
        if repetition > 0 {
            rates.push(count as f64 / start.elapsed().as_secs_f64());
        }
    }
    Ok(rates)
}

/// Fixed tokens spread over the vocabulary: decode speed must not depend on what a model says.
fn synthetic(vocab: usize, first: usize, count: usize) -> Vec<u32> {
    (first..first + count).map(|i| (i.wrapping_mul(2_654_435_761) % vocab) as u32).collect()
}

impl Row {
    fn new(test: String, mut rates: Vec<f64>) -> Self {
        rates.sort_by(f64::total_cmp);
        let (least, most) = (rates[0], rates[rates.len() - 1]);
        Row { test, median_tokens_per_s: rates[rates.len() / 2], least_tokens_per_s: least, most_tokens_per_s: most }
    }
}

fn print(args: &BenchArgs, rows: &[Row], how: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    let model = args.model.model.file_name().unwrap_or_default().to_string_lossy();
    match args.format {
        Format::Md => {
            writeln!(out, "| model | how | test | tokens/s | least | most |\n| --- | --- | --- | --- | --- | --- |")?;
            for Row { test, median_tokens_per_s, least_tokens_per_s, most_tokens_per_s } in rows {
                let rates = format!("{median_tokens_per_s:.2} | {least_tokens_per_s:.2} | {most_tokens_per_s:.2}");
                writeln!(out, "| {model} | {how} | {test} | {rates} |")?;
            }
        }
        Format::Csv => {
            writeln!(out, "model,how,test,median_tokens_per_s,least_tokens_per_s,most_tokens_per_s")?;
            for Row { test, median_tokens_per_s, least_tokens_per_s, most_tokens_per_s } in rows {
                let rates = format!("{median_tokens_per_s:.3},{least_tokens_per_s:.3},{most_tokens_per_s:.3}");
                writeln!(out, "\"{model}\",\"{how}\",{test},{rates}")?;
            }
        }
        Format::Json => {
            let rows: Vec<_> = rows.iter().map(|row| json_row(row, &model, how)).collect();
            writeln!(out, "{}", serde_json::Value::Array(rows))?;
        }
    }
    Ok(())
}

fn json_row(row: &Row, model: &str, how: &str) -> serde_json::Value {
    serde_json::json!({
        "model": model,
        "how": how,
        "test": row.test,
        "median_tokens_per_s": row.median_tokens_per_s,
        "least_tokens_per_s": row.least_tokens_per_s,
        "most_tokens_per_s": row.most_tokens_per_s,
    })
}
