//! A plan as `ats-plan inspect` prints it: what it is for, what lies where, which schedules there are.
//! Deterministic: the same plan gives the same text.

use super::{line, program_text};
use crate::artifact::{Options, Plan};
use crate::fingerprint::hex;
use crate::program::Item;
use crate::schedule::{Home, HostMemory, Layout, Phase, Schedule};
use crate::sizes::CacheSpan;
use crate::workload;

/// How much [`plan_text`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// What a person asks first.
    Summary,
    /// Every operator too.
    Program,
}

/// The whole plan.
pub fn plan_text(plan: &Plan, detail: Detail) -> String {
    let mut text = String::new();
    origin(&mut text, plan);
    report(&mut text, plan);
    items(&mut text, plan);
    schedules(&mut text, plan);
    if detail == Detail::Program {
        text.push('\n');
        text.push_str(&program_text(&plan.program));
    }
    text
}

/// Bytes in the unit that fits: `1.50 GiB`.
pub fn bytes_text(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.2} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

fn ms_text(us: f64) -> String {
    format!("{:.3} ms", us / 1000.0)
}

fn origin(text: &mut String, plan: &Plan) {
    let origin = &plan.origin;
    let files = origin.model.file_sizes_bytes.len();
    let size = bytes_text(origin.model.file_sizes_bytes.iter().sum());
    line(text, format_args!("plan      made by ats-plan {}", origin.tool_version));
    line(
        text,
        format_args!("model     {} ({}), {size} in {files} file(s)", plan.program.architecture, origin.model.id()),
    );
    if let Some(hash) = plan.full_hash {
        line(text, format_args!("bytes     of the whole model, BLAKE3 {}", hex(&hash)));
    }
    let device = &origin.device;
    line(text, format_args!("cpu       {}, {} cores", device.cpu_model, device.cpu_cores));
    match &device.gpu {
        Some(gpu) => {
            let memory = bytes_text(gpu.memory_bytes);
            line(text, format_args!("gpu       {}, {memory}, {}, driver {}", gpu.model, gpu.link, gpu.driver));
        }
        None => line(text, format_args!("gpu       none used")),
    }
    let Options { vram_bytes, ram_bytes, context_tokens, limits, prompt_tokens, generate_tokens, kv_type } =
        origin.options;
    let ram = ram_bytes.map_or("unlimited".to_owned(), bytes_text);
    line(text, format_args!("budget    {} on the GPU, CPU memory {ram}", bytes_text(vram_bytes)));
    line(text, format_args!("context   {context_tokens} tokens, {kv_type:?} cache"));
    let (ubatch, outputs) = (limits.ubatch_tokens, limits.output_tokens);
    line(text, format_args!("rounds    up to {ubatch} tokens, logits of up to {outputs}"));
    line(text, format_args!("workload  {prompt_tokens} tokens read, {generate_tokens} written"));
}

fn report(text: &mut String, plan: &Plan) {
    line(text, format_args!("\nmemory"));
    for used in &plan.report.memory {
        line(text, format_args!("  {:<12} {:>11}", format!("{:?}", used.region), bytes_text(used.bytes)));
    }
    for p in &plan.report.predictions {
        let ms = [p.round_us, p.floor_us, p.serial_floor_us].map(|us| format!("{:.3}", us / 1000.0));
        let at = format!("{} at {}", phase_text(p.phase), p.context_tokens);
        line(
            text,
            format_args!("expected  {at}: {} ms (memory floor {}, one processor at a time {})", ms[0], ms[1], ms[2]),
        );
    }
    if let Some(o) = &plan.report.optimality {
        let (chosen, seed) = (ms_text(o.chosen_us), ms_text(o.best_seed_us));
        line(
            text,
            format_args!(
                "placement {chosen} for the workload, transfers and all; best by hand, {}: {seed}",
                o.best_seed
            ),
        );
        let (dp, bound) = (ms_text(o.dp_us), ms_text(o.lp_bound_us));
        line(
            text,
            format_args!(
                "          one processor at a time, without transfers: dynamic program {dp}, none below {bound}"
            ),
        );
    }
}

fn items(text: &mut String, plan: &Plan) {
    let options = &plan.origin.options;
    let span = CacheSpan { context_tokens: options.context_tokens, ubatch_tokens: options.limits.ubatch_tokens };
    line(text, format_args!("\nitems ({})", plan.program.items.len()));
    for (item, home) in plan.program.items.iter().zip(&plan.placement.homes) {
        let weights = plan.program.item_weight_bytes(item);
        let states = plan.program.item_state_bytes(item, span, options.kv_type);
        let bytes = bytes_text(weights + states);
        let (kind, home, layout) = (kind_text(item), home_text(*home), layout_text(plan, item));
        let row = format!("  {:<28} {kind:<14} {home:<8} {bytes:>11} {layout}", item.name);
        line(text, format_args!("{}", row.trim_end()));
    }
}

