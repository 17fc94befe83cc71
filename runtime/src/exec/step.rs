//! A program's operators resolved for execution: places in memory instead of values, parameters in the kernels' terms.
//! It holds no memory itself. Next: `prepare.rs` (makes them), `run.rs` (walks them).

use super::shared::{Home, Place};
use kernels::cpu::ops::attention::AttentionShape;
use kernels::cpu::ops::delta::HeadMap;
use kernels::cpu::ops::elementwise::{ColGroups, Glu, Temperature};
use kernels::cpu::ops::rope::RopePairing;
use kernels::cpu::ops::router::{RouterScore, RouterWeights};
use plan_format::program::Rows;
use plan_format::{OpId, StateId, WeightId};
use std::ops::Range;
use std::sync::Arc;

/// A piece of a round between possible barriers.
#[derive(Clone, Debug)]
pub struct Step {
    /// The operator that it belongs to.
    pub op: OpId,
    /// What it does.
    pub task: Task,
    /// Whether all workers meet after it.
    pub barrier: bool,
}

/// What a step does, by how its work is divided.
#[derive(Clone, Debug)]
pub enum Task {
    /// Row by row, each row by the same worker in all light steps up to the next barrier.
    Light { rows: Rows, light: Light },
    /// Panels of matrices.
    Product { rows: Rows, parts: Vec<Part> },
    /// Panels of a stack of matrices, one per head; activations are prepared head by head.
    HeadProduct { heads: usize, part: Part },
    /// Sorts the round's (token, choice) pairs by expert; worker 0 alone.
    GroupExperts { ids: Place, experts: usize },
    /// Brings the pairs' inputs into the order of the groups.
    PrepareExperts { x: Place, chosen: usize, experts: usize, input: ExpertRows, form: ActForm, cols: usize },
    /// Panels of the experts that the round uses.
    ExpertProduct { chosen: usize, experts: usize, input: ExpertRows, part: Part },
    /// Brings results from the order of the groups back to the pairs.
    ScatterExperts { chosen: usize, experts: usize, out: Place },
    /// Kv heads and tokens, or kv heads and segments of the cache.
    Attention(Attention),
    /// Joins segments, by kv head.
    AttentionJoin(Attention),
    /// Channels.
    Conv { x: Place, filter: WeightId, state: StateId, taps: usize, out: Place },
    /// Value heads.
    Delta(Box<Delta>),
}

/// Row-wise operators.
#[derive(Clone, Debug)]
pub enum Light {
    /// Angles of the round's positions for a rotary table.
    Trig {
        table: usize,
    },
    Embed {
        table: WeightId,
        scale: f32,
        out: Place,
    },
    Select {
        x: Place,
        out: Place,
    },
    RmsNorm {
        x: Place,
        group: usize,
        weight: Option<WeightId>,
        eps: f32,
        out: Place,
    },
    L2Norm {
        x: Place,
        group: usize,
        eps: f32,
        scale: f32,
        out: Place,
    },
    Add {
        a: Place,
        b: Place,
        out: Place,
    },
    Glu {
        gate: Place,
        up: Place,
        activation: Glu,
        out: Place,
    },
    SigmoidGate {
        x: Place,
        gate: Place,
        out: Place,
    },
    CopyCols {
        x: Place,
        out: Place,
        groups: ColGroups,
    },
    Rope {
        x: Place,
        table: usize,
        pairing: RopePairing,
        head_cols: usize,
        out: Place,
    },
    PositionScale {
        x: Place,
        temperature: Temperature,
        out: Place,
    },
    StoreKv {
        k: Place,
        v: Option<Place>,
        cache: StateId,
    },
    Softcap {
        x: Place,
        cap: f32,
        out: Place,
    },
    Router {
        logits: Place,
        bias: Option<WeightId>,
        router: RouterRule,
        ids: Place,
        weights: Place,
        /// Which of the program's routers it is.
        number: usize,
    },
    ExpertScale {
        x: Place,
        weights: Place,
        out: Place,
    },
    ExpertSum {
        x: Place,
        chosen: usize,
        weights: Option<Place>,
        /// Column of each expert's result that the first one of `out` sums.
        first_col: usize,
        out: Place,
    },
    Reduce {
        partials: Vec<Place>,
        out: Place,
    },
    /// Where each chosen expert is among those that a part holds: `places` by expert, −1 = not there.
    HeldIds {
        ids: Place,
        places: Arc<[i32]>,
        out: Place,
    },
    HeldSum {
        x: Place,
        weights: Option<Place>,
        ids: Place,
        out: Place,
    },
    /// Activations for a product: `heads` pieces of each row, head by head.
    Prepare {
        x: Place,
        form: ActForm,
        heads: usize,
    },
}

