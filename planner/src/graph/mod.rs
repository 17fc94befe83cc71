//! The computation graph: operators as nodes, the values and states that pass between them as edges.
//!
//! It is what lowering builds and the planner reasons about; the runtime never sees it (it gets the flat program that
//! `flatten.rs` makes of it). Tables of tensors, weights, values, states and rotary tables are those of the program
//! already. Next: `build.rs`, then `verify.rs`, `flatten.rs`, `text.rs`.

mod build;
mod flatten;
mod text;
mod verify;

pub use build::Builder;
pub use flatten::flatten;
pub use text::graph_text;
pub use verify::{GraphError, verify_graph};

use petgraph::stable_graph::StableDiGraph;
use plan_format::program::{ItemKind, OpKind, Rope, State, Tensor, Value, Weight};
use plan_format::{ItemId, StateId, ValueId};

/// A model's operators with what passes between them.
#[derive(Clone, Debug)]
pub struct Graph {
    /// `general.architecture`.
    pub architecture: String,
    /// Rows of the embedding table.
    pub vocab: u32,
    /// Longest position that the model was made for, in tokens.
    pub context_tokens: u32,
    /// Tensors used.
    pub tensors: Vec<Tensor>,
    /// Operands made of them.
    pub weights: Vec<Weight>,
    /// Activations.
    pub values: Vec<Value>,
    /// Caches and recurrent states.
    pub states: Vec<State>,
    /// Rotary tables.
    pub ropes: Vec<Rope>,
    /// Units of placement, in the order in which lowering made them.
    pub items: Vec<GraphItem>,
    /// Operators and what they hand on.
    pub ops: StableDiGraph<Node, Edge>,
    /// The value that holds the logits.
    pub logits: ValueId,
}

/// A unit of placement; which operators, weights and states are its own follows from the nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphItem {
    /// For people: `blk.3.attn_qkv`.
    pub name: String,
    /// What it is.
    pub kind: ItemKind,
    /// Layer, if it is of one.
    pub layer: Option<u32>,
}

/// An operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Node {
    /// The item that it belongs to.
    pub item: ItemId,
    /// What it computes; its ids index the graph's tables.
    pub kind: OpKind,
}

/// What an operator hands to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Edge {
    /// Columns of a value that the source writes and the target reads.
    Value(ValueId),
    /// A state that the source writes and the target reads.
    State(StateId),
}