fn kind_text(item: &Item) -> String {
    format!("{:?}", item.kind)
}

fn home_text(home: Home) -> &'static str {
    match home {
        Home::Resident => "gpu",
        Home::Host(HostMemory::Pinned) => "pinned",
        Home::Host(HostMemory::Pageable) => "pageable",
        Home::Host(HostMemory::Mapped) => "mapped",
    }
}

/// Layouts of an item's weights, each once.
fn layout_text(plan: &Plan, item: &Item) -> String {
    let mut names: Vec<&str> = Vec::new();
    for layout in item.weights.iter().flat_map(|w| &plan.layouts[w.index()]) {
        let name = match layout {
            Layout::Gguf => "as in file",
            Layout::CpuPanel16 => "cpu panels",
            Layout::GpuTiled => "gpu tiles",
        };
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.join(", ")
}

/// Most names of streamed items in one line.
const MOST_STREAMED: usize = 8;

fn streamed_text(names: &[&str]) -> String {
    match names {
        [] => "nothing streamed".to_owned(),
        _ if names.len() <= MOST_STREAMED => names.join(" "),
        _ => format!("{} streamed: {}", names.len(), names_text(names)),
    }
}

/// All names, or the first and the last where there are many.
fn names_text(names: &[&str]) -> String {
    match names {
        [first @ .., last] if names.len() > MOST_STREAMED => {
            format!("{} … {last}", first[..MOST_STREAMED / 2].join(" "))
        }
        _ => names.join(" "),
    }
}

fn slots_text(plan: &Plan) -> String {
    let Some(staging) = plan.slots.staging() else { return "none".to_owned() };
    let (count, largest) = (plan.slots.slots.len(), plan.slots.slots.iter().map(|slot| slot.size_bytes).max());
    let [largest, staging] = [largest.unwrap_or(0), staging.size_bytes].map(bytes_text);
    format!("{count} of up to {largest}, {staging} of staging behind them")
}

fn phase_text(phase: Phase) -> String {
    match phase {
        Phase::Decode => "decode".to_owned(),
        Phase::Verify { tokens } => format!("verify {tokens}"),
        Phase::Prefill { ubatch_tokens } => format!("prefill {ubatch_tokens}"),
    }
}

/// Which rounds a schedule is kept for.
fn uses_text(plan: &Plan, id: usize) -> String {
    let phase = plan.schedules[id].phase;
    let cells = plan.regimes.cells.iter().filter(|cell| cell.index() == id).count();
    let is_own = workload::chosen(plan, phase).is_some_and(|chosen| chosen.schedule.index() == id);
    match (cells, is_own) {
        (0, true) => "the workload's own context".to_owned(),
        // Loads that are no cells: the runtime may come to know of them.
        (0, false) => "a CPU that is slower for every team".to_owned(),
        (cells, true) => format!("{cells} regimes and the workload's own context"),
        (cells, false) => format!("{cells} regimes"),
    }
}

fn schedules(text: &mut String, plan: &Plan) {
    line(text, format_args!("\nschedules ({})", plan.schedules.len()));
    for (id, schedule) in plan.schedules.iter().enumerate() {
        let Schedule { phase, cpu_threads, promotions, predicted_us } = schedule;
        let predicted = if *predicted_us > 0.0 { format!(", {:.3} ms", predicted_us / 1000.0) } else { String::new() };
        let uses = uses_text(plan, id);
        let streamed: Vec<&str> = promotions.iter().map(|p| plan.program.items[p.item.index()].name.as_str()).collect();
        let phase = phase_text(*phase);
        let promoted = streamed_text(&streamed);
        line(text, format_args!("  {id:>3} {phase}: {cpu_threads} threads{predicted}, for {uses}: {promoted}"));
    }
    line(text, format_args!("slots     {}", slots_text(plan)));
    let held = &plan.placement.held;
    if !held.items.is_empty() {
        let (count, size, ms) = (held.items.len(), bytes_text(held.total_bytes()), held.load_us / 1000.0);
        let names: Vec<&str> = held.items.iter().map(|h| plan.program.items[h.item.index()].name.as_str()).collect();
        let which = names_text(&names);
        line(text, format_args!("held      {count} items, {size}, where only prefill needs the memory: {which}"));
        line(text, format_args!("          brought in {ms:.1} ms before the first decode round after a prompt"));
    }
    let map = &plan.regimes;
    let axes = format!(
        "contexts {:?} x cpu {:?} x gpu {:?} x link {:?}",
        map.context_tokens, map.cpu_slowdown, map.gpu_slowdown, map.link_slowdown
    );
    line(text, format_args!("regimes   {} cells: {axes}", map.cells.len()));
    let code: usize = plan.code.iter().map(|code| code.bytes.len()).sum();
    line(text, format_args!("code      {} modules, {}", plan.code.len(), bytes_text(code as u64)));
}
