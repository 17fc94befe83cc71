//! Experts in two places: the form is accepted, and each of its invariants, broken once, is refused by name.

#[allow(dead_code, reason = "the example is also a plan")]
mod common;

use plan_format::program::*;
use plan_format::sizes::{experts_in, experts_of};
use plan_format::verify::verify_program;
use plan_format::{ValueId, WeightId};

const HELD: [&[(u32, u32)]; 2] = [&[(1, 2), (3, 4)], &[(0, 1), (2, 3)]];

fn parts(part: usize) -> Vec<Part> {
    HELD[part].iter().map(|&(begin, end)| Part { begin, end }).collect()
}

fn value(program: &mut Program, like: View, name: &str) -> View {
    let like = &program.values[like.value.index()];
    let value = Value { name: name.to_owned(), ..like.clone() };
    program.values.push(value);
    let value = ValueId(program.values.len() as u32 - 1);
    View { value, first_col: 0, cols: program.values[value.index()].cols }
}

/// The example with its four experts in two places, all in one item.
fn divided() -> Program {
    let mut p = common::program();
    let at = p.ops.iter().position(|op| matches!(op.kind, OpKind::ExpertMatMul { .. })).unwrap();
    let (item, head) = (p.ops[at].item, p.ops.split_off(at + 2));
    let sum = p.ops.pop().unwrap().kind;
    let product = p.ops.pop().unwrap().kind;
    let OpKind::ExpertMatMul { x, input, chosen, ids, parts: products } = product else { unreachable!() };
    let OpKind::ExpertSum { weights, out: whole, .. } = sum else { unreachable!() };
    let stack = products[0].weight;
    p.weights[stack.index()] = Weight { axis: PartAxis::Experts, parts: parts(0), ..p.weights[stack.index()].clone() };
    p.weights.push(Weight { parts: parts(1), ..p.weights[stack.index()].clone() });
    let cold = WeightId(p.weights.len() as u32 - 1);
    let mut partials = Vec::new();
    for (part, weight) in [stack, cold].into_iter().enumerate() {
        let own = if part == 0 { products[0].out } else { value(&mut p, products[0].out, "cold_outs") };
        let (held, sum) = (value(&mut p, ids, "held"), value(&mut p, whole, "sum"));
        let products = vec![MatMulPart { weight, out: own, ..products[0] }];
        let ops = [
            OpKind::HeldIds { ids, held: parts(part), out: held },
            OpKind::ExpertMatMul { x, input, chosen, ids: held, parts: products },
            OpKind::HeldSum { x: own, chosen, weights, ids: held, out: sum },
        ];
        p.ops.extend(ops.map(|kind| Op { item, kind }));
        partials.push(sum);
    }
    p.ops.push(Op { item, kind: OpKind::Reduce { partials, out: whole } });
    p.ops.extend(head);
    let added = p.ops.len() as u32 - common::program().ops.len() as u32;
    p.items[item.index()].op_count += added;
    p.items[item.index()].weights.push(cold);
    for later in &mut p.items[item.index() + 1..] {
        later.first_op += added;
    }
    p
}

#[track_caller]
fn broken(change: impl FnOnce(&mut Program), expected: &[&str]) {
    let mut program = divided();
    change(&mut program);
    let error = verify_program(&program).expect_err("it was accepted").to_string();
    assert!(expected.iter().all(|part| error.contains(part)), "{error}\nlacks one of {expected:?}");
}

/// The stack's two weights, by number.
fn stacks(program: &Program) -> [usize; 2] {
    let divided = (0..program.weights.len()).filter(|&weight| program.weights[weight].experts().is_some());
    divided.collect::<Vec<_>>().try_into().unwrap()
}

