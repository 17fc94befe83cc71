//! What people read of a plan that was just made. Every figure comes from the plan or from what led to it.

use crate::compile::{Planned, Reasons};
use crate::measure::{DISTURBANCE, Shape, shapes, unmeasured};
use crate::place::hot;
use crate::place::ilp::{Integer, Proof};
use crate::place::search::{Query, cross_check};
use crate::place::summary;
use crate::profile::{Backend, Profile, ProfileKind};
use plan_format::fingerprint::DeviceFingerprint;
use plan_format::text::bytes_text;
use shared_cli::output::Progress;
use std::fmt::Write;
use std::path::Path;

/// How long the integer program may search. It only confirms what is decided already.
const CROSS_CHECK_S: f64 = 1.0;

/// How a plan was made.
#[derive(Clone, Copy, Debug)]
pub struct Made<'a> {
    /// Where it was written.
    pub out: &'a Path,
    /// This machine, if it was planned for.
    pub here: Option<&'a DeviceFingerprint>,
    /// Points that were measured for it.
    pub fresh_points: usize,
}

/// Where the plan is, what it does, how fast and how good that should be, and how much of that was measured.
pub fn summary(planned: &Planned, made: &Made<'_>, progress: &Progress) -> String {
    let plan = &planned.plan;
    let device = &plan.origin.device;
    let mut text = format!(
        "{}: {} with {} items for {}, context {} tokens\n",
        made.out.display(),
        plan.program.architecture,
        plan.program.items.len(),
        device.gpu.as_ref().map_or(&device.cpu_model, |gpu| &gpu.model),
        plan.origin.options.context_tokens,
    );
    match &planned.reasons {
        Some(reasons) => {
            decided(reasons, progress, &mut text);
            disturbance_lines(&reasons.profile, made, &mut text);
            times_line(reasons, &shapes(&plan.program), made.fresh_points, &mut text);
        }
        None => {
            for used in plan.report.memory.iter().filter(|used| used.bytes > 0) {
                let _ = writeln!(text, "  {:<13}{:>11}", format!("{:?}", used.region), bytes_text(used.bytes));
            }
        }
    }
    text
}

fn decided(reasons: &Reasons, progress: &Progress, text: &mut String) {
    let query = reasons.query();
    text.push_str(&summary::summary(&query, &reasons.solved.decision, &reasons.solved.parts));
    if query.budget.vram_bytes > 0 {
        progress.step("comparing with the integer program");
        integer_line(&query, reasons, text);
    }
    text.push_str(&reasons.hot.as_ref().map(hot::line).unwrap_or_default());
    let schedules = reasons.solved.parts.schedules.len();
    let cells = reasons.solved.parts.regimes.cells.len();
    let _ = writeln!(text, "{schedules} schedules for {cells} cells of phase, context and load");
}

/// What disturbed the profile, and what to do about it where that can be done.
fn disturbance_lines(profile: &Profile, made: &Made<'_>, text: &mut String) {
    let advice = if made.here.is_some() { ": `ats-plan profile` measures again" } else { " when it was measured" };
    for note in profile.provenance.assumptions.iter().filter(|note| note.starts_with(DISTURBANCE)) {
        let _ = writeln!(text, "{note}{advice}");
    }
}

/// Where the times come from: the model's own matrices, or curves of typical ones.
fn times_line(reasons: &Reasons, shapes: &[Shape], fresh_points: usize, text: &mut String) {
    let profile = &reasons.profile;
    if profile.provenance.kind == ProfileKind::Synthetic {
        let _ = writeln!(text, "times: calculated for the simulated machine {}; nothing was measured", profile.name);
        return;
    }
    let measured = |backend| shapes.len() - unmeasured(profile, backend, shapes).len();
    let _ = write!(text, "times: {} of {} matrix shapes measured on the CPU", measured(Backend::Cpu), shapes.len());
    if reasons.budget.vram_bytes > 0 {
        let _ = write!(text, ", {} on the GPU", measured(Backend::Gpu));
    }
    if fresh_points > 0 {
        let _ = write!(text, " ({fresh_points} figures just now)");
    }
    text.push_str("; all else interpolated from the machine's curves\n");
}

/// What the integer program on the true graph found, and how far that is proven.
fn integer_line(query: &Query<'_>, reasons: &Reasons, text: &mut String) {
    let decision = &reasons.solved.decision;
    let (Ok(found), Some(bound_us)) = (cross_check(query, decision, CROSS_CHECK_S), decision.lp_bound_us) else {
        return;
    };
    let Integer { total_ns, proof, .. } = found;
    let total_us = total_ns as f64 / 1000.0;
    let how = match proof {
        Proof::Optimal => "proven optimal".to_owned(),
        Proof::LimitReached => format!("stopped after {CROSS_CHECK_S} s"),
    };
    let gap = 100.0 * (total_us / bound_us - 1.0);
    let _ = writeln!(text, "integer program on the graph: {:.3} s, {how}, {gap:.2} % above the bound", total_us / 1e6);
}
