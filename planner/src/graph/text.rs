//! A graph as text, one line per operator with what comes in: for snapshots and for people. Nothing parses it.

use super::{Edge, Graph};
use petgraph::Direction;
use petgraph::visit::EdgeRef;
use plan_format::text::Tables;
use std::fmt::Write;

/// The graph's items, their operators and edges.
pub fn graph_text(graph: &Graph) -> String {
    let tables = Tables {
        tensors: &graph.tensors,
        weights: &graph.weights,
        values: &graph.values,
        states: &graph.states,
        ropes: &graph.ropes,
    };
    let mut text = format!("graph {} vocab={} context={}\n", graph.architecture, graph.vocab, graph.context_tokens);
    for (index, item) in graph.items.iter().enumerate() {
        let layer = item.layer.map_or(String::new(), |layer| format!(" layer={layer}"));
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{} {:?}{layer}", item.name, item.kind);
        for node in graph.ops.node_indices().filter(|&node| graph.ops[node].item.index() == index) {
            let mut from: Vec<String> =
                graph.ops.edges_directed(node, Direction::Incoming).map(|edge| source(&edge)).collect();
            from.sort();
            let op = tables.op(&graph.ops[node].kind);
            let _ = writeln!(text, "  {:>3} [{}] {op}", node.index(), from.join(" "));
        }
    }
    text
}

fn source<'a>(edge: &impl EdgeRef<NodeId = petgraph::stable_graph::NodeIndex, Weight = Edge>) -> String
where
    Edge: 'a,
{
    match edge.weight() {
        Edge::Value(_) => format!("{:03}", edge.source().index()),
        Edge::State(_) => format!("{:03}s", edge.source().index()),
    }
}
