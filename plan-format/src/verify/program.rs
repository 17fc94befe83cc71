//! Invariants of a program's tables:
//!
//! 1. Every id lies inside the table it indexes.
//! 2. Tensors have a size, dimensions are 1 or more and fit 32 bits; weights name tensors, parts cover their axis in
//!    order without gap or overlap. Experts of a divided stack: `divided.rs`.
//! 3. Values have 1 to [`MAX_COLS`] columns; states and rotary tables have sane sizes and finite figures.
//! 4. Items cover the operators in order without gap or overlap, and operators name the item that they lie in.
//! 5. Each large weight is placed by exactly one item, small ones by none; an item places what its operators read (a
//!    tied head may be placed by either reader). Each state belongs to the one item whose operators use it, and keys
//!    and values are stored once, before they are read.
//! 6. Single assignment: every column is written once, and read only after that.
//! 7. Logits are an F32 value `[O, vocab]`.
//!
//! Operators against their operands: `shapes.rs`.

use super::{Problem, divided, ensure, invalid, shapes};
use crate::error::Result;
use crate::ids::{StateId, ValueId, WeightId};
use crate::operands::{Columns, Operand, StateAccess};
use crate::program::{
    Elem, Item, OpKind, PartAxis, Program, Rope, RopeScaling, Rows, StateKind, Tensor, Weight, WeightRole,
};

/// Most columns of a value: 2²⁴, which bounds what a damaged plan can make a reader do.
pub const MAX_COLS: u32 = 1 << 24;
/// Most runs of a strided copy.
pub const MAX_GROUPS: u32 = 1 << 16;

/// Checks every invariant of a program.
///
/// # Errors
/// The first one that does not hold, with its field.
pub fn verify_program(program: &Program) -> Result<()> {
    each("tensors", &program.tensors, tensor)?;
    each("weights", &program.weights, |w| weight(program, w))?;
    each("values", &program.values, |v| {
        ensure!((1..=MAX_COLS).contains(&v.cols), "{} has {} columns; 1 to {MAX_COLS} are accepted", v.name, v.cols);
        Ok(())
    })?;
    each("states", &program.states, |s| state(&s.kind))?;
    each("ropes", &program.ropes, |r| rope(program, r))?;
    for (i, op) in program.ops.iter().enumerate() {
        let at = |problem| invalid("program", format!("ops[{i}] ({})", op.kind.name()), problem);
        ids_in_range(program, &op.kind).map_err(at)?;
        shapes::check(program, &op.kind).map_err(at)?;
    }
    items(program)?;
    placed_weights(program)?;
    states_in_order(program)?;
    single_assignment(program)?;
    divided::experts(program)?;
    head(program).map_err(|problem| invalid("program", "logits".to_owned(), problem))
}

fn each<T>(table: &str, entries: &[T], check: impl Fn(&T) -> Result<(), Problem>) -> Result<()> {
    for (i, entry) in entries.iter().enumerate() {
        check(entry).map_err(|problem| invalid("program", format!("{table}[{i}]"), problem))?;
    }
    Ok(())
}

fn tensor(t: &Tensor) -> Result<(), Problem> {
    ensure!(
        t.dims.iter().all(|&d| (1..=u64::from(u32::MAX)).contains(&d)),
        "{} has dimensions {:?}; 1 to 2^32-1 are accepted",
        t.name,
        t.dims
    );
    ensure!(t.size_bytes > 0, "{} has no data", t.name);
    ensure!(t.offset_bytes.checked_add(t.size_bytes).is_some(), "{} ends beyond 2^64", t.name);
    let (block_elems, block_bytes) = gguf::GgmlType::from_id(t.ggml_type)
        .block()
        .ok_or_else(|| format!("{} has the type {}", t.name, t.ggml_type))?;
    let elems = t.dims.iter().try_fold(1_u64, |product, &d| product.checked_mul(d));
    let bytes = elems.and_then(|n| (n / u64::from(block_elems)).checked_mul(u64::from(block_bytes)));
    ensure!(t.dims[0].is_multiple_of(u64::from(block_elems)), "{} has rows of {} values", t.name, t.dims[0]);
    ensure!(bytes == Some(t.size_bytes), "{} has {} bytes; {bytes:?} are expected", t.name, t.size_bytes);
    Ok(())
}

