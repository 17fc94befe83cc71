//! Figures that others' work does not spoil. Pure: who measures is a [`Source`], in tests a made-up machine.
//!
//! On a machine with neighbours the memory is shared, and for seconds at a time it may deliver half. A disturbance only
//! takes, so of a figure's tries the best counts. It lasts, so tries lie apart: all figures are taken once, then all
//! again, and so on (sweeps). What then does not fit the others is taken again: one whose best try stands alone, and
//! one that says what no machine does (`doubt`). What that changed is said. Next: `lab.rs`, the source that measures.

use super::doubt::{Doubts, doubts};
use crate::profile::Operator;

/// What is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A plain read of memory.
    Read,
    /// An operator with weights or a cache of a type.
    Operator(Operator, &'static str),
}

/// One figure of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Figure {
    /// What.
    pub kind: Kind,
    /// Rows and columns of a model's own matrix; of the curves' usual shape if there is none.
    pub shape: Option<(u64, u64)>,
    /// Tokens.
    pub tokens: u32,
    /// Team.
    pub threads: u16,
}

impl std::fmt::Display for Figure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.kind {
            Kind::Read => write!(f, "plain reads")?,
            Kind::Operator(Operator::Matmul, ty) => write!(f, "{ty} products")?,
            Kind::Operator(Operator::ExpertMatmul, ty) => write!(f, "{ty} products with experts")?,
            Kind::Operator(Operator::Attention, ty) => write!(f, "attention over {ty}")?,
            Kind::Operator(Operator::DeltaNet, _) => write!(f, "delta nets")?,
            Kind::Operator(Operator::Elementwise, _) => write!(f, "row-wise operators")?,
        }
        if let Some((rows, columns)) = self.shape {
            write!(f, " {rows}x{columns}")?;
        }
        if !matches!(self.kind, Kind::Read | Kind::Operator(Operator::Elementwise, _)) {
            write!(f, ", {} tokens", self.tokens)?;
        }
        write!(f, ", {} threads", self.threads)
    }
}

/// What measures.
pub trait Source {
    /// Why it cannot.
    type Error;
    /// Bytes over time of a figure, in GB/s; `first` on its first turn, and `left` turns still to come, this one
    /// counted.
    fn gb_per_s(&mut self, figure: &Figure, first: bool, left: usize) -> Result<f64, Self::Error>;
    /// Whether there is time to take figures again.
    fn has_time(&self) -> bool;
}

/// Tries of a figure.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Taken {
    /// The best.
    pub best: f64,
    /// The best but one; 0 after one try.
    pub second: f64,
    /// How many.
    pub tries: usize,
}

impl Taken {
    fn add(&mut self, gb_per_s: f64) {
        self.second = self.second.max(gb_per_s.min(self.best));
        self.best = self.best.max(gb_per_s);
        self.tries += 1;
    }
}

/// Tries of a figure beyond the sweeps.
const TRIES_MORE: usize = 3;
/// Change from which taking a figure again is worth a word.
const CHANGED: f64 = 1.05;

/// Rates, and what had to be taken again.
#[derive(Clone, Debug, PartialEq)]
pub struct Settled {
    /// Of every figure.
    pub gb_per_s: Vec<f64>,
    /// Figures that were taken again.
    pub again: usize,
    /// Those of them that it changed: their index and what the sweeps had said.
    pub changed: Vec<(usize, f64)>,
    /// Figures that do not fit the others all the same.
    pub odd: usize,
}

/// Takes all figures in `sweeps`, then those that are in doubt again. `known` is what the profile says already.
pub fn settle<S: Source>(
    figures: &[Figure],
    sweeps: usize,
    known: &dyn Fn(&Figure) -> Option<f64>,
    source: &mut S,
) -> Result<Settled, S::Error> {
    let mut taken = vec![Taken::default(); figures.len()];
    let turns = figures.len() * sweeps.max(1);
    for turn in 0..turns {
        let index = turn % figures.len();
        taken[index].add(source.gb_per_s(&figures[index], turn < figures.len(), turns - turn)?);
    }
    let after_sweeps: Vec<f64> = taken.iter().map(|taken| taken.best).collect();
    for _ in 0..TRIES_MORE {
        let Doubts { contradicted, alone } = doubts(figures, &taken, known);
        let doubtful: Vec<usize> = contradicted.into_iter().chain(alone).collect();
        for (turn, &index) in doubtful.iter().enumerate() {
            if source.has_time() {
                taken[index].add(source.gb_per_s(&figures[index], false, doubtful.len() - turn)?);
            }
        }
    }
    let best = |index: usize| taken[index].best;
    let changed = (0..figures.len()).filter(|&index| best(index) > CHANGED * after_sweeps[index]);
    Ok(Settled {
        changed: changed.map(|index| (index, after_sweeps[index])).collect(),
        again: taken.iter().filter(|taken| taken.tries > sweeps.max(1)).count(),
        odd: doubts(figures, &taken, known).contradicted.len(),
        gb_per_s: taken.iter().map(|taken| taken.best).collect(),
    })
}

/// How the note about figures that were taken again begins.
pub const AGAIN: &str = "Taken again";
/// Figures that it names.
const NAMED: usize = 6;

