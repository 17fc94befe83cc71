//! What is measured, at which token counts, and how long each figure may take. No clock here.

use crate::profile::{Backend, Curve, Operator, Point, Profile};
use device::probe::Effort;
use plan_format::WeightId;
use plan_format::program::{OpKind, Program};
use std::time::Duration;

/// Time for a figure below which a single round must do.
const HASTY: Duration = Duration::from_millis(3);

/// How long measuring may take, how much memory it walks through, and where curves have their points. From the last
/// point on the time per token is taken to be constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// All figures together, about; a tenth more where some must be taken again.
    pub all: Duration,
    /// Longest for one figure's turn.
    pub figure_most: Duration,
    /// How often each figure has its turn.
    pub sweeps: usize,
    /// Memory that buffers rotate through.
    pub rotation_bytes: usize,
    /// Tokens at which products are timed.
    pub product_tokens: &'static [u32],
    /// Tokens per expert.
    pub expert_tokens: &'static [u32],
    /// Query rows per key head.
    pub attention_rows: &'static [u32],
    /// Tokens of the delta net.
    pub delta_tokens: &'static [u32],
    /// Tokens at which a model's own matrices are timed; above 64 on the CPU on a slice of rows.
    pub point_tokens: &'static [u32],
    /// The same for one of its experts, over which a ubatch is spread.
    pub expert_point_tokens: &'static [u32],
}

impl Pace {
    /// For `ats-plan profile`.
    pub const FULL: Pace = Pace {
        all: Duration::from_secs(32),
        figure_most: Duration::from_millis(100),
        sweeps: 3,
        rotation_bytes: 1 << 30,
        product_tokens: &[1, 2, 4, 8, 16, 64, 256],
        expert_tokens: &[1, 4, 16, 64],
        attention_rows: &[1, 4, 16, 128, 1024],
        delta_tokens: &[1, 16, 64],
        point_tokens: &[1, 2, 4, 8, 16, 64, 256, 1024, 4096],
        expert_point_tokens: &[1, 2, 8, 64, 256, 1024],
    };
    /// For a `compile` that finds no profile: good enough to choose by, over sooner.
    pub const QUICK: Pace = Pace {
        all: Duration::from_millis(1800),
        figure_most: Duration::from_millis(20),
        sweeps: 3,
        rotation_bytes: 256 << 20,
        product_tokens: &[1, 4, 32, 128],
        expert_tokens: &[1, 8, 64],
        attention_rows: &[1, 4, 128],
        delta_tokens: &[1, 16],
        point_tokens: &[1, 4, 32, 128],
        expert_point_tokens: &[1, 8, 64],
    };
    /// For the shapes of a model that a `compile` meets for the first time.
    pub const SHAPES: Pace =
        Pace { all: Duration::from_millis(1500), figure_most: Duration::from_millis(10), ..Pace::QUICK };

    /// Effort of the next of `left` turns when `remaining` time is left for them.
    pub fn effort(&self, left: usize, remaining: Duration) -> Effort {
        let time = (remaining / left.max(1) as u32).min(self.figure_most);
        // On a machine that is busy with other things one round of each is better than none of some.
        let warm_up_rounds = if time < HASTY { 0 } else { 1 };
        Effort { warm_up_rounds, rounds: (1, 1000), time }
    }

    /// Points of a kind of operator's curve.
    pub fn points(&self, operator: Operator) -> &'static [u32] {
        match operator {
            Operator::Matmul => self.product_tokens,
            Operator::ExpertMatmul => self.expert_tokens,
            Operator::Attention => self.attention_rows,
            Operator::DeltaNet => self.delta_tokens,
            Operator::Elementwise => &[1],
        }
    }
}

/// Where a curve must reach: the largest ubatch, with as many query heads per key head as any model has.
pub fn last_point(operator: Operator) -> u32 {
    if operator == Operator::Attention { 131_072 } else { 4096 }
}

/// Team sizes that may be planned: one, powers of two, three quarters, all.
pub fn teams(threads_at_most: u16) -> Vec<u16> {
    let powers = std::iter::successors(Some(1_u16), |threads| threads.checked_mul(2));
    let mut teams: Vec<u16> = powers.take_while(|&threads| threads < threads_at_most).collect();
    teams.extend([threads_at_most / 4 * 3, threads_at_most]);
    teams.retain(|&threads| threads > 0);
    teams.sort_unstable();
    teams.dedup();
    teams
}

/// Team sizes at which operators are timed; those between are interpolated.
pub fn timed_teams(threads_at_most: u16) -> Vec<u16> {
    let mut teams = vec![1, threads_at_most.div_ceil(2), threads_at_most];
    teams.sort_unstable();
    teams.dedup();
    teams
}

