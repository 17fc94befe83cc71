//! `ats-run bench`: prefill and decode speed on fixed synthetic tokens, medians over repetitions.
//! Not here: kernels alone (`bench_kernels.rs`).

use super::common::{ModelArgs, RoutingArgs, TraceArgs, exactness};
use super::timeline::TimelineArgs;
use super::{Failure, bench_kernels, residence};
use crate::engine::{Engine, Overrides, Sequence, Wanted, isa_from_environment};
use crate::quantiles::Quantiles;
use clap::{Args, ValueEnum};
use device::clock::Clock;
use kernels::cases::SPEED_TYPES;
use kernels::cpu::Isa;
use kernels::quant::WeightType;
use shared_cli::output::say;
use std::io::Write;
use std::time::Instant;

/// What to measure.
#[derive(Debug, Args)]
pub struct BenchArgs {
    #[command(flatten)]
    model: Option<ModelArgs>,
    /// Measure the CPU's products alone, each against what this machine can do, instead of a model.
    #[arg(long, conflicts_with_all = ["model", "prompt", "generate", "depth"])]
    kernels: bool,
    /// Weight types that --kernels measures, separated by commas [default: the ten most used].
    #[arg(long, value_name = "TYPES", value_delimiter = ',', value_parser = weight_type, requires = "kernels")]
    types: Vec<WeightType>,
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
    /// Measure what a switch between the plan's decode schedules costs, too.
    #[arg(long)]
    switches: bool,
    /// Form of the result.
    #[arg(long, value_enum, default_value = "md")]
    format: Format,
    #[command(flatten)]
    load: TimelineArgs,
    #[command(flatten)]
    trace: TraceArgs,
    #[command(flatten)]
    routing: RoutingArgs,
}

/// Forms of a result.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Format {
    /// A table.
    Md,
    /// A list of objects.
    Json,
    /// Lines of values.
    Csv,
}

impl BenchArgs {
    /// The simulated machine that it runs on.
    fn device(&self) -> Option<&str> {
        self.model.as_ref()?.device.as_deref()
    }
}

/// One test's result.
struct Row {
    test: String,
    median_tokens_per_s: f64,
    least_tokens_per_s: f64,
    most_tokens_per_s: f64,
    /// Times of single tokens in all repetitions, and who made them; of decoding only.
    tokens: Option<(Quantiles, String)>,
}

/// What one test measured.
#[derive(Default)]
struct Measured {
    rates: Vec<f64>,
    token_us: Vec<f64>,
}

/// Measures and prints.
pub fn run(args: &BenchArgs) -> Result<(), Failure> {
    if args.kernels {
        return kernels(args);
    }
    let Some(model) = &args.model else {
        return Err(Failure::usage("name a model, or measure the kernels alone with --kernels".to_owned()));
    };
    let overrides = Overrides { threads: args.threads, ..args.routing.overrides() };
    let needed = args.depth + args.prompt.max(args.generate).max(args.load.room_tokens().unwrap_or(0));
    let mut engine = model.open_with(Some(needed), exactness(false), overrides)?;
    args.trace.begin(&mut engine, &[])?;
    args.routing.begin(&engine, &[])?;
    let mut rows = Vec::new();
    if args.prompt > 0 {
        let rates = measure(args, &mut engine, Test::Prefill)?.rates;
        rows.push(Row::new(format!("pp{} @ d{}", args.prompt, args.depth), rates, None));
    }
    if args.generate > 0 {
        let before = engine.executor().residence();
        let Measured { rates, token_us } = measure(args, &mut engine, Test::Decode)?;
        let tokens = residence::since(&before, &engine.executor().residence());
        let residence = residence::text(&tokens, &residence::schedules(&engine));
        let tokens = Some((Quantiles::of(token_us), residence));
        rows.push(Row::new(format!("tg{} @ d{}", args.generate, args.depth), rates, tokens));
    }
    args.trace.end(&engine)?;
    args.routing.end(&engine)?;
    if args.switches {
        switches(&mut engine)?;
    }
    let threads = engine.executor().team().threads();
    let isa = engine.executor().isa().name();
    let model = model.model.file_name().unwrap_or_default().to_string_lossy();
    let how = match args.device() {
        Some(device) => format!("{device}, calculated"),
        None => format!("{threads} threads, {isa}"),
    };
    if !rows.is_empty() {
        print(args.format, &rows, (&model, &how))?;
        engine.executor().switches().0.iter().for_each(say);
    }
    args.load.run(&mut engine, args.depth, format!("{model}, {how}"))
}

