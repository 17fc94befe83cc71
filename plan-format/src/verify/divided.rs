//! Invariants of stacks whose experts are divided:
//!
//! 1. A weight of such a stack holds some of its tensor's experts, in ascending ranges; it is a stack or its biases.
//! 2. Each expert of the tensor is held by exactly one weight.
//! 3. A product with divided weights holds the same experts in all of them and in their biases, and takes its ids from
//!    a [`OpKind::HeldIds`] of these experts; other products take none from such an operator.
//! 4. A [`OpKind::HeldSum`] takes its ids from a [`OpKind::HeldIds`]; both have whole values of their own.

use super::{Problem, ensure, invalid};
use crate::error::Result;
use crate::ids::ValueId;
use crate::program::{OpKind, Part, PartAxis, Program, Tensor, Weight, WeightRole};
use std::collections::BTreeMap;

/// Checks a weight that holds some experts of its tensor.
pub(super) fn weight(w: &Weight, tensor: &Tensor) -> Result<(), Problem> {
    let name = &tensor.name;
    let stacked = match w.role {
        WeightRole::Experts => true,
        WeightRole::Small => tensor.dims[2] == 1,
        _ => false,
    };
    ensure!(stacked && tensor.dims[3] == 1, "{name} is read as {:?} and has no experts to divide", w.role);
    ensure!(!w.parts.is_empty(), "holds no expert of {name}");
    ranges(&w.parts, tensor.dims[w.experts_dim()]).map_err(|problem| format!("experts of {name}: {problem}"))
}

/// Whether ranges ascend, hold something, and end within `count`.
fn ranges(held: &[Part], count: u64) -> Result<(), Problem> {
    let mut end = 0;
    for part in held {
        ensure!(part.begin >= end && part.end > part.begin, "{}..{} after {end}", part.begin, part.end);
        end = part.end;
    }
    ensure!(u64::from(end) <= count, "end at {end} of {count}");
    Ok(())
}

/// Checks that divided stacks are whole, and who reads them.
pub(super) fn experts(program: &Program) -> Result<()> {
    whole(program)?;
    let mut held: BTreeMap<ValueId, &[Part]> = BTreeMap::new();
    for (i, op) in program.ops.iter().enumerate() {
        let at = |problem| invalid("program", format!("ops[{i}] ({})", op.kind.name()), problem);
        if let OpKind::HeldIds { ids, held: parts, out } = &op.kind {
            held_ids(program, ids.value, parts, out.value, &held).map_err(at)?;
            held.insert(out.value, parts);
        } else {
            reader(program, &op.kind, &held).map_err(at)?;
        }
    }
    Ok(())
}

/// Each expert of a divided tensor is held by exactly one weight.
fn whole(program: &Program) -> Result<()> {
    let mut holders: BTreeMap<u32, Vec<(Part, usize)>> = BTreeMap::new();
    for (i, weight) in program.weights.iter().enumerate() {
        let parts = weight.experts().into_iter().flatten().map(|part| (*part, i));
        parts.for_each(|part| holders.entry(weight.tensor.0).or_default().push(part));
    }
    for (i, weight) in program.weights.iter().enumerate().filter(|(_, weight)| weight.axis != PartAxis::Experts) {
        if holders.contains_key(&weight.tensor.0) {
            let problem = "holds all experts of a tensor whose experts other weights hold".to_owned();
            return Err(invalid("program", format!("weights[{i}]"), problem));
        }
    }
    for (tensor, mut parts) in holders {
        parts.sort_by_key(|(part, _)| part.begin);
        let (mut covered, mut last) = (0, 0);
        for (part, weight) in parts {
            if part.begin != covered {
                let problem = format!("holds experts {}..{}, expected from {covered}", part.begin, part.end);
                return Err(invalid("program", format!("weights[{weight}]"), problem));
            }
            (covered, last) = (part.end, weight);
        }
        let tensor = &program.tensors[tensor as usize];
        let count = tensor.dims[program.weights[last].experts_dim()];
        if u64::from(covered) != count {
            let problem = format!("experts {covered}..{count} of {} are held by no weight", tensor.name);
            return Err(invalid("program", format!("weights[{last}]"), problem));
        }
    }
    Ok(())
}

fn held_ids(
    program: &Program,
    ids: ValueId,
    parts: &[Part],
    out: ValueId,
    held: &BTreeMap<ValueId, &[Part]>,
) -> Result<(), Problem> {
    let routers = program.ops.iter().filter_map(|op| match &op.kind {
        OpKind::Router { router, ids, .. } => Some((ids.value, router.experts)),
        _ => None,
    });
    let experts = routers.filter(|(value, _)| *value == ids).map(|(_, experts)| experts).next();
    let experts = experts.ok_or_else(|| "its ids come from no router".to_owned())?;
    ensure!(!held.contains_key(&out), "writes a value that holds other ids");
    ensure!(!parts.is_empty(), "holds no expert");
    ranges(parts, experts.into())
}

fn reader(program: &Program, kind: &OpKind, held: &BTreeMap<ValueId, &[Part]>) -> Result<(), Problem> {
    match kind {
        OpKind::HeldSum { ids, .. } => {
            ensure!(held.contains_key(&ids.value), "its ids are not those of held experts");
        }
        OpKind::ExpertMatMul { ids, parts, .. } => {
            let own = held.get(&ids.value).copied();
            for weight in parts.iter().flat_map(|part| [Some(part.weight), part.bias]).flatten() {
                let found = program.weights[weight.index()].experts();
                ensure!(found == own, "weight {} holds experts {found:?}, its ids are of {own:?}", weight.0);
            }
        }
        _ => {
            let divided = |weight: crate::ids::WeightId| program.weights[weight.index()].experts().is_some();
            ensure!(!kind.weights().any(divided), "reads a stack whose experts are divided");
        }
    }
    Ok(())
}
