//! Looking for values that are not finite, by operator: a diagnosis after a round whose logits are not. Next: `run.rs`.

use super::run::Context;
use super::shared::Place;
use kernels::cpu::ops::View;
use plan_format::arena::Arena;
use plan_format::program::{self, Program};

/// A result of an operator.
pub struct Watched {
    name: String,
    rows: program::Rows,
    place: Place,
}

/// The F32 values that an operator reads or writes, in this order: what it reads may have come from a GPU.
pub fn watched(program: &Program, arena: &Arena, op: &program::Op) -> Vec<Watched> {
    let written = op.kind.reads().chain(op.kind.writes()).map(|columns| columns.value);
    let floats = written.filter(|value| program.values[value.index()].elem == program::Elem::F32);
    let watch = |value: plan_format::ValueId| {
        let program::Value { name, rows, cols, .. } = &program.values[value.index()];
        let base_bytes = arena.offsets_bytes[value.index()] as usize;
        let place = Place { base_bytes, offset_bytes: base_bytes, ..Place::rows_of(*cols as usize) };
        Watched { name: name.clone(), rows: *rows, place }
    };
    floats.map(watch).collect()
}

impl Context<'_> {
    /// The first of these results that is not finite.
    pub fn non_finite(&self, results: &[Watched]) -> Option<String> {
        let bad = |result: &&Watched| {
            let rows = 0..self.total(result.rows);
            // SAFETY: called between barriers, when no one writes.
            let view: View = unsafe { self.memory.values.view(result.place, rows.clone()) };
            rows.into_iter().any(|row| view.row(row).iter().any(|value| !value.is_finite()))
        };
        results.iter().find(bad).map(|result| result.name.clone())
    }
}