fn weight(program: &Program, w: &Weight) -> Result<(), Problem> {
    let tensor = program.tensors.get(w.tensor.index());
    let tensor = tensor.ok_or_else(|| format!("tensor {} of {}", w.tensor.0, program.tensors.len()))?;
    let length = match w.axis {
        PartAxis::Rows => tensor.rows(),
        PartAxis::Cols => tensor.cols(),
        PartAxis::Experts => return divided::weight(w, tensor),
    };
    let mut covered = 0;
    for (i, part) in w.parts.iter().enumerate() {
        ensure!(part.begin == covered, "part {i} of {} begins at {}, expected {covered}", tensor.name, part.begin);
        ensure!(part.end > part.begin, "part {i} of {} is empty", tensor.name);
        covered = part.end;
    }
    ensure!(u64::from(covered) == length, "the parts of {} end at {covered} of {length}", tensor.name);
    let whole_only = matches!(w.role, WeightRole::Small | WeightRole::EmbeddingRows);
    ensure!(!whole_only || w.parts.len() == 1, "{} is read as {:?} and cannot be divided", tensor.name, w.role);
    Ok(())
}

fn state(kind: &StateKind) -> Result<(), Problem> {
    let cols = |name: &str, n: u32| match n {
        1..=MAX_COLS => Ok(()),
        _ => Err(format!("{name} is {n}; 1 to {MAX_COLS} are accepted")),
    };
    match *kind {
        StateKind::Kv { k_cols, v_cols, window_tokens } => {
            cols("k_cols", k_cols)?;
            ensure!(v_cols <= MAX_COLS, "v_cols is {v_cols}; 0 to {MAX_COLS} are accepted");
            ensure!(window_tokens != Some(0), "window_tokens is 0");
        }
        StateKind::Conv { channels, taps } => {
            cols("channels", channels)?;
            ensure!((2..=64).contains(&taps), "taps is {taps}; 2 to 64 are accepted");
        }
        StateKind::Recurrent { value_heads, head_cols } => {
            cols("value_heads", value_heads)?;
            cols("head_cols", head_cols)?;
            let elems = u64::from(value_heads) * u64::from(head_cols) * u64::from(head_cols);
            ensure!(elems <= u64::from(u32::MAX), "value_heads * head_cols^2 is {elems}; at most 2^32-1 is accepted");
        }
    }
    Ok(())
}

fn rope(program: &Program, r: &Rope) -> Result<(), Problem> {
    let (n_rot, base) = (r.n_rot, r.base);
    ensure!(n_rot >= 2 && n_rot % 2 == 0 && n_rot <= 65536, "n_rot is {n_rot}; an even number from 2 is accepted");
    ensure!(base.is_finite() && base > 1.0, "base is {base}; a number over 1 is accepted");
    ensure!(r.magnitude.is_finite() && r.magnitude > 0.0, "magnitude is {}", r.magnitude);
    let factor = match r.scaling {
        RopeScaling::None => 1.0,
        RopeScaling::Linear { factor } => factor,
        RopeScaling::Yarn { factor, original_context_tokens } => {
            ensure!(original_context_tokens > 0, "original_context_tokens is 0");
            factor
        }
    };
    ensure!(factor.is_finite() && factor > 0.0, "factor is {factor}; a positive number is accepted");
    match r.factors {
        Some(factors) => shapes::small(program, factors, [u64::from(n_rot / 2), 1]).map(drop),
        None => Ok(()),
    }
}

