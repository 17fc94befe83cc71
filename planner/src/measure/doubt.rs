//! Which figures of a machine cannot be true beside the others. Pure.
//!
//! Others' work makes figures slower, never faster, so of two that contradict each other the slower one is in doubt.
//! What holds on every machine: more tokens take no less time and no more than they would one part after the other,
//! more threads are not slower, no product reads faster than a plain read, and with few tokens kernels of all types
//! come about as near to that. An honest oddity costs some more tries and stays.

use super::settle::{Figure, Kind, Taken};
use crate::profile::Operator;

/// What noise may be.
const NOISE: f64 = 1.12;
/// A try that no other comes as near to stands alone. On a virtual machine with neighbours tries of a calm second
/// differ by 5 to 15 %.
const CONFIRMED: f64 = 1.2;
/// Share of what the other types reach below which a type is in doubt, and of its curve below which a point is.
const UNLIKE: f64 = 0.78;
/// Others that a type is compared with, at least, and the tokens up to which reading is what takes the time.
const OTHERS: usize = 3;
const FEW_TOKENS: u32 = 4;

/// Indices of figures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Doubts {
    /// Others say something else.
    pub contradicted: Vec<usize>,
    /// The best try stands alone.
    pub alone: Vec<usize>,
}

/// Figures to take again; `known` is what is known of a figure from before.
pub fn doubts(figures: &[Figure], taken: &[Taken], known: &dyn Fn(&Figure) -> Option<f64>) -> Doubts {
    let mut doubts = Doubts::default();
    let all = All { figures, taken };
    for (index, tries) in taken.iter().enumerate() {
        let rate = tries.best;
        if all.others(index).any(|least| rate * NOISE < least) || rate < UNLIKE * all.usual(index, known) {
            doubts.contradicted.push(index);
        } else if tries.tries > 1 && tries.second * CONFIRMED < rate {
            doubts.alone.push(index);
        }
    }
    doubts
}

struct All<'a> {
    figures: &'a [Figure],
    taken: &'a [Taken],
}

impl All<'_> {
    /// Rates below which the figure cannot be, by each other one.
    fn others(&self, index: usize) -> impl Iterator<Item = f64> {
        let figure = self.figures[index];
        let others = self.figures.iter().zip(self.taken);
        others.filter_map(move |(other, taken)| Some(least_share(&figure, other)? * taken.best))
    }

    /// What the figure would be if it were like its kind: by what is known of it, or by the other types.
    fn usual(&self, index: usize, known: &dyn Fn(&Figure) -> Option<f64>) -> f64 {
        let figure = &self.figures[index];
        if let Some(rate) = known(figure) {
            return rate;
        }
        let alike = |other: &Figure| match (figure.kind, other.kind) {
            (Kind::Operator(operator, ty), Kind::Operator(of_other, other_ty)) => {
                is_product(operator) && operator == of_other && ty != other_ty
            }
            _ => false,
        };
        let same = |other: &Figure| {
            (other.tokens, other.threads) == (figure.tokens, figure.threads) && other.shape == figure.shape
        };
        let others = self.figures.iter().zip(self.taken);
        let mut rates: Vec<f64> = others.filter(|(o, _)| alike(o) && same(o)).map(|(_, taken)| taken.best).collect();
        if figure.tokens > FEW_TOKENS || rates.len() < OTHERS {
            return 0.0;
        }
        rates.sort_by(f64::total_cmp);
        rates[(rates.len() - 1) / 2]
    }
}

fn is_product(operator: Operator) -> bool {
    matches!(operator, Operator::Matmul | Operator::ExpertMatmul)
}

