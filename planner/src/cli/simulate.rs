//! `ats-plan simulate`: what a plan does under another budget, link, load or context; timelines as page and as trace.

use super::compile::inputs;
use super::options::PlanArgs;
use super::subject::{self, Anew};
use crate::regime::Grid;
use crate::report::simulated::{RoundKind, Simulation};
use crate::simulate::round::RoundError;
use clap::{Args, ValueEnum};
use plan_format::artifact::Plan;
use plan_format::costs::Load;
use shared_cli::Failure;
use shared_cli::output::{Progress, print, refuse_places, write_whole};
use std::path::{Path, PathBuf};

/// What to simulate.
#[derive(Debug, Args)]
#[command(mut_arg("model", |arg| arg.value_name("PLAN_OR_MODEL")
    .help("A plan, or a model to plan in memory (any file of a split one). Flags that a plan was not made for plan its \
           program anew; a --context below the planned one is simulated with the plan as it is")))]
pub struct SimulateArgs {
    /// What to plan for.
    #[command(flatten)]
    pub plan: PlanArgs,
    /// How many times slower the CPU is, because others use its cores.
    #[arg(long, value_name = "TIMES", default_value_t = 1.0, value_parser = parse_slowdown)]
    pub cpu_slowdown: f64,
    /// How many times slower the GPU is.
    #[arg(long, value_name = "TIMES", default_value_t = 1.0, value_parser = parse_slowdown)]
    pub gpu_slowdown: f64,
    /// How many times slower the link is, under the plan as compiled.
    #[arg(long, value_name = "TIMES", default_value_t = 1.0, value_parser = parse_slowdown)]
    pub link_slowdown: f64,
    /// Another link, planned for: its rate to the GPU in GB/s (PCIe 3.0 x16 and 4.0 x8: 12; 4.0 x16: 25; 5.0 x16: 50).
    #[arg(long, value_name = "RATE", value_parser = parse_rate)]
    pub link_gb_per_s: Option<f64>,
    /// Write timelines of a round as one self-contained page.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write a timeline in the Chrome trace format (chrome://tracing, Perfetto).
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Which rounds the trace shows.
    #[arg(long, value_enum, default_value = "decode", requires = "trace")]
    pub phase: PhaseArg,
}

/// [`RoundKind`] as it is typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PhaseArg {
    /// Rounds of one token.
    Decode,
    /// Rounds of the largest prefill.
    Prefill,
}

/// Most that a resource may be slowed down.
const MOST_SLOWDOWN: f64 = 100.0;

fn parse_slowdown(text: &str) -> Result<f64, String> {
    let times: f64 = text.parse().map_err(|_| format!("`{text}` is no number of times"))?;
    if (1.0..=MOST_SLOWDOWN).contains(&times) { Ok(times) } else { Err(format!("give 1 to {MOST_SLOWDOWN}")) }
}

fn parse_rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| format!("`{text}` is no rate; give GB/s, such as 12.5"))?;
    if (0.1..=10_000.0).contains(&rate) { Ok(rate) } else { Err("give 0.1 to 10000 GB/s".to_owned()) }
}

/// Simulates and prints.
pub fn run(args: &SimulateArgs) -> Result<(), Failure> {
    let progress = Progress::start();
    let places: Vec<&Path> = [&args.html, &args.trace].into_iter().flatten().map(PathBuf::as_path).collect();
    refuse_places(&places, &inputs(&args.plan))?;
    let anew = Anew { link_gb_per_s: args.link_gb_per_s, grid: grid(args) };
    let subject = subject::open(&args.plan, &anew, &progress)?;
    progress.step("simulating");
    let plan = &subject.plan;
    let simulation = Simulation {
        plan,
        load: load(args, plan),
        conditions: conditions(args, plan),
        context_tokens: context(args, plan),
    };
    let text = simulation.text().map_err(explain)?;
    if let Some(path) = &args.html {
        write_whole(path, simulation.page(&subject.name).map_err(explain)?.as_bytes())?;
    }
    if let Some(path) = &args.trace {
        let kind = if args.phase == PhaseArg::Decode { RoundKind::Decode } else { RoundKind::Prefill };
        let phase = simulation.phase(kind).map_err(explain)?;
        write_whole(path, simulation.trace(phase).map_err(explain)?.as_bytes())?;
    }
    drop(progress);
    print(&text)
}

/// What to do about it.
pub fn explain(error: RoundError) -> Failure {
    match error {
        RoundError::NoTimes => Failure::failed(error).hint("compile without --exact, for a device profile"),
        RoundError::NoPhase { .. } => Failure::failed(error),
    }
}

/// The asked load and none, so that a fresh plan has the schedules that its table would have for both.
fn grid(args: &SimulateArgs) -> Grid {
    let axis = |times: f64| if times > 1.0 { vec![1.0, times as f32] } else { vec![1.0] };
    Grid { cpu: axis(args.cpu_slowdown), gpu: axis(args.gpu_slowdown), link: axis(args.link_slowdown) }
}

fn load(args: &SimulateArgs, plan: &Plan) -> Load {
    let full_team = plan.costs.teams.last().map_or(1, |team| team.threads);
    Load::cell(args.cpu_slowdown, args.gpu_slowdown, args.link_slowdown, full_team)
}

/// Decode with the asked context cached, else in the middle of the workload's generation.
fn context(args: &SimulateArgs, plan: &Plan) -> u32 {
    let options = &plan.origin.options;
    let middle = options.prompt_tokens.saturating_add(options.generate_tokens / 2);
    args.plan.context.unwrap_or(middle).clamp(1, options.context_tokens.max(1))
}

fn conditions(args: &SimulateArgs, plan: &Plan) -> Vec<String> {
    let options = &plan.origin.options;
    let mut list = vec![format!(
        "GPU ceiling {}, planned context {} tokens",
        plan_format::text::bytes_text(options.vram_bytes),
        options.context_tokens
    )];
    if let Some(rate) = args.link_gb_per_s {
        list.push(format!("link of {rate} GB/s, planned for"));
    }
    let slowdowns = [("CPU", args.cpu_slowdown), ("GPU", args.gpu_slowdown), ("link", args.link_slowdown)];
    let slow: Vec<String> = slowdowns
        .iter()
        .filter(|(_, times)| *times > 1.0)
        .map(|(name, times)| format!("{name} {times}x slower"))
        .collect();
    if !slow.is_empty() {
        list.push(format!("load: {}", slow.join(", ")));
    }
    list
}
