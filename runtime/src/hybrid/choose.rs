//! Which schedule a round takes, and what the plan expects of it. Pure. Next: `driver.rs`.

use crate::exec::Round;
use plan_format::artifact::Plan;
use plan_format::costs::CaseCosts;
use plan_format::schedule::{Phase, RegimeMap};
use std::ops::Range;

/// The plan's table of schedules.
#[derive(Clone, Debug)]
pub struct Table {
    regimes: RegimeMap,
    phases: Vec<Phase>,
    threads: Vec<usize>,
    cases: Vec<Vec<CaseTimes>>,
    pinned: Option<usize>,
}

/// A case of the cost model, and where a schedule's team stands in it.
#[derive(Clone, Debug)]
struct CaseTimes {
    context_tokens: u32,
    case: CaseCosts,
    team: Range<usize>,
}

impl Table {
    /// The table of a plan. With `pinned`, rounds of that schedule's phase always take it.
    pub fn new(plan: &Plan, pinned: Option<usize>) -> Self {
        let items = plan.program.items.len();
        let cases = plan.schedules.iter().map(|schedule| {
            let team = plan.costs.team_index(schedule.cpu_threads).unwrap_or(0);
            let of_phase = plan.costs.cases.iter().filter(|case| case.phase == schedule.phase);
            let times = |case: &CaseCosts| CaseTimes {
                context_tokens: case.context_tokens,
                case: case.clone(),
                team: team * items..(team + 1) * items,
            };
            of_phase.map(times).collect()
        });
        Table {
            regimes: plan.regimes.clone(),
            phases: plan.schedules.iter().map(|schedule| schedule.phase).collect(),
            threads: plan.schedules.iter().map(|schedule| usize::from(schedule.cpu_threads)).collect(),
            cases: cases.collect(),
            pinned,
        }
    }

    /// From now on rounds of this schedule's phase take it; `None` = they choose again.
    pub fn pin(&mut self, schedule: Option<usize>) {
        self.pinned = schedule;
    }

    /// The schedule that a round must take.
    pub fn pinned(&self, round: &Round) -> Option<usize> {
        let phase = self.phase(round.tokens.len(), round.outputs.len());
        self.pinned.filter(|&pinned| self.phases.get(pinned) == Some(&phase))
    }

    /// Schedules of decoding.
    pub fn decoding(&self) -> Vec<usize> {
        (0..self.phases.len()).filter(|&schedule| self.phases[schedule] == Phase::Decode).collect()
    }

    /// The schedule of a round at no load.
    pub fn choose(&self, round: &Round) -> usize {
        let phase = self.phase(round.tokens.len(), round.outputs.len());
        self.pinned(round).unwrap_or_else(|| self.idle_cell(phase, context_of(round)))
    }

    /// Whether a round is as large as those that its phase's times are for.
    pub fn is_whole(&self, round: &Round) -> bool {
        let tokens = match self.phase(round.tokens.len(), round.outputs.len()) {
            Phase::Decode => 1,
            Phase::Verify { tokens } => tokens,
            Phase::Prefill { ubatch_tokens } => ubatch_tokens,
        };
        tokens as usize == round.tokens.len()
    }

    /// The schedule of decoding at no load, pinned or not; `None` = the plan has none.
    pub fn unloaded(&self, context_tokens: u32) -> Option<usize> {
        self.regimes.phases.contains(&Phase::Decode).then(|| self.idle_cell(Phase::Decode, context_tokens))
    }

    fn idle_cell(&self, phase: Phase, context: u32) -> usize {
        let RegimeMap { phases, context_tokens, cpu_slowdown, gpu_slowdown, link_slowdown, cells } = &self.regimes;
        let bucket = context_tokens.iter().position(|&end| end >= context);
        let bucket = bucket.unwrap_or(context_tokens.len().saturating_sub(1));
        let phase = phases.iter().position(|known| *known == phase).unwrap_or(0);
        let loads = cpu_slowdown.len() * gpu_slowdown.len() * link_slowdown.len();
        cells.get((phase * context_tokens.len() + bucket) * loads).map_or(0, |id| id.index())
    }