fn ids_in_range(program: &Program, op: &OpKind) -> Result<(), Problem> {
    for operand in op.operands() {
        let (kind, id, len) = match operand {
            Operand::Read(c) | Operand::Write(c) => ("value", c.value.0, program.values.len()),
            Operand::Weight(id) => ("weight", id.0, program.weights.len()),
            Operand::State(id, _) => ("state", id.0, program.states.len()),
            Operand::Rope(id) => ("rope", id.0, program.ropes.len()),
        };
        ensure!((id as usize) < len, "{kind} {id} of {len}");
        if let Operand::Read(c) | Operand::Write(c) = operand {
            columns_in_range(c, program.values[c.value.index()].cols)?;
        }
    }
    Ok(())
}

fn columns_in_range(c: Columns, cols: u32) -> Result<(), Problem> {
    ensure!(c.width > 0 && c.groups > 0, "an operand of no columns of value {}", c.value.0);
    ensure!(c.groups <= MAX_GROUPS, "{} groups; at most {MAX_GROUPS} are accepted", c.groups);
    let last = u64::from(c.stride) * u64::from(c.groups - 1) + u64::from(c.first_col) + u64::from(c.width);
    ensure!(last <= u64::from(cols), "columns up to {last} of value {} which has {cols}", c.value.0);
    Ok(())
}

fn items(program: &Program) -> Result<()> {
    let mut next_op = 0_usize;
    for (i, item) in program.items.iter().enumerate() {
        let at = |problem| invalid("program", format!("items[{i}] ({})", item.name), problem);
        next_op = item_ops(program, i, item, next_op).map_err(at)?;
    }
    if next_op != program.ops.len() {
        let problem = format!("the items end at operator {next_op} of {}", program.ops.len());
        return Err(invalid("program", "items".to_owned(), problem));
    }
    Ok(())
}

fn item_ops(program: &Program, index: usize, item: &Item, next_op: usize) -> Result<usize, Problem> {
    ensure!(item.first_op as usize == next_op, "begins at operator {}, expected {next_op}", item.first_op);
    ensure!(item.op_count > 0, "has no operators");
    let end = next_op + item.op_count as usize;
    let ops = program.ops.get(next_op..end).ok_or_else(|| format!("ends at {end} of {}", program.ops.len()))?;
    for (i, op) in ops.iter().enumerate() {
        ensure!(op.item.index() == index, "operator {} names item {}", next_op + i, op.item.0);
    }
    for &weight in &item.weights {
        let reads = ops.iter().any(|op| op.kind.weights().any(|w| w == weight));
        ensure!(reads, "places weight {}, which none of its operators reads", weight.0);
    }
    for &state in &item.states {
        let uses = ops.iter().any(|op| op.kind.states().any(|(s, _)| s == state));
        ensure!(uses, "holds state {}, which none of its operators uses", state.0);
    }
    Ok(end)
}

fn placed_weights(program: &Program) -> Result<()> {
    let mut placed = vec![0_u32; program.weights.len()];
    let mut held = vec![0_u32; program.states.len()];
    for item in &program.items {
        // `item_ops` found each of these in an operator, so they are in range.
        item.weights.iter().for_each(|w| placed[w.index()] += 1);
        item.states.iter().for_each(|s| held[s.index()] += 1);
    }
    for (i, (weight, count)) in program.weights.iter().zip(placed).enumerate() {
        let expected = u32::from(weight.role != WeightRole::Small);
        let problem = || format!("is placed by {count} items, expected {expected} ({:?})", weight.role);
        if count != expected {
            return Err(invalid("program", format!("weights[{i}]"), problem()));
        }
    }
    match held.iter().position(|&count| count != 1) {
        Some(i) => Err(invalid("program", format!("states[{i}]"), format!("is held by {} items, expected 1", held[i]))),
        None => Ok(()),
    }
}

fn states_in_order(program: &Program) -> Result<()> {
    let mut writes = vec![0_u32; program.states.len()];
    for (i, op) in program.ops.iter().enumerate() {
        let at = |problem| invalid("program", format!("ops[{i}] ({})", op.kind.name()), problem);
        for (state, access) in op.kind.states() {
            let holder = program.items[op.item.index()].states.contains(&state);
            state_use(state, access, &mut writes[state.index()], holder).map_err(at)?;
        }
    }
    match writes.iter().position(|&count| count != 1) {
        Some(i) => Err(invalid("program", format!("states[{i}]"), format!("is written {} times a round", writes[i]))),
        None => Ok(()),
    }
}