/// A weight's shape in a model, to be timed as it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shape {
    /// Dense, or one expert.
    pub operator: Operator,
    /// ggml type.
    pub weight_type: &'static str,
    /// Outputs.
    pub rows: u64,
    /// Inputs.
    pub columns: u64,
}

impl Shape {
    /// Tokens at which it is timed.
    pub fn tokens(&self, pace: &Pace) -> &'static [u32] {
        if self.operator == Operator::ExpertMatmul { pace.expert_point_tokens } else { pace.point_tokens }
    }

    /// Whether a point is of this shape.
    fn is_of(&self, point: &Point) -> bool {
        (point.operator, point.rows, point.columns) == (self.operator, self.rows, self.columns)
            && point.weight_type == self.weight_type
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let of = if self.operator == Operator::ExpertMatmul { " of an expert" } else { "" };
        write!(f, "{} {}x{}{of}", self.weight_type, self.rows, self.columns)
    }
}

/// Those of `shapes` of which a profile has no point.
pub fn unmeasured(profile: &Profile, backend: Backend, shapes: &[Shape]) -> Vec<Shape> {
    let has = |shape: &&Shape| profile.points.iter().any(|point| point.backend == backend && shape.is_of(point));
    shapes.iter().filter(|shape| !has(shape)).cloned().collect()
}

/// Shapes of a program's products, dense and of one expert, each once, in order.
pub fn shapes(program: &Program) -> Vec<Shape> {
    let parts = program.ops.iter().filter_map(|op| match &op.kind {
        OpKind::MatMul { parts, .. } => Some((Operator::Matmul, parts)),
        OpKind::ExpertMatMul { parts, .. } => Some((Operator::ExpertMatmul, parts)),
        _ => None,
    });
    let weights = parts.flat_map(|(operator, parts)| parts.iter().map(move |part| (operator, part.weight)));
    let shape = |(operator, weight): (Operator, WeightId)| {
        let tensor = &program.tensors[program.weights[weight.index()].tensor.index()];
        let weight_type = gguf::GgmlType::from_id(tensor.ggml_type).name();
        Shape { operator, weight_type, rows: tensor.rows(), columns: tensor.cols() }
    };
    let mut shapes: Vec<Shape> = weights.map(shape).collect();
    shapes.sort();
    shapes.dedup();
    shapes
}

/// Kinds of operator with the types that a curve is needed for.
pub type Needs = Vec<(Operator, &'static str)>;

/// Everything that any model may need.
pub fn all_needs() -> Needs {
    let types = kernels::quant::WeightType::ALL.into_iter().map(|ty| ty.name());
    let mut needs: Needs = types.flat_map(|ty| [(Operator::Matmul, ty), (Operator::ExpertMatmul, ty)]).collect();
    needs.extend([(Operator::Attention, "F16"), (Operator::Attention, "F32")]);
    needs.extend([(Operator::DeltaNet, "F32"), (Operator::Elementwise, "F32")]);
    needs
}

/// Those of `needs` for which a profile has no curve.
pub fn missing(profile: &Profile, backend: Backend, needs: &Needs) -> Needs {
    let has = |need: &&(Operator, &str)| {
        let same = |curve: &Curve| (curve.backend, curve.operator, &*curve.weight_type) == (backend, need.0, need.1);
        profile.curves.iter().any(same)
    };
    needs.iter().filter(|need| !has(need)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn teams_reach_from_one_thread_to_all() {
        let cases: [(u16, &[u16], &[u16]); 5] = [
            (1, &[1], &[1]),
            (2, &[1, 2], &[1, 2]),
            (6, &[1, 2, 3, 4, 6], &[1, 3, 6]),
            (8, &[1, 2, 4, 6, 8], &[1, 4, 8]),
            (16, &[1, 2, 4, 8, 12, 16], &[1, 8, 16]),
        ];
        for (threads, planned, timed) in cases {
            assert_eq!((teams(threads), timed_teams(threads)), (planned.to_vec(), timed.to_vec()), "{threads}");
        }
    }

    #[test]
    fn figures_share_the_time_that_is_left_and_hurry_when_there_is_little() {
        let second = Duration::from_secs(1);
        assert_eq!(Pace::FULL.effort(10, second).time, Duration::from_millis(100));
        assert_eq!(Pace::FULL.effort(1, 100 * second).time, Pace::FULL.figure_most);
        assert_eq!(Pace::FULL.effort(10, second).warm_up_rounds, 1);
        let late = Pace::QUICK.effort(1_000_000, Duration::ZERO);
        assert_eq!((late.warm_up_rounds, late.rounds.0, late.time), (0, 1, Duration::ZERO));
    }
}
