//! Invariants of a graph:
//!
//! 1. Every node names an item, and every item has a node.
//! 2. No cycle, neither of operators nor of items: an order exists in which an item's operators are contiguous.
//! 3. Every edge carries something that its source writes and its target reads.
//! 4. Every value that a node reads comes to it over an edge.
//!
//! What holds of single operators and of columns is checked once flattened (`plan_format::verify`).

use super::{Edge, Graph};
use petgraph::Direction;
use petgraph::algo::toposort;
use petgraph::graph::DiGraph;
use petgraph::stable_graph::NodeIndex;
use petgraph::visit::{EdgeRef, IntoEdgeReferences};
use plan_format::operands::StateAccess;

/// A graph that is none: an error of this program, not of a model file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    /// A node's item does not exist.
    #[error("operator {node} names item {item}, which does not exist")]
    NoItem {
        /// The node.
        node: usize,
        /// What it names.
        item: u32,
    },
    /// An item without operators.
    #[error("item {item} has no operators")]
    EmptyItem {
        /// Its name.
        item: String,
    },
    /// The operators wait for each other.
    #[error("operator {node} waits for its own result")]
    Cycle {
        /// A node on the cycle.
        node: usize,
    },
    /// Items wait for each other, so one of them cannot run in one go.
    #[error("item {item} waits for its own result")]
    ItemCycle {
        /// An item on the cycle.
        item: String,
    },
    /// An edge that its ends know nothing of.
    #[error("the edge from operator {from} to {to} carries {edge:?}, which is not written there and read here")]
    FalseEdge {
        /// Source.
        from: usize,
        /// Target.
        to: usize,
        /// What it says that it carries.
        edge: Edge,
    },
    /// A read of something that nobody hands over.
    #[error("operator {node} reads value {value}, which no edge brings")]
    MissingEdge {
        /// The reader.
        node: usize,
        /// What it reads.
        value: u32,
    },
}

/// Checks every invariant of a graph.
///
/// # Errors
/// The first that does not hold.
pub fn verify_graph(graph: &Graph) -> Result<(), GraphError> {
    items(graph)?;
    toposort(&graph.ops, None).map_err(|cycle| GraphError::Cycle { node: cycle.node_id().index() })?;
    let order = item_order(graph);
    order.map_err(|item| GraphError::ItemCycle { item: graph.items[item].name.clone() })?;
    (&graph.ops)
        .edge_references()
        .try_for_each(|edge| true_edge(graph, edge.source(), edge.target(), *edge.weight()))?;
    graph.ops.node_indices().try_for_each(|node| reads_arrive(graph, node))
}

fn items(graph: &Graph) -> Result<(), GraphError> {
    let mut used = vec![false; graph.items.len()];
    for index in graph.ops.node_indices() {
        let item = graph.ops[index].item;
        let slot = used.get_mut(item.index());
        *slot.ok_or(GraphError::NoItem { node: index.index(), item: item.0 })? = true;
    }
    match used.iter().position(|used| !used) {
        Some(empty) => Err(GraphError::EmptyItem { item: graph.items[empty].name.clone() }),
        None => Ok(()),
    }
}

/// Items in an order that respects every edge, as early items first as that allows; or an item on a cycle.
pub(super) fn item_order(graph: &Graph) -> Result<Vec<usize>, usize> {
    let mut items: DiGraph<(), ()> = DiGraph::new();
    for _ in &graph.items {
        items.add_node(());
    }
    for edge in (&graph.ops).edge_references() {
        let [from, to] = [edge.source(), edge.target()].map(|end| NodeIndex::new(graph.ops[end].item.index()));
        if from != to {
            items.update_edge(from, to, ());
        }
    }
    stable_order(&items).map(|order| order.into_iter().map(NodeIndex::index).collect()).map_err(NodeIndex::index)
}

/// Kahn's order with the least index first among those that are ready; or a node that never is.
pub(super) fn stable_order<N, E>(graph: &DiGraph<N, E>) -> Result<Vec<NodeIndex>, NodeIndex> {
    let waits = |node| graph.neighbors_directed(node, Direction::Incoming).count();
    let mut waiting: Vec<usize> = graph.node_indices().map(waits).collect();
    let mut ready: std::collections::BTreeSet<NodeIndex> =
        graph.node_indices().filter(|node| waiting[node.index()] == 0).collect();
    let mut order = Vec::with_capacity(waiting.len());
    while let Some(node) = ready.pop_first() {
        order.push(node);
        for next in graph.neighbors(node) {
            waiting[next.index()] -= 1;
            if waiting[next.index()] == 0 {
                ready.insert(next);
            }
        }
    }
    match waiting.iter().position(|&count| count > 0) {
        Some(stuck) => Err(NodeIndex::new(stuck)),
        None => Ok(order),
    }
}

fn true_edge(graph: &Graph, from: NodeIndex, to: NodeIndex, edge: Edge) -> Result<(), GraphError> {
    let (source, target) = (&graph.ops[from].kind, &graph.ops[to].kind);
    let carried = match edge {
        Edge::Value(value) => source.writes().any(|c| c.value == value) && target.reads().any(|c| c.value == value),
        Edge::State(state) => {
            source.states().any(|(s, access)| s == state && access != StateAccess::Read)
                && target.states().any(|(s, access)| s == state && access != StateAccess::Write)
        }
    };
    if carried { Ok(()) } else { Err(GraphError::FalseEdge { from: from.index(), to: to.index(), edge }) }
}

fn reads_arrive(graph: &Graph, node: NodeIndex) -> Result<(), GraphError> {
    let arrives = |value| {
        let mut edges = graph.ops.edges_directed(node, Direction::Incoming);
        edges.any(|edge| *edge.weight() == Edge::Value(value))
    };
    match graph.ops[node].kind.reads().find(|c| !arrives(c.value)) {
        Some(c) => Err(GraphError::MissingEdge { node: node.index(), value: c.value.0 }),
        None => Ok(()),
    }
}
