//! The report of a plan as one page: what lies where, why, when, and what it gives. Every figure comes from the plan,
//! from the simulator, or from the study beside it. Next: `view.rs` and the drawings.

use super::claims::Comparison;
use super::html::{Column, Html};
use super::placement::swatch;
use super::regimes::ms;
use super::svg::number;
use super::view::{View, tokens_per_s};
use super::{adaptation, claims_text, contribution, density, memory, palette, placement, regimes, timeline};
use crate::place::held;
use crate::place::hot::{self, HotReport};
use crate::simulate::round::RoundError;
use plan_format::artifact::Plan;
use plan_format::schedule::Phase;
use plan_format::text::bytes_text;

/// What the plan does not say of itself: the machine, and how the plan compares with whole layers.
#[derive(Clone, Copy, Debug)]
pub struct Study<'a> {
    /// Name of the device profile.
    pub machine: &'a str,
    /// Read rate of the DRAM.
    pub read_gb_per_s: f64,
    /// What dividing layers' experts brings; `None` without counts of chosen experts.
    pub hot: Option<&'a HotReport>,
    /// Against the whole-layer plan; `None` without a GPU.
    pub comparison: Option<&'a Comparison>,
}

/// The page.
///
/// # Errors
/// A plan without expected times.
pub fn page(name: &str, plan: &Plan, study: Option<Study<'_>>) -> Result<String, RoundError> {
    let view = View::new(plan)?;
    let mut html = Html::new(&format!("Plan {name}"), &view.title());
    head(&mut html, &view, study);
    placement_section(&mut html, &view);
    density_section(&mut html, &view);
    memory_section(&mut html, plan);
    timeline_sections(&mut html, &view);
    regime_section(&mut html, &view);
    adaptation_section(&mut html, &view);
    contribution_section(&mut html, study);
    Ok(html.finish())
}

fn head(html: &mut Html, view: &View<'_>, study: Option<Study<'_>>) {
    let plan = view.plan;
    let mut tiles = Vec::new();
    for phase in view.phases() {
        let Ok(outcome) = view.outcome(phase) else { continue };
        let speed = tokens_per_s(&view.round(phase), outcome.round_us);
        let name = palette::phase_name(phase);
        tiles.push((
            format!("{} tokens/s", number(speed)),
            format!("{name} at {} cached, {} a round", outcome.context_tokens, ms(outcome.round_us)),
        ));
    }
    let vram_bytes = plan.origin.options.vram_bytes;
    if vram_bytes > 0 {
        let gpu_bytes: u64 = palette::GPU_REGIONS.iter().map(|&(region, ..)| plan.report.bytes(region)).sum();
        tiles.push((bytes_text(gpu_bytes), format!("on the GPU, of {}", bytes_text(vram_bytes))));
    }
    if let Some(optimality) = &plan.report.optimality {
        let gap = 100.0 * (optimality.dp_us / optimality.lp_bound_us - 1.0);
        tiles.push((format!("{gap:.2} %"), "static placement above its lower bound".to_owned()));
        let gain = 100.0 * (optimality.best_seed_us / optimality.chosen_us - 1.0);
        let seed = format!("time of the best split by hand ({})", optimality.best_seed);
        tiles.push((format!("{gain:+.1} %"), seed));
    }
    html.tiles(&tiles);
    let options = &plan.origin.options;
    let machine = study.map_or(String::new(), |study| format!("Device profile {}. ", study.machine));
    html.paragraph(&format!(
        "{machine}Planned for {} tokens of context, prompts of {} and {} generated; rounds of prefill up to {} tokens. \
         All times are predictions of the plan's cost model, played by the discrete-event simulator.",
        options.context_tokens, options.prompt_tokens, options.generate_tokens, options.limits.ubatch_tokens
    ));
    if let Some(hot) = study.and_then(|study| study.hot) {
        html.paragraph(&hot::line(hot));
    }
}

fn placement_section(html: &mut Html, view: &View<'_>) {
    html.section("What lies where");
    html.paragraph("Each cell is an item: the weights of one kind in one layer, with their operators.");
    html.legend(placement::legend(view));
    html.drawing(&placement::svg(view));
}

fn density_section(html: &mut Html, view: &View<'_>) {
    let densities = density::densities(view);
    if densities.is_empty() {
        return;
    }
    html.section("Empirical performance density");
    html.paragraph(
        "How long a decode round spends per MiB of memory, on each processor (the paper's Figure 9). The longer the \
         gap, the more a MiB of GPU memory saves, so the higher an item stands here, the sooner it is resident, unless \
         the switches around it cost more. Experts count with all their memory, but only the chosen ones take time.",
    );
    html.legend([(swatch(palette::CPU), "CPU"), (swatch(palette::GPU), "GPU")]);
    html.drawing(&density::svg(&densities));
}

