//! Every decode schedule of the plan under each load of `ats-run bench --load`: what the table holds, against what was
//! chosen from it. Not here: the phases of fixed and load-aware decoding (`mod.rs`). Next: `summary.rs`.

use super::{Bench, Machine};
use crate::cli::Failure;
use crate::cli::load::{LoadSpec, Phase};
use crate::quantiles::Quantiles;
use std::fmt::Write;

/// Tokens that settle a schedule under a load, and those that count.
const SETTLING: usize = 2;
const COUNTED: usize = 9;
/// Schedules that are named of a phase.
const NAMED: usize = 8;

/// A schedule under a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tried {
    /// The phase, by number.
    pub phase: usize,
    /// The schedule.
    pub schedule: usize,
    /// Median of a token's time.
    pub token_us: f64,
}

impl Bench<'_> {
    /// Decodes some tokens with every schedule, under every phase's load once; that of no load first.
    pub(super) fn every(&mut self, load: &LoadSpec) -> Result<Vec<Tried>, Failure> {
        let (phases, mut machine, mut tried) = (load.phases(), Machine::loaded_by(load, &self.clock)?, Vec::new());
        let is_first = |&(index, phase): &(usize, &Phase)| phases[..index].iter().all(|other| other.load != phase.load);
        for (index, phase) in phases.iter().enumerate().filter(is_first) {
            self.take(&mut machine, &phase.load)?;
            for schedule in self.engine.executor().decode_schedules() {
                tried.push(Tried { phase: index, schedule, token_us: self.try_one(schedule)? });
            }
        }
        self.take(&mut machine, &LoadSpec::default())?;
        Ok(tried)
    }

    fn try_one(&mut self, schedule: usize) -> Result<f64, Failure> {
        self.engine.executor().pin_schedule(Some(schedule));
        (0..SETTLING).try_for_each(|_| self.token().map(|_| ()))?;
        let took = (0..COUNTED).map(|_| Ok(self.token()?.1)).collect::<Result<Vec<f64>, Failure>>()?;
        Ok(Quantiles::of(took).p50_us)
    }
}

/// The fastest schedules of each load, for people. `schedules`: threads and streamed items of each.
pub fn text(tried: &[Tried], phases: &[Phase], schedules: &[(u16, usize)]) -> String {
    let mut text = String::new();
    for (index, phase) in phases.iter().enumerate() {
        let mut of_phase: Vec<&Tried> = tried.iter().filter(|tried| tried.phase == index).collect();
        of_phase.sort_by(|a, b| a.token_us.total_cmp(&b.token_us));
        let name = |tried: &&Tried| {
            let (threads, streamed) = schedules.get(tried.schedule).copied().unwrap_or_default();
            format!("{:.2} ms by {} ({threads} threads, {streamed} streamed)", tried.token_us / 1e3, tried.schedule)
        };
        let named: Vec<String> = of_phase.iter().copied().take(NAMED).map(|tried| name(&tried)).collect();
        if !named.is_empty() {
            let _ = writeln!(text, "of {} schedules under {}: {}", of_phase.len(), phase.name, named.join(", "));
        }
    }
    text
}

/// One line each, for [`super::summary::csv`].
pub fn csv(tried: &[Tried], phases: &[Phase], schedules: &[(u16, usize)]) -> String {
    let mut text = String::new();
    for Tried { phase, schedule, token_us } in tried {
        let (threads, streamed) = schedules.get(*schedule).copied().unwrap_or_default();
        let name = &phases[*phase].name;
        let _ = writeln!(text, "every,{phase},\"{name}\",,{:.4},{schedule},{threads},{streamed}", token_us / 1e3);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_schedules_of_a_load_come_first() {
        let phases = LoadSpec::parse("cpu=60").expect("a load").phases();
        let tried = [(0, 0, 9000.0), (1, 0, 30000.0), (1, 1, 20000.0)];
        let tried = tried.map(|(phase, schedule, token_us)| Tried { phase, schedule, token_us });
        let schedules = [(16, 3), (8, 5)];
        let found = text(&tried, &phases, &schedules);
        assert_eq!(
            found,
            "of 1 schedules under no load: 9.00 ms by 0 (16 threads, 3 streamed)\n\
             of 2 schedules under CPU 60 %: 20.00 ms by 1 (8 threads, 5 streamed), 30.00 ms by 0 (16 threads, 3 \
             streamed)\n"
        );
        assert!(csv(&tried, &phases, &schedules).ends_with("every,1,\"CPU 60 %\",,20.0000,1,8,5\n"));
    }
}