/// Form of a product's activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActForm {
    /// 8-bit integers with scales, for block types.
    Blocks,
    /// F32.
    Plain,
    /// Two rows of blocks for each row, whose results are added: 16 bits instead of 8.
    Pairs,
}

/// How experts are chosen and weighed.
#[derive(Clone, Copy, Debug)]
pub struct RouterRule {
    pub chosen: usize,
    pub score: RouterScore,
    pub weights: RouterWeights,
    pub scale: f32,
}

/// Which input row a (token, choice) pair has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertRows {
    /// The token's.
    Shared,
    /// Its own columns of the token's row.
    PerExpert,
}

/// One matrix of a product.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub weight: WeightId,
    pub bias: Option<WeightId>,
    pub form: ActForm,
    pub out: Place,
}

/// An attention operator.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    pub q: Place,
    pub cache: StateId,
    pub shape: AttentionShape,
    /// Which of a worker's scratches fits the shape.
    pub scratch: usize,
    pub sinks: Option<WeightId>,
    pub out: Place,
    /// Keys and values that are stored on the way, each by the worker who first reads them.
    pub store: Option<(Place, Option<Place>)>,
}

/// A gated delta net.
#[derive(Clone, Copy, Debug)]
pub struct Delta {
    pub q: Place,
    pub k: Place,
    pub v: Place,
    pub b: Place,
    pub alpha: Place,
    pub a: WeightId,
    pub dt: WeightId,
    pub key_heads: usize,
    pub value_heads: usize,
    pub head_cols: usize,
    pub heads: HeadMap,
    pub state: StateId,
    pub out: Place,
}

impl Light {
    /// The values that it writes.
    pub fn outputs(&self) -> [Option<Place>; 2] {
        match self {
            Light::Trig { .. } | Light::StoreKv { .. } | Light::Prepare { .. } => [None, None],
            Light::Router { ids, weights, .. } => [Some(*ids), Some(*weights)],
            Light::Embed { out, .. }
            | Light::Select { out, .. }
            | Light::RmsNorm { out, .. }
            | Light::L2Norm { out, .. }
            | Light::Add { out, .. }
            | Light::Glu { out, .. }
            | Light::SigmoidGate { out, .. }
            | Light::CopyCols { out, .. }
            | Light::Rope { out, .. }
            | Light::PositionScale { out, .. }
            | Light::Softcap { out, .. }
            | Light::ExpertScale { out, .. }
            | Light::ExpertSum { out, .. }
            | Light::Reduce { out, .. }
            | Light::HeldIds { out, .. }
            | Light::HeldSum { out, .. } => [Some(*out), None],
        }
    }

    /// The operator on some of the columns that it writes, `of` so many, if it can be divided so.
    pub fn by_cols(&self, of: impl Fn(usize) -> Range<usize>) -> Option<Light> {
        match self {
            Light::Glu { gate, up, activation, out } => {
                let share = |place: &Place| place.col_range(of(out.cols));
                Some(Light::Glu { gate: share(gate), up: share(up), activation: *activation, out: share(out) })
            }
            &Light::ExpertSum { x, chosen, weights, first_col, out } => {
                let cols = of(out.cols);
                let (first_col, out) = (first_col + cols.start, out.col_range(cols));
                Some(Light::ExpertSum { x, chosen, weights, first_col, out })
            }
            _ => None,
        }
    }

    /// Whether it writes this cache.
    pub fn stores(&self, state: StateId) -> bool {
        matches!(self, Light::StoreKv { cache, .. } if *cache == state)
    }

    /// Whether what it writes is for all workers: then only one of them may compute it.
    pub fn is_for_all(&self) -> bool {
        let shared = |place: &Place| place.home == Home::Shared;
        matches!(self, Light::StoreKv { .. }) || self.outputs().iter().flatten().any(shared)
    }
}