    /// The phase of a round: one token is decoding; a few whose logits are all wanted are verified; else it is a piece
    /// of a prompt, of the smallest kind that holds it.
    fn phase(&self, tokens: usize, outputs: usize) -> Phase {
        let known = &self.regimes.phases;
        let verify = Phase::Verify { tokens: tokens as u32 };
        if tokens == 1 {
            return Phase::Decode;
        }
        if tokens == outputs && known.contains(&verify) {
            return verify;
        }
        let sizes = known.iter().filter_map(|phase| match phase {
            Phase::Prefill { ubatch_tokens } => Some(*ubatch_tokens),
            _ => None,
        });
        let holds = sizes.clone().filter(|&size| size as usize >= tokens).min();
        let ubatch_tokens = holds.or(sizes.max()).unwrap_or(tokens as u32);
        Phase::Prefill { ubatch_tokens }
    }

    /// CPU threads of a schedule.
    pub fn threads(&self, schedule: usize) -> usize {
        self.threads[schedule]
    }

    /// Expected times of a schedule's items at the round's context: all but the CPU's, and the CPU's.
    pub fn expected(&self, schedule: usize, round: &Round) -> (Option<&CaseCosts>, &[f32]) {
        let (cases, context) = (&self.cases[schedule], context_of(round));
        let holds = cases.iter().filter(|times| times.context_tokens >= context);
        let found = holds.min_by_key(|times| times.context_tokens);
        let found = found.or_else(|| cases.iter().max_by_key(|times| times.context_tokens));
        found.map_or((None, &[]), |times| (Some(&times.case), times.case.cpu_us.get(times.team.clone()).unwrap_or(&[])))
    }
}

/// One more than the highest position of a round.
pub fn context_of(round: &Round) -> u32 {
    round.positions.iter().max().map_or(0, |&position| position + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan_format::ScheduleId;

    fn table(phases: &[Phase], pinned: Option<usize>) -> Table {
        let regimes = RegimeMap {
            phases: phases.to_vec(),
            context_tokens: vec![100, 1000],
            cpu_slowdown: vec![1.0, 2.0],
            gpu_slowdown: vec![1.0],
            link_slowdown: vec![1.0],
            cells: (0..phases.len() as u32 * 4).map(ScheduleId).collect(),
        };
        let of_cell = |phase: &Phase| [*phase; 4];
        let phases: Vec<Phase> = phases.iter().flat_map(of_cell).collect();
        Table { regimes, threads: vec![1; phases.len()], cases: vec![Vec::new(); phases.len()], phases, pinned }
    }

    #[track_caller]
    fn check(pinned: Option<usize>, tokens: usize, outputs: usize, last: u32, schedule: usize) {
        let prefill = |ubatch_tokens| Phase::Prefill { ubatch_tokens };
        let table = table(&[Phase::Decode, Phase::Verify { tokens: 4 }, prefill(16), prefill(64)], pinned);
        let positions: Vec<u32> = (last + 1 - tokens as u32..=last).collect();
        let (ids, wanted) = (vec![0; tokens], vec![0; outputs]);
        let round = Round { tokens: &ids, positions: &positions, spans: &[], outputs: &wanted };
        assert_eq!(table.choose(&round), schedule);
    }

    #[test]
    fn rounds_find_their_cell() {
        check(None, 1, 1, 5, 0);
        check(None, 1, 0, 99, 0);
        check(None, 1, 1, 100, 2);
        check(None, 1, 1, 5000, 2);
        check(None, 4, 4, 50, 4);
        check(None, 4, 1, 50, 8);
        check(None, 16, 1, 500, 10);
        check(None, 17, 1, 50, 12);
        check(None, 999, 1, 1000, 14);
    }

    #[test]
    fn a_pinned_schedule_holds_for_its_phase() {
        check(Some(3), 1, 1, 5, 3);
        check(Some(3), 4, 1, 50, 8);
        check(Some(13), 20, 0, 500, 13);
    }
}