fn memory_section(html: &mut Html, plan: &Plan) {
    html.section("Memory by region");
    let (gpu, host) = (memory::gpu(plan), memory::host(plan));
    if plan.origin.options.vram_bytes > 0 {
        html.legend(gpu.iter().map(|region| (swatch(region.color), with_size(region))));
        html.drawing(&memory::svg("GPU", &gpu));
    }
    held::text(&plan.placement.held).iter().for_each(|held| html.paragraph(&format!("Decode {held}.")));
    html.legend(host.iter().map(|region| (swatch(region.color), with_size(region))));
    html.drawing(&memory::svg("CPU", &host));
}

fn with_size(region: &memory::Used) -> String {
    format!("{}: {}", region.name, bytes_text(region.bytes))
}

fn timeline_sections(html: &mut Html, view: &View<'_>) {
    html.section("One round");
    html.legend(timeline::legend(view).into_iter().map(|(color, name)| (swatch(color), name)));
    for phase in view.phases() {
        round(html, view, phase);
    }
}

/// The timeline of a phase's round, whole and magnified.
pub(super) fn round(html: &mut Html, view: &View<'_>, phase: Phase) {
    let Ok(outcome) = view.outcome(phase) else { return };
    let Some((played, index)) = view.round(phase).timeline(outcome.schedule) else { return };
    let schedule = &view.plan.schedules[outcome.schedule.index()];
    html.heading(&format!(
        "{} at {} cached: {}",
        palette::phase_name(phase),
        outcome.context_tokens,
        ms(outcome.round_us)
    ));
    let work = [("CPU", outcome.busy.cpu_us), ("GPU", outcome.busy.gpu_us), ("link", outcome.busy.link_us)];
    let busy = |&(name, us): &(&str, f64)| format!("{name} {} ({:.0} %)", ms(us), 100.0 * us / outcome.round_us);
    let list: Vec<String> = work.iter().filter(|(_, us)| *us > 0.0).map(busy).collect();
    html.paragraph(&format!(
        "Schedule S{}: {} CPU threads, {} items streamed. Work: {}.",
        outcome.schedule.0,
        schedule.cpu_threads,
        schedule.promotions.len(),
        list.join(", ")
    ));
    let whole = timeline::Window::whole(view, &played, index);
    html.drawing(&whole.svg());
    html.paragraph(
        "Magnified, from the middle of the round on. Pale: transfers for another round. Hover for names and times.",
    );
    html.drawing(&whole.magnified(22).svg());
}

fn regime_section(html: &mut Html, view: &View<'_>) {
    html.section("Regimes: which schedule when the machine is busy");
    html.paragraph(
        "Each cell is a load: how many times slower the CPU (cores taken by others), the GPU and the link are. S… is \
         the schedule compiled for it, with the latency of a round; the darker, the more is streamed.",
    );
    for phase in view.phases() {
        let cells = regimes::cells(view, phase);
        if cells.is_empty() {
            continue;
        }
        let bucket = regimes::bucket(view, phase).map_or(0, |(_, context_tokens)| context_tokens);
        html.heading(&format!("{} at {bucket} cached", palette::phase_name(phase)));
        html.drawing(&regimes::svg(view, phase, &cells));
        let number = Column::Number;
        let columns = [
            ("schedule", Column::Text),
            ("CPU threads", number),
            ("items streamed", number),
            ("MiB a round", number),
            ("without load", number),
            ("cells", number),
        ];
        let rows = regimes::schedule_rows(view, &cells);
        let plural = if rows.len() == 1 { "" } else { "s" };
        html.folded_table(&format!("{} schedule{plural}", rows.len()), columns, &rows);
    }
}

fn adaptation_section(html: &mut Html, view: &View<'_>) {
    let stretches = adaptation::stretches(view);
    if stretches.is_empty() {
        return;
    }
    html.section("Under changing load");
    html.paragraph("Decode when others take a resource (the paper's Figures 4 and 13); switching costs nothing here.");
    html.legend(adaptation::COLORS.map(|(color, name)| (swatch(color), name)));
    html.drawing(&adaptation::svg(&stretches));
    html.list(&adaptation::sentences(&stretches));
}

fn contribution_section(html: &mut Html, study: Option<Study<'_>>) {
    html.section("What each mechanism contributes");
    let Some((study, comparison)) = study.and_then(|study| Some((study, study.comparison?))) else {
        html.paragraph("Nothing to compare: no GPU is used, or no device profile was at hand.");
        return;
    };
    html.paragraph(&format!(
        "The paper's Figure 15, simulated at equal GPU memory. Base: whole layers ({}), one processor at a time, \
         blocking switches; in prefill host weights are copied before use where that beats the CPU.",
        comparison.base
    ));
    html.paragraph(&claims_text::workload(comparison));
    html.legend(contribution::COLORS.into_iter().zip(contribution::NAMES).map(|(c, name)| (swatch(c), name)));
    html.pair(&contribution::svgs(comparison));
    html.heading("The paper's 3.29× (decode) and 1.94× (prefill) against the floors of this machine");
    for (name, claim) in claims_text::phases(comparison) {
        html.list(&claims_text::sentences(name, claim, study.read_gb_per_s));
    }
}