/// Measures and prints products.
fn kernels(args: &BenchArgs) -> Result<(), Failure> {
    let threads = args.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from));
    let isa = isa_from_environment()?.unwrap_or_else(Isa::detect);
    let types = if args.types.is_empty() { SPEED_TYPES.to_vec() } else { args.types.clone() };
    let sizes = bench_kernels::Sizes { repetitions: args.repetitions as usize, ..bench_kernels::Sizes::FULL };
    let mut figures = Vec::new();
    bench_kernels::measure(&types, (threads, isa), sizes, &mut |figure| figures.push(*figure))?;
    bench_kernels::print(&figures, (threads, isa), args.format)
}

fn weight_type(name: &str) -> Result<WeightType, String> {
    let known = || WeightType::ALL.map(WeightType::name).join(", ");
    let found = WeightType::ALL.into_iter().find(|ty| ty.name().eq_ignore_ascii_case(name));
    found.ok_or_else(|| format!("no weight type that kernels know; they know {}", known()))
}

#[derive(Clone, Copy, PartialEq)]
enum Test {
    Prefill,
    Decode,
}

/// Rounds of the measurement of switches.
const SWITCHES: usize = 200;

/// Decodes with another schedule in every round, and says what the changes took.
fn switches(engine: &mut Engine) -> Result<(), Failure> {
    let schedules = engine.executor().decode_schedules();
    if schedules.len() < 2 {
        say("the plan has one schedule for decoding: nothing to switch to");
        return Ok(());
    }
    let mut took_us = Vec::with_capacity(SWITCHES);
    let mut sequence = Sequence::default();
    let tokens = synthetic(engine.vocab(), 0, SWITCHES.min(engine.context_tokens()));
    for (round, token) in tokens.iter().enumerate() {
        engine.executor().pin_schedule(Some(schedules[round % schedules.len()]));
        engine.feed(&mut sequence, &[*token], Wanted::Last, &mut |_, _| ())?;
        took_us.push(engine.executor().switch_took().as_micros_f64());
    }
    engine.executor().pin_schedule(None);
    took_us.sort_by(f64::total_cmp);
    let (median, most) = (took_us[took_us.len() / 2], took_us[took_us.len() - 1]);
    let count = schedules.len();
    say(format_args!("switches between {count} schedules: median {median:.1} us, at most {most:.1} us"));
    Ok(())
}

/// Tokens per second of each repetition after a warm-up; on a simulated machine by its clock.
fn measure(args: &BenchArgs, engine: &mut Engine, test: Test) -> Result<Measured, Failure> {
    let mut measured = Measured::default();
    let token_clock = engine.simulated_clock().unwrap_or_else(Clock::wall);
    for repetition in 0..=args.repetitions {
        let mut sequence = Sequence::default();
        engine.feed(&mut sequence, &synthetic(engine.vocab(), 0, args.depth), Wanted::Nothing, &mut |_, _| ())?;
        let count = if test == Test::Prefill { args.prompt } else { args.generate };
        let tokens = synthetic(engine.vocab(), args.depth, count);
        let (start, clock) = (Instant::now(), engine.simulated_clock());
        let simulated_start = clock.as_ref().map(Clock::now);
        match test {
            Test::Prefill => engine.feed(&mut sequence, &tokens, Wanted::Last, &mut |_, _| ())?,
            Test::Decode => {
                for token in &tokens {
                    let start = token_clock.now();
                    engine.feed(&mut sequence, &[*token], Wanted::Last, &mut |_, _| ())?;
                    if repetition > 0 {
                        measured.token_us.push(token_clock.now().since(start).as_micros_f64());
                    }
                }
            }
        }
        if repetition > 0 {
            let simulated =
                clock.zip(simulated_start).map(|(clock, start)| clock.now().since(start).as_micros_f64() / 1e6);
            measured.rates.push(count as f64 / simulated.unwrap_or_else(|| start.elapsed().as_secs_f64()));
        }
    }
    Ok(measured)
}

