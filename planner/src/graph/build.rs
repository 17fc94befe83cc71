//! Puts a graph together: tables by name, operators by what they read and write. Edges follow from the operands, so
//! nobody can forget one. Nothing here knows a model family (`arch` does). Next: `verify.rs`.

use super::{Edge, Graph, GraphItem, Node};
use petgraph::stable_graph::{NodeIndex, StableDiGraph};
use plan_format::operands::{Columns, Operand, StateAccess};
use plan_format::program::{
    Elem, ItemKind, OpKind, Part, PartAxis, Rope, Rows, State, StateKind, Tensor, Value, View, Weight, WeightRole,
};
use plan_format::{ItemId, RopeId, StateId, TensorId, ValueId, WeightId};
use std::collections::HashMap;

/// A graph under construction.
#[derive(Debug)]
pub struct Builder {
    graph: Graph,
    weight_of: HashMap<String, WeightId>,
    writers: Vec<Vec<(Columns, NodeIndex)>>,
    state_writers: Vec<Option<NodeIndex>>,
}

impl Builder {
    /// An empty graph. `vocab` are rows of the embedding table, `context_tokens` the model's longest position.
    pub fn new(architecture: &str, vocab: u32, context_tokens: u32) -> Self {
        let graph = Graph {
            architecture: architecture.to_owned(),
            vocab,
            context_tokens,
            tensors: Vec::new(),
            weights: Vec::new(),
            values: Vec::new(),
            states: Vec::new(),
            ropes: Vec::new(),
            items: Vec::new(),
            ops: StableDiGraph::new(),
            logits: ValueId(0),
        };
        Builder { graph, weight_of: HashMap::new(), writers: Vec::new(), state_writers: Vec::new() }
    }

    /// Starts an item; operators added from now on belong to it.
    pub fn item(&mut self, kind: ItemKind, name: String, layer: Option<u32>) {
        self.graph.items.push(GraphItem { name, kind, layer });
    }

    /// The whole of a tensor as an operand. A tensor asked for twice is the same weight, with the first role.
    pub fn weight(&mut self, tensor: Tensor, role: WeightRole) -> WeightId {
        if let Some(&known) = self.weight_of.get(&tensor.name) {
            return known;
        }
        let id = WeightId(self.graph.weights.len() as u32);
        self.weight_of.insert(tensor.name.clone(), id);
        // Lowering accepts only dimensions under 2^32.
        let end = tensor.rows() as u32;
        let tensor_id = TensorId(self.graph.tensors.len() as u32);
        self.graph.tensors.push(tensor);
        let parts = vec![Part { begin: 0, end }];
        self.graph.weights.push(Weight { tensor: tensor_id, role, axis: PartAxis::Rows, parts });
        id
    }

    /// A new F32 value with one row per token.
    pub fn value(&mut self, name: String, cols: u32) -> View {
        self.value_of(Value { name, rows: Rows::Tokens, cols, elem: Elem::F32 })
    }

    /// A new value of any kind.
    pub fn value_of(&mut self, value: Value) -> View {
        let id = ValueId(self.graph.values.len() as u32);
        let view = View { value: id, first_col: 0, cols: value.cols };
        self.graph.values.push(value);
        self.writers.push(Vec::new());
        view
    }

    /// A new state.
    pub fn state(&mut self, name: String, kind: StateKind) -> StateId {
        self.graph.states.push(State { name, kind });
        self.state_writers.push(None);
        StateId(self.graph.states.len() as u32 - 1)
    }

    /// A rotary table; equal ones are shared.
    pub fn rope(&mut self, rope: Rope) -> RopeId {
        let known = self.graph.ropes.iter().position(|r| *r == rope);
        let index = known.unwrap_or_else(|| {
            self.graph.ropes.push(rope);
            self.graph.ropes.len() - 1
        });
        RopeId(index as u32)
    }

    /// Adds an operator to the current item, with an edge from each operator whose results it reads.
    pub fn op(&mut self, kind: OpKind) {
        let item = ItemId((self.graph.items.len() as u32).saturating_sub(1));
        let operands = kind.operands();
        let node = self.graph.ops.add_node(Node { item, kind });
        for operand in operands {
            match operand {
                Operand::Read(columns) => self.connect_value(node, columns),
                Operand::Write(columns) => self.writers[columns.value.index()].push((columns, node)),
                Operand::State(state, access) => self.connect_state(node, state, access),
                Operand::Weight(_) | Operand::Rope(_) => {}
            }
        }
    }

    fn connect_value(&mut self, reader: NodeIndex, read: Columns) {
        let edge = Edge::Value(read.value);
        for &(written, writer) in &self.writers[read.value.index()] {
            let overlaps = span(written).0 < span(read).1 && span(read).0 < span(written).1;
            let known = self.graph.ops.edges_connecting(writer, reader).any(|known| *known.weight() == edge);
            if overlaps && !known {
                self.graph.ops.add_edge(writer, reader, edge);
            }
        }
    }

    fn connect_state(&mut self, node: NodeIndex, state: StateId, access: StateAccess) {
        let writer = &mut self.state_writers[state.index()];
        match (access, *writer) {
            (StateAccess::Read, Some(writer)) => {
                self.graph.ops.add_edge(writer, node, Edge::State(state));
            }
            (StateAccess::Read, None) => {}
            (StateAccess::Write | StateAccess::Update, _) => *writer = Some(node),
        }
    }

    /// The graph, with the value that holds the logits.
    pub fn finish(mut self, logits: View) -> Graph {
        self.graph.logits = logits.value;
        self.graph
    }
}

/// First column touched and one past the last.
fn span(c: Columns) -> (u64, u64) {
    let last = u64::from(c.first_col) + u64::from(c.stride) * u64::from(c.groups.saturating_sub(1));
    (u64::from(c.first_col), last + u64::from(c.width))
}