impl Settled {
    /// What a profile says of it, if anything was taken again.
    pub fn note(&self, figures: &[Figure]) -> Option<String> {
        if self.again == 0 {
            return None;
        }
        let mut note =
            format!("{AGAIN} since they did not fit the others: {} of {} figures", self.again, figures.len());
        for &(index, before) in self.changed.iter().take(NAMED) {
            note += &format!("; {}: {before:.1} became {:.1} GB/s", figures[index], self.gb_per_s[index]);
        }
        if self.changed.len() > NAMED {
            note += &format!("; and {} more changed", self.changed.len() - NAMED);
        }
        if self.odd > 0 {
            note += &format!("; {} stayed as odd", self.odd);
        }
        Some(note)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A machine whose memory gives 14 GB/s a thread up to 130, and whose kernels reach nine tenths of that, until
    /// their arithmetic, 60 GB/s of weights by tokens a thread, takes longer. Each figure takes a tick; in some ticks
    /// others take half.
    struct Machine<'a> {
        tick: Cell<usize>,
        disturbed: &'a dyn Fn(usize, usize) -> bool,
        figures: usize,
    }

    fn truth(figure: &Figure) -> f64 {
        let threads = f64::from(figure.threads);
        let read = (14.0 * threads).min(130.0);
        match figure.kind {
            Kind::Read => read,
            Kind::Operator(..) => (0.9 * read).min(60.0 * threads / f64::from(figure.tokens)),
        }
    }

    impl Source for Machine<'_> {
        type Error = std::convert::Infallible;

        fn gb_per_s(&mut self, figure: &Figure, _: bool, left: usize) -> Result<f64, Self::Error> {
            assert!(left > 0);
            let tick = self.tick.replace(self.tick.get() + 1);
            let share = if (self.disturbed)(tick / self.figures, tick % self.figures) { 0.5 } else { 1.0 };
            Ok(truth(figure) * share)
        }

        fn has_time(&self) -> bool {
            true
        }
    }

    fn figures() -> Vec<Figure> {
        let mut figures = Vec::new();
        for threads in [1, 8, 16] {
            figures.push(Figure { kind: Kind::Read, shape: None, tokens: 1, threads });
            for ty in ["Q4_K", "Q5_K", "Q6_K", "Q8_0", "F16"] {
                let kind = Kind::Operator(Operator::Matmul, ty);
                figures.extend([1, 2, 4, 64].map(|tokens| Figure { kind, shape: None, tokens, threads }));
            }
        }
        figures
    }

    fn measured(disturbed: &dyn Fn(usize, usize) -> bool, sweeps: usize) -> (Vec<Figure>, Settled) {
        let figures = figures();
        let mut machine = Machine { tick: Cell::new(0), disturbed, figures: figures.len() };
        let Ok(settled) = settle(&figures, sweeps, &|_| None, &mut machine);
        (figures, settled)
    }

    /// Figures whose rate is not the calm machine's.
    fn wrong(figures: &[Figure], settled: &Settled) -> Vec<String> {
        let pairs = figures.iter().zip(&settled.gb_per_s);
        pairs.filter(|(figure, rate)| (truth(figure) / *rate - 1.0).abs() > 0.01).map(|(f, _)| f.to_string()).collect()
    }

    #[test]
    fn a_calm_machine_is_measured_once_per_sweep() {
        let (figures, settled) = measured(&|_, _| false, 3);
        assert_eq!(wrong(&figures, &settled), Vec::<String>::new());
        assert_eq!((settled.again, settled.odd, settled.note(&figures)), (0, 0, None));
    }

    #[test]
    fn a_disturbance_that_lasts_a_part_of_a_sweep_leaves_no_trace() {
        // A third of the figures in each sweep, at other places, and nine tenths of one sweep.
        let thirds = |sweep: usize, at: usize| at / 21 == sweep % 3;
        let (figures, settled) = measured(&thirds, 3);
        assert_eq!((wrong(&figures, &settled), settled.again), (Vec::new(), 0));
        let long = |sweep: usize, at: usize| sweep == 1 && at > 6;
        assert_eq!(wrong(&figures, &measured(&long, 3).1), Vec::<String>::new());
    }

    #[test]
    fn a_figure_that_was_disturbed_in_every_sweep_is_taken_again_and_said_so() {
        let figures = figures();
        // Between 4 tokens that read and 64 that multiply, half the rate could as well be true.
        for victim in (0..figures.len()).filter(|&at| (figures[at].tokens, figures[at].threads) != (64, 16)) {
            let every_time = |sweep: usize, at: usize| sweep < 3 && at == victim;
            let (figures, settled) = measured(&every_time, 3);
            assert_eq!(wrong(&figures, &settled), Vec::<String>::new(), "{}", figures[victim]);
            let note = settled.note(&figures).unwrap();
            assert!(note.contains(&figures[victim].to_string()), "{note}");
        }
    }

    #[test]
    fn a_figure_with_one_calm_try_is_confirmed_by_another() {
        let mostly = |sweep: usize, at: usize| sweep != 1 && sweep < 3 && at.is_multiple_of(4);
        let (figures, settled) = measured(&mostly, 3);
        assert_eq!(wrong(&figures, &settled), Vec::<String>::new());
        assert_eq!((settled.again, settled.changed.len()), (16, 0));
    }

    #[test]
    fn one_sweep_says_what_it_can() {
        let (figures, settled) = measured(&|_, _| true, 1);
        assert!(settled.gb_per_s.iter().all(|rate| *rate > 0.0) && settled.gb_per_s.len() == figures.len());
        let Ok(none) =
            settle(&[], 3, &|_| None, &mut Machine { tick: Cell::new(0), disturbed: &|_, _| false, figures: 1 });
        assert_eq!(none.gb_per_s, Vec::<f64>::new());
    }
}