#[test]
fn parts_hold_their_own_bytes() {
    let program = divided();
    verify_program(&program).unwrap();
    let whole = common::program();
    let [hot, cold] = stacks(&program);
    for weight in [hot, cold] {
        let held = program.held(WeightId(weight as u32));
        assert_eq!((held.dims[2], held.size_bytes * 2), (2, whole.held(WeightId(hot as u32)).size_bytes));
    }
    let bytes = |p: &Program| p.items.iter().map(|item| p.item_weight_bytes(item)).sum::<u64>();
    assert_eq!(bytes(&program), bytes(&whole));
    assert!(experts_in(&parts(0)).eq([1, 3]) && experts_of(&parts(1)) == 2);
}

#[test]
fn every_expert_is_in_one_part() {
    let [hot, cold] = stacks(&divided());
    let hot_name = format!("weights[{hot}]");
    broken(|p| p.weights[hot].parts[1].begin = 2, &["weights", "holds experts 2..3, expected from 4"]);
    broken(|p| _ = p.weights[cold].parts.remove(0), &[&hot_name, "holds experts 1..2, expected from 0"]);
    broken(|p| _ = p.weights[hot].parts.pop(), &["3..4", "held by no weight"]);
    broken(|p| p.weights[hot].parts[1].end = 5, &[&hot_name, "end at 5 of 4"]);
    broken(|p| p.weights[hot].parts.swap(0, 1), &[&hot_name, "after"]);
    broken(|p| p.weights[hot].parts.clear(), &[&hot_name, "holds no expert"]);
    broken(|p| p.weights[hot].role = WeightRole::Matrix, &[&hot_name, "no experts to divide"]);
    let whole = common::program().weights[hot].clone();
    broken(|p| p.weights[cold] = whole, &["holds all experts of a tensor whose experts other weights hold"]);
}

#[test]
fn products_take_the_ids_of_their_own_experts() {
    let products = |p: &Program| -> Vec<usize> {
        (0..p.ops.len()).filter(|&op| matches!(p.ops[op].kind, OpKind::ExpertMatMul { .. })).collect()
    };
    let router_ids = |p: &Program| {
        let ids = p.ops.iter().find_map(|op| match op.kind {
            OpKind::Router { ids, .. } => Some(ids),
            _ => None,
        });
        ids.unwrap()
    };
    broken(
        |p| {
            let (ids, op) = (router_ids(p), products(p)[0]);
            let OpKind::ExpertMatMul { ids: own, .. } = &mut p.ops[op].kind else { unreachable!() };
            *own = ids;
        },
        &["expert_mat_mul", "its ids are of None"],
    );
    broken(
        |p| {
            let (op, other) = (products(p)[1], products(p)[0]);
            let OpKind::ExpertMatMul { ids, .. } = p.ops[other].kind else { unreachable!() };
            let OpKind::ExpertMatMul { ids: own, .. } = &mut p.ops[op].kind else { unreachable!() };
            *own = ids;
        },
        &["expert_mat_mul", "holds experts"],
    );
    broken(
        |p| {
            let ids = router_ids(p);
            let sum = p.ops.iter_mut().find(|op| matches!(op.kind, OpKind::HeldSum { .. })).unwrap();
            let OpKind::HeldSum { ids: own, .. } = &mut sum.kind else { unreachable!() };
            *own = ids;
        },
        &["held_sum", "not those of held experts"],
    );
    broken(
        |p| {
            let held = p.ops.iter_mut().find(|op| matches!(op.kind, OpKind::HeldIds { .. })).unwrap();
            let OpKind::HeldIds { held, .. } = &mut held.kind else { unreachable!() };
            held[1].end = 9;
        },
        &["held_ids", "end at 9 of 4"],
    );
    let held = |p: &Program| {
        let out = p.ops.iter().find_map(|op| match op.kind {
            OpKind::HeldIds { out, .. } => Some(out.value),
            _ => None,
        });
        out.unwrap().index()
    };
    broken(
        |p| {
            let value = held(p);
            p.values[value].elem = Elem::F32;
        },
        &["held_ids", "expected I32"],
    );
}