/// Fixed tokens spread over the vocabulary: decode speed must not depend on what a model says.
pub fn synthetic(vocab: usize, first: usize, count: usize) -> Vec<u32> {
    (first..first + count).map(|i| (i.wrapping_mul(2_654_435_761) % vocab) as u32).collect()
}

impl Row {
    fn new(test: String, mut rates: Vec<f64>, tokens: Option<(Quantiles, String)>) -> Self {
        rates.sort_by(f64::total_cmp);
        let (least, most) = (rates[0], rates[rates.len() - 1]);
        let median_tokens_per_s = rates[rates.len() / 2];
        Row { test, median_tokens_per_s, least_tokens_per_s: least, most_tokens_per_s: most, tokens }
    }
}

fn print(format: Format, rows: &[Row], (model, how): (&str, &str)) -> Result<(), Failure> {
    let mut out = std::io::stdout();
    match format {
        Format::Md => {
            writeln!(out, "| model | how | test | tokens/s | least | most |\n| --- | --- | --- | --- | --- | --- |")?;
            for Row { test, median_tokens_per_s, least_tokens_per_s, most_tokens_per_s, .. } in rows {
                let rates = format!("{median_tokens_per_s:.2} | {least_tokens_per_s:.2} | {most_tokens_per_s:.2}");
                writeln!(out, "| {model} | {how} | {test} | {rates} |")?;
            }
            for (row, (times, residence)) in rows.iter().filter_map(|row| Some((row, row.tokens.as_ref()?))) {
                let residence = if residence.is_empty() { String::new() } else { format!("; {residence}") };
                writeln!(out, "\n{}, {} tokens: {times}{residence}", row.test, times.count)?;
            }
        }
        Format::Csv => {
            writeln!(
                out,
                "model,how,test,median_tokens_per_s,least_tokens_per_s,most_tokens_per_s,token_p50_ms,token_p90_ms,\
                 token_p99_ms,token_max_ms"
            )?;
            for row in rows {
                let Row { test, median_tokens_per_s, least_tokens_per_s, most_tokens_per_s, tokens } = row;
                let rates = format!("{median_tokens_per_s:.3},{least_tokens_per_s:.3},{most_tokens_per_s:.3}");
                let ms = |us: f64| format!("{:.4}", us / 1e3);
                let times = tokens.as_ref().map(|(t, _)| [t.p50_us, t.p90_us, t.p99_us, t.max_us].map(ms).join(","));
                let times = times.unwrap_or_else(|| ",,,".to_owned());
                writeln!(out, "\"{model}\",\"{how}\",{test},{rates},{times}")?;
            }
        }
        Format::Json => {
            let rows: Vec<_> = rows.iter().map(|row| json_row(row, model, how)).collect();
            writeln!(out, "{}", serde_json::Value::Array(rows))?;
        }
    }
    Ok(())
}

fn json_row(row: &Row, model: &str, how: &str) -> serde_json::Value {
    let mut json = serde_json::json!({
        "model": model,
        "how": how,
        "test": row.test,
        "median_tokens_per_s": row.median_tokens_per_s,
        "least_tokens_per_s": row.least_tokens_per_s,
        "most_tokens_per_s": row.most_tokens_per_s,
    });
    if let Some((times, residence)) = &row.tokens {
        let ms = |us: f64| us / 1e3;
        json["token_ms"] = serde_json::json!({
            "p50": ms(times.p50_us), "p90": ms(times.p90_us), "p99": ms(times.p99_us), "max": ms(times.max_us),
        });
        json["schedules"] = residence.as_str().into();
    }
    json
}
