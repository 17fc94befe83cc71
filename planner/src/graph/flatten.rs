//! From the graph to the flat program: items in topological order, each one's operators contiguous, ids as they were.
//! It decides nothing about placement. Next: `plan_format::verify`, which checks the result.

use super::verify::{GraphError, item_order, stable_order};
use super::{Graph, verify_graph};
use petgraph::graph::DiGraph;
use petgraph::stable_graph::NodeIndex;
use petgraph::visit::EdgeRef;
use plan_format::program::{Item, Op, OpKind, Program, WeightRole};
use plan_format::{ItemId, StateId, WeightId};
use std::collections::HashMap;

/// The program that computes what the graph says. Equal graphs give equal programs.
///
/// # Errors
/// The graph is none (see [`verify_graph`]).
pub fn flatten(graph: &Graph) -> Result<Program, GraphError> {
    verify_graph(graph)?;
    let order = item_order(graph).map_err(|item| GraphError::ItemCycle { item: graph.items[item].name.clone() })?;
    let mut nodes_of: Vec<Vec<NodeIndex>> = vec![Vec::new(); graph.items.len()];
    for node in graph.ops.node_indices() {
        nodes_of[graph.ops[node].item.index()].push(node);
    }
    let mut ops = Vec::with_capacity(graph.ops.node_count());
    let mut items = Vec::with_capacity(graph.items.len());
    for (position, &index) in order.iter().enumerate() {
        let nodes = op_order(graph, &nodes_of[index])?;
        let first_op = ops.len();
        ops.extend(nodes.iter().map(|&n| Op { item: ItemId(position as u32), kind: graph.ops[n].kind.clone() }));
        items.push(item(graph, index, first_op, &ops[first_op..]));
    }
    leave_tied_weights_to_the_head(graph, &mut items);
    Ok(Program {
        architecture: graph.architecture.clone(),
        vocab: graph.vocab,
        context_tokens: graph.context_tokens,
        tensors: graph.tensors.clone(),
        weights: graph.weights.clone(),
        values: graph.values.clone(),
        states: graph.states.clone(),
        ropes: graph.ropes.clone(),
        ops,
        items,
        logits: graph.logits,
    })
}

/// The operators of one item in an order that respects the edges among them.
fn op_order(graph: &Graph, nodes: &[NodeIndex]) -> Result<Vec<NodeIndex>, GraphError> {
    let local: HashMap<NodeIndex, NodeIndex> =
        nodes.iter().enumerate().map(|(i, &node)| (node, NodeIndex::new(i))).collect();
    let mut inner: DiGraph<(), ()> = DiGraph::new();
    for _ in nodes {
        inner.add_node(());
    }
    for (&node, &target) in &local {
        for edge in graph.ops.edges_directed(node, petgraph::Direction::Incoming) {
            if let Some(&source) = local.get(&edge.source()) {
                inner.update_edge(source, target, ());
            }
        }
    }
    let order = stable_order(&inner).map_err(|stuck| GraphError::Cycle { node: nodes[stuck.index()].index() })?;
    Ok(order.into_iter().map(|i| nodes[i.index()]).collect())
}

fn item(graph: &Graph, index: usize, first_op: usize, ops: &[Op]) -> Item {
    let of = &graph.items[index];
    let large = |w: &WeightId| graph.weights[w.index()].role != WeightRole::Small;
    let mut weights: Vec<WeightId> = distinct(ops, |kind| kind.weights().collect());
    weights.retain(large);
    let states: Vec<StateId> = distinct(ops, |kind| kind.states().map(|(state, _)| state).collect());
    Item {
        name: of.name.clone(),
        kind: of.kind,
        layer: of.layer,
        first_op: first_op as u32,
        op_count: ops.len() as u32,
        weights,
        states,
    }
}

fn distinct<T: PartialEq>(ops: &[Op], list: impl Fn(&OpKind) -> Vec<T>) -> Vec<T> {
    let mut found = Vec::new();
    for id in ops.iter().flat_map(|op| list(&op.kind)) {
        if !found.contains(&id) {
            found.push(id);
        }
    }
    found
}

/// A tied head is read by two items; the last of them, the head, places it, so that its bytes are counted once.
fn leave_tied_weights_to_the_head(graph: &Graph, items: &mut [Item]) {
    let tied = |w: &WeightId| graph.weights[w.index()].role == WeightRole::TiedHead;
    let mut placed: Vec<WeightId> = Vec::new();
    for item in items.iter_mut().rev() {
        item.weights.retain(|w| !tied(w) || !placed.contains(w));
        placed.extend(item.weights.iter().filter(|w| tied(w)));
    }
}
