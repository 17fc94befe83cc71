//! `ats-plan explain ITEM MODEL`: why an item lies where it lies, and what would change that. Decides again with the
//! same flags as `compile`, since a plan keeps what was decided and not why.

use super::compile::decided;
use super::options::PlanArgs;
use crate::compile::Reasons;
use crate::place::explain::{Explanation, Flip, InSchedule, RoundFigures, explain};
use crate::place::search::size_text;
use clap::Args;
use plan_format::schedule::{Home, HostMemory};
use plan_format::text::bytes_text;
use shared_cli::Failure;
use shared_cli::output::{Progress, print};
use std::fmt::Write;

/// What to explain.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// The item, as `inspect` names it: blk.3.ffn_down.
    pub item: String,
    /// What to plan for; give the flags that the plan was compiled with.
    #[command(flatten)]
    pub plan: PlanArgs,
}

/// Decides and explains.
pub fn run(args: &ExplainArgs) -> Result<(), Failure> {
    let progress = Progress::start();
    let planned = decided(&args.plan, &progress)?.planned;
    drop(progress);
    // `decided` has reasons: only exact plans have none.
    let Some(reasons) = planned.reasons else { return Ok(()) };
    let query = reasons.query();
    let items = &query.problem.items;
    let index = items.iter().position(|item| item.name == args.item).ok_or_else(|| unknown(&args.item, &reasons))?;
    let found = explain(&query, &reasons.solved.decision, index).ok_or_else(|| unknown(&args.item, &reasons))?;
    print(&text(&found, &reasons))
}

/// Names that are near what was typed.
const MOST_NAMES: usize = 6;

fn unknown(typed: &str, reasons: &Reasons) -> Failure {
    let names = || reasons.solved.problem.items.iter().map(|item| item.name.as_str());
    let part = typed.rsplit('.').next().unwrap_or(typed);
    let mut near: Vec<&str> = names().filter(|name| name.contains(part)).take(MOST_NAMES).collect();
    if near.is_empty() {
        near = names().take(MOST_NAMES).collect();
    }
    let hint = format!("items are named as in `ats-plan inspect`, such as {}", near.join(", "));
    Failure::usage(anyhow::anyhow!("the model has no item `{typed}`")).hint(hint)
}

fn text(found: &Explanation, reasons: &Reasons) -> String {
    let mut text = format!("{}: {} in {}\n", found.name, bytes_text(found.bytes), home_text(found.home));
    let limits = reasons.solved.parts.limits;
    let _ = writeln!(text, "  {:<34}{:>12}{:>16}", "", "decode", format!("prefill of {}", limits.ubatch_tokens));
    let mut row = |name: &str, of: &dyn Fn(&RoundFigures) -> String| {
        let _ = writeln!(text, "  {name:<34}{:>12}{:>16}", of(&found.decode), of(&found.prefill));
    };
    row("time on the CPU (t_c)", &|f| us_text(f.cpu_us));
    row("time on the GPU (t_g)", &|f| us_text(f.gpu_us));
    row("copy of its weights to the GPU", &|f| if f.stream_us > 0.0 { us_text(f.stream_us) } else { "-".into() });
    row("switch: its output to the GPU", &|f| us_text(f.to_gpu_us));
    row("switch: its output to the CPU", &|f| us_text(f.to_cpu_us));
    row("density k on the CPU, us per MiB", &|f| format!("{:.1}", f.cpu_us_per_mib));
    row("density k on the GPU, us per MiB", &|f| format!("{:.1}", f.gpu_us_per_mib));
    row("without load it is", &|f| use_text(f.use_in_schedule).to_owned());
    let demand = &reasons.solved.problem.demand;
    let _ = writeln!(
        text,
        "  residency saves {} of a workload of {} tokens read and {} written, switches left out",
        us_text(found.saved_us),
        demand.prompt_tokens,
        demand.generate_tokens
    );
    let _ = writeln!(text, "  {}", flip_text(found));
    text
}

fn us_text(us: f64) -> String {
    if us.abs() >= 1000.0 { format!("{:.2} ms", us / 1000.0) } else { format!("{us:.1} us") }
}

fn home_text(home: Home) -> &'static str {
    match home {
        Home::Resident => "GPU memory",
        Home::Host(HostMemory::Pinned) => "pinned CPU memory",
        Home::Host(HostMemory::Pageable) => "CPU memory",
        Home::Host(HostMemory::Mapped) => "the model file's pages",
    }
}

fn use_text(used: InSchedule) -> &'static str {
    match used {
        InSchedule::Resident => "resident",
        InSchedule::Held => "kept between prompts",
        InSchedule::Promoted => "streamed",
        InSchedule::Host => "on the CPU",
    }
}

fn flip_text(found: &Explanation) -> String {
    match found.flip {
        Flip::ResidentFrom { vram_bytes } => {
            format!("with --vram {} and more the dynamic program makes it resident", size_text(vram_bytes))
        }
        Flip::HostBelow { vram_bytes } => format!(
            "with --vram {} and less the dynamic program leaves it on the host; so it would, were the GPU {:.1} times \
             slower",
            size_text(vram_bytes),
            found.gpu_slowdown_to_break_even
        ),
        Flip::Never if found.home == Home::Resident => "no ceiling that holds the rest puts it on the host".to_owned(),
        Flip::Never => "no ceiling makes it resident".to_owned(),
    }
}