/// Which part of another figure's rate a figure reaches on every machine, if that can be said.
fn least_share(figure: &Figure, other: &Figure) -> Option<f64> {
    let same_team = figure.threads == other.threads;
    let whole = |is_bound: bool| is_bound.then_some(1.0);
    match (figure.kind, other.kind) {
        (Kind::Read, Kind::Operator(operator, _)) => whole(is_product(operator) && same_team),
        (kind, other_kind) if kind != other_kind || figure.shape != other.shape => None,
        (Kind::Operator(operator, _), _) if same_team => {
            let share = f64::from(other.tokens) / f64::from(figure.tokens);
            (is_product(operator) && share != 1.0).then_some(share.min(1.0))
        }
        _ => whole(figure.threads > other.threads && figure.tokens == other.tokens),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(ty: &'static str, tokens: u32, threads: u16) -> Figure {
        Figure { kind: Kind::Operator(Operator::Matmul, ty), shape: None, tokens, threads }
    }

    fn contradicted(rates: &[(Figure, f64)], known: f64) -> Vec<usize> {
        let figures: Vec<Figure> = rates.iter().map(|(figure, _)| *figure).collect();
        let taken: Vec<Taken> = rates.iter().map(|&(_, best)| Taken { best, second: best, tries: 3 }).collect();
        let found = doubts(&figures, &taken, &|_| (known > 0.0).then_some(known));
        assert_eq!(found.alone, Vec::<usize>::new());
        found.contradicted
    }

    #[test]
    fn of_two_that_contradict_each_other_the_slower_one_is_in_doubt() {
        let read = |threads| Figure { kind: Kind::Read, shape: None, tokens: 1, threads };
        let one = |tokens, threads| figure("Q4_K", tokens, threads);
        type Case<'a> = (&'a [(Figure, f64)], &'a [usize]);
        let cases: [Case<'_>; 8] = [
            // A figure that once chose the wrong team: one token slower than two.
            (&[(one(1, 16), 55.5), (one(2, 16), 112.2), (one(4, 16), 105.5)], &[0]),
            // Within noise, and slower with more tokens as it must be.
            (&[(one(1, 16), 104.0), (one(2, 16), 108.5), (one(4, 16), 60.0)], &[]),
            // Eight tokens slower than twice four.
            (&[(one(4, 16), 105.0), (one(8, 16), 40.0)], &[1]),
            // More threads slower than fewer.
            (&[(one(1, 8), 73.0), (one(1, 16), 60.0)], &[1]),
            (&[(read(8), 77.0), (read(16), 60.0)], &[1]),
            // A product faster than the plain read: the read was disturbed.
            (&[(read(16), 90.0), (one(1, 16), 110.0)], &[0]),
            // Another team's read says nothing, nor does another type's.
            (&[(read(8), 77.0), (one(1, 16), 110.0)], &[]),
            (&[(one(1, 8), 73.0), (figure("Q5_K", 2, 8), 90.0)], &[]),
        ];
        for (rates, doubtful) in cases {
            assert_eq!(contradicted(rates, 0.0), doubtful, "{rates:?}");
        }
    }

    #[test]
    fn a_type_far_below_the_others_or_a_point_far_below_its_curve_is_in_doubt() {
        let types = |slow: f64| {
            let others = [("F16", 105.0), ("Q8_0", 106.0), ("Q5_K", 104.0), ("Q6_K", 109.0)];
            let mut all = others.map(|(ty, rate)| (figure(ty, 1, 16), rate)).to_vec();
            all.push((figure("Q4_K", 1, 16), slow));
            all
        };
        assert_eq!(contradicted(&types(55.5), 0.0), [4]);
        assert_eq!(contradicted(&types(96.0), 0.0), Vec::<usize>::new());
        // Two types are no kind.
        assert_eq!(
            contradicted(&[(figure("F16", 1, 16), 105.0), (figure("Q4_K", 1, 16), 55.5)], 0.0),
            Vec::<usize>::new()
        );
        assert_eq!(contradicted(&[(figure("Q4_K", 1, 16), 55.5)], 112.0), [0]);
        assert_eq!(contradicted(&[(figure("Q4_K", 1, 16), 95.0)], 112.0), Vec::<usize>::new());
    }

    #[test]
    fn a_best_try_that_stands_alone_is_in_doubt() {
        let taken = |best, second, tries| Taken { best, second, tries };
        let cases = [(taken(100.0, 99.0, 3), 0), (taken(100.0, 60.0, 3), 1), (taken(100.0, 0.0, 1), 0)];
        for (taken, alone) in cases {
            assert_eq!(doubts(&[figure("Q4_K", 1, 8)], &[taken], &|_| None).alone.len(), alone, "{taken:?}");
        }
    }
}