fn state_use(state: StateId, access: StateAccess, writes: &mut u32, holder: bool) -> Result<(), Problem> {
    ensure!(holder, "uses state {}, which its item does not hold", state.0);
    match access {
        StateAccess::Read => ensure!(*writes > 0, "reads state {} before this round's rows are in it", state.0),
        StateAccess::Write | StateAccess::Update => *writes = writes.saturating_add(1),
    }
    Ok(())
}

fn single_assignment(program: &Program) -> Result<()> {
    let mut written: Vec<Ranges> = vec![Ranges::default(); program.values.len()];
    for (i, op) in program.ops.iter().enumerate() {
        let at = |problem| invalid("program", format!("ops[{i}] ({})", op.kind.name()), problem);
        for operand in op.kind.operands() {
            match operand {
                Operand::Read(c) => read(&written[c.value.index()], c, program).map_err(at)?,
                Operand::Write(c) => write(&mut written[c.value.index()], c, program).map_err(at)?,
                _ => {}
            }
        }
    }
    for (i, value) in program.values.iter().enumerate() {
        if !written[i].contains(0, value.cols) {
            let problem = format!("not every column of {} is written", value.name);
            return Err(invalid("program", format!("values[{i}]"), problem));
        }
    }
    Ok(())
}

fn read(written: &Ranges, c: Columns, program: &Program) -> Result<(), Problem> {
    for group in 0..c.groups {
        let first = c.first_col + group * c.stride;
        let name = || &program.values[c.value.index()].name;
        ensure!(written.contains(first, first + c.width), "reads columns of {} before they are written", name());
    }
    Ok(())
}

fn write(written: &mut Ranges, c: Columns, program: &Program) -> Result<(), Problem> {
    for group in 0..c.groups {
        let first = c.first_col + group * c.stride;
        let name = || &program.values[c.value.index()].name;
        ensure!(written.insert(first, first + c.width), "writes columns of {} a second time", name());
    }
    Ok(())
}

/// A set of columns as sorted, disjoint, non-adjacent half-open ranges.
#[derive(Clone, Default)]
struct Ranges(std::collections::BTreeMap<u32, u32>);

impl Ranges {
    fn contains(&self, begin: u32, end: u32) -> bool {
        self.0.range(..=begin).next_back().is_some_and(|(_, &e)| end <= e)
    }

    /// Adds a range; false if it meets one that is there.
    fn insert(&mut self, begin: u32, end: u32) -> bool {
        let before = self.0.range(..end).next_back().map(|(&b, &e)| (b, e));
        if before.is_some_and(|(_, e)| e > begin) {
            return false;
        }
        let mut joined = (begin, end);
        if let Some((b, _)) = before.filter(|&(_, e)| e == begin) {
            joined.0 = b;
        }
        if let Some(e) = self.0.remove(&end) {
            joined.1 = e;
        }
        self.0.insert(joined.0, joined.1);
        true
    }
}

fn head(program: &Program) -> Result<(), Problem> {
    let ValueId(id) = program.logits;
    let value = program.values.get(id as usize).ok_or_else(|| format!("value {id} of {}", program.values.len()))?;
    let right = value.rows == Rows::Outputs && value.cols == program.vocab && value.elem == Elem::F32;
    ensure!(right, "{} is not [O, {}] of F32", value.name, program.vocab);
    ensure!(program.context_tokens > 0, "the model's context is 0 tokens");
    Ok(())
}

/// The weight and its tensor, both checked to exist.
pub(super) fn weight_tensor(program: &Program, id: WeightId) -> Result<(&Weight, &Tensor), Problem> {
    let weight =
        program.weights.get(id.index()).ok_or_else(|| format!("weight {} of {}", id.0, program.weights.len()))?;
    let tensor = program.tensors.get(weight.tensor.index());
    Ok((weight, tensor.ok_or_else(|| format!("tensor {} of {}", weight.tensor.0, program.tensors.len()))?))
}
