//! Where workers must meet. Light steps of one row domain form runs without barriers, since a row is always handled by
//! the same worker; a run ends where other work begins, and before a light step that touches memory which the run has
//! used with other rows. Not here: what steps do (`step.rs`).

use super::shared::Place;
use super::step::{Light, Step, Task};
use plan_format::arena::RoundLimits;
use plan_format::program::Rows;
use std::ops::Range;

/// Clears the barriers that are not needed.
pub fn place_barriers(steps: &mut [Step], limits: RoundLimits) {
    let mut used: Vec<(Rows, Place)> = Vec::new();
    for next in 1..steps.len() {
        let [(before, here), (_, there)] = [access(&steps[next - 1]), access(&steps[next])].map(|a| (a.0, a.1));
        used.extend(here);
        let same_rows = matches!((before, rows_of(&steps[next])), (Some(a), Some(b)) if a == b);
        let clash = there.iter().any(|b| used.iter().any(|a| clashes(*a, *b, limits)));
        if same_rows && !clash {
            steps[next - 1].barrier = false;
        } else {
            used.clear();
        }
    }
}

fn rows_of(step: &Step) -> Option<Rows> {
    access(step).0
}

/// The row domain of a light step (`None` for others, and where rows are mixed) and the places that it touches.
fn access(step: &Step) -> (Option<Rows>, Vec<(Rows, Place)>) {
    let Task::Light { rows, light } = &step.task else { return (None, Vec::new()) };
    let domain = (!matches!(light, Light::Select { .. })).then_some(*rows);
    (domain, light.places().into_iter().map(|place| (*rows, place)).collect())
}

/// Whether two accesses share bytes without being the same rows of the same value.
fn clashes(a: (Rows, Place), b: (Rows, Place), limits: RoundLimits) -> bool {
    let same_value = (a.1.base_bytes, a.1.stride) == (b.1.base_bytes, b.1.stride) && a.0 == b.0;
    let (a, b) = (extent(a, limits), extent(b, limits));
    !same_value && a.start < b.end && b.start < a.end
}

fn extent((rows, place): (Rows, Place), limits: RoundLimits) -> Range<usize> {
    let rows = match rows {
        Rows::Tokens => limits.ubatch_tokens,
        Rows::Outputs => limits.output_tokens,
    };
    place.base_bytes..place.base_bytes + rows as usize * place.stride * 4
}

impl Light {
    /// Places of values that it reads or writes.
    pub fn places(&self) -> Vec<Place> {
        match self {
            Light::Trig { .. } => vec![],
            Light::Embed { out, .. } => vec![*out],
            Light::Select { x, out } | Light::RmsNorm { x, out, .. } | Light::L2Norm { x, out, .. } => vec![*x, *out],
            Light::CopyCols { x, out, .. } | Light::Rope { x, out, .. } | Light::Softcap { x, out, .. } => {
                vec![*x, *out]
            }
            Light::PositionScale { x, out, .. } => vec![*x, *out],
            Light::Add { a, b, out } => vec![*a, *b, *out],
            Light::Glu { gate, up, out, .. } => vec![*gate, *up, *out],
            Light::SigmoidGate { x, gate, out } => vec![*x, *gate, *out],
            Light::StoreKv { k, v, .. } => std::iter::once(*k).chain(*v).collect(),
            Light::Router { logits, ids, weights, .. } => vec![*logits, *ids, *weights],
            Light::ExpertScale { x, weights, out } => vec![*x, *weights, *out],
            Light::ExpertSum { x, weights, out, .. } => [*x, *out].into_iter().chain(*weights).collect(),
            Light::Reduce { partials, out } => partials.iter().copied().chain([*out]).collect(),
            Light::HeldIds { ids, out, .. } => vec![*ids, *out],
            Light::HeldSum { x, weights, ids, out } => [*x, *ids, *out].into_iter().chain(*weights).collect(),
            Light::Prepare { x, .. } => vec![*x],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan_format::OpId;

    const LIMITS: RoundLimits = RoundLimits { ubatch_tokens: 4, output_tokens: 1 };

    fn place(base_bytes: usize, cols: usize) -> Place {
        Place { base_bytes, offset_bytes: base_bytes, ..Place::rows_of(cols) }
    }

    fn step(rows: Rows, light: Light) -> Step {
        Step { op: OpId(0), task: Task::Light { rows, light }, barrier: true }
    }

    fn add(a: Place, b: Place, out: Place) -> Light {
        Light::Add { a, b, out }
    }

    #[track_caller]
    fn check(steps: Vec<Step>, expected: &[bool]) {
        let mut steps = steps;
        place_barriers(&mut steps, LIMITS);
        assert_eq!(steps.iter().map(|step| step.barrier).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn rows_stay_with_their_worker() {
        let (a, b, c) = (place(0, 8), place(128, 8), place(256, 8));
        check(vec![step(Rows::Tokens, add(a, a, b)), step(Rows::Tokens, add(b, a, c))], &[false, true]);
    }

    #[test]
    fn reused_memory_with_other_rows_needs_a_barrier() {
        let (a, b, wide) = (place(0, 8), place(128, 8), place(0, 16));
        check(vec![step(Rows::Tokens, add(a, a, b)), step(Rows::Tokens, add(b, b, wide))], &[true, true]);
    }

    #[test]
    fn choosing_outputs_needs_barriers_on_both_sides() {
        let (a, b, c) = (place(0, 8), place(128, 8), place(256, 8));
        let select = step(Rows::Outputs, Light::Select { x: b, out: c });
        let after = step(Rows::Outputs, add(c, c, place(512, 8)));
        check(vec![step(Rows::Tokens, add(a, a, b)), select, after], &[true, true, true]);
    }
}
